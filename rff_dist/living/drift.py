"""Test whether new rows follow the distribution of the rows that a model has.

Input are sums over both sets of rows, output is a p-value for each of three tests. The
rows themselves are not needed, so that a pass of an update gives the test for free.

- The inputs as a whole: the squared distance of the mean embeddings Z'1/n of both sets
  (MMD²). Without drift it is distributed as a weighted sum of chi-squares with one
  degree of freedom. The weights are the eigenvalues of the covariance of z, times
  (1/n₁ + 1/n₂). The tail follows from the first three cumulants, without eigenvalues.
- Each column: its mean, and its spread about the old mean. Both are judged by the
  larger of the two sets' standard deviations, so that a column with rare values raises
  no alarm if the new rows happen to have none. Of a column of categories, the shares of
  levels (Pearson's chi-square), and whether rare levels, new ones among them, are more
  frequent than before. The smallest p-value of all columns counts, with Šidák's
  correction.
- The errors: are the model's squared errors larger than on held-out rows?

They share the level by Bonferroni's inequality. They are asymptotic: with fewer than
some 50 rows the levels are rough.

References
----------
Gretton, Borgwardt, Rasch, Schölkopf & Smola (2012), A kernel two-sample test, JMLR 13,
section 4 and Theorem 12. Hall (1983), Chi squared approximations to the distribution of
a sum of independent random variables, Annals of Probability 11. Buckley & Eagleson
(1988), An approximation to the distribution of quadratic forms in normal random
variables, Australian Journal of Statistics 30; compared with others by Bodenham & Adams
(2016), Statistics and Computing 26. Šidák (1967), JASA 62. Welch (1947), Biometrika 34.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Self

import numpy as np
import scipy

from rff_dist.data import blocks
from rff_dist.features.levels import Levels
from rff_dist.fitting import evaluation, predicting
from rff_dist.numerics import exact_sums
from rff_dist.recipes import model_rows
from rff_dist.ridge.models import RidgeModel
from rff_dist.statistics import accumulate, specs
from rff_dist.statistics.moments import ColumnMoments, Moments, _about, measure_moments
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.typing import EPS, FloatArray, IntArray, Summary, frozen

LEVEL = 0.05
_N_LISTED = 20  # columns
_LEAST_EXPECTED = 5  # rows, the usual rule for chi-squares


@frozen(eq=False)
class BatchState:
    """What a pass over new rows needs: the model, and how rows are summed."""

    model: predicting.LinearModel
    #: In the model's features and on its grids, without Z'Z.
    sums: accumulate.Accumulation
    #: Shape (n_features + n_targets,); moments are summed about it, see `Moments`.
    pivot: FloatArray
    #: The model's codes of the rows' levels, see `model_rows.codes_between`.
    codes: Mapping[int, FloatArray] = field(default_factory=dict)


@frozen(eq=False)
class Batch:
    """Sums over new rows, before they enter the model; `+` joins two sets of rows."""

    #: Of the model, which was not trained on the rows.
    errors: evaluation.Errors
    #: Without Z'Z.
    statistics: RidgeStatistics
    #: Of the columns [X, y].
    moments: Moments
    #: The lists that levels are counted by.
    levels: Levels = field(default_factory=dict)

    def __add__(self, other: Self) -> Self:
        return exact_sums.add_fields(self, other, levels=self.levels)

    @property
    def columns(self) -> ColumnMoments:
        """The central moments of the inputs."""
        repeats = self.statistics.spec.frequency_weights
        return ColumnMoments.of(self.moments, frequency_weights=repeats)


def measure_batch(
    rows: blocks.Rows, state: BatchState, total: Batch | None = None
) -> Batch:
    """Sum a block's errors, features and columns; adds to `total` in place.

    Raises DataError if the block has no targets, or as `accumulate_rows`.
    """
    # Rows have the codes of the dataset's lists of levels, by which moments and
    # features are summed; the model predicts by the codes of its own lists.
    recoded = model_rows.recode(state.codes, rows)
    errors = evaluation.measure_errors(recoded, state.model)
    levels = state.sums.feature_map.levels
    moments = measure_moments(rows, state.pivot, levels=levels)
    if total is None:
        statistics = accumulate.accumulate_rows(rows, state.sums)
        return Batch(errors, statistics, moments, levels)
    statistics = accumulate.accumulate_rows(rows, state.sums, total.statistics)
    return Batch(total.errors + errors, statistics, total.moments + moments, levels)


# -- the inputs as a whole
# ------------------------------------------------------------------


def embedding_drift(
    old: RidgeStatistics, new: RidgeStatistics, together: RidgeStatistics
) -> tuple[float, float]:
    """Return ‖Z₁'1/n₁ − Z₂'1/n₂‖², the biased estimate of MMD², and its p-value.

    O(n_components³). `together`: sums with Z'Z over both sets, without removed rows.
    Each set has positive weight.
    """
    difference = old.Zt1() / old.sum_of_weights - new.Zt1() / new.sum_of_weights
    covariance = together.normal_equations().gram
    covariance /= together.sum_of_weights
    scale = 1 / _effective_rows(old) + 1 / _effective_rows(new)
    distance = float(difference @ difference)
    return distance, chi_squares_tail(distance / scale, _power_sums(covariance))


def _effective_rows(statistics: RidgeStatistics) -> float:
    """Return how many rows of weight 1 tell as much; for precisions a lower bound."""
    spec = statistics.spec
    largest = 1.0 if spec.frequency_weights else 2.0**spec.weight_exponent
    return statistics.sum_of_weights / largest


def _power_sums(matrix: FloatArray) -> tuple[float, float, float]:
    """Return Σλ, Σλ² and Σλ³ of a symmetric matrix: the traces of its powers."""
    square = cube = 0.0
    # in strips, since A·A would be a second matrix of this size
    for start in range(0, len(matrix), specs.OUTPUT_TILE):
        strip = matrix[start : start + specs.OUTPUT_TILE]
        # tr A² = Σ a_ij², and tr A³ = Σ a_ij·(A·A)_ij
        square += float(np.vdot(strip, strip))
        cube += float(np.vdot(strip, strip @ matrix))
    return float(np.trace(matrix)), square, cube


def chi_squares_tail(value: float, power_sums: tuple[float, float, float]) -> float:
    """Return P(Σ λᵢχ²₁ > value) from Σλ, Σλ² and Σλ³ (Buckley & Eagleson 1988).

    A shifted and scaled chi-square with the same three cumulants replaces the sum.
    """
    # the cumulants of λ·χ²₁ are λ, 2λ² and 8λ³, and those of independent terms add up
    mean = power_sums[0]
    variance = 2 * power_sums[1]
    third = 8 * power_sums[2]
    if not third > 0:  # features that are all constant
        return 1.0 if value <= blocks.ROUNDING else 0.0
    # false alarms at the 5 % level: 4.3 % of 400, and 3.5 % on log-normal columns
    # a chi-square of ν degrees has the skewness √(8/ν)
    freedom = 8 * variance**3 / third**2
    matched = freedom + (value - mean) * np.sqrt(2 * freedom / variance)
    return float(scipy.special.chdtrc(freedom, max(0.0, matched)))


# -- columns and errors
# ---------------------------------------------------------------------

# of quotients by a spread of 0, which `np.where` replaces
_ignoring_zeros = np.errstate(divide="ignore", invalid="ignore")


@frozen(eq=False)
class ColumnShifts:
    """How far each column moved, in standard deviations of the old rows."""

    #: New mean less old mean, shape (n_features,); infinite if a constant changed.
    mean: FloatArray
    #: Root mean square deviation of the new rows from the old mean, same shape.
    spread: FloatArray
    #: Of mean and spread, or of levels and rare levels, uncorrected, shape
    #: (n_features, 2).
    p_values: FloatArray
    #: Half the sum of differences of the shares of levels, of columns of categories.
    distances: Mapping[int, float]

    @property
    def p_value(self) -> float:
        return _sidak(self.p_values)

    def table(self) -> list[Summary]:
        """Return the columns that moved most as JSON values; None for infinity."""
        smallest = self.p_values.min(axis=1)
        return [
            {"column": i, **self._moved(i), "p_value": float(smallest[i])}
            for i in np.argsort(smallest, kind="stable")[:_N_LISTED].tolist()
        ]

    def _moved(self, column: int) -> Summary:
        if column in self.distances:
            return {"distance": self.distances[column]}
        return {
            "shift": _finite(self.mean[column]),
            "spread": _finite(self.spread[column]),
        }


@_ignoring_zeros
def column_shifts(old: ColumnMoments, new: ColumnMoments) -> ColumnShifts:
    """Test each column's mean and spread, or shares of levels, O(n_features).

    The spread is taken about the old mean, so that a shifted mean shows in it too.
    """
    shift = new.mean - old.mean
    # columns that are constant by now differ by rounding alone, which is no shift
    rounding = np.maximum(4 * EPS * np.abs(old.mean), old.rounding)
    shift = np.where(np.abs(shift) > rounding, shift, 0.0)
    # the new rows' moments about the old mean
    second, _, fourth = _about(shift, np.zeros_like(shift), *new.central)
    growth = second - old.second
    growth = np.where(np.abs(growth) > old.rounding**2, growth, 0.0)

    n_rows = (old.n_samples, new.n_samples)
    mean_error = _standard_error(old.second, new.second, *n_rows)
    # the variance of a squared deviation is that of fourth moments
    variances = (old.fourth - old.second**2, fourth - second**2)
    spread_error = _standard_error(*variances, *n_rows)
    mean_tail = _normal_tail(shift, mean_error)
    spread_tail = _mean_square_tail(growth, spread_error, old.second)

    deviation = np.sqrt(np.maximum(old.second, 0.0))
    ratio = np.sqrt(np.maximum(second, 0.0)) / deviation
    p_values = np.minimum(1.0, 2 * np.column_stack([mean_tail, spread_tail]))
    distances = {}
    for column in old.counts.keys() & new.counts.keys():
        before = old.counts[column]
        now = new.counts[column]
        p_values[column] = level_tests(before, now)
        shares = before / before.sum() - now / now.sum()
        distances[column] = float(np.abs(shares).sum() / 2)
    return ColumnShifts(
        np.where(shift == 0, 0.0, shift / deviation),
        np.where(growth == 0, 1.0, ratio),
        p_values,
        distances,
    )


def level_tests(old: IntArray, new: IntArray) -> tuple[float, float]:
    """Return p-values of two tests by the rows of each level: are the shares others,
    and are rare levels together more frequent in the new rows?

    A level is rare if fewer than 5 rows of it are expected in one of the sets. The
    second is the exact test of which set each of their rows is in.
    """
    both = np.array([old, new])
    totals = both.sum(axis=1)
    shares = totals / totals.sum()
    is_rare = both.sum(axis=0) * shares.min() < _LEAST_EXPECTED
    rare = both[:, is_rare].sum(axis=1)
    cells = both[:, ~is_rare]
    if rare.sum() * shares.min() >= _LEAST_EXPECTED:
        cells = np.column_stack([cells, rare])
    n_free = cells.shape[1] - 1
    if n_free > 0:
        expected = np.outer(cells.sum(axis=1), cells.sum(axis=0)) / cells.sum()
        square = ((cells - expected) ** 2 / expected).sum()
        p_shares = float(scipy.special.chdtrc(n_free, square))
    else:
        p_shares = 1.0
    n_rare = int(rare.sum())
    # P(at least so many of the rare rows are new)
    p_rare = 1.0
    if rare[1] > 0:
        p_rare = float(scipy.special.bdtrc(rare[1] - 1, n_rare, shares[1]))
    return p_shares, p_rare


@_ignoring_zeros
def error_drift(
    old: evaluation.Errors, new: evaluation.Errors
) -> tuple[FloatArray, float]:
    """Test, one-sided, whether errors are larger on new rows than on held-out ones.

    Returns the ratio of mean squared errors, shape (n_targets,), and the p-value of the
    worst target, with Šidák's correction.
    """
    before = old.mean_squared_error
    now = new.mean_squared_error
    error = _standard_error(
        old.squares_variance, new.squares_variance, old.n_effective, new.n_effective
    )
    tail = _mean_square_tail(now - before, error, before)
    p_values = np.where(now <= before, 1.0, tail)
    return np.where(now == before, 1.0, now / before), _sidak(p_values)


def _standard_error(
    old: FloatArray, new: FloatArray, n_old: Any, n_new: Any
) -> FloatArray:
    """Return the error of a difference of means; `new` counts as at least `old`."""
    old = np.maximum(old, 0.0)
    return np.asarray(np.sqrt(old / n_old + np.maximum(old, new) / n_new))


@_ignoring_zeros
def _normal_tail(difference: FloatArray, error: FloatArray) -> FloatArray:
    """Return P(a normal difference at least as large, of this sign)."""
    tail = scipy.special.ndtr(-np.abs(difference) / error)
    return np.where(difference == 0, 1.0, tail)


@_ignoring_zeros
def _mean_square_tail(
    difference: FloatArray, error: FloatArray, mean: FloatArray
) -> FloatArray:
    """Return P(a difference from a mean of squares at least as large, of this sign).

    It is the larger of the normal tail and that of the gamma distribution of squared
    normal values: by the first alone one new row raises an alarm in one of six cases
    without drift.
    """
    normal = _normal_tail(difference, error)
    shape = (mean / error) ** 2
    scaled = shape * (1 + difference / mean)
    above = scipy.special.gammaincc(shape, scaled)
    below = scipy.special.gammainc(shape, scaled)
    gamma = np.where(difference > 0, above, below)
    # without errors or mean the gamma tail is NaN, and `fmax` returns the normal one
    return np.asarray(np.fmax(normal, gamma))


def _sidak(p_values: FloatArray) -> float:
    smallest = float(p_values.min())
    if smallest >= 1:
        return 1.0
    # 1 − (1 − p)ⁿ, with all digits of a tiny p
    return float(-np.expm1(p_values.size * np.log1p(-smallest)))


# -- all of it
# ------------------------------------------------------------------------------


@frozen(eq=False)
class Drift:
    """The results of the tests."""

    #: Probability of an alarm without drift.
    level: float
    #: MMD² between the mean embeddings.
    squared_distance: float
    #: Of "embedding", "columns" (if the model knows their moments) and "errors".
    p_values: Mapping[str, float]
    shifts: ColumnShifts | None
    #: See `error_drift`.
    error_ratios: FloatArray

    @property
    def parts(self) -> list[str]:
        """The tests that raise the alarm, each at its share of the level."""
        share = self.level / len(self.p_values)
        return [name for name, p in self.p_values.items() if p <= share]

    @property
    def has_drifted(self) -> bool:
        return bool(self.parts)

    @property
    def p_value(self) -> float:
        """The p-value of all tests together (Bonferroni)."""
        return min(1.0, len(self.p_values) * min(self.p_values.values()))

    def to_dict(self) -> Summary:
        """Return the results as JSON values."""
        return {
            "drifted": self.has_drifted,
            "parts": self.parts,
            "level": self.level,
            "p_value": self.p_value,
            "p_values": dict(self.p_values),
            "squared_distance": self.squared_distance,
            "error_ratios": [_finite(ratio) for ratio in self.error_ratios],
            "columns": [] if self.shifts is None else self.shifts.table(),
        }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def judge_drift(
    model: RidgeModel,
    held_out: evaluation.Errors,
    batch: Batch,
    together: RidgeStatistics,
    *,
    level: float = LEVEL,
) -> Drift:
    """Test new rows against those that a model has.

    `held_out` are errors on rows that were held out of the model, `together` are sums
    of all rows, as in `embedding_drift`, and `level` is in (0, 1).
    """
    distance, p_embedding = embedding_drift(model.summed, batch.statistics, together)
    p_values = {"embedding": p_embedding}
    shifts = None
    if model.columns is not None:
        columns = model.columns
        if batch.levels:
            columns = columns.with_levels(model.feature_map.levels, batch.levels)
        shifts = column_shifts(columns, batch.columns)
        p_values["columns"] = shifts.p_value
    ratios, p_values["errors"] = error_drift(held_out, batch.errors)
    return Drift(level, distance, p_values, shifts, ratios)
