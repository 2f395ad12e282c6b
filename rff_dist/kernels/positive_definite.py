"""Whether a function of the distance is a kernel.

A function goes in; its lowest spectral density comes out. By Bochner's theorem the
function is a kernel if its density is nowhere negative. Eigenvalues of a Gram matrix of
some points would show a negative density only if the points happen to have its
frequency.
"""

from collections.abc import Callable

import numpy as np
import scipy

from rff_dist.checks import check_count, check_positive
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.typing import FloatArray, frozen

type DistanceFunction = Callable[[FloatArray], FloatArray]  # to the kernel's values


@frozen
class PositiveDefiniteness:
    """The lowest spectral density of a function; it integrates to k(0)."""

    #: Whether no density is negative by more than rounding.
    positive_definite: bool
    #: In radians per unit of distance.
    worst_frequency: float
    #: Smoothed over 1/`extent`.
    worst_density: float


def check_positive_definite(
    function: DistanceFunction,
    *,
    n_features: int = 1,
    extent: float | None = None,
    tolerance: float = 1e-10,
) -> PositiveDefiniteness:
    """Check numerically whether k(x, y) = function(|x - y|) is positive definite.

    By Bochner's theorem it is, if its spectral density is nowhere negative. The
    function is multiplied by a kernel that is 0 from `extent` on (the overlap of two
    balls). The product of two kernels is a kernel, so cutting the function off this way
    causes no negative density. In one dimension the density is a discrete Fourier
    transform of values on a grid, and a negative one proves that the grid's Gram matrix
    has a negative eigenvalue. In several dimensions it is a Hankel transform of 4,096
    values. Passing proves nothing beyond the distances and frequencies that were
    checked, and negative bands narrower than 1/`extent` go unnoticed. Takes a few
    seconds.

    Parameters
    ----------
    function : callable
        Maps distances, a float64 array of shape (n,) of numbers from 0 on, to values of
        the same shape.
    n_features : int
        Dimension of the points; a function may pass in one dimension and fail in more.
    extent : float, optional
        Largest distance that is checked. By default 50 times the distance at which the
        function has halved.
    tolerance : float
        Densities this far below 0 count as rounding, as a share of the largest density.

    Returns
    -------
    result : PositiveDefiniteness
        `positive_definite`, and the lowest density with its frequency.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range, or `extent` is missing for a function that does
        not fall.
    DataError
        If the function does not return one finite number per distance, or k(0) is not
        above 0.

    References
    ----------
    Rahimi & Recht (2007), Thm. 1 (Bochner); Schoenberg (1938) for functions of the
    distance.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import check_positive_definite
    >>> check_positive_definite(lambda r: np.exp(-r), n_features=3).positive_definite
    True
    >>> box = check_positive_definite(lambda r: r <= 1)
    >>> box.positive_definite, round(box.worst_frequency, 1)
    (False, 4.5)
    """
    n_features = check_count(n_features, "n_features")
    tolerance = check_positive(tolerance, "tolerance")
    if extent is None:
        extent = _default_extent(function)
    extent = check_positive(extent, "extent")
    if n_features == 1:
        frequencies, density = _density_on_a_line(function, extent)
    else:
        frequencies, density = _density_in_space(function, extent, n_features)
    worst = int(np.argmin(density))
    limit = tolerance * float(np.abs(density).max())
    return PositiveDefiniteness(
        positive_definite=bool(density[worst] >= -limit),
        worst_frequency=float(frequencies[worst]),
        worst_density=float(density[worst]),
    )


def _values(function: DistanceFunction, distances: FloatArray) -> FloatArray:
    values = np.asarray(function(distances))
    is_numeric = values.dtype.kind in "biuf" and values.shape == distances.shape
    if not is_numeric or not np.isfinite(values).all():
        raise DataError(
            f"the function returns {values.dtype} of shape {values.shape} for"
            f" {len(distances)} distances from {distances[0]:g} to {distances[-1]:g};"
            " expected one finite real number each"
        )
    return values.astype(np.float64)


def _default_extent(function: DistanceFunction) -> float:
    distances = np.r_[0.0, np.geomspace(1e-9, 1e9, 4000)]
    values = _values(function, distances)
    if values[0] <= 0:
        raise DataError(
            f"the function is {values[0]:g} at the distance 0; a kernel is above 0"
            " there"
        )
    # an oscillating function has halved where it first falls below, even if it rises
    # again
    has_halved = np.abs(values) < values[0] / 2
    if not has_halved.any():
        raise InvalidParameterError(
            "the function has not halved by the distance 1e9; give the `extent`"
        )
    return float(50 * distances[np.argmax(has_halved)])


def _density_on_a_line(
    function: DistanceFunction, extent: float
) -> tuple[FloatArray, FloatArray]:
    """Return frequencies and the density there, by a Fourier transform.

    Without rounding the density at ω is (h/2πn)·v*Kv, with v_j = exp(iωhj) and the
    Gram matrix K of a grid, so no kernel has a negative one.
    """
    n_points = 2**13
    step = extent / n_points
    places = np.arange(n_points, dtype=np.float64)
    # Fejér's weights: the overlap of two intervals
    values = _values(function, step * places) * (1 - places / n_points)
    # The function is even: its values stand at the start of the circle, and reversed at
    # its end. The circle is four times as long as the values, which gives frequencies
    # between the grid's own.
    circle = np.r_[values, np.zeros(2 * n_points + 1), values[:0:-1]]
    density = np.fft.rfft(circle).real * step / (2 * np.pi)
    return np.linspace(0, np.pi / step, len(density)), density


def _density_in_space(
    function: DistanceFunction, extent: float, n_features: int
) -> tuple[FloatArray, FloatArray]:
    """Return frequencies and the density there, by a Hankel transform (Schoenberg)."""
    n_points = 2**12
    n_frequencies = 2**8
    half = n_features / 2
    distances = np.linspace(0, extent, n_points, endpoint=False)
    # the share of a ball of this diameter that a copy at this distance covers: a
    # kernel, by Matheron's spherical covariances
    uncovered = 1 - (distances / extent) ** 2
    overlap = scipy.special.betainc((n_features + 1) / 2, 0.5, uncovered)
    # surface of the unit sphere in d dimensions, over the (2π)^d of the inverse Fourier
    # transform
    sphere = 2 * np.pi**half / scipy.special.gamma(half) / (2 * np.pi) ** n_features
    shells = sphere * distances ** (n_features - 1) * extent / n_points
    values = _values(function, distances) * overlap * shells
    frequencies = np.linspace(0, np.pi * n_frequencies / extent, n_frequencies)
    density = [values @ _wave(frequency * distances, half) for frequency in frequencies]
    return frequencies, np.array(density)


def _wave(z: FloatArray, half: float) -> FloatArray:
    """Return the mean of exp(i·z·u) over u of the unit sphere in 2·half dimensions."""
    # Γ(d/2)·(2/z)^(d/2-1)·J_{d/2-1}(z) is 1 - z²/4half + …: 1 in float64 below 1e-8
    safe = np.maximum(z, 1e-8)
    log_factor = scipy.special.gammaln(half) + (half - 1) * np.log(2 / safe)
    return np.asarray(np.exp(log_factor) * scipy.special.jv(half - 1, safe))
