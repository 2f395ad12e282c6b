"""Batches of a table's columns → checked arrays: X, y, weights, groups, ids, times.

In go opened inputs and a plan of their columns. Rows with missing or infinite values
are refused by row and column, or dropped and counted; a journal counts the rows read of
each input. Only a few rows are in memory at a time, and fewer if they have many
columns.
"""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow

from rff_dist.data import columns
from rff_dist.data import sources as row_sources
from rff_dist.data.digests import canonical_bytes
from rff_dist.data.row_batches import RowArrays
from rff_dist.data.sources import Provenance
from rff_dist.errors import DataError
from rff_dist.recipes.recipes import Recipe
from rff_dist.recipes.tables import Batches, to_labels, to_numbers
from rff_dist.typing import BoolArray, IntArray, frozen
from rff_dist.workbench.tables import row_monitor
from rff_dist.workbench.tables.holdout import RowSelection, order_values
from rff_dist.workbench.tables.inputs import Input, Journal
from rff_dist.workbench.tables.roles import ADVICE, ColumnPlan

#: numbers in a batch of X: 64 MiB of float64
_BATCH_VALUES = 2**23
#: Tables with fewer columns count as this wide, so a batch has at most 84,000 rows.
_FEWEST_COLUMNS = 100
#: The arrays that must have a value in each row, with their names in messages.
_REQUIRED = {
    "X": "X",
    "y": "y",
    "sample_weight": "the weights",
    "groups": "the groups",
    "ids": "the ids",
}
_log = logging.getLogger(__name__)


@frozen
class TableRows:
    """The selected rows of a batch, and their numbers among all rows of all inputs."""

    batch: pyarrow.RecordBatch
    numbers: IntArray


def read_tables(
    opened: Sequence[Input],
    plan: ColumnPlan,
    journal: Journal,
    selection: RowSelection | None,
    monitor: row_monitor.RowMonitor,
) -> Iterator[RowArrays]:
    """Yield the rows of inputs as arrays, and compare them with the rows before.

    Raises DataError, with row and column, if a value cannot be used.
    """
    for source in opened:
        for arrays in _read_input(source, plan, journal, selection, monitor):
            monitor.look_at_encoded_rows(arrays.X, arrays.y, source.table)
            yield arrays


def read_rows(
    source: Input, plan: ColumnPlan, journal: Journal, selection: RowSelection | None
) -> Iterator[TableRows]:
    """Yield the selected rows of an input, and count all of them in the journal."""
    # fewer rows at a time of wide tables
    n_rows = max(1, _BATCH_VALUES // max(_FEWEST_COLUMNS, len(plan.features)))
    for batch in _pieces(source.table.batches(plan.types), n_rows):
        first_row = journal.n_seen
        numbers = np.arange(first_row, first_row + batch.num_rows)
        journal.n_seen += batch.num_rows
        if selection is not None:
            is_selected = selection.select(batch, first_row, plan)
            batch = batch.filter(pyarrow.array(is_selected))
            numbers = numbers[is_selected]
        yield TableRows(batch, numbers)


def _pieces(batches: Batches, n_rows: int) -> Batches:
    """Cut batches into pieces of at most `n_rows` rows: a row of short texts may become
    many numbers.
    """
    for batch in batches:
        for start in range(0, max(1, batch.num_rows), n_rows):
            yield batch.slice(start, n_rows)


def _read_input(
    source: Input,
    plan: ColumnPlan,
    journal: Journal,
    selection: RowSelection | None,
    monitor: row_monitor.RowMonitor,
) -> Iterator[RowArrays]:
    """Yield an input's usable rows as arrays; its entry in the journal comes last."""
    n_read = 0
    n_dropped = 0
    taken: list[int] = []  # the first ones
    n_most = row_sources.MOST_ROWS
    n_most -= sum(len(entry.get(row_sources.ROWS) or ()) for entry in journal.entries)
    # a digest for each array, so that the size of batches does not matter
    digests = defaultdict[int, Any](hashlib.sha256)
    first_row = journal.n_seen
    for rows in read_rows(source, plan, journal, selection):
        monitor.look_at_table_rows(rows.batch)
        recipe = (journal.recipe or plan.recipe).with_levels_of(rows.batch)
        journal.recipe = recipe
        arrays = _to_arrays(rows.batch, plan, recipe)
        usable = _usable_rows(arrays, source, plan, rows.numbers - first_row)
        n_read += len(usable)
        n_dropped += len(usable) - int(usable.sum())
        n_wanted = n_most - len(taken)
        taken += (rows.numbers[usable] - first_row)[:n_wanted].tolist()
        if not usable.all():
            arrays = arrays.take(usable)
        # A file is known by its bytes. A query has none, so its rows are digested.
        if source.is_query:
            for i, part in enumerate(arrays):
                if part is not None:
                    stored = part.astype("T") if part.dtype == object else part
                    digests[i].update(canonical_bytes(stored))
        yield arrays

    if n_dropped:
        _log.warning(
            "%s: %d of %d rows dropped for missing or infinite values",
            source.table.name,
            n_dropped,
            n_read,
        )
    provenance = source.provenance
    if source.is_query:
        parts = [f"{i} {digest.hexdigest()}" for i, digest in digests.items()]
        digest = hashlib.sha256("|".join([provenance.sha256, *parts]).encode())
        facts = {"n_read": n_read}
        provenance = Provenance(provenance.name, digest.hexdigest(), facts)
    n_taken = n_read - n_dropped
    entry = provenance.to_dict(n_taken)
    if n_taken < journal.n_seen - first_row:
        entry[row_sources.ROWS] = taken if len(taken) == n_taken else None
    lines = source.table.row_lines
    if lines is not None and len(lines) == journal.n_seen - first_row:
        entry[row_sources.FIRST_LINES[source.table.line_unit]] = lines.start
    journal.entries.append(entry)
    journal.n_read += n_read
    journal.n_dropped += n_dropped


def _to_arrays(
    batch: pyarrow.RecordBatch, plan: ColumnPlan, recipe: Recipe
) -> RowArrays:
    roles = plan.roles
    X = recipe.encode(batch).astype(plan.dtype, copy=False)
    y = None
    if plan.has_labels:
        y = to_labels(batch.column(roles.targets[0]))
    elif roles.targets:
        y = np.column_stack([to_numbers(batch.column(name)) for name in roles.targets])
        if isinstance(roles.target, str):
            y = y[:, 0]
    weights = None
    if roles.weight is not None:
        weights = to_numbers(batch.column(roles.weight))
    groups = None if roles.groups is None else to_labels(batch.column(roles.groups))
    ids = None if roles.id is None else to_labels(batch.column(roles.id))
    times = None
    if plan.time is not None:
        if plan.time in batch.schema.names:
            times = order_values(batch.column(plan.time))
        else:  # a column of X
            times = X[:, recipe.names.index(plan.time)]
        # rows without a value are trained on, so they come before all others
        times = np.nan_to_num(times, nan=-np.inf, neginf=-np.inf)
    return RowArrays(X, y, weights, groups, ids, times)


def _usable_rows(
    arrays: RowArrays, source: Input, plan: ColumnPlan, numbers: IntArray
) -> BoolArray:
    """Return which rows have a finite value everywhere.

    `numbers`: the rows' numbers in their input, from 0, for messages. Raises DataError
    at a row that lacks a value, unless such rows are to be dropped.
    """
    is_usable = np.ones(len(numbers), bool)
    for name in _REQUIRED:
        array = getattr(arrays, name)
        if array is None:
            continue
        # one check for X and vectors alike, as columns of one matrix
        values = array if array.ndim == 2 else array[:, np.newaxis]
        if array.dtype.kind in "biuf":
            has_value = np.isfinite(values)
        else:  # text is usable unless it is empty, or None
            has_value = (values != "") & (values != None)  # noqa: E711
        if plan.roles.on_nan == "error" and not has_value.all():
            raise _missing_value(source, plan, name, has_value, numbers)
        is_usable &= has_value.all(axis=1)
    table = source.table
    roles = plan.roles
    for column, labels in {roles.groups: arrays.groups, roles.id: arrays.ids}.items():
        # here, where the file is known; other labels are checked when they are written
        if labels is not None and labels.dtype.kind == "f":
            what = f"{table.name}: column {column!r}"
            columns.check_values(
                labels[is_usable], what, numbers[is_usable], table.place
            )
    return is_usable


def _missing_value(
    source: Input, plan: ColumnPlan, name: str, has_value: BoolArray, numbers: IntArray
) -> DataError:
    """Return the error that names the first missing value of an array."""
    row, column = np.argwhere(~has_value)[0].tolist()
    advice = plan.advice
    column_names: Sequence[str] | None = None
    if name == "X":
        column_names = plan.recipe.sources
    elif name == "y":
        column_names = plan.targets
    place = f"{column} of {_REQUIRED[name]}"
    if column_names:
        place = repr(column_names[column])
    is_of_table = name == "X" and advice == ADVICE
    if is_of_table and len(has_value) > 1 and not has_value[:, column].any():
        advice = (
            f"None of {len(has_value):,} rows has one: fill it in, or leave the column"
            " out with `drop` when the dataset is made"
        )
    return DataError(
        f"{source.table.name}: {source.table.place(numbers[row])}, column {place} is"
        f" missing or not finite; expected a value. {advice}"
    )
