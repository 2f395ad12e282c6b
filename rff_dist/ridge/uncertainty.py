"""Predictive standard deviations: ridge regression read as Bayesian linear regression.

A solved model and its exact sums go in; a standard deviation of each prediction comes
out; `calibration` measures how well these fit the errors on test rows. No pass over
the training rows is needed.

With the prior w ~ N(0, σ²/alpha·I), a flat prior for the intercept, and noise of
variance σ² over the row's weight, the ridge solution is the posterior mean. In centred
features the intercept's posterior is independent of that of w and has variance
σ²/Σweights. A new observation of weight ω therefore has the variance

    σ²·(1/ω + 1/Σweights + (z − z̄)'(A + alpha·I)⁻¹(z − z̄)),

where A is the centred Gram; without an intercept z̄ and 1/Σweights are 0. σ² maximises
the evidence: it is q/n with q = c − B'(A + alpha·I)⁻¹B and n observations, or q/(n − 1)
with an intercept. σ², alpha and the kernel are taken as known.

ω is the mean weight of an observation, Σweights/n: 1 for rows that weights repeat.
Everything is computed in units of it, A/ω and alpha/ω, so that a factor on all weights
and alpha changes nothing. Rows of weight 0 are no observations.

An unseen level of a category is taken as one more like the known ones: its prediction
is the mean over the known levels, and the variance among their predictions is added.
The prior alone would say less: if other columns have wide length scales, coefficients
and intercept are large, and cancel each other for the known levels only.

Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, eqs. 2.9 and 2.30;
Bishop (2006), Pattern Recognition and Machine Learning, section 3.3.2.
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.data import blocks
from rff_dist.errors import DataError, SolveError
from rff_dist.features import levels as levels_of
from rff_dist.features import maps
from rff_dist.fitting import predicting
from rff_dist.numerics import cholesky, exact_sums, machine, solution, triangular
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.text import short_repr
from rff_dist.typing import AnyArray, Float32Array, FloatArray, IntArray, frozen

logger = logging.getLogger(__name__)
_MOST_LEVELS = 32  # the most levels that show how far apart a category's levels are

# Smallest 1 − h: below it a row alone decides its own prediction, and its error says
# nothing about new rows.
SMALLEST_REMAINDER = 1e-6


@frozen(eq=False)
class PredictiveModel:
    """The state of a pass that predicts with standard deviations."""

    #: Predicts the mean.
    linear: predicting.LinearModel
    #: R in the upper triangle, shape (n_components, n_components), one for each alpha:
    #: ω·z'(A + alpha·I)⁻¹z = ‖R⁻ᵀv‖² for scaled features v.
    factors: tuple[FloatArray, ...]
    #: shape (n_targets,): index of each target's factor
    factor_of_target: IntArray
    #: Means of v, shape (n_components,); 0 without an intercept.
    feature_means: FloatArray
    #: σ²/ω, the noise of an observation of mean weight, shape (n_targets,)
    noise_variance: FloatArray
    #: Variance of the intercept in centred features, over σ²/ω: one over the number of
    #: observations; 0 without an intercept.
    intercept_variance: float
    #: ω
    mean_weight: float
    #: (Weighted) standard deviation of each training target, shape (n_targets,).
    target_scale: FloatArray

    __repr__ = short_repr


def predictive_model(
    linear: predicting.LinearModel,
    statistics: RidgeStatistics,
    *,
    alpha: ArrayLike,
    fit_intercept: bool,
) -> PredictiveModel:
    """Factor A + alpha·I, in 8 · n_components² bytes for each distinct_alphas alpha.

    `linear` was solved from the same statistics with the same alpha. A residual below
    its rounding error is replaced by that error, and logged.

    Raises SolveError if A + alpha·I is singular up to rounding, or there are no
    observations besides the one that an intercept takes.
    """
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    if equations.n_samples <= int(fit_intercept):
        raise SolveError(
            f"no variance can be estimated from n_samples={equations.n_samples} with an"
            " intercept; fit on at least 2 rows"
        )
    mean_weight = equations.sum_of_weights / equations.n_samples
    feature_means = equations.feature_means
    whitener = linear.feature_map.whitener
    alphas = solution.check_alpha(alpha, equations.moments.shape[1])
    distinct_alphas, factor_of_target = np.unique(alphas, return_inverse=True)
    explained = np.empty(len(alphas))
    factors = []
    with machine.tile_pool() as pool:
        floor = equations.floor()
        for i, value in enumerate(distinct_alphas):
            # the last alpha's factor takes the Gram's own memory
            is_last = i == len(distinct_alphas) - 1
            factor = equations.gram if is_last else equations.gram.copy()
            _factor_in_place(factor, value, floor, pool)
            targets = factor_of_target == i
            _, explained[targets] = triangular.solve_factored(
                factor, equations.moments[:, targets], pool
            )
            if whitener is not None:
                # z = T⁻ᵀv, so that U⁻ᵀz = (UT)⁻ᵀv: workers need one triangle, not T
                triangular.multiply_upper_in_place(factor, whitener, pool)
            factor /= np.sqrt(mean_weight)  # R = U/√ω, so that ‖R⁻ᵀv‖² has the factor ω
            factors.append(factor)
    # σ² = q/n of each target, q = c − B'(A + alpha)⁻¹B = rss + alpha‖w‖²
    squared_norm = np.square(linear.coefficients).sum(axis=0)
    total = equations.total_sum_of_squares
    rss = total - explained - alphas * squared_norm
    bound = solution.rss_error_bound(
        squared_norm, total, n_components=len(linear.coefficients), floor=floor
    )
    for target in np.flatnonzero(rss < bound):
        logger.info(
            "the residual sum of squares of target %d, %.3g, is below its rounding"
            " error: using %.3g",
            target,
            rss[target],
            bound[target],
        )
    quadratic = np.maximum(rss, bound) + alphas * squared_norm
    noise_variance = quadratic / (equations.n_samples - int(fit_intercept))
    return PredictiveModel(
        linear=linear,
        factors=tuple(factors),
        factor_of_target=factor_of_target.astype(np.int64),
        feature_means=feature_means if whitener is None else whitener.T @ feature_means,
        noise_variance=noise_variance / mean_weight,
        intercept_variance=1.0 / equations.n_samples if fit_intercept else 0.0,
        mean_weight=mean_weight,
        target_scale=statistics.target_deviations(),
    )


def _factor_in_place(
    gram: FloatArray, alpha: float, floor: float, pool: Executor
) -> None:
    """Overwrite A by the Cholesky factor U of A + alpha·I."""
    gram.flat[:: len(gram) + 1] += alpha
    is_broken = triangular.cholesky_in_place(gram, pool) is not None
    if is_broken or cholesky.is_rounding(gram, alpha, floor, pool):
        raise SolveError(
            f"the variance is not determined: alpha={alpha:.3g} and an eigenvalue of"
            f" Z'Z are both below {floor:.3g}, the rounding error of the eigenvalues;"
            " fit with an alpha above it"
        )


def predict_rows_with_std(
    rows: blocks.Rows, model: PredictiveModel
) -> tuple[FloatArray, FloatArray]:
    """Return predictions and standard deviations, each of shape (n_samples, n_targets).

    O(n_samples · n_components²) for each of the model's factors. Predictions have the
    bits of `predict_rows`. Features are made again for the deviations, 256 rows at a
    time: 2 KiB for each component and thread.

    Raises DataError as `predict_rows`, and if a variance overflows.
    """
    predictions, relative = _predict_with_variances(rows, model)
    variances = relative[:, model.factor_of_target] * model.noise_variance
    variances += variance_of_unseen_levels(rows.X, model.linear)
    return predictions, np.sqrt(variances)


def _predict_with_variances(
    rows: blocks.Rows, model: PredictiveModel
) -> tuple[FloatArray, FloatArray]:
    """Return predictions, and variances of new values in units of σ²/ω for each factor,
    shape (n_samples, n_factors).
    """
    predictions = predicting.predict_rows(rows, model.linear)
    feature_map = model.linear.feature_map
    inputs = feature_map.prepare(rows.X)
    spread = np.empty((len(inputs), len(model.factors)))

    def measure(first: int) -> None:
        tile = inputs[first : first + triangular.STRIP_COLUMNS]
        features = _centred_features(feature_map, tile, model.feature_means)
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            for i, factor in enumerate(model.factors):
                solved = features if i == len(model.factors) - 1 else features.copy()
                # `solve_transposed` copies tiles, which takes longer than one column
                if len(tile) == 1:
                    solved[:, 0] = scipy.linalg.blas.dtrsv(
                        factor.T, solved[:, 0], lower=1
                    )
                else:
                    triangular.solve_transposed(factor, solved)
                spread[first : first + len(tile), i] = np.square(solved).sum(axis=0)

    machine.share_out(measure, range(0, len(inputs), triangular.STRIP_COLUMNS))
    if not np.isfinite(spread).all():
        row = rows.block.start + int(np.argmin(np.isfinite(spread).all(axis=1)))
        raise DataError(
            f"the variance of row {row:_} is not finite: its features overflow; scale X"
            " down"
        )
    # variances of the noise, 1, of the intercept and of the coefficients
    return predictions, 1.0 + model.intercept_variance + spread


def deviations_of_sums(
    X: AnyArray, weights: FloatArray, model: PredictiveModel
) -> FloatArray:
    """Return standard deviations of weighted sums of f(x): (n_sums, n_targets).

    `weights` has the shape (n_sums, n_rows). What varies are the coefficients and the
    intercept; a new observation's noise is not in it.
    """
    feature_map = model.linear.feature_map
    inputs = feature_map.prepare(X)
    sums = np.zeros((feature_map.n_components, len(weights)))
    for first in range(0, len(inputs), triangular.STRIP_COLUMNS):
        rows = slice(first, first + triangular.STRIP_COLUMNS)
        features = _centred_features(feature_map, inputs[rows], model.feature_means)
        sums += features @ weights[:, rows].T
    variances = np.empty((len(weights), len(model.factors)))
    of_intercept = model.intercept_variance * np.square(weights.sum(axis=1))
    for i, factor in enumerate(model.factors):
        solved = sums.copy()
        triangular.solve_transposed(factor, solved)
        variances[:, i] = of_intercept + np.square(solved).sum(axis=0)
    return np.sqrt(variances[:, model.factor_of_target] * model.noise_variance)


def leave_one_out(
    rows: blocks.Rows, model: PredictiveModel, left_out_weights: FloatArray
) -> FloatArray:
    """Return the prediction of each training row by ridge fitted without it.

    O(n_samples · n_components²). `left_out_weights` are the rows' weights, or less to
    leave out only one repetition of a row. If a row decides its own prediction up to
    rounding, 1 − h is taken as 1e-6, and this is logged.
    """
    assert rows.y is not None
    predictions, remainder = remainders(rows, model, left_out_weights)
    decides_alone = (remainder < SMALLEST_REMAINDER).any(axis=1)
    if decides_alone.any():
        logger.warning(
            "%d of %d rows decide their own prediction",
            int(decides_alone.sum()),
            len(decides_alone),
        )
    remainder = np.maximum(remainder, SMALLEST_REMAINDER)
    return rows.y - (rows.y - predictions) / remainder


def remainders(
    rows: blocks.Rows, model: PredictiveModel, left_out_weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return predictions and 1 − h, each of shape (n_samples, n_targets)."""
    predictions, relative = _predict_with_variances(rows, model)
    # a value's variance is 1 + h·ω/w, in units of σ²/ω
    h = (left_out_weights / model.mean_weight)[:, np.newaxis] * (relative - 1.0)
    return predictions, (1.0 - h)[:, model.factor_of_target]


def variance_of_unseen_levels(
    X: AnyArray, linear: predicting.LinearModel
) -> FloatArray:
    """Return the variance of predictions among known levels, which take the place of
    levels that were never seen; shape (n_rows, n_targets).
    """
    levels = linear.feature_map.levels
    variances = np.zeros((len(X), linear.coefficients.shape[1]))
    unseen = np.flatnonzero(levels_of.never_seen(X, levels))
    if not len(unseen):
        return variances
    X = X[unseen]
    n_draws = min(_MOST_LEVELS, max(map(len, levels.values())))
    predictions = []
    for draw in range(n_draws):
        known = X.copy()
        for column, texts in levels.items():
            # each column has its own order of levels, so that columns vary
            # independently
            order = np.random.default_rng(column).permutation(len(texts))
            is_unseen = levels_of.never_seen(X, {column: texts})
            known[is_unseen, column] = order[draw % len(texts)]
        rows = blocks.Rows.in_memory(known)
        predictions.append(predicting.predict_rows(rows, linear))
    # + 1: the variance of the mean over these levels, which is the prediction, is added
    among_levels = np.var(predictions, axis=0) * (n_draws + 1) / max(1, n_draws - 1)
    variances[unseen] = among_levels
    return variances


def _centred_features(
    feature_map: maps.FeatureMap, tile: Float32Array, means: FloatArray
) -> FloatArray:
    """Return scaled features less means, (n_components, n_samples); may overflow."""
    features = np.empty((feature_map.n_components, len(tile)))
    for start, stop in feature_map.stripes:
        feature_map.fill(tile, features[start:stop], start, stop)
    with np.errstate(over="ignore", invalid="ignore"):
        features *= exact_sums.expand(feature_map.scales)[:, np.newaxis]
        features -= means[:, np.newaxis]
    return features
