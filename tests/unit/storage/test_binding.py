"""Damage to what we write is noticed: bytes, chunks in each other's place, and metadata."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rff_dist.data.blocks import Block
from rff_dist.errors import IntegrityError
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.columns import open_column
from rff_dist.storage.corrections import delete_rows, replace_rows
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.writing import write_dataset
from tests import flips

N, CHUNK = 100, 40  # chunks that Icechunk keeps in files of their own


def draw(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)), rng.standard_normal(n)


def read(url):
    dataset = open_dataset(url)
    return dataset.read(Block(0, 0, dataset.n_samples))


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    return flips.write_subjects(tmp_path_factory.mktemp("flips"))


@pytest.mark.parametrize("name", ["plain", "versioned", "model", "predictions"])
def test_a_few_damages_of_each_kind_of_file_are_noticed(subjects, name):
    found = list(flips.try_damages(name, subjects[name], 3))
    assert [one for one in found if one[2] not in ("error", "same")] == []
    assert sum(one[2] == "error" for one in found) > len(found) / 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "versioned", "model", "predictions"])
def test_300_flips_in_each_kind_of_file_are_noticed(subjects, name):
    found = flips.try_damages(name, subjects[name], 300)
    assert [one for one in found if one[2] not in ("error", "same")] == []


@pytest.fixture(params=[False, True], ids=["plain", "versioned"])
def url(tmp_path, request):
    groups = np.arange(N) % 5
    write_dataset(tmp_path / "d", *draw(N), groups=groups, chunk_rows=CHUNK, versioned=request.param)
    return tmp_path / "d"


def chunks(url):
    """Return the files of the chunks of X, all of one size."""
    paths = [path for path in url.rglob("*") if path.is_file() and path.stat().st_size == CHUNK * 16 + 4]
    return sorted(paths)[:2]


def test_chunks_that_changed_places_are_noticed_by_each_reader(url):
    first, second = chunks(url)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    with pytest.raises(IntegrityError, match=r"array 'X'.*rows \d+:\d+ \(chunk \d\).*not the chunk"):
        read(url)
    with pytest.raises(IntegrityError, match="not the chunk"):
        open_dataset(url).take(np.arange(N))


def test_changes_keep_what_binds(tmp_path):
    url, (X, y) = tmp_path / "d", draw(N)
    write_dataset(url, X, y, chunk_rows=CHUNK, versioned=True)
    new = draw(30, 1)
    append_dataset(url, *new)
    replace_rows(url, [3, 77], *draw(2, 2))
    delete_rows(url, [0, 50, 129])
    delete_rows(url, [5], keep_order=True)
    X, y = (np.concatenate(pair) for pair in zip((X, y), new, strict=True))
    for array, other in zip((X, y), draw(2, 2), strict=True):
        array[[3, 77]] = other
    X, y = (np.delete(_holes(one), 5, axis=0) for one in (X, y))
    np.testing.assert_array_equal(read(url).X, X)
    np.testing.assert_array_equal(read(url).y[:, 0], y)


def _holes(rows):
    """Rows 0, 50 and 129 of 130 deleted: the last ones that stay take the places."""
    rows = rows.copy()
    rows[[0, 50]] = rows[[127, 128]]
    return rows[:127]


@pytest.mark.parametrize("key", ["n_samples", "chunk_rows", "state", "sha256"])
def test_a_manifest_that_says_something_else_is_noticed(tmp_path, key):
    write_dataset(tmp_path / "d", *draw(N), chunk_rows=CHUNK)
    path = tmp_path / "d" / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["rff_dist"][key] = 50
    path.write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match=r"zarr\.json"):
        read(tmp_path / "d")


def test_a_group_that_lost_its_manifest_is_no_data_of_others(tmp_path):
    write_dataset(tmp_path / "d", *draw(N), groups=np.arange(N), chunk_rows=CHUNK)
    path = tmp_path / "d" / "zarr.json"
    path.write_text(path.read_text().replace('"rff_dist"', '"rff_dist2"'))
    for read_it in (read, lambda url: open_column(url, "groups")):
        with pytest.raises(IntegrityError, match="or of its group"):
            read_it(tmp_path / "d")


def test_data_that_were_written_before_are_read(tmp_path):
    write_dataset(tmp_path / "d", *draw(N), chunk_rows=CHUNK)
    for path in (tmp_path / "d").rglob("zarr.json"):
        document = json.loads(path.read_text())
        attributes = document["attributes"]
        if "n_samples" in (attributes.get("rff_dist") or ()):
            for name in ("arrays", "digest", "line"):
                del attributes["rff_dist"][name]
        else:
            attributes.clear()
        path.write_text(json.dumps(document))
    np.testing.assert_array_equal(read(tmp_path / "d").X, draw(N)[0])
