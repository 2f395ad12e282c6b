"""Rows of tables as checked batches of arrays, and a journal of what was read."""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

from rff_dist.data import folding, memory, row_batches
from rff_dist.data import sources as row_sources
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes import tables
from rff_dist.typing import Facts, frozen
from rff_dist.workbench.tables import learn, unlike
from rff_dist.workbench.tables.roles import ADVICE, TablePlan, check_column

#: Numbers of a batch of X: 64 MiB.
_BATCH_VALUES = 2**23
_CHECKED = 5  # X, y, weights, groups and ids: values that must be there
_log = logging.getLogger(__name__)


@frozen
class Holdout:
    """A share of the rows to hold out: the latest ones, or a choice by hashes of groups, ids or numbers.

    `share`: share of the rows, rounded to a thousandth.
    `seed`: another seed chooses other rows.
    `by`: column of dates or numbers. The rows with its largest values are held out.
    """

    share: float
    seed: int = 0
    by: str | None = None

    def __post_init__(self) -> None:
        if not 0.001 <= self.share <= 0.999:
            raise InvalidParameterError(
                f"`holdout` is {self.share!r}; expected a share of the rows, from 0.1% to 99.9%"
            )

    def holds(self, keys: np.ndarray) -> np.ndarray:
        """Say for each row whether it is held out.

        `keys`: int, bool or text array of shape (n_rows,). Rows of one key stay together.
        """
        # 1,000 folds by a hash of the key: a row's part does not depend on which other rows there are.
        cut = folding.GroupFolds(1000, seed=self.seed)
        folds = cut.assign(0, len(keys), n_samples=len(keys), groups=keys)
        return np.asarray(folds < round(1000 * self.share))

    def start(self, values: np.ndarray) -> float:
        """Return the smallest value at which rows are held out, so that about `share` of them are.

        `values`: float64 array of shape (n_rows,), without NaN.
        Raises DataError if all are the same.
        """
        distinct, counts = np.unique(values, return_counts=True)
        if len(distinct) < 2:
            raise DataError(
                f"{self.by!r} has {len(distinct)} distinct values in {len(values):,} rows, so no row "
                "is later than another; expected two or more. Hold out rows by another column"
            )
        # Rows of one value stay together, so the share is met as closely as the values allow.
        n_later = counts[::-1].cumsum()[::-1]
        # The first value would leave no row to train on.
        return float(distinct[1 + np.abs(n_later[1:] - self.share * len(values)).argmin()])


@frozen
class RowSelection:
    """Which rows are read: the held-out ones if `wanted`, else all others."""

    holdout: Holdout
    wanted: bool


@frozen
class Input:
    """One source of rows: the table of a file or a query, or the arrays of an .npz file.

    `source`: what the dataset stores about it. The digest of a query is only the beginning of its final one.
    """

    source: row_sources.Source
    table: tables.Table | None
    path: Path | None

    @property
    def is_query(self) -> bool:
        return self.path is None

    @property
    def name(self) -> str:
        return "the query" if self.path is None else self.path.name


@dataclass(slots=True)
class Journal:
    """What was read until now, with an entry of the attribute `sources` for each finished input.

    `n_seen`: rows of all inputs, including rows of other parts and of the input that is being read.
    """

    entries: list[Facts] = field(default_factory=list)
    n_read: int = 0
    n_seen: int = 0
    dropped: int = 0


def read_tables(
    opened: Sequence[Input],
    plan: TablePlan,
    journal: Journal,
    selection: RowSelection | None,
    watch: unlike.Watch | None = None,
) -> Iterator[row_batches.RowBatch]:
    """Yield the rows of inputs as arrays: X, y, weights, groups and ids.

    `watch`: compares them with the rows before.

    Raises DataError, which names row and column, if a value cannot be used, unless such rows are dropped.
    """
    # No mean holds the targets of held-out rows.
    if selection is not None and selection.wanted and plan.learned is not None:
        plan = replace(plan, learned=learn.Learned(plan.learned.recipe))
    for file in opened:
        batches = read_batches([file], plan, journal, selection)
        batches = batches if watch is None else watch.look(batches)
        for parts in check_rows(_split_columns(batches, plan), file, plan, journal):
            X, y = parts[:2]
            if watch is not None and X is not None:
                watch.add(X, y)
            yield parts


def read_batches(
    opened: Sequence[Input], plan: TablePlan, journal: Journal, selection: RowSelection | None
) -> Iterator[tuple[pyarrow.RecordBatch, int, np.ndarray | None]]:
    """Yield batches of rows, the number of their first row among all rows, and which rows are wanted."""
    key = plan.roles.groups or plan.roles.id
    # Fewer rows at a time of wide tables, so that memory is bounded whatever the number of columns.
    n_rows = max(1, _BATCH_VALUES // max(learn.MOST_COLUMNS, len(plan.features or ())))
    for file in opened:
        assert file.table is not None
        for batch in _pieces(file.table.batches(plan.types), n_rows):
            start = journal.n_seen
            journal.n_seen += batch.num_rows
            chosen = None
            if selection is not None and selection.holdout.by is not None:
                # NaN compares as false, so rows without a value are early ones, as `find_start` says.
                values = order_values(batch.column(selection.holdout.by))
                chosen = (values >= plan.test_start) == selection.wanted
            elif selection is not None:
                numbers = np.arange(start, journal.n_seen)
                keys = numbers if key is None else _keys(batch.column(key))
                chosen = selection.holdout.holds(keys) == selection.wanted
            yield batch, start, chosen


def order_values(column: pyarrow.Array) -> np.ndarray:
    """Return what orders rows as float64: dates as microseconds since 1970, missing values as NaN."""
    if tables.kind_of(column.type) == "date":
        column = column.cast(tables.read_type(column.type, "date"), safe=False).cast("int64")
    return tables.to_numbers(column)


def order_type(table: str, schema: pyarrow.Schema, by: str) -> dict[str, pyarrow.DataType]:
    """Return the type to read the column by that rows are held out by, see `Holdout.by`.

    Raises InvalidParameterError if there is no such column; DataError if it holds neither dates nor numbers.
    """
    check_column(table, schema, by, "holdout_by")
    kind = tables.kind_of(schema.field(by).type)
    if kind not in ("date", "number"):
        raise DataError(
            f"{table}: {by!r} holds {kind or schema.field(by).type}, which does not order rows in time; "
            "expected dates or numbers. Convert it first, or hold out rows by another column"
        )
    return {by: tables.read_type(schema.field(by).type, kind)}


def find_start(opened: Sequence[Input], types: tables.Types, holdout: Holdout) -> float:
    """Return where in an order the held-out rows begin; reads this column of all rows, 8 bytes per row.

    Rows without a value there count as early ones, with a warning.
    Raises DataError as `Holdout.start`.
    """
    assert holdout.by is not None
    tables = [file.table for file in opened if file.table is not None]
    batches = (batch for table in tables for batch in table.batches(types))
    values = np.concatenate([np.empty(0), *(order_values(batch.column(holdout.by)) for batch in batches)])
    # An early row cannot leak the future into training; a late one might be tested without reason.
    missing = np.isnan(values)
    if missing.any():
        _log.warning("%d rows have no value in %r and are trained on", missing.sum(), holdout.by)
    return holdout.start(values[~missing])


def _pieces(batches: tables.Batches, n_rows: int) -> tables.Batches:
    """Cut batches, since a row of short texts may become many numbers."""
    for batch in batches:
        for start in range(0, max(1, batch.num_rows), n_rows):
            yield batch.slice(start, n_rows)


def _keys(column: pyarrow.Array) -> np.ndarray:
    """Return the keys that rows are held out by: integers as they are, all else as text."""
    labels = tables.to_labels(column)
    if labels.dtype.kind in "iu":
        return labels
    return np.array(["" if value is None else str(value) for value in labels.tolist()], "T")


def _split_columns(
    batches: Iterator[tuple[pyarrow.RecordBatch, int, np.ndarray | None]], plan: TablePlan
) -> Iterator[tuple[tables.RowArrays, np.ndarray]]:
    assert plan.learned is not None
    roles, targets = plan.roles, plan.roles.targets
    first: int | None = None
    for batch, start, chosen in batches:
        first = start if first is None else first
        # Labels keep their text; numbers become float64, as all targets are stored.
        y = None
        if plan.text and targets:
            y = tables.to_labels(batch.column(targets[0]))
        elif targets:
            y = np.column_stack([tables.to_numbers(batch.column(name)) for name in targets])
            y = y[:, 0] if isinstance(roles.target, str) else y
        weights = None if roles.weight is None else tables.to_numbers(batch.column(roles.weight))
        X = plan.learned.encode(batch, start).astype(plan.dtype, copy=False)
        named = (None if role is None else batch.column(role) for role in (roles.groups, roles.id))
        labels = (None if column is None else tables.to_labels(column) for column in named)
        times = None
        if plan.time is not None:
            if plan.time in batch.schema.names:
                times = order_values(batch.column(plan.time))
            else:  # a column of X
                times = X[:, plan.learned.recipe.names.index(plan.time)]
            # no NaN: rows without a value count as early ones, as `find_start` says
            times = np.nan_to_num(times, nan=-np.inf, neginf=-np.inf)
        parts: tables.RowArrays = (X, y, weights, *labels, times)
        rows = np.arange(start - first, start - first + batch.num_rows)
        if chosen is not None:
            parts, rows = tuple(None if part is None else part[chosen] for part in parts), rows[chosen]
        yield parts, rows


def check_rows(
    batches: Iterator[tuple[tables.RowArrays, np.ndarray]], file: Input, plan: TablePlan, journal: Journal
) -> Iterator[tables.RowArrays]:
    """Refuse or drop rows with missing or infinite values; enter what was read in the journal."""
    n_read, dropped = 0, 0
    digests = defaultdict[int, Any](hashlib.sha256)  # one for each array: batches may have any size
    for parts, rows in batches:
        good = np.ones(len(rows), bool)
        for i, part in enumerate(parts[:_CHECKED]):
            if part is None:
                continue
            # One check for X and vectors alike, as columns of one matrix.
            values = part if part.ndim == 2 else part[:, np.newaxis]
            is_number = part.dtype.kind in "biuf"
            # text is usable unless it is empty, or None
            usable = np.isfinite(values) if is_number else (values != "") & (values != None)  # noqa: E711
            good &= usable.all(axis=1)
            if plan.roles.on_nan == "error" and not usable.all():
                row, column = np.argwhere(~usable)[0].tolist()
                place = f"{file.name}: row {rows[row] + 1}, column {plan.name_column(i, column)}"
                advice = plan.advice if i == 0 else 'Fill it in, or drop such rows with `on_nan="drop"`'
                if advice == ADVICE and len(usable) > 1 and not usable[:, column].any():
                    advice = f"None of {len(usable):,} rows has one: leave the column out with `drop`"
                raise DataError(
                    f"{place} is missing or not finite (rows count from 1, without a header); expected a "
                    f"value. {advice}"
                )
        dropped += int(len(good) - good.sum())
        n_read += len(good)
        kept = parts if good.all() else tuple(None if part is None else part[good] for part in parts)
        # A query has no bytes that could be compared before it runs, so its rows are its digest.
        if file.is_query:  # files have their digest before they are read
            for i, part in enumerate(kept):
                if part is not None:
                    stored = part.astype("T") if part.dtype == object else part
                    digests[i].update(memory.canonical_bytes(stored))
        yield kept
    if dropped:
        _log.warning("%s: %d of %d rows dropped for missing or infinite values", file.name, dropped, n_read)
    source = file.source
    if file.is_query:
        words = [source.sha256, *(f"{i} {digest.hexdigest()}" for i, digest in digests.items())]
        combined = hashlib.sha256("|".join(words).encode()).hexdigest()
        source = row_sources.Source(source.name, combined, {"n_read": n_read})
    journal.entries.append(source.to_dict(n_read - dropped))
    journal.n_read += n_read
    journal.dropped += dropped
