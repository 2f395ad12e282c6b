"""The first rows of a table → which notation each of its columns of text has.

A column is one of numbers or dates if nearly all of its texts fit one notation; what
then does not fit, such as "n/a", counts as missing. Columns that could be read in two
ways are decided by the others, or refused if a date could be.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rff_dist.errors import DataError
from rff_dist.recipes.arrow import compute, pyarrow
from rff_dist.recipes.notations import FORMS, ORDERS, UNITS, Notation, read_dates
from rff_dist.recipes.reading import CsvOptions
from rff_dist.recipes.tables import (
    MISSING_TEXTS,
    RawTable,
    kind_of,
    listed,
    to_numbers,
    to_text,
)
from rff_dist.typing import FloatArray

_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
#: Texts that are surely dates, in forms that are not read.
_LOOKS_LIKE_DATE = (
    rf"(?i)^.{{0,20}}\b{_MONTH}\b.{{1,12}}\b(?:19|20)\d\d\b|^(?:19|20)\d\d\b.{{1,12}}\b{_MONTH}\b"
    r"|^(?:0?[1-9]|[12]\d|3[01])\.?\s\pL{3,10}\.?\s(?:19|20)\d\d\b"
    r"|^(?:19|20)\d\d[-/\s]?[QW]\d{1,2}$|^[QW]\d{1,2}[-/\s]?(?:19|20)\d\d$"
    r"|^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}[T\s]\s*\d{1,2}:\d\d"
)
_MOST_DATES = 0.5  # a column with so many dates is one of dates, and no category
_WORD = re.compile(r"\d\s+([^\d\s]{1,9})$")  # a unit such as m² or km/h
# -999 and the like
_SENTINELS = {-9.0, *(sign * (10.0**n - 1) for sign in (1, -1) for n in range(2, 7))}
_DASHES = ("-", "--", ".", "None", "none")  # missing in a column of numbers or dates
# shares of the texts, and different ones
_MOST_ODD = 0.05
_FEW_ODD = 0.01
_MOST_WORDS = 5


def find_notations(
    tables: Sequence[RawTable],
    columns: Sequence[str],
    reading: CsvOptions,
    *,
    numbers: Collection[str | None] = (),
) -> dict[str, Notation]:
    """Find the notations of columns, by the first table in which each holds text.

    Whole numbers such as 20240229 are days, except in columns of `numbers`. Raises
    DataError if a column of dates cannot be read.
    """
    first = tables[0]
    days = _days_in(first, [name for name in columns if name not in numbers])
    notations = dict.fromkeys(days, Notation("date"))
    for field in first.schema:
        if str(field.type) == "bool" and field.name in columns:
            notations[field.name] = Notation("boolean")

    decided: set[str] = set()
    for table in tables:
        wanted = set(columns) - decided
        undecided = [field for field in table.schema if field.name in wanted]
        texts = [f.name for f in undecided if kind_of(f.type) == "text"]
        plain = [
            f.name
            for f in undecided
            if kind_of(f.type) == "number" and f.name not in notations
        ]
        # later tables are read by the notation found here, even if they alone would
        # suggest another
        decided |= set(texts)
        notations |= _find_in(table, texts, plain, reading)
    missing = reading.missing or []
    return {
        name: replace(notation, missing=[*notation.missing, *missing])
        for name, notation in notations.items()
    }


def notation_notes(
    notations: Mapping[str, Notation], missing: Sequence[str] = ()
) -> list[str]:
    """Return notes on the notations in use, and on texts that count as missing.

    Those that the user said to mean missing are not noted.
    """
    columns: dict[str, list[str]] = {}
    notes = []
    for name, notation in notations.items():
        if notation.kind != "boolean":
            columns.setdefault(notation.words, []).append(name)
        absent = [text for text in notation.missing if text not in missing]
        if absent:
            notes.append(f"{listed(absent)} counts as missing in {name!r}")
    return [f"{words}: {listed(names)}" for words, names in columns.items()] + notes


def _find_in(
    table: RawTable, texts: Sequence[str], numbers: Sequence[str], reading: CsvOptions
) -> dict[str, Notation]:
    """Find notations in one table, of columns of text and of plain numbers."""
    notations: dict[str, Notation] = {}
    # the notations of numbers that fit each column, by their decimal points
    candidates: dict[str, dict[str, Notation]] = {}
    is_text = table.decimal is not None
    for name, column, counted in _first_texts(table, texts, reading.missing or ()):
        dates = _fitting_dates(table.name, name, column, counted, reading.date_order)
        if dates is not None:
            notations[name] = dates
        else:
            candidates[name] = _fitting_numbers(*counted, is_text=is_text)

    if is_text:
        type_of = {name: str(table.schema.field(name).type) for name in numbers}
        if any("," in fits for fits in candidates.values()):
            # Columns that were taken for numbers may have points between thousands.
            plain = [n for n, type_ in type_of.items() if type_ in ("int64", "double")]
            for name, _, counted in _first_texts(table, plain):
                candidates[name] = _fitting_numbers(*counted, is_text=True)
        integers = [name for name, type_ in type_of.items() if type_ == "int64"]
        for name, _, (values, _) in _first_texts(table, integers):
            if _are_codes(values):
                why = "whose zeros before digits numbers would lose"
                notations[name] = Notation("text", why=why)

    # 1.234 alone could be either; columns that can be read in one way only decide for
    # the others
    certain = {
        decimal for fits in candidates.values() if len(fits) == 1 for decimal in fits
    }
    decimal = "."
    if certain == {","} or (not certain and table.decimal == ","):
        decimal = ","
    for name, fits in candidates.items():
        notation = fits.get(decimal) or next(iter(fits.values()), None)
        if notation is not None and (name in texts or notation.decimal == ","):
            notations[name] = notation
    return notations


def _fitting_dates(
    table: str,
    name: str,
    column: pyarrow.Array,
    counted: tuple[Any, Any],
    wanted: str | None,
) -> Notation | None:
    """Return the notation of a column of dates, None if it holds no dates.

    `wanted` is the order of day and month that the user gave. Raises DataError if day
    and month cannot be told apart, or most texts are dates and others are not.
    """
    texts, counts = counted
    if plain := _fitting(Notation("date"), texts, counts, is_text=True):
        return plain
    fits = {
        order: _fitting(Notation("date", order=order), texts, counts, is_text=True)
        for order in ORDERS
    }
    fitting = {order: fit for order, fit in fits.items() if fit is not None}
    if wanted in fitting:
        return fitting[wanted]
    if wanted is not None and fitting:
        shown = ", ".join(map(repr, fitting))
        raise DataError(
            f"{table}: column {name!r} has dates such as {texts[0].as_py()[:50]!r};"
            f" expected {wanted} as given by `date_order`, but the order is {shown}."
            " Leave one of them out"
        )
    if {"dmy", "mdy"} <= fitting.keys():
        days, months = (read_dates(texts, order) for order in ("dmy", "mdy"))
        if days.equals(months):
            return fitting["dmy"]
        raise DataError(
            f"{table}: column {name!r} has dates such as {texts[0].as_py()[:50]!r},"
            " which could be day/month/year or month/day/year; expected dates of one"
            " meaning. Say which by `date_order`, dmy or mdy"
        )
    if fitting:  # two digits of a year come first only where nothing else fits
        return next(iter(fitting.values()))
    _refuse_other_dates(table, name, column, texts, counts)
    return None


def _refuse_other_dates(
    table: str,
    name: str,
    column: pyarrow.Array,
    texts: pyarrow.Array,
    counts: pyarrow.Array,
) -> None:
    """Refuse text of which most is dates: no later date would be one of its levels."""

    def n_rows(fits: pyarrow.Array) -> int:
        return compute.sum(counts.filter(fits)).as_py() or 0

    read = max(
        (compute.is_valid(read_dates(texts, order)) for order in FORMS), key=n_rows
    )
    is_date = compute.or_(read, compute.match_substring_regex(texts, _LOOKS_LIKE_DATE))
    if n_rows(is_date) >= _MOST_DATES * compute.sum(counts).as_py():
        odd = texts.filter(compute.invert(read))[0].as_py()
        row = compute.index(column, odd).as_py() + 1
        raise DataError(
            f"{table}: column {name!r} has dates in most rows, but {odd[:50]!r} in row"
            f" {row:_} is none that is read (rows count from 1, without a header);"
            " expected dates of one form, such as 2024-02-29. Correct it, say by"
            " `missing` that it means missing, or leave the column out with `drop`"
        )


def _days_in(table: RawTable, columns: Sequence[str]) -> list[str]:
    """Return the columns of numbers that are all days from 1900 to 2099."""
    days = []
    for name, numbers in _first_numbers(table, columns):
        values = np.unique(numbers)
        if len(values) < 2 or values[0] < 19000101 or values[-1] > 20991231:
            continue
        if not read_dates(
            pyarrow.array([f"{value:.10g}" for value in values])
        ).null_count:
            days.append(name)
    return days


def _first_numbers(
    table: RawTable, columns: Sequence[str]
) -> Iterator[tuple[str, FloatArray]]:
    """Yield the finite numbers in the first rows of columns of plain numbers."""
    kinds = {field.name: str(field.type) for field in table.schema}
    plain = [
        name for name in columns if kinds.get(name) in ("int32", "int64", "double")
    ]
    first = table.first_rows(dict.fromkeys(plain, pyarrow.float64())) if plain else None
    if first is None:
        return
    for name in plain:
        values = to_numbers(first.column(name))
        values = values[np.isfinite(values)]
        if len(values):
            yield name, values


def _are_codes(texts: pyarrow.Array) -> bool:
    """Return whether texts are codes such as 01067, whose first zeros count."""
    return bool(
        compute.any(compute.match_substring_regex(texts, r"^0\d+$")).as_py()
        and compute.all(compute.match_substring_regex(texts, r"^\d+$")).as_py()
    )


def suspicions(table: RawTable, columns: Sequence[str]) -> list[str]:
    """Return notes on numbers of a file of text that may stand for missing values."""
    if table.decimal is None:
        return []
    notes = []
    for name, values in _first_numbers(table, columns):
        ends = values.min(), values.max()
        # a sentinel lies at an end of the range, occurs more than once, and is at least
        # twice as large as the rest
        for end in (end for end in ends if end in _SENTINELS):
            others = values[values != end]
            is_far = len(others) and np.abs(others).max() < abs(end) / 2
            if is_far and len(values) - len(others) > 1:
                notes.append(
                    f"{name!r} is {end:g} in {len(values) - len(others)} of the first"
                    " rows, and far from the others: if it means missing, say so by"
                    " `missing`"
                )
    return notes


def _first_texts(
    table: RawTable, columns: Sequence[str], missing: Sequence[str] = ()
) -> Iterator[tuple[str, pyarrow.Array, tuple[Any, Any]]]:
    """Yield the first rows of columns, their different texts, and their counts."""
    first = (
        table.first_rows(dict.fromkeys(columns, pyarrow.string())) if columns else None
    )
    if first is None:
        return
    for name in columns:
        text = compute.utf8_trim_whitespace(to_text(first.column(name)))
        absent = compute.is_in(
            text, value_set=pyarrow.array([None, *MISSING_TEXTS, *missing])
        )
        counts = compute.value_counts(text.filter(compute.invert(absent)))
        if len(counts):
            yield name, text, (counts.field("values"), counts.field("counts"))


def _fitting_numbers(
    texts: pyarrow.Array, counts: pyarrow.Array, *, is_text: bool
) -> dict[str, Notation]:
    """Return the notations of numbers that fit, by their decimal points."""
    shown = texts[:1000].to_pylist()
    units = set(re.findall(f"[{UNITS}]", " ".join(shown)))
    words = {match[1] if (match := _WORD.search(text)) else "" for text in shown}
    # a word that only some have is no unit
    if not units and len(words) == 1 and "" not in words:
        units = words
    if len(units) > 1:  # "$5" and "€5" do not merge
        return {}
    numbers = [Notation("number", decimal, *units) for decimal in ".,"]
    fits = [_fitting(number, texts, counts, is_text=is_text) for number in numbers]
    return {fit.decimal: fit for fit in fits if fit is not None}


def _fitting(
    notation: Notation, texts: pyarrow.Array, counts: pyarrow.Array, *, is_text: bool
) -> Notation | None:
    """Return a notation if nearly all texts fit it; other words then count as missing.

    In a table with types (not `is_text`), texts of digits alone are codes, as are texts
    such as 01067 anywhere.
    """
    _, odd = notation.read(texts)
    dashes = compute.is_in(texts, value_set=pyarrow.array(_DASHES))
    absent = texts.filter(compute.and_(odd, dashes)).to_pylist()
    odd = compute.and_not(odd, dashes)
    others = texts.filter(odd).to_pylist()
    n_odd = compute.sum(counts.filter(odd)).as_py() or 0
    n_texts = compute.sum(counts.filter(compute.invert(dashes))).as_py() or 0
    is_code = False
    if notation.kind == "number":
        leading_zeros = compute.match_substring_regex(texts, r"^0\d+$")
        is_code = compute.any(leading_zeros).as_py()
    if not is_text:
        digits = compute.match_substring_regex(texts, r"^\d+$")
        is_code |= compute.all(digits).as_py()
    if not n_texts or n_odd > _MOST_ODD * n_texts or is_code:
        return None
    have_digits = any(re.search(r"\d", text) for text in others)
    if len(others) <= _MOST_WORDS and not have_digits:
        return replace(notation, missing=[*absent, *others])
    if n_odd <= _FEW_ODD * n_texts and len(texts) > 20:
        return replace(notation, missing=absent)
    return None
