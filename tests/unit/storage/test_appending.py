"""Appending: the rows of before, or all of them, whatever happens in between."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec
from zarr.storage import LocalStore

from rff_dist.data.blocks import Block
from rff_dist.errors import (
    ConflictError,
    DataError,
    IntegrityError,
    OutputBusyError,
    StorageError,
    VersionError,
)
from rff_dist.storage import appending
from rff_dist.storage.appending import Source, append_dataset
from rff_dist.storage.arrays import with_shape
from rff_dist.storage.columns import open_column
from rff_dist.storage.contents import list_arrays
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.writing import write_dataset

DTYPES = st.sampled_from(["float32", "float64", "int8", "bool"])
LAYOUTS = {"v2": (2, None), "v3": (3, None), "sharded": (3, 6)}


def make_rows(n_samples, *, dtype="float32", n_features=2, seed=0):
    rng = np.random.default_rng(seed)
    X = (9 * rng.normal(size=(n_samples, n_features))).astype(dtype)
    return X, rng.normal(size=n_samples)


def read_all(url, **options):
    dataset = open_dataset(url, **options)
    return dataset.read(Block(0, 0, dataset.n_samples))


def foreign(path, *, layout, n_samples=8, chunk=(3, 2)):
    """Write a dataset as another program would; chunks may also cut the columns."""
    zarr_format, shard = LAYOUTS[layout]
    group = zarr.create_group(LocalStore(path), zarr_format=zarr_format)
    X, y = make_rows(n_samples, n_features=3)
    for name, values, chunks in (("X", X, chunk), ("y", y, (2,))):
        shards = None if shard is None else (shard, *(4 for _ in chunks[1:]))
        compressors = [Crc32cCodec()] if zarr_format == 3 else "auto"
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=values.dtype,
            chunks=chunks,
            shards=shards,
            compressors=compressors,
            fill_value=0,
        )
        array[...] = values
    return X, y


class TestAppendedRows:
    @settings(max_examples=12, deadline=None)
    @given(
        cuts=st.lists(st.integers(0, 13), min_size=1, max_size=4),
        chunk_rows=st.integers(1, 9),
        dtype=DTYPES,
        one_dimensional=st.booleans(),
    )
    def test_are_what_writing_all_at_once_gives(self, cuts, chunk_rows, dtype, one_dimensional):
        n = sum(cuts)
        X, y = make_rows(n, dtype=dtype)
        y = y if one_dimensional else np.column_stack([y, -y])
        weight, groups = np.arange(n) / 2, np.array([f"group {i % 3}" * (i % 5) for i in range(n)], object)
        stops = np.cumsum(cuts)
        for start, stop in zip([0, *stops], stops, strict=False):
            rows = slice(start, stop)
            parts = {"sample_weight": weight[rows], "groups": groups[rows]}
            if start == 0 and stop == stops[0]:
                url = "memory://appended"
                write_dataset(url, X[rows], y[rows], chunk_rows=chunk_rows, overwrite=True, **parts)
            else:
                found = append_dataset(url, X[rows], y[rows], **parts)
                assert (found.n_before, found.n_after) == (start, stop)
        read = read_all(url, sample_weight="sample_weight")
        np.testing.assert_array_equal(read.X, X)
        np.testing.assert_array_equal(read.y, y if y.ndim == 2 else y[:, np.newaxis])
        np.testing.assert_array_equal(read.sample_weight, weight)
        stored = open_column(url, "groups").read(Block(0, 0, n))
        assert stored.tolist() == groups.tolist()

    @settings(max_examples=15, deadline=None)
    @given(n_first=st.integers(1, 14), n_more=st.integers(1, 14), chunk_rows=st.integers(1, 9))
    def test_are_stored_in_the_bytes_that_writing_all_at_once_stores(
        self, tmp_path_factory, n_first, n_more, chunk_rows
    ):
        folder = tmp_path_factory.mktemp("bytes")
        X, y = make_rows(n_first + n_more)
        write_dataset(folder / "once", X, y, chunk_rows=chunk_rows)
        write_dataset(folder / "twice", X[:n_first], y[:n_first], chunk_rows=chunk_rows)
        append_dataset(folder / "twice", X[n_first:], y[n_first:])
        for name in ("X", "y"):
            files = [
                {
                    path.relative_to(folder / one): path.read_bytes()
                    for path in (folder / one / name).rglob("*")
                    if path.is_file()
                }
                for one in ("once", "twice")
            ]
            assert files[0] == files[1]
        shutil.rmtree(folder)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_also_join_datasets_of_other_programs_whole_shards_and_columns_in_chunks(self, tmp_path, layout):
        X, y = foreign(tmp_path / "data.zarr", layout=layout)
        more, targets = make_rows(11, n_features=3, seed=1)
        append_dataset(tmp_path / "data.zarr", more, targets)
        read = read_all(tmp_path / "data.zarr")
        np.testing.assert_array_equal(read.X, np.vstack([X, more]))
        np.testing.assert_array_equal(read.y[:, 0], np.concatenate([y, targets]))
        assert open_dataset(tmp_path / "data.zarr").attributes["rff_dist"]["n_samples"] == 19
        # Zarr itself reads the same.
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "data.zarr" / "X", mode="r")[...], read.X)

    def test_come_in_batches_of_any_length(self):
        X, y = make_rows(57)
        write_dataset("memory://batches", X[:5], y[:5], chunk_rows=4, overwrite=True)
        cuts = [5, 6, 6, 20, 57]
        batches = ((X[a:b], y[a:b]) for a, b in itertools.pairwise(cuts))
        assert append_dataset("memory://batches", batches).n_after == 57
        np.testing.assert_array_equal(read_all("memory://batches").X, X)

    def test_change_the_fingerprint_and_not_that_of_the_first_rows(self):
        X, y = make_rows(20)
        before = write_dataset("memory://print", X[:9], y[:9], chunk_rows=4, overwrite=True)
        fingerprint, prefix = before.fingerprint(), before.prefix_fingerprint(9)
        append_dataset("memory://print", X[9:], y[9:])
        after = open_dataset("memory://print")
        assert after.fingerprint() != fingerprint
        assert after.prefix_fingerprint(9) == prefix == before.prefix_fingerprint(9)
        # A reader that opened the old dataset still reads the old rows.
        np.testing.assert_array_equal(before.read(Block(0, 0, 9)).X, X[:9])

    def test_differ_in_the_digest_of_all_values_whatever_was_sampled(self):
        digests = []
        for value in (1.0, 2.0):
            write_dataset("memory://chain", np.zeros((5, 1)), overwrite=True)
            append_dataset("memory://chain", np.full((3, 1), value))
            digests.append(open_dataset("memory://chain").attributes["rff_dist"]["sha256"])
        assert digests[0] != digests[1]


class TestSources:
    def test_rows_of_a_source_are_taken_once(self):
        X, y = make_rows(12)
        write_dataset("memory://once", X[:4], y[:4], overwrite=True)
        first = append_dataset("memory://once", X[4:8], y[4:8], source=Source("a.csv", "aa"))
        again = append_dataset("memory://once", X[4:8], y[4:8], source=Source("copy of a.csv", "aa"))
        other = append_dataset("memory://once", X[8:], y[8:], source=Source("b.csv", "bb"))
        assert [(one.n_before, one.n_after) for one in (first, again, other)] == [(4, 8), (8, 8), (8, 12)]
        assert open_dataset("memory://once").attributes["sources"] == [
            {"name": "a.csv", "sha256": "aa", "n_samples": 4},
            {"name": "b.csv", "sha256": "bb", "n_samples": 4},
        ]


class TestRefusals:
    @pytest.fixture
    def url(self):
        write_dataset("memory://refuse", *make_rows(6), feature_names=["a", "b"], overwrite=True)
        return "memory://refuse"

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ((np.zeros((2, 3), "f4"), np.zeros(2)), r"X has shape \(2, 3\); expected \(2, 2\)"),
            ((np.zeros((2, 2)), np.zeros(2)), "X is float64, but array 'X' of memory://refuse holds float32"),
            (
                (np.zeros((2, 2), "f4"), ["a", "b"]),
                "y is text, but array 'y' of memory://refuse holds float64",
            ),
            ((np.zeros((2, 2), "f4"), np.zeros((2, 1))), r"y has shape \(2, 1\); expected \(2,\)"),
            ((np.zeros((2, 2), "f4"),), "rows of X for memory://refuse, which has X, y"),
        ],
    )
    def test_other_arrays_are_named_and_nothing_changes(self, url, arrays, message):
        before = open_dataset(url).fingerprint()
        with pytest.raises(DataError, match=message):
            append_dataset(url, *arrays)
        assert open_dataset(url).fingerprint() == before

    def test_other_column_names_are_named(self, url):
        pandas = pytest.importorskip("pandas")
        X, y = make_rows(3)
        with pytest.raises(
            DataError, match=r"'b' where memory://refuse has 'a'; expected the columns 'a', 'b'"
        ):
            append_dataset(url, pandas.DataFrame(X, columns=["b", "a"]), y)
        append_dataset(url, pandas.DataFrame(X, columns=["a", "b"]), y)
        assert open_dataset(url).n_samples == 9

    def test_integers_join_floats_that_hold_them_exactly(self, url):
        append_dataset(url, np.ones((2, 2), "int16"), np.array([1, 2]))
        assert open_dataset(url).n_samples == 8

    def test_a_dataset_that_another_run_appends_to_is_busy(self, url):
        batches = iter([make_rows(2), make_rows(2)])

        def nested():
            yield next(batches)
            # A lease is of a context; a thread has one of its own.
            import threading

            errors = []

            def other():
                try:
                    append_dataset(url, *make_rows(1))
                except OutputBusyError as error:
                    errors.append(str(error))

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            assert "appending rows" in errors[0]
            yield next(batches)

        assert append_dataset(url, nested()).n_after == 10

    def test_a_change_in_spite_of_the_lease_is_noticed_before_the_mark_is_written(self, tmp_path):
        url = tmp_path / "data.zarr"
        write_dataset(url, *make_rows(6), chunk_rows=4)

        def batches():
            yield make_rows(2)
            zarr.open_group(url, mode="r+").attrs["note"] = "changed"

        with pytest.raises(ConflictError, match="was changed by another program"):
            append_dataset(url, batches())
        assert open_dataset(url).n_samples == 6

    def test_consolidated_metadata_are_refused(self, tmp_path):
        foreign(tmp_path / "data.zarr", layout="v2")
        zarr.consolidate_metadata(tmp_path / "data.zarr")
        with pytest.raises(StorageError, match="consolidated metadata"):
            append_dataset(tmp_path / "data.zarr", *make_rows(2, n_features=3))

    def test_arrays_that_would_be_left_behind_are_refused(self, tmp_path):
        write_dataset(tmp_path / "data.zarr", *make_rows(6))
        zarr.open_group(tmp_path / "data.zarr", mode="r+").create_array("time", shape=(6,), dtype="f8")
        with pytest.raises(StorageError, match=r"also holds 'time' of 6 rows"):
            append_dataset(tmp_path / "data.zarr", *make_rows(2))

    def test_a_newer_format_is_refused(self, url):
        group = zarr.open_group(appending.open_store(appending.parse_location(url), read_only=False))
        group.attrs["rff_dist"] = {**group.attrs["rff_dist"], "format_version": 99}
        with pytest.raises(VersionError, match="format 99"):
            append_dataset(url, *make_rows(2))

    def test_nothing_there_is_said(self, tmp_path):
        with pytest.raises(StorageError, match="no dataset at"):
            append_dataset(tmp_path / "none.zarr", *make_rows(2))

    def test_a_damaged_last_chunk_is_not_written_over(self, tmp_path):
        write_dataset(tmp_path / "data.zarr", *make_rows(6), chunk_rows=4)
        chunk = tmp_path / "data.zarr" / "X" / "c" / "1" / "0"
        damaged = bytearray(chunk.read_bytes())
        damaged[3] ^= 1
        chunk.write_bytes(damaged)
        with pytest.raises(IntegrityError, match=r"rows 4:6 \(chunk 1\)"):
            append_dataset(tmp_path / "data.zarr", *make_rows(2))
        assert chunk.read_bytes() == damaged


# -- faults ------------------------------------------------------------------------------------------------

# In a process of its own, for forking is safe before Zarr has started its threads there. A child is killed
# before the file of its n-th write is put in its place; what it wrote until then is left.
KILLED = """
import itertools, os, shutil, signal, sys
import numpy as np
from rff_dist.storage.appending import append_dataset
from rff_dist.storage import locations

folder = sys.argv[1]
X = np.load(f"{folder}/X.npy")
replace, n_left = os.replace, 0

def replace_or_die(source, target):
    global n_left
    if n_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    n_left -= 1
    replace(source, target)

for n_left in itertools.count():
    url = f"{folder}/killed-{n_left}.zarr"
    shutil.copytree(f"{folder}/data.zarr", url)
    child = os.fork()
    if child == 0:
        locations.os.replace = replace_or_die
        append_dataset(url, X[7:13], X[7:13, 0].astype("f8"))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    X, _ = make_rows(20)
    np.save(folder / "X.npy", X)
    write_dataset(folder / "data.zarr", X[:7], X[:7, 0].astype("f8"), chunk_rows=5)
    subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=True)
    return folder


@pytest.mark.faults
class TestAKilledAppend:
    def test_leaves_the_old_rows_at_every_write_and_all_rows_after_the_last(self, folder):
        before, X = open_dataset(folder / "data.zarr"), np.load(folder / "X.npy")
        urls = sorted(folder.glob("killed-*.zarr"), key=lambda path: int(path.stem.split("-")[1]))
        sizes = [open_dataset(url).n_samples for url in urls]
        assert sizes == [7] * (len(urls) - 1) + [13]
        assert len(urls) >= 8  # 2 chunks and a shape of 2 arrays, the mark, and those of the lease
        for url in urls[:-1]:
            assert open_dataset(url).fingerprint() == before.fingerprint()
            assert [array.header.shape[0] for array in list_arrays(url)[1]] == [7, 7]
            assert open_column(url, "y").n_samples == 7
        np.testing.assert_array_equal(read_all(urls[-1]).X, X[:13])

    @pytest.mark.parametrize("n_more", [1, 9])
    def test_is_written_over_by_the_next_whether_shorter_or_longer(self, folder, tmp_path, n_more):
        X = np.load(folder / "X.npy")
        for killed in folder.glob("killed-*.zarr"):
            url = tmp_path / killed.name
            shutil.copytree(killed, url)
            n = open_dataset(url).n_samples
            rows = X[n : n + n_more] + 1
            append_dataset(url, rows, rows[:, 0].astype("f8"))
            read = read_all(url)
            np.testing.assert_array_equal(read.X, np.vstack([X[:n], rows]))
            np.testing.assert_array_equal(read.y[:, 0], read.X[:, 0])
            assert not [path for path in url.rglob(".*") if path.is_file()]


@pytest.mark.faults
@pytest.mark.parametrize("url", ["memory://failing", "local"])
def test_an_append_that_fails_leaves_no_chunk_of_new_rows(tmp_path, url):
    X, y = make_rows(30)
    url = tmp_path / "data.zarr" if url == "local" else url
    before = write_dataset(url, X[:7], y[:7], chunk_rows=4, overwrite=True)
    fingerprint, chunks = before.fingerprint(), set(before.X._iter_shard_keys())

    def batches():
        yield X[7:20], y[7:20]
        raise DataError("row 21 is bad")

    with pytest.raises(DataError, match="row 21 is bad"):
        append_dataset(url, batches())
    after = open_dataset(url)
    assert after.fingerprint() == fingerprint
    stored = zarr.open_array(after.X.store, path="X", mode="r")
    larger = with_shape(stored, (30, 2))
    assert larger.nchunks_initialized == len(chunks) == 2


@pytest.mark.faults
def test_a_full_disk_leaves_the_old_dataset(tmp_path):
    X, y = make_rows(4000)
    before = write_dataset(tmp_path / "data.zarr", X[:1500], y[:1500], chunk_rows=1024).fingerprint()
    script = (
        "import resource, signal, sys, numpy as np\n"
        "from rff_dist.storage.appending import append_dataset\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (7000, 7000))\n"
        "append_dataset(sys.argv[1], np.zeros((2500, 2), 'f4'), np.zeros(2500))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "data.zarr")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "rows could not be appended" in done.stderr
    assert "it has the 1_500 rows of before" in done.stderr
    assert open_dataset(tmp_path / "data.zarr").fingerprint() == before
    assert not [path for path in (tmp_path / "data.zarr").rglob("*") if path.name.startswith(".")]
