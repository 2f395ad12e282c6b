"""CSV files, whose delimiter, header and encoding are found out unless they are given."""

import codecs
import csv
import io
import re
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow
from pyarrow import csv as arrow_csv

from rff_dist.errors import StorageError
from rff_dist.recipes import notations, tables
from rff_dist.recipes.reading import Reading
from rff_dist.typing import frozen

_SAMPLE_BYTES, _PIECE = 2**16, 2**20
# At most so many bytes are sampled for two line ends: a file without any must not fill the memory.
_LONGEST_LINE = 2**26
_MOST_ABOVE = 10  # lines of a title
#: Batches that are parsed while others are encoded and written: a chunk takes as long as a few of them.
_AHEAD = 4
#: Commas may be in numbers and spaces in text, so they are tried last.
_ALIGNED = "  "  # cells that any number of spaces divides
_DELIMITERS = ["\t", ";", "|", ",", " ", _ALIGNED]
_SPACES = re.compile(r'("[^"]*")|[^\S\n]+')
_VALUE = re.compile(
    rf"{notations.number_pattern('.')}|{notations.number_pattern(',')}|true|false|\d{{4}}-\d\d-\d\d.*",
    re.IGNORECASE,
)


@frozen
class Dialect:
    """How one CSV file is written.

    `names`: names of the columns, if no line of the file holds them, or some come twice.
    `has_header`: whether the first line holds names.
    `is_quoted`: whether there are quotes; quoted text may hold line breaks.
    `missing`: texts that count as missing.
    `n_above`: lines above the names.
    `has_comments`: whether lines that begin with # are skipped.
    `has_ends`: whether each row ends in a delimiter, behind which there is no column.
    `block_size`: bytes that are read at once; enough for several rows.
    """

    names: list[str] | None
    has_header: bool
    delimiter: str
    encoding: str
    is_quoted: bool
    block_size: int
    missing: Sequence[str] = ()
    n_above: int = 0
    has_comments: bool = False
    has_ends: bool = False

    @property
    def notes(self) -> list[str]:
        """In words, what is unusual about the file."""
        names = {"\t": "tab", " ": "space", _ALIGNED: "spaces"}
        parts = [
            "no header: columns are called 0, 1, …" if not self.has_header else "",
            f"delimiter {names.get(self.delimiter, self.delimiter)}" if self.delimiter != "," else "",
            *tables.numbered_note(self.names or []),
            f"encoding {self.encoding}" if self.encoding != "utf-8" else "",
            f"lines above the names are skipped: {self.n_above}" if self.n_above else "",
            "lines that begin with # are skipped" if self.has_comments else "",
            "each row ends in a delimiter" if self.has_ends else "",
        ]
        return [part for part in parts if part]

    def open(self, path: Path, types: tables.Types | None = None) -> Any:
        """Return a reader of a file, to be used in a `with`; given `types`, it reads these columns only."""
        names = None if self.names is None else tables.numbered(self.names)
        ends = {names[-1]: pyarrow.null()} if names is not None and self.has_ends else {}  # must be empty
        wanted = None if types is None else [*types, *ends]
        is_aligned = self.delimiter == _ALIGNED
        return arrow_csv.open_csv(
            _with_single_spaces(path, self.encoding) if is_aligned else str(path),
            arrow_csv.ReadOptions(
                block_size=self.block_size,
                # With threads Arrow names no row in its messages; `_ahead` parses in a thread of ours.
                use_threads=False,
                skip_rows=self.n_above,
                column_names=names,
                skip_rows_after_names=int(self.has_header and self.names is not None),
                encoding="utf-8" if is_aligned else self.encoding,
            ),
            arrow_csv.ParseOptions(
                delimiter=self.delimiter[:1],
                # costs Arrow its fast way of cutting blocks, so only where there are quotes
                newlines_in_values=self.is_quoted,
                invalid_row_handler=_skip_comment if self.has_comments else None,
            ),
            arrow_csv.ConvertOptions(
                column_types={**(types or {}), **ends},
                include_columns=wanted,
                null_values=[*tables.MISSING_TEXTS, *self.missing],
                # other dates are read as text and by notations: Arrow makes the 2nd of March of 31.02.2024
                timestamp_parsers=[arrow_csv.ISO8601],
            ),
        )


def _with_single_spaces(path: Path, encoding: str) -> pyarrow.OSFile:
    """Open a temporary copy of a file, in UTF-8, with one space between cells that several divide."""
    with NamedTemporaryFile() as copy, pyarrow.input_stream(str(path), compression="detect") as stream:
        lines = io.TextIOWrapper(stream, "utf-8-sig" if encoding == "utf-8" else encoding)
        copy.writelines(f"{_single_spaces(line)}\n".encode() for line in lines)
        copy.flush()
        return pyarrow.OSFile(copy.name)  # its name goes now, and its rows when it is closed


def _single_spaces(line: str) -> str:
    return _SPACES.sub(lambda found: found[1] or " ", line.strip())


def _skip_comment(row: Any) -> str:
    return "skip" if row.text.startswith("#") else "error"


def csv_table(path: Path, reading: Reading) -> tables.Table:
    """Return a file as a table; the first block of the file decides the types of its columns.

    Raises StorageError if it cannot be read. The table's batches raise DataError if a value has another type.
    """
    dialect = find_dialect(path, reading)
    with tables.opening(path, "CSV"), dialect.open(path) as reader:
        schema = reader.schema
    if dialect.has_ends:
        schema = schema.remove(len(schema) - 1)

    def batches(types: tables.Types) -> tables.Batches:
        with tables.expecting_types(path), dialect.open(path, types) as reader:
            yield from _ahead(reader)

    decimal = "," if dialect.delimiter == ";" else "."  # a semicolon is there since commas are decimal points
    return tables.Table(path.name, schema, batches, None, dialect.notes, decimal=decimal)


def _ahead(batches: tables.Batches) -> tables.Batches:
    """Yield batches in their order, while a thread parses the next ones.

    Arrow's own threads (`use_threads`) would do so too, but leave the row out of messages.
    """
    if (first := next(batches, None)) is None:
        return
    yield first  # many want no more, and would have four blocks parsed for nothing
    # One thread: the reader is not safe for several, and batches must keep their order.
    with ThreadPoolExecutor(1, "rff-dist-reader") as parser:
        coming = deque(parser.submit(next, batches, None) for _ in range(_AHEAD))
        while (batch := coming.popleft().result()) is not None:
            coming.append(parser.submit(next, batches, None))
            yield batch


def find_dialect(path: Path, reading: Reading) -> Dialect:
    """Find out how a file is written, from its first lines; all of it is scanned for the encoding.

    A file that is not UTF-8 is taken for Windows-1252, which includes Latin-1.

    Raises StorageError if it cannot be read.
    """
    with tables.opening(path, "CSV"):
        encoding, is_quoted = _scan(path, reading.encoding)
        sample, is_whole = _first_lines(path)
    # the sample may end within a character, and within its last line
    text = sample.decode(encoding, errors="replace").removeprefix("\ufeff")
    lines = list(io.StringIO(text, newline=""))
    lines = lines if is_whole or len(lines) < 2 else lines[:-1]
    longest = max(map(len, lines), default=0)
    delimiter, n_above, rows = _find_body(lines, reading.delimiter)
    _refuse_single_quotes(path, lines[n_above:], delimiter)
    names_at, has_comments = _find_comments(lines[n_above:], rows, delimiter)
    n_above += names_at
    if has_comments:  # the first row may be names that begin with #
        rows = _rows(lines[n_above:], delimiter)
        rows = [*rows[:1], *(row for row in rows[1:] if not row[0].startswith("#"))]
    # after the comments are gone: their cells would hide that all rows end alike
    has_ends = _has_ends(rows)
    has_header = has_names(rows) if reading.header is None else reading.header
    names = None
    if rows and not has_header:
        names = [str(i) for i in range(len(rows[0]))]
    elif has_ends:
        names = [*rows[0], ""][: len(rows[1])]
    elif rows and tables.repeated(rows[0]):
        names = rows[0]
    return Dialect(
        names,
        has_header or not rows,
        delimiter,
        encoding,
        is_quoted,
        # Arrow refuses a row that is longer than a block; a block costs a little for each column
        max(2**20, min(512 * longest, 2**24), 16 * longest),
        reading.missing or (),
        n_above,
        has_comments,
        has_ends,
    )


def _find_comments(lines: list[str], rows: list[list[str]], delimiter: str) -> tuple[int, bool]:
    """Return how many lines with # stand above the names, and whether such lines are comments.

    Those above are, unless the last of them holds the names; others are if they have another number of cells
    than rows, since codes may begin with # too.
    """
    above = next((i for i, line in enumerate(lines) if line.strip() and line[0] != "#"), 0)
    plain = [row for row in rows if not row[0].startswith("#")]
    if len(plain) < 2:
        return 0, False
    if above and len(_rows(lines[above - 1 : above], delimiter)[0]) == len(plain[0]) and not has_names(plain):
        return above - 1, above > 1
    below = _rows([line for line in lines[above:] if line.startswith("#")], delimiter)
    return above, above > 0 or any(len(row) != len(plain[0]) for row in below)


def _find_body(lines: list[str], given: str | None) -> tuple[str, int, list[list[str]]]:
    """Return the delimiter, how many lines of a title stand above the names, and the rows below."""
    # Each written line may be the last of a title: the first cut that leaves a table below it is taken.
    written = [i for i, line in enumerate(lines) if line.strip()]
    for start in [0, *written[1:_MOST_ABOVE]]:
        delimiter = _find_delimiter(lines[start:], given)
        above, rows = _rows(lines[:start], delimiter), _rows(lines[start:], delimiter)
        plain = [row for row in rows if not row[0].startswith("#")]
        is_table = len({len(row) for row in plain}) == 1 or _has_ends(plain)
        # one column of texts with spaces has no title
        is_cut = len(plain) > 1 and len(plain[0]) > 1 and (not start or delimiter.strip(" ") != "")
        if is_cut and is_table and all(len(row) == 1 for row in above):
            return delimiter, start, rows
    delimiter = _find_delimiter(lines, given)
    return delimiter, 0, _rows(lines, delimiter)


def _has_ends(rows: list[list[str]]) -> bool:
    """Return whether each row ends in a delimiter, and the names do or are one fewer."""
    if len(rows) < 2 or len(rows[1]) < 2 or len({len(row) for row in rows[1:]}) > 1:
        return False
    is_empty = all(not row[-1] for row in rows[1:])
    return is_empty and (len(rows[0]) == len(rows[1]) - 1 or rows[0][-1] == "" != rows[0][0])


def _refuse_single_quotes(path: Path, lines: list[str], delimiter: str) -> None:
    cut = re.escape(delimiter)
    quoted = re.compile(rf"(?:^|{cut})'[^']*{cut}[^']*'(?:{cut}|\s*$)")
    # half of the lines, because apostrophes stand in texts as well
    if sum(bool(quoted.search(line)) for line in lines) > len(lines) / 2:
        raise StorageError(
            f'{path} has text with delimiters in single quotes; expected double quotes, as in "a, b"'
        )


def has_names(rows: list[list[str]]) -> bool:
    """Say whether the first of some rows holds names.

    It does if text stands above a column of numbers, or if it holds 0, 1, 2, … in this order. Otherwise it
    does not if it holds a number, or text that comes again below it.

    >>> has_names([["a", "b"], ["1", "x"]]), has_names([["1.5", "x"], ["2", "y"]])
    (True, False)
    """
    if not rows:
        return True
    first = [cell.strip() for cell in rows[0]]
    below = [[cell.strip() for cell in column] for column in zip(*rows[1:], strict=False)]
    for name, column in zip(first, below, strict=False):
        values = [cell for cell in column if cell not in tables.MISSING_TEXTS]
        is_text = name not in tables.MISSING_TEXTS and not _VALUE.fullmatch(name)
        if is_text and values and all(map(_VALUE.fullmatch, values)):
            return True
    if len(first) > 2 and first == [str(i) for i in range(len(first))]:
        return True
    if any(map(_VALUE.fullmatch, first)):
        return False
    return not any(name and name in column for name, column in zip(first, below, strict=False))


def _scan(path: Path, encoding: str | None) -> tuple[str, bool]:
    """Return the encoding of a file, and whether it has quotes."""
    # All of the file: one late byte that is not UTF-8 would fail in the middle of ingest.
    decoder = codecs.getincrementaldecoder("utf-8")()
    n_quotes = n_lines = opened_in = 0  # the last quote is in line `opened_in`
    last = b""  # what stands before it
    with pyarrow.input_stream(str(path), compression="detect") as stream:
        piece = stream.read(_PIECE)
        if encoding is None and piece[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            encoding = "utf-16"
        # In UTF-16 every other byte of English text is 0.
        if encoding is None and max(piece[::2].count(0), piece[1::2].count(0)) > len(piece) / 4:
            raise StorageError(
                f"{path} seems to be UTF-16 without a byte order mark; give `encoding`, utf-16-le or -be"
            )
        while piece:
            if (at := piece.rfind(b'"')) >= 0:
                n_quotes += piece.count(b'"')
                last, opened_in = piece[max(0, at - 1) : at], n_lines + piece.count(b"\n", 0, at) + 1
            n_lines += piece.count(b"\n")
            if encoding is None:
                try:
                    decoder.decode(piece)
                except UnicodeDecodeError:
                    encoding = "cp1252"
            piece = stream.read(_PIECE)
    # An odd quote may stand for inches: only one that begins a cell opens a text.
    if n_quotes % 2 and last in (b"", b",", b";", b"\t", b"|", b"\n") and n_lines > opened_in:
        raise StorageError(
            f"{path}: the quote that begins in line {opened_in} never ends; expected another one"
        )
    return encoding or "utf-8", n_quotes > 0


def _first_lines(path: Path) -> tuple[bytes, bool]:
    """Return the beginning of a file, at least two lines, and whether that is the whole file."""
    with pyarrow.input_stream(str(path), compression="detect") as stream:
        sample = stream.read(_SAMPLE_BYTES)
        # Three line ends: names, a row to tell types by, and a last line that may be cut.
        while sample.count(b"\n") < 3 and len(sample) < _LONGEST_LINE:
            more = stream.read(len(sample) or 1)
            if not more:
                return sample, True
            sample += more
        return sample, not stream.read(1)


def _rows(lines: list[str], delimiter: str) -> list[list[str]]:
    if delimiter == _ALIGNED:
        lines, delimiter = [_single_spaces(line) for line in lines], " "
    try:
        return [row for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error:
        return []


def _find_delimiter(lines: list[str], given: str | None) -> str:
    """Return the character that cuts all lines into equally many cells; else the given one, or a comma.

    A space that is given may stand for several.
    """
    for delimiter in _DELIMITERS if given is None else [given, *([_ALIGNED] if given == " " else [])]:
        rows = [row for row in _rows(lines, delimiter) if not row[0].startswith("#")]
        widths = {len(row) for row in rows}
        if (len(widths) == 1 and widths != {1}) or (len(widths) == 2 and _has_ends(rows)):
            return delimiter
    return given or ","
