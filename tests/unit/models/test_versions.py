import dataclasses
import os
import shutil
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from rff_dist import __version__
from rff_dist.errors import (
    ConflictError,
    IntegrityError,
    InvalidParameterError,
    NoSuchVersionError,
    OutputExistsError,
    StorageError,
)
from rff_dist.models.versions import RegisteredModel
from rff_dist.storage import locations
from rff_dist.storage.locations import parse_location
from rff_dist.storage.records import (
    Pointer,
    read_pointer,
    read_record,
    swap_pointer,
    write_record,
)
from tests.bits import flipped
from tests.refusals import refuses
from tests.versions import keep_publishing, publish, whole

STORES = ["file", pytest.param("s3", marks=pytest.mark.s3)]
every_store = pytest.mark.parametrize("url", STORES, indirect=True)


@pytest.fixture(params=STORES[:1])
def url(request, tmp_path):
    """Return the folder of a model that is not there yet, `models/prices`."""
    if request.param == "s3":
        return f"{request.getfixturevalue('server').url(uuid.uuid4().hex)}/prices"
    return str(tmp_path / "models/prices")


def write_empty(place):
    write_record(place, kind="test", metadata={}, arrays={})


def published(url, *numbers, **options):
    """Publish versions, and return their model."""
    for number in numbers:
        publish(url, number, **options)
    return RegisteredModel(url)


def numbers(url):
    return [version.number for version in RegisteredModel(url).versions()]


# -- publishing, promoting, rolling back
# --------------------------------------------------------------------


@every_store
def test_a_reader_of_the_models_folder_gets_the_version_published_last(url):
    for i in (1, 2, 3):
        assert publish(url, i).number == i
        assert whole(read_record(url)) == i
    assert [whole(read_record(f"{url}/versions/{i}")) for i in (1, 2, 3)] == [1, 2, 3]


def test_a_version_tells_what_it_was_made_of(url):
    publish(url, 1, reason="the first")
    publish(url, 2)
    first, second = RegisteredModel(url).versions()
    facts = (first.number, first.parent, first.reason, first.kind, first.digest)
    assert facts == (1, None, "the first", "test", "1")
    assert (second.parent, second.lineage["parent"], second.lineage["n_samples"]) == (
        1,
        1,
        20,
    )
    assert second.lineage["code_version"] == __version__
    assert second == RegisteredModel(url).current() == RegisteredModel(url).version(2)


def test_secrets_of_the_datas_url_are_not_stored(tmp_path):
    model = RegisteredModel(tmp_path / "m")
    model.publish(
        write_empty, lineage={"data": "https://user:secret@host/data.zarr?token=secret"}
    )
    stored = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert "secret" not in stored
    assert model.versions()[0].lineage["data"] == "https://***@host/data.zarr?***"


def test_a_version_that_is_not_promoted_waits(url):
    publish(url, 1)
    model = published(url, 2, promote=False)
    assert numbers(url) == [1, 2]
    assert whole(read_record(url)) == 1
    model.promote(2, reason="by hand")
    assert whole(read_record(url)) == 2
    found = model.pointer()
    assert found == Pointer(2, (1,), found.promoted, "by hand")


def test_a_model_of_which_no_version_is_current_cannot_be_read(url):
    assert published(url, 1, promote=False).current() is None
    # only a file system tells a folder without a current version from none
    with pytest.raises(
        StorageError, match="nothing is there" if "://" in url else "is current"
    ):
        read_record(url)


def test_rolling_back_twice_goes_back_two_versions_and_then_there_is_nothing(url):
    model = published(url, 1, 2, 3)
    assert [model.rollback().number, whole(read_record(url))] == [2, 2]
    assert [model.rollback(reason="worse").number, whole(read_record(url))] == [1, 1]
    assert model.pointer().reason == "worse"
    with refuses(NoSuchVersionError, "nothing to roll back to"):
        model.rollback()
    assert whole(read_record(url)) == 1
    assert publish(url, 4).parent == 1
    assert model.rollback().number == 1


def test_promoting_the_current_version_again_is_no_step_to_roll_back(url):
    model = published(url, 1, 2)
    model.promote(2)
    assert model.rollback().number == 1


def test_what_is_not_there_is_refused_by_name(url):
    model = RegisteredModel(url)
    assert model.versions() == []
    with refuses(NoSuchVersionError, "version 1"):
        model.promote(1)
    with refuses(NoSuchVersionError, "nothing to roll back"):
        model.rollback()
    publish(url, 1)
    with refuses(NoSuchVersionError, "version 7", "1"):
        model.promote(7)


# -- what must not be replaced
# ------------------------------------------------------------------------------


@every_store
@pytest.mark.parametrize("overwrite", [False, True])
def test_neither_a_registered_model_nor_a_version_is_overwritten(url, overwrite):
    publish(url, 1)
    published = "never replaced" if overwrite else "exists already"
    for place, said in (
        (url, "keeps all of its versions"),
        (f"{url}/versions/1", published),
    ):
        with refuses(OutputExistsError, said):
            write_record(
                place, kind="test", metadata={}, arrays={}, overwrite=overwrite
            )
    assert whole(read_record(url)) == 1


def test_a_model_is_not_published_inside_the_data_it_reads(tmp_path):
    data = tmp_path / "data.zarr"
    with refuses(StorageError, "overlap"):
        RegisteredModel(data / "model").check(inputs=[parse_location(data)])


def test_a_version_that_cannot_be_written_is_none(url):
    publish(url, 1)

    def fail(place):
        write_record(place, kind="test", metadata={}, arrays={"a": np.ones(3)})
        raise OSError("the disk is full")

    with refuses(OSError, "the disk is full"):
        RegisteredModel(url).publish(fail, lineage={})
    assert numbers(url) == [1]
    assert publish(url, 3).number == 3
    with refuses(InvalidParameterError, "JSON"):
        RegisteredModel(url).publish(fail, lineage={"n_samples": np.ones(3)})


@pytest.mark.s3
def test_a_write_whose_answer_was_lost_is_done_once(server):
    url = server.url("models/lost")
    publish(url, 1)
    for number, path in ((2, "versions/2/zarr.json"), (3, "current.json")):
        server.fail(1, status=-1, method="PUT", path=path)
        assert publish(url, number).number == number
    assert (numbers(url), RegisteredModel(url).pointer().previous) == (
        [1, 2, 3],
        (1, 2),
    )


@pytest.mark.s3
def test_a_refused_write_leaves_the_old_version_current_and_can_be_repeated(server):
    url = server.url("models/refused")
    publish(url, 1)
    for path, left in (
        ("/a/c/", [1]),
        ("zarr.json", [1]),
        ("current.json", [1, 3]),  # 2 was begun
    ):
        server.fail(1, status=403, method="PUT", path=path)
        with pytest.raises(StorageError, match=r"403|Forbidden|Permission"):
            publish(url, 2)
        assert (numbers(url), whole(read_record(url))) == (left, 1)
    assert publish(url, 3).parent == 1
    assert whole(read_record(url)) == 3


# -- removing
# --------------------------------------------------------------------------------------


@every_store
def test_pruning_keeps_the_newest_the_current_and_the_one_before(url, monkeypatch):
    model = published(url, *range(1, 7), promote=False)
    for number in (1, 3, 2):
        model.promote(number)
    # times are stored in seconds
    monkeypatch.setattr("rff_dist.models.versions._YOUNG", timedelta(seconds=-2))
    assert model.prune(2) == [1, 4]
    assert numbers(url) == [2, 3, 5, 6]
    assert whole(read_record(url)) == 2
    assert model.rollback().number == 3
    with refuses(NoSuchVersionError, "nothing to roll back to"):
        model.rollback()  # version 1 was removed
    assert publish(url, 7).number == 7  # a number is never used again
    with refuses(InvalidParameterError, "keep", "0"):
        model.prune(0)


@every_store
def test_versions_that_were_rolled_back_are_pruned_once_a_newer_one_is_current(url):
    model = published(url, 1, 2, 3, 4)
    for _ in range(3):
        model.rollback()
    assert model.prune(1) == []  # updates leave out the rows that these added
    publish(url, 5)
    assert model.prune(1) == [2, 3, 4]
    publish(url, 6)
    assert model.prune(1) == [1]
    assert model.pointer().previous == (5,)


def test_a_version_that_waits_to_be_promoted_is_not_removed_at_once(url):
    publish(url, 1, promote=False)
    model = published(url, 2, 3)
    assert model.prune(1) == []
    assert model.promote(1).number == 1


def test_a_version_that_is_being_removed_cannot_become_current(url):
    model = published(url, 1, 2, 3)
    location = parse_location(url)
    pointer, tagged = read_pointer(location)
    swap_pointer(
        location,
        dataclasses.replace(pointer, previous=(), removed=(1, 2)),
        expected=tagged,
    )
    with refuses(NoSuchVersionError, "version 2"):
        model.promote(2)
    with refuses(NoSuchVersionError, "nothing to roll back to"):
        model.rollback()
    assert model.prune(9) == []  # finishes what a dead `prune` began
    assert numbers(url) == [3]
    with refuses(NoSuchVersionError, "version 2"):
        model.promote(2)


def test_pruning_removes_what_publishers_left_who_died_a_day_ago(tmp_path):
    url = str(tmp_path / "m")
    now = time.time()
    publish(url, 1)
    # when its record was there, and no lineage yet
    for number, died in ((2, now - 25 * 3600), (3, now)):
        write_record(f"{url}/versions/{number}", kind="test", metadata={}, arrays={})
        os.utime(f"{url}/versions/{number}", (died, died))
    publish(url, 4)
    assert numbers(url) == [1, 4]
    assert RegisteredModel(url).prune(9) == []
    assert sorted(os.listdir(tmp_path / "m/versions")) == ["1", "3", "4"]


# -- damage
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["current.json", "versions/1/zarr.json"])
def test_every_flipped_byte_of_the_documents_is_noticed(tmp_path, name):
    url = str(tmp_path / "m")
    publish(url, 1)
    path = tmp_path / "m" / name
    content = path.read_bytes()
    for i in range(0, len(content), 7):
        path.write_bytes(flipped(content, 8 * i + 2))
        with refuses(IntegrityError, Path(name).name):
            RegisteredModel(url).current()
    path.write_bytes(content[: len(content) // 2])
    with refuses(IntegrityError, "Restore it"):
        RegisteredModel(url).current()


@pytest.mark.faults("F9")
def test_a_record_in_the_place_of_another_version_is_noticed(tmp_path):
    url = str(tmp_path / "m")
    model = published(url, 1, 2)
    shutil.rmtree(tmp_path / "m/versions/1")
    shutil.copytree(tmp_path / "m/versions/2", tmp_path / "m/versions/1")
    with refuses(IntegrityError, "version 2"):
        model.version(1)
    shutil.rmtree(tmp_path / "m/versions/1")
    assert numbers(url) == [2]


def test_a_version_that_is_being_written_is_not_taken_for_a_lost_one(url):
    publish(url, 1)

    def write(place):
        write_empty(place)
        assert numbers(url) == [1]

    assert RegisteredModel(url).publish(write, lineage={}).number == 2


# -- at the same time
# --------------------------------------------------------------------------------------


@every_store
def test_publishers_at_once_get_a_number_each_and_no_promotion_is_lost(url):
    with ThreadPoolExecutor(8) as pool:
        versions = list(pool.map(lambda i: publish(url, i), range(1, 7)))
    assert sorted(version.number for version in versions) == list(range(1, 7))
    assert {v.number: v.digest for v in versions} == {
        v.number: v.digest for v in RegisteredModel(url).versions()
    }
    pointer = RegisteredModel(url).pointer()
    assert sorted([*pointer.previous, pointer.number]) == list(range(1, 7))


def test_a_first_version_that_becomes_current_meanwhile_is_no_stranger(
    tmp_path, monkeypatch
):
    url = str(tmp_path / "m")
    real = locations.list_names
    publish(url, 1, promote=False)

    def list_later(location):
        if RegisteredModel(url).pointer() is None:
            RegisteredModel(url).promote(1)
        return real(location)

    monkeypatch.setattr(locations, "list_names", list_later)
    assert publish(url, 2).number == 2


def test_a_pointer_that_was_changed_meanwhile_is_not_replaced(url):
    published(url, 1, 2)
    location = parse_location(url)
    _, tagged = read_pointer(location)
    publish(url, 3)
    with refuses(ConflictError, "meanwhile"):
        swap_pointer(location, Pointer(1, (), "", ""), expected=tagged)
    assert whole(read_record(url)) == 3


@pytest.mark.parametrize("n_versions", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_a_reader_always_gets_a_whole_version_while_others_publish_promote_and_prune(
    tmp_path, project_root, n_versions
):
    url = str(tmp_path / "m")
    publish(url, 0)
    script = (
        "import sys; from tests.versions import *; keep_publishing(sys.argv[1],"
        f" {n_versions})"
    )
    seen = []
    with (
        ThreadPoolExecutor(1) as pool,
        subprocess.Popen(
            [sys.executable, "-c", script, url], cwd=project_root
        ) as process,
    ):
        here = pool.submit(keep_publishing, url, n_versions)
        while process.poll() is None or not here.done():
            seen.append(whole(read_record(url)))
    assert (process.returncode, here.exception()) == (0, None)
    assert len(set(seen)) > 3
    assert numbers(url)[-1] == 1 + 2 * n_versions
