"""Designs: how draws from a spectral measure are arranged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy

from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies.counter import (
    FREQUENCY_STREAM,
    RADIUS_STREAM,
    SIGN_STREAM,
    STREAMS,
    counter_uniforms,
)
from rff_dist.frequencies.hadamard import CHUNK, HadamardBlocks
from rff_dist.frequencies.measures import GaussianMixture, SpectralMeasure
from rff_dist.frequencies.sobol import scrambled_sobol
from rff_dist.typing import FloatArray


class Design(Protocol):
    """How draws from a spectral measure are arranged."""

    @property
    def name(self) -> str:
        """The name that the estimators and the command line use."""

    def draw(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> FloatArray:
        """Return frequencies of shape (n_features, n_frequencies) for a unit length scale.

        Draws whose ranges of uniforms, from `first` on, do not overlap are independent.
        """


@dataclass(frozen=True, slots=True)
class IID:
    """Independent draws (Rahimi & Recht 2007, Alg. 1): the baseline, and right for every measure."""

    name = "iid"

    def draw(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> FloatArray:
        """Return frequencies of shape (n_features, n_frequencies) for a unit length scale."""
        streams = STREAMS * first
        uniforms = counter_uniforms(seed, streams + FREQUENCY_STREAM, n_frequencies, n_features)
        more = measure.n_uniforms(n_features) - n_features
        if more > 0:
            further = counter_uniforms(seed, streams + RADIUS_STREAM, n_frequencies, 1 + more)
            uniforms = np.hstack([uniforms, further[:, 1:]])
        return np.ascontiguousarray(measure.frequencies(uniforms, n_features).T)


@dataclass(frozen=True, slots=True)
class Orthogonal:
    """Blocks of `n_features` orthogonal directions with independent radii (Yu et al. 2016, Sec. 3).

    Every frequency keeps its exact marginal law, while the variance of the kernel estimate falls;
    the best choice for isotropic kernels. O(n_frequencies * n_features**2).
    """

    name = "orthogonal"

    def draw(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> FloatArray:
        """Return frequencies of shape (n_features, n_frequencies) for a unit length scale.

        Raises InvalidParameterError if the measure is not isotropic: rotated directions would change it.
        """
        isotropic = _isotropic(measure, self.name)
        n_blocks, stream = -(-n_frequencies // n_features), STREAMS * first + FREQUENCY_STREAM
        uniforms = counter_uniforms(seed, stream, n_blocks * n_features, n_features)
        directions = _haar_columns(scipy.special.ndtri(uniforms).reshape(n_blocks, n_features, n_features))
        columns = directions.transpose(1, 0, 2).reshape(n_features, -1)[:, :n_frequencies]
        return np.ascontiguousarray(columns * _radii(isotropic, n_features, n_frequencies, seed, first))


@dataclass(frozen=True, slots=True)
class QuasiMonteCarlo:
    """Scrambled Sobol points through the inverse distribution functions (Avron et al. 2016).

    Every frequency keeps its exact law, and together they fill it more evenly than independent draws: the
    variance falls the faster, the fewer columns there are. Right for every measure that takes no more uniform
    numbers than the sequence has dimensions, 21,201. Best with a power of two of frequencies.
    """

    name = "quasi-monte-carlo"

    def draw(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> FloatArray:
        """Return frequencies of shape (n_features, n_frequencies) for a unit length scale.

        Raises InvalidParameterError if the Sobol sequence has fewer dimensions than are needed.
        """
        uniforms = scrambled_sobol(seed, first, n_frequencies, measure.n_uniforms(n_features))
        return np.ascontiguousarray(measure.frequencies(uniforms, n_features).T)


@dataclass(frozen=True, slots=True)
class Structured:
    """Orthogonal directions that a fast transform multiplies by (Choromanski et al. 2017, Sec. 2.2).

    For hundreds of columns and more: the features of a `Stationary` kernel take O(n_frequencies · log
    n_features) work for a row, and O(n_frequencies) memory, where all other designs take n_features times
    n_frequencies of both. Frequencies are those of the next power of two of columns, cut to the first
    n_features: their law is the isotropic one again. Up to 16 columns this is the orthogonal design. Beyond,
    a direction is nearly uniform: the mean squares and products of squares of its coordinates differ from
    those on the sphere by a part of the order of 1/n_features².
    """

    name = "structured"

    def draw(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> FloatArray:
        """Return frequencies of shape (n_features, n_frequencies) for a unit length scale.

        Raises InvalidParameterError if the measure is not isotropic: rotated directions would change it.
        """
        blocks = self.blocks(measure, n_features, n_frequencies, seed, first=first)
        if blocks is not None:
            return blocks.frequencies()
        return Orthogonal().draw(measure, n_features, n_frequencies, seed, first=first)

    def blocks(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> HadamardBlocks | None:
        """Return what `draw` multiplies out, or None for so few columns that a matrix is as fast.

        Raises InvalidParameterError if the measure is not isotropic.
        """
        isotropic = _isotropic(measure, self.name)
        if n_features <= CHUNK:
            return None
        p = 1 << (n_features - 1).bit_length()
        n_blocks = -(-n_frequencies // p)
        streams = STREAMS * first
        uniforms = counter_uniforms(seed, streams + FREQUENCY_STREAM, n_blocks * p, CHUNK)
        normals = scipy.special.ndtri(uniforms).reshape(n_blocks, p // CHUNK, CHUNK, CHUNK)
        coins = counter_uniforms(seed, streams + SIGN_STREAM, n_blocks, 2 * p) < 0.5
        return HadamardBlocks(
            rotations=_haar_columns(normals),
            signs=np.where(coins, 1, -1).astype(np.int8).reshape(n_blocks, 2, p),
            radii=_radii(isotropic, p, n_frequencies, seed, first),
            stretch=np.ones(n_features),
        )


def _isotropic(measure: SpectralMeasure, design: str) -> GaussianMixture:
    if not isinstance(measure, GaussianMixture):
        raise InvalidParameterError(
            f"the {design} design needs an isotropic kernel: a rotation would change the law of "
            "this kernel's frequencies; use design='iid' or 'quasi-monte-carlo'"
        )
    return measure


def _radii(measure: GaussianMixture, dimension: int, n_frequencies: int, seed: int, first: int) -> FloatArray:
    """Return lengths of frequencies: of standard normal vectors, times the measure's scales."""
    uniforms = counter_uniforms(seed, STREAMS * first + RADIUS_STREAM, n_frequencies, 2)
    # half the square of such a length follows Gamma(dimension / 2)
    lengths = np.sqrt(2 * scipy.special.gammaincinv(dimension / 2, uniforms[:, 0]))
    return np.asarray(lengths * measure.scales(uniforms[:, 1]))


def _haar_columns(normals: FloatArray) -> FloatArray:
    """Return a Haar-distributed orthogonal matrix per matrix of normals (Mezzadri 2007, Sec. 5)."""
    q, r = np.linalg.qr(normals)
    # QR alone is not Haar: its signs are biased
    signs = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return q * signs[..., np.newaxis, :]


_DESIGNS: tuple[Design, ...] = (IID(), Orthogonal(), QuasiMonteCarlo(), Structured())
DESIGNS = {design.name: design for design in _DESIGNS}
