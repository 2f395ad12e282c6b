"""The system that ridge regression solves, and what its spectrum keeps of it."""

from __future__ import annotations

from dataclasses import dataclass

from rff_dist.typing import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EquationFacts:
    """What the normal equations and their spectrum both say of rows, features and targets.

    `total_sum_of_squares`: float64 array of shape (n_targets,). Sum of squares of each (centred) target.
    `feature_means`: float64 array of shape (n_components,). z̄, zero without an intercept.
    `target_means`: float64 array of shape (n_targets,). ȳ, zero without an intercept.
    `n_samples`: observations; see `RidgeStatistics.n_observations`.
    `sum_of_weights`: sum of the rows' weights; over `n_samples` it is the mean weight of an observation.
    `fit_intercept`: whether an intercept is fitted, which costs one degree of freedom.
    """

    total_sum_of_squares: FloatArray
    feature_means: FloatArray
    target_means: FloatArray
    n_samples: int
    sum_of_weights: float
    fit_intercept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalEquations(EquationFacts):
    """The system (gram + alpha·I)·w = moments that ridge regression solves, in float64.

    `gram`: float64 array of shape (n_components, n_components). Z'Z, symmetric; centred (Z'Z − n·z̄z̄') where
      an intercept is fitted.
    `moments`: float64 array of shape (n_components, n_targets). Z'Y, centred likewise.
    `gram_error`: how far rounding to the sums' grid may have moved an eigenvalue of the Gram.
    """

    gram: FloatArray
    moments: FloatArray
    gram_error: float = 0.0
