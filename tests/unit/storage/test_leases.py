"""One writer holds a lease at a time, whoever else tries, and the lease of a dead writer ends."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from zarr.storage import ObjectStore

from rff_dist.errors import OutputBusyError, StorageError
from rff_dist.storage import conditional, locations, output_places
from rff_dist.storage.locations import parse_location
from rff_dist.storage.output_places import check_lease, hold
from rff_dist.storage.writing import write_dataset


def make_place(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if kind == "folder":
        return str(tmp_path / "new" / "model")
    if kind == "memory":
        return f"memory://{tmp_path.name}/model"
    new = pytest.importorskip("obstore.store").MemoryStore
    folders: dict[str, Any] = {}

    def open_in_memory(location: Any, *, read_only: bool) -> ObjectStore[Any]:
        return ObjectStore(folders.setdefault(location.url, new()), read_only=read_only)

    monkeypatch.setattr("rff_dist.storage.locations.open_store", open_in_memory)
    return "s3://bucket/model"


@pytest.fixture(params=["folder", "memory", "object store"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return make_place(request.param, tmp_path, monkeypatch)


@pytest.fixture(params=["memory", "object store"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a place whose lease is an object."""
    return make_place(request.param, tmp_path, monkeypatch)


def in_another_thread(action: Callable[[], Any]) -> Any:
    """Call in a context that holds nothing, and return the result or the error."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(action())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return results[0]


def try_to_hold(place: str) -> Any:
    def once() -> str:
        with hold(place, holder="a rival"):
            return "held"

    return in_another_thread(once)


def is_free(place: str) -> bool:
    """Return whether nothing is left of a lease."""
    location = parse_location(place)
    if location.is_local:
        return not lock_of(place).exists()
    return claim_at(place) is None


def lock_of(place: str | Path) -> Path:
    return Path(place).with_name(f".{Path(place).name}.lock")


def store_of(place: str) -> Any:
    return locations.open_store(output_places._folder(parse_location(place)), read_only=False)


def claim_at(place: str) -> bytes | None:
    found = conditional.read_tagged(store_of(place), output_places._KEY, where=place)
    return None if found is None else found.content


def put(place: str, content: bytes) -> None:
    found = conditional.read_tagged(store_of(place), output_places._KEY, where=place)
    assert conditional.replace_bytes(
        store_of(place), output_places._KEY, content, expected=found, where=place
    )


def put_claim(place: str, **changes: Any) -> output_places._Claim:
    claim = replace(output_places._Claim.of_this_process("an earlier run"), **changes)
    put(place, claim.to_bytes())
    return claim


# -- one writer at a time ------------------------------------------------------------------------------


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
    assert is_free(place)
    assert try_to_hold(place) == "held"


def test_nothing_is_left_beside_a_local_output(tmp_path):
    with hold(tmp_path / "model", holder="one"):
        assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]
    assert list(tmp_path.iterdir()) == []


def test_who_gets_a_local_lease_removes_what_killed_writers_left(tmp_path):
    for name in (".model.partial-0123", ".model.rows-0123", ".model2.partial-0123", ".model.run-0123"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("half")
    with hold(tmp_path / "model", holder="one"):
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {".model.lock", ".model2.partial-0123", ".model.run-0123"}
    (tmp_path / ".data.partial-0123").mkdir()
    write_dataset(tmp_path / "data", np.zeros((3, 1)))
    assert not (tmp_path / ".data.partial-0123").exists()


def test_a_step_of_a_run_that_holds_a_lease_gets_the_same_one(place):
    with hold(place, holder="flow"):
        with hold(place, holder="task"):
            check_lease(parse_location(place))
        check_lease(parse_location(place))  # the inner one has not given it back
        assert "flow" in str(try_to_hold(place))
    assert is_free(place)


def test_other_locations_are_free(place):
    with hold(place, holder="one"), hold(place + "-2", holder="one"):
        pass


def test_a_whole_bucket_has_its_lease_inside():
    assert output_places._folder(parse_location("s3://bucket")).url == "s3://bucket/.lease"
    assert output_places._folder(parse_location("s3://bucket/a/model")).url == "s3://bucket/a/.model.lease"


def test_a_place_that_cannot_be_written_is_an_error_of_storage(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"no lease can be kept next to .*file/model"):
        hold(tmp_path / "file" / "model", holder="one").__enter__()


# -- holders that died -----------------------------------------------------------------------------------


HOLDER = """
import sys, time; from rff_dist.storage.output_places import hold
with hold(sys.argv[1], holder='to be killed'):
    print('held', flush=True); time.sleep(600)
"""


@pytest.mark.faults("F5", "F16")
def test_the_lease_of_a_killed_process_is_free_at_once_whatever_clocks_say(tmp_path):
    model = tmp_path / "model"
    command = [sys.executable, "-c", HOLDER, str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
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


def test_a_claim_of_a_dead_process_of_this_machine_is_taken_over_at_once(stored, caplog):
    put_claim(stored, started=1)  # another process has got the number since
    with hold(stored, holder="next"):
        assert json.loads(claim_at(stored))["holder"] == "next"
    assert "is taken over from a run that died: an earlier run" in caplog.text
    assert is_free(stored)


def test_a_claim_that_this_process_could_not_give_back_does_not_keep_it_out(stored, monkeypatch, caplog):
    delete = locations.delete_bytes
    with hold(stored, holder="one"):
        assert isinstance(try_to_hold(stored), OutputBusyError)
        monkeypatch.setattr("rff_dist.storage.locations.delete_bytes", lambda *_: 1 / 0)
    assert "was not given back" in caplog.text
    monkeypatch.setattr("rff_dist.storage.locations.delete_bytes", delete)
    assert not is_free(stored)
    assert try_to_hold(stored) == "held"


def test_a_living_process_of_this_machine_keeps_its_lease_however_late_its_signs_of_life_are(stored):
    with hold(stored, holder="one"):
        claim = output_places._Claim.from_bytes(claim_at(stored))
        put(stored, replace(claim, beat=0.0).to_bytes())
        assert isinstance(try_to_hold(stored), OutputBusyError)


def test_a_process_of_another_container_is_not_taken_for_dead(stored):
    put_claim(stored, machine="another boot", pid=2**22 + 1)
    assert isinstance(try_to_hold(stored), OutputBusyError)


def watch_without_waiting(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Let whoever watches a holder wait no time; return a list of what is to happen meanwhile."""
    happens: list[Callable[[], object]] = []

    def sleep(_: float) -> None:
        while happens:
            happens.pop()()

    monkeypatch.setattr(output_places, "time", SimpleNamespace(time=time.time, sleep=sleep))
    return happens


@pytest.mark.parametrize("clock", [-output_places.EXPIRES_S - 5, 10**6], ids=["behind", "ahead"])
@pytest.mark.parametrize("beats_on", [False, True], ids=["silent", "alive"])
def test_the_claim_of_another_machine_is_taken_over_only_where_it_stays_silent(
    stored, monkeypatch, beats_on, clock
):
    claim = put_claim(stored, machine="another boot", beat=time.time() + clock)
    waits = watch_without_waiting(monkeypatch)
    if beats_on:
        waits.append(lambda: put(stored, replace(claim, beat=claim.beat + 1).to_bytes()))
    outcome = try_to_hold(stored)
    assert not waits
    if beats_on:
        assert isinstance(outcome, OutputBusyError)
    else:
        assert outcome == "held"


def test_what_is_no_claim_is_taken_over_after_a_while(stored, monkeypatch):
    watch_without_waiting(monkeypatch)
    put(stored, b"{not json")
    assert try_to_hold(stored) == "held"


def test_a_holder_gives_signs_of_life(stored, monkeypatch):
    monkeypatch.setattr(output_places, "BEAT_S", 0.05)
    with hold(stored, holder="one"):
        first = claim_at(stored)
        deadline = time.monotonic() + 30
        while claim_at(stored) == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_run_that_was_stopped_too_long_learns_that_it_was_replaced(stored):
    location = parse_location(stored)
    with hold(stored, holder="sleeper"):
        check_lease(location)
        # As another run does if it found the holder silent.
        mine = put_claim(stored, holder="the next run")
        with pytest.raises(OutputBusyError, match=r"lease is gone, and taken over by the next run"):
            check_lease(location)
    assert claim_at(stored) == mine.to_bytes()


def test_a_lock_that_somebody_removed_holds_no_more(tmp_path):
    location = parse_location(tmp_path / "model")
    with hold(location, holder="one"):
        check_lease(location)
        lock_of(tmp_path / "model").unlink()
        assert try_to_hold(str(tmp_path / "model")) == "held"
        with pytest.raises(OutputBusyError, match="its lease is gone"):
            check_lease(location)


# -- whatever the order ----------------------------------------------------------------------------------


class Turns:
    """Let threads go on one at a time, in an order that a seed fixes: some run far while others wait.

    Burckhardt et al. 2010, "A randomized scheduler with probabilistic guarantees of finding bugs".
    """

    def __init__(self, seed: int, n_threads: int) -> None:
        self._random = random.Random(seed)
        self._condition = threading.Condition()
        self._running = n_threads
        self._waiting: set[int] = set()
        self._turn: int | None = None
        self._priorities: dict[int, float] = {}

    def wait(self) -> None:
        me = threading.get_ident()
        with self._condition:
            self._waiting.add(me)
            self._choose()
            self._condition.wait_for(lambda: self._turn == me, 60)
            self._turn = None
            self._waiting.discard(me)

    def end(self) -> None:
        with self._condition:
            self._running -= 1
            self._choose()

    def _choose(self) -> None:
        if self._waiting and len(self._waiting) == self._running:
            if self._random.random() < 0.15:
                self._priorities.clear()
            draws = {me: self._random.random() for me in sorted(self._waiting)}
            self._priorities = draws | self._priorities
            self._turn = max(self._waiting, key=self._priorities.__getitem__)
            self._condition.notify_all()


def race(place: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Let three runs take and release a lease; return how many held it together at most, and in total."""
    turns = Turns(seed, n_threads=3)
    now, most, in_total = 0, 0, 0

    def step[**P, R](original: Callable[P, R]) -> Callable[P, R]:
        def wait_first(*arguments: P.args, **options: P.kwargs) -> R:
            turns.wait()
            return original(*arguments, **options)

        return wait_first

    def run() -> None:
        nonlocal now, most, in_total
        try:
            with output_places._in_store(place, "one"):
                now, in_total = now + 1, in_total + 1
                most = max(most, now)
                for _ in range(3):
                    turns.wait()
                now -= 1
        except OutputBusyError:
            pass
        finally:
            turns.end()

    with monkeypatch.context() as patch:
        for module, name in (
            (conditional, "read_tagged"),
            (conditional, "replace_bytes"),
            (locations, "delete_bytes"),
        ):
            patch.setattr(module, name, step(getattr(module, name)))
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    return most, in_total


@pytest.mark.parametrize("found", [False, True], ids=["nothing there", "a dead holder's claim there"])
def test_exactly_one_holds_a_lease_at_a_time_whatever_the_order_of_their_steps(monkeypatch, found):
    for seed in range(100):
        place = parse_location(f"memory://lease-{found}-{seed}/model")
        if found:
            put_claim(place.url, started=1)
        most, in_total = race(place, seed, monkeypatch)
        assert most == 1, seed
        assert 1 <= in_total <= 3, seed


def test_of_many_that_take_and_release_a_lock_one_holds_it_at_a_time(tmp_path):
    """Each release removes the file, so another file may be locked at the same moment."""
    now, most, in_total = 0, 0, 0

    def run() -> None:
        nonlocal now, most, in_total
        for _ in range(200):
            try:
                with output_places._in_folder(parse_location(tmp_path / "model"), "one"):
                    now, in_total = now + 1, in_total + 1
                    most = max(most, now)
                    time.sleep(0)
                    now -= 1
            except OutputBusyError:
                pass

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert in_total > 4
    assert list(tmp_path.iterdir()) == []
