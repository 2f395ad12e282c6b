"""Tables of a lakehouse, whose log says which rows count at each version: what all formats share."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow

from rff_dist.data import columns as row_columns
from rff_dist.data import row_batches
from rff_dist.data import sources as row_sources
from rff_dist.errors import DataError
from rff_dist.recipes import tables
from rff_dist.storage import appending, corrections
from rff_dist.storage.columns import ID
from rff_dist.typing import Arrays, Facts, IntArray, Summary
from rff_dist.workbench.tables.roles import check_column

DROPPED = "dropped_rows"  # the attribute of a dataset that counts rows left out for missing values

#: Rows that came (1) or went (-1), these signs, and numbers that order the commits that they belong to.
type Feed = tuple[pyarrow.Table, IntArray, IntArray]


@dataclass(frozen=True, eq=False)
class Lake:
    """A table of a lakehouse at one of its versions.

    `format`: {"Delta", "Iceberg"}.
    `id`: a name that all versions of the table share.
    `version`: of the table; a snapshot's number as text.
    `facts`: further JSON values by which `read_feed` recognises this version later.
    `rows`: all rows at this version.
    `read_feed`: takes the entry of an earlier version, and columns; returns what came and went since. Raises
      DataError if the table's history does not lead from that version to this one; StorageError if it
      cannot be read (any more).
    """

    url: str
    format: str
    id: str
    version: int | str
    facts: Facts
    rows: tables.Table
    read_feed: Callable[[Facts, Sequence[str]], Feed]

    @property
    def words(self) -> str:
        return f"version {self.version} of the {self.format} table {self.rows.name}"

    @property
    def about(self) -> Summary:
        """`format`, `id` and `version`, as `followed_table` returns them."""
        return {"format": self.format, "id": self.id, "version": self.version}

    @cached_property
    def source(self) -> row_sources.Source:
        """What a dataset stores about this version."""
        columns = {field.name: str(field.type) for field in self.rows.schema}
        about = {**self.about, **self.facts}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        table = {row_sources.TABLE: {**about, "columns": columns}}
        return row_sources.Source(self.url, digest, {"stamp": digest, **table})

    def find_entry(self, sources: Sequence[Facts], dataset: object) -> Summary:
        """Return the entry of an earlier version in a dataset's sources.

        Raises DataError if the dataset was not made of this table.
        """
        entries = [dict(source) for source in sources if row_sources.TABLE in source]
        mine = [entry for entry in entries if entry[row_sources.TABLE]["id"] == self.id]
        if mine:
            return mine[0]
        others = " ".join(str(entry[row_sources.TABLE]["id"]) for entry in entries)
        made_of = f"the table {others}, which was replaced or is elsewhere" if others else "other sources"
        raise DataError(
            f"{self.url} is the {self.format} table {self.id}, and {dataset} was made of {made_of}; expected "
            "the table that it follows. Ingest this one into a dataset of its own, or with `overwrite`"
        )

    def schema_changes(self, entry: Facts) -> list[str]:
        """Return in words how the table's columns differ from those of an earlier version."""
        before, now = entry["columns"], self.source.facts[row_sources.TABLE]["columns"]
        added = [f"{name!r} was added" for name in now if name not in before]
        gone = [f"{name!r} is gone" for name in before if name not in now]
        other = [name for name in now if before.get(name, now[name]) != now[name]]
        return [*added, *gone, *(f"{name!r} is {now[name]}, was {before[name]}" for name in other)]

    def read_changes(self, entry: Facts, columns: Sequence[str], key: str | None) -> "Changes":
        """Return what changed since an earlier version, at most one row of each key.

        `key`: the column that names rows; without it rows may only have been added.
        Raises DataError if a key is missing or names several rows; and as `read_feed`.
        """
        if key is not None:
            check_column(self.rows.name, self.rows.schema, key, "id")
        rows, signs, commits = self.read_feed(entry, columns)
        if key is None:
            if (signs < 0).any():
                raise DataError(
                    f"{self.url} has updates or deletes after version {entry['version']}, and the dataset "
                    "has no ids by which its rows could be found; expected a column that names each row. "
                    "Ingest the table again with `id` and `overwrite`"
                )
            return Changes(rows.take(np.argsort(commits, kind="stable")), np.empty(0), np.empty(0, np.int64))
        if rows.column(key).null_count:
            raise DataError(f"{self.url} has rows without {key!r}; expected a value that names each row")
        ids, codes = np.unique(tables.to_labels(rows.column(key).combine_chunks()), return_inverse=True)
        # the last of each key: what came with its last commit, or went
        order = np.lexsort((signs, commits, codes))
        last = order[np.flatnonzero(np.diff(codes[order], append=-1))]
        stays = signs[last] > 0
        before: IntArray = stays - np.bincount(codes, signs, len(ids)).astype(np.int64)
        for i in np.flatnonzero((before < 0) | (before > 1)).tolist()[:1]:
            raise DataError(
                f"several rows of {self.url} have {key!r} = {ids[i]!r}; expected one, which changes with it"
            )
        return Changes(rows.take(last[stays]), ids, before)


@dataclass(frozen=True, eq=False)
class Changes:
    """What changed between two versions of a table.

    `rows`: added and updated rows, as they are now.
    `ids`: keys of all rows that were touched, each once.
    `before`: int64 array. How many rows had each key before, 0 or 1.
    """

    rows: pyarrow.Table
    ids: np.ndarray
    before: IntArray


def merge(
    dataset: appending.Editing,
    lake: Lake,
    changes: Changes,
    read: Sequence[Arrays],
    attributes: Summary,
    message: str | None,
) -> corrections.Merged:
    """Bring a dataset to a version of the table that it follows, in one commit.

    `read`: the changed rows, as arrays of the dataset; rows that were dropped are not in them.
    `attributes`: those that change next to the table's entry.
    `message`: why, kept with the version.
    Raises DataError if the dataset does not hold what the table held.
    """
    empty = {name: np.empty((0, *header.shape[1:]), header.dtype) for name, header in dataset.headers.items()}
    parts = {name: np.concatenate([part[name] for part in (empty, *read)]) for name in empty}
    n_new = len(parts["X"])
    entry = lake.find_entry(known := row_sources.known_sources(dataset.attributes), dataset.location)
    since, may_lack = entry[row_sources.TABLE]["version"], attributes.get(DROPPED, 0) > 0
    rows, gone = np.full(n_new, -1), np.empty(0, np.int64)
    if ID in parts:
        found = _locate(dataset, changes, lake, since, may_lack=may_lack)
        places = {one: i for i, one in enumerate(changes.ids.tolist())}
        stay = np.array([places[one] for one in parts[ID].tolist()], np.int64)
        rows, left = found[stay], np.delete(found, stay)
        gone = np.sort(left[left >= 0])
    n_rows = int(entry["n_samples"]) + int((rows < 0).sum()) - len(gone)
    if lake.rows.n_samples not in (None, n_rows) and not may_lack:
        raise DataError(
            f"the changes of {lake.url} after version {since} lead to {n_rows:_} rows, and version "
            f"{lake.version} has {lake.rows.n_samples:_}; expected as many. Ingest it again with `overwrite`"
        )
    now = lake.source.to_dict(n_rows)
    attributes[row_sources.SOURCES] = [now if one == entry else one for one in known]

    def words(n_added: int, n_replaced: int, n_deleted: int) -> str:
        counts = f"{n_added:,} rows added, {n_replaced:,} replaced, {n_deleted:,} deleted"
        return message or f"follow {lake.words} from version {since}: {counts}"

    return corrections.merge_rows(dataset, parts, rows, gone, message=words, attributes=attributes)


def _locate(
    dataset: appending.Editing, changes: Changes, lake: Lake, since: int | str, *, may_lack: bool
) -> IntArray:
    """Return the dataset's row of each key that was touched, -1 of new ones; see `merge`."""
    stored, ids = dataset.headers[ID].dtype, changes.ids
    ids = ids.astype(row_columns.TEXT) if ids.dtype == object else ids
    if not row_batches.can_hold(stored, ids.dtype):
        raise DataError(
            f"the column of ids of {lake.url} is {ids.dtype}, and the ids of {dataset.location} are "
            f"{stored}; expected the same type. Ingest the table again with `overwrite`"
        )
    rows = appending.locate_ids(dataset, ids.astype(stored))
    found = np.array([rows.get(one, -1) for one in ids.astype(stored).tolist()], np.int64)
    differs = (found >= 0) != (changes.before > 0)
    if may_lack:  # a row that was dropped may have been there, or go
        differs &= found >= 0
    for i in np.flatnonzero(differs).tolist()[:1]:
        held = "has" if found[i] >= 0 else "has not"
        raise DataError(
            f"{dataset.location} {held} the row with the id {ids[i]!r}, and version {since} of {lake.url} "
            f"{'had not' if found[i] >= 0 else 'had'}; expected the same rows. Rows were changed in the "
            "dataset, or the id names several rows of the table. Ingest it again with `overwrite`"
        )
    return found
