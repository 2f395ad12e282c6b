"""Spectral measures: which law the frequencies follow, as a map from uniform numbers to frequencies.

Bochner's theorem ties a measure to its kernel. A measure never draws by itself: a design hands it uniform
numbers, independent or arranged, and each frequency follows the measure exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy

from rff_dist.typing import FloatArray


class SpectralMeasure(Protocol):
    """The law of a kernel's frequencies, for unit length scales."""

    def n_uniforms(self, n_features: int) -> int:
        """Return how many uniform numbers make one frequency."""

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        """Return frequencies of shape (n, n_features) from uniforms of shape (n, n_uniforms)."""


@dataclass(frozen=True, slots=True)
class GaussianMixture:
    """Frequencies s·g with g ~ N(0, I) and one random scale s per vector: the law of isotropic kernels.

    `scale_quantile`: inverse distribution function of s, from uniforms to scales; None means s = 1.
    """

    scale_quantile: Callable[[FloatArray], FloatArray] | None = None

    def scales(self, uniforms: FloatArray) -> FloatArray:
        return np.ones_like(uniforms) if self.scale_quantile is None else self.scale_quantile(uniforms)

    def n_uniforms(self, n_features: int) -> int:
        return n_features + (self.scale_quantile is not None)

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        normals = scipy.special.ndtri(uniforms[:, :n_features])
        if self.scale_quantile is None:
            return np.asarray(normals)
        return np.asarray(normals * self.scales(uniforms[:, n_features:]))


@dataclass(frozen=True, slots=True)
class ProductMeasure:
    """Frequencies whose coordinates are independent and follow one law.

    `quantile`: inverse distribution function of a coordinate.
    """

    quantile: Callable[[FloatArray], FloatArray]

    def n_uniforms(self, n_features: int) -> int:
        return n_features

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        return np.asarray(self.quantile(uniforms[:, :n_features]))


@dataclass(frozen=True, slots=True, eq=False)
class NormalMixture:
    """Frequencies μ_c + S_c·g with g ~ N(0, I) and a component c drawn by weight: a spectral mixture.

    `weights`: float64 array of shape (n_mixtures,). Above 0; their sum is 1.
    `means`: float64 array of shape (n_mixtures, n_features).
    `scales`: float64 array of shape (n_mixtures, n_features) or (n_mixtures, n_features, n_features).
      Standard deviations of independent coordinates, or matrices S_c of covariances S_c·S_c'.
    """

    weights: FloatArray
    means: FloatArray
    scales: FloatArray

    def n_uniforms(self, n_features: int) -> int:
        return n_features + (len(self.weights) > 1)

    def frequencies(self, uniforms: FloatArray, n_features: int) -> FloatArray:
        normals = scipy.special.ndtri(uniforms[:, :n_features])
        component = np.zeros(len(uniforms), np.int64)
        if len(self.weights) > 1:
            ends = np.cumsum(self.weights)[:-1]  # by rounding the last end may be below 1
            component = np.searchsorted(ends, uniforms[:, n_features], side="right")
        frequencies = self.means[component]
        if self.scales.ndim == 2:
            return np.asarray(frequencies + self.scales[component] * normals)
        for c, factor in enumerate(self.scales):
            chosen = component == c
            # not BLAS, which rounds by the number of rows: a longer draw would then begin with other bits
            frequencies[chosen] += np.einsum("nj,ij->ni", normals[chosen], factor)
        return frequencies
