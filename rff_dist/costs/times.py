"""The seconds of a fit in closed form, from its plan and the workers' rates."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from rff_dist.costs.rates import Rates
from rff_dist.ridge.plan import Plan

WORTH_HAVING = 0.8  # least share of its time for which each worker should be busy


@dataclass(frozen=True, slots=True)
class FitTimes:
    """The predicted times of a fit.

    `moments`, `statistics`, `solve`: seconds of the two passes and of the factorisation.
    `beside`: seconds of everything else: new processes import packages, features are drawn, sent to workers
      and checked, and the model is described.
    `scheduler`: seconds that the scheduler and the client spend on the blocks meanwhile.
    `bytes_moved`: between workers and to the client, at the end of the pass of statistics.
    `efficiency`: share of the pass of statistics that a worker spends on rows.
    """

    moments: float
    statistics: float
    solve: float
    beside: float
    scheduler: float
    bytes_moved: int
    efficiency: float

    @property
    def seconds(self) -> float:
        """Seconds from beginning to end."""
        return self.moments + self.statistics + self.solve + self.beside

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as JSON-able values."""
        return {**asdict(self), "seconds": self.seconds}


def predict(plan: Plan, rates: Rates, *, solve: float = 0.0) -> FitTimes:
    """Predict the times of a direct fit.

    A worker reads the next block while it works at one. Its share is a whole number of blocks. The scheduler
    may take longer than the workers. In the end partials move up a tree of workers, and on to the client.

    `solve`: seconds that solving takes.
    """
    share = _share(plan)
    scheduler = plan.n_blocks * rates.task
    moments = rates.begin + max(share * max(rates.moment, rates.read), scheduler)
    # Where Z'Z is summed in parts, each further pass makes all features again.
    again = (plan.n_parts - 1) * rates.feature * plan.n_components
    work = share * (rates.row(plan.n_components) + again)
    rows = max(work, plan.n_parts * share * rates.read, plan.n_parts * scheduler)
    rows += min(plan.rows_per_block, share) * rates.read  # of the first block, before there is work
    moves = (min(plan.n_workers, plan.n_blocks) - 1).bit_length() + 1
    statistics = plan.n_parts * rates.begin + rows + moves * rates.merge * plan.statistics_bytes
    ideal = plan.n_samples * rates.row(plan.n_components) / plan.n_workers
    return FitTimes(
        moments=moments,
        statistics=statistics,
        solve=solve,
        beside=rates.first + rates.fit + rates.entry * plan.n_components**2,
        scheduler=2 * scheduler,
        bytes_moved=min(plan.n_workers, plan.n_blocks) * plan.statistics_bytes,
        efficiency=ideal / statistics,
    )


def workers_worth_having(plan: Plan, rates: Rates) -> int:
    """Return the largest power of two of workers that are busy for four fifths of the time."""
    n_workers = 1
    while (
        2 * n_workers <= plan.n_blocks
        and predict(replace(plan, n_workers=2 * n_workers), rates).efficiency >= WORTH_HAVING
    ):
        n_workers *= 2
    return n_workers


def _share(plan: Plan) -> int:
    """Return the rows of the worker that has the most."""
    blocks = -(-plan.n_blocks // plan.n_workers)
    return min(plan.n_samples, blocks * plan.rows_per_block)
