import asyncio
import gc
import os
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

import distributed
import numpy as np
import psutil
import pytest

from benchmarks.measure import PassTimings
from rff_dist import DaskEngine
from rff_dist.engines import dask_pass, dask_workers, fetching_totals, runs
from rff_dist.engines.events import BlockDone
from rff_dist.engines.fetching_totals import TotalLostError
from rff_dist.engines.protocol import state_digests
from rff_dist.errors import BlockError, BroadcastError, ClusterError
from tests.dask_processes import (
    assert_each_counts_once,
    once_after,
    run_dask,
    scaled,
    slow_power,
    wait_until_no_tasks,
)
from tests.engine_contract import BLOCKS, EngineContract, unit_blocks
from tests.refusals import refuses
from tests.system import free_port

pytestmark = pytest.mark.distributed


class TestDaskEngineWithThreeWorkers(EngineContract):
    @pytest.fixture
    def engine(self, embedded):
        return scaled(embedded, 3)


# -- workers come and go
# -------------------------------------------------------------------------------


def test_a_late_worker_gets_blocks_and_the_broadcast_state(embedded):
    engine = scaled(embedded, 1)
    state = engine.broadcast(np.arange(1_000))
    timings = PassTimings()
    engine.observers = (
        once_after(5, lambda: scaled_keeping_observers(engine, 2)),
        timings,
    )

    def function(block, array):
        time.sleep(0.02)
        return int(array[block.start])

    total = engine.map_reduce(function, unit_blocks(200), state)
    assert total == sum(range(200))
    assert len({done.worker for done in timings.blocks}) == 2


def scaled_keeping_observers(engine, n_workers):
    observers = engine.observers
    scaled(engine, n_workers)
    engine.observers = observers


@pytest.mark.faults("F1", "F2")
@pytest.mark.parametrize(
    ("n_killed", "n_done"),
    [(1, 80), (2, 30)],
    ids=["one with all blocks summed", "all in the midst"],
)
def test_killed_workers_change_no_bit(embedded, n_killed, n_done):
    engine = scaled(embedded, 2)
    state = engine.broadcast({"power": 2})
    pids = list(engine.client.run(os.getpid).values())[:n_killed]

    def kill():
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    timings = PassTimings()
    engine.observers = (once_after(n_done, kill), timings)
    assert_each_counts_once(engine, 80, state)
    assert sorted(done.block.index for done in timings.blocks) == list(range(80))
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_blocks_are_handed_out_before_the_scheduler_says_which_workers_there_are(
    embedded, monkeypatch
):
    engine = scaled(embedded, 1)
    n_asked = 0
    over = asyncio.Event()
    real = engine.client.nthreads

    async def nthreads():
        nonlocal n_asked
        n_asked += 1
        if n_asked == 2:  # the first one that a pass does not wait for
            await over.wait()
            raise OSError("an answer of the pass before")
        return await real()

    monkeypatch.setattr(dask_workers, "POLL_S", 0.0)
    monkeypatch.setattr(engine.client, "nthreads", nthreads)
    for n_passes in (1, 2):
        assert_each_counts_once(engine, 20)
        assert (n_asked == 2) == (n_passes == 1)
        engine.client.sync(lambda: asyncio.sleep(0, over.set()))


@pytest.fixture
def run_for_run(monkeypatch):
    """Give out each block as a run of its own, and only when the run before is done,
    however short it is.
    """
    monkeypatch.setattr(runs, "RUN_S", 1e-6)
    monkeypatch.setattr(dask_pass, "SHORT_S", 0.0)


def identities(dask_scheduler):
    return [worker.server_id for worker in dask_scheduler.workers.values()]


@pytest.mark.faults("F1")
@pytest.mark.usefixtures("run_for_run")
def test_a_worker_that_is_back_at_its_address_unnoticed_has_no_total(
    tmp_path, monkeypatch
):
    with (
        run_dask(tmp_path, worker_port=free_port()) as (address, [_, worker]),
        ExitStack() as stack,
    ):
        engine = stack.enter_context(DaskEngine(address))
        engine.client.wait_for_workers(1, timeout=60)

        def restart():
            [dead] = engine.client.run_on_scheduler(identities)
            worker.kill()
            worker.join()
            again = worker
            deadline = time.monotonic() + 60
            while {dead} >= set(engine.client.run_on_scheduler(identities)):
                assert time.monotonic() < deadline, "the worker did not come back"
                # The scheduler turns it away while it believes the dead one alive; then
                # it ends.
                if not again.is_alive():
                    again = worker.again()
                    stack.callback(again.kill)
                time.sleep(0.05)

        engine.observers = (once_after(30, restart),)
        # The client does not look for workers meanwhile, but wakes up. Dask calls back
        # only once for a total that is finished, lost and lost again before the client
        # comes to it.
        current = dask_workers.Workers.current
        monkeypatch.setattr(
            dask_workers.Workers, "current", lambda self: self._threads or current(self)
        )
        assert_each_counts_once(engine, 60)


@pytest.mark.usefixtures("run_for_run")
def test_totals_that_dask_moves_to_other_workers_count_once(embedded):
    engine = scaled(embedded, 2)
    moved = []

    async def move(dask_scheduler):
        totals = [
            task
            for task in dask_scheduler.tasks.values()
            if isinstance(task.key, tuple)
        ]
        there = {
            task.key: [one.address for one in task.who_has or ()] for task in totals
        }
        held = {
            key: addresses for key, addresses in there.items() if len(addresses) == 1
        }
        await dask_scheduler.replicate(keys=list(held), n=2)
        # the client lets the others go meanwhile
        kept = [key for key in held if key in dask_scheduler.tasks]
        for key in kept:
            dask_scheduler.request_remove_replicas(
                *held[key], [key], stimulus_id="test"
            )
        return len(kept)

    engine.observers = (
        once_after(30, lambda: moved.append(engine.client.run_on_scheduler(move))),
    )
    assert_each_counts_once(engine, 60)
    assert moved[0] >= 2


@pytest.mark.faults("F15")
def test_a_block_that_kills_its_worker_is_named(embedded):
    engine = scaled(embedded, 2)

    def die(block, _):
        if block.start == 140:
            os._exit(1)
        return 1

    def allow_failures(n):
        engine.client.run_on_scheduler(
            lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", n)
        )

    allow_failures(0)
    try:
        with refuses(BlockError, "rows 140", "210", "1"):
            engine.map_reduce(die, BLOCKS[2:3], None)
    finally:
        allow_failures(3)


@pytest.mark.slow
@pytest.mark.faults("F15")
def test_a_block_that_kills_its_workers_is_found_in_its_run(embedded):
    def die(block, _):
        if block.index == 25:
            os._exit(1)
        return 1

    with refuses(BlockError, "block 25", "rows 25", "26"):
        scaled(embedded, 2).map_reduce(die, unit_blocks(40), None)


# -- what is held where
# --------------------------------------------------------------------------------


def test_each_workers_total_travels_once(embedded):
    engine = scaled(embedded, 3)

    def sent(dask_worker):
        return sum(one["total"] for one in dask_worker.transfer_outgoing_log)

    def ones(block, _):
        time.sleep(0.01)
        return np.ones(2**17)

    before = sum(engine.client.run(sent).values())
    total = engine.map_reduce(ones, unit_blocks(60), None)
    assert (total == 60.0).all()
    n_bytes = sum(engine.client.run(sent).values()) - before
    # The three totals, of 1 MiB each, the last one to the client; and the function and
    # its state, some KiB.
    assert 3 * 2**20 <= n_bytes < 4 * 2**20


@pytest.mark.parametrize("piece_bytes", [1_000, 10**9])
def test_a_result_of_a_worker_out_of_reach_comes_in_pieces(
    embedded, monkeypatch, piece_bytes
):
    async def out_of_reach(*_):
        raise TotalLostError("out of reach")

    scaled(embedded, 2)
    monkeypatch.setattr(fetching_totals, "fetch_total", out_of_reach)
    monkeypatch.setattr(fetching_totals, "PIECE_BYTES", piece_bytes)
    with DaskEngine(client=embedded.client) as engine:
        total = engine.map_reduce(lambda b, _: np.arange(1_000), unit_blocks(7), None)
    np.testing.assert_array_equal(total, 7 * np.arange(1_000))


def test_partials_in_memory_do_not_grow_with_the_number_of_blocks(embedded):
    engine = scaled(embedded, 2)
    # The state and the function; for each worker its total, and two short runs that the
    # client may not know to be done.
    most = 2 + 2 * 3

    def tasks_in_memory(dask_scheduler):
        return sum(task.state == "memory" for task in dask_scheduler.tasks.values())

    samples = []

    def sample(event):
        if isinstance(event, BlockDone) and event.block.index % 10 == 9:
            deadline = time.monotonic() + 5.0
            # The question may overtake a release that is under way; no block is given
            # out meanwhile.
            while (in_memory := engine.client.run_on_scheduler(tasks_in_memory)) > most:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            samples.append((in_memory, len(engine.client.futures)))

    engine.observers = (sample,)
    engine.map_reduce(lambda block, _: 1, unit_blocks(200), None)
    assert len(samples) == 20
    assert max(in_memory for in_memory, _ in samples) <= most
    assert max(futures for _, futures in samples) <= most


def test_nothing_is_left_on_the_cluster_after_a_pass(embedded):
    engine = scaled(embedded, 2)
    engine.map_reduce(slow_power, unit_blocks(9), engine.broadcast("state"))
    wait_until_no_tasks(engine)


def test_a_lost_total_does_not_keep_the_state_until_garbage_is_collected(
    embedded, monkeypatch
):
    engine = scaled(embedded, 1)
    real = fetching_totals.fetch_for_client
    n_asked = 0

    async def lose_first(*arguments):
        nonlocal n_asked
        n_asked += 1
        if n_asked == 1:
            raise TotalLostError("killed")
        return await real(*arguments)

    monkeypatch.setattr(fetching_totals, "fetch_for_client", lose_first)
    state = engine.broadcast("state")
    gc.collect()
    gc.disable()
    try:
        assert_each_counts_once(engine, 9, state)
        del state
        wait_until_no_tasks(engine)
    finally:
        gc.enable()
    assert n_asked == 2


def test_a_run_that_nobody_waits_for_ends_with_its_block(embedded, tmp_path):
    engine = scaled(embedded, 1)

    def touch(block, folder):
        time.sleep(0.01)
        (folder / f"{block.index}").touch()
        return 1

    def interrupt(event):
        if isinstance(event, BlockDone) and event.block.index > 4:
            raise KeyboardInterrupt

    engine.observers = (interrupt,)
    with pytest.raises(KeyboardInterrupt) as caught:
        engine.map_reduce(touch, unit_blocks(10_000), tmp_path)
    wait_until_no_tasks(engine)
    assert caught.value.__traceback__ is not None  # its frames still hold the futures
    engine.observers = ()
    assert engine.map_reduce(lambda block, _: 1, unit_blocks(3), None) == 3
    n_touched = len(list(tmp_path.iterdir()))
    assert n_touched < 5_000  # half of the blocks were one run
    time.sleep(0.1)
    assert len(list(tmp_path.iterdir())) == n_touched


# -- the same state everywhere
# -------------------------------------------------------------------------


class DrawnHere:
    """State whose digest differs between processes, as frequencies from another NumPy
    might.
    """

    def digest(self):
        return f"drawn in {os.getpid()}"


class Drawn:
    def digest(self):
        return "always the same"


def test_broadcast_of_differing_state_names_worker_and_digests(embedded):
    engine = scaled(embedded, 2)
    with pytest.raises(
        BroadcastError, match=rf"tls://.*drawn in \d+, expected drawn in {os.getpid()}"
    ) as caught:
        engine.broadcast(("centres", DrawnHere()))
    assert "Use the same versions and one type of machine" in str(caught.value)
    assert "doctor" not in str(caught.value)


@pytest.mark.faults("F1")
def test_a_worker_that_dies_when_it_has_looked_at_a_state_is_not_waited_for(
    embedded, monkeypatch
):
    engine = scaled(embedded, 2)
    doomed = list(engine.client.run(os.getpid).values())[:1]
    known = engine._reach_workers().current

    def current():
        found = known()
        while doomed:
            time.sleep(1.0)  # both have looked, and the scheduler knows
            os.kill(doomed.pop(), signal.SIGKILL)
        return found

    monkeypatch.setattr(engine._reach_workers(), "current", current)
    handle = engine.broadcast((Drawn(), 3))
    assert engine.map_reduce(lambda b, s: s[1], unit_blocks(4), handle) == 12


def test_plain_state_that_differs_is_found_by_the_first_block(embedded):
    engine = scaled(embedded, 2)
    with refuses(BroadcastError, "'map'"):
        engine.map_reduce(slow_power, unit_blocks(3), {"map": DrawnHere()})


def test_digests_are_found_in_members_and_attributes():
    class Holder:
        def __init__(self):
            self.map = Drawn()
            self.number = 3

    @dataclass
    class Fields:
        words: ClassVar[str]  # that only some classes have
        map: Drawn

    assert state_digests(None) == {}
    assert state_digests(Drawn()) == {"state": "always the same"}
    nested = [Holder(), {"map": (1, Drawn())}, Drawn, Fields(Drawn())]
    assert state_digests(nested) == {
        "state[0].map": "always the same",
        "state[1]['map'][1]": "always the same",
        "state[3].map": "always the same",
    }


@pytest.mark.faults("F18")
def test_other_versions_on_workers_are_refused_with_a_table(embedded, monkeypatch):
    here = distributed.versions.get_versions(["rff_dist", "scipy"])
    here["packages"]["numpy"] = "1.0"
    monkeypatch.setattr("distributed.versions.get_versions", lambda packages=None: here)
    engine = DaskEngine(client=embedded.client)
    with pytest.raises(
        ClusterError,
        match=r"(?s)other versions.*where[ |]+python .*numpy.*client .*1\.0.*tls://",
    ):
        engine.map_reduce(slow_power, BLOCKS, None)
