"""Encoders: how one column of a table becomes columns of X.

Each is a few JSON values, learned from the rows of a dataset. It encodes later rows in
the same way, and decides what becomes of unknown levels and missing values. A level is
a different text of a column, and its code is its place in the column's list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from rff_dist.data.columns import MISSING
from rff_dist.recipes.arrow import compute, pyarrow
from rff_dist.recipes.tables import to_numbers, to_text
from rff_dist.recipes.transformer import Transformer
from rff_dist.text import clipped
from rff_dist.typing import FloatArray, frozen

# Replaces an erased text. No level equals it: levels are in NFC, which has no U+2000.
# With the place, all texts of a list differ.
_FORGOTTEN = "(forgotten\u2000{place})"
_SHOWN_LEVELS = 6
# whole numbers with decimals: 5.0 becomes 5, as another file may write the same value
_WHOLE = r"^(-?(?:0|[1-9][0-9]*))\.0+$"
DATE_PARTS = ("elapsed-days", "year", "month", "day-of-year", "weekday", "hour")


@frozen
class ColumnEncoder:
    """What the encoders of one column share."""

    #: name of the class in JSON
    kind: ClassVar[str]
    #: what the column must hold: "number", "text" or "date"
    holds: ClassVar[str]

    column: str

    @property
    def reads(self) -> Mapping[str, str | None]:
        """The columns that are read, and what each must hold."""
        return {self.column: self.holds}


@frozen
class Number(ColumnEncoder):
    """A column of numbers, booleans, times of day (in hours) or durations (days)."""

    kind: ClassVar[str] = "number"
    holds: ClassVar[str] = "number"

    #: what missing values become; None leaves them missing
    fill: float | None = None
    #: missing values in the rows that this was learned from
    n_missing: int = 0
    #: whether a further column of 0 and 1 marks the missing values
    indicator: bool = False

    @property
    def names(self) -> list[str]:
        return [self.column, *_indicator_names(self)]

    @property
    def is_unchanged(self) -> bool:
        """Whether no value was filled in the rows that this was learned from."""
        return self.fill is None or not self.n_missing

    @property
    def words(self) -> str:
        """How the column is encoded, for people."""
        if self.is_unchanged:
            return "as it is"
        marked = ", marked in a separate column" if self.indicator else ""
        return f"{self.n_missing:,} missing values become {self.fill:.6g}{marked}"

    def encode(self, column: pyarrow.Array) -> FloatArray:
        """Return the numbers, of shape (n_rows, n_names)."""
        return _filled([to_numbers(column)], [self.fill], self.indicator)


@frozen
class Date(ColumnEncoder):
    """A column of dates or times, as numbers in UTC."""

    kind: ClassVar[str] = "date"
    holds: ClassVar[str] = "date"

    #: some of `DATE_PARTS`; "elapsed-days" are days since 1970 with a fraction,
    #: weekdays count from 0 on Mondays, hours have a fraction
    parts: Sequence[str]
    #: what each part of a missing date becomes; None leaves it missing
    fill: Sequence[float] | None = None
    #: whether a further column of 0 and 1 marks the missing dates
    indicator: bool = False
    #: missing dates in the rows that this was learned from
    n_missing: int = 0

    @property
    def names(self) -> list[str]:
        names = [f"{self.column}: {part}" for part in self.parts]
        return [*names, *_indicator_names(self)]

    @property
    def words(self) -> str:
        """How the column is encoded, for people."""
        marks = ["a column that marks missing dates"] if self.indicator else []
        shown = ", ".join([*self.parts, *marks]) + _missing_words(self.n_missing)
        if self.n_missing and self.fill is not None:
            shown += ", filled: differences from other dates then mean nothing"
        return shown

    def encode(self, column: pyarrow.Array) -> FloatArray:
        """Return the parts, of shape (n_rows, n_names)."""
        fill: Sequence[float | None] = self.fill or [None] * len(self.parts)
        return _filled(date_parts(column, self.parts), fill, self.indicator)


@frozen
class Category(ColumnEncoder):
    """A column of text as codes, the places of its levels, for kernels of
    categories.
    """

    kind: ClassVar[str] = "category"
    holds: ClassVar[str] = "text"

    #: as `level_texts` writes them; levels of later rows join at the end
    levels: Sequence[str]
    #: missing texts in the rows that this was learned from
    n_missing: int = 0

    @property
    def names(self) -> list[str]:
        return [self.column]

    @property
    def words(self) -> str:
        """How the column is encoded, for people."""
        names = [clipped(level) for level in self.levels[:_SHOWN_LEVELS]]
        if len(self.levels) > _SHOWN_LEVELS:
            names.append("…")
        levels = "level" if len(self.levels) == 1 else "levels"
        shown = f"category, {len(self.levels):,} {levels}: {', '.join(names)}"
        return shown + _missing_words(self.n_missing)

    def without(self, places: Iterable[int]) -> Category:
        """Return the encoder without the texts of some levels; their places stay."""
        levels = list(self.levels)
        for place in places:
            levels[place] = _FORGOTTEN.format(place=place)
        return replace(self, levels=levels)

    def encode(self, column: pyarrow.Array) -> FloatArray:
        """Return codes, of shape (n_rows, 1); the code of an unknown text is the number
        of levels.
        """
        levels = _as_array(tuple(self.levels))
        places = compute.index_in(level_texts(column), value_set=levels)
        return to_numbers(places.fill_null(len(self.levels)))[:, np.newaxis]


type Encoder = Number | Date | Category | Transformer
ENCODERS: dict[str, type[Encoder]] = {
    encoder.kind: encoder for encoder in (Number, Date, Category, Transformer)
}


def level_texts(column: pyarrow.Array) -> pyarrow.Array:
    """Return each value as the text of its level, the same from any file or frame.

    Whole numbers have no decimals, and accents are composed (Unicode NFC). Missing
    values are `MISSING`.
    """
    # each different text is rewritten once
    encoded = to_text(column).dictionary_encode()
    levels = compute.utf8_normalize(encoded.dictionary, form="NFC")
    levels = compute.replace_substring_regex(levels, _WHOLE, r"\1")
    return levels.take(encoded.indices).fill_null(MISSING)


def date_parts(column: pyarrow.Array, parts: Sequence[str]) -> list[FloatArray]:
    """Return parts of dates as numbers, with NaN for missing dates."""
    moments = column.cast(pyarrow.timestamp("us"), safe=False)
    microseconds = to_numbers(moments.cast("int64"))
    # a day has 8.64e10 microseconds, an hour 3.6e9
    readers: dict[str, Callable[[], FloatArray]] = {
        "year": lambda: to_numbers(compute.year(moments)),
        "month": lambda: to_numbers(compute.month(moments)),
        "day-of-year": lambda: to_numbers(compute.day_of_year(moments)),
        "weekday": lambda: to_numbers(compute.day_of_week(moments)),
        # NumPy's % is never negative here, so that times before 1970 have hours too
        "hour": lambda: microseconds % 8.64e10 / 3.6e9,
        "elapsed-days": lambda: microseconds / 8.64e10,
    }
    return [readers[part]() for part in parts]


def unknown_levels(column: pyarrow.Array, levels: Sequence[str]) -> pyarrow.Array:
    """Return the texts of a column that are no level, with repeats."""
    texts = level_texts(column)
    is_known = compute.is_in(texts, value_set=_as_array(tuple(levels)))
    return texts.filter(compute.invert(is_known))


@lru_cache(maxsize=16)  # every batch of rows asks for it: 40 ms for 100,000 levels
def _as_array(levels: tuple[str, ...]) -> pyarrow.Array:
    return pyarrow.array(levels, pyarrow.string())


def _filled(
    parts: Sequence[FloatArray], fill: Sequence[float | None], indicator: bool
) -> FloatArray:
    """Return columns with missing values filled in. With `indicator` a further column
    marks where the first part was missing.
    """
    columns = []
    for values, replacement in zip(parts, fill, strict=True):
        if replacement is not None:
            values = np.where(np.isnan(values), replacement, values)
        columns.append(values)
    if indicator:
        columns.append(np.isnan(parts[0]).astype(float))
    return columns[0][:, np.newaxis] if len(columns) == 1 else np.column_stack(columns)


def _indicator_names(encoder: Number | Date) -> list[str]:
    return [f"{encoder.column}: missing"] if encoder.indicator else []


def _missing_words(n_missing: int) -> str:
    return f"; {n_missing:,} missing" if n_missing else ""
