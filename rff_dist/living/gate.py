"""The gate: two models, compared on rows that neither has seen.

The champion is the current model; the challenger is the model with the new rows, which may replace it.

They are compared on test data if there are any, else on the newest fifth of the rows that the champion holds,
at most 10,000. These rows were accepted before, so that a batch with wrong targets cannot vouch for itself.
Both models are solved without them, from exact differences. The published model holds all rows, these too.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy

from rff_dist.data import memory
from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.engines.protocol import Engine
from rff_dist.errors import StatisticsError
from rff_dist.fitting import evaluation, predicting
from rff_dist.living import new_rows, update
from rff_dist.living.differences import Range, as_blocks, count_rows, cut_ranges
from rff_dist.numerics import cholesky, eigen, exact_sums
from rff_dist.ridge.models import RidgeModel
from rff_dist.statistics import accumulate, inspection, ridge_statistics
from rff_dist.text import number
from rff_dist.typing import FloatArray, frozen

TOLERANCE = 0.05
HELD_OUT_SHARE = 5  # one row in so many
HELD_OUT_ROWS = 10_000
# Paired differences at this level refused none of 80 good batches; the plain ratio of errors up to one in
# four.
_DOUBT = 0.01  # probability that the gate fails by chance alone
_FAR = 1e4  # alpha over the floor, above which directions below the floor count by a ten-thousandth
_LARGEST_SQUARE = 1e70  # of an error: its square can still be weighted and summed
_NEGLIGIBLE = 1e-6  # of a target's variance: smaller errors are treated as equal


@frozen(eq=False)
class HeldOut:
    """Rows that two models are compared on, which neither has seen; see above.

    `sums`: statistics of these rows, to be subtracted; None for test data.
    `champion`: solved without these rows.
    `errors`: the champion's errors on them.
    """

    dataset: Dataset
    blocks: list[Block]
    sums: ridge_statistics.RidgeStatistics | None
    champion: predicting.LinearModel
    errors: evaluation.Errors

    @property
    def words(self) -> str:
        """A description of the rows, for messages."""
        n_samples = f"{self.errors.n_samples:,}"
        if self.sums is None:
            return f"{n_samples} rows of test data"
        return f"the newest {n_samples} rows of the current model, left out of both"


def hold_out(
    champion: RidgeModel,
    dataset: Dataset,
    rows: new_rows.NewRows,
    *,
    engine: Engine,
    test: Dataset | None = None,
) -> HeldOut:
    """Choose the rows to hold out, solve the champion without them, and measure its errors on them.

    `rows`: what the challenger is to hold. Of the rows that both models hold, the newest are held out.
    `test`: data to compare the models on instead.
    Raises DataError if test data do not fit the model, or have no targets; StatisticsError if the models
      share no row.
    """
    compute = evaluation.measure_errors
    if test is not None:
        new_rows.check_columns(champion, test)
        blocks = inspection.blocks_of(test)
        errors = inspection.sum_rows(test, compute, champion.linear, engine=engine, label="evaluate")
        return HeldOut(test, blocks, None, champion.linear, errors)
    spec, ranges = champion.summed.spec, _newest(rows.shared(champion))
    if not ranges:
        raise StatisticsError(
            "the champion and the challenger share no row, so that none can be held out to compare them; "
            "give test data (`test`), or fit again"
        )
    at_once, whitener = update.rows_at_once(dataset, spec.limb_rows), champion.feature_map.whitener
    # In memory: between corrections lie thousands of short ranges, and each would be a block to read.
    numbers = np.concatenate([np.arange(*those) for those in ranges])
    X, y, weight = dataset.take(numbers)
    assert y is not None  # the models' columns and targets are those of the dataset
    dataset = memory.ArrayDataset(X, y[:, 0] if dataset.one_dimensional else y, weight)
    pieces = cut_ranges([(0, len(numbers))], at_once)
    blocks = as_blocks(pieces)
    state = engine.broadcast(accumulate.Accumulation(champion.feature_map, spec))
    sums = update.sum_ranges(dataset, pieces, state, engine=engine).with_whitener(whitener)
    without = _linear_without(champion, sums)
    errors = inspection.sum_rows(dataset, compute, without, blocks=blocks, engine=engine, label="evaluate")
    return HeldOut(dataset, blocks, sums, without, errors)


def _newest(ranges: Sequence[Range]) -> list[Range]:
    wanted = max(1, min(count_rows(ranges) // HELD_OUT_SHARE, HELD_OUT_ROWS))
    newest: list[Range] = []
    # from the end backwards, so that only the oldest of the ranges taken may be cut
    for start, stop in reversed(ranges):
        first = max(start, stop - wanted)
        newest.insert(0, (first, stop))
        wanted -= stop - first
        if not wanted:
            break
    return newest


def _linear_without(
    model: RidgeModel, part: ridge_statistics.RidgeStatistics | None
) -> predicting.LinearModel:
    """Solve a model without some of its rows, with the same alpha.

    `part`: the statistics of these rows.
    """
    if part is None:
        return model.linear
    whole = model.summed
    # The part was cut into other tiles than the whole, so that rounding errors add up and none cancel.
    rest = replace(whole - part, n_tiles=whole.n_tiles + part.n_tiles)
    equations = rest.normal_equations(fit_intercept=model.card["fit_intercept"])
    # The same method as `ridge.solve` takes: Cholesky counts directions below the floor and eigenvalues do
    # not, so that their errors differ much if alpha is near the floor (0.244 and 0.273 for D = 512 in 3
    # columns). Far above it they agree, and eigenvalues take twenty times as long.
    alpha, by_eigenvalues = np.asarray(model.alpha), model.card["chosen_by"] in ("gcv", "evidence")
    if by_eigenvalues and alpha.min() < _FAR * equations.floor():
        solution = eigen.decompose(equations).solve(model.alpha)
    else:
        solution = cholesky.solve_cholesky(equations, alpha, overwrite_gram=True)
    return predicting.LinearModel(model.feature_map, solution.coefficients, solution.intercept)


@frozen
class Gate:
    """Whether the challenger is good enough to replace the champion.

    `reason`: a sentence that says why.
    `held_out`: the rows that the two were compared on, in words.
    `ratio`: mean squared error of the challenger over that of the champion, for the worst target.
    `at_least`: the same, less what chance may have added: a few rows with large errors can decide a mean.
    `tolerance`: how far `at_least` may be above 1.
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


@frozen(eq=False)
class PairedErrors:
    """Squared errors of both models on the same rows, and their differences; `+` joins two sets of rows.

    `weight`, `weight_squares`: ExactSum of shape (). Sums of the weights w and of w².
    `champion`, `challenger`: ExactSum of shape (n_targets,). Each model's sum of w·e²; an e² above 1e70
      counts as 1e70.
    `differences`, `squares`: ExactSum of shape (n_targets,). Sums of w²·d and w²·d², where d is the
      challenger's e² less the champion's.
    """

    weight: exact_sums.ExactSum
    weight_squares: exact_sums.ExactSum
    champion: exact_sums.ExactSum
    challenger: exact_sums.ExactSum
    differences: exact_sums.ExactSum
    squares: exact_sums.ExactSum

    __add__ = exact_sums.add_fields

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


def measure_pair(rows: Rows, models: predicting.LinearModel) -> PairedErrors:
    """Return both models' squared errors on a block.

    `models`: the coefficients of the champion and the challenger side by side.

    Raises DataError if the block has no targets, or values that are not finite.
    """
    y, weights = evaluation.evaluated_targets(rows)
    with np.errstate(over="ignore"):
        errors = (np.tile(y, 2) - predicting.predict_rows(rows, models)) ** 2
    champion, challenger = np.split(np.minimum(errors, _LARGEST_SQUARE), 2, axis=1)
    difference, squared = challenger - champion, weights**2
    totals = np.asarray(weights.sum()), np.asarray(squared.sum()), weights @ champion, weights @ challenger
    spreads = squared @ difference, squared @ difference**2
    return PairedErrors(*map(exact_sums.ExactSum.of, (*totals, *spreads)))


def _change_words(ratio: float) -> str:
    """Return in words how an error with this ratio to another one differs from it."""
    if not np.isfinite(ratio):
        return "higher"
    change = number(100 * abs(ratio - 1))
    return "the same" if ratio == 1 else f"{change}% {'higher' if ratio > 1 else 'lower'}"


def judge(challenger: RidgeModel, held_out: HeldOut, *, tolerance: float = TOLERANCE, engine: Engine) -> Gate:
    """Compare the challenger with the champion on held-out rows.

    The challenger fails if the mean squared error of a target has risen by more than tolerated, with 99 %
    confidence by the differences of each row. With few rows, or if a few rows decide, no rise is certain.

    `challenger`: the model of all rows; it is solved again here without the held-out ones.
    `tolerance`: by what share of it the mean squared error of a target may rise. Errors below 1e-6 of the
      target's variance do not count.
    """
    champion = held_out.champion
    without = _linear_without(challenger, held_out.sums)
    # side by side, so that features of each row are made once for both models
    coefficients = np.hstack([champion.coefficients, without.coefficients])
    intercept = np.concatenate([champion.intercept, without.intercept])
    both = predicting.LinearModel(challenger.feature_map, coefficients, intercept)
    rows, blocks = held_out.dataset, held_out.blocks
    pair = inspection.sum_rows(rows, measure_pair, both, blocks=blocks, engine=engine, label="compare")
    old, now = pair.mean
    # without it up to 1 in 4 good batches were refused, with it none of 80
    chance = float(scipy.special.ndtri(1 - _DOUBT / len(old))) * pair.standard_error
    # the second term keeps errors that are both rounding from looking like a rise
    unit = old + _NEGLIGIBLE * held_out.errors.target_variance
    with np.errstate(divide="ignore", invalid="ignore"):
        rises = np.where(now == old, 0.0, (now - old) / unit)
        sure = np.where(now == old, 0.0, (now - old - chance) / unit)
    worst = int(np.argmax(sure))
    ratio, at_least = 1 + float(rises[worst]), max(0.0, 1 + float(sure[worst]))
    passed = at_least <= 1 + tolerance
    names = challenger.card.get("target_names") or [f"target {i}" for i in range(len(old))]
    target = f" of {names[worst]}" if len(old) > 1 else ""
    rmse = [tuple(np.sqrt(values).tolist()) for values in (old, now)]
    before, after = (number(values[worst]) for values in rmse)
    limit = f"with {1 - _DOUBT:.0%} confidence over {number(100 * tolerance)}% higher"
    reason = (
        f"on {held_out.words}, the mean squared error{target} is {_change_words(ratio)} (RMSE {after}, "
        f"before {before}); {'refused would be what is' if passed else 'it is'} {limit}"
    )
    return Gate(passed, reason, held_out.words, ratio, at_least, tolerance, *rmse)
