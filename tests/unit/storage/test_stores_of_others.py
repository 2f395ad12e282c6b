"""Stores that zarr-python writes hold the values that zarr-python reads in them."""

import pickle

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    ZstdCodec,
)
from zarr.storage import LocalStore

from rff_dist.data.blocks import Block
from rff_dist.storage.columns import open_column
from rff_dist.storage.datasets import open_dataset

N = 4_000
X = np.random.default_rng(0).standard_normal((N, 3))
# the first chunk, and the first inner chunk of shards, holds the fill value only
X[:400] = 0
SHARDS = {"shards": (2_000, 3)}
AT_START = ShardingCodec(
    chunk_shape=(400, 3), codecs=[BytesCodec(), ZstdCodec()], index_location="start"
)
STORES = {
    "as zarr chooses": {"chunks": "auto"},
    "zstd": {},
    "gzip and crc32c": {"compressors": [GzipCodec(), Crc32cCodec()]},
    "zstd twice": {"compressors": [ZstdCodec(), ZstdCodec()]},
    "shards": SHARDS,
    "shards of NaN": {**SHARDS, "fill_value": np.nan},
    "shards, blosc": {**SHARDS, "compressors": [BloscCodec(typesize=8)]},
    "shards, gzip": {**SHARDS, "compressors": [GzipCodec()]},
    "shards, gzip and crc32c": {**SHARDS, "compressors": [GzipCodec(), Crc32cCodec()]},
    "shards, bytes as they are": {**SHARDS, "compressors": None},
    "shards, index at the start": {
        "chunks": (2_000, 3),
        "serializer": AT_START,
        "compressors": None,
    },
    "format 2": {"zarr_format": 2},
    "format 2, zlib": {"zarr_format": 2, "compressors": numcodecs.Zlib()},
    "format 2, filters that widen": {
        "zarr_format": 2,
        "dtype": "i1",
        "filters": [numcodecs.FixedScaleOffset(0, 1, "i1", "f8")],
        "compressors": numcodecs.Zstd(),
    },
    "format 2, big-endian columns": {"zarr_format": 2, "dtype": ">f8", "order": "F"},
}


def write(store, zarr_format=3, dtype="f8", **options):
    group = zarr.create_group(store, zarr_format=zarr_format)
    how = {"chunks": (400, 3), "config": {"write_empty_chunks": True}, **options}
    array = group.create_array("X", shape=X.shape, dtype=dtype, **how)
    array[:] = X.astype(dtype)
    return array[:]


@pytest.mark.parametrize("options", STORES.values(), ids=STORES)
def test_what_zarr_reads_is_read(tmp_path, options):
    place = tmp_path / "data"
    values = write(LocalStore(place), **options)
    dataset = pickle.loads(pickle.dumps(open_dataset(place, y=None)))
    np.testing.assert_array_equal(dataset.read(Block(0, 0, N)).X, values)
    np.testing.assert_array_equal(
        dataset.take([N - 1, 401, 1]).X, values[[N - 1, 401, 1]]
    )


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_long_texts_that_compress_well_are_read(zarr_format):
    texts = np.array([f"https://example.org/{i % 7:072d}" for i in range(30_000)])
    array = zarr.create_group("data", zarr_format=zarr_format).create_array(
        "id", shape=texts.shape, dtype=str, chunks=texts.shape
    )
    array[:] = texts.astype("T")
    assert open_column("data", "id").take([29_999, 3]).tolist() == [
        texts[29_999],
        texts[3],
    ]
