"""Errors of held-out rows, and prediction intervals by them (conformal prediction).

Rows and the sums of each fold go in; `HeldOutScores` come out. Their `quantile` times
the typical error near a row is the half width of the row's interval. Errors of rows
that a model was trained on would be too small, and one width for all rows too wide for
some and too narrow for others.
"""

from __future__ import annotations

import functools
import math
from dataclasses import field, replace
from typing import Self

import numpy as np

from rff_dist.data import blocks, samples
from rff_dist.engines import protocol
from rff_dist.errors import InvalidParameterError, SolveError, StatisticsError
from rff_dist.features import maps
from rff_dist.fitting import predicting
from rff_dist.numerics import cholesky, solution
from rff_dist.ridge import uncertainty
from rff_dist.ridge.fold_models import FoldModels, predict_held_out
from rff_dist.statistics import accumulate, fold_statistics, passes, row_passes
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.typing import (
    AnyArray,
    Arrays,
    BoolArray,
    EqualByFields,
    FloatArray,
    IntArray,
    frozen,
)

# A row's score is |y − f₋(x)| / s₋(x), where f₋ is the model that was trained without
# the row's fold, and s₋(x) the size of errors near x, fitted without that fold too. The
# interval with coverage c is f(x) ± q·s(x), where f is trained on all rows, s on all
# held-out rows, and q is the ⌈(n + 1)·c⌉-th smallest of n scores: the K-fold form of
# the jackknife interval, with the rank of split conformal prediction.
#
# If each f₋ and s₋ were equal to f and s, a new row that is exchangeable with these
# would be inside with probability c or more, whatever the noise. Fits of fewer rows are
# worse, so that q errs on the wide side. But the jackknife has no guarantee for
# unstable models; CV+, which keeps all fold models, has one of about 2c − 1. With folds
# of groups or of time, the interval is one for a new group, or for the time to come.
#
# √s is a ridge regression of the roots √|y − f₋| on the same features, so that only its
# right-hand side is new: Z'Z is known. A constant factor in s does not matter, and √s
# is kept between a tenth and ten times its mean, so that no row has an absurd width.
# Square roots have a variance wherever errors have a mean, so that a few outliers do
# not decide them. s₋ has features of all rows, and errors of other folds alone. Those
# errors come from models that were trained on the row, which changes them only by its
# leverage, a small one if rows are many.
#
# With few rows that leverage is large: Z'Z has the row, but the roots of s₋ lack it, so
# that s₋ is drawn to the mean, and fits of fewer rows are worse. So up to 2,048 rows f₋
# and s₋ leave out the row alone, not its fold. In four splits, 94.7 % of airfoil's new
# rows were in intervals of 90 % by folds, and 92.9 % by rows; 94.9 and 93.3 % of
# pendulum's, 94.6 and 91.7 % of housing's.
#
# Vovk, Gammerman & Shafer (2005), Algorithmic Learning in a Random World, section 4.1;
# Vovk (2015), Cross-conformal predictors, Annals of Mathematics and Artificial
# Intelligence 74; Lei, G'Sell, Rinaldo, Tibshirani & Wasserman (2018),
# Distribution-free predictive inference for regression, section 5.2 (widths that follow
# the row), Journal of the American Statistical Association 113; Barber, Candès, Ramdas
# & Tibshirani (2021), Predictive inference with the jackknife+, Annals of Statistics
# 49.

#: The most rows that are scored: a share of 90 % is then known to 0.25 %.
MOST_ROWS = 2**14
# Scores are counted in bins, because counts are integers, which add up to the same bits
# in any order. A quantile is its bin's upper edge: up to 1.1 % too large, never too
# small.
BINS_PER_OCTAVE = 64  # a bin ends 2^(1/64) = 1.011 times above its start
OCTAVES = 32  # on either side of 1
# Share of a target's standard deviation. Smaller errors count as this when √s is
# fitted: 0 would give a row an interval without width.
SMALLEST = 2.0**-32
# √s is at most so many times its mean, and at least its mean divided by this
REACH = 10.0


def score_sample(
    dataset: blocks.Dataset,
    statistics: fold_statistics.FoldStatistics,
    models: FoldModels,
    *,
    engine: protocol.Engine,
) -> HeldOutScores | None:
    """Score up to `MOST_ROWS` rows by models of the same folds; None if it cannot be.

    `statistics` are of all rows of the dataset, `models` were solved from them. Raises
    as `score_folds`; StatisticsError if the statistics are of other rows.
    """
    if statistics.n_samples != dataset.n_samples:
        raise StatisticsError(
            f"the folds' statistics count {statistics.n_samples:_} rows, the data have"
            f" {dataset.n_samples:_}; expected the rows that were cut into folds. Give"
            " the same data"
        )
    if dataset.n_samples <= MOST_ROWS:
        return score_folds(dataset, statistics, models, engine=engine)

    sample = samples.sample_folds(dataset, statistics.folds, n_rows=MOST_ROWS)
    rows, folds = sample.dataset()
    accumulation = accumulate.Accumulation(
        models.linear.feature_map, statistics.total().spec
    )
    [of_sample] = passes.accumulate_folds(
        rows, [accumulation], folds=folds, engine=engine
    )
    models = replace(models, folds=folds, n_samples=rows.n_samples)
    return score_folds(rows, of_sample, models, engine=engine)


def score_folds(
    dataset: blocks.Dataset,
    statistics: fold_statistics.FoldStatistics,
    models: FoldModels,
    *,
    engine: protocol.Engine,
) -> HeldOutScores | None:
    """Score each row by the models without its fold; None if fewer than two have rows.

    Fits s to the roots of held-out errors by one Cholesky factorisation, and takes two
    passes, which cost as much as predictions. `statistics` are of the rows of
    the dataset, by the folds of `models`. Raises DataError if values are not finite, or
    targets or groups are missing.
    """
    if len(models.held_out_folds) < 2:
        return None  # s₋ is fitted to the errors of other folds, and there are none
    deviations = statistics.total().target_deviations()
    accumulation = accumulate.Accumulation(
        models.linear.feature_map,
        # roots are summed about 0, unlike y
        replace(statistics.total().spec, target_offset=()),
        with_gram=False,
    )
    residuals = Residuals(
        models,
        accumulate.Accumulations((accumulation,), models.folds, models.n_samples),
        SMALLEST * np.where(deviations > 0, deviations, 1.0),
    )
    [sums_of_folds] = row_passes.sum_rows(
        dataset,
        sum_roots,
        residuals,
        blocks=row_passes.blocks_of(dataset, max_rows=accumulation.spec.int64_rows),
        combine=accumulate.add_fold_rows,
        engine=engine,
        label="residuals",
    )
    of_roots = _with_roots(statistics, sums_of_folds, models.held_out_folds)
    spread, root_models = fit_spread(of_roots, models)
    scores = row_passes.sum_rows(
        dataset,
        score_rows,
        ScoringModels(
            models,
            root_models,
            spread.bounds,
            residuals.smallest,
            accumulation.spec.frequency_weights,
        ),
        engine=engine,
        label="hold out",
    )
    return HeldOutScores(scores, spread)


@frozen(eq=False)
class Residuals:
    """The state of a pass that sums up the roots of held-out errors."""

    models: FoldModels
    sums: accumulate.Accumulations
    #: shape (n_targets,): smaller errors count as these
    smallest: FloatArray


def sum_roots(rows: blocks.Rows, state: Residuals) -> fold_statistics.MapSums:
    """Sum up a block with √|y − f₋| in place of y, fold by fold and without Z'Z."""
    errors = _errors(rows, state.models, state.smallest)
    return accumulate.accumulate_fold_rows(errors.rows, state.sums)


def _with_roots(
    statistics: fold_statistics.FoldStatistics,
    sums_of_folds: fold_statistics.FoldSums,
    held_out_folds: IntArray,
) -> fold_statistics.FoldStatistics:
    """Return the statistics of held-out folds, with sums of roots in place of y's.

    Features are the same, so the Gram comes from `statistics`, and only what depends on
    targets from `sums_of_folds`. Other folds have no errors, and become None.
    """
    parts: list[fold_statistics.FoldSum] = [None] * len(sums_of_folds)
    for fold in held_out_folds:
        roots = sums_of_folds[fold]
        if roots is not None:
            parts[fold] = replace(
                statistics.fold(fold),
                spec=roots.spec,
                cross=roots.cross,
                targets=roots.targets,
            )
    return replace(statistics, parts=tuple(parts))


@frozen(eq=False)
class _Errors:
    """The errors |y − f₋| of a block."""

    #: Errors of the rows that count, shape (n_counted, n_targets).
    values: FloatArray
    is_counted: BoolArray
    #: All rows, with the roots of the errors in place of y.
    rows: blocks.Rows


def _errors(rows: blocks.Rows, models: FoldModels, smallest: FloatArray) -> _Errors:
    held_out = predict_held_out(rows, models)
    assert rows.y is not None
    is_counted = held_out.is_counted
    with np.errstate(over="ignore"):  # beyond the grid of scores either way
        values = np.abs(rows.y[is_counted] - held_out.predictions)
    roots = np.ones_like(rows.y)
    roots[is_counted] = np.sqrt(np.maximum(values, smallest))
    return _Errors(values, is_counted, replace(rows, y=roots))


def fit_spread(
    statistics: fold_statistics.FoldStatistics, models: FoldModels
) -> tuple[SpreadModel, FoldModels]:
    """Fit √s to the roots of all held-out rows, and without the roots of each fold.

    If `models` leave out single rows, √s₋ lacks the row's own root instead.
    `statistics` come from `_with_roots`. All fits share one Gram, of the rows of all
    folds that are held out, and so one Cholesky factor. With a Gram and a factor for
    each fold, holding out 1,353 rows took 3.0 instead of 2.3 seconds of the 13 of a
    default fit.
    """
    total = statistics.total()
    equations = total.normal_equations()
    moments = [equations.moments]
    means = [equations.target_means]
    leaves_rows_out = models.without_row is not None
    if not leaves_rows_out:
        for fold in models.held_out_folds:
            rest = _without_roots(total, statistics.parts[fold])
            rest_means = rest.target_means()
            centred = np.reshape(rest.Zty(), equations.moments.shape)
            centred = centred - np.outer(rest.Zt1(), rest_means)
            # scaled up to the weight of the rows in the Gram
            moments.append(centred * (total.sum_of_weights / rest.sum_of_weights))
            means.append(rest_means)
    equations = replace(
        equations,
        moments=np.hstack(moments),
        target_means=np.concatenate(means),
        total_sum_of_squares=np.tile(equations.total_sum_of_squares, len(means)),
    )
    alpha = prior_alpha(equations)
    solved = cholesky.solve_cholesky(equations, alpha, overwrite_gram=True)

    # the first columns have all roots, the later ones lack the roots of one fold each
    n_targets = len(means[0])
    coefficients = solved.coefficients
    intercept = solved.intercept
    spread = SpreadModel(
        coefficients[:, :n_targets],
        intercept[:n_targets],
        np.stack([means[0] / REACH, means[0] * REACH]),
    )
    feature_map = models.linear.feature_map
    if not leaves_rows_out:
        without_fold = predicting.LinearModel(
            feature_map, coefficients[:, n_targets:], intercept[n_targets:]
        )
        return spread, replace(models, linear=without_fold)
    linear = predicting.LinearModel(feature_map, coefficients, intercept)
    without_row = uncertainty.predictive_model(
        linear, total, alpha=alpha, fit_intercept=True
    )
    return spread, replace(models, linear=linear, without_row=without_row)


def _without_roots(
    total: RidgeStatistics, part: RidgeStatistics | None
) -> RidgeStatistics:
    """Return the statistics without the roots of a fold, but with its Z'Z."""
    if part is None:
        return total
    cross = total.cross - part.cross
    return replace(total, cross=cross, targets=total.targets - part.targets)


# No search for alpha pays: on seven data sets the CRPS of intervals by this one was
# 0.944 times that of normal intervals, by the evidence's 0.966 times, and by 0.3 and 3
# times this one 0.946 and 0.945 times.
def prior_alpha(equations: solution.NormalEquations) -> float:
    """Return the alpha by which a function varies as much as its noise, a priori.

    It is the mean of ‖z − z̄‖²: coefficients of variance σ²/alpha then give values of
    variance σ². It is 1 if all features are constant, since any penalty will do. Raises
    SolveError if the mean has no digits left.
    """
    alpha = float(np.trace(equations.gram)) / equations.n_samples
    if alpha < 0:
        raise SolveError(
            f"the mean squared distance of features from their mean is {alpha:.3g};"
            " expected at least 0: few rows have nearly all of the weight"
        )
    return alpha or 1.0


@frozen(eq=False)
class ScoringModels:
    """The state of a pass that counts scores."""

    #: f₋
    means: FoldModels
    #: √s₋
    roots: FoldModels
    #: √s₋ is clipped to these, see `SpreadModel`.
    bounds: FloatArray
    #: See `Residuals`.
    smallest: FloatArray
    #: Whether weights are whole numbers that repeat their rows.
    repeats_rows: bool = False


def score_rows(rows: blocks.Rows, models: ScoringModels) -> IntArray:
    """Count the scores of a block: see `HeldOutScores.counts`.

    A row counts once, or as many times as its weight repeats it. `predict_held_out`
    says which rows do not count, and what is raised.
    """
    errors = _errors(rows, models.means, models.smallest)
    # models that leave out single rows subtract the row's own root, its y here
    roots = predict_held_out(errors.rows, models.roots).predictions
    with np.errstate(over="ignore"):
        scores = errors.values / np.square(np.clip(roots, *models.bounds))
    edges = _edges()
    # a score that equals an edge falls into the bin below it, whose upper edge it is
    index = np.searchsorted(edges, scores, side="left")
    n_repeats = None
    if models.repeats_rows and rows.sample_weight is not None:
        n_repeats = rows.sample_weight[errors.is_counted]
    counts = [np.bincount(column, n_repeats, len(edges) + 1) for column in index.T]
    return np.column_stack(counts).astype(np.int64)


@frozen(eq=False)
class HeldOutScores(EqualByFields):
    """How many rows have which score, exactly, and the size of errors near a row."""

    #: int64 array of shape (n_bins, n_targets). Rows with a score of 0, then those in
    #: each bin of a geometric grid from 2^-32 to 2^32, and last those above it. A score
    #: below the grid counts as 2^-32, one above it as infinite.
    counts: IntArray
    #: s of the model of all rows
    spread: SpreadModel

    @property
    def n_samples(self) -> int:
        return int(self.counts[:, 0].sum())

    def quantile(self, coverage: float) -> FloatArray:
        """Return the half width of intervals over s(x), shape (n_targets,).

        It is the ⌈(n + 1)·coverage⌉-th smallest score, at most 1.1 % too large, and
        infinite if there are too few rows for such a coverage.

        Raises InvalidParameterError if `coverage` is not in (0, 1).
        """
        check_coverage(coverage)
        exact_rank = (self.n_samples + 1) * coverage
        # 100 · 0.07 is 7, though not in float64
        rank = math.ceil(exact_rank * (1.0 - 1e-12))
        is_reached = self.counts.cumsum(axis=0) >= rank
        # -1 takes the last edge, infinity, if there are too few scores
        index = np.where(is_reached.any(axis=0), is_reached.argmax(axis=0), -1)
        return np.append(_edges(), np.inf)[index]

    def to_arrays(self) -> dict[str, AnyArray]:
        return {
            "counts": self.counts,
            "coefficients": self.spread.coefficients,
            "intercept": self.spread.intercept,
            "bounds": self.spread.bounds,
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Read what `to_arrays` returned; StatisticsError if it does not fit."""
        counts = np.asarray(arrays["counts"], np.int64)
        intercept = arrays["intercept"]
        expected = (len(_edges()) + 1, len(intercept))
        if counts.shape != expected:
            raise StatisticsError(
                f"stored scores have counts of shape {counts.shape}; expected"
                f" {expected}"
            )
        spread = SpreadModel(arrays["coefficients"], intercept, arrays["bounds"])
        return cls(counts, spread)


@functools.lru_cache(maxsize=1)
def _edges() -> FloatArray:
    """Return the upper edges of all bins but the last: 0, then a geometric grid."""
    steps = np.arange(-OCTAVES * BINS_PER_OCTAVE, OCTAVES * BINS_PER_OCTAVE + 1)
    edges = np.concatenate([[0.0], np.exp2(steps / BINS_PER_OCTAVE)])
    edges.flags.writeable = False
    return edges


def check_coverage(coverage: float) -> None:
    """Check that a coverage is in (0, 1)."""
    if not 0.0 < coverage < 1.0:
        raise InvalidParameterError(
            f"`coverage` is {coverage!r}; expected a number in (0, 1), such as 0.9"
        )


@frozen(eq=False)
class SpreadModel(EqualByFields):
    """Predicts √s(x), where s is the size of errors near x up to a factor."""

    #: shape (n_components, n_targets), for √s in roots of the targets' units
    coefficients: FloatArray
    #: shape (n_targets,)
    intercept: FloatArray
    #: shape (2, n_targets): √s is clipped to these
    bounds: FloatArray
    #: √s before clipping; None until `with_features`
    linear: predicting.LinearModel | None = field(default=None, compare=False)

    def with_features(self, feature_map: maps.FeatureMap) -> Self:
        linear = predicting.LinearModel(feature_map, self.coefficients, self.intercept)
        return replace(self, linear=linear)

    def of_rows(self, rows: blocks.Rows) -> FloatArray:
        """Return s of each row and target; raises DataError as `predict_rows`."""
        assert self.linear is not None
        roots = predicting.predict_rows(rows, self.linear)
        return np.square(np.clip(roots, *self.bounds))
