"""The errors of rows as if they had been held out, and prediction intervals by them (conformal)."""

from __future__ import annotations

import functools
import math
from dataclasses import fields, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import blocks, folding
from rff_dist.engines import protocol
from rff_dist.errors import InvalidParameterError, StatisticsError
from rff_dist.features import maps
from rff_dist.fitting import evaluation, predicting
from rff_dist.numerics import cholesky, exact_sums, machine
from rff_dist.selection import cross_validation
from rff_dist.statistics import accumulate, inspection, ridge_statistics, specs
from rff_dist.statistics.fold_statistics import FoldStatistics
from rff_dist.typing import AnyArray, Arrays, BoolArray, EqualByFields, FloatArray, IntArray, frozen


def hold_out_scores(
    dataset: blocks.Dataset,
    statistics: FoldStatistics,
    models: FoldModels,
    *,
    normalized: bool = False,
    engine: protocol.Engine,
) -> HeldOutScores:
    """Count in one more pass how far each row is from the model that was trained without its fold.

    A pass of predictions; see `rff_dist.ridge.held_out` for the intervals that `quantile` of the scores
    gives. With `normalized` another such pass and a cross-validation, of O(n_splits · n_components³), come
    first.

    `dataset`: the rows that `statistics` count, in the same order.
    `models`: those of `fold_models`, at the penalty of the model of all rows.
    `normalized`: whether a row's error is divided by its predicted deviation, so that intervals are wider
      where errors are larger. Each fold must be held out; see `check_conformal`.
    Raises DataError if values are not finite, or targets or groups are missing; StatisticsError if the
      statistics are of other rows, or with `normalized` a fold that is held out has no rows.
    """
    if statistics.n_samples != dataset.n_samples:
        raise StatisticsError(
            f"the folds' statistics count {statistics.n_samples:_} rows, the data have "
            f"{dataset.n_samples:_}; expected the rows that were cut into folds. Give the same data"
        )
    deviations = None
    if normalized:
        add_up = functools.partial(sum_root_residuals, exponents=statistics.total().spec.exponents)
        sums = inspection.sum_rows(
            dataset, add_up, models, combine=accumulate.add_each, engine=engine, label="residuals"
        )
        roots = root_residual_statistics(statistics, models, sums)
        chosen = cross_validation.cross_validate(roots).best
        models, deviations = with_deviations(models, roots, alpha=chosen.alpha)
    scores = inspection.sum_rows(dataset, score_rows, models, engine=engine, label="hold out")
    return replace(scores, deviations=deviations)


# -- prediction intervals that assume no noise distribution ----------------------------------------
#
# Each row's score is |y − f₋(x)|, where f₋ is the model that cross-validation trained without the row's fold.
# The interval with coverage c around the model f of all rows is f(x) ± q, where q is the ⌈(n + 1)·c⌉-th
# smallest of n scores: the K-fold form of the jackknife interval, with the rank of split conformal
# prediction.
#
# If each f₋ were equal to f, a new row that is exchangeable with these would be inside with probability c or
# more, whatever the noise. Fits of fewer rows are worse, so that q errs on the wide side. But the jackknife
# has no guarantee for unstable models; CV+, which keeps all fold models, has one of about 2c − 1. Coverage is
# an average over rows: if the noise differs from row to row, an interval of one width is too narrow for some
# and too wide for others; see below. With folds of groups or of time, the interval is one for a new group, or
# for the time to come.
#
# **Intervals whose width follows the row.** If the noise differs from row to row, the scores can be
# |y − f₋(x)| / s₋(x), and the interval f(x) ± q·s(x). √s is a ridge regression of the square roots of the
# held-out residuals |y − f₋| on the same features, and √s₋ is that regression without the row's fold: only
# its right-hand side is new, since Z'Z is known. A constant factor in s does not matter, and √s is kept
# between a tenth and ten times its mean, so that no row has an absurd width. Square roots have a variance
# wherever residuals have a mean, so that a few outliers do not decide them; logarithms lose more, and weigh
# small residuals more than large ones. The guarantee is as above, for s too: s₋ is made of residuals of other
# folds, whose models saw the row, but the row moves them by its leverage alone.
#
# Scores are counted in bins a factor 2^(1/64) wide, and a quantile is its bin's upper edge: at most 1.1 % too
# large, never too small. Counts are integers, so that they add up to the same bits in any order.
#
# Vovk, Gammerman & Shafer (2005), Algorithmic Learning in a Random World, section 4.1; Vovk (2015),
# Cross-conformal predictors, Annals of Mathematics and Artificial Intelligence 74; Lei, G'Sell, Rinaldo,
# Tibshirani & Wasserman (2018), Distribution-free predictive inference for regression, section 5.2 (widths
# that follow the row), Journal of the American Statistical Association 113; Barber, Candès, Ramdas &
# Tibshirani (2021), Predictive inference with the jackknife+, Annals of Statistics 49.


# Counts in bins are integers, so that they merge to the same bits; quantiles are up to 1.1 % too large, never
# too small.
BINS_PER_OCTAVE = 64  # a width of 2^(1/64) = 1.011
OCTAVES = 32  # on either side of the target's standard deviation
SMALLEST = 2.0**-32  # residual, in units; smaller ones count as this when deviations are fitted
REACH = 10.0  # √s is at most so many times its mean, and at least its mean divided by this


@frozen(eq=False)
class FoldModels:
    """The state of a scoring pass: the models of a cross-validation at one alpha.

    `linear`: with n_splits · n_targets columns, the targets of a split side by side.
    `folds`: how rows were cut.
    `validated`: int64 array of shape (n_splits,). The fold that each split holds out.
    `n_samples`: rows that were cut into folds.
    `units`: float64 array of shape (n_targets,). See `HeldOutScores`.
    `root_deviations`: √s₋ for normalised scores, in the same columns as `linear`.
    `repeated`: whether weights are whole numbers that repeat their rows.
    """

    linear: predicting.LinearModel
    folds: folding.Folds
    validated: IntArray
    n_samples: int
    units: FloatArray
    root_deviations: RootDeviations | None = None
    repeated: bool = False


def fold_models(
    statistics: FoldStatistics, feature_map: maps.FeatureMap, *, alpha: ArrayLike, fit_intercept: bool = True
) -> FoldModels:
    """Solve for the coefficients of each split, n_splits Cholesky factorisations one after another.

    `statistics`: with the whitener if the feature map has one.
    `feature_map`: the one that `statistics` were accumulated with.
    `alpha`: float or array of shape (n_targets,). The penalty of the model of all rows.
    Raises StatisticsError if no fold has rows, or those that a split trains on have none;
      InvalidParameterError, SolveError as `solve_cholesky`.
    """
    total = statistics.total()
    solutions, validated = [], []
    for trained_on, held_out in statistics.folds.splits:
        part = statistics.parts[held_out]
        if part is None or not part.n_observations:
            continue  # no row would use this model
        all_others = len(trained_on) == len(statistics.parts) - 1  # one subtraction, which is exact
        training = total - part if all_others else statistics.sum(trained_on)
        equations = training.normal_equations(fit_intercept=fit_intercept)
        solutions.append(cholesky.solve_cholesky(equations, alpha, overwrite_gram=True))
        validated.append(held_out)
    if not validated:
        raise StatisticsError(f"no fold of {statistics.folds} that is held out has rows; use fewer folds")
    coefficients = np.hstack([solution.coefficients for solution in solutions])
    intercept = np.concatenate([solution.intercept for solution in solutions])
    return FoldModels(
        linear=predicting.LinearModel(feature_map, coefficients, intercept),
        folds=statistics.folds,
        validated=np.array(validated, np.int64),
        n_samples=statistics.n_samples,
        units=_units(total.target_deviations()),
        repeated=total.spec.frequency_weights,
    )


def _units(deviations: FloatArray) -> FloatArray:
    """Return powers of two near the targets' standard deviations; 1 for a constant target."""
    # dividing by a power of two does not round
    return np.asarray(np.where(deviations > 0, np.ldexp(1.0, np.frexp(deviations)[1]), 1.0))


@frozen(eq=False)
class Deviations(EqualByFields):
    """How far off the model of all rows is at x, up to a factor: s(x), by a regression of its root.

    `coefficients`: float64 array of shape (n_components, n_targets). Of √s, with s in the targets' units.
    `intercept`: float64 array of shape (n_targets,). Of √s.
    `bounds`: float64 array of shape (2, n_targets). The least and the largest √s, to which predictions are
      clipped.
    """

    coefficients: FloatArray
    intercept: FloatArray
    bounds: FloatArray

    def root_deviations(self, feature_map: maps.FeatureMap) -> RootDeviations:
        linear = predicting.LinearModel(feature_map, self.coefficients, self.intercept)
        return RootDeviations(linear, self.bounds)

    def to_arrays(self) -> dict[str, AnyArray]:
        return {f"deviation_{item.name}": getattr(self, item.name) for item in fields(self)}


@frozen(eq=False)
class RootDeviations:
    """Predicts √s.

    `linear`: √s before clipping; the targets of several models stand side by side.
    `bounds`: float64 array of shape (2, n_targets). See `Deviations`.
    """

    linear: predicting.LinearModel
    bounds: FloatArray

    def of_rows(self, rows: blocks.Rows) -> FloatArray:
        """Return s of each row and column of `linear`.

        Raises DataError as `predict_rows`.
        """
        roots = predicting.predict_rows(rows, self.linear)
        return np.square(np.clip(roots, *np.tile(self.bounds, roots.shape[1] // self.bounds.shape[1])))


@functools.lru_cache(maxsize=1)
def _edges() -> FloatArray:
    """Return the upper edges of all bins but the last, in units: 0, then a geometric grid."""
    steps = np.arange(-OCTAVES * BINS_PER_OCTAVE, OCTAVES * BINS_PER_OCTAVE + 1)
    edges = np.concatenate([[0.0], np.exp2(steps / BINS_PER_OCTAVE)])
    edges.flags.writeable = False
    return edges


@frozen(eq=False)
class HeldOutScores(EqualByFields):
    """How many rows have which score, exactly; `+` joins two sets of rows.

    `counts`: int64 array of shape (n_bins, n_targets). Rows with a score of 0, then those in each bin of a
      geometric grid from 2^-32 to 2^32 units, and last those above it. Scores are |y − f₋(x)|, or
      |y − f₋(x)| / s₋(x) with `deviations`. A score below the grid counts as 2^-32 units, one above it as
      infinite.
    `units`: float64 array of shape (n_targets,). Powers of two near each target's standard deviation; 1 for
      normalised scores.
    `deviations`: s of the model of all rows, for normalised scores.
    """

    counts: IntArray
    units: FloatArray
    deviations: Deviations | None = None

    def __add__(self, other: HeldOutScores) -> HeldOutScores:
        if not np.array_equal(self.units, other.units):
            raise StatisticsError(
                f"these scores are counted in different units, {self.units} and {other.units}; score all "
                "blocks with the same models"
            )
        return replace(self, counts=self.counts + other.counts)

    @property
    def n_samples(self) -> int:
        return int(self.counts[:, 0].sum())

    def quantile(self, coverage: float) -> FloatArray:
        """Return the half width of intervals with a coverage, in the targets' units: shape (n_targets,).

        It is the ⌈(n + 1)·coverage⌉-th smallest score, at most 1.1 % too large, and infinite if there are too
        few rows for such a coverage. With normalised scores it is the half width over s(x), without units.

        `coverage`: in (0, 1).
        Raises InvalidParameterError if `coverage` is not in (0, 1).
        """
        check_coverage(coverage)
        exact = (self.n_samples + 1) * coverage
        rank = math.ceil(exact * (1.0 - 1e-12))  # 100 · 0.07 is 7, though not in float64
        reached = self.counts.cumsum(axis=0) >= rank
        index = np.where(reached.any(axis=0), reached.argmax(axis=0), len(self.counts) - 1)
        return np.asarray(np.append(_edges(), np.inf)[index] * self.units)

    def to_arrays(self) -> dict[str, AnyArray]:
        normalised = {} if self.deviations is None else self.deviations.to_arrays()
        return {"counts": self.counts, "units": self.units, **normalised}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Read what `to_arrays` returned.

        Raises StatisticsError if they do not fit together.
        """
        counts, units = np.asarray(arrays["counts"], np.int64), np.asarray(arrays["units"], np.float64)
        expected = (len(_edges()) + 1, len(units))
        if counts.shape != expected:
            raise StatisticsError(f"stored scores have counts of shape {counts.shape}; expected {expected}")
        if "deviation_coefficients" not in arrays:  # scores of one width
            return cls(counts, units)
        parts = (arrays[f"deviation_{item.name}"] for item in fields(Deviations))
        return cls(counts, units, Deviations(*parts))


def check_coverage(coverage: float) -> None:
    """Check that a coverage is in (0, 1)."""
    if not 0.0 < coverage < 1.0:
        raise InvalidParameterError(f"`coverage` is {coverage!r}; expected a number in (0, 1), such as 0.9")


def score_rows(rows: blocks.Rows, state: FoldModels) -> HeldOutScores:
    """Count the held-out scores of a block, at the cost of predictions with n_splits · n_targets columns.

    A row counts once, or as many times as its weight repeats it. Rows of weight 0 do not count, and neither
    do those of folds that are never held out, such as the first of `TimeFolds`.

    Raises DataError if the block has no targets, values that are not finite, or lacks the groups that its
      folds are of.
    """
    residuals, split, counted = _residuals(rows, state)
    units = state.units
    if state.root_deviations is not None:
        deviations = state.root_deviations.of_rows(rows).reshape(len(split), -1, len(units))
        residuals = residuals / deviations[counted, split[counted]]
        units = np.ones(len(units))
    with np.errstate(over="ignore"):  # beyond the grid either way
        scores = residuals / units
    edges = _edges()
    # a score that equals an edge falls into the bin below it, whose upper edge it is
    index = np.searchsorted(edges, scores, side="left")
    times = rows.sample_weight[counted] if state.repeated and rows.sample_weight is not None else None
    counts = [np.bincount(column, times, len(edges) + 1) for column in index.T]
    return HeldOutScores(np.column_stack(counts).astype(np.int64), units)


def _residuals(rows: blocks.Rows, state: FoldModels) -> tuple[FloatArray, IntArray, BoolArray]:
    """Return |y − f₋| of shape (n_counted, n_targets), each row's split, and which rows count."""
    held_out, split, counted = predict_held_out(rows, state)
    assert rows.y is not None
    with np.errstate(over="ignore"):
        return np.abs(rows.y[counted] - held_out), split, counted


def predict_held_out(rows: blocks.Rows, state: FoldModels) -> tuple[FloatArray, IntArray, BoolArray]:
    """Predict each row of a block by the model that was trained without its fold.

    Returns `predictions`, float64 array of shape (n_counted, n_targets): f₋ of the rows that count, those
      with a weight above 0 whose fold is held out; `split`, int64 array of shape (n_samples,): the split that
      holds out each row, -1 for none; `counted`, bool array of shape (n_samples,).
    Raises DataError as `score_rows`.
    """
    _, weights = evaluation.evaluated_targets(rows)
    assigned = state.folds.assign(
        rows.block.start, rows.block.stop, n_samples=state.n_samples, groups=rows.groups
    )
    split = split_of_folds(assigned, state)
    counted = (split >= 0) & (weights > 0)
    # rows that do not count may hold values of which no features can be made
    rows = replace(rows, X=np.where(counted[:, np.newaxis], rows.X, 0))
    return predict_by_splits(rows, split, state)[counted], split, counted


def split_of_folds(fold_of_row: IntArray, state: FoldModels) -> IntArray:
    """Return the split that holds out each row, from its fold: -1 for none."""
    split_of = np.full(state.folds.n_folds, -1, np.int64)
    split_of[state.validated] = np.arange(len(state.validated))
    return np.asarray(split_of[fold_of_row])


def predict_by_splits(rows: blocks.Rows, split: IntArray, state: FoldModels) -> FloatArray:
    """Predict each row by the model of its split: shape (n_samples, n_targets)."""
    predictions = predicting.predict_rows(rows, state.linear).reshape(len(split), -1, len(state.units))
    return np.asarray(predictions[np.arange(len(split)), split])


# -- how far off the model is at each row ----------------------------------------------------------


# Roots: with noise of standard deviation 0.1 + |x₁| the intervals are 5 to 10 % narrower than of one width,
# by logarithms 3 %; squares, and with heavy tails residuals themselves, make them wider at 3,000 rows.
def sum_root_residuals(
    rows: blocks.Rows, state: FoldModels, *, exponents: tuple[tuple[int, int], ...]
) -> tuple[exact_sums.ExactSum, ...]:
    """Return a block's sums of the roots of held-out residuals: U'W[g, 1], and those of g and its squares.

    g is √(|y − f₋| / unit). Takes O(n_samples · n_components · n_features), as predictions do. The sums are
    `RidgeStatistics.cross` and `targets` with g in place of y.

    `rows`: with targets.
    `state`: without deviations.
    `exponents`: those of the statistics, see `StatisticsSpec`.
    Returns for one split after the other `cross`, ExactSum of shape (n_components, n_targets + 1), and
      `targets`, ExactSum of shape (2, n_targets + 1).
    Raises DataError as `score_rows`.
    """
    residuals, split, counted = _residuals(rows, state)
    n_splits, width = len(state.validated), len(state.units) + 1
    right = np.zeros((len(split), n_splits, width))
    roots = np.sqrt(np.maximum(residuals / state.units, SMALLEST))
    # shape (n_samples, n_splits, n_targets + 1): a row has entries only in the split that holds it out
    right[counted, split[counted]] = np.column_stack([roots, np.ones(len(roots))])
    weights = rows.weights
    weighted = right * weights[:, np.newaxis, np.newaxis]
    feature_map = state.linear.feature_map
    inputs = feature_map.inputs_of(rows)
    units = np.ldexp(1.0, -exact_sums.expand(exponents).astype(np.int64))[:, np.newaxis] if exponents else 1.0
    height = specs.tile_rows(feature_map.n_components)
    sums: dict[int, tuple[exact_sums.ExactSum, ...]] = {}

    def add_up(first: int) -> None:
        tile = slice(first, min(first + height, len(inputs)))
        flat = weighted[tile].reshape(tile.stop - first, -1)
        moments = np.empty((feature_map.n_components, flat.shape[1]))
        for start, stop in feature_map.stripes:
            stripe = np.empty((stop - start, len(flat)))
            feature_map.fill(inputs[tile], stripe, start, stop)
            moments[start:stop] = stripe @ flat
        # from V to U = V / 2^exponents, in which sums are kept; powers of two do not round
        moments *= units
        by_split = moments.reshape(-1, n_splits, width)
        sums[first] = tuple(
            exact_sums.ExactSum.of(part)
            for k in range(n_splits)
            for part in (by_split[:, k], specs.target_products(right[tile, k], weights[tile]))
        )

    machine.share_out(add_up, range(0, len(inputs), height))
    return functools.reduce(accumulate.add_each, sums.values())  # exact, so that their order does not matter


def root_residual_statistics(
    statistics: FoldStatistics, models: FoldModels, sums: tuple[exact_sums.ExactSum, ...]
) -> FoldStatistics:
    """Return the statistics of each fold with g in place of y; Grams are shared, not copied.

    `statistics`: the ones that `models` were solved from.
    `sums`: over all rows; see `sum_root_residuals`.
    """
    parts: list[ridge_statistics.RidgeStatistics | None] = [None] * len(statistics.parts)
    for fold, cross, targets in zip(models.validated, sums[::2], sums[1::2], strict=True):
        part = statistics.fold(fold)
        # g is summed about 0, unlike y
        parts[fold] = replace(part, spec=replace(part.spec, target_offset=()), cross=cross, targets=targets)
    return replace(statistics, parts=tuple(parts))


def with_deviations(
    models: FoldModels, statistics: FoldStatistics, *, alpha: float
) -> tuple[FoldModels, Deviations]:
    """Fit √s by ridge regression, for each split and for all rows: n_splits + 1 Cholesky factorisations.

    `statistics`: with g in place of y; see `root_residual_statistics`.
    `alpha`: the penalty of this regression.
    Returns `models`: with deviations, for the scores; `deviations`: of all rows, for predictions.
    """
    feature_map = models.linear.feature_map
    total = statistics.total()
    scale = np.sqrt(models.units)  # g is the root of a residual over its unit
    bounds = scale * total.target_means() * np.array([[1.0 / REACH], [REACH]])
    solution = cholesky.solve_cholesky(total.normal_equations(), alpha, overwrite_gram=True)
    deviations = Deviations(scale * solution.coefficients, scale * solution.intercept, bounds)
    of_splits = fold_models(statistics, feature_map, alpha=alpha).linear
    scales = np.tile(scale, len(models.validated))
    roots = predicting.LinearModel(feature_map, scales * of_splits.coefficients, scales * of_splits.intercept)
    return replace(models, root_deviations=RootDeviations(roots, bounds)), deviations
