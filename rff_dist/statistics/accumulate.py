"""Turns one block of rows into statistics: what a worker does with each block of a fit."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from threading import Lock

import numpy as np

from rff_dist.data import blocks, folding
from rff_dist.engines import tracing
from rff_dist.errors import DataError, PlanError, StatisticsError
from rff_dist.features import maps
from rff_dist.numerics import exact_sums, machine
from rff_dist.products import choice, protocol
from rff_dist.statistics import fold_statistics, ridge_statistics, specs
from rff_dist.typing import FloatArray, IntArray, frozen

type _FilledTile = tuple[int, slice, protocol.Tile]  # the tile's piece, rows and features
type _Stripe = tuple[int, int]  # first component, end

# Numbers between the lines of a product. Lines a power of two apart share few places of a core's caches:
# products of 512 and 1,024 components then take 3 to 10 % longer on Zen 3.
GAP = 8
PANEL_ROWS = 512  # fixed-point features are filled so many rows at a time: 2 MiB a stripe, to fit the cache


@frozen
class Accumulation:
    """The state of an accumulating pass: the features, and what their statistics are about.

    `folds`: with folds, each tile holds rows of one fold only. Sums are rounded tile by tile, so the sum of
      all rows then has the same bits as the sum of the folds.
    `with_gram`: whether Z'Z is summed, besides all else.
    """

    feature_map: maps.FeatureMap
    spec: specs.StatisticsSpec
    folds: folding.Folds | None = None
    with_gram: bool = True


@frozen
class Accumulations:
    """The state of a pass that accumulates statistics for several feature maps, of all rows or of each fold.

    `members`: the feature maps to compare.
    `folds`: each of these folds is summed separately; None for one sum of all rows.
    `n_samples`: number of rows of the dataset, by which contiguous folds are cut.
    """

    members: tuple[Accumulation, ...]
    folds: folding.Folds | None
    n_samples: int

    def of_part(self, part: specs.Part) -> Accumulations:
        """Return the state of a pass that sums up a part of Z'Z of each map."""
        members = (replace(member, spec=replace(member.spec, part=part)) for member in self.members)
        return replace(self, members=tuple(members))


def accumulate_fold_rows(
    rows: blocks.Rows, state: Accumulations, totals: fold_statistics.MapSums | None = None
) -> fold_statistics.MapSums:
    """Return, for each feature map, the exact statistics of each fold of a block; adds to `totals` in place.

    Takes O(n_samples · n_components²) time, as without folds, but one set of sums in memory for each fold.
    Without folds all rows are one.

    Raises DataError, StatisticsError, PlanError as `accumulate_rows`, and DataError if folds need groups and
      the rows have none.
    """
    n_folds = 1 if state.folds is None else state.folds.n_folds
    pieces = _cut_by_folds(rows, state.folds, state.n_samples)
    sums = []
    for i, member in enumerate(state.members):
        parts: list[fold_statistics.FoldSum] = [None] * n_folds if totals is None else [*totals[i]]
        known = [parts[fold] for fold in pieces.folds]
        added = _accumulate(rows, member, pieces, known, n_samples=state.n_samples)
        for fold, part in zip(pieces.folds, added, strict=True):
            parts[fold] = part
        sums.append(tuple(parts))
    return tuple(sums)


def add_fold_rows(left: fold_statistics.MapSums, right: fold_statistics.MapSums) -> fold_statistics.MapSums:
    """Add the sums of two sets of rows: the `combine` of `accumulate_fold_rows`."""
    return tuple(tuple(map(fold_statistics.plus, *both)) for both in zip(left, right, strict=True))


def _cut_by_folds(rows: blocks.Rows, folds: folding.Folds | None, n_samples: int) -> _Pieces:
    """Return a block's rows sorted by fold; without folds they are one piece."""
    if folds is None:
        return _Pieces(slice(None), (len(rows.X),), (0,))
    block = rows.block
    fold_of_row = folds.assign(block.start, block.stop, n_samples=n_samples, groups=rows.groups)
    order = np.argsort(fold_of_row, kind="stable")
    ends = np.cumsum(np.bincount(fold_of_row, minlength=folds.n_folds))
    present = np.flatnonzero(np.diff(ends, prepend=0))
    return _Pieces(order, tuple(ends[present].tolist()), tuple(present.tolist()))


def add_each[T](left: tuple[T, ...], right: tuple[T, ...]) -> tuple[T, ...]:
    """Add two tuples element by element."""
    return tuple(map(operator.add, left, right))


def accumulate_rows(
    rows: blocks.Rows, state: Accumulation, total: ridge_statistics.RidgeStatistics | None = None
) -> ridge_statistics.RidgeStatistics:
    """Return the exact statistics of a block, O(n_samples · n_components²); adds to `total` in place.

    y is ignored where the spec has no targets.

    Features of a tile are filled stripe by stripe. Products are made region by region and added to the
    output tiles as integers. Threads share the stripes and the regions.

    Raises DataError if a value is not finite, a sum overflows, y and the spec differ in the number of
      targets, or a weight is outside the spec's grid; StatisticsError if spec and feature map differ in the
      number of components; PlanError if the block has more rows than an integer sum holds.
    """
    pieces = _cut_by_folds(rows, state.folds, rows.block.stop)
    known = [total] + [None] * (len(pieces.ends) - 1)
    parts = _accumulate(rows, state, pieces, known, n_samples=rows.block.stop)
    return reduce(operator.add, parts)


@frozen
class _Pieces:
    """An order of a block's rows, and the ends and folds of the pieces of it that are summed separately."""

    order: IntArray | slice
    ends: tuple[int, ...]
    folds: tuple[int, ...]


def _accumulate(
    rows: blocks.Rows,
    state: Accumulation,
    pieces: _Pieces,
    totals: Sequence[fold_statistics.FoldSum],
    *,
    n_samples: int,
) -> list[ridge_statistics.RidgeStatistics]:
    """Return the statistics of each piece of a block.

    `totals`: for each piece, the statistics to which its rows are added in place; None starts from zero.
    `n_samples`: how many rows the pass has, by which it chooses how to multiply.
    """
    feature_map, spec = state.feature_map, state.spec
    if spec.n_targets == 0:
        rows = replace(rows, y=None)
    _check_layout(rows, state)
    inputs = feature_map.inputs_of(rows)
    weights = checked_weights(rows, spec)
    counts = _observations(rows, spec)
    right = np.ones((len(inputs), 1))  # this column sums features and weights: Z'1 and 1'1
    if rows.y is not None:
        right = np.column_stack([rows.y - spec.offsets, right])
    row_numbers = np.arange(rows.block.start, rows.block.stop)
    ends, order = pieces.ends, pieces.order
    inputs, right, row_numbers = inputs[order], right[order], row_numbers[order]
    weights, counts = None if weights is None else weights[order], counts[order]
    weighted = right if weights is None else right * weights[:, np.newaxis]
    layout, n_components = spec.layout, spec.n_components
    starts = (0, *ends[:-1])
    sizes = np.subtract(ends, starts).tolist()
    known = [ridge_statistics.RidgeStatistics.empty(spec) if total is None else total for total in totals]
    begun = list(map(ridge_statistics.with_room, known, sizes))
    # views: products are added to the totals in place, which have room for this block's carries by now
    sums = [total.low for total in begun]
    cross, targets = [total.cross for total in begun], [total.targets for total in begun]

    n_threads = machine.threads_in_use.get()
    units = 2.0 ** -exact_sums.expand(spec.exponents) if spec.exponents else None
    height = min(specs.tile_rows(n_components), max(1, *sizes))
    pieces_of_tiles = [
        (piece, slice(i, min(i + height, end)))
        for piece, (start, end) in enumerate(zip(starts, ends, strict=True))
        for i in range(start, end, height)
    ]
    products: protocol.Products = protocol.Float64Products(specs.OUTPUT_TILE)
    panel_rows = height
    if spec.fixed_point:
        products, panel_rows = choice.products_for(n_samples, n_components), PANEL_ROWS
    tracing.note(products=products.name)
    regions = layout.regions(products.region)
    # Few regions would leave threads idle at the end of each tile, so several tiles are worked on together:
    # just enough of them, since each needs memory.
    together = 1 if n_threads == 1 else min(len(pieces_of_tiles), -(-2 * n_threads // max(1, len(regions))))
    memory = [products.tile(n_components, height) for _ in range(together)]
    locks = {offset: Lock() for _, _, offset in layout.tiles()}  # tiles share output tiles
    # Each thread reuses one buffer for its products: Dask's workers return freed memory to the system at
    # once, and fresh pages for each product cost 5 % there.
    height_of_product = max((left.stop - left.start for left, _, _ in regions), default=0)
    width_of_product = max((right_.stop - right_.start for _, right_, _ in regions), default=0)
    scratch = [np.empty((height_of_product, width_of_product + GAP)) for _ in range(n_threads)]

    def fill(job: tuple[_FilledTile, _Stripe]) -> FloatArray:
        (_, rows_of_tile, tile), (start, stop) = job
        moments = np.zeros((stop - start, right.shape[1]))
        with np.errstate(over="ignore", invalid="ignore"):  # `ExactSum.of` refuses such moments
            for first in range(0, tile.n_rows, panel_rows):
                within = slice(first, min(first + panel_rows, tile.n_rows))
                these = slice(rows_of_tile.start + within.start, rows_of_tile.start + within.stop)
                panel = tile.panel(start, stop, within)
                feature_map.fill(inputs[these], panel, start, stop)
                if units is not None:
                    panel *= units[start:stop, np.newaxis]
                    _check_head_room(panel, row_numbers[these])
                moments += panel @ weighted[these]
                if weights is not None:
                    panel *= np.sqrt(weights[these])  # U'WU is then the product of a tile with itself
                if state.with_gram:
                    tile.put(start, within, panel)
        return moments

    def multiply(job: tuple[specs.Region, _FilledTile]) -> None:
        (left, right_, tiles), (piece, _, tile) = job
        buffer = scratch.pop()
        product = buffer[: left.stop - left.start, : right_.stop - right_.start]
        tile.gram(left, right_, product)
        for row, column, offset in tiles:
            total = layout.view(sums[piece], row, column, offset)
            part = product[row - left.start :, column - right_.start :][: len(total), : total.shape[1]]
            with locks[offset]:
                _add(part, total, -spec.grid_exponent, exact=spec.fixed_point)
        scratch.append(buffer)

    with machine.executor_of(n_threads) as pool:
        for group in itertools.batched(pieces_of_tiles, together):
            work = []
            for (piece, rows_of_tile), tile in zip(group, memory, strict=False):
                tile.clear(rows_of_tile.stop - rows_of_tile.start)
                work.append((piece, rows_of_tile, tile))
            filled = pool.map(fill, itertools.product(work, feature_map.stripes))
            # map keeps the order of its jobs: tile by tile, and stripe by stripe within a tile
            moments_of_tiles = list(itertools.batched(filled, len(feature_map.stripes)))
            for (piece, rows_of_tile, _), moments in zip(work, moments_of_tiles, strict=True):
                cross[piece] += exact_sums.ExactSum.of(np.concatenate(moments))
                with np.errstate(over="ignore", invalid="ignore"):
                    of_tile = None if weights is None else weights[rows_of_tile]
                    of_targets = specs.target_products(right[rows_of_tile], of_tile)
                targets[piece] += exact_sums.ExactSum.of(of_targets)
            if state.with_gram:
                list(pool.map(multiply, itertools.product(regions, work)))
    rounded = [] if spec.fixed_point else [piece for piece, _ in pieces_of_tiles]
    n_tiles = np.bincount(rounded, minlength=len(ends))
    return [
        ridge_statistics.carried(
            replace(
                total,
                n_samples=total.n_samples + end - start,
                n_observations=total.n_observations + int(counts[start:end].sum()),
                cross=cross[i],
                targets=targets[i],
                n_tiles=total.n_tiles + int(n_tiles[i]),
            )
        )
        for i, (start, end, total) in enumerate(zip(starts, ends, begun, strict=True))
    ]


def _check_layout(rows: blocks.Rows, state: Accumulation) -> None:
    """Check that a block and the feature map fit the layout of the sums."""
    block, spec, n_components = rows.block, state.spec, state.feature_map.n_components
    if rows.y is None and spec.n_targets:
        raise DataError("the data have no y: training needs targets")
    if block.n_samples > spec.limb_rows:
        raise PlanError(
            f"a block of {block.n_samples:_} rows is too large; cut blocks of at most {spec.limb_rows:_}"
        )
    if spec.n_components != n_components:
        raise StatisticsError(
            f"the statistics are laid out for {spec.n_components} components, the feature map has "
            f"{n_components}; draw up the spec from this feature map"
        )
    if rows.y is not None and rows.y.shape != (block.n_samples, spec.n_targets):
        raise DataError(
            f"y has shape {rows.y.shape} in rows {block.start:_}:{block.stop:_}; "
            f"expected ({block.n_samples}, {spec.n_targets})"
        )


def _add(product: FloatArray, total: IntArray, shift: int, *, exact: bool) -> None:
    """Round `product` to multiples of 2**-shift and add it to `total`; `product` is overwritten.

    `exact`: it is made of such multiples.
    """
    # strips of 128 KiB stay in the cache: a quarter of the time that sweeps over whole tiles take
    for i in range(0, len(product), 32):
        strip = product[i : i + 32]
        strip *= 2.0**shift
        if not exact:
            np.rint(strip, out=strip)
        np.add(total[i : i + 32], strip, out=total[i : i + 32], casting="unsafe", dtype=np.int64)


def _check_head_room(features: FloatArray, row_numbers: IntArray) -> None:
    reach = np.abs(features).max(axis=0, initial=0.0)
    if not (reach <= 1).all():
        row = int(np.argmin(reach <= 1))
        raise DataError(
            f"a feature of row {row_numbers[row]:_} is {reach[row]:.3g} times the largest value that these "
            "sums were laid out for; the row's inputs are far outside those of the first rows. Fit again"
        )


def checked_weights(rows: blocks.Rows, spec: specs.StatisticsSpec) -> FloatArray | None:
    """Return a block's weights after checking them against the spec.

    Raises DataError if a weight is beyond the grid, if weights repeat rows and one is not a whole number, or
      if rows have weights and the spec allows none.
    """
    weights = rows.sample_weight
    if weights is not None and spec.fixed_point:
        raise DataError("rows have weights, but these exact sums were laid out for rows without; fit again")
    if weights is not None and weights.max(initial=0.0) > 2.0**spec.weight_exponent:
        row = int(np.argmax(weights))
        raise DataError(
            f"sample_weight is {weights[row]:g} in row {rows.block.start + row:_}, above "
            f"{2.0**spec.weight_exponent:g}, the largest that these exact sums were laid out for; scale the "
            "weights down or fit again"
        )
    repeats = _own_weight(rows) if spec.frequency_weights else None
    if repeats is not None and (broken := repeats != np.rint(repeats)).any():
        row = int(np.argmax(broken))
        raise DataError(
            f"sample_weight is {repeats[row]:g} in row {rows.block.start + row:_}, but these weights say how "
            'many times a row is there; give whole numbers, or sample_weight_kind="precision"'
        )
    if weights is None and spec.weight_exponent < 0:
        raise DataError(
            f"rows without weights count 1 each, above {2.0**spec.weight_exponent:g}, the largest weight "
            "that these exact sums were laid out for; give weights or fit again"
        )
    return weights


def _own_weight(rows: blocks.Rows) -> FloatArray | None:
    return rows.sample_weight if rows.own_weight is None else rows.own_weight


def _observations(rows: blocks.Rows, spec: specs.StatisticsSpec) -> IntArray:
    """Return how many observations each row counts as: 0, 1, or its number of repetitions."""
    repeats = _own_weight(rows) if spec.frequency_weights else None
    counts = np.ones(rows.block.n_samples, np.int64) if repeats is None else repeats.astype(np.int64)
    return counts if rows.sample_weight is None else np.where(rows.sample_weight > 0, counts, 0)


def measure_features(rows: blocks.Rows, feature_map: maps.FeatureMap) -> FloatArray:
    """Return the largest absolute value of each unnormalised feature in a block, shape (n_components,).

    Raises DataError if an input is not finite.
    """
    inputs = feature_map.inputs_of(rows)
    largest = np.zeros(feature_map.n_components)
    height = min(specs.tile_rows(feature_map.n_components), max(1, len(inputs)))

    def measure(stripe: _Stripe) -> None:
        start, stop = stripe
        memory = np.empty((stop - start, height))
        for first in range(0, len(inputs), height):
            tile = inputs[first : first + height]
            features = memory[:, : len(tile)]
            with np.errstate(over="ignore", invalid="ignore"):  # refused by who asks
                feature_map.fill(tile, features, start, stop)
            np.maximum(largest[start:stop], np.abs(features).max(axis=1), out=largest[start:stop])

    machine.share_out(measure, feature_map.stripes)
    return largest
