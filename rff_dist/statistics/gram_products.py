"""Products of Z'Z with a few vectors, one pass each, where Z'Z itself would be too large or too expensive.

As in all sums the features are unnormalised: U. A pass sums U'W(UV − 1o'), where W holds the rows' weights,
as integers on a grid that the trace of U'WU fixes. So the sums have the same bits in any order and grouping.
"""

import math
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial, reduce

import numpy as np

from rff_dist.data import blocks, folding
from rff_dist.engines import protocol
from rff_dist.errors import StatisticsError
from rff_dist.features import maps
from rff_dist.numerics import exact_sums, machine
from rff_dist.statistics import accumulate, inspection, specs
from rff_dist.typing import EPS, Float32Array, FloatArray, IntArray, frozen

type _Pair = tuple[FloatArray, FloatArray]

# Size of a tile's features, which are read twice. With few columns it matters that they stay in the cache;
# with many, taller tiles are faster.
TILE_BYTES, FEW_COLUMNS, TILE_BYTES_OF_MANY = 2**24, 16, 2**26
MIN_TILE_ROWS, MAX_TILE_ROWS = 512, 2048  # tiles of 256 rows take a sixth more CPU time at D = 32,768
FEATURE_OPERATIONS = 100  # a feature takes as long as so many of a product: 1.9 ns at 50 GFLOP/s
COLUMN_OPERATIONS = 4  # for each feature and column: a product to the rows, and one back


@frozen
class TrainingSplit:
    """The last split of some folds: which rows are trained on, and which are held out for validation.

    `n_samples`: number of rows of the dataset, by which contiguous folds are cut.
    """

    folds: folding.Folds
    n_samples: int

    def weights(self, rows: blocks.Rows, weights: FloatArray) -> _Pair:
        """Return the training weights and the validation weights of a block's rows; 0 excludes a row."""
        block, (trained, held_out) = rows.block, self.folds.splits[-1]
        fold = self.folds.assign(block.start, block.stop, n_samples=self.n_samples, groups=rows.groups)
        return weights * np.isin(fold, trained), weights * (fold == held_out)


@frozen(eq=False)
class FirstSums:
    """Exact sums of a pass that begins a solution without Z'Z; `+` joins two sets of rows.

    `n_samples`: rows counted.
    `cross`: ExactSum of shape (n_components, n_targets + 1). U'W[Y, 1], with Y minus the spec's offset.
    `targets`: ExactSum of shape (2, n_targets + 1). See `RidgeStatistics`.
    `trace`: ExactSum of shape (). The trace of U'WU.
    """

    n_samples: int
    cross: exact_sums.ExactSum
    targets: exact_sums.ExactSum
    trace: exact_sums.ExactSum

    __add__ = exact_sums.add_fields


def sum_targets(
    rows: blocks.Rows, state: accumulate.Accumulation, *, split: TrainingSplit | None = None
) -> FirstSums:
    """Return a block's sums of features times targets, O(n_samples · n_components · n_features).

    `split`: sums the training rows only.
    Raises DataError if values are not finite, targets are missing, or weights do not suit the spec.
    """
    feature_map, spec = state.feature_map, state.spec
    assert rows.y is not None  # the spec was drawn up for targets
    inputs = feature_map.inputs_of(rows)
    weights = accumulate.checked_weights(rows, spec)
    weights = np.ones(len(inputs)) if weights is None else weights
    if split is not None:
        weights, _ = split.weights(rows, weights)
    right = np.column_stack([rows.y - spec.offsets, np.ones(len(inputs))])
    weighted = right * weights[:, np.newaxis]
    sums: list[FirstSums] = []

    def add_up(tile: slice, features: FloatArray) -> None:
        moments, squares = np.empty((feature_map.n_components, right.shape[1])), []
        for low, high in feature_map.stripes:
            part = _filled(feature_map, inputs[tile], features, low, high)
            with np.errstate(over="ignore", invalid="ignore"):  # `ExactSum.of` refuses what is not finite
                moments[low:high] = part @ weighted[tile]
                squares.append(float(np.einsum("ij,ij,j->", part, part, weights[tile])))
            of_targets = specs.target_products(right[tile], weights[tile])
        products = moments, of_targets, np.asarray(math.fsum(squares))
        sums.append(FirstSums(tile.stop - tile.start, *map(exact_sums.ExactSum.of, products)))

    _share_tiles(add_up, len(inputs), feature_map.n_components, right.shape[1])
    return reduce(operator.add, sums)  # exact sums: the order in which threads append them does not matter


@frozen(eq=False)
class Validation:
    """Solutions that a pass validates, in addition to its products, on the rows held out by a split.

    `coefficients`: float64 array of shape (n_components, n_columns). For unnormalised features.
    `intercept`: float64 array of shape (n_columns,).
    `targets`: int array of shape (n_columns,). The target that each column predicts.
    """

    split: TrainingSplit
    coefficients: FloatArray
    intercept: FloatArray
    targets: IntArray


@frozen(eq=False)
class GramFactor:
    """The state of a pass that multiplies U'WU by some columns.

    `columns`: float64 array of shape (n_components, n_columns). V, each column with a norm up to 1.
    `offset`: float64 array of shape (n_columns,). o, subtracted from each row's products with the columns.
    `grid_exponent`: sums are rounded to multiples of 2**grid_exponent.
    `validation`: solutions to validate in the same pass; only training rows of its split are then multiplied.
    """

    feature_map: maps.FeatureMap
    columns: FloatArray
    offset: FloatArray
    grid_exponent: int
    validation: Validation | None = None


@frozen(eq=False)
class GramProduct:
    """Sums of one pass over rows; `+` joins two sets of rows.

    `sums`: int64 array of shape (n_components, n_columns). In multiples of 2**grid_exponent.
    `errors`: ExactSum of shape (n_solutions + 1,). The weighted squared error of each solution of a
      `Validation`, then the sum of the validation weights.
    """

    n_samples: int
    sums: IntArray
    errors: exact_sums.ExactSum

    __add__ = exact_sums.add_fields


def multiply_rows(rows: blocks.Rows, state: GramFactor, total: GramProduct | None = None) -> GramProduct:
    """Return a block's share of U'W(UV − 1o'), O(n_samples · n_components · (n_features + n_columns)).

    Adds to `total` in place. Raises DataError if values are not finite.
    """
    feature_map, validation = state.feature_map, state.validation
    inputs = feature_map.inputs_of(rows)
    weights = rows.sample_weight
    columns, n_columns = state.columns, state.columns.shape[1]
    errors = exact_sums.ExactSum.zeros((1,))
    if validation is not None:
        assert rows.y is not None
        weights, held_out = validation.split.weights(rows, rows.weights)
        columns = np.hstack([columns, validation.coefficients])
        errors = exact_sums.ExactSum.zeros((len(validation.targets) + 1,))
        residuals = rows.y[:, validation.targets] - validation.intercept
    sums = np.zeros(state.columns.shape, np.int64) if total is None else total.sums
    one_at_a_time = threading.Lock()

    def multiply(tile: slice, features: FloatArray) -> None:
        nonlocal errors
        # features are filled once and read twice: for UV here, and for U' times that below
        scores = np.zeros((tile.stop - tile.start, columns.shape[1]))
        for low, high in feature_map.stripes:
            scores += _filled(feature_map, inputs[tile], features, low, high).T @ columns[low:high]
        if validation is not None:
            squares = held_out[tile] @ np.square(residuals[tile] - scores[:, n_columns:])
            with one_at_a_time:
                errors += exact_sums.ExactSum.of(np.append(squares, held_out[tile].sum()))
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

    Threads take whole tiles: if they shared one, they would wait for each other twice.
    """
    height = tile_height(n_components, n_columns)
    spare = machine.SpareMemory()

    def work(first: int) -> None:
        tile = slice(first, min(first + height, n_rows))
        memory = spare.take(n_components * min(height, n_rows), np.float64)
        function(tile, memory[: n_components * (tile.stop - first)].reshape(n_components, -1))
        spare.give(memory)

    machine.share_out(work, range(0, n_rows, height))


def _filled(
    feature_map: maps.FeatureMap, inputs: Float32Array, features: FloatArray, low: int, high: int
) -> FloatArray:
    """Fill in the components `low:high` of a tile's features, and return them."""
    with np.errstate(over="ignore", invalid="ignore"):  # `sum_targets` refuses features that overflow
        feature_map.fill(inputs, features[low:high], low, high)
    return features[low:high]


def pass_operations(n_columns: int) -> int:
    """Return the operations of a pass of Z'(ZV) for each feature."""
    return FEATURE_OPERATIONS + COLUMN_OPERATIONS * n_columns


def tile_height(n_components: int, n_columns: int) -> int:
    """Return the rows of a tile: fixed by sizes alone, so that sums have the same bits everywhere."""
    size = TILE_BYTES if n_columns <= FEW_COLUMNS else TILE_BYTES_OF_MANY
    return min(MAX_TILE_ROWS, max(MIN_TILE_ROWS, size // (8 * n_components) // 64 * 64))


@dataclass(frozen=True, eq=False)
class GramOperator:
    """Z'WZ of a dataset, centred or not, as an operator on columns: each product is a pass of the engine.

    `accumulation`: the features, and what the sums are about.
    `sums`: the sums of the first pass.
    `centred`: whether the columns of Z and Y have their weighted means subtracted.
    `split`: if given, only its training rows count.
    """

    dataset: blocks.Dataset
    accumulation: accumulate.Accumulation
    sums: FirstSums
    centred: bool
    engine: protocol.Engine
    split: TrainingSplit | None = None

    @property
    def feature_map(self) -> maps.FeatureMap:
        return self.accumulation.feature_map

    @cached_property
    def targets(self) -> specs.TargetMoments:
        return specs.TargetMoments.of(self.sums.targets, self.accumulation.spec.offsets)

    @property
    def sum_of_weights(self) -> float:
        return self.targets.weight

    @property
    def raw_means(self) -> FloatArray:
        """Weighted means of the unnormalised features; zero if not centred."""
        sums = self.sums.cross.value()[:, -1]
        return np.asarray(sums / self.sum_of_weights if self.centred else np.zeros(len(sums)))

    @property
    def feature_means(self) -> FloatArray:
        """z̄, shape (n_components,); zero if not centred."""
        return sums_of_z(self.raw_means[:, np.newaxis], self.feature_map)[:, 0]

    @property
    def target_means(self) -> FloatArray:
        """ȳ, shape (n_targets,); zero if not centred."""
        return self.targets.means if self.centred else np.zeros(len(self.targets.offsets))

    @property
    def moments(self) -> FloatArray:
        """Z'WY, shape (n_components, n_targets)."""
        # from U'W(Y − offset) to U'WY about the mean or about 0: the last column of cross is U'W1
        cross, targets = self.sums.cross.value(), self.targets
        shift = -targets.shifts if self.centred else targets.offsets
        return sums_of_z(cross[:, :-1] + cross[:, -1:] * shift, self.feature_map)

    @property
    def total_sum_of_squares(self) -> FloatArray:
        """Total sum of squares of each target, about its mean if centred, shape (n_targets,)."""
        return self.targets.sums_of_squares(centred=self.centred)

    @cached_property
    def rounding_error(self) -> float:
        """Size of the error of Z'WZ that rounding makes in products: also if centring cancels most of it."""
        spec, whitener = self.accumulation.spec, self.feature_map.whitener
        largest_scale = float(exact_sums.expand(self.feature_map.scales).max())
        of_trace = EPS * float(self.sums.trace.value()) * largest_scale**2
        if whitener is None:
            return of_trace
        # as in `gram_error_of`, for a trace of equal parts
        spectral, frobenius = specs.Whitener(whitener).inverse_norms
        return 0.5 * of_trace / math.sqrt(spec.n_components) * spectral * frobenius

    def multiply(self, columns: FloatArray, *, label: str = "iterate") -> FloatArray:
        """Return Z'WZ times columns of shape (n_components, n_columns), in one pass."""
        product, _ = self._run(columns, None, label)
        return product

    def multiply_and_validate(
        self, columns: FloatArray, coefficients: FloatArray, targets: IntArray
    ) -> _Pair:
        """Return Z'WZ times columns, and the errors of some solutions on the rows held out by the split.

        `coefficients`: float64 array of shape (n_components, n_solutions).
        `targets`: int array of shape (n_solutions,). The target that each solution predicts.
        Returns `product`: as `multiply`; `errors`: float64 array of shape (n_solutions,), the weighted mean
          squared errors.
        Raises StatisticsError if no row with a weight is held out.
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

    def _run(self, columns: FloatArray, validation: Validation | None, label: str) -> _Pair:
        raw = self.feature_map.raw_coefficients(columns)
        # powers of two: scaling norms to at most 1 does not round, nor does scaling before squares overflow
        exponents = np.frexp(np.abs(raw).max(axis=0))[1]
        norms = exponents + np.frexp(np.linalg.norm(np.ldexp(raw, -exponents), axis=0))[1]
        raw = np.ldexp(raw, -norms)
        if validation is None and self.split is not None:  # the split restricts this product to training rows
            nothing = np.empty((len(raw), 0)), np.empty(0), np.empty(0, np.intp)
            validation = Validation(self.split, *nothing)
        # By Cauchy and Schwarz no partial sum exceeds the trace times a column's norm, which is at most 1.
        exponent = int(np.frexp(float(self.sums.trace.value()))[1]) + 1 - specs.LIMB_BITS
        factor = GramFactor(self.feature_map, raw, self.raw_means @ raw, exponent, validation)
        task = blocks.BlockTask(self.dataset, multiply_rows, adds=True)
        parts = inspection.blocks_of(self.dataset)
        product: GramProduct = self.engine.map_reduce(task, parts, factor, label=label)
        specs.check_counted(product.n_samples, self.dataset.n_samples)
        sums = np.ldexp(product.sums.astype(np.float64), exponent + norms)
        return sums_of_z(sums, self.feature_map), product.errors.value()


def gram_operator(
    dataset: blocks.Dataset,
    accumulation: accumulate.Accumulation,
    *,
    centred: bool,
    engine: protocol.Engine,
    split: TrainingSplit | None = None,
) -> GramOperator:
    """Return the operator after one pass, which sums targets times features and what centring needs.

    With a `split` only its training rows count.

    Raises DataError if values are not finite or features overflow; StatisticsError if a row is missing.
    """
    add_up = partial(sum_targets, split=split)
    sums = inspection.sum_rows(dataset, add_up, accumulation, engine=engine, label="targets")
    specs.check_counted(sums.n_samples, dataset.n_samples)
    return GramOperator(dataset, accumulation, sums, centred, engine, split)


def sums_of_z(sums: FloatArray, feature_map: maps.FeatureMap) -> FloatArray:
    """Turn sums over unnormalised features into sums over Z, shape (n_components, n_columns)."""
    return specs.whitened(exact_sums.expand(feature_map.scales)[:, np.newaxis] * sums, feature_map.whitener)
