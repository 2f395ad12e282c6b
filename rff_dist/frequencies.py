"""How frequencies are sampled: designs x spectral measures, from counter-based random numbers.

A spectral measure says which distribution the frequencies follow (Bochner's theorem ties it
to the kernel); a design says how the draws are arranged. All randomness is a pure function
of (seed, position), so that the first frequencies of a long draw are the frequencies of a
short one, on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rff_dist.errors import InvalidParameterError

type FloatArray = NDArray[np.float64]

_FREQUENCY_STREAM = 0
_RADIUS_STREAM = 1
_PHASE_STREAM = 2


def counter_uniforms(seed: int, stream: int, n_rows: int, n_columns: int) -> FloatArray:
    """Return uniforms in the open interval (0, 1); row i depends on (seed, stream, i) and `n_columns` only.

    NumPy promises the raw bits of Philox for ever, but its `Generator` streams for one version
    only; so the map from integers to floats is our own (Salmon et al. 2011, Random123).

    Parameters
    ----------
    seed : int
        From 0 to 2**64 - 1.
    stream : int
        Which of the independent streams of that seed.
    n_rows, n_columns : int
        Shape of the result.

    Returns
    -------
    uniforms : float64 array of shape (n_rows, n_columns)
        Odd multiples of 2**-53: never 0, never 1.
    """
    words_per_row = -(-n_columns // 4) * 4  # Philox4x64 makes four words a counter step
    raw = np.random.Philox(key=np.array([seed, stream], np.uint64)).random_raw(n_rows * words_per_row)
    words = raw.reshape(n_rows, words_per_row)[:, :n_columns]
    return (np.asarray(words >> np.uint64(12), np.float64) + 0.5) * 2.0**-52


def seed_of(rng: object, *, name: str = "rng") -> int:
    """Return the 64-bit seed that `rng` is, or draws; an error calls it `name`.

    Raises
    ------
    InvalidParameterError
        If `rng` is neither a Generator nor an integer from 0 to 2**64 - 1.
    """
    if isinstance(rng, np.random.Generator):
        return int(rng.integers(0, 2**64, dtype=np.uint64))
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer) or not 0 <= rng < 2**64:
        raise InvalidParameterError(
            f"`{name}` is {rng!r}; expected a numpy.random.Generator or an integer from 0 to 2**64 - 1"
        )
    return int(rng)


@dataclass(frozen=True, slots=True)
class GaussianMixture:
    """Frequencies s·g with g ~ N(0, I) and one random scale s per vector: every isotropic kernel we have.

    Attributes
    ----------
    scale_quantile : callable, or None
        Inverse distribution function of s, from uniforms to scales; None means s = 1.
    """

    scale_quantile: Callable[[FloatArray], FloatArray] | None = None

    def scales(self, uniforms: FloatArray) -> FloatArray:
        """Return one scale per uniform number."""
        return np.ones_like(uniforms) if self.scale_quantile is None else self.scale_quantile(uniforms)


@dataclass(frozen=True, slots=True)
class ProductMeasure:
    """Frequencies whose coordinates are independent and follow one law.

    Attributes
    ----------
    quantile : callable
        Inverse distribution function of a coordinate.
    """

    quantile: Callable[[FloatArray], FloatArray]


type SpectralMeasure = GaussianMixture | ProductMeasure


class Design(Protocol):
    """How draws from a spectral measure are arranged."""

    @property
    def name(self) -> str:
        """The name that the estimators and the command line use."""

    def draw(self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int) -> FloatArray:
        """Return frequencies of shape (n_features, n_frequencies) for a unit length scale."""


@dataclass(frozen=True, slots=True)
class IID:
    """Independent draws (Rahimi & Recht 2007, Alg. 1): the baseline, and right for every measure."""

    name = "iid"

    def draw(self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int) -> FloatArray:
        """Return frequencies of shape (n_features, n_frequencies) for a unit length scale."""
        uniforms = counter_uniforms(seed, _FREQUENCY_STREAM, n_frequencies, n_features)
        if isinstance(measure, ProductMeasure):
            return np.ascontiguousarray(measure.quantile(uniforms).T)
        scales = measure.scales(counter_uniforms(seed, _RADIUS_STREAM, n_frequencies, 2)[:, 1])
        return np.ascontiguousarray((special.ndtri(uniforms) * scales[:, np.newaxis]).T)


@dataclass(frozen=True, slots=True)
class Orthogonal:
    """Blocks of `n_features` orthogonal directions with independent radii (Yu et al. 2016, Sec. 3).

    Every frequency keeps its exact marginal law, while the variance of the kernel estimate falls;
    the best choice for isotropic kernels. O(n_frequencies * n_features**2).
    """

    name = "orthogonal"

    def draw(self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int) -> FloatArray:
        """Return frequencies of shape (n_features, n_frequencies) for a unit length scale.

        Raises
        ------
        InvalidParameterError
            If the measure is not isotropic: rotated directions would change it.
        """
        if isinstance(measure, ProductMeasure):
            raise InvalidParameterError(
                "the orthogonal design needs an isotropic kernel: this kernel's frequencies have independent "
                "coordinates, whose law a rotation would change; use design='iid'"
            )
        n_blocks = -(-n_frequencies // n_features)
        uniforms = counter_uniforms(seed, _FREQUENCY_STREAM, n_blocks * n_features, n_features)
        directions = _haar_columns(special.ndtri(uniforms).reshape(n_blocks, n_features, n_features))
        columns = directions.transpose(1, 0, 2).reshape(n_features, -1)[:, :n_frequencies]
        radius_uniforms = counter_uniforms(seed, _RADIUS_STREAM, n_frequencies, 2)
        # the length of a standard normal vector: half its square follows Gamma(n_features / 2)
        radii = np.sqrt(2 * special.gammaincinv(n_features / 2, radius_uniforms[:, 0]))
        return np.ascontiguousarray(columns * (radii * measure.scales(radius_uniforms[:, 1])))


def _haar_columns(normals: FloatArray) -> FloatArray:
    """Return a Haar-distributed orthogonal matrix per matrix of normals (Mezzadri 2007, Sec. 5)."""
    q, r = np.linalg.qr(normals)
    signs = np.where(
        np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0
    )  # QR alone is not Haar: its signs are biased
    return q * signs[:, np.newaxis, :]


def draw_phases(n_components: int, seed: int) -> FloatArray:
    """Return phases, uniform on [0, 2*pi), of shape (n_components,)."""
    return 2 * np.pi * counter_uniforms(seed, _PHASE_STREAM, n_components, 1)[:, 0]


DESIGNS: dict[str, Design] = {design.name: design for design in (IID(), Orthogonal())}
