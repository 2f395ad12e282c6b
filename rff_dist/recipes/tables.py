"""What all tables share: batches of Arrow columns, kinds of types, arrays from columns.

A reader of any format returns a `RawTable`: its schema, and a function that yields
batches of the wanted columns, so no table needs to fit into memory. Columns are of
three kinds: numbers, text and dates.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rff_dist.data import array_checks
from rff_dist.errors import DataError, StorageError
from rff_dist.recipes.arrow import compute, pyarrow, types
from rff_dist.storage import locations
from rff_dist.text import clipped
from rff_dist.typing import AnyDType, frozen

_BATCH_BYTES = 8 * 2**20

#: Texts that stand for a missing number or date: all that Arrow's CSV reader takes for
#: missing, and "?".
MISSING_TEXTS = [
    "",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-1.#IND",
    "-1.#QNAN",
    "-NaN",
    "-nan",
    "1.#IND",
    "1.#QNAN",
    "N/A",
    "NA",
    "NULL",
    "NaN",
    "n/a",
    "nan",
    "null",
    "?",
]

_MISSING = frozenset(MISSING_TEXTS)

#: the type to read each column by, by the column's name
type Types = Mapping[str, pyarrow.DataType]
#: rows as they are read
type Batches = Iterator[pyarrow.RecordBatch]


def place_of_row(row: int) -> str:
    """Return where a row, counted from 0, is in a table without lines."""
    return f"row {row + 1} (rows count from 1, without a header)"


@frozen
class RawTable:
    """Columns of numbers, text and dates, read batch by batch."""

    name: str
    #: types of the columns; for text files and queries guessed from their first rows
    schema: pyarrow.Schema
    #: reads the wanted columns, by their types, from the first row on
    batches: Callable[[Types], Batches]
    #: number of rows; None if unknown
    n_samples: int | None
    #: what is unusual about how it is read
    notes: Sequence[str] = ()
    #: whether rows behind the first batch can be read only once
    is_read_once: bool = False
    #: whether its numbers are written as text, so that types are guesses
    is_text_file: bool = False
    #: the decimal mark of a text file, "." or ",", for numbers such as 1.234 that could
    #: be read with either
    decimal: str | None = None
    #: of a text file or a sheet: its lines below the names, from 1; as many as rows,
    #: unless lines are blank or texts have line breaks
    row_lines: range | None = None
    #: what these lines are called
    line_unit: str = "line"
    #: names a row, counted from 0, by the line that users see in their program
    place: Callable[[int], str] = place_of_row

    def first_rows(self, wanted_types: Types) -> pyarrow.RecordBatch | None:
        """Return the first rows of some columns; None if the table is empty.

        Reading batches later starts again at the first row.
        """
        return next(self.batches(wanted_types), None)


# -- what columns hold


@cache  # called 35,000 times for a table of 5,000 columns
def kind_of(type_: pyarrow.DataType) -> str | None:
    """Return the kind of an Arrow type: "number", "text", "date", or None for others.

    A time of day counts as a number of hours, a duration as a number of days. A column
    that is empty in the first rows may hold numbers in later ones.
    """
    if types.is_dictionary(type_):
        type_ = type_.value_type
    is_text = types.is_string(type_) or types.is_large_string(type_)
    if is_text or types.is_string_view(type_):
        return "text"
    if types.is_date(type_) or types.is_timestamp(type_):
        return "date"
    if _is_plain(type_) or _is_span(type_) or types.is_decimal(type_):
        return "number"
    # a column that is empty so far may hold numbers
    return "number" if types.is_null(type_) else None


def meaning_of(type_: pyarrow.DataType) -> str:
    """Return what numbers or dates of a type are, where their kind does not say it."""
    if types.is_duration(type_):
        return "durations"
    if types.is_timestamp(type_) and type_.tz:
        return "times with a zone"
    return "times without a zone" if kind_of(type_) == "date" else "numbers"


def _is_plain(type_: pyarrow.DataType) -> bool:
    is_number = types.is_integer(type_) or types.is_floating(type_)
    return bool(is_number or types.is_boolean(type_))


def _is_span(type_: pyarrow.DataType) -> bool:
    return bool(types.is_time(type_) or types.is_duration(type_))


def read_type(
    stored_type: pyarrow.DataType, wanted_kind: str | None
) -> pyarrow.DataType:
    """Return the type to read a column by, from the type of its first rows.

    Numbers are read as float64, since "1.5" may follow after integers. `wanted_kind` is
    "number", "text", "date", or None for labels, which are read as they are.
    """
    if wanted_kind == "text" or (wanted_kind is None and types.is_null(stored_type)):
        return pyarrow.string()
    if wanted_kind == "date":
        zone = stored_type.tz if types.is_timestamp(stored_type) else None
        return pyarrow.timestamp("us", zone)
    keeps_type = types.is_boolean(stored_type) or types.is_decimal(stored_type)
    if wanted_kind == "number" and not keeps_type and not _is_span(stored_type):
        return pyarrow.float64()
    return stored_type


def number_dtype(type_: pyarrow.DataType) -> AnyDType:
    """Return the dtype that keeps all digits of a column of numbers."""
    return np.dtype(type_.to_pandas_dtype() if _is_plain(type_) else np.float64)


def to_numbers(column: pyarrow.Array) -> np.ndarray:
    """Return a column of numbers as float64, missing values as NaN; see `kind_of`."""
    # a short cut for most columns, which tables of thousands of columns need
    if column.type == pyarrow.float64():
        return _floats(column)
    scale = 1.0
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_time(column.type):
        column = column.cast(pyarrow.time64("ns")).cast("int64")
        scale = 3.6e12
    elif types.is_duration(column.type):
        column = column.cast(pyarrow.duration("us")).cast("int64")
        scale = 8.64e10
    # rounds integers above 2^53, which "safe" refuses
    values = _floats(column.cast("float64", safe=False))
    return values / scale if scale != 1.0 else values


def _floats(column: pyarrow.Array) -> np.ndarray:
    """Return a column of float64 as an array, missing values as NaN.

    This and `to_column` run for every prediction. They avoid Arrow's `to_numpy` and
    `array` for numbers, which import pandas: that takes 0.3 s of the second in which
    `rff-dist predict` predicts a row.
    """
    values = np.frombuffer(
        column.buffers()[1], np.float64, len(column), 8 * column.offset
    )
    if not column.null_count:
        return values
    return np.where(np.from_dlpack(column.is_null().cast("uint8")), np.nan, values)


def column_of(values: Sequence[Any]) -> pyarrow.Array:
    """Return Python's values as a column of one type; of text if their types differ.

    Among values that are not text, a text such as "NA" is a missing value.
    """
    kinds = {type(value) for value in values if not _is_missing(value)}
    if kinds <= {str}:
        texts = [value if value != "" else None for value in values]
        return pyarrow.array(texts, pyarrow.string() if kinds else pyarrow.null())
    values = [None if _is_missing(value) else value for value in values]
    if kinds <= {int, float}:
        type_ = None if kinds == {int} else pyarrow.float64()
        # whole floats become int64; if that cast fails, all stay float64
        with suppress(pyarrow.ArrowException, OverflowError):
            return pyarrow.array(values, type_, from_pandas=True).cast("int64")
        return pyarrow.array(values, pyarrow.float64(), from_pandas=True)
    if kinds <= {date, datetime}:
        moments = [
            datetime(*v.timetuple()[:3]) if type(v) is date else v for v in values
        ]
        is_zoned = any(moment.tzinfo for moment in moments if moment is not None)
        return pyarrow.array(
            moments, pyarrow.timestamp("us", "UTC" if is_zoned else None)
        )
    if len(kinds) == 1 or kinds <= {list, dict}:
        return pyarrow.array(values)
    texts = [None if value is None else cell_text(value) for value in values]
    return pyarrow.array(texts, pyarrow.string())


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value in _MISSING)


def cell_text(value: Any) -> str:
    """Return a value as text, as a CSV file has it."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def with_lists(table: RawTable) -> RawTable:
    """Return a table whose lists of numbers, such as embeddings, are columns.

    They are called "NAME 0", "NAME 1", …. Its batches raise DataError if a list is not
    as long as the first one.
    """
    list_types = {
        field.name: field.type for field in table.schema if _is_list(field.type)
    }
    first = table.first_rows(list_types) if list_types else None
    if first is None:
        return table
    widths = {}
    for name in list_types:
        lengths = compute.list_value_length(first.column(name)).drop_null()
        if len(lengths):
            widths[name] = lengths[0].as_py()
    fields = {}
    # for each new column, the name of its list and its position in the list
    positions: dict[str, tuple[str, int]] = {}
    for column in table.schema:
        if column.name not in widths:
            fields[column.name] = column.type
            continue
        for i in range(widths[column.name]):
            name = f"{column.name} {i}"
            fields[name] = column.type.value_type
            positions[name] = (column.name, i)

    def batches(wanted_types: Types) -> Batches:
        stored_types = {}
        for name, type_ in wanted_types.items():
            if name in positions:
                source, _ = positions[name]
                stored_types[source] = list_types[source]
            else:
                stored_types[name] = type_
        start = 0
        for batch in table.batches(stored_types):
            for name in stored_types.keys() & widths.keys():
                lengths = compute.list_value_length(batch.column(name))
                differs = compute.not_equal(lengths, widths[name])
                row = compute.index(differs, True).as_py()
                if row >= 0:
                    raise DataError(
                        f"{table.name}: {table.place(start + row)}, column {name!r} has"
                        f" a list of {lengths[row]} numbers; expected {widths[name]},"
                        " as in the first rows. Correct it, or leave the column out of"
                        " a new dataset with `drop`"
                    )
            columns = {}
            for name, type_ in wanted_types.items():
                if name in positions:
                    source, i = positions[name]
                    elements = compute.list_element(batch.column(source), i)
                    columns[name] = elements.cast(type_, safe=False)
                else:
                    columns[name] = batch.column(name)
            yield pyarrow.RecordBatch.from_pydict(columns)
            start += batch.num_rows

    return replace(table, schema=pyarrow.schema(fields), batches=batches)


def _is_list(type_: pyarrow.DataType) -> bool:
    if types.is_list(type_) or types.is_large_list(type_):
        return _is_plain(type_.value_type)
    return types.is_fixed_size_list(type_) and _is_plain(type_.value_type)


def to_column(values: np.ndarray) -> pyarrow.Array:
    """Return a 1-D array of numbers or text as a column."""
    # Arrow copies text, and booleans too, which it packs into bits
    if values.dtype.kind in "UT":
        values = values.astype(object)
    if values.dtype.kind not in "iuf":
        return pyarrow.array(values)
    plain = np.ascontiguousarray(array_checks.native(values))
    data = pyarrow.py_buffer(plain)
    return pyarrow.Array.from_buffers(
        pyarrow.from_numpy_dtype(plain.dtype), len(plain), [None, data]
    )


def to_text(column: pyarrow.Array) -> pyarrow.Array:
    """Return a column as text; empty text becomes missing."""
    text = _as_file_text(column)
    return compute.if_else(
        compute.equal(text, ""), pyarrow.scalar(None, pyarrow.string()), text
    )


def _as_file_text(column: pyarrow.Array) -> pyarrow.Array:
    """Return values as text, as files write them: whole floats without an exponent or
    decimals, NaN as missing. Arrow would write "1e+15" and "nan".
    """
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    text = column.cast(pyarrow.string(), safe=False)
    if not types.is_floating(column.type):
        return text
    whole = column.cast("int64", safe=False)
    is_whole = compute.equal(whole.cast(column.type, safe=False), column)
    text = compute.if_else(is_whole, whole.cast(pyarrow.string()), text)
    return compute.if_else(compute.is_nan(column), None, text)


def to_labels(column: pyarrow.Array) -> np.ndarray:
    """Return a column of labels as an array; texts are objects, missing ones None."""
    kind = kind_of(column.type)
    if kind == "date":
        column = column.cast(pyarrow.string())
    if column.null_count or kind != "number":
        return np.array(column.to_pylist(), object)
    return np.asarray(column.to_numpy(zero_copy_only=False))


@contextmanager
def opening(path: Path, file_format: str, *others: type[Exception]) -> Iterator[None]:
    """Turn errors of Arrow, of the disk and `others` into a StorageError."""
    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeError, *others) as error:
        if isinstance(error, StorageError):
            raise
        why = (
            "it is empty"
            if path.is_file() and not path.stat().st_size
            else _explain(error)
        )
        raise StorageError(f"{path} cannot be read as {file_format}: {why}") from error


def _explain(error: Exception) -> str:
    """Return what is wrong, without the name of Arrow's parser and its error."""
    return locations.explain(error).rpartition("parse error: ")[2]


@contextmanager
def locating(pattern: str, place: Callable[[int], str]) -> Iterator[None]:
    """Replace the number of a row in Arrow's messages, the first group of a pattern, by
    the row's place.
    """
    try:
        yield
    except pyarrow.ArrowInvalid as error:
        text = re.sub(pattern, lambda match: place(int(match[1])), str(error))
        raise pyarrow.ArrowInvalid(text) from error


@contextmanager
def expecting_types(path: Path) -> Iterator[None]:
    """Raise DataError if later rows of a text file have other types than the first
    rows; StorageError if they cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read to its end: {locations.explain(error)}"
        ) from error
    except (pyarrow.ArrowException, UnicodeError) as error:
        raise DataError(
            f"{path.name}: {_explain(error)}; expected one type of value"
            " in each column, as in the first rows. Correct the value, or leave"
            " the column out of a new dataset with `drop`"
        ) from error


def types_to_read(wanted_types: Types, schema: pyarrow.Schema) -> Types:
    """Return the types to read by, for readers that cannot turn numbers into text.

    Numbers that are wanted as text are read as numbers; `cast_columns` then makes texts
    of them.
    """
    read_types = {}
    for name, wanted_type in wanted_types.items():
        stored_type = schema.field(name).type
        is_number = kind_of(stored_type) == "number" and stored_type != pyarrow.null()
        is_cast_later = is_number and wanted_type == pyarrow.string()
        read_types[name] = stored_type if is_cast_later else wanted_type
    return read_types


def cast_columns(
    batch: pyarrow.RecordBatch, wanted_types: Types, table: str
) -> pyarrow.RecordBatch:
    """Return the columns of `wanted_types`, cast to these types.

    Raises DataError, which names the table, if a value cannot be cast.
    """
    columns = {}
    for name, type_ in wanted_types.items():
        column = batch.column(name)
        try:
            if type_ == pyarrow.string():
                columns[name] = _as_file_text(column)
            elif column.type == type_:
                columns[name] = column
            else:
                columns[name] = column.cast(type_, safe=False)
        except pyarrow.ArrowException as error:
            raise DataError(
                f"{table}: column {name!r} is {column.type}; expected {type_}, as in"
                f" the dataset ({locations.explain(error)})"
            ) from error
    return pyarrow.RecordBatch.from_pydict(columns)


def rows_per_batch(row_bytes: int) -> int:
    """Return how many rows of a size are read at once."""
    return max(1, _BATCH_BYTES // max(1, row_bytes))


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def numbered(names: Sequence[str]) -> list[str]:
    """Return names that are all different: a repeated name gets a number.

    >>> numbered(["a", "", "a", "", "a.2"])
    ['a', '', 'a.3', '.2', 'a.2']
    """
    used_names = set(names)
    unique_names = dict[str, None]()
    for name in names:
        unique = name
        count = 2
        # a number must not make a name that another column already has
        while unique in unique_names or (unique != name and unique in used_names):
            unique = f"{name}.{count}"
            count = count + 1
        unique_names[unique] = None
    return list(unique_names)


def numbered_note(names: Sequence[str]) -> list[str]:
    """Say which of the names were numbered, if any."""
    new_names = [
        new for old, new in zip(names, numbered(names), strict=True) if old != new
    ]
    return (
        [f"columns of the same name are numbered: {listed(new_names)}"]
        if new_names
        else []
    )


def listed(names: Sequence[str]) -> str:
    """Return up to ten names as text for messages."""
    return ", ".join(clipped(repr(name), 60) for name in names[:10]) + (
        " …" if len(names) > 10 else ""
    )
