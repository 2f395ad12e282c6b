"""Changes of a lakehouse table → the same changes of the dataset that was made from it.

The rows that came, changed or went since the dataset's version are found by their ids
and committed at once. Nothing is changed if dataset and table disagree about which rows
were there before.
"""

import logging
from dataclasses import replace
from functools import partial

import numpy as np

from rff_dist.data import columns as row_columns
from rff_dist.data import row_batches
from rff_dist.data import sources as row_sources
from rff_dist.errors import DataError
from rff_dist.recipes.recipes import recipe_of
from rff_dist.storage import corrections, editing
from rff_dist.storage.columns import ID, TIME_COLUMN, id_column
from rff_dist.typing import Arrays, IntArray, Summary
from rff_dist.workbench.tables import arrow_files, attributes, existing
from rff_dist.workbench.tables.inputs import Input, Journal
from rff_dist.workbench.tables.lakes import Lake, TableChanges
from rff_dist.workbench.tables.roles import Roles
from rff_dist.workbench.tables.row_monitor import SEEN_VALUES

_log = logging.getLogger(__name__)


def follow(
    dataset: editing.DatasetEditor, lake: Lake, roles: Roles, message: str | None
) -> existing.IngestResult:
    """Bring a dataset in step with the table that it was made from."""
    remembered = dataset.attributes
    n_before = dataset.n_before
    make_result = partial(existing.IngestResult, n_before)
    source = lake.find_source(row_sources.known_sources(remembered), dataset.location)
    if source["sha256"] == lake.provenance.sha256:
        table = row_sources.followed_table(remembered)
        return make_result(n_before, (), (lake.url,), 0, table=table)

    since = source[row_sources.TABLE]
    for change in lake.schema_changes(since):
        _log.warning(
            "%s: the column %s after version %s", lake.url, change, since["version"]
        )
    key = id_column(remembered)
    changes = lake.read_changes(since, _columns_of(dataset, lake), key)

    journal = Journal()
    monitor = existing.monitor_of(dataset)
    changed_rows = arrow_files.memory_table(lake.rows.name, changes.rows)
    opened = [Input(lake.provenance, changed_rows)]
    if attributes.DROPPED in remembered:
        roles = replace(roles, on_nan="drop")
    rows = dataset.cast_all(
        existing.read_onto(dataset, opened, roles, journal, monitor)
    )
    after = attributes.attributes_after(roles, journal, remembered)
    after[SEEN_VALUES] = monitor.summary()
    merged = _merge(dataset, lake, changes, rows, after, message)
    return make_result(
        n_before + merged.n_added - merged.n_deleted,
        (lake.url,),
        (),
        journal.n_dropped,
        merged.version,
        merged.n_replaced,
        merged.n_deleted,
        table=lake.about,
        unlike=tuple(monitor.findings()),
    )


def _columns_of(dataset: editing.DatasetEditor, lake: Lake) -> list[str]:
    """Return the table's columns that the dataset was made from."""
    remembered = dataset.attributes
    roles = (attributes.WEIGHT_COLUMN, attributes.GROUPS_COLUMN, TIME_COLUMN)
    used = {id_column(remembered), *map(remembered.get, roles)}
    used.update(dataset.names("target_names") or ())
    recipe = recipe_of(remembered)
    if recipe is not None:
        used.update(recipe.inputs)
    return [name for name in lake.rows.schema.names if name in used]


def _merge(
    dataset: editing.DatasetEditor,
    lake: Lake,
    changes: TableChanges,
    rows: Arrays,
    after: Summary,
    message: str | None,
) -> corrections.MergeResult:
    """Commit added, updated and removed rows, with the attributes `after` them.

    Rows that were dropped for missing values are not in `rows`. Raises DataError if the
    dataset then has another number of rows than the table.
    """
    if ID in rows:
        ids = rows[ID].tolist()
        _, elsewhere = editing.find_in_other_part(dataset, {*ids})
        rows = editing.select(
            rows, np.array([key not in elsewhere for key in ids], bool)
        )
    known = row_sources.known_sources(dataset.attributes)
    source = lake.find_source(known, dataset.location)
    since = source[row_sources.TABLE]["version"]
    may_lack_rows = after.get(attributes.DROPPED, 0) > 0

    # the dataset's row that each one replaces, -1 for new rows
    places = np.full(len(rows["X"]), -1)
    removed = np.empty(0, np.int64)
    if ID in rows:
        before = _locate(dataset, changes, lake, since, may_lack_rows=may_lack_rows)
        index_of = {key: i for i, key in enumerate(changes.ids.tolist())}
        present = np.array([index_of[key] for key in rows[ID].tolist()], np.int64)
        places = before[present]
        absent = np.delete(before, present)
        removed = np.sort(absent[absent >= 0])
    n_rows = int(source["n_samples"]) + int((places < 0).sum()) - len(removed)
    if lake.rows.n_samples not in (None, n_rows) and not may_lack_rows:
        raise DataError(
            f"the changes of {lake.url} after version {since} lead to {n_rows:_} rows,"
            f" and version {lake.version} has {lake.rows.n_samples:_}; expected as"
            " many. Ingest it again with `overwrite`"
        )
    others = [other for other in known if other != source]
    after[row_sources.SOURCES] = [*others, lake.provenance.to_dict(n_rows)]

    def describe(n_added: int, n_replaced: int, n_deleted: int) -> str:
        return message or (
            f"follow {lake.words} from version {since}: {n_added:,} rows added,"
            f" {n_replaced:,} replaced, {n_deleted:,} deleted"
        )

    return corrections.merge_rows(
        dataset, rows, places, removed, message=describe, attributes=after
    )


def _locate(
    dataset: editing.DatasetEditor,
    changes: TableChanges,
    lake: Lake,
    since: int | str,
    *,
    may_lack_rows: bool,
) -> IntArray:
    """Return the dataset's row of each changed id, -1 if there is none.

    Raises DataError if dataset and table differ in which of the ids were there before.
    """
    dtype = dataset.headers[ID].dtype
    ids = changes.ids
    if ids.dtype == object:
        ids = ids.astype(row_columns.TEXT)
    if not row_batches.can_hold(dtype, ids.dtype):
        raise DataError(
            f"the column of ids of {lake.url} is {ids.dtype}, and the ids of"
            f" {dataset.location} are {dtype}; expected the same type. Ingest the"
            " table again with `overwrite`"
        )
    stored = ids.astype(dtype)
    row_of = editing.locate_ids(dataset, stored)
    rows = np.array([row_of.get(key, -1) for key in stored.tolist()], np.int64)

    is_there = rows >= 0
    differs = is_there != (changes.n_before > 0)
    if may_lack_rows:
        # the dataset may lack rows of the table, so only rows that it has are compared
        differs &= is_there
    if differs.any():
        i = int(np.argmax(differs))
        dataset_has = "has" if is_there[i] else "has not"
        table_had = "had not" if is_there[i] else "had"
        raise DataError(
            f"{dataset.location} {dataset_has} the row with the id {ids[i]!r}, and"
            f" version {since} of {lake.url} {table_had}; expected the same rows. Rows"
            " were changed in the dataset, or the id names several rows of the table."
            " Ingest it again with `overwrite`"
        )
    return rows
