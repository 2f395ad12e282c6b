"""Update a model with the rows that came and went since it was trained: exact sums, and a solve.

A ridge model keeps its exact statistics and a fingerprint of the rows that they hold. An update checks that
the data begin with these rows, sums what is new, and solves again.

Sums are rounded tile by tile, and tiles are cut from blocks. So the rows of the last, unfinished block are
read again, subtracted as they were cut then, and added as they are cut now. Since `-` is exact, the result
has the bits of one pass over all rows. In versioned data, tiles with rows that were corrected, deleted or
rolled back are subtracted as they were and added as they are now; rows that leave a window are subtracted
too. All rows are summed again if the model does not say how its rows were cut, if they were cut by folds of
groups or of time, or if most blocks have changed.

The result is the challenger: `living.gate` decides whether it may replace the champion, the current model,
and `jobs.refresh` makes a job of it.
"""

import bisect
import functools
import logging
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from rff_dist.data import folding
from rff_dist.data.blocks import MIN_BLOCK_ROWS, Block, BlockTask, Dataset
from rff_dist.engines import protocol
from rff_dist.errors import DataError
from rff_dist.fitting import prepare
from rff_dist.living import differences, drift, new_rows, windows
from rff_dist.ridge import describe, fit
from rff_dist.ridge.models import RidgeModel
from rff_dist.statistics import accumulate, inspection, moments, ridge_statistics, specs
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)

type Ranges = Sequence[differences.Range]
type Pieces = set[differences.Range]


def score_new_rows(
    model: RidgeModel, dataset: Dataset, rows: new_rows.NewRows, *, engine: protocol.Engine
) -> drift.Batch:
    """Measure a model's errors on rows that it has not seen, and their columns: progressive validation.

    `rows`: at least one of them is new.
    Raises DataError if values cannot be used, or are too large for the grids of the sums; names row and
      column.
    """
    sums = accumulate.Accumulation(model.feature_map, model.summed.spec, with_gram=False)
    state, batches = drift.BatchState(model.linear, sums, _pivot(model)), list[drift.Batch]()
    came = rows.differences.came
    for source, blocks in _sources((dataset, rows.ranges), came, model.summed.spec.limb_rows):
        task = BlockTask(source, drift.measure_batch, adds=True)
        batches.append(engine.map_reduce(task, blocks, state, label="score"))
    batch = functools.reduce(operator.add, batches)
    if not batch.moments.weight.value() > 0:
        raise DataError(f"all {rows.n_samples:_} new rows have weight 0; at least one must count")
    return replace(batch, statistics=batch.statistics.with_whitener(model.feature_map.whitener))


def _pivot(model: RidgeModel) -> FloatArray:
    """Return the point about which the moments of rows that come or go are taken."""
    center = model.columns.mean if model.columns is not None else np.zeros(model.n_features)
    return np.concatenate([center, model.summed.target_means()])


def measure_gone_rows(
    model: RidgeModel, dataset: Dataset, rows: new_rows.NewRows, *, engine: protocol.Engine
) -> moments.Moments | None:
    """Measure the columns of the rows that a model is no longer to hold; None if all stay."""
    before = rows.differences.before or dataset
    pivot = _pivot(model)
    parts = [
        inspection.sum_rows(
            source, moments.measure_moments, pivot, blocks=blocks, engine=engine, label="measure"
        )
        for source, blocks in _sources((before, rows.left), rows.differences.gone, MIN_BLOCK_ROWS)
    ]
    return functools.reduce(operator.add, parts) if parts else None


def _sources(
    stored: tuple[Dataset, Ranges], others: Dataset | None, max_rows: int
) -> Iterator[tuple[Dataset, list[Block]]]:
    """Yield the dataset of `stored` and the one of `others`, each with its blocks, if they have any rows."""
    dataset, ranges = stored
    if ranges:
        yield dataset, differences.as_blocks(differences.cut_ranges(ranges, rows_at_once(dataset, max_rows)))
    if others is not None:
        yield others, inspection.blocks_of(others, max_rows=max_rows)


def rows_at_once(dataset: Dataset, at_most: int) -> int:
    """Return how many rows a block that is not cut along chunks may have."""
    return min(MIN_BLOCK_ROWS, at_most, inspection.blocks_of(dataset)[0].n_samples)


def accumulate_new_rows(
    model: RidgeModel, dataset: Dataset, rows: new_rows.NewRows, *, engine: protocol.Engine
) -> ridge_statistics.RidgeStatistics:
    """Return the statistics of all rows, from a model's own and those of the blocks that changed.

    Raises DataError if values cannot be used, or are too large for the grids of the sums.
    """
    spec, folds = model.summed.spec, _folds(model)
    blocks = describe.summed_blocks(dataset, spec, folds)
    wanted = differences.without_rows([(block.start, block.stop) for block in blocks], rows.out)
    gone, come = set[differences.Range](), set(wanted)
    statistics = ridge_statistics.RidgeStatistics.empty(spec)
    changes = _changes(model, rows, come)
    if changes is None:
        logger.info("summing all %s rows again", f"{differences.count_rows(wanted):_}")
    else:
        gone, come = changes
        statistics = model.summed
    state = engine.broadcast(accumulate.Accumulation(model.feature_map, spec, folds))
    if gone:
        before = rows.differences.before or dataset
        statistics = statistics - sum_ranges(before, gone, state, engine=engine)
    if come:
        statistics = statistics + sum_ranges(dataset, come, state, engine=engine)
    statistics.check_complete(differences.count_rows(wanted), model.feature_map)
    return statistics.with_whitener(model.feature_map.whitener)


def _changes(model: RidgeModel, rows: new_rows.NewRows, wanted: Pieces) -> tuple[Pieces, Pieces] | None:
    """Return what to subtract, as it was, and what to add; None if summing all rows again costs no more.

    None too if it is not known how the model's rows were cut.

    `wanted`: the blocks that the model is to hold.
    """
    per_block, by_folds = model.card.get("rows_per_block"), model.card.get("summed_by_folds", False)
    if per_block is None or (by_folds and _folds(model) is None):
        return None
    cut = differences.cut_ranges([(0, new_rows.n_seen(model))], int(per_block))
    held = set(differences.without_rows(cut, new_rows.out_of(model)))
    # Sums are rounded tile by tile. With folds, tiles are cut from a block's rows in another order, so that
    # whole blocks are summed again.
    height = None if by_folds else specs.tile_rows(model.feature_map.n_components)
    again = _again(sorted(held & wanted), rows.differences.changed, height)
    gone = (held - wanted) | again
    come = (wanted - held) | again
    # changes would read no fewer rows than summing all again
    n_changed = differences.count_rows([*gone, *come])
    return None if n_changed >= differences.count_rows(wanted) else (gone, come)


def _again(pieces: Ranges, changed: Ranges, height: int | None) -> set[differences.Range]:
    """Return the tiles with changed rows, of pieces that stay: these are summed again.

    `height`: rows of a tile; None takes whole pieces.
    """
    again = set[differences.Range]()
    for piece in _touched(pieces, changed):
        tiles = [piece] if height is None else differences.cut_ranges([piece], height)
        again.update(differences.merge_ranges(_touched(tiles, changed)))  # adjacent tiles are read together
    return again


def _touched(pieces: Ranges, changed: Ranges) -> list[differences.Range]:
    """Return the pieces that have rows of `changed`; both are ascending."""
    starts = [start for start, _ in changed]
    stops = [stop for _, stop in changed]
    # ranges that start before b, less those that stop at a or before it: what is left overlaps [a, b)
    return [(a, b) for a, b in pieces if bisect.bisect_left(starts, b) > bisect.bisect_right(stops, a)]


def _folds(model: RidgeModel) -> folding.Folds | None:
    """Return the folds that a model's rows were summed by, if they assign new rows too; else None.

    Folds by hash do. Folds of time change as rows are added, and groups are not known here: such sums are
    made again.
    """
    if not model.card.get("summed_by_folds", False):
        return None
    folds = folding.folds_from_dict(model.card["folds"])
    base = folds.base if isinstance(folds, folding.HeldInFolds) else folds
    return folds if isinstance(base, folding.HashFolds) else None


def sum_ranges(
    dataset: Dataset,
    ranges: Iterable[differences.Range],
    state: protocol.Broadcast[accumulate.Accumulation],
    *,
    engine: protocol.Engine,
) -> ridge_statistics.RidgeStatistics:
    """Return the statistics of ranges of rows, each summed as a block."""
    task = BlockTask(dataset, accumulate.accumulate_rows, adds=True)
    blocks = differences.as_blocks(sorted(ranges))
    statistics: ridge_statistics.RidgeStatistics = engine.map_reduce(task, blocks, state, label="accumulate")
    return statistics


def solve_update(
    model: RidgeModel,
    dataset: Dataset,
    rows: new_rows.NewRows,
    *,
    statistics: ridge_statistics.RidgeStatistics,
    batch: drift.Batch | None,
    gone: moments.Moments | None = None,
) -> RidgeModel:
    """Solve a model from the statistics of all rows, with alpha chosen as before; see `solve_as_before`."""
    is_windowed = rows.window != windows.ALL_ROWS or rows.start
    window = {"window": {"of": rows.window, "start": rows.start}} if is_windowed else {}
    again = solve_as_before(model, statistics).with_card(
        **prepare.describe_dataset(dataset),
        **describe.describe_cut(dataset, statistics, _folds(model)),
        n_seen=rows.n_after,
        left_out=[list(span) for span in rows.left_out],
        **window,
    )
    return replace(again, columns=_columns(model, batch, gone))


def solve_as_before(model: RidgeModel, statistics: ridge_statistics.RidgeStatistics) -> RidgeModel:
    """Solve a model from other sums, with alpha chosen as before; one that folds or rows chose stays."""
    card = model.card
    stays = card["chosen_by"] in ("cv", "press")
    alpha, alphas = (None, None) if stays else (card["alpha_given"], card.get("alphas"))
    return fit.refit(model, statistics, alpha=alpha, alphas=alphas, fit_intercept=card["fit_intercept"])


def _columns(
    model: RidgeModel, batch: drift.Batch | None, gone: moments.Moments | None
) -> moments.ColumnMoments | None:
    """Return the moments of the columns of all rows, from a model's and those of rows that came and went."""
    if model.columns is None or model.statistics is None:
        return None
    columns, frequency = model.columns, model.summed.spec.frequency_weights
    if batch is not None:
        columns = columns + moments.ColumnMoments.of(batch.moments, frequency_weights=frequency)
    if gone is not None:
        went = moments.ColumnMoments.of(gone, frequency_weights=frequency)
        # moments have no `-`: negative counts and weights subtract
        columns = columns + replace(went, n_samples=-went.n_samples, weight=-went.weight)
    return columns
