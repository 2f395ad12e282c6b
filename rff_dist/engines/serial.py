"""The serial engine: the specification of every other engine."""

import contextlib
import itertools
import math
import operator
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from rff_dist import checks
from rff_dist.data.blocks import Block, BlockTask
from rff_dist.engines import progress, protocol, resuming
from rff_dist.errors import BlockError, PlanError, RFFDistError
from rff_dist.numerics import machine
from rff_dist.typing import frozen


class SerialEngine(protocol.Engine):
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

    n_workers = 1
    worker_memory = None
    in_process = True

    def __init__(self, n_threads: int | None = None, *, observers: progress.Observers = ()) -> None:
        chosen = machine.available_cores() if n_threads is None else n_threads
        self._n_threads = checks.check_count(chosen, "n_threads")
        self.observers = tuple(observers)

    def __repr__(self) -> str:
        return f"SerialEngine(n_threads={self._n_threads})"

    @property
    def n_threads(self) -> int:
        return self._n_threads

    def broadcast[S](self, state: S) -> protocol.Broadcast[S]:
        return protocol.Broadcast(state)

    def map_reduce[S, T](
        self,
        function: Callable[[Block, S], T],
        blocks: Sequence[Block],
        state: S | protocol.Broadcast[S],
        *,
        combine: Callable[[T, T], T] = operator.add,
        label: str = "pass",
    ) -> T:
        check_blocks(blocks, label)
        shared: S = state.state if isinstance(state, protocol.Broadcast) else state
        kept = resuming.keep_pass(self.ledger, function, blocks, shared, combine)
        threads = machine.using_threads(self.n_threads)
        about = partial(protocol.describe_pass, function, shared)
        with progress.announce_pass(self.observers, label, blocks, about) as announce, threads:

            def done(block: Block, seconds: float, waited: float) -> None:
                announce(progress.BlockDone(label, block, seconds, "serial", waited))

            failed = None
            reduction = Reduction(function, shared, combine, done)
            try:
                if kept is None:
                    return reduction.run(blocks)
                parts = kept.cut(range(len(blocks)))
                announce_resumed(announce, label, blocks, parts)
                return _run_kept(reduction, blocks, kept, parts)
            except BlockFailed as error:
                failed = error
            raise failure_of(failed)

    def close(self) -> None:
        """Do nothing: this engine holds no resource."""


def _run_kept[T](
    reduction: "Reduction[Any, T]",
    blocks: Sequence[Block],
    kept: resuming.KeptPass,
    parts: Sequence[tuple[range, bool]],
) -> T:
    """Reduce all blocks in their order, without computing the parts whose sums are kept."""
    total: list[T] = []  # of all blocks so far
    keeper = resuming.Keeper(kept, 0)
    for span, is_kept in parts:
        some = blocks[span.start : span.stop]
        sums = kept.find(span) if is_kept else None
        if sums is None:
            reduction.run(some, total=total, keeper=keeper, first=span.start)
        else:
            total[:] = [reduction.combine(total[0], sums[0])] if total else sums
            del sums
            for block in some:
                reduction.done(block, math.nan, 0.0)
    keeper.note(len(blocks), total[0], last=True)
    return total[0]


def announce_resumed(
    announce: progress.Announcer, label: str, blocks: Sequence[Block], parts: Sequence[tuple[range, bool]]
) -> None:
    """Announce how many rows of a pass have kept sums, if there are any."""
    n_kept = sum(blocks[i].n_samples for span, is_kept in parts if is_kept for i in span)
    if n_kept:
        announce(progress.PassResumed(label, n_kept, sum(block.n_samples for block in blocks)))


class BlockFailed(Exception):  # noqa: N818  # the carrier of an error, never seen by a caller
    """Carry the error of a block, as its cause, from where the block ran.

    `worker`: where it ran; None for this process.
    """

    def __init__(self, block: Block, worker: str | None = None) -> None:
        super().__init__(block, worker)
        self.block = block
        self.worker = worker


@frozen
class Reduction[S, T]:
    """How blocks are reduced one after another, while the next one is read.

    `done`: called after each block with the seconds that it took, and those of them that it waited for rows.
    """

    function: Callable[[Block, S], T]
    state: S
    combine: Callable[[T, T], T]
    done: Callable[[Block, float, float], object]

    def run(
        self,
        blocks: Sequence[Block],
        *,
        total: list[T] | None = None,
        keeper: resuming.Keeper | None = None,
        first: int = 0,
    ) -> T:
        """Reduce a run of blocks.

        `total`: a list that holds the total of the blocks before, and in the end that of these too; empty
          before the first block.
        `keeper`: notes the total after each block but the last.
        `first`: position of the first block in the pass.
        Raises BlockFailed from what `function` raised.
        """
        adds = isinstance(self.function, BlockTask) and self.function.adds
        total = [] if total is None else total
        # Closed at once if a block fails, so that the thread that reads ahead ends.
        with contextlib.closing(_begin_ahead(self.function, blocks, self.state)) as begun:
            for stop, (block, begin) in enumerate(begun, first + 1):
                start = time.perf_counter()
                # Names that outlived the merge would keep one more result, or block, in memory.
                try:
                    finish = begin()
                    waited = time.perf_counter() - start
                    result = [finish(*total) if adds else finish()]
                    del finish
                except Exception as error:
                    raise BlockFailed(block) from error
                seconds = time.perf_counter() - start
                total[:] = result if adds or not total else [self.combine(total[0], result[0])]
                del result
                self.done(block, seconds, waited)
                if keeper is not None and stop < first + len(blocks):
                    keeper.note(stop, total[0], last=False)
        return total[0]


# Reading took 0.1 to 0.4 s of a pass over 10⁶ rows, in which no core worked.
def _begin_ahead[S, T](
    function: Callable[[Block, S], T], blocks: Sequence[Block], state: S
) -> Generator[tuple[Block, Callable[[], Callable[..., T]]]]:
    """Yield each block with a call that waits for its rows, and returns the call that finishes it.

    Meanwhile another thread reads the next one.
    """
    if len(blocks) == 1:  # starting a thread takes longer than predicting a row
        yield blocks[0], partial(protocol.begin_block, function, blocks[0], state)
        return
    context = copy_context()  # the reader sees the number of threads of `using_threads` too
    with ThreadPoolExecutor(1, "rff-dist-reader") as reader:
        coming = reader.submit(context.run, protocol.begin_block, function, blocks[0], state)
        for block, following in itertools.zip_longest(blocks, blocks[1:]):
            begun = coming
            if following is not None:
                coming = reader.submit(context.run, protocol.begin_block, function, following, state)
            yield block, begun.result  # storage bounds its reading


def failure_of(failed: BlockFailed) -> BaseException:
    """Return what to raise for a failed block: its own error with a note, or a BlockError."""
    block, cause = failed.block, failed.__cause__ or failed
    if isinstance(cause, RFFDistError):
        where = "" if failed.worker is None else f" on worker {failed.worker}"
        cause.add_note(f"raised in {name_block(block)}{where}")
        return cause
    error = block_error(name_block(block), cause)
    error.__cause__ = cause
    return error


def name_block(block: Block) -> str:
    """Name a block in messages: its index and its rows."""
    return f"block {block.index} (rows {block.start}:{block.stop})"


def block_error(name: str, error: BaseException) -> BlockError:
    """Return a BlockError for an `error` of the named blocks that is not one of this package's."""
    return BlockError(
        f"{name} failed with {type(error).__name__}: {error}; "
        "the pass has no result. Look at the cause above, and at these rows of the data"
    )


def check_blocks(blocks: Sequence[Block], label: str) -> None:
    """Raise PlanError if there is no block."""
    if not blocks:
        raise PlanError(
            f"no blocks to work on in {label!r}: 0 given, at least 1 expected; is the data empty?"
        )
