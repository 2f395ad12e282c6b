"""Products of Z'Z with a few vectors, if Z'Z itself is too large for memory.

A dataset and columns C go in; Z'Z·C comes out of one pass over the rows, which is all
that conjugate gradients need. Z is the matrix of features, with D columns, the
components; V are the features before they are normalised, and sums are made of V. A
pass sums V'W(VC − 1o'). W has the rows' weights on its diagonal, and o has the mean of
each column of VC, or 0 if Z is not centred. The sums are integers on a grid that the
trace of V'WV fixes. So they have the same bits in any order of the rows, unlike
`V.T @ (V @ C)`.
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
from rff_dist.numerics.solution import TargetSummary
from rff_dist.statistics import accumulate, reading, row_passes, specs, target_moments
from rff_dist.typing import EPS, Float32Array, FloatArray, IntArray, frozen

# Bytes of a tile's features, which are read twice. With few columns they should stay in
# the cache; with many columns taller tiles are faster.
TILE_BYTES = 2**24
FEW_COLUMNS = 16
TILE_BYTES_OF_MANY = 2**26
# tiles of 256 rows take a sixth more CPU time at D = 32,768
MIN_TILE_ROWS = 512
MAX_TILE_ROWS = 2048
# Operations of a product that take as long as making one feature: 1.9 ns at 50 GFLOP/s.
FEATURE_OPERATIONS = 100
# Two operations of V·C and two of V'·(VC), for each feature and column.
COLUMN_OPERATIONS = 4


@frozen
class TrainingSplit:
    """The last split of some folds: rows for training, and rows for validation."""

    folds: folding.Folds
    #: Rows of the dataset, which contiguous folds depend on.
    n_samples: int

    def weights(
        self, rows: blocks.Rows, weights: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return rows' weights for training and for validation; 0 excludes a row."""
        block = rows.block
        training_folds, held_out = self.folds.splits[-1]
        fold = self.folds.assign(
            block.start, block.stop, n_samples=self.n_samples, groups=rows.groups
        )
        return weights * np.isin(fold, training_folds), weights * (fold == held_out)


@frozen(eq=False)
class FirstSums:
    """Exact sums of the first pass of a solution without Z'Z; `+` adds rows."""

    n_samples: int
    #: V'W[Y - offset, 1], of shape (n_components, n_targets + 1).
    cross: exact_sums.ExactSum
    #: Sums of targets and their squares, of shape (2, n_targets + 1), as in
    #: `RidgeStatistics`.
    targets: exact_sums.ExactSum
    #: The trace of V'WV.
    trace: exact_sums.ExactSum

    __add__ = exact_sums.add_fields


def first_sums(
    rows: blocks.Rows,
    state: accumulate.Accumulation,
    *,
    split: TrainingSplit | None = None,
) -> FirstSums:
    """Return a block's sums of features times targets, of targets, and of squares of
    features; with `split` of its training rows only.

    Takes O(n_samples · n_components · n_features). Raises DataError if values are not
    finite, targets are missing, or weights are outside the spec's grid.
    """
    feature_map = state.feature_map
    spec = state.spec
    assert rows.y is not None  # the spec was drawn up for targets
    inputs = feature_map.inputs_of(rows)
    weights = accumulate.checked_weights(rows, spec)
    if weights is None:
        weights = np.ones(len(inputs))
    if split is not None:
        weights, _ = split.weights(rows, weights)
    targets_and_ones = np.column_stack([rows.y - spec.offsets, np.ones(len(inputs))])
    weighted = targets_and_ones * weights[:, np.newaxis]
    sums: list[FirstSums] = []

    def add_up(tile: slice, features: FloatArray) -> None:
        moments = np.empty((feature_map.n_components, weighted.shape[1]))
        squares = []
        for low, high in feature_map.stripes:
            part = _fill(feature_map, inputs[tile], features, low, high)
            # `ExactSum.of` refuses sums that are not finite
            with np.errstate(over="ignore", invalid="ignore"):
                moments[low:high] = part @ weighted[tile]
                squares.append(float(np.einsum("ij,ij,j->", part, part, weights[tile])))
            target_sums = target_moments.target_products(
                targets_and_ones[tile], weights[tile]
            )
        products = moments, target_sums, np.asarray(math.fsum(squares))
        sums.append(
            FirstSums(tile.stop - tile.start, *map(exact_sums.ExactSum.of, products))
        )

    _share_tiles(add_up, len(inputs), feature_map.n_components, weighted.shape[1])
    # The sums are exact, so the order in which threads append them does not matter.
    return reduce(operator.add, sums)


@frozen(eq=False)
class Validation:
    """Solutions, whose errors on held-out rows a pass sums besides its products."""

    #: Coefficients of the unnormalised features, of shape (n_components, n_solutions).
    coefficients: FloatArray
    intercept: FloatArray  # of shape (n_solutions,)
    #: The number of the target that each solution predicts, of shape (n_solutions,).
    targets: IntArray


@frozen(eq=False)
class GramFactor:
    """The state of a pass that multiplies V'WV by some columns."""

    feature_map: maps.FeatureMap
    #: C, of shape (n_components, n_columns), each column with a norm up to 1.
    columns: FloatArray
    #: o, of shape (n_columns,), subtracted from each row of VC.
    offset: FloatArray
    #: Sums are rounded to multiples of 2**grid_exponent.
    grid_exponent: int
    #: If given, only its training rows are multiplied.
    split: TrainingSplit | None = None
    #: Solutions that predict the split's held-out rows; only with a split.
    validation: Validation | None = None


@frozen(eq=False)
class GramProduct:
    """Sums of one pass over rows; `+` adds rows."""

    n_samples: int
    #: V'W(VC − 1o') in multiples of 2**grid_exponent, of shape (n_components,
    #: n_columns).
    sums: IntArray
    #: The weighted squared error of each solution of a `Validation`, then the sum of
    #: the validation weights.
    errors: exact_sums.ExactSum

    __add__ = exact_sums.add_fields


def multiply_rows(
    rows: blocks.Rows, state: GramFactor, total: GramProduct | None = None
) -> GramProduct:
    """Return a block's share of V'W(VC − 1o'), added to `total` in place.

    Takes O(n_samples · n_components · (n_features + n_columns)). Raises DataError if
    values are not finite.
    """
    feature_map = state.feature_map
    validation = state.validation
    inputs = feature_map.inputs_of(rows)
    weights = rows.sample_weight
    # what the features are multiplied by: C, then the solutions to validate
    all_columns = state.columns
    n_columns = all_columns.shape[1]
    errors = exact_sums.ExactSum.zeros((1,))
    if state.split is not None:
        weights, held_out = state.split.weights(rows, rows.weights)
    if validation is not None:
        assert rows.y is not None
        all_columns = np.hstack([all_columns, validation.coefficients])
        errors = exact_sums.ExactSum.zeros((len(validation.targets) + 1,))
        residuals = rows.y[:, validation.targets] - validation.intercept
    sums = np.zeros(state.columns.shape, np.int64) if total is None else total.sums
    one_at_a_time = threading.Lock()

    def multiply(tile: slice, features: FloatArray) -> None:
        nonlocal errors
        # features are made once and read twice: for VC here, and for V'·(VC) below
        scores = np.zeros((tile.stop - tile.start, all_columns.shape[1]))
        for low, high in feature_map.stripes:
            part = _fill(feature_map, inputs[tile], features, low, high)
            scores += part.T @ all_columns[low:high]
        if validation is not None:
            squares = held_out[tile] @ np.square(
                residuals[tile] - scores[:, n_columns:]
            )
            with one_at_a_time:
                errors += exact_sums.ExactSum.of(
                    np.append(squares, held_out[tile].sum())
                )
        centred = scores[:, :n_columns] - state.offset
        if weights is not None:
            centred *= weights[tile, np.newaxis]
        for low, high in feature_map.stripes:
            product = features[low:high] @ centred
            product *= 2.0**-state.grid_exponent
            np.rint(product, out=product)
            with one_at_a_time:
                exact_sums.add_whole_numbers(product, sums[low:high])

    _share_tiles(multiply, len(inputs), feature_map.n_components, all_columns.shape[1])
    if total is None:
        return GramProduct(len(inputs), sums, errors)
    return GramProduct(total.n_samples + len(inputs), sums, total.errors + errors)


def _share_tiles(
    function: Callable[[slice, FloatArray], None],
    n_rows: int,
    n_components: int,
    n_columns: int,
) -> None:
    """Call a function with each tile of a block, and memory for its features.

    Each thread takes whole tiles: threads that share a tile would wait for each other
    twice.
    """
    height = tile_height(n_components, n_columns)
    spare = machine.SpareMemory()

    def work(tile: slice) -> None:
        memory = spare.take(n_components * min(height, n_rows), np.float64)
        size = n_components * (tile.stop - tile.start)
        function(tile, memory[:size].reshape(n_components, -1))
        spare.give(memory)

    machine.share_out(work, machine.slices(0, n_rows, height))


def _fill(
    feature_map: maps.FeatureMap,
    inputs: Float32Array,
    features: FloatArray,
    low: int,
    high: int,
) -> FloatArray:
    """Fill in the components `low:high` of a tile's features, and return them."""
    # `first_sums` refuses features that overflow
    with np.errstate(over="ignore", invalid="ignore"):
        feature_map.fill(inputs, features[low:high], low, high)
    return features[low:high]


def pass_operations(n_columns: int) -> int:
    """Return the operations of a pass of Z'(ZC) for each feature."""
    return FEATURE_OPERATIONS + COLUMN_OPERATIONS * n_columns


def tile_height(n_components: int, n_columns: int) -> int:
    """Return the rows of a tile.

    They depend on sizes alone, so that sums have the same bits on all machines.
    """
    size = TILE_BYTES if n_columns <= FEW_COLUMNS else TILE_BYTES_OF_MANY
    return min(MAX_TILE_ROWS, max(MIN_TILE_ROWS, size // (8 * n_components) // 64 * 64))


@dataclass(frozen=True, eq=False)
class GramOperator:
    """Z'WZ of a dataset as an operator on columns: each product is a pass."""

    dataset: blocks.Dataset
    accumulation: accumulate.Accumulation
    sums: FirstSums  # of the first pass
    #: Whether the columns of Z and Y have their weighted means subtracted.
    centred: bool
    engine: protocol.Engine
    #: If given, only its training rows count.
    split: TrainingSplit | None = None

    @property
    def feature_map(self) -> maps.FeatureMap:
        return self.accumulation.feature_map

    @cached_property
    def targets(self) -> target_moments.TargetMoments:
        return target_moments.TargetMoments.of(
            self.sums.targets, self.accumulation.spec.offsets
        )

    @property
    def raw_means(self) -> FloatArray:
        """Weighted means of the unnormalised features; zero if not centred."""
        sums = self.sums.cross.value()[:, -1]
        if not self.centred:
            return np.zeros(len(sums))
        return sums / self.targets.weight

    @cached_property
    def summary(self) -> TargetSummary:
        """The means, and the targets' sums of squares, that a solution needs."""
        target_means = np.zeros(len(self.targets.offsets))
        if self.centred:
            target_means = self.targets.means
        means = sums_of_z(self.raw_means[:, np.newaxis], self.feature_map)
        return TargetSummary(
            total_sum_of_squares=self.targets.sums_of_squares(centred=self.centred),
            feature_means=means[:, 0],
            target_means=target_means,
        )

    @property
    def moments(self) -> FloatArray:
        """Z'WY, shape (n_components, n_targets)."""
        # `cross` has V'W(Y − offset), and V'W1 in its last column. Adding multiples of
        # the latter gives V'WY about the mean or about 0.
        cross = self.sums.cross.value()
        targets = self.targets
        shift = -targets.shifts if self.centred else targets.offsets
        return sums_of_z(cross[:, :-1] + cross[:, -1:] * shift, self.feature_map)

    @cached_property
    def rounding_error(self) -> float:
        """Size of the rounding error of Z'WZ.

        It is relative to the uncentred sums: centring may cancel most of them.
        """
        spec = self.accumulation.spec
        whitener = self.feature_map.whitener
        largest_scale = float(exact_sums.expand(self.feature_map.scales).max())
        trace_error = EPS * float(self.sums.trace.value()) * largest_scale**2
        if whitener is None:
            return trace_error
        # `product_error` of `reading.gram_error_of`, if all diagonal entries were equal
        spectral, frobenius = reading.Whitener(whitener).inverse_norms
        return 0.5 * trace_error / math.sqrt(spec.n_components) * spectral * frobenius

    def multiply(self, columns: FloatArray, *, label: str = "iterate") -> FloatArray:
        """Return Z'WZ times columns of shape (n_components, n_columns), in one pass."""
        product, _ = self._run(columns, None, label)
        return product

    def multiply_and_validate(
        self, columns: FloatArray, coefficients: FloatArray, targets: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return Z'WZ times columns, and the errors of solutions on held-out rows.

        `coefficients` have the shape (n_components, n_solutions); `targets` has the
        number of the target that each solution predicts. Errors are weighted mean
        squares. Raises StatisticsError if no row with a weight is held out.
        """
        assert self.split is not None
        raw = self.feature_map.raw_coefficients(coefficients)
        intercept = self.summary.target_means[targets] - self.raw_means @ raw
        product, errors = self._run(
            columns, Validation(raw, intercept, targets), "iterate"
        )
        if not errors[-1] > 0.0:
            raise StatisticsError(
                f"no row with a weight is held out by {self.split.folds}; give other"
                " folds, or one alpha"
            )
        return product, errors[:-1] / errors[-1]

    def _run(
        self, columns: FloatArray, validation: Validation | None, label: str
    ) -> tuple[FloatArray, FloatArray]:
        """Return Z'WZ times columns, and the `errors` of a `GramProduct`."""
        raw = self.feature_map.raw_coefficients(columns)
        column_exponents = _norm_exponents(raw)
        scaled = np.ldexp(raw, -column_exponents)
        # By Cauchy and Schwarz no partial sum exceeds the trace times a column's norm,
        # which is now at most 1.
        _, trace_exponent = math.frexp(float(self.sums.trace.value()))
        grid_exponent = trace_exponent + 1 - specs.LIMB_BITS
        factor = GramFactor(
            self.feature_map,
            scaled,
            self.raw_means @ scaled,
            grid_exponent,
            self.split,
            validation,
        )
        task = blocks.BlockTask(self.dataset, multiply_rows, adds=True)
        parts = row_passes.blocks_of(self.dataset)
        product: GramProduct = self.engine.map_reduce(task, parts, factor, label=label)
        specs.check_counted(product.n_samples, self.dataset.n_samples)
        sums = np.ldexp(
            product.sums.astype(np.float64), grid_exponent + column_exponents
        )
        return sums_of_z(sums, self.feature_map), product.errors.value()


def _norm_exponents(columns: FloatArray) -> IntArray:
    """Return e for each column, such that its norm over 2**e is at most 1.

    Dividing by powers of two does not round.
    """
    # scaled by the largest number first, so that squares do not overflow
    exponents = np.frexp(np.abs(columns).max(axis=0))[1]
    norms = np.linalg.norm(np.ldexp(columns, -exponents), axis=0)
    return exponents + np.frexp(norms)[1]


def gram_operator(
    dataset: blocks.Dataset,
    accumulation: accumulate.Accumulation,
    *,
    centred: bool,
    engine: protocol.Engine,
    split: TrainingSplit | None = None,
) -> GramOperator:
    """Return the operator after one pass, which sums targets times features.

    Raises DataError if values are not finite or features overflow; StatisticsError if a
    row is missing.
    """
    add_up = partial(first_sums, split=split)
    sums = row_passes.sum_rows(
        dataset, add_up, accumulation, engine=engine, label="targets"
    )
    specs.check_counted(sums.n_samples, dataset.n_samples)
    return GramOperator(dataset, accumulation, sums, centred, engine, split)


def sums_of_z(sums: FloatArray, feature_map: maps.FeatureMap) -> FloatArray:
    """Turn sums V'[…] of shape (n_components, n_columns) into sums Z'[…]."""
    scales = exact_sums.expand(feature_map.scales)[:, np.newaxis]
    return reading.whiten(scales * sums, feature_map.whitener)
