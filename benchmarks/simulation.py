"""A pass as a sequence of events: what more workers, queues, stragglers and deaths do
to it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rff_dist.workbench.page.pictures import figure_of, plain_axes
from rff_dist.workbench.results.figures import MUTED

# Longest time in seconds that a message is on its way. Without such delays workers that
# began together would stay in step for ever.
LATE_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pass and what it runs on.

    `block_seconds`: seconds of one block.
    `task_seconds`: the scheduler's time for a task, half of it to give the task out.
    The scheduler works in
      rounds: it handles all messages that have come before its answers go out.
    `merge_seconds`: to move a worker's partial to another worker, or to the client, and
    add it. `begin_seconds`: before the first block begins. `run_seconds`: of the
    longest run of blocks. `spread`: standard deviation of the logarithm of a block's
    seconds. `slow_share`, `slowdown`: share of workers that are stragglers, and how
    many times as long they take. `deaths_per_hour`, `restart_seconds`: of each worker.
    When it dies, its partial is lost and its blocks
      begin again.
    """

    n_blocks: int
    block_seconds: float
    n_workers: int
    task_seconds: float = 0.0
    merge_seconds: float = 0.0
    begin_seconds: float = 0.0
    run_seconds: float = 60.0
    spread: float = 0.0
    slow_share: float = 0.0
    slowdown: float = 1.5
    deaths_per_hour: float = 0.0
    restart_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """The outcome of a simulated pass.

    `seconds`: from beginning to end.
    `efficiency`: share of the ideal, in which all workers do blocks all the time and
    none is done twice. `n_tasks`, `n_deaths`, `n_again`: tasks, deaths of workers, and
    blocks that were begun again. `counts`: how often each block is in the result."""

    seconds: float
    efficiency: float
    n_tasks: int
    n_deaths: int
    n_again: int
    counts: np.ndarray


def simulate(job: Job, *, seed: int = 0) -> Simulated:
    """Run a job's events in order of their times: O((tasks + deaths) · log(workers)).

    A free worker gets a run of blocks: at least one, and a share of those left that
    shrinks towards the end. It holds its total until no block is left; then totals are
    merged two at a time.

    Real passes take 1.01 to 1.08 times as long as simulated ones with one to eight
    processes, and 1.2 to 1.5 times as long with 500 workers and runs of up to a second,
    because workers stay in step for longer."""
    return _Simulation(job, np.random.default_rng([seed, 15])).run()


@dataclass(frozen=True, slots=True)
class _Message:
    """A message to the scheduler: the client sends a task, or a worker tells that its
    task is done.

    `life`: which life of the worker; after its death it has another.
    `seconds`: how long the worker will take for the task; None where it is done.
    """

    worker: int
    life: int
    seconds: float | None


class _Simulation:
    def __init__(self, job: Job, rng: np.random.Generator) -> None:
        self._job = job
        self._rng = rng
        self._waiting = deque([range(job.n_blocks)])
        self._n_waiting = job.n_blocks
        self._events: list[tuple[float, int, str, int, int]] = []
        self._free = set(range(job.n_workers))
        self._totals: list[list[range]] = [[] for _ in range(job.n_workers)]
        self._running: dict[int, range] = {}
        self._merging: dict[int, int] = {}
        self._taken: set[int] = set()
        self._life = [0] * job.n_workers
        slow = rng.random(job.n_workers) < job.slow_share
        self._pace = np.where(slow, job.slowdown, 1.0)
        self._inbox: list[_Message] = []
        self._serving: list[_Message] = []
        self._n_tasks = self._n_deaths = self._n_again = 0

    def run(self) -> Simulated:
        job = self._job
        now = self._job.begin_seconds
        for worker in range(job.n_workers):
            self._plan_death(worker, now)
        while True:
            self._give_out()
            self._serve(now)
            if not (self._n_waiting or self._running or self._merging):
                holders = [
                    worker for worker in range(job.n_workers) if self._totals[worker]
                ]
                if len(holders) == 1:
                    break
            now, _, kind, worker, life = heapq.heappop(self._events)
            if kind == "death":
                self._die(worker, now)
            elif kind == "restart":
                self._free.add(worker)
                self._plan_death(worker, now)
            elif kind == "done":
                self._inbox.append(_Message(worker, life, None))
            else:
                self._end_round(now)
        seconds = now + job.merge_seconds  # the last move, to the client
        counts = np.zeros(job.n_blocks, int)
        for share in self._totals[holders[0]]:
            counts[share.start : share.stop] += 1
        ideal = job.n_blocks * job.block_seconds / job.n_workers
        return Simulated(
            seconds,
            ideal / seconds,
            self._n_tasks,
            self._n_deaths,
            self._n_again,
            counts,
        )

    def _give_out(self) -> None:
        for worker in sorted(self._free):
            if not self._n_waiting:
                break
            if worker not in self._taken:
                self._start_run(worker)
        if self._n_waiting or self._running:
            return
        idle = [
            w for w in sorted(self._free) if self._totals[w] and w not in self._taken
        ]
        for keeper, other in zip(idle[::2], idle[1::2], strict=False):
            self._free -= {keeper}
            self._taken.add(other)
            self._merging[keeper] = other
            self._submit(keeper, self._job.merge_seconds)

    def _start_run(self, worker: int) -> None:
        job = self._job
        share = self._waiting.popleft()
        most = (
            max(1, int(job.run_seconds / job.block_seconds))
            if job.block_seconds
            else len(share)
        )
        # guided self-scheduling, as the Dask engine cuts its runs
        length = min(len(share), most, max(1, self._n_waiting // (2 * job.n_workers)))
        if share[length:]:
            self._waiting.appendleft(share[length:])
        self._n_waiting -= length
        self._running[worker] = share[:length]
        self._free.discard(worker)
        drawn = (
            np.exp(self._rng.normal(0.0, job.spread, length))
            if job.spread
            else np.ones(length)
        )
        self._submit(
            worker, float(drawn.sum()) * job.block_seconds * self._pace[worker]
        )

    def _submit(self, worker: int, seconds: float) -> None:
        self._n_tasks += 1
        self._inbox.append(_Message(worker, self._life[worker], seconds))

    def _serve(self, now: float) -> None:
        """Begin a round of the scheduler if it is free and has messages."""
        if self._inbox and not self._serving:
            self._serving = self._inbox
            self._inbox = []
            self._push(
                now + len(self._serving) * self._job.task_seconds / 2, "served", 0, 0
            )

    def _end_round(self, now: float) -> None:
        """Start the tasks that the scheduler gave out, and tell the client which are
        done.
        """
        for message in self._serving:
            if message.seconds is not None:
                late = self._rng.random() * LATE_S if self._job.task_seconds else 0.0
                self._push(
                    now + message.seconds + late, "done", message.worker, message.life
                )
            elif message.life == self._life[message.worker]:
                self._finish(message.worker)
        self._serving = []

    def _finish(self, worker: int) -> None:
        self._free.add(worker)
        if worker in self._merging:
            other = self._merging.pop(worker)
            self._taken.discard(other)
            self._totals[worker] += self._totals[other]
            self._totals[other] = []
        else:
            self._totals[worker].append(self._running.pop(worker))

    def _die(self, worker: int, now: float) -> None:
        self._n_deaths += 1
        self._life[worker] += 1
        for keeper, other in list(self._merging.items()):
            if worker in (keeper, other):
                del self._merging[keeper]
                self._taken.discard(other)
                if keeper != worker:
                    self._life[keeper] += 1  # so that the end of its merge is ignored
                    self._free.add(keeper)
        lost = [
            *self._totals[worker],
            *([self._running.pop(worker)] if worker in self._running else []),
        ]
        self._totals[worker] = []
        self._waiting.extendleft(lost)
        self._n_waiting += sum(map(len, lost))
        self._n_again += sum(map(len, lost))
        self._free.discard(worker)
        self._push(now + self._job.restart_seconds, "restart", worker, 0)

    def _plan_death(self, worker: int, now: float) -> None:
        if self._job.deaths_per_hour:
            # exponentially distributed: deaths come at a constant rate
            life = (
                -math.log(1.0 - self._rng.random()) * 3600 / self._job.deaths_per_hour
            )
            self._push(now + life, "death", worker, 0)

    def _push(self, when: float, kind: str, worker: int, life: int) -> None:
        heapq.heappush(
            self._events, (when, len(self._events) + self._n_tasks, kind, worker, life)
        )


# -- on more and more workers
# ----------------------------------------------------------------------

MOST_WORKERS = 1024


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """A simulated pass on `n_workers` workers.

    `seconds`: from its beginning to its result.
    `busy`: share of the workers' time that is spent on rows.
    """

    n_workers: int
    seconds: float
    busy: float


def scale(job: Job, *, most: int = MOST_WORKERS) -> list[ScalingPoint]:
    """Simulate a job on 1, 2, 4, … workers, up to `most`: O(blocks · log(most))
    events.
    """
    points = []
    for doubling in range(most.bit_length()):
        found = simulate(replace(job, n_workers=2**doubling))
        points.append(ScalingPoint(2**doubling, found.seconds, found.efficiency))
    return points


def save_scaling(
    path: Path,
    curves: Mapping[str, Sequence[ScalingPoint]],
    *,
    measured: Mapping[str, Sequence[ScalingPoint]] | None = None,
    title: str,
    subtitle: str = "",
) -> None:
    """Save the seconds of passes, and how busy workers are, against the number of
    workers as one PNG.

    `curves`: by their labels.
    `measured`: measured points by the labels of curves, drawn in the curve's colour.
    """
    figure = figure_of(8.6, 4.4, title=title)
    taken, busy = figure.subplots(1, 2)
    taken.set_title(subtitle, loc="left", fontsize=9, color=MUTED)
    handles: list[Any] = []
    for i, (label, points) in enumerate(curves.items()):
        colour = f"C{i}"
        n_workers = [one.n_workers for one in points]
        handles += taken.plot(
            n_workers,
            [one.seconds for one in points],
            color=colour,
            lw=1.8,
            label=label,
        )
        busy.plot(n_workers, [one.busy for one in points], color=colour, lw=1.8)
        for one in (measured or {}).get(label, ()):
            taken.plot(one.n_workers, one.seconds, "o", color=colour, ms=4.5)
            busy.plot(one.n_workers, one.busy, "o", color=colour, ms=4.5)
    if measured:
        handles += taken.plot([], [], "o", color=MUTED, ms=4.5, label="measured")
    taken.set_yscale("log")
    taken.set_ylabel("seconds", color=MUTED)
    busy.set_ylabel("share of time that workers work", color=MUTED)
    busy.set_ylim(0.0, 1.05)
    for axes in (taken, busy):
        axes.set_xscale("log")
        axes.set_xlabel("workers", color=MUTED)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        plain_axes(axes)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9
    )
    figure.savefig(path)
