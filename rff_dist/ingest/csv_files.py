"""CSV files: how one is written is found out from its beginning, unless it is said."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import csv as arrow_csv

from rff_dist.ingest.tables import Reading, Table, expecting_types, opening

_SAMPLE_BYTES, _PIECE = 2**16, 2**20
_LONGEST_LINE = 2**26
#: A comma may stand in numbers and a space in text, so they are tried last.
_DELIMITERS = "\t;|, "
_MISSING = [*arrow_csv.ConvertOptions().null_values, "?"]
#: Dates whose day and month cannot be mistaken for one another.
_DATES = [arrow_csv.ISO8601, "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S"]
_VALUE = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)(e[+-]?\d+)?|true|false|\d{4}-\d\d-\d\d.*", re.IGNORECASE)
_COMMA_NUMBER, _POINT_NUMBER = re.compile(r"[+-]?\d+,\d+"), re.compile(r"[+-]?\d*\.\d+")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one file is written.

    `names`: of the columns, where no line holds them.
    `decimal`: the decimal point.
    `is_quoted`: whether there are quotes, in which lines may end.
    `block_size`: bytes that hold several rows.
    """

    names: list[str] | None
    delimiter: str
    encoding: str
    decimal: str
    is_quoted: bool
    block_size: int

    @property
    def notes(self) -> list[str]:
        """What is unusual, in words."""
        names = {"\t": "tab", " ": "space"}
        parts = [
            "no header: columns are called 0, 1, …" if self.names is not None else "",
            f"delimiter {names.get(self.delimiter, self.delimiter)}" if self.delimiter != "," else "",
            "decimal commas" if self.decimal == "," else "",
            f"encoding {self.encoding}" if self.encoding != "utf-8" else "",
        ]
        return [part for part in parts if part]

    def open(self, path: Path, types: Mapping[str, pyarrow.DataType] | None = None) -> Any:
        """Return a reader of a file, which is a context; only columns of the `types` are read then."""
        return arrow_csv.open_csv(
            str(path),
            arrow_csv.ReadOptions(
                block_size=self.block_size, use_threads=False, column_names=self.names, encoding=self.encoding
            ),
            arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=self.is_quoted),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=None if types is None else list(types),
                null_values=_MISSING,
                timestamp_parsers=_DATES,
                decimal_point=self.decimal,
            ),
        )


def csv_table(path: Path, reading: Reading) -> Table:
    """Return a file as a table, the types of its columns as its first block has them.

    Raises StorageError if it cannot be read; its batches raise DataError if a value is of another type.
    """
    dialect = find_dialect(path, reading)
    with opening(path, "CSV"), dialect.open(path) as reader:
        schema = reader.schema

    def batches(types: Mapping[str, pyarrow.DataType]) -> Iterator[pyarrow.RecordBatch]:
        with expecting_types(path), dialect.open(path, types) as reader:
            yield from reader

    return Table(path.name, schema, batches, None, dialect.notes)


def find_dialect(path: Path, reading: Reading) -> Dialect:
    """Find out how a file is written, by its first lines; its encoding by all of it.

    A file that is not UTF-8 is taken for Windows-1252, which Latin-1 is a part of.

    Raises StorageError if it cannot be read.
    """
    with opening(path, "CSV"):
        encoding, is_quoted = _scan(path, reading.encoding)
        sample, is_whole = _first_lines(path)
    text = sample.decode(encoding, errors="replace").removeprefix("\ufeff")
    lines = list(io.StringIO(text, newline=""))
    lines = lines if is_whole or len(lines) < 2 else lines[:-1]
    longest = max(map(len, lines), default=0)
    delimiter = reading.delimiter or _find_delimiter(lines)
    rows = _rows(lines, delimiter)
    cells = [cell.strip() for row in rows for cell in row]
    commas = delimiter != "," and any(map(_COMMA_NUMBER.fullmatch, cells))
    decimal = "," if commas and not any(map(_POINT_NUMBER.fullmatch, cells)) else "."
    has_header = has_names(rows) if reading.header is None else reading.header
    names = None if has_header or not rows else [str(i) for i in range(len(rows[0]))]
    return Dialect(names, delimiter, encoding, decimal, is_quoted, max(2**20, 16 * longest))


def has_names(rows: list[list[str]]) -> bool:
    """Say whether the first of some rows holds names.

    It does where a column of numbers begins with text; else not if it holds a number, or text that comes
    again below it. The numbers 0, 1, 2, … in their order are names.

    >>> has_names([["a", "b"], ["1", "x"]]), has_names([["1.5", "x"], ["2", "y"]])
    (True, False)
    """
    if not rows:
        return True
    first = [cell.strip() for cell in rows[0]]
    below = [[cell.strip() for cell in column] for column in zip(*rows[1:], strict=False)]
    for name, column in zip(first, below, strict=False):
        values = [cell for cell in column if cell not in _MISSING]
        is_text = name not in _MISSING and not _VALUE.fullmatch(name)
        if is_text and values and all(map(_VALUE.fullmatch, values)):
            return True
    if len(first) > 2 and first == [str(i) for i in range(len(first))]:
        return True
    if any(map(_VALUE.fullmatch, first)):
        return False
    return not any(name and name in column for name, column in zip(first, below, strict=False))


def _scan(path: Path, encoding: str | None) -> tuple[str, bool]:
    """Return the encoding of a file, and whether there are quotes in it."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    found, is_quoted, begins = encoding, False, True
    with pyarrow.input_stream(str(path), compression="detect") as stream:
        while piece := stream.read(_PIECE):
            if begins and found is None and piece[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                found = "utf-16"
            begins = False
            is_quoted = is_quoted or b'"' in piece
            if found is None:
                try:
                    decoder.decode(piece)
                except UnicodeDecodeError:
                    found = "cp1252"
            if found is not None and is_quoted:
                break
    return found or "utf-8", is_quoted


def _first_lines(path: Path) -> tuple[bytes, bool]:
    """Return the beginning of a file, two lines at least, and whether that is all of it."""
    with pyarrow.input_stream(str(path), compression="detect") as stream:
        sample = stream.read(_SAMPLE_BYTES)
        while sample.count(b"\n") < 3 and len(sample) < _LONGEST_LINE:
            more = stream.read(len(sample) or 1)
            if not more:
                return sample, True
            sample += more
        return sample, not stream.read(1)


def _rows(lines: list[str], delimiter: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return []


def _find_delimiter(lines: list[str]) -> str:
    """Return the character that cuts all lines into as many cells; a comma where none does."""
    for delimiter in _DELIMITERS:
        widths = {len(row) for row in _rows(lines, delimiter)}
        if len(widths) == 1 and widths != {1}:
            return delimiter
    return ","
