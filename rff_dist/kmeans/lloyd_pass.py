"""K-means in features, one block of rows at a time: pure NumPy, no Dask and no Zarr.

A Lloyd pass makes the features of a tile, finds each row's nearest centre by one
product with the centres of all starts, and sums the rows of each cluster as integers.
So the sums have the same bits in any order. If no label changes, the sums do not change
either, and centres that stay are equal to the bit.

References
----------
Lloyd (1982), Least squares quantization in PCM.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from rff_dist.data import blocks
from rff_dist.errors import StatisticsError
from rff_dist.features import fourier, maps
from rff_dist.numerics import exact_sums, machine, triangular
from rff_dist.products import protocol
from rff_dist.statistics import specs
from rff_dist.typing import (
    EPS,
    AnyArray,
    EqualByFields,
    Float32Array,
    FloatArray,
    IndexArray,
    IntArray,
    frozen,
)

# all float64 products have this height, since their rounding depends on their shape
_PANEL_ROWS = 64
_SCORED_ROWS = 512  # rows scored at a time, so that their scores stay in the cache


# -- scores
# --------------------------------------------------------------------------------------


def pass_bytes(n_components: int, n_columns: int, *, n_threads: int) -> int:
    """Return the peak bytes of a Lloyd pass in one process, without a block's inputs.

    `n_columns` is the number of centres in all starts together.
    """
    sums = 8 * n_columns * (n_components + 1)
    tile = (
        tile_rows(n_components, n_columns) * 8 * (3 * n_components + 2 * n_columns)
        + sums
    )
    # the sums of the worker, of a run and of a block, and the result of adding two of
    # them
    held = 4
    copies_of_centres = 3  # as given, as the scorer's matrix, and pickled
    return sums * (held + copies_of_centres) + n_threads * tile


class Scorer(ABC):
    """Compares a tile's rows with the centres of all starts.

    The nearest centre is the one with the largest affinity z·c − ‖c‖²/2, since ‖z − c‖²
    = ‖z‖² − 2·affinity.
    """

    #: Whether it takes the int16 features of `visit_tiles`.
    is_whole: ClassVar[bool]

    def __init__(self, state: Centres, centres: FloatArray, unit: float) -> None:
        """Take centres, of shape (n_init, n_clusters, n_components), in this unit."""
        self._feature_map = state.feature_map
        self.n_init, self.n_clusters, n_components = centres.shape
        self._centres = centres.reshape(-1, n_components)
        self._halves = np.square(self._centres).sum(axis=1) / 2.0
        half = float(self._halves.max())
        norm = largest_squared_norm(state.feature_map, state.grid)
        # no affinity is larger
        self._reach = math.sqrt(2.0 * half * norm) / unit + half

    def visit(self, rows: blocks.Rows, visit: Callable[[int, AnyArray], None]) -> None:
        """Call `visit_tiles` with features of this kind, in tiles of fitting height."""
        visit_tiles(
            rows,
            self._feature_map,
            visit,
            n_columns=self.n_init * self.n_clusters,
            is_whole=self.is_whole,
        )

    def labels(self, features: AnyArray) -> IndexArray:
        """Return the index of each row's nearest centre in each start, shape (n_init,
        n_rows).

        Of centres that are equally near, or that differ by rounding only, the first is
        taken. A row's labels do not depend on the other rows.

        `features`: array of shape (n_rows, n_components). From `visit_tiles`.
        Raises DataError if features overflow.
        """
        labels = np.empty((self.n_init, len(features)), np.intp)
        for first in range(0, len(features), _SCORED_ROWS):
            part = features[first : first + _SCORED_ROWS]
            affinities = self._affinities(part)
            for start in range(self.n_init):
                here = slice(start * self.n_clusters, (start + 1) * self.n_clusters)
                labels[start, first : first + len(part)] = self._largest(
                    affinities[:, here], part, here
                )
        return labels

    @abstractmethod
    def _affinities(self, features: AnyArray) -> FloatArray | Float32Array:
        """Return affinities, shape (n_rows, n_init · n_clusters)."""

    @abstractmethod
    def _largest(
        self, affinities: AnyArray, features: AnyArray, centres: slice
    ) -> IndexArray:
        """Return which of a start's centres has each row's largest affinity."""

    @abstractmethod
    def squared_distances(self, features: AnyArray, labels: IndexArray) -> FloatArray:
        """Return ‖z − c‖² between each row and its labelled centre of the first start,
        shape (n_rows,).

        It is exactly 0 if the centre is the row. A row's result does not depend on the
        other rows.
        """


class WholeScorer(Scorer):
    """Compares features that are whole numbers exactly, with centres rounded to whole
    numbers.

    Products in float32 rule out most centres, in half the time of float64. Rows whose
    two nearest centres they cannot tell apart are compared again in float64, where
    products of whole numbers have no error.
    """

    is_whole = True

    def __init__(self, state: Centres) -> None:
        n_components = state.values.shape[2]
        # the same for all components
        unit = 2.0**-protocol.FIXED_POINT_BITS * factors_of(state.feature_map)[0]
        self._squared_unit = unit**2
        whole = np.rint(state.values / unit).clip(
            -protocol.COSINE_ONE, protocol.COSINE_ONE
        )
        super().__init__(state, whole, unit)
        # Bounds the error of a sum of D products in float32, in any order (Higham 2002,
        # Sec. 3.1); 2 for the two scores that are compared.
        self._tolerance = 2.0 * (1.01 * n_components + 4) * 2.0**-24 * self._reach
        self._narrow = (
            self._centres.T.astype(np.float32),
            self._halves.astype(np.float32),
        )

    def _affinities(self, features: NDArray[np.int16]) -> Float32Array:
        affinities: Float32Array = features.astype(np.float32) @ self._narrow[0]
        affinities -= self._narrow[1]
        return affinities

    def _largest(
        self, affinities: Float32Array, features: NDArray[np.int16], centres: slice
    ) -> IndexArray:
        rows = np.arange(len(features))
        best = affinities.argmax(axis=1)
        largest = affinities[rows, best]
        affinities[rows, best] = -np.inf
        close = np.flatnonzero(affinities.max(axis=1) >= largest - self._tolerance)
        if len(close):
            # whole numbers up to 2²⁸·D, which float64 adds without rounding
            exact = features[close].astype(np.float64) @ self._centres[centres].T
            best[close] = (exact - self._halves[centres]).argmax(axis=1)
        return best

    def squared_distances(
        self, features: NDArray[np.int16], labels: IndexArray
    ) -> FloatArray:
        off = features - self._centres[labels]
        return np.asarray(self._squared_unit * np.einsum("ij,ij->i", off, off))


class FloatScorer(Scorer):
    """Compares float64 features with unrounded centres."""

    is_whole = False

    def __init__(self, state: Centres) -> None:
        super().__init__(state, state.values, 1.0)
        n_components = state.values.shape[2]
        self._factors = factors_of(state.feature_map)
        self._weights = np.ascontiguousarray((self._factors * self._centres).T)
        # Sums of D rounded products err by about √D roundings of their largest possible
        # value (Higham & Mary 2019 on why √D); 2 for the two scores that are compared.
        self._tolerance = 2.0 * math.sqrt(n_components) * EPS * self._reach

    def _largest(
        self, affinities: FloatArray, features: FloatArray, centres: slice
    ) -> IndexArray:
        largest = affinities.max(axis=1, keepdims=True)
        return np.asarray((affinities >= largest - self._tolerance).argmax(axis=1))

    def squared_distances(self, features: FloatArray, labels: IndexArray) -> FloatArray:
        off = features * self._factors - self._centres[labels]
        return np.asarray(np.einsum("ij,ij->i", off, off))

    def all_squared_distances(self, features: FloatArray) -> FloatArray:
        """Return ‖z − c‖² for the first start's centres, shape (n_rows, n_clusters), at
        least 0.

        A row's result does not depend on the other rows.
        """
        distances = -2.0 * self._affinities(features)[:, : self.n_clusters]
        distances += np.einsum(
            "ij,ij,j->i", features, features, np.square(self._factors)
        )[:, np.newaxis]
        return np.maximum(distances, 0.0, out=distances)

    def _affinities(self, features: FloatArray) -> FloatArray:
        """Compute affinities in panels of equal height, since a product's rounding
        depends on its shape.
        """
        n_rows, n_components = features.shape
        missing = -n_rows % _PANEL_ROWS
        if missing:
            features = np.concatenate([features, np.zeros((missing, n_components))])
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            products = features.reshape(-1, _PANEL_ROWS, n_components) @ self._weights
        affinities: FloatArray = products.reshape(len(features), -1)[:n_rows]
        # a feature that is not finite spoils all scores of its row, so one column is
        # enough
        if not np.isfinite(affinities[:, 0]).all():
            raise maps.overflow()
        affinities -= self._halves
        return affinities


def nearest_squared_distances(rows: blocks.Rows, points: Centres) -> FloatArray:
    """Return ‖z − c‖² between each row and the nearest point."""
    scorer = scorer_of(points)
    distances = np.empty(rows.block.n_samples)

    def compare(first: int, features: AnyArray) -> None:
        for i in range(0, len(features), _SCORED_ROWS):
            part = features[i : i + _SCORED_ROWS]
            nearest = scorer.labels(part)[0]
            here = slice(first + i, first + i + len(part))
            distances[here] = scorer.squared_distances(part, nearest)

    scorer.visit(rows, compare)
    return distances


@lru_cache(maxsize=1)
def scorer_of(state: Centres) -> Scorer:
    """Return the scorer for a state, which all blocks of a pass share."""
    if has_whole_features(state.feature_map):
        return WholeScorer(state)
    return FloatScorer(state)


# -- passes
# --------------------------------------------------------------------------------------


def sum_clusters(
    rows: blocks.Rows, state: Centres, *, squared_norms: bool = False
) -> ClusterSums:
    """Sum the rows of a block nearest to each centre: one Lloyd pass of all starts.

    O(n_samples · n_components · (n_features + n_init · n_clusters)). The sums do not
    depend on how rows are cut into blocks, except for whitened maps, whose features
    round. With `squared_norms`, ‖z‖² is summed too. Raises DataError if a value is not
    finite or a weight negative.
    """
    scorer = scorer_of(state)
    weights = rows.sample_weight
    tally = Tally(state, is_weighted=weights is not None, squared_norms=squared_norms)
    scaled = np.ldexp(rows.weights, -state.grid.weight_exponent)

    def add(first: int, features: AnyArray) -> None:
        here = slice(first, first + len(features))
        tally.add(features, scorer.labels(features), scaled[here])

    scorer.visit(rows, add)
    return tally.sums(rows.block.n_samples)


class Tally:
    """Sums a block's rows by cluster as integers; threads may share it."""

    def __init__(
        self, state: Centres, *, is_weighted: bool = False, squared_norms: bool = False
    ) -> None:
        self._bits = state.grid.fraction_bits
        self._shape = state.values.shape
        n_init, n_clusters, D = self._shape
        self._is_whole = has_whole_features(state.feature_map)
        # sums of unweighted int16 features stay in their unit, 2⁻¹⁴, until the end
        self._is_counted = self._is_whole and not is_weighted
        self._to_one = 1.0 / state.grid.units(D)
        if self._is_whole:
            self._to_one = np.full(D, 2.0**-protocol.FIXED_POINT_BITS)
        self._norm_factors: FloatArray | None = None
        if squared_norms:
            squares = np.square(factors_of(state.feature_map))
            self._norm_factors = squares / largest_squared_norm(
                state.feature_map, state.grid
            )
        self._features = np.zeros((n_init * n_clusters, D), np.int64)
        self._totals = np.zeros(n_init * n_clusters, np.int64)
        self._squared_norms = 0
        self._lock = Lock()

    def add(self, features: AnyArray, labels: IndexArray, weights: FloatArray) -> None:
        """Add the rows of a tile: features from `visit_tiles`, labels (n_init, n_rows).

        The grid scaled the weights to at most 1.
        """
        members = members_of(labels, self._shape[1])
        counts = np.ldexp(weights, self._bits)
        totals = members @ np.rint(counts).astype(np.int64)
        if self._is_counted:
            sums = members @ features  # in int32: at most 2¹⁴ times the rows of a tile
        else:
            scaled = features * self._to_one * counts[:, np.newaxis]
            sums = members @ np.rint(scaled).astype(np.int64)
        squared_norms = 0
        if self._norm_factors is not None:
            lines = features * self._to_one if self._is_whole else features
            # einsum, not a product: a row's sum does not depend on the other rows
            ratios = np.einsum("ij,ij,j->i", lines, lines, self._norm_factors)
            squared_norms = int(np.rint(ratios * counts).astype(np.int64).sum())
        with self._lock:
            self._features += sums
            self._totals += totals
            self._squared_norms += squared_norms

    def sums(self, n_samples: int) -> ClusterSums:
        """Return the sums of all rows added, which are `n_samples`."""
        features = self._features
        if self._is_counted:
            features = features << self._bits - protocol.FIXED_POINT_BITS
        totals = self._totals.reshape(self._shape[:2])
        return ClusterSums(
            n_samples, features.reshape(self._shape), totals, self._squared_norms
        )


def measure_tiles(rows: blocks.Rows, feature_map: maps.FeatureMap) -> FloatArray:
    """Return the largest absolute tile feature in a block, shape (n_components,).

    Raises DataError if a value is not finite.
    """
    largest = np.zeros(feature_map.n_components)
    lock = Lock()

    def measure(_: int, features: AnyArray) -> None:
        reach = np.abs(features).max(axis=0)
        with lock:
            np.maximum(largest, reach, out=largest)

    visit_tiles(rows, feature_map, measure)
    if not np.isfinite(largest).all():
        raise maps.overflow()
    return largest


def label_rows(rows: blocks.Rows, state: Centres) -> NDArray[np.int32]:
    """Return each row's nearest centre in the first start; the first of equals.

    Raises DataError if X has the wrong number of columns, or holds NaN or infinity.
    """
    scorer = scorer_of(state)
    labels = np.empty(rows.block.n_samples, np.int32)

    def label(first: int, features: AnyArray) -> None:
        labels[first : first + len(features)] = scorer.labels(features)[0]

    # labels ignore weights, so bad weights are not refused
    scorer.visit(replace(rows, sample_weight=None), label)
    return labels


def centre_distances(rows: blocks.Rows, state: Centres) -> FloatArray:
    """Return ‖z − c‖ to the first start's centres, shape (n_samples, n_clusters).

    Raises as `label_rows`.
    """
    scorer = FloatScorer(state)
    distances = np.empty((rows.block.n_samples, state.values.shape[1]))

    def measure(first: int, features: FloatArray) -> None:
        np.sqrt(
            scorer.all_squared_distances(features),
            out=distances[first : first + len(features)],
        )

    scorer.visit(replace(rows, sample_weight=None), measure)
    return distances


# -- what k-means passes are made of
# ---------------------------------------------------------------


# squared distances up to this share of the largest squared norm count as 0
EQUAL = 1e-12

_TILE_BYTES = 2**22  # limit for a tile's float64 features, and for its scores
_MIN_TILE_ROWS = 64
_MAX_TILE_ROWS = 2048
# rows of the smallest tiles, unless D or the number of centres is very large
_LEAST_ROWS = 256


@frozen
class ClusterGrid:
    """The unit of the integers in exact sums over clusters."""

    #: The unit is 2**-fraction_bits times the largest weight times the largest feature.
    fraction_bits: int
    #: No weight is above 2**weight_exponent.
    weight_exponent: int = 0
    #: Runs of (components, exponent). No tile feature is above 2**exponent; () means 0
    #: for all.
    exponents: exact_sums.Runs = ()

    def units(self, n_components: int) -> FloatArray:
        """Return the power of two that bounds each component, shape (n_components,)."""
        return (
            np.exp2(exact_sums.expand(self.exponents))
            if self.exponents
            else np.ones(n_components)
        )


def fraction_bits_for(n_samples: int) -> int:
    """Return the finest grid on which a sum of `n_samples` rows fits in an int64.

    It has 39 bits up to 2**23 rows. Beyond that, each doubling of the rows takes one
    bit; averaging over so many rows gains more.
    """
    # with FRACTION_BITS a float64 sum of a tile's rows is exact
    return min(
        specs.FRACTION_BITS,
        specs.LIMB_BITS - max(0, math.ceil(math.log2(max(1, n_samples)))),
    )


@frozen(eq=False)
class Centres:
    """The state of a pass that compares rows with centres."""

    feature_map: maps.FeatureMap
    #: Each start's centres in Z; shape (n_init, n_clusters, n_components).
    values: FloatArray
    grid: ClusterGrid


@frozen(eq=False)
class ClusterSums(EqualByFields):
    """Exact sums of the rows nearest to each centre; `+` joins two sets of rows."""

    #: Rows counted.
    n_samples: int
    #: Weighted sums of tile features, in the grid's units; shape (n_init, n_clusters,
    #: n_components).
    features: IntArray
    #: Sums of weights, in the grid's units; shape (n_init, n_clusters).
    weights: IntArray
    #: Weighted sum of ‖z‖², in units of the grid times `largest_squared_norm`; 0 if not
    #: wanted.
    squared_norms: int

    def __add__(self, other: ClusterSums) -> ClusterSums:
        if self.features.shape != other.features.shape:
            raise StatisticsError(
                f"cannot add sums over clusters of shape {self.features.shape} and"
                f" {other.features.shape}"
            )
        return exact_sums.add_fields(self, other)

    def means(self, state: Centres) -> FloatArray:
        """Return the mean row of each cluster in Z; empty ones keep their centre."""
        to_z = factors_of(state.feature_map) * state.grid.units(
            state.feature_map.n_components
        )
        filled = self.weights > 0
        means = state.values.copy()
        means[filled] = (
            self.features[filled] / self.weights[filled][:, np.newaxis] * to_z
        )
        return means

    def cluster_weights(self, grid: ClusterGrid) -> FloatArray:
        """Return the sum of weights of each cluster, shape (n_init, n_clusters)."""
        return np.ldexp(
            self.weights.astype(np.float64), grid.weight_exponent - grid.fraction_bits
        )

    def sum_of_squared_norms(self, state: Centres) -> float:
        """Return Σ w·‖z‖² of all rows."""
        grid = state.grid
        unit = 2.0 ** (grid.weight_exponent - grid.fraction_bits)
        return self.squared_norms * unit * largest_squared_norm(state.feature_map, grid)

    def inertias(self, state: Centres, sum_of_squared_norms: float) -> FloatArray:
        """Return Σ w·‖z − c‖² of each start; 0 if rounding makes it negative.

        Computed from sums only, with an error of about 1e-16 of the first term of Σ
        w·‖z‖² − Σ_j w_j·(2·c_j·mean_j − ‖c_j‖²).
        """
        weights = self.cluster_weights(state.grid)
        # Σ w·‖z − c‖² = Σ w·‖z‖² − Σ_c w_c·c·(2·mean_c − c)
        products = np.einsum(
            "ijk,ijk->ij", state.values, 2.0 * self.means(state) - state.values
        )
        left = sum_of_squared_norms - (weights * products).sum(axis=1)
        return np.asarray(np.maximum(left, 0.0))


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
        # of every row, but for rounding
        norm = float(feature_map.squared_norm * factors[0] ** 2)
        return norm * (1.0 + feature_map.squared_norm_error)
    return float(np.square(factors * grid.units(feature_map.n_components)).sum())


def tile_rows(n_components: int, n_columns: int) -> int:
    """Return the largest number of rows of a tile, a power of two."""
    rows = _TILE_BYTES // (8 * max(n_components, n_columns))
    return int(
        min(_MAX_TILE_ROWS, max(_MIN_TILE_ROWS, 2 ** int(math.log2(max(1, rows)))))
    )


def visit_tiles(
    rows: blocks.Rows,
    feature_map: maps.FeatureMap,
    visit: Callable[[int, AnyArray], None],
    *,
    n_columns: int = 1,
    is_whole: bool = False,
) -> None:
    """Call `visit(first row, features)` with each tile of a block; threads share the
    tiles.

    Features have shape (n_rows, n_components), and are unnormalised, or Z for a
    whitened map. They are float64, or with `is_whole` the int16 numbers of a map that
    `has_whole_features`. Their memory is reused after `visit` has returned. Tiles are
    padded to multiples of 64 rows: BLAS rounds differently at the edges of other tiles,
    and a row's features would depend on the rows next to it.

    Raises DataError if X has the wrong number of columns, or holds NaN or infinity.
    """
    inputs = feature_map.inputs_of(replace(rows, y=None))
    D = feature_map.n_components
    most = tile_rows(D, n_columns)
    tiles = machine.falling_tiles(
        len(inputs), most, multiple=_PANEL_ROWS, least=min(most, _LEAST_ROWS)
    )
    whitener = feature_map.whitener
    scales = exact_sums.expand(feature_map.scales)
    dtype: type = np.float64
    fill: Callable[[Float32Array, AnyArray], None] = feature_map.fill_lines
    if is_whole:
        assert isinstance(feature_map, fourier.FourierFeatureMap)
        dtype = np.int16
        fill = feature_map.fill_whole
    spare = machine.SpareMemory()

    def work(here: slice) -> None:
        tile = inputs[here]
        n_rows = len(tile)
        if n_rows % _PANEL_ROWS:
            tile = np.concatenate(
                [tile, np.repeat(tile[-1:], -n_rows % _PANEL_ROWS, axis=0)]
            )
        buffer = spare.take(len(tile) * D, dtype)
        features = buffer[: len(tile) * D].reshape(len(tile), D)
        # scorers refuse features that are not finite
        with np.errstate(over="ignore", invalid="ignore"):
            fill(tile, features)
            if whitener is not None:
                features *= scales
                # on one thread, since threads share the tiles already
                triangular.whiten_rows(features, whitener, machine.executor_of(1))
        visit(here.start, features[:n_rows])
        spare.give(buffer)

    machine.share_out(work, tiles)


# A product with this takes 0.2 µs per row, `np.add.reduceat` on sorted rows 1.5; SciPy
# lets other threads run.
def members_of(labels: IndexArray, n_clusters: int) -> scipy.sparse.csr_array:
    """Return a matrix of ones where a row belongs to a cluster of a start.

    Its shape is (n_init · n_clusters, n_rows); labels have shape (n_init, n_rows).
    """
    n_init, n_rows = labels.shape
    columns = (labels + n_clusters * np.arange(n_init)[:, np.newaxis]).ravel()
    # places in the flattened labels; modulo n_rows they are rows
    order = np.argsort(columns, kind="stable") % n_rows
    ends = np.concatenate(
        [[0], np.cumsum(np.bincount(columns, minlength=n_init * n_clusters))]
    )
    ones = np.ones(len(order), np.int32)
    return scipy.sparse.csr_array(
        (ones, order, ends), shape=(n_init * n_clusters, n_rows)
    )
