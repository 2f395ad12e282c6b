"""Update a ridge model with the rows that came and went since it was trained.

A model, its data and `NewRows` go in; the updated model comes out. A model keeps its
exact statistics. An update sums only the rows that changed, by `new_rows`, and solves
again; training again would read all rows. The result is the challenger: `living.gate`
decides whether it may replace the champion, the current model, and `jobs.refresh` makes
a job of all this.

The updated sums have the bits of one pass over all rows. But sums are rounded in each
*tile*, the rows of a block that are multiplied together, so rows count with their tile.
So the rows of the last, incomplete block are read again, subtracted with their old
tiles and added with the new ones; `-` is exact. The same holds for tiles with corrected
or deleted rows, and for rows that leave a window. All rows are summed again if the
model does not record how its rows were cut, if they were cut by folds of groups or of
time, or if most blocks have changed.
"""

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
from rff_dist.features import maps
from rff_dist.fitting import prepare
from rff_dist.living import drift, new_rows, windows
from rff_dist.living.ranges import (
    Range,
    as_blocks,
    count_rows,
    cut_ranges,
    merge_ranges,
    overlapping,
    without_rows,
)
from rff_dist.recipes import model_rows
from rff_dist.ridge import describe
from rff_dist.ridge.models import RidgeModel
from rff_dist.ridge.refit import refit
from rff_dist.statistics import accumulate, moments, ridge_statistics, row_passes, specs
from rff_dist.typing import Facts, FloatArray, frozen

logger = logging.getLogger(__name__)

# -- before the sums: errors on new rows, and moments of new and gone ones


def score_new_rows(
    model: RidgeModel,
    dataset: Dataset,
    rows: new_rows.NewRows,
    *,
    engine: protocol.Engine,
) -> drift.NewRowSums:
    """Measure a model's errors on new rows, and the moments of their columns.

    There must be a new row. Raises DataError, with row and column, if values cannot be
    used or are too large for the grids of the sums.
    """
    spec = model.summed.spec
    model_rows.warn_of_levels(model.feature_map, dataset)
    feature_map = model_rows.features_for(model.feature_map, dataset)
    sums = accumulate.Accumulation(feature_map, spec, with_gram=False)
    # for the model, new levels have the code of levels that it has never seen
    codes = model_rows.codes_between(feature_map.levels, model.feature_map.levels)
    state = drift.ScoringState(model.linear, sums, _pivot(model), codes)
    parts: list[drift.NewRowSums] = []
    replacements = rows.differences.replacements
    for source, blocks in _sources(dataset, rows.added, replacements, spec.int64_rows):
        task = BlockTask(source, drift.score_rows)
        parts.append(engine.map_reduce(task, blocks, state, label="score"))
    scored = functools.reduce(operator.add, parts)
    if not scored.moments.weight.value() > 0:
        raise DataError(
            f"all {rows.n_new:_} new rows have weight 0; at least one must count"
        )
    # passes sum features before they are whitened; whoever reads the sums whitens them
    statistics = scored.statistics.with_whitener(model.feature_map.whitener)
    return replace(scored, statistics=statistics)


def measure_gone_rows(
    model: RidgeModel,
    dataset: Dataset,
    rows: new_rows.NewRows,
    *,
    engine: protocol.Engine,
) -> moments.Moments | None:
    """Measure the columns of rows that leave a model; None if all stay.

    Rows leave if they are now before the window, or are no longer in the data.
    """
    before = rows.differences.before or dataset
    removals = rows.differences.removals
    levels = model_rows.features_for(model.feature_map, before).levels
    measure = functools.partial(moments.measure_moments, levels=levels)
    parts: list[moments.Moments] = []
    for source, blocks in _sources(before, rows.expired, removals, MIN_BLOCK_ROWS):
        measured = row_passes.sum_rows(
            source,
            measure,
            _pivot(model),
            blocks=blocks,
            engine=engine,
            label="measure",
        )
        parts.append(measured)
    return functools.reduce(operator.add, parts) if parts else None


def _pivot(model: RidgeModel) -> FloatArray:
    """Return the point about which moments of the columns [X, y] are summed."""
    center = np.zeros(model.n_features)
    if model.columns is not None:
        center = model.columns.mean
    return np.concatenate([center, model.summed.target_means()])


def _sources(
    dataset: Dataset, ranges: Sequence[Range], in_memory: Dataset | None, max_rows: int
) -> Iterator[tuple[Dataset, list[Block]]]:
    """Yield the dataset with blocks of the ranges, then the rows `in_memory` with all
    of their blocks.
    """
    if ranges:
        pieces = cut_ranges(ranges, rows_at_once(dataset, max_rows))
        yield dataset, as_blocks(pieces)
    if in_memory is not None:
        yield in_memory, row_passes.blocks_of(in_memory, max_rows=max_rows)


def rows_at_once(dataset: Dataset, max_rows: int) -> int:
    """Return how many rows a block that is not cut along chunks may have."""
    return min(MIN_BLOCK_ROWS, max_rows, row_passes.blocks_of(dataset)[0].n_samples)


# -- sums


@frozen
class Pieces:
    """Ranges of rows to sum; each is one block."""

    #: Pieces to subtract, with the values in the model's version of the data.
    old: set[Range]
    #: Pieces to add, with the present values.
    new: set[Range]


def accumulate_new_rows(
    model: RidgeModel,
    dataset: Dataset,
    rows: new_rows.NewRows,
    *,
    engine: protocol.Engine,
) -> ridge_statistics.RidgeStatistics:
    """Return the statistics of all rows that the updated model is to have.

    They are the model's own, minus the old pieces, plus the new ones. Raises DataError
    if values cannot be used, or are too large for the grids of the sums.
    """
    spec = model.summed.spec
    folds = _lasting_folds(model)
    blocks = describe.summed_blocks(dataset, spec, folds)
    wanted = without_rows([(block.start, block.stop) for block in blocks], rows.missing)
    n_wanted = count_rows(wanted)

    statistics = model.summed
    pieces = _changed_pieces(model, rows, set(wanted))
    if pieces is None:
        logger.info("summing all %s rows again", f"{n_wanted:_}")
        statistics = ridge_statistics.RidgeStatistics.empty(spec)
        pieces = Pieces(set(), set(wanted))

    feature_map = model_rows.features_for(model.feature_map, dataset)
    state = engine.broadcast(accumulate.Accumulation(feature_map, spec, folds))
    if pieces.old:
        before = rows.differences.before or dataset
        old_state = state
        # An earlier version may list levels whose texts were erased since, and then
        # needs its own map.
        old_map = model_rows.features_for(model.feature_map, before)
        if model_rows.codes_between(old_map.levels, feature_map.levels):
            old_state = engine.broadcast(accumulate.Accumulation(old_map, spec, folds))
        subtrahend = sum_ranges(before, pieces.old, old_state, engine=engine)
        statistics = statistics - subtrahend
    if pieces.new:
        statistics = statistics + sum_ranges(dataset, pieces.new, state, engine=engine)
    statistics.check_complete(n_wanted, model.feature_map)
    return statistics.with_whitener(model.feature_map.whitener)


def _changed_pieces(
    model: RidgeModel, rows: new_rows.NewRows, wanted: set[Range]
) -> Pieces | None:
    """Return the pieces to subtract and to add; `wanted` are all pieces of the updated
    model.

    None if it is unknown how the model's rows were cut, or if summing all rows again
    reads no more rows.
    """
    summed = _summed_pieces(model)
    if summed is None:
        return None
    corrected = _corrected_pieces(model, summed & wanted, rows.differences.changed)
    old = (summed - wanted) | corrected
    new = (wanted - summed) | corrected
    if count_rows([*old, *new]) >= count_rows(wanted):
        return None
    return Pieces(old, new)


def _summed_pieces(model: RidgeModel) -> set[Range] | None:
    """Return the pieces that a model was summed by; None if that is unknown."""
    rows_per_block = model.card.get("rows_per_block")
    has_folds = model.card.get("summed_by_folds", False)
    if rows_per_block is None or (has_folds and _lasting_folds(model) is None):
        return None
    blocks = cut_ranges([(0, new_rows.n_seen(model))], int(rows_per_block))
    return set(without_rows(blocks, new_rows.missing_rows(model)))


def _corrected_pieces(
    model: RidgeModel, blocks: set[Range], changed: Sequence[Range]
) -> set[Range]:
    """Return the tiles with changed rows, in blocks that stay.

    With folds they are whole blocks, since a block's rows are sorted by fold before
    they are cut into tiles.
    """
    has_folds = model.card.get("summed_by_folds", False)
    height = specs.tile_rows(model.feature_map.n_components)
    corrected: set[Range] = set()
    for block in overlapping(sorted(blocks), changed):
        tiles = [block] if has_folds else cut_ranges([block], height)
        # adjacent tiles are read together
        corrected.update(merge_ranges(overlapping(tiles, changed)))
    return corrected


def _lasting_folds(model: RidgeModel) -> folding.Folds | None:
    """Return the folds of a model's sums, if they are by hash; else None.

    Folds of time change with appended rows, and the groups of rows are unknown here.
    """
    if not model.card.get("summed_by_folds", False):
        return None
    folds = folding.folds_from_dict(model.card["folds"])
    is_by_hash = isinstance(folding.without_tuning_rows(folds), folding.HashFolds)
    return folds if is_by_hash else None


def sum_ranges(
    dataset: Dataset,
    ranges: Iterable[Range],
    state: protocol.Broadcast[accumulate.Accumulation],
    *,
    engine: protocol.Engine,
) -> ridge_statistics.RidgeStatistics:
    """Return the statistics of ranges of rows, each summed as a block."""
    task = BlockTask(dataset, accumulate.accumulate_rows, adds=True)
    blocks = as_blocks(sorted(ranges))
    statistics: ridge_statistics.RidgeStatistics = engine.map_reduce(
        task, blocks, state, label="accumulate"
    )
    return statistics


# -- the challenger


def solve_update(
    model: RidgeModel,
    dataset: Dataset,
    rows: new_rows.NewRows,
    *,
    statistics: ridge_statistics.RidgeStatistics,
    new: drift.NewRowSums | None,
    gone: moments.Moments | None,
) -> RidgeModel:
    """Solve a model from the statistics of all rows, and record its rows on its card.

    `new` is from `score_new_rows`, None without new rows; `gone` is from
    `measure_gone_rows`, None if no row leaves.
    """
    feature_map = model_rows.features_for(model.feature_map, dataset)
    facts = {
        **describe_rows(dataset, feature_map),
        **describe.describe_blocks(dataset, statistics, _lasting_folds(model)),
        "n_seen": rows.n_after,
        "left_out": [list(span) for span in rows.left_out],
    }
    if rows.window != windows.ALL_ROWS or rows.first_row:
        facts["window"] = {"of": rows.window, "start": rows.first_row}
    followed = replace(model, feature_map=feature_map)
    challenger = solve_as_before(followed, statistics).with_card(**facts)

    columns = model.columns
    if model.statistics is None or columns is None:
        return replace(challenger, columns=None)
    columns = columns.with_levels(model.feature_map.levels, feature_map.levels)
    if new is not None:
        columns = columns + new.columns
    if gone is not None and gone.weight.value() > 0:
        repeats = model.summed.spec.frequency_weights
        leaving = moments.ColumnMoments.of(gone, frequency_weights=repeats)
        before = rows.differences.before or dataset
        levels = model_rows.features_for(model.feature_map, before).levels
        columns = columns + leaving.with_levels(levels, feature_map.levels).negative
    return replace(challenger, columns=columns)


def describe_rows(dataset: Dataset, feature_map: maps.FeatureMap) -> Facts:
    """Return a card's facts about a dataset; its recipe has the features' levels."""
    facts = prepare.describe_dataset(dataset)
    return {**facts, **model_rows.recipe_with(feature_map.levels, facts)}


def solve_as_before(
    model: RidgeModel, statistics: ridge_statistics.RidgeStatistics
) -> RidgeModel:
    """Solve a model from other sums, with alpha chosen as before.

    An alpha that was chosen by folds or by leaving out single rows stays, since sums
    have neither. Intervals are normal ones until `hold_out_newest` makes others.
    """
    card = model.card
    alpha = card["alpha_given"]
    alphas = card.get("alphas")
    # None: `refit` takes the model's alpha
    if card["chosen_by"] in ("cv", "press"):
        alpha = None
        alphas = None
    again = refit(
        model,
        statistics,
        alpha=alpha,
        alphas=alphas,
        fit_intercept=model.fit_intercept,
    )
    return again.with_intervals(None, "")
