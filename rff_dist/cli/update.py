"""Bring a model up to date: the job of `flows/refresh.py` from a shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType

from rff_dist.cli.display import (
    alpha_number,
    describe_engine,
    engine_words,
    facts_view,
    passes,
    plural,
    ranges_words,
    seconds_words,
    some,
    target_names,
    titled_table,
)
from rff_dist.cli.options import (
    DataArgument,
    Insecure,
    MissingChunks,
    Scheduler,
    Serial,
    Threads,
    WeightsName,
    Where,
    Workers,
    XName,
    YName,
)
from rff_dist.cli.shell import Report, command

if TYPE_CHECKING:
    from rff_dist.refresh import Refresh

_SHOWN_COLUMNS = 5


@command(
    "rff-dist update model data.zarr",
    "rff-dist update models/sales data.zarr --test test.zarr --tolerance 0.02",
    "rff-dist update model data.zarr --dry-run --json",
    "rff-dist update model data.zarr --backfill 0 --force",
)
def update(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model with its statistics, which is replaced, or a registered one, models/NAME, whose "
            "next version is published.",
        ),
    ],
    data: DataArgument,
    test: Annotated[
        str | None,
        typer.Option(
            "--test",
            metavar="DATA",
            help="What the new model is compared with the current one on; the newest rows that the current "
            "one holds, kept out of both, if left out.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            metavar="SHARE",
            help="By how much a target's mean squared error may rise there, chance allowed for; else the "
            "current model is kept.",
        ),
    ] = 0.05,
    level: Annotated[
        float,
        typer.Option(
            "--drift-level", metavar="P", help="Probability of a drift alarm for rows that have not drifted."
        ),
    ] = 0.05,
    backfill: Annotated[
        int | None,
        typer.Option(
            "--backfill",
            metavar="ROW",
            min=0,
            help="From this row on, judge rows again that were refused before.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Publish the new model even if it is worse than tolerated.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")
    ] = False,
    x: XName = "X",
    y: YName = "y",
    sample_weight: WeightsName = None,
    missing_chunks: MissingChunks = "error",
    scheduler: Scheduler = None,
    n_workers: Workers = None,
    n_threads: Threads = None,
    serial: Serial = False,
    insecure: Insecure = False,
) -> Report:
    """Add the rows that were appended since a model was trained, exactly, if the new model is no worse."""
    where = Where(scheduler, n_workers, n_threads, serial, insecure)
    from rff_dist import refresh, storage

    names: dict[str, Any] = {"x": x, "y": y, "sample_weight": sample_weight, "missing_chunks": missing_chunks}
    with refresh.open_refresh(
        model,
        storage.open_dataset(data, **names),
        test=None if test is None else storage.open_dataset(test, **names),
        tolerance=tolerance,
        level=level,
        backfill=backfill,
        force=force,
        dry_run=dry_run,
        holder="rff-dist update",
    ) as job:
        document: dict[str, Any] = {"model": model, "data": data, **refresh.find_rows(job)}
        if document["n_new"]:
            with passes(where) as (engine, clock):
                document |= refresh.run_steps(job, engine)
                document |= {"engine": describe_engine(engine, where), "seconds": clock.seconds()}
        else:
            document |= refresh.publish_update(job)
        return Report(document, _view(document, job))


def _view(found: Mapping[str, Any], job: Refresh) -> RenderableType:
    """Return what was found and decided, for people."""
    version = "" if found["version"] is None else f", version {found['version']}"
    title = f"{found['decision']}: {found['model']}{version}"
    facts = {"because": found["reason"]}
    if found["left_out"]:
        facts["left out"] = ranges_words(found["left_out"])
    facts["holds"] = plural(found["n_samples"], "row")
    if not found["n_new"]:
        return facts_view(title, **facts, digest=found["digest"][:16])
    facts["new rows"] = f"{found['n_new']:,}, of {found['n_after'] - found['n_before']:,} appended"
    facts["drift"] = _drift_words(found["drift"])
    solution = found["solution"]
    facts["alpha"] = f"{alpha_number(solution['alpha'])}, before {alpha_number(solution['alpha_before'])}"
    status = solution["status"].replace("_", " ")
    facts["solver"] = status if status == "ok" else f"[yellow]{status}[/]: {solution['causes'][0]}"
    seconds = found["seconds"]
    parts = ", ".join(f"{name} {seconds_words(value)}" for name, value in seconds.items() if name != "total")
    facts["seconds"] = f"{seconds_words(seconds['total'])} ({parts})"
    facts["ran on"] = engine_words(found["engine"])
    facts["digest"] = found["digest"][:16]
    views: list[RenderableType] = [facts_view(title, **facts), "", _errors_view(found, job)]
    if "columns" in found["drift"]["parts"]:
        views += ["", _columns_view(found["drift"]["columns"], job.model.card.get("feature_names"))]
    return Group(*views)


def _drift_words(drift: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name} {p:.2g}" for name, p in drift["p_values"].items())
    if not drift["drifted"]:
        return f"none at the level {drift['level']:g} (p-values: {values})"
    return f"[yellow]in {some(drift['parts'])}[/] (p-values: {values})"


def _errors_view(found: Mapping[str, Any], job: Refresh) -> RenderableType:
    view, table = titled_table(
        f"RMSE: on the new rows before they were added, and on {found['gate']['held_out']}",
        *("target", "new rows", "MAE there", "held out: current", "new model"),
    )
    progressive, gate = found["progressive"], found["gate"]
    columns = progressive["rmse"], progressive["mae"], gate["current"], gate["new"]
    for name, *values in zip(target_names(job.model, job.model.n_targets), *columns, strict=True):
        table.add_row(str(name), *(f"{value:.4g}" for value in values))
    return view


def _columns_view(columns: Sequence[Mapping[str, Any]], names: Sequence[str] | None) -> RenderableType:
    view, table = titled_table(
        "columns that moved most, in standard deviations", "column", "shift of the mean", "spread", "p-value"
    )
    for row in columns[:_SHOWN_COLUMNS]:
        name = str(row["column"]) if names is None else names[row["column"]]
        values = (row[key] for key in ("shift", "spread", "p_value"))
        table.add_row(name, *("∞" if value is None else f"{value:.3g}" for value in values))
    return view
