"""Plain Zarr of others: damage is noticed where there is a seal."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr

from rff_dist.data.blocks import Block
from rff_dist.errors import IntegrityError
from rff_dist.storage.contents import list_arrays
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.seal import SEAL
from rff_dist.storage.writing import write_dataset
from tests.command_line import document, refusal

N = 60


@pytest.fixture(params=["v2", "v3", "sharded"])
def data(tmp_path, request):
    """Write Zarr as others do: no checksums, no manifest."""
    rng = np.random.default_rng(0)
    group = zarr.create_group(tmp_path / "d", zarr_format=2 if request.param == "v2" else 3)
    shards = {"shards": (20, 3)} if request.param == "sharded" else {}
    group.create_array("X", shape=(N, 3), chunks=(10, 3), dtype="f8", compressors=None, **shards)
    group.create_array("y", shape=(N,), chunks=(10,), dtype="f8", compressors=None)
    group["X"][:] = rng.standard_normal((N, 3))
    group["y"][:] = rng.standard_normal(N)
    return tmp_path / "d"


def read(url):
    rows = open_dataset(url).read(Block(0, 0, N))
    return rows.X.tobytes() + rows.y.tobytes()


def files_of(url):
    return sorted(path for path in url.rglob("*") if path.is_file() and path.name != SEAL)


def flipped(content, rng):
    damaged = bytearray(content)
    damaged[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def test_every_flipped_bit_and_cut_file_is_noticed_by_who_reads_and_by_the_check(data):
    before, found = read(data), document("seal", data)
    assert found["n_files"] == len(files_of(data))
    assert read(data) == before
    assert document("seal", data, "--check")["n_bytes"] == found["n_bytes"]
    assert {one.checksum for one in list_arrays(data)[1]} == {"seal"}
    rng = np.random.default_rng(0)
    for path in files_of(data):
        content = path.read_bytes()
        for other in (flipped(content, rng), content[:-1], b""):
            path.write_bytes(other)
            if path.name != ".zattrs":  # It does not describe the rows, and is read only with other files.
                with pytest.raises(IntegrityError, match="sealed"):
                    read(data)
            assert str(path.relative_to(data)) in refusal(65, "seal", data, "--check")
        path.write_bytes(content)
    assert read(data) == before


@pytest.mark.parametrize("pipeline", ["BatchedCodecPipeline", "FusedCodecPipeline"])
def test_none_of_zarrs_ways_to_read_goes_round_the_seal(data, pipeline):
    document("seal", data)
    path = max(files_of(data), key=lambda path: path.stat().st_size)
    path.write_bytes(b"\0" * 8 + path.read_bytes()[8:])
    way = zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{pipeline}"})
    with way, pytest.raises(IntegrityError, match="sealed"):
        read(data)


def test_files_that_are_gone_added_or_swapped_are_noticed(data):
    document("seal", data)
    first, second = [path for path in files_of(data) if path.stat().st_size >= 240][:2]
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    with pytest.raises(IntegrityError, match="sealed"):
        read(data)
    first.write_bytes(contents[0])
    second.unlink()
    with pytest.raises(IntegrityError, match="sealed"):
        open_dataset(data, missing_chunks="fill").read(Block(0, 0, N))
    assert "is missing" in refusal(65, "seal", data, "--check")
    second.write_bytes(contents[1])
    (data / "more").write_bytes(b"x")
    assert "more was added" in refusal(65, "seal", data, "--check")


def test_sealing_again_takes_a_change_that_was_meant(data):
    document("seal", data)
    zarr.open_group(data, mode="r+")["y"][3] = 7.0
    with pytest.raises(IntegrityError, match="rff-dist seal"):
        read(data)
    document("seal", data)
    assert open_dataset(data).read(Block(0, 0, N)).y[3] == 7.0


def test_a_seal_that_is_damaged_or_hostile_is_an_error(data):
    document("seal", data)
    path = data / SEAL
    text = path.read_text()
    for bad in (text[:-20], text.replace('"files"', '"filez"'), "[]", "", json.dumps({"files": {"a": "b"}})):
        path.write_text(bad)
        with pytest.raises(IntegrityError):
            read(data)


def test_what_is_not_sealed_is_said(tmp_path, data):
    assert "no seal" in refusal(65, "seal", data, "--check")
    assert "nothing is there" in refusal(65, "seal", tmp_path / "none")
    write_dataset(tmp_path / "v", np.ones((9, 2)), np.ones(9), versioned=True)
    assert "keeps versions" in refusal(65, "seal", tmp_path / "v")
