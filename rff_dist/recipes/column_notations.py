"""The first rows of tables → which notation each of their columns has.

A notation says how texts write numbers or dates. A column holds numbers or dates if
nearly all of its texts fit one notation; words that do not fit, such as "n/a?", then
count as missing, with a warning. A simple version would decide each column alone. Here,
if the numbers of a column could be read in two ways, the other columns decide; dates
that could be read in two ways are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rff_dist.data import array_checks
from rff_dist.errors import DataError, warn
from rff_dist.recipes.arrow import compute, pyarrow
from rff_dist.recipes.notations import (
    FORMS,
    ORDERS,
    UNITS,
    Notation,
    number_pattern,
    read_dates,
)
from rff_dist.recipes.reading import CsvOptions
from rff_dist.recipes.tables import (
    MISSING_TEXTS,
    RawTable,
    kind_of,
    listed,
    to_numbers,
    to_text,
)
from rff_dist.typing import FloatArray, frozen

_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
#: Texts that are surely dates, but in forms that are not supported.
_LOOKS_LIKE_DATE = (
    rf"(?i)^.{{0,20}}\b{_MONTH}\b.{{1,12}}\b(?:19|20)\d\d\b|^(?:19|20)\d\d\b.{{1,12}}\b{_MONTH}\b"
    r"|^(?:0?[1-9]|[12]\d|3[01])\.?\s\pL{3,10}\.?\s(?:19|20)\d\d\b"
    r"|^(?:19|20)\d\d[-/\s]?[QW]\d{1,2}$|^[QW]\d{1,2}[-/\s]?(?:19|20)\d\d$"
    r"|^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}[T\s]\s*\d{1,2}:\d\d"
)
# With this share of dates a column that is no notation's is refused, not a category.
_MANY_DATES = 0.5
# So is one with this share of numbers, if more than so many of them are different.
_MANY_NUMBERS = 0.5
_FEW_NUMBERS = 20
_WORD = re.compile(r"\d\s+([^\d\s]{1,9})$")  # a unit such as m² or km/h
# -999 and the like
_NINES = (99.0, 999.0, 9_999.0, 99_999.0, 999_999.0)
_SENTINELS = {-9.0, *_NINES, *(-nines for nines in _NINES)}
_DASHES = ("-", "--", ".", "None", "none")  # missing in a column of numbers or dates
# A notation fits if at most a share of 0.05 of the rows is odd, which is to say has
# texts that it does not read, and these are at most 5 different words without digits;
# or if a share of at most 0.01 is odd.
_MOST_ODD = 0.05
_MOST_WORDS = 5
_FEW_ODD = 0.01


@frozen(eq=False)
class FirstTexts:
    """The texts in the first rows of a column; at least one of them is not missing."""

    #: one per row
    rows: pyarrow.Array
    #: the different texts that are not missing, and how many rows have each
    texts: pyarrow.Array
    counts: pyarrow.Array

    def count_rows(self, mask: pyarrow.Array) -> int:
        """Return how many rows have the texts that a mask selects."""
        return compute.sum(self.counts.filter(mask)).as_py() or 0

    def matches(self, pattern: str) -> pyarrow.Array:
        """Return which of the different texts a regular expression matches."""
        return compute.match_substring_regex(self.texts, pattern)

    @property
    def has_leading_zeros(self) -> bool:
        """Whether a text is a code such as 01067, which would lose its first zero as a
        number.
        """
        return bool(compute.any(self.matches(r"^0\d+$")).as_py())

    @property
    def are_digits(self) -> bool:
        return bool(compute.all(self.matches(r"^\d+$")).as_py())


def find_notations(
    tables: Sequence[RawTable],
    columns: Sequence[str],
    reading: CsvOptions,
    *,
    quantities: Collection[str | None] = (),
) -> dict[str, Notation]:
    """Find the notations of columns. The first table in which a column holds text
    decides.

    Whole numbers such as 20240229 are days, except in columns of `quantities`. Raises
    DataError if a column of dates cannot be read.
    """
    first = tables[0]
    days = _days_in(first, [name for name in columns if name not in quantities])
    notations = dict.fromkeys(days, Notation("date"))
    for field in first.schema:
        if str(field.type) == "bool" and field.name in columns:
            notations[field.name] = Notation("boolean")

    # later tables are read by the notation found here, even if they alone would suggest
    # another
    decided: set[str] = set()
    for table in tables:
        text_columns = []
        number_columns = []
        for field in table.schema:
            if field.name not in columns or field.name in decided:
                continue
            kind = kind_of(field.type)
            if kind == "text":
                text_columns.append(field.name)
            elif kind == "number" and field.name not in notations:
                number_columns.append(field.name)
        decided.update(text_columns)
        notations |= _find_in(table, text_columns, number_columns, reading)
    further_missing = reading.missing or []
    return {
        name: replace(notation, missing=[*notation.missing, *further_missing])
        for name, notation in notations.items()
    }


def find_codes(
    table: RawTable, columns: Collection[str | None], *, are_labels: bool = False
) -> dict[str, Notation]:
    """Find columns of a text file with digits that are no numbers, such as 01067; also
    labels of more digits than 64 bits hold, which Arrow reads as floats.
    """
    types = ("int64", "double") if are_labels else ("int64",)
    type_of = {
        column.name: str(column.type)
        for column in table.schema
        if column.name in columns and str(column.type) in types
    }
    if not table.is_text_file:
        return {}
    return {
        name: Notation("text", why="whose digits numbers would lose")
        for name, first in _first_texts(table, [*type_of]).items()
        if first.are_digits and (first.has_leading_zeros or type_of[name] == "double")
    }


def notation_notes(
    notations: Mapping[str, Notation], missing: Sequence[str] = ()
) -> list[str]:
    """Return notes on the notations in use, and on texts that count as missing, except
    the texts in `missing`, which the user gave.
    """
    columns: dict[str, list[str]] = {}
    notes = []
    for name, notation in notations.items():
        if notation.kind != "boolean":
            columns.setdefault(notation.words, []).append(name)
        missing_texts = [text for text in notation.missing if text not in missing]
        if missing_texts:
            notes.append(f"{listed(missing_texts)} counts as missing in {name!r}")
    return [f"{words}: {listed(names)}" for words, names in columns.items()] + notes


def _find_in(
    table: RawTable,
    text_columns: Sequence[str],
    number_columns: Sequence[str],
    reading: CsvOptions,
) -> dict[str, Notation]:
    """Find notations in one table, of columns of text and of plain numbers."""
    notations: dict[str, Notation] = {}
    # by column: the notations of numbers that fit it, by their decimal point
    candidates: dict[str, dict[str, Notation]] = {}
    is_text_file = table.is_text_file
    texts = _first_texts(table, text_columns, reading.missing or ())
    for name, first in texts.items():
        dates = _fit_dates(table, name, first, reading.date_order)
        if dates is not None:
            notations[name] = dates
        else:
            candidates[name] = _fit_numbers(first, is_text_file=is_text_file)
            if not candidates[name]:
                _refuse_words(table, name, first)

    if is_text_file:
        type_of = {name: str(table.schema.field(name).type) for name in number_columns}
        if any("," in fits for fits in candidates.values()):
            # Some numbers have decimal commas, so in columns that were read as numbers
            # the points may stand between thousands.
            plain = [name for name in type_of if type_of[name] in ("int64", "double")]
            for name, first in _first_texts(table, plain).items():
                candidates[name] = _fit_numbers(first, is_text_file=True)
        notations |= find_codes(table, number_columns)

    decimal = _decide_decimal(table, candidates)
    for name, fits in candidates.items():
        notation = fits.get(decimal) or next(iter(fits.values()), None)
        if notation is not None and (name in texts or notation.decimal == ","):
            notations[name] = notation
    for name, notation in notations.items():
        if words := [text for text in notation.missing if text not in _DASHES]:
            warn(
                f"{_words_in(table, name, texts[name], words)}; expected a"
                f" {notation.kind}. These count as missing: correct them, or confirm it"
                f' by `missing={words}`, with `impute="median"` to fill gaps of'
                ' features or `on_nan="drop"` to leave out such rows'
            )
    return notations


def _words_in(
    table: RawTable, name: str, first: FirstTexts, words: Sequence[str]
) -> str:
    """Say how many rows of a column have some words, and which is the first."""
    is_word = compute.is_in(first.rows, value_set=pyarrow.array(words))
    row = compute.index(is_word, True).as_py()
    n_words = compute.sum(is_word).as_py()
    return (
        f"{table.name}: column {name!r} has words in {n_words:,} of the first"
        f" {len(first.rows):,} rows, {first.rows[row].as_py()[:50]!r} in"
        f" {table.place(row)}"
    )


def _decide_decimal(
    table: RawTable, candidates: Mapping[str, Mapping[str, Notation]]
) -> str:
    """Return the decimal point for columns that could have either, such as 1.234.

    The columns that can be read in only one way decide.
    """
    certain = set[str]()
    for fits in candidates.values():
        if len(fits) == 1:
            certain |= fits.keys()
    if certain == {","} or (not certain and table.decimal == ","):
        return ","
    return "."


def _fit_dates(
    table: RawTable, name: str, first: FirstTexts, users_order: str | None
) -> Notation | None:
    """Return the notation of a column of dates, None if it holds no dates.

    Raises DataError if day and month cannot be told apart, or most texts are dates and
    others are not.
    """
    if plain := _fit(Notation("date"), first, is_text_file=True):
        return plain
    fitting = {}
    for order in ORDERS:
        fit = _fit(Notation("date", order=order), first, is_text_file=True)
        if fit is not None:
            fitting[order] = fit
    if users_order in fitting:
        return fitting[users_order]
    example = repr(first.texts[0].as_py()[:50])
    if users_order is not None and fitting:
        shown = ", ".join(map(repr, fitting))
        raise DataError(
            f"{table.name}: column {name!r} has dates such as {example}; expected"
            f" {users_order} as given by `date_order`, but the order is {shown}. Leave"
            " one of them out"
        )
    if {"dmy", "mdy"} <= fitting.keys():
        if read_dates(first.texts, "dmy").equals(read_dates(first.texts, "mdy")):
            return fitting["dmy"]
        raise DataError(
            f"{table.name}: column {name!r} has dates such as {example},"
            " which could be day/month/year or month/day/year; expected dates of one"
            " meaning. Say which by `date_order`, dmy or mdy"
        )
    # in the order of `ORDERS`: "ymd", whose year may have two digits, is the last
    if fitting:
        return next(iter(fitting.values()))
    _refuse_other_dates(table, name, first)
    return None


def _refuse_other_dates(table: RawTable, name: str, first: FirstTexts) -> None:
    """Raise DataError if most texts are dates: as levels of a category they would be of
    no use, since no later date would be a known level.
    """
    readable = [compute.is_valid(read_dates(first.texts, order)) for order in FORMS]
    is_read = max(readable, key=first.count_rows)
    is_date = compute.or_(is_read, first.matches(_LOOKS_LIKE_DATE))
    if first.count_rows(is_date) >= _MANY_DATES * compute.sum(first.counts).as_py():
        odd = first.texts.filter(compute.invert(is_read))[0].as_py()
        place = table.place(compute.index(first.rows, odd).as_py())
        raise DataError(
            f"{table.name}: column {name!r} has dates in most rows, but {odd[:50]!r} in"
            f" {place} is none that is read; expected dates of one form, such as"
            " 2024-02-29. Correct it, say by `missing` that it means missing, or leave"
            " the column out with `drop`"
        )


def _refuse_words(table: RawTable, name: str, first: FirstTexts) -> None:
    """Refuse text of which most is numbers: as categories these would be lost."""
    is_number = first.matches(f"^(?:{number_pattern('.')}|{number_pattern(',')})$")
    words = first.texts.filter(compute.invert(is_number)).to_pylist()
    have_digits = any(re.search(r"\d", text) for text in words)
    n_numbers = len(first.texts) - len(words)
    if (
        first.count_rows(is_number) >= _MANY_NUMBERS * compute.sum(first.counts).as_py()
        and n_numbers > _FEW_NUMBERS
        and 0 < len(words) <= _MOST_WORDS
        and not have_digits
    ):
        raise DataError(
            f"{_words_in(table, name, first, words)}, and numbers in the others;"
            f" expected numbers. If the words mean missing, say so by"
            f" `missing={words}`; or leave the column out with `drop`"
        )


def _fit_numbers(first: FirstTexts, *, is_text_file: bool) -> dict[str, Notation]:
    """Return the notations of numbers that fit, by their decimal points."""
    shown = first.texts[:1000].to_pylist()
    units = set(re.findall(f"[{UNITS}]", " ".join(shown)))
    if not units:
        matches = [_WORD.search(text) for text in shown]
        words = {match[1] if match else "" for match in matches}
        # a word is a unit only if all texts have it
        if len(words) == 1 and "" not in words:
            units = words
    if len(units) > 1:  # "$5" and "€5" do not merge
        return {}
    fitting = {}
    for decimal in ".,":
        notation = Notation("number", decimal, *units)
        fit = _fit(notation, first, is_text_file=is_text_file)
        if fit is not None:
            fitting[decimal] = fit
    return fitting


def _fit(
    notation: Notation, first: FirstTexts, *, is_text_file: bool
) -> Notation | None:
    """Return a notation if nearly all texts fit it, else None. The words that do not
    fit are then its `missing`.

    In a table with types, texts that are digits only are codes, no numbers. Texts such
    as 01067 are codes in any table.
    """
    if notation.kind == "number" and first.has_leading_zeros:
        return None
    if not is_text_file and first.are_digits:
        return None

    texts = first.texts
    _, is_odd = notation.read(texts)
    is_dash = compute.is_in(texts, value_set=pyarrow.array(_DASHES))
    odd_dashes = texts.filter(compute.and_(is_odd, is_dash)).to_pylist()
    is_odd = compute.and_not(is_odd, is_dash)
    odd_texts = texts.filter(is_odd).to_pylist()
    n_odd = first.count_rows(is_odd)
    n_rows = first.count_rows(compute.invert(is_dash))
    if not n_rows or n_odd > _MOST_ODD * n_rows:
        return None
    have_digits = any(re.search(r"\d", text) for text in odd_texts)
    if len(odd_texts) <= _MOST_WORDS and not have_digits:
        return replace(notation, missing=[*odd_dashes, *odd_texts])
    if n_odd <= _FEW_ODD * n_rows and len(texts) > 20:
        return replace(notation, missing=odd_dashes)
    return None


# -- the first rows of a table


def _first_texts(
    table: RawTable, columns: Sequence[str], missing: Sequence[str] = ()
) -> dict[str, FirstTexts]:
    """Return the first rows of columns as texts, if they have any."""
    if not columns:
        return {}
    first = table.first_rows(dict.fromkeys(columns, pyarrow.string()))
    if first is None:
        return {}
    absent = pyarrow.array([None, *MISSING_TEXTS, *missing])
    texts = {}
    for name in columns:
        rows = compute.utf8_trim_whitespace(to_text(first.column(name)))
        is_absent = compute.is_in(rows, value_set=absent)
        counts = compute.value_counts(rows.filter(compute.invert(is_absent)))
        if len(counts):
            parts = (counts.field("values"), counts.field("counts"))
            texts[name] = FirstTexts(rows, *parts)
    return texts


def _first_numbers(
    table: RawTable, columns: Sequence[str]
) -> Iterator[tuple[str, FloatArray]]:
    """Yield the finite numbers in the first rows of columns of plain numbers."""
    type_of = {field.name: str(field.type) for field in table.schema}
    plain = [
        name for name in columns if type_of.get(name) in ("int32", "int64", "double")
    ]
    if not plain:
        return
    first = table.first_rows(dict.fromkeys(plain, pyarrow.float64()))
    if first is None:
        return
    for name in plain:
        values = to_numbers(first.column(name))
        values = values[np.isfinite(values)]
        if len(values):
            yield name, values


def _days_in(table: RawTable, columns: Sequence[str]) -> list[str]:
    """Return the columns of numbers that are all days from 1900 to 2099, such as
    20240229.
    """
    days = []
    for name, numbers in _first_numbers(table, columns):
        values = np.unique(numbers)
        if len(values) < 2 or values[0] < 19000101 or values[-1] > 20991231:
            continue
        texts = pyarrow.array([f"{value:.10g}" for value in values])
        if not read_dates(texts).null_count:
            days.append(name)
    return days


def suspicions(table: RawTable, columns: Sequence[str]) -> list[str]:
    """Return notes on numbers of a text file that may mean missing, such as -999."""
    if not table.is_text_file:
        return []
    notes = []
    for name, values in _first_numbers(table, columns):
        # only floats reach so far, as Arrow reads integers of more than 64 bits
        is_long = np.abs(values).max() >= 2**63
        if is_long and _first_texts(table, [name])[name].are_digits:
            array_checks.warn_of_long_integers(table.name, name)
        # a sentinel lies at an end of the range, occurs more than once, and is at least
        # twice as large as the rest
        for end in (values.min(), values.max()):
            if end not in _SENTINELS:
                continue
            others = values[values != end]
            n_rows = len(values) - len(others)
            is_far = len(others) and np.abs(others).max() < abs(end) / 2
            if is_far and n_rows > 1:
                notes.append(
                    f"{name!r} is {end:g} in {n_rows} of the first rows, and far from"
                    " the others: if it means missing, say so by `missing`"
                )
    return notes
