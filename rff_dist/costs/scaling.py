"""What more workers bring: a pass is simulated on one, two, four and more of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rff_dist.costs.rates import Rates
from rff_dist.costs.simulation import Job, simulate
from rff_dist.ridge.plan import Plan

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


def job_of(plan: Plan, rates: Rates) -> Job:
    """Return a fit's pass of statistics as a job for `simulate`."""
    return Job(
        n_blocks=plan.n_blocks,
        block_seconds=plan.rows_per_block * rates.row(plan.n_components),
        n_workers=plan.n_workers,
        task_seconds=rates.task,
        merge_seconds=rates.merge * plan.statistics_bytes,
        begin_seconds=rates.begin,
    )


def scale(job: Job, *, most: int = MOST_WORKERS) -> list[ScalingPoint]:
    """Simulate a job on 1, 2, 4, … workers, up to `most`: O(blocks · log(most)) events."""
    points = []
    for doubling in range(most.bit_length()):
        found = simulate(replace(job, n_workers=2**doubling))
        points.append(ScalingPoint(2**doubling, found.seconds, found.efficiency))
    return points
