"""Tables of a lakehouse that get random commits, and a plain dictionary that gets the same ones."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rff_dist import open_dataset
from rff_dist.storage.columns import open_column

type Rows = dict[int, tuple[float, float, str, float]]

COLUMNS = ("a", "b", "kind", "price")
TYPES = pa.schema(
    [("key", pa.int64()), ("a", "float64"), ("b", "float64"), ("kind", "string"), ("price", "float64")]
)
#: The first key: such keys differ in digits that float64 does not have.
FIRST = 2**60
FEED = {"delta.enableChangeDataFeed": "true"}


def draw(keys: Any, seed: int) -> Rows:
    """Return rows for these keys: a price that follows from the other columns."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((len(keys), 3))
    kinds = rng.integers(3, size=len(keys))
    return {
        key: (a, b, "xyz"[kind], np.sin(a) + b + 0.5 * kind + 0.1 * noise)
        for key, (a, b, noise), kind in zip(keys, values.tolist(), kinds.tolist(), strict=True)
    }


def as_arrow(rows: Rows) -> pa.Table:
    return pa.table(
        [pa.array(column) for column in zip(*((key, *row) for key, row in rows.items()), strict=True)]
        if rows
        else [[] for _ in TYPES],
        schema=TYPES,
    )


class Commits:
    """Draw random commits of a table, and keep what it should hold."""

    def __init__(self, n_rows: int, seed: int = 0, most: int = 40) -> None:
        self.random, self.seed, self.most = random.Random(seed), seed, most
        self.next, self.held = FIRST, dict[int, tuple[float, float, str, float]]()
        self.first = self.add(n_rows)

    def add(self, n: int) -> Rows:
        self.seed += 1
        rows = draw(range(self.next, self.next + n), self.seed)
        self.next += n
        self.held |= rows
        return rows

    def size(self) -> int:
        """Return a number of rows from 1 to the most, each order of magnitude as likely as the others."""
        return round(self.most ** self.random.random())

    def keys(self) -> list[int]:
        n = min(len(self.held) // 2, self.size())
        return self.random.sample(list(self.held), n)  # new keys are larger, so they are in order

    def update(self) -> Rows:
        self.seed += 1
        rows = draw(self.keys(), self.seed)
        self.held |= rows
        return rows

    def delete(self) -> list[int]:
        keys = self.keys()
        for key in keys:
            del self.held[key]
        return keys

    def next_one(self) -> tuple[str, Any]:
        """Return the next commit: what it does, and its rows or keys."""
        what = self.random.choice(["insert", "update", "delete", "upsert"])
        if what == "insert":
            return what, self.add(self.size())
        if what == "delete":
            return what, self.delete()
        rows = self.update()
        return what, rows | self.add(self.size()) if what == "upsert" else rows

    def commit_a_night(self) -> None:
        """Correct 3 of the first 300 rows, add 5 and delete 2."""
        rows = draw(range(FIRST, FIRST + 3), 7) | self.add(5)
        gone = [FIRST + 10, FIRST + 299]
        self.held |= rows
        self.commit("upsert", rows)
        self.commit("delete", gone)
        for key in gone:
            del self.held[key]

    def assert_held(self, url: Any) -> None:
        """The dataset holds the rows of the dictionary, each once."""
        dataset = open_dataset(url)
        rows, ids = dataset.take(range(dataset.n_samples)), open_column(url, "id").array[:]
        assert [*dataset.feature_names] == ["a", "b", "kind=x", "kind=y", "kind=z"]
        order = np.argsort(ids)
        assert ids[order].tolist() == sorted(self.held)
        found = zip(rows.X[order].tolist(), np.ravel(rows.y)[order].tolist(), strict=True)
        expected = (
            ([a, b, *(float(kind == one) for one in "xyz")], price)
            for _, (a, b, kind, price) in sorted(self.held.items())
        )
        assert list(found) == list(expected)


class DeltaTable(Commits):
    """A Delta table that gets the commits of a dictionary."""

    def __init__(self, url: Path | str, n_rows: int, *, feed: bool = True, **options: Any) -> None:
        super().__init__(n_rows, **options)
        self.url, self.feed = str(url), feed
        self.write(self.first, "error")

    def write(self, rows: Any, mode: str = "append", **how: Any) -> None:
        import deltalake

        rows = as_arrow(rows) if isinstance(rows, dict) else rows
        how = {"configuration": FEED if self.feed and mode == "error" else None, **how}
        deltalake.write_deltalake(self.url, rows, mode=mode, **how)

    def commit(self, what: str, given: Any) -> None:
        table = self.open()
        if what == "insert":
            self.write(given)
        elif what == "delete":
            table.delete(f"key IN ({', '.join(map(str, given))})")
        else:
            names = {"source_alias": "new", "target_alias": "old"}
            merged = table.merge(as_arrow(given), predicate="old.key = new.key", **names)
            merged.when_matched_update_all().when_not_matched_insert_all().execute()

    @property
    def version(self) -> int:
        return self.open().version()

    def open(self) -> Any:
        import deltalake

        return deltalake.DeltaTable(self.url)


class IcebergTable(Commits):
    """An Iceberg table that gets the commits of a dictionary."""

    url = "iceberg://shop/main.prices"

    def __init__(self, catalog: Any, n_rows: int, **options: Any) -> None:
        super().__init__(n_rows, **options)
        self.table = catalog.create_table("main.prices", schema=TYPES)
        self.table.append(as_arrow(self.first))

    def commit(self, what: str, given: Any) -> None:
        from pyiceberg.expressions import In

        if what == "insert":
            self.table.append(as_arrow(given))
        elif what == "delete":
            self.table.delete(In("key", given))
        else:
            self.table.overwrite(as_arrow(given), overwrite_filter=In("key", [*given]))

    @property
    def version(self) -> str:
        return str(self.table.current_snapshot().snapshot_id)
