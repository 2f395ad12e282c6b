"""Notations: how the texts of a column write numbers or dates, and reading by them.

A column of a CSV file, a spreadsheet or a database may write 1.234,50 € or 03/04/2024.
The module `finding` decides by the first rows of a new dataset what that means. The
recipe of the dataset keeps this decision, so that later rows are read in the same way.
A later text that does not fit raises an error that names its row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from rff_dist.errors import DataError
from rff_dist.recipes.arrow import compute, pyarrow
from rff_dist.recipes.tables import (
    MISSING_TEXTS,
    Batches,
    RawTable,
    Types,
    kind_of,
    to_text,
)
from rff_dist.typing import frozen

#: The orders of day, month and year in numbers.
ORDERS = {"dmy": "day/month/year", "mdy": "month/day/year", "ymd": "year/month/day"}
#: Forms of dates beyond ISO 8601, by the order of day and month. Forms with only one
#: possible order are listed under "". In dates with points the day comes first. Texts
#: are rewritten by `_REWRITTEN` before. If several forms fit a text, the first counts.
FORMS = {
    "": [
        "%d.%m.%Y",
        "%Y/%m/%d",
        "%Y.%m.%d",
        "%d/%b/%Y",
        "%b/%d/%Y",
        "%Y/%b/%d",
        "%m/%Y",
        "%Y/%m",
        "%b/%Y",
        "%Y/%b",
        "%d.%m.%y",
        "%d/%b/%y",
        "%b/%y",
    ],
    "dmy": ["%d/%m/%Y", "%d/%m/%y"],
    "mdy": ["%m/%d/%Y", "%m/%d/%y"],
    "ymd": ["%Y/%m/%d", "%y/%m/%d"],
}
_TIMES = ["/%H:%M:%S", "/%H:%M", "/%I:%M:%S/%p", "/%I:%M/%p"]
#: Replacements in a text, in this order, before it is read as a date.
_REWRITTEN = [
    # Fri, 1 Mar 2024
    (r"(?i)^(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*[.,]?\s+", ""),
    # 1 Mar 2024 10:00 GMT
    (r"(?i)\s*\b(?:utc|gmt)\b", ""),
    # 20240301
    (r"^(\d{4})(\d\d)(\d\d)$", r"\1/\2/\3"),
    # 20240301T100000
    (r"^(\d{4})(\d\d)(\d\d)[T ]?(\d\d)(\d\d)(\d\d)$", r"\1/\2/\3/\4:\5:\6"),
    # Mar 1 10:00:00 2024, as C writes it
    (r"^(.*\S)\s+(\d{1,2}:\d\d(?::\d\d)?)\s+(\d{4})$", r"\1 \3 \2"),
    # 10:00 a.m.
    (r"(?i)(\d)\s*([ap])\.?m\.?$", r"\1 \2M"),
    # Mar. 1, 2024
    (r"[.,]\s+|,", " "),
    # 1-Mar-2024: what is left between the parts becomes one slash
    (r"[-/\s]+", "/"),
]
UNITS = "$¢-¥₠-⃀%"
_SPACE = "[\\s\u00a0\u202f]?"
#: The marks between thousands, by the decimal point.
_GROUPS = {".": "[,'’ \u00a0\u202f]", ",": "[.'’ \u00a0\u202f]"}
_ISO = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([ T]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?$"
)


@frozen
class Notation:
    """How a column's texts write its values."""

    #: "number"; "date"; "text", which stays text although it looks like numbers or
    #: dates; or "boolean": the first rows had booleans, no texts, but a later table may
    #: write them as texts
    kind: str
    #: "." or ","; the other one, spaces or apostrophes may group digits
    decimal: str = "."
    #: sign or word that may stand before or after numbers: 12 % becomes 12
    unit: str = ""
    #: texts that count as missing, in addition to `MISSING_TEXTS`
    missing: Sequence[str] = ()
    #: "dmy", "mdy" or "ymd" if dates could be read in several orders
    order: str = ""
    #: why text stays text
    why: str = ""

    @property
    def words(self) -> str:
        """How the column is read, for people."""
        if self.kind == "text":
            return f"kept as text, {self.why}"
        if self.order:
            return f"read as dates, {ORDERS[self.order]}"
        commas = " with decimal commas" if self.decimal == "," else ""
        return f"read as {self.kind}s{commas}{' in ' if self.unit else ''}{self.unit}"

    @property
    def type(self) -> pyarrow.DataType:
        """The type of the values."""
        types = {
            "date": pyarrow.timestamp("us"),
            "number": pyarrow.float64(),
            "text": pyarrow.string(),
            "boolean": pyarrow.bool_(),
        }
        return types[self.kind]

    def read(self, column: pyarrow.Array) -> tuple[pyarrow.Array, pyarrow.Array]:
        """Return a text column's values, null if missing, and which texts do not
        fit.
        """
        text = compute.utf8_trim_whitespace(to_text(column))
        missing = pyarrow.array([*MISSING_TEXTS, *self.missing])
        text = compute.if_else(compute.is_in(text, value_set=missing), _no_text(), text)
        if self.kind == "boolean":
            values = _read_booleans(text)
        elif self.kind == "date":
            values = read_dates(text, self.order)
        else:  # numbers: columns that stay text are not read
            values = self._read_numbers(text)
        return values, compute.and_(compute.is_valid(text), compute.is_null(values))

    def _read_numbers(self, text: pyarrow.Array) -> pyarrow.Array:
        # Accountants write (5) for −5. Most columns have no bracket, and a search for
        # one character is far quicker than the regular expression.
        if _any_holds(text, "("):
            text = compute.replace_substring_regex(text, r"^\(([^()]+)\)$", r"-\1")
        other_point = "," if self.decimal == "." else "."
        if not _any_holds(text, other_point):
            with suppress(pyarrow.ArrowInvalid):  # plain numbers, in half the time
                return compute.replace_substring(text, ",", ".").cast("float64")

        pattern = number_pattern(self.decimal, re.escape(self.unit))
        text = _matching(text, f"^{pattern}$")
        if self.unit:
            text = compute.replace_substring(text, self.unit, "")
        text = compute.replace_substring(text, "\u2212", "-")  # the sign in print
        text = compute.replace_substring_regex(text, f"[^0-9eE{self.decimal}-]", "")
        return compute.replace_substring(text, ",", ".").cast("float64")


def _no_text() -> pyarrow.Scalar:
    return pyarrow.scalar(None, pyarrow.string())


def _any_holds(text: pyarrow.Array, part: str) -> bool:
    return bool(compute.any(compute.match_substring(text, part)).as_py())


def _read_booleans(text: pyarrow.Array) -> pyarrow.Array:
    # texts other than true and false become null
    words = pyarrow.array(["false", "true"])
    return compute.index_in(compute.utf8_lower(text), value_set=words).cast("bool")


def number_pattern(decimal: str, unit: str = f"[{UNITS}]") -> str:
    """Return a regular expression of numbers, perhaps with a unit."""
    point = re.escape(decimal)
    group = _GROUPS[decimal]
    sign = "[+\u2212-]?"
    before = f"(?:{sign}(?:{unit}{_SPACE})?|{unit}{_SPACE}{sign})"
    whole = rf"(?:[1-9]\d{{0,2}}(?:{group}\d{{3}})+|\d+)"
    digits = rf"(?:{whole}(?:{point}\d*)?|{point}\d+)(?:[eE][+-]?\d+)?"
    return rf"{before}{digits}(?:{_SPACE}{unit})?"


def read_dates(text: pyarrow.Array, order: str = "") -> pyarrow.Array:
    """Return texts as dates and times; a text that is no date becomes null."""
    # many rows may have the same day, which is read once
    encoded = text.dictionary_encode()
    values = _read_distinct_dates(encoded.dictionary, order)
    return values.take(encoded.indices)


def _read_distinct_dates(text: pyarrow.Array, order: str) -> pyarrow.Array:
    none = _no_text()
    iso = _matching(text, _ISO)
    days = compute.strptime(
        compute.utf8_slice_codeunits(iso, 0, 10), "%Y-%m-%d", "us", error_is_null=True
    )
    day_texts = compute.utf8_slice_codeunits(iso, 8, 10)
    iso = compute.if_else(_is_on(days, day_texts), iso, none)
    # Arrow reads up to six decimals of a second, and texts with and without zones apart
    iso = compute.replace_substring_regex(iso, r"(\.\d{6})\d+", r"\1")
    has_zone = compute.match_substring_regex(iso, r":.*(Z|[+-]\d\d(:?\d\d)?)$")
    zoned = compute.if_else(has_zone, iso, none)
    plain = compute.if_else(has_zone, none, iso)
    if zoned.null_count < len(zoned):  # times without a zone are then misfits
        plain = pyarrow.nulls(len(plain), plain.type)
    moment = pyarrow.timestamp("us")
    parts = [
        plain.cast(moment),
        zoned.cast(pyarrow.timestamp("us", "UTC")).cast(moment),
    ]
    others = compute.if_else(compute.is_null(iso), text, none)
    if others.null_count < len(others):
        for pattern, plainer in _REWRITTEN:
            others = compute.replace_substring_regex(others, pattern, plainer)
        if order:
            others = compute.replace_substring(others, ".", "/")
        parts += [_read_form(others, form) for form in FORMS[order]]
    return compute.coalesce(*parts)


def _read_form(text: pyarrow.Array, form: str) -> pyarrow.Array:
    """Return the dates of one form, with or without a time after them."""
    year = r"\d{4}" if "%Y" in form else r"\d\d"
    # how many parts of a date, such as its month, stand before its day
    day_position = len(re.split("[/.]", form.partition("%d")[0])) - 1
    # strptime would read 1.2.3 as a day of the year 3, so years must have all digits
    text = _matching(text, rf"^(?:[^/.]+[/.])*{year}(?:[/.]|$)")
    parts = []
    for time in ("", *_TIMES):
        values = compute.strptime(text, form + time, "us", error_is_null=True)
        if values.null_count < len(values) and "%d" in form:
            pattern = rf"^(?:[^/.]+[/.]){{{day_position}}}(?P<day>\d+)"
            days = compute.struct_field(compute.extract_regex(text, pattern), "day")
            no_date = pyarrow.scalar(None, values.type)
            values = compute.if_else(_is_on(values, days), values, no_date)
        parts.append(values)
    return compute.coalesce(*parts)


def _is_on(moments: pyarrow.Array, days: pyarrow.Array) -> pyarrow.Array:
    """Return whether moments are on these days of a month.

    Arrow reads the 31st of February as the 2nd of March.
    """
    return compute.equal(compute.day(moments), days.cast("int64"))


def _matching(text: pyarrow.Array, pattern: str) -> pyarrow.Array:
    """Return the texts that a pattern matches, others as null."""
    fits = compute.match_substring_regex(text, pattern)
    return compute.if_else(fits, text, _no_text())


def with_notations(
    table: RawTable, notations: Mapping[str, Notation], *, is_new: bool = False
) -> RawTable:
    """Return a table whose columns of text with a notation become numbers or dates.

    Its batches raise DataError, with row and column, if a text does not fit. `is_new`:
    whether it is read for a new dataset, so the error may advise to leave out columns.
    """
    applied = {}
    schema_types = {}
    for column in table.schema:
        schema_types[column.name] = column.type
        notation = notations.get(column.name)
        if notation is not None and _applies(notation, column.type, table):
            applied[column.name] = notation
            schema_types[column.name] = notation.type
    if not applied:
        return table

    def batches(types: Types) -> Batches:
        start = 0
        texts = dict.fromkeys(applied.keys() & types.keys(), pyarrow.string())
        for batch in table.batches({**types, **texts}):
            columns = {name: batch.column(name) for name in types}
            for name in texts:
                if types[name] == pyarrow.string():
                    continue  # the caller wants the texts, for example of an id

                notation = applied[name]
                values, misfits = notation.read(columns[name])
                row = compute.index(misfits, True).as_py()
                if row >= 0:
                    unit = f" in {notation.unit}" if notation.unit else ""
                    leave_out = (
                        ", or leave the column out with `drop`" if is_new else ""
                    )
                    raise DataError(
                        f"{table.name}: {table.place(start + row)}, column {name!r} is"
                        f" {str(columns[name][row])[:50]!r}; expected a {notation.kind}"
                        f"{unit}, as in the first rows. Correct it{leave_out}"
                    )
                columns[name] = values.cast(types[name])
            yield pyarrow.RecordBatch.from_pydict(columns)
            start += batch.num_rows

    return replace(table, schema=pyarrow.schema(schema_types), batches=batches)


def _applies(notation: Notation, stored: pyarrow.DataType, table: RawTable) -> bool:
    kind = kind_of(stored)
    if kind == "text":
        return True
    if notation.kind == "boolean":
        return False
    if notation.kind == "date":  # written as numbers, such as 20240229
        return kind == "number"
    # A text file's numbers may have been read with another decimal point: with decimal
    # commas 1.234 is 1234.
    return table.is_text_file
