"""One run at a time holds a folder, whoever else tries; elsewhere the one that
publishes first wins.
"""

import contextlib
import contextvars
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rff_dist.errors import OutputBusyError, StorageError
from rff_dist.storage import output_places
from rff_dist.storage.locations import parse_location
from rff_dist.storage.output_places import check_held, hold
from rff_dist.storage.records import read_record, write_record
from rff_dist.storage.writing import write_dataset
from tests.versions import publish


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "new/model")


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.s3)])
def stored(request, tmp_path):
    """Return a place that has no lock."""
    return request.getfixturevalue("server").url(f"{tmp_path.name}/model")


def as_another_run(action, *given):
    """Call in a context that holds nothing."""
    return contextvars.Context().run(action, *given)


def try_to_hold(place):
    """Return what another run gets: the place, or the error."""

    def once():
        try:
            with hold(place, holder="a rival"):
                return "held"
        except OutputBusyError as error:
            return error

    return as_another_run(once)


def lock_of(place):
    return Path(place).with_name(f".{Path(place).name}.lock")


# -- one writer at a time
# ------------------------------------------------------------------------------


@pytest.mark.faults("F16")
def test_a_second_writer_is_refused_with_holder_and_age(place):
    with hold(place, holder="flow run amber-lynx"):
        refused = try_to_hold(place)
    assert isinstance(refused, OutputBusyError)
    assert isinstance(refused, StorageError)
    assert isinstance(refused, BlockingIOError)
    assert str(refused).startswith(
        f"another run is writing {place}: flow run amber-lynx, process {os.getpid()}"
    )
    assert ", for 0 s" in str(refused)


def test_a_lease_ends_with_its_context_also_after_an_error(place):
    with pytest.raises(ZeroDivisionError), hold(place, holder="one"):
        _ = 1 // 0
    assert not lock_of(place).exists()
    assert try_to_hold(place) == "held"


def test_who_gets_a_local_lease_removes_what_killed_writers_left(tmp_path):
    for name in (
        ".model.partial-0123",
        ".model.rows-0123",
        ".model2.partial-0123",
        ".model.run-0123",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("half")
    with hold("model", holder="one"):
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {".model.lock", ".model2.partial-0123", ".model.run-0123"}
    (tmp_path / ".data.partial-0123").mkdir()
    write_dataset("data", np.zeros((3, 1)))
    assert not (tmp_path / ".data.partial-0123").exists()


def test_who_tries_a_place_meets_another_run_that_tidies_there(tmp_path, monkeypatch):
    place = str(tmp_path / "model")

    def made_and_tidied(path):
        monkeypatch.undo()
        os.mkdir(path)
        assert try_to_hold(place) == "held"
        assert not path.exists()

    monkeypatch.setattr(os, "mkdir", made_and_tidied)
    output_places.try_writing(parse_location(place))


def test_a_step_of_a_run_that_holds_a_lease_gets_the_same_one(place):
    with hold(place, holder="flow"):
        with hold(place, holder="task"):
            check_held(parse_location(place))
        check_held(parse_location(place))  # the inner one has not given it back
        assert "flow" in str(try_to_hold(place))
    assert not lock_of(place).exists()


def test_a_place_that_cannot_be_written_is_an_error_of_storage(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/model cannot be locked"):
        hold("file/model", holder="one").__enter__()


# -- holders that died
# -----------------------------------------------------------------------------------


HOLDER = """
import sys, time; from rff_dist.storage.output_places import hold
with hold(sys.argv[1], holder='to be killed'):
    print('held', flush=True); time.sleep(600)
"""


@pytest.mark.faults("F5", "F16")
def test_the_lease_of_a_killed_process_is_free_at_once_whatever_clocks_say(tmp_path):
    model = tmp_path / "model"
    command = [sys.executable, "-c", HOLDER, str(model)]
    popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with popen as process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)  # also if an assertion fails
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        os.utime(lock_of(model), (time.time() + 10**6,) * 2)
        assert "to be killed" in str(try_to_hold(str(model)))
        process.send_signal(signal.SIGSTOP)
        assert "to be killed" in str(try_to_hold(str(model)))
        process.send_signal(signal.SIGKILL)
    with hold(model, holder="next"):
        assert lock_of(model).read_text().startswith(f"next, process {os.getpid()} on ")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_somebody_removed_holds_no_more(tmp_path):
    location = parse_location("model")
    with hold(location, holder="one"):
        check_held(location)
        lock_of(tmp_path / "model").unlink()
        assert try_to_hold("model") == "held"
        with pytest.raises(OutputBusyError, match="may no longer write"):
            check_held(location)


# -- places without locks
# ----------------------------------------------------------------------------------


def write(place, i):
    write_record(
        place,
        kind="test",
        metadata={"i": i},
        arrays={"a": np.full(3, i)},
        overwrite=True,
    )


@pytest.mark.faults("F16")
@pytest.mark.parametrize("before", [False, True])
def test_of_two_runs_the_one_that_publishes_first_wins_and_the_other_is_told(
    stored, before
):
    if before:
        write(stored, 0)
    with hold(stored, holder="one"):
        check_held(parse_location(stored))
        as_another_run(write, stored, 1)
        with pytest.raises(OutputBusyError, match="may no longer write"):
            write(stored, 2)
    assert read_record(stored).metadata == {"i": 1}


def test_a_run_may_publish_again_what_it_has_published_itself(stored):
    with hold(stored, holder="one"):
        for i in range(3):
            write(stored, i)
    assert read_record(stored).metadata == {"i": 2}


def test_a_version_published_meanwhile_stays_the_current_one(stored):
    with hold(stored, holder="one"):
        as_another_run(publish, stored, 1)
        with pytest.raises(OutputBusyError, match="may no longer write"):
            publish(stored, 2)
    assert read_record(stored).metadata == {"digest": "1"}
    assert publish(stored, 3).number == 2  # of the refused one nothing is left


# -- whatever the order
# ----------------------------------------------------------------------------------


def test_of_many_that_take_and_release_a_lock_one_holds_it_at_a_time(tmp_path):
    """Each release removes the file, so another file may be locked at the same
    moment.
    """
    now = 0
    most = 0
    in_total = 0

    def run(_):
        nonlocal now, most, in_total
        for _ in range(200):
            place = output_places._lock_output(parse_location("model"), "one")
            with contextlib.suppress(OutputBusyError), place:
                now = now + 1
                in_total = in_total + 1
                most = max(most, now)
                time.sleep(0)
                now -= 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert most == 1
    assert in_total > 4
    assert list(tmp_path.iterdir()) == []
