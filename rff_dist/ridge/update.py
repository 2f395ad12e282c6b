"""A model and the rows that came and went since it was trained: exact sums, and a solve.

A ridge model keeps its exact statistics and a fingerprint of the rows that they hold. An update checks that
the data begin with these rows, sums what is new, and solves again; `update_model` is that in one call. The
sums are rounded tile by tile, and tiles are cut from blocks: of the old rows those of the last, unfinished
block are read again, subtracted as they were cut then and added as they are cut now. `-` is exact, so that
the result has the bits of one pass over all rows. Of versioned data, tiles with rows that were corrected,
deleted or rolled back are subtracted as they were, and added as they are; rows that leave a window of the
newest ones are subtracted likewise. Where the model does not say how its rows were cut, where they were cut
by folds of groups or of time, or where most blocks have changed, all rows are summed anew.

The result is the challenger: `ridge.gate` says whether it may replace the champion, the current model, and
`jobs.refresh` makes a run of it.
"""

from __future__ import annotations

import bisect
import functools
import logging
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from rff_dist.data.blocks import Block, BlockTask, Dataset
from rff_dist.data.cut import MIN_BLOCK_ROWS
from rff_dist.data.folds import Folds, HashFolds, HeldInFolds, folds_from_dict
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.protocol import Broadcast, Engine
from rff_dist.errors import DataError, FingerprintMismatchError, InvalidParameterError, StatisticsError
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.describe import attributes_of, describe_cut, describe_dataset
from rff_dist.ridge.differences import Differences, find_differences, has_rows_of
from rff_dist.ridge.drift import Batch, BatchState, measure_batch
from rff_dist.ridge.fit import refit
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.row_ranges import Range, as_blocks, count_rows, cut_ranges, merge_ranges, without_rows
from rff_dist.statistics import inspection
from rff_dist.statistics.accumulate import Accumulation, accumulate_rows
from rff_dist.statistics.moments import ColumnMoments, Moments, measure_moments
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.statistics.spec import tile_rows
from rff_dist.storage.loads import Window, read_loads
from rff_dist.text import redact
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)

type _Change = tuple[int, Dataset, set[Range], Literal["all", "gram", "moments"]]  # its sign, rows and sums


@dataclass(frozen=True, slots=True)
class Refusal:
    """Rows that were kept out of a model, or a change of rows that it holds.

    `start`, `stop`: which rows of the data; of a change, the first and the last one that changed.
    `n_samples`: rows that the fingerprint covers, from the first on.
    `fingerprint`: where it is another now, the rows may be others, and count as new.
    `refused`: when, as ISO 8601 in UTC.
    `data_version`: the version of the data that they were read from, where it keeps some.
    `n_changed`: of a change, how many rows were replaced or deleted; else 0.
    """

    start: int
    stop: int
    n_samples: int
    fingerprint: str
    reason: str
    refused: str
    data_version: str | None = None
    n_changed: int = 0

    @property
    def is_change(self) -> bool:
        """Whether the model holds these rows as they were before; each update judges such a change again."""
        return self.n_changed > 0


@dataclass(frozen=True, slots=True)
class NewRows:
    """Which rows of a dataset a model does not hold yet, and which it is to do without.

    `n_before`: rows of the data when the model was made, those that it does not hold among them.
    `n_after`: rows of the data now.
    `ranges`: rows to add.
    `left_out`: rows that stay out.
    `differences`: how versioned data differ from those that the model was made of; None of others.
    `window`: which rows the model is to hold, as `Window.parse` reads it.
    `is_new_window`: whether the model had another.
    `start`: the first row of the window.
    `left`: rows that the model holds and that are before it.
    """

    n_before: int
    n_after: int
    ranges: tuple[Range, ...]
    left_out: tuple[Range, ...]
    differences: Differences | None = None
    window: str = "all"
    is_new_window: bool = False
    start: int = 0
    left: tuple[Range, ...] = ()

    @property
    def out(self) -> list[Range]:
        """All rows of the data that the model is to do without."""
        return merge_ranges([(0, self.start), *self.left_out])

    @property
    def changed(self) -> tuple[Range, ...]:
        """Rows that the model was made of and that are others now, or gone."""
        return () if self.differences is None else self.differences.changed

    def shared(self, model: RidgeModel) -> list[Range]:
        """Return the rows, by their numbers now, that a model holds and is to hold."""
        stay = without_rows(held_ranges(model), [*self.changed, *self.left])
        return merge_ranges([*stay, *(() if self.differences is None else self.differences.moved)])

    @property
    def came(self) -> ArrayDataset | None:
        """Rows that replaced others; None where none did."""
        return None if self.differences is None else self.differences.came

    @property
    def gone(self) -> ArrayDataset | None:
        """Rows that the data do not have any more; None where all are there."""
        return None if self.differences is None else self.differences.gone

    def read_once(self, dataset: Dataset) -> Dataset:
        """Return the dataset, of which what was read to compare versions is not read again."""
        return dataset if self.differences is None else self.differences.after

    @property
    def n_samples(self) -> int:
        """How many rows there are to add, those that replace others among them."""
        return count_rows(self.ranges) + (0 if self.came is None else self.came.n_samples)

    @property
    def n_gone(self) -> int:
        """How many rows there are to take out."""
        return count_rows(self.left) + (0 if self.gone is None else self.gone.n_samples)

    @property
    def is_nothing(self) -> bool:
        """Whether the model holds the data as they are."""
        return not (self.n_samples or self.changed or self.left or self.is_new_window)


def find_new_rows(
    model: RidgeModel,
    dataset: Dataset,
    *,
    refusals: Sequence[Refusal] = (),
    backfill: int | None = None,
    window: str | None = None,
) -> NewRows:
    """Find the rows that came, and those that went, since a model was trained on the data.

    Data that keep versions say which of their chunks differ; of others the first rows must be the same.

    `model`: with its statistics.
    `dataset`: the data that it was trained on, perhaps with more rows at their end.
    `refusals`: rows to pass over.
    `backfill`: from this row on, rows that were left out or refused before are new again.
    `window`: which rows the model is to hold, see `Window.parse`; if left out, as before.
    Returns `rows`: of no ranges where there is nothing new.
    Raises FingerprintMismatchError if the data do not begin with the rows that the model was trained on;
      StatisticsError if the model cannot be updated exactly; the message says why; DataError if columns or
      targets are others; InvalidParameterError if there is no such window.
    """
    check_updatable(model)
    check_columns(model, dataset)
    seen, n_samples = _n_seen(model), dataset.n_samples
    before = _window(model)
    window = before.of if window is None else window
    start = _first_row(dataset, window)
    version = model.card.get("data_version")
    missing = without_rows([(0, seen)], held_ranges(model))
    fingerprint = model.card["prefix_fingerprint"]
    differences = find_differences(
        dataset,
        version,
        missing,
        start=start,
        only_appended=fingerprint == dataset.recorded_prefix(seen),
    )
    if differences is None and not _begins_with(dataset, seen, fingerprint):
        has = f"has only {n_samples:_}" if n_samples < seen else "begins with others"
        raise FingerprintMismatchError(
            f"the model was trained on {seen:_} rows, and {_name(dataset)} {has} (fingerprint "
            f"{_prefix(dataset, min(seen, n_samples))[:16]}…, expected "
            f"{str(fingerprint)[:16]}…); only appended rows can be added. Give the data "
            "that it was trained on, with the same arrays of X, y and weights, or fit anew"
        )
    changed = () if differences is None else differences.changed
    held_back = [
        (one.start, one.stop)
        for one in refusals
        if not one.is_change
        and seen < one.stop
        and (
            has_rows_of(dataset, one.data_version, one.start, one.stop)
            if changed
            else _begins_with(dataset, one.n_samples, one.fingerprint)
        )
    ]
    out = merge_ranges([*without_rows(_left_out(model), changed), *without_rows(held_back, [(0, seen)])])
    again = [] if backfill is None else without_rows(out, [(0, backfill)])
    out = without_rows(out, [*again, (0, start)])
    again += without_rows([(start, before.start)], changed)  # by a longer window
    added = without_rows([*again, (seen, max(seen, n_samples))], [*out, (0, start)])
    left = without_rows(held_ranges(model), [*changed, (start, max(start, seen))])
    return NewRows(
        seen,
        n_samples,
        tuple(merge_ranges(added)),
        tuple(out),
        differences,
        window,
        window != before.of,
        start,
        tuple(left),
    )


def _first_row(dataset: Dataset, window: str) -> int:
    """Return the first row of a window; raises InvalidParameterError where there is none."""
    wanted = Window.parse(window)
    if wanted == Window():
        return 0
    if getattr(dataset, "version", None) is None:
        raise InvalidParameterError(
            f"`window` is {window!r}, but {_name(dataset)} keeps no versions, so that nobody knows which "
            "rows came together; expected a versioned dataset. `rff-dist data convert` makes one"
        )
    return wanted.first_row(read_loads(attributes_of(dataset), dataset.n_samples))


def refuse(dataset: Dataset, rows: NewRows, reason: str) -> list[Refusal]:
    """Return new rows as refused ones, from now on, and changes of others as a refused change."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    fingerprint = dataset.recorded_prefix(rows.n_after) or _prefix(dataset, rows.n_after)
    version = getattr(dataset, "version", None)
    found = [
        Refusal(start, stop, rows.n_after, fingerprint, reason, now, version) for start, stop in rows.ranges
    ]
    if n_changed := count_rows(rows.changed):
        first, last = rows.changed[0][0], rows.changed[-1][1]
        found.append(Refusal(first, last, rows.n_after, fingerprint, reason, now, version, n_changed))
    return found


def check_updatable(model: RidgeModel) -> None:
    """Check that a model can be updated exactly.

    Raises StatisticsError if it cannot; says why and what to do.
    """
    if "classifier" in model.card:
        why = "it is a classifier, whose probabilities, class weights and losses depend on all rows"
    elif model.statistics is None:
        solved_without = model.card.get("solver", {}).get("method") == "pcg"
        why = "it was stored without its statistics (`--no-statistics`)"
        why = "conjugate gradients solved it, without statistics (`--solver pcg`)" if solved_without else why
    elif "prefix_fingerprint" not in model.card or "fit_intercept" not in model.card:
        why = "its card does not say which rows it was trained on"
    else:
        return
    raise StatisticsError(f"this model cannot be updated: {why}; train it anew on all rows")


def check_columns(model: RidgeModel, dataset: Dataset) -> None:
    """Check that a dataset has the columns and targets of a model; else raise a DataError."""
    prediction.check_dataset(dataset, model)
    assert model.statistics is not None
    spec = model.statistics.spec
    if (dataset.n_targets, dataset.one_dimensional) != (spec.n_targets, spec.one_dimensional):
        raise DataError(
            f"{_name(dataset)} has {dataset.n_targets} targets (vector: {dataset.one_dimensional}); "
            f"the model was trained on {spec.n_targets} (vector: {spec.one_dimensional})"
        )


def _n_seen(model: RidgeModel) -> int:
    return int(model.card.get("n_seen", model.card["n_samples"]))


def _left_out(model: RidgeModel) -> list[Range]:
    return [(int(start), int(stop)) for start, stop in model.card.get("left_out", ())]


@dataclass(frozen=True, slots=True)
class _KeptWindow:
    """What a model's card says of its window; see `NewRows`."""

    of: str = "all"
    start: int = 0


def _window(model: RidgeModel) -> _KeptWindow:
    return _KeptWindow(**model.card.get("window", {}))


def held_ranges(model: RidgeModel) -> list[Range]:
    """Return the rows that a model holds."""
    return without_rows([(_window(model).start, _n_seen(model))], _left_out(model))


def _begins_with(dataset: Dataset, n_samples: int, fingerprint: str) -> bool:
    """Tell whether the first rows are those of a fingerprint."""
    if n_samples > dataset.n_samples:
        return False
    return fingerprint == dataset.recorded_prefix(n_samples) or fingerprint == _prefix(dataset, n_samples)


def _prefix(dataset: Dataset, n_samples: int) -> str:
    fingerprint = dataset.prefix_fingerprint(n_samples)
    if fingerprint is None:
        raise DataError(
            f"a {type(dataset).__name__} does not tell its first rows from others; write the data to Zarr "
            "and open them with open_dataset"
        )
    return fingerprint


def _name(dataset: Dataset) -> str:
    return "the data" if dataset.url is None else redact(dataset.url)


def update_model(
    model: RidgeModel, dataset: Dataset, *, window: str | None = None, engine: Engine
) -> RidgeModel:
    """Follow the data since a model was trained, whatever became of its rows, and solve again.

    The statistics have the bits of one pass over all rows with the same features and grids. Alpha is chosen
    as it was before; where that took folds or held-out rows, which the statistics of all rows do not tell, it
    stays.

    `dataset`: the data that it was trained on, with more rows at their end.
    `window`: see `find_new_rows`.
    Returns `model`: the same one where there is nothing new.
    Raises FingerprintMismatchError if the data do not begin with the rows that the model was trained on;
      StatisticsError if the model cannot be updated exactly; DataError if new values cannot be used, or lie
      beyond what the sums were laid out for; InvalidParameterError if there is no such window.
    """
    rows = find_new_rows(model, dataset, window=window)
    if rows.is_nothing:
        return model
    dataset = rows.read_once(dataset)
    batch = score_new_rows(model, dataset, rows, engine=engine) if rows.n_samples else None
    statistics = accumulate_new_rows(model, dataset, rows, engine=engine)
    gone = measure_gone_rows(model, dataset, rows, engine=engine)
    return solve_update(model, dataset, rows, statistics=statistics, batch=batch, gone=gone)


def score_new_rows(model: RidgeModel, dataset: Dataset, rows: NewRows, *, engine: Engine) -> Batch:
    """Measure the errors of a model on rows that it has not seen, and their columns: progressive validation.

    There must be some.

    Raises DataError if values cannot be used, or lie beyond what the sums were laid out for; names row and
      column.
    """
    assert model.statistics is not None
    sums = Accumulation(model.feature_map, model.statistics.spec, sums="moments")
    found: list[Batch] = [
        engine.map_reduce(
            BlockTask(source, measure_batch, adds=True),
            blocks,
            BatchState(model.linear, sums, _pivot(model)),
            combine=operator.add,
            label="score",
        )
        for source, blocks in _sources((dataset, rows.ranges), rows.came, model.statistics.spec.limb_rows)
    ]
    batch = functools.reduce(operator.add, found)
    if not batch.moments.weight.value() > 0:
        raise DataError(f"all {rows.n_samples:_} new rows have weight 0; at least one must count")
    return batch


def _pivot(model: RidgeModel) -> FloatArray:
    """Return what moments of rows are taken about that come or go."""
    assert model.statistics is not None
    center = model.columns.mean if model.columns is not None else np.zeros(model.n_features)
    return np.concatenate([center, model.statistics.target_means()])


def measure_gone_rows(
    model: RidgeModel, dataset: Dataset, rows: NewRows, *, engine: Engine
) -> Moments | None:
    """Measure the columns of the rows that a model is to hold no longer; None where all stay."""
    before = dataset if rows.differences is None else rows.differences.before
    found: list[Moments] = [
        engine.map_reduce(
            BlockTask(source, measure_moments), blocks, _pivot(model), combine=operator.add, label="measure"
        )
        for source, blocks in _sources((before, rows.left), rows.gone, MIN_BLOCK_ROWS)
    ]
    return functools.reduce(operator.add, found) if found else None


def _sources(
    stored: tuple[Dataset, Sequence[Range]], others: Dataset | None, max_rows: int
) -> Iterator[tuple[Dataset, list[Block]]]:
    """Give rows of a dataset, and others, with their blocks; only where there are any."""
    dataset, ranges = stored
    if ranges:
        yield dataset, as_blocks(cut_ranges(ranges, rows_at_once(dataset, max_rows)))
    if others is not None:
        yield others, inspection.blocks_of(others, max_rows=max_rows)


def rows_at_once(dataset: Dataset, at_most: int) -> int:
    """Return how many rows a block may have that is not cut along the data's chunks."""
    return min(MIN_BLOCK_ROWS, at_most, inspection.blocks_of(dataset)[0].n_samples)


def accumulate_new_rows(
    model: RidgeModel, dataset: Dataset, rows: NewRows, *, engine: Engine
) -> RidgeStatistics:
    """Return the statistics of all rows, from a model's own and those of the blocks that changed.

    Raises DataError if values cannot be used, or lie beyond what the sums were laid out for.
    """
    assert model.statistics is not None
    spec, whitener = model.statistics.spec, model.feature_map.whitener
    folds = _folds(model)
    state = Accumulation(model.feature_map, spec, folds)
    blocks = inspection.blocks_of(
        dataset, max_rows=spec.limb_rows, n_folds=1 if folds is None else folds.n_folds
    )
    wanted = set(without_rows([(block.start, block.stop) for block in blocks], rows.out))
    gone, come = _changed(model, wanted, rows.changed)
    before = dataset if rows.differences is None else rows.differences.before
    if gone is None:
        logger.info("summing all %s rows anew", f"{count_rows(wanted):_}")
        statistics = sum_ranges(dataset, come, engine.broadcast(state), engine=engine)
    else:
        cut: Iterable[_Change] = [(1, dataset, come, "all"), (-1, before, gone, "all")]
        if spec.fixed_point:
            cut = _cut_by_rows(model, dataset, rows, wanted, come=come, gone=gone)
        statistics = model.statistics
        for sign, source, ranges, sums in cut:
            if ranges:
                summed = engine.broadcast(replace(state, sums=sums, folds=None if sums == "gram" else folds))
                part = sum_ranges(source, ranges, summed, engine=engine)
                statistics = statistics + part if sign > 0 else statistics - part
    statistics.check_complete(count_rows(wanted), model.feature_map)
    return statistics.with_whitener(whitener)


def _cut_by_rows(
    model: RidgeModel,
    dataset: Dataset,
    rows: NewRows,
    wanted: set[Range],
    *,
    come: set[Range],
    gone: set[Range],
) -> Iterator[_Change]:
    """Give what is to be added and subtracted of features in fixed point, whose Z'Z is not rounded.

    Of pieces that have rows before and after only those that differ are multiplied, one by one.
    """
    differences, at_once = rows.differences, rows_at_once(dataset, MIN_BLOCK_ROWS)
    before = dataset if differences is None else differences.before
    held, now = held_ranges(model), merge_ranges(wanted)
    for sign, source, pieces, own, other in ((1, dataset, come, now, held), (-1, before, gone, held, now)):
        mixed = set(_touched(sorted(pieces), other))
        yield sign, source, pieces - mixed, "all"
        yield sign, source, mixed, "moments"
        alone = without_rows(own, other)
        within = cut_ranges(without_rows(alone, pieces - mixed), at_once)
        yield sign, source, set(within), "gram"
        if differences is not None:
            compared = differences.became if sign > 0 else differences.was
            differing = compared.within(without_rows(own, alone)).as_dataset()
            if differing is not None:
                yield sign, differing, set(cut_ranges([(0, differing.n_samples)], at_once)), "gram"


def _changed(
    model: RidgeModel, wanted: set[Range], changed: Sequence[Range]
) -> tuple[set[Range] | None, set[Range]]:
    """Return the pieces to subtract, as they were, and those to add; None to begin with nothing."""
    per_block, by_folds = model.card.get("rows_per_block"), model.card.get("summed_by_folds", False)
    if per_block is None or (by_folds and _folds(model) is None):
        return None, wanted
    cut = cut_ranges([(0, _n_seen(model))], int(per_block))
    held = set(without_rows(cut, [*_left_out(model), (0, _window(model).start)]))
    # Sums are rounded tile by tile; with folds a block's tiles are cut from its rows in another order.
    height = tile_rows(model.feature_map.n_components)
    again = set[Range]()
    for piece in _touched(sorted(held & wanted), changed):
        again.update([piece] if by_folds else _tiles(piece, changed, height))
    gone, come = (held - wanted) | again, (wanted - held) | again
    return (gone, come) if count_rows(gone) + count_rows(come) < count_rows(wanted) else (None, wanted)


def _touched(pieces: Sequence[Range], changed: Sequence[Range]) -> list[Range]:
    """Return the pieces that have rows of `changed`; both ascend."""
    starts = [start for start, _ in changed]
    stops = [stop for _, stop in changed]
    return [(a, b) for a, b in pieces if bisect.bisect_left(starts, b) > bisect.bisect_right(stops, a)]


def _tiles(piece: Range, changed: Sequence[Range], height: int) -> list[Range]:
    """Return the tiles of a piece that have rows of `changed`, those beside each other together."""
    start, stop = piece
    tiles = [(first, min(first + height, stop)) for first in range(start, stop, height)]
    return merge_ranges(_touched(tiles, changed))


def _folds(model: RidgeModel) -> Folds | None:
    """Return the folds that a model's rows were summed by, where they say of new rows too where they belong.

    Folds by hash do. Folds of time would be others with more rows, and groups are not known here: such sums
    are made anew.
    """
    if not model.card.get("summed_by_folds", False):
        return None
    folds = folds_from_dict(model.card["folds"])
    base = folds.base if isinstance(folds, HeldInFolds) else folds
    return folds if isinstance(base, HashFolds) else None


def sum_ranges(
    dataset: Dataset, ranges: Iterable[Range], state: Broadcast[Accumulation], *, engine: Engine
) -> RidgeStatistics:
    """Return the statistics of ranges of rows, each summed as a block."""
    statistics: RidgeStatistics = engine.map_reduce(
        BlockTask(dataset, accumulate_rows, adds=True),
        as_blocks(sorted(ranges)),
        state,
        combine=operator.add,
        label="accumulate",
    )
    return statistics


def solve_update(
    model: RidgeModel,
    dataset: Dataset,
    rows: NewRows,
    *,
    statistics: RidgeStatistics,
    batch: Batch | None,
    gone: Moments | None = None,
) -> RidgeModel:
    """Solve a model again from the statistics of all rows, with alpha chosen as before."""
    again = solve_as_before(model, statistics).with_card(
        **describe_dataset(dataset),
        **describe_cut(dataset, statistics, _folds(model)),
        n_seen=rows.n_after,
        left_out=[list(one) for one in rows.left_out],
        **({"window": {"of": rows.window, "start": rows.start}} if rows.window != "all" else {}),
    )
    return replace(again, columns=_columns(model, batch, gone))


def solve_as_before(model: RidgeModel, statistics: RidgeStatistics) -> RidgeModel:
    """Solve a model from other sums, with alpha chosen as before; where folds or rows chose it, it stays."""
    card = model.card
    stays = card.get("chosen_by") in ("cv", "press")
    again = refit(
        model,
        statistics,
        alpha=None if stays else card["alpha_given"],
        alphas=None if stays else card.get("alphas"),
        fit_intercept=card["fit_intercept"],
    )
    return again.with_card(**{name: card[name] for name in ("alpha_given", "alphas") if name in card})


def _columns(model: RidgeModel, batch: Batch | None, gone: Moments | None) -> ColumnMoments | None:
    """Return the moments of the columns of all rows, from a model's own."""
    if model.columns is None or model.statistics is None:
        return None
    columns, frequency = model.columns, model.statistics.spec.frequency_weights
    if batch is not None:
        columns = columns + ColumnMoments.of(batch.moments, frequency_weights=frequency)
    if gone is not None:
        went = ColumnMoments.of(gone, frequency_weights=frequency)
        columns = columns + replace(went, n_samples=-went.n_samples, weight=-went.weight)
    return columns
