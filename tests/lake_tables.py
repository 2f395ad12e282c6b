"""Tables of a lakehouse that get random commits, and a plain dictionary that gets the same ones."""

from __future__ import annotations

import random
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

    def keys(self) -> list[int]:
        n = min(len(self.held) - 1, self.random.randint(1, self.most))
        return self.random.sample(sorted(self.held), n)

    def update(self) -> Rows:
        self.seed += 1
        rows = draw(self.keys(), self.seed)
        self.held |= rows
        return rows

    def delete(self) -> list[int]:
        keys = self.keys()[: self.most // 2]
        for key in keys:
            del self.held[key]
        return keys

    def next_one(self) -> tuple[str, Any]:
        """Return the next commit: what it does, and its rows or keys."""
        what = self.random.choice(["insert", "update", "delete", "upsert"])
        if what == "insert":
            return what, self.add(self.random.randint(1, self.most))
        if what == "delete":
            return what, self.delete()
        rows = self.update()
        return what, rows | self.add(self.random.randint(1, self.most)) if what == "upsert" else rows

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
