"""Damage to what we write is noticed: damaged bytes, swapped chunks and changed
metadata.
"""

import json
from types import SimpleNamespace

import icechunk
import numpy as np
import pytest
import zarr
from numpy.testing import assert_array_equal

from rff_dist.errors import IntegrityError
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.columns import open_column
from rff_dist.storage.datasets import list_arrays, open_dataset
from rff_dist.storage.writing import write_dataset
from tests.tables import all_rows
from tools import flips

# large enough that Icechunk keeps chunks in files of their own
N = 100
CHUNK = 40


def draw(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)), rng.standard_normal(n)


def read(url):
    return all_rows(open_dataset(url))


@pytest.fixture(params=[False, True])
def url(tmp_path, request):
    groups = np.arange(N) % 5
    write_dataset(
        "d",
        *draw(N),
        groups=groups,
        chunk_rows=CHUNK,
        versioned=request.param,
    )
    return tmp_path / "d"


def chunks(url):
    """Return the files of the chunks of X, all of one size."""
    paths = [
        path
        for path in url.rglob("*")
        if path.is_file() and path.stat().st_size == CHUNK * 16 + 4
    ]
    return sorted(paths)[:2]


def replaced(snapshot, **changes):
    members = {
        name: getattr(snapshot, name)
        for name in ("id", "parent_id", "message", "written_at", "metadata")
    }
    return SimpleNamespace(**members | changes)


def with_facts(snapshot, **changes):
    changes = {f"rff_dist.{name}": value for name, value in changes.items()}
    facts = {
        name: value
        for name, value in {**snapshot.metadata, **changes}.items()
        if value is not None
    }
    return replaced(snapshot, metadata=facts)


# of Icechunk's list of snapshots, the newest first
DAMAGES = {
    "another": lambda last, one, *others: [last, replaced(one, id="0" * 20), *others],
    "left out": lambda last, one, *others: [last, *others],
    "cut off": lambda last, *others: [last, others[-1]],
    "dated back": lambda last, one, *others: [
        last,
        with_facts(one, written="2020-01-01T00:00Z"),
        *others,
    ],
    "unsigned": lambda last, one, *others: [
        last,
        with_facts(one, digest=None),
        *others,
    ],
    "without facts": lambda last, *others: [replaced(last, metadata={}), *others],
    "an orphan": lambda last, *others: [replaced(last, parent_id=None)],
}


@pytest.mark.faults("F9")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_history_that_is_damaged_is_noticed(tmp_path, monkeypatch, damage):
    """The damage is in Icechunk's list of snapshots, which has no checksum."""
    url = tmp_path / "d"
    write_dataset(url, *draw(N), chunk_rows=CHUNK, versioned=True)
    for _ in range(2):
        append_dataset(url, *draw(3))
    assert len(flips.history_of(url)) == 3
    real = icechunk.Repository.ancestry
    monkeypatch.setattr(
        icechunk.Repository,
        "ancestry",
        lambda *given, **named: iter(damage(*real(*given, **named))),
    )
    with pytest.raises(IntegrityError, match="not as it was written"):
        flips.history_of(url)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_a_repository_with_commits_of_another_program_is_read(tmp_path, spec_version):
    """Their facts may have the names of this package's, which mean nothing there."""
    url = tmp_path / "d"
    metadata = {
        "digest": "a",
        "sha256": "b",
        "written": "by Bob",
        "version": "7",
    }
    storage = icechunk.local_filesystem_storage(str(url))
    repository = icechunk.Repository.create(storage, spec_version=spec_version)
    session = repository.writable_session("main")
    X = np.arange(6.0).reshape(3, 2)
    zarr.create_group(session.store).create_array("X", data=X)
    first = session.commit("by hand", metadata=metadata)
    repository.create_branch("dev", first)
    session = repository.writable_session("dev")
    zarr.open_group(session.store, mode="r+").create_array("Z", data=-X)
    second = session.commit("elsewhere")
    opened = open_dataset(url)
    assert opened.version == first
    assert_array_equal(opened.take([2, 0]).X, X[[2, 0]])
    assert_array_equal(open_dataset(url, x="Z", version=second).take([1]).X, -X[[1]])
    [entry] = flips.history_of(url)
    assert (entry["version"], entry["message"], entry["metadata"]) == (
        first,
        "by hand",
        metadata,
    )


@pytest.mark.faults("F9")
@pytest.mark.parametrize(
    ("name", "look"),
    [("y", open_dataset), ("groups", lambda url: open_column(url, "groups"))],
)
def test_an_array_whose_metadata_are_gone_is_missed(tmp_path, name, look):
    write_dataset("d", *draw(N), groups=np.arange(N), chunk_rows=CHUNK)
    (tmp_path / "d" / name / "zarr.json").unlink()
    for missing in (look, list_arrays):
        with pytest.raises(
            IntegrityError,
            match=rf"metadata of array '{name}'.*not as they were written",
        ):
            missing(tmp_path / "d")


def test_chunks_that_changed_places_are_noticed_by_each_reader(url):
    first, second = chunks(url)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    with pytest.raises(
        IntegrityError, match=r"array 'X'.*rows \d+:\d+ \(chunk \d\).*not the chunk"
    ):
        read(url)
    with pytest.raises(IntegrityError, match="not the chunk"):
        open_dataset(url).take(np.arange(N))


@pytest.mark.parametrize("key", ["n_samples", "chunk_rows", "state", "sha256"])
def test_a_manifest_that_says_something_else_is_noticed(tmp_path, key):
    write_dataset("d", *draw(N), chunk_rows=CHUNK)
    path = tmp_path / "d" / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["rff_dist"][key] = 50
    path.write_text(json.dumps(document))
    with pytest.raises(IntegrityError, match=r"zarr\.json"):
        read("d")


def test_a_group_that_lost_its_manifest_is_no_data_of_others(tmp_path):
    write_dataset("d", *draw(N), groups=np.arange(N), chunk_rows=CHUNK)
    path = tmp_path / "d" / "zarr.json"
    path.write_text(path.read_text().replace('"rff_dist"', '"rff_dist2"'))
    for read_it in (read, lambda url: open_column(url, "groups")):
        with pytest.raises(IntegrityError, match="or of its group"):
            read_it(tmp_path / "d")


def test_a_manifest_that_lost_its_digest_is_noticed(tmp_path):
    write_dataset("d", *draw(N), chunk_rows=CHUNK)
    path = tmp_path / "d" / "zarr.json"
    path.write_text(path.read_text().replace('"digest"', '"eigest"'))
    with pytest.raises(IntegrityError, match=r"zarr\.json"):
        read("d")
