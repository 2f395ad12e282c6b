"""The job that turns files or a query into a dataset, or appends their rows to one."""

import os
import time
from collections.abc import Callable

from rff_dist import fields
from rff_dist.errors import DataError, StorageError
from rff_dist.recipes import recipes, transformer
from rff_dist.recipes.reading import Reading
from rff_dist.storage import datasets, locations, records, writing
from rff_dist.text import redact
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.jobs import places, specs, steps, watching
from rff_dist.workbench.tables import files, queries, rows
from rff_dist.workbench.tables import ingest as ingest_module
from rff_dist.workbench.tables.roles import Roles

type Made = ingest_module.Ingested | datasets.ZarrDataset | tuple[datasets.ZarrDataset, datasets.ZarrDataset]

#: Names of files that a record lists at most, so that it stays small.
_SHOWN_FILES = 50


def append(job: specs.Ingest, do: steps.Runner) -> Summary:
    """Append all new rows or none; a second try finds what the first one added.

    Returns JSON values: rows before and after, files ingested (names of the first 50) and skipped, rows
      dropped; rows replaced, deleted and known already; the version of a table of a lakehouse; and what is
      unlike the rows before.
    """
    start = time.perf_counter()
    ingested = do("append", ingest, job)
    assert isinstance(ingested, ingest_module.Ingested)
    return describe_appended(job, ingested, time.perf_counter() - start)


def describe_appended(job: specs.Ingest, ingested: ingest_module.Ingested, seconds: float) -> Summary:
    """Return the record of rows that were appended."""
    return {
        "data": redact(job.data),
        **fields.values_of(ingested, "n_before", "n_after", "dropped_rows", "version"),
        **fields.values_of(ingested, "n_replaced", "n_deleted", "n_known", "table"),
        "unlike": list(ingested.unlike),
        "n_new": ingested.n_after - ingested.n_before + ingested.n_deleted,
        "n_ingested": len(ingested.ingested),
        "n_skipped": len(ingested.skipped),
        "ingested": [redact(name) for name in ingested.ingested[:_SHOWN_FILES]],
        "seconds": round(seconds, 3),
    }


@watching.watched
def ingest(job: specs.Ingest, *, observer: Callable[[int, int | None], None] | None = None) -> Made:
    """Write a dataset, or append new rows to one.

    `observer`: called with (rows written, rows in all or None) after each batch.
    Returns an `Ingested` when rows were appended, else the dataset, or with `holdout` both datasets.
    Raises RFFDistError as `workbench.tables.ingest`, `ingest_parts` and `ingest_more`; what was there is
      unchanged.
    """
    source: ingest_module.Sources = job.sources
    if job.sql is not None:
        url = job.connection or os.environ.get(queries.CONNECTION_VARIABLE)
        connection = None if url is None else queries.read_secret(url, "`connection`")
        source = queries.Query(queries.read_secret(job.sql, "`sql`"), connection)
    roles, preparing = roles_of(job), preparing_of(job.tables)
    versioned = not job.plain and not job.data.startswith("memory://")  # where none can be kept
    how = writing.Writing(job.chunk_rows, job.overwrite, observer, versioned, job.message)
    if job.holdout is not None:
        urls = (job.data, job.test or places.part_url(job.data, "test"))
        holdout = rows.Holdout(job.holdout, job.seed, job.holdout_by)
        return ingest_module.ingest_parts(source, urls, holdout, roles, how, preparing)
    if job.append:
        return ingest_module.ingest_more(source, job.data, roles, how, preparing, replace_ids=job.replace_ids)
    return ingest_module.ingest(source, job.data, roles, how, preparing)


def roles_of(job: specs.Ingest) -> Roles:
    """Return the roles of the columns, as the library takes them."""
    targets = job.targets
    return Roles(
        target=targets[0] if targets and len(targets) == 1 else targets,
        drop=job.drop or (),
        **fields.values_of(job, "weight", "groups", "columns", "id", "dtype", "on_nan"),
    )


def preparing_of(how: places.TableOptions) -> ingest_module.Preparing:
    """Return how tables are read and become numbers, as the library takes it.

    A recipe reads tables as the one that it was learned from, unless the options say how.
    """
    recipe = None if how.recipe is None else find_recipe(how.recipe)
    reading = how.reading if recipe is None or how.reading != Reading() else recipe.reading
    return ingest_module.Preparing(how.encoding, reading, recipe)


def find_recipe(url: str) -> recipes.Recipe:
    """Return the recipe of a model or a dataset, or of a transformer in a .skops file.

    Raises StorageError if nothing is at `url`; DataError if it has no recipe; and as `read_transformer`.
    """
    if url.endswith(".skops"):
        with (
            files.fetch(files.File(locations.parse_location(url), ".skops", "")) as path,
            locations.reaching(f"{redact(url)} cannot be read"),
        ):
            content = path.read_bytes()
        return recipes.Recipe([transformer.read_transformer(content)])
    try:
        facts: Facts = records.peek_record(url).metadata["card"]
    except StorageError:  # not a model: datasets keep their recipe in their attributes
        facts = datasets.open_dataset(url, y=None).attributes
    recipe = recipes.recipe_of(facts)
    if recipe is None:
        raise DataError(
            f"{redact(url)} has no recipe, since it was not made from a table; give another model or dataset"
        )
    return recipe
