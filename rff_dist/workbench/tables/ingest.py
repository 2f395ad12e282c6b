"""Files and queries → a new dataset, or more rows of one, a few batches at a time."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow

from rff_dist.data import row_batches
from rff_dist.data import sources as row_sources
from rff_dist.data.columns import TEXT, is_text
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes import recipes
from rff_dist.recipes.notations import Notation, find_notations, notation_notes, suspicions, with_notations
from rff_dist.recipes.reading import Reading
from rff_dist.recipes.tables import Table, kind_of, listed, read_type, to_labels
from rff_dist.storage import appending, datasets, locations, output_places, writing
from rff_dist.storage.columns import ID, TIME_COLUMN, id_column
from rff_dist.typing import Facts, PathLike, Summary, frozen
from rff_dist.workbench.tables import array_files, files, lakes, learn, queries, rows, unlike
from rff_dist.workbench.tables import roles as table_roles
from rff_dist.workbench.tables.encoding import Encoding
from rff_dist.workbench.tables.roles import Roles, TablePlan
from rff_dist.workbench.tables.rows import Input, Journal, RowSelection
from rff_dist.workbench.tables.spreadsheets import split_sheet

# Attributes that keep the names of columns, so that `ingest_more` finds them; and a count.
_WEIGHT_COLUMN, GROUPS_COLUMN, _DROPPED = "weight_column", "groups_column", lakes.DROPPED
PARTS = "parts"
_IDS = 4  # place of the ids in a batch
_MADE_WITH = "made_with"  # options that all rows share
_log = logging.getLogger(__name__)

type Sources = PathLike | Sequence[PathLike] | queries.Query
type _Rows = Iterator[row_batches.RowBatch]
type _Batches = Callable[[Journal, RowSelection | None, unlike.Watch | None], _Rows]
type _Reading = tuple[TablePlan, int | None, _Batches]


@frozen
class Ingested:
    """What `ingest_more` did.

    `n_before`, `n_after`: rows of the dataset before and after.
    `ingested`, `skipped`: names of the files (or the query) whose rows were added, and of those whose rows
      were there already.
    `dropped_rows`: rows that were left out for missing or infinite values.
    `version`: the version of the dataset that holds the new rows; None if nothing was added.
    `n_replaced`, `n_deleted`: rows that were replaced by their ids, or that a table of a lakehouse updated
      and deleted.
    `table`: `format`, `id` and `version` of that table, which the dataset follows; None without one.
    `n_known`: rows that were skipped, since the dataset has their ids with the same values.
    `unlike`: what is unlike the rows before, as JSON values; see `unlike.Watch.findings`.
    """

    n_before: int
    n_after: int
    ingested: tuple[str, ...]
    skipped: tuple[str, ...]
    dropped_rows: int
    version: str | None = None
    n_replaced: int = 0
    n_deleted: int = 0
    table: Facts | None = None
    n_known: int = 0
    unlike: tuple[Facts, ...] = ()


@frozen
class Preparing:
    """How tables are read, and how their columns become numbers.

    `encoding`: how text, dates and missing values become numbers.
    `reading`: how CSV files are read.
    `recipe`: the recipe of another table, which is used as it is: nothing is learned then.
    """

    encoding: Encoding = field(default_factory=Encoding)
    reading: Reading = field(default_factory=Reading)
    recipe: recipes.Recipe | None = None


def ingest(
    source: Sources,
    url: PathLike,
    roles: Roles = Roles(),
    how: writing.Writing = writing.Writing(),
    preparing: Preparing = Preparing(),
) -> datasets.ZarrDataset:
    """Turn tables into a dataset, in memory that does not grow with them.

    Numbers stay as they are. Text becomes a column of 0 and 1 for each level, or means of the target; dates
    become numbers; see `Encoding`. If there is text or a date, or missing values are filled in, the rows are
    read twice. The dataset's attribute `recipe` says what was done.

    `source`: files here or in an object store, which are read in the order of their names and must have the
      same columns: CSV (.csv, .tsv, .txt) and JSON lines (.jsonl), also compressed (.gz, .zst, .bz2),
      Parquet, Arrow and Feather, Excel (.xlsx; "sales.xlsx#May" is its sheet May), .npy or .npz. Also a
      pattern such as "new/*.csv"; a folder of Parquet files, where folders such as `day=2020-01-01` give
      columns; or a Zarr group whose arrays are columns, as xarray writes it. The columns of an .npy file are
      named "0", "1", …; further .npy files with 1-D arrays are columns with the names of their files. An .npz
      file must be the only one; it holds the array "X" and optionally "y". Or one table of a lakehouse, of
      which the current version is read: the folder of a Delta table, or iceberg://CATALOG/NAMESPACE.TABLE.
    Returns the open dataset. If y is text, the dataset is without it, and `open_column(url, "y")` opens y.
      The attribute `sources` holds name, digest and number of rows of each file.
    Raises StorageError if the source cannot be read, its type is unknown, or the output cannot be written;
      InvalidParameterError if a named column is not there; DataError, which names column and row, if a column
      cannot become numbers, or a value is missing.
    """
    (written,) = _ingest(source, [(url, None)], roles, how, preparing)
    return written


def ingest_parts(
    source: Sources,
    urls: tuple[PathLike, PathLike],
    holdout: rows.Holdout,
    roles: Roles = Roles(),
    how: writing.Writing = writing.Writing(),
    preparing: Preparing = Preparing(),
) -> tuple[datasets.ZarrDataset, datasets.ZarrDataset]:
    """Turn tables into two datasets: one to train on, and one of rows that are held out.

    The recipe is learned from the rows to train on alone. If `roles` name a column of groups, or else of ids,
    rows of one group or id stay together, unless the latest rows are held out.

    `urls`: where the rows to train on go, and where those held out go. The attribute `parts` of both says how
      rows were held out and read.
    Raises as `ingest`; also DataError if a part has no row, or the rows have no order by `holdout.by`.
    """
    # The rows to train on come last: the recipe is learned from the last part.
    places = [(urls[1], RowSelection(holdout, wanted=True)), (urls[0], RowSelection(holdout, wanted=False))]
    test, train = _ingest(source, places, roles, how, preparing)
    recipe = recipes.recipe_of(train.attributes)
    columns = [] if recipe is None else recipe.columns
    dates = [column.column for column in columns if isinstance(column, recipes.Date)]
    if dates and holdout.by is None and roles.groups is None:
        _log.warning(
            "the rows to test on were chosen at random, although the table has dates (%s); to test how later "
            "rows are predicted, hold out the latest ones: give the column as `holdout_by`",
            listed(dates),
        )
    return train, test


def find_parts(
    source: Sources,
    urls: tuple[PathLike, PathLike],
    holdout: rows.Holdout,
    roles: Roles = Roles(),
    preparing: Preparing = Preparing(),
) -> tuple[list[datasets.ZarrDataset], bool, list[str]]:
    """Return what `ingest_parts` wrote before, and how that differs from what it would write now.

    Returns those of the two datasets that are there (one alone was left by a killed run), whether both are
      made of just these files, and the names of options that had other values.
    """
    there = [locations.parse_location(url) for url in urls]
    complete = [
        place for place in there if locations.exists(place) and not output_places.is_unfinished(place)
    ]
    parts = [datasets.open_dataset(place.url, y=None) for place in complete]
    # Other datasets of these names were not made by this function, and are not reused.
    parts = [part for part in parts if PARTS in part.attributes]
    if len(parts) < len(there):
        return parts, False, []
    now, before = _describe_parts(holdout, roles, preparing), parts[0].attributes[PARTS]
    differing = [key for kind, of in now.items() for key in of if before[kind].get(key) != of[key]]
    known = row_sources.known_sources(parts[0].attributes)
    with ExitStack() as stack:
        try:
            new, same = _open_inputs(stack, source, _find(source), known, preparing)
        except DataError:  # a file has grown, or cannot be read as before
            return parts, False, differing
    return parts, not new and len(same) == len(known), differing


def _describe_parts(holdout: rows.Holdout, roles: Roles, preparing: Preparing) -> Summary:
    """Return what decides the parts of a table, as JSON has it."""
    recipe = {"recipe": None if preparing.recipe is None else preparing.recipe.digest()}
    options = {"holdout": asdict(holdout), "roles": asdict(roles), "recipe": recipe}
    options |= {"encoding": asdict(preparing.encoding), "reading": asdict(preparing.reading)}
    # There and back, because what it is compared with was read from JSON: tuples are lists there.
    return dict(json.loads(json.dumps(options)))


def _ingest(
    source: Sources,
    places: Sequence[tuple[PathLike, RowSelection | None]],
    roles: Roles,
    how: writing.Writing,
    preparing: Preparing,
) -> list[datasets.ZarrDataset]:
    """Write one dataset for each part of the rows; the recipe is learned from the last part."""
    table_files = _find(source)
    inputs = [file.location for file in table_files]
    if not isinstance(source, queries.Query):
        sources = [source] if isinstance(source, str | os.PathLike) else source
        inputs += [locations.parse_location(split_sheet(os.fspath(each))[0]) for each in sources]
    outputs = [locations.parse_location(url) for url, _ in places]
    # Checked first, since finding a table's columns and types may take a while.
    for i, output in enumerate(outputs):
        read, marker = [*inputs, *outputs[i + 1 :]], locations.DATASET_FILES
        output_places.check_output(output, overwrite=how.overwrite, inputs=read, marker=marker)
    written: list[datasets.ZarrDataset] = []
    with ExitStack() as stack:
        opened, _ = _open_inputs(stack, source, table_files, [], preparing)
        for file in table_files:
            if file.lake is not None:
                how = replace(how, message=how.message or f"write {file.lake.words}")
        plan, n_samples, batches = _read(stack, opened, roles, preparing, places[-1][1])
        begun, write = list[locations.Location](), partial(writing.write_batches, how=how, inputs=inputs)
        try:
            for location, (_, selection) in zip(outputs, places, strict=True):
                # Only what this run has begun may be removed after an error.
                is_new = not locations.exists(location)
                # Empty when `write_batches` gets it: `_read_selected` fills it after the last batch, before
                # it is stored.
                attributes: Summary = {_MADE_WITH: _options(roles, preparing)}
                if selection is not None:
                    attributes[PARTS] = _describe_parts(selection.holdout, roles, preparing)
                is_given = preparing.recipe is not None
                selected = _read_selected(opened, plan, batches, selection, attributes, is_given=is_given)
                hint, names = n_samples if selection is None else None, (plan.features, plan.targets)
                written.append(write(location, selected, n_samples=hint, names=names, attributes=attributes))
                begun += [location] if is_new else []
        except BaseException:
            for location in begun:  # both or neither
                output_places.discard(location)
            raise
    return written


def _find(source: Sources, *, may_be_none: bool = False) -> list[files.File]:
    return [] if isinstance(source, queries.Query) else files.find_files(source, may_be_none=may_be_none)


def _read_selected(
    opened: Sequence[Input],
    plan: TablePlan,
    batches: _Batches,
    selection: RowSelection | None,
    attributes: Summary,
    *,
    is_given: bool,
) -> _Rows:
    """Yield the selected rows, of which there must be some; fill in the attributes after the last batch.

    `is_given`: whether the recipe is that of other rows, which may not know all texts of these.
    """
    journal = Journal()
    recipe = recipes.plain_recipe(()) if plan.learned is None else plan.learned.recipe
    watch = unlike.Watch(recipe, [] if plan.text else plan.roles.targets, {})
    watch.see_columns(plan.columns)
    selected = batches(journal, selection, watch)
    # Read before the dataset is begun, so that an empty source leaves nothing behind.
    first = next(selected, None)
    if first is None:
        raise DataError(
            f"{', '.join(file.name for file in opened[:10])}: no rows; expected some to begin with"
        )
    classes: set[str] = set()
    ids: list[Any] = []
    for batch in chain([first], selected):
        labels = batch[1] if plan.text and isinstance(batch, tuple) else None
        if labels is not None:
            classes.update(labels.tolist())
            # in each batch, so that a column of names is refused after some rows and not after the last
            learn.check_classes(plan.roles.targets[0], classes)
        if isinstance(batch, tuple) and plan.roles.id is not None:
            ids.append(batch[_IDS])
        yield batch
    if ids:
        _refuse_repeated(plan.roles.id, np.concatenate(ids))
    if plan.text and (selection is None or not selection.wanted):
        learn.check_classes(plan.roles.targets[0], classes, journal.n_read - journal.dropped)
    if selection is not None and journal.n_read == journal.dropped:
        key = plan.roles.groups or plan.roles.id
        together = "" if key is None else f" (rows of one {key!r} stay together)"
        raise DataError(
            f"no row is {'held out' if selection.wanted else 'left to train on'}{together}; expected some. "
            "Change the share `holdout`"
        )
    attributes.update(_facts(plan.roles, journal, {}))
    attributes[unlike.SEEN] = watch.facts()
    for one in watch.findings() if is_given else ():
        shown = f": {', '.join(one['examples'])}" if one["examples"] else ""
        _log.warning(
            "%s: column %r: %s in %d rows%s", opened[0].name, one["column"], one["what"], one["n_rows"], shown
        )
    if plan.time is not None:
        attributes[TIME_COLUMN] = plan.time
    if plan.learned is not None:
        attributes[recipes.RECIPE] = plan.learned.recipe.to_dict()


def _refuse_repeated(column: str | None, ids: np.ndarray) -> None:
    """Refuse ids that name several rows of a new dataset; they take 8 bytes per row, or their text."""
    values, counts = np.unique(ids.astype(TEXT) if ids.dtype == object else ids, return_counts=True)
    repeated = values[counts > 1].tolist()
    if repeated:
        raise DataError(
            f"{len(repeated):,} ids of the column {column!r} name several rows: {listed(repeated)}; expected "
            "each id once. Leave out repeated rows, or give the column as `groups`"
        )


def check_roles(source: PathLike | Sequence[PathLike], roles: Roles, preparing: Preparing) -> None:
    """Refuse names that are no column of a table, before its rows are read.

    Files in an object store are not checked, since they would have to be fetched first.

    Raises InvalidParameterError, DataError as `ingest`.
    """
    file = files.find_files(source)[0]
    if not file.location.is_local or file.kind == ".npz":
        return
    (values,) = files.partition_values([file.partitions])
    with files.fetch(file) as path:
        table = files.open_table(file, path, preparing.reading, values)
        schema = with_notations(table, _notations([table], roles, None, preparing.reading)).schema
        table_roles.choose_columns(table.name, schema, roles)


def ingest_more(
    source: Sources,
    url: PathLike,
    roles: Roles = Roles(),
    how: writing.Writing = writing.Writing(),
    preparing: Preparing = Preparing(),
    *,
    replace_ids: bool = False,
) -> Ingested:
    """Append the rows of new files to a dataset, or create it. A second run adds nothing more.

    Columns are found by the names that the dataset holds; a file may have further columns. All rows of all
    new files are added, or none. No id names two rows: rows whose ids the dataset has with the same values
    are skipped.

    `source`: as for `ingest`, except that a folder or pattern may hold no file. Files that were ingested
      before are skipped: they have the same name, size and time, or the same bytes. A file that has changed
      since then is refused, unless ids tell which of its rows are new. Of a table of a lakehouse that the
      dataset was made of, what changed since is read: rows are added, replaced and deleted by their ids, in
      one commit.
    `url`: the dataset. If there is none, it is created as by `ingest`; then `target` or `columns` must be
      given.
    `roles`: an existing dataset knows its columns, so they need not be given. X keeps the dataset's dtype;
      new rows are rounded to it only if it is given.
    `how`: chunks are chosen when the dataset is created; nothing is overwritten.
    `preparing`: for an existing dataset its own recipe is used; options that are others are refused.
    `replace_ids`: whether rows whose ids the dataset has with other values replace them, which is an error
      otherwise.
    Raises DataError, InvalidParameterError, StorageError as `ingest` and `append_dataset`; the dataset then
      stays as it was.
    """
    location = locations.parse_location(url)
    if not locations.exists(location) or output_places.is_unfinished(location):
        _refuse_to_guess(source, location, roles)
        created = ingest(source, url, roles, replace(how, overwrite=False), preparing)
        names = tuple(str(entry["name"]) for entry in row_sources.known_sources(created.attributes))
        dropped = int(created.attributes.get(_DROPPED, 0))
        table = row_sources.followed_table(created.attributes)
        return Ingested(0, created.n_samples, names, (), dropped, created.version, table=table)
    table_files = _find(source, may_be_none=True)
    with ExitStack() as stack:
        dataset = stack.enter_context(appending.editing(location))
        recipe = recipes.recipe_of(dataset.attributes)
        if preparing.recipe is not None and (recipe is None or recipe.digest() != preparing.recipe.digest()):
            raise InvalidParameterError(
                f"`recipe` is given, but {location} was made by another one, which is used; leave it out"
            )
        _refuse_others(dataset, roles, preparing)
        if recipe is not None:
            given = {name: value for name, value in asdict(preparing.reading).items() if value is not None}
            preparing = replace(preparing, reading=replace(recipe.reading, **given))
        known = row_sources.known_sources(dataset.attributes)
        if table_files and table_files[0].lake is not None:
            return _follow(dataset, table_files[0].lake, roles, how.message)
        has_ids = ID in dataset.headers
        # under the lock: two runs at once would both find a file new
        opened, skipped = _open_inputs(stack, source, table_files, known, preparing, has_ids=has_ids)
        if not opened:
            return Ingested(dataset.n_before, dataset.n_before, (), tuple(skipped), 0)
        if has_ids and opened[0].table is not None and opened[0].table.is_read_once:
            types = dict(zip(opened[0].table.schema.names, opened[0].table.schema.types, strict=True))
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="rff_dist-")))
            opened = [replace(opened[0], table=array_files.spool(opened[0].table, types, folder))]
        journal, watch = Journal(), _watch_over(dataset)
        batches = read_onto(dataset, opened, roles, journal, watch)
        ids = _known_rows(dataset, opened, replaces=replace_ids) if has_ids else None

        def change(attributes: Facts, n_new: int) -> Facts | None:
            digests = {str(entry["sha256"]) for entry in journal.entries}
            is_known = not journal.n_read or digests & row_sources.known_digests(attributes)
            # A query may find the rows that it found the last time; then nothing is appended.
            if opened[0].is_query and is_known:
                return None
            return _facts(roles, journal, attributes) | {unlike.SEEN: watch.facts()}

        observer, message = how.observer, how.message
        added = appending.append_batches(
            dataset, batches, change=change, observer=observer, message=message, known=ids
        )
        names = tuple(file.source.name for file in opened)
        counts = added.n_before, added.n_after
        if opened[0].is_query and added.version is None:
            return Ingested(*counts, (), names, journal.dropped)
        is_whole = isinstance(source, queries.Query) and not source.is_incremental
        if is_whole and any(row_sources.is_named(entry, opened[0].source.name) for entry in known):
            watch.see_query(added.n_rows)
        n_same, n_replaced = (0, 0) if ids is None else (ids.n_same, ids.n_replaced)
        return Ingested(
            *counts,
            names,
            tuple(skipped),
            journal.dropped,
            added.version,
            n_replaced,
            n_known=n_same,
            unlike=tuple(watch.findings()),
        )


def _refuse_others(dataset: appending.Editing, roles: Roles, preparing: Preparing) -> None:
    """Refuse options that the rows of a dataset were made without, which later rows cannot have either."""
    given, usual = _options(roles, preparing), _options(Roles(), Preparing())
    made = {**usual, **dataset.attributes.get(_MADE_WITH, {})}
    for name, value in given.items():
        if value not in (usual[name], made[name]):
            raise InvalidParameterError(
                f"`{name}` is {value!r}, but the rows of {dataset.location} were made with {made[name]!r}; "
                f"expected that, or no `{name}`. Leave it out, or ingest all rows again with `overwrite`"
            )


def _options(roles: Roles, preparing: Preparing) -> dict[str, Any]:
    """Return the options that all rows of a dataset share, as JSON values."""
    options = {**asdict(preparing.encoding), "drop": list(roles.drop)}
    options |= {"date_order": preparing.reading.date_order, "missing": preparing.reading.missing}
    return {**options, "weight": roles.weight, "groups": roles.groups, "id": roles.id}


def _watch_over(dataset: appending.Editing) -> unlike.Watch:
    recipe = recipes.recipe_of(dataset.attributes) or recipes.plain_recipe(
        dataset.names("feature_names") or ()
    )
    seen = dataset.attributes.get(unlike.SEEN, {})
    return unlike.Watch(recipe, dataset.names("target_names") or (), seen)


def _known_rows(
    dataset: appending.Editing, opened: Sequence[Input], *, replaces: bool
) -> appending.KnownRows:
    """Find which ids of new tables a dataset has; their columns of ids are read for it."""
    name, ids = str(id_column(dataset.attributes)), []
    for table in (file.table for file in opened if file.table is not None):
        if name not in table.schema.names:  # which is refused by name when its columns are chosen
            continue
        kind = read_type(table.schema.field(name).type, None)
        for batch in table.batches({name: kind}):
            labels = to_labels(batch.column(name).drop_null())
            ids.append(labels.astype(TEXT) if labels.dtype == object else labels)
    recipe = recipes.recipe_of(dataset.attributes)
    columns = [] if recipe is None else recipe.columns
    parts = [part for part in columns for _ in part.names]
    not_compared = [i for i, part in enumerate(parts) if isinstance(part, recipes.TargetMeans)]
    if not ids:
        return appending.KnownRows(dataset, {}, (), replaces)
    return appending.KnownRows.among(
        dataset, np.concatenate(ids), replaces=replaces, not_compared=not_compared
    )


def _follow(dataset: appending.Editing, lake: lakes.Lake, roles: Roles, message: str | None) -> Ingested:
    """Bring a dataset in step with the table that it follows; see `ingest_more`."""
    attributes, n_before = dataset.attributes, dataset.n_before
    entry = lake.find_entry(row_sources.known_sources(attributes), dataset.location)
    if entry["sha256"] == lake.source.sha256:
        table = row_sources.followed_table(attributes)
        return Ingested(n_before, n_before, (), (lake.url,), 0, table=table)
    since, recipe = entry[row_sources.TABLE], recipes.recipe_of(attributes)
    for change in lake.schema_changes(since):
        _log.warning("%s: the column %s after version %s", lake.url, change, since["version"])
    roles = replace(roles, on_nan="drop") if _DROPPED in attributes else roles
    key = id_column(attributes)
    used = {key, *(attributes.get(name) for name in (_WEIGHT_COLUMN, GROUPS_COLUMN, TIME_COLUMN))}
    used |= {*(dataset.names("target_names") or ()), *(recipe.inputs if recipe is not None else ())}
    changes = lake.read_changes(since, [name for name in lake.rows.schema.names if name in used], key)
    journal = Journal()
    came = array_files.memory_table(lake.rows.name, changes.rows)
    opened, watch = [Input(lake.source, came, Path(lake.rows.name))], _watch_over(dataset)
    read = [dataset.fit_batch(batch, 0) for batch in read_onto(dataset, opened, roles, journal, watch)]
    facts = _facts(roles, journal, attributes) | {unlike.SEEN: watch.facts()}
    merged = lakes.merge(dataset, lake, changes, read, facts, message)
    n_after = n_before + merged.n_added - merged.n_deleted
    changed, dropped = (merged.n_replaced, merged.n_deleted), journal.dropped
    found = tuple(watch.findings())
    done = n_before, n_after, (lake.url,), (), dropped, merged.version, *changed
    return Ingested(*done, table=lake.about, unlike=found)


# -- what is read ----------------------------------------------------------------------------------


def _open_inputs(
    stack: ExitStack,
    source: Sources,
    table_files: Sequence[files.File],
    known: Sequence[Facts],
    preparing: Preparing,
    *,
    has_ids: bool = False,
) -> tuple[list[Input], list[str]]:
    """Open the inputs that are not among the known sources; return the names of the others too.

    `has_ids`: whether ids tell which rows of a file are new, though it has changed since it was ingested.
    """
    if isinstance(source, queries.Query):
        n_ingested = source.n_ingested(known)
        result = stack.enter_context(queries.run_query(source, n_ingested=n_ingested))
        # An increment with the same values as the one before is new all the same: its digest must differ.
        begin = str(n_ingested) if source.is_incremental else ""
        return [Input(row_sources.Source(source.name, begin), result, None)], []
    if len(table_files) > 1 and all(file.kind == ".npy" for file in table_files):
        paths = [stack.enter_context(files.fetch(file)) for file in table_files]
        if any(map(array_files.has_one_axis, paths)):
            return _open_columns(table_files, paths, known)
    opened: list[Input] = []
    skipped: list[str] = []
    digests = {str(entry.get("sha256")) for entry in known}
    partitions = files.partition_values([file.partitions for file in table_files])
    for file, values in zip(table_files, partitions, strict=True):
        if file.is_known(known):
            skipped.append(file.name)
            continue
        path = stack.enter_context(files.fetch(file))
        # ids that were forgotten are unknown, and would come back with a file that still has them
        by_ids = has_ids and not row_sources.is_forgotten(known, file.name)
        identity = files.identify(file, path, [] if by_ids else known)
        if values or file.sheet is not None:  # the same bytes have other rows in other folders, or sheets
            folders = json.dumps(dict(file.partitions), sort_keys=True)
            words = "|".join([identity.sha256, folders, *filter(None, [file.sheet])])
            digest = hashlib.sha256(words.encode()).hexdigest()
            identity = replace(identity, sha256=digest)
        if identity.sha256 in digests:
            skipped.append(file.name)
            _log.info("%s holds rows that are there already", file.name)
            continue
        if not by_ids:
            _refuse_changed(file.name, known)
        # so that two files of this call with the same bytes count once as well
        digests.add(identity.sha256)
        table = None if file.kind == ".npz" else files.open_table(file, path, preparing.reading, values)
        opened.append(Input(identity, table, path))
    if len(opened) > 1 and any(file.table is None for file in opened):
        raise InvalidParameterError(
            f"{listed([file.name for file in opened])}: an .npz file holds X as one array, without names of "
            "columns; expected it alone. Ingest one after the other with `append`"
        )
    return opened, skipped


def _refuse_changed(name: str, known: Sequence[Facts]) -> None:
    """Refuse a file that was ingested with other contents: rows that it still has would count twice."""
    before = [entry for entry in known if row_sources.is_named(entry, name)]
    if before:
        n_rows = sum(int(entry.get("n_samples", 0)) for entry in before)
        raise DataError(
            f"{name} was ingested already, with other contents ({n_rows:,} rows), which would count twice; "
            "expected new rows in a file of another name. Rename it if all its rows are new, or replace rows "
            "by `rff-dist data correct`"
        )


def _open_columns(
    table_files: Sequence[files.File], paths: Sequence[Path], known: Sequence[Facts]
) -> tuple[list[Input], list[str]]:
    """Open .npy files as the columns of one table, unless it is among the known sources."""
    digests = [files.identify(file, path, []).sha256 for file, path in zip(table_files, paths, strict=True)]
    names, digest = ", ".join(file.name for file in table_files), hashlib.sha256("".join(digests).encode())
    source = row_sources.Source(names, digest.hexdigest())
    if source.sha256 in {entry.get("sha256") for entry in known}:
        return [], [source.name]
    return [Input(source, array_files.array_table(paths), paths[0])], []


def _read(
    stack: ExitStack, opened: list[Input], roles: Roles, preparing: Preparing, selection: RowSelection | None
) -> _Reading:
    """Plan how the rows of a new dataset are read.

    `selection`: which rows to learn from.
    Returns the plan, the number of rows if it is known, and a function that reads the batches.
    """
    first = opened[0]
    if first.table is None:
        return _read_archive(first, roles, selection)
    encoding, recipe, reading = preparing.encoding, preparing.recipe, preparing.reading
    tables = [file.table for file in opened if file.table is not None]
    by = None if selection is None else selection.holdout.by
    notations = _notations(tables, roles, by, reading) if recipe is None else recipe.notations
    tables = [
        with_notations(each, notations, is_new=True) if recipe is None else recipe.read(each)
        for each in tables
    ]
    opened = [replace(file, table=table) for file, table in zip(opened, tables, strict=True)]
    schema = table_roles.common_schema(tables)
    for table in tables:
        if set(table.schema.names) != set(schema.names):
            differing = sorted(set(table.schema.names) ^ set(schema.names))
            raise DataError(f"{table.name} and {tables[0].name} differ in the columns {listed(differing)}")
    if recipe is not None:
        recipe.check(schema, tables[0].name)
        roles = _roles_of(recipe, roles, schema)
    index = table_roles.find_index(tables[0], roles) if recipe is None and not encoding.keep_index else None
    roles = roles if index is None else replace(roles, drop=[*roles.drop, index])
    columns = table_roles.choose_columns(tables[0].name, schema, roles)
    kinds = {name: kind_of(schema.field(name).type) for name in columns}
    learning = recipe is None and learn.needs_pass(kinds, encoding)
    learned = learn.Learned(learn.plain(kinds, encoding) if recipe is None else recipe)
    plan = table_roles.plan_columns(schema, roles, learned, tables[0].name)
    order = {} if by is None else rows.order_type(tables[0].name, schema, by)
    plan = replace(plan, types={**order, **plan.types})
    if (learning or selection is not None) and tables[0].is_read_once:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="rff_dist-")))
        opened = [replace(opened[0], table=array_files.spool(tables[0], plan.types, folder))]
    if selection is not None and by is not None:
        plan = replace(plan, test_start=rows.find_start(opened, order, selection.holdout))
    if learning:
        looked_at = rows.read_batches(opened, plan, Journal(), selection)
        learned = learn.learn(schema, columns, looked_at, encoding, targets=roles.targets)
    unread = [name for name in columns if recipe is None and name not in notations]
    found = [*notation_notes(notations, reading.missing or []), *suspicions(tables[0], unread)]
    notes = {table.name: table.notes for table in tables}
    notes[tables[0].name] = [*tables[0].notes, *found]
    notes = {name: lines for name, lines in notes.items() if lines}
    left_out = {} if index is None else {index: "it numbers the rows; `keep_index` keeps it"}
    left_out |= learned.recipe.left_out
    named = replace(learned.recipe, left_out=left_out, id=roles.id, notes=notes, notations=notations)
    # the format of one file is not that of others
    named = replace(named, reading=replace(reading, format=None))
    # Planned a second time: the first plan only says how to read, X's dtype follows from what was learned.
    learned, start = replace(learned, recipe=named), plan.test_start
    plan = table_roles.plan_columns(schema, roles, learned, tables[0].name)
    constant = _constant_types(schema, unlike.Watch(named, (), {}))
    types = {**order, **constant, **plan.types}
    plan = replace(plan, types=types, test_start=start, time=by, columns=schema.names)
    if recipe is not None:
        plan = replace(plan, advice="Fill it in in the table, or leave the row out of it")
    lengths = [table.n_samples for table in tables if table.n_samples is not None]
    n_rows = sum(lengths) if len(lengths) == len(tables) else None
    return plan, n_rows, partial(rows.read_tables, opened, plan)


def _notations(
    tables: Sequence[Table], roles: Roles, by: str | None, reading: Reading
) -> dict[str, Notation]:
    """Find how texts of a new dataset write numbers or dates; ids and groups stay as they are.

    `by`: the column that rows are held out by.
    """
    others = {roles.groups, roles.id, *roles.drop} - {by}
    used = {*(roles.columns or tables[0].schema.names), *roles.targets, roles.weight, by} - others
    names = [name for name in tables[0].schema.names if name in used]
    numbers = {*roles.targets, roles.weight} - {by}
    return find_notations(tables, names, reading, numbers=numbers)


def _read_archive(file: Input, roles: Roles, selection: RowSelection | None) -> _Reading:
    """Plan how an .npz file is read; see `_read`."""
    assert file.path is not None
    if roles.columns is not None or roles.drop or roles.id is not None or selection is not None:
        raise InvalidParameterError(
            "`columns`, `drop`, `id` and `holdout` are for tables; an .npz file holds X as one array, so "
            "leave them out"
        )
    n_samples, batches = array_files.read_npz(file.path, roles)
    plan = TablePlan(roles, None, {}, np.dtype(np.float64), False)
    return plan, n_samples, lambda journal, _, __: rows.check_rows(batches, file, plan, journal)


def _roles_of(recipe: recipes.Recipe, roles: Roles, schema: pyarrow.Schema) -> Roles:
    """Return the roles of a table that a given recipe encodes."""
    if roles.columns is not None:
        raise InvalidParameterError("`columns` is given, but the recipe names the columns; leave it out")
    named = roles.id is None and recipe.id in schema.names
    return replace(roles, columns=recipe.inputs, id=recipe.id if named else roles.id)


def read_onto(
    dataset: appending.Editing,
    opened: list[Input],
    roles: Roles,
    journal: Journal,
    watch: unlike.Watch | None = None,
) -> _Rows:
    """Return batches for a dataset's arrays, with the columns that the dataset names."""
    X, y = dataset.headers["X"], dataset.headers.get("y")
    if roles.dtype not in (None, X.dtype.name):
        raise InvalidParameterError(
            f"`dtype` is {roles.dtype!r}, but X of {dataset.location} is {X.dtype}; expected that, or None"
        )
    if opened[0].table is None:
        _, _, batches = _read_archive(opened[0], roles, None)
        return batches(journal, None, None)
    recipe = recipes.recipe_of(dataset.attributes)
    roles = _known_roles(dataset, roles, recipe, one_dimensional=y is None or len(y.shape) == 1)
    recipe = recipes.plain_recipe(roles.columns or []) if recipe is None else recipe
    tables = [recipe.read(file.table) for file in opened if file.table is not None]
    opened = [replace(file, table=table) for file, table in zip(opened, tables, strict=True)]
    for table in tables:
        plan = table_roles.plan_columns(table.schema, roles, learn.Learned(recipe), table.name)
        if roles.dtype is None and not np.can_cast(plan.dtype, X.dtype, "safe"):
            raise DataError(
                f"{table.name} has columns of {plan.dtype}, which X of {dataset.location} ({X.dtype}) cannot "
                f'hold without rounding; give dtype="{X.dtype.name}" to round them'
            )
        if watch is not None:
            watch.see_columns(table.schema.names)
    schema = table_roles.common_schema(tables)
    plan = table_roles.plan_columns(schema, roles, learn.Learned(recipe), tables[0].name)
    time = dataset.attributes.get(TIME_COLUMN)
    is_stored = time in schema.names or time not in recipe.names  # `split` may have cut by a column of X
    order = rows.order_type(tables[0].name, schema, time) if time is not None and is_stored else {}
    types = {**order, **_constant_types(schema, watch), **plan.types}
    plan = replace(plan, dtype=X.dtype, text=y is not None and is_text(y.dtype), types=types, time=time)
    plan = replace(plan, advice='Fill it in in the file, or drop such rows with `on_nan="drop"`')
    return rows.read_tables(opened, plan, journal, None, watch)


def _constant_types(schema: pyarrow.Schema, watch: unlike.Watch | None) -> dict[str, pyarrow.DataType]:
    """Return the types to read columns by that were left out since they held one value."""
    names = [] if watch is None else [name for name in watch.constant_columns if name in schema.names]
    return {name: read_type(schema.field(name).type, kind_of(schema.field(name).type)) for name in names}


def _known_roles(
    dataset: appending.Editing, roles: Roles, recipe: recipes.Recipe | None, *, one_dimensional: bool
) -> Roles:
    """Complete roles by the columns that a dataset knows, and refuse others."""
    features, targets = dataset.names("feature_names"), dataset.names("target_names")
    features = features if recipe is None else tuple(recipe.inputs)
    given = ("columns", roles.columns, features), ("target", roles.targets or None, targets)
    for key, names, known in given:
        if names is not None and known is not None and tuple(names) != known:
            raise InvalidParameterError(
                f"`{key}` is {list(names)}, but {dataset.location} has {list(known)}, which are found by "
                "name; leave it out"
            )
    if features is None and roles.columns is None:
        raise InvalidParameterError(
            f"{dataset.location} holds no names of columns; give them as `columns`, in the order of X"
        )
    targets = targets or tuple(roles.targets)
    if "y" in dataset.headers and not targets:
        raise InvalidParameterError(
            f"{dataset.location} holds no names of targets; give the columns of y as `target`"
        )
    return replace(
        roles,
        target=targets[0] if targets and one_dimensional else targets or None,
        weight=roles.weight or dataset.attributes.get(_WEIGHT_COLUMN),
        groups=roles.groups or dataset.attributes.get(GROUPS_COLUMN),
        columns=features or roles.columns,
        id=roles.id or (None if recipe is None else recipe.id),
    )


# -- what is remembered ----------------------------------------------------------------------------


def _refuse_to_guess(source: Sources, location: locations.Location, roles: Roles) -> None:
    """Refuse to create a dataset without named columns: its URL may be a typing error."""
    is_array = {file.kind for file in _find(source)} == {".npz"}
    if not is_array and not roles.targets and roles.columns is None:
        raise InvalidParameterError(
            f"there is no dataset at {location} to append to; to create it, give the columns to predict as "
            "`target`, or those of X as `columns` if there are no targets"
        )


def _facts(roles: Roles, journal: Journal, before: Facts) -> Summary:
    """Return the attributes of a dataset that change when rows are added."""
    facts: Summary = {row_sources.SOURCES: [*row_sources.known_sources(before), *journal.entries]}
    for key, name in ((_WEIGHT_COLUMN, roles.weight), (GROUPS_COLUMN, roles.groups)):
        if name is not None and key not in before:
            facts[key] = name
    if roles.on_nan == "drop":
        facts[_DROPPED] = int(before.get(_DROPPED, 0)) + journal.dropped
    return facts
