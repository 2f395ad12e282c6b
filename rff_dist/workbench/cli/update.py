"""Update a model with new rows: the job of the flow `refresh`, from a shell."""

from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, messages, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results.document import Document


@shell.command(
    "rff-dist update model data.zarr",
    "rff-dist update models/sales data.zarr --test test.zarr --tolerance 0.02",
    "rff-dist update models/sales data.zarr --window 30d",
    "rff-dist update models/sales data.zarr --half-life 30d",
    "rff-dist update model data.zarr --dry-run --json",
    "rff-dist update model data.zarr --backfill 0 --force",
)
def update(job: specs.Update, where: Cluster, page: shell.Page) -> Document:
    """Add the rows that were appended since a model was trained, exactly, if the new model is no worse.

    If it is worse, the rows are refused, and the exit code is 3.
    """
    from rff_dist.workbench.jobs.fits import JobData
    from rff_dist.workbench.jobs.refresh import update
    from rff_dist.workbench.results.updates import update_document

    passes = display.Passes(where)
    done = update(job, passes.runner)
    if done.challenger is not None:
        passes.write_page(page, JobData(done.dataset), done.challenger, job.model, update=done.record)
    elif page.report is not None:
        messages.say("warning", "there are no new rows, so no report was written", "yellow")
    return update_document(done, {"report": page.report, **passes.facts()})
