"""The Prefect flow that updates a model, for example every night: the job of `rff-dist update`.

find new rows → score them → hold out rows → sum → drift → solve → gate → publish, or keep the current model
with the reason → report. If the data follow a table of a lakehouse, they take what changed in it first. Each
task is a step of `rff_dist.workbench.jobs`; what the steps work on stays in this process. Nothing is written
before the last step of either, so a killed run is simply repeated. A run that finds nothing new says so and
starts no cluster.

Run it in a process of its own::

    from rff_dist.flows.refresh import refresh

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        refresh(data="data.zarr", model="models/main")

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from typing import Any

from rff_dist import fields
from rff_dist.engines.clock import Clock
from rff_dist.engines.cluster import Cluster
from rff_dist.errors import InvalidParameterError
from rff_dist.flows import common, outcomes, running
from rff_dist.living import new_rows
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.jobs.ingest import append
from rff_dist.workbench.jobs.refresh import update
from rff_dist.workbench.results import updates
from rff_dist.workbench.results.rows import appended_document

_RESUME = (
    "Nothing is written before the last step: the next run finds the same new rows, and its model has the "
    "digest of an undisturbed run."
)


@fields.group
class Followed:
    """The table that the data follow."""

    table: str | None = fields.optional(
        "Delta or Iceberg table that the data follow, as for ingest: data take what changed in it first.",
        unit="TABLE",
        place="reads",
    )


class RefreshParameters(running.Form):
    """Which model to update with which rows, and how good it must stay."""

    specs = (Followed, specs.Update, Cluster, running.Limits)


@running.job_flow("refresh", RefreshParameters, resume=_RESUME)
def refresh(parameters: RefreshParameters) -> Summary:
    """Bring data in step with their table; add what is new to a model, and publish it unless clearly worse.

    Returns: JSON-able: `decision` ("published", "kept" or "nothing new") and `reason`; where the model is,
      its version's number, digest and rows; the new rows, and the other members of the record of
      `workbench.jobs.refresh.Updated`.
    Raises the RFFDistError of the step that failed; then nothing is published, and no row is refused.
    """
    clock = Clock()
    runner = running.runner_of(parameters, {"find": _log_rows}, clock=clock)
    job, table = parameters.to(specs.Update), parameters.to(Followed).table
    if table is not None:
        if job.dry_run:
            raise InvalidParameterError(
                "`table` is given with `dry_run`, which writes nothing, but data take what changed in it; "
                "leave one of them out"
            )
        to_take = {"sources": [table], "data": job.source.data, "append": True}
        taken = append(fields.build(specs.Ingest, to_take), runner)
        common.show("ingest-summary", appended_document(taken))
    updated = update(job, runner)
    result = updated.record
    if result["decision"] == "published" and result["version"] is not None:
        common.show_versions(job.model)
    if updated.challenger is not None:
        clock.begin("report")
        common.show_page("refresh-page", updated, job, clock)
    report = updates.update_document(updated, common.run_of(clock))
    common.show("refresh-report", report)
    outcomes.say(f"{report.title}: {result['reason']}")
    return result


def _log_rows(log: Any, rows: new_rows.NewRows) -> None:
    if rows.n_samples:
        log.info("%s new rows", f"{rows.n_samples:_}")
