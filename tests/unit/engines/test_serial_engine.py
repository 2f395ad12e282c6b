import os
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from rff_dist import SerialEngine
from rff_dist.data.blocks import BlockFunction, BlockTask
from rff_dist.errors import BlockError, InvalidParameterError
from rff_dist.numerics import machine as threads_module
from tests.engine_contract import Counting, EngineContract, unit_blocks
from tests.refusals import refuses


class TestSerialEngine(EngineContract):
    @pytest.fixture
    def engine(self):
        return SerialEngine()


def test_partials_held_do_not_grow_with_the_blocks():
    class Partial:
        def __init__(self):
            alive.add(self)

    alive = weakref.WeakSet()
    most = 0

    def combine(left, right):
        nonlocal most
        merged = Partial()
        most = max(most, len(alive))
        return merged

    def add(rows, _, total=None):
        nonlocal most
        total = Partial() if total is None else total
        most = max(most, len(alive))
        return total

    SerialEngine().map_reduce(
        lambda block, _: Partial(), unit_blocks(50), None, combine=combine
    )
    # The total, the block's own result and their sum.
    assert most == 3
    most = 0
    SerialEngine().map_reduce(
        BlockTask(Counting(), add, adds=True), unit_blocks(50), None, combine=combine
    )
    assert most == 1


def test_blocks_see_the_threads_of_the_engine_and_blas_sees_one():
    def threads(block, _):
        blas = {
            p["num_threads"]
            for p in threadpoolctl.threadpool_info()
            if p["user_api"] == "blas"
        }
        return threads_module.threads_in_use.get(), blas

    before = threads_module.threads_in_use.get()
    with threadpoolctl.threadpool_limits(2):
        assert SerialEngine(3).map_reduce(
            threads, unit_blocks(1), None, combine=max
        ) == (3, {1})
    assert threads_module.threads_in_use.get() == before


def test_threads_are_those_that_this_process_may_use():
    assert SerialEngine().n_threads == len(os.sched_getaffinity(0))
    assert SerialEngine().n_workers == 1


@pytest.mark.parametrize("n_threads", [0, -1, 2.5, 2.0, "2", True])
def test_what_is_no_number_of_threads_is_refused(n_threads):
    with refuses(
        InvalidParameterError,
        f"`n_threads` is {n_threads!r}",
        "expected an integer of at least 1",
    ):
        SerialEngine(n_threads)


def test_threads_may_be_an_integer_of_numpy():
    assert SerialEngine(np.int64(3)).n_threads == 3  # type: ignore[arg-type]


# -- reading ahead
# -------------------------------------------------------------------------------------


class InTwoParts(BlockFunction[None, Any]):
    """A task that notes when each block is begun and finished, and by which thread."""

    source = run = None

    def __init__(self, *, failing=None):
        self.events = []
        self.threads = set()
        self.begun = [threading.Event() for _ in range(100)]
        self.failing = failing

    def begin(self, block, state):
        self.events.append(("begin", block.index))
        self.threads.add(threading.current_thread())
        self.begun[block.index].set()
        if block.index == self.failing:
            raise OSError("the disk is gone")

        def finish():
            if block.index + 1 < 8:
                assert self.begun[block.index + 1].wait(30)
            self.events.append(("finish", block.index))
            return block.index

        return finish


def test_the_next_block_is_read_while_one_is_worked_on_and_no_other():
    task = InTwoParts()
    assert SerialEngine(2).map_reduce(task, unit_blocks(8), None) == sum(range(8))
    assert [index for kind, index in task.events if kind == "begin"] == list(range(8))
    assert [index for kind, index in task.events if kind == "finish"] == list(range(8))
    open_blocks = 0
    for kind, _ in task.events:
        open_blocks += 1 if kind == "begin" else -1
        assert open_blocks <= 2
    assert len(task.threads) == 1
    assert not any(thread.is_alive() for thread in task.threads)


def test_a_block_that_cannot_be_read_is_named_and_the_reader_is_gone():
    task = InTwoParts(failing=3)
    with refuses(BlockError, "block 3", "rows 3", "4", "OSError"):
        SerialEngine().map_reduce(task, unit_blocks(8), None)
    assert ("finish", 2) in task.events
    assert ("begin", 5) not in task.events
    assert not any(thread.is_alive() for thread in task.threads)


def test_rows_are_read_ahead_for_outputs_too():
    written = []

    class Output:
        url = None

        def write(self, block, array):
            written.append((block.index, array.tolist()))

    class Task(InTwoParts):
        def begin(self, block, state):
            finish = super().begin(block, state)
            return lambda: np.array([finish()])

    task = Task()
    assert SerialEngine().map_write(task, unit_blocks(8), None, Output()) == 8
    assert written == [(i, [i]) for i in range(8)]
    assert task.events[:2] == [("begin", 0), ("begin", 1)]
