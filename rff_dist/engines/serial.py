"""The serial engine: one block after another, in this process.

It is the specification of every other engine, and its `Reduction` also sums up a run on
a worker of the Dask engine. A plain loop would not read the next block meanwhile, would
have more results in memory than planned, and its errors would not name their rows.
"""

import contextlib
import itertools
import math
import operator
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from rff_dist import checks
from rff_dist.data.blocks import Block, BlockTask
from rff_dist.engines import events, protocol, resuming
from rff_dist.errors import BlockError, PlanError, RFFDistError
from rff_dist.numerics import machine
from rff_dist.typing import frozen


class SerialEngine(protocol.Engine):
    """Run blocks one after another in this process.

    Parameters
    ----------
    n_threads : int, optional
        Threads that a block may use; all CPUs of this process by default.
    observers : iterable of callables
        Called with the events of `rff_dist.engines.events`.

    Raises
    ------
    InvalidParameterError
        If `n_threads` is no integer of at least 1.

    Examples
    --------
    >>> from rff_dist.data.blocks import cut_blocks
    >>> blocks = cut_blocks(1_000, 10, rows_per_block=300)
    >>> engine = SerialEngine(n_threads=1)
    >>> engine.map_reduce(lambda block, power: block.n_samples**power, blocks, 2)
    280000
    """

    n_workers = 1
    worker_memory = None
    is_in_process = True

    def __init__(
        self, n_threads: int | None = None, *, observers: events.Observers = ()
    ) -> None:
        if n_threads is None:
            n_threads = machine.available_cores()
        self._n_threads = checks.check_count(n_threads, "n_threads")
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
        pass_ledger = resuming.ledger_of_pass(
            self.ledger, function, blocks, shared, combine
        )
        about = partial(protocol.describe_pass, function, shared)
        with (
            events.announce_pass(self.observers, label, blocks, about) as announce,
            machine.using_threads(self.n_threads),
        ):

            def done(block: Block, seconds: float, waited: float) -> None:
                announce(events.BlockDone(label, block, seconds, "serial", waited))

            reduction = Reduction(function, shared, combine, done)
            try:
                if pass_ledger is None:
                    return reduction.run(blocks)
                runs = pass_ledger.cut(range(len(blocks)))
                announce_resumed(announce, label, blocks, runs)
                return _resume(reduction, blocks, runs, pass_ledger)
            except BlockFailed as error:
                failure = error
            # Raised outside of `except`, so that the error has no context.
            raise failure_of(failure)

    def close(self) -> None:
        """Do nothing: this engine holds no resource."""


def _resume[T](
    reduction: "Reduction[Any, T]",
    blocks: Sequence[Block],
    runs: Sequence[resuming.Run],
    pass_ledger: resuming.PassLedger,
) -> T:
    """Reduce all blocks in their order, without computing runs whose sums are kept."""
    total: list[T] = []  # of all blocks so far, in a list as in `Reduction.run`
    keeper = resuming.Keeper(pass_ledger, 0)
    for run in runs:
        first = run.positions.start
        blocks_of_run = blocks[first : run.positions.stop]
        sums = pass_ledger.find(run.positions) if run.is_kept else None
        if sums is None:
            reduction.run(blocks_of_run, total=total, keeper=keeper, first=first)
            continue
        if total:
            total[:] = [reduction.combine(total[0], sums[0])]
        else:
            total[:] = sums
        del sums
        for block in blocks_of_run:
            # its time was spent before this pass
            reduction.done(block, math.nan, 0.0)
    keeper.note(len(blocks), total[0], is_last=True)
    return total[0]


def announce_resumed(
    announce: events.Announcer,
    label: str,
    blocks: Sequence[Block],
    runs: Sequence[resuming.Run],
) -> None:
    """Announce how many rows of a pass have kept sums, if there are any."""
    n_kept = 0
    for run in runs:
        if run.is_kept:
            n_kept += sum(blocks[i].n_samples for i in run.positions)
    if n_kept:
        n_samples = sum(block.n_samples for block in blocks)
        announce(events.PassResumed(label, n_kept, n_samples))


class BlockFailed(Exception):  # noqa: N818  # the carrier of an error, never seen by a caller
    """Carries the error of a block, as its cause, from the worker or this process."""

    def __init__(self, block: Block, worker: str | None = None) -> None:
        super().__init__(block, worker)
        self.block = block
        self.worker = worker


@frozen
class Reduction[S, T]:
    """Reduces blocks one after another, while the next one is read."""

    function: Callable[[Block, S], T]
    state: S
    combine: Callable[[T, T], T]
    #: Called after each block with its seconds, and those that it waited for its rows.
    done: Callable[[Block, float, float], object]

    def run(
        self,
        blocks: Sequence[Block],
        *,
        total: list[T] | None = None,
        keeper: resuming.Keeper | None = None,
        first: int = 0,
    ) -> T:
        """Reduce a run of blocks that begins at position `first` of the pass.

        The list `total` has the total of earlier blocks, or is empty; at the end it has
        the total of these blocks too. It is a list so that no other name keeps an old
        total in memory. `keeper` notes the total after each block but the last. Raises
        BlockFailed from the error of `function`.
        """
        adds = isinstance(self.function, BlockTask) and self.function.adds
        total = [] if total is None else total
        # Closed at once if a block fails, so that the thread that reads ahead ends.
        with contextlib.closing(
            _begin_ahead(self.function, blocks, self.state)
        ) as begun:
            for stop, (block, begin) in enumerate(begun, first + 1):
                start = time.perf_counter()
                # Names are deleted before the next step: each would keep one more
                # result, or block, in memory.
                try:
                    finish = begin()
                    waited = time.perf_counter() - start
                    result = [finish(*total) if adds else finish()]
                    del finish
                except Exception as error:
                    raise BlockFailed(block) from error
                seconds = time.perf_counter() - start
                if total and not adds:
                    result = [self.combine(total[0], result[0])]
                total[:] = result
                del result
                self.done(block, seconds, waited)
                if keeper is not None and stop < first + len(blocks):
                    keeper.note(stop, total[0], is_last=False)
        return total[0]


# Without reading ahead, passes over 10⁶ rows waited 0.1 to 0.4 s for rows, cores idle.
def _begin_ahead[S, T](
    function: Callable[[Block, S], T], blocks: Sequence[Block], state: S
) -> Generator[tuple[Block, Callable[[], Callable[..., T]]]]:
    """Yield each block with a call that waits for its rows.

    That call returns another one, which does the rest. Meanwhile another thread reads
    the next block.
    """
    if len(blocks) == 1:  # starting a thread takes longer than predicting a row
        yield blocks[0], partial(protocol.begin_block, function, blocks[0], state)
        return
    # with the context, the reader's thread has the number of threads by `using_threads`
    context = copy_context()
    with ThreadPoolExecutor(1, "rff-dist-reader") as reader:

        def read(block: Block) -> Future[Callable[..., T]]:
            return reader.submit(
                context.run, protocol.begin_block, function, block, state
            )

        next_reading = read(blocks[0])
        for block, next_block in itertools.zip_longest(blocks, blocks[1:]):
            reading = next_reading
            if next_block is not None:
                next_reading = read(next_block)
            yield block, reading.result  # no time-out: storage bounds each read


def failure_of(failed: BlockFailed) -> BaseException:
    """Return a failed block's own error with a note, or a BlockError."""
    name = name_block(failed.block)
    cause = failed.__cause__ or failed
    if isinstance(cause, RFFDistError):
        where = "" if failed.worker is None else f" on worker {failed.worker}"
        cause.add_note(f"raised in {name}{where}")
        return cause
    error = block_error(name, cause)
    error.__cause__ = cause
    return error


def name_block(block: Block) -> str:
    """Name a block in messages: its index and its rows."""
    return f"block {block.index} (rows {block.start}:{block.stop})"


def block_error(name: str, error: BaseException) -> BlockError:
    """Return a BlockError for the error of another package."""
    return BlockError(
        f"{name} failed with {type(error).__name__}: {error}; "
        "the pass has no result. Look at the cause above, and at these rows of the data"
    )


def check_blocks(blocks: Sequence[Block], label: str) -> None:
    """Raise PlanError if there is no block."""
    if not blocks:
        raise PlanError(
            f"no blocks to work on in {label!r}: 0 given, at least 1 expected; is the"
            " data empty?"
        )
