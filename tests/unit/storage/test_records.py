import json
import pickle
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rff_dist.errors import (
    IntegrityError,
    InvalidParameterError,
    OutputExistsError,
    StorageError,
    UnsafeModelError,
    VersionError,
)
from rff_dist.storage import documents, locations
from rff_dist.storage.records import read_record, write_record
from tests.bits import flipped

METADATA = {"alpha": 0.1, "kernel": {"name": "matern", "nu": 1.5}, "features": ["a", "b"], "none": None}
NUMBERS = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(endianness="="), hnp.floating_dtypes(endianness="=")
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def write(url, **changes):
    arrays = {"coefficients": np.arange(12.0).reshape(6, 2), "frequencies": np.ones((2, 3), np.float32)}
    write_record(url, **{"kind": "ridge", "metadata": METADATA, "arrays": arrays, **changes})


def edit(path, change, *, sign=True):
    """Change model.json as damage does (`sign=False`), or as an attacker would."""
    document = json.loads((path / "model.json").read_text())
    document.update(change)
    if sign:
        document.pop("sha256")
        document["sha256"] = documents._digest(document)
    (path / "model.json").write_text(json.dumps(document))


def arrays_folder(path):
    return path / json.loads((path / "model.json").read_text())["generation"]


@settings(max_examples=20)
@given(
    metadata=st.dictionaries(st.text(), JSON, max_size=4),
    arrays=st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
        hnp.arrays(NUMBERS, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
        max_size=3,
    ),
    scheme=st.sampled_from(["file", "memory"]),
)
def test_what_is_written_is_read_back_bit_for_bit(tmp_path_factory, metadata, arrays, scheme):
    name = uuid.uuid4().hex
    url = f"memory://{name}" if scheme == "memory" else tmp_path_factory.getbasetemp() / name
    # Names that differ in case alone are one folder on some file systems; keep the law simple.
    arrays = {name.lower(): array for name, array in arrays.items()}
    write_record(url, kind="anything", metadata=metadata, arrays=arrays)
    record = read_record(url, kind="anything")
    assert record.metadata == metadata
    assert record.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert record.arrays[name].dtype == array.dtype
        assert record.arrays[name].shape == array.shape
        assert record.arrays[name].tobytes() == array.tobytes()


@pytest.mark.faults("F9")
def test_every_flipped_bit_of_an_array_is_noticed_and_the_array_named(tmp_path):
    write(tmp_path / "m")
    file = arrays_folder(tmp_path / "m") / "coefficients" / "c" / "0" / "0"
    content = file.read_bytes()
    for bit in range(0, 8 * len(content), 7):
        file.write_bytes(flipped(content, bit))
        with pytest.raises(IntegrityError, match="array 'coefficients' of"):
            read_record(tmp_path / "m")
    file.write_bytes(content)
    assert read_record(tmp_path / "m").arrays["coefficients"][5, 1] == 11


def test_an_array_swapped_for_a_valid_one_is_noticed(tmp_path):
    write(tmp_path / "m")
    zarr.open_array(arrays_folder(tmp_path / "m") / "coefficients")[0, 0] = 7
    with pytest.raises(IntegrityError, match=r"array 'coefficients' of .*SHA-256"):
        read_record(tmp_path / "m")


@pytest.mark.parametrize("name", ["c/0/0", "zarr.json"])
def test_a_missing_file_of_an_array_is_named(tmp_path, name):
    write(tmp_path / "m")
    (arrays_folder(tmp_path / "m") / "frequencies" / name).unlink()
    with pytest.raises(StorageError, match="array 'frequencies' of"):
        read_record(tmp_path / "m")


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


def holding(content):
    return lambda path: path.write_bytes(content)


def with_file(name, content):
    return lambda path: (write(path), (path / name).write_bytes(content))


def with_document(change, **how):
    return lambda path: (write(path), edit(path, change, **how))


def with_header(change):
    def make(path):
        write(path)
        file = arrays_folder(path) / "coefficients" / "zarr.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))

    return make


OUTSIDE = [
    *(
        {"generation": one}
        for one in ("../../elsewhere", "/etc", f"generation-{0:031}/", "generation-..", 3, None)
    ),
    {"arrays": {"../../x": {"shape": [1], "dtype": "float64", "sha256": ""}}},
]
NONSENSE = [
    {"arrays": []},
    {"arrays": {"coefficients": 3}},
    {"kind": None},
    {"arrays": {"a": {"shape": 3, "dtype": "f8", "sha256": ""}}},
]
DAMAGED = [b"", b"[" * 200_000, b"[]", b'{"format": "other"}', b"\xc2\x80"]
CODECS = ["vlen-bytes", "numcodecs.pickle", "zstd", "numcodecs.zlib"]
NEWER = {"format_version": 7, "rff_dist_version": "9.1"}
NO_MODELS = [
    (lambda path: None, StorageError, r"no model at .*nothing is there"),
    (Path.mkdir, StorageError, r"it has no model\.json"),
    *((holding(pickle.dumps(Bomb(), protocol=n)), UnsafeModelError, "is a pickle") for n in (2, 3, 4, 5)),
    (holding(b"hello"), StorageError, "is a file; expected a model folder"),
    *((with_file(name, b""), UnsafeModelError, name) for name in ("extra.pkl", "scaler.joblib")),
    *((with_file("model.json", content), StorageError, r"model\.json of") for content in DAMAGED),
    (with_document(NEWER, sign=False), VersionError, r"7, written by rff_dist 9\.1.*up to version 1"),
    *((with_document(one), UnsafeModelError, "names arrays outside the model") for one in OUTSIDE),
    *((with_document(one), StorageError, None) for one in NONSENSE),
    *((with_header({"codecs": [{"name": codec}]}), StorageError, codec) for codec in CODECS),
]


@pytest.mark.faults("F18")
@pytest.mark.parametrize(("make", "error", "message"), NO_MODELS)
def test_what_is_no_model_is_refused(tmp_path, make, error, message):
    make(tmp_path / "m")
    with pytest.raises(error, match=message):
        read_record(tmp_path / "m")


def test_a_text_pickle_is_known_by_its_suffix_and_a_record_by_its_kind(tmp_path):
    (tmp_path / "model.PKL").write_bytes(pickle.dumps({"a": 1}, protocol=0))
    with pytest.raises(UnsafeModelError, match="is a pickle"):
        read_record(tmp_path / "model.PKL")
    write(tmp_path / "m")
    with pytest.raises(StorageError, match="holds a 'ridge'; expected a 'statistics'"):
        read_record(tmp_path / "m", kind="statistics")


def test_an_array_that_claims_more_than_there_is_is_refused(tmp_path):
    with_header({"shape": [2**40, 2]})(tmp_path / "m")
    entries = json.loads((tmp_path / "m" / "model.json").read_text())["arrays"]
    entries["coefficients"]["shape"] = [2**40, 2]
    edit(tmp_path / "m", {"arrays": entries})
    with pytest.raises(StorageError, match="claims 16384 GiB"):
        read_record(tmp_path / "m")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrays": {"a": np.array([{}])}}, "array 'a' has dtype object"),
        ({"arrays": {"a": np.array(["x"])}}, "Put strings into the metadata"),
        ({"arrays": {"a/b": np.ones(2)}}, "array name 'a/b'"),
        ({"arrays": {"..": np.ones(2)}}, "array name"),
        ({"metadata": {"a": float("nan")}}, "not JSON"),
        ({"metadata": {"a": np.ones(2)}}, "not JSON"),
    ],
)
def test_what_cannot_be_stored_safely_is_refused_before_writing(tmp_path, changes, message):
    with pytest.raises(InvalidParameterError, match=message):
        write(tmp_path / "m", **changes)
    assert list(tmp_path.iterdir()) == []


class TestOverwriting:
    def test_a_model_that_exists_is_kept(self, tmp_path):
        write(tmp_path / "m")
        with pytest.raises(OutputExistsError, match="overwrite"):
            write(tmp_path / "m", kind="other")
        assert read_record(tmp_path / "m").kind == "ridge"

    def test_the_old_one_goes(self, tmp_path):
        for i in range(5):
            write(tmp_path / "m", metadata={"i": i}, overwrite=True)
        assert read_record(tmp_path / "m").metadata == {"i": 4}
        assert {path.name for path in (tmp_path / "m").iterdir()} == {
            "model.json",
            arrays_folder(tmp_path / "m").name,
        }
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    @pytest.mark.parametrize("scheme", ["file", "memory"])
    def test_other_files_in_the_folder_stay(self, tmp_path, scheme):
        url = str(tmp_path / "m") if scheme == "file" else f"memory://{uuid.uuid4().hex}"
        write(url)
        store = locations.open_store(locations.parse_location(url), read_only=False)
        locations.write_bytes(store, "refused.json", b"rows")
        write(url, metadata={"i": 1}, overwrite=True)
        assert locations.read_file(locations.parse_location(url), "refused.json") == b"rows"
        assert read_record(url).metadata == {"i": 1}

    def test_a_folder_that_is_no_model_is_kept(self, tmp_path):
        (tmp_path / "notes.txt").write_text("…")
        with pytest.raises(StorageError, match="is not replaced"):
            write(tmp_path, overwrite=True)

    @pytest.mark.faults("F16")
    @pytest.mark.parametrize("scheme", ["file", "memory"])
    def test_a_reader_sees_the_old_model_or_the_new_one(self, tmp_path, scheme):
        url = tmp_path / "m" if scheme == "file" else "memory://swapped"
        seen, done = [], threading.Event()

        def read():
            while not done.is_set():
                record = read_record(url)
                values = np.unique(record.arrays["a"])
                seen.append((record.metadata["i"], *values.tolist()))

        write_record(url, kind="k", metadata={"i": 0}, arrays={"a": np.zeros(1000)}, overwrite=True)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            for i in range(1, 40):
                arrays = {"a": np.full(1000, float(i))}
                write_record(url, kind="k", metadata={"i": i}, arrays=arrays, overwrite=True)
            done.set()
        assert reading.exception() is None
        assert seen
        assert all(len(entry) == 2 and entry[0] == entry[1] for entry in seen)
        assert [entry[0] for entry in seen] == sorted(entry[0] for entry in seen)
