"""Turn files or a query into a dataset, or append their rows to one.

In goes an `Ingest` spec; out comes one dataset, or two, or the result of an append. The
functions of `workbench.tables` do the work; the spec's options decide which of them.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from rff_dist import fields
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.recipes import recipes, transformer
from rff_dist.recipes.reading import CsvOptions
from rff_dist.storage import datasets, locations, records, writing
from rff_dist.text import redact
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.jobs import places, specs, steps, watching
from rff_dist.workbench.tables import append as append_module
from rff_dist.workbench.tables import files, parts, queries
from rff_dist.workbench.tables import ingest as ingest_module
from rff_dist.workbench.tables.existing import IngestResult
from rff_dist.workbench.tables.holdout import Holdout
from rff_dist.workbench.tables.inputs import Sources
from rff_dist.workbench.tables.options import TableOptions
from rff_dist.workbench.tables.roles import Roles

#: The result of appending, of ingesting, or of both parts of a table.
type Ingested = (
    IngestResult
    | datasets.ZarrDataset
    | tuple[datasets.ZarrDataset, datasets.ZarrDataset]
)

#: The options for splitting a dataset; all others say how tables are read.
_OF_DATASETS = {
    *("sources", "data", "holdout", "holdout_by", "test", "seed"),
    *("chunk_rows", "overwrite", "plain", "message"),
}

#: Names of files that a record lists at most, so that it stays small.
_SHOWN_FILES = 50


def append(job: specs.Ingest, do: steps.Runner) -> Summary:
    """Append all new rows or none. A retry does no harm: it skips the rows that the
    first try added.

    Returns JSON values: rows before and after, files ingested (names of the first 50)
    and skipped, rows dropped; rows replaced, deleted and known already; the dataset's
    version, and that of a followed table; and what is unlike the rows before.
    """
    start = time.perf_counter()
    ingested = do("append", ingest, job)
    # the spec refuses `holdout` together with `append`
    assert isinstance(ingested, IngestResult)
    return describe_appended(job, ingested, time.perf_counter() - start)


def describe_appended(
    job: specs.Ingest, ingested: IngestResult, seconds: float
) -> Summary:
    """Return the record of rows that were appended."""
    return {
        "data": redact(job.data),
        **fields.values_of(ingested, "n_before", "n_after", "dropped_rows", "version"),
        **fields.values_of(ingested, "n_replaced", "n_deleted", "n_known", "table"),
        "n_of_other_part": ingested.n_of_other_part,
        "unlike": list(ingested.unlike),
        "n_new": ingested.n_after - ingested.n_before + ingested.n_deleted,
        "n_ingested": len(ingested.ingested),
        "n_skipped": len(ingested.skipped),
        "ingested": [redact(name) for name in ingested.ingested[:_SHOWN_FILES]],
        "seconds": round(seconds, 3),
    }


@watching.watched
def ingest(
    job: specs.Ingest, *, observer: Callable[[int, int | None], None] | None = None
) -> Ingested:
    """Write a dataset, or append new rows to one.

    `observer` is called with (rows written, rows in all or None) after each batch.
    Returns an `IngestResult` if rows were appended, else the dataset, or with `holdout`
    both datasets. Raises RFFDistError as the functions `ingest`, `ingest_parts` and
    `ingest_more` of `workbench.tables`; existing data are then unchanged.
    """
    source: Sources = job.sources
    if job.sql is not None:
        source = queries.Query(queries.read_text(job.sql))
    roles = roles_of(job)
    options = with_recipe_read(job.tables)
    write_options = writing.WriteOptions(
        job.chunk_rows, job.overwrite, observer, not job.plain, job.message
    )
    if job.holdout is not None:
        urls = (job.data, job.test or places.part_url(job.data))
        holdout = Holdout(job.holdout, job.seed, job.holdout_by)
        if parts.is_dataset(job.sources):
            _refuse_options_of_tables(job)
            return parts.split_dataset(job.sources[0], urls, holdout, write_options)
        return ingest_module.ingest_parts(
            source, urls, holdout, roles, write_options, options
        )
    if job.append:
        return append_module.ingest_more(
            source, job.data, roles, write_options, options, replace_ids=job.replace_ids
        )
    return ingest_module.ingest(source, job.data, roles, write_options, options)


def _refuse_options_of_tables(job: specs.Ingest) -> None:
    """Raise InvalidParameterError if options say how columns become a dataset."""
    plain = fields.build(specs.Ingest, {"sources": job.sources, "data": job.data})
    for (name, _, value), (_, _, default) in zip(
        fields.values(job), fields.values(plain), strict=True
    ):
        if name not in _OF_DATASETS and value != default:
            raise InvalidParameterError(
                f"`{name}` is {value!r}, but {redact(job.sources[0])} is a dataset"
                " already, which keeps its columns; leave it out"
            )


def roles_of(job: specs.Ingest) -> Roles:
    """Return the roles of the columns, as the library takes them."""
    targets = job.targets
    return Roles(
        target=targets[0] if targets and len(targets) == 1 else targets,
        drop=job.drop or (),
        **fields.values_of(job, "weight", "groups", "columns", "id", "dtype", "on_nan"),
    )


def with_recipe_read(options: TableOptions) -> TableOptions:
    """Return options with the recipe itself in place of its URL.

    Tables are read like the one that the recipe was learned from, unless `reading`
    differs from its defaults.
    """
    if options.recipe is None:
        return options
    recipe = find_recipe(options.recipe)
    reading = options.reading if options.reading != CsvOptions() else recipe.reading
    return replace(options, recipe=recipe, reading=reading)


def find_recipe(url: str) -> recipes.Recipe:
    """Return the recipe of a model or a dataset, or of a transformer in a .skops file.

    Raises StorageError if nothing is at `url`; DataError if it has no recipe; and as
    `read_transformer`.
    """
    if url.endswith(".skops"):
        with (
            files.fetch(
                files.File(locations.parse_location(url), ".skops", "")
            ) as path,
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
            f"{redact(url)} has no recipe, since it was not made from a table; give"
            " another model or dataset"
        )
    return recipe
