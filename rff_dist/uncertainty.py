"""Predictive standard deviations: ridge regression read as Bayesian linear regression.

With the prior w ~ N(0, σ²/alpha·I), a flat one for the intercept and noise of variance σ² per unit of
weight, the ridge solution is the posterior mean. In centred features the intercept's posterior is
independent of that of w, with variance σ²/Σweights, so that a new observation of weight 1 has the variance

    σ²·(1 + 1/Σweights + (z − z̄)'(A + alpha·I)⁻¹(z − z̄)),

A the centred Gram; without an intercept z̄ and 1/Σweights are 0. σ² is the value of the greatest evidence,
q/n with q = c − B'(A + alpha·I)⁻¹B, n less 1 where an intercept is fitted. It is taken as known, and so are
alpha and the kernel.

Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, eqs. 2.9 and 2.30; Bishop (2006),
Pattern Recognition and Machine Learning, section 3.3.2.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rff_dist.blocks import LinearModel, Rows, predict_rows, share_out
from rff_dist.errors import DataError, SolveError
from rff_dist.runs import expand
from rff_dist.solvers.cholesky import rounding_floor, smallest_eigenvalue
from rff_dist.solvers.solution import rss_error_bound
from rff_dist.statistics import NormalEquations, RidgeStatistics
from rff_dist.triangular import (
    STRIP_COLUMNS,
    cholesky_in_place,
    multiply_upper_in_place,
    solve_factored,
    solve_transposed,
    tile_pool,
)

logger = logging.getLogger(__name__)

type FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PredictiveModel:
    """The state of a pass that predicts with standard deviations.

    Attributes
    ----------
    linear : LinearModel
        The mean.
    factor : float64 array of shape (n_components, n_components)
        R in its upper triangle, for scaled features v: z'(A + alpha·I)⁻¹z = ‖R⁻ᵀv‖².
    feature_means : float64 array of shape (n_components,)
        Of v; 0 without an intercept.
    noise_variance : float64 array of shape (n_targets,)
        σ² of an observation of weight 1, in the targets' units squared.
    intercept_variance : float
        Of the intercept in centred features, over σ².
    """

    linear: LinearModel
    factor: FloatArray
    feature_means: FloatArray
    noise_variance: FloatArray
    intercept_variance: float

    def digest(self) -> str:
        """Return the feature map's digest: what every worker must agree on."""
        return self.linear.digest()


def predictive_model(
    linear: LinearModel, statistics: RidgeStatistics, *, alpha: float, fit_intercept: bool
) -> PredictiveModel:
    """Factor A + alpha·I, O(n_components³ / 3) and 8 · n_components² bytes.

    A residual below its rounding error counts as that error, and is logged.

    Parameters
    ----------
    linear : LinearModel
        Solved from the same statistics with the same alpha.
    statistics : RidgeStatistics
        Of the training rows.
    alpha : float
        The penalty.
    fit_intercept : bool
        Whether `linear` has an intercept.

    Raises
    ------
    SolveError
        If A + alpha·I is singular up to rounding, or there are not more observations than intercepts.
    """
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    if equations.n_samples <= int(fit_intercept):
        raise SolveError(
            f"no variance can be estimated from n_samples={equations.n_samples} with an intercept; fit on "
            "2 rows at least"
        )
    factor, feature_means = equations.gram, equations.feature_means
    with tile_pool() as pool:
        floor = max(rounding_floor(factor), equations.gram_error)
        factor.flat[:: len(factor) + 1] += alpha
        broken_at = cholesky_in_place(factor, pool)
        if broken_at is not None or (alpha < floor and smallest_eigenvalue(factor, pool) < floor):
            raise SolveError(
                f"the variance is not determined: alpha={alpha:.3g} and an eigenvalue of Z'Z are both below "
                f"{floor:.3g}, the rounding error of the eigenvalues; fit with an alpha above it"
            )
        explained = solve_factored(factor, equations.moments, pool)[1]
        noise_variance = _noise_variance(equations, linear.coefficients, explained, alpha=alpha, floor=floor)
        if (whitener := linear.feature_map.whitener) is not None:
            # z = T⁻ᵀv, so that U⁻ᵀz = (UT)⁻ᵀv: one triangle for workers, which need not make T
            multiply_upper_in_place(factor, whitener, pool)
            feature_means = whitener.T @ feature_means
    intercept_variance = 1.0 / statistics.sum_of_weights if fit_intercept else 0.0
    return PredictiveModel(linear, factor, feature_means, noise_variance, intercept_variance)


def _noise_variance(
    equations: NormalEquations,
    coefficients: FloatArray,
    explained: FloatArray,
    *,
    alpha: float,
    floor: float,
) -> FloatArray:
    """Return q/n of each target, q = c − B'(A + alpha)⁻¹B = rss + alpha‖w‖²."""
    squared_norm = np.square(coefficients).sum(axis=0)
    total = equations.total_sum_of_squares
    rss = total - explained - alpha * squared_norm
    bound = rss_error_bound(squared_norm, total, n_components=len(coefficients), floor=floor)
    for target in np.flatnonzero(rss < bound):
        logger.warning(
            "the residual sum of squares of target %d, %.3g, is below its rounding error: taking %.3g",
            target,
            rss[target],
            bound[target],
        )
    quadratic = np.maximum(rss, bound) + alpha * squared_norm
    return np.asarray(quadratic / (equations.n_samples - int(equations.fit_intercept)))


def predict_rows_with_std(rows: Rows, model: PredictiveModel) -> tuple[FloatArray, FloatArray]:
    """Return predictions and standard deviations, each (n_samples, n_targets), O(n_samples · n_components²).

    Predictions have the bits of `predict_rows`. Features are made 256 rows at a time, once more than for
    predictions: 2 KiB for each component and thread.

    Raises
    ------
    DataError
        As `predict_rows`, and if a variance overflows.
    """
    predictions = predict_rows(rows, model.linear)
    feature_map = model.linear.feature_map
    inputs = feature_map.prepare(rows.X)
    scales, means = expand(feature_map.scales)[:, np.newaxis], model.feature_means[:, np.newaxis]
    spread = np.empty(len(inputs))

    def measure(first: int) -> None:
        tile = inputs[first : first + STRIP_COLUMNS]
        features = np.empty((feature_map.n_components, len(tile)))
        for start, stop in feature_map.stripes:
            feature_map.fill(tile, features[start:stop], start, stop)
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            features *= scales
            features -= means
            solve_transposed(model.factor, features)
            spread[first : first + len(tile)] = np.square(features).sum(axis=0)

    share_out(measure, range(0, len(inputs), STRIP_COLUMNS))
    if not np.isfinite(spread).all():
        row = rows.block.start + int(np.argmin(np.isfinite(spread)))
        raise DataError(f"the variance of row {row:_} is not finite: its features overflow; scale X down")
    relative = 1.0 + model.intercept_variance + spread
    return predictions, np.sqrt(relative[:, np.newaxis] * model.noise_variance)
