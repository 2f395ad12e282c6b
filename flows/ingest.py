"""Append the rows of new files or of a query to a dataset, as a Prefect flow.

A dataset knows the files that it was made from. So a schedule can give the same pattern
each night: only new files are read, and no row is added twice::

    python flows/ingest.py 'sources=sales/*.csv' data=sales.zarr targets=price
"""

from dataclasses import replace

from rff_dist import contexts
from rff_dist.flows import tables
from rff_dist.flows.running import FlowRun, job_flow
from rff_dist.flows.script import run_script
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.tables import queries

#: Options of the job that the flow does not take.
FIXED = (
    "append",  # always: a schedule adds rows each time
    "overwrite",  # would replace the rows of earlier runs
    "message",  # would be the same for each version
    # rows for a test are set apart when the dataset is made, not by each run
    "holdout",
    "holdout_by",
    "seed",
    "test",
)
RESUME = (
    "The last write of a run adds all its rows at once, so a stopped run added all of"
    " them or none. Files that were ingested before are skipped. No model was touched:"
    " after Retry, run refresh too, or wait for its next night."
)


@job_flow(
    specs.Ingest, tables.Connection, without=FIXED, on_cluster=False, resume=RESUME
)
def ingest(options: specs.Ingest, run: FlowRun) -> Summary:
    """Append the rows of new files, or of a query, to a dataset.

    Returns JSON values: rows before and after, files ingested (names of the first 50)
    and skipped, rows dropped. If a source cannot be read, the dataset is unchanged.
    """
    # None if there is no Prefect block; a query then takes the environment's database.
    # The URL has a password, so it is set as a context variable, and not given with the
    # job's options, which are recorded.
    url = run.options[tables.Connection].url(options.sql)
    with contexts.setting(queries.connection, url):
        return tables.append(replace(options, append=True), run.runner())


if __name__ == "__main__":
    run_script(ingest)
