"""The seconds of a fit in closed form, from its plan and the workers' rates."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from rff_dist.costs.rates import Rates
from rff_dist.ridge.plan import Plan

WORTH_HAVING = 0.8  # of its time that each worker should be busy


@dataclass(frozen=True, slots=True)
class Times:
    """What a fit takes.

    `moments`, `statistics`, `solve`: seconds of the two passes and of the factorisation.
    `beside`: seconds of all else: new processes import packages, features are drawn, given to workers and
      checked, the model is described.
    `scheduler`: seconds that the scheduler and the client work at the blocks meanwhile.
    `bytes_moved`: between workers and to the client, at the end of the pass of statistics.
    `efficiency`: share of the pass of statistics in which a worker does rows.
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


def predict(plan: Plan, rates: Rates, *, solve: float = 0.0) -> Times:
    """Predict a direct fit's times.

    A worker reads the next block while it works at one. Its share is a whole number of blocks, and the
    scheduler's work may be what takes longest. Then partials move up a tree of workers, and on to the client.

    `solve`: seconds that solving takes.
    """
    share = _share(plan)
    scheduler = plan.n_blocks * rates.task
    moments = rates.begin + max(share * max(rates.moment, rates.read), scheduler)
    again = (plan.n_parts - 1) * rates.feature * plan.n_components
    work = share * (rates.row(plan.n_components) + again)
    rows = max(work, plan.n_parts * share * rates.read, plan.n_parts * scheduler)
    rows += min(plan.rows_per_block, share) * rates.read
    moves = (min(plan.n_workers, plan.n_blocks) - 1).bit_length() + 1
    statistics = plan.n_parts * rates.begin + rows + moves * rates.merge * plan.statistics_bytes
    ideal = plan.n_samples * rates.row(plan.n_components) / plan.n_workers
    return Times(
        moments=moments,
        statistics=statistics,
        solve=solve,
        beside=rates.first + rates.fit + rates.entry * plan.n_components**2,
        scheduler=2 * scheduler,
        bytes_moved=min(plan.n_workers, plan.n_blocks) * plan.statistics_bytes,
        efficiency=ideal / statistics,
    )


def workers_worth_having(plan: Plan, rates: Rates) -> int:
    """Return the most workers, by powers of two, that are busy for four fifths of the time."""
    n_workers = 1
    while (
        2 * n_workers <= plan.n_blocks
        and predict(replace(plan, n_workers=2 * n_workers), rates).efficiency >= WORTH_HAVING
    ):
        n_workers *= 2
    return n_workers


def _share(plan: Plan) -> int:
    """Return the rows of the worker that has most."""
    blocks = -(-plan.n_blocks // plan.n_workers)
    return min(plan.n_samples, blocks * plan.rows_per_block)
