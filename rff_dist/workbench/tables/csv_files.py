"""CSV files → tables; delimiter, header and encoding are detected unless given.

pyarrow reads the cells, but must be told how the file is written: alone it expects
commas, one line of names and UTF-8. So the first lines tell where names and rows begin
and what divides cells, and all bytes are scanned for the encoding and for quotes. The
result is a `Dialect`.
"""

import codecs
import csv
import io
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow
from pyarrow import csv as arrow_csv

from rff_dist.errors import StorageError
from rff_dist.recipes.notations import number_pattern
from rff_dist.recipes.reading import CsvOptions
from rff_dist.recipes.tables import (
    MISSING_TEXTS,
    Batches,
    RawTable,
    Types,
    expecting_types,
    locating,
    numbered,
    numbered_note,
    opening,
    place_of_row,
    repeated,
)
from rff_dist.typing import frozen

_SAMPLE_BYTES = 2**16  # these show how a file is written; more if lines are longer
_PIECE_BYTES = 2**20  # read at a time
# At most so many bytes are sampled for three line ends: a file without any must not
# fill the memory.
_MOST_SAMPLE_BYTES = 2**26
_MOST_TITLE_LINES = 10
#: Batches that are parsed while others are encoded and written: writing a chunk takes
#: as long as parsing a few batches.
_AHEAD = 4
#: the delimiter of a file whose cells any number of spaces divides
_ALIGNED = "  "
#: Commas may be in numbers and spaces in text, so they are tried last.
_DELIMITERS = ["\t", ";", "|", ",", " ", _ALIGNED]
_DELIMITER_NAMES = {"\t": "tab", " ": "space", _ALIGNED: "spaces"}
_SPACES = re.compile(r'("[^"]*")|[^\S\n]+')
_VALUE = re.compile(
    rf"{number_pattern('.')}|{number_pattern(',')}|true|false|\d{{4}}-\d\d-\d\d.*",
    re.IGNORECASE,
)


@frozen
class Dialect:
    """How one CSV file is written."""

    #: names of the columns; None if a line of the file holds them, and all differ
    names: list[str] | None
    has_header: bool
    delimiter: str
    encoding: str
    #: quoted text may hold line breaks
    has_quotes: bool
    #: lines of the file
    n_lines: int
    #: bytes that Arrow reads at once, enough for several rows
    block_size: int
    #: texts that count as missing
    missing: list[str] = field(default_factory=list)
    #: lines above the names
    n_above: int = 0

    @property
    def notes(self) -> list[str]:
        """What is unusual about the file, in words."""
        notes = []
        if not self.has_header:
            notes.append("no header: columns are called 0, 1, …")
        if self.delimiter != ",":
            name = _DELIMITER_NAMES.get(self.delimiter, self.delimiter)
            notes.append(f"delimiter {name}")
        notes += numbered_note(self.names or [])
        if self.encoding != "utf-8":
            notes.append(f"encoding {self.encoding}")
        if self.n_above:
            notes.append(f"lines above the names are skipped: {self.n_above}")
        return notes

    @property
    def first_line(self) -> int:
        """The line below the names."""
        return self.n_above + int(self.has_header) + 1

    @contextmanager
    def open(self, path: Path, types: Types | None = None) -> Iterator[Any]:
        """Open a reader of all columns, or of the columns in `types`."""
        names = None if self.names is None else numbered(self.names)
        source: Any = str(path)
        encoding = self.encoding
        if self.delimiter == _ALIGNED:
            source = _with_single_spaces(path, encoding)
            encoding = "utf-8"
        # Arrow counts neither blank lines nor line breaks in texts
        with (
            locating(r"Row #(\d+)", lambda n: self.place(path, n - self.first_line)),
            arrow_csv.open_csv(
                source,
                arrow_csv.ReadOptions(
                    block_size=self.block_size,
                    # With threads Arrow names no row in its messages; `_ahead` parses
                    # in a thread of ours.
                    use_threads=False,
                    skip_rows=self.n_above,
                    column_names=names,
                    skip_rows_after_names=int(
                        self.has_header and self.names is not None
                    ),
                    encoding=encoding,
                ),
                arrow_csv.ParseOptions(
                    delimiter=self.delimiter[:1],
                    # makes Arrow cut blocks more slowly, so only if there are quotes
                    newlines_in_values=self.has_quotes,
                ),
                arrow_csv.ConvertOptions(
                    column_types=types,
                    include_columns=None if types is None else list(types),
                    null_values=[*MISSING_TEXTS, *self.missing],
                    # Other dates are read as text, which notations turn into dates:
                    # Arrow would read 31.02.2024 as the 2nd of March.
                    timestamp_parsers=[arrow_csv.ISO8601],
                ),
            ) as reader,
        ):
            yield reader

    def place(self, path: Path, row: int) -> str:
        """Return the line in which a row, counted from 0, begins; blank lines and line
        breaks in texts count too.
        """
        with pyarrow.input_stream(str(path), compression="detect") as stream:
            lines = io.TextIOWrapper(stream, self.encoding, "replace", newline="")
            for _ in range(self.n_above):
                next(lines)
            reader = csv.reader(lines, delimiter=self.delimiter[:1])
            n_before = row + int(self.has_header)
            line = self.n_above + 1
            try:
                for cells in reader:
                    if cells and not n_before:
                        break
                    n_before -= bool(cells)
                    line = self.n_above + reader.line_num + 1
            except csv.Error:  # a text is longer than this module takes
                return place_of_row(row)
        return f"line {line}"


def _with_single_spaces(path: Path, encoding: str) -> pyarrow.OSFile:
    """Open a temporary copy in UTF-8, with one space between cells."""
    with (
        NamedTemporaryFile() as copy,
        pyarrow.input_stream(str(path), compression="detect") as stream,
    ):
        if encoding == "utf-8":
            encoding = "utf-8-sig"
        lines = io.TextIOWrapper(stream, encoding)
        copy.writelines(f"{_single_spaces(line)}\n".encode() for line in lines)
        copy.flush()
        # The file's name is removed now; its rows stay readable until it is closed.
        return pyarrow.OSFile(copy.name)


def _single_spaces(line: str) -> str:
    return _SPACES.sub(lambda match: match[1] or " ", line.strip())


def csv_table(path: Path, reading: CsvOptions) -> RawTable:
    """Return a file as a table; its first block decides the types of its columns.

    Raises StorageError if it cannot be read. The table's batches raise DataError if a
    value has another type.
    """
    dialect = find_dialect(path, reading)
    with opening(path, "CSV"), dialect.open(path) as reader:
        schema = reader.schema

    def batches(types: Types) -> Batches:
        with expecting_types(path), dialect.open(path, types) as reader:
            yield from _ahead(reader)

    # files use semicolons between cells because their decimal mark is a comma
    decimal = "," if dialect.delimiter == ";" else "."
    return RawTable(
        path.name,
        schema,
        batches,
        n_samples=None,
        notes=dialect.notes,
        is_text_file=True,
        decimal=decimal,
        row_lines=range(dialect.first_line, dialect.n_lines + 1),
        place=partial(dialect.place, path),
    )


def _ahead(batches: Batches) -> Batches:
    """Yield batches in their order, while a thread parses the next ones.

    Arrow's own threads (`use_threads`) would do so too, but leave the row out of
    messages.
    """
    if (first := next(batches, None)) is None:
        return
    yield first  # many callers want only this one
    # One thread: the reader is not safe for several, and batches must keep their order.
    with ThreadPoolExecutor(1, "rff-dist-reader") as parser:
        coming = deque(parser.submit(next, batches, None) for _ in range(_AHEAD))
        while (batch := coming.popleft().result()) is not None:
            coming.append(parser.submit(next, batches, None))
            yield batch


def find_dialect(path: Path, reading: CsvOptions) -> Dialect:
    """Detect how a file is written.

    A file that is not UTF-8 is taken for Windows-1252, which includes Latin-1. Raises
    StorageError if it cannot be read.
    """
    with opening(path, "CSV"):
        encoding, has_quotes, n_lines = _scan(path, reading.encoding)
        sample, is_whole = _first_lines(path)
    # the sample may end within a character, and within its last line
    text = sample.decode(encoding, errors="replace").removeprefix("\ufeff")
    lines = list(io.StringIO(text, newline=""))
    if not is_whole and len(lines) > 1:
        lines.pop()
    longest = max(map(len, lines), default=0)

    n_above = sum(1 for _ in takewhile(lambda line: line[0] in "#\r\n", lines))
    if n_above == len(lines):  # a column of codes that begin with #, no comments
        n_above = 0
    delimiter, n_title, rows = _find_body(lines[n_above:], reading.delimiter)
    n_above += n_title
    has_header = reading.header
    if has_header is None:
        has_header = has_names(rows)
    names = None
    if rows and not has_header:
        names = [str(i) for i in range(len(rows[0]))]
    elif rows and repeated(rows[0]):
        names = rows[0]
    return Dialect(
        names=names,
        has_header=has_header or not rows,
        delimiter=delimiter,
        encoding=encoding,
        has_quotes=has_quotes,
        n_lines=n_lines,
        # Arrow refuses a row that is longer than a block. Many small blocks are slow:
        # each costs a little time per column.
        block_size=max(2**20, min(512 * longest, 2**24), 16 * longest),
        missing=reading.missing or [],
        n_above=n_above,
    )


def _find_body(
    lines: list[str], delimiter: str | None
) -> tuple[str, int, list[list[str]]]:
    """Return the delimiter, the number of title lines, and the rows below them."""
    # The table may begin at each line that is not blank: the first beginning is taken
    # that leaves a table below it, and a title above it.
    not_blank = [i for i, line in enumerate(lines) if line.strip()]
    for start in [0, *not_blank[1:_MOST_TITLE_LINES]]:
        candidate = _find_delimiter(lines[start:], delimiter)
        rows = _rows(lines[start:], candidate)
        is_table = len({len(row) for row in rows}) == 1
        has_cells = len(rows) > 1 and len(rows[0]) > 1
        # one column of texts with spaces has no title
        may_have_title = not start or candidate.strip(" ") != ""
        is_title = all(len(row) == 1 for row in _rows(lines[:start], candidate))
        if is_table and has_cells and may_have_title and is_title:
            return candidate, start, rows
    candidate = _find_delimiter(lines, delimiter)
    return candidate, 0, _rows(lines, candidate)


def has_names(rows: list[list[str]]) -> bool:
    """Return whether the first of some rows holds names.

    Decided by the first of these rules that applies: text above a column of numbers is
    a name; 0, 1, 2, … in this order are names; a row with a number is no row of names;
    nor is one with a text that comes again below it.

    >>> has_names([["a", "b"], ["1", "x"]]), has_names([["1.5", "x"], ["2", "y"]])
    (True, False)
    """
    if not rows:
        return True
    first, *others = ([cell.strip() for cell in row] for row in rows)
    columns = list(zip(first, zip(*others, strict=False), strict=False))
    for name, cells in columns:
        values = [cell for cell in cells if cell not in MISSING_TEXTS]
        is_text = name not in MISSING_TEXTS and not _VALUE.fullmatch(name)
        if is_text and values and all(map(_VALUE.fullmatch, values)):
            return True
    if len(first) > 2 and first == [str(i) for i in range(len(first))]:
        return True
    if any(map(_VALUE.fullmatch, first)):
        return False
    return not any(name and name in cells for name, cells in columns)


@dataclass(slots=True)
class _Quotes:
    """The quotes in a file: how many, and whether the last one begins a text."""

    n_quotes: int = 0
    n_lines: int = 0
    #: the line of the last quote, and the byte before it
    last_line: int = 0
    before_last: bytes = b""

    def add(self, piece: bytes) -> None:
        at = piece.rfind(b'"')
        if at >= 0:
            self.n_quotes += piece.count(b'"')
            self.last_line = self.n_lines + piece.count(b"\n", 0, at) + 1
            self.before_last = piece[max(0, at - 1) : at]
        self.n_lines += piece.count(b"\n")

    @property
    def never_ends(self) -> bool:
        """Whether the last quote begins a text that goes on to the end of the file.

        An odd quote may stand for inches: only one that begins a cell opens a text.
        """
        begins_cell = self.before_last in (b"", b",", b";", b"\t", b"|", b"\n")
        is_odd = self.n_quotes % 2 == 1
        return is_odd and begins_cell and self.n_lines > self.last_line


def _scan(path: Path, encoding: str | None) -> tuple[str, bool, int]:
    """Return the encoding of a file, whether it has quotes, and its number of lines.

    Reads the whole file: a single late byte that is not UTF-8 would otherwise stop an
    ingest halfway.
    """
    quotes = _Quotes()
    last_byte = b"\n"
    decoder = codecs.getincrementaldecoder("utf-8")()
    with pyarrow.input_stream(str(path), compression="detect") as stream:
        piece = stream.read(_PIECE_BYTES)
        if encoding is None and piece[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            encoding = "utf-16"
        # in UTF-16 every other byte of English text is 0
        n_zeros = max(piece[::2].count(0), piece[1::2].count(0))
        if encoding is None and n_zeros > len(piece) / 4:
            raise StorageError(
                f"{path} seems to be UTF-16 without a byte order mark; give `encoding`,"
                " utf-16-le or -be"
            )
        while piece:
            quotes.add(piece)
            last_byte = piece[-1:]
            if encoding is None:
                try:
                    decoder.decode(piece)
                except UnicodeDecodeError:
                    encoding = "cp1252"
            piece = stream.read(_PIECE_BYTES)
    if quotes.never_ends:
        raise StorageError(
            f"{path}: the quote that begins in line {quotes.last_line} never ends;"
            " expected another one"
        )
    n_lines = quotes.n_lines + int(last_byte != b"\n")
    return encoding or "utf-8", quotes.n_quotes > 0, n_lines


def _first_lines(path: Path) -> tuple[bytes, bool]:
    """Return the beginning of a file, at least two lines, and whether that is all."""
    with pyarrow.input_stream(str(path), compression="detect") as stream:
        sample = stream.read(_SAMPLE_BYTES)
        # Three line ends: names, a row to tell types by, and a last line, which may be
        # cut.
        while sample.count(b"\n") < 3 and len(sample) < _MOST_SAMPLE_BYTES:
            more = stream.read(len(sample) or 1)
            if not more:
                return sample, True
            sample += more
        return sample, not stream.read(1)


def _rows(lines: list[str], delimiter: str) -> list[list[str]]:
    if delimiter == _ALIGNED:
        lines = [_single_spaces(line) for line in lines]
        delimiter = " "
    try:
        return [row for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return []


def _find_delimiter(lines: list[str], delimiter: str | None) -> str:
    """Return the delimiter that cuts all lines into equally many cells.

    If none does, it is the given one, or a comma. A given space may stand for several.
    """
    candidates = _DELIMITERS if delimiter is None else [delimiter]
    if delimiter == " ":
        candidates = [" ", _ALIGNED]
    for candidate in candidates:
        rows = _rows(lines, candidate)
        widths = {len(row) for row in rows}
        if len(widths) == 1 and widths != {1}:
            return candidate
    return delimiter or ","
