"""Rows are replaced and deleted, versions rolled back, and plain Zarr becomes
versioned.
"""

import pickle
from datetime import UTC, datetime

import numpy as np
import pytest
import zarr
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.testing import assert_array_equal

from rff_dist.errors import (
    DataError,
    InvalidParameterError,
    NoSuchVersionError,
    OutputBusyError,
    OutputExistsError,
    StorageError,
)
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.columns import column_of
from rff_dist.storage.corrections import (
    convert_dataset,
    delete_rows,
    find_rows,
    replace_rows,
)
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.editing import editing
from rff_dist.storage.locations import is_versioned, parse_location
from rff_dist.storage.repositories import (
    changed_chunks,
    expire,
    find_snapshot,
    read_history,
    roll_back,
    tag_snapshot,
)
from rff_dist.storage.writing import write_dataset
from tests.command_line import document, refusal
from tests.tables import all_rows

CHUNK = 7


def rows(n, first=0):
    X = np.arange(first, first + n, dtype="f8")[:, np.newaxis] + [0.25, 0.5]
    return X, X[:, 0] * 2


def read(url, version=None):
    found = all_rows(open_dataset(url, version=version))
    return np.column_stack([found.X, found.y])


@pytest.fixture
def url(tmp_path):
    X, y = rows(40)
    groups = np.array([f"customer {i % 5}" for i in range(40)])
    write_dataset(
        "d",
        X,
        y,
        groups=groups,
        chunk_rows=CHUNK,
        versioned=True,
        feature_names=["a", "b"],
    )
    return tmp_path / "d"


class Corrections(RuleBasedStateMachine):
    """Whatever is done, the dataset is what a list of rows would be, at every
    version.
    """

    @initialize()
    def begin(self):
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.url = f"{self.folder.name}/data"
        self.next = 23
        self.model = [tuple(row) for row in np.column_stack(rows(23))]
        found = write_dataset(self.url, *rows(23), chunk_rows=CHUNK, versioned=True)
        self.versions = [(found.version, list(self.model))]

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def committed(self, version):
        self.versions.append((version, list(self.model)))

    @rule(n=st.integers(1, 20))
    def append(self, n):
        X, y = rows(n, self.next)
        self.next += n
        self.model += [tuple(row) for row in np.column_stack([X, y])]
        self.committed(append_dataset(self.url, X, y).version)

    @rule(data=st.data())
    def replace(self, data):
        which = data.draw(
            st.lists(
                st.integers(0, len(self.model) - 1), min_size=1, max_size=5, unique=True
            )
        )
        X, y = rows(len(which), self.next)
        self.next += len(which)
        for i, row in zip(which, np.column_stack([X, y]), strict=True):
            self.model[i] = tuple(row)
        self.committed(replace_rows(self.url, which, X, y).version)

    @rule(data=st.data(), keep_order=st.booleans())
    def delete(self, data, keep_order):
        n = len(self.model)
        if n < 2:
            return
        most = min(n - 1, 12)
        which = data.draw(
            st.lists(st.integers(0, n - 1), min_size=1, max_size=most, unique=True)
        )
        numbers = np.isin(np.arange(n), which) if data.draw(st.booleans()) else which
        found = delete_rows(self.url, numbers, keep_order=keep_order)
        left = [row for i, row in enumerate(self.model) if i not in set(which)]
        self.model = [tuple(row) for row in read(self.url)]
        if keep_order:
            assert self.model == left
        else:
            assert sorted(self.model) == sorted(left)
            kept = [i for i in range(len(left)) if i not in set(which)]
            assert all(self.model[i] == self.versions[-1][1][i] for i in kept)
        self.committed(found.version)

    @rule(data=st.data())
    def roll_back(self, data):
        version, model = data.draw(st.sampled_from(self.versions))
        roll_back(parse_location(self.url), version)
        self.model = list(model)
        self.committed(version)

    @invariant()
    def every_version_is_what_it_was(self):
        if not hasattr(self, "versions"):
            return
        assert find_snapshot(parse_location(self.url)) == self.versions[-1][0]
        for version, model in self.versions[-3:]:
            assert [tuple(row) for row in read(self.url, version)] == model
        before = self.versions[0]
        after = self.versions[-1]
        changed = {
            c[0]
            for c in (
                changed_chunks(parse_location(self.url), before[0], after[0]).get("X")
                or ()
            )
        }
        for i, (old, new) in enumerate(zip(before[1], after[1], strict=False)):
            assert old == new or i // CHUNK in changed


Corrections.TestCase.settings = settings(
    max_examples=6, stateful_step_count=8, deadline=None
)
TestCorrections = Corrections.TestCase


class TestReadingOneVersion:
    @pytest.mark.faults("F17")
    def test_a_dataset_stays_what_it_was_opened_as_here_and_elsewhere(self, url):
        opened = open_dataset(url)
        replace_rows(url, [3], np.zeros((1, 2)), [0.0], groups=["nobody"])
        sent = pickle.dumps(opened)
        assert len(sent) < 600
        for dataset in (opened, pickle.loads(sent)):
            assert_array_equal(all_rows(dataset).X, rows(40)[0])
            assert column_of(dataset, "groups").take([3]).tolist() == ["customer 3"]
        assert column_of(open_dataset(url), "groups").take([3]).tolist() == ["nobody"]

    def test_a_dataset_that_is_overwritten_keeps_its_versions(self, url):
        opened = open_dataset(url)
        write_dataset(url, *rows(5), overwrite=True)
        assert_array_equal(all_rows(opened).X, rows(40)[0])
        assert (
            open_dataset(url).n_samples,
            len(read_history(parse_location(url))),
        ) == (5, 2)
        with pytest.raises(OutputExistsError):
            write_dataset(url, *rows(5))

    def test_a_version_has_a_name_or_a_tag(self, url):
        first = open_dataset(url).version
        delete_rows(url, [0])
        tag_snapshot(parse_location(url), "audited", first)
        for name in (first, "audited"):
            assert open_dataset(url, version=name).n_samples == 40
        assert open_dataset(url).n_samples == 39
        for part in (first[:-1], "audit"):
            with pytest.raises(NoSuchVersionError, match=f"no version '{part}'"):
                open_dataset(url, version=part)
        with pytest.raises(InvalidParameterError, match="names one version for ever"):
            tag_snapshot(parse_location(url), "audited")

    def test_a_plain_dataset_has_none(self):
        write_dataset("plain", *rows(3))
        with pytest.raises(NoSuchVersionError, match="keeps no versions"):
            open_dataset("plain", version="audited")


class TestExpiry:
    def test_removes_the_bytes_of_deleted_rows(self, tmp_path):
        secret = np.full((1, 8), 123456.789)
        X = np.vstack([rows(300)[0] @ np.ones((2, 8)), secret])
        url = tmp_path / "d"
        write_dataset(url, X, X[:, 0], chunk_rows=100, versioned=True)
        delete_rows(url, [300])

        def holders():
            return [
                p
                for p in url.rglob("*")
                if p.is_file() and secret.tobytes()[:8] in p.read_bytes()
            ]

        assert holders()
        found = expire(parse_location(url), datetime.now(UTC))
        assert len(found.versions) == 1
        assert not holders()
        assert [one.message for one in read_history(parse_location(url))] == [
            "delete 1 row"
        ]
        assert read(url).shape == (300, 9)

    def test_spares_tags_unless_told(self, url):
        tag_snapshot(parse_location(url), "kept")
        delete_rows(url, [0])
        expire(parse_location(url), datetime.now(UTC))
        assert open_dataset(url, version="kept").n_samples == 40
        expire(parse_location(url), datetime.now(UTC), tags=True)
        with pytest.raises(NoSuchVersionError):
            open_dataset(url, version="kept")

    def test_does_not_run_beside_a_change(self, url):
        with editing(parse_location(url)), pytest.raises(OutputBusyError):
            expire(parse_location(url), datetime.now(UTC))


class TestRefusals:
    @pytest.mark.parametrize(
        ("wanted", "error", "message"),
        [
            ([40], InvalidParameterError, "40"),
            ([1, 1], InvalidParameterError, "row 1 is named 2 times"),
            ([1], DataError, "2 rows for 1 row numbers"),
            ([1.7, 2.0], InvalidParameterError, "float64"),
            ([False, True], InvalidParameterError, "bool.* 40 rows"),
        ],
    )
    def test_rows_that_are_not_there_or_twice(self, url, wanted, error, message):
        version = open_dataset(url).version
        with pytest.raises(error, match=message):
            replace_rows(url, wanted, *rows(2), groups=["x", "y"])
        assert open_dataset(url).version == version

    def test_all_rows(self, url):
        with pytest.raises(DataError, match="all 40 rows"):
            delete_rows(url, np.arange(40))


class TestConverting:
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_foreign_data_become_versioned_in_their_place(self, zarr_format):
        X, y = rows(20)
        group = zarr.create_group(
            "d",
            zarr_format=zarr_format,
            attributes={"feature_names": ["p", "q"]},
        )
        for name, values, chunks in (("X", X, (6, 1)), ("y", y, (9,))):
            group.create_array(
                name, shape=values.shape, dtype=values.dtype, chunks=chunks
            )[...] = values
        version = convert_dataset("d")
        dataset = open_dataset("d")
        assert (dataset.version, dataset.feature_names) == (version, ("p", "q"))
        assert_array_equal(read("d"), np.column_stack([X, y]))
        assert append_dataset("d", *rows(3, 20)).n_after == 23

    def test_ours_keep_the_digest_by_which_a_model_knows_its_rows(self):
        plain = write_dataset("plain", *rows(30), chunk_rows=8)
        known = plain.prefix_fingerprint(30)
        convert_dataset("plain", "d")
        found = open_dataset("d")
        assert found.prefix_fingerprint(30) == known
        assert not is_versioned(parse_location("plain"))

    def test_other_arrays_are_not_lost(self):
        write_dataset("d", *rows(4))
        zarr.open_group("d", mode="r+").create_array("time", shape=(4,), dtype="f8")
        with pytest.raises(StorageError, match="also holds 'time'"):
            convert_dataset("d")


def test_rows_are_found_by_values_as_their_array_holds_them():
    X, y = rows(4)
    how = {
        "groups": 2**53 + np.arange(4),
        "feature_names": ["a", "b"],
        "versioned": True,
    }
    write_dataset("d", X.astype("f4") / 10, y, **how)
    with editing(parse_location("d")) as dataset:
        for column, values, expected in (
            ("groups", [2**53 + 1, str(2**53 + 2), 2.0**53], [[1], [2], [0]]),
            ("groups", [0.5, 2**70, "some", float("nan")], [[], [], [], []]),
            ("a", [0.125, "0.025", 0.2], [[1], [0], []]),
        ):
            assert [
                found.tolist() for found in find_rows(dataset, column, values)
            ] == expected
        with pytest.raises(InvalidParameterError, match=r"it has 'groups', 'a', 'b'$"):
            find_rows(dataset, "c", [1])


def test_the_commands_on_a_dataset_of_a_table(tmp_path):
    data = tmp_path / "d.zarr"
    for name, ids in (("a", range(30)), ("b", range(30, 40))):
        lines = ["id,x,y", *(f"{i},{i / 2},{i * 3}" for i in ids)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "fix.csv").write_text("id,x,y\n7,70,71\n39,80,81\n")
    (tmp_path / "gone.csv").write_text("id\n3\n4\n")
    first = document("ingest", "a.csv", data, "--targets", "y")["version"]
    document("ingest", "b.csv", data, "--append", "--message", "Monday")
    assert document("data", "correct", data, "fix.csv", "--by", "id")["n_rows"] == 2
    part = refusal(65, "data", "correct", data, "gone.csv", "--by", "id")
    assert "no column 'y'" in part
    assert f"expected a value for each column of {data}" in part
    assert document("data", "delete", data, "gone.csv", "--by", "id")["n_after"] == 38
    found = read(data)
    assert sorted(found[:, 0]) == [i for i in range(40) if i not in (3, 4)]
    assert found[found[:, 0] == 7].tolist() == [[7, 70, 71]]
    log = document("data", "log", data)["versions"]
    assert [one["n_after"] for one in log] == [38, 40, 40, 30]
    assert log[2]["message"] == "Monday"
    assert document("data", "rollback", data, first)["version"] == first
    assert "0 rows of" in refusal(65, "data", "correct", data, "fix.csv", "--by", "id")
    assert "nothing is there" in refusal(65, "data", "log", "none")
