"""Batches of a table's columns → checked batches of arrays: X, y, weights, groups, ids.

Rows with missing or infinite values are refused by row and column, or dropped and
counted. Rows may be held out: the latest ones, or some chosen by a hash.
"""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow

from rff_dist.data import folding
from rff_dist.data.digests import canonical_bytes
from rff_dist.data.sources import Provenance
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes.encoders import Date
from rff_dist.recipes.recipes import recipe_of
from rff_dist.recipes.tables import (
    Batches,
    RowArrays,
    Types,
    kind_of,
    listed,
    read_type,
    to_labels,
    to_numbers,
)
from rff_dist.typing import Facts, FloatArray, frozen
from rff_dist.workbench.tables import unlike
from rff_dist.workbench.tables.inputs import Input, Journal
from rff_dist.workbench.tables.roles import ADVICE, ColumnPlan, check_column

#: Numbers of a batch of X: 64 MiB.
_BATCH_VALUES = 2**23
_FEWEST_COLUMNS = 100  # of batches of 84,000 rows, the longest
_N_CHECKED = 5  # X, y, weights, groups and ids: values that must be there
_log = logging.getLogger(__name__)

#: Rows, the number of the first among all rows, and which are selected (None: all).
type NumberedBatch = tuple[pyarrow.RecordBatch, int, np.ndarray | None]


@frozen
class Holdout:
    """A share of the rows to hold out: the latest ones, or a choice by hashes."""

    #: of the rows, rounded to a thousandth
    share: float
    seed: int = 0
    #: column of dates or numbers, whose largest values are held out
    by: str | None = None

    def __post_init__(self) -> None:
        if not 0.001 <= self.share <= 0.999:
            raise InvalidParameterError(
                f"`holdout` is {self.share!r}; expected a share of the rows, from 0.1%"
                " to 99.9%"
            )

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Return which rows are held out; rows of one key stay together."""
        # 1,000 folds by a hash of the key: a row's part does not depend on which other
        # rows there are.
        folds = folding.GroupFolds(1000, seed=self.seed).assign(
            0, len(keys), n_samples=len(keys), groups=keys
        )
        return np.asarray(folds < round(1000 * self.share))

    def start(self, values: np.ndarray) -> float:
        """Return the smallest value that is held out, given those of all rows.

        Raises DataError if all are the same.
        """
        distinct, counts = np.unique(values, return_counts=True)
        if len(distinct) < 2:
            raise DataError(
                f"{self.by!r} has {len(distinct)} distinct values in {len(values):,}"
                " rows, so no row is later than another; expected two or more. Hold"
                " out rows by another column"
            )
        # Rows of one value stay together, so the share is met as closely as the values
        # allow. The first value would leave no row to train on.
        n_later = counts[::-1].cumsum()[::-1][1:]
        closest = np.abs(n_later - self.share * len(values)).argmin()
        return float(distinct[1 + closest])


@frozen
class RowSelection:
    """Which rows are read: the held-out ones, or all others."""

    holdout: Holdout
    is_held_out: bool


def warn_of_chance(
    attributes: Facts, holdout: Holdout, *, has_groups: bool, is_encoded: bool = False
) -> None:
    """Warn if held-out rows are no fair test of a dataset with these attributes.

    If it `is_encoded`, `holdout_by` takes columns of X.
    """
    recipe = recipe_of(attributes)
    encoders = () if recipe is None else recipe.columns
    dates = [part for part in encoders if isinstance(part, Date)]
    if dates and holdout.by is None and not has_groups:
        _log.warning(
            "the rows to test on are chosen at random, although the table has dates"
            " (%s); to test how later rows are predicted, hold out the latest ones:"
            " give the column as `holdout_by`",
            listed([part.names[0] if is_encoded else part.column for part in dates]),
        )


def read_tables(
    opened: Sequence[Input],
    plan: ColumnPlan,
    journal: Journal,
    selection: RowSelection | None,
    monitor: unlike.RowMonitor | None = None,
) -> Iterator[RowArrays]:
    """Yield the rows of inputs as arrays, and compare them with the rows before.

    Raises DataError, with row and column, if a value cannot be used.
    """
    for file in opened:
        batches = read_batches([file], plan, journal, selection)
        if monitor is not None:
            batches = monitor.look(batches)
        for arrays in check_rows(
            _to_arrays(batches, plan, journal), file, plan, journal
        ):
            X, y = arrays[:2]
            if monitor is not None and X is not None:
                monitor.add(X, y)
            yield arrays


def read_batches(
    opened: Sequence[Input],
    plan: ColumnPlan,
    journal: Journal,
    selection: RowSelection | None,
) -> Iterator[NumberedBatch]:
    """Yield the rows of inputs, and which of them are selected."""
    # Fewer rows at a time of wide tables, so that memory is bounded whatever the number
    # of columns.
    n_rows = max(1, _BATCH_VALUES // max(_FEWEST_COLUMNS, len(plan.features)))
    for file in opened:
        for batch in _pieces(file.table.batches(plan.types), n_rows):
            start = journal.n_seen
            journal.n_seen += batch.num_rows
            selected = None
            if selection is not None:
                is_held_out = _held_out(batch, start, plan, selection.holdout)
                selected = is_held_out == selection.is_held_out
            yield batch, start, selected


def selected_rows(batches: Iterator[NumberedBatch]) -> Batches:
    """Yield the selected rows of batches."""
    for batch, _, selected in batches:
        yield batch if selected is None else batch.filter(pyarrow.array(selected))


def _held_out(
    batch: pyarrow.RecordBatch, start: int, plan: ColumnPlan, holdout: Holdout
) -> np.ndarray:
    if holdout.by is not None:
        # NaN compares as false, so rows without a value are early ones, as
        # `find_start` says.
        return order_values(batch.column(holdout.by)) >= plan.test_start

    key = plan.roles.groups or plan.roles.id
    if key is None:
        return holdout.holds(np.arange(start, start + batch.num_rows))
    labels = to_labels(batch.column(key))
    if labels.dtype.kind not in "iu":
        texts = ["" if value is None else str(value) for value in labels.tolist()]
        labels = np.array(texts, "T")
    return holdout.holds(labels)


def order_values(column: pyarrow.Array) -> FloatArray:
    """Return what orders rows: dates as microseconds since 1970, NaN if missing."""
    if kind_of(column.type) == "date":
        column = column.cast(read_type(column.type, "date"), safe=False).cast("int64")
    return to_numbers(column)


def order_type(table: str, schema: pyarrow.Schema, by: str) -> Types:
    """Return the type to read the column by that rows are held out by.

    Raises InvalidParameterError if there is no such column; DataError if it holds
    neither dates nor numbers.
    """
    check_column(table, schema, by, "holdout_by")
    kind = kind_of(schema.field(by).type)
    if kind not in ("date", "number"):
        raise DataError(
            f"{table}: {by!r} holds {kind or schema.field(by).type}, which does not"
            " order rows in time; expected dates or numbers. Convert it first, or hold"
            " out rows by another column"
        )
    return {by: read_type(schema.field(by).type, kind)}


def find_start(opened: Sequence[Input], types: Types, holdout: Holdout) -> float:
    """Return where the held-out rows begin in the order of a column.

    Reads this column of all rows, 8 bytes per row. Rows without a value there count as
    early ones, with a warning. Raises DataError as `Holdout.start`.
    """
    assert holdout.by is not None
    parts = [np.empty(0)]
    for file in opened:
        for batch in file.table.batches(types):
            parts.append(order_values(batch.column(holdout.by)))
    values = np.concatenate(parts)
    # An early row cannot leak the future into training; a late one might be tested
    # without reason.
    missing = np.isnan(values)
    if missing.any():
        _log.warning(
            "%d rows have no value in %r and are trained on", missing.sum(), holdout.by
        )
    return holdout.start(values[~missing])


def _pieces(batches: Batches, n_rows: int) -> Batches:
    """Cut batches, since a row of short texts may become many numbers."""
    for batch in batches:
        for start in range(0, max(1, batch.num_rows), n_rows):
            yield batch.slice(start, n_rows)


def _to_arrays(
    batches: Iterator[NumberedBatch], plan: ColumnPlan, journal: Journal
) -> Iterator[tuple[RowArrays, np.ndarray]]:
    """Yield arrays of the selected rows, and these rows' numbers in their file."""
    recipe = journal.recipe or plan.recipe
    roles = plan.roles
    targets = roles.targets
    first_row: int | None = None
    for batch, start, selected in batches:
        if first_row is None:
            first_row = start
        numbers = np.arange(start - first_row, start - first_row + batch.num_rows)
        # first of all, since levels of other rows must not join
        if selected is not None:
            batch = batch.filter(pyarrow.array(selected))
            numbers = numbers[selected]
        recipe = recipe.with_levels_of(batch)
        journal.recipe = recipe
        X = recipe.encode(batch).astype(plan.dtype, copy=False)
        y = None
        if plan.has_labels and targets:
            y = to_labels(batch.column(targets[0]))
        elif targets:
            y = np.column_stack([to_numbers(batch.column(name)) for name in targets])
            if isinstance(roles.target, str):
                y = y[:, 0]
        weights = None
        if roles.weight is not None:
            weights = to_numbers(batch.column(roles.weight))
        groups, ids = (
            None if name is None else to_labels(batch.column(name))
            for name in (roles.groups, roles.id)
        )
        times = None
        if plan.time is not None:
            if plan.time in batch.schema.names:
                times = order_values(batch.column(plan.time))
            else:  # a column of X
                times = X[:, recipe.names.index(plan.time)]
            # no NaN: rows without a value count as early ones, as `find_start` says
            times = np.nan_to_num(times, nan=-np.inf, neginf=-np.inf)
        yield (X, y, weights, groups, ids, times), numbers


def _take(arrays: RowArrays, rows: np.ndarray) -> RowArrays:
    return tuple(None if array is None else array[rows] for array in arrays)


def check_rows(
    batches: Iterator[tuple[RowArrays, np.ndarray]],
    file: Input,
    plan: ColumnPlan,
    journal: Journal,
) -> Iterator[RowArrays]:
    """Refuse or drop rows with missing or infinite values, and write the journal."""
    n_read = 0
    n_dropped = 0
    # one for each array: batches may have any size
    digests = defaultdict[int, Any](hashlib.sha256)
    for arrays, numbers in batches:
        is_complete = np.ones(len(numbers), bool)
        for i, array in enumerate(arrays[:_N_CHECKED]):
            if array is None:
                continue
            # One check for X and vectors alike, as columns of one matrix.
            values = array if array.ndim == 2 else array[:, np.newaxis]
            if array.dtype.kind in "biuf":
                usable = np.isfinite(values)
            else:  # text is usable unless it is empty, or None
                usable = (values != "") & (values != None)  # noqa: E711
            if plan.roles.on_nan == "error" and not usable.all():
                raise _missing_value(file, plan, i, usable, numbers)
            is_complete &= usable.all(axis=1)
        n_read += len(is_complete)
        n_dropped += int(len(is_complete) - is_complete.sum())
        if not is_complete.all():
            arrays = _take(arrays, is_complete)
        # A query has no bytes that could be compared before it runs, so its rows are
        # its digest.
        if file.is_query:
            for i, array in enumerate(arrays):
                if array is not None:
                    stored = array.astype("T") if array.dtype == object else array
                    digests[i].update(canonical_bytes(stored))
        yield arrays

    if n_dropped:
        _log.warning(
            "%s: %d of %d rows dropped for missing or infinite values",
            file.name,
            n_dropped,
            n_read,
        )
    source = file.source
    if file.is_query:
        parts = [f"{i} {digest.hexdigest()}" for i, digest in digests.items()]
        digest = hashlib.sha256("|".join([source.sha256, *parts]).encode())
        source = Provenance(source.name, digest.hexdigest(), {"n_read": n_read})
    journal.entries.append(source.to_dict(n_read - n_dropped))
    journal.n_read += n_read
    journal.n_dropped += n_dropped


def _missing_value(
    file: Input, plan: ColumnPlan, array: int, usable: np.ndarray, numbers: np.ndarray
) -> DataError:
    """Return the error that names the first value of an array that is not usable."""
    row, column = np.argwhere(~usable)[0].tolist()
    advice = 'Fill it in, or drop such rows with `on_nan="drop"`'
    if array == 0:
        advice = plan.advice
    if advice == ADVICE and len(usable) > 1 and not usable[:, column].any():
        advice = (
            f"None of {len(usable):,} rows has one: leave the column out with `drop`"
        )
    return DataError(
        f"{file.name}: row {numbers[row] + 1}, column {plan.name_column(array, column)}"
        " is missing or not finite (rows count from 1, without a header); expected a"
        f" value. {advice}"
    )
