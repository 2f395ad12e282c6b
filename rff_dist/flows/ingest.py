"""The Prefect flow that appends new files, or the rows of a query, to a dataset; no row is added twice.

A dataset knows the files that it was made from. So a schedule can give the same pattern each night, and only
new files are read::

    from rff_dist.flows.ingest import ingest

    ingest(sources=["incoming/*.parquet"], data="data.zarr", targets=["price"])
"""

import os
from typing import Any

from prefect.blocks.system import Secret

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.flows import common, running
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.jobs.ingest import append
from rff_dist.workbench.results.rows import appended_document
from rff_dist.workbench.tables import queries


@fields.group
class Connection:
    """Where a query's database is, without its password in the parameters."""

    sql: str | None = fields.optional("Query whose rows are appended.")
    connection_block: str | None = fields.optional(
        "Name of a Prefect Secret block with the database's URL, as SQLAlchemy writes it."
    )
    connection_variable: str | None = fields.optional(
        "Name of an environment variable of the worker with the database's URL, if there is no block. By "
        f"default {queries.CONNECTION_VARIABLE}."
    )

    def __post_init__(self) -> None:
        if self.sql is None and (self.connection_block or self.connection_variable):
            raise InvalidParameterError(
                "a connection to a database was given without `sql`; give both, or leave it out"
            )
        if self.connection_block and self.connection_variable:
            raise InvalidParameterError(
                "`connection_block` and `connection_variable` were both given; give one of them"
            )

    def read(self) -> str | None:
        """Return the database's URL; None without a query.

        Raises InvalidParameterError if there is no such block or variable.
        """
        if self.sql is None:
            return None
        if self.connection_block is not None:
            try:
                secret: Any = Secret.load(self.connection_block)
            except ValueError:
                raise InvalidParameterError(
                    f"there is no Secret block {self.connection_block!r} on the Prefect server; make one "
                    "that holds the database's URL"
                ) from None
            return str(secret.get())
        variable = self.connection_variable or queries.CONNECTION_VARIABLE
        if variable not in os.environ:
            raise InvalidParameterError(
                f"the environment variable {variable} is not set on this worker; expected the database's "
                "URL, or the name of a Secret block by `connection_block`"
            )
        return os.environ[variable]


class IngestParameters(running.Form):
    """Which rows to append to which dataset."""

    specs = (Connection, specs.Ingest)
    # It only appends, and takes the database's URL from a block or a variable.
    without = ("append", "connection", "holdout", "holdout_by", "message", "overwrite", "seed", "test")


@running.job_flow(
    "ingest",
    IngestParameters,
    resume="The last write of a run adds all its rows at once, so a stopped run added all of them or none. "
    "Files that were ingested before are skipped.",
)
def ingest(parameters: IngestParameters) -> Summary:
    """Append the rows of new files, or of a query, to a dataset.

    Returns: JSON-able: rows before and after, files ingested (names of the first 50) and skipped, rows
      dropped.
    Raises RFFDistError if a source cannot be read or does not fit the dataset, which is then unchanged.
    """
    job = parameters.to(specs.Ingest, append=True, connection=parameters.to(Connection).read())
    result = append(job, running.runner_of(parameters))
    common.show("ingest-summary", appended_document(result))
    return result
