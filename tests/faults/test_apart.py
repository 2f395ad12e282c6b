"""What Dask waits for without end: data that one worker cannot open, workers cut from
one another.
"""

import os
import time
from contextlib import ExitStack, contextmanager

import pytest

from rff_dist.data.blocks import BlockTask
from rff_dist.engines import dask_workers
from rff_dist.engines.dask import DaskEngine
from rff_dist.errors import ClusterLostError, StorageError
from tests.dask_processes import assert_each_counts_once, once_after, scaled, slow_power
from tests.engine_contract import BLOCKS, OpenedIn, unit_blocks

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.faults("F20"),
    pytest.mark.timeout(120),
]


# -- data that not all workers see
# ---------------------------------------------------------------------


def count_slowly(rows, _):
    time.sleep(0.05)
    return rows.block.n_samples


@pytest.mark.parametrize("n", range(3))
def test_data_that_one_of_several_workers_cannot_open_are_an_error_that_names_it(
    embedded, n
):
    engine = scaled(embedded, 3)
    address, pid = sorted(engine.client.run(os.getpid).items())[n]
    with pytest.raises(StorageError, match="nothing is there") as caught:
        engine.map_reduce(
            BlockTask(OpenedIn(pid, others=True), count_slowly), BLOCKS, None
        )
    assert f"raised on worker {address}" in "".join(caught.value.__notes__)


# -- workers that do not reach one another
# -------------------------------------------------------------


@pytest.fixture
def in_a_hurry(monkeypatch):
    """Wait a few seconds where a minute is promised."""
    # and heartbeats, of up to 5 s
    assert dask_workers.STUCK_S + 2 * dask_workers.WATCH_S + 5 < 60
    monkeypatch.setattr(dask_workers, "STUCK_S", 4.0)
    monkeypatch.setattr(dask_workers, "WATCH_S", 1.0)


def cut(pool, scheduler):
    """Let a process connect to the scheduler only; undone by `del pool.connect`."""

    async def connect(address, *_, **__):
        if address != scheduler:
            raise OSError(f"no route to {address}")
        return await type(pool).connect(pool, address)

    pool.connect = connect


@contextmanager
def apart(engine):
    """Let workers reach the scheduler and the client, but not one another."""

    def cut_worker(dask_worker):
        cut(dask_worker.rpc, dask_worker.scheduler.address)

    def mend(dask_worker):
        del dask_worker.rpc.connect

    engine.client.run(cut_worker)
    try:
        yield
    finally:
        engine.client.run(mend)


@contextmanager
def out_of_reach(engine):
    """Let this process reach the scheduler only."""
    cut(engine.client.rpc, engine.address)
    try:
        yield
    finally:
        del engine.client.rpc.connect


@pytest.mark.parametrize("by_the_scheduler", [False, True])
def test_totals_of_workers_that_are_cut_from_one_another_meet_in_the_client(
    embedded, by_the_scheduler
):
    scaled(embedded, 3)
    # of its own, since a worker may be left out for minutes
    with DaskEngine(client=embedded.client) as engine, ExitStack() as stack:
        cuts = [apart(engine)] + [out_of_reach(engine)] * by_the_scheduler
        engine.observers = (
            once_after(30, lambda: [stack.enter_context(one) for one in cuts] and None),
        )
        assert_each_counts_once(engine, 200)


@pytest.mark.usefixtures("in_a_hurry")
def test_workers_that_cannot_fetch_what_a_pass_needs_are_named_and_done_without(
    embedded, caplog
):
    scaled(embedded, 3)
    with DaskEngine(client=embedded.client) as engine, apart(engine):
        assert_each_counts_once(engine, 1_500, "state")
        assert_each_counts_once(engine, 20, "other")
    named = [
        record.args[0] for record in caplog.records if "left out for" in record.msg
    ]
    assert 1 <= len(set(named)) <= 2
    assert set(named) < set(engine.client.nthreads())


# -- workers whose memory is full
# ----------------------------------------------------------------------


@contextmanager
def full(engine, workers):
    """Let workers take no tasks, as Dask does while their memory is full."""

    def at(dask_worker, fraction):
        dask_worker.memory_manager.memory_pause_fraction = fraction

    engine.client.run(at, fraction=1e-6, workers=workers)
    try:
        yield
    finally:
        engine.client.run(at, fraction=0.8, workers=workers)


@pytest.mark.usefixtures("in_a_hurry")
def test_a_worker_whose_memory_is_full_is_done_without(embedded):
    workers = sorted(scaled(embedded, 2).client.nthreads())
    with DaskEngine(client=embedded.client) as engine, ExitStack() as stack:
        engine.observers = (
            once_after(5, lambda: stack.enter_context(full(engine, workers[:1]))),
        )
        assert_each_counts_once(engine, 400)


@pytest.mark.usefixtures("in_a_hurry")
def test_if_all_workers_memory_is_full_the_pass_ends(embedded):
    workers = list(scaled(embedded, 2).client.nthreads())
    with DaskEngine(client=embedded.client) as engine, ExitStack() as stack:
        engine.observers = (
            once_after(5, lambda: stack.enter_context(full(engine, workers))),
        )
        with pytest.raises(
            ClusterLostError, match=f"{workers[0]}.* cannot begin .* full memory"
        ):
            engine.map_reduce(slow_power, unit_blocks(4_000), None)
