"""Batches of a table's columns → checked arrays: X, y, weights, groups, ids, times.

In go opened inputs and a plan of their columns. Rows with missing or infinite values
are refused by row and column, or dropped and counted; a journal counts the rows read of
each input. Only a few rows are in memory at a time, and fewer if they have many
columns.
"""

import hashlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
from rff_dist.recipes.tables import Batches, listed, to_labels, to_numbers
from rff_dist.text import first_few
from rff_dist.typing import BoolArray, IntArray, frozen
from rff_dist.workbench.tables import row_monitor
from rff_dist.workbench.tables.holdout import RowSelection, order_values
from rff_dist.workbench.tables.inputs import Input, Journal
from rff_dist.workbench.tables.roles import ADVICE, ColumnPlan

#: numbers in a batch of X: 64 MiB of float64
_BATCH_VALUES = 2**23
#: Tables with fewer columns count as this wide, so a batch has at most 84,000 rows.
_FEWEST_COLUMNS = 100
# How many dropped rows a warning names.
_NAMED_ROWS = 3
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
    dropped: list[int] = []  # the first ones
    n_missing = Counter[str]()  # by the column
    table = source.table
    roles = plan.roles
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
        gaps = _find_gaps(arrays, plan)
        numbers = rows.numbers - first_row
        if gaps and roles.on_nan == "error":
            raise _missing_value(source, plan, gaps, numbers)
        usable = np.ones(len(numbers), bool)
        for name, is_missing in gaps.items():
            n_missing[name] += int(is_missing.sum())
            usable &= ~is_missing
        n_read += len(usable)
        n_dropped += len(usable) - int(usable.sum())
        dropped += numbers[~usable][: _NAMED_ROWS - len(dropped)].tolist()
        n_wanted = n_most - len(taken)
        taken += numbers[usable][:n_wanted].tolist()
        if not usable.all():
            arrays = arrays.take(usable)
        labels_of = {roles.groups: arrays.groups, roles.id: arrays.ids}
        for column, labels in labels_of.items():
            # here, where the file is known; other labels are checked when written
            if labels is not None and labels.dtype.kind == "f":
                what = f"{table.name}: column {column!r}"
                columns.check_values(labels, what, numbers[usable], table.place)
        # A file is known by its bytes. A query has none, so its rows are digested.
        if source.is_query:
            for i, part in enumerate(arrays):
                if part is not None:
                    stored = part.astype("T") if part.dtype == object else part
                    digests[i].update(canonical_bytes(stored))
        yield arrays

    if n_dropped:
        missing = [f"{n:,} in {name!r}" for name, n in n_missing.most_common()]
        kind = ""
        if selection is not None:
            kind = "test " if selection.is_held_out else "training "
        _log.warning(
            "%s: %d of %d %srows dropped for missing or infinite values: %s; first %s",
            table.name,
            n_dropped,
            n_read,
            kind,
            first_few(missing),
            first_few(list(map(table.place, dropped))),
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
    lines = table.row_lines
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


def _find_gaps(arrays: RowArrays, plan: ColumnPlan) -> dict[str, BoolArray]:
    """Return which rows lack a finite value, for each column that has such rows."""
    roles = plan.roles
    single = [[roles.weight], [roles.groups], [roles.id]]
    names_of: list[Any] = [plan.recipe.sources, roles.targets, *single]
    gaps: dict[str, BoolArray] = {}
    # the times, which come last, may be missing
    for array, names in zip(arrays, names_of, strict=False):
        if array is None:
            continue
        # one check for X and vectors alike, as columns of one matrix
        values = array if array.ndim == 2 else array[:, np.newaxis]
        if array.dtype.kind in "biuf":
            is_missing = ~np.isfinite(values)
        else:  # text is usable unless it is empty, or None
            is_missing = (values == "") | (values == None)  # noqa: E711
        # a column of the table may make several of X
        for i in np.flatnonzero(is_missing.any(axis=0)).tolist():
            gaps[names[i]] = gaps.get(names[i], False) | is_missing[:, i]
    return gaps


def _missing_value(
    source: Input, plan: ColumnPlan, gaps: Mapping[str, BoolArray], numbers: IntArray
) -> DataError:
    """Return the error that names the first missing value.

    `numbers`: the rows' numbers in their input, from 0.
    """
    column, is_missing = min(gaps.items(), key=lambda gap: gap[1].argmax())
    advice = plan.advice
    is_of_table = column in plan.recipe.sources and advice == ADVICE
    n_missing = int(is_missing.sum())
    if is_of_table and 1 < n_missing == len(is_missing):
        advice = (
            "Fill it in, or leave the column out with `drop` when the dataset is made"
        )
    elif is_of_table:
        advice += '. With `impute="median"` a dataset is made without gaps in features'
        others = [name for name in gaps if name not in plan.recipe.sources]
        if others:
            advice += f', and with `on_nan="drop"` in {listed(others)}, too'
    return DataError(
        f"{source.table.name}: {source.table.place(numbers[is_missing.argmax()])},"
        f" column {column!r} is missing or not finite, as in {n_missing:,} of"
        f" {len(is_missing):,} rows; expected a value. {advice}"
    )
