"""Grids of alpha: which values are tried, and whether the best is at an end.

The eigenvalues of Z'Z or a user's values go in; alphas come out, ascending. A fixed
grid would miss: useful alphas grow with the rows and with the features' variances.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.errors import InvalidParameterError
from rff_dist.numerics import eigen, solution
from rff_dist.typing import EPS, FloatArray

# Scores this close, as shares of the variance, count as equal: a smaller residual is
# rounding.
RESOLUTION = 1e-10
# The grid ends so many decades above the largest eigenvalue: such an alpha leaves
# little but the mean.
DECADES_ABOVE = 2
MATERIAL_GAIN = 0.01  # share of a target's error that an alpha of its own must save
type PerTarget = bool | Literal["auto"]


def default_alphas(spectrum: eigen.RidgeSpectrum) -> FloatArray:
    """Return the `alpha_grid` of a spectrum."""
    return alpha_grid(float(spectrum.eigenvalues[-1]), spectrum.floor)


def alpha_grid(largest: float, floor: float) -> FloatArray:
    """Return three alphas per decade, ascending.

    They begin at the floor, below which everything is rounding error, and end at 100
    times the largest eigenvalue, where predictions are little but the mean: for targets
    with outliers, that may be the best.
    """
    if largest <= 0.0:  # constant features: any alpha gives zero weights
        return np.array([max(1.0, floor)])
    largest = max(largest, floor)
    lowest = max(floor, EPS * largest)
    steps = int(np.floor(3.0 * np.log10(largest / lowest)))
    return largest * 10.0 ** (np.arange(-steps, 1 + 3 * DECADES_ABOVE) / 3.0)


def worst_end(
    ends: Sequence[Literal["lower", "upper"] | None],
) -> Literal["lower", "upper"] | None:
    """Return "lower" if it is one of the ends: too small an alpha does more harm."""
    for end in ("lower", "upper"):
        if end in ends:
            return end
    return None


def check_grid(alphas: ArrayLike) -> FloatArray:
    """Return alphas in ascending order, each once.

    Raises InvalidParameterError if there is none, or one is not in (0, inf).
    """
    values = np.atleast_1d(np.asarray(alphas))
    grid = np.unique(solution.check_alpha(values, len(values)))
    if len(grid) == 0 or grid[0] == 0.0:
        raise InvalidParameterError(
            f"`alphas` is {alphas!r}; expected at least one, all in (0, inf)"
        )
    return grid


def last_within(scores: FloatArray, limit: float | FloatArray) -> int:
    """Return the index of the last score up to a limit: that of the largest alpha."""
    return int(np.flatnonzero(scores <= limit)[-1])


def shares_of_variance(errors: FloatArray, target_variance: FloatArray) -> FloatArray:
    """Return means over the targets, the last axis, of error / variance.

    Units of targets do not matter, and constant targets do not count; if all are
    constant, errors are summed.
    """
    varying = target_variance > 0.0
    if not varying.any():
        return errors.sum(axis=-1)
    return (errors[..., varying] / target_variance[varying]).mean(axis=-1)


def end_of_grid(best: int, n_alphas: int) -> Literal["lower", "upper"] | None:
    """Return the end of a grid of alphas that an index is at, if any."""
    if best == n_alphas - 1:
        return "upper"
    return "lower" if best == 0 else None
