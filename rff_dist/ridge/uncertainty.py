"""Predictive standard deviations: ridge regression read as Bayesian linear regression.

With the prior w ~ N(0, σ²/alpha·I), a flat prior for the intercept, and noise of variance σ² over the row's
weight, the ridge solution is the posterior mean. In centred features the intercept's posterior is independent
of that of w and has variance σ²/Σweights. A new observation of weight ω therefore has the variance

    σ²·(1/ω + 1/Σweights + (z − z̄)'(A + alpha·I)⁻¹(z − z̄)),

where A is the centred Gram; without an intercept z̄ and 1/Σweights are 0. σ² maximises the evidence: it is
q/n with q = c − B'(A + alpha·I)⁻¹B and n observations, or q/(n − 1) with an intercept. σ², alpha and the
kernel are taken as known.

ω is the mean weight of an observation, Σweights/n: 1 for rows that weights repeat. Everything is computed in
units of it, A/ω and alpha/ω, so that a factor on all weights and alpha changes nothing. Rows of weight 0 are
no observations.

Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, eqs. 2.9 and 2.30; Bishop (2006),
Pattern Recognition and Machine Learning, section 3.3.2.
"""

from __future__ import annotations

import logging

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from rff_dist.data import blocks
from rff_dist.errors import DataError, SolveError, StatisticsError
from rff_dist.features import maps
from rff_dist.fitting import evaluation, predicting
from rff_dist.numerics import cholesky, exact_sums, machine, solution
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.text import short_repr
from rff_dist.typing import Float32Array, FloatArray, frozen

logger = logging.getLogger(__name__)


LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # nominal coverage of the central intervals that are counted


@frozen(eq=False)
class PredictiveModel:
    """The state of a pass that predicts with standard deviations.

    `linear`: predicts the mean.
    `factors`: tuple of float64 arrays of shape (n_components, n_components), one for each alpha. R in the
      upper triangle, with ω·z'(A + alpha·I)⁻¹z = ‖R⁻ᵀv‖² for scaled features v.
    `factor_of_target`: int64 array of shape (n_targets,). Index of each target's factor.
    `feature_means`: float64 array of shape (n_components,). Means of v; 0 without an intercept.
    `noise_variance`: float64 array of shape (n_targets,). σ²/ω, the noise of an observation of mean weight,
      in the targets' units squared.
    `intercept_variance`: variance of the intercept in centred features, over σ²/ω: one over the number of
      observations; 0 without an intercept.
    `mean_weight`: ω.
    `target_scale`: float64 array of shape (n_targets,). (Weighted) standard deviation of each target on the
      training rows.
    """

    linear: predicting.LinearModel
    factors: tuple[FloatArray, ...]
    factor_of_target: NDArray[np.int64]
    feature_means: FloatArray
    noise_variance: FloatArray
    intercept_variance: float
    mean_weight: float
    target_scale: FloatArray

    __repr__ = short_repr


def predictive_model(
    linear: predicting.LinearModel, statistics: RidgeStatistics, *, alpha: ArrayLike, fit_intercept: bool
) -> PredictiveModel:
    """Factor A + alpha·I, O(n_components³ / 3) and 8 · n_components² bytes for each different alpha.

    A residual below its rounding error is replaced by that error, and logged.

    `linear`: solved from the same statistics with the same alpha.
    `statistics`: those of the training rows.
    `alpha`: float or array of shape (n_targets,). The penalty.
    `fit_intercept`: whether `linear` has an intercept.
    Raises SolveError if A + alpha·I is singular up to rounding, or there are no observations besides the one
      that an intercept takes.
    """
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    if equations.n_samples <= int(fit_intercept):
        raise SolveError(
            f"no variance can be estimated from n_samples={equations.n_samples} with an intercept; fit on at "
            "least 2 rows"
        )
    mean_weight = equations.sum_of_weights / equations.n_samples
    feature_means, whitener = equations.feature_means, linear.feature_map.whitener
    penalty = solution.check_alpha(alpha, equations.moments.shape[1])
    different, factor_of_target = np.unique(penalty, return_inverse=True)
    explained, factors = np.empty(len(penalty)), []
    with machine.tile_pool() as pool:
        floor = equations.floor()
        for i, value in enumerate(different):
            last = i == len(different) - 1  # factored in the Gram's own memory
            factor, targets = equations.gram if last else equations.gram.copy(), factor_of_target == i
            factor.flat[:: len(factor) + 1] += value
            broken = cholesky.cholesky_in_place(factor, pool)
            if broken is not None or (value < floor and cholesky.smallest_eigenvalue(factor, pool) < floor):
                raise SolveError(
                    f"the variance is not determined: alpha={value:.3g} and an eigenvalue of Z'Z are both "
                    f"below {floor:.3g}, the rounding error of the eigenvalues; fit with an alpha above it"
                )
            explained[targets] = cholesky.solve_factored(factor, equations.moments[:, targets], pool)[1]
            if whitener is not None:
                # z = T⁻ᵀv, so that U⁻ᵀz = (UT)⁻ᵀv: one triangle for workers, which need not make T
                cholesky.multiply_upper_in_place(factor, whitener, pool)
            factor /= np.sqrt(mean_weight)  # R = U/√ω, so that ‖R⁻ᵀv‖² has the factor ω
            factors.append(factor)
    # σ² = q/n of each target, q = c − B'(A + alpha)⁻¹B = rss + alpha‖w‖²
    squared_norm, total = np.square(linear.coefficients).sum(axis=0), equations.total_sum_of_squares
    rss = total - explained - penalty * squared_norm
    bound = solution.rss_error_bound(squared_norm, total, n_components=len(linear.coefficients), floor=floor)
    for target in np.flatnonzero(rss < bound):
        message = "the residual sum of squares of target %d, %.3g, is below its rounding error: taking %.3g"
        logger.warning(message, target, rss[target], bound[target])
    quadratic = np.maximum(rss, bound) + penalty * squared_norm
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


def predict_rows_with_std(rows: blocks.Rows, model: PredictiveModel) -> tuple[FloatArray, FloatArray]:
    """Return predictions and standard deviations, each of shape (n_samples, n_targets).

    O(n_samples · n_components²) for each of the model's factors. Predictions have the bits of `predict_rows`.
    Features are made again for the deviations, 256 rows at a time: 2 KiB for each component and thread.

    Raises DataError as `predict_rows`, and if a variance overflows.
    """
    predictions = predicting.predict_rows(rows, model.linear)
    feature_map = model.linear.feature_map
    inputs = feature_map.prepare(rows.X)
    spread = np.empty((len(inputs), len(model.factors)))

    def measure(first: int) -> None:
        tile = inputs[first : first + cholesky.STRIP_COLUMNS]
        features = _centred_features(feature_map, tile, model.feature_means)
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            for i, factor in enumerate(model.factors):
                solved = features if i == len(model.factors) - 1 else features.copy()
                if len(tile) == 1:  # `solve_transposed` copies tiles, which takes longer than one column
                    solved[:, 0] = scipy.linalg.blas.dtrsv(factor.T, solved[:, 0], lower=1)
                else:
                    cholesky.solve_transposed(factor, solved)
                spread[first : first + len(tile), i] = np.square(solved).sum(axis=0)

    machine.share_out(measure, range(0, len(inputs), cholesky.STRIP_COLUMNS))
    if not np.isfinite(spread).all():
        row = rows.block.start + int(np.argmin(np.isfinite(spread).all(axis=1)))
        raise DataError(f"the variance of row {row:_} is not finite: its features overflow; scale X down")
    # of the noise, the intercept and the coefficients, in units of σ²/ω
    relative = 1.0 + model.intercept_variance + spread[:, model.factor_of_target]
    return predictions, np.sqrt(relative * model.noise_variance)


@frozen(eq=False)
class Calibration:
    """Exact sums of how well standard deviations fit the errors on the rows seen so far; `+` joins two sets.

    Each row is judged as one new observation of the training rows' mean weight, N(f, s²), and counts by its
    own weight. A target without noise (s = 0) has no density: its scores and densities are NaN.

    `errors`: errors of the means f.
    `log_losses`: ExactSum of shape (n_targets,). Weighted sums of −log N(y; f, s²), in nats.
    `squared_scores`: ExactSum of shape (n_targets,). Weighted sums of ((y − f)/s)².
    `covered`: ExactSum of shape (n_levels, n_targets). Weight of the rows inside the central interval of each
      of `LEVELS`, ends included.
    `deviations`: ExactSum of shape (n_targets,). Weighted sums of s.
    `target_scale`: float64 array of shape (n_targets,). Standard deviation of each target on the training
      rows.
    """

    errors: evaluation.Errors
    log_losses: exact_sums.ExactSum
    squared_scores: exact_sums.ExactSum
    covered: exact_sums.ExactSum
    deviations: exact_sums.ExactSum
    target_scale: FloatArray

    def __add__(self, other: Calibration) -> Calibration:
        if not np.array_equal(self.target_scale, other.target_scale):
            raise StatisticsError(
                f"these are sums of different models, whose targets vary by {self.target_scale} and "
                f"{other.target_scale}; measure all blocks with one model"
            )
        return exact_sums.add_fields(self, other, target_scale=self.target_scale)

    @property
    def nlpd(self) -> FloatArray:
        """Negative log predictive density per target: mean of ½·log(2πs²) + (y − f)²/(2s²), in nats."""
        return self._of_noisy(self.log_losses)

    @property
    def standardized_nlpd(self) -> FloatArray:
        """NLPD of each target in units of its standard deviation on the training rows, as in papers."""
        with np.errstate(divide="ignore"):
            return np.where(self.target_scale > 0, self.nlpd - np.log(self.target_scale), np.nan)

    @property
    def mean_squared_score(self) -> FloatArray:
        """Mean of ((y − f)/s)² per target: 1 where s is right on average, above it where s is too small."""
        return self._of_noisy(self.squared_scores)

    @property
    def coverage(self) -> FloatArray:
        """Share of the rows inside the central interval of each of `LEVELS`, shape (n_levels, n_targets)."""
        return self.covered.value() / self.errors.weight.value()

    @property
    def mean_standard_deviation(self) -> FloatArray:
        """Mean of s per target, in the target's units."""
        return self.deviations.value() / self.errors.weight.value()

    @property
    def mean_widths(self) -> FloatArray:
        """Mean width of the central interval of each of `LEVELS`, shape (n_levels, n_targets)."""
        return np.outer(2.0 * _quantiles(), self.mean_standard_deviation)

    def _of_noisy(self, sums: exact_sums.ExactSum) -> FloatArray:
        means = sums.value() / self.errors.weight.value()
        return np.where(self.deviations.value() > 0, means, np.nan)


def _quantiles() -> FloatArray:
    """Return half widths of the central intervals in units of s, shape (n_levels,)."""
    return np.asarray(scipy.special.ndtri((1.0 + np.array(LEVELS)) / 2.0))


def calibrate_rows(rows: blocks.Rows, model: PredictiveModel) -> Calibration:
    """Return the errors and the calibration of a model on a block, at the cost of `predict_rows_with_std`.

    Raises DataError if the block has no targets, or values that are not finite; as `predict_rows_with_std`.
    Source: Gneiting & Raftery (2007), Strictly Proper Scoring Rules, section 4.1 (the logarithmic score).
    """
    y, weights = evaluation.evaluated_targets(rows)
    predictions, deviations = predict_rows_with_std(rows, model)
    residual = np.abs(y - predictions)
    certain = deviations == 0.0
    divisor = np.where(certain, 1.0, deviations)
    with np.errstate(over="ignore"):  # `ExactSum.of` refuses what is not finite
        squared = np.where(certain, 0.0, (residual / divisor) ** 2)
        losses = np.where(certain, 0.0, 0.5 * (np.log(2.0 * np.pi) + squared) + np.log(divisor))
        # |y − f| ≤ q·s rather than a quotient, so that a target without noise counts if it is met exactly
        inside = np.stack([weights @ (residual <= width * deviations) for width in _quantiles()])
        sums = (weights @ losses, weights @ squared, inside, weights @ deviations)
    errors = evaluation.errors_of(y, weights, predictions, model.linear.intercept)
    log_losses, squared_scores, covered, spread = map(exact_sums.ExactSum.of, sums)
    return Calibration(errors, log_losses, squared_scores, covered, spread, model.target_scale)


def _centred_features(feature_map: maps.FeatureMap, tile: Float32Array, means: FloatArray) -> FloatArray:
    """Return scaled features of prepared rows less means, shape (n_components, n_samples); may overflow."""
    features = np.empty((feature_map.n_components, len(tile)))
    for start, stop in feature_map.stripes:
        feature_map.fill(tile, features[start:stop], start, stop)
    with np.errstate(over="ignore", invalid="ignore"):
        features *= exact_sums.expand(feature_map.scales)[:, np.newaxis]
        features -= means[:, np.newaxis]
    return features
