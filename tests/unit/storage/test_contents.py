import numcodecs
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from rff_dist.storage.datasets import list_arrays


def write(path, zarr_format=3, **options):
    group = zarr.create_group(path, zarr_format=zarr_format)
    group.create_array("X", shape=(4, 2), chunks=(2, 2), dtype="f4", **options)
    return list_arrays(path)[1]["X"]


@pytest.mark.parametrize(
    ("compressors", "checksum"),
    [
        ([Crc32cCodec()], "crc32c"),
        ([GzipCodec()], "gzip"),
        ([ZstdCodec(checksum=True)], "zstd"),
        ([ZstdCodec(checksum=False)], None),
        ([BloscCodec()], None),
        ([BloscCodec(), Crc32cCodec()], "crc32c"),
        (None, None),
    ],
)
def test_a_codec_with_a_checksum_is_found(compressors, checksum):
    assert write("data", compressors=compressors).checksum == checksum


def test_the_checksum_of_a_shards_index_does_not_count_for_its_chunks():
    plain = write("plain", shards=(4, 2), compressors=None)
    assert "crc32c" in plain.codecs
    assert plain.checksum is None
    assert (
        write("checked", shards=(4, 2), compressors=[Crc32cCodec()]).checksum
        == "crc32c"
    )


@pytest.mark.parametrize(
    ("codec", "checksum"), [(numcodecs.Zlib(), "zlib"), (numcodecs.LZ4(), None)]
)
def test_checksums_of_zarr_format_2_are_found(codec, checksum):
    assert write("data", zarr_format=2, compressors=[codec]).checksum == checksum
