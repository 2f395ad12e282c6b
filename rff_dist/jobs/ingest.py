"""The job that turns files or a query into a dataset, or appends their rows to one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from rff_dist.errors import DataError, StorageError
from rff_dist.ingest import ingest as ingest_module
from rff_dist.ingest.files import File, fetch
from rff_dist.ingest.ingest import Ingested
from rff_dist.ingest.learn import Encoding
from rff_dist.ingest.queries import CONNECTION_VARIABLE, Query, read_secret
from rff_dist.ingest.recipe import Recipe, recipe_of
from rff_dist.ingest.roles import Roles
from rff_dist.ingest.rows import Holdout
from rff_dist.ingest.tables import Reading
from rff_dist.ingest.transformer import read_transformer
from rff_dist.jobs.fields import values_of
from rff_dist.jobs.options import TableEncoding
from rff_dist.jobs.specs import Ingest
from rff_dist.jobs.steps import Runner
from rff_dist.storage.datasets import ZarrDataset, open_dataset
from rff_dist.storage.locations import parse_location, reaching
from rff_dist.storage.records import peek_record
from rff_dist.storage.writing import Writing
from rff_dist.text import redact
from rff_dist.typing import Summary

type Made = Ingested | ZarrDataset | tuple[ZarrDataset, ZarrDataset]

#: Names of files that a record lists at most, so that it stays small.
_SHOWN_FILES = 50


def append(job: Ingest, do: Runner) -> Summary:
    """Append all new rows or none; a second try finds what the first one added.

    Returns JSON values: rows before and after, files ingested (names of the first 50) and skipped, rows
      dropped.
    """
    start = time.perf_counter()
    found = do("append", ingest, job)
    assert isinstance(found, Ingested)
    return {
        "data": redact(job.data),
        **values_of(found, "n_before", "n_after"),
        "n_new": found.n_after - found.n_before,
        "n_ingested": len(found.ingested),
        "n_skipped": len(found.skipped),
        "ingested": [redact(name) for name in found.ingested[:_SHOWN_FILES]],
        **values_of(found, "dropped_rows", "version"),
        "seconds": round(time.perf_counter() - start, 3),
    }


def ingest(job: Ingest, *, observer: Callable[[int, int | None], None] | None = None) -> Made:
    """Write a dataset, or append new rows to one.

    `observer`: called with (rows written, rows in all or None) after each batch.
    Returns an `Ingested` when rows were appended, else the dataset, or with `holdout` both datasets.
    Raises RFFDistError as `ingest.ingest`, `ingest_parts` and `ingest_more`; what was there is unchanged.
    """
    source = job.sources if job.sql is None else _read_query(job.sql, job.connection)
    roles, preparing = roles_of(job), preparing_of(job.encoding_of)
    versioned = not job.plain and can_keep_versions(job.data)
    how = Writing(job.chunk_rows, job.overwrite, observer, versioned, job.message)
    if job.holdout is not None:
        urls = (job.data, part_url(job.data, "test"))
        holdout = Holdout(job.holdout, by=job.holdout_by)
        return ingest_module.ingest_parts(source, urls, holdout, roles, how=how, preparing=preparing)
    take = ingest_module.ingest_more if job.append else ingest_module.ingest
    return take(source, job.data, roles, how, preparing)


def can_keep_versions(url: str) -> bool:
    """Say whether a dataset at a URL can keep versions: a store in memory cannot."""
    return not url.startswith("memory://")


def _read_query(sql: str, connection: str | None) -> Query:
    connection = connection or os.environ.get(CONNECTION_VARIABLE)
    return Query(
        read_secret(sql, "`sql`"), None if connection is None else read_secret(connection, "`connection`")
    )


def roles_of(job: Ingest) -> Roles:
    """Return the roles of the columns, as the library takes them."""
    targets = job.targets
    return Roles(
        target=targets[0] if targets and len(targets) == 1 else targets,
        drop=job.drop or (),
        **values_of(job, "weight", "groups", "columns", "id", "dtype", "on_nan"),
    )


def preparing_of(given: TableEncoding) -> ingest_module.Preparing:
    """Return how tables are read and become numbers, as the library takes it.

    A recipe reads tables as the one that it was learned from, unless the options say how.
    """
    recipe = None if given.recipe is None else find_recipe(given.recipe)
    reading = Reading(given.header, given.delimiter, given.encoding)
    if recipe is not None and reading == Reading():
        reading = recipe.reading
    encoding = Encoding(**values_of(given, "categories", "dates", "impute", "keep_index"))
    return ingest_module.Preparing(encoding, reading, recipe)


def find_recipe(url: str) -> Recipe:
    """Return the recipe of a model or a dataset, or of a transformer in a .skops file.

    Raises StorageError if nothing is at `url`; DataError if it has no recipe; and as `read_transformer`.
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
    except StorageError:  # not a model: datasets keep their recipe in their attributes
        facts = open_dataset(url, y=None).attributes
    recipe = recipe_of(facts)
    if recipe is None:
        raise DataError(
            f"{redact(url)} has no recipe, since it was not made from a table; give another model or dataset"
        )
    return recipe


def part_url(url: str, part: str) -> str:
    """Return the URL of a part of a dataset's rows.

    >>> part_url("data.zarr", "test"), part_url("s3://latest-test/data", "train")
    ('data-test.zarr', 's3://latest-test/data-train')
    """
    stem = url.rstrip("/").removesuffix(".zarr")
    return f"{stem}-{part}{'.zarr' if url.rstrip('/').endswith('.zarr') else ''}"
