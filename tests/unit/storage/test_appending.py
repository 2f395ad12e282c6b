"""Appending: readers see the old rows or all rows, whatever happens in between."""

import contextvars

import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from rff_dist.data.blocks import Block
from rff_dist.errors import (
    ConflictError,
    DataError,
    IntegrityError,
    OutputBusyError,
    StorageError,
    VersionError,
)
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.columns import open_column
from rff_dist.storage.corrections import replace_rows
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.locations import parse_location
from rff_dist.storage.repositories import changing, read_history
from rff_dist.storage.writing import write_dataset
from tests.bits import flipped
from tests.tables import all_rows, ingest

DTYPES = st.sampled_from(["float32", "float64", "int8", "bool"])


def make_rows(n_samples, *, dtype="float32", n_features=2, seed=0):
    rng = np.random.default_rng(seed)
    X = (9 * rng.normal(size=(n_samples, n_features))).astype(dtype)
    return X, rng.normal(size=n_samples)


def write(url, *arrays, **options):
    return write_dataset(url, *arrays, versioned=True, **options)


def read_all(url, **options):
    return all_rows(open_dataset(url, **options))


class TestAppendedRows:
    @settings(max_examples=5, deadline=None)
    @given(
        cuts=st.lists(st.integers(0, 13), min_size=1, max_size=4),
        chunk_rows=st.integers(1, 9),
        dtype=DTYPES,
        one_dimensional=st.booleans(),
    )
    def test_are_what_writing_all_at_once_gives(
        self, tmp_path_factory, cuts, chunk_rows, dtype, one_dimensional
    ):
        n = sum(cuts)
        url = tmp_path_factory.mktemp("appended") / "data.zarr"
        X, y = make_rows(n, dtype=dtype)
        y = y if one_dimensional else np.column_stack([y, -y])
        weight = np.arange(n) / 2
        groups = np.array([f"group {i % 3}" * (i % 5) for i in range(n)], object)
        start = 0
        stops = np.cumsum(cuts).tolist()
        for i, stop in enumerate(stops):
            rows = slice(start, stop)
            parts = {"sample_weight": weight[rows], "groups": groups[rows]}
            if i == 0:
                write(url, X[rows], y[rows], chunk_rows=chunk_rows, **parts)
            else:
                found = append_dataset(url, X[rows], y[rows], **parts)
                assert (found.n_before, found.n_after) == (start, stop)
            start = stop
        read = read_all(url, sample_weight="sample_weight")
        assert_array_equal(read.X, X)
        assert_array_equal(read.y, y if y.ndim == 2 else y[:, np.newaxis])
        assert_array_equal(read.sample_weight, weight)
        stored = open_column(url, "groups").read(Block(0, 0, n))
        assert stored.tolist() == groups.tolist()

    def test_differ_in_the_digest_of_all_values_whatever_was_sampled(self, tmp_path):
        digests = []
        for value in (1.0, 2.0):
            write(tmp_path / str(value), np.zeros((5, 1)))
            append_dataset(tmp_path / str(value), np.full((3, 1), value))
            digests.append(
                open_dataset(tmp_path / str(value)).attributes["rff_dist"]["sha256"]
            )
        assert digests[0] != digests[1]


class TestSources:
    def test_of_a_dataset_with_ids_bring_theirs(self, tmp_path):
        (tmp_path / "t.csv").write_text("key,a,y\nk0,1,2\nk1,3,4\n")
        ingest("t.csv", "data", target="y", id="key")
        append_dataset("data", [[5.0]], [6.0], ids=["k2"])
        replace_rows("data", [0], [[7.0]], [8.0], ids=["new"])
        assert open_column("data", "id").take([0, 1, 2]).tolist() == [
            "new",
            "k1",
            "k2",
        ]
        X, y, _ = open_dataset("data").take([0, 1, 2])
        assert X[:, 0].tolist() == [7.0, 3.0, 5.0]
        assert y[:, 0].tolist() == [8.0, 4.0, 6.0]
        with pytest.raises(DataError, match="has X, y, id; expected the same arrays"):
            append_dataset("data", [[5.0]], [6.0])


class TestRefusals:
    @pytest.fixture
    def url(self, tmp_path):
        write("refuse", *make_rows(6), feature_names=["a", "b"], chunk_rows=4)
        return tmp_path / "refuse"

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            (
                (np.zeros((2, 3), "f4"), np.zeros(2)),
                r"X has shape \(2, 3\); expected \(2, 2\)",
            ),
            (
                (np.zeros((2, 2)), np.zeros(2)),
                "X is float64, but array 'X' of .*refuse holds float32",
            ),
            (
                (np.zeros((2, 2), "f4"), ["a", "b"]),
                "y is text, but array 'y' of .*refuse holds float64",
            ),
            (
                (np.zeros((2, 2), "f4"), np.zeros((2, 1))),
                r"y has shape \(2, 1\); expected \(2,\)",
            ),
            (
                (np.zeros((2, 2), "f4"),),
                "new rows have the arrays X, and .*refuse has X, y",
            ),
        ],
    )
    def test_other_arrays_are_named_and_nothing_changes(self, url, arrays, message):
        before = open_dataset(url).version
        with pytest.raises(DataError, match=message):
            append_dataset(url, *arrays)
        assert open_dataset(url).version == before

    def test_other_column_names_are_named(self, url):
        pandas = pytest.importorskip("pandas")
        X, y = make_rows(3)
        with pytest.raises(
            DataError, match=r"'b' where .* has 'a'; expected the columns 'a', 'b'"
        ):
            append_dataset(url, pandas.DataFrame(X, columns=["b", "a"]), y)
        append_dataset(url, pandas.DataFrame(X, columns=["a", "b"]), y)
        assert open_dataset(url).n_samples == 9

    def test_integers_join_floats_that_hold_them_exactly(self, url):
        append_dataset(url, np.ones((2, 2), "int16"), np.array([1, 2]))
        assert open_dataset(url).n_samples == 8

    def test_a_dataset_that_another_run_changes_is_busy(self, url):
        def batches():
            yield make_rows(2)
            with pytest.raises(OutputBusyError, match="another run is changing"):
                contextvars.Context().run(append_dataset, url, *make_rows(1))
            yield make_rows(2)

        assert append_dataset(url, batches()).n_after == 10

    def test_a_commit_of_another_program_is_noticed(self, url):
        def batches():
            yield make_rows(2)
            repository = icechunk.Repository.open(
                icechunk.local_filesystem_storage(str(url))
            )
            session = repository.writable_session("main")
            zarr.open_group(session.store, mode="r+").attrs["note"] = "changed"
            session.commit("by hand")

        with pytest.raises(ConflictError, match="another program changed it meanwhile"):
            append_dataset(url, batches())
        dataset = open_dataset(url)
        assert (dataset.n_samples, dataset.attributes["note"]) == (6, "changed")

    def test_a_plain_dataset_says_what_makes_it_versioned(self):
        write_dataset("plain", *make_rows(6))
        with pytest.raises(
            StorageError, match=r"plain Zarr.*`rff-dist data convert .*plain`"
        ):
            append_dataset("plain", *make_rows(2))

    def test_a_newer_format_is_refused(self, url):
        with changing(parse_location(url)) as change:
            group = zarr.open_group(change.store, mode="r+")
            group.attrs["rff_dist"] = {**group.attrs["rff_dist"], "format_version": 99}
            change.commit("from the future", {})
        with pytest.raises(VersionError, match="format 99"):
            append_dataset(url, *make_rows(2))

    def test_a_damaged_last_chunk_is_not_written_over(self, tmp_path):
        X, y = make_rows(1500)
        write("d", X, y, chunk_rows=1000)
        for chunk in (tmp_path / "d" / "chunks").iterdir():
            chunk.write_bytes(flipped(chunk.read_bytes(), 24))
        with pytest.raises(IntegrityError):
            append_dataset("d", *make_rows(2))
        assert len(read_history(parse_location("d"))) == 1
