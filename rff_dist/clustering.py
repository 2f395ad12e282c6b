"""K-means in features, one block of rows at a time: pure NumPy, no Dask and no Zarr.

A Lloyd pass makes the features of a tile, finds each row's nearest centre by one product with the centres of
all starts, and adds the rows up cluster by cluster as integers. So the sums have the same bits in any order,
and labels that stay give sums that stay: centres that do not move are the same numbers, not nearly so.

References
----------
Lloyd (1982); Arthur & Vassilvitskii (2007), k-means++; Bahmani, Moseley, Vattani, Kumar & Vassilvitskii
(2012), Scalable k-means++; Lattanzi & Sohler (2019), local search; Efraimidis & Spirakis (2006), weighted
sampling in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from rff_dist.blocks import Rows, check_finite, even_height, share_out, using_threads
from rff_dist.errors import DataError, StatisticsError
from rff_dist.feature_map import ConcatenatedFeatureMap, FeatureMap
from rff_dist.feature_map.cosines import CosineFeatureMap
from rff_dist.frequencies import counter_uniforms
from rff_dist.runs import Runs, expand
from rff_dist.triangular import solve_transposed

type FloatArray = NDArray[np.float64]
type IntArray = NDArray[np.int64]

FINEST_FRACTION_BITS = 39  # a float64 sum of a tile's rows is exact on this grid
_LIMB_BITS = 62
_TILE_BYTES = 2**23  # of float64 features, and of scores
_MIN_TILE_ROWS, _MAX_TILE_ROWS = 64, 2048
_PAD = (
    16  # columns beyond a tile: lines a power of two apart share cache sets, a transpose took 3 times longer
)
_PANEL_ROWS = 64  # rows whose ties are settled by one product, always of the same shape
_EQUAL = 1e-12  # of the largest squared norm: squared distances up to this are none
_GAIN = 1e-9  # a change of centres gains more than rounding
_BATCH_STREAM = 2**35 + 2**30
_KMEANS_STREAM = 2**34  # the first of a seed's streams of random numbers for clusters, far above those in use


# -- grid and sums ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterGrid:
    """What the integers of exact sums over clusters count.

    Attributes
    ----------
    fraction_bits : int
        Sums count multiples of 2**-fraction_bits of the largest weight times the largest feature.
    weight_exponent : int
        No weight is above 2**weight_exponent.
    exponents : runs of (components, exponent)
        No tile feature is above 2**exponent; () says 0 for all.
    """

    fraction_bits: int
    weight_exponent: int = 0
    exponents: Runs = ()

    def units(self, n_components: int) -> FloatArray:
        """Return the power of two that bounds each component, shape (n_components,)."""
        return np.exp2(expand(self.exponents)) if self.exponents else np.ones(n_components)


def fraction_bits_for(n_samples: int) -> int:
    """Return the finest grid on which the sum of that many rows fits in an int64: 39 bits up to 2**23 rows.

    Rows beyond that take a bit for each doubling; a mean over so many averages more than that away.
    """
    return min(FINEST_FRACTION_BITS, _LIMB_BITS - max(0, math.ceil(math.log2(max(1, n_samples)))))


@dataclass(frozen=True, slots=True, eq=False)
class Centres:
    """The state of a pass that compares rows with centres.

    Attributes
    ----------
    feature_map : FeatureMap
    values : float64 array of shape (n_init, n_clusters, n_components)
        Centres in Z of each start.
    grid : ClusterGrid
    precise : bool
        Whether distances are made in float64 even where features are float32.
    counts : tuple of int
        Centres of each start, where they have different numbers of them; rows of `values` beyond are 0 and
        nearest to no row. () says that all count.
    """

    feature_map: FeatureMap
    values: FloatArray
    grid: ClusterGrid
    precise: bool = False
    counts: tuple[int, ...] = ()

    @property
    def present(self) -> NDArray[np.bool_]:
        """Return which centres there are, shape (n_init, n_clusters)."""
        n_init, n_clusters, _ = self.values.shape
        counts = np.array(self.counts or (n_clusters,) * n_init)
        return np.asarray(np.arange(n_clusters) < counts[:, np.newaxis])

    def digest(self) -> str:
        """Return the feature map's digest: what every worker must agree on."""
        return self.feature_map.digest()


@dataclass(frozen=True, slots=True, eq=False)
class ClusterSums:
    """Exact sums of the rows nearest to each centre; `+` joins two sets of rows.

    Attributes
    ----------
    n_samples : int
        Rows counted.
    features : int64 array of shape (n_init, n_clusters, n_components)
        Weighted sums of tile features, in the grid's units.
    weights : int64 array of shape (n_init, n_clusters)
        Sums of weights, in the grid's units.
    squared_norms : int
        Weighted sum of ‖z‖², in the grid's units of `largest_squared_norm`; 0 where it was not asked for.
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
        return ClusterSums(
            self.n_samples + other.n_samples,
            self.features + other.features,
            self.weights + other.weights,
            self.squared_norms + other.squared_norms,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClusterSums):
            return NotImplemented
        return (
            (self.n_samples, self.squared_norms) == (other.n_samples, other.squared_norms)
            and np.array_equal(self.features, other.features)
            and np.array_equal(self.weights, other.weights)
        )

    __hash__ = None  # type: ignore[assignment]

    def means(self, state: Centres) -> FloatArray:
        """Return the mean row of each cluster in Z; the former centre where a cluster is empty."""
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
        """Return Σ w·‖z − c‖² of each start, shape (n_init,); 0 where rounding leaves less.

        Of the sums alone: Σ w·‖z‖² − Σ_j w_j·(2·c_j·mean_j − ‖c_j‖²), whose error is some 1e-16 of its first
        term.
        """
        weights = self.cluster_weights(state.grid)
        products = np.einsum("ijk,ijk->ij", state.values, 2.0 * self.means(state) - state.values)
        left = sum_of_squared_norms - (weights * products).sum(axis=1)
        return np.asarray(np.maximum(left, 0.0))


def factors_of(feature_map: FeatureMap) -> FloatArray:
    """Return what tile features are multiplied by to give Z: 1 for a whitened map, whose tiles hold Z."""
    if feature_map.whitener is not None:
        return np.ones(feature_map.n_components)
    return expand(feature_map.scales)


def largest_squared_norm(feature_map: FeatureMap, grid: ClusterGrid) -> float:
    """Return what no ‖z‖² is above."""
    factors = factors_of(feature_map)
    if feature_map.squared_norm is not None and np.ptp(factors) == 0:
        return float(feature_map.squared_norm * factors[0] ** 2) * (1.0 + 1e-6)  # features are rounded
    return float(np.square(factors * grid.units(len(factors))).sum())


# -- tiles -----------------------------------------------------------------------------------------


def _is_single(feature_map: FeatureMap) -> bool:
    """Return whether features are float32 numbers: cosines and sines."""
    if isinstance(feature_map, ConcatenatedFeatureMap):
        return all(map(_is_single, feature_map.parts))
    return isinstance(feature_map, CosineFeatureMap)


def _tile_rows(n_components: int, n_columns: int) -> int:
    """Return the rows of a tile, a power of two: fixed by D and the number of centres."""
    rows = _TILE_BYTES // (8 * max(n_components, n_columns))
    return int(min(_MAX_TILE_ROWS, max(_MIN_TILE_ROWS, 2 ** int(math.log2(max(1, rows))))))


def pass_bytes(n_components: int, n_columns: int, *, n_threads: int, n_blocks: int) -> int:
    """Return the bytes that a Lloyd pass takes at its peak in one process, beside the inputs of a block.

    Parameters
    ----------
    n_components : int
    n_columns : int
        Centres of all starts.
    n_threads : int
    n_blocks : int
        Whose partials are merged pairwise.
    """
    sums = 8 * n_columns * (n_components + 1)
    tile = _tile_rows(n_components, n_columns) * 8 * (2 * n_components + n_columns) + sums
    held = math.ceil(math.log2(max(1, n_blocks))) + 2
    copies_of_centres = 5  # as given, apart from their middle, as weights in float64 and float32, and pickled
    return sums * (held + copies_of_centres) + n_threads * tile


def visit_tiles(
    rows: Rows,
    feature_map: FeatureMap,
    visit: Callable[[int, NDArray[Any]], None],
    *,
    dtype: type[np.floating[Any]],
    n_columns: int = 1,
    chosen: NDArray[np.intp] | None = None,
) -> None:
    """Call `visit(first row, features)` with each tile of a block; threads share out the tiles.

    Features are of shape (n_components, n_rows), unnormalised, or Z for a whitened map. They are
    overwritten when `visit` has returned. With `chosen` they are of these rows of the block alone, and
    `first row` counts these. Tiles are filled up to multiples of 64 rows: BLAS rounds others at their edges,
    and features would depend on the company.

    Raises
    ------
    DataError
        If X has another number of columns, or holds NaN or infinity.
    """
    inputs = feature_map.prepare(rows.X)
    check_finite(replace(rows, y=None), inputs)
    if chosen is not None:
        inputs = inputs[chosen]
    D = feature_map.n_components
    height = min(_tile_rows(D, n_columns), max(1, len(inputs)))
    if chosen is not None:  # few tiles, whose last would leave threads idle
        height = even_height(len(inputs), _tile_rows(D, n_columns), multiple=_PANEL_ROWS)
    columns = -(-height // _PANEL_ROWS) * _PANEL_ROWS
    whitener, scales = feature_map.whitener, expand(feature_map.scales)
    spare: list[NDArray[Any]] = []

    def work(first: int) -> None:
        tile = inputs[first : first + height]
        n_rows = len(tile)
        if n_rows % _PANEL_ROWS:
            tile = np.concatenate([tile, np.repeat(tile[-1:], -n_rows % _PANEL_ROWS, axis=0)])
        buffer = spare.pop() if spare else np.empty((D, columns + _PAD), dtype)
        features = buffer[:, : len(tile)]
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by the scores
            for start, stop in feature_map.stripes:
                feature_map.fill(tile, features[start:stop], start, stop)
            if whitener is not None:
                _whiten(features, whitener, scales)
        visit(first, features[:, :n_rows])
        spare.append(buffer)

    share_out(work, range(0, len(inputs), height))


def _whiten(features: FloatArray, whitener: FloatArray, scales: FloatArray) -> None:
    """Overwrite unnormalised features by Z, O(n_components²) a row; a row's bits are its own."""
    panel = np.zeros((len(features), _PANEL_ROWS))
    for first in range(0, features.shape[1], _PANEL_ROWS):
        part = features[:, first : first + _PANEL_ROWS]
        panel[:, : part.shape[1]] = part
        panel[:, part.shape[1] :] = 0.0
        panel *= scales[:, np.newaxis]
        solve_transposed(whitener, panel)
        part[:] = panel[:, : part.shape[1]]


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """The nearest centres of a tile's rows, and how sure they are.

    Attributes
    ----------
    labels : int array of shape (n_init, n_rows)
        Index of the nearest centre; ties go to the lowest.
    distances : float array of shape (n_init, n_rows)
        No ‖z − c‖ of the nearest centre is larger; infinity where float32 did not tell it from another.
    rivals : int array of shape (n_init, n_rows)
        Index of the second nearest centre.
    rival_margins : float array of shape (n_init, n_rows)
        By how much its ‖z − c‖² is larger than the least.
    margins : float array of shape (n_init, n_groups, n_rows)
        ‖z − c‖² of none of the other centres of a group is nearer to the least one than this.
    """

    labels: NDArray[np.intp]
    distances: NDArray[Any]
    rivals: NDArray[np.intp]
    rival_margins: NDArray[Any]
    margins: NDArray[Any]


class Scorer:
    """Scores of a tile's rows for the centres of all starts: squared distances but for what a row has alone.

    ‖z − c‖² = ‖z‖² + ‖m‖² − 2z·m + score, where m is the mean of a start's centres and the score is
    −2z·(c − m) + ‖c‖² − ‖m‖². Centres that are close to each other then have small scores, and small errors.

    Attributes
    ----------
    dtype : type
        Of features and scores.
    tolerance : float
        Scores that differ by no more are settled in float64; two scores' errors are smaller together.
    nothing : float
        Squared distances up to this are none.
    """

    def __init__(self, state: Centres) -> None:
        self.n_init, self.n_clusters, n_components = state.values.shape
        single = _is_single(state.feature_map) and not state.precise
        self.dtype: type[np.floating[Any]] = np.float32 if single else np.float64
        factors = factors_of(state.feature_map)
        present = state.present
        middle = state.values.sum(axis=1, keepdims=True) / present.sum(axis=1)[:, np.newaxis, np.newaxis]
        apart = np.where(present[..., np.newaxis], state.values - middle, 0.0)
        self._weights = (-2.0 * factors * apart).reshape(-1, n_components)
        # ‖c‖² − ‖m‖² without the cancellation
        self._offsets = (apart * (apart + 2.0 * middle)).sum(axis=2).ravel()
        middle_norms = np.square(middle).sum(axis=2).ravel()
        # those of the middles follow those of the centres, in one product
        self._narrow_weights = np.concatenate([self._weights, -2.0 * factors * middle[:, 0]]).astype(
            self.dtype
        )
        self._narrow_offsets = np.concatenate([self._offsets, middle_norms]).astype(self.dtype)
        self._squares = np.square(factors).astype(self.dtype)
        largest = largest_squared_norm(state.feature_map, state.grid)
        self._same_norm = state.feature_map.squared_norm is not None and np.ptp(factors) == 0
        self._largest = largest
        lengths = np.linalg.norm(apart, axis=2).max(initial=0.0)
        # sums of D rounded products: √D roundings of the largest a sum can be, for each of two scores
        # (Higham & Mary 2019 on why √D); measured errors are below a tenth of it
        reach = 2.0 * math.sqrt(n_components) * (2.0 * math.sqrt(largest) * lengths)
        reach += 4.0 * float(np.abs(self._offsets).max(initial=0.0))
        eps = float(np.finfo(self.dtype).eps)
        self.tolerance = eps * reach
        self._settled_tolerance = float(np.finfo(np.float64).eps) * reach
        norm = math.sqrt(largest) + math.sqrt(float(middle_norms.max(initial=0.0)))
        self._distance_tolerance = self.tolerance + 2.0 * eps * math.sqrt(n_components) * norm**2
        self.nothing = max(_EQUAL * largest, self.tolerance if single else 0.0)
        for offsets in (self._offsets, self._narrow_offsets[: present.size]):
            offsets[~present.ravel()] = np.inf
        self._spare: list[NDArray[Any]] = []

    def scores(self, features: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return scores of shape (n_init · n_clusters + n_init, n_rows); the last are ‖m‖² − 2z·m.

        Raises
        ------
        DataError
            If features overflow.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            scores: NDArray[Any] = np.matmul(self._narrow_weights, features, out=out)
            scores += self._narrow_offsets[:, np.newaxis]
        _check_scores(scores)
        return scores

    def nearest(self, features: NDArray[Any], n_groups: int = 0) -> Nearest:
        """Return each row's nearest centres, and their margins by groups of neighbouring centres.

        Without groups nobody asks for rivals, and these are all 0.

        What float32 cannot tell apart is settled in float64, and what float64 cannot is a tie.
        """
        n_rows = features.shape[1]
        shape = len(self._narrow_weights), n_rows
        buffer = self._spare.pop() if self._spare else np.empty(shape, self.dtype)
        if buffer.shape[1] < n_rows:
            buffer = np.empty(shape, self.dtype)
        scores = self.scores(features, buffer[:, :n_rows])
        labels = np.zeros((self.n_init, n_rows), np.intp)
        rivals = np.zeros_like(labels)
        distances = np.empty((self.n_init, n_rows), self.dtype)
        rival_margins = np.empty_like(distances)
        margins = np.empty((self.n_init, n_groups, n_rows), self.dtype)
        norms = self._norms(features)
        ends = group_ends(self.n_clusters, n_groups)
        close = np.zeros(n_rows, bool)
        for start in range(self.n_init):
            own = scores[start * self.n_clusters : (start + 1) * self.n_clusters]
            best = own.min(axis=0)
            _set_places(labels[start], own, best)
            own[labels[start], np.arange(n_rows)] = np.inf
            second = own.min(axis=0)
            np.subtract(second, best, out=rival_margins[start])
            if n_groups:
                _set_places(rivals[start], own, second)
                own[rivals[start], np.arange(n_rows)] = np.inf
            first = 0
            for group, end in enumerate(ends):
                own[first:end].min(axis=0, out=margins[start, group])
                first = end
            margins[start] -= best
            unsure = rival_margins[start] <= self.tolerance
            close |= unsure
            squared = norms + scores[start - self.n_init] + best
            np.maximum(squared, 0.0, out=squared)
            squared += self._distance_tolerance
            np.sqrt(squared, out=distances[start])
            distances[start, unsure] = np.inf
        unsure_rows = np.flatnonzero(close)
        for first in range(0, len(unsure_rows), _PANEL_ROWS):
            some = unsure_rows[first : first + _PANEL_ROWS]
            labels[:, some] = self._settle(features[:, some])
        self._spare.append(buffer)
        return Nearest(labels, distances, rivals, rival_margins, margins)

    def _norms(self, features: NDArray[Any]) -> Any:
        """Return ‖z‖² of each row, or what it is for all."""
        return self.dtype(self._largest) if self._same_norm else self._squares @ np.square(features)

    def _settle(self, features: NDArray[Any]) -> NDArray[np.intp]:
        panel = np.zeros((len(features), _PANEL_ROWS))
        panel[:, : features.shape[1]] = features
        scores = (self._weights @ panel + self._offsets[:, np.newaxis]).reshape(
            self.n_init, self.n_clusters, _PANEL_ROWS
        )
        least = scores.min(axis=1, keepdims=True)
        labels: NDArray[np.intp] = (scores <= least + self._settled_tolerance).argmax(axis=1)
        return labels[:, : features.shape[1]]

    def squared_distances(self, features: NDArray[Any]) -> NDArray[Any]:
        """Return ‖z − c‖² for the first start's centres, shape (n_rows, n_clusters), not below 0."""
        with np.errstate(over="ignore", invalid="ignore"):
            # rows first: a row's bits then hardly depend on how many there are
            scores = features.T @ self._narrow_weights.T + self._narrow_offsets
        _check_scores(scores.T)
        distances: NDArray[Any] = scores[:, : self.n_clusters]
        distances += (self._squares @ np.square(features) + scores[:, -self.n_init])[:, np.newaxis]
        np.maximum(distances, 0.0, out=distances)
        return distances


def _set_places(places: NDArray[np.intp], scores: NDArray[Any], least: NDArray[Any]) -> None:
    """Write the line of each column's least score, the lowest of equals; argmin takes five times as long."""
    n_rows = scores.shape[1]
    found = np.flatnonzero(scores == least)[::-1]  # the lowest last, so that it stays
    places[found % n_rows] = found // n_rows


def _check_scores(scores: NDArray[Any]) -> None:
    if not np.isfinite(scores[0]).all() or not np.isfinite(scores[-1]).all():
        raise DataError("features of some rows are not finite: their inputs overflow; standardise them")


def group_ends(n_clusters: int, n_groups: int) -> list[int]:
    """Return where groups of neighbouring centres end, as even as they can be."""
    return [n_clusters * (i + 1) // n_groups for i in range(n_groups)]


# -- passes ----------------------------------------------------------------------------------------


def sum_clusters(rows: Rows, state: Centres, *, squared_norms: bool = False) -> ClusterSums:
    """Sum a block's rows by their nearest centres: one Lloyd pass of all starts.

    O(n_samples · n_components · (n_features + n_init · n_clusters)). The sums do not depend on how rows are
    cut into blocks, except for whitened maps, whose features round.

    Parameters
    ----------
    rows : Rows
    state : Centres
    squared_norms : bool
        Whether to add up ‖z‖² too, which does not depend on the centres.

    Raises
    ------
    DataError
        If a value is not finite or a weight negative.
    """
    scorer, tally = Scorer(state), Tally(state, squared_norms=squared_norms)
    weights = tally.scaled(rows.sample_weight)

    def add(first: int, features: NDArray[Any]) -> None:
        own = None if weights is None else weights[first : first + features.shape[1]]
        tally.add(features, own, members_of(scorer.nearest(features).labels, scorer.n_clusters))

    n_columns = scorer.n_init * scorer.n_clusters
    visit_tiles(rows, state.feature_map, add, dtype=scorer.dtype, n_columns=n_columns)
    return tally.sums(rows.block.n_samples)


class Tally:
    """Adds up the rows of a block by cluster, as integers; threads may share it.

    Parameters
    ----------
    state : Centres
    squared_norms : bool
        Whether to add up ‖z‖² too.
    """

    def __init__(self, state: Centres, *, squared_norms: bool = False) -> None:
        self._grid = grid = state.grid
        self._shape = n_init, n_clusters, D = state.values.shape
        self._units = 1.0 / grid.units(D) if grid.exponents else None
        self._norm_factors: FloatArray | None = None
        if squared_norms:
            factors = factors_of(state.feature_map) * grid.units(D)
            self._norm_factors = np.square(factors) / largest_squared_norm(state.feature_map, grid)
        self._features = np.zeros((n_init * n_clusters, D), np.int64)
        self._weights = np.zeros(n_init * n_clusters, np.int64)
        self._squared_norms = 0
        self._lock = Lock()
        self._spare: list[FloatArray] = []

    def scaled(self, sample_weight: FloatArray | None) -> FloatArray | None:
        """Return weights of at most 1."""
        return None if sample_weight is None else np.ldexp(sample_weight, -self._grid.weight_exponent)

    def add(
        self, features: NDArray[Any], weights: FloatArray | None, members: scipy.sparse.csr_array
    ) -> None:
        """Add a tile's rows to clusters, or take them away.

        Parameters
        ----------
        features : float array of shape (n_components, n_rows)
        weights : float64 array of shape (n_rows,), or None
            From `scaled`.
        members : sparse array of shape (n_init · n_clusters, n_rows)
            1 where a row is to be added, −1 where it is to be taken away.
        """
        n_rows, bits = features.shape[1], self._grid.fraction_bits
        buffer = self._spare.pop() if self._spare else np.empty((n_rows, len(features)))
        lines = buffer[:n_rows] if len(buffer) >= n_rows else np.empty((n_rows, len(features)))
        squares = _round_lines(
            features, lines, self._grid, units=self._units, weights=weights, norm_factors=self._norm_factors
        )
        # quicker than a dense product: a quarter of its time at 100 clusters
        sums = members @ lines
        sums *= 2.0**bits
        whole = np.ones(n_rows) if weights is None else np.rint(np.ldexp(weights, bits))
        counts = (members @ whole).astype(np.int64)  # exact below 2**53
        if weights is None:
            counts <<= np.int64(bits)
        with self._lock:
            np.add(self._features, sums, out=self._features, casting="unsafe", dtype=np.int64)
            self._weights += counts
            self._squared_norms += squares
        self._spare.append(buffer)

    def sums(self, n_samples: int) -> ClusterSums:
        """Return the sums of that many rows."""
        features, weights = self._features.reshape(self._shape), self._weights.reshape(self._shape[:2])
        return ClusterSums(n_samples, features, weights, self._squared_norms)


def members_of(labels: NDArray[np.intp], n_clusters: int) -> scipy.sparse.csr_array:
    """Return which rows belong to each cluster of each start: ones, shape (n_init · n_clusters, n_rows)."""
    n_init, n_rows = labels.shape
    narrow = labels.astype(np.int16 if n_clusters < 2**15 else np.int32)  # sorted by their digits
    order = np.concatenate([np.argsort(own, kind="stable") for own in narrow])
    counts = np.concatenate([np.bincount(own, minlength=n_clusters) for own in labels])
    ends = np.concatenate([[0], np.cumsum(counts)])
    return scipy.sparse.csr_array((np.ones(len(order)), order, ends), shape=(n_init * n_clusters, n_rows))


def moves_of(
    former: NDArray[np.integer[Any]], labels: NDArray[np.integer[Any]], n_clusters: int
) -> scipy.sparse.csr_array:
    """Return 1 where a row comes to a cluster and −1 where it leaves one; shape as from `members_of`."""
    n_init, n_rows = labels.shape
    start, column = np.nonzero(labels != former)
    clusters = np.concatenate([labels[start, column], former[start, column]]) + np.tile(start * n_clusters, 2)
    signs = np.repeat([1.0, -1.0], len(start))
    return scipy.sparse.csr_array(
        (signs, (clusters, np.tile(column, 2))), shape=(n_init * n_clusters, n_rows)
    )


def _round_lines(
    features: NDArray[Any],
    lines: FloatArray,
    grid: ClusterGrid,
    *,
    units: FloatArray | None,
    weights: FloatArray | None,
    norm_factors: FloatArray | None,
) -> int:
    """Write weighted features, rounded to the grid, to `lines`, one row per line; return Σ w·‖z‖².

    Adding and taking away 1.5 · 2**(52 − b) leaves a multiple of 2**-b: float64 has no finer bits there.
    """
    shift = 1.5 * 2.0 ** (52 - grid.fraction_bits)
    squares = 0
    for i in range(0, len(lines), 64):  # 256 KiB at D = 512, which a core's own cache holds
        part = lines[i : i + 64]
        part[:] = features[:, i : i + 64].T
        if units is not None:
            part *= units
        own = None if weights is None else weights[i : i + 64]
        if norm_factors is not None:
            ratios = np.einsum("ij,ij,j->i", part, part, norm_factors)  # a row's sum is its own
            ratios = ratios if own is None else ratios * own
            squares += int(np.rint(np.ldexp(ratios, grid.fraction_bits)).astype(np.int64).sum())
        if own is not None:
            part *= own[:, np.newaxis]
        part += shift
        part -= shift
    return squares


def measure_tiles(rows: Rows, feature_map: FeatureMap) -> FloatArray:
    """Return the largest absolute value of each tile feature in a block, shape (n_components,).

    Raises
    ------
    DataError
        If a value is not finite.
    """
    largest, lock = np.zeros(feature_map.n_components), Lock()

    def measure(_: int, features: NDArray[Any]) -> None:
        reach = np.abs(features).max(axis=1)
        with lock:
            np.maximum(largest, reach, out=largest)

    visit_tiles(rows, feature_map, measure, dtype=np.float64)
    if not np.isfinite(largest).all():
        raise DataError("features of some rows are not finite: their inputs overflow; standardise them")
    return largest


def label_rows(rows: Rows, state: Centres) -> NDArray[np.int32]:
    """Return the index of each row's nearest centre of the first start, the lowest of equals.

    Raises
    ------
    DataError
        If X has another number of columns, or holds NaN or infinity.
    """
    scorer = Scorer(state)
    labels = np.empty(rows.block.n_samples, np.int32)

    def label(first: int, features: NDArray[Any]) -> None:
        labels[first : first + features.shape[1]] = scorer.nearest(features).labels[0]

    visit_tiles(
        replace(rows, sample_weight=None),
        state.feature_map,
        label,
        dtype=scorer.dtype,
        n_columns=state.values.shape[1],
    )
    return labels


def centre_distances(rows: Rows, state: Centres) -> FloatArray:
    """Return ‖z − c‖ for the centres of the first start, shape (n_samples, n_clusters), in float64.

    Raises
    ------
    DataError
        As `label_rows`.
    """
    scorer = Scorer(replace(state, precise=True))
    distances = np.empty((rows.block.n_samples, state.values.shape[1]))

    def measure(first: int, features: NDArray[Any]) -> None:
        np.sqrt(scorer.squared_distances(features), out=distances[first : first + features.shape[1]])

    visit_tiles(
        replace(rows, sample_weight=None),
        state.feature_map,
        measure,
        dtype=scorer.dtype,
        n_columns=state.values.shape[1],
    )
    return distances


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The state of a step on a few rows of some blocks.

    Attributes
    ----------
    centres : Centres
    n_rows : int
        Of each block; all of one that has no more.
    seed, step : int
        They decide which rows, with the rows' numbers.
    """

    centres: Centres
    n_rows: int
    seed: int
    step: int

    def digest(self) -> str:
        """Return the feature map's digest: what every worker must agree on."""
        return self.centres.digest()


def sum_batch(rows: Rows, state: Batch) -> ClusterSums:
    """Sum some seeded rows of a block by their nearest centres, as `sum_clusters` does.

    Raises
    ------
    DataError
        If a value is not finite or a weight negative.
    """
    block = rows.block
    if state.n_rows < block.n_samples:
        stream = _BATCH_STREAM + state.step
        uniforms = row_uniforms(state.seed, stream, block.start, block.stop)
        chosen = np.sort(np.argsort(uniforms, kind="stable")[: state.n_rows])
        weights = None if rows.sample_weight is None else rows.sample_weight[chosen]
        few = replace(block, stop=block.start + len(chosen))
        rows = Rows(few, rows.X[chosen], sample_weight=weights)
    return sum_clusters(rows, state.centres)


# -- rows chosen in a pass -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The state of a pass that chooses rows far from their nearest centres.

    Attributes
    ----------
    centres : Centres
        Of one start.
    size : int
        Rows to choose; fewer where fewer are off their centres.
    seed : int, or None
        None chooses the farthest rows. Else rows are drawn without replacement with probabilities in
        proportion to w·d², which is what Bahmani et al. (2012), Alg. 2, step 4, draw on average.
    round : int
        Which of the seed's drawings this is.
    """

    centres: Centres
    size: int
    seed: int | None = None
    round: int = 0

    def digest(self) -> str:
        """Return the feature map's digest: what every worker must agree on."""
        return self.centres.digest()


@dataclass(frozen=True, slots=True, eq=False)
class ChosenRows:
    """The rows with the largest keys so far, the largest first; `+` keeps the largest of both.

    Attributes
    ----------
    size : int
        Rows to keep.
    keys : float64 array of shape (n_chosen,)
    row_numbers : int64 array of shape (n_chosen,)
        In the dataset; the lower of equal keys comes first.
    features : float64 array of shape (n_chosen, n_components)
        Their Z.
    """

    size: int
    keys: FloatArray
    row_numbers: IntArray
    features: FloatArray

    def __add__(self, other: ChosenRows) -> ChosenRows:
        keys = np.concatenate([self.keys, other.keys])
        row_numbers = np.concatenate([self.row_numbers, other.row_numbers])
        best = np.lexsort((row_numbers, -keys))[: self.size]
        features = np.concatenate([self.features, other.features])[best]
        return ChosenRows(self.size, keys[best], row_numbers[best], features)


def choose_rows(rows: Rows, state: Choice) -> ChosenRows:
    """Choose rows of a block: the farthest from their nearest centres, or drawn by their squared distances.

    Rows without weight, or at a centre, are never chosen. A row's draw depends on the seed, the round and its
    number in the dataset alone.

    References
    ----------
    Efraimidis & Spirakis (2006), Weighted random sampling with a reservoir: the rows with the smallest
    E/(w·d²), E exponential, are such a draw, and are merged like any smallest.

    Raises
    ------
    DataError
        If a value is not finite or a weight negative.
    """
    scorer, feature_map = Scorer(state.centres), state.centres.feature_map
    factors = factors_of(feature_map)
    start = rows.block.start
    waits = None
    if state.seed is not None:
        stream = _KMEANS_STREAM + 2 * state.round
        waits = -np.log(row_uniforms(state.seed, stream, start, rows.block.stop))
    found, lock = (
        [ChosenRows(state.size, np.empty(0), np.empty(0, np.int64), np.empty((0, len(factors))))],
        Lock(),
    )

    def choose(first: int, features: NDArray[Any]) -> None:
        here = slice(first, first + features.shape[1])
        distances = scorer.squared_distances(features).min(axis=1).astype(np.float64)
        weights = 1.0 if rows.sample_weight is None else rows.sample_weight[here]
        counts = np.flatnonzero((distances > scorer.nothing) & (np.asarray(weights) > 0))
        keys = distances
        if waits is not None:
            keys = np.full(len(distances), -np.inf)
            keys[counts] = -waits[here][counts] / (distances * weights)[counts]
        best = counts[np.lexsort((counts, -keys[counts]))[: state.size]]
        chosen = ChosenRows(state.size, keys[best], start + first + best, features[:, best].T * factors)
        with lock:
            found[0] += chosen

    visit_tiles(rows, feature_map, choose, dtype=scorer.dtype, n_columns=state.centres.values.shape[1])
    return found[0]


def row_uniforms(seed: int, stream: int, start: int, stop: int) -> FloatArray:
    """Return a uniform number in (0, 1) for each row, a function of (seed, stream, row) alone."""
    counter = start // 4  # Philox4x64 makes four words a counter step
    philox = np.random.Philox(key=np.array([seed, stream], np.uint64), counter=counter)
    words = philox.random_raw(stop - 4 * counter)[start - 4 * counter :]
    return (np.asarray(words >> np.uint64(12), np.float64) + 0.5) * 2.0**-52


# -- starts, from candidates in memory -------------------------------------------------------------


def choose_centres(
    points: FloatArray, weights: FloatArray, n_clusters: int, *, seed: int
) -> NDArray[np.intp]:
    """Choose centres among weighted points by greedy k-means++; fewer where fewer points are distinct.

    Each centre is the best of 2 + log(n_clusters) points that are drawn with probabilities in proportion to
    w·d², d the distance to the nearest centre so far. O(n_points · n_clusters · log(n_clusters) · D).

    Parameters
    ----------
    points : float64 array of shape (n_points, n_components)
    weights : float64 array of shape (n_points,)
        Above 0.
    n_clusters : int
    seed : int

    References
    ----------
    Arthur & Vassilvitskii (2007), Sec. 2.2 and its closing remark on greedy choices.
    """
    n_trials = 2 + int(math.log(n_clusters))
    uniforms = counter_uniforms(seed, _KMEANS_STREAM + 1, n_clusters, n_trials)
    with using_threads(1):
        shifted = points - np.average(points, axis=0, weights=weights)
        norms = np.einsum("ij,ij->i", shifted, shifted)
        nothing = _EQUAL * float(norms.max())
        chosen = [_pick(weights, uniforms[0, 0])]
        distances = _to_points(shifted, norms, np.array(chosen), nothing)[0]
        for trials in uniforms[1:]:
            potential = weights * distances
            if not potential.any():
                break
            picked = np.unique([_pick(potential, uniform) for uniform in trials])
            tried = np.minimum(distances, _to_points(shifted, norms, picked, nothing))
            best = int(np.argmin(tried @ weights))
            chosen.append(int(picked[best]))
            distances = tried[best]
    return np.array(chosen, np.intp)


def _pick(weights: FloatArray, uniform: float) -> int:
    cumulated = np.cumsum(weights)
    return min(int(np.searchsorted(cumulated, uniform * cumulated[-1], side="right")), len(weights) - 1)


def _to_points(points: FloatArray, norms: FloatArray, chosen: NDArray[np.intp], nothing: float) -> FloatArray:
    """Return squared distances of all points to the chosen ones, shape (n_chosen, n_points)."""
    distances: FloatArray = norms - 2.0 * (points[chosen] @ points.T) + norms[chosen, np.newaxis]
    distances[distances <= nothing] = 0.0
    return distances


def exchange_centres(
    points: FloatArray, weights: FloatArray, chosen: NDArray[np.intp], *, n_steps: int, seed: int
) -> NDArray[np.intp]:
    """Improve centres among weighted points by local search: each step tries one point in a centre's place.

    The point is drawn as in k-means++, and takes the place of the centre for which the sum of w·d² falls
    most, if it falls for any. So a cluster with two centres gives one to two clusters with one, which Lloyd
    steps do not do. O(n_points · D) a step; of equal places the lowest.

    Parameters
    ----------
    points : float64 array of shape (n_points, n_components)
    weights : float64 array of shape (n_points,)
        Above 0.
    chosen : int array of shape (n_clusters,)
        Different points.
    n_steps : int
    seed : int

    References
    ----------
    Lattanzi & Sohler (2019), A better k-means++ algorithm via local search, Alg. 2.
    """
    if len(chosen) < 2:
        return chosen
    chosen = chosen.copy()
    uniforms = counter_uniforms(seed, _KMEANS_STREAM + 3, n_steps, 1)[:, 0]
    with using_threads(1):
        shifted = points - np.average(points, axis=0, weights=weights)
        norms = np.einsum("ij,ij->i", shifted, shifted)
        nothing = _EQUAL * float(norms.max())
        own, near = _two_nearest(shifted, norms, np.arange(len(points)), chosen, nothing)
        for uniform in uniforms:
            potential = weights * near[0]
            if not potential.any():
                break
            tried = _pick(potential, uniform)
            distances = _to_points(shifted, norms, np.array([tried]), nothing)[0]
            kept = np.minimum(distances, near[0])
            without = weights * (np.minimum(distances, near[1]) - kept)
            costs = float(weights @ kept) + np.bincount(own[0], without, minlength=len(chosen))
            place = int(costs.argmin())
            if not costs[place] < (1.0 - _GAIN) * float(potential.sum()):
                continue
            chosen[place] = tried
            stale = np.flatnonzero((own == place).any(axis=0) | (distances < near[1]))
            own[:, stale], near[:, stale] = _two_nearest(shifted, norms, stale, chosen, nothing)
    return chosen


def _two_nearest(
    points: FloatArray,
    norms: FloatArray,
    which: NDArray[np.intp],
    chosen: NDArray[np.intp],
    nothing: float,
) -> tuple[NDArray[np.intp], FloatArray]:
    """Return the nearest and the second nearest of the chosen points to some, each of shape (2, n_some)."""
    own, near = np.empty((2, len(which)), np.intp), np.empty((2, len(which)))
    for first in range(0, len(which), _MAX_TILE_ROWS):
        here = slice(first, first + _MAX_TILE_ROWS)
        distances = norms[which[here], np.newaxis] - 2.0 * (points[which[here]] @ points[chosen].T)
        distances += norms[chosen]
        distances[distances <= nothing] = 0.0
        for i in range(2):
            own[i, here] = distances.argmin(axis=1)
            near[i, here] = np.take_along_axis(distances, own[i, here, np.newaxis], 1)[:, 0]
            np.put_along_axis(distances, own[i, here, np.newaxis], np.inf, 1)
    return own, near


def improve_centres(
    points: FloatArray, weights: FloatArray, centres: FloatArray, *, max_iter: int = 20
) -> FloatArray:
    """Return centres after some Lloyd steps on weighted points in memory; an empty one stays where it is.

    Parameters
    ----------
    points : float64 array of shape (n_points, n_components)
    weights : float64 array of shape (n_points,)
    centres : float64 array of shape (n_clusters, n_components)
    """
    labels = np.full(len(points), -1)
    with using_threads(1):
        for _ in range(max_iter):
            former, labels = labels, _scores(points, centres).argmin(axis=1)
            if np.array_equal(former, labels):
                break
            sums = members_of(labels[np.newaxis], len(centres)) @ (points * weights[:, np.newaxis])
            totals = np.bincount(labels, weights=weights, minlength=len(centres))
            filled = totals > 0
            centres = centres.copy()
            centres[filled] = sums[filled] / totals[filled, np.newaxis]
    return centres


def weighted_inertia(points: FloatArray, weights: FloatArray, centres: FloatArray) -> float:
    """Return Σ w·‖z − c‖² of weighted points in memory and their nearest centres.

    Parameters
    ----------
    points : float64 array of shape (n_points, n_components)
    weights : float64 array of shape (n_points,)
    centres : float64 array of shape (n_clusters, n_components)
    """
    with using_threads(1):
        least = _scores(points, centres).min(axis=1)
    apart = points - centres.mean(axis=0)
    return float(weights @ (least + np.einsum("ij,ij->i", apart, apart)))


def _scores(points: FloatArray, centres: FloatArray) -> FloatArray:
    """Return ‖z − c‖² less ‖z − m‖², m the mean of the centres, shape (n_points, n_clusters)."""
    middle = centres.mean(axis=0)
    apart = centres - middle
    scores: FloatArray = -2.0 * ((points - middle) @ apart.T) + np.square(apart).sum(axis=1)
    return scores
