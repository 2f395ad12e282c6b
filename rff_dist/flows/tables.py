"""How flows take rows from tables: files, a database, or a table of a lakehouse.

In go the flow's further options, a database's connection or a followed table, and out
come rows appended to a dataset. The URL of a database has a password, so it comes from
a Prefect block and not from a parameter, which Prefect shows.
"""

from typing import Any

from prefect.blocks.system import Secret

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.flows import reports
from rff_dist.flows.running import FlowRun
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import ingest, specs, steps
from rff_dist.workbench.results.rows import appended_document
from rff_dist.workbench.tables import queries


@fields.group
class Connection:
    """Where a query's database is, without its password in the parameters."""

    connection_block: str | None = fields.optional(
        "Name of a Prefect Secret block with the database's URL, as SQLAlchemy"
        f" writes it. By default {queries.CONNECTION_VARIABLE} of the worker."
    )

    def url(self, sql: str | None) -> str | None:
        """Return the database's URL from the block; None if no block is given.

        Raises InvalidParameterError if there is no such block, or no query.
        """
        if self.connection_block is None:
            return None
        if sql is None:
            raise InvalidParameterError(
                f"`connection_block` is {self.connection_block!r}, but there is no"
                " query; give `sql` too, or leave it out"
            )
        try:
            secret: Any = Secret.load(self.connection_block)
        except ValueError:
            raise InvalidParameterError(
                f"there is no Secret block {self.connection_block!r} on the Prefect"
                " server; make one that holds the database's URL"
            ) from None
        return str(secret.get())


@fields.group
class FollowedTable:
    """The table whose changes become versions of the data."""

    table: str | None = fields.optional(
        "Delta or Iceberg table that the data follow, as for ingest: data take what"
        " changed in it first.",
        placeholder="TABLE",
        access="reads",
    )


def append(job: specs.Ingest, do: steps.Runner) -> Summary:
    """Append rows to a dataset, show a summary, and return the record."""
    record = ingest.append(job, do)
    reports.show_summary("ingest-summary", appended_document(record))
    return record


def take_changes(job: specs.Update, run: FlowRun, do: steps.Runner) -> None:
    """Append the changes of a followed table to the data of an update, if one is
    given.
    """
    table = run.options[FollowedTable].table
    if table is None:
        return
    if job.dry_run:
        raise InvalidParameterError(
            "`table` is given with `dry_run`, which writes nothing, but data take"
            " what changed in it; leave one of them out"
        )
    to_append = {"sources": [table], "data": job.source.data, "append": True}
    append(fields.build(specs.Ingest, to_append), do)
