"""Designs: how draws from a spectral measure are arranged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import scipy

from rff_dist.checks import check_name
from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies import uniforms

# parameters called `uniforms` hide the module
from rff_dist.frequencies.uniforms import pick
from rff_dist.typing import FloatArray, frozen


class Design(Protocol):
    """How draws from a spectral measure are arranged."""

    @property
    def name(self) -> str:
        """The name that the estimators and the command line use."""

    def draw(
        self,
        measure: SpectralMeasure,
        n_features: int,
        n_frequencies: int,
        seed: int,
        *,
        first: int = 0,
    ) -> FloatArray:
        """Return frequencies of shape (n_features, n_frequencies) for a unit length
        scale.

        `first`: number of the first uniform that the draw uses;
          `SpectralMeasure.n_uniforms` says how many it uses. Draws that share no
          uniforms are independent.

        Raises InvalidParameterError if the design does not suit the measure.
        """

    def scales(
        self, measure: CoordinateMeasure, shape: tuple[int, int], seed: int, first: int
    ) -> FloatArray:
        """Return the factors of `draw`'s coordinates, of this shape, (n_features,
        n_frequencies); see `CoordinateMeasure`.
        """


@frozen
class IID:
    """Independent draws (Rahimi & Recht 2007, Alg. 1): the baseline, and right for
    every measure.
    """

    name = "iid"

    def draw(
        self,
        measure: SpectralMeasure,
        n_features: int,
        n_frequencies: int,
        seed: int,
        *,
        first: int = 0,
    ) -> FloatArray:
        shape = (n_features, n_frequencies)
        numbers = self._numbers(measure, shape, seed, first)
        return np.ascontiguousarray(measure.frequencies(numbers, n_features).T)

    def scales(
        self, measure: CoordinateMeasure, shape: tuple[int, int], seed: int, first: int
    ) -> FloatArray:
        numbers = self._numbers(measure, shape, seed, first)
        return measure.scales_of_columns(numbers, shape[0]).T

    def _numbers(
        self, measure: SpectralMeasure, shape: tuple[int, int], seed: int, first: int
    ) -> FloatArray:
        """Return the uniforms of a draw, shape (n_frequencies, n_uniforms)."""
        n_features, n_frequencies = shape
        numbers = _independent(
            seed, first, uniforms.FREQUENCY_STREAM, n_frequencies, n_features
        )
        more = measure.n_uniforms(n_features) - n_features
        if more <= 0:
            return numbers
        # column 0 gives the lengths of orthogonal designs, and column 1 the scales, see
        # `_radii`
        further = _independent(
            seed, first, uniforms.RADIUS_STREAM, n_frequencies, 1 + more
        )
        return np.hstack([numbers, further[:, 1:]])


@frozen
class Orthogonal:
    """Blocks of `n_features` orthogonal directions with independent radii (Yu et al.
    2016, Sec. 3).

    Every frequency keeps its exact marginal distribution, and the kernel estimate has
    less variance: the best choice for isotropic kernels. O(n_frequencies *
    n_features**2).
    """

    name = "orthogonal"

    def draw(
        self,
        measure: SpectralMeasure,
        n_features: int,
        n_frequencies: int,
        seed: int,
        *,
        first: int = 0,
    ) -> FloatArray:
        if not isinstance(measure, GaussianMixture):
            raise not_isotropic()
        # whole blocks, though the last may be cut, so that a longer draw begins with
        # the same frequencies
        n_blocks = -(-n_frequencies // n_features)
        numbers = _independent(
            seed, first, uniforms.FREQUENCY_STREAM, n_blocks * n_features, n_features
        )
        # shape (n_blocks, n_features, n_features): a column is a direction
        directions = _haar_columns(
            scipy.special.ndtri(numbers).reshape(n_blocks, n_features, n_features)
        )
        columns = directions.transpose(1, 0, 2).reshape(n_features, -1)[
            :, :n_frequencies
        ]
        return np.ascontiguousarray(
            columns * _radii(measure, n_features, n_frequencies, seed, first)
        )

    def scales(
        self, measure: CoordinateMeasure, shape: tuple[int, int], seed: int, first: int
    ) -> FloatArray:
        if not isinstance(measure, GaussianMixture):
            raise not_isotropic()
        numbers = _radius_numbers(shape[1], seed, first)
        return np.broadcast_to(measure.scales(numbers[:, 1]), shape)


@frozen
class QuasiMonteCarlo:
    """Scrambled Sobol points through the inverse distribution functions (Avron et al.
    2016).

    Every frequency keeps its exact distribution, and together they cover it more evenly
    than independent draws: the variance falls faster, most of all in few columns. For
    every measure that takes at most 21,201 uniform numbers, as many as the sequence has
    dimensions. Best if the number of frequencies is a power of two.
    """

    name = "quasi-monte-carlo"

    def draw(
        self,
        measure: SpectralMeasure,
        n_features: int,
        n_frequencies: int,
        seed: int,
        *,
        first: int = 0,
    ) -> FloatArray:
        numbers = uniforms.scrambled_sobol(
            seed, first, n_frequencies, measure.n_uniforms(n_features)
        )
        return np.ascontiguousarray(measure.frequencies(numbers, n_features).T)

    def scales(
        self, measure: CoordinateMeasure, shape: tuple[int, int], seed: int, first: int
    ) -> FloatArray:
        n_features, n_frequencies = shape
        numbers = uniforms.scrambled_sobol(
            seed, first, n_frequencies, measure.n_uniforms(n_features)
        )
        return measure.scales_of_columns(numbers, n_features).T


def _independent(
    seed: int, first: int, stream: int, n_rows: int, n_columns: int
) -> FloatArray:
    """Return uniform numbers, independent of those of other values of `first`; see
    `Design.draw`.
    """
    return uniforms.counter_uniforms(
        seed, uniforms.STREAMS * first + stream, n_rows, n_columns
    )


def not_isotropic() -> InvalidParameterError:
    """Return the error to raise when a kernel cannot take the orthogonal design."""
    return InvalidParameterError(
        "the orthogonal design needs an isotropic kernel: a rotation would change the"
        " distribution of this kernel's frequencies; use design='iid' or"
        " 'quasi-monte-carlo'"
    )


def _radii(
    measure: GaussianMixture, dimension: int, n_frequencies: int, seed: int, first: int
) -> FloatArray:
    """Return lengths of frequencies: those of standard normal vectors, times the
    measure's scales.
    """
    numbers = _radius_numbers(n_frequencies, seed, first)
    # half the square of such a length follows Gamma(dimension / 2)
    lengths = np.sqrt(2 * scipy.special.gammaincinv(dimension / 2, numbers[:, 0]))
    return np.asarray(lengths * measure.scales(numbers[:, 1]))


def _radius_numbers(n_frequencies: int, seed: int, first: int) -> FloatArray:
    """Return uniforms for the length and the scale of each frequency."""
    return _independent(seed, first, uniforms.RADIUS_STREAM, n_frequencies, 2)


def _haar_columns(normals: FloatArray) -> FloatArray:
    """Like `scipy.stats.ortho_group`, one matrix per matrix of normals (Mezzadri 2007,
    Sec. 5).
    """
    q, r = np.linalg.qr(normals)
    # QR alone is not Haar: its signs are biased
    signs = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return q * signs[..., np.newaxis, :]


DESIGNS: dict[str, Design] = {
    d.name: d for d in (IID(), Orthogonal(), QuasiMonteCarlo())
}


def find_design(design: str | Design) -> Design:
    """Return the design of that name, or the object itself; raises
    InvalidParameterError with near names.
    """
    if not isinstance(design, str) and hasattr(design, "draw"):
        return design
    check_name(design, DESIGNS, "design", also=", 'auto' or an object")
    return DESIGNS[str(design)]


# -- spectral measures
# -----------------------------------------------------------------------------
#
# Bochner's theorem ties a measure to its kernel. A measure never draws by itself: a
# design hands it uniform numbers, independent or arranged, and each frequency follows
# the measure exactly.


class SpectralMeasure(Protocol):
    """The distribution of a kernel's frequencies, for unit length scales."""

    def n_uniforms(self, n_features: int) -> int:
        """Return how many uniform numbers make one frequency."""

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        """Return frequencies of shape (n, n_features) from uniforms of shape (n,
        n_uniforms).
        """


class CoordinateMeasure(SpectralMeasure, Protocol):
    """A distribution whose coordinates are factors times independent numbers of one
    distribution, as the frequencies of categories must be.
    """

    def scales_of_columns(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        """Return the factor of each coordinate of `frequencies`, shape (n,
        n_features): a coordinate is its factor times `coordinates` of a uniform.
        """

    def coordinates(self, uniforms: FloatArray) -> FloatArray:
        """Return coordinates of factor 1 from uniforms."""

    def characteristic(self, t: FloatArray) -> FloatArray:
        """Return E cos(t·ω) of a coordinate ω of factor 1."""


@frozen
class GaussianMixture:
    """Frequencies s·g with g ~ N(0, I) and a random scale s per vector: those of
    isotropic kernels.
    """

    #: inverse distribution function of s, from uniforms to scales; None means s = 1
    scale_quantile: Callable[[FloatArray], FloatArray] | None = None

    def scales(self, uniforms: FloatArray) -> FloatArray:
        return (
            np.ones_like(uniforms)
            if self.scale_quantile is None
            else self.scale_quantile(uniforms)
        )

    def n_uniforms(self, n_features: int) -> int:
        return n_features + (self.scale_quantile is not None)

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        normals = self.coordinates(uniforms[:, :n_features])
        if self.scale_quantile is None:
            return normals
        return np.asarray(normals * self.scales(uniforms[:, n_features:]))

    def scales_of_columns(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        scales: FloatArray = np.ones((len(uniforms), 1))
        if self.scale_quantile is not None:
            scales = self.scales(uniforms[:, n_features:])
        return np.broadcast_to(scales, (len(uniforms), n_features))

    def coordinates(self, uniforms: FloatArray) -> FloatArray:
        return np.asarray(scipy.special.ndtri(uniforms))

    def characteristic(self, t: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-0.5 * t**2))


@frozen
class FewColumns:
    """Frequencies of one column, of two columns or of all: the distribution of additive
    kernels.

    Those of one or two columns are √n_features times as large, and each column's scale
    is independent.
    """

    #: the distribution of frequencies of all columns; its coordinates are those of
    #: single columns
    inner: GaussianMixture
    #: probabilities of one column, two, and all; their sum is 1. A single column counts
    #: as all.
    weights: tuple[float, ...]
    #: probability of each column among those of one column; None if they are equal
    column_shares: tuple[float, ...] | None = None

    def n_uniforms(self, n_features: int) -> int:
        # three more say how many columns and which, and the second column has a scale
        # of its own
        return (
            self.inner.n_uniforms(n_features)
            + (self.inner.scale_quantile is not None)
            + 3
        )

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        scales = self.scales_of_columns(uniforms, n_features)
        return np.asarray(scales * self.coordinates(uniforms[:, :n_features]))

    def scales_of_columns(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        if n_features == 1:
            return self.inner.scales_of_columns(
                uniforms[:, : self.inner.n_uniforms(1)], 1
            )
        rows = np.arange(len(uniforms))
        root = np.sqrt(n_features)
        n_columns, place, other = uniforms[:, -3:].T
        order = pick(np.array(self.weights), n_columns)
        # products may round up to the number of columns
        # place and other are uniform: the first column among all, the second among
        # those left
        first = np.minimum(place * n_features, n_features - 1).astype(np.intp)
        if self.column_shares is not None:
            alone = pick(np.array(self.column_shares), place)
            first = np.where(order == 0, alone, first)
        second = np.minimum(other * (n_features - 1), n_features - 2).astype(np.intp)
        second += second >= first
        scale, scale_of_second = self.inner.scales(
            uniforms[:, n_features : n_features + 2]
        ).T
        scales = np.zeros((len(uniforms), n_features))
        scales[order == 2] = scale[order == 2, np.newaxis]
        nonzero = (order < 2, first, scale), (order == 1, second, scale_of_second)
        for chosen, columns, own in nonzero:
            scales[rows[chosen], columns[chosen]] = root * own[chosen]
        return scales

    def coordinates(self, uniforms: FloatArray) -> FloatArray:
        return self.inner.coordinates(uniforms)

    def characteristic(self, t: FloatArray) -> FloatArray:
        return self.inner.characteristic(t)


@frozen
class ProductMeasure:
    """Frequencies whose coordinates are independent and follow one distribution."""

    #: inverse distribution function of a coordinate
    quantile: Callable[[FloatArray], FloatArray]
    #: its characteristic function, the kernel of one column
    kernel: Callable[[FloatArray], FloatArray]

    def n_uniforms(self, n_features: int) -> int:
        return n_features

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        return self.coordinates(uniforms[:, :n_features])

    def scales_of_columns(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        return np.ones((len(uniforms), n_features))

    def coordinates(self, uniforms: FloatArray) -> FloatArray:
        return np.asarray(self.quantile(uniforms))

    def characteristic(self, t: FloatArray) -> FloatArray:
        return self.kernel(t)
