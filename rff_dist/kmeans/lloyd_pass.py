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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Rows
from rff_dist.errors import DataError
from rff_dist.features.feature_map import FeatureMap
from rff_dist.kmeans.cluster_sums import (
    _LEAST_ROWS,
    EQUAL,
    Centres,
    ClusterSums,
    _tile_rows,
    factors_of,
    largest_squared_norm,
    same_squared_norm,
    visit_tiles,
)
from rff_dist.numerics.screening import LANES, Screen, screen_of
from rff_dist.numerics.threads import SpareMemory
from rff_dist.typing import FloatArray, IntArray

_SCREENED_SHARE = 1 / 12  # of centres; to compare as many again takes what bytes save
_COMPILER_BYTES = 160 * 2**20  # Numba and its machine code, measured 105 MiB and, while it compiles, 160
_BATCH_STREAM = 2**35 + 2**30


# -- tiles -----------------------------------------------------------------------------------------


def pass_bytes(n_components: int, n_columns: int, *, n_threads: int, n_blocks: int) -> int:
    """Return the bytes that a Lloyd pass takes at its peak in one process, beside the inputs of a block.

    `n_columns`: centres of all starts.
    `n_blocks`: whose partials are merged pairwise.
    """
    sums = 8 * n_columns * (n_components + 1)
    tile = _tile_rows(n_components, n_columns) * 8 * (2 * n_components + n_columns) + sums
    held = math.ceil(math.log2(max(1, n_blocks))) + 2
    copies_of_centres = 5  # as given, apart from their middle, as weights in float64 and float32, and pickled
    return _COMPILER_BYTES + sums * (held + copies_of_centres) + n_threads * tile


@dataclass(frozen=True, slots=True, eq=False)
class Nearest:
    """The nearest centres of a tile's rows, and how sure they are.

    `labels`: int array of shape (n_init, n_rows). Index of the nearest centre; ties go to the lowest.
    `distances`: float array of shape (n_init, n_rows). No ‖z − c‖ of the nearest centre is larger; infinity
      where float32 did not tell it from another.
    `rivals`: int array of shape (n_init, n_rows). Index of the second nearest centre.
    `rival_margins`: float array of shape (n_init, n_rows). By how much its ‖z − c‖² is larger than the least.
    `margins`: float array of shape (n_init, n_groups, n_rows). ‖z − c‖² of none of the other centres of a
      group is nearer to the least one than this.
    """

    labels: NDArray[np.int32]
    distances: NDArray[Any]
    rivals: NDArray[np.int32]
    rival_margins: NDArray[Any]
    margins: NDArray[Any]


class Addition(NamedTuple):
    """What rows are added to; from `Tally.adding`.

    `weights`: float64 array of shape (n_rows,). At most 1.
    `units`: float64 array of shape (n_components,). What brings features to at most 1.
    `shift`: 1.5 times the power of two whose last bit is the grid's unit.
    `former`: int32 array of shape (n_init, n_rows). Clusters that rows are taken from; −1 for none.
    `features`, `totals`: int64 arrays. The sums, changed.
    """

    weights: FloatArray
    units: FloatArray
    shift: float
    former: NDArray[np.int32]
    features: IntArray
    totals: IntArray


class Scorer:
    """Scores of a tile's rows for the centres of all starts: squared distances but for what a row has alone.

    ‖z − c‖² = ‖z‖² + ‖m‖² − 2z·m + score, where m is the mean of a start's centres and the score is
    −2z·(c − m) + ‖c‖² − ‖m‖². Centres that are close to each other then have small scores, and small errors.

    `dtype`: of features and scores.
    `tolerance`: scores that differ by no more are settled in float64; two scores' errors are smaller
      together.
    """

    def __init__(self, state: Centres) -> None:
        self.n_init, self.n_clusters, n_components = state.values.shape
        single = state.feature_map.single_precision and not state.precise
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
        self._middles = -2.0 * factors * middle[:, 0], middle_norms
        self._narrow_weights = np.concatenate([self._weights, self._middles[0]]).astype(self.dtype)
        self._narrow_offsets = np.concatenate([self._offsets, middle_norms]).astype(self.dtype)
        self._squares: NDArray[Any] = np.square(factors).astype(self.dtype)
        self._norm = same_squared_norm(state.feature_map) if single else None  # float64 tells them apart
        self._largest = largest = largest_squared_norm(state.feature_map, state.grid)
        self._units = state.grid.units(n_components)
        same = state.feature_map.squared_norm if not state.grid.exponents else None
        self._reach = math.sqrt(n_components if same is None else same)
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
        if self._norm is not None:
            self._distance_tolerance += largest - self._norm
        for offsets in (self._offsets, self._narrow_offsets[: present.size]):
            offsets[~present.ravel()] = np.inf
        self._spare = SpareMemory()
        self._screened = True  # as long as it leaves few centres

    @cached_property
    def _screen(self) -> Screen | None:
        """Return what most centres are told apart with, where the processor is made for it."""
        from rff_dist.numerics import compiled

        if not compiled.has_byte_products():
            return None
        shape = self.n_init, self.n_clusters
        return screen_of(
            self._weights.reshape(*shape, -1),
            self._offsets.reshape(shape),
            *self._middles,
            largest=self._units,
            reach=self._reach,
            tolerance=self._settled_tolerance,
        )

    def labels(self, features: NDArray[Any], addition: Addition | None = None) -> NDArray[np.int32]:
        """Return the index of each row's nearest centre of each start, shape (n_init, n_rows).

        What bytes or float32 cannot tell apart is settled in float64; of what float64 cannot, the lowest is
        taken.

        `features`: array of shape (n_rows, n_components).
        `addition`: what the rows are added to, with their labels.
        Raises DataError if features overflow.
        """
        labels = self._labels_by_bytes(features) if self._screened else None
        if labels is None:
            labels = self._search(features, 0, middles=False)[0].labels
        if addition is not None:
            _add(features, labels, addition)
        return labels

    def _labels_by_bytes(self, features: NDArray[Any]) -> NDArray[np.int32] | None:
        """Find the nearest centres as `_search` does; return None where bytes cannot hold what is needed."""
        if self._screen is None:
            return None
        from rff_dist.numerics import compiled

        labels = np.empty((self.n_init, len(features)), np.int32)
        n_compared = compiled.label_rows_by_bytes(
            np.ascontiguousarray(features),
            self._screen,
            self._weights,
            self._offsets,
            self._settled_tolerance,
            labels,
        )
        self._judge(n_compared, labels.size)
        return labels if n_compared >= 0 else None

    def _judge(self, n_compared: int, n_labels: int) -> None:
        """Give bytes up for the pass where they leave too many centres."""
        if n_compared > _SCREENED_SHARE * n_labels * self.n_clusters:
            self._screened = False

    def nearest(self, features: NDArray[Any], n_groups: int, addition: Addition | None = None) -> Nearest:
        """Do what `labels` does, and say how sure it is; centre k is of group k modulo `n_groups`."""
        found = self._nearest_by_bytes(features, n_groups) if self._screened else None
        if found is None:
            found, middles = self._search(features, n_groups, middles=True)
            found.distances[...] += middles
            found.distances[found.rival_margins <= self.tolerance] = np.inf
        if addition is not None:
            _add(features, found.labels, addition)
        distances = found.distances
        distances += self._norms(features)
        np.maximum(distances, 0.0, out=distances)
        distances += self._distance_tolerance
        np.sqrt(distances, out=distances)
        return found

    def _nearest_by_bytes(self, features: NDArray[Any], n_groups: int) -> Nearest | None:
        """Do what `_labels_by_bytes` does, with margins; `distances` are squared, without the norms."""
        if self._screen is None or n_groups != min(self.n_clusters, LANES):
            return None
        from rff_dist.numerics import compiled

        shape = self.n_init, len(features)
        labels, rivals = np.empty((2, *shape), np.int32)
        best, gaps = np.empty((2, *shape), self.dtype)
        margins = np.empty((*shape, n_groups), self.dtype)
        exact = self._weights, self._offsets, self._settled_tolerance
        n_compared = compiled.find_nearest_by_bytes(
            np.ascontiguousarray(features), self._screen, *exact, best, gaps, labels, rivals, margins
        )
        self._judge(n_compared, labels.size)
        return Nearest(labels, best, rivals, gaps, margins.transpose(0, 2, 1)) if n_compared >= 0 else None

    def _search(
        self, features: NDArray[Any], n_groups: int, *, middles: bool
    ) -> tuple[Nearest, NDArray[Any]]:
        """Find the nearest centres; return the least scores as `distances`, and ‖m‖² − 2z·m if asked."""
        from rff_dist.numerics import compiled

        features = features.astype(self.dtype, copy=False)
        n_rows, n_centres = len(features), self.n_init * self.n_clusters
        n_lines = n_centres + (self.n_init if middles else 0)
        buffer = self._spare.take(n_lines * n_rows, self.dtype)
        products = buffer[: n_lines * n_rows].reshape(n_lines, n_rows)
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            np.matmul(self._narrow_weights[:n_lines], features.T, out=products)
            from_middles = products[n_centres:] + self._narrow_offsets[n_centres:n_lines, np.newaxis]
        labels, rivals = np.empty((2, self.n_init, n_rows), np.int32)
        best, gaps = np.empty((2, self.n_init, n_rows), self.dtype)
        margins = np.empty((self.n_init, n_groups, n_rows), self.dtype)
        compiled.label_rows(
            features,
            products[:n_centres],
            self._narrow_offsets[:n_centres],
            self._weights,
            self._offsets,
            self.tolerance,
            self._settled_tolerance,
            best,
            gaps,
            labels,
            rivals,
            margins,
        )
        self._spare.give(buffer)
        if not np.isfinite(best).all():  # what is not finite in a row's features is in all its scores
            raise _not_finite()
        return Nearest(labels, best, rivals, gaps, margins), from_middles

    def _norms(self, features: NDArray[Any]) -> Any:
        """Return ‖z‖² of each row, whose bits are its own, or what it is for all."""
        if self._norm is not None:
            return self.dtype(self._norm)
        features = features.astype(self.dtype, copy=False)
        return np.einsum("ij,ij,j->i", features, features, self._squares)

    def least(self, features: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Return the first start's nearest centre of each row, the lowest of equals, and its ‖z − c‖².

        Both of shape (n_rows,). What rounding can make of 0 is 0. A row's bits are its own.
        """
        from rff_dist.numerics import compiled

        n_rows = len(features)
        products = self._products_of_panels(features)
        best = np.empty_like(products[:, 0])
        labels = np.empty(best.shape, np.int32)
        compiled.find_least(products, self._narrow_offsets[: self.n_clusters], best, labels)
        distances = (best + products[:, -self.n_init]).ravel()[:n_rows]
        distances += self._narrow_offsets[-self.n_init] + self._norms(features)
        distances[distances <= max(EQUAL * self._largest, self._distance_tolerance)] = 0.0
        return labels.ravel()[:n_rows], distances

    def squared_distances(self, features: NDArray[Any]) -> NDArray[Any]:
        """Return ‖z − c‖² for the first start's centres, shape (n_rows, n_clusters), not below 0.

        A row's bits are its own.
        """
        products = self._products_of_panels(features) + self._narrow_offsets[:, np.newaxis]
        scores = products.transpose(0, 2, 1).reshape(-1, products.shape[1])[: len(features)]
        distances: NDArray[Any] = scores[:, : self.n_clusters]
        distances += (self._norms(features) + scores[:, -self.n_init])[:, np.newaxis]
        np.maximum(distances, 0.0, out=distances)
        return distances

    def _products_of_panels(self, features: NDArray[Any]) -> NDArray[Any]:
        """Return scores without offsets, shape (n_panels, n_lines, height), those of the middles last.

        Panels have the same height, the last one is padded: a product's rounding depends on its shape.

        Raises DataError if features overflow.
        """
        n_rows, n_components = features.shape
        features = features.astype(self.dtype, copy=False)
        height = min(_LEAST_ROWS, _tile_rows(n_components, self.n_clusters))  # 64 are a fifth slower than 256
        if n_rows % height:
            features = np.concatenate([features, np.zeros((-n_rows % height, n_components), self.dtype)])
        panels = features.reshape(-1, height, n_components)
        with np.errstate(over="ignore", invalid="ignore"):
            products: NDArray[Any] = self._narrow_weights @ panels.transpose(0, 2, 1)
        if not np.isfinite(products[:, -1]).all():
            raise _not_finite()
        return products


def _add(features: NDArray[Any], labels: NDArray[np.int32], addition: Addition) -> None:
    from rff_dist.numerics import compiled

    compiled.add_rows(features, *addition[:3], labels, *addition[3:])


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

    def add(first: int, features: NDArray[Any]) -> None:
        own = weights[first : first + len(features)]
        with tally.adding(own) as addition:
            scorer.labels(features, addition)
        tally.add_squares(features, own)

    n_columns = scorer.n_init * scorer.n_clusters
    visit_tiles(rows, state.feature_map, add, n_columns=n_columns)
    return tally.sums(rows.block.n_samples)


class Tally:
    """Adds up the rows of a block by cluster, as integers; threads may share it.

    `squared_norms`: whether to add up ‖z‖² too.
    """

    def __init__(self, state: Centres, *, squared_norms: bool = False) -> None:
        self._grid = grid = state.grid
        self._shape = state.values.shape
        D = self._shape[2]
        self._units = 1.0 / grid.units(D)
        self._norm_factors: FloatArray | None = None
        if squared_norms:
            factors = factors_of(state.feature_map) * grid.units(D)
            self._norm_factors = np.square(factors) / largest_squared_norm(state.feature_map, grid)
        self._squared_norms = 0
        self._lock = Lock()
        self._parts: list[tuple[IntArray, IntArray]] = []  # sums so far, as many as threads add at once

    @contextmanager
    def adding(self, weights: FloatArray, former: NDArray[np.int32] | None = None) -> Iterator[Addition]:
        """Give what some rows are to be added to.

        `weights`: float64 array of shape (n_rows,). From the grid's `scaled`.
        `former`: int32 array of shape (n_init, n_rows). Clusters that rows are taken from.
        """
        shift = 1.5 * 2.0 ** (52 - self._grid.fraction_bits)
        nowhere = np.full((self._shape[0], len(weights)), -1, np.int32) if former is None else former
        part = self._take()
        try:
            yield Addition(weights, self._units, shift, nowhere, *part)
        finally:
            with self._lock:
                self._parts.append(part)

    def _take(self) -> tuple[IntArray, IntArray]:
        with self._lock:
            if self._parts:
                return self._parts.pop()
        return np.zeros(self._shape, np.int64), np.zeros(self._shape[:2], np.int64)

    def add_squares(self, features: NDArray[Any], weights: FloatArray) -> None:
        """Add a tile's rows to the sum of ‖z‖², where it was asked for."""
        if self._norm_factors is None:
            return
        lines = features * self._units
        ratios = np.einsum("ij,ij,j->i", lines, lines, self._norm_factors)  # a row's sum is its own
        squares = int(np.rint(np.ldexp(ratios * weights, self._grid.fraction_bits)).astype(np.int64).sum())
        with self._lock:
            self._squared_norms += squares

    def sums(self, n_samples: int) -> ClusterSums:
        """Return the sums of that many rows."""
        features, totals = self._take()
        for part in self._parts:
            features += part[0]
            totals += part[1]
        return ClusterSums(n_samples, features, totals, self._squared_norms)


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
    scorer = Scorer(replace(state, precise=True))
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
