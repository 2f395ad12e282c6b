"""K-means in features, one block of rows at a time: pure NumPy, no Dask and no Zarr.

A Lloyd pass makes the features of a tile, finds each row's nearest centre by one product with the centres of
all starts, and adds the rows up cluster by cluster as integers. So the sums have the same bits in any order,
and labels that stay give sums that stay: centres that do not move are the same numbers, not nearly so.

References
----------
Lloyd (1982), Least squares quantization in PCM.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from rff_dist.data.blocks import Rows
from rff_dist.errors import DataError
from rff_dist.features.feature_map import FeatureMap
from rff_dist.kmeans.cluster_sums import (
    EQUAL,
    Centres,
    ClusterSums,
    factors_of,
    largest_squared_norm,
    tile_rows,
    visit_tiles,
)
from rff_dist.typing import FloatArray

_PANEL_ROWS = 64  # of a product: its rounding depends on its shape
_BATCH_STREAM = 2**35 + 2**30


# -- scores ----------------------------------------------------------------------------------------


def pass_bytes(n_components: int, n_columns: int, *, n_threads: int, n_blocks: int) -> int:
    """Return the bytes that a Lloyd pass takes at its peak in one process, beside the inputs of a block.

    `n_columns`: centres of all starts.
    `n_blocks`: whose partials are merged pairwise.
    """
    sums = 8 * n_columns * (n_components + 1)
    tile = tile_rows(n_components, n_columns) * 8 * (3 * n_components + 2 * n_columns) + sums
    held = math.ceil(math.log2(max(1, n_blocks))) + 2
    copies_of_centres = 3  # as given, as weights, and pickled
    return sums * (held + copies_of_centres) + n_threads * tile


class Scorer:
    """Scores of a tile's rows for the centres of all starts: ‖z − c‖² − ‖z‖², in float64.

    `tolerance`: scores that differ by no more are equal, since their rounding is larger together.
    """

    def __init__(self, state: Centres) -> None:
        self.n_init, self.n_clusters, n_components = state.values.shape
        factors = factors_of(state.feature_map)
        self._weights = np.ascontiguousarray((-2.0 * factors * state.values).reshape(-1, n_components).T)
        self._squares = np.square(factors)
        self._offsets = np.square(state.values).sum(axis=2).ravel()
        self._largest = largest_squared_norm(state.feature_map, state.grid)
        reach = 2.0 * math.sqrt(self._largest * self._offsets.max(initial=0.0)) + self._offsets.max(
            initial=0.0
        )
        # sums of D rounded products: √D roundings of the largest a sum can be, for each of two scores
        # (Higham & Mary 2019 on why √D)
        self.tolerance = 2.0 * math.sqrt(n_components) * float(np.finfo(np.float64).eps) * reach
        self._offsets[~state.present.ravel()] = np.inf

    def labels(self, features: FloatArray) -> NDArray[np.intp]:
        """Return the index of each row's nearest centre of each start, shape (n_init, n_rows).

        Of centres that rounding cannot tell apart, the lowest is taken.

        `features`: float64 array of shape (n_rows, n_components).
        Raises DataError if features overflow.
        """
        return self._lowest(self._scores(features).reshape(len(features), self.n_init, self.n_clusters)).T

    def _lowest(self, scores: FloatArray) -> NDArray[np.intp]:
        """Return the first of the least numbers along the last axis."""
        least = scores.min(axis=-1, keepdims=True)
        return np.asarray((scores <= least + self.tolerance).argmax(axis=-1))

    def least(self, features: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
        """Return the first start's nearest centre of each row, the lowest of equals, and its ‖z − c‖².

        Both of shape (n_rows,). What rounding can make of 0 is 0. A row's bits are its own.
        """
        distances = self.squared_distances(features)
        distances[distances <= EQUAL * self._largest] = 0.0
        labels = self._lowest(distances)
        return labels, np.take_along_axis(distances, labels[:, np.newaxis], 1)[:, 0]

    def squared_distances(self, features: FloatArray) -> FloatArray:
        """Return ‖z − c‖² for the first start's centres, shape (n_rows, n_clusters), not below 0.

        A row's bits are its own.
        """
        distances = self._scores(features)[:, : self.n_clusters]
        distances += np.einsum("ij,ij,j->i", features, features, self._squares)[:, np.newaxis]
        return np.maximum(distances, 0.0, out=distances)

    def _scores(self, features: FloatArray) -> FloatArray:
        """Return the scores, shape (n_rows, n_init · n_clusters).

        Panels of rows have the same height, and the last one is padded: a product's rounding depends on its
        shape.

        Raises DataError if features overflow.
        """
        n_rows, n_components = features.shape
        missing = -n_rows % _PANEL_ROWS
        if missing:
            features = np.concatenate([features, np.zeros((missing, n_components))])
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            scores = features.reshape(-1, _PANEL_ROWS, n_components) @ self._weights
        scores = scores.reshape(len(features), -1)[:n_rows]
        if not np.isfinite(scores[:, 0]).all():  # what is not finite in a row's features is in all its scores
            raise _not_finite()
        scores += self._offsets
        return scores


def _not_finite() -> DataError:
    return DataError("features of some rows are not finite: their inputs overflow; standardise them")


@lru_cache(maxsize=1)
def scorer_of(state: Centres) -> Scorer:
    """Return the scorer that all blocks of a pass share in a process."""
    return Scorer(state)


# -- passes ----------------------------------------------------------------------------------------


def sum_clusters(rows: Rows, state: Centres, *, squared_norms: bool = False) -> ClusterSums:
    """Sum a block's rows by their nearest centres: one Lloyd pass of all starts.

    O(n_samples · n_components · (n_features + n_init · n_clusters)). The sums do not depend on how rows are
    cut into blocks, except for whitened maps, whose features round.

    `squared_norms`: whether to add up ‖z‖² too, which does not depend on the centres.
    Raises DataError if a value is not finite or a weight negative.
    """
    scorer, tally = scorer_of(state), Tally(state, squared_norms=squared_norms)
    weights = state.grid.scaled(rows.sample_weight, rows.block.n_samples)

    def add(first: int, features: FloatArray) -> None:
        tally.add(features, scorer.labels(features), weights[first : first + len(features)])

    visit_tiles(rows, state.feature_map, add, n_columns=scorer.n_init * scorer.n_clusters)
    return tally.sums(rows.block.n_samples)


class Tally:
    """Adds up the rows of a block by cluster, as integers; threads may share it.

    `squared_norms`: whether to add up ‖z‖² too.
    """

    def __init__(self, state: Centres, *, squared_norms: bool = False) -> None:
        self._bits = state.grid.fraction_bits
        self._shape = state.values.shape
        n_init, n_clusters, D = self._shape
        self._units = 1.0 / state.grid.units(D)
        self._norm_factors: FloatArray | None = None
        if squared_norms:
            squares = np.square(factors_of(state.feature_map))
            self._norm_factors = squares / largest_squared_norm(state.feature_map, state.grid)
        self._features = np.zeros((n_init * n_clusters, D), np.int64)
        self._totals = np.zeros(n_init * n_clusters, np.int64)
        self._squared_norms = 0
        self._lock = Lock()

    def add(self, features: FloatArray, labels: NDArray[np.intp], weights: FloatArray) -> None:
        """Add the rows of a tile.

        `features`: float64 array of shape (n_rows, n_components).
        `labels`: int array of shape (n_init, n_rows).
        `weights`: float64 array of shape (n_rows,). From the grid's `scaled`.
        """
        members = _members_of(labels, self._shape[1])
        counts = np.ldexp(weights, self._bits)
        sums = members @ np.rint(features * self._units * counts[:, np.newaxis]).astype(np.int64)
        totals = members @ np.rint(counts).astype(np.int64)
        squared_norms = 0
        if self._norm_factors is not None:
            # a row's sum is its own
            ratios = np.einsum("ij,ij,j->i", features, features, self._norm_factors)
            squared_norms = int(np.rint(ratios * counts).astype(np.int64).sum())
        with self._lock:
            self._features += sums
            self._totals += totals
            self._squared_norms += squared_norms

    def sums(self, n_samples: int) -> ClusterSums:
        """Return the sums of that many rows."""
        shape = self._shape
        return ClusterSums(
            n_samples, self._features.reshape(shape), self._totals.reshape(shape[:2]), self._squared_norms
        )


def _members_of(labels: NDArray[np.intp], n_clusters: int) -> scipy.sparse.csr_array:
    """Return which rows belong to each cluster of each start: ones, shape (n_init · n_clusters, n_rows)."""
    n_init, n_rows = labels.shape
    columns = (labels + n_clusters * np.arange(n_init)[:, np.newaxis]).ravel()
    order = np.argsort(columns, kind="stable") % n_rows
    ends = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=n_init * n_clusters))])
    return scipy.sparse.csr_array(
        (np.ones(len(order), np.int64), order, ends), shape=(n_init * n_clusters, n_rows)
    )


def measure_tiles(rows: Rows, feature_map: FeatureMap) -> FloatArray:
    """Return the largest absolute value of each tile feature in a block, shape (n_components,).

    Raises DataError if a value is not finite.
    """
    largest, lock = np.zeros(feature_map.n_components), Lock()

    def measure(_: int, features: NDArray[Any]) -> None:
        reach = np.abs(features).max(axis=0)
        with lock:
            np.maximum(largest, reach, out=largest)

    visit_tiles(rows, feature_map, measure)
    if not np.isfinite(largest).all():
        raise _not_finite()
    return largest


def label_rows(rows: Rows, state: Centres) -> NDArray[np.int32]:
    """Return the index of each row's nearest centre of the first start, the lowest of equals.

    Raises DataError if X has another number of columns, or holds NaN or infinity.
    """
    scorer = Scorer(state)
    labels = np.empty(rows.block.n_samples, np.int32)

    def label(first: int, features: NDArray[Any]) -> None:
        labels[first : first + len(features)] = scorer.labels(features)[0]

    visit_tiles(
        replace(rows, sample_weight=None),
        state.feature_map,
        label,
        n_columns=state.values.shape[1],
    )
    return labels


def centre_distances(rows: Rows, state: Centres) -> FloatArray:
    """Return ‖z − c‖ for the centres of the first start, shape (n_samples, n_clusters), in float64.

    Raises DataError as `label_rows`.
    """
    scorer = Scorer(state)
    distances = np.empty((rows.block.n_samples, state.values.shape[1]))

    def measure(first: int, features: NDArray[Any]) -> None:
        np.sqrt(scorer.squared_distances(features), out=distances[first : first + len(features)])

    visit_tiles(
        replace(rows, sample_weight=None),
        state.feature_map,
        measure,
        n_columns=state.values.shape[1],
    )
    return distances


@dataclass(frozen=True, slots=True, eq=False)
class Minibatch:
    """The state of a step on a few rows of some blocks.

    `n_rows`: of each block; all of one that has no more.
    `seed`, `step`: they decide which rows, with the rows' numbers.
    """

    centres: Centres
    n_rows: int
    seed: int
    step: int

    def digest(self) -> str:
        """Return the feature map's digest: what every worker must agree on."""
        return self.centres.digest()


def sum_batch(rows: Rows, state: Minibatch) -> ClusterSums:
    """Sum some seeded rows of a block by their nearest centres, as `sum_clusters` does.

    Raises DataError if a value is not finite or a weight negative.
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


def row_uniforms(seed: int, stream: int, start: int, stop: int) -> FloatArray:
    """Return a uniform number in (0, 1) for each row, a function of (seed, stream, row) alone."""
    counter = start // 4  # Philox4x64 makes four words a counter step
    philox = np.random.Philox(key=np.array([seed, stream], np.uint64), counter=counter)
    words = philox.random_raw(stop - 4 * counter)[start - 4 * counter :]
    return (np.asarray(words >> np.uint64(12), np.float64) + 0.5) * 2.0**-52
