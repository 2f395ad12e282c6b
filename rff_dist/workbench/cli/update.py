"""Update a model with new rows: the job of the flow `refresh`, from a shell."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from rff_dist.text import number
from rff_dist.workbench.cli import display, messages, options, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.jobs.options import Where

if TYPE_CHECKING:
    from rff_dist.ridge import models

_SHOWN_COLUMNS = 5
#: The exit code if rows were refused, so that the model is the one of before.
REFUSED = 3


@shell.command(
    "rff-dist update model data.zarr",
    "rff-dist update models/sales data.zarr --test test.zarr --tolerance 0.02",
    "rff-dist update models/sales data.zarr --window 30d",
    "rff-dist update models/sales data.zarr --half-life 30d",
    "rff-dist update model data.zarr --dry-run --json",
    "rff-dist update model data.zarr --backfill 0 --force",
)
def update(job: specs.Update, where: Where, report: options.ReportPath = None) -> shell.Report:
    """Add the rows that were appended since a model was trained, exactly, if the new model is no worse.

    If it is worse, the rows are refused, and the exit code is 3.
    """
    from rff_dist.workbench.jobs.fits import JobData
    from rff_dist.workbench.jobs.refresh import update

    passes = display.Passes(where)
    found = update(job, passes.runner)
    document = {"model": job.model, "data": job.source.data, **found.record}
    if found.challenger is not None:
        passes.write_page(report, JobData(found.dataset), found.challenger, job.model, update=found.record)
        document |= passes.facts()
    elif report is not None:
        messages.say("warning", "there are no new rows, so no report was written", "yellow")
    refused = document["decision"].endswith("kept")
    return shell.Report(document, _view(document, found.champion), code=REFUSED if refused else 0)


def _view(found: Mapping[str, Any], champion: models.RidgeModel) -> RenderableType:
    """Return what was found and decided, as people see it."""
    version = "" if found["version"] is None else f", version {found['version']}"
    title = f"{found['decision']}: {found['model']}{version}"
    facts: display.ShownFacts = {"because": found["reason"]}
    if found["left_out"]:
        why = zip(found["left_out"], found["left_out_because"], strict=True)
        facts["left out"] = "; ".join(f"{display.ranges_words([rows])}: {because}" for rows, because in why)
        again = ["rff-dist", "update", found["model"], found["data"], "--backfill", found["left_out"][0][0]]
        facts["to judge them again"] = shlex.join(map(str, again))
    window = f", of the window {found['window']}: from row {found['first_row']:,} on"
    facts |= {
        "holds": display.plural(found["n_samples"], "row") + ("" if found["window"] == "all" else window),
        "half-life": None if found["half_life"] == "none" else found["half_life"],
        "removed": display.plural(found["n_gone"], "row") if found["n_gone"] else None,
    }
    if not found["n_new"]:
        return display.facts_view(title, **facts, digest=found["digest"][:16])
    n_appended = max(0, found["n_after"] - found["n_before"])
    replaced = f", {found['n_replaced']:,} that replaced others" if found["n_replaced"] else ""
    alpha, before = (display.value_words(found["solution"][name]) for name in ("alpha", "alpha_before"))
    facts |= {
        "new rows": f"{found['n_new']:,}, of {n_appended:,} appended{replaced}",
        "drift": _drift_words(found["drift"]),
        "alpha": f"{alpha}, before {before}",
        **display.solver_facts(found["solution"]),
        **display.run_facts(found),
        "digest": found["digest"][:16],
    }
    views: list[RenderableType] = [display.facts_view(title, **facts), "", _errors_view(found, champion)]
    if "columns" in found["drift"]["parts"]:
        views += ["", _columns_view(found["drift"]["columns"], champion.card.get("feature_names"))]
    return Group(*views)


def _drift_words(drift: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name} {p:.2g}" for name, p in drift["p_values"].items())
    if not drift["drifted"]:
        return f"none at the level {drift['level']:g} (p-values: {values})"
    return f"[yellow]in {display.some(drift['parts'])}[/] (p-values: {values})"


def _errors_view(found: Mapping[str, Any], champion: models.RidgeModel) -> RenderableType:
    view, table = display.titled_table(
        f"RMSE: on the new rows before they were added, and on {found['gate']['held_out']}",
        *("target", "new rows", "MAE there", "held out: champion", "challenger"),
    )
    progressive, gate = found["progressive"], found["gate"]
    columns = progressive["rmse"], progressive["mae"], gate["champion"], gate["challenger"]
    for name, *values in zip(display.target_names(champion), *columns, strict=True):
        table.add_row(str(name), *(number(value) for value in values))
    return view


def _columns_view(columns: Sequence[Mapping[str, Any]], names: Sequence[str] | None) -> RenderableType:
    view, table = display.titled_table(
        "columns that moved most, in standard deviations", "column", "shift of the mean", "spread", "p-value"
    )
    for row in columns[:_SHOWN_COLUMNS]:
        name = str(row["column"]) if names is None else names[row["column"]]
        values = (row[key] for key in ("shift", "spread", "p_value"))
        table.add_row(name, *("∞" if value is None else f"{value:.3g}" for value in values))
    return view
