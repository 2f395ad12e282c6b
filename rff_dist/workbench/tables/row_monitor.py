"""Rows that are appended → how they differ from the rows before: new levels, numbers
out of range, missing values.

A column that changes its meaning overnight raises no error: its numbers still fit. The
differences are counted while the rows are read, and reported with the result. What
later rows are compared with is kept as the dataset's attribute `SEEN_VALUES`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow

from rff_dist.data import array_checks
from rff_dist.data.columns import MISSING
from rff_dist.recipes.arrow import compute, types
from rff_dist.recipes.encoders import Category, Number, unknown_levels
from rff_dist.recipes.learn import CONSTANT
from rff_dist.recipes.recipes import Recipe
from rff_dist.recipes.tables import RawTable, kind_of
from rff_dist.recipes.transformer import Transformer
from rff_dist.text import clipped
from rff_dist.typing import Facts, Summary

#: name of a dataset's attribute: the ranges of its numbers, the values of constant
#: columns, and the names of the table's columns
SEEN_VALUES = "seen"
_MOST_FINDINGS = 20  # reported differences; the others are counted
_MOST_EXAMPLES = 5  # values shown for each of them
# the end of a date as text, which is left out
_MIDNIGHT = " 00:00:00.000000"
#: share of a column's range by which new numbers may lie outside of it unreported
_SLACK = 0.1


def constant_columns(recipe: Recipe) -> list[str]:
    """Return the columns that were left out because all their values were the same."""
    return [name for name, why in recipe.left_out.items() if why in CONSTANT]


class RowMonitor:
    """Looks at rows while they are read, and compares them with the rows before.

    `targets`: names of the targets that are numbers.
    `seen`: the attribute of the dataset. A new dataset has no attribute `SEEN_VALUES`:
    then only levels that a recipe does not know are reported.
    """

    def __init__(self, recipe: Recipe, targets: Sequence[str], seen: Facts) -> None:
        self.recipe = recipe
        self.targets = list(targets)
        self.constants: dict[str, str] = dict(seen.get("constants", {}))
        self.columns: list[str] = list(seen.get("columns", []))
        self._ranges_before: dict[str, list[float]] = dict(seen.get("ranges", {}))
        self.ranges = dict(self._ranges_before)
        self._findings: dict[tuple[str, str], Summary] = {}
        numbers = [
            encoder.column for encoder in recipe.columns if isinstance(encoder, Number)
        ]
        places = {name: i for i, name in enumerate(recipe.names)}
        self._place_in_X = {name: places[name] for name in numbers}

    def see_columns(self, names: Sequence[str]) -> None:
        """Report new columns of a table, unless it is the first table."""
        is_first = not self.columns
        for name in names:
            if name not in self.columns:
                self.columns.append(name)
                if not is_first:
                    self._report(name, "new column, left out", "")

    def see_query(self, n_rows: int) -> None:
        """Report a query whose whole result was added before, and differs now."""
        self._report(
            "the query",
            "added before, with other rows",
            "use `:n_ingested`, or ids",
            n_rows,
        )

    def look_at_table_rows(self, batch: pyarrow.RecordBatch) -> None:
        """Compare the levels, gaps and constants of a batch with those before."""
        for encoder in self.recipe.columns:
            # scikit-learn's transformers have no levels or fill to compare with
            if not isinstance(encoder, Transformer):
                self._look_at_gaps_and_levels(encoder, batch.column(encoder.column))
        for name in constant_columns(self.recipe):
            if name in batch.schema.names:
                self._look_at_constant(name, batch.column(name))

    def look_at_encoded_rows(
        self, X: np.ndarray, y: np.ndarray | None, table: RawTable
    ) -> None:
        """Compare numbers with the range of those before, and extend the range; warn
        once of integers that float64 rounds.
        """
        if not len(X):
            return
        columns = {name: X[:, i] for name, i in self._place_in_X.items()}
        if y is not None and y.dtype.kind == "f" and self.targets:
            columns |= dict(zip(self.targets, y.reshape(len(y), -1).T, strict=True))
        for name, values in columns.items():
            if name in self._ranges_before:
                self._look_at_range(name, values, *self._ranges_before[name])
            before = self.ranges.get(name, [])
            ends = [float(values.min()), float(values.max()), *before]
            self.ranges[name] = [min(ends), max(ends)]
            type_ = table.schema.field(name).type
            is_exact = types.is_integer(type_) or types.is_decimal(type_)
            # float64 holds all integers up to this
            if is_exact and _reach(before) < 2**53 <= _reach(ends):
                array_checks.warn_of_long_integers(table.name, name)

    def summary(self) -> Summary:
        """Return the attribute `SEEN_VALUES` after these rows."""
        return {
            "ranges": self.ranges,
            "constants": self.constants,
            "columns": self.columns,
        }

    def findings(self) -> list[Summary]:
        """Return at most 20 differences as JSON values, and how many more there are."""
        findings = list(self._findings.values())
        n_more = len(findings) - _MOST_FINDINGS
        if n_more > 0:
            rest = _finding("…", f"{n_more:,} more columns", "")
            findings[_MOST_FINDINGS:] = [rest]
        return findings

    def _look_at_range(
        self, name: str, values: np.ndarray, low: float, high: float
    ) -> None:
        slack = _SLACK * (high - low)
        outside = values[(values < low - slack) | (values > high + slack)]
        if len(outside):
            before = f"{low:.6g} to {high:.6g}" if low < high else f"always {low:.6g}"
            examples = np.unique(outside).tolist()[::-1]
            self._report(name, "out of range", before, len(outside), examples)

    def _look_at_gaps_and_levels(self, encoder: Any, column: pyarrow.Array) -> None:
        if isinstance(encoder, Category):
            # a missing text is the level MISSING, which is known if there was one
            unknown = unknown_levels(column, encoder.levels)
            is_missing = compute.equal(unknown, MISSING)
            n_missing = compute.sum(is_missing).as_py() or 0
            unknown = unknown.filter(compute.invert(is_missing))
            if len(unknown):
                self._report(
                    encoder.column,
                    "unseen level",
                    f"{len(encoder.levels):,} levels",
                    len(unknown),
                    unknown.unique().to_pylist(),
                )
        else:
            # If the rows before had missing values, new ones are no difference. Without
            # a fill such rows are refused or dropped.
            is_first_gap = encoder.fill is not None and not encoder.n_missing
            n_missing = column.null_count if is_first_gap else 0
        if n_missing:
            self._report(encoder.column, "missing", "never missing", n_missing)

    def _look_at_constant(self, name: str, column: pyarrow.Array) -> None:
        if kind_of(column.type) == "date":
            column = column.cast(pyarrow.timestamp("us"), safe=False)
        n_rows_of = {}
        texts = column.cast(pyarrow.string()).drop_null()
        for counted in texts.value_counts().to_pylist():
            text = clipped(counted["values"].removesuffix(_MIDNIGHT))
            n_rows_of[text] = counted["counts"]
        if not n_rows_of:
            return
        constant = self.constants.setdefault(name, next(iter(n_rows_of)))
        n_rows_of.pop(constant, None)
        if n_rows_of:
            self._report(
                name,
                "varies now, and is left out",
                f"always {constant}",
                sum(n_rows_of.values()),
                list(n_rows_of),
            )

    def _report(
        self,
        column: str,
        what: str,
        before: str,
        n_rows: int = 0,
        examples: Sequence[Any] = (),
    ) -> None:
        finding = self._findings.setdefault(
            (column, what), _finding(column, what, before)
        )
        finding["n_rows"] += n_rows
        known = dict.fromkeys(finding["examples"])
        for example in examples[:_MOST_EXAMPLES]:
            is_float = isinstance(example, float)
            known[clipped(f"{example:.6g}" if is_float else str(example))] = None
        finding["examples"] = list(known)[:_MOST_EXAMPLES]


def _reach(ends: Sequence[float]) -> float:
    return max(map(abs, ends), default=0.0)


def _finding(column: str, what: str, before: str) -> Summary:
    return {
        "column": column,
        "what": what,
        "n_rows": 0,
        "examples": [],
        "before": before,
    }
