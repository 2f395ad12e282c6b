"""One pass on a Dask cluster, as its client sees it: blocks go in, their sum comes out.

A *run* is consecutive blocks. A task sums up a run and adds its worker's total so far,
which is the result of the worker's last task. So each worker has a *chain* of tasks.
When no block remains, the chains' totals are merged two at a time. The simple version,
a task for each block and a tree of merges (cubed has it in 250 lines), would lack three
things:

- No worker has more sums in memory than was planned for, see the room's `__init__`.
- When a worker dies, exactly the blocks in its total and in its runs are summed again.
- Frozen workers, and workers that do not reach each other, cannot stop the pass.
"""

# mypy: allow-untyped-calls, disable-error-code="no-any-return"

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from dataclasses import dataclass, field, replace
from typing import Any

import dask.config
import distributed
from dask.base import annotate
from distributed.scheduler import KilledWorker

from rff_dist.data.blocks import Block
from rff_dist.engines import dask_workers, events, fetching_totals, serial, tracing
from rff_dist.engines.fetching_totals import TotalLostError
from rff_dist.engines.partitions import PartitionTasks
from rff_dist.engines.resuming import Run
from rff_dist.engines.runs import RunQueue
from rff_dist.engines.worker import (
    BlockRun,
    PassDefinition,
    SumsLostError,
    Timing,
    run_blocks,
)
from rff_dist.errors import BlockError, ClusterError, RFFDistError

type Future = distributed.Future[Any]

#: If a run takes fewer seconds, the worker gets the next one before it ends, so that it
#: does not wait for messages.
SHORT_S = 0.2
#: After its worker died, a run is given out again in so many parts: one of its blocks
#: may have killed the worker.
PARTS = 16


@dataclass(slots=True, eq=False)
class _Task:
    """A submitted task, which adds a run, or the total of another chain, to a total."""

    future: Future
    addend: Run | _Chain


@dataclass(slots=True, eq=False)
class _Chain:
    """A worker's tasks, each of which continues the total of the one before."""

    #: None if the total is now on another worker, or on none.
    worker: str | None
    #: The last finished total; None before the first.
    total: Future | None = None
    #: The runs in that total.
    runs: list[Run] = field(default_factory=list)
    #: Submitted tasks that are not done, in their order.
    tasks: deque[_Task] = field(default_factory=deque)
    #: Whether a task of another chain adds this total to its own.
    is_being_merged: bool = False
    #: False after a failed merge: the two workers do not reach each other, and the
    #: client fetches this total.
    is_mergeable: bool = True

    @property
    def is_idle(self) -> bool:
        return not self.tasks and not self.is_being_merged

    @property
    def has_lost_total(self) -> bool:
        """Whether no worker has its total, or there is none yet.

        A worker that retires hands its total to another one first.
        """
        return self.total is None or self.total.status != "finished"

    @property
    def merged_chain(self) -> _Chain | None:
        """The chain whose total is being merged into this one."""
        for task in self.tasks:
            if isinstance(task.addend, _Chain):
                return task.addend
        return None

    def stop(self) -> list[Run]:
        """Give up the unfinished tasks, and return their runs."""
        runs = []
        # All are released: a task that waits for an earlier one would keep its result
        # in memory.
        for task in self.tasks:
            task.future.release()
            if isinstance(task.addend, _Chain):
                task.addend.is_being_merged = False
            else:
                runs.append(task.addend)
        self.tasks.clear()
        return runs


#: A task to start: its chain, the run or chain that it adds, and its arguments.
type _Submission = tuple[_Chain, Run | _Chain, list[Any]]


class Pass:
    """A pass, and which worker has summed up which of its blocks.

    Tasks are bound to the worker of their chain. So they run one after another, and
    when the worker dies the scheduler runs none of them elsewhere.

    A task finds its chain's last total on its worker, by the number of the task that
    made it. It gets the total as an argument only if that is not done yet: the
    scheduler keeps arguments, and their arguments in turn, until the pass ends. If Dask
    moved the total, or another worker has the address by now, the total is fetched from
    its worker, or is lost.
    """

    def __init__(
        self,
        workers: dask_workers.Workers,
        blocks: Sequence[Block],
        *,
        client: distributed.Client,
        definition: PassDefinition,
        placed_definition: Future,
        placed_state: Future,
        partitions: PartitionTasks | None,
    ) -> None:
        self._workers = workers
        self._blocks = blocks
        self._client = client
        self._definition = definition
        self._placed = placed_definition, placed_state
        #: The dataset's partitions, if it is made of Dask collections.
        self._partitions = partitions
        self._chains: list[_Chain] = []
        #: Threads of each worker at the last look.
        self._present: Mapping[str, int] = {}
        self._n_tasks = 0
        self._n_deaths_in_merges = 0
        #: 1 for each block that the caller knows to be done.
        self._is_reported = bytearray(len(blocks))
        #: Reports of workers on blocks; None when a task is done.
        self._news: queue.SimpleQueue[tuple[str, list[Timing]] | None] = (
            queue.SimpleQueue()
        )
        self._queue = RunQueue(len(blocks), definition.pass_ledger, partitions)
        #: All blocks, with whether their sums were kept before the pass.
        self.first_runs = self._queue.cut(range(len(blocks)))
        self._queue.put(self.first_runs)

    def note(self, worker: str, timings: list[Timing]) -> None:
        """Note that a worker has done some blocks; any thread may call this."""
        self._news.put((worker, timings))

    def sum_up(self) -> Iterator[events.BlockDone | events.PassMerging]:
        """Sum up all blocks; yield an event for each, and one when only merges remain.

        `result` calls it again if a total is lost after all blocks were summed.
        """
        self._workers.look()
        self._give_out_lost_blocks()

        is_merging = False
        while not self._is_complete():
            self._start_runs()
            if not self._queue:
                self._start_merges()
            yield from self._take_news()
            self._give_out_lost_blocks()

            if all(self._is_reported) and not is_merging:
                is_merging = True
                yield events.PassMerging(self._definition.label, len(self._chains))

    def _is_complete(self) -> bool:
        if self._queue or not self._chains:
            return False
        if not all(chain.is_idle and chain.total is not None for chain in self._chains):
            return False
        return sum(chain.is_mergeable for chain in self._chains) < 2

    def result(self) -> Any:
        """Fetch the total of all blocks; add up totals that workers could not merge."""
        while True:
            runs = [run for chain in self._chains for run in chain.runs]
            assert sum(len(run.positions) for run in runs) == len(self._blocks)

            total: list[Any] = []  # empty, or the sum of the fetched totals
            for chain in list(self._chains):
                fetched = self._fetch(chain)
                if not fetched:
                    break
                if total:
                    fetched = [self._definition.combine(total[0], fetched[0])]
                total = fetched
                # otherwise this name keeps one more total in memory
                del fetched
            else:
                return total[0]

            # A total was lost: sum its blocks up again.
            deque(self.sum_up(), maxlen=0)

    def _fetch(self, chain: _Chain) -> list[Any]:
        """Return a chain's total in a list, which is empty if any total was lost."""
        assert chain.total is not None
        loop: Any = self._client.loop
        fetching = asyncio.run_coroutine_threadsafe(
            fetching_totals.fetch_for_client(self._client, chain.total),
            loop.asyncio_loop,
        )
        try:
            # A worker may die meanwhile, so this is watched like the pass.
            while self._is_complete():
                wait([fetching], timeout=dask_workers.POLL_S)
                if fetching.done():
                    with (
                        self._workers.lost_cluster_errors(only_talks=True),
                        contextlib.suppress(TotalLostError),
                    ):
                        return [fetching.result()]
                    self._give_out_again()
                    break
                self._give_out_lost_blocks()
            return []
        finally:
            fetching.cancel()
            # Its error's traceback has this frame: a cycle that would keep the pass in
            # memory.
            del fetching

    def release(self) -> None:
        """Let the scheduler forget this pass's tasks, also ones that have not begun."""
        # Not by `Client.cancel`: for a task that is forgotten already, an assertion in
        # the scheduler (2026.8) fails, and it drops the client.
        for chain in self._chains:
            chain.stop()
            if chain.total is not None:
                chain.total.release()
        self._chains.clear()
        if self._partitions is not None:
            self._partitions.release()

    # -- give out work

    def _start_runs(self) -> None:
        """Give runs to all workers that may take one."""
        while self._queue:
            free = self._free_chains()
            if not free:
                return
            submissions: list[_Submission] = []
            for chain in free:
                if not self._queue:
                    break
                run = self._queue.take(len(self._present))
                submissions.append((chain, run, self._arguments(chain, run)))
                is_new = chain.total is None and not chain.tasks
                if is_new:
                    self._chains.append(chain)
            self._submit(submissions)

    def _free_chains(self) -> list[_Chain]:
        """Return the chains with the fewest unfinished tasks that may take a run."""
        chain_of: dict[str | None, _Chain] = {}
        busy = set()
        for chain in self._chains:
            chain_of.setdefault(chain.worker, chain)
            if not self._may_take_run(chain):
                busy.add(chain.worker)
        free = [
            chain_of.get(worker) or _Chain(worker)
            for worker in self._present
            if worker not in busy
        ]
        fewest = min((len(chain.tasks) for chain in free), default=0)
        return [chain for chain in free if len(chain.tasks) == fewest]

    def _may_take_run(self, chain: _Chain) -> bool:
        if chain.is_idle:
            return True
        if chain.is_being_merged or len(chain.tasks) > 1:
            return False
        run = chain.tasks[0].addend
        if isinstance(run, _Chain):
            return False
        # While the worker sums a run, other tasks make the next run's partitions.
        if self._partitions is not None:
            return True
        return len(run.positions) * self._queue.seconds_per_block < SHORT_S

    def _arguments(self, chain: _Chain, run: Run) -> list[Any]:
        """Return arguments of `run_blocks` for a run that continues a chain."""
        first = run.positions.start
        blocks = self._blocks[first : run.positions.stop]
        arguments: list[Any] = [BlockRun(first, blocks, run.is_kept)]
        if chain.tasks:
            arguments += [[], [chain.tasks[-1].future]]
        else:
            arguments += [_task_numbers(chain), []]
        if self._partitions is not None:
            arguments += self._partitions.of_run(blocks, self._workers.where())
        return arguments

    def _start_merges(self) -> None:
        """Merge the totals of workers without work, two at a time."""
        idle = [
            chain
            for chain in self._chains
            if chain.is_idle and chain.is_mergeable and chain.total is not None
        ]
        # Totals on present workers are last, so that they are popped first, and the
        # merge runs on their worker.
        idle.sort(key=lambda chain: chain.worker in self._present)
        submissions: list[_Submission] = []
        while len(idle) > 1 and self._present:
            chain = idle.pop()
            other = idle.pop()
            if chain.worker not in self._present:
                chain.worker = next(iter(self._present))
            other.is_being_merged = True
            numbers = _task_numbers(chain, other)
            submissions.append((chain, other, [BlockRun(0, []), numbers]))
        if submissions:
            self._submit(submissions)

    def _submit(self, submissions: Sequence[_Submission]) -> None:
        name = f"{self._definition.label}-{self._definition.token}"
        worker_of = {}
        rows = []
        for chain, _, arguments in submissions:
            worker_of[name, self._n_tasks] = [chain.worker]
            rows.append([*self._placed, *arguments])
            self._n_tasks += 1

        # One message for all takes 1.1 ms of the scheduler's time per task; one for
        # each would take 2.0.
        with annotate(workers=worker_of.__getitem__):
            futures = self._client.map(
                run_blocks,
                *map(list, zip(*rows, strict=True)),
                key=list(worker_of),
                pure=False,
            )
        news = self._news
        for future, (chain, addend, _) in zip(futures, submissions, strict=True):
            chain.tasks.append(_Task(future, addend))
            # Not a method of this object: a cycle of references would keep the futures
            # until garbage is collected.
            future.add_done_callback(lambda _: news.put(None))

    # -- take in results

    def _take_news(self) -> Iterator[events.BlockDone]:
        """Wait for news, and take in all news."""
        news = []
        with contextlib.suppress(queue.Empty):
            news.append(self._news.get(timeout=dask_workers.POLL_S))
        # Ends of tasks are read before the rest of the news. So the news have all
        # reports of these tasks, which they sent before their end.
        done = {
            task.future.key
            for chain in self._chains
            for task in chain.tasks
            if task.future.done()
        }
        with contextlib.suppress(queue.Empty):
            while True:
                news.append(self._news.get_nowait())

        for report in news:
            if report is not None:
                worker, timings = report
                self._queue.time([seconds for _, seconds, _ in timings])
                yield from self._report(worker, timings)
        for chain in list(self._chains):
            for run in self._advance(chain, done):
                timings = [(position, math.nan, 0.0) for position in run.positions]
                yield from self._report("unknown", timings)

    def _report(
        self, worker: str, timings: Iterable[Timing]
    ) -> Iterator[events.BlockDone]:
        for position, seconds, waited in timings:
            if not self._is_reported[position]:
                self._is_reported[position] = 1
                block = self._blocks[position]
                label = self._definition.label
                yield events.BlockDone(label, block, seconds, worker, waited)

    def _advance(self, chain: _Chain, done: Container[Any]) -> Iterator[Run]:
        """Take over finished totals of a chain, in order; yield the runs in them."""
        while chain.tasks and chain.tasks[0].future.key in done:
            task = chain.tasks[0]
            addend = task.addend

            # A total was out of reach: in a merge the workers do not reach each other,
            # in a run the chain's own total is not on its worker.
            if _has_failed(task.future, TotalLostError):
                if isinstance(addend, _Chain):
                    chain.is_mergeable = False
                    addend.is_mergeable = False
                    chain.stop()
                else:
                    chain.worker = None
                self._give_out_again()
                return

            # The ledger has lost the sums of this run: it is summed again.
            if isinstance(addend, Run) and _has_failed(task.future, SumsLostError):
                _, *waiting = chain.stop()
                if chain.total is None:
                    self._chains.remove(chain)
                self._queue.put([replace(addend, is_kept=False)])
                for run in waiting:
                    self._put_back(run)
                return

            self._check(task)
            chain.tasks.popleft()
            chain.total = task.future
            if isinstance(addend, _Chain):
                chain.runs += addend.runs
                self._chains.remove(addend)
            else:
                chain.runs.append(addend)
                yield addend

    # -- give out work again

    def _give_out_lost_blocks(self) -> None:
        """Look for workers that are gone, and give out their blocks again."""
        present = self._workers.current()
        self._workers.check_patience()
        # Another object means that the scheduler has answered since.
        if present is not self._present:
            self._present = present
            self._give_out_again()

    def _give_out_again(self) -> None:
        """Give out again the blocks of workers that are gone or lost their total."""
        for chain in list(self._chains):
            if chain.total is not None and _has_failed(chain.total, TotalLostError):
                chain.worker = None
            other = chain.merged_chain
            if chain.worker not in self._present:
                self._n_deaths_in_merges += other is not None
                for i, run in enumerate(chain.stop()):
                    # only the first had begun, and may have killed the worker
                    self._put_back(run, has_killed=i == 0)
            elif other is not None and (chain.has_lost_total or other.has_lost_total):
                chain.stop()
        if self._n_deaths_in_merges > _allowed_deaths():
            raise _killed(ClusterError, "a merge of partials", self._n_deaths_in_merges)

        for chain in list(self._chains):
            is_gone = chain.worker not in self._present
            if is_gone and chain.is_idle and chain.has_lost_total:
                self._chains.remove(chain)
                if chain.total is not None:
                    chain.total.release()
                for run in chain.runs:
                    self._put_back(run)

    def _put_back(self, run: Run, *, has_killed: bool = False) -> None:
        """Put a run back into the queue, in parts if it may have killed its worker."""
        positions = run.positions
        tracing.tell("given out again", blocks=len(positions))
        n_deaths = run.n_deaths + has_killed
        # A run of several blocks is cut first, until the block that kills workers is
        # alone.
        if n_deaths > _allowed_deaths() and len(positions) == 1:
            raise _killed(BlockError, self._name_blocks(positions), n_deaths)

        # Kept sums may have killed the worker that read them: they are summed again.
        if run.is_kept and has_killed:
            runs = [Run(positions)]
        else:
            runs = self._queue.cut(positions)
        length = len(positions)
        if has_killed:
            length = math.ceil(length / PARTS)
        parts = []
        for whole in runs:
            step = len(whole.positions) if whole.is_kept else length
            for i in range(0, len(whole.positions), step):
                part = whole.positions[i : i + step]
                parts.append(Run(part, whole.is_kept, n_deaths))
        self._queue.put(parts)

    # -- errors

    def _check(self, task: _Task) -> None:
        """Raise the error of a failed task."""
        future = task.future
        if future.status == "cancelled":
            raise CancelledError(f"the task {future.key} was cancelled")
        if future.status != "error":
            return

        error = future.exception()
        if isinstance(error, serial.BlockFailed):
            raise serial.failure_of(error)
        if isinstance(task.addend, _Chain):
            if isinstance(error, KilledWorker):
                n_deaths = error.allowed_failures + 1
                raise _killed(ClusterError, "a merge of partials", n_deaths) from error
            raise error

        name = self._name_blocks(task.addend.positions)
        if isinstance(error, KilledWorker):
            raise _killed(BlockError, name, error.allowed_failures + 1) from error
        # an error of a task that made a partition of a Dask collection
        if self._partitions is not None and not isinstance(error, RFFDistError):
            raise serial.block_error(name, error) from error
        raise error

    def _name_blocks(self, positions: range) -> str:
        first = self._blocks[positions[0]]
        last = self._blocks[positions[-1]]
        if first is last:
            return serial.name_block(first)
        return f"blocks {first.index} to {last.index} (rows {first.start}:{last.stop})"


def _task_numbers(*chains: _Chain) -> list[int]:
    """Return the numbers of the tasks whose results are the chains' totals."""
    keys: list[Any] = [chain.total.key for chain in chains if chain.total is not None]
    return [number for _, number in keys]


def _has_failed(future: Future, kind: type[Exception]) -> bool:
    return future.status == "error" and isinstance(future.exception(), kind)


def _allowed_deaths() -> int:
    """Return how many workers may die of the same work, as Dask counts its tasks."""
    return int(dask.config.get("distributed.scheduler.allowed-failures"))


def _killed(kind: type[RFFDistError], work: str, n_deaths: int) -> RFFDistError:
    return kind(
        f"{work} was running on {n_deaths} workers when they died; the pass has no"
        " result. If no one stopped them, give the workers more memory, or look at"
        " these rows of the data and at the workers' logs"
    )
