"""Which centre is nearest to each row: tiles of features, compared with all centres.

A block's rows and the centres of all starts go in; the index of each row's nearest
centre comes out, or the squared distance to it. A plain `argmin` over a product of
matrices could give a row another centre, depending on the rows and threads that share
the product, since BLAS rounds differently then.

z is a row's features, c a centre; z·c − ‖c‖²/2 is their *affinity*. The nearest centre
has the largest affinity, since ‖z − c‖² = ‖z‖² − 2·affinity. K-means starts `n_init`
times from different centres, and all starts share a pass.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rff_dist.data import blocks
from rff_dist.features import fourier, maps
from rff_dist.kmeans.cluster_sums import (
    ClusterState,
    factors_of,
    has_whole_features,
    largest_squared_norm,
)
from rff_dist.numerics import exact_sums, machine, triangular
from rff_dist.products import protocol
from rff_dist.typing import EPS, AnyArray, Float32Array, FloatArray, IndexArray

# All float64 products that round have this height: rounding depends on their shape.
_PANEL_ROWS = 64
_COMPARED_ROWS = 512  # rows at a time, so that their affinities stay in the cache
_TILE_BYTES = 2**22  # limit for a tile's float64 features, and for its affinities
# A block is cut into tiles of `tile_rows`, between these two, and towards its end into
# smaller ones, so that all threads end at once.
_MIN_TILE_ROWS = 64
_MAX_TILE_ROWS = 2048
_LEAST_ROWS = 256  # of the smaller tiles, if `tile_rows` is not below that


# -- tiles


def tile_rows(n_components: int, n_centres: int) -> int:
    """Return the largest number of rows of a tile, a power of two."""
    rows = _TILE_BYTES // (8 * max(n_components, n_centres))
    power_of_two: int = 2 ** int(math.log2(max(1, rows)))
    return min(_MAX_TILE_ROWS, max(_MIN_TILE_ROWS, power_of_two))


def visit_tiles(
    rows: blocks.Rows,
    feature_map: maps.FeatureMap,
    receive: Callable[[int, AnyArray], None],
    *,
    n_centres: int = 1,
    is_whole: bool = False,
) -> None:
    """Call `receive(first row, features)` with each tile of a block; threads share the
    tiles.

    Features have shape (n_rows, n_components). Times the map's `scales` they are Z;
    those of a whitened map are Z as they are. They are float64, or with `is_whole` the
    int16 numbers of a map that `has_whole_features`. Their memory is reused after
    `receive` has returned. Tiles are padded to multiples of 64 rows, else BLAS would
    round the last rows differently, and a row's features would depend on the tile.

    Raises DataError if X has the wrong number of columns, or holds NaN or infinity.
    """
    inputs = feature_map.inputs_of(replace(rows, y=None))
    D = feature_map.n_components
    most = tile_rows(D, n_centres)
    tiles = machine.falling_tiles(
        len(inputs), most, multiple=_PANEL_ROWS, least=min(most, _LEAST_ROWS)
    )
    whitener = feature_map.whitener
    scales = exact_sums.expand(feature_map.scales)
    dtype: type = np.float64
    fill: Callable[[Float32Array, AnyArray], None] = feature_map.fill_rows
    if is_whole:
        assert isinstance(feature_map, fourier.FourierFeatureMap)
        dtype = np.int16
        fill = feature_map.fill_whole
    spare = machine.SpareMemory()

    def work(here: slice) -> None:
        tile = inputs[here]
        n_rows = len(tile)
        n_missing = -n_rows % _PANEL_ROWS
        if n_missing:
            tile = np.concatenate([tile, np.repeat(tile[-1:], n_missing, axis=0)])
        buffer = spare.take(len(tile) * D, dtype)
        features = buffer[: len(tile) * D].reshape(len(tile), D)
        # receivers refuse features that are not finite
        with np.errstate(over="ignore", invalid="ignore"):
            fill(tile, features)
            if whitener is not None:
                features *= scales
                # on one thread, since threads share the tiles already
                triangular.whiten_rows(features, whitener, machine.executor_of(1))
        receive(here.start, features[:n_rows])
        spare.give(buffer)

    machine.share_out(work, tiles)


# -- comparisons


@lru_cache(maxsize=1)
def comparer_of(state: ClusterState) -> Comparer:
    """Return what compares rows with these centres; all blocks of a pass share it."""
    if has_whole_features(state.feature_map):
        return WholeComparer(state)
    return FloatComparer(state)


class Comparer(ABC):
    """Compares a tile's rows with the centres of all starts."""

    #: Whether it takes the int16 features of `visit_tiles`.
    is_whole: ClassVar[bool]

    def __init__(self, state: ClusterState, centres: FloatArray, unit: float) -> None:
        """Take centres, of shape (n_init, n_clusters, n_components), as multiples of
        `unit`.
        """
        self._feature_map = state.feature_map
        self.n_init, self.n_clusters, n_components = centres.shape
        self._centres = centres.reshape(-1, n_components)
        self._halves = np.square(self._centres).sum(axis=1) / 2.0
        half = float(self._halves.max())
        # ‖z‖² of Z; only centres are multiples of `unit` already
        squared_norm = largest_squared_norm(state.feature_map, state.grid)
        # ‖z‖·‖c‖ + ‖c‖²/2 bounds all affinities
        self._affinity_bound = math.sqrt(2.0 * half * squared_norm) / unit + half

    def visit_rows(
        self, rows: blocks.Rows, receive: Callable[[int, AnyArray], None]
    ) -> None:
        """Call `visit_tiles` with features of this kind, in tiles of fitting height."""
        visit_tiles(
            rows,
            self._feature_map,
            receive,
            n_centres=self.n_init * self.n_clusters,
            is_whole=self.is_whole,
        )

    def labels(self, features: AnyArray) -> IndexArray:
        """Return the index of each row's nearest centre in each start, shape (n_init,
        n_rows).

        If centres are equally near, up to rounding, the first is taken. A row's labels
        do not depend on the other rows. `features`: from `visit_tiles`, of shape
        (n_rows, n_components). Raises DataError if features overflow.
        """
        labels = np.empty((self.n_init, len(features)), np.intp)
        for first in range(0, len(features), _COMPARED_ROWS):
            part = features[first : first + _COMPARED_ROWS]
            affinities = self._affinities(part)
            for i in range(self.n_init):
                here = slice(i * self.n_clusters, (i + 1) * self.n_clusters)
                labels[i, first : first + len(part)] = self._largest(
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
        """Return for each row which of a start's centres has the largest affinity.

        The affinities may be overwritten.
        """

    @abstractmethod
    def squared_distances(self, features: AnyArray, labels: IndexArray) -> FloatArray:
        """Return ‖z − c‖² between each row and its labelled centre of the first start,
        shape (n_rows,).

        It is exactly 0 if the centre is the row. A row's result does not depend on the
        other rows.
        """


class WholeComparer(Comparer):
    """Compares features that are whole numbers exactly, with centres rounded to whole
    numbers.

    Products in float32 decide most rows, in half the time of float64. If they cannot
    tell a row's two nearest centres apart, it is compared again in float64, where
    products of whole numbers have no error.
    """

    is_whole = True

    def __init__(self, state: ClusterState) -> None:
        n_components = state.centres.shape[2]
        # all components have the same factor
        unit = 2.0**-protocol.FIXED_POINT_BITS * factors_of(state.feature_map)[0]
        self._squared_unit = unit**2
        whole = np.rint(state.centres / unit).clip(
            -protocol.COSINE_ONE, protocol.COSINE_ONE
        )
        super().__init__(state, whole, unit)
        # A bound on the error of a sum of D products in float32, in any order (Higham
        # 2002, Sec. 3.1), times 2 for the two affinities that are compared.
        self._tolerance = (
            2.0 * (1.01 * n_components + 4) * 2.0**-24 * self._affinity_bound
        )
        self._float32_centres = self._centres.T.astype(np.float32)
        self._float32_halves = self._halves.astype(np.float32)

    def _affinities(self, features: NDArray[np.int16]) -> Float32Array:
        affinities: Float32Array = features.astype(np.float32) @ self._float32_centres
        affinities -= self._float32_halves
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


class FloatComparer(Comparer):
    """Compares float64 features with unrounded centres."""

    is_whole = False

    def __init__(self, state: ClusterState) -> None:
        super().__init__(state, state.centres, 1.0)
        n_components = state.centres.shape[2]
        self._factors = factors_of(state.feature_map)
        self._scaled_centres = np.ascontiguousarray((self._factors * self._centres).T)
        # A sum of D rounded products errs by about √D roundings of its largest possible
        # value (Higham & Mary 2019); times 2 for the two affinities that are compared.
        self._tolerance = 2.0 * math.sqrt(n_components) * EPS * self._affinity_bound

    def _largest(
        self, affinities: FloatArray, features: FloatArray, centres: slice
    ) -> IndexArray:
        largest = affinities.max(axis=1, keepdims=True)
        return (affinities >= largest - self._tolerance).argmax(axis=1)

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
        n_missing = -n_rows % _PANEL_ROWS
        if n_missing:
            features = np.concatenate([features, np.zeros((n_missing, n_components))])
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            products = (
                features.reshape(-1, _PANEL_ROWS, n_components) @ self._scaled_centres
            )
        affinities: FloatArray = products.reshape(len(features), -1)[:n_rows]
        # a feature that is not finite makes all affinities of its row not finite, so
        # one column shows it
        if not np.isfinite(affinities[:, 0]).all():
            raise maps.overflow()
        affinities -= self._halves
        return affinities


def distances_to_nearest(rows: blocks.Rows, state: ClusterState) -> FloatArray:
    """Return ‖z − c‖² between each row and the nearest of the first start's centres."""
    comparer = comparer_of(state)
    distances = np.empty(rows.block.n_samples)

    def compare(first: int, features: AnyArray) -> None:
        for i in range(0, len(features), _COMPARED_ROWS):
            part = features[i : i + _COMPARED_ROWS]
            nearest = comparer.labels(part)[0]
            here = slice(first + i, first + i + len(part))
            distances[here] = comparer.squared_distances(part, nearest)

    comparer.visit_rows(rows, compare)
    return distances
