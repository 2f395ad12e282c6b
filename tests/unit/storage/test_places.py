"""Places: what a path or URL means, what links lead to, and what failures leave."""

import os
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr
from numpy.testing import assert_array_equal

from rff_dist import append_dataset, open_dataset, write_dataset
from rff_dist.errors import StorageError
from rff_dist.storage import locations, output_places, repositories
from rff_dist.text import redact, without_secrets

ROWS = np.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "s3://b/a%20b",
            "s3://b/u/../d",
            "s3://b/u/./d",
            "gs://b/x//d",
            "az://b/c\\d",
            "s3://b/d ",
            "s3://b/c\nd",
        ),
        *(
            "s3://b/run#1",
            "s3://b/run?x",
            "https://h/a b",
            "https://h/ä",
            "https://h/u/../d",
        ),
        *("s3:/b/d", Path("s3://b/d")),
    ],
)
def test_a_name_that_programs_read_in_different_ways_is_refused(
    url,
):
    with pytest.raises(StorageError):
        locations.parse_location(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/a b/d.zarr",
        "gs://b/ä/d",
        "s3://b/x+y@2/k=v~1",
        "https://h/a%20b",
    ],
)
def test_other_names_are_taken_as_they_are(url):
    assert locations.parse_location(url).url == url


@pytest.mark.parametrize("scheme", ["postgresql", "s3", "https"])
@pytest.mark.parametrize(
    "secret", ["u:pw", "u:p@ss", "u:pa/ss", "u:p?a#s/s@", "token", "u:/@/@"]
)
def test_no_part_of_a_password_is_shown(scheme, secret):
    url = f"{scheme}://{secret}@host/db"
    assert redact(url) == f"{scheme}://***@host/db"
    assert (
        without_secrets(f"no answer from '{url}' at noon")
        == f"no answer from '{scheme}://***@host/db' at noon"
    )


def test_names_with_signs_of_credentials_are_shown():
    for url in (
        "s3://bucket/a@b/c:d",
        "https://host:8080/x",
        "/local/u:p@x",
        "sqlite:///a@b.db",
    ):
        assert redact(url) == url


def _linked_group(folder):
    """Write X in a folder of its own, to which a link in a group leads."""
    group = zarr.create_group(folder / "p.zarr")
    zarr.create_array(folder / "X", data=ROWS, chunks=(2, 2))
    group.create_array("y", data=ROWS[:, 0])
    (folder / "p.zarr/X").symlink_to(folder / "X")
    (folder / "p.zarr/loop").symlink_to(folder / "p.zarr")
    return folder / "p.zarr"


def test_chunks_behind_links_are_part_of_what_was_opened(tmp_path):
    opened = open_dataset(_linked_group(tmp_path))
    key = opened.content_key()
    zarr.open_array("X", mode="r+")[:] = 7.0
    with pytest.raises(StorageError):
        opened.check_unchanged()
    assert open_dataset("p.zarr").content_key() != key
    zarr.create_array("other", data=ROWS + 7, chunks=(2, 2))
    key = open_dataset("p.zarr").content_key()
    (tmp_path / "p.zarr/X").unlink()
    (tmp_path / "p.zarr/X").symlink_to(tmp_path / "other")
    assert open_dataset("p.zarr").content_key() != key


def test_what_replaces_a_linked_dataset_is_where_the_link_leads(tmp_path):
    (tmp_path / "disk").mkdir()
    write_dataset("disk/real.zarr", np.zeros((6, 2)))
    (tmp_path / "out.zarr").symlink_to(tmp_path / "disk/real.zarr")
    write_dataset("out.zarr", ROWS, overwrite=True)
    assert (tmp_path / "out.zarr").is_symlink()
    assert sorted(os.listdir(tmp_path / "disk")) == ["real.zarr"]
    assert_array_equal(open_dataset("disk/real.zarr").X[:], ROWS)
    # one lock by both names
    with output_places.hold("out.zarr", holder="a test"):
        assert (tmp_path / "disk/.real.zarr.lock").exists()


@pytest.mark.parametrize("is_link", [True, False])
def test_a_lock_leaves_files_of_others_alone(tmp_path, is_link):
    theirs = tmp_path / "theirs.txt"
    lock = tmp_path / ".out.zarr.lock"
    theirs.write_text("theirs")
    lock.symlink_to(theirs) if is_link else lock.hardlink_to(theirs)
    with pytest.raises(StorageError, match=r"\.out\.zarr\.lock"):
        write_dataset("out.zarr", ROWS)
    assert theirs.read_text() == "theirs"
    assert lock.exists()


class TestAppends:
    def test_one_that_fails_leaves_no_file(self, tmp_path):
        place = tmp_path / "v"
        write_dataset(place, ROWS, versioned=True, chunk_rows=2)
        append_dataset(place, ROWS)
        location = locations.parse_location(place)
        last, first = (snapshot.id for snapshot in repositories.read_history(location))
        repositories.roll_back(location, first)
        before = {path for path in place.rglob("*") if path.is_file()}

        def batches():
            yield ROWS
            raise RuntimeError("the source failed")

        with pytest.raises(RuntimeError):
            append_dataset(place, batches())
        assert {path for path in place.rglob("*") if path.is_file()} == before
        # from before the rollback
        assert open_dataset(place, version=last).n_samples == 12
        append_dataset(place, ROWS)
        assert open_dataset(place).n_samples == 12

    def test_a_commit_of_another_program_keeps_its_files(self):
        place = locations.parse_location("v")
        write_dataset("v", ROWS, versioned=True)
        repository = icechunk.Repository.open(
            icechunk.local_filesystem_storage(place.path)
        )
        with repositories.changing(place) as change:
            session = repository.writable_session("main")
            zarr.open_group(session.store, mode="r+")["X"][:] = ROWS + 1
            version = session.commit("another program")
            zarr.open_group(change.store, mode="r+")["X"][:] = ROWS + 2
        stored = zarr.open_group(
            repository.readonly_session(snapshot_id=version).store, mode="r"
        )
        assert_array_equal(stored["X"][:], ROWS + 1)

    def test_a_full_disk_asks_for_space(self):
        error = OSError(
            "unable to copy data to file: No space left on device (os error 28)"
        )
        assert "space" in locations.writing_advice(RuntimeError(str(error)))
