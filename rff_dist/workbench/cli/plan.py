"""Estimate the memory and the time of a fit before it runs.

In go the options of a fit, out comes a table of bytes, operations and seconds, from
the data's metadata and the measured speed of this machine. Trying the fit would answer
too, after hours, or by running out of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from rff_dist.engines.cluster import Cluster
from rff_dist.fitting.options import RidgeOptions
from rff_dist.text import human_bytes
from rff_dist.typing import Facts
from rff_dist.workbench.cli import shell
from rff_dist.workbench.jobs.places import SupervisedDataSource
from rff_dist.workbench.jobs.training import ComparisonOptions, FoldOptions
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    from rff_dist.fitting.plan import Plan
    from rff_dist.fitting.sizes import Machines

#: What the estimate depends on, of the options of a fit.
_OF_FIT = (
    "kernel",
    "features",
    "n_components",
    "length_scale",
    "alpha",
    "solver",
    "effort",
    "time_limit",
)


@shell.command(
    "data.zarr",
    "data.zarr --n-components 16384 --n-workers 8 --n-threads 4 --memory 8GiB",
    "data.zarr --kernel gaussian --length-scale median --features fourier",
)
def plan(
    source: Annotated[SupervisedDataSource, "data", "x", "inputs", "y", "target"],
    options: Annotated[RidgeOptions, *_OF_FIT],
    compared: ComparisonOptions,
    folds: Annotated[FoldOptions, "n_folds"],
    cluster_options: Annotated[
        Cluster, "scheduler", "n_workers", "n_threads", "memory", "serial", "insecure"
    ],
) -> Document:
    """Estimate a fit: bytes to read, operations, memory and seconds.

    Nothing is trained. In a file of options for `fit`, those that the estimate does not
    depend on are skipped.
    """
    from rff_dist.engines.connecting import open_engine
    from rff_dist.features.feature_options import find_nystrom
    from rff_dist.fitting.sizes import Machines
    from rff_dist.numerics.machine import measure_gflops
    from rff_dist.products.choice import WORTH_MEASURING, rate_for
    from rff_dist.ridge import costs
    from rff_dist.ridge.choices import choices_of
    from rff_dist.storage.datasets import open_dataset
    from rff_dist.workbench.jobs import fits
    from rff_dist.workbench.jobs.limits import machines_of

    folds.check(options.alpha)
    options = replace(options, cv=folds.cv_of(is_grid=source.is_grid))
    fit = fits.Fit(options, candidates=compared.candidates(options))
    fit.check()
    dataset = open_dataset(source.data, **source.open_arguments())
    fit.check_data(dataset)
    cluster = cluster_options.in_environment().for_rows(dataset.n_samples)
    machines = machines_of(cluster)
    if machines is None:  # the cluster runs elsewhere, and knows its size
        with open_engine(cluster) as engine:
            machines = Machines.of(engine)
    # raises PlanError if memory is too small for every solver that may be taken
    choices = choices_of(dataset, options, machines=machines, candidates=fit.candidates)
    fit_plan = choices.plan
    component_counts = choices.component_counts
    summed_folds = None if options.solver == "pcg" else choices.folds
    # `kinds` has Nyström features last, if they are tried. Their centres are rows.
    tries_nystrom = find_nystrom(options.kinds[-1]) is not None
    most_centres = dataset.n_samples if tries_nystrom else None
    products = "float64"
    gflops = measure_gflops()
    # A small fit takes float64 and measures nothing: that would take longer than it
    # saves.
    if (
        not tries_nystrom
        and fit_plan.solver == "direct"
        and fit_plan.flops / machines.n_workers > WORTH_MEASURING
    ):
        rate = rate_for(fit_plan.n_components)
        products = rate.products.name
        gflops = rate.gflops
    seconds = fit_plan.seconds(gflops)
    record = {
        **fit_plan.to_dict(),
        "gflops_per_thread": gflops,
        "products": products,
        "statistics_seconds": seconds,
        "n_folds": 1 if summed_folds is None else summed_folds.n_folds,
        "widths": component_counts,
        "most_centres": most_centres,
        "choosing": costs.cost_of_choosing(choices, gflops=gflops),
        "growing": costs.cost_of_growing(choices, machines, gflops=gflops),
    }
    rows = list(_rows(fit_plan, dataset.n_targets, record, machines))
    table = words.Table("", ("", "", ""), rows, is_text=True)
    return Document(f"a fit of {source.data}", [table], record=record)


def _rows(
    fit_plan: Plan, n_targets: int, record: Facts, machines: Machines
) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of the table that people see: what, how much, and a note."""
    outputs = words.features_and_targets(fit_plan.n_features, n_targets)
    widths = ", ".join(f"{width:,}" for width in record["widths"])
    most_centres = record["most_centres"]
    if most_centres is not None and most_centres < fit_plan.n_components:
        widths += f" (Nyström features: {most_centres:,}, one per row)"
    yield "rows", f"{fit_plan.n_samples:,}", f"{outputs}, D = {widths}"

    place = "in this process"
    if machines.has_separate_client:
        place = "the solver runs in a separate process"
    yield "processes × threads", f"{machines.n_workers} × {machines.n_threads}", place

    passes = "two passes: for moments and for statistics"
    timed = "the statistics"
    if fit_plan.solver == "pcg":
        passes = "passes for a sketch and for 40 steps"
        timed = "the sketch and the steps"
    if fit_plan.n_parts > 1:
        passes = (
            f"a pass for moments, and {fit_plan.n_parts} that each sum up a part of Z'Z"
        )
    blocks = f"{fit_plan.n_blocks:,} blocks of {fit_plan.rows_per_block:,} rows"
    yield "read", human_bytes(fit_plan.bytes_read), f"{blocks}, {passes}"
    gflops = f"{record['gflops_per_thread']:.0f}e9"
    by = f"{gflops} a second on one thread here, by {record['products']}"
    yield "operations", f"{fit_plan.flops:.3g}", by
    yield "solver", fit_plan.solver, fit_plan.reason

    size = "as large for one block as for all rows"
    if record["n_folds"] > 1:
        size += f"; {record['n_folds']} folds, summed separately"
    yield "statistics", human_bytes(fit_plan.statistics_bytes), size
    for what, needed, limit in (
        ("a worker", fit_plan.worker_bytes, machines.memory_limit),
        ("the solver", fit_plan.client_bytes, machines.client_memory_limit),
    ):
        assert limit is not None  # `Machines.of` and `machines_of` set both
        there = f"of {human_bytes(limit)}"
        yield f"peak memory, {what}", human_bytes(needed), there

    seconds = record["statistics_seconds"]
    choosing = record["choosing"]
    if choosing is not None:
        seconds = choosing["seconds"] + choosing["final_seconds"]
        timed = "all of this (tuning length scales may take several times as long)"
        final = f"on all rows: about {choosing['final_seconds']:.0f} s"
        n_trained = choosing["n_trained"]
        if n_trained < choosing["n_candidates"]:
            candidates = words.plural(choosing["n_candidates"], "candidate")
            sample = f"{choosing['n_samples']:,} rows, D = {choosing['n_components']:,}"
            first = f"on {sample}: about {choosing['seconds']:.0f} s"
            yield "choosing, first", candidates, first
        yield "choosing, final", words.plural(n_trained, "candidate"), final
    growing = record["growing"]
    if growing is not None:
        memory = human_bytes(max(growing["worker_bytes"], growing["client_bytes"]))
        more = f"{memory} of memory, about {growing['seconds']:.0f} s more"
        yield "if doubling D pays", f"D = {growing['n_components']:,}", more
    peak = human_bytes(max(fit_plan.worker_bytes, fit_plan.client_bytes))
    total = f"{words.seconds_words(seconds)} s, {peak}"
    about = f"{timed}, without reading and solving; memory: the larger peak"
    yield "in all, about", total, about
