"""Designs: how the frequencies of a kernel are arranged.

A spectral measure, the distribution of frequencies, and a `Draw` go in; frequencies
come out, and each follows the measure exactly. Independent draws are the simple
version; other designs cover the measure more evenly, and so estimate the kernel with
less variance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import scipy

from rff_dist.checks import check_name
from rff_dist.errors import InvalidParameterError
from rff_dist.frequencies import uniforms
from rff_dist.frequencies.measures import (
    CoordinateMeasure,
    GaussianMixture,
    SpectralMeasure,
)
from rff_dist.typing import FloatArray, frozen


@frozen
class Draw:
    """Which frequencies are drawn: their design, number and random numbers."""

    design: Design
    n_features: int
    n_frequencies: int
    seed: int
    #: Number of the first uniform. Draws that share no uniforms are independent;
    #: `SpectralMeasure.n_uniforms` says how many each takes.
    first: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_features, self.n_frequencies

    def independent_uniforms(
        self, stream: int, n_rows: int, n_columns: int
    ) -> FloatArray:
        """Return uniforms that are independent of those of other streams and draws."""
        stream += uniforms.STREAMS * self.first
        return uniforms.counter_uniforms(self.seed, stream, n_rows, n_columns)


class Design(ABC):
    """How draws from a spectral measure are arranged.

    Methods raise InvalidParameterError if the design does not suit the measure.
    """

    #: The name that the estimators and the command line use.
    name: ClassVar[str]

    @abstractmethod
    def frequencies(self, measure: SpectralMeasure, draw: Draw) -> FloatArray:
        """Return frequencies of the draw's shape, for a unit length scale."""

    @abstractmethod
    def scales(self, measure: CoordinateMeasure, draw: Draw) -> FloatArray:
        """Return the scales of the coordinates; see `CoordinateMeasure`."""


class _ByUniforms(Design):
    """A design that gives the measure all uniforms of each frequency."""

    @abstractmethod
    def numbers(self, measure: SpectralMeasure, draw: Draw) -> FloatArray:
        """Return the uniforms of a draw, shape (n_frequencies, n_uniforms)."""

    def frequencies(self, measure: SpectralMeasure, draw: Draw) -> FloatArray:
        drawn = measure.frequencies(self.numbers(measure, draw), draw.n_features)
        return np.ascontiguousarray(drawn.T)

    def scales(self, measure: CoordinateMeasure, draw: Draw) -> FloatArray:
        numbers = self.numbers(measure, draw)
        return measure.scales_of_columns(numbers, draw.n_features).T


@frozen
class IID(_ByUniforms):
    """Independent draws (Rahimi & Recht 2007, Alg. 1): right for every measure."""

    name = "iid"

    def numbers(self, measure: SpectralMeasure, draw: Draw) -> FloatArray:
        numbers = draw.independent_uniforms(
            uniforms.FREQUENCY_STREAM, draw.n_frequencies, draw.n_features
        )
        n_more = measure.n_uniforms(draw.n_features) - draw.n_features
        if n_more <= 0:
            return numbers
        # column 0 is for lengths of orthogonal designs, and the others for scales, see
        # `_radius_numbers`
        further = draw.independent_uniforms(
            uniforms.RADIUS_STREAM, draw.n_frequencies, 1 + n_more
        )
        return np.hstack([numbers, further[:, 1:]])


@frozen
class Orthogonal(Design):
    """Blocks of `n_features` orthogonal directions with independent radii.

    Every frequency keeps its exact marginal distribution, and the kernel estimate has
    less variance: the best choice for isotropic kernels. O(n_frequencies *
    n_features**2).

    Source: Yu et al. (2016), Sec. 3.
    """

    name = "orthogonal"

    def frequencies(self, measure: SpectralMeasure, draw: Draw) -> FloatArray:
        if not isinstance(measure, GaussianMixture):
            raise not_isotropic()
        n_features, n_frequencies = draw.shape
        # whole blocks, cut at the end, so that a longer draw begins with the same
        # frequencies
        n_blocks = -(-n_frequencies // n_features)
        numbers = draw.independent_uniforms(
            uniforms.FREQUENCY_STREAM, n_blocks * n_features, n_features
        )
        normals = scipy.special.ndtri(numbers)
        # shape (n_blocks, n_features, n_features): a column is a direction
        directions = _haar_columns(normals.reshape(n_blocks, n_features, n_features))
        columns = directions.transpose(1, 0, 2).reshape(n_features, -1)
        radii = _radii(measure, draw)
        return np.ascontiguousarray(columns[:, :n_frequencies] * radii)

    def scales(self, measure: CoordinateMeasure, draw: Draw) -> FloatArray:
        if not isinstance(measure, GaussianMixture):
            raise not_isotropic()
        numbers = _radius_numbers(draw)
        return np.broadcast_to(measure.scales(numbers[:, 1]), draw.shape)


@frozen
class QuasiMonteCarlo(_ByUniforms):
    """Scrambled Sobol points through the inverse distribution functions.

    Every frequency keeps its exact distribution, and together they cover it more evenly
    than independent draws: the variance falls faster, most of all with few columns. A
    measure may take up to 21,201 uniform numbers, the dimensions of the sequence. Best
    if the number of frequencies is a power of two.

    Source: Avron et al. (2016).
    """

    name = "quasi-monte-carlo"

    def numbers(self, measure: SpectralMeasure, draw: Draw) -> FloatArray:
        n_dimensions = measure.n_uniforms(draw.n_features)
        return uniforms.scrambled_sobol(
            draw.seed, draw.first, draw.n_frequencies, n_dimensions
        )


def not_isotropic() -> InvalidParameterError:
    """Return the error to raise when a kernel cannot take the orthogonal design."""
    return InvalidParameterError(
        "the orthogonal design needs an isotropic kernel: a rotation would change the"
        " distribution of this kernel's frequencies; use design='iid' or"
        " 'quasi-monte-carlo'"
    )


def _radii(measure: GaussianMixture, draw: Draw) -> FloatArray:
    """Return lengths of frequencies: a normal vector's, times the measure's scale."""
    numbers = _radius_numbers(draw)
    # half the square of a normal vector's length follows Gamma(n_features / 2)
    squares = scipy.special.gammaincinv(draw.n_features / 2, numbers[:, 0])
    return np.asarray(np.sqrt(2 * squares) * measure.scales(numbers[:, 1]))


def _radius_numbers(draw: Draw) -> FloatArray:
    """Return uniforms for the length and the scale of each frequency."""
    return draw.independent_uniforms(uniforms.RADIUS_STREAM, draw.n_frequencies, 2)


def _haar_columns(normals: FloatArray) -> FloatArray:
    """Like `scipy.stats.ortho_group`, one matrix per matrix of normals.

    Source: Mezzadri (2007), Sec. 5.
    """
    q, r = np.linalg.qr(normals)
    # QR alone is not Haar: its signs are biased
    signs = np.where(np.diagonal(r, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
    return q * signs[..., np.newaxis, :]


DESIGNS: dict[str, Design] = {
    design.name: design for design in (IID(), Orthogonal(), QuasiMonteCarlo())
}


def find_design(design: str | Design) -> Design:
    """Return the design of that name, or the object itself.

    Raises InvalidParameterError, with near names, if there is none.
    """
    if isinstance(design, Design):
        return design
    check_name(design, DESIGNS, "design", also=", 'auto' or an object")
    return DESIGNS[design]
