"""What the writer accepts, and what it refuses before it begins."""

import errno
import importlib
import logging
import os

import dask.array
import numpy as np
import pandas as pd
import pytest
import zarr
from zarr.storage import MemoryStore

from rff_dist.data.blocks import Block
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.outputs import Layout, create_output
from rff_dist.storage.records import write_record
from rff_dist.storage.writing import write_dataset
from rff_dist.workbench.tables.generate import RandomRows, generate_dataset
from tests.tables import ingest

X = np.random.default_rng(0).standard_normal((50, 3))
Y = X[:, 0] * 2
WEIGHT = np.arange(50.0)


def zarr_array(values, chunk=8, **options):
    chunks = (chunk, *values.shape[1:])
    array = zarr.create_array(
        MemoryStore(), shape=values.shape, dtype=values.dtype, chunks=chunks, **options
    )
    array[...] = values
    return array


# -- sources
# --------------------------------------------------------------------------------------


SOURCES = {
    "zarr": lambda: (zarr_array(X), zarr_array(Y, 20), zarr_array(WEIGHT, 20)),
    "zarr, targets in memory": lambda: (zarr_array(X), Y, list(WEIGHT)),
    "dask": lambda: tuple(dask.array.from_array(v, chunks=17) for v in (X, Y, WEIGHT)),
    "dask, targets in memory": lambda: (
        dask.array.from_array(X, chunks=(9, 2)),
        Y,
        WEIGHT,
    ),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_lazy_sources_are_written_like_arrays(source):
    inputs, y, weight = source()
    written = write_dataset("a", inputs, y, sample_weight=weight, chunk_rows=10)
    expected = write_dataset("b", X, Y, sample_weight=WEIGHT, chunk_rows=10)
    assert written.fingerprint() == expected.fingerprint()
    assert written.one_dimensional
    assert written.feature_names is None


@pytest.mark.parametrize("kind", ["zarr", "dask"])
def test_lazy_sources_are_never_held_whole(kind, monkeypatch):
    sizes = []
    if kind == "zarr":
        source = zarr_array(X)
        read = zarr.Array.__getitem__

        def getitem(array, selection):
            values = read(array, selection)
            sizes.append(len(values))
            return values

        monkeypatch.setattr(zarr.Array, "__getitem__", getitem)
    else:

        def remember(block):
            sizes.append(len(block))
            return block

        source = dask.array.from_array(X, chunks=(8, 3)).map_blocks(
            remember, dtype=X.dtype, meta=X[:0]
        )
    write_dataset("a", source)
    assert sum(sizes) == 50
    assert max(sizes) == 8


@pytest.mark.parametrize(
    ("n_samples", "y", "message"),
    [
        (50, Y[:49], r"expected \(25,\)"),
        (50, dask.array.from_array(Y[:49], chunks=25), r"expected \(25,\)"),
        (40, Y, r"numbers of samples: \[40, 50\]"),
        (
            50,
            dask.array.from_array(Y, chunks=50),
            r"X has 2 blocks of rows and y 1; .* Rechunk",
        ),
    ],
)
def test_a_dask_array_with_other_targets_is_refused(tmp_path, n_samples, y, message):
    with pytest.raises(DataError, match=message):
        write_dataset("a", dask.array.from_array(X[:n_samples], chunks=25), y)
    assert list(tmp_path.iterdir()) == []


def test_the_names_of_frames_are_kept():
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    dataset = write_dataset("a", frame, pd.Series(Y, name="price"))
    assert (dataset.feature_names, dataset.target_names) == (
        ("a", "b", "c"),
        ("price",),
    )
    assert dataset.one_dimensional
    np.testing.assert_array_equal(dataset.read(Block(0, 0, 50)).X, X)
    given = write_dataset("b", frame, frame[["a", "b"]], feature_names=["d", "e", "f"])
    assert (given.feature_names, given.target_names) == (("d", "e", "f"), ("a", "b"))

    batches = [(frame, pd.Series(Y, name="price"))] * 2
    stacked = write_dataset("c", iter(batches), versioned=True)
    assert (stacked.feature_names, stacked.target_names) == (
        ("a", "b", "c"),
        ("price",),
    )
    turned = (frame[["c", "b", "a"]], batches[0][1])
    for wrong in ([turned], [*batches, turned]):
        with pytest.raises(DataError, match=r"'c'.*'a'.*sort them by name"):
            append_dataset("c", iter(wrong))


def test_parts_with_the_index_of_X_in_another_order_are_warned_of():
    frame = pd.DataFrame(X)
    with pytest.warns(UserWarning, match="y has the index of X in another order"):
        write_dataset("a", frame, pd.Series(Y)[::-1])


# -- what is refused
# -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"X": X, "feature_names": ["a", "a", "b"]}, "one of each name"),
        ({"X": X.astype(str)}, "encode texts"),
        ({"X": X, "y": "price"}, "Give values"),
        ({"X": iter([pd.DataFrame(X), pd.DataFrame({"a": Y})])}, "the first batch"),
    ],
)
def test_rows_that_later_doors_could_not_take_are_refused(given, message):
    with pytest.raises(DataError, match=message):
        write_dataset("a", **given)


@pytest.mark.parametrize("chunk_rows", [2.5, 0, -3, "8"])
def test_chunk_rows_that_are_no_count_are_refused(chunk_rows):
    with pytest.raises(
        InvalidParameterError,
        match=rf"`chunk_rows`={chunk_rows!r}; expected an integer",
    ):
        write_dataset("a", X, chunk_rows=chunk_rows)


def test_data_without_columns_are_refused_in_the_words_of_scikit_learn():
    with pytest.raises(
        DataError, match=r"Found array with 0 feature\(s\) \(shape=\(50, 0\)\)"
    ):
        write_dataset("a", X[:, :0])
    group = zarr.create_group("foreign")
    group.create_array("X", shape=(50, 0), chunks=(10, 1), dtype="f8")
    with pytest.raises(
        DataError, match=r"Found array with 0 feature\(s\).*array 'X' of .*foreign"
    ):
        open_dataset("foreign")


LAYOUT = Layout(n_samples=4, n_columns=None, dtype=float, chunk_rows=4)
WRITERS = {
    "arrays": lambda url: write_dataset(url, X),
    "predictions": lambda url: create_output(url, LAYOUT),
    "generated": lambda url: generate_dataset(
        url, lambda X: X[:, 0], RandomRows(4, 1, noise=0, seed=0)
    ),
    "model": lambda url: write_record(url, kind="any", metadata={}, arrays={}),
}
each_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@each_writer
@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "Permission denied. Choose a folder that you may write to"),
        (errno.EROFS, "Read-only file system. Choose a folder that you may write to"),
        (
            errno.ENOSPC,
            "No space left on device. Free some space or choose another place",
        ),
    ],
)
def test_a_folder_that_cannot_be_written_is_refused_with_fitting_advice(
    tmp_path, monkeypatch, write, number, advice
):
    def refuse(path, *_):
        raise OSError(number, os.strerror(number), os.fspath(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(
        StorageError, match=rf"new/a cannot be written: {tmp_path}: {advice}"
    ):
        write("new/a")


@each_writer
def test_a_file_system_that_takes_no_folders_is_refused(write):
    with pytest.raises(
        StorageError, match=r"/proc/new/a cannot be written: /proc: .*\. Choose "
    ):
        write("/proc/new/a")


def test_the_trial_leaves_nothing(tmp_path):
    with pytest.raises(DataError):
        write_dataset("new/a", iter([]))
    output = create_output("b", LAYOUT)
    assert len(list(tmp_path.glob(".b*"))) == 1
    output.discard()


def test_a_table_is_not_read_for_an_output_that_cannot_be_written(
    tmp_path, monkeypatch
):
    (tmp_path / "a.csv").write_text("a\n1\n")
    monkeypatch.setattr(
        importlib.import_module("rff_dist.workbench.tables.files"), "open_table", None
    )
    with pytest.raises(StorageError, match="cannot be written"):
        ingest("a.csv", "/proc/new/a")


# -- weights
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_stored_weights_that_are_not_named_are_warned_of(caplog, zarr_format):
    group = zarr.create_group("a", zarr_format=zarr_format)
    for name, values in {"X": X, "y": Y, "sample_weight": WEIGHT}.items():
        group.create_array(name, data=values)
    with caplog.at_level(logging.WARNING):
        open_dataset("a")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert 'give sample_weight="sample_weight" to use them' in caplog.text


def test_weights_that_are_named_or_not_needed_are_not_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        write_dataset("a", X, Y, sample_weight=WEIGHT)
        open_dataset("a", sample_weight="sample_weight")
        open_dataset("a", y=None)
        write_dataset("b", X, Y)
    assert caplog.text == ""


# -- places
# --------------------------------------------------------------------------------------


def test_a_store_that_is_away_is_named(monkeypatch):
    class Away:
        def get(self, name):
            raise OSError("no route")

    monkeypatch.setattr("rff_dist.storage.locations.open_objects", lambda _: Away())
    with pytest.raises(
        StorageError, match=r"s3://b/x cannot be read \(zarr\.json: OSError: no route\)"
    ):
        open_dataset("s3://b/x")
