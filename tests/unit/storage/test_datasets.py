import itertools
import json
import pickle
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from zarr.codecs import Crc32cCodec
from zarr.storage import LocalStore

from rff_dist.data.blocks import Block, check_finite, cut_blocks
from rff_dist.errors import (
    DataError,
    IntegrityError,
    InvalidParameterError,
    MissingDependencyError,
    OutputExistsError,
    StorageError,
)
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.records import write_record
from rff_dist.storage.writing import choose_chunk_rows, write_dataset
from tests.bits import flipped
from tests.refusals import refuses
from tests.tables import all_rows

LAYOUTS = {"v2": (2, None), "v3": (3, None), "sharded": (3, 20)}


def foreign(path, *, layout="v3", n_samples=50, chunk=10, fill=0.0, X=None, **arrays):
    """Write a dataset as another program would: Zarr's own defaults."""
    zarr_format, shard = LAYOUTS[layout]
    group = zarr.create_group(LocalStore(path), zarr_format=zarr_format)
    values = np.arange(n_samples * 3.0).reshape(n_samples, 3) + 1 if X is None else X
    for name, value in {"X": values, **arrays}.items():
        chunks = (chunk, *value.shape[1:])
        shards = None if shard is None else (shard, *value.shape[1:])
        array = group.create_array(
            name,
            shape=value.shape,
            dtype=value.dtype,
            chunks=chunks,
            shards=shards,
            fill_value=fill,
        )
        array[...] = value
    return values


def chunk_file(path, layout, i, array="X"):
    return (
        path / array / {"v2": f"{i}.0", "v3": f"c/{i}/0", "sharded": f"c/{i}/0"}[layout]
    )


@settings(max_examples=20)
@given(
    n_samples=st.integers(0, 70),
    n_features=st.integers(1, 4),
    n_targets=st.integers(0, 2),
    chunk_rows=st.integers(1, 80),
    rows_per_block=st.integers(1, 90),
    dtype=st.sampled_from(["float32", "float64", "float16", "int32", "uint8", "bool"]),
)
def test_what_is_written_is_read_back_block_by_block(
    tmp_path_factory,
    n_samples,
    n_features,
    n_targets,
    chunk_rows,
    rows_per_block,
    dtype,
):
    rng = np.random.default_rng(n_samples)
    X = (rng.standard_normal((n_samples, n_features)) * 50).astype(dtype)
    y = rng.standard_normal((n_samples, n_targets)) if n_targets else None
    url = tmp_path_factory.getbasetemp() / uuid.uuid4().hex
    dataset = write_dataset(url, X, y, chunk_rows=chunk_rows)
    assert (dataset.n_samples, dataset.n_features, dataset.n_targets) == (
        n_samples,
        n_features,
        n_targets,
    )
    assert dataset.dtype == X.dtype
    assert dataset.chunk_rows == chunk_rows
    parts = [
        dataset.read(block)
        for block in cut_blocks(n_samples, chunk_rows, rows_per_block=rows_per_block)
    ]
    for part in parts:
        assert_array_equal(part.X, X[part.block.start : part.block.stop])
        if y is None:
            assert part.y is None
        else:
            assert_array_equal(part.y, y[part.block.start : part.block.stop])
    assert sum(len(part.X) for part in parts) == n_samples


@settings(max_examples=12)
@given(st.lists(st.integers(0, 13), max_size=8), st.integers(1, 20))
def test_batches_of_any_length_make_the_dataset_that_arrays_make(lengths, chunk_rows):
    n_samples = sum(lengths)
    X = np.random.default_rng(0).standard_normal((n_samples, 2))
    y = X[:, 0] * 2
    weight = np.arange(n_samples) + 1.0
    stops = np.cumsum([0, 0, *lengths])
    batches = ((X[a:b], y[a:b], weight[a:b]) for a, b in itertools.pairwise(stops))
    from_batches = write_dataset(uuid.uuid4().hex, batches, chunk_rows=chunk_rows)
    from_arrays = write_dataset(
        uuid.uuid4().hex,
        X,
        y,
        sample_weight=weight,
        chunk_rows=chunk_rows,
    )
    assert from_batches.fingerprint() == from_arrays.fingerprint()
    rows = from_batches.read(Block(0, 0, n_samples))
    assert_array_equal(rows.X, X)
    assert_array_equal(rows.y, y[:, np.newaxis])
    assert_array_equal(rows.sample_weight, weight)


@pytest.mark.parametrize("layout", LAYOUTS)
class TestForeignData:
    def test_reads_what_others_wrote(self, layout):
        X = foreign("a", layout=layout, y=np.arange(50))
        dataset = open_dataset("a")
        rows = dataset.read(Block(0, 5, 37))
        assert_array_equal(rows.X, X[5:37])
        assert_array_equal(rows.y, np.arange(5.0, 37.0)[:, np.newaxis])
        assert rows.y.dtype == np.float64
        assert dataset.chunk_rows == (20 if layout == "sharded" else 10)

    @pytest.mark.faults("F8")
    def test_a_missing_chunk_is_an_error_that_names_array_and_rows(
        self, tmp_path, layout
    ):
        foreign("a", layout=layout)
        chunk_file(tmp_path / "a", layout, 1).unlink()
        dataset = open_dataset("a")
        rows = "20:40" if layout == "sharded" else "10:20"
        message = (
            rf"array 'X' of .*a, rows {rows} \(chunk 1\): the chunk is"
            r" missing.*missing_chunks=\"fill\""
        )
        with pytest.raises(StorageError, match=message):
            all_rows(dataset)
        with pytest.raises(StorageError, match=message):
            dataset.take([0, 45, 25, 15])

    def test_a_missing_chunk_reads_as_fill_value_when_asked(self, tmp_path, layout):
        X = foreign("a", layout=layout)
        chunk_file(tmp_path / "a", layout, 1).unlink()
        start, stop = (20, 40) if layout == "sharded" else (10, 20)
        X[start:stop] = 0
        dataset = pickle.loads(pickle.dumps(open_dataset("a", missing_chunks="fill")))
        assert_array_equal(all_rows(dataset).X, X)

    @pytest.mark.parametrize("keep", [0, 3, 40])
    def test_a_truncated_chunk_is_an_integrity_error(self, tmp_path, layout, keep):
        foreign("a", layout=layout)
        file = chunk_file(tmp_path / "a", layout, 2)
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(
            IntegrityError,
            match=r"array 'X' of .* \(chunk 2\): the stored bytes are damaged",
        ):
            all_rows(open_dataset("a"))


@pytest.mark.faults("F9")
def test_every_flipped_bit_of_our_own_data_is_noticed(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((64, 2)).astype(np.float32)
    dataset = write_dataset("a", X, X[:, 0], chunk_rows=16)
    for array, chunk in (("X", "c/2/0"), ("y", "c/2")):
        file = tmp_path / "a" / array / chunk
        content = file.read_bytes()
        for bit in rng.choice(8 * len(content), 60, replace=False).tolist():
            file.write_bytes(flipped(content, bit))
            with pytest.raises(
                IntegrityError, match=rf"array '{array}' of .*, rows 32:48 \(chunk 2\)"
            ):
                all_rows(dataset)
        file.write_bytes(content)
    assert_array_equal(all_rows(dataset).X, X)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_everything_that_is_written_has_a_checksum_and_no_chunk_is_left_out(dtype):
    X = np.zeros((40, 2), dtype=dtype)
    write_dataset("a", X, np.zeros(40), sample_weight=np.ones(40), chunk_rows=10)
    group = zarr.open_group("a", mode="r")
    for name in ("X", "y", "sample_weight"):
        assert group[name].compressors == (Crc32cCodec(),)
        assert group[name].nchunks_initialized == 4
    assert np.isnan(group["y"].fill_value)


class TestBadStores:
    """Each is refused before a row is read, in words that say what was found."""

    def refused(self, url, message, **options):
        with pytest.raises(StorageError, match=message):
            open_dataset(url, **options)

    def test_missing_path(self, tmp_path):
        self.refused(
            tmp_path / "no" / "a.zarr", "nothing is there; .*no does not exist either"
        )

    def test_file(self, tmp_path):
        (tmp_path / "a.csv").write_text("1,2\n")
        self.refused(
            tmp_path / "a.csv",
            r"rff-dist ingest \S*a\.csv \S*a\.zarr, for a fit with --targets NAME; or"
            r" add its rows .*: rff-dist ingest \S*a\.csv DATASET --append$",
        )
        (tmp_path / "a.zarr.zip").write_text("packed")
        self.refused(tmp_path / "a.zarr.zip", "Unpack it$")

    def test_folder_without_zarr(self, tmp_path):
        self.refused(tmp_path, "no Zarr metadata")

    @pytest.mark.parametrize(
        ("arrays", "options", "message"),
        [
            (
                {"inputs": np.ones((50, 2))},
                {"x": "Z"},
                "no array 'Z'; it holds the arrays 'X', 'inputs'",
            ),
            ({}, {"y": "price"}, "no array 'price'"),
            (
                {"X": np.ones(50)},
                {},
                (
                    r"array 'X' .*expected 2 axes \(n_samples, n_features\)\."
                    r" .*np\.reshape"
                ),
            ),
            (
                {"X": np.ones((50, 2, 2))},
                {},
                r"array 'X' .*expected 2 axes .*np\.reshape",
            ),
            ({"y": np.ones(49)}, {}, "has 50 rows and array 'y' of .* 49"),
        ],
    )
    def test_other_arrays(self, tmp_path, arrays, options, message):
        foreign("a", **arrays)
        self.refused(tmp_path / "a", message, **options)

    def test_a_model_instead_of_a_dataset(self, tmp_path):
        write_record("a", kind="ridge", metadata={}, arrays={"w": np.ones(2)})
        self.refused(tmp_path / "a", "is a model; .* load_model")

    def test_an_array_instead_of_its_group(self, tmp_path):
        foreign("a")
        assert open_dataset("a").n_targets == 0
        self.refused(tmp_path / "a" / "X", r"is a Zarr array; .* with x='X'")

    @pytest.mark.parametrize("zarr_format", [2, 3])
    @pytest.mark.parametrize(
        "dtype",
        [
            "datetime64[s]",
            "timedelta64[ms]",
            "U5",
            "S3",
            "complex64",
            [("a", "f4"), ("b", "f4")],
        ],
    )
    @pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
    def test_dtype_that_is_no_number(self, tmp_path, dtype, zarr_format):
        group = zarr.create_group("a", zarr_format=zarr_format)
        group.create_array("X", shape=(4, 2), dtype=np.dtype(dtype), chunks=(2, 2))
        self.refused(
            tmp_path / "a", "array 'X' of .*: dtype .*; expected integers or floats"
        )

    def test_pickled_objects_are_refused_unread(self, tmp_path):
        folder = tmp_path / "a" / "X"
        folder.mkdir(parents=True)
        (tmp_path / "a" / ".zgroup").write_text('{"zarr_format": 2}')
        metadata = {
            "zarr_format": 2,
            "shape": [4, 2],
            "chunks": [4, 2],
            "dtype": "<f8",
            "order": "C",
        }
        metadata |= {"fill_value": 0, "compressor": None, "filters": [{"id": "pickle"}]}
        (folder / ".zarray").write_text(json.dumps(metadata))
        self.refused(tmp_path / "a", "codec pickle, which decodes to Python objects")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"shape": [10**18, 3]},
                "claims 1_000_000_000_000_000_000 rows; expected at most",
            ),
            ({"shape": [10, 10**15]}, "pieces of .* GiB"),
            ({"shape": [-1, 3]}, r"cannot be read .*\[-1, 3\]"),
            ({"shape": "many"}, "cannot be read .*many"),
            ({"chunk": [0, 3]}, "cannot be read .*chunk"),
            ({"chunk": [10**12, 3]}, "pieces of .* GiB"),
            ({"chunk": [10]}, "cannot be read .*`shape`"),
            ({"chunk_grid": {"name": "rectilinear"}}, "cannot be read .*chunk grid"),
            (
                {"codecs": [{"name": "numcodecs.pickle"}]},
                r"numcodecs\.pickle, which decodes",
            ),
            ({"codecs": [{"name": "no_such_codec"}]}, "cannot be read .*no_such_codec"),
            ({"zarr_format": 4}, "Zarr format 4"),
            ({"chunk_grid": []}, "metadata that cannot be read"),
        ],
    )
    def test_hostile_metadata(self, tmp_path, change, message):
        foreign("a")
        file = tmp_path / "a" / "X" / "zarr.json"
        metadata = json.loads(file.read_text())
        if "chunk" in change:
            change = {
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": change["chunk"]},
                }
            }
        file.write_text(json.dumps(metadata | change))
        self.refused(tmp_path / "a", message)

    @pytest.mark.parametrize("name", ["zarr.json", "X/zarr.json"])
    @pytest.mark.parametrize(
        "content", ["[" * 200_000, "[1]", '{"a":' * 100_000, "", "\0\xff"]
    )
    def test_metadata_that_are_not_json(self, tmp_path, name, content):
        foreign("a")
        (tmp_path / "a" / name).write_text(content)
        self.refused(tmp_path / "a", "metadata|cannot be opened as a Zarr group")

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("s4://bucket/a", r"unknown scheme s4:// .*did you mean s3://\?"),
            ("ftp://host/a", "unknown scheme ftp://"),
            ("simplecache::file:///etc", "chained URLs"),
            ("zip://a::s3://bucket", "chained URLs"),
            (
                "s3://key:secret@bucket/a",
                r"credentials do not belong in a URL: s3://\*\*\*@bucket/a",
            ),
            (
                "https://host/a?X-Amz-Signature=secret",
                r"credentials .*https://host/a\?\*\*\*",
            ),
            ("file://host/a", "names the host 'host'"),
            ("s3://", "names nothing"),
            ("s3://bucket/", "names nothing"),
            ("", "not a location"),
            (np.ones((2, 2)), "a ndarray is no location; .*write_dataset"),
        ],
    )
    def test_url(self, url, message):
        with pytest.raises(StorageError, match=message) as caught:
            open_dataset(url)
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("scheme", ["s3", "gs", "az", "https"])
    def test_scheme_whose_package_is_missing(self, monkeypatch, scheme):
        monkeypatch.setitem(sys.modules, "obstore.store", None)
        with pytest.raises(MissingDependencyError, match=r"pip install rff_dist\[s3\]"):
            open_dataset(f"{scheme}://bucket/a")

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("feature_names", ["a", "b"], "expected a list of 3 names"),
            ("rff_dist", {"state": "writing"}, "is unfinished"),
            ("rff_dist", {}, "is unfinished"),
        ],
    )
    def test_attributes(self, tmp_path, name, value, message):
        foreign("a")
        zarr.open_group("a").attrs[name] = value
        self.refused(tmp_path / "a", message)


def test_a_store_that_refuses_is_not_called_damaged(monkeypatch):
    foreign("a")
    dataset = open_dataset("a")

    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(
        StorageError, match=r"rows 10:20 .*cannot be read: PermissionError"
    ) as caught:
        dataset.read(Block(0, 10, 40))
    assert not isinstance(caught.value, IntegrityError)
    with pytest.raises(
        StorageError, match=r"a cannot be read \(zarr\.json: PermissionError"
    ):
        open_dataset("a")


class TestWriting:
    X = np.arange(12.0).reshape(6, 2)

    def test_an_output_that_exists_is_kept_unless_it_is_to_be_overwritten(self):
        first = write_dataset("a", self.X).fingerprint()
        with refuses(OutputExistsError, "overwrite"):
            write_dataset("a", self.X + 1)
        assert open_dataset("a").fingerprint() == first
        write_dataset("a", self.X + 1, overwrite=True)
        assert open_dataset("a").fingerprint() != first

    def test_overwriting_removes_nothing_but_zarr(self, tmp_path):
        (tmp_path / "thesis").mkdir()
        (tmp_path / "thesis" / "chapter.tex").write_text("…")
        with pytest.raises(StorageError, match="is not replaced"):
            write_dataset("thesis", self.X, overwrite=True)
        assert (tmp_path / "thesis" / "chapter.tex").exists()

    def test_an_output_inside_a_dataset_is_refused(self):
        write_dataset("a", self.X)
        with pytest.raises(StorageError, match="lies inside the Zarr data"):
            write_dataset("a/b", self.X)

    def test_a_batch_that_fails_leaves_what_was_there(self, tmp_path):
        url = tmp_path / "a"
        before = write_dataset(url, self.X, overwrite=True).fingerprint()

        def batches():
            yield self.X + 1
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_dataset(url, batches(), chunk_rows=2, overwrite=True)
        assert open_dataset(url).fingerprint() == before
        assert list(tmp_path.iterdir()) == [url]

    @pytest.mark.parametrize(
        ("batches", "message"),
        [
            (
                [np.ones((3, 2)), np.ones((3, 3))],
                r"batch at row 3: X has shape \(3, 3\); expected \(3, 2\)",
            ),
            (
                [np.ones((3, 2)), (np.ones((3, 2)), np.ones(3))],
                "batch at row 3: .* the arrays X, y, and the first batch has X;",
            ),
            (
                [np.ones((3, 2), dtype=np.int32), np.ones((3, 2))],
                "X is float64, but array 'X' of the first batch holds int32",
            ),
            ([(np.ones((3, 2)), np.ones(2))], r"y has shape \(2,\); expected \(3,\)"),
            ([np.ones(3)], "expected 2 axes"),
            ([np.array([["a"]])], "dtype <U1"),
            ([], "no batch"),
        ],
    )
    def test_batches_that_do_not_belong_together(self, tmp_path, batches, message):
        with pytest.raises(DataError, match=message):
            write_dataset("a", iter(batches))
        assert list(tmp_path.iterdir()) == []

    def test_names_are_counted(self):
        with pytest.raises(DataError, match="`feature_names` has 1 names; expected 2"):
            write_dataset("b", self.X, feature_names=["a"])


@given(st.integers(1, 10**7), st.none() | st.integers(1, 10**12))
def test_chunks_are_powers_of_two_of_at_most_16_mebibytes(row_bytes, n_samples):
    rows = choose_chunk_rows(row_bytes, n_samples)
    assert rows & (rows - 1) == 0
    assert 1 <= rows <= 65_536
    assert rows == 1 or rows * row_bytes <= 16 * 2**20


@pytest.mark.parametrize("indices", [[50], [-1], [0.5], [[0]], [True]])
def test_rows_that_do_not_exist_are_refused(indices):
    foreign("a")
    with pytest.raises(InvalidParameterError, match="rows are given"):
        open_dataset("a").take(indices)


def test_blocks_of_another_dataset_are_refused():
    foreign("a")
    with pytest.raises(StorageError, match="rows 40:60"):
        open_dataset("a").read(Block(0, 40, 60))


@pytest.mark.faults("F10")
def test_a_value_that_is_not_finite_is_named_by_row_column_and_chunk():
    X = np.zeros((50, 3))
    X[41, 2] = np.nan
    dataset = write_dataset("a", X, chunk_rows=8)
    rows = dataset.read(Block(1, 24, 50))
    with pytest.raises(
        DataError, match=r"Input X contains NaN: row 41, column 2 \(chunk 5\)"
    ):
        check_finite(rows, rows.X)
