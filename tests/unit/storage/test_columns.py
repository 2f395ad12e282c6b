"""Labels and groups of every type come back as they were given; other values are
refused with their row.
"""

import json
import pickle
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from rff_dist.data.blocks import Block
from rff_dist.data.columns import TEXT
from rff_dist.errors import DataError, StorageError
from rff_dist.storage.columns import as_column, column_of, open_column
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.writing import write_dataset

WORDS = ["setosa", "é", "", "a longer word", "setosa", "日本", "b"]

VALUES = {
    **{name: np.arange(7).astype(name) for name in ("int8", "int16", "int32", "int64")},
    **{
        name: np.arange(7)[::-1].astype(name)
        for name in ("uint8", "uint16", "uint32", "uint64")
    },
    "extreme integers": np.array([-(2**63), 2**63 - 1, 0, 1, 2, 3, 4]),
    "largest uint64": np.array([2**64 - 1, 0, 1, 2, 3, 4, 5], np.uint64),
    "bool": np.arange(7) % 2 == 0,
    "big-endian": np.arange(7).astype(">i4"),
    "whole floats": np.array([1.0, 2.0, -0.0, 2.0**53, -5.0, 3.0, 1.0]),
    "fixed-width text": np.array(WORDS),
    "variable-width text": np.array(WORDS, TEXT),
    "objects": np.array(WORDS, object),
}


def read_all(column):
    return column.read(Block(0, 0, column.n_samples))


def stored(values, zarr_format=3, place="group.zarr", **options):
    group = zarr.create_group(place, overwrite=True, zarr_format=zarr_format)
    dtype = TEXT if values.dtype == object else values.dtype
    array = group.create_array(
        "y", shape=values.shape, dtype=dtype, chunks=(3,), **options
    )
    array[:] = values
    return Path(place)


def assert_holds(column, values):
    assert column.n_samples == 7
    assert read_all(column).tolist() == values.tolist()
    assert column.take(np.array([5, 0, 5])).tolist() == values[[5, 0, 5]].tolist()
    assert column.read(Block(0, 2, 4)).tolist() == values[2:4].tolist()


@pytest.mark.parametrize("name", VALUES)
class TestRoundTrips:
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_stored_values_come_back(self, name, zarr_format):
        values = VALUES[name]
        column = open_column(
            stored(values, zarr_format=zarr_format),
            "y",
            missing_chunks="fill",
        )
        assert_holds(column, values)
        assert column.dtype.kind == (
            "T" if values.dtype == object else values.dtype.kind
        )
        assert column.dtype.kind == "T" or column.dtype.isnative

    def test_pickled_they_come_back(self, name):
        in_memory = as_column(VALUES[name])
        on_disk = open_column(stored(VALUES[name]), "y", missing_chunks="fill")
        for column in (in_memory, on_disk):
            again = pickle.loads(pickle.dumps(column))
            assert_holds(again, VALUES[name])
            assert again.fingerprint() == column.fingerprint()
        other = stored(np.roll(VALUES[name], 1), place="other")
        filled = open_column(other, "y", missing_chunks="fill")
        assert filled.fingerprint() != on_disk.fingerprint()


@pytest.mark.parametrize(
    "given_values",
    [
        ["b", "a", "b"],
        pd.Series(["b", "a", "b"]),
        pd.Series(["b", "a", "b"], dtype="category"),
        pd.Series(["b", "a", "b"], dtype="string"),
        polars.Series(["b", "a", "b"]),
        polars.Series(["b", "a", "b"], dtype=polars.Categorical),
        pa.array(["b", "a", "b"]),
        pa.chunked_array([["b"], ["a", "b"]]),
        pa.array(["b", "a", "b"]).dictionary_encode(),
        da.from_array(np.array(["b", "a", "b"]), chunks=2),
        zarr.array(np.array(["b", "a", "b"]), store={}, chunks=2),
    ],
    ids=lambda values: f"{type(values).__module__}.{type(values).__name__}",
)
def test_every_container_of_text_gives_the_same_labels(given_values):
    assert read_all(as_column(given_values)).tolist() == ["b", "a", "b"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (pd.Series([3, 1], dtype="Int16"), "i"),
        (np.array([3, 1], object), "i"),
        (polars.Series([3, 1]), "i"),
        (pd.Series([True, False], dtype="boolean"), "b"),
        (np.array([True, False], object), "b"),
    ],
)
def test_numbers_and_booleans_in_objects_become_numbers(values, dtype):
    assert as_column(values).dtype.kind == dtype


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones((3, 1), int), r"y has shape \(3, 1\); expected one value per row"),
        (
            [1.0, 2.5],
            r"y is 2\.5, no whole number up to 2\^53, in row 1;.* without --classify",
        ),
        ([1.0, np.inf], r"y is inf, no whole number"),
        ([1.0, 1e300], r"y is 1e\+300, no whole number"),
        ([1.0, 2.0, np.nan], r"y is missing \(NaN\) in row 2"),
        (["a", None, "b"], r"y is missing in row 1"),
        (pd.Series(["a", None]), r"y is missing in row 1"),
        (pd.Series([1, None], dtype="Int64"), r"y is missing .*in row 1"),
        (pd.Series([True, None], dtype="boolean"), r"y is missing in row 1"),
        (polars.Series(["a", None]), r"y is missing in row 1"),
        (pa.array([1, None]), r"y is missing \(NaN\) in row 1"),
        (
            np.array(["a", np.nan], np.dtypes.StringDType(na_object=np.nan)),
            r"y is missing in row 1",
        ),
        (["a", 1], r"y is '1', a int, in row 1; expected labels of one type"),
        (np.array([1, True], object), r"y is 'True', a bool, in row 1"),
        (np.array([True, 1], object), r"y is '1', a int, in row 1"),
        (
            np.array(["2020-01-01"], "M8[D]"),
            r"dtype datetime64\[D\].*Format times as text",
        ),
        ([1j], r"y has dtype complex128; expected labels"),
        ([b"a"], r"Decode the bytes to text"),
        ([2**70], r"integers beyond 64 bits"),
        (
            ["a", "b\ud83d"],
            r"y is 'b\\ud83d' in row 1, which holds half of a surrogate pair",
        ),
        (
            np.array(["\udc00", "b"]),
            r"y is '\\udc00' in row 0, which holds half of a surrogate pair",
        ),
        (np.ones(2, np.longdouble), r"y has dtype"),
    ],
)
def test_what_is_no_label_is_refused_and_the_row_named(values, message):
    with pytest.raises(DataError, match=message):
        as_column(values)


def utf32(**configuration):
    return {"data_type": {"name": "fixed_length_utf32", "configuration": configuration}}


BYTES = {
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "fill_value": "",
}


class TestStored:
    def test_a_fraction_or_nan_is_refused_where_it_is_read(self):
        url = stored(np.array([1.0, 2.0, 3.0, 4.0, 2.5, np.nan]))
        column = open_column(url, "y")
        assert column.read(Block(0, 0, 3)).tolist() == [1, 2, 3]
        with pytest.raises(
            DataError, match=r"array 'y' of .* is 2\.5, no whole number .* in row 4"
        ):
            column.read(Block(1, 3, 6))
        with pytest.raises(DataError, match=r"missing \(NaN\) in row 5"):
            column.take(np.array([0, 5]))

    @pytest.mark.parametrize("name", ["int64", "variable-width text"])
    def test_a_missing_chunk_is_an_error_unless_it_is_to_be_filled(self, name):
        url = stored(VALUES[name], config={"write_empty_chunks": True})
        (url / "y" / "c" / "1").unlink()
        with pytest.raises(
            StorageError, match=r"array 'y' of .*, rows 3:6 \(chunk 1\): .* is missing"
        ):
            read_all(open_column(url, "y"))
        filled = read_all(open_column(url, "y", missing_chunks="fill"))
        assert filled[3:6].tolist() == ([0] * 3 if name == "int64" else [""] * 3)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"data_type": "complex64", **BYTES}, "cannot be read|dtype complex64"),
            (utf32(), "vlen-utf8"),
            (utf32(length_bytes=3 * 2**29) | BYTES, "pieces of"),
            ({"data_type": "variable_length_bytes"} | BYTES, "dtype object"),
            ({"data_type": "int64"}, "vlen-utf8"),
        ],
    )
    def test_hostile_metadata_are_refused_before_the_array_is_opened(
        self, change, message
    ):
        url = stored(VALUES["variable-width text"])
        metadata = url / "y" / "zarr.json"
        metadata.write_text(json.dumps(json.loads(metadata.read_text()) | change))
        with pytest.raises(StorageError, match=message):
            open_column(url, "y")

    def test_text_is_refused_as_a_target_and_says_what_it_is_for(self, tmp_path):
        url = tmp_path / "d.zarr"
        assert write_dataset(url, np.ones((7, 2)), WORDS).n_targets == 0
        with pytest.raises(
            StorageError, match=r"holds labels \(text\).*Train a classifier.*y = None"
        ):
            open_dataset(url)
        assert read_all(column_of(open_dataset(url, y=None), "y")).tolist() == WORDS


def test_without_targets_the_same_rows_travel_without_y(tmp_path):
    url = tmp_path / "d.zarr"
    dataset = write_dataset(
        url, np.arange(6.0).reshape(3, 2), np.ones(3), sample_weight=np.arange(3.0)
    )
    for rows in (
        dataset.without_targets(),
        pickle.loads(pickle.dumps(dataset.without_targets())),
    ):
        read = rows.read(Block(0, 0, 3))
        assert rows.n_targets == 0
        assert read.y is None
        assert read.sample_weight.tolist() == [0, 1, 2]
        assert rows.read_weight(Block(0, 1, 3)).tolist() == [1, 2]


@settings(max_examples=20)
@given(st.lists(st.text(), min_size=1, max_size=20))
def test_the_digest_of_text_tells_any_two_lists_apart(words):
    digest = as_column(np.array(words, TEXT)).fingerprint()
    assert as_column(np.array(words, object)).fingerprint() == digest
    changed = [*words[:-1], words[-1] + "x"]
    assert as_column(np.array(changed, TEXT)).fingerprint() != digest
