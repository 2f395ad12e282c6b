"""New files, query results or changes of a lakehouse table → more rows of a dataset.

In go sources and a dataset, out comes an `IngestResult`, which counts the rows. All new
rows are added in one commit, or none. A second run adds nothing more: the dataset keeps
the name, size, time and digest of each file that it has the rows of, and its rows may
have ids.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace

import numpy as np

from rff_dist.data import sources as row_sources
from rff_dist.data.columns import TEXT
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes.recipes import recipe_of
from rff_dist.recipes.tables import read_type, to_labels
from rff_dist.storage import appending, editing, locations, output_places
from rff_dist.storage.columns import ID, id_column
from rff_dist.storage.writing import WriteOptions
from rff_dist.typing import Facts, PathLike
from rff_dist.workbench.tables import arrow_files, attributes, existing
from rff_dist.workbench.tables.existing import IngestResult
from rff_dist.workbench.tables.files import File
from rff_dist.workbench.tables.follow import follow
from rff_dist.workbench.tables.ingest import ingest
from rff_dist.workbench.tables.inputs import (
    Input,
    Journal,
    Sources,
    find_sources,
    open_inputs,
)
from rff_dist.workbench.tables.lakes import Lake
from rff_dist.workbench.tables.options import TableOptions
from rff_dist.workbench.tables.queries import Query
from rff_dist.workbench.tables.roles import Roles
from rff_dist.workbench.tables.row_monitor import SEEN_VALUES


def ingest_more(
    sources: Sources,
    url: PathLike,
    roles: Roles = Roles(),
    write_options: WriteOptions = WriteOptions(),
    options: TableOptions = TableOptions(),
    *,
    replace_ids: bool = False,
) -> IngestResult:
    """Append the rows of new files to a dataset, or create it.

    All rows of all new files are added, or none. No id names two rows: rows whose ids
    the dataset has with the same values are skipped.

    Parameters
    ----------
    sources
        As for `ingest`, except that a folder or pattern may hold no file. Files that
        were ingested before are skipped: they have the same name, size and time, or
        the same bytes. A file that has changed since then is refused, unless ids tell
        which of its rows are new. Of the lakehouse table that the dataset was made of,
        only changes are read: rows are added, replaced and deleted by their ids.
    url
        The dataset. If there is none, it is created as by `ingest`; then a target or
        `columns` must be given.
    roles
        A dataset knows its columns, so they need not be given. X keeps the dataset's
        dtype; new rows are rounded to it only if the dtype is given.
    write_options
        Chunks are chosen when the dataset is created; nothing is overwritten.
    options
        New rows are read by the dataset's own recipe, which `reading` may change in
        part. Options other than those of the dataset are refused.
    replace_ids
        Whether rows whose ids the dataset has with other values replace them, which is
        an error otherwise.

    Raises
    ------
    DataError, InvalidParameterError, StorageError
        As `ingest` and `append_dataset`; the dataset then stays as it was.
    """
    location = locations.parse_location(url)
    if not locations.exists(location) or output_places.is_unfinished(location):
        return _create(sources, location, roles, write_options, options)

    found = find_sources(sources, may_be_none=True)
    with ExitStack() as stack:
        dataset = stack.enter_context(editing.editing(location))
        _refuse_other_options(dataset, roles, options)
        if found and isinstance(found[0], Lake):
            return follow(dataset, found[0], roles, write_options.message)

        reading = options.reading
        recipe = recipe_of(dataset.attributes)
        if recipe is not None:
            by_user = {k: v for k, v in asdict(reading).items() if v is not None}
            reading = replace(recipe.reading, **by_user)
        known_sources = row_sources.known_sources(dataset.attributes)
        has_ids = ID in dataset.headers
        is_new = [
            not isinstance(one, File) or not one.is_known(known_sources)
            for one in found
        ]
        stack.enter_context(_telling_of_others(sum(is_new) - 1))
        # within the lock that `editing` holds: two runs would both find a file new
        opened, skipped = open_inputs(
            stack, found, reading, known_sources, has_ids=has_ids
        )
        if not opened:
            n_rows = dataset.n_before
            return IngestResult(
                n_before=n_rows,
                n_after=n_rows,
                ingested=(),
                skipped=tuple(skipped),
                dropped_rows=0,
            )

        table = opened[0].table
        # Rows with ids are read twice: first only their ids, then all columns. A query
        # can be read only once, and is the only input; `rereadable` leaves files as
        # they are.
        if has_ids:
            types = dict(zip(table.schema.names, table.schema.types, strict=True))
            table = arrow_files.rereadable(stack, table, types)
            opened[0] = replace(opened[0], table=table)

        repeats_query = False
        if isinstance(sources, Query) and not sources.is_incremental:
            repeats_query = any(
                row_sources.is_named(entry, sources.name) for entry in known_sources
            )
        result = _append(
            dataset,
            opened,
            roles,
            write_options,
            replace_ids=replace_ids,
            repeats_query=repeats_query,
        )
        return replace(result, skipped=(*skipped, *result.skipped))


@contextmanager
def _telling_of_others(n_others: int) -> Iterator[None]:
    """Say in an error of data how many other new files wait with the faulty one."""
    try:
        yield
    except DataError as error:
        if n_others > 0:
            files = f"{n_others:,} other new files wait"
            if n_others == 1:
                files = "1 other new file waits"
            error.args = (
                f"{error}. Until it is corrected or moved out of the folder, {files}.",
            )
        raise


def _create(
    sources: Sources,
    location: locations.Location,
    roles: Roles,
    write_options: WriteOptions,
    options: TableOptions,
) -> IngestResult:
    # without named columns the URL may be a typing error
    if not roles.targets and roles.columns is None:
        raise InvalidParameterError(
            f"there is no dataset at {location} to append to; to create it, give the"
            " columns to predict as `target`, or those of X as `columns` if there are"
            " no targets"
        )

    write_options = replace(write_options, overwrite=False)
    dataset = ingest(sources, location.url, roles, write_options, options)
    remembered = dataset.attributes
    sources_read = row_sources.known_sources(remembered)
    return IngestResult(
        n_before=0,
        n_after=dataset.n_samples,
        ingested=tuple(str(entry["name"]) for entry in sources_read),
        skipped=(),
        dropped_rows=int(remembered.get(attributes.DROPPED, 0)),
        version=dataset.version,
        table=row_sources.followed_table(remembered),
    )


def _append(
    dataset: editing.DatasetEditor,
    opened: list[Input],
    roles: Roles,
    write_options: WriteOptions,
    *,
    replace_ids: bool,
    repeats_query: bool,
) -> IngestResult:
    """Append all rows in one commit.

    `repeats_query`: whether the query was ingested before and lacks `:n_ingested`: it
    then gives the earlier rows again, and the result warns of them.
    """
    journal = Journal()
    monitor = existing.monitor_of(dataset)
    batches = existing.read_onto(dataset, opened, roles, journal, monitor)
    is_query = opened[0].is_query
    id_check = None
    if ID in dataset.headers:
        id_check = _check_of_ids(dataset, opened, replaces=replace_ids)

    # `batches` fill the journal and the monitor while `append_batches` reads them; it
    # calls `change` after the last one, when these are complete.
    def change(remembered: Facts) -> Facts | None:
        digests = {str(entry["sha256"]) for entry in journal.entries}
        was_ingested = bool(digests & row_sources.known_digests(remembered))
        # A query without rows, or with the rows of an earlier run, appends nothing.
        if is_query and (was_ingested or not journal.n_read):
            return None
        if id_check is not None and id_check.is_new:
            journal.count_new_rows(np.concatenate(id_check.is_new))
        changed = attributes.attributes_after(roles, journal, remembered)
        return changed | {SEEN_VALUES: monitor.summary()}

    added = appending.append_batches(
        dataset,
        batches,
        change=change,
        observer=write_options.observer,
        message=write_options.message,
        id_check=id_check,
    )
    names = tuple(source.provenance.name for source in opened)
    result = IngestResult(
        n_before=added.n_before,
        n_after=added.n_after,
        ingested=names,
        skipped=(),
        dropped_rows=journal.n_dropped,
        version=added.version,
    )
    if is_query and added.version is None:
        return replace(result, ingested=(), skipped=names)

    if repeats_query:
        monitor.see_query(added.n_rows)
    if id_check is not None:
        result = replace(
            result,
            n_replaced=id_check.n_replaced,
            n_known=id_check.n_same,
            n_of_other_part=len(id_check.of_other_part),
        )
    return replace(result, unlike=tuple(monitor.findings()))


def _refuse_other_options(
    dataset: editing.DatasetEditor, roles: Roles, options: TableOptions
) -> None:
    """Refuse a recipe or options with which the dataset's rows were not made."""
    recipe = recipe_of(dataset.attributes)
    if options.recipe is not None:
        if recipe is None:
            raise InvalidParameterError(
                f"`recipe` is given, but {dataset.location} was made without one; leave"
                " it out"
            )
        if recipe.digest() != options.recipe.digest():
            raise InvalidParameterError(
                f"`recipe` is given, but {dataset.location} was made by another one,"
                " which is used; leave it out"
            )

    defaults = attributes.shared_options(Roles(), TableOptions())
    before = {**defaults, **dataset.attributes.get(attributes.SHARED_OPTIONS, {})}
    for name, value in attributes.shared_options(roles, options).items():
        # a default counts as not given: the dataset's own value is used
        if value not in (defaults[name], before[name]):
            raise InvalidParameterError(
                f"`{name}` is {value!r}, but the rows of {dataset.location} were made"
                f" with {before[name]!r}; expected that, or no `{name}`. Leave it out,"
                " or ingest all rows again with `overwrite`"
            )


def _check_of_ids(
    dataset: editing.DatasetEditor, opened: Sequence[Input], *, replaces: bool
) -> appending.IdCheck:
    """Read the ids of new tables, and find those that the dataset has already."""
    column = str(id_column(dataset.attributes))
    recipe = recipe_of(dataset.attributes)
    new_ids = []
    for source in opened:
        table = source.table if recipe is None else recipe.read(source.table)
        # a table without ids is refused by name when its columns are chosen
        if column not in table.schema.names:
            continue
        type_ = read_type(table.schema.field(column).type, None)
        for batch in table.batches({column: type_}):
            labels = to_labels(batch.column(column).drop_null())
            if labels.dtype == object:
                labels = labels.astype(TEXT)
            new_ids.append(labels)
    if not new_ids:
        return appending.IdCheck(dataset, {}, (), replaces)

    ids = np.concatenate(new_ids)
    return appending.IdCheck.among(dataset, ids, replaces=replaces)
