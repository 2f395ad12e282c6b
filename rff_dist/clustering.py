"""K-means in features, one block of rows at a time: pure NumPy, no Dask and no Zarr.

A Lloyd pass makes the features of a tile, finds each row's nearest centre by one product with the centres of
all starts, and adds the rows up cluster by cluster as integers. So the sums have the same bits in any order,
and labels that stay give sums that stay: centres that do not move are the same numbers, not nearly so.

References
----------
Lloyd (1982); Arthur & Vassilvitskii (2007), k-means++; Bahmani, Moseley, Vattani, Kumar & Vassilvitskii
(2012), Scalable k-means++; Efraimidis & Spirakis (2006), weighted sampling in one pass.
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

from rff_dist.blocks import Rows, check_finite, share_out, using_threads
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
    """

    feature_map: FeatureMap
    values: FloatArray
    grid: ClusterGrid
    precise: bool = False

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


def _visit_tiles(
    rows: Rows,
    feature_map: FeatureMap,
    visit: Callable[[int, NDArray[Any]], None],
    *,
    dtype: type[np.floating[Any]],
    n_columns: int = 1,
) -> None:
    """Call `visit(first row, features)` with each tile of a block; threads share out the tiles.

    Features are of shape (n_components, n_rows), unnormalised, or Z for a whitened map. They are
    overwritten when `visit` has returned.

    Raises
    ------
    DataError
        If X has another number of columns, or holds NaN or infinity.
    """
    inputs = feature_map.prepare(rows.X)
    check_finite(replace(rows, y=None), inputs)
    D = feature_map.n_components
    height = min(_tile_rows(D, n_columns), max(1, len(inputs)))
    whitener, scales = feature_map.whitener, expand(feature_map.scales)
    spare: list[NDArray[Any]] = []

    def work(first: int) -> None:
        tile = inputs[first : first + height]
        buffer = spare.pop() if spare else np.empty((D, height + _PAD), dtype)
        features = buffer[:, : len(tile)]
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by the scores
            for start, stop in feature_map.stripes:
                feature_map.fill(tile, features[start:stop], start, stop)
            if whitener is not None:
                _whiten(features, whitener, scales)
        visit(first, features)
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


class _Scorer:
    """Scores of a tile's rows for the centres of all starts: squared distances but for what a row has alone.

    ‖z − c‖² = ‖z‖² + ‖m‖² − 2z·m + score, where m is the mean of a start's centres and the score is
    −2z·(c − m) + ‖c‖² − ‖m‖². Centres that are close to each other then have small scores, and small errors.
    """

    def __init__(self, state: Centres) -> None:
        self.n_init, self.n_clusters, n_components = state.values.shape
        single = _is_single(state.feature_map) and not state.precise
        self.dtype: type[np.floating[Any]] = np.float32 if single else np.float64
        factors = factors_of(state.feature_map)
        self._middle = state.values.mean(axis=1, keepdims=True)
        apart = state.values - self._middle
        self._weights = (-2.0 * factors * apart).reshape(-1, n_components)
        # ‖c‖² − ‖m‖² without the cancellation
        self._offsets = (apart * (apart + 2.0 * self._middle)).sum(axis=2).ravel()
        self._narrow_weights = self._weights.astype(self.dtype)
        self._narrow_offsets = self._offsets.astype(self.dtype)
        self._squares = np.square(factors).astype(self.dtype)
        self._centre_middle = (-2.0 * factors * self._middle[0, 0]).astype(self.dtype)
        self._middle_norm = float(np.square(self._middle[0, 0]).sum())
        largest = largest_squared_norm(state.feature_map, state.grid)
        lengths = np.linalg.norm(apart, axis=2).max(initial=0.0)
        # sums of D rounded products: √D roundings of the largest a sum can be, for each of two scores
        # (Higham & Mary 2019 on why √D); measured errors are below a tenth of it
        reach = 2.0 * math.sqrt(n_components) * (2.0 * math.sqrt(largest) * lengths)
        reach += 4.0 * float(np.abs(self._offsets).max(initial=0.0))
        self.tolerance = float(np.finfo(self.dtype).eps) * reach
        self._settled_tolerance = float(np.finfo(np.float64).eps) * reach
        self.nothing = max(_EQUAL * largest, self.tolerance if single else 0.0)
        self._spare: list[NDArray[Any]] = []

    def scores(self, features: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return scores of shape (n_rows, n_init · n_clusters).

        Raises
        ------
        DataError
            If features overflow.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            scores: NDArray[Any] = np.matmul(features.T, self._narrow_weights.T, out=out)
            scores += self._narrow_offsets
        if not np.isfinite(scores[:, 0]).all():
            raise DataError("features of some rows are not finite: their inputs overflow; standardise them")
        return scores

    def nearest(self, features: NDArray[Any]) -> NDArray[np.intp]:
        """Return the index of each row's nearest centre, shape (n_rows, n_init); ties go to the lowest.

        What float32 cannot tell apart is settled in float64, and what float64 cannot is a tie.
        """
        shape = features.shape[1], len(self._weights)
        buffer = self._spare.pop() if self._spare else np.empty(shape, self.dtype)
        if len(buffer) < len(features.T):
            buffer = np.empty(shape, self.dtype)
        grouped = self.scores(features, buffer[: shape[0]]).reshape(-1, self.n_init, self.n_clusters)
        labels = grouped.argmin(axis=2)
        if self.n_clusters == 1:
            return labels
        index = labels[..., np.newaxis]
        best = np.take_along_axis(grouped, index, 2)[..., 0]
        np.put_along_axis(grouped, index, np.inf, 2)
        close = np.flatnonzero((grouped.min(axis=2) <= best + self.tolerance).any(axis=1))
        for first in range(0, len(close), _PANEL_ROWS):
            some = close[first : first + _PANEL_ROWS]
            labels[some] = self._settle(features[:, some])
        self._spare.append(buffer)
        return labels

    def _settle(self, features: NDArray[Any]) -> NDArray[np.intp]:
        panel = np.zeros((len(features), _PANEL_ROWS))
        panel[:, : features.shape[1]] = features
        scores = (self._weights @ panel + self._offsets[:, np.newaxis]).reshape(
            self.n_init, self.n_clusters, _PANEL_ROWS
        )
        least = scores.min(axis=1, keepdims=True)
        labels: NDArray[np.intp] = (scores <= least + self._settled_tolerance).argmax(axis=1)
        return labels[:, : features.shape[1]].T

    def squared_distances(self, features: NDArray[Any]) -> NDArray[Any]:
        """Return ‖z − c‖² for the first start's centres, shape (n_rows, n_clusters), not below 0."""
        distances = self.scores(features)
        own = self._squares @ np.square(features) + self._centre_middle @ features
        distances += (own + self.dtype(self._middle_norm))[:, np.newaxis]
        np.maximum(distances, 0.0, out=distances)
        return distances


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
    scorer, grid, feature_map = _Scorer(state), state.grid, state.feature_map
    n_init, n_clusters, D = state.values.shape
    weights = None if rows.sample_weight is None else np.ldexp(rows.sample_weight, -grid.weight_exponent)
    units = 1.0 / grid.units(D) if grid.exponents else None
    norm_factors = None
    if squared_norms:
        factors = factors_of(feature_map) * grid.units(D)
        norm_factors = np.square(factors) / largest_squared_norm(feature_map, grid)
    totals = ClusterSums(
        rows.block.n_samples,
        np.zeros((n_init, n_clusters, D), np.int64),
        np.zeros((n_init, n_clusters), np.int64),
        0,
    )
    flat, norms, lock = totals.features.reshape(-1, D), [0], Lock()
    spare: list[FloatArray] = []

    def add(first: int, features: NDArray[Any]) -> None:
        n_rows = features.shape[1]
        labels = scorer.nearest(features) + n_clusters * np.arange(n_init)
        own = None if weights is None else weights[first : first + n_rows]
        buffer = spare.pop() if spare else np.empty((n_rows, D))
        lines = buffer[:n_rows] if len(buffer) >= n_rows else np.empty((n_rows, D))
        squares = _round_lines(features, lines, grid, units=units, weights=own, norm_factors=norm_factors)
        sums = _group_sums(labels, lines, n_init * n_clusters)
        sums *= 2.0**grid.fraction_bits
        counts = _round_weights(labels, own, n_init * n_clusters, grid)
        with lock:
            np.add(flat, sums, out=flat, casting="unsafe", dtype=np.int64)
            totals.weights.ravel()[:] += counts
            norms[0] += squares
        spare.append(buffer)

    _visit_tiles(rows, feature_map, add, dtype=scorer.dtype, n_columns=n_init * n_clusters)
    return replace(totals, squared_norms=norms[0])


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


def _group_sums(labels: NDArray[np.intp], lines: FloatArray, n_groups: int) -> FloatArray:
    """Return the sum of the lines of each label, shape (n_groups, n_components), for all starts.

    A product with a sparse matrix of ones, which took a quarter of the time of a dense one at 100 clusters.
    """
    n_rows, n_init = labels.shape
    narrow = labels.astype(np.int16 if n_groups < 2**15 else np.int32)  # sorted by their digits
    order = np.concatenate([np.argsort(narrow[:, start], kind="stable") for start in range(n_init)])
    ends = np.concatenate([[0], np.cumsum(np.bincount(labels.ravel(), minlength=n_groups))])
    members = scipy.sparse.csr_array((np.ones(len(order)), order, ends), shape=(n_groups, n_rows))
    sums: FloatArray = members @ lines
    return sums


def _round_weights(
    labels: NDArray[np.intp], weights: FloatArray | None, n_groups: int, grid: ClusterGrid
) -> IntArray:
    """Return the sum of weights of each label, in units of the grid, shape (n_groups,)."""
    if weights is None:
        return np.bincount(labels.ravel(), minlength=n_groups) << np.int64(grid.fraction_bits)
    whole = np.repeat(np.rint(np.ldexp(weights, grid.fraction_bits)), labels.shape[1])
    return np.bincount(labels.ravel(), weights=whole, minlength=n_groups).astype(
        np.int64
    )  # exact below 2**53


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

    _visit_tiles(rows, feature_map, measure, dtype=np.float64)
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
    scorer = _Scorer(state)
    labels = np.empty(rows.block.n_samples, np.int32)

    def label(first: int, features: NDArray[Any]) -> None:
        labels[first : first + features.shape[1]] = scorer.nearest(features)[:, 0]

    _visit_tiles(
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
    scorer = _Scorer(replace(state, precise=True))
    distances = np.empty((rows.block.n_samples, state.values.shape[1]))

    def measure(first: int, features: NDArray[Any]) -> None:
        np.sqrt(scorer.squared_distances(features), out=distances[first : first + features.shape[1]])

    _visit_tiles(
        replace(rows, sample_weight=None),
        state.feature_map,
        measure,
        dtype=scorer.dtype,
        n_columns=state.values.shape[1],
    )
    return distances


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
    scorer, feature_map = _Scorer(state.centres), state.centres.feature_map
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

    _visit_tiles(rows, feature_map, choose, dtype=scorer.dtype, n_columns=state.centres.values.shape[1])
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
            middle = centres.mean(axis=0)
            apart = centres - middle
            scores = -2.0 * ((points - middle) @ apart.T) + np.square(apart).sum(axis=1)
            former, labels = labels, scores.argmin(axis=1)
            if np.array_equal(former, labels):
                break
            sums = _group_sums(labels[:, np.newaxis], points * weights[:, np.newaxis], len(centres))
            totals = np.bincount(labels, weights=weights, minlength=len(centres))
            filled = totals > 0
            centres = centres.copy()
            centres[filled] = sums[filled] / totals[filled, np.newaxis]
    return centres
