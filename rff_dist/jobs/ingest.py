"""The job that turns files or a query into a dataset, or into more rows of one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rff_dist.ingest import ingest as ingest_module
from rff_dist.ingest.ingest import Ingested, Roles
from rff_dist.ingest.queries import CONNECTION_VARIABLE, Query, read_secret
from rff_dist.jobs.specs import Ingest
from rff_dist.jobs.steps import Step
from rff_dist.storage.datasets import ZarrDataset
from rff_dist.storage.writing import Writing
from rff_dist.text import redact
from rff_dist.typing import Summary

#: As many names of files are told as a record holds well.
_SHOWN_FILES = 50


@dataclass(frozen=True, slots=True)
class Ingestion:
    """A run that appends the rows that are new; it needs no engine."""

    job: Ingest

    def steps(self) -> Iterator[Step]:
        """Yield the only step."""
        yield Step("append", self.append, repeatable=True)

    def append(self) -> Summary:
        """Append what is new, all of it or nothing; a second try finds what the first one added."""
        start = time.perf_counter()
        found = ingest(self.job)
        assert isinstance(found, Ingested)
        return {
            "data": redact(self.job.data),
            "n_before": found.n_before,
            "n_after": found.n_after,
            "n_new": found.n_after - found.n_before,
            "n_ingested": len(found.ingested),
            "n_skipped": len(found.skipped),
            "ingested": [redact(name) for name in found.ingested[:_SHOWN_FILES]],
            "dropped_rows": found.dropped_rows,
            "version": found.version,
            "seconds": round(time.perf_counter() - start, 3),
        }


def ingest(
    job: Ingest, *, observer: Callable[[int, int | None], None] | None = None
) -> Ingested | ZarrDataset:
    """Write a dataset, or append the rows that are new to one.

    `observer`: called with (rows written, rows in all or None) after each batch.
    Returns what was appended, or the dataset that was written.
    Raises RFFDistError as `storage.ingest` and `storage.ingest_more`; what is there then is as it was.
    """
    source = job.sources if job.sql is None else _read_query(job.sql, job.connection)
    targets = job.targets
    target = targets[0] if targets and len(targets) == 1 else targets
    roles = Roles(target, job.weight, job.groups, job.columns, job.dtype, job.on_nan)
    take = ingest_module.ingest_more if job.append else ingest_module.ingest
    # A store in memory ends with this process, and keeps no versions.
    versioned = not job.plain and not job.data.startswith("memory://")
    how = Writing(job.chunk_rows, job.overwrite, observer, versioned, job.message)
    return take(source, job.data, roles, how)


def _read_query(sql: str, connection: str | None) -> Query:
    connection = connection or os.environ.get(CONNECTION_VARIABLE)
    return Query(
        read_secret(sql, "`sql`"),
        None if connection is None else read_secret(connection, "`connection`"),
    )
