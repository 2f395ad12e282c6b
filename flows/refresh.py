"""Add the new rows of a dataset to a model, as a Prefect flow, for example each night.

The update is published unless it is clearly worse on held-out rows. The model is not
written before the last task, and rows that the first one appended stay, so a killed run
is simply repeated. A run that finds nothing new reports that and starts no cluster::

    python flows/refresh.py data=sales.zarr model=models/price
"""

from rff_dist.flows import reports, tables
from rff_dist.flows.running import FlowRun, job_flow
from rff_dist.flows.script import run_script
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import refresh as job
from rff_dist.workbench.jobs import specs

RESUME = (
    "The model is not written before the last step, and appended rows stay: the next"
    " run finds the same new rows, and its model is the same as that of an"
    " uninterrupted run."
)


@job_flow(specs.Update, tables.FollowedTable, resume=RESUME)
def refresh(options: specs.Update, run: FlowRun) -> Summary:
    """Add what is new to a model, and publish it unless it is clearly worse.

    If the data follow a table, they take what changed there first. Returns JSON values:
    the decision and its reason, the version and digest of the model, and the new rows.
    """
    do = run.runner()
    tables.take_changes(options, run, do)
    return reports.show_update(job.update(options, do), options, run)


if __name__ == "__main__":  # the embedded Dask cluster imports this file too
    run_script(refresh)
