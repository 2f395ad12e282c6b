"""A pass over the rows of a table → a recipe: levels of text, and medians.

In go batches of columns and an `Encoding`, the user's options; out comes the `Recipe`
by which columns become X. While rows are read, it keeps the levels of each column of
text, and a sample of up to 4,096 rows for medians. If there are more rows, a median is
off by a percent of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
from rff_dist.statistics import row_samples
from rff_dist.typing import FloatArray, IntArray

#: A column of text with more levels is left out if it has more levels than half of its
#: rows, unless the user named it a category.
FEW_LEVELS = 20
#: Memory for the levels of all columns; beyond it the largest column is left out, also
#: if the user named it.
MAX_BYTES = 2**27
#: If at most so many texts of a column are no numbers, a hint says how to parse them.
_MOST_OTHERS = 3
#: Memory of a level beyond its characters: a text of Python and its place in a set.
_LEVEL_BYTES = 120
_ONE_LEVEL = "it holds one level only"
_ONE_DATE = "it holds one value only"
#: Why columns of text or dates that hold one value are left out. Columns of numbers
#: with one value stay, and so do categories that the user named.
CONSTANT = (_ONE_LEVEL, _ONE_DATE)
#: Parts of dates that become columns if they vary and the user names none.
_VARYING_PARTS = ("elapsed-days", "day-of-year", "weekday", "hour")
#: Missing values are marked in a further column if they are more than this share, and
#: at least so many rows that a model can learn from the mark.
_MARKED_SHARE = 0.01
_MARKED_ROWS = 10


def kinds_of(
    schema: pyarrow.Schema, columns: Sequence[str], encoding: Encoding
) -> dict[str, str | None]:
    """Return the kind of each column, see `kind_of`; "text" if it becomes a
    category.
    """
    kinds = {}
    for name in columns:
        type_ = schema.field(name).type
        kinds[name] = kind_of(type_)
        if name in (encoding.categories or ()) or types.is_dictionary(type_):
            kinds[name] = "text"
    return kinds


def needs_pass(kinds: Mapping[str, str | None], encoding: Encoding) -> bool:
    """Return whether a recipe for these columns needs a pass over the rows."""
    # which parts of a date vary must be learned, unless the user names parts
    must_choose_parts = encoding.dates is None and "date" in kinds.values()
    must_fill = encoding.impute != "none"
    return must_fill or "text" in kinds.values() or must_choose_parts


def plain(kinds: Mapping[str, str | None], encoding: Encoding) -> Recipe:
    """Return a recipe that is not learned. It is final if the columns need no pass;
    otherwise it only says how the columns are read.
    """
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
    """Learn a recipe in a pass over the rows.

    `kinds`: the kind of each column, as from `kinds_of`. Categories that `encoding`
    names are kept, whatever their number of levels, as long as these fit into
    `MAX_BYTES`.

    Raises DataError if there is no row to learn from, or no column is left.
    """
    numbers = _Numbers(kinds, encoding)
    named_categories = encoding.categories or ()
    texts = {
        name: _Levels(name in named_categories)
        for name, kind in kinds.items()
        if kind == "text"
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
        raise DataError(
            "the table has no rows; expected some to learn its columns from"
        )

    encoders_of_X: list[encoders.Encoder] = []
    left_out: dict[str, str] = {}
    for name, kind in kinds.items():
        if kind == "text":
            encoder = texts[name].encoder(name, n_rows)
        else:
            encoder = numbers.encoder(name)
        if isinstance(encoder, str):
            left_out[name] = encoder
        else:
            encoders_of_X.append(encoder)
    if not encoders_of_X:
        raise DataError(
            "no column is left for X:"
            f" {listed([f'{name} ({why})' for name, why in left_out.items()])};"
            " expected some that vary"
        )
    return Recipe(encoders_of_X, left_out)


# -- numbers and dates


class _Numbers:
    """Sums, extremes and a row sample of columns of numbers, and of parts of dates."""

    def __init__(self, kinds: Mapping[str, str | None], encoding: Encoding) -> None:
        self.impute = encoding.impute
        self.parts = tuple(encoding.dates or _VARYING_PARTS)
        #: otherwise parts that do not vary are left out
        self.keeps_all_parts = encoding.dates is not None
        #: the place of each column of numbers, and of the first part of each date
        self.numbers: dict[str, int] = {}
        self.dates: dict[str, int] = {}
        n_columns = 0
        for name, kind in kinds.items():
            if kind == "date":
                self.dates[name] = n_columns
                n_columns += len(self.parts)
            elif kind != "text":
                self.numbers[name] = n_columns
                n_columns += 1
        size = row_samples.sample_size(max(1, n_columns))
        self.sample = row_samples.RowSample.empty(size, n_columns)
        self.sums: FloatArray = np.zeros(n_columns)
        self.counts: IntArray = np.zeros(n_columns, np.int64)
        self.n_missing: IntArray = np.zeros(n_columns, np.int64)
        self.min: FloatArray = np.full(n_columns, np.inf)
        self.max: FloatArray = np.full(n_columns, -np.inf)

    def add(self, batch: pyarrow.RecordBatch, first_row: int) -> None:
        if not len(self.sums):
            return
        values = np.empty((batch.num_rows, len(self.sums)))
        for name, i in self.numbers.items():
            values[:, i] = to_numbers(batch.column(name))
        for name, first in self.dates.items():
            parts = encoders.date_parts(batch.column(name), self.parts)
            values[:, first : first + len(parts)] = np.column_stack(parts)
        rows = blocks.Rows(blocks.Block(0, first_row, first_row + len(values)), values)
        all_columns = np.arange(values.shape[1])
        self.sample = self.sample + row_samples.sample_block(rows, all_columns)
        is_finite = np.isfinite(values)
        self.sums = self.sums + np.where(is_finite, values, 0.0).sum(axis=0)
        self.counts = self.counts + is_finite.sum(axis=0)
        self.n_missing = self.n_missing + np.isnan(values).sum(axis=0)
        lowest = values.min(axis=0, initial=np.inf, where=is_finite)
        highest = values.max(axis=0, initial=-np.inf, where=is_finite)
        self.min = np.minimum(self.min, lowest)
        self.max = np.maximum(self.max, highest)

    def encoder(self, name: str) -> encoders.Encoder | str:
        """Return the encoder of a column, or why the column is left out."""
        if name in self.dates:
            return self._date(name, self.dates[name])

        i = self.numbers[name]
        if self.impute == "none":
            return encoders.Number(name)
        if not self.counts[i]:
            return "it holds no value"
        n_missing = int(self.n_missing[i])
        return encoders.Number(
            name, self._fill(i), n_missing=n_missing, indicator=self._is_marked(i)
        )

    def _date(self, name: str, first: int) -> encoders.Encoder | str:
        if not self.counts[first]:
            return "it holds no value"
        places: Sequence[int] = range(first, first + len(self.parts))
        if not self.keeps_all_parts:
            places = [i for i in places if self.min[i] < self.max[i]]
        if not places:
            return _ONE_DATE
        fill = None
        if self.impute != "none":
            fill = [self._fill(i) for i in places]
        parts = tuple(self.parts[i - first] for i in places)
        n_missing = int(self.n_missing[first])
        return encoders.Date(
            name, parts, fill, n_missing=n_missing, indicator=self._is_marked(first)
        )

    def _is_marked(self, i: int) -> bool:
        """Return whether a further column marks the missing values of a column."""
        n_missing = int(self.n_missing[i])
        share = n_missing / (n_missing + self.counts[i])
        are_many = bool(share > _MARKED_SHARE and n_missing >= _MARKED_ROWS)
        return self.impute in ("median", "mean") and are_many

    def _fill(self, i: int) -> float:
        """Return what replaces the missing values of a column that has some values."""
        sampled = self.sample.values[:, i]
        sampled = sampled[np.isfinite(sampled)]
        # if a column has few values, the sample may have none of them
        if self.impute == "mean" or not len(sampled):
            return float(self.sums[i] / self.counts[i])
        if self.impute in ("median", "median-only"):
            return float(np.median(sampled))
        # "most-frequent"
        values, counts = np.unique(sampled, return_counts=True)
        return float(values[np.argmax(counts)])


# -- text


class _Levels:
    """The levels of a category; `is_named` if the user named the column a category."""

    def __init__(self, is_named: bool) -> None:
        self.is_named = is_named
        self.texts: set[str] = set()
        self.n_missing = 0
        self.n_bytes = 0
        #: how many levels there were when the column was given up, if it was
        self.n_given_up: int | None = None

    def add(self, column: pyarrow.Array) -> None:
        if self.n_given_up is not None:
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
        if self.n_given_up is not None:
            limit = f"all levels may take {MAX_BYTES // 2**20} MiB of memory"
            return f"{limit}; it has {self.n_given_up:,} levels or more"
        if self.n_missing == n_rows:
            return "it holds no value"
        category = encoders.Category(name, sorted(self.texts), self.n_missing)
        if self.is_named:
            return category
        if n_levels == 1:
            return _ONE_LEVEL
        if n_levels > max(FEW_LEVELS, n_rows // 2):
            why = f"its levels rarely come twice: {n_levels:,} in {n_rows:,} rows"
            examples = [text for text in category.levels if text != MISSING][:100]
            if not read_dates(pyarrow.array(examples, pyarrow.string())).null_count:
                why += "; they are dates: parse them first, as by `pandas.to_datetime`"
            if (others := _texts_that_are_no_numbers(category.levels)) is not None:
                but = f" but for {listed(others)}" if others else ""
                numbers = f'pd.to_numeric(df[{name!r}], errors="coerce")'
                why += f"; its texts are numbers{but}: `df[{name!r}] = {numbers}`"
                if others:
                    why += " makes these missing values; or write them as numbers first"
            return why
        return category


def _texts_that_are_no_numbers(texts: Iterable[str]) -> list[str] | None:
    """Return the few texts that are no numbers; None if there are more of them."""
    others = []
    for text in texts:
        try:
            float(text)
        except ValueError:
            if text != MISSING:
                others.append(text)
        if len(others) > _MOST_OTHERS:
            return None
    return others
