"""The job that turns files or a query into a dataset, or into more rows of one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rff_dist.errors import DataError, StorageError
from rff_dist.ingest import ingest as ingest_module
from rff_dist.ingest.files import File, fetch
from rff_dist.ingest.ingest import Ingested
from rff_dist.ingest.learn import Encoding
from rff_dist.ingest.queries import CONNECTION_VARIABLE, Query, read_secret
from rff_dist.ingest.recipe import Recipe, recipe_of
from rff_dist.ingest.roles import Roles
from rff_dist.ingest.rows import HeldOut
from rff_dist.ingest.tables import Reading
from rff_dist.ingest.transformer import read_transformer
from rff_dist.jobs.fields import values_of
from rff_dist.jobs.options import TableEncoding
from rff_dist.jobs.specs import Ingest
from rff_dist.jobs.steps import Step
from rff_dist.storage.datasets import ZarrDataset, open_dataset
from rff_dist.storage.locations import parse_location, reaching
from rff_dist.storage.records import peek_record
from rff_dist.storage.writing import Writing
from rff_dist.text import redact
from rff_dist.typing import Summary

type Made = Ingested | ZarrDataset | tuple[ZarrDataset, ZarrDataset]

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


def ingest(job: Ingest, *, observer: Callable[[int, int | None], None] | None = None) -> Made:
    """Write a dataset, or append the rows that are new to one.

    `observer`: called with (rows written, rows in all or None) after each batch.
    Returns what was appended, the dataset that was written, or that and the one of rows held out.
    Raises RFFDistError as `ingest.ingest`, `ingest_parts` and `ingest_more`; what is there then is as it was.
    """
    source = job.sources if job.sql is None else _read_query(job.sql, job.connection)
    roles, preparing = roles_of(job), preparing_of(job.encoding_of)
    versioned = not job.plain and can_keep_versions(job.data)
    how = Writing(job.chunk_rows, job.overwrite, observer, versioned, job.message)
    if job.holdout is not None:
        urls = (job.data, part_url(job.data, "test"))
        parts = HeldOut(job.holdout)
        return ingest_module.ingest_parts(source, urls, parts, roles, how=how, preparing=preparing)
    take = ingest_module.ingest_more if job.append else ingest_module.ingest
    return take(source, job.data, roles, how, preparing)


def can_keep_versions(url: str) -> bool:
    """Say whether a dataset there can: a store in memory ends with this process."""
    return not url.startswith("memory://")


def _read_query(sql: str, connection: str | None) -> Query:
    connection = connection or os.environ.get(CONNECTION_VARIABLE)
    return Query(
        read_secret(sql, "`sql`"), None if connection is None else read_secret(connection, "`connection`")
    )


def roles_of(job: Ingest) -> Roles:
    """Return which columns become what."""
    targets = job.targets
    return Roles(
        target=targets[0] if targets and len(targets) == 1 else targets,
        drop=job.drop or (),
        **values_of(job, "weight", "groups", "columns", "id", "dtype", "on_nan"),
    )


def preparing_of(given: TableEncoding) -> ingest_module.Preparing:
    """Return how tables are read and become numbers, as the library takes it."""
    recipe = None if given.recipe is None else find_recipe(given.recipe)
    reading = Reading(given.header, given.delimiter, given.encoding)
    if recipe is not None and reading == Reading():
        reading = recipe.reading
    encoding = Encoding(given.categories, given.dates, given.impute)
    return ingest_module.Preparing(encoding, reading, recipe)


def find_recipe(url: str) -> Recipe:
    """Return the recipe of a model or a dataset, or that of a transformer in a file of skops.

    Raises StorageError if there is none; DataError if it has no recipe; and as `read_transformer`.
    """
    if url.endswith(".skops"):
        with (
            fetch(File(parse_location(url), ".skops", "")) as path,
            reaching(f"{redact(url)} cannot be read"),
        ):
            content = path.read_bytes()
        return Recipe([read_transformer(content)])
    try:
        facts: Mapping[str, Any] = peek_record(url).metadata["card"]
    except StorageError:
        facts = open_dataset(url, y=None).attributes
    recipe = recipe_of(facts)
    if recipe is None:
        raise DataError(f"{redact(url)} has no recipe, since it was not made of a table; name another")
    return recipe


def part_url(url: str, part: str) -> str:
    """Return where a part of a dataset's rows goes.

    >>> part_url("data.zarr", "test"), part_url("s3://latest-test/data", "train")
    ('data-test.zarr', 's3://latest-test/data-train')
    """
    stem = url.rstrip("/").removesuffix(".zarr")
    return f"{stem}-{part}{'.zarr' if url.rstrip('/').endswith('.zarr') else ''}"
