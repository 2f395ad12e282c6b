"""Do new rows follow the distribution of the rows that a model holds? Tested from sums alone.

There are three tests, each with its own p-value; they share the level by Bonferroni's inequality:

- the inputs as a whole: the squared distance of the mean embeddings Z'1/n of both sets of rows (MMD²).
  Without drift it is distributed as a weighted sum of chi-squares with one degree of freedom. The weights are
  the eigenvalues of the covariance of z, times (1/n₁ + 1/n₂). The tail is computed from the first three
  cumulants, which need no eigenvalues.
- each column: its mean, and its spread about the old mean. Both are judged by the larger of the two sets'
  deviations, so that a column with rare values raises no alarm if the new rows happen to have none. The least
  p-value of all columns counts, with Šidák's correction.
- the errors: are the squared errors of the champion larger than on rows that were held out?

The tests are asymptotic: with fewer than some 50 rows the levels are rough.

References
----------
Gretton, Borgwardt, Rasch, Schölkopf & Smola (2012), A kernel two-sample test, JMLR 13, section 4 and Theorem
12. Hall (1983), Chi squared approximations to the distribution of a sum of independent random variables,
Annals of Probability 11; Buckley & Eagleson (1988), An approximation to the distribution of quadratic forms
in normal random variables, Australian Journal of Statistics 30; compared with others by Bodenham & Adams
(2016), Statistics and Computing 26. Šidák (1967), JASA 62. Welch (1947), Biometrika 34.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from rff_dist.data import blocks
from rff_dist.errors import StatisticsError
from rff_dist.fitting import evaluation, predicting
from rff_dist.numerics import exact_sums
from rff_dist.statistics import accumulate, specs
from rff_dist.statistics.moments import ColumnMoments, Moments, _about, measure_moments
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.typing import EPS, FloatArray, IndexArray, Summary, frozen

LEVEL = 0.05


@frozen(eq=False)
class BatchState:
    """The state of a pass over new rows.

    `model`: the current model.
    `sums`: sums in its features and on its grids, without Z'Z.
    `pivot`: float64 array of shape (n_features + n_targets,). Moments are summed about it, see `Moments`.
    """

    model: predicting.LinearModel
    sums: accumulate.Accumulation
    pivot: FloatArray


@frozen(eq=False)
class Batch:
    """What one pass over new rows measures before they are added; `+` joins two sets of rows.

    `errors`: those of the champion, which has not seen the rows.
    `statistics`: sums of the rows, without Z'Z.
    `moments`: moments of their columns.
    """

    errors: evaluation.Errors
    statistics: RidgeStatistics
    moments: Moments

    __add__ = exact_sums.add_fields


def measure_batch(rows: blocks.Rows, state: BatchState, total: Batch | None = None) -> Batch:
    """Score a block with a model that has not seen it, and measure its columns; adds to `total` in place.

    Raises DataError if the block has no targets, or as `accumulate_rows`.
    """
    errors, moments = evaluation.measure_errors(rows, state.model), measure_moments(rows, state.pivot)
    statistics = accumulate.accumulate_rows(rows, state.sums, None if total is None else total.statistics)
    if total is None:
        return Batch(errors, statistics, moments)
    return Batch(total.errors + errors, statistics, total.moments + moments)


# -- the tests -----------------------------------------------------------------------------------------


def embedding_drift(
    held: RidgeStatistics, new: RidgeStatistics, together: RidgeStatistics
) -> tuple[float, float]:
    """Return MMD² between two sets of rows, and its p-value without drift: O(n_components³).

    `held`, `new`: statistics of the rows that the model holds and of those to be added; Z'Z is not used.
    `together`: statistics of both, less those that go, for the covariance.
    Returns `squared_distance`: ‖Z₁'1/n₁ − Z₂'1/n₂‖², the biased estimate of MMD²; and the p-value.
    Raises StatisticsError if they are of different features, or one counts no rows.
    """
    for which, statistics in (("held", held), ("new", new)):
        if not statistics.sum_of_weights > 0:
            raise StatisticsError(f"the {which} rows have no weight; there is nothing to compare")
    difference = held.Zt1() / held.sum_of_weights - new.Zt1() / new.sum_of_weights
    covariance = together.normal_equations().gram
    covariance /= together.sum_of_weights
    scale = 1 / _n_alike(held) + 1 / _n_alike(new)
    distance = float(difference @ difference)
    return distance, _tail(distance / scale, _traces(covariance))


def _n_alike(statistics: RidgeStatistics) -> float:
    """Return the effective number of rows; with precision weights a lower bound, see `ColumnMoments`."""
    spec = statistics.spec
    return statistics.sum_of_weights / (1.0 if spec.frequency_weights else 2.0**spec.weight_exponent)


def _traces(matrix: FloatArray) -> tuple[float, float, float]:
    """Return the traces of a symmetric matrix and of its second and third power, in strips."""
    square = cube = 0.0
    for start in range(0, len(matrix), specs.OUTPUT_TILE):
        strip = matrix[start : start + specs.OUTPUT_TILE]
        # tr A² = Σ a_ij², and tr A³ = Σ a_ij·(A·A)_ij: 2·D³ operations, and no eigenvalues
        square += float(np.vdot(strip, strip))
        cube += float(np.vdot(strip, strip @ matrix))
    return float(np.trace(matrix)), square, cube


def _tail(value: float, traces: tuple[float, float, float]) -> float:
    """Return P(Σ λᵢχ²₁ > value) for eigenvalues λ with these power sums (Buckley & Eagleson 1988).

    The sum is replaced by a shifted and scaled chi-square with the same first three cumulants.
    """
    # the cumulants of λ·χ²₁ are λ, 2λ² and 8λ³, and those of independent terms add up
    mean, variance, third = traces[0], 2 * traces[1], 8 * traces[2]
    if not third > 0:  # features that are all constant
        return 1.0 if value <= blocks.ROUNDING else 0.0
    # false alarms at the 5 % level: 4.3 % of 400, and 3.5 % on log-normal columns
    # a chi-square of ν degrees has the skewness √(8/ν)
    freedom = 8 * variance**3 / third**2
    matched = freedom + (value - mean) * np.sqrt(2 * freedom / variance)
    return float(scipy.special.chdtrc(freedom, max(0.0, matched)))


@frozen(eq=False)
class ColumnShifts:
    """How far each column moved.

    `mean`: float64 array of shape (n_features,). Mean of the new rows less that of the old ones, in the old
      rows' standard deviations; infinite if a constant changed.
    `spread`: float64 array of shape (n_features,). Root mean square deviation of the new rows from the old
      mean, in the old rows' standard deviations.
    `p_values`: float64 array of shape (n_features, 2). Those of the mean and of the spread, uncorrected.
    `p_value`: the least of them, with Šidák's correction for their number.
    """

    mean: FloatArray
    spread: FloatArray
    p_values: FloatArray
    p_value: float

    @property
    def order(self) -> IndexArray:
        return np.argsort(self.p_values.min(axis=1), kind="stable")


def column_shifts(held: ColumnMoments, new: ColumnMoments) -> ColumnShifts:
    """Test each column's mean and spread, O(n_features).

    The spread is taken about the old mean, so that a shifted mean shows in it too.
    """
    shift = new.mean - held.mean
    # moments of a column that is constant by now differ by rounding alone: that is no shift
    rounding = np.maximum(4 * EPS * np.abs(held.mean), held.rounding)
    shift = np.where(np.abs(shift) > rounding, shift, 0.0)
    # the new rows' moments about the old mean
    second, _, fourth = _about(shift, np.zeros_like(shift), *new.central)
    grown = np.where(np.abs(second - held.second) > held.rounding**2, second - held.second, 0.0)
    counts = held.n_samples, new.n_samples
    of_mean = _normal_tail(shift, _error(held.second, new.second, *counts))
    # squared deviations from the old mean, whose own variance is that of the fourth moments
    error = _error(held.fourth - held.second**2, fourth - second**2, *counts)
    of_spread = _tail_of_squares(held.second, grown, error)
    p_values = np.minimum(1.0, 2 * np.column_stack([of_mean, of_spread]))
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation = np.sqrt(np.maximum(held.second, 0.0))
        moved = np.where(shift == 0, 0.0, shift / deviation)
        spread = np.where(grown == 0, 1.0, np.sqrt(np.maximum(second, 0.0)) / deviation)
    return ColumnShifts(moved, spread, p_values, _sidak(float(p_values.min()), p_values.size))


def _error(old: FloatArray, new: FloatArray, n_old: Any, n_new: Any) -> FloatArray:
    """Return standard errors of differences of means; the new variance counts as at least the old."""
    old, new = np.maximum(old, 0.0), np.maximum(new, 0.0)
    return np.asarray(np.sqrt(old / n_old + np.maximum(old, new) / n_new))


def _normal_tail(difference: FloatArray, error: FloatArray) -> FloatArray:
    """Return P(a difference at least as large, of this sign), from differences and their standard errors."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(difference == 0, 1.0, scipy.special.ndtr(-np.abs(difference) / error)))


def _tail_of_squares(mean: FloatArray, difference: FloatArray, error: FloatArray) -> FloatArray:
    """Return the same for means of squares, by the gamma distribution of squared normal values if larger.

    By the normal distribution alone one new row raises an alarm in one of six cases without drift.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = (mean / error) ** 2
        scaled = shape * (1 + difference / mean)
        gamma = np.where(
            difference > 0, scipy.special.gammaincc(shape, scaled), scipy.special.gammainc(shape, scaled)
        )
    return np.asarray(np.fmax(_normal_tail(difference, error), gamma))


def error_drift(held: evaluation.Errors, new: evaluation.Errors) -> tuple[FloatArray, float]:
    """Test whether errors are larger on new rows than on held-out ones, one-sided.

    Returns `ratios`, float64 array of shape (n_targets,): mean squared error on the new rows over that on the
      held-out ones; `p_value`: that of the worst target, with Šidák's correction for their number.
    """
    old, now = held.mean_squared_error, new.mean_squared_error
    error = _error(held.squares_variance, new.squares_variance, held.n_effective, new.n_effective)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(now == old, 1.0, now / old)
    p_values = np.where(now <= old, 1.0, _tail_of_squares(old, now - old, error))
    return ratios, _sidak(float(p_values.min()), len(p_values))


def _sidak(p_value: float, n_tests: int) -> float:
    # 1 − (1 − p)ⁿ, with all digits of a tiny p
    return 1.0 if p_value >= 1 else float(-np.expm1(n_tests * np.log1p(-p_value)))


# -- all of it -----------------------------------------------------------------------------------------


@frozen(eq=False)
class Drift:
    """The results of the tests.

    `level`: probability of an alarm without drift.
    `squared_distance`: MMD² between the mean embeddings.
    `p_values`: those of the parts that were tested: "embedding", "columns" (if the model knows its columns'
      moments) and "errors".
    `error_ratios`: float64 array of shape (n_targets,). See `error_drift`.
    """

    level: float
    squared_distance: float
    p_values: Mapping[str, float]
    shifts: ColumnShifts | None
    error_ratios: FloatArray

    @property
    def parts(self) -> list[str]:
        """The parts that raise the alarm, each tested at its share of the level."""
        return [name for name, p in self.p_values.items() if p <= self.level / len(self.p_values)]

    @property
    def drifted(self) -> bool:
        return bool(self.parts)

    @property
    def p_value(self) -> float:
        """The p-value of all parts together (Bonferroni)."""
        return min(1.0, len(self.p_values) * min(self.p_values.values()))

    def columns(self) -> list[Summary]:
        """Return the 20 columns that moved most, as JSON values; infinite shifts are None."""
        if (shifts := self.shifts) is None:
            return []
        return [
            {
                "column": int(i),
                "shift": _finite(shifts.mean[i]),
                "spread": _finite(shifts.spread[i]),
                "p_value": float(shifts.p_values[i].min()),
            }
            for i in shifts.order[:20]
        ]

    def to_dict(self) -> Summary:
        """Return the results as JSON values, with the 20 columns that moved most."""
        return {
            "drifted": self.drifted,
            "parts": self.parts,
            "level": self.level,
            "p_value": self.p_value,
            "p_values": dict(self.p_values),
            "squared_distance": self.squared_distance,
            "error_ratios": [_finite(ratio) for ratio in self.error_ratios],
            "columns": self.columns(),
        }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


@frozen(eq=False)
class Observed:
    """Sums of some rows, to be compared with others.

    `statistics`: those of all rows.
    `columns`: moments of their inputs; None if a model was stored without them.
    `errors`: errors of a model that was not trained on the rows counted there.
    """

    statistics: RidgeStatistics
    columns: ColumnMoments | None
    errors: evaluation.Errors


def judge_drift(held: Observed, new: Observed, together: RidgeStatistics, *, level: float = LEVEL) -> Drift:
    """Test the inputs as a whole, each column if both sides know their moments, and the errors.

    `held`: the rows that the model holds.
    `together`: see `embedding_drift`.
    `level`: in (0, 1).
    """
    distance, p_embedding = embedding_drift(held.statistics, new.statistics, together)
    p_values, shifts = {"embedding": p_embedding}, None
    if held.columns is not None and new.columns is not None:
        shifts = column_shifts(held.columns, new.columns)
        p_values["columns"] = shifts.p_value
    ratios, p_values["errors"] = error_drift(held.errors, new.errors)
    return Drift(level, distance, p_values, shifts, ratios)
