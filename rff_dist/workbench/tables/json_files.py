"""JSON files as tables: one object per line, or a document of one of several forms.

Lines are read batch by batch; a document is read whole, into memory.
"""

import io
import json
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
    column_of,
    expecting_types,
    listed,
    opening,
    types_to_read,
)
from rff_dist.workbench.tables.arrow_files import memory_table


def json_table(path: Path) -> RawTable:
    """Return JSON as a table; the first block of lines decides their types.

    Raises StorageError if it cannot be read. The table's batches raise DataError if a
    value has another type.
    """
    with opening(path, "JSON", ValueError, OverflowError, RecursionError):
        if not _is_json_lines(path):
            return _document_table(path)
        schema = _open_lines(path).schema

    def batches(types: Types) -> Batches:
        with expecting_types(path):
            for batch in _open_lines(path, types_to_read(types, schema)):
                yield cast_columns(batch, types, path.name)

    return RawTable(path.name, schema, batches, n_samples=None)


def _open_lines(path: Path, types: Types | None = None) -> Any:
    how = arrow_json.ParseOptions()
    if types is not None:
        how = arrow_json.ParseOptions(
            explicit_schema=pyarrow.schema(types), unexpected_field_behavior="ignore"
        )
    return arrow_json.open_json(
        _text(path),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=2**22),
        parse_options=how,
    )


def _text(path: Path) -> Any:
    return pyarrow.input_stream(str(path), compression="detect")


def _is_json_lines(path: Path) -> bool:
    """Return whether each line is a row, by the first one."""
    with _text(path) as stream:
        lines = io.TextIOWrapper(stream, "utf-8-sig")
        first = next((line for line in lines if line.strip()), "")
        if first.lstrip()[:1] != "{":
            return False
        try:
            row = json.loads(first)
        except ValueError:  # it goes on in the next line
            return False
        is_only_line = not any(line.strip() for line in lines)
    # a single object of lists or objects is a document of columns
    return not is_only_line or not any(
        isinstance(value, dict | list) for value in row.values()
    )


def _document_table(path: Path) -> RawTable:
    with _text(path) as stream:
        columns = _columns_of(path, json.loads(stream.read()))
    arrays = {name: column_of(values) for name, values in columns.items()}
    mixed = []
    for name, values in columns.items():
        has_other_types = not {type(value) for value in values} <= {str, type(None)}
        if arrays[name].type == pyarrow.string() and has_other_types:
            mixed.append(name)
    notes = [f"numbers and texts, read as text: {listed(mixed)}"] if mixed else []
    return memory_table(path.name, pyarrow.table(arrays), notes)


def _columns_of(path: Path, document: Any) -> dict[str, Any]:
    """Return the columns of an array of objects, or of an object of columns.

    A column is an array, or an object with the numbers of rows, as pandas writes it.
    """
    if _are(document, dict):
        keys = _keys_of(document)
        return {key: [row.get(key) for row in document] for key in keys}
    columns = document if isinstance(document, dict) else {}
    values = list(columns.values())
    if _are(values, dict):
        rows = _keys_of(values)
        if all(row.isdigit() for row in rows):
            return {
                name: [values.get(row) for row in rows]
                for name, values in columns.items()
            }
    elif _are(values, list) and len(set(map(len, values))) == 1:
        return columns
    raise StorageError(
        f"{path} holds JSON that is no table; expected lines of objects, an array of"
        " objects, or an object of columns as long as each other"
    )


def _are(values: Any, kind: type) -> bool:
    is_list = isinstance(values, list) and bool(values)
    return is_list and all(isinstance(value, kind) for value in values)


def _keys_of(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))
