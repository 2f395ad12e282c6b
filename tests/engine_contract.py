"""What every engine promises: subclass, provide the fixture `engine`, and inherit the
tests.
"""

import copy
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rff_dist import SerialEngine
from rff_dist.data.blocks import Block, BlockTask, Rows, cut_blocks
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.events import (
    BlockDone,
    Event,
    PassFailed,
    PassFinished,
    PassMerging,
    PassStarted,
)
from rff_dist.engines.protocol import Engine
from rff_dist.errors import BlockError, DataError, PlanError, StorageError
from tests.bits import sums_of_every_kind
from tests.refusals import refuses

BLOCKS = cut_blocks(1_000, 10, rows_per_block=70)


def unit_blocks(n_blocks: int) -> list[Block]:
    return cut_blocks(n_blocks, 1, rows_per_block=1)


def merge_sorted[T](left: list[T], right: list[T]) -> list[T]:
    """Join two sets of results in any order."""
    return sorted(left + right)  # type: ignore[type-var]


def fail_on(
    start: int, error: Callable[[], Exception]
) -> Callable[[Block, object], list[int]]:
    def function(block: Block, _: object) -> list[int]:
        if block.start == start:
            raise error()
        return [block.start]

    return function


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__("cannot travel")
        self.lock = threading.Lock()


@dataclass(frozen=True)
class FileOutput:
    """An array in a file that several processes may write regions of."""

    path: Path
    url = None

    def write(self, block: Block, array: np.ndarray) -> None:
        np.load(self.path, mmap_mode="r+")[block.start : block.stop] = array


class Counting(ArrayDataset):
    """A source whose row i holds i."""

    def __init__(self) -> None:
        super().__init__(np.arange(10_000.0)[:, np.newaxis])


class OpenedIn(Counting):
    """Rows that only some processes can open, as in a folder that only some machines
    have mounted.

    `pids`: those that can, or with `others` those that cannot.
    """

    def __init__(self, *pids: int, others: bool = False) -> None:
        super().__init__()
        self.__dict__.update(pids=pids, others=others)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_in, (self.__dict__["pids"], self.__dict__["others"])


def _open_in(pids: tuple[int, ...], others: bool) -> OpenedIn:
    if (os.getpid() in pids) == others:
        raise StorageError("no dataset at /data: nothing is there")
    return OpenedIn(*pids, others=others)


class EngineContract:
    @pytest.fixture
    def engine(self) -> Engine:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def forget_observers(self, engine: Engine) -> Any:
        yield
        engine.observers = ()

    def test_every_block_counts_once(self, engine):
        spans = engine.map_reduce(
            lambda block, _: [(block.start, block.stop)],
            BLOCKS,
            None,
            combine=merge_sorted,
        )
        assert spans == [(b.start, b.stop) for b in BLOCKS]

    @pytest.mark.parametrize("n_blocks", [1, 2, 3, 5, 12])
    def test_what_adds_to_the_result_before_counts_each_block_once(
        self, engine, n_blocks
    ):
        def add(
            rows: Rows, state: float, total: np.ndarray | None = None
        ) -> np.ndarray:
            total = np.zeros(12) if total is None else total
            total[rows.block.index] += state
            return total

        task = BlockTask(Counting(), add, adds=True)
        total = engine.map_reduce(task, unit_blocks(n_blocks), 2.0)
        assert total.tolist() == [2.0] * n_blocks + [0.0] * (12 - n_blocks)

    def test_a_result_may_be_none(self, engine):
        def neither(left: int | None, right: int | None) -> int | None:
            return None if left is None or right is None else left + right

        def count(block: Block, _: None) -> int | None:
            return None if block.index == 0 else 1

        assert engine.map_reduce(count, unit_blocks(8), None, combine=neither) is None

    def test_state_reaches_every_block_as_it_is_or_broadcast(self, engine):
        state = {"scale": 3, "names": ("a", "b")}
        for given in (state, engine.broadcast(state)):
            total = engine.map_reduce(
                lambda block, s: s["scale"] * block.n_samples, BLOCKS, given
            )
            assert total == 3_000

    def test_two_passes_with_equal_arguments_both_run(self, engine, tmp_path):
        def touch(block: Block, folder: Path) -> int:
            with (folder / f"{block.index}").open("a") as file:
                file.write("x")
            return 1

        for _ in range(2):
            assert engine.map_reduce(touch, unit_blocks(3), tmp_path) == 3
        assert [(tmp_path / f"{i}").read_text() for i in range(3)] == ["xx"] * 3

    def test_an_error_in_one_block_names_the_block(self, engine):
        function = fail_on(140, lambda: ZeroDivisionError("by nought"))
        with refuses(BlockError, "block 2", "rows 140", "210") as caught:
            engine.map_reduce(function, BLOCKS, None)
        assert type(caught.value.__cause__) is ZeroDivisionError

    def test_an_error_that_cannot_be_pickled_still_names_the_block(self, engine):
        with refuses(BlockError, "rows 140"):
            engine.map_reduce(fail_on(140, UnpicklableError), BLOCKS, None)

    def test_an_error_of_this_package_keeps_its_type_and_gets_the_rows(self, engine):
        function = fail_on(140, lambda: DataError("X holds NaN"))
        with pytest.raises(DataError, match="X holds NaN") as caught:
            engine.map_reduce(function, BLOCKS, None)
        assert str(caught.value) == "X holds NaN"
        assert "rows 140:210" in "".join(caught.value.__notes__)

    def test_an_error_in_combine_is_raised_as_it_is(self, engine):
        def refuse(left: int, right: int) -> int:
            raise ArithmeticError("these do not add up")

        with pytest.raises(ArithmeticError, match="do not add up"):
            engine.map_reduce(lambda block, _: 1, BLOCKS, None, combine=refuse)

    def test_an_engine_works_after_a_failed_pass(self, engine):
        with pytest.raises(BlockError):
            engine.map_reduce(fail_on(0, ValueError), BLOCKS, None)
        self.test_every_block_counts_once(engine)

    def test_no_blocks_are_refused_before_anything_runs(self, engine):
        seen: list[Event] = []
        engine.observers = (seen.append,)
        with pytest.raises(PlanError, match="no blocks"):
            engine.map_reduce(lambda block, _: 1, [], None)
        assert seen == []

    def test_sums_of_every_kind_have_the_bits_of_one_thread(self, engine):
        found = sums_of_every_kind(engine)
        for kind, bits in sums_of_every_kind(SerialEngine(1)).items():
            assert found[kind] == bits, kind

    def test_writing_twice_gives_the_same_rows(self, engine, tmp_path):
        path = tmp_path / "out.npy"
        np.save(path, np.full((1_000, 2), np.nan))

        def rows(block: Block, scale: float) -> np.ndarray:
            return (
                scale
                * np.arange(block.start, block.stop)[:, np.newaxis]
                * np.array([1.0, -1.0])
            )

        for _ in range(2):
            assert engine.map_write(rows, BLOCKS, 2.0, FileOutput(path)) == 1_000
            expected = 2.0 * np.arange(1_000)[:, np.newaxis] * [1.0, -1.0]
            np.testing.assert_array_equal(np.load(path), expected)

    def test_writing_rows_of_another_length_is_refused(self, engine, tmp_path):
        path = tmp_path / "out.npy"
        np.save(path, np.zeros(1_000))
        with pytest.raises(
            DataError, match=r"shape \(1,\) cannot be written to rows \d+:\d+"
        ):
            engine.map_write(
                lambda block, _: np.ones(1), BLOCKS, None, FileOutput(path)
            )
        assert not np.load(path).any()

    def test_events_tell_of_every_block_once(self, engine):
        seen: list[Event] = []
        engine.observers = (seen.append,)
        engine.map_reduce(lambda block, _: 1, BLOCKS, None, label="count")
        assert seen[0] == PassStarted("count", len(BLOCKS), 1_000)
        done = [event for event in seen if isinstance(event, BlockDone)]
        assert sorted(event.block.index for event in done) == list(range(len(BLOCKS)))
        assert all(
            event.label == "count" and event.seconds >= 0 and event.worker
            for event in done
        )
        assert type(seen[-1]) is PassFinished
        assert (
            sum(not isinstance(event, PassMerging) for event in seen) == len(BLOCKS) + 2
        )
        assert sum(isinstance(event, PassMerging) for event in seen) == (
            not engine.is_in_process
        )

    def test_events_tell_of_a_failed_pass(self, engine):
        seen: list[Event] = []
        engine.observers = (seen.append,)
        with pytest.raises(BlockError) as caught:
            engine.map_reduce(fail_on(0, ValueError), BLOCKS, None)
        assert type(seen[-1]) is PassFailed
        assert seen[-1].error is caught.value

    def test_an_observer_that_raises_is_logged_once_and_left_out(self, engine, caplog):
        seen: list[Event] = []

        def broken(event: Event) -> None:
            raise OSError("the terminal is gone")

        engine.observers = (broken, seen.append)
        assert engine.map_reduce(lambda block, _: 1, BLOCKS, None) == len(BLOCKS)
        assert sum(isinstance(event, BlockDone) for event in seen) == len(BLOCKS)
        (record,) = [r for r in caplog.records if r.name == "rff_dist.engines.events"]
        assert "broken" in record.getMessage()
        assert "the terminal is gone" in str(record.exc_info)

    def test_ctrl_c_goes_through(self, engine):
        def interrupt(event: Event) -> None:
            if isinstance(event, BlockDone):
                raise KeyboardInterrupt

        engine.observers = (interrupt,)
        with pytest.raises(KeyboardInterrupt):
            engine.map_reduce(lambda block, _: 1, BLOCKS, None)

    def test_a_copied_parameter_is_the_same_engine(self, engine):
        assert copy.deepcopy({"engine": engine})["engine"] is engine
