"""Turn one block of rows into exact statistics: the work of a worker in a fit.

Rows come in, and their Z'Z and Z'y go out, for each feature map and fold. Z is the
matrix of the rows' features; its columns are *components*. `Z.T @ Z` would be one line.
The rest is for the speed of all cores (tiles that fit into the cache, shared by
threads), for sums without rounding, and for memory: sums are added to totals in place,
and Z is never in memory as a whole. U are the unnormalised features in units by which
they are at most 1 (`specs`), and W has the rows' weights on its diagonal.

A *piece* of the block is its rows in one fold. A *tile* is some rows of a piece, with
all of their features. A *stripe* is a range of components of a tile, which one thread
fills, and a *panel* the stripe's features of fewer rows. An *output tile* is a stored
square of Z'Z, and a *region* the output tiles that one product makes.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from threading import Lock
from typing import NamedTuple

import numpy as np

from rff_dist.data import blocks, folding
from rff_dist.engines import tracing
from rff_dist.errors import DataError, PlanError, StatisticsError
from rff_dist.features import maps
from rff_dist.numerics import exact_sums, machine
from rff_dist.products import choice, protocol
from rff_dist.statistics import (
    fold_statistics,
    layouts,
    ridge_statistics,
    specs,
    target_moments,
)
from rff_dist.typing import Float32Array, FloatArray, IntArray, frozen

#: The first component, and the one after the last.
type _Stripe = tuple[int, int]


class _Tile(NamedTuple):
    """Some rows of a piece, and memory for their features."""

    #: Number of the piece.
    piece: int
    #: Positions among the sorted rows.
    rows: slice
    features: protocol.Tile


# Unused numbers between the lines of a product. Without them lines are a power of two
# apart, share few places of a core's caches, and products of 512 and 1,024 components
# take 3 to 10 % longer on Zen 3.
GAP = 8
# Rows of a panel of fixed-point features: 2 MiB per stripe, to fit into the cache.
PANEL_ROWS = 512


@frozen
class Accumulation:
    """The state of an accumulating pass: the features, and the spec of their sums."""

    feature_map: maps.FeatureMap
    spec: specs.StatisticsSpec
    #: If given, each tile has rows of one fold only, although the folds are not summed
    #: separately. Sums are rounded tile by tile, so the sum of all rows then has the
    #: same bits as the sum of separate folds.
    tile_folds: folding.Folds | None = None
    #: Whether Z'Z is summed.
    with_gram: bool = True


@frozen
class Accumulations:
    """The state of a pass that accumulates for several feature maps, fold by fold."""

    members: tuple[Accumulation, ...]
    #: Folds that are summed separately; None for one sum of all rows.
    folds: folding.Folds | None
    #: Rows of the dataset, which contiguous folds depend on.
    n_samples: int

    def of_part(self, number: int, n_parts: int) -> Accumulations:
        """Return the state of a pass that sums up a part of Z'Z of each map."""
        part = layouts.Part(number, n_parts)
        members = []
        for member in self.members:
            spec = replace(member.spec, part=part)
            members.append(replace(member, spec=spec))
        return replace(self, members=tuple(members))


def accumulate_fold_rows(
    rows: blocks.Rows,
    state: Accumulations,
    totals: fold_statistics.MapSums | None = None,
) -> fold_statistics.MapSums:
    """Return a block's statistics for each feature map and fold, added to `totals`.

    Takes O(n_samples · n_components²) time, as without folds, but memory for the sums
    of each fold. `totals` are changed in place. Raises the errors of `accumulate_rows`,
    and DataError if folds need groups and the rows have none.
    """
    n_folds = 1 if state.folds is None else state.folds.n_folds
    pieces = _cut_by_folds(rows, state.folds, state.n_samples)
    sums = []
    for i, member in enumerate(state.members):
        fold_sums: list[fold_statistics.FoldSum] = [None] * n_folds
        if totals is not None:
            fold_sums = [*totals[i]]
        before = [fold_sums[fold] for fold in pieces.folds]
        after = _accumulate(rows, member, pieces, before, n_samples=state.n_samples)
        for fold, statistics in zip(pieces.folds, after, strict=True):
            fold_sums[fold] = statistics
        sums.append(tuple(fold_sums))
    return tuple(sums)


def add_fold_rows(
    left: fold_statistics.MapSums, right: fold_statistics.MapSums
) -> fold_statistics.MapSums:
    """Add the sums of two sets of rows: the `combine` of `accumulate_fold_rows`."""
    return tuple(
        tuple(map(fold_statistics.plus, left_folds, right_folds))
        for left_folds, right_folds in zip(left, right, strict=True)
    )


def _cut_by_folds(
    rows: blocks.Rows, folds: folding.Folds | None, n_samples: int
) -> _Pieces:
    """Sort a block's rows by fold; without folds they are one piece."""
    if folds is None:
        return _Pieces(slice(None), (len(rows.X),), (0,))
    block = rows.block
    fold_of_row = folds.assign(
        block.start, block.stop, n_samples=n_samples, groups=rows.groups
    )
    order = np.argsort(fold_of_row, kind="stable")
    ends = np.cumsum(np.bincount(fold_of_row, minlength=folds.n_folds))
    present = np.flatnonzero(np.diff(ends, prepend=0))
    return _Pieces(order, tuple(ends[present].tolist()), tuple(present.tolist()))


def add_each[T](left: tuple[T, ...], right: tuple[T, ...]) -> tuple[T, ...]:
    """Add two tuples element by element."""
    return tuple(map(operator.add, left, right))


def accumulate_rows(
    rows: blocks.Rows,
    state: Accumulation,
    total: ridge_statistics.RidgeStatistics | None = None,
) -> ridge_statistics.RidgeStatistics:
    """Return the exact statistics of a block, added to `total` in place.

    Takes O(n_samples · n_components²). y is ignored where the spec has no targets.

    Raises
    ------
    DataError
        If a value is not finite, a sum overflows, y and the spec differ in the number
        of targets, or a weight is outside the spec's grid.
    StatisticsError
        If spec and feature map differ in the number of components.
    PlanError
        If the block has more rows than an integer sum holds.
    """
    pieces = _cut_by_folds(rows, state.tile_folds, rows.block.stop)
    # Sums are exact, so one piece may be added to the total, and the others begin at 0.
    before = [total] + [None] * (len(pieces.ends) - 1)
    after = _accumulate(rows, state, pieces, before, n_samples=rows.block.stop)
    return reduce(operator.add, after)


@frozen
class _Pieces:
    """How a block's rows are sorted into pieces that are summed separately."""

    order: IntArray | slice
    #: For each piece, where it ends in this order, and its fold.
    ends: tuple[int, ...]
    folds: tuple[int, ...]

    @property
    def starts(self) -> tuple[int, ...]:
        return (0, *self.ends[:-1])

    @property
    def sizes(self) -> list[int]:
        return [end - start for start, end in zip(self.starts, self.ends, strict=True)]

    def tiles(self, height: int) -> list[tuple[int, slice]]:
        """Cut the pieces into tiles of `height` rows; return for each tile its piece's
        number and its rows.
        """
        tiles = []
        for piece, (start, end) in enumerate(zip(self.starts, self.ends, strict=True)):
            for tile in machine.slices(start, end, height):
                tiles.append((piece, tile))
        return tiles


def _accumulate(
    rows: blocks.Rows,
    state: Accumulation,
    pieces: _Pieces,
    totals: Sequence[fold_statistics.FoldSum],
    *,
    n_samples: int,
) -> list[ridge_statistics.RidgeStatistics]:
    """Return the statistics of each piece of a block, added to `totals` in place.

    The way to multiply depends on the rows of the whole pass, `n_samples`.
    """
    spec = state.spec
    if spec.n_targets == 0:
        rows = replace(rows, y=None)
    _check_layout(rows, state)
    block = _SortedRows.of(rows, state, pieces.order)
    roomy_totals = []
    for total, size in zip(totals, pieces.sizes, strict=True):
        if total is None:
            total = ridge_statistics.RidgeStatistics.empty(spec)
        # with room: 64 bits could overflow before `carry_in_place` carries beyond 62
        roomy_totals.append(ridge_statistics.make_room(total, size))

    height = min(specs.tile_rows(spec.n_components), max(1, *pieces.sizes))
    tiles = pieces.tiles(height)
    products: protocol.Products = protocol.Float64Products(layouts.OUTPUT_TILE)
    panel_rows = height
    # tiles of each piece whose products are rounded to the grid
    n_rounded = np.bincount([piece for piece, _ in tiles], minlength=len(pieces.ends))
    if spec.fixed_point:
        products = choice.products_for(n_samples, spec.n_components)
        panel_rows = PANEL_ROWS
        n_rounded[:] = 0
    tracing.note(products=products.name)
    stripes = _Stripes(state, block, panel_rows)
    added = _sum_tiles(stripes, tiles, height, roomy_totals, products)
    sums = []
    for i, (start, end) in enumerate(zip(pieces.starts, pieces.ends, strict=True)):
        total = roomy_totals[i]
        cross, target_sums = added[i]
        n_observations = int(block.counts[start:end].sum())
        total = replace(
            total,
            n_samples=total.n_samples + end - start,
            n_observations=total.n_observations + n_observations,
            cross=cross,
            targets=target_sums,
            n_tiles=total.n_tiles + int(n_rounded[i]),
        )
        sums.append(ridge_statistics.carry_in_place(total))
    return sums


@frozen(eq=False)
class _SortedRows:
    """A block's rows, piece after piece."""

    inputs: Float32Array
    #: Targets minus their offsets, and a column of ones: products with the ones are the
    #: sums of features and weights, Z'1 and 1'1.
    outputs: FloatArray
    weights: FloatArray | None
    weighted_outputs: FloatArray
    #: How many observations each row counts as.
    counts: IntArray
    #: Row numbers in the dataset.
    numbers: IntArray

    @classmethod
    def of(
        cls, rows: blocks.Rows, state: Accumulation, order: IntArray | slice
    ) -> _SortedRows:
        spec = state.spec
        inputs = state.feature_map.inputs_of(rows)
        weights = checked_weights(rows, spec)
        counts = _observations(rows, spec)
        outputs = np.ones((len(inputs), 1))
        if rows.y is not None:
            outputs = np.column_stack([rows.y - spec.offsets, outputs])
        outputs = outputs[order]
        weighted_outputs = outputs
        if weights is not None:
            weights = weights[order]
            weighted_outputs = outputs * weights[:, np.newaxis]
        numbers = np.arange(rows.block.start, rows.block.stop)
        return cls(
            inputs[order],
            outputs,
            weights,
            weighted_outputs,
            counts[order],
            numbers[order],
        )

    def target_sums(self, rows: slice) -> exact_sums.ExactSum:
        """Return sums of targets and their squares over some rows."""
        weights = None if self.weights is None else self.weights[rows]
        # `ExactSum.of` refuses sums that overflowed
        with np.errstate(over="ignore", invalid="ignore"):
            products = target_moments.target_products(self.outputs[rows], weights)
        return exact_sums.ExactSum.of(products)


class _Stripes:
    """Fills stripes of tiles with features, and multiplies features by the outputs."""

    def __init__(self, state: Accumulation, block: _SortedRows, panel_rows: int):
        self.state = state
        self.block = block
        self._panel_rows = panel_rows
        #: Factors by which features become at most 1; None if they are.
        self._units: FloatArray | None = None
        if state.spec.exponents:
            self._units = 2.0 ** -exact_sums.expand(state.spec.exponents)

    def fill(self, job: tuple[_Tile, _Stripe]) -> FloatArray:
        """Fill a stripe of a tile, and return its products U'W[y, 1]."""
        tile, (start, stop) = job
        features = tile.features
        block = self.block
        moments = np.zeros((stop - start, block.outputs.shape[1]))
        # `ExactSum.of` refuses such moments
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, features.n_rows, self._panel_rows):
                last = min(first + self._panel_rows, features.n_rows)
                within = slice(first, last)
                rows = slice(tile.rows.start + first, tile.rows.start + last)
                panel = features.panel(start, stop, within)
                self.state.feature_map.fill(block.inputs[rows], panel, start, stop)
                if self._units is not None:
                    panel *= self._units[start:stop, np.newaxis]
                    _check_head_room(panel, block.numbers[rows])
                moments += panel @ block.weighted_outputs[rows]
                if block.weights is not None:
                    # so that U'WU is the product of a tile with itself
                    panel *= np.sqrt(block.weights[rows])
                if self.state.with_gram:
                    features.put(start, within, panel)
        return moments


class _GramSums:
    """Adds products of tiles to Z'Z of their pieces, in place, from several threads."""

    def __init__(
        self,
        spec: specs.StatisticsSpec,
        totals: Sequence[ridge_statistics.RidgeStatistics],
        regions: Sequence[layouts.Region],
        n_threads: int,
    ):
        self._spec = spec
        self._sums = [total.low for total in totals]
        # Threads work on several tiles, which are added to the same output tiles.
        self._locks = {tile.offset: Lock() for tile in spec.layout.tiles()}
        # Each thread reuses one buffer for its products: Dask's workers return freed
        # memory to the system at once, and fresh pages for each product cost 5 % there.
        heights = [region.rows.stop - region.rows.start for region in regions]
        largest = max(heights, default=0)
        self._buffers = [np.empty((largest, largest + GAP)) for _ in range(n_threads)]

    def add(self, job: tuple[layouts.Region, _Tile]) -> None:
        """Compute a region of a tile's Z'Z, and add it to the total's output tiles."""
        region, tile = job
        rows = region.rows
        columns = region.columns
        spec = self._spec
        buffer = self._buffers.pop()
        product = buffer[: rows.stop - rows.start, : columns.stop - columns.start]
        tile.features.gram(rows, columns, product)
        for output_tile in region.tiles:
            total = spec.layout.view(self._sums[tile.piece], output_tile)
            height, width = total.shape
            first_row = output_tile.row - rows.start
            first_column = output_tile.column - columns.start
            part = product[first_row:, first_column:][:height, :width]
            with self._locks[output_tile.offset]:
                _add(part, total, -spec.grid_exponent, exact=spec.fixed_point)
        self._buffers.append(buffer)


def _sum_tiles(
    stripes: _Stripes,
    tiles: Sequence[tuple[int, slice]],
    height: int,
    totals: Sequence[ridge_statistics.RidgeStatistics],
    products: protocol.Products,
) -> list[tuple[exact_sums.ExactSum, exact_sums.ExactSum]]:
    """Add the tiles of a block to the totals' Gram matrices, in place.

    Returns the other sums of each piece, `cross` and `targets`. Threads share the
    stripes of some tiles, and then the regions of their products.
    """
    state = stripes.state
    n_threads = machine.threads_in_use.get()
    regions = state.spec.layout.regions(products.region)
    gram_sums = _GramSums(state.spec, totals, regions, n_threads)
    cross = [total.cross for total in totals]
    target_sums = [total.targets for total in totals]
    # With few regions threads would be idle at the end of each tile, so several tiles
    # are worked on together. As few as suffice, since each needs memory.
    n_together = 1
    if n_threads > 1:
        n_together = min(len(tiles), -(-2 * n_threads // max(1, len(regions))))
    n_components = state.spec.n_components
    memory = [products.make_tile(n_components, height) for _ in range(n_together)]
    n_stripes = len(state.feature_map.stripes)
    with machine.executor_of(n_threads) as pool:
        for group in itertools.batched(tiles, n_together):
            work: list[_Tile] = []
            for (piece, rows), features in zip(group, memory, strict=False):
                features.clear(rows.stop - rows.start)
                work.append(_Tile(piece, rows, features))
            jobs = itertools.product(work, state.feature_map.stripes)
            # `map` keeps the order of its jobs: tile by tile, and in a tile stripe by
            # stripe. `list` waits for all of them.
            moments_of_tiles = list(
                itertools.batched(pool.map(stripes.fill, jobs), n_stripes)
            )
            for tile, moments in zip(work, moments_of_tiles, strict=True):
                cross[tile.piece] += exact_sums.ExactSum.of(np.concatenate(moments))
                target_sums[tile.piece] += stripes.block.target_sums(tile.rows)
            if state.with_gram:
                list(pool.map(gram_sums.add, itertools.product(regions, work)))
    return list(zip(cross, target_sums, strict=True))


def _check_layout(rows: blocks.Rows, state: Accumulation) -> None:
    """Check that a block and the feature map fit the layout of the sums."""
    block = rows.block
    spec = state.spec
    n_components = state.feature_map.n_components
    if rows.y is None and spec.n_targets:
        raise DataError("the data have no y: training needs targets")
    if block.n_samples > spec.int64_rows:
        raise PlanError(
            f"a block of {block.n_samples:_} rows is too large; cut blocks of at most"
            f" {spec.int64_rows:_}"
        )
    if spec.n_components != n_components:
        raise StatisticsError(
            f"the sums are for {spec.n_components} components, and the feature map"
            f" has {n_components}; make the spec from this feature map"
        )
    if rows.y is not None and rows.y.shape != (block.n_samples, spec.n_targets):
        raise DataError(
            f"y has shape {rows.y.shape} in rows {block.start:_}:{block.stop:_}; "
            f"expected ({block.n_samples}, {spec.n_targets})"
        )


def _add(product: FloatArray, total: IntArray, shift: int, *, exact: bool) -> None:
    """Round `product`, in place, to multiples of 2**-shift and add it to `total`.

    With `exact` it consists of such multiples already, and is not rounded.
    """
    # Strips of 128 KiB stay in the cache; whole output tiles would take four times as
    # long.
    for i in range(0, len(product), 32):
        strip = product[i : i + 32]
        strip *= 2.0**shift
        if not exact:
            np.rint(strip, out=strip)
        exact_sums.add_whole_numbers(strip, total[i : i + 32])


def _check_head_room(features: FloatArray, row_numbers: IntArray) -> None:
    reach = np.abs(features).max(axis=0, initial=0.0)
    if not (reach <= 1).all():
        row = int(np.argmin(reach <= 1))
        raise DataError(
            f"a feature of row {row_numbers[row]:_} is {reach[row]:.3g} times the"
            " largest value that these sums can hold; the row's inputs are"
            " far outside those of the first rows. Fit again"
        )


def checked_weights(rows: blocks.Rows, spec: specs.StatisticsSpec) -> FloatArray | None:
    """Return a block's weights after checking them against the spec.

    Raises DataError if a weight is beyond the grid, if weights repeat rows and one is
    not a whole number, or if rows have weights and the spec allows none.
    """
    weights = rows.sample_weight
    if weights is not None and spec.fixed_point:
        raise DataError(
            "rows have weights, but these exact sums are for rows without; fit again"
        )
    if weights is not None and weights.max(initial=0.0) > 2.0**spec.weight_exponent:
        row = int(np.argmax(weights))
        raise DataError(
            f"sample_weight is {weights[row]:g} in row {rows.block.start + row:_},"
            f" above {2.0**spec.weight_exponent:g}, the largest that these exact sums"
            " can hold; scale the weights down or fit again"
        )
    repeats = _repetitions(rows, spec)
    if repeats is not None and (repeats != np.rint(repeats)).any():
        row = int(np.argmax(repeats != np.rint(repeats)))
        raise DataError(
            f"sample_weight is {repeats[row]:g} in row {rows.block.start + row:_}, but"
            " these weights say how many times a row is there; give whole numbers, or"
            ' sample_weight_kind="precision"'
        )
    if weights is None and spec.weight_exponent < 0:
        raise DataError(
            f"rows without weights count 1 each, above {2.0**spec.weight_exponent:g},"
            " the largest weight that these exact sums can hold; give weights"
            " or fit again"
        )
    return weights


def _repetitions(rows: blocks.Rows, spec: specs.StatisticsSpec) -> FloatArray | None:
    """Return how many times each row is repeated, if weights mean that; else None."""
    if not spec.frequency_weights:
        return None
    return rows.sample_weight if rows.own_weight is None else rows.own_weight


def _observations(rows: blocks.Rows, spec: specs.StatisticsSpec) -> IntArray:
    """Return how many observations each row counts as: its repetitions, 1, or 0."""
    repeats = _repetitions(rows, spec)
    counts = np.ones(rows.block.n_samples, np.int64)
    if repeats is not None:
        counts = repeats.astype(np.int64)
    if rows.sample_weight is not None:
        counts[~(rows.sample_weight > 0)] = 0
    return counts


def measure_features(rows: blocks.Rows, feature_map: maps.FeatureMap) -> FloatArray:
    """Return the largest absolute value of each unnormalised feature in a block.

    The shape is (n_components,). Raises DataError if an input is not finite.
    """
    largest = np.zeros(feature_map.n_components)

    def measure(components: slice, tile: slice, features: FloatArray) -> None:
        tile_largest = np.abs(features).max(axis=1)
        np.maximum(largest[components], tile_largest, out=largest[components])

    share_features(measure, feature_map.inputs_of(rows), feature_map)
    return largest


def share_features(
    function: Callable[[slice, slice, FloatArray], None],
    inputs: Float32Array,
    feature_map: maps.FeatureMap,
) -> None:
    """Call a function with a range of components, a range of rows, and their features.

    Threads share the stripes. Features may overflow: the caller refuses their sums.
    """
    height = min(specs.tile_rows(feature_map.n_components), max(1, len(inputs)))

    def work(stripe: _Stripe) -> None:
        start, stop = stripe
        memory = np.empty((stop - start, height))
        for tile in machine.slices(0, len(inputs), height):
            features = memory[:, : tile.stop - tile.start]
            with np.errstate(over="ignore", invalid="ignore"):
                feature_map.fill(inputs[tile], features, start, stop)
                function(slice(start, stop), tile, features)

    machine.share_out(work, feature_map.stripes)
