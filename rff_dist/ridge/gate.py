"""The gate: two models, compared on rows that neither has seen.

The champion is the current model; the challenger is what the new rows make of it, and is to replace it.

**What is held out** to compare them: test data if there are any, else the newest fifth of the rows that the
champion holds, at most 10,000. These were accepted before, so that a batch with wrong targets cannot vouch
for itself. Both models are solved without them, from exact differences, and compared on them; the model that
is published holds all rows, those too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.engines.protocol import Engine
from rff_dist.errors import InvalidParameterError, StatisticsError
from rff_dist.numerics.cholesky import rounding_floor, solve_cholesky
from rff_dist.numerics.eigen import decompose
from rff_dist.numerics.exact_sums import ExactSum, add_fields
from rff_dist.ridge.drift import ErrorSums, measure_errors
from rff_dist.ridge.evaluation import evaluated_targets
from rff_dist.ridge.fading import Fading
from rff_dist.ridge.linear_model import LinearModel, predict_rows
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.new_rows import NewRows, check_columns
from rff_dist.ridge.row_ranges import Range, as_blocks, count_rows, cut_ranges
from rff_dist.ridge.update import rows_at_once, sum_ranges
from rff_dist.statistics import inspection
from rff_dist.statistics.accumulate import Accumulation
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.typing import FloatArray

TOLERANCE = 0.05
HELD_OUT_SHARE = 5  # one row of so many
HELD_OUT_ROWS = 10_000
_DOUBT = 0.01  # probability of a failure by chance alone
_LARGEST_SQUARE = 1e70  # of an error: its square can still be weighted and summed
_FAR = 1e4  # of alpha, times the floor: what lies below that counts by a ten-thousandth
_NEGLIGIBLE = 1e-6  # of a target's variance: errors below it are not told apart


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Rows that two models are compared on, neither of which has seen them; see above.

    `sums`: of these rows, to be subtracted, by how often their weights are halved in the champion and in the
      challenger; none of test data.
    `champion`: solved without them.
    `errors`: its errors.
    """

    dataset: Dataset
    blocks: list[Block]
    sums: Mapping[tuple[int, int], RidgeStatistics]
    champion: LinearModel
    errors: ErrorSums

    @property
    def words(self) -> str:
        """What they are, for people."""
        n_samples = f"{self.errors.errors.n_samples:,}"
        if not self.sums:
            return f"{n_samples} rows of test data"
        return f"the newest {n_samples} rows that the champion holds"


def hold_out(
    champion: RidgeModel, dataset: Dataset, rows: NewRows, *, engine: Engine, test: Dataset | None = None
) -> HeldOut:
    """Choose the rows to hold out, and measure the champion's errors on them, solved without them.

    `rows`: what the challenger is to hold: of rows that both do, the newest are held out.
    Raises DataError if test data do not fit the model, or have no targets; StatisticsError if no row is
      shared.
    """
    if test is not None:
        check_columns(champion, test)
        blocks = inspection.blocks_of(test)
        errors = inspection.sum_rows(test, measure_errors, champion.linear, engine=engine, label="evaluate")
        return HeldOut(test, blocks, {}, champion.linear, errors)
    spec, ranges = champion.summed.spec, _newest(rows.shared(champion))
    if not ranges:
        raise StatisticsError(
            "no row that the champion holds stays, so none can be held out to compare models on; give test "
            "data (`--test`), or fit anew"
        )
    at_once, whitener = rows_at_once(dataset, spec.limb_rows), champion.feature_map.whitener
    blocks = as_blocks(cut_ranges(ranges, at_once))
    state = engine.broadcast(Accumulation(champion.feature_map, spec))
    sums = {
        ages: sum_ranges(dataset, cut_ranges(those, at_once), state, engine=engine).with_whitener(whitener)
        for ages, those in rows.by_ages(champion, ranges).items()
    }
    without = _linear_without(champion, [(before, part) for (before, _), part in sums.items()])
    errors = inspection.sum_rows(
        dataset, measure_errors, without, blocks=blocks, engine=engine, label="evaluate"
    )
    return HeldOut(dataset, blocks, sums, without, errors)


def _newest(ranges: Sequence[Range]) -> list[Range]:
    wanted = max(1, min(count_rows(ranges) // HELD_OUT_SHARE, HELD_OUT_ROWS))
    newest: list[Range] = []
    for start, stop in reversed(ranges):
        first = max(start, stop - wanted)
        newest.insert(0, (first, stop))
        wanted -= stop - first
        if not wanted:
            break
    return newest


def _linear_without(model: RidgeModel, parts: Sequence[tuple[int, RidgeStatistics]]) -> LinearModel:
    """Return a model solved without some of its rows, with the same alpha.

    `parts`: sums of these rows, and how often their weights are halved in the model.
    """
    if not parts:
        return model.linear
    rest, halvings = model.summed, Fading.from_card(model.card).halvings
    for age, part in parts:
        # The part was cut into other tiles than in the whole: their roundings add up, and none cancels.
        rest = replace(rest - part.reweighted(-age, halvings), n_tiles=rest.n_tiles + part.n_tiles)
    equations = rest.normal_equations(fit_intercept=model.card["fit_intercept"])
    # As `ridge.solve` does: directions below the floor count by Cholesky and not by eigenvalues, and
    # where alpha is near the floor the errors of the two are far apart (0.244 and 0.273 for D = 512 in 3
    # columns). Far above it they are the same, and eigenvalues take twenty times as long.
    alpha, by_eigenvalues = np.asarray(model.alpha), model.card.get("chosen_by") in ("gcv", "evidence")
    if by_eigenvalues and alpha.min() < _FAR * rounding_floor(equations.gram):
        solution = decompose(equations).solve(model.alpha)
    else:
        solution = solve_cholesky(equations, alpha, overwrite_gram=True)
    return LinearModel(model.feature_map, solution.coefficients, solution.intercept)


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether the challenger is good enough to replace the champion.

    `reason`: in a sentence.
    `held_out`: what the two were compared on.
    `ratio`: mean squared error of the challenger over that of the champion, of the worst target.
    `at_least`: the same, less what chance may have added: a few rows with large errors decide a mean.
    `tolerance`: that may be above 1 by this much.
    `champion`, `challenger`: root mean squared errors per target, in the target's units.
    """

    passed: bool
    reason: str
    held_out: str
    ratio: float
    at_least: float
    tolerance: float
    champion: tuple[float, ...]
    challenger: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PairedErrors:
    """Squared errors of both models on the same rows, and of their differences; `+` joins two sets of rows.

    `weight`, `weight_squares`: ExactSum of shape (). Sums of the weights w and of w².
    `champion`, `challenger`: ExactSum of shape (n_targets,). Sums of w·e² of either model; an e² above 1e70
      counts as 1e70.
    `differences`, `squares`: ExactSum of shape (n_targets,). Sums of w²·d and w²·d², d what e² of the
      challenger is above that of the champion.
    """

    weight: ExactSum
    weight_squares: ExactSum
    champion: ExactSum
    challenger: ExactSum
    differences: ExactSum
    squares: ExactSum

    __add__ = add_fields

    @property
    def mean(self) -> tuple[FloatArray, FloatArray]:
        """Mean squared errors of the champion and of the challenger, per target."""
        total = self.weight.value()
        return self.champion.value() / total, self.challenger.value() / total

    @property
    def standard_error(self) -> FloatArray:
        """Standard error of the difference of the means, per target."""
        champion, challenger = self.mean
        mean = challenger - champion
        spread = self.squares.value() - 2 * mean * self.differences.value()
        spread = spread + mean**2 * self.weight_squares.value()
        return np.asarray(np.sqrt(np.maximum(spread, 0.0)) / self.weight.value())


def measure_pair(rows: Rows, models: LinearModel) -> PairedErrors:
    """Return the squared errors on a block of two models whose coefficients stand side by side.

    Raises DataError if the block has no targets, or values that are not finite.
    """
    y, weights = evaluated_targets(rows)
    with np.errstate(over="ignore"):
        errors = (np.tile(y, 2) - predict_rows(rows, models)) ** 2
    champion, challenger = np.split(np.minimum(errors, _LARGEST_SQUARE), 2, axis=1)
    difference, squared = challenger - champion, weights**2
    sums = (
        np.asarray(weights.sum()),
        np.asarray(squared.sum()),
        weights @ champion,
        weights @ challenger,
        squared @ difference,
        squared @ difference**2,
    )
    return PairedErrors(*map(ExactSum.of, sums))


def judge(challenger: RidgeModel, held_out: HeldOut, *, tolerance: float = TOLERANCE, engine: Engine) -> Gate:
    """Compare the challenger with the champion on held-out rows.

    It fails where the mean squared error of a target has risen by more than tolerated, with a confidence of
    99 % by the differences row by row: on few rows, or where a few of them decide, no rise is certain.

    `challenger`: of all rows; it is solved without the held-out ones here.
    `tolerance`: by how much the mean squared error of a target may rise, as a share of it; what is below 1e-6
      of the target's variance does not count.
    Raises InvalidParameterError if `tolerance` is negative or not finite.
    """
    check_tolerance(tolerance)
    champion = held_out.champion
    without = _linear_without(challenger, [(now, part) for (_, now), part in held_out.sums.items()])
    both = LinearModel(
        challenger.feature_map,
        np.hstack([champion.coefficients, without.coefficients]),
        np.concatenate([champion.intercept, without.intercept]),
    )
    found = inspection.sum_rows(
        held_out.dataset, measure_pair, both, blocks=held_out.blocks, engine=engine, label="compare"
    )
    old, now = found.mean
    chance = float(scipy.special.ndtri(1 - _DOUBT / len(old))) * found.standard_error
    unit = old + _NEGLIGIBLE * held_out.errors.errors.target_variance
    with np.errstate(divide="ignore", invalid="ignore"):
        rises = np.where(now == old, 0.0, (now - old) / unit)
        sure = np.where(now == old, 0.0, (now - old - chance) / unit)
    worst = int(np.argmax(sure))
    ratio, at_least = 1 + float(rises[worst]), max(0.0, 1 + float(sure[worst]))
    passed = at_least <= 1 + tolerance
    target = f" of target {worst}" if len(old) > 1 else ""
    reason = (
        f"on {held_out.words} the challenger's mean squared error{target} is {ratio:.4g} times the "
        f"champion's, at least {at_least:.4g} times with a confidence of {1 - _DOUBT:.0%}, "
        f"{'within' if passed else 'above'} the {1 + tolerance:.4g} that are tolerated"
    )
    rmse = [tuple(np.sqrt(values).tolist()) for values in (old, now)]
    return Gate(passed, reason, held_out.words, ratio, at_least, tolerance, *rmse)


def check_tolerance(tolerance: float) -> None:
    """Check that a gate's tolerance is a number of at least 0."""
    if not 0.0 <= tolerance < np.inf:
        raise InvalidParameterError(
            f"`tolerance` is {tolerance!r}; expected a number in [0, inf), such as 0.05"
        )
