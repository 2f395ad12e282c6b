"""Sufficient statistics of ridge regression and their exact `+` and `-`; no data access."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class NormalEquations:
    """The system (gram + alpha·I)·w = moments that ridge regression solves, in float64.

    Attributes
    ----------
    gram : float64 array of shape (n_components, n_components)
        Z'Z, symmetric; centred (Z'Z − n·z̄z̄') where an intercept is fitted.
    moments : float64 array of shape (n_components, n_targets)
        Z'Y, centred likewise.
    total_sum_of_squares : float64 array of shape (n_targets,)
        Sum of squares of each (centred) target.
    feature_means : float64 array of shape (n_components,)
        z̄, zero without an intercept.
    target_means : float64 array of shape (n_targets,)
        ȳ, zero without an intercept.
    n_samples : int
        Rows that were counted.
    fit_intercept : bool
        Whether an intercept, which costs one degree of freedom, is fitted.
    """

    gram: np.ndarray
    moments: np.ndarray
    total_sum_of_squares: np.ndarray
    feature_means: np.ndarray
    target_means: np.ndarray
    n_samples: int
    fit_intercept: bool
