"""Notations: how the texts of a column write numbers or dates, whatever kind of table holds them.

The first rows of a new dataset decide them, and its recipe keeps them, so that nothing is guessed from a row
of a later table. A later text that does not fit is refused with its row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from rff_dist.errors import DataError
from rff_dist.recipes.arrow import compute, pyarrow
from rff_dist.recipes.reading import Reading
from rff_dist.recipes.tables import MISSING_TEXTS, Batches, Table, Types, kind_of, listed, to_numbers, to_text
from rff_dist.typing import FloatArray, frozen

#: The orders of day, month and year in numbers.
_ORDERS = {"dmy": "day/month/year", "mdy": "month/day/year", "ymd": "year/month/day"}
#: Forms of dates beyond ISO 8601, by their order, after `_REWRITTEN`. With points the day comes first.
_FORMS = {
    "": ["%d.%m.%Y", "%Y/%m/%d", "%Y.%m.%d", "%d/%b/%Y", "%b/%d/%Y", "%Y/%b/%d", "%m/%Y", "%Y/%m"],
    "dmy": ["%d/%m/%Y", "%d/%m/%y"],
    "mdy": ["%m/%d/%Y", "%m/%d/%y"],
    "ymd": ["%Y/%m/%d", "%y/%m/%d"],
}
_FORMS[""] += ["%b/%Y", "%Y/%b", "%d.%m.%y", "%d/%b/%y", "%b/%y"]
_TIMES = ["/%H:%M:%S", "/%H:%M", "/%I:%M:%S/%p", "/%I:%M/%p"]
#: What is rewritten before a date is read: the pattern and what takes its place.
_REWRITTEN = [
    (r"(?i)^(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*[.,]?\s+", ""),
    (r"(?i)\s*\b(?:utc|gmt)\b", ""),
    (r"^(\d{4})(\d\d)(\d\d)$", r"\1/\2/\3"),
    (r"^(\d{4})(\d\d)(\d\d)[T ]?(\d\d)(\d\d)(\d\d)$", r"\1/\2/\3/\4:\5:\6"),
    (r"^(.*\S)\s+(\d{1,2}:\d\d(?::\d\d)?)\s+(\d{4})$", r"\1 \3 \2"),
    (r"(?i)(\d)\s*([ap])\.?m\.?$", r"\1 \2M"),
    (r"[.,]\s+|,", " "),
    (r"[-/\s]+", "/"),
]
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
#: Texts that are surely dates, in forms that are not read.
_LOOKS_LIKE_DATE = (
    rf"(?i)^.{{0,20}}\b{_MONTH}\b.{{1,12}}\b(?:19|20)\d\d\b|^(?:19|20)\d\d\b.{{1,12}}\b{_MONTH}\b"
    r"|^(?:0?[1-9]|[12]\d|3[01])\.?\s\pL{3,10}\.?\s(?:19|20)\d\d\b"
    r"|^(?:19|20)\d\d[-/\s]?[QW]\d{1,2}$|^[QW]\d{1,2}[-/\s]?(?:19|20)\d\d$"
    r"|^\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}[T\s]\s*\d{1,2}:\d\d"
)
_MOST_DATES = 0.5  # a column with so many dates is one of dates, and no category
_UNITS, _SPACE = "$¢-¥₠-⃀%", "[\\s\u00a0\u202f]?"
#: What groups digits by three, by the decimal point.
_GROUPS = {".": "[,'’ \u00a0\u202f]", ",": "[.'’ \u00a0\u202f]"}
_ISO = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([ T]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"
)
_WORD = re.compile(r"\d\s+([^\d\s]{1,9})$")  # a unit such as m² or km/h
_SENTINELS = {-9.0, *(sign * (10.0**n - 1) for sign in (1, -1) for n in range(2, 7))}  # -999 and the like
_DASHES = ("-", "--", ".", "None", "none")  # missing in a column of numbers or dates
_MOST_ODD, _FEW_ODD, _MOST_WORDS = 0.05, 0.01, 5  # shares of the texts, and different ones


@frozen
class Notation:
    """How a column's texts write its values.

    `kind`: {"number", "date", "text", "boolean"}. Text stays as it is, although it looks like numbers or
      dates. Booleans by type may be texts in later tables.
    `decimal`: the decimal point of numbers, "." or ","; the other, spaces or apostrophes may group digits.
    `unit`: the sign or the word that may stand before or behind numbers. 12 % becomes 12.
    `missing`: texts that count as missing in addition to those that always do.
    `order`: {"dmy", "mdy", "ymd"} of day, month and year, if the text alone does not say it.
    `why`: why text stays text.
    """

    kind: str
    decimal: str = "."
    unit: str = ""
    missing: Sequence[str] = ()
    order: str = ""
    why: str = ""

    @property
    def words(self) -> str:
        """What is read, for people."""
        if self.kind == "text":
            return f"kept as text, {self.why}"
        if self.order:
            return f"read as dates, {_ORDERS[self.order]}"
        commas = " with decimal commas" if self.decimal == "," else ""
        return f"read as {self.kind}s{commas}{' in ' if self.unit else ''}{self.unit}"

    @property
    def type(self) -> pyarrow.DataType:
        """The type of the values."""
        types = {"date": pyarrow.timestamp("us"), "number": pyarrow.float64(), "text": pyarrow.string()}
        types["boolean"] = pyarrow.bool_()
        return types[self.kind]

    def read(self, column: pyarrow.Array) -> tuple[pyarrow.Array, pyarrow.Array]:
        """Return the values of a column of text, null if missing, and which texts do not fit."""
        text = compute.utf8_trim_whitespace(to_text(column))
        absent = compute.is_in(text, value_set=pyarrow.array([*MISSING_TEXTS, *self.missing]))
        text = compute.if_else(absent, pyarrow.scalar(None, pyarrow.string()), text)
        if self.kind == "boolean":
            # others than true and false are null
            places = compute.index_in(compute.utf8_lower(text), value_set=pyarrow.array(["false", "true"]))
            values = places.cast(pyarrow.bool_())
        else:
            values = _read_dates(text, self.order) if self.kind == "date" else self._read_numbers(text)
        return values, compute.and_(compute.is_valid(text), compute.is_null(values))

    def _read_numbers(self, text: pyarrow.Array) -> pyarrow.Array:
        # a search for one character is far quicker than the expression, and most columns have no brackets
        if compute.any(compute.match_substring(text, "(")).as_py():  # accountants' minus
            text = compute.replace_substring_regex(text, r"^\(([^()]+)\)$", r"-\1")
        if not compute.any(compute.match_substring(text, "," if self.decimal == "." else ".")).as_py():
            with suppress(pyarrow.ArrowInvalid):  # plain numbers, in half the time
                return compute.replace_substring(text, ",", ".").cast("float64")
        fitting = _matching(text, f"^{number_pattern(self.decimal, re.escape(self.unit))}$")
        fitting = compute.replace_substring(fitting, self.unit, "") if self.unit else fitting
        digits = compute.replace_substring_regex(fitting, f"[^0-9eE{self.decimal}-]", "")
        return compute.replace_substring(digits, ",", ".").cast("float64")


def number_pattern(decimal: str, unit: str = f"[{_UNITS}]") -> str:
    """Return a regular expression of numbers, with a decimal point and perhaps a unit."""
    point, group, sign = re.escape(decimal), _GROUPS[decimal], "[+-]?"
    before = f"(?:{sign}(?:{unit}{_SPACE})?|{unit}{_SPACE}{sign})"
    whole = rf"(?:[1-9]\d{{0,2}}(?:{group}\d{{3}})+|\d+)"
    return rf"{before}(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?(?:{_SPACE}{unit})?"


def _read_dates(text: pyarrow.Array, order: str = "") -> pyarrow.Array:
    encoded = text.dictionary_encode()  # days of a panel come often
    values = _read_different_dates(encoded.dictionary, order)
    return values.take(encoded.indices)


def _read_different_dates(text: pyarrow.Array, order: str) -> pyarrow.Array:
    none = pyarrow.scalar(None, pyarrow.string())
    iso = _matching(text, _ISO)
    days = compute.strptime(compute.utf8_slice_codeunits(iso, 0, 10), "%Y-%m-%d", "us", error_is_null=True)
    iso = compute.if_else(_is_on(days, compute.utf8_slice_codeunits(iso, 8, 10)), iso, none)
    # Arrow takes microseconds, and either zones or none
    iso = compute.replace_substring_regex(iso, r"(\.\d{6})\d+", r"\1")
    has_zone = compute.match_substring_regex(iso, r":.*(Z|[+-]\d\d(:?\d\d)?)$")
    zoned, plain = compute.if_else(has_zone, iso, none), compute.if_else(has_zone, none, iso)
    moment = pyarrow.timestamp("us")
    parts = [plain.cast(moment), zoned.cast(pyarrow.timestamp("us", "UTC")).cast(moment)]
    left = compute.if_else(compute.is_null(iso), text, none)
    if left.null_count < len(left):
        for pattern, plainer in _REWRITTEN:
            left = compute.replace_substring_regex(left, pattern, plainer)
        if order:
            left = compute.replace_substring(left, ".", "/")
        parts += [_read_form(left, form) for form in _FORMS[order]]
    return compute.coalesce(*parts)


def _read_form(text: pyarrow.Array, form: str) -> pyarrow.Array:
    """Return the dates of one form, perhaps with a time behind them."""
    year = r"\d{4}" if "%Y" in form else r"\d\d"
    day = len(re.split("[/.]", form.partition("%d")[0])) - 1
    text = _matching(text, rf"^(?:[^/.]+[/.])*{year}(?:[/.]|$)")  # 1.2.3 is no day of the year 3
    parts = []
    for time in ("", *_TIMES):
        values = compute.strptime(text, form + time, "us", error_is_null=True)
        if values.null_count < len(values) and "%d" in form:
            found = compute.extract_regex(text, rf"^(?:[^/.]+[/.]){{{day}}}(?P<day>\d+)")
            day_texts = compute.struct_field(found, "day")
            values = compute.if_else(_is_on(values, day_texts), values, pyarrow.scalar(None, values.type))
        parts.append(values)
    return compute.coalesce(*parts)


def _is_on(moments: pyarrow.Array, days: pyarrow.Array) -> pyarrow.Array:
    """Return whether moments are on these days of a month: the 31st of February would be the 2nd of March."""
    return compute.equal(compute.day(moments), days.cast("int64"))


def _matching(text: pyarrow.Array, pattern: str) -> pyarrow.Array:
    """Return the texts that a pattern matches, others as null."""
    fits = compute.match_substring_regex(text, pattern)
    return compute.if_else(fits, text, pyarrow.scalar(None, pyarrow.string()))


# -- which notation --------------------------------------------------------------------------------


def find_notations(
    tables: Sequence[Table],
    columns: Sequence[str],
    reading: Reading | None = None,
    *,
    numbers: Collection[str | None] = (),
) -> dict[str, Notation]:
    """Find the notations of columns of text by the first rows of the first table that holds them as text.

    `numbers`: columns whose whole numbers are no days, such as 20240229.
    Raises DataError if a column of dates cannot be read.
    """
    reading = Reading() if reading is None else reading
    notations: dict[str, Notation] = {}
    looked_at: set[str] = set()
    days = _days_in(tables[0], [name for name in columns if name not in numbers])
    notations |= dict.fromkeys(days, Notation("date"))
    flags = [field.name for field in tables[0].schema if str(field.type) == "bool" and field.name in columns]
    notations |= dict.fromkeys(flags, Notation("boolean"))
    for table in tables:
        wanted = set(columns) - looked_at
        kinds = {field.name: kind_of(field.type) for field in table.schema if field.name in wanted}
        texts = [name for name in kinds if kinds[name] == "text"]
        others = [name for name in kinds if kinds[name] == "number" and name not in notations]
        # later tables are read by the notation found here, even if they alone would suggest another
        looked_at |= set(texts)
        notations |= _find(table, texts, others, reading)
    given = reading.missing or []
    return {name: replace(found, missing=[*found.missing, *given]) for name, found in notations.items()}


def notation_notes(notations: Mapping[str, Notation], given: Sequence[str] = ()) -> list[str]:
    """Return notes on the notations in use, by column; `given` are texts that the user said are missing."""
    columns: dict[str, list[str]] = {}
    for name, notation in notations.items():
        if notation.kind != "boolean":
            columns.setdefault(notation.words, []).append(name)
    notes = [f"{words}: {listed(names)}" for words, names in columns.items()]
    added = {name: [text for text in notations[name].missing if text not in given] for name in notations}
    absent = {name: texts for name, texts in added.items() if texts}
    return notes + [f"{listed(texts)} counts as missing in {name!r}" for name, texts in absent.items()]


def _find(
    table: Table, texts: Sequence[str], numbers: Sequence[str], reading: Reading
) -> dict[str, Notation]:
    notations: dict[str, Notation] = {}
    ambiguous: dict[str, dict[str, Notation]] = {}
    for name, column, counted in _first_texts(table, texts, reading.missing or ()):
        if dates := _fitting_dates(table.name, name, column, counted, reading.date_order):
            notations[name] = dates
            continue
        ambiguous[name] = _fitting_numbers(*counted, is_text=table.decimal is not None)
    if table.decimal is not None and any("," in fits for fits in ambiguous.values()):
        # In a file of text, columns that were taken for numbers may have points between thousands.
        plain = [name for name in numbers if str(table.schema.field(name).type) in ("int64", "double")]
        counted_texts = _first_texts(table, plain)
        ambiguous |= {name: _fitting_numbers(*counted, is_text=True) for name, _, counted in counted_texts}
    if table.decimal is not None:
        integers = [name for name in numbers if str(table.schema.field(name).type) == "int64"]
        for name, _, (values, _) in _first_texts(table, integers):
            if _are_codes(values):
                notations[name] = Notation("text", why="whose zeros before digits numbers would lose")
    seen = {decimal for fits in ambiguous.values() if len(fits) == 1 for decimal in fits}  # without a doubt
    # 1.234 alone could be either; columns that can be read in one way only decide for the others
    is_comma = seen == {","} or (not seen and table.decimal == ",")
    for name, fits in ambiguous.items():
        chosen = fits.get("," if is_comma else ".") or next(iter(fits.values()), None)
        if chosen is not None and (name in texts or chosen.decimal == ","):
            notations[name] = chosen
    return notations


def _fitting_dates(
    table: str, name: str, column: pyarrow.Array, counted: tuple[Any, Any], wanted: str | None
) -> Notation | None:
    """Return the notation of a column of dates, None if it holds no dates.

    `wanted`: the order of day and month that the user gave.
    Raises DataError if day and month cannot be told apart, or most texts are dates and others are not.
    """
    texts, counts = counted
    if plain := _fitting(Notation("date"), texts, counts, is_text=True):
        return plain
    fits = {order: _fitting(Notation("date", order=order), texts, counts, is_text=True) for order in _ORDERS}
    fitting = {order: fit for order, fit in fits.items() if fit is not None}
    if wanted in fitting:
        return fitting[wanted]
    if wanted is not None and fitting:
        shown = ", ".join(map(repr, fitting))
        raise DataError(
            f"{table}: column {name!r} has dates such as {texts[0].as_py()[:50]!r}; expected {wanted} as "
            f"given by `date_order`, but the order is {shown}. Leave one of them out"
        )
    if {"dmy", "mdy"} <= fitting.keys():
        days, months = (_read_dates(texts, order) for order in ("dmy", "mdy"))
        if days.equals(months):
            return fitting["dmy"]
        raise DataError(
            f"{table}: column {name!r} has dates such as {texts[0].as_py()[:50]!r}, which could be "
            "day/month/year or month/day/year; expected dates of one meaning. Say which by `date_order`, "
            "dmy or mdy"
        )
    if fitting:  # two digits of a year come first only where nothing else fits
        return next(iter(fitting.values()))
    _refuse_other_dates(table, name, column, texts, counts)
    return None


def _refuse_other_dates(
    table: str, name: str, column: pyarrow.Array, texts: pyarrow.Array, counts: pyarrow.Array
) -> None:
    """Refuse a column of text in which most texts are dates: no later date would be one of its levels."""

    def n_rows(fits: pyarrow.Array) -> int:
        return compute.sum(counts.filter(fits)).as_py() or 0

    read = max((compute.is_valid(_read_dates(texts, order)) for order in _FORMS), key=n_rows)
    is_date = compute.or_(read, compute.match_substring_regex(texts, _LOOKS_LIKE_DATE))
    if n_rows(is_date) >= _MOST_DATES * compute.sum(counts).as_py():
        odd = texts.filter(compute.invert(read))[0].as_py()
        row = compute.index(column, odd).as_py() + 1
        raise DataError(
            f"{table}: column {name!r} has dates in most rows, but {odd[:50]!r} in row {row:_} is none that "
            "is read (rows count from 1, without a header); expected dates of one form, such as 2024-02-29. "
            "Correct it, say by `missing` that it means missing, or leave the column out with `drop`"
        )


def _days_in(table: Table, columns: Sequence[str]) -> list[str]:
    """Return the columns whose numbers are all days such as 20240229, of the years 1900 to 2099."""
    days = []
    for name, numbers in _first_numbers(table, columns):
        values = np.unique(numbers)
        if len(values) < 2 or values[0] < 19000101 or values[-1] > 20991231:
            continue
        if not _read_dates(pyarrow.array([f"{value:.10g}" for value in values])).null_count:
            days.append(name)
    return days


def _first_numbers(table: Table, columns: Sequence[str]) -> Iterator[tuple[str, FloatArray]]:
    """Yield the finite numbers in the first rows of columns of plain numbers, if there are some."""
    kinds = {field.name: str(field.type) for field in table.schema}
    plain = [name for name in columns if kinds.get(name) in ("int32", "int64", "double")]
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


def suspicions(table: Table, columns: Sequence[str]) -> list[str]:
    """Return notes on numbers of a file of text that may stand for missing values."""
    if table.decimal is None:
        return []
    notes = []
    for name, values in _first_numbers(table, columns):
        ends = values.min(), values.max()
        # a sentinel lies at an end of the range, occurs more than once, and is at least twice as large as the
        # rest
        for end in (end for end in ends if end in _SENTINELS):
            others = values[values != end]
            is_far = len(others) and np.abs(others).max() < abs(end) / 2
            if is_far and len(values) - len(others) > 1:
                notes.append(
                    f"{name!r} is {end:g} in {len(values) - len(others)} of the first rows, and far from the "
                    "others: if it means missing, say so by `missing`"
                )
    return notes


def _first_texts(
    table: Table, columns: Sequence[str], missing: Sequence[str] = ()
) -> Iterator[tuple[str, pyarrow.Array, tuple[Any, Any]]]:
    """Yield the first rows of columns, their different texts, and how many times each occurs."""
    first = table.first_rows(dict.fromkeys(columns, pyarrow.string())) if columns else None
    if first is None:
        return
    for name in columns:
        text = compute.utf8_trim_whitespace(to_text(first.column(name)))
        absent = compute.is_in(text, value_set=pyarrow.array([None, *MISSING_TEXTS, *missing]))
        counts = compute.value_counts(text.filter(compute.invert(absent)))
        if len(counts):
            yield name, text, (counts.field("values"), counts.field("counts"))


def _fitting_numbers(texts: pyarrow.Array, counts: pyarrow.Array, *, is_text: bool) -> dict[str, Notation]:
    """Return the notations of numbers that fit, by their decimal points."""
    shown = texts[:1000].to_pylist()
    units = set(re.findall(f"[{_UNITS}]", " ".join(shown)))
    words = {match[1] if (match := _WORD.search(text)) else "" for text in shown}
    if not units and len(words) == 1 and "" not in words:  # a word that only some have is no unit
        units = words
    if len(units) > 1:  # "$5" and "€5" do not merge
        return {}
    numbers = [Notation("number", decimal, *units) for decimal in ".,"]
    fits = [_fitting(number, texts, counts, is_text=is_text) for number in numbers]
    return {fit.decimal: fit for fit in fits if fit is not None}


def _fitting(
    notation: Notation, texts: pyarrow.Array, counts: pyarrow.Array, *, is_text: bool
) -> Notation | None:
    """Return a notation if nearly all texts fit it, with the words that then count as missing.

    `is_text`: whether the table is a file of text. If it has types, texts of digits alone are codes, as are
      texts such as 01067 anywhere.
    """
    _, odd = notation.read(texts)
    dashes = compute.is_in(texts, value_set=pyarrow.array(_DASHES))
    absent = texts.filter(compute.and_(odd, dashes)).to_pylist()
    odd = compute.and_not(odd, dashes)
    others, n_odd = texts.filter(odd).to_pylist(), compute.sum(counts.filter(odd)).as_py() or 0
    n_texts = compute.sum(counts.filter(compute.invert(dashes))).as_py() or 0
    is_code = (
        notation.kind == "number" and compute.any(compute.match_substring_regex(texts, r"^0\d+$")).as_py()
    )
    is_code |= not is_text and compute.all(compute.match_substring_regex(texts, r"^\d+$")).as_py()
    if not n_texts or n_odd > _MOST_ODD * n_texts or is_code:
        return None
    if len(others) <= _MOST_WORDS and not any(re.search(r"\d", text) for text in others):
        return replace(notation, missing=[*absent, *others])
    return replace(notation, missing=absent) if n_odd <= _FEW_ODD * n_texts and len(texts) > 20 else None


# -- reading ---------------------------------------------------------------------------------------


def with_notations(table: Table, notations: Mapping[str, Notation], *, is_new: bool = False) -> Table:
    """Return a table whose columns of text with a notation become numbers or dates.

    `is_new`: whether columns may still be left out.

    Its batches raise DataError, with row and column, if a text does not fit.
    """

    def is_read(field: pyarrow.Field) -> bool:
        notation = notations.get(field.name)
        # Numbers of a file of text may have been taken for others: 1.234 is 1234 with decimal commas.
        if notation is None:
            return False
        held = kind_of(field.type)
        others = {"boolean": False, "date": held == "number"}
        return held == "text" or others.get(notation.kind, table.decimal is not None)

    read = {column.name: notations[column.name] for column in table.schema if is_read(column)}
    if not read:
        return table
    types = dict(zip(table.schema.names, table.schema.types, strict=True))
    schema = pyarrow.schema({**types, **{name: notation.type for name, notation in read.items()}})

    def batches(types: Types) -> Batches:
        start = 0
        texts = dict.fromkeys(read.keys() & types.keys(), pyarrow.string())
        for batch in table.batches({**types, **texts}):
            columns = {name: batch.column(name) for name in types}
            for name in texts:
                if types[name] != pyarrow.string():
                    values = _read(batch.column(name), read[name], table.name, name, start, is_new=is_new)
                    columns[name] = values.cast(types[name])
            yield pyarrow.RecordBatch.from_pydict(columns)
            start += batch.num_rows

    return replace(table, schema=schema, batches=batches)


def _read(
    column: pyarrow.Array, notation: Notation, table: str, name: str, start: int, *, is_new: bool
) -> pyarrow.Array:
    values, odd = notation.read(column)
    at = compute.index(odd, True).as_py()
    if at >= 0:
        kind = f"a {notation.kind} in {notation.unit}" if notation.unit else f"a {notation.kind}"
        leave_out = ", or leave the column out with `drop`" if is_new else ""
        raise DataError(
            f"{table}: row {start + at + 1}, column {name!r} is {str(column[at])[:50]!r} (rows count from 1, "
            f"without a header); expected {kind}, as in the first rows. Correct it{leave_out}"
        )
    return values
