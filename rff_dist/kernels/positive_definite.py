"""Whether a function of the distance is a kernel: a numerical check of its spectral density (Bochner)."""

from collections.abc import Callable

import numpy as np
import scipy

from rff_dist.checks import check_count, check_positive
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.kernels import characteristic
from rff_dist.typing import FloatArray, frozen

type _Function = Callable[[FloatArray], FloatArray]  # from distances to values

_EXTENT = 50  # in distances at which the function has halved
_N_POINTS = 2**13  # of the grid, in one dimension
_N_FREQUENCIES = 2**9  # in several dimensions


@frozen
class PositiveDefiniteness:
    """What `check_positive_definite` found.

    `positive_definite`: whether no spectral density that was computed is below -`tolerance`.
    `worst_frequency`: where the density is lowest, in radians per unit of distance.
    `worst_density`: the density there, smoothed over 1/`extent`. The density integrates to k(0).
    `tolerance`: what counts as rounding, in the units of the density.
    `extent`, `highest_frequency`: the largest distance and frequency that were checked.
    """

    positive_definite: bool
    worst_frequency: float
    worst_density: float
    tolerance: float
    n_features: int
    extent: float
    highest_frequency: float

    def require(self) -> None:
        """Raise InvalidParameterError, with the frequency at which Bochner's condition fails, if it does."""
        if not self.positive_definite:
            raise InvalidParameterError(str(self))

    def __str__(self) -> str:
        where = "1 dimension" if self.n_features == 1 else f"{self.n_features} dimensions"
        looked = f"checked up to distance {self.extent:.3g} and frequency {self.highest_frequency:.3g}"
        if self.positive_definite:
            return (
                f"no sign against positive definiteness in {where}: the lowest spectral density is "
                f"{self.worst_density:.3g}, at the frequency {self.worst_frequency:.4g}, not below "
                f"{-self.tolerance:.1g} ({looked}; values on a grid are no proof)"
            )
        return (
            f"not positive definite in {where}: at the frequency {self.worst_frequency:.4g} the spectral "
            f"density is {self.worst_density:.3g}, below {-self.tolerance:.1g}. By Bochner's theorem a "
            "kernel's density is nowhere negative. This function has points whose Gram matrix has a negative "
            f"eigenvalue, and it has no random features ({looked}). Take a kernel of this library, or give "
            "the distribution of its frequencies to SpectralKernel"
        )


def check_positive_definite(
    function: Callable[[FloatArray], FloatArray],
    *,
    n_features: int = 1,
    extent: float | None = None,
    tolerance: float = 1e-10,
) -> PositiveDefiniteness:
    """Check numerically whether k(x, y) = function(|x - y|) is positive definite, by Bochner's theorem.

    The function is multiplied by a kernel that is 0 from `extent` on (the overlap of two balls). A kernel
    times this one is a kernel, so a negative density does not come from cutting the function off. In one
    dimension the density is a discrete Fourier transform of values on a grid, and a negative one proves that
    the grid's Gram matrix has a negative eigenvalue. In several dimensions it is a Hankel transform by
    quadrature, good to about 1e-12. Passing proves nothing beyond the distances and frequencies that were
    checked, and negative bands narrower than 1/`extent` go unnoticed. Takes about a second.

    Parameters
    ----------
    function : callable
        Maps distances, a float64 array of shape (n,) of numbers from 0 on, to values of the same shape.
    n_features : int
        Dimension of the points; a function may pass in one dimension and fail in more.
    extent : float, optional
        Largest distance that is checked. By default 50 times the distance at which the function has halved.
    tolerance : float
        Densities this far below 0 count as rounding, as a share of the largest density.

    Returns
    -------
    result : PositiveDefiniteness
        Its `require()` raises if the function is not positive definite.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range, or `extent` is missing for a function that does not fall.
    DataError
        If the function does not return one finite number per distance, or k(0) is not above 0.

    References
    ----------
    Rahimi & Recht (2007), Thm. 1 (Bochner); Schoenberg (1938) for functions of the distance.

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
    extent = _find_extent(function) if extent is None else check_positive(extent, "extent")
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
        tolerance=limit,
        n_features=n_features,
        extent=extent,
        highest_frequency=float(frequencies[-1]),
    )


def _values(function: _Function, distances: FloatArray) -> FloatArray:
    values = np.asarray(function(distances))
    if values.shape != distances.shape or values.dtype.kind not in "biuf":
        raise DataError(
            f"the function returns {values.dtype} of shape {values.shape} for {len(distances)} distances; "
            "expected one real number each"
        )
    if not np.isfinite(values).all():
        where = distances[np.argmin(np.isfinite(values))]
        raise DataError(f"the function is not finite at the distance {where:g}; expected finite numbers")
    return values.astype(np.float64)


def _find_extent(function: _Function) -> float:
    distances = np.r_[0.0, np.geomspace(1e-9, 1e9, 4000)]
    values = _values(function, distances)
    if values[0] <= 0:
        raise DataError(f"the function is {values[0]:g} at the distance 0; a kernel is above 0 there")
    # a function that oscillates has halved where it first falls, even if it rises again
    low = np.abs(values) < values[0] / 2
    if not low.any():
        raise InvalidParameterError("the function has not halved by the distance 1e9; give the `extent`")
    return float(_EXTENT * distances[np.argmax(low)])


def _density_on_a_line(function: _Function, extent: float) -> tuple[FloatArray, FloatArray]:
    """Return frequencies and the density by a Fourier transform; the triangle weights are Fejér's.

    Without rounding the density at ω is (h/2πn)·v*Kv, with v_j = exp(iωhj) and the grid's Gram matrix K. So
    no kernel has a negative one.
    """
    step = extent / _N_POINTS
    places = np.arange(_N_POINTS, dtype=np.float64)
    values = _values(function, step * places) * (1 - places / _N_POINTS)
    # the function is even: it enters once from 0 on and once, reversed, from the end of the circle
    # four times as long, for frequencies between the grid's own
    circle = np.r_[values, np.zeros(2 * _N_POINTS + 1), values[:0:-1]]
    density = np.fft.rfft(circle).real * step / (2 * np.pi)
    return np.linspace(0, np.pi / step, len(density)), density


def _density_in_space(function: _Function, extent: float, n_features: int) -> tuple[FloatArray, FloatArray]:
    """Return frequencies and the density by a Hankel transform, panel by panel (Schoenberg 1938)."""
    half = n_features / 2
    frequencies = np.linspace(0, np.pi * _N_FREQUENCIES / (2 * extent), _N_FREQUENCIES)
    size = float(np.abs(_values(function, extent * np.arange(1000.0) / 1000)).max())
    edges = np.linspace(0, extent, _N_FREQUENCIES // 4 + 1)  # at most two waves of the highest frequency each
    panels = characteristic.fit_panels(
        lambda r: _values(function, r.ravel()).reshape(r.shape), edges, 1e-13 * size
    )
    if panels is None:
        raise InvalidParameterError(
            "the function is too rough to integrate: it jumps or bends at thousands of distances; "
            "give a smoother one"
        )
    r, weights = characteristic.panel_nodes(panels)
    # the share of a ball of this diameter that a copy at distance r covers: a kernel, by Matheron's spherical
    # covariances
    overlap = scipy.special.betainc((n_features + 1) / 2, 0.5, np.maximum(0, 1 - (r / extent) ** 2))
    weighted = weights * overlap * _values(function, r) * r ** (n_features - 1)
    # surface of the unit sphere in d dimensions, over the (2π)^d of the inverse Fourier transform
    sphere = 2 * np.pi**half / scipy.special.gamma(half) / (2 * np.pi) ** n_features
    density = [sphere * weighted @ _spherical_wave(frequency * r, half) for frequency in frequencies]
    return frequencies, np.array(density)


def _spherical_wave(z: FloatArray, half: float) -> FloatArray:
    """Return the mean of exp(i·z·u) over the unit sphere, Γ(d/2)·(2/z)^(d/2-1)·J_{d/2-1}(z), half = d/2."""
    safe = np.where(z > 0, z, 1.0)
    log_factor = scipy.special.gammaln(half) + (half - 1) * np.log(2 / safe)
    # the mean is 1 - z²/4half + …, which is 1 in float64 below 1e-8
    return np.where(z > 1e-8, np.exp(log_factor) * scipy.special.jv(half - 1, safe), 1.0)
