"""Tables of a lakehouse: what Delta and Iceberg share.

In goes what `delta_tables` or `iceberg_tables` opened, a `Lake`; out come its rows, or
the rows that changed since an earlier version. The table's log says which rows count at
each version, so changes are read without reading both versions.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow

from rff_dist.data.sources import TABLE, Provenance
from rff_dist.errors import DataError
from rff_dist.recipes.tables import RawTable, to_labels
from rff_dist.typing import Facts, IntArray, Summary
from rff_dist.workbench.tables.roles import check_column


@dataclass(frozen=True, eq=False)
class Feed:
    """Rows that came or went between two versions of a table."""

    rows: pyarrow.Table
    #: of each row: 1 if it came, -1 if it went
    signs: IntArray
    #: of each row: numbers that order the commits
    commits: IntArray


@dataclass(frozen=True, eq=False)
class Lake:
    """A table of a lakehouse at one of its versions."""

    url: str
    #: "Delta" or "Iceberg"
    format: str
    #: the same for all versions of the table
    id: str
    #: a snapshot's number as text
    version: int | str
    #: further JSON values by which `read_feed` recognises this version later
    facts: Facts
    #: all rows at this version
    rows: RawTable
    #: From what a dataset stored about an earlier version (its entry), and names of
    #: columns, to the rows that came and went since. Raises DataError if the table's
    #: history does not lead from that version to this one; StorageError if it cannot be
    #: read (any more).
    read_feed: Callable[[Facts, Sequence[str]], Feed]

    @property
    def words(self) -> str:
        """The version and the table, for messages."""
        return f"version {self.version} of the {self.format} table {self.rows.name}"

    @property
    def about(self) -> Summary:
        """`format`, `id` and `version`, as `followed_table` returns them."""
        return {"format": self.format, "id": self.id, "version": self.version}

    @cached_property
    def provenance(self) -> Provenance:
        """What a dataset stores about this version."""
        columns = {field.name: str(field.type) for field in self.rows.schema}
        about = {**self.about, **self.facts}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
        table = {TABLE: {**about, "columns": columns}}
        return Provenance(self.url, digest, {"stamp": digest, **table})

    def find_source(self, sources: Sequence[Facts], dataset: object) -> Summary:
        """Return the source, of a dataset's sources, that is an earlier version.

        Raises DataError if the dataset was not made from this table.
        """
        tables = [dict(source) for source in sources if TABLE in source]
        mine = [source for source in tables if source[TABLE]["id"] == self.id]
        if mine:
            return mine[0]
        others = " ".join(str(source[TABLE]["id"]) for source in tables)
        made_of = "other sources"
        if others:
            made_of = f"the table {others}, which was replaced or is elsewhere"
        raise DataError(
            f"{self.url} is the {self.format} table {self.id}, and {dataset} was made"
            f" of {made_of}; expected the table that it follows. Ingest this one into a"
            " separate dataset, or with `overwrite`"
        )

    def schema_changes(self, entry: Facts) -> list[str]:
        """Return in words how columns changed since an earlier version."""
        old = entry["columns"]
        new = self.provenance.facts[TABLE]["columns"]
        changes = [f"{name!r} was added" for name in new if name not in old]
        changes += [f"{name!r} is gone" for name in old if name not in new]
        for name, kind in new.items():
            if old.get(name, kind) != kind:
                changes.append(f"{name!r} is {kind}, was {old[name]}")
        return changes

    def read_changes(
        self, entry: Facts, columns: Sequence[str], key: str | None
    ) -> "TableChanges":
        """Return what changed since an earlier version, at most one row of each key.

        `columns` are read, `key` among them: the column that names rows, or None if
        there is none, and then rows may only have been added. Raises DataError if a row
        has no key, or a key names several rows; and as `read_feed`.
        """
        if key is not None:
            check_column(self.rows.name, self.rows.schema, key, "id")
        feed = self.read_feed(entry, columns)
        rows = feed.rows
        if key is None and (feed.signs < 0).any():
            raise DataError(
                f"{self.url} has updates or deletes after version {entry['version']},"
                " and the dataset has no ids by which its rows could be found; expected"
                " a column that names each row. Ingest the table again with `id` and"
                " `overwrite`"
            )
        if key is None:
            rows = rows.take(np.argsort(feed.commits, kind="stable"))
            return TableChanges(rows, np.empty(0), np.empty(0, np.int64))

        if rows.column(key).null_count:
            raise DataError(
                f"{self.url} has rows without {key!r}; expected a value that names"
                " each row"
            )
        labels = to_labels(rows.column(key).combine_chunks())
        ids, codes = np.unique(labels, return_inverse=True)
        # the last change of each key; within a commit, a row that came is after one
        # that went
        order = np.lexsort((feed.signs, feed.commits, codes))
        is_last = np.diff(codes[order], append=-1) != 0
        last = order[is_last]
        stays = feed.signs[last] > 0
        n_added = np.bincount(codes, feed.signs, len(ids)).astype(np.int64)
        # after minus added: how many rows had the key before
        n_before: IntArray = stays - n_added
        is_repeated = (n_before < 0) | (n_before > 1)
        if is_repeated.any():
            repeated = ids[np.argmax(is_repeated)]
            raise DataError(
                f"several rows of {self.url} have {key!r} = {repeated!r}; expected one,"
                " which changes with it"
            )
        return TableChanges(rows.take(last[stays]), ids, n_before)


@dataclass(frozen=True, eq=False)
class TableChanges:
    """What changed between two versions of a table."""

    #: added and updated rows, as they are now
    rows: pyarrow.Table
    #: keys of all rows that changed, each once; none if rows have no key
    ids: np.ndarray
    #: how many rows had each key before, 0 or 1
    n_before: IntArray
