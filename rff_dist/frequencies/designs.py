"""Designs: how draws from a spectral measure are arranged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy

from rff_dist.checks import check_name
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

        `first`: number of the first uniform that the draw uses; `SpectralMeasure.n_uniforms` says how many
          it uses. Draws that share no uniforms are independent.
        Raises InvalidParameterError if the design does not suit the measure.
        """


@dataclass(frozen=True, slots=True)
class IID:
    """Independent draws (Rahimi & Recht 2007, Alg. 1): the baseline, and right for every measure."""

    name = "iid"

    def draw(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> FloatArray:
        streams = STREAMS * first
        uniforms = counter_uniforms(seed, streams + FREQUENCY_STREAM, n_frequencies, n_features)
        more = measure.n_uniforms(n_features) - n_features
        if more > 0:
            # column 0 gives the lengths of orthogonal designs, and column 1 the scales, see `_radii`
            further = counter_uniforms(seed, streams + RADIUS_STREAM, n_frequencies, 1 + more)
            uniforms = np.hstack([uniforms, further[:, 1:]])
        return np.ascontiguousarray(measure.frequencies(uniforms, n_features).T)


@dataclass(frozen=True, slots=True)
class Orthogonal:
    """Blocks of `n_features` orthogonal directions with independent radii (Yu et al. 2016, Sec. 3).

    Every frequency keeps its exact marginal law, and the kernel estimate has less variance: the best choice
    for isotropic kernels. O(n_frequencies * n_features**2).
    """

    name = "orthogonal"

    def draw(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> FloatArray:
        isotropic = _isotropic(measure, self.name)
        n_blocks, stream = -(-n_frequencies // n_features), STREAMS * first + FREQUENCY_STREAM
        uniforms = counter_uniforms(seed, stream, n_blocks * n_features, n_features)
        directions = _haar_columns(scipy.special.ndtri(uniforms).reshape(n_blocks, n_features, n_features))
        columns = directions.transpose(1, 0, 2).reshape(n_features, -1)[:, :n_frequencies]
        return np.ascontiguousarray(columns * _radii(isotropic, n_features, n_frequencies, seed, first))


@dataclass(frozen=True, slots=True)
class QuasiMonteCarlo:
    """Scrambled Sobol points through the inverse distribution functions (Avron et al. 2016).

    Every frequency keeps its exact law, and together they cover it more evenly than independent draws: the
    variance falls faster, most of all in few columns. For every measure that takes at most 21,201 uniform
    numbers, as many as the sequence has dimensions. Best if the number of frequencies is a power of two.
    """

    name = "quasi-monte-carlo"

    def draw(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> FloatArray:
        uniforms = scrambled_sobol(seed, first, n_frequencies, measure.n_uniforms(n_features))
        return np.ascontiguousarray(measure.frequencies(uniforms, n_features).T)


@dataclass(frozen=True, slots=True)
class Structured:
    """Orthogonal directions whose products take a fast transform (Choromanski et al. 2017, Sec. 2.2).

    For hundreds of columns and more: features of a `Stationary` kernel then take O(n_frequencies · log
    n_features) work per row and O(n_frequencies) memory. All other designs take n_features · n_frequencies of
    both. Frequencies are drawn for the next power of two of columns and cut to the first n_features, which
    leaves their law isotropic. Up to 16 columns this is the orthogonal design. Beyond, directions are nearly
    uniform: the mean squares of coordinates, and of products of two, differ from those on the sphere by a
    share of the order of 1/n_features².
    """

    name = "structured"

    def draw(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> FloatArray:
        blocks = self.blocks(measure, n_features, n_frequencies, seed, first=first)
        if blocks is not None:
            return blocks.frequencies()
        return Orthogonal().draw(measure, n_features, n_frequencies, seed, first=first)

    def blocks(
        self, measure: SpectralMeasure, n_features: int, n_frequencies: int, seed: int, *, first: int = 0
    ) -> HadamardBlocks | None:
        """Return the blocks that `draw` multiplies out; None for few columns, where a matrix is as fast."""
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
    """Return lengths of frequencies: those of standard normal vectors, times the measure's scales."""
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


def find_design(design: str | Design) -> Design:
    """Return the design of that name, or the object itself; raises InvalidParameterError with near names."""
    if not isinstance(design, str) and hasattr(design, "draw"):
        return design
    check_name(design, DESIGNS, "design", also=", 'auto' or an object")
    return DESIGNS[str(design)]
