"""JSON lines as tables: one object per line.

In goes the path of a file, out comes a `RawTable`, whose rows are read batch by batch.
Arrow alone would refuse an array of objects without saying what to do.
"""

import io
import json
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import json as arrow_json

from rff_dist.errors import StorageError
from rff_dist.recipes.tables import (
    Batches,
    RawTable,
    Types,
    cast_columns,
    expecting_types,
    locating,
    opening,
    types_to_read,
)


def json_table(path: Path) -> RawTable:
    """Return JSON lines as a table; the first block of them decides the types.

    Raises StorageError if it cannot be read. The table's batches raise DataError if a
    value has another type.
    """
    with opening(path, "JSON", ValueError, RecursionError):
        _require_lines(path)
        schema = _open_lines(path).schema

    def place(row: int) -> str:
        with _decompressed(path) as stream:
            lines = enumerate(io.TextIOWrapper(stream, "utf-8", "replace"), 1)
            numbers = (number for number, line in lines if line.strip())
            return f"line {next(islice(numbers, row, None))}"

    def batches(types: Types) -> Batches:
        start = 0
        # Arrow counts from 0 in each block
        located = locating(r"row (\d+)", lambda number: place(start + number))
        with expecting_types(path), located:
            for batch in _open_lines(path, types_to_read(types, schema)):
                yield cast_columns(batch, types, path.name)
                start += batch.num_rows

    return RawTable(path.name, schema, batches, n_samples=None, place=place)


def _open_lines(path: Path, types: Types | None = None) -> Any:
    how = arrow_json.ParseOptions()
    if types is not None:
        how = arrow_json.ParseOptions(
            explicit_schema=pyarrow.schema(types), unexpected_field_behavior="ignore"
        )
    return arrow_json.open_json(
        _decompressed(path),
        # Threads save no time here. No line may be longer than a block, 4 MiB.
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=2**22),
        parse_options=how,
    )


def _decompressed(path: Path) -> Any:
    return pyarrow.input_stream(str(path), compression="detect")


def _require_lines(path: Path) -> None:
    """Raise StorageError unless the first line is an object."""
    with _decompressed(path) as stream:
        lines = io.TextIOWrapper(stream, "utf-8-sig")
        # a file without lines passes here, and Arrow refuses it as empty
        first = next((line for line in lines if line.strip()), "{}")
    row = None
    with suppress(ValueError):
        row = json.loads(first)
    if not isinstance(row, dict):
        raise StorageError(
            f"{path} does not begin with a line that is an object; expected JSON lines,"
            " one object for each row. Convert it first; of an array of objects,"
            " `jq -c '.[]'` makes lines"
        )
