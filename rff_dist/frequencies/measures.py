"""Spectral measures: which distribution the frequencies of a kernel follow.

Uniform numbers go in, and frequencies for unit length scales come out. Bochner's
theorem ties a measure to its kernel. A measure never draws numbers: a design gives it
uniform numbers, independent or arranged, and each frequency follows the measure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import scipy

# parameters called `uniforms` hide the module
from rff_dist.frequencies.uniforms import pick
from rff_dist.typing import FloatArray, frozen


class SpectralMeasure(Protocol):
    """The distribution of a kernel's frequencies, for unit length scales."""

    def n_uniforms(self, n_features: int) -> int:
        """Return how many uniform numbers make one frequency."""

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        """Return frequencies, shape (n, n_features), from (n, n_uniforms) uniforms."""


class CoordinateMeasure(SpectralMeasure, Protocol):
    """A distribution whose coordinates are scales times independent numbers.

    The numbers follow one distribution. Kernels of categories need such a measure.
    """

    def scales_of_columns(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        """Return the scale of each coordinate of `frequencies`, shape (n, n_features).

        A coordinate is its scale times `coordinates` of a uniform.
        """

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        scales = self.scales_of_columns(uniforms, n_features)
        return scales * self.coordinates(uniforms[:, :n_features])

    def coordinates(self, uniforms: FloatArray) -> FloatArray:
        """Return coordinates of scale 1 from uniforms."""

    def characteristic(self, t: FloatArray) -> FloatArray:
        """Return E cos(t·ω) of a coordinate ω of scale 1."""


@frozen
class GaussianMixture(CoordinateMeasure):
    """Frequencies s·g of isotropic kernels, each with its g ~ N(0, I) and random s."""

    #: Inverse distribution function of s, from uniforms to scales; None means s = 1.
    scale_quantile: Callable[[FloatArray], FloatArray] | None = None

    def scales(self, uniforms: FloatArray) -> FloatArray:
        if self.scale_quantile is None:
            return np.ones_like(uniforms)
        return self.scale_quantile(uniforms)

    @property
    def has_scale(self) -> bool:
        """Whether s takes a uniform of its own."""
        return self.scale_quantile is not None

    def n_uniforms(self, n_features: int) -> int:
        return n_features + self.has_scale

    def scales_of_columns(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        scales: FloatArray = np.ones((len(uniforms), 1))
        if self.has_scale:
            scales = self.scales(uniforms[:, n_features:])
        return np.broadcast_to(scales, (len(uniforms), n_features))

    def coordinates(self, uniforms: FloatArray) -> FloatArray:
        return np.asarray(scipy.special.ndtri(uniforms))

    def characteristic(self, t: FloatArray) -> FloatArray:
        return np.exp(-0.5 * t**2)


@frozen
class FewColumns(CoordinateMeasure):
    """Frequencies of additive kernels: each has one column, two columns or all.

    Frequencies of one or two columns are √n_features times as large, and each column's
    scale is independent.
    """

    #: The distribution of frequencies of all columns; its coordinates serve single
    #: columns too.
    inner: GaussianMixture
    #: Probabilities of one column, two, and all; their sum is 1. With a single column
    #: in the data, all frequencies are of all columns.
    weights: tuple[float, ...]
    #: Probability of each column for frequencies of one column; None if they are equal.
    column_shares: tuple[float, ...] | None = None

    def n_uniforms(self, n_features: int) -> int:
        # the second column takes a scale of its own, and three numbers decide how many
        # columns and which
        return self.inner.n_uniforms(n_features) + self.inner.has_scale + 3

    def scales_of_columns(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        if n_features == 1:
            of_column = uniforms[:, : self.inner.n_uniforms(1)]
            return self.inner.scales_of_columns(of_column, 1)
        rows = np.arange(len(uniforms))
        n_columns, first_place, second_place = uniforms[:, -3:].T
        order = pick(np.array(self.weights), n_columns)
        is_single = order == 0
        is_pair = order == 1
        is_dense = order == 2
        # The first column is one of all, the second one of the others. A product may
        # round up to the number of columns, which is no index.
        first = np.minimum(first_place * n_features, n_features - 1).astype(np.intp)
        if self.column_shares is not None:
            alone = pick(np.array(self.column_shares), first_place)
            first = np.where(is_single, alone, first)
        others = n_features - 1
        second = np.minimum(second_place * others, others - 1).astype(np.intp)
        second += second >= first

        numbers_of_scales = uniforms[:, n_features : n_features + 2]
        first_scale, second_scale = self.inner.scales(numbers_of_scales).T
        root = np.sqrt(n_features)
        scales = np.zeros((len(uniforms), n_features))
        scales[is_dense] = first_scale[is_dense, np.newaxis]
        has_first = is_single | is_pair
        scales[rows[has_first], first[has_first]] = root * first_scale[has_first]
        scales[rows[is_pair], second[is_pair]] = root * second_scale[is_pair]
        return scales

    def coordinates(self, uniforms: FloatArray) -> FloatArray:
        return self.inner.coordinates(uniforms)

    def characteristic(self, t: FloatArray) -> FloatArray:
        return self.inner.characteristic(t)


@frozen
class ProductMeasure(CoordinateMeasure):
    """Frequencies whose coordinates are independent and follow one distribution."""

    #: Inverse distribution function of a coordinate.
    quantile: Callable[[FloatArray], FloatArray]
    #: The coordinate's characteristic function, the kernel of one column.
    kernel: Callable[[FloatArray], FloatArray]

    def n_uniforms(self, n_features: int) -> int:
        return n_features

    def scales_of_columns(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        return np.ones((len(uniforms), n_features))

    def coordinates(self, uniforms: FloatArray) -> FloatArray:
        return self.quantile(uniforms)

    def characteristic(self, t: FloatArray) -> FloatArray:
        return self.kernel(t)
