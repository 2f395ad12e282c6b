"""Which rows of a table are held out for a test: the latest ones, or a share by a hash.

In go batches of columns, out come booleans: whether each row is held out. A random
choice would pick other rows when the table grows, tear groups apart, and test models of
the future on the past.
"""

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow

from rff_dist.data import folding
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.recipes.encoders import Date
from rff_dist.recipes.recipes import recipe_of
from rff_dist.recipes.tables import (
    Types,
    kind_of,
    listed,
    read_type,
    to_labels,
    to_numbers,
)
from rff_dist.typing import BoolArray, Facts, FloatArray, frozen
from rff_dist.workbench.tables.inputs import Input
from rff_dist.workbench.tables.roles import ColumnPlan, check_column

_log = logging.getLogger(__name__)


@frozen
class Holdout:
    """A share of the rows to hold out: the latest ones, or a choice by hashes."""

    #: share of the rows, rounded to a thousandth
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

    def holds(self, keys: np.ndarray) -> BoolArray:
        """Return which rows are held out, from a key of each, by which they stay
        together.
        """
        # 1,000 folds by a hash of the key: whether a row is held out does not depend on
        # the other rows.
        folds = folding.GroupFolds(1000, seed=self.seed).assign(
            0, len(keys), n_samples=len(keys), groups=keys
        )
        return folds < round(1000 * self.share)

    def first_test_value(self, values: np.ndarray) -> float:
        """Return the smallest held-out value, given the values of all rows.

        Raises DataError if all are the same.
        """
        distinct, counts = np.unique(values, return_counts=True)
        if len(distinct) < 2:
            raise DataError(
                f"{self.by!r} has {len(distinct)} distinct values in {len(values):,}"
                " rows, so no row is later than another; expected two or more. Hold"
                " out rows by another column"
            )
        # Rows of one value stay together, so the number of held-out rows comes as close
        # to the share as the values allow. The first value is no candidate: it would
        # leave no row to train on.
        n_later = counts[::-1].cumsum()[::-1][1:]
        closest = np.abs(n_later - self.share * len(values)).argmin()
        return float(distinct[1 + closest])


@frozen
class RowSelection:
    """Which rows are read: the held-out ones, or all others."""

    holdout: Holdout
    is_held_out: bool

    def select(
        self, batch: pyarrow.RecordBatch, first_row: int, plan: ColumnPlan
    ) -> BoolArray:
        """Return which rows of a batch are read.

        `first_row`: the number of the batch's first row in the table.
        """
        key = plan.roles.groups or plan.roles.id
        if self.holdout.by is not None:
            # NaN compares as false, so rows without a value are trained on, as in
            # `find_first_test_value`.
            values = order_values(batch.column(self.holdout.by))
            is_held_out = values >= plan.first_test_value
        elif key is None:
            numbers = np.arange(first_row, first_row + batch.num_rows)
            is_held_out = self.holdout.holds(numbers)
        else:
            column = batch.column(key)
            # A text and an integer have different hashes, so a batch with a missing
            # label must keep its integers. The row of this label is not used.
            if pyarrow.types.is_integer(column.type):
                column = column.fill_null(0)
            labels = to_labels(column)
            if labels.dtype.kind not in "iu":
                labels = np.array(list(map(str, labels.tolist())), "T")
            is_held_out = self.holdout.holds(labels)
        return np.equal(is_held_out, self.is_held_out)


def warn_of_chance(
    attributes: Facts, holdout: Holdout, *, has_groups: bool, is_encoded: bool = False
) -> None:
    """Warn if test rows are chosen at random although the dataset has dates.

    `is_encoded`: whether rows of X are split, so that the warning names columns of X,
    not of the table.
    """
    recipe = recipe_of(attributes)
    encoders = () if recipe is None else recipe.columns
    dates = [part for part in encoders if isinstance(part, Date)]
    if dates and holdout.by is None and not has_groups:
        _log.warning(
            "the test rows are chosen at random, although the table has dates"
            " (%s); to test how later rows are predicted, hold out the latest ones:"
            " give the column as `holdout_by`",
            listed([part.names[0] if is_encoded else part.column for part in dates]),
        )


# -- the order of rows in time


def order_values(column: pyarrow.Array) -> FloatArray:
    """Return numbers that order rows: dates as microseconds since 1970; NaN if
    missing.
    """
    if kind_of(column.type) == "date":
        column = column.cast(read_type(column.type, "date"), safe=False).cast("int64")
    return to_numbers(column)


def order_type(table: str, schema: pyarrow.Schema, by: str) -> Types:
    """Return the type to read the column `by` with, whose values order rows in time.

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


def find_first_test_value(
    opened: Sequence[Input], types: Types, holdout: Holdout
) -> float:
    """Return the smallest held-out value of the column `holdout.by`.

    Reads this column of all rows, 8 bytes per row. Rows without a value are trained on,
    with a warning, and do not count for the share. Raises DataError as
    `Holdout.first_test_value`.
    """
    by = holdout.by
    assert by is not None
    parts = [np.empty(0)]
    for source in opened:
        for batch in source.table.batches(types):
            parts.append(order_values(batch.column(by)))
    values = np.concatenate(parts)
    # nothing shows that rows without a value are late enough for a test
    missing = np.isnan(values)
    if missing.any():
        n_missing = missing.sum()
        _log.warning("%d rows have no value in %r and are trained on", n_missing, by)
    return holdout.first_test_value(values[~missing])
