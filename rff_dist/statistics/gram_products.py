"""Products of Z'Z with a few vectors, one pass each, where Z'Z itself would be too large or too dear.

The features are unnormalised, U, as in all sums. A pass adds up U'W(UV − 1o'), W the rows' weights, as
integers on a grid that the trace of U'WU fixes: the sums have the same bits in any order and grouping.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np

from rff_dist.data.blocks import BlockTask, Dataset, Rows
from rff_dist.data.checks import check_finite
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, StatisticsError
from rff_dist.features.feature_map import FeatureMap
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.numerics.runs import expand
from rff_dist.numerics.threads import share_out, tile_pool
from rff_dist.numerics.triangular import solve_transposed
from rff_dist.statistics.accumulate import Accumulation, checked_weights
from rff_dist.statistics.inspection import blocks_of
from rff_dist.statistics.spec import LIMB_BITS
from rff_dist.typing import Float32Array, FloatArray, IntArray

# Of a tile's features, which are read twice: few columns want them in the cache, many want tall tiles.
TILE_BYTES, FEW_COLUMNS, TILE_BYTES_OF_MANY = 2**24, 16, 2**26
MIN_TILE_ROWS, MAX_TILE_ROWS = 64, 2048


@dataclass(frozen=True, slots=True, eq=False)
class TargetSums:
    """Exact sums of a pass that begins a solution without Z'Z; `+` joins two sets of rows.

    `n_samples`: rows counted.
    `cross`: ExactSum of shape (n_components, n_targets + 1). U'W[Y, 1], Y less the spec's offset.
    `targets`: ExactSum of shape (n_targets + 1, n_targets + 1). [Y, 1]'W[Y, 1].
    `trace`: ExactSum of shape (). The trace of U'WU.
    """

    n_samples: int
    cross: ExactSum
    targets: ExactSum
    trace: ExactSum

    def __add__(self, other: TargetSums) -> TargetSums:
        return TargetSums(
            self.n_samples + other.n_samples,
            self.cross + other.cross,
            self.targets + other.targets,
            self.trace + other.trace,
        )


def sum_targets(rows: Rows, state: Accumulation) -> TargetSums:
    """Return a block's sums of features times targets, O(n_samples · n_components · n_features).

    Raises DataError if values are not finite, there are no targets, or weights do not suit the spec.
    """
    feature_map, spec = state.feature_map, state.spec
    if rows.y is None:
        raise DataError("the data have no y: training needs targets")
    inputs = feature_map.prepare(rows.X)
    check_finite(rows, inputs)
    weights = checked_weights(rows, spec)
    weights = np.ones(len(inputs)) if weights is None else weights
    right = np.column_stack([rows.y - np.asarray(spec.target_offset or 0.0), np.ones(len(inputs))])
    weighted = right * weights[:, np.newaxis]
    sums = [
        _sum_tile(tile, right[tile.rows], weighted[tile.rows], weights[tile.rows])
        for tile in _tiles(inputs, feature_map, right.shape[1])
    ]
    return reduce(operator.add, sums)


def _sum_tile(tile: _Tile, right: FloatArray, weighted: FloatArray, weights: FloatArray) -> TargetSums:
    moments = np.empty((tile.feature_map.n_components, right.shape[1]))
    squares: dict[int, float] = {}

    def add_up(stripe: slice) -> None:
        part = tile.fill(stripe)
        with np.errstate(over="ignore", invalid="ignore"):  # `ExactSum.of` refuses what is not finite
            moments[stripe] = part @ weighted
            squares[stripe.start] = float(np.einsum("ij,ij,j->", part, part, weights))

    share_out(add_up, tile.stripes)
    return TargetSums(
        len(right),
        ExactSum.of(moments),
        ExactSum.of(right.T @ weighted),
        ExactSum.of(np.asarray(math.fsum(squares.values()))),
    )


@dataclass(frozen=True, slots=True, eq=False)
class GramFactor:
    """The state of a pass that multiplies by U'WU: what from the right.

    `columns`: float64 array of shape (n_components, n_columns). Of norms up to 1.
    `offset`: float64 array of shape (n_columns,). What the columns' products with rows are centred by.
    `grid_exponent`: of the power of two that sums are rounded to multiples of.
    """

    feature_map: FeatureMap
    columns: FloatArray
    offset: FloatArray
    grid_exponent: int

    def digest(self) -> str:
        """Return the feature map's digest: what every worker must agree on."""
        return self.feature_map.digest()


@dataclass(frozen=True, slots=True, eq=False)
class GramProduct:
    """Sums of one pass, in whole multiples of the grid, shape (n_components, n_columns)."""

    n_samples: int
    sums: IntArray

    def __add__(self, other: GramProduct) -> GramProduct:
        return GramProduct(self.n_samples + other.n_samples, self.sums + other.sums)


def multiply_rows(rows: Rows, state: GramFactor) -> GramProduct:
    """Return a block's share of U'W(UV − 1o'), O(n_samples · n_components · (n_features + n_columns)).

    Raises DataError if values are not finite.
    """
    feature_map = state.feature_map
    inputs = feature_map.prepare(rows.X)
    check_finite(rows, inputs)
    sums = np.zeros(state.columns.shape, np.int64)
    for tile in _tiles(inputs, feature_map, state.columns.shape[1]):
        weights = None if rows.sample_weight is None else rows.sample_weight[tile.rows]
        _add_product(tile, state, weights, sums)
    return GramProduct(len(inputs), sums)


def _add_product(tile: _Tile, state: GramFactor, weights: FloatArray | None, sums: IntArray) -> None:
    """Add a tile's share of the product to `sums`, rounded to the grid."""
    parts: dict[int, FloatArray] = {}

    def project(stripe: slice) -> None:
        parts[stripe.start] = tile.fill(stripe).T @ state.columns[stripe]

    def add_up(stripe: slice) -> None:
        product = tile.features[stripe] @ scores
        product *= 2.0**-state.grid_exponent
        np.rint(product, out=product)
        np.add(sums[stripe], product, out=sums[stripe], casting="unsafe", dtype=np.int64)

    share_out(project, tile.stripes)
    scores = sum(
        (parts[start] for start in sorted(parts)), -state.offset
    )  # in order, whichever thread made them
    if weights is not None:
        scores = scores * weights[:, np.newaxis]
    share_out(add_up, tile.stripes)


@dataclass(frozen=True, slots=True, eq=False)
class _Tile:
    """Some rows of a block, and memory for their features, shape (n_components, n_rows)."""

    feature_map: FeatureMap
    inputs: Float32Array
    rows: slice
    features: FloatArray

    @property
    def stripes(self) -> list[slice]:
        return [slice(*stripe) for stripe in self.feature_map.stripes]

    def fill(self, stripe: slice) -> FloatArray:
        """Make a stripe of the features."""
        part = self.features[stripe]
        with np.errstate(over="ignore", invalid="ignore"):  # features that overflow are refused as sums
            self.feature_map.fill(self.inputs[self.rows], part, stripe.start, stripe.stop)
        return part


def _tiles(inputs: Float32Array, feature_map: FeatureMap, n_columns: int) -> Iterator[_Tile]:
    """Cut a block's rows into tiles, which use the same memory one after another."""
    n_components, n_rows = feature_map.n_components, len(inputs)
    height = tile_height(n_components, n_columns)
    memory = np.empty(n_components * min(height, n_rows))
    for first in range(0, n_rows, height):
        rows = slice(first, min(first + height, n_rows))
        features = memory[: n_components * (rows.stop - first)].reshape(n_components, -1)
        yield _Tile(feature_map, inputs, rows, features)


def tile_height(n_components: int, n_columns: int) -> int:
    """Return the rows of a tile: fixed by sizes alone, so that sums have the same bits everywhere."""
    size = TILE_BYTES if n_columns <= FEW_COLUMNS else TILE_BYTES_OF_MANY
    return min(MAX_TILE_ROWS, max(MIN_TILE_ROWS, size // (8 * n_components) // 64 * 64))


@dataclass(frozen=True, eq=False)
class GramOperator:
    """Z'WZ of a dataset, centred or not, as what it does to columns: a pass of the engine each time.

    `accumulation`: the features, and what the sums are about.
    `sums`: of the pass that began.
    `centred`: whether the columns' weighted means are taken out of Z and Y.
    """

    dataset: Dataset
    accumulation: Accumulation
    sums: TargetSums
    centred: bool
    engine: Engine

    @property
    def feature_map(self) -> FeatureMap:
        """Of Z."""
        return self.accumulation.feature_map

    @property
    def sum_of_weights(self) -> float:
        """Of the rows."""
        return float(self.sums.targets.value()[-1, -1])

    @property
    def raw_means(self) -> FloatArray:
        """Weighted means of the unnormalised features; zero where nothing is centred."""
        sums = self.sums.cross.value()[:, -1]
        return np.asarray(sums / self.sum_of_weights if self.centred else np.zeros(len(sums)))

    @property
    def feature_means(self) -> FloatArray:
        """z̄, shape (n_components,); zero where nothing is centred."""
        return sums_of_z(self.raw_means[:, np.newaxis], self.feature_map)[:, 0]

    @property
    def target_means(self) -> FloatArray:
        """ȳ, shape (n_targets,); zero where nothing is centred."""
        offset = np.asarray(self.accumulation.spec.target_offset or 0.0)
        if not self.centred:
            return np.zeros(self.accumulation.spec.n_targets)
        return np.asarray(self.sums.targets.value()[:-1, -1] / self.sum_of_weights + offset)

    @property
    def moments(self) -> FloatArray:
        """Z'WY, shape (n_components, n_targets)."""
        cross, shift = self.sums.cross.value(), self._shift
        return sums_of_z(cross[:, :-1] + cross[:, -1:] * shift, self.feature_map)

    @property
    def total_sum_of_squares(self) -> FloatArray:
        """Of each target, shape (n_targets,)."""
        targets, shift = self.sums.targets.value(), self._shift
        squares, sums = np.diagonal(targets)[:-1], targets[:-1, -1]
        return np.asarray(squares + 2.0 * shift * sums + self.sum_of_weights * shift**2)

    @property
    def target_deviations(self) -> FloatArray:
        """Weighted population standard deviations of the targets, shape (n_targets,)."""
        targets, weight = self.sums.targets.value(), self.sum_of_weights
        variances = np.diagonal(targets)[:-1] / weight - np.square(targets[:-1, -1] / weight)
        return np.sqrt(np.maximum(variances, 0.0))

    @property
    def _shift(self) -> FloatArray:
        """What is added to the targets that were summed: their offset, or what centres them."""
        if self.centred:
            return np.asarray(-self.sums.targets.value()[:-1, -1] / self.sum_of_weights)
        return np.asarray(self.accumulation.spec.target_offset or np.zeros(self.accumulation.spec.n_targets))

    def multiply(self, columns: FloatArray, *, label: str = "iterate") -> FloatArray:
        """Return Z'WZ times columns of shape (n_components, n_columns), in one pass."""
        raw = self.feature_map.raw_coefficients(columns)
        norms = np.frexp(np.linalg.norm(raw, axis=0))[1]
        raw = np.ldexp(raw, -norms)
        # by Cauchy and Schwarz no partial sum exceeds the trace times a column's norm
        exponent = int(np.frexp(float(self.sums.trace.value()))[1]) + 1 - LIMB_BITS
        found: GramProduct = self.engine.map_reduce(
            BlockTask(self.dataset, multiply_rows),
            blocks_of(self.dataset),
            GramFactor(self.feature_map, raw, self.raw_means @ raw, exponent),
            combine=operator.add,
            label=label,
        )
        _check_complete(found.n_samples, self.dataset)
        return sums_of_z(np.ldexp(found.sums.astype(np.float64), exponent + norms), self.feature_map)


def gram_operator(
    dataset: Dataset, accumulation: Accumulation, *, centred: bool, engine: Engine
) -> GramOperator:
    """Begin with one pass: targets times features, and what grids and centring need.

    Raises DataError if values are not finite or features overflow; StatisticsError if a row is missing.
    """
    sums: TargetSums = engine.map_reduce(
        BlockTask(dataset, sum_targets),
        blocks_of(dataset),
        accumulation,
        combine=operator.add,
        label="targets",
    )
    _check_complete(sums.n_samples, dataset)
    return GramOperator(dataset, accumulation, sums, centred, engine)


def sums_of_z(sums: FloatArray, feature_map: FeatureMap) -> FloatArray:
    """Return sums over unnormalised features, shape (n_components, n_columns), as sums over Z."""
    scaled: FloatArray = expand(feature_map.scales)[:, np.newaxis] * sums
    if (whitener := feature_map.whitener) is not None:
        with tile_pool():
            solve_transposed(whitener, scaled)
    return scaled


def _check_complete(n_samples: int, dataset: Dataset) -> None:
    if n_samples != dataset.n_samples:
        raise StatisticsError(
            f"a pass counted {n_samples:_} of {dataset.n_samples:_} rows; each must count once: run it again"
        )
