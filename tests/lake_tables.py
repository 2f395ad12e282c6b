"""Tables of a lakehouse that get random commits, and a plain dictionary that gets the
same ones.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rff_dist import open_dataset
from rff_dist.errors import DataError
from rff_dist.recipes.recipes import levels_of
from rff_dist.ridge.models import read_model, write_model
from rff_dist.storage import repositories
from rff_dist.storage.columns import open_column
from rff_dist.storage.locations import parse_location
from tests.living_data import assert_follows, fit, make_small, refresh
from tests.refusals import refuses
from tests.tables import ingest_more

type Rows = dict[int, tuple[float, float, str, float]]

COLUMNS = ("a", "b", "kind", "price")
TYPES = pa.schema(
    [
        ("key", pa.int64()),
        ("a", "float64"),
        ("b", "float64"),
        ("kind", "string"),
        ("price", "float64"),
    ]
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
        for key, (a, b, noise), kind in zip(
            keys, values.tolist(), kinds.tolist(), strict=True
        )
    }


def as_arrow(rows: Rows) -> pa.Table:
    return pa.table(
        [
            pa.array(column)
            for column in zip(*((key, *row) for key, row in rows.items()), strict=True)
        ]
        if rows
        else [[] for _ in TYPES],
        schema=TYPES,
    )


class Commits:
    """Draw random commits of a table, and keep what it should hold."""

    def __init__(self, n_rows: int, seed: int = 0, most: int = 40) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.most = most
        self.next = FIRST
        self.held = dict[int, tuple[float, float, str, float]]()
        self.first = self.add(n_rows)

    def add(self, n: int) -> Rows:
        self.seed += 1
        rows = draw(range(self.next, self.next + n), self.seed)
        self.next += n
        self.held |= rows
        return rows

    def size(self) -> int:
        """Return a number of rows from 1 to the most, each order of magnitude as likely
        as the others.
        """
        return round(self.most ** self.random.random())

    def keys(self) -> list[int]:
        n = min(len(self.held) // 2, self.size())
        # new keys are larger, so they are in order
        return self.random.sample(list(self.held), n)

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
        rows = dataset.take(range(dataset.n_samples))
        ids = open_column(url, "id").array[:]
        assert [*dataset.feature_names] == ["a", "b", "kind"]
        order = np.argsort(ids)
        assert ids[order].tolist() == sorted(self.held)
        kinds = levels_of(dataset.attributes)[2]
        found = [
            (a, b, kinds[int(code)], price)
            for (a, b, code), price in zip(
                rows.X[order].tolist(), np.ravel(rows.y)[order].tolist(), strict=True
            )
        ]
        assert found == [row for _, row in sorted(self.held.items())]


class DeltaTable(Commits):
    """A Delta table that gets the commits of a dictionary."""

    def __init__(
        self, url: Path | str, n_rows: int, *, feed: bool = True, **options: Any
    ) -> None:
        super().__init__(n_rows, **options)
        self.url = str(url)
        self.feed = feed
        self.called = f"Delta table {Path(self.url).name}"
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
            merged = table.merge(
                as_arrow(given), predicate="old.key = new.key", **names
            )
            merged.when_matched_update_all().when_not_matched_insert_all().execute()

    def compact(self) -> None:
        self.open().optimize.compact()

    def drop(self) -> None:
        shutil.rmtree(self.url)

    @property
    def version(self) -> int:
        return self.open().version()

    def open(self) -> Any:
        import deltalake

        return deltalake.DeltaTable(self.url)


class IcebergTable(Commits):
    """An Iceberg table that gets the commits of a dictionary."""

    url = "iceberg://shop/main.prices"
    called = "Iceberg table main.prices"

    def __init__(self, catalog: Any, n_rows: int, **options: Any) -> None:
        super().__init__(n_rows, **options)
        self.catalog = catalog
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

    def compact(self) -> None:
        """Do nothing: PyIceberg cannot."""

    def drop(self) -> None:
        self.catalog.drop_table("main.prices")

    @property
    def version(self) -> str:
        return str(self.table.current_snapshot().snapshot_id)


@pytest.fixture
def table(make):
    return make(300)


@pytest.fixture
def data(table, tmp_path):
    """The dataset of the table's first version."""
    url = tmp_path / "data.zarr"
    ingest_more(table.url, url, target="price", id="key", chunk_rows=128)
    return url


def follow(
    make: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, n_commits: int, most: int
) -> None:
    """Follow random commits of a table by a dataset, and by a model: both hold what the
    table holds.
    """
    if is_small := most < 100:
        make_small(monkeypatch)
    table = make(600, most=most)
    data = folder / "data.zarr"
    ingest_more(
        table.url, data, target="price", id="key", chunk_rows=128 if is_small else 4096
    )
    begun = fit(open_dataset(data))
    write_model(begun, folder / "model")
    for i in range(1, n_commits + 1):
        table.commit(*table.next_one())
        if i % 7 == 0:
            table.compact()
        if i % 10 == 0:
            done = ingest_more(table.url, data)
            assert done.table["version"] == table.version
            assert done.n_after == len(table.held)
            if is_small or i % 100 == 0:
                table.assert_held(data)
            assert (
                refresh(folder / "model", data, force=True)["decision"] == "published"
            )
    assert_follows(read_model(folder / "model"), begun, open_dataset(data))
    again = ingest_more(table.url, data)
    assert (again.version, again.skipped) == (None, (table.url,))


class LakeContract:
    """What data keep to that follow a table, in a file that gives `make`, which makes
    one of so many rows.
    """

    @pytest.mark.faults("F17")
    def test_model_that_followed_random_commits_has_the_bits_of_one_full_pass(
        self, tmp_path, monkeypatch, make
    ):
        follow(make, tmp_path, monkeypatch, 20, 40)

    def test_one_night_is_one_commit_that_names_the_version_and_counts_rows(
        self, table, data
    ):
        first = table.version
        before = open_dataset(data).version
        table.commit_a_night()
        done = ingest_more(table.url, data)
        assert (done.n_before, done.n_after, done.n_replaced, done.n_deleted) == (
            300,
            303,
            3,
            2,
        )
        table.assert_held(data)
        newest, oldest = repositories.read_history(parse_location(data))[:2]
        assert oldest.id == before
        assert (
            f"version {table.version} of the {table.called} from version {first}"
            in newest.message
        )
        assert "5 rows added, 3 replaced, 2 deleted" in newest.message
        (source,) = open_dataset(data).attributes["sources"]
        assert (source["n_samples"], source["table"]["version"]) == (303, table.version)

    def test_kinds_that_are_new_join_the_list_and_change_no_code(self, table, data):
        before = open_dataset(data)
        X = before.take(range(300)).X
        new = {table.next: (0.5, 1.5, "a", 2.5), table.next + 1: (1.0, 2.0, "z", 3.0)}
        table.commit("insert", new)
        table.held |= new
        ingest_more(table.url, data)
        after = open_dataset(data)
        np.testing.assert_array_equal(after.take(range(300)).X, X)
        assert levels_of(after.attributes) == {2: ("x", "y", "z", "a")}
        table.assert_held(data)

    def test_another_table_in_its_place_is_refused(self, table, data, make):
        table.drop()
        make(300)
        with refuses(DataError, table.url, "replaced", "`overwrite`"):
            ingest_more(table.url, data)

    def test_without_ids_rows_are_only_added(self, table, tmp_path):
        url = tmp_path / "data.zarr"
        ingest_more(table.url, url, target="price", columns=["a", "b"])
        table.commit("insert", table.add(9))
        assert ingest_more(table.url, url).n_after == 309
        table.commit("delete", table.delete())
        with refuses(DataError, table.url, "`id`"):
            ingest_more(table.url, url)
        assert open_dataset(url).n_samples == 309
