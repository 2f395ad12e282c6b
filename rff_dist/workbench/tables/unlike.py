"""How rows that are appended differ from those before, so that no night changes a dataset in silence."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow

from rff_dist.recipes import recipes, tables
from rff_dist.recipes.transformer import Transformer
from rff_dist.text import clipped
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.tables import learn

SEEN = "seen"  # the attribute of a dataset: ranges of numbers, values of constant columns, names of columns
_MOST_FINDINGS, _MOST_EXAMPLES = 20, 5
_MIDNIGHT = " 00:00:00.000000"
_SLACK = 0.1  # share of a column's range by which new numbers may be outside of it without a word


class Watch:
    """Looks at rows while they are read, and compares them with the rows before.

    `recipe`: of the dataset's inputs.
    `targets`: names of targets that are numbers.
    `seen`: the dataset's attribute `SEEN`; empty for a new dataset, with which only unknown levels of a given
      recipe can be found.
    """

    def __init__(self, recipe: recipes.Recipe, targets: Sequence[str], seen: Facts) -> None:
        self.recipe, self.targets = recipe, list(targets)
        self._known: Mapping[str, Sequence[float]] = seen.get("ranges", {})
        self.ranges = {name: list(ends) for name, ends in self._known.items()}
        self.constants: dict[str, str] = dict(seen.get("constants", {}))
        self.columns: list[str] = list(seen.get("columns", []))
        self._findings: dict[tuple[str, str], Summary] = {}
        names = recipe.names
        self._numbers = [part.column for part in recipe.columns if isinstance(part, recipes.Number)]
        self._places = [names.index(name) for name in self._numbers]

    @property
    def constant_columns(self) -> list[str]:
        """The columns that were left out because all their values were the same."""
        return [name for name, why in self.recipe.left_out.items() if why in learn.CONSTANT]

    def see_columns(self, names: Sequence[str]) -> None:
        """Take note of the columns of a table; new ones are findings, unless it is the first table."""
        new = [name for name in names if name not in self.columns]
        if self.columns:
            for name in new:
                self._find(name, "new column, left out", "")
        self.columns += new

    def see_query(self, n_rows: int) -> None:
        """Take note of a query whose whole result was added before, and differs now."""
        self._find("the query", "added before, with other rows", "use `:n_ingested`, or ids", n_rows)

    def look(
        self, batches: Iterator[tuple[pyarrow.RecordBatch, int, np.ndarray | None]]
    ) -> Iterator[tuple[pyarrow.RecordBatch, int, np.ndarray | None]]:
        """Yield batches of a table as they are, after a look at texts, gaps and constant columns."""
        for batch, start, chosen in batches:
            for part in self.recipe.columns:
                if isinstance(part, recipes.OneHot | recipes.TargetMeans):
                    self._look_at_levels(part, batch.column(part.column))
                if not isinstance(part, Transformer) and part.fill is not None and not part.n_missing:
                    n_missing = batch.column(part.column).null_count
                    if n_missing:
                        self._find(part.column, "missing", "never missing", n_missing)
            for name in self.constant_columns:
                if name in batch.schema.names:
                    self._look_at_constant(name, batch.column(name))
            yield batch, start, chosen

    def add(self, X: np.ndarray, y: np.ndarray | None) -> None:
        """Compare the numbers of rows that are taken with the range of those before, and extend the range."""
        if not len(X):
            return
        columns = dict(zip(self._numbers, X[:, self._places].T, strict=True))
        if y is not None and y.dtype.kind == "f" and self.targets:
            columns |= dict(zip(self.targets, y.reshape(len(y), -1).T, strict=True))
        for name, values in columns.items():
            ends = [float(values.min()), float(values.max())]
            if name in self._known:
                low, high = self._known[name]
                slack = _SLACK * (high - low)
                outside = values[(values < low - slack) | (values > high + slack)]
                if len(outside):
                    before = f"{low:.6g} to {high:.6g}" if low < high else f"always {low:.6g}"
                    self._find(name, "out of range", before, len(outside), np.unique(outside).tolist()[::-1])
            ends += self.ranges.get(name, [])
            self.ranges[name] = [min(ends), max(ends)]

    def facts(self) -> Summary:
        """Return the attribute `SEEN` after these rows."""
        return {"ranges": self.ranges, "constants": self.constants, "columns": self.columns}

    def findings(self) -> list[Summary]:
        """Return what is unlike the rows before, as JSON values; at most 20 findings."""
        found = list(self._findings.values())
        more = len(found) - _MOST_FINDINGS
        if more > 0:
            found = [*found[:_MOST_FINDINGS], _finding("…", f"{more:,} more columns", "")]
        return found

    def _look_at_levels(self, part: recipes.OneHot | recipes.TargetMeans, column: pyarrow.Array) -> None:
        if isinstance(part, recipes.OneHot) and part.rest:  # it has a column for all other levels
            return
        unknown = recipes.unknown_levels(column, part.levels)
        if len(unknown):
            before = f"{len(part.levels):,} levels"
            self._find(part.column, "unseen level", before, len(unknown), unknown.unique().to_pylist())

    def _look_at_constant(self, name: str, column: pyarrow.Array) -> None:
        if tables.kind_of(column.type) == "date":
            column = column.cast(pyarrow.timestamp("us"), safe=False)
        counts = column.cast(pyarrow.string()).drop_null().value_counts().to_pylist()
        shown = {clipped(one["values"].removesuffix(_MIDNIGHT)): one["counts"] for one in counts}
        if not shown:
            return
        constant = self.constants.setdefault(name, next(iter(shown)))
        n_rows = sum(shown.values()) - shown.pop(constant, 0)
        if shown:
            self._find(name, "varies now, and is left out", f"always {constant}", n_rows, list(shown))

    def _find(
        self, column: str, what: str, before: str, n_rows: int = 0, examples: Sequence[Any] = ()
    ) -> None:
        finding = self._findings.setdefault((column, what), _finding(column, what, before))
        finding["n_rows"] += n_rows
        texts = [f"{one:.6g}" if isinstance(one, float) else str(one) for one in examples[:_MOST_EXAMPLES]]
        shown = dict.fromkeys([*finding["examples"], *map(clipped, texts)])
        finding["examples"] = list(shown)[:_MOST_EXAMPLES]


def _finding(column: str, what: str, before: str) -> Summary:
    return {"column": column, "what": what, "n_rows": 0, "examples": [], "before": before}
