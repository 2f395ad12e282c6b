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
from rff_dist.storage import locations, manifests
from rff_dist.storage.records import read_record, write_record
from tests.bits import flipped

METADATA = {
    "alpha": 0.1,
    "kernel": {"name": "matern", "nu": 1.5},
    "features": ["a", "b"],
    "none": None,
}
NUMBERS = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="="),
    hnp.floating_dtypes(endianness="="),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


def write(url, **changes):
    arrays = {
        "coefficients": np.arange(12.0).reshape(6, 2),
        "frequencies": np.ones((2, 3), np.float32),
    }
    write_record(
        url, **{"kind": "ridge", "metadata": METADATA, "arrays": arrays, **changes}
    )


def edit(path, change, *, metadata=METADATA):
    """Change the manifest of a model as an attacker would."""
    file = path / "zarr.json"
    attributes = {"metadata": metadata, "rff_dist": change}
    file.write_bytes(manifests.sign_group(json.loads(file.read_text()), attributes))


@settings(max_examples=20)
@given(
    metadata=st.dictionaries(st.text(), JSON, max_size=4),
    arrays=st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True),
        hnp.arrays(
            NUMBERS, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
        ),
        max_size=3,
    ),
)
def test_what_is_written_is_read_back_bit_for_bit(tmp_path_factory, metadata, arrays):
    url = tmp_path_factory.getbasetemp() / uuid.uuid4().hex
    # Names that differ in case alone are one folder on some file systems; keep the law
    # simple.
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
    write("m")
    file = tmp_path / "m" / "coefficients" / "c" / "0" / "0"
    content = file.read_bytes()
    for bit in range(0, 8 * len(content), 7):
        file.write_bytes(flipped(content, bit))
        with pytest.raises(IntegrityError, match="array 'coefficients' of"):
            read_record("m")
    file.write_bytes(content)
    assert read_record("m").arrays["coefficients"][5, 1] == 11


def test_an_array_swapped_for_a_valid_one_is_noticed(tmp_path):
    write("m")
    zarr.open_array(tmp_path / "m" / "coefficients")[0, 0] = 7
    with pytest.raises(IntegrityError, match="array 'coefficients' of"):
        read_record("m")


@pytest.mark.parametrize("name", ["c/0/0", "zarr.json"])
def test_a_missing_file_of_an_array_is_named(tmp_path, name):
    write("m")
    (tmp_path / "m" / "frequencies" / name).unlink()
    with pytest.raises(StorageError, match="array 'frequencies' of"):
        read_record("m")


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


def holding(content):
    return lambda path: path.write_bytes(content)


def with_file(name, content):
    return lambda path: (write(path), (path / name).write_bytes(content))


def with_manifest(change, **how):
    return lambda path: (write(path), edit(path, change, **how))


def with_header(change):
    def make(path):
        write(path)
        file = path / "coefficients" / "zarr.json"
        header = json.loads(file.read_text()) | change
        file.write_text(json.dumps(header))
        parts = json.loads((path / "zarr.json").read_text())["attributes"]["rff_dist"]
        parts["arrays"]["coefficients"]["metadata"] = locations.json_digest(header)
        edit(path, parts)

    return make


def newer(path):
    write(path)
    file = path / "zarr.json"
    file.write_text(
        file.read_text().replace('"format_version": 1', '"format_version": 7')
    )


PART = {"metadata": "", "crc32c": ""}
NONSENSE = [
    {"arrays": 3},
    {"arrays": ["coefficients"]},
    {"arrays": {"coefficients": 3}},
    {"arrays": {"coefficients": {**PART, "crc32c": "="}}},
    {"arrays": {"a": PART}},
    {"record": None},
    {"rff_dist_version": 3},
]
DAMAGED = [b"", b"[" * 200_000, b"[]", b'{"format": "other"}', b"\xc2\x80"]
CODECS = ["vlen-bytes", "numcodecs.pickle", "zstd", "numcodecs.zlib"]
NO_MODELS = [
    (lambda path: None, StorageError, r"no model at .*nothing is there"),
    (Path.mkdir, StorageError, r"no model at .*no zarr\.json"),
    (holding(pickle.dumps(Bomb())), StorageError, "it is a file"),
    *(
        (with_file("zarr.json", content), StorageError, r"metadata of|cannot be")
        for content in DAMAGED
    ),
    (newer, VersionError, "of format 7; this release knows format 1"),
    *(
        (with_manifest({"arrays": {name: PART}}), UnsafeModelError, "names the array")
        for name in ("../../x", "/etc/x", "a/b", "..")
    ),
    *((with_manifest(one), StorageError, None) for one in NONSENSE),
    (with_manifest({}, metadata=[]), StorageError, "fields of a record"),
    *(
        (with_header({"codecs": [{"name": codec}]}), StorageError, codec)
        for codec in CODECS
    ),
]


@pytest.mark.faults("F18")
@pytest.mark.parametrize(("make", "error", "message"), NO_MODELS)
def test_what_is_no_model_is_refused(tmp_path, make, error, message):
    make(tmp_path / "m")
    with pytest.raises(error, match=message):
        read_record("m")


def test_a_record_is_known_by_its_kind():
    write("m")
    with pytest.raises(StorageError, match="holds a 'ridge'; expected a 'statistics'"):
        read_record("m", kind="statistics")


def test_an_array_that_claims_more_than_there_is_is_refused(tmp_path):
    with_header({"shape": [2**40, 2]})(tmp_path / "m")
    with pytest.raises(StorageError, match=f"claims {2**44:_} bytes"):
        read_record("m")


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
def test_what_cannot_be_stored_safely_is_refused_before_writing(
    tmp_path, changes, message
):
    with pytest.raises(InvalidParameterError, match=message):
        write("m", **changes)
    assert list(tmp_path.iterdir()) == []


class TestOverwriting:
    def test_a_model_that_exists_is_kept(self):
        write("m")
        with pytest.raises(OutputExistsError, match="overwrite"):
            write("m", kind="other")
        assert read_record("m").kind == "ridge"

    def test_the_old_one_goes(self, tmp_path):
        for i in range(5):
            write("m", metadata={"i": i}, overwrite=True)
        assert read_record("m").metadata == {"i": 4}
        assert {path.name for path in (tmp_path / "m").iterdir()} == {
            *("zarr.json", "coefficients", "frequencies")
        }
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    def test_other_files_in_the_folder_stay(self):
        url = "m"
        write(url)
        locations.write_file(locations.parse_location(url), "refused.json", b"rows")
        write(url, metadata={"i": 1}, overwrite=True)
        assert (
            locations.read_file(locations.parse_location(url), "refused.json")
            == b"rows"
        )
        assert read_record(url).metadata == {"i": 1}

    def test_a_folder_that_is_no_model_is_kept(self, tmp_path):
        (tmp_path / "notes.txt").write_text("…")
        with pytest.raises(StorageError, match="is not replaced"):
            write(tmp_path, overwrite=True)

    @pytest.mark.faults("F16")
    def test_a_reader_sees_the_old_model_or_the_new_one(self):
        url = "m"
        seen = []
        done = threading.Event()

        def read():
            while not done.is_set():
                record = read_record(url)
                values = np.unique(record.arrays["a"])
                seen.append((record.metadata["i"], *values.tolist()))

        write_record(
            url,
            kind="k",
            metadata={"i": 0},
            arrays={"a": np.zeros(1000)},
            overwrite=True,
        )
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            for i in range(1, 40):
                arrays = {"a": np.full(1000, float(i))}
                write_record(
                    url, kind="k", metadata={"i": i}, arrays=arrays, overwrite=True
                )
            done.set()
        assert reading.exception() is None
        assert seen
        assert all(len(entry) == 2 and entry[0] == entry[1] for entry in seen)
        assert [entry[0] for entry in seen] == sorted(entry[0] for entry in seen)
