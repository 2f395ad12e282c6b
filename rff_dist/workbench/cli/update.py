"""Update a model with new rows: the job of the flow `refresh`, from a shell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, messages, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words

if TYPE_CHECKING:
    from rff_dist.ridge.models import RidgeModel

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
def update(job: specs.Update, where: Cluster, report: str | None = shell.REPORT) -> shell.Report:
    """Add the rows that were appended since a model was trained, exactly, if the new model is no worse.

    If it is worse, the rows are refused, and the exit code is 3.
    """
    from rff_dist.workbench.jobs.fits import JobData
    from rff_dist.workbench.jobs.refresh import update

    passes = display.Passes(where)
    done = update(job, passes.runner)
    document = {"model": job.model, "data": job.source.data, **done.record}
    if done.challenger is not None:
        passes.write_page(report, JobData(done.dataset), done.challenger, job.model, update=done.record)
        document |= passes.facts()
    elif report is not None:
        messages.say("warning", "there are no new rows, so no report was written", "yellow")
    refused = document["decision"].endswith("kept")
    return shell.Report(document, _parts(document, done.champion), code=REFUSED if refused else 0)


def _parts(document: Mapping[str, Any], champion: RidgeModel) -> list[display.Part]:
    """Return what was found and decided, as people see it."""
    from rff_dist.workbench.results import updates

    facts = updates.update_facts(document, document["data"])
    ran = display.run_facts(document) if "engine" in document else {}
    title = f"{facts.pop('decision')}: {words.place_words(document)}"
    parts: list[display.Part] = [display.facts_view(title, **facts, **ran)]
    if document["n_new"]:
        parts.append(updates.errors_table(document, champion))
        if "columns" in document["drift"]["parts"]:
            names, columns = champion.card.get("feature_names"), document["drift"]["columns"]
            parts.append(updates.columns_table(columns, names, _SHOWN_COLUMNS))
    return parts
