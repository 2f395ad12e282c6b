"""What k-means passes are made of: the grid, centres, exact sums over clusters, and tiles of features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from rff_dist.data.blocks import Rows
from rff_dist.data.checks import check_finite
from rff_dist.errors import StatisticsError
from rff_dist.features.cosines import CosineFeatureMap
from rff_dist.features.feature_map import FeatureMap
from rff_dist.numerics.exact_sums import add_fields
from rff_dist.numerics.runs import Runs, expand
from rff_dist.numerics.threads import SpareMemory, executor_of, falling_tiles, share_out
from rff_dist.numerics.triangular import whiten_rows
from rff_dist.statistics.spec import FRACTION_BITS, LIMB_BITS
from rff_dist.typing import FloatArray, IntArray

EQUAL = 1e-12  # squared distances up to this share of the largest squared norm count as 0

_TILE_BYTES = 2**22  # limit for a tile's float64 features, and for its scores
_MIN_TILE_ROWS, _MAX_TILE_ROWS = 64, 2048
_LEAST_ROWS = 256  # rows of the smallest tiles, unless D or the number of centres is very large
_PANEL_ROWS = 64  # tiles have a multiple of this many rows


@dataclass(frozen=True, slots=True)
class ClusterGrid:
    """The unit of the integers in exact sums over clusters.

    `fraction_bits`: the unit is 2**-fraction_bits times the largest weight times the largest feature.
    `weight_exponent`: no weight is above 2**weight_exponent.
    `exponents`: runs of (components, exponent). No tile feature is above 2**exponent; () means 0 for all.
    """

    fraction_bits: int
    weight_exponent: int = 0
    exponents: Runs = ()

    def units(self, n_components: int) -> FloatArray:
        """Return the power of two that bounds each component, shape (n_components,)."""
        return np.exp2(expand(self.exponents)) if self.exponents else np.ones(n_components)

    def counts_of(self, sample_weight: FloatArray | None, n_samples: int) -> IntArray:
        """Return the rows' weights in units of the grid, shape (n_samples,); 1 for rows without weights."""
        weights = self.scaled(sample_weight, n_samples)
        return np.rint(np.ldexp(weights, self.fraction_bits)).astype(np.int64)

    def scaled(self, sample_weight: FloatArray | None, n_samples: int) -> FloatArray:
        """Return the weights scaled to at most 1; ones if rows have no weights."""
        if sample_weight is None:
            return np.ones(n_samples)
        return np.ldexp(sample_weight, -self.weight_exponent)


def fraction_bits_for(n_samples: int) -> int:
    """Return the finest grid on which a sum of `n_samples` rows fits in an int64: 39 bits up to 2**23 rows.

    Beyond that, each doubling of the rows takes one bit; averaging over so many rows gains more.
    """
    # with FRACTION_BITS a float64 sum of a tile's rows is exact
    return min(FRACTION_BITS, LIMB_BITS - max(0, math.ceil(math.log2(max(1, n_samples)))))


@dataclass(frozen=True, slots=True, eq=False)
class Centres:
    """The state of a pass that compares rows with centres.

    `values`: float64 array of shape (n_init, n_clusters, n_components). Each start's centres in Z.
    `counts`: number of centres of each start. Entries of `values` beyond it are 0, and no row is assigned to
      them. () means that all starts have n_clusters.
    """

    feature_map: FeatureMap
    values: FloatArray
    grid: ClusterGrid
    counts: tuple[int, ...] = ()

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether each entry of `values` is a centre, shape (n_init, n_clusters)."""
        n_init, n_clusters, _ = self.values.shape
        counts = np.array(self.counts or (n_clusters,) * n_init)
        return np.asarray(np.arange(n_clusters) < counts[:, np.newaxis])


@dataclass(frozen=True, slots=True, eq=False)
class ClusterSums:
    """Exact sums of the rows nearest to each centre; `+` joins two sets of rows.

    `n_samples`: rows counted.
    `features`: int64 array of shape (n_init, n_clusters, n_components). Weighted sums of tile features, in
      the grid's units.
    `weights`: int64 array of shape (n_init, n_clusters). Sums of weights, in the grid's units.
    `squared_norms`: weighted sum of ‖z‖², in units of the grid times `largest_squared_norm`; 0 if not wanted.
    """

    n_samples: int
    features: IntArray
    weights: IntArray
    squared_norms: int

    def __add__(self, other: ClusterSums) -> ClusterSums:
        if self.features.shape != other.features.shape:
            raise StatisticsError(
                f"cannot add sums over clusters of shape {self.features.shape} and {other.features.shape}"
            )
        return add_fields(self, other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClusterSums):
            return NotImplemented
        same = (self.n_samples, self.squared_norms) == (other.n_samples, other.squared_norms)
        same = same and np.array_equal(self.features, other.features)
        return same and np.array_equal(self.weights, other.weights)

    __hash__ = None  # type: ignore[assignment]

    def means(self, state: Centres) -> FloatArray:
        """Return the mean row of each cluster in Z; an empty cluster keeps its former centre."""
        to_z = factors_of(state.feature_map) * state.grid.units(state.feature_map.n_components)
        filled = self.weights > 0
        means = state.values.copy()
        means[filled] = self.features[filled] / self.weights[filled][:, np.newaxis] * to_z
        return means

    def cluster_weights(self, grid: ClusterGrid) -> FloatArray:
        """Return the sum of weights of each cluster, shape (n_init, n_clusters)."""
        return np.ldexp(self.weights.astype(np.float64), grid.weight_exponent - grid.fraction_bits)

    def sum_of_squared_norms(self, state: Centres) -> float:
        """Return Σ w·‖z‖² of all rows."""
        grid = state.grid
        unit = 2.0 ** (grid.weight_exponent - grid.fraction_bits)
        return self.squared_norms * unit * largest_squared_norm(state.feature_map, grid)

    def inertias(self, state: Centres, sum_of_squared_norms: float) -> FloatArray:
        """Return Σ w·‖z − c‖² of each start, shape (n_init,); 0 if rounding makes it negative.

        Computed from sums only, as Σ w·‖z‖² − Σ_j w_j·(2·c_j·mean_j − ‖c_j‖²), with an error of about 1e-16
        of the first term.
        """
        weights = self.cluster_weights(state.grid)
        products = np.einsum("ijk,ijk->ij", state.values, 2.0 * self.means(state) - state.values)
        left = sum_of_squared_norms - (weights * products).sum(axis=1)
        return np.asarray(np.maximum(left, 0.0))


def factors_of(feature_map: FeatureMap) -> FloatArray:
    """Return the factors that turn tile features into Z: ones for a whitened map, whose tiles hold Z."""
    if feature_map.whitener is not None:
        return np.ones(feature_map.n_components)
    return expand(feature_map.scales)


def fixed_point_map(feature_map: FeatureMap) -> CosineFeatureMap | None:
    """Return the map if all its features are whole multiples of one unit, else None."""
    if isinstance(feature_map, CosineFeatureMap) and feature_map.fixed_point:
        return feature_map
    return None  # in the map of a sum of kernels, components have different units


def largest_squared_norm(feature_map: FeatureMap, grid: ClusterGrid) -> float:
    """Return an upper bound on ‖z‖²."""
    factors = factors_of(feature_map)
    if feature_map.squared_norm is not None and np.ptp(factors) == 0:
        norm = float(feature_map.squared_norm * factors[0] ** 2)  # of every row, but for rounding
        return norm * (1.0 + feature_map.squared_norm_error)
    return float(np.square(factors * grid.units(feature_map.n_components)).sum())


def tile_rows(n_components: int, n_columns: int) -> int:
    """Return the largest number of rows of a tile: a power of two, fixed by D and the number of centres."""
    rows = _TILE_BYTES // (8 * max(n_components, n_columns))
    return int(min(_MAX_TILE_ROWS, max(_MIN_TILE_ROWS, 2 ** int(math.log2(max(1, rows))))))


def visit_tiles(
    rows: Rows,
    feature_map: FeatureMap,
    visit: Callable[[int, NDArray[Any]], None],
    *,
    n_columns: int = 1,
    chosen: NDArray[np.intp] | None = None,
    whole: bool = False,
) -> None:
    """Call `visit(first row, features)` with each tile of a block; threads share the tiles.

    Features have shape (n_rows, n_components), and are unnormalised, or Z for a whitened map. They are
    float64, or with `whole` the int16 numbers of a `fixed_point_map`. Their memory is reused after `visit`
    has returned. With `chosen`, only these rows of the block are visited, and `first row` counts among them.
    Tiles are padded to multiples of 64 rows: BLAS rounds differently at the edges of other tiles, and a row's
    features would depend on the rows beside it.

    Raises DataError if X has the wrong number of columns, or holds NaN or infinity.
    """
    inputs = feature_map.prepare(rows.X)
    check_finite(replace(rows, y=None), inputs)
    if chosen is not None:
        inputs = inputs[chosen]
    D = feature_map.n_components
    most = tile_rows(D, n_columns)
    tiles = falling_tiles(len(inputs), most, multiple=_PANEL_ROWS, least=min(most, _LEAST_ROWS))
    whitener, scales = feature_map.whitener, expand(feature_map.scales)
    fixed, dtype = (fixed_point_map(feature_map), np.int16) if whole else (None, np.float64)
    spare = SpareMemory()

    def work(here: slice) -> None:
        tile = inputs[here]
        n_rows = len(tile)
        if n_rows % _PANEL_ROWS:
            tile = np.concatenate([tile, np.repeat(tile[-1:], -n_rows % _PANEL_ROWS, axis=0)])
        buffer = spare.take(len(tile) * D, dtype)
        features = buffer[: len(tile) * D].reshape(len(tile), D)
        with np.errstate(over="ignore", invalid="ignore"):  # scorers refuse features that are not finite
            if fixed is not None:
                fixed.fill_whole(tile, features)
            else:
                feature_map.fill_lines(tile, features)
            if whitener is not None:
                features *= scales
                whiten_rows(features, whitener, executor_of(1))  # threads share tiles already
        visit(here.start, features[:n_rows])
        spare.give(buffer)

    share_out(work, tiles)


def members_of(labels: NDArray[np.intp], n_clusters: int) -> scipy.sparse.csr_array:
    """Return ones where a row belongs to a cluster of a start, shape (n_init · n_clusters, n_rows).

    `labels`: int array of shape (n_init, n_rows).
    """
    n_init, n_rows = labels.shape
    columns = (labels + n_clusters * np.arange(n_init)[:, np.newaxis]).ravel()
    order = np.argsort(columns, kind="stable") % n_rows
    ends = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=n_init * n_clusters))])
    ones = np.ones(len(order), np.int32)
    return scipy.sparse.csr_array((ones, order, ends), shape=(n_init * n_clusters, n_rows))
