"""One pass on a cluster: each worker's total, the runs of blocks that continue it, and the result."""

# mypy: allow-untyped-calls

from __future__ import annotations

import asyncio
import contextlib
import math
import operator
import queue
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import cloudpickle  # type: ignore[import-untyped]
import dask.config
import distributed
from dask.base import annotate
from distributed.scheduler import KilledWorker

from rff_dist.data.blocks import Block
from rff_dist.engines import dask_workers, progress, resuming, serial, tracing
from rff_dist.engines.partitions import PartitionTasks
from rff_dist.engines.worker import PassTask, SumsLostError, TotalLostError, fetch_total, pack, run_blocks
from rff_dist.errors import BlockError, ClusterError, ClusterLostError, RFFDistError
from rff_dist.typing import frozen

type Future = distributed.Future[Any]

#: Seconds of the longest run, judged by the blocks seen so far: a run begins again when its worker dies.
RUN_S = 60.0
#: If a run takes fewer seconds, the worker gets the next one before it ends, to hide the way there and back.
SHORT_S = 0.2
#: Parts in which a run is given out again after its worker died: one of its blocks may have killed it.
PARTS = 16
#: Bytes of the pieces in which a result comes by way of the scheduler, if its worker is out of reach.
PIECE_BYTES = 2**25


@frozen
class Tasks:
    """What the tasks of a pass are made of.

    `task`: what all tasks share.
    `job`, `state`: `task` and the function's state, as results of tasks on the workers.
    `partitions`: those of the dataset, if it is made of Dask collections; else None.
    """

    client: distributed.Client
    task: PassTask
    job: Future
    state: Future
    partitions: PartitionTasks | None


@frozen
class _Share:
    """Consecutive blocks by their positions, and how many workers died while they ran them.

    `is_kept`: whether a ledger has their sums, so that they stay together.
    """

    positions: range
    n_deaths: int = 0
    is_kept: bool = False


@dataclass(slots=True, eq=False)
class _Chain:
    """A worker's total, and the tasks under way that will make its next ones.

    `worker`: None where the total is on another worker, or on none.
    `total`: the latest total that is done; None before the first.
    `shares`: the blocks in the total.
    `tasks`: runs under way, in their order, each with its blocks; or a merge, with the chain whose total it
      adds. Each continues the total before it.
    `is_taken`: whether the total is being merged into another chain's.
    `is_apart`: whether a merge of it failed, as between workers that do not reach one another, so that the
      client fetches this total.
    """

    worker: str | None
    total: Future | None = None
    shares: list[_Share] = field(default_factory=list)
    tasks: deque[tuple[Future, _Share | _Chain]] = field(default_factory=deque)
    is_taken: bool = False
    is_apart: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self.tasks and not self.is_taken

    @property
    def has_no_total(self) -> bool:
        """Whether no worker has its total, or none any more. Workers that retire hand totals on before."""
        return self.total is None or self.total.status != "finished"

    @property
    def merged(self) -> _Chain | None:
        """The chain whose total is being merged into this one."""
        return next((what for _, what in self.tasks if isinstance(what, _Chain)), None)

    def stop(self) -> list[_Share]:
        """Give up what is under way, and return its blocks; totals can then be merged with others."""
        shares = []
        for future, what in self.tasks:  # all of them, because a run that waits for another keeps it too
            future.release()
            if isinstance(what, _Chain):
                what.is_taken = False
            else:
                shares.append(what)
        self.tasks.clear()
        return shares


class _Queue:
    """The blocks that are still to be given out, and how long a block takes."""

    def __init__(self, n_blocks: int, tasks: Tasks) -> None:
        self._n_blocks, self._tasks = n_blocks, tasks
        self._seconds, self._n_timed = 0.0, 0
        self._shares: list[_Share] = []

    def __len__(self) -> int:
        return sum(len(share.positions) for share in self._shares)

    @property
    def seconds_per_block(self) -> float:
        """Mean of the blocks that were timed; `RUN_S` before the first, so that runs begin short."""
        return self._seconds / self._n_timed if self._n_timed else RUN_S

    def time(self, seconds: Sequence[float]) -> None:
        """Note how long some blocks took."""
        self._seconds += sum(seconds)
        self._n_timed += len(seconds)

    def cut(self, positions: range) -> list[tuple[range, bool]]:
        """Cut consecutive blocks into parts, each with whether its sums are kept."""
        kept = self._tasks.task.kept
        return [(positions, False)] if kept is None else kept.cut(positions)

    def put(self, parts: Sequence[tuple[range, bool]], n_deaths: int = 0) -> None:
        """Add parts, to be given out before all others: first those that are kept, then by their rows."""
        # `take` pops from the end
        shares = [_Share(positions, n_deaths, is_kept) for positions, is_kept in reversed(parts)]
        self._shares += sorted(shares, key=lambda share: share.is_kept)

    def take(self, n_workers: int) -> _Share:
        """Take the blocks of the next run: long ones first and short ones last, so that workers end together.

        Polychronopoulos & Kuck (1987), guided self-scheduling. Blocks of one partition of a Dask collection
        stay together, so that it is computed once.
        """
        length = len(self) // (2 * n_workers)
        if self.seconds_per_block > 0:
            longest = RUN_S / self.seconds_per_block
            # With a ledger each run leaves a file, so runs are few and long; little dies with a worker.
            if self._tasks.task.kept is not None:
                longest = max(longest, self._n_blocks / resuming.MOST_RUNS)
            length = min(length, int(longest))
        share = self._shares.pop()
        if share.is_kept:
            return share
        if self._tasks.partitions is not None:
            length = self._tasks.partitions.run_length(share.positions)
        length = max(1, length)
        first, rest = share.positions[:length], share.positions[length:]
        if rest:
            self._shares.append(_Share(rest, share.n_deaths))
        return _Share(first, share.n_deaths)


class Pass:
    """A pass as the client tracks it: which worker has summed up which blocks.

    A worker's tasks are pinned to it, and each continues the result of the one before. So they run one after
    another, and when the worker dies the scheduler runs none of them elsewhere: the client gives out again
    the blocks of its total and of its runs.
    A run finds the total before it by name on its worker. It gets it as an argument only if it is not done
    yet: the scheduler would keep an argument, and all before it, until the pass ends. If the total is not
    there, because Dask moved it or another worker has the address by now, it is merged from where it is, or
    counts as lost.
    """

    def __init__(self, workers: dask_workers.Workers, blocks: Sequence[Block], *, tasks: Tasks) -> None:
        self._workers, self._blocks, self._tasks = workers, blocks, tasks
        self._chains: list[_Chain] = []
        self._present: Mapping[str, int] = {}
        self._n_tasks = 0
        self._n_dead_merges = 0
        self._told = bytearray(len(blocks))
        #: What workers told; None when a task is done.
        self._news: queue.SimpleQueue[tuple[str, list[tuple[int, float, float]]] | None] = queue.SimpleQueue()
        self._queue = _Queue(len(blocks), tasks)
        #: All blocks, in parts with whether their sums were kept before the pass.
        self.parts = self._queue.cut(range(len(blocks)))
        self._queue.put(self.parts)

    def note(self, worker: str, timings: list[tuple[int, float, float]]) -> None:
        """Note blocks that a worker has done: position, seconds, seconds waited. Any thread may call this."""
        self._news.put((worker, timings))

    def events(self) -> Iterator[progress.BlockDone | progress.PassMerging]:
        """Have all blocks summed up; yield each when it is done, then how many totals are to be merged."""
        self._workers.look()
        self._look_for_lost()  # also if all blocks were summed, and a total was lost before it was fetched
        is_told = False
        while not self._is_complete():
            self._give_out()
            yield from self._take_in()
            if all(self._told) and not is_told:
                is_told = True
                yield progress.PassMerging(self._tasks.task.label, len(self._chains))

    def result(self) -> Any:
        """Fetch the total of all blocks, or those that workers could not merge, and add them."""
        while True:
            n_blocks = sum(len(share.positions) for chain in self._chains for share in chain.shares)
            assert n_blocks == len(self._blocks)
            total: list[Any] = []
            for chain in list(self._chains):
                if not (fetched := self._fetched(chain)):
                    break
                total = [self._tasks.task.combine(total[0], fetched[0])] if total else fetched
                del fetched
            else:
                return total[0]
            deque(self.events(), maxlen=0)

    def _fetched(self, chain: _Chain) -> list[Any]:
        """Fetch a total; returns nothing if any was lost meanwhile."""
        # A worker may die before its result is fetched, so the fetch is watched like the pass.
        loop = cast("Any", self._tasks.client.loop).asyncio_loop
        fetching = asyncio.run_coroutine_threadsafe(self._fetch(chain), loop)
        try:
            while self._is_complete():
                wait([fetching], timeout=dask_workers.POLL_S)
                if fetching.done():
                    with self._workers.errors(talking=True), contextlib.suppress(TotalLostError):
                        return [fetching.result()]
                    self._give_up_lost()
                    break
                self._look_for_lost()
            return []
        finally:
            fetching.cancel()
            del fetching  # else a cycle, from its error's traceback to this frame, keeps the pass alive

    def release(self) -> None:
        """Tell the scheduler that no one wants this pass's tasks, so that it does not run the rest."""
        # Not by `Client.cancel`: if a task was forgotten already, it fails an assertion in the scheduler
        # (2026.8), which then drops the client.
        for chain in self._chains:
            chain.stop()
            if chain.total is not None:
                chain.total.release()
        self._chains.clear()
        if self._tasks.partitions is not None:
            self._tasks.partitions.release()

    # -- what is given out -----------------------------------------------------------------------------

    def _give_out(self) -> None:
        self._look_for_lost()
        while self._queue and (free := self._free_workers()):
            self._start_runs([(chain, self._queue.take(len(self._present))) for chain in free if self._queue])
        if not self._queue:
            self._merge_idle()

    def _free_workers(self) -> list[_Chain]:
        """Return the chains of the workers that may be given a run and have the fewest under way."""
        chains: dict[str | None, _Chain] = {}
        closed = set()
        for chain in self._chains:
            chains.setdefault(chain.worker, chain)
            if not self._may_run(chain):
                closed.add(chain.worker)
        free = [chains.get(worker) or _Chain(worker) for worker in self._present if worker not in closed]
        least = min((len(chain.tasks) for chain in free), default=0)
        return [chain for chain in free if len(chain.tasks) == least]

    def _may_run(self, chain: _Chain) -> bool:
        if chain.is_idle:
            return True
        if chain.is_taken or len(chain.tasks) > 1 or isinstance(share := chain.tasks[0][1], _Chain):
            return False
        expected = len(share.positions) * self._queue.seconds_per_block
        return self._tasks.partitions is not None or expected < SHORT_S

    def _start_runs(self, runs: Sequence[tuple[_Chain, _Share]]) -> None:
        """Start a run on each chain's worker."""
        submissions = []
        for chain, share in runs:
            blocks = self._blocks[share.positions.start : share.positions.stop]
            before = [future for future, _ in chain.tasks][-1:]
            names = [] if before else _names_of_totals(chain)
            arguments = [share.positions.start, blocks, names, before, share.is_kept]
            if self._tasks.partitions is not None:
                arguments += self._tasks.partitions.of_run(blocks, self._workers.where())
            submissions.append((chain, share, arguments))
            if chain.total is None and not chain.tasks:  # it is new
                self._chains.append(chain)
        self._submit(submissions)

    def _submit(self, submissions: Sequence[tuple[_Chain, _Share | _Chain, Sequence[Any]]]) -> None:
        """Run tasks on their chains' workers. `submissions`: chain, what it adds to the total, arguments."""
        tasks, n_before = self._tasks, self._n_tasks
        self._n_tasks += len(submissions)
        name = f"{tasks.task.label}-{tasks.task.number}"
        keys = [(name, number) for number in range(n_before, self._n_tasks)]
        workers = {key: [chain.worker] for key, (chain, *_) in zip(keys, submissions, strict=True)}
        arguments = zip(*((tasks.job, tasks.state, *rest) for *_, rest in submissions), strict=True)
        # A message for each would take 2.0 ms of the scheduler's time a task, this takes 1.1.
        with annotate(workers=workers.__getitem__):
            futures = tasks.client.map(run_blocks, *map(list, arguments), key=keys, pure=False)
        news = self._news
        for future, (chain, what, _) in zip(futures, submissions, strict=True):
            chain.tasks.append((future, what))
            # Not a method of this object: a cycle of references would keep the futures until it is collected.
            future.add_done_callback(lambda _: news.put(None))

    def _merge_idle(self) -> None:
        """Merge the totals of workers without work, two at a time."""
        near = [chain for chain in self._chains if chain.is_idle and not chain.is_apart]
        idle = [chain for chain in near if chain.total is not None]
        # totals on workers that are there come last and are popped first: the merge runs where they are
        idle.sort(key=lambda chain: chain.worker in self._present)
        merges = []
        while len(idle) > 1 and self._present:
            left, right = idle.pop(), idle.pop()
            if left.worker not in self._present:
                left.worker = next(iter(self._present))
            right.is_taken = True
            merges.append((left, right, [0, [], _names_of_totals(left, right), []]))
        if merges:
            self._submit(merges)

    # -- what comes back -------------------------------------------------------------------------------

    def _is_complete(self) -> bool:
        are_totals = all(chain.is_idle and chain.total is not None for chain in self._chains)
        n_to_merge = sum(not chain.is_apart for chain in self._chains)
        return not self._queue and len(self._chains) > 0 and are_totals and n_to_merge < 2

    def _take_in(self) -> Iterator[progress.BlockDone]:
        """Wait for news, and take in all that there are, so that one look for free workers serves all."""
        news = []
        with contextlib.suppress(queue.Empty):
            news.append(self._news.get(timeout=dask_workers.POLL_S))
        # Looked at first: what a task told before its end is then among the news.
        done = {future.key for chain in self._chains for future, _ in chain.tasks if future.done()}
        with contextlib.suppress(queue.Empty):
            while True:
                news.append(self._news.get_nowait())
        for worker, timings in filter(None, news):
            self._queue.time([seconds for _, seconds, _ in timings])
            yield from self._untold(worker, timings)
        for chain in [chain for chain in self._chains if chain.tasks and chain.tasks[0][0].key in done]:
            for share in self._advance(chain, done):
                yield from self._untold("unknown", ((i, math.nan, 0.0) for i in share.positions))

    def _advance(self, chain: _Chain, done: Container[Any]) -> Iterator[_Share]:
        """Take over the totals that are done, in their order, and yield the blocks that they add."""
        while chain.tasks and chain.tasks[0][0].key in done:
            future, what = chain.tasks[0]
            if _has_failed(future, TotalLostError):
                if isinstance(what, _Chain):
                    chain.is_apart = what.is_apart = True
                    chain.stop()
                else:
                    chain.worker = None
                self._give_up_lost()
                return
            if isinstance(what, _Share) and _has_failed(future, SumsLostError):
                _, *waiting = chain.stop()
                if chain.total is None:
                    self._chains.remove(chain)
                self._queue.put([(what.positions, False)], what.n_deaths)
                self._give_again(waiting)
                return
            self._check(future, what)
            chain.tasks.popleft()
            chain.total = future
            if isinstance(what, _Chain):
                chain.shares += what.shares
                self._chains.remove(what)
            else:
                chain.shares.append(what)
                yield what

    def _untold(self, worker: str, timings: Any) -> Iterator[progress.BlockDone]:
        for position, seconds, waited in timings:
            if not self._told[position]:
                self._told[position] = 1
                block = self._blocks[position]
                yield progress.BlockDone(self._tasks.task.label, block, seconds, worker, waited)

    def _look_for_lost(self) -> None:
        """Look for workers that are gone, and give out again what was on them."""
        present = self._workers.current()
        self._workers.check_patience()
        if present is not self._present:  # every look at the cluster makes a new mapping
            self._present = present
            self._give_up_lost()

    def _give_up_lost(self) -> None:
        """Give out again what was on workers that are gone or have lost their total."""
        for chain in list(self._chains):
            if chain.total is not None and _has_failed(chain.total, TotalLostError):
                chain.worker = None
            if chain.worker not in self._present:
                self._n_dead_merges += chain.merged is not None
                begun, waiting = (shares := chain.stop())[:1], shares[1:]
                self._give_again(begun, n_deaths=1)  # only this one may have killed the worker
                self._give_again(waiting)
            elif (other := chain.merged) is not None and (chain.has_no_total or other.has_no_total):
                chain.stop()
        if self._n_dead_merges > _allowed_deaths():
            raise _killed(ClusterError, "a merge of partials", self._n_dead_merges)
        for chain in list(self._chains):
            if chain.worker not in self._present and chain.is_idle and chain.has_no_total:
                self._chains.remove(chain)
                if chain.total is not None:
                    chain.total.release()
                self._give_again(chain.shares)

    def _give_again(self, shares: Sequence[_Share], *, n_deaths: int = 0) -> None:
        for share in shares:
            total_deaths, positions = share.n_deaths + n_deaths, share.positions
            tracing.tell("given out again", blocks=len(positions))
            # A run of several blocks is cut first, until the block that kills workers is alone.
            if total_deaths > _allowed_deaths() and len(positions) == 1:
                raise _killed(BlockError, self._name_blocks(positions), total_deaths)
            n_parts = PARTS if n_deaths else 1
            parts = []
            # Kept sums may have killed the worker that read them, and are not read again.
            is_deadly = share.is_kept and n_deaths > 0
            for part, is_kept in [(positions, False)] if is_deadly else self._queue.cut(positions):
                size = len(part) if is_kept else math.ceil(len(positions) / n_parts)
                parts += [(part[i : i + size], is_kept) for i in range(0, len(part), size)]
            self._queue.put(parts, total_deaths)

    # -- the result ------------------------------------------------------------------------------------

    async def _fetch(self, chain: _Chain) -> Any:
        client, total = self._tasks.client, cast("Future", chain.total)
        with contextlib.suppress(TotalLostError):
            return await fetch_total(client, cast("Any", total.key))
        # By way of the scheduler it takes six times as long (0.74 s for 67 MB), and memory of the scheduler.
        # All of it on the worker that has the total, which other workers may not reach.
        holders = (await cast("Any", client.scheduler).who_has(keys=[total.key]))[total.key]
        if not holders:
            raise TotalLostError(f"no worker has the result of {total.key}")
        submit = partial(client.submit, workers=holders, pure=False)
        packed, received = submit(pack, total), bytearray()
        try:
            async with asyncio.timeout(dask_workers.STUCK_S) as bound:
                n_bytes = await client.gather(submit(len, packed), asynchronous=True)
                while len(received) < n_bytes:
                    bound.reschedule(asyncio.get_running_loop().time() + dask_workers.STUCK_S)
                    piece = slice(len(received), len(received) + PIECE_BYTES)
                    future = submit(operator.getitem, packed, piece)
                    received += await client.gather(future, asynchronous=True, direct=False)
        except TimeoutError:
            raise ClusterLostError(
                f"the sums of worker {holders[0]} cannot be fetched, neither from there nor by way of the "
                f"scheduler: nothing came for {dask_workers.STUCK_S:g} s; the pass has no result. Look at "
                "that worker's log, and open its ports (`dask worker --worker-port`)"
            ) from None
        return cloudpickle.loads(received)  # from a worker, as all results are

    # -- what goes wrong -------------------------------------------------------------------------------

    def _check(self, future: Future, what: _Share | _Chain) -> None:
        """Raise what a task failed of; `what` it adds."""
        if future.status == "cancelled":
            raise CancelledError(f"the task {future.key} was cancelled")
        error = future.exception() if future.status == "error" else None
        if isinstance(error, serial.BlockFailed):
            raise serial.failure_of(error)
        if isinstance(error, KilledWorker):
            is_run = isinstance(what, _Share)
            name = self._name_blocks(what.positions) if isinstance(what, _Share) else "a merge of partials"
            raise _killed(BlockError if is_run else ClusterError, name, error.allowed_failures + 1) from error
        if error is None:
            return
        if isinstance(what, _Chain) or self._tasks.partitions is None or isinstance(error, RFFDistError):
            raise error
        raise serial.block_error(self._name_blocks(what.positions), error) from error

    def _name_blocks(self, positions: range) -> str:
        first, last = self._blocks[positions[0]], self._blocks[positions[-1]]
        if first is last:
            return serial.name_block(first)
        return f"blocks {first.index} to {last.index} (rows {first.start}:{last.stop})"


def _names_of_totals(*chains: _Chain) -> list[int]:
    """Return the totals that there are by the numbers of their tasks: see `Pass`."""
    return [cast("Any", chain.total.key)[1] for chain in chains if chain.total is not None]


def _has_failed(task: Future, kind: type[Exception]) -> bool:
    return task.status == "error" and isinstance(task.exception(), kind)


def _allowed_deaths() -> int:
    """Return how many workers may die of the same work, as Dask counts its tasks."""
    return int(dask.config.get("distributed.scheduler.allowed-failures"))


def _killed(kind: type[RFFDistError], what: str, n_deaths: int) -> RFFDistError:
    return kind(
        f"{what} was running on {n_deaths} workers when they died; the pass has no result. If no one stopped "
        "them, give the workers more memory, or look at these rows of the data and at the workers' logs"
    )
