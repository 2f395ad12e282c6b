"""Products of Z'Z with a few vectors, one pass each, where Z'Z itself would be too large or too dear.

The features are unnormalised, U, as in all sums. A pass adds up U'W(UV − 1o'), W the rows' weights, as
integers on a grid that the trace of U'WU fixes: the sums have the same bits in any order and grouping.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import numpy as np

from rff_dist.data.blocks import BlockTask, Dataset, Rows
from rff_dist.data.checks import check_finite
from rff_dist.data.folds import Folds
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, StatisticsError
from rff_dist.features.feature_map import FeatureMap
from rff_dist.numerics.exact_sums import ExactSum, add_fields
from rff_dist.numerics.runs import expand
from rff_dist.numerics.threads import SpareMemory, share_out
from rff_dist.statistics.accumulate import Accumulation, checked_weights
from rff_dist.statistics.inspection import blocks_of
from rff_dist.statistics.reading import deviations_of, whitened
from rff_dist.statistics.spec import LIMB_BITS
from rff_dist.typing import Float32Array, FloatArray, IntArray

# Of a tile's features, which are read twice: few columns want them in the cache, many want tall tiles.
TILE_BYTES, FEW_COLUMNS, TILE_BYTES_OF_MANY = 2**24, 16, 2**26
MIN_TILE_ROWS, MAX_TILE_ROWS = 512, 2048  # of 256, D = 32,768 takes a sixth more CPU time


@dataclass(frozen=True, slots=True)
class Split:
    """Which rows are trained on, and which are held out to validate on: the last split of some folds.

    `n_samples`: rows of the dataset, which contiguous folds are cut from.
    """

    folds: Folds
    n_samples: int

    def weights(self, rows: Rows, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what a block's rows weigh in training and in validation, 0 where they are not in it."""
        block, (trained, held_out) = rows.block, self.folds.splits[-1]
        fold = self.folds.assign(block.start, block.stop, n_samples=self.n_samples, groups=rows.groups)
        return weights * np.isin(fold, trained), weights * (fold == held_out)


@dataclass(frozen=True, slots=True, eq=False)
class TargetState:
    """The state of a pass that begins a solution; of the training rows of a `split`, if there is one."""

    accumulation: Accumulation
    split: Split | None = None


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

    __add__ = add_fields


def sum_targets(rows: Rows, state: TargetState) -> TargetSums:
    """Return a block's sums of features times targets, O(n_samples · n_components · n_features).

    Raises DataError if values are not finite, there are no targets, or weights do not suit the spec.
    """
    feature_map, spec = state.accumulation.feature_map, state.accumulation.spec
    if rows.y is None:
        raise DataError("the data have no y: training needs targets")
    inputs = feature_map.prepare(rows.X)
    check_finite(rows, inputs)
    weights = checked_weights(rows, spec)
    weights = np.ones(len(inputs)) if weights is None else weights
    if state.split is not None:
        weights, _ = state.split.weights(rows, weights)
    right = np.column_stack([rows.y - spec.offsets, np.ones(len(inputs))])
    weighted = right * weights[:, np.newaxis]
    sums: list[TargetSums] = []

    def add_up(tile: slice, features: FloatArray) -> None:
        moments, squares = np.empty((feature_map.n_components, right.shape[1])), []
        for low, high in feature_map.stripes:
            part = _filled(feature_map, inputs[tile], features, low, high)
            with np.errstate(over="ignore", invalid="ignore"):  # `ExactSum.of` refuses what is not finite
                moments[low:high] = part @ weighted[tile]
                squares.append(float(np.einsum("ij,ij,j->", part, part, weights[tile])))
        sums.append(
            TargetSums(
                tile.stop - tile.start,
                ExactSum.of(moments),
                ExactSum.of(right[tile].T @ weighted[tile]),
                ExactSum.of(np.asarray(math.fsum(squares))),
            )
        )

    _share_tiles(add_up, len(inputs), feature_map.n_components, right.shape[1])
    return reduce(operator.add, sums)  # exact sums: their order is of no consequence


@dataclass(frozen=True, slots=True, eq=False)
class Validation:
    """Solutions whose errors on the held-out rows of a split a pass adds up beside its products.

    `coefficients`: float64 array of shape (n_components, n_columns). Of unnormalised features.
    `intercept`: float64 array of shape (n_columns,).
    `targets`: int array of shape (n_columns,). Which target each column predicts.
    """

    split: Split
    coefficients: FloatArray
    intercept: FloatArray
    targets: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class GramFactor:
    """The state of a pass that multiplies by U'WU: what from the right.

    `columns`: float64 array of shape (n_components, n_columns). Of norms up to 1.
    `offset`: float64 array of shape (n_columns,). What the columns' products with rows are centred by.
    `grid_exponent`: of the power of two that sums are rounded to multiples of.
    `validation`: what is validated on the way; the products are then of the split's training rows.
    """

    feature_map: FeatureMap
    columns: FloatArray
    offset: FloatArray
    grid_exponent: int
    validation: Validation | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GramProduct:
    """Sums of one pass, in whole multiples of the grid, shape (n_components, n_columns).

    `errors`: ExactSum of shape (n_columns + 1,). Weighted squared errors of a `Validation`, and the weight.
    """

    n_samples: int
    sums: IntArray
    errors: ExactSum

    __add__ = add_fields


def multiply_rows(rows: Rows, state: GramFactor, total: GramProduct | None = None) -> GramProduct:
    """Return a block's share of U'W(UV − 1o'), O(n_samples · n_components · (n_features + n_columns)).

    Adds to `total` in place.

    Raises DataError if values are not finite.
    """
    feature_map, validation = state.feature_map, state.validation
    inputs = feature_map.prepare(rows.X)
    check_finite(rows, inputs)
    weights = rows.sample_weight
    columns, n_columns = state.columns, state.columns.shape[1]
    errors = ExactSum.zeros((1,))
    if validation is not None:
        assert rows.y is not None
        weights, held_out = validation.split.weights(
            rows, np.ones(len(inputs)) if weights is None else weights
        )
        columns = np.hstack([columns, validation.coefficients])
        errors = ExactSum.zeros((len(validation.targets) + 1,))
        residuals = rows.y[:, validation.targets] - validation.intercept
    sums = np.zeros(state.columns.shape, np.int64) if total is None else total.sums
    one_at_a_time = threading.Lock()

    def multiply(tile: slice, features: FloatArray) -> None:
        nonlocal errors
        scores = np.zeros((tile.stop - tile.start, columns.shape[1]))
        for low, high in feature_map.stripes:
            scores += _filled(feature_map, inputs[tile], features, low, high).T @ columns[low:high]
        if validation is not None:
            squares = held_out[tile] @ np.square(residuals[tile] - scores[:, n_columns:])
            with one_at_a_time:
                errors += ExactSum.of(np.append(squares, held_out[tile].sum()))
        centred = scores[:, :n_columns] - state.offset
        if weights is not None:
            centred *= weights[tile, np.newaxis]
        for low, high in feature_map.stripes:
            product = features[low:high] @ centred
            product *= 2.0**-state.grid_exponent
            np.rint(product, out=product)
            with one_at_a_time:
                np.add(sums[low:high], product, out=sums[low:high], casting="unsafe", dtype=np.int64)

    _share_tiles(multiply, len(inputs), feature_map.n_components, columns.shape[1])
    if total is None:
        return GramProduct(len(inputs), sums, errors)
    return GramProduct(total.n_samples + len(inputs), sums, total.errors + errors)


def _share_tiles(
    function: Callable[[slice, FloatArray], None], n_rows: int, n_components: int, n_columns: int
) -> None:
    """Call a function with each tile of a block, and memory of shape (n_components, n_rows) for its features.

    Threads share out whole tiles: within one they would wait for each other twice.
    """
    height = tile_height(n_components, n_columns)
    spare = SpareMemory()

    def work(first: int) -> None:
        tile = slice(first, min(first + height, n_rows))
        memory = spare.take(n_components * min(height, n_rows), np.float64)
        function(tile, memory[: n_components * (tile.stop - first)].reshape(n_components, -1))
        spare.give(memory)

    share_out(work, range(0, n_rows, height))


def _filled(
    feature_map: FeatureMap, inputs: Float32Array, features: FloatArray, low: int, high: int
) -> FloatArray:
    """Make some of the features of a tile's inputs, and return them."""
    with np.errstate(over="ignore", invalid="ignore"):  # features that overflow are refused as sums
        feature_map.fill(inputs, features[low:high], low, high)
    return features[low:high]


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
    `split`: whose training rows it is of; None for all rows.
    """

    dataset: Dataset
    accumulation: Accumulation
    sums: TargetSums
    centred: bool
    engine: Engine
    split: Split | None = None

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
        offsets = self.accumulation.spec.offsets
        return np.asarray(offsets - self._shift if self.centred else np.zeros(len(offsets)))

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
        return deviations_of(self.sums.targets)

    @property
    def _shift(self) -> FloatArray:
        """What is added to the targets that were summed: their offset, or what centres them."""
        if self.centred:
            return np.asarray(-self.sums.targets.value()[:-1, -1] / self.sum_of_weights)
        return self.accumulation.spec.offsets

    def multiply(self, columns: FloatArray, *, label: str = "iterate") -> FloatArray:
        """Return Z'WZ times columns of shape (n_components, n_columns), in one pass."""
        product, _ = self._run(columns, None, label)
        return product

    def multiply_and_validate(
        self, columns: FloatArray, coefficients: FloatArray, targets: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return Z'WZ times columns, and the errors of some solutions on the rows held out by the split.

        `coefficients`: float64 array of shape (n_components, n_solutions).
        `targets`: int array of shape (n_solutions,). Which target each predicts.
        Returns `product`: as `multiply`; `errors`: float64 array of shape (n_solutions,), weighted mean
          squares.
        Raises StatisticsError if no row is held out.
        """
        assert self.split is not None
        raw = self.feature_map.raw_coefficients(coefficients)
        intercept = self.target_means[targets] - self.raw_means @ raw
        product, errors = self._run(columns, Validation(self.split, raw, intercept, targets), "iterate")
        if not errors[-1] > 0.0:
            raise StatisticsError(
                f"no row with a weight is held out by {self.split.folds}; give other folds, or one alpha"
            )
        return product, errors[:-1] / errors[-1]

    def _run(
        self, columns: FloatArray, validation: Validation | None, label: str
    ) -> tuple[FloatArray, FloatArray]:
        raw = self.feature_map.raw_coefficients(columns)
        norms = np.frexp(np.linalg.norm(raw, axis=0))[1]
        raw = np.ldexp(raw, -norms)
        if validation is None and self.split is not None:  # of its training rows too
            nothing = np.empty((len(raw), 0)), np.empty(0), np.empty(0, np.intp)
            validation = Validation(self.split, *nothing)
        # by Cauchy and Schwarz no partial sum exceeds the trace times a column's norm
        exponent = int(np.frexp(float(self.sums.trace.value()))[1]) + 1 - LIMB_BITS
        found: GramProduct = self.engine.map_reduce(
            BlockTask(self.dataset, multiply_rows, adds=True),
            blocks_of(self.dataset),
            GramFactor(self.feature_map, raw, self.raw_means @ raw, exponent, validation),
            label=label,
        )
        _check_complete(found.n_samples, self.dataset)
        product = np.ldexp(found.sums.astype(np.float64), exponent + norms)
        return sums_of_z(product, self.feature_map), found.errors.value()


def gram_operator(
    dataset: Dataset, accumulation: Accumulation, *, centred: bool, engine: Engine, split: Split | None = None
) -> GramOperator:
    """Begin with one pass: targets times features, and what grids and centring need.

    With a `split` all of it is of the split's training rows.

    Raises DataError if values are not finite or features overflow; StatisticsError if a row is missing.
    """
    sums: TargetSums = engine.map_reduce(
        BlockTask(dataset, sum_targets), blocks_of(dataset), TargetState(accumulation, split), label="targets"
    )
    _check_complete(sums.n_samples, dataset)
    return GramOperator(dataset, accumulation, sums, centred, engine, split)


def sums_of_z(sums: FloatArray, feature_map: FeatureMap) -> FloatArray:
    """Return sums over unnormalised features, shape (n_components, n_columns), as sums over Z."""
    return whitened(expand(feature_map.scales)[:, np.newaxis] * sums, feature_map.whitener)


def _check_complete(n_samples: int, dataset: Dataset) -> None:
    if n_samples != dataset.n_samples:
        raise StatisticsError(
            f"a pass counted {n_samples:_} of {dataset.n_samples:_} rows; each must count once: run it again"
        )
