"""A pass over the rows of a table → a recipe: levels of text, and medians.

It keeps the levels of each column of text, and a sample of rows for medians (all rows
up to 4,096; with more rows quantiles are off by a percent of the ranks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from rff_dist.data import blocks
from rff_dist.data.columns import MISSING
from rff_dist.errors import DataError
from rff_dist.recipes import encoders
from rff_dist.recipes.arrow import compute, pyarrow, types
from rff_dist.recipes.notations import read_dates
from rff_dist.recipes.options import Encoding
from rff_dist.recipes.recipes import Recipe
from rff_dist.recipes.tables import kind_of, listed, to_numbers
from rff_dist.statistics import inspection
from rff_dist.typing import FloatArray, IntArray

#: With up to so many levels, a text may be in one row only.
FEW_LEVELS = 20
#: Memory of the levels of all columns; beyond it the largest column is left out.
MAX_BYTES = 2**27
#: Memory of a level beyond its characters: a text of Python and its place in a set.
_LEVEL_BYTES = 120
#: Why columns that hold the same value in all rows are left out.
CONSTANT = ("it holds one level only", "it holds one value only")
#: Above this share of missing values a column marks them, if so many are there to learn
#: from.
_MARKED_SHARE = 0.01
_MARKED_ROWS = 10


def kinds_of(
    schema: pyarrow.Schema, columns: Sequence[str], encoding: Encoding
) -> dict[str, str | None]:
    """Return what columns hold: "text" if they are to be categories."""
    kinds = {}
    for name in columns:
        type_ = schema.field(name).type
        kinds[name] = kind_of(type_)
        if name in (encoding.categories or ()) or types.is_dictionary(type_):
            kinds[name] = "text"
    return kinds


def needs_pass(kinds: Mapping[str, str | None], encoding: Encoding) -> bool:
    """Return whether a recipe for these columns needs a pass over the rows."""
    dates = encoding.dates is None and "date" in kinds.values()
    return encoding.impute != "none" or "text" in kinds.values() or dates


def plain(kinds: Mapping[str, str | None], encoding: Encoding) -> Recipe:
    """Return the recipe of columns that need no pass, or one to read the others by."""
    columns: list[encoders.Encoder] = []
    for name, kind in kinds.items():
        if kind == "text":
            columns.append(encoders.Category(name, ()))
        elif kind == "date":
            columns.append(encoders.Date(name, tuple(encoding.dates or ())))
        else:
            columns.append(encoders.Number(name))
    return Recipe(columns)


def learn(
    kinds: Mapping[str, str | None],
    batches: Iterable[pyarrow.RecordBatch],
    encoding: Encoding,
) -> Recipe:
    """Learn the recipe of columns of some kinds in a pass over their rows.

    Categories that `encoding` names are kept, whatever their number of levels.

    Raises DataError if there is no row to learn from, or no column is left.
    """
    numbers = _Numbers(kinds, encoding)
    named = encoding.categories or ()
    texts = {
        name: _Levels(name in named) for name, kind in kinds.items() if kind == "text"
    }
    n_rows = 0
    for batch in batches:
        numbers.add(batch, n_rows)
        n_rows += batch.num_rows
        for name, levels in texts.items():
            levels.add(batch.column(name))
        while sum(levels.n_bytes for levels in texts.values()) > MAX_BYTES:
            max(texts.values(), key=lambda levels: levels.n_bytes).give_up()
    if not n_rows:
        raise DataError("no rows to learn from: expected some to begin with")

    learned: list[encoders.Encoder] = []
    left_out: dict[str, str] = {}
    for name, kind in kinds.items():
        if kind == "text":
            encoder = texts[name].encoder(name, n_rows)
        else:
            encoder = numbers.encoder(name, encoding.impute)
        if isinstance(encoder, str):
            left_out[name] = encoder
        else:
            learned.append(encoder)
    if not learned:
        raise DataError(
            "no column is left for X:"
            f" {listed([f'{name} ({why})' for name, why in left_out.items()])};"
            " expected some that vary"
        )
    return Recipe(learned, left_out)


# -- numbers and dates


class _Numbers:
    """Sums, extremes and a row sample of all number columns and parts of dates."""

    def __init__(self, kinds: Mapping[str, str | None], encoding: Encoding) -> None:
        automatic = ("elapsed-days", "day-of-year", "weekday", "hour")
        wanted = tuple(encoding.dates or automatic)
        parts = {
            name: wanted if kind == "date" else None
            for name, kind in kinds.items()
            if kind != "text"
        }
        *starts, n_parts = accumulate(
            (len(names or (name,)) for name, names in parts.items()), initial=0
        )
        #: of each date column; None for a number column
        self.parts = parts
        #: the place of each column's first part among all
        self.starts = dict(zip(parts, starts, strict=True))
        #: otherwise parts that do not vary are left out
        self.keeps_all_parts = encoding.dates is not None
        size = inspection.sample_size(max(1, n_parts))
        self.sample = inspection.RowSample.empty(size, n_parts)
        self.sums: FloatArray = np.zeros(n_parts)
        self.counts: IntArray = np.zeros(n_parts, np.int64)
        self.n_missing: IntArray = self.counts
        self.min: FloatArray = self.sums + np.inf
        self.max: FloatArray = self.sums - np.inf

    def add(self, batch: pyarrow.RecordBatch, start: int) -> None:
        numbers: list[FloatArray] = []
        for name, parts in self.parts.items():
            column = batch.column(name)
            numbers += (
                [to_numbers(column)]
                if parts is None
                else encoders.date_parts(column, parts)
            )
        if not numbers:
            return
        values = np.column_stack(numbers)
        there = np.isfinite(values)
        block = blocks.Block(0, start, start + len(values))
        columns = np.arange(values.shape[1])
        self.sample = self.sample + inspection.sample_columns(
            blocks.Rows(block, values), columns
        )
        self.sums = self.sums + np.where(there, values, 0.0).sum(axis=0)
        self.counts = self.counts + there.sum(axis=0)
        self.n_missing = self.n_missing + np.isnan(values).sum(axis=0)
        self.min = np.minimum(
            self.min, np.where(there, values, np.inf).min(axis=0, initial=np.inf)
        )
        self.max = np.maximum(
            self.max, np.where(there, values, -np.inf).max(axis=0, initial=-np.inf)
        )

    def encoder(self, name: str, impute: str) -> encoders.Encoder | str:
        """Return the encoder of a column, or why the column is left out."""
        at = self.starts[name]
        parts = self.parts[name]
        if parts is None and impute == "none":
            return encoders.Number(name)
        if not self.counts[at]:
            return "it holds no value"

        n_missing = int(self.n_missing[at])
        share = n_missing / (n_missing + self.counts[at])
        are_many = bool(share > _MARKED_SHARE and n_missing >= _MARKED_ROWS)
        is_marked = impute in ("median", "mean") and are_many
        if parts is None:
            return encoders.Number(name, self._fill(at, impute), n_missing, is_marked)

        places = range(at, at + len(parts))
        kept = [i for i in places if self.keeps_all_parts or self.min[i] < self.max[i]]
        if not kept:
            return CONSTANT[1]
        fill = None if impute == "none" else [self._fill(i, impute) for i in kept]
        kept_parts = tuple(parts[i - at] for i in kept)
        return encoders.Date(name, kept_parts, fill, is_marked, n_missing)

    def _fill(self, i: int, impute: str) -> float:
        sampled = self.sample.values[:, i]
        sampled = sampled[np.isfinite(sampled)]
        # the sample may miss a column's few values
        if impute == "mean" or not len(sampled):
            return float(self.sums[i] / self.counts[i])
        if impute in ("median", "median-only"):
            return float(np.median(sampled))
        values, counts = np.unique(sampled, return_counts=True)
        return float(values[np.argmax(counts)])


# -- text


class _Levels:
    """The levels of a category, which the user may have named as one."""

    def __init__(self, is_named: bool) -> None:
        self.is_named = is_named
        self.texts: set[str] = set()
        self.n_missing = 0
        self.n_bytes = 0
        #: how many there were when the column was given up
        self.n_given_up = 0

    def add(self, column: pyarrow.Array) -> None:
        if self.n_given_up:
            return
        texts = encoders.level_texts(column)
        self.n_missing += compute.sum(compute.equal(texts, MISSING)).as_py() or 0
        new = set(texts.unique().to_pylist()) - self.texts
        self.texts |= new
        self.n_bytes += sum(map(len, new)) + _LEVEL_BYTES * len(new)

    def give_up(self) -> None:
        """Free the memory, and remember how many levels there were."""
        self.n_given_up = len(self.texts)
        self.texts = set()
        self.n_bytes = 0

    def encoder(self, name: str, n_rows: int) -> encoders.Encoder | str:
        """Return the encoder of the column, or why the column is left out."""
        n_levels = len(self.texts)
        if self.n_given_up:
            limit = f"all levels may take {MAX_BYTES // 2**20} MiB of memory"
            return f"{limit}; it has {self.n_given_up:,} levels or more"
        if self.n_missing == n_rows:
            return "it holds no value"
        category = encoders.Category(name, sorted(self.texts), self.n_missing)
        if self.is_named:
            return category
        if n_levels == 1:
            return CONSTANT[0]
        if n_levels > max(FEW_LEVELS, n_rows // 2):
            why = f"its levels rarely come twice: {n_levels:,} in {n_rows:,} rows"
            examples = [text for text in category.levels if text != MISSING][:100]
            if not read_dates(pyarrow.array(examples, pyarrow.string())).null_count:
                why += "; they are dates: parse them first, as by `pandas.to_datetime`"
            return why
        return category
