"""Estimate the memory and the time of a fit before it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

from rff_dist import fields
from rff_dist.engines.cluster import Cluster
from rff_dist.errors import InvalidParameterError
from rff_dist.fitting.options import RidgeOptions, is_one_alpha
from rff_dist.numerics import machine
from rff_dist.text import human_bytes
from rff_dist.workbench.cli import shell
from rff_dist.workbench.jobs.places import SupervisedSource
from rff_dist.workbench.jobs.training import Compared, FoldOptions
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    from rff_dist.data import blocks
    from rff_dist.fitting.plan import Machines, Plan

#: What the estimate depends on, of the options of a fit.
_OF_FIT = ("kernel", "features", "n_components", "length_scale", "alpha", "solver", "effort", "time_limit")


@shell.command(
    "data.zarr",
    "data.zarr --n-components 16384 --n-workers 8 --n-threads 4 --memory 8GiB",
    "data.zarr --kernel gaussian --length-scale median --features fourier",
    "data.zarr --n-components 4096 --alpha 1 --measure",
)
def plan(
    source: Annotated[SupervisedSource, "data", "x", "inputs", "y", "target"],
    options: Annotated[RidgeOptions, *_OF_FIT],
    compared: Compared,
    folds: Annotated[FoldOptions, "n_folds"],
    where: Annotated[Cluster, "scheduler", "n_workers", "n_threads", "memory", "serial", "insecure"],
    measure: bool = fields.flag(
        "Measure the workers here, or those of `scheduler`, for some seconds. This tells the time of the "
        "whole fit, and how many workers are worth having."
    ),
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

    if where.scheduler is not None and not measure:
        raise InvalidParameterError("`scheduler` is given, but nothing is measured there; give `measure` too")
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
    fixed_point = find_features(options.kinds[-1]) is None
    if measure and (chosen.solver == "pcg" or not fixed_point):
        raise InvalidParameterError(
            "`measure` works for random features whose sums are solved directly only; expected "
            "features='fourier' and solver='direct'. Give them, or leave it out"
        )
    products, gflops = "float64", measure_gflops()
    float64_rate = gflops * 1e9 * machine.available_cores()
    # As the fit does: smaller ones take float64 and do not measure, which would take longer than it saves.
    if fixed_point and chosen.solver == "direct" and chosen.flops / machines.n_workers > WORTH_MEASURING:
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
        "n_decompositions": splits * len(widths),
        "decomposition_flops": 0 if summed is None else cross_validation_flops(widths, splits),
        "choosing": costs.cost_of_choosing(choices, gflops=gflops),
    }
    if measure:
        operations = _CHOLESKY_OPERATIONS if is_one_alpha(options.alpha) else _EIGEN_OPERATIONS
        decompositions = record["decomposition_flops"] or operations * float(chosen.n_components) ** 3
        record["measured"] = _measure(dataset, chosen, cluster, solve=decompositions / float64_rate)
    rows = words.Table("", ("", "", ""), list(_rows(chosen, record, machines)), is_facts=True)
    return Document(f"a fit of {source.data}", [rows], record=record)


def _rows(chosen: Plan, record: Mapping[str, Any], machines: Machines) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table that people see: what, how much, and a note."""
    limits = (machines.memory_limit or 0, machines.client_memory_limit or 0)
    outputs = words.features_and_targets(chosen.n_features, chosen.n_targets)
    passes, timed = "two passes: for moments and for statistics", "the statistics"
    if chosen.solver == "pcg":
        passes, timed = "passes for a sketch and for 40 steps", "the sketch and the steps"
    if chosen.n_parts > 1:
        passes = f"a pass for moments, and {chosen.n_parts} that each sum up a part of Z'Z"
    widths = ", ".join(f"{width:,}" for width in record["widths"])
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
    if "measured" in record:
        yield from _measured_rows(record["measured"])
    else:
        seconds = words.seconds_words(record["statistics_seconds"])
        yield "seconds, about", seconds, f"for {timed}, without reading and solving"


def _measure(dataset: blocks.Dataset, chosen: Plan, cluster: Cluster, *, solve: float) -> dict[str, Any]:
    """Measure the workers; return their rates, the times of the fit, and how many are worth having."""
    from rff_dist.engines.connecting import open_engine
    from rff_dist.ridge import costs

    begun = time.perf_counter()
    with open_engine(cluster) as engine:
        started = time.perf_counter() - begun
        measured = costs.measure_rates(dataset, chosen.n_components, engine=engine)
    predicted = costs.predict(chosen, measured, solve=solve)
    worth = costs.workers_worth_having(chosen, measured)
    return {**asdict(measured), **predicted.to_dict(), "start": started, "workers_worth_having": worth}


def _measured_rows(measured: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    names = ("moments", "statistics", "solve", "beside")
    parts = ", ".join(f"{name} {words.seconds_words(measured[name])}" for name in names)
    yield "seconds, measured", words.seconds_words(measured["seconds"]), parts
    yield "before it", words.seconds_words(measured["start"]), "until the workers have started"
    yield "moved at the end", human_bytes(measured["bytes_moved"]), "between workers and to the solver"
    scheduler = words.seconds_words(measured["scheduler"])
    yield "scheduler", scheduler, "its own work and that of the solver's process"
    n_worth = measured["workers_worth_having"]
    busy = f"workers sum up rows for {measured['efficiency']:.0%} of the time of the statistics"
    yield "workers worth having", f"{n_worth:,}", busy
    yield "to take them", f"--min-workers 1 --n-workers {n_worth}", "as many as work"


# times D³: operations of a Cholesky factor, and of the eigenvectors for a path of alphas without folds
_CHOLESKY_OPERATIONS, _EIGEN_OPERATIONS = 1 / 3, 9.0


def _choosing_rows(choosing: Mapping[str, Any] | None) -> Iterator[tuple[str, str, str]]:
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
