"""Estimate the memory and the time of a fit before it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from rff_dist.engines.cluster import Cluster
from rff_dist.fitting.options import RidgeOptions
from rff_dist.text import human_bytes
from rff_dist.typing import Facts
from rff_dist.workbench.cli import shell
from rff_dist.workbench.jobs.places import SupervisedSource
from rff_dist.workbench.jobs.training import Compared, FoldOptions
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    from rff_dist.fitting.plan import Machines, Plan

#: What the estimate depends on, of the options of a fit.
_OF_FIT = ("kernel", "features", "n_components", "length_scale", "alpha", "solver", "effort", "time_limit")


@shell.command(
    "data.zarr",
    "data.zarr --n-components 16384 --n-workers 8 --n-threads 4 --memory 8GiB",
    "data.zarr --kernel gaussian --length-scale median --features fourier",
)
def plan(
    source: Annotated[SupervisedSource, "data", "x", "inputs", "y", "target"],
    options: Annotated[RidgeOptions, *_OF_FIT],
    compared: Compared,
    folds: Annotated[FoldOptions, "n_folds"],
    where: Annotated[Cluster, "scheduler", "n_workers", "n_threads", "memory", "serial", "insecure"],
) -> Document:
    """Estimate a fit: bytes to read, operations, memory and seconds. Nothing is trained."""
    from rff_dist.engines.connecting import open_engine
    from rff_dist.features.feature_options import find_features
    from rff_dist.fitting.plan import Machines, measure_gflops
    from rff_dist.products.choice import WORTH_MEASURING, rate_for
    from rff_dist.ridge import costs
    from rff_dist.ridge.choices import choices_of
    from rff_dist.selection.cross_validation import cross_validation_flops
    from rff_dist.storage.datasets import open_dataset
    from rff_dist.workbench.jobs import fits
    from rff_dist.workbench.jobs.limits import machines_of

    folds.check(options.alpha)
    options = replace(options, cv=folds.cv_of(is_grid=source.inputs is not None))
    fit = fits.Fit(options, candidates=compared.candidates(options))
    fit.check()
    dataset = open_dataset(source.data, **source.names())
    fit.check_data(dataset)
    cluster = where.in_environment().for_rows(dataset.n_samples)
    machines = machines_of(cluster)
    if machines is None:
        with open_engine(cluster) as engine:
            machines = Machines.of(engine)
    choices = choices_of(dataset, options, machines=machines, candidates=fit.candidates)
    chosen, widths = choices.plan, choices.widths
    summed = None if options.solver == "pcg" else choices.folds
    most_centres = None if find_features(options.kinds[-1]) is None else dataset.n_samples
    products, gflops = "float64", measure_gflops()
    # As the fit does: smaller ones take float64 and do not measure, which would take longer than it saves.
    if (
        most_centres is None
        and chosen.solver == "direct"
        and chosen.flops / machines.n_workers > WORTH_MEASURING
    ):
        rate = rate_for(chosen.n_components)
        products, gflops = rate.products.name, rate.gflops
    seconds = chosen.seconds(gflops)
    splits = 0 if summed is None else len(summed.splits)
    record = {
        **chosen.to_dict(),
        "gflops_per_thread": gflops,
        "products": products,
        "statistics_seconds": seconds,
        "n_folds": 1 if summed is None else summed.n_folds,
        "widths": widths,
        "most_centres": most_centres,
        "n_decompositions": splits * len(widths),
        "decomposition_flops": 0 if summed is None else cross_validation_flops(widths, splits),
        "choosing": costs.cost_of_choosing(choices, gflops=gflops),
    }
    rows = words.Table("", ("", "", ""), list(_rows(chosen, record, machines)), is_facts=True)
    return Document(f"a fit of {source.data}", [rows], record=record)


def _rows(chosen: Plan, record: Facts, machines: Machines) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table that people see: what, how much, and a note."""
    limits = (machines.memory_limit or 0, machines.client_memory_limit or 0)
    outputs = words.features_and_targets(chosen.n_features, chosen.n_targets)
    passes, timed = "two passes: for moments and for statistics", "the statistics"
    if chosen.solver == "pcg":
        passes, timed = "passes for a sketch and for 40 steps", "the sketch and the steps"
    if chosen.n_parts > 1:
        passes = f"a pass for moments, and {chosen.n_parts} that each sum up a part of Z'Z"
    widths = ", ".join(f"{width:,}" for width in record["widths"])
    if record["most_centres"] is not None and record["most_centres"] < chosen.n_components:
        widths += f" (Nyström features: {record['most_centres']:,}, one per row)"
    yield "rows", f"{chosen.n_samples:,}", f"{outputs}, D = {widths}"
    place = "the solver has a process of its own" if machines.separate_client else "in this process"
    yield "processes × threads", f"{machines.n_workers} × {machines.n_threads}", place
    tiles = f"{chosen.rows_per_block:,} rows each, in tiles of {chosen.tile_rows:,}"
    yield "blocks", f"{chosen.n_blocks:,}", tiles
    yield "read", human_bytes(chosen.bytes_read), passes
    rate = f"{record['gflops_per_thread']:.0f}e9 a second on one thread here, by {record['products']}"
    yield "operations", f"{chosen.flops:.3g}", rate
    each = ""
    if record["n_decompositions"]:
        each = f"; {record['n_folds']} folds, summed separately"
        decompositions = f"{record['n_decompositions']} decompositions, one for each fold and D"
        yield "to cross-validate", f"{record['decomposition_flops']:.3g}", decompositions
    yield "solver", chosen.solver, chosen.reason
    yield "statistics", human_bytes(chosen.statistics_bytes), f"as large for one block as for all rows{each}"
    yield "kept until published", human_bytes(chosen.ledger_bytes), "at most, so that a fit can be resumed"
    yield "peak memory, a worker", human_bytes(chosen.worker_bytes), f"of {human_bytes(limits[0])}"
    yield "peak memory, the solver", human_bytes(chosen.client_bytes), f"of {human_bytes(limits[1])}"
    yield from _choosing_rows(record["choosing"])
    seconds = words.seconds_words(record["statistics_seconds"])
    yield "seconds, about", seconds, f"for {timed}, without reading and solving"


def _choosing_rows(choosing: Facts | None) -> Iterator[tuple[str, str, str]]:
    if choosing is None:
        return
    candidates, finalists = (
        words.plural(choosing[name], "candidate") for name in ("n_candidates", "n_finalists")
    )
    if choosing["n_finalists"] < choosing["n_candidates"]:
        first = f"on {choosing['n_samples']:,} rows, D = {choosing['n_components']:,}"
        yield "choosing, first", f"up to {candidates}", f"{first}: about {choosing['seconds']:.0f} s"
    final = f"on all rows: about {choosing['final_seconds']:.0f} s"
    yield "choosing, final", f"up to {finalists}", final
