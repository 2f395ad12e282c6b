"""The serial engine: the specification of every other engine."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from numbers import Integral

import numpy as np

from rff_dist.data.blocks import Block, BlockFunction
from rff_dist.engines.progress import Announcer, BlockDone, Observer, announce_pass
from rff_dist.engines.protocol import Broadcast, Engine, RegionWriter
from rff_dist.errors import BlockError, DataError, InvalidParameterError, PlanError, RFFDistError
from rff_dist.numerics.threads import using_threads


class PairwiseTree[T]:
    """Merge a stream of partials pairwise, holding O(log n) of them.

    The shape is that of merging neighbours level by level, an odd last one moving up as it is. It
    is a binary counter: the stack holds one subtree per set bit of the number of partials so far.
    """

    def __init__(self, combine: Callable[[T, T], T]) -> None:
        self._combine = combine
        self._stack: list[tuple[int, T]] = []

    def push(self, partial: T) -> None:
        """Add the next partial in block order."""
        level = 0
        while self._stack and self._stack[-1][0] == level:
            partial = self._combine(self._stack.pop()[1], partial)
            level += 1
        self._stack.append((level, partial))

    def finish(self) -> T:
        """Merge what is left, from the right, and return the whole; needs at least one partial."""
        _, whole = self._stack.pop()
        while self._stack:
            whole = self._combine(self._stack.pop()[1], whole)
        return whole

    def partials(self) -> list[T]:
        """Return the subtrees held now, the one with the lowest rows first."""
        return [partial for _, partial in self._stack]


class SerialEngine(Engine):
    """Run blocks one after another in this process: the specification of every other engine.

    Parameters
    ----------
    n_threads : int, optional
        Threads that a block may use; all CPUs of this process by default.
    observers : iterable of callables
        Called with the events of `rff_dist.engines.progress`.

    Raises
    ------
    InvalidParameterError
        If `n_threads` is no integer of at least 1.

    Examples
    --------
    >>> import operator
    >>> from rff_dist.data.blocks import cut_blocks
    >>> blocks = cut_blocks(1_000, 10, rows_per_block=300)
    >>> engine = SerialEngine(n_threads=1)
    >>> engine.map_reduce(lambda block, power: block.n_samples**power, blocks, 2, combine=operator.add)
    280000
    """

    def __init__(self, n_threads: int | None = None, *, observers: Iterable[Observer] = ()) -> None:
        check_optional_count("n_threads", n_threads)
        self._n_threads = n_threads or len(os.sched_getaffinity(0))
        self.observers = tuple(observers)

    @property
    def n_workers(self) -> int:
        return 1

    @property
    def n_threads(self) -> int:
        return self._n_threads

    @property
    def worker_memory(self) -> None:
        return None

    @property
    def in_process(self) -> bool:
        return True

    def broadcast[S](self, state: S) -> Broadcast[S]:
        return Broadcast(state)

    def map_reduce[S, T](
        self,
        function: Callable[[Block, S], T],
        blocks: Sequence[Block],
        state: S | Broadcast[S],
        *,
        combine: Callable[[T, T], T],
        label: str = "pass",
    ) -> T:
        check_blocks(blocks, label)
        shared: S = state.state if isinstance(state, Broadcast) else state
        tree = PairwiseTree(combine)
        with (
            announce_pass(self.observers, label, blocks) as announce,
            using_threads(self.n_threads),
            contextlib.closing(_begin_ahead(function, blocks, shared)) as begun,
        ):
            for block, finish in begun:
                # Nothing here may keep a name for the partial: it would outlive its merge.
                tree.push(_finish_block(block, finish, announce=announce, label=label))
            return tree.finish()

    def map_write[S](
        self,
        function: Callable[[Block, S], np.ndarray],
        blocks: Sequence[Block],
        state: S | Broadcast[S],
        output: RegionWriter,
        *,
        label: str = "pass",
    ) -> int:
        n_samples: int = self.map_reduce(
            _WriteTask(function, output), blocks, state, combine=operator.add, label=label
        )
        return n_samples

    def close(self) -> None:
        """Do nothing: this engine holds no resource."""


@dataclass(frozen=True)
class _WriteTask[S](BlockFunction[S, int]):
    """Write what a function makes of a block; return the rows written."""

    function: Callable[[Block, S], np.ndarray]
    output: RegionWriter

    source = None

    def begin(self, block: Block, state: S) -> Callable[[], int]:
        finish = _begin(self.function, block, state)
        return lambda: write_rows(self.output, block, finish())


def _begin[S, T](function: Callable[[Block, S], T], block: Block, state: S) -> Callable[[], T]:
    """Begin a block, which reads it where the function can be called in two parts; return what is left."""
    if isinstance(function, BlockFunction):
        return function.begin(block, state)
    return partial(function, block, state)


def _begin_ahead[S, T](
    function: Callable[[Block, S], T], blocks: Sequence[Block], state: S
) -> Generator[tuple[Block, Callable[[], T]]]:
    """Give the blocks with what is left to do for each; the next one is read meanwhile, in another thread."""
    if len(blocks) == 1:  # to start a thread takes longer than to predict a row
        yield blocks[0], lambda: _begin(function, blocks[0], state)()
        return
    context = copy_context()
    with ThreadPoolExecutor(1, "rff-dist-reader") as reader:
        coming = reader.submit(context.run, _begin, function, blocks[0], state)
        for block, following in itertools.zip_longest(blocks, blocks[1:]):
            begun = coming
            if following is not None:
                coming = reader.submit(context.run, _begin, function, following, state)
            yield block, partial(_finish, begun)


def _finish[T](begun: Future[Callable[[], T]]) -> T:
    return begun.result()()


def _finish_block[T](block: Block, finish: Callable[[], T], *, announce: Announcer, label: str) -> T:
    start = time.perf_counter()
    try:
        made = finish()
    except RFFDistError as error:
        error.add_note(f"raised in {name_block(block)}")
        raise
    except Exception as error:
        raise block_error(block, error) from error
    announce(BlockDone(label, block, time.perf_counter() - start, "serial"))
    return made


def name_block(block: Block) -> str:
    """Name a block in messages: its index and its rows."""
    return f"block {block.index} (rows {block.start}:{block.stop})"


def block_error(block: Block, error: BaseException) -> BlockError:
    """Describe what `error`, which is not one of this package's, did to a block."""
    return BlockError(
        f"{name_block(block)} failed with {type(error).__name__}: {error}; "
        "the pass has no result. Look at the cause above, and at these rows of the data"
    )


def check_optional_count(name: str, value: object) -> None:
    """Raise InvalidParameterError unless `value` is None or an integer of at least 1."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InvalidParameterError(f"`{name}` is {value!r}; expected None or an integer in [1, inf)")


def check_blocks(blocks: Sequence[Block], label: str) -> None:
    """Raise PlanError if there is no block."""
    if not blocks:
        raise PlanError(
            f"no blocks to work on in {label!r}: 0 given, at least 1 expected; is the data empty?"
        )


def write_rows(output: RegionWriter, block: Block, array: np.ndarray) -> int:
    """Write a block's rows and return how many; DataError unless `array` has one row per row of the block."""
    if np.shape(array)[:1] != (block.n_samples,):
        raise DataError(
            f"an array of shape {np.shape(array)} cannot be written to rows {block.start}:{block.stop}; "
            f"its first dimension must be {block.n_samples}"
        )
    output.write(block, array)
    return block.n_samples
