"""K-means in features, one block of rows at a time: pure NumPy, no Dask and no Zarr.

A block's rows and centres go in; the sums of the rows nearest to each centre come out.
A tile is a part of a block that fits into the processor's cache. A Lloyd pass makes the
features of a tile, finds each row's nearest centre by one product with the centres of
all starts, and sums the rows of each cluster as integers. So the sums have the same
bits in any order. If no label changes, neither do the sums, and centres that stay are
equal to the bit.

References
----------
Lloyd (1982), Least squares quantization in PCM.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock

import numpy as np
import scipy
from numpy.typing import NDArray

from rff_dist.data import blocks
from rff_dist.features import maps
from rff_dist.kmeans import nearest
from rff_dist.kmeans.cluster_sums import (
    ClusterState,
    ClusterSums,
    factors_of,
    has_whole_features,
    largest_squared_norm,
)
from rff_dist.products import protocol
from rff_dist.typing import AnyArray, FloatArray, IndexArray


def pass_bytes(n_components: int, n_centres: int, *, n_threads: int) -> int:
    """Return the peak bytes of a Lloyd pass in one process, without a block's inputs.

    `n_centres` is the number of centres in all starts together.
    """
    sums = 8 * n_centres * (n_components + 1)
    # sums of the worker, of a run of blocks and of a block, and a result of adding two
    copies_of_sums = 4
    # centres as they are given, as the comparer's matrix, and pickled
    copies_of_centres = 3
    row = 8 * (3 * n_components + 2 * n_centres)
    tile = nearest.tile_rows(n_components, n_centres) * row + sums
    return sums * (copies_of_sums + copies_of_centres) + n_threads * tile


def sum_clusters(
    rows: blocks.Rows, state: ClusterState, *, with_norms: bool = False
) -> ClusterSums:
    """Sum the rows of a block nearest to each centre: one Lloyd pass of all starts.

    O(n_samples · n_components · (n_features + n_init · n_clusters)). The sums do not
    depend on how rows are cut into blocks, except for whitened maps, whose features
    round. With `with_norms`, ‖z‖² is summed too. Raises DataError if a value is not
    finite or a weight negative.
    """
    comparer = nearest.comparer_of(state)
    weights = rows.sample_weight
    tally = Tally(state, is_weighted=weights is not None, with_norms=with_norms)
    scaled = np.ldexp(rows.weights, -state.grid.weight_exponent)

    def add(first: int, features: AnyArray) -> None:
        here = slice(first, first + len(features))
        tally.add(features, comparer.labels(features), scaled[here])

    comparer.visit_rows(rows, add)
    return tally.sums(rows.block.n_samples)


class Tally:
    """Sums a block's rows by cluster as integers; threads may share it."""

    def __init__(
        self,
        state: ClusterState,
        *,
        is_weighted: bool = False,
        with_norms: bool = False,
    ) -> None:
        self._bits = state.grid.fraction_bits
        self._shape = state.centres.shape
        n_init, n_clusters, D = self._shape
        self._is_whole = has_whole_features(state.feature_map)
        # Sums of unweighted int16 features stay in their unit, 2⁻¹⁴, until the end.
        self._keeps_unit = self._is_whole and not is_weighted
        # features times these factors are at most 1
        self._to_one = 1.0 / state.grid.bounds(D)
        if self._is_whole:
            self._to_one = np.full(D, 2.0**-protocol.FIXED_POINT_BITS)
        self._norm_factors: FloatArray | None = None
        if with_norms:
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

        `weights`: shape (n_rows,), divided by the grid's largest weight.
        """
        members = members_of(labels, self._shape[1])
        counts = np.ldexp(weights, self._bits)
        totals = members @ np.rint(counts).astype(np.int64)
        if self._keeps_unit:
            sums = members @ features  # in int32: at most 2¹⁴ times the rows of a tile
        else:
            scaled = features * self._to_one * counts[:, np.newaxis]
            sums = members @ np.rint(scaled).astype(np.int64)
        squared_norms = 0
        if self._norm_factors is not None:
            scaled = features * self._to_one if self._is_whole else features
            # einsum, no product of matrices: a row's sum must not depend on other rows
            ratios = np.einsum("ij,ij,j->i", scaled, scaled, self._norm_factors)
            squared_norms = int(np.rint(ratios * counts).astype(np.int64).sum())
        with self._lock:
            self._features += sums
            self._totals += totals
            self._squared_norms += squared_norms

    def sums(self, n_samples: int) -> ClusterSums:
        """Return the sums of all rows that were added; `n_samples` is their number."""
        features = self._features
        if self._keeps_unit:
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

    nearest.visit_tiles(rows, feature_map, measure)
    if not np.isfinite(largest).all():
        raise maps.overflow()
    return largest


def label_rows(rows: blocks.Rows, state: ClusterState) -> NDArray[np.int32]:
    """Return each row's nearest centre in the first start; the first of equals.

    Raises DataError if X has the wrong number of columns, or holds NaN or infinity.
    """
    comparer = nearest.comparer_of(state)
    labels = np.empty(rows.block.n_samples, np.int32)

    def label(first: int, features: AnyArray) -> None:
        labels[first : first + len(features)] = comparer.labels(features)[0]

    # labels do not depend on weights, so wrong weights are no error here
    comparer.visit_rows(replace(rows, sample_weight=None), label)
    return labels


def centre_distances(rows: blocks.Rows, state: ClusterState) -> FloatArray:
    """Return ‖z − c‖ to the first start's centres, shape (n_samples, n_clusters).

    Raises as `label_rows`.
    """
    comparer = nearest.FloatComparer(state)
    distances = np.empty((rows.block.n_samples, state.centres.shape[1]))

    def measure(first: int, features: FloatArray) -> None:
        np.sqrt(
            comparer.all_squared_distances(features),
            out=distances[first : first + len(features)],
        )

    comparer.visit_rows(replace(rows, sample_weight=None), measure)
    return distances


def members_of(labels: IndexArray, n_clusters: int) -> scipy.sparse.csr_array:
    """Return a matrix with a one for each row in a cluster of a start, else 0.

    Its shape is (n_init · n_clusters, n_rows); labels have shape (n_init, n_rows). A
    product with it sums rows by cluster in 0.2 µs per row, and SciPy lets other threads
    run; `np.add.reduceat` on sorted rows takes 1.5 µs.
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
