"""What k-means passes share: centres, and exact sums of the rows nearest to them.

Tile features go in, the numbers that a feature map makes before they are scaled to Z;
they are summed as integers, multiples of a grid's unit. Sums of blocks and workers are
added by `+`, in any order to the same bits. Sums of float64 would depend on the order,
and centres that stay would seem to move.
"""

from __future__ import annotations

import math

import numpy as np

from rff_dist.errors import StatisticsError
from rff_dist.features import fourier, maps
from rff_dist.numerics import exact_sums
from rff_dist.statistics import specs
from rff_dist.typing import EqualByFields, FloatArray, IntArray, frozen


@frozen
class ClusterGrid:
    """The units of the integers in exact sums over clusters.

    Weights are in units of u = 2**(weight_exponent − fraction_bits), tile features in
    units of u times 2**exponent.
    """

    fraction_bits: int
    #: No weight is above 2**weight_exponent.
    weight_exponent: int = 0
    #: Pairs (number of components, exponent), for consecutive components. No tile
    #: feature is above 2**exponent. () means an exponent of 0 for all.
    exponents: exact_sums.Runs = ()

    def bounds(self, n_components: int) -> FloatArray:
        """Return for each component a power of two, which none of its tile features
        exceeds, shape (n_components,).
        """
        return (
            np.exp2(exact_sums.expand(self.exponents))
            if self.exponents
            else np.ones(n_components)
        )


def fraction_bits_for(n_samples: int) -> int:
    """Return the fraction bits of the finest grid on which a sum of `n_samples` rows
    fits in an int64.

    These are 39 bits up to 2**23 rows. Beyond that, each doubling of the rows takes one
    bit; a mean over so many rows is precise all the same.
    """
    # No more than FRACTION_BITS, so that a float64 sum of a tile's rows stays exact.
    # The sum of rows that all have 1 must fit into the LIMB_BITS of an int64.
    return min(
        specs.FRACTION_BITS,
        specs.LIMB_BITS - max(0, math.ceil(math.log2(max(1, n_samples)))),
    )


@frozen(eq=False)
class ClusterState:
    """The state of a pass, which all its blocks share: centres to compare rows with."""

    feature_map: maps.FeatureMap
    #: Of each start, in Z; shape (n_init, n_clusters, n_components).
    centres: FloatArray
    grid: ClusterGrid


@frozen(eq=False)
class ClusterSums(EqualByFields):
    """Exact sums of the rows nearest to each centre; `+` joins two sets of rows."""

    #: Number of rows summed.
    n_samples: int
    #: Weighted sums of tile features, in units of u · 2**exponent, see `ClusterGrid`;
    #: shape (n_init, n_clusters, n_components).
    features: IntArray
    #: Sums of weights, in units of u; shape (n_init, n_clusters).
    weights: IntArray
    #: Weighted sum of ‖z‖², in units of u · `largest_squared_norm`; 0 if not wanted.
    squared_norms: int

    def __add__(self, other: ClusterSums) -> ClusterSums:
        if self.features.shape != other.features.shape:
            raise StatisticsError(
                f"cannot add sums over clusters of shape {self.features.shape} and"
                f" {other.features.shape}"
            )
        return exact_sums.add_fields(self, other)

    def means(self, state: ClusterState) -> FloatArray:
        """Return the mean row of each cluster in Z; an empty cluster keeps its
        centre.
        """
        # `features / weights` is in units of `bounds`: u is in both sums, and cancels
        to_z = factors_of(state.feature_map) * state.grid.bounds(
            state.feature_map.n_components
        )
        filled = self.weights > 0
        means = state.centres.copy()
        means[filled] = (
            self.features[filled] / self.weights[filled][:, np.newaxis] * to_z
        )
        return means

    def cluster_weights(self, grid: ClusterGrid) -> FloatArray:
        """Return the sum of weights of each cluster, shape (n_init, n_clusters)."""
        return np.ldexp(
            self.weights.astype(np.float64), grid.weight_exponent - grid.fraction_bits
        )

    def sum_of_squared_norms(self, state: ClusterState) -> float:
        """Return Σ w·‖z‖² of all rows."""
        grid = state.grid
        unit = 2.0 ** (grid.weight_exponent - grid.fraction_bits)
        return self.squared_norms * unit * largest_squared_norm(state.feature_map, grid)

    def inertias(self, state: ClusterState, sum_of_squared_norms: float) -> FloatArray:
        """Return Σ w·‖z − c‖² of each start; 0 if rounding makes it negative.

        Computed from sums only: Σ w·‖z‖² − Σ_c w_c·c·(2·mean_c − c), with an error of
        about 1e-16 of the first term. That term is the same for all passes, so only one
        pass sums it.
        """
        weights = self.cluster_weights(state.grid)
        products = np.einsum(
            "ijk,ijk->ij", state.centres, 2.0 * self.means(state) - state.centres
        )
        inertias = sum_of_squared_norms - (weights * products).sum(axis=1)
        return np.asarray(np.maximum(inertias, 0.0))


def factors_of(feature_map: maps.FeatureMap) -> FloatArray:
    """Return the factors that turn tile features into Z: 1 for a whitened map."""
    if feature_map.whitener is not None:
        return np.ones(feature_map.n_components)
    return exact_sums.expand(feature_map.scales)


def has_whole_features(feature_map: maps.FeatureMap) -> bool:
    """Return whether all features of a map are whole multiples of one unit.

    In the map of a sum of kernels, components have different units.
    """
    is_fourier = isinstance(feature_map, fourier.FourierFeatureMap)
    return is_fourier and feature_map.fixed_point


def largest_squared_norm(feature_map: maps.FeatureMap, grid: ClusterGrid) -> float:
    """Return an upper bound on ‖z‖²."""
    factors = factors_of(feature_map)
    if feature_map.squared_norm is not None and np.ptp(factors) == 0:
        # all rows have this norm, up to rounding
        norm = float(feature_map.squared_norm * factors[0] ** 2)
        return norm * (1.0 + feature_map.squared_norm_error)
    return float(np.square(factors * grid.bounds(feature_map.n_components)).sum())
