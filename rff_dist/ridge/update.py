"""A model and the rows that were appended since it was trained: exact sums, drift's figures, and a gate.

A ridge model keeps its exact statistics and a fingerprint of the rows that they hold. An update checks that
the data begin with these rows, sums what is new, and solves again; `update_model` is that in one call. The
sums are rounded tile by tile, and tiles are cut from blocks: of the old rows those of the last, unfinished
block are read again, subtracted as they were cut then and added as they are cut now. `-` is exact, so that
the result has the bits of one pass over all rows. Where the model does not say how its rows were cut, where
they were cut by folds of groups or of time, or where most blocks have become larger, all rows are summed
anew.

**What is held out** to compare the new model with the current one: test data if there are any, else the
newest fifth of the rows that the current model holds, at most 10,000. These were accepted before, so that a
batch with wrong targets cannot vouch for itself. Both models are solved without them, from exact differences,
and compared on them; the model that is published holds all rows, those too.

`rff_dist.jobs.refresh` makes a run of it.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime

import numpy as np
from scipy.special import ndtri

from rff_dist.data.blocks import Block, BlockTask, Dataset, Rows
from rff_dist.data.cut import MIN_BLOCK_ROWS
from rff_dist.data.folds import Folds, HashFolds, HeldInFolds, folds_from_dict
from rff_dist.engines.protocol import Broadcast, Engine
from rff_dist.errors import DataError, FingerprintMismatchError, InvalidParameterError, StatisticsError
from rff_dist.numerics.cholesky import solve_cholesky
from rff_dist.numerics.eigen import decompose
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.describe import describe_cut, describe_dataset
from rff_dist.ridge.drift import Batch, BatchState, ErrorSums, measure_batch, measure_errors
from rff_dist.ridge.evaluation import check_evaluation
from rff_dist.ridge.fit import refit
from rff_dist.ridge.linear_model import LinearModel, predict_rows
from rff_dist.ridge.model import RidgeModel
from rff_dist.statistics import inspection, passes
from rff_dist.statistics.accumulate import Accumulation, accumulate_rows
from rff_dist.statistics.moments import ColumnMoments
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.text import redact
from rff_dist.typing import FloatArray

__all__ = [
    "TOLERANCE",
    "Gate",
    "HeldOut",
    "NewRows",
    "PairedErrors",
    "Refusal",
    "accumulate_new_rows",
    "check_tolerance",
    "check_updatable",
    "find_new_rows",
    "hold_out",
    "judge",
    "measure_pair",
    "refuse",
    "score_new_rows",
    "solve_update",
    "update_model",
]

logger = logging.getLogger(__name__)

type Range = tuple[int, int]

TOLERANCE = 0.05
HELD_OUT_SHARE = 5  # one row of so many
HELD_OUT_ROWS = 10_000
_DOUBT = 0.01  # probability of a failure by chance alone
_LARGEST_SQUARE = 1e70  # of an error: its square can still be weighted and summed
_NEGLIGIBLE = 1e-6  # of a target's variance: errors below it are not told apart


# -- ranges of rows ------------------------------------------------------------------------------------


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the same rows as ascending ranges that neither touch nor overlap."""
    found: list[Range] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif start < stop:
            found.append((start, stop))
    return found


def _without(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Return the ranges less those rows, each range by itself."""
    holes = _merged(taken)
    left = []
    for start, stop in ranges:
        for hole_start, hole_stop in holes:
            if hole_stop <= start or stop <= hole_start:
                continue
            if start < hole_start:
                left.append((start, hole_start))
            start = hole_stop
        if start < stop:
            left.append((start, stop))
    return left


def _count(ranges: Iterable[Range]) -> int:
    return sum(stop - start for start, stop in ranges)


def _as_blocks(ranges: Iterable[Range]) -> list[Block]:
    return [Block(i, start, stop) for i, (start, stop) in enumerate(ranges)]


def _cut(ranges: Iterable[Range], rows: int) -> list[Range]:
    return [(i, min(i + rows, stop)) for start, stop in ranges for i in range(start, stop, rows)]


# -- which rows are new --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    """Rows that were kept out of a model.

    Attributes
    ----------
    start, stop : int
        Which rows of the data.
    n_samples : int
        Rows that the fingerprint covers, from the first on.
    fingerprint : str
        Where it is another now, the rows may be others, and count as new.
    reason : str
    refused : str
        When, as ISO 8601 in UTC.
    """

    start: int
    stop: int
    n_samples: int
    fingerprint: str
    reason: str
    refused: str


@dataclass(frozen=True, slots=True)
class NewRows:
    """Which rows of a dataset a model does not hold yet, and which it is to do without.

    Attributes
    ----------
    n_before : int
        Rows of the data when the model was made, those that it does not hold among them.
    n_after : int
        Rows of the data now.
    ranges : tuple of (start, stop)
        Rows to add.
    left_out : tuple of (start, stop)
        Rows that stay out.
    """

    n_before: int
    n_after: int
    ranges: tuple[Range, ...]
    left_out: tuple[Range, ...]

    @property
    def n_samples(self) -> int:
        """How many rows there are to add."""
        return _count(self.ranges)


def find_new_rows(
    model: RidgeModel, dataset: Dataset, *, refusals: Sequence[Refusal] = (), backfill: int | None = None
) -> NewRows:
    """Find the rows that were appended to the data since a model was trained on them.

    Parameters
    ----------
    model : RidgeModel
        With its statistics.
    dataset : Dataset
        The data that it was trained on, perhaps with more rows at their end.
    refusals : sequence of Refusal
        Rows to pass over.
    backfill : int, optional
        From this row on, rows that were left out or refused before are new again.

    Returns
    -------
    rows : NewRows
        Of no ranges where there is nothing new.

    Raises
    ------
    FingerprintMismatchError
        If the data do not begin with the rows that the model was trained on.
    StatisticsError
        If the model cannot be updated exactly; the message says why.
    DataError
        If columns or targets are others.
    """
    check_updatable(model)
    _check_columns(model, dataset)
    seen, n_samples = _n_seen(model), dataset.n_samples
    if n_samples < seen or _prefix(dataset, seen) != model.card["prefix_fingerprint"]:
        has = f"has only {n_samples:_}" if n_samples < seen else "begins with others"
        raise FingerprintMismatchError(
            f"the model was trained on {seen:_} rows, and {_name(dataset)} {has} (fingerprint "
            f"{_prefix(dataset, min(seen, n_samples))[:16]}…, expected "
            f"{str(model.card['prefix_fingerprint'])[:16]}…); only appended rows can be added. Give the data "
            "that it was trained on, with the same arrays of X, y and weights, or fit anew"
        )
    held_back = [
        (one.start, one.stop)
        for one in refusals
        if seen < one.stop <= one.n_samples <= n_samples
        and one.fingerprint == _prefix(dataset, one.n_samples)
    ]
    out = _merged([*_left_out(model), *_without(held_back, [(0, seen)])])
    again = [] if backfill is None else _without(out, [(0, backfill)])
    left_out = _without(out, again)
    added = _merged([*again, *_without([(seen, n_samples)], out)])
    return NewRows(seen, n_samples, tuple(added), tuple(left_out))


def refuse(dataset: Dataset, rows: NewRows, reason: str) -> list[Refusal]:
    """Return new rows as refused ones, from now on."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    fingerprint = _prefix(dataset, rows.n_after)
    return [Refusal(start, stop, rows.n_after, fingerprint, reason, now) for start, stop in rows.ranges]


def check_updatable(model: RidgeModel) -> None:
    """Check that a model can be updated exactly.

    Raises
    ------
    StatisticsError
        If it cannot; says why and what to do.
    """
    if "classifier" in model.card:
        why = "it is a classifier, whose probabilities, class weights and losses depend on all rows"
    elif model.statistics is None:
        why = "it was stored without its statistics (`--no-statistics`)"
    elif "prefix_fingerprint" not in model.card or "fit_intercept" not in model.card:
        why = "its card does not say which rows it was trained on"
    else:
        return
    raise StatisticsError(f"this model cannot be updated: {why}; train it anew on all rows")


def _check_columns(model: RidgeModel, dataset: Dataset) -> None:
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


def _held_ranges(model: RidgeModel) -> list[Range]:
    return _without([(0, _n_seen(model))], _left_out(model))


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


# -- sums of all rows ----------------------------------------------------------------------------------


def update_model(model: RidgeModel, dataset: Dataset, *, engine: Engine) -> RidgeModel:
    """Add the rows that were appended since a model was trained, and solve again.

    The statistics have the bits of one pass over all rows with the same features and grids. Alpha is chosen
    as it was before; where that took folds or held-out rows, which the statistics of all rows do not tell, it
    stays.

    Parameters
    ----------
    model : RidgeModel
    dataset : Dataset
        The data that it was trained on, with more rows at their end.
    engine : Engine

    Returns
    -------
    model : RidgeModel
        The same one where there is nothing new.

    Raises
    ------
    FingerprintMismatchError
        If the data do not begin with the rows that the model was trained on.
    StatisticsError
        If the model cannot be updated exactly.
    DataError
        If new values cannot be used, or lie beyond what the sums were laid out for.
    """
    rows = find_new_rows(model, dataset)
    if not rows.n_samples:
        return model
    batch = score_new_rows(model, dataset, rows, engine=engine)
    statistics = accumulate_new_rows(model, dataset, rows, engine=engine)
    return solve_update(model, dataset, rows, statistics=statistics, batch=batch)


def score_new_rows(model: RidgeModel, dataset: Dataset, rows: NewRows, *, engine: Engine) -> Batch:
    """Measure the errors of a model on rows that it has not seen, and their columns: progressive validation.

    Raises
    ------
    DataError
        If values cannot be used; names row and column.
    """
    assert model.statistics is not None
    center = model.columns.mean if model.columns is not None else np.zeros(model.n_features)
    state = BatchState(model.linear, np.concatenate([center, model.statistics.target_means()]))
    batch: Batch = engine.map_reduce(
        BlockTask(dataset, measure_batch),
        _as_blocks(_cut(rows.ranges, _rows_at_once(dataset, MIN_BLOCK_ROWS))),
        state,
        combine=operator.add,
        label="score",
    )
    if not batch.moments.weight.value() > 0:
        raise DataError(f"all {rows.n_samples:_} new rows have weight 0; at least one must count")
    return batch


def _rows_at_once(dataset: Dataset, at_most: int) -> int:
    """Return how many rows a block may have that is not cut along the data's chunks."""
    return min(MIN_BLOCK_ROWS, at_most, inspection.blocks_of(dataset)[0].n_samples)


def accumulate_new_rows(
    model: RidgeModel, dataset: Dataset, rows: NewRows, *, engine: Engine
) -> RidgeStatistics:
    """Return the statistics of all rows, from a model's own and those of the blocks that changed.

    Raises
    ------
    DataError
        If values cannot be used, or lie beyond what the sums were laid out for.
    StatisticsError
        If a row is missing or was counted twice.
    """
    assert model.statistics is not None
    spec, whitener = model.statistics.spec, model.feature_map.whitener
    folds = _folds(model)
    state = engine.broadcast(Accumulation(model.feature_map, spec, folds))
    blocks = inspection.blocks_of(
        dataset, max_rows=spec.limb_rows, n_folds=1 if folds is None else folds.n_folds
    )
    wanted = set(_without([(block.start, block.stop) for block in blocks], rows.left_out))
    gone, come = _changed(model, wanted)
    if gone is None:
        logger.info("summing all %s rows anew", f"{_count(wanted):_}")
        statistics = _sum(dataset, come, state, engine=engine)
    else:
        statistics = model.statistics + _sum(dataset, come, state, engine=engine)
        if gone:
            statistics = statistics - _sum(dataset, gone, state, engine=engine)
    statistics.check_complete(_count(wanted), model.feature_map.squared_norm)
    return statistics.with_whitener(whitener)


def _changed(model: RidgeModel, wanted: set[Range]) -> tuple[set[Range] | None, set[Range]]:
    """Return the pieces to subtract, and those to add; None to begin with nothing."""
    per_block = model.card.get("rows_per_block")
    if per_block is None or (model.card.get("summed_by_folds", False) and _folds(model) is None):
        return None, wanted
    held = set(_without(_cut([(0, _n_seen(model))], int(per_block)), _left_out(model)))
    gone, come = held - wanted, wanted - held
    return (gone, come) if _count(gone) + _count(come) < _count(wanted) else (None, wanted)


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


def _sum(
    dataset: Dataset, ranges: Iterable[Range], state: Broadcast[Accumulation], *, engine: Engine
) -> RidgeStatistics:
    statistics: RidgeStatistics = engine.map_reduce(
        BlockTask(dataset, accumulate_rows),
        _as_blocks(sorted(ranges)),
        state,
        combine=operator.add,
        label="accumulate",
    )
    return statistics


def solve_update(
    model: RidgeModel, dataset: Dataset, rows: NewRows, *, statistics: RidgeStatistics, batch: Batch
) -> RidgeModel:
    """Solve a model again from the statistics of all rows, with alpha chosen as before.

    Raises
    ------
    SolveError
        If the statistics are not finite.
    """
    card = model.card
    stays = card.get("chosen_by") in ("cv", "press")
    again = refit(
        model,
        statistics,
        alpha=None if stays else card["alpha_given"],
        alphas=None if stays else card.get("alphas"),
        fit_intercept=card["fit_intercept"],
    )
    kept = {name: card[name] for name in ("alpha_given", "alphas") if name in card}
    again = again.with_card(
        **kept,
        **describe_dataset(dataset),
        **describe_cut(dataset, statistics, _folds(model)),
        n_seen=rows.n_after,
        left_out=[list(one) for one in rows.left_out],
    )
    added = ColumnMoments.of(batch.moments, frequency_weights=statistics.spec.frequency_weights)
    columns = None if model.columns is None else model.columns + added
    return replace(again, columns=columns)


# -- held-out rows and the gate ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """Rows that two models are compared on, neither of which has seen them; see the module's docstring.

    Attributes
    ----------
    dataset : Dataset
    blocks : list of Block
    statistics : RidgeStatistics or None
        Of these rows, to be subtracted; None of test data.
    model : LinearModel
        The current one, solved without them.
    errors : ErrorSums
        Its errors.
    """

    dataset: Dataset
    blocks: list[Block]
    statistics: RidgeStatistics | None
    model: LinearModel
    errors: ErrorSums

    @property
    def words(self) -> str:
        """What they are, for people."""
        n_samples = f"{self.errors.errors.n_samples:,}"
        if self.statistics is None:
            return f"{n_samples} rows of test data"
        return f"the newest {n_samples} rows that the current model holds"


def hold_out(model: RidgeModel, dataset: Dataset, *, engine: Engine, test: Dataset | None = None) -> HeldOut:
    """Choose the rows to hold out, and measure the current model's errors on them, solved without them.

    Raises
    ------
    DataError
        If test data do not fit the model, or have no targets.
    StatisticsError
        If the model holds a single row.
    """
    assert model.statistics is not None
    if test is not None:
        _check_columns(model, test)
        blocks = inspection.blocks_of(test)
        linear = model.linear
        return HeldOut(test, blocks, None, linear, _errors(test, blocks, linear, engine=engine))
    spec, ranges = model.statistics.spec, _newest(_held_ranges(model))
    blocks = _as_blocks(_cut(ranges, _rows_at_once(dataset, spec.limb_rows)))
    state = passes.broadcast(model.feature_map, spec, engine=engine)
    pieces = [(block.start, block.stop) for block in blocks]
    statistics = _sum(dataset, pieces, state, engine=engine).with_whitener(model.feature_map.whitener)
    without = _linear_without(model, statistics)
    return HeldOut(dataset, blocks, statistics, without, _errors(dataset, blocks, without, engine=engine))


def _newest(ranges: Sequence[Range]) -> list[Range]:
    wanted = max(1, min(_count(ranges) // HELD_OUT_SHARE, HELD_OUT_ROWS))
    newest: list[Range] = []
    for start, stop in reversed(ranges):
        first = max(start, stop - wanted)
        newest.insert(0, (first, stop))
        wanted -= stop - first
        if not wanted:
            break
    return newest


def _linear_without(model: RidgeModel, part: RidgeStatistics | None) -> LinearModel:
    """Return a model solved without some of its rows, with the same alpha."""
    if part is None:
        return model.linear
    assert model.statistics is not None
    # The part was cut into other tiles than in the whole: their roundings add up, and none cancels.
    n_tiles = model.statistics.n_tiles + part.n_tiles
    rest = replace(model.statistics - part, n_tiles=n_tiles)
    equations = rest.normal_equations(fit_intercept=model.card["fit_intercept"])
    # As `ridge.solve` does: directions below the floor count by Cholesky and not by eigenvalues, and
    # where alpha is near the floor the errors of the two are far apart (0.244 and 0.273 for D = 512 in 3
    # columns).
    if model.card.get("chosen_by") in ("gcv", "evidence"):
        solution = decompose(equations).solve(model.alpha)
    else:
        solution = solve_cholesky(equations, np.asarray(model.alpha), overwrite_gram=True)
    return LinearModel(model.feature_map, solution.coefficients, solution.intercept)


def _errors(dataset: Dataset, blocks: Sequence[Block], model: LinearModel, *, engine: Engine) -> ErrorSums:
    errors: ErrorSums = engine.map_reduce(
        BlockTask(dataset, measure_errors), blocks, model, combine=operator.add, label="evaluate"
    )
    return errors


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether a new model is good enough to replace the current one.

    Attributes
    ----------
    passed : bool
    reason : str
        In a sentence.
    held_out : str
        What the two were compared on.
    ratio : float
        Mean squared error of the new model over that of the current one, of the worst target.
    at_least : float
        The same, less what chance may have added: a few rows with large errors decide a mean.
    tolerance : float
        That may be above 1 by this much.
    current, new : tuple of float
        Root mean squared errors per target, in the target's units.
    """

    passed: bool
    reason: str
    held_out: str
    ratio: float
    at_least: float
    tolerance: float
    current: tuple[float, ...]
    new: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PairedErrors:
    """Squared errors of two models on the same rows, and of their differences; `+` joins two sets of rows.

    Attributes
    ----------
    weight, weight_squares : ExactSum of shape ()
        Sums of the weights w and of w².
    current, new : ExactSum of shape (n_targets,)
        Sums of w·e² of either model; an e² above 1e70 counts as 1e70.
    differences, squares : ExactSum of shape (n_targets,)
        Sums of w²·d and w²·d², d what e² of the new model is above that of the current one.
    """

    weight: ExactSum
    weight_squares: ExactSum
    current: ExactSum
    new: ExactSum
    differences: ExactSum
    squares: ExactSum

    def __add__(self, other: PairedErrors) -> PairedErrors:
        return PairedErrors(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def mean(self) -> tuple[FloatArray, FloatArray]:
        """Mean squared errors of the current and of the new model, per target."""
        total = self.weight.value()
        return self.current.value() / total, self.new.value() / total

    @property
    def standard_error(self) -> FloatArray:
        """Standard error of the difference of the means, per target."""
        current, new = self.mean
        mean = new - current
        spread = self.squares.value() - 2 * mean * self.differences.value()
        spread = spread + mean**2 * self.weight_squares.value()
        return np.asarray(np.sqrt(np.maximum(spread, 0.0)) / self.weight.value())


def measure_pair(rows: Rows, models: LinearModel) -> PairedErrors:
    """Return the squared errors on a block of two models whose coefficients stand side by side.

    Raises
    ------
    DataError
        If the block has no targets, or values that are not finite.
    """
    check_evaluation(rows)
    assert rows.y is not None
    weights = np.ones(len(rows.y)) if rows.sample_weight is None else rows.sample_weight
    with np.errstate(over="ignore"):
        errors = (np.tile(rows.y, 2) - predict_rows(rows, models)) ** 2
    current, new = np.split(np.minimum(errors, _LARGEST_SQUARE), 2, axis=1)
    difference, squared = new - current, weights**2
    sums = (
        np.asarray(weights.sum()),
        np.asarray(squared.sum()),
        weights @ current,
        weights @ new,
        squared @ difference,
        squared @ difference**2,
    )
    return PairedErrors(*map(ExactSum.of, sums))


def judge(candidate: RidgeModel, held_out: HeldOut, *, tolerance: float = TOLERANCE, engine: Engine) -> Gate:
    """Compare a new model with the current one on held-out rows.

    It fails where the mean squared error of a target has risen by more than tolerated, with a confidence of
    99 % by the differences row by row: on few rows, or where a few of them decide, no rise is certain.

    Parameters
    ----------
    candidate : RidgeModel
        Of all rows; it is solved without the held-out ones here.
    held_out : HeldOut
    tolerance : float
        By how much the mean squared error of a target may rise, as a share of it; what is below 1e-6 of the
        target's variance does not count.
    engine : Engine

    Raises
    ------
    InvalidParameterError
        If `tolerance` is negative or not finite.
    """
    check_tolerance(tolerance)
    current, new = held_out.model, _linear_without(candidate, held_out.statistics)
    both = LinearModel(
        candidate.feature_map,
        np.hstack([current.coefficients, new.coefficients]),
        np.concatenate([current.intercept, new.intercept]),
    )
    found: PairedErrors = engine.map_reduce(
        BlockTask(held_out.dataset, measure_pair),
        held_out.blocks,
        both,
        combine=operator.add,
        label="compare",
    )
    old, now = found.mean
    chance = float(ndtri(1 - _DOUBT / len(old))) * found.standard_error
    unit = old + _NEGLIGIBLE * held_out.errors.errors.target_variance
    with np.errstate(divide="ignore", invalid="ignore"):
        rises = np.where(now == old, 0.0, (now - old) / unit)
        sure = np.where(now == old, 0.0, (now - old - chance) / unit)
    worst = int(np.argmax(sure))
    ratio, at_least = 1 + float(rises[worst]), max(0.0, 1 + float(sure[worst]))
    passed = at_least <= 1 + tolerance
    target = f" of target {worst}" if len(old) > 1 else ""
    reason = (
        f"on {held_out.words} the new model's mean squared error{target} is {ratio:.4g} times the current "
        f"one's, at least {at_least:.4g} times with a confidence of {1 - _DOUBT:.0%}, "
        f"{'within' if passed else 'above'} the {1 + tolerance:.4g} that are tolerated"
    )
    rmse = [tuple(np.sqrt(values).tolist()) for values in (old, now)]
    return Gate(passed, reason, held_out.words, ratio, at_least, tolerance, *rmse)


def check_tolerance(tolerance: float) -> None:
    """Check that a gate's tolerance is a number of at least 0.

    Raises
    ------
    InvalidParameterError
        Otherwise.
    """
    if not 0.0 <= tolerance < np.inf:
        raise InvalidParameterError(
            f"`tolerance` is {tolerance!r}; expected a number in [0, inf), such as 0.05"
        )
