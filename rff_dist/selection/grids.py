"""Grids of alpha: which values are tried, and where the best one lies."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.errors import InvalidParameterError
from rff_dist.numerics import eigen, solution
from rff_dist.typing import EPS, FloatArray

# Scores this close, as shares of the variance, count as equal: a smaller residual is rounding.
RESOLUTION = 1e-10
DECADES_ABOVE = 2  # the largest eigenvalue: an alpha there leaves little but the mean
MATERIAL_GAIN = 0.01  # share of a target's error that an alpha of its own must save
type PerTarget = bool | Literal["auto"]


def default_alphas(spectrum: eigen.RidgeSpectrum) -> FloatArray:
    """Three alphas per decade, from 100 times the largest eigenvalue down to the floor; see `alpha_grid`.

    Returns float64 array of shape (n_alphas,): ascending; 1 alone if the features are all constant, since any
      alpha then gives zero weights.
    """
    return alpha_grid(float(spectrum.eigenvalues[-1]), spectrum.floor)


def alpha_grid(largest: float, floor: float) -> FloatArray:
    """Three alphas per decade; 1 alone, or the floor if that is more, if the largest eigenvalue is 0.

    They begin at the floor, below which all is rounding, and end at 100 times the largest eigenvalue, where
    little but the mean is left: for targets with outliers, that may be the best.
    """
    if largest <= 0.0:
        return np.array([max(1.0, floor)])
    largest = max(largest, floor)
    lowest = max(floor, EPS * largest)
    steps = int(np.floor(3.0 * np.log10(largest / lowest)))
    return largest * 10.0 ** (np.arange(-steps, 1 + 3 * DECADES_ABOVE) / 3.0)


def worst_end(ends: Sequence[Literal["lower", "upper"] | None]) -> Literal["lower", "upper"] | None:
    """Return "lower" before "upper" before None, since too small an alpha does more harm."""
    return "lower" if "lower" in ends else "upper" if "upper" in ends else None


def check_grid(alphas: ArrayLike) -> FloatArray:
    """Return alphas in ascending order, each once.

    Raises InvalidParameterError if there is none, or one is not in (0, inf).
    """
    values = np.atleast_1d(np.asarray(alphas))
    grid = np.unique(solution.check_alpha(values, len(values)))
    if len(grid) == 0 or grid[0] == 0.0:
        raise InvalidParameterError(f"`alphas` is {alphas!r}; expected at least one, all in (0, inf)")
    return grid


def last_within(scores: FloatArray, limit: float | FloatArray) -> int:
    """Return the index of the last score up to a limit: on an ascending grid, the largest such alpha."""
    return int(np.flatnonzero(scores <= limit)[-1])


def shares_of_variance(errors: FloatArray, target_variance: FloatArray) -> FloatArray:
    """Return means over targets of error / variance, which choose one alpha for all targets.

    Units of targets do not matter, and constant targets do not count; if all are constant, errors are summed.

    `errors`: float64 array of shape (..., n_targets).
    """
    varying = target_variance > 0.0
    if not varying.any():
        return np.asarray(errors.sum(axis=-1))
    return np.asarray((errors[..., varying] / target_variance[varying]).mean(axis=-1))


def end_of_grid(best: int, n_alphas: int) -> Literal["lower", "upper"] | None:
    """Return the end of a grid of alphas that an index is at, if any."""
    if best == n_alphas - 1:
        return "upper"
    return "lower" if best == 0 else None
