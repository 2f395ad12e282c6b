"""Parquet, Arrow (with Feather) and JSON lines as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import ipc, json

from rff_dist.errors import StorageError
from rff_dist.ingest.tables import (
    Table,
    cast_columns,
    expecting_types,
    numbered,
    numbered_note,
    opening,
    rows_per_batch,
)

_BATCH_ROWS = 2**16  # Arrow files may hold batches of any size


def parquet_table(path: Path) -> Table:
    """Return a Parquet file as a table; raises StorageError if it cannot be read."""
    from pyarrow import parquet  # 12 ms, which other files need not wait for

    with opening(path, "Parquet"):
        metadata = parquet.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    names = numbered(schema.names)
    is_plain = names == schema.names  # Parquet finds columns by their names

    def batches(types: Mapping[str, pyarrow.DataType]) -> Iterator[pyarrow.RecordBatch]:
        rows = rows_per_batch(8 * len(types))
        with opening(path, "Parquet"), parquet.ParquetFile(path, pre_buffer=False) as reader:
            read = list(types) if is_plain else None
            for batch in reader.iter_batches(batch_size=rows, columns=read, use_threads=False):
                part = batch if is_plain else batch.rename_columns(names)
                yield cast_columns(part, types, path.name)

    return Table(path.name, _renamed(schema), batches, metadata.num_rows, numbered_note(schema.names))


def _renamed(schema: pyarrow.Schema) -> pyarrow.Schema:
    return pyarrow.schema(list(zip(numbered(schema.names), schema.types, strict=True)))


def arrow_table(path: Path) -> Table:
    """Return an Arrow file or stream, or Feather, as a table; raises StorageError if it cannot be read."""

    def open_it(source: Any) -> Any:
        with open(path, "rb") as file:
            begin = file.read(6)
        if begin[:4] == b"FEA1":
            raise StorageError(f"{path} is Feather of version 1; expected version 2. Write it again")
        return ipc.open_file(source) if begin == b"ARROW1" else ipc.open_stream(source)

    with opening(path, "Arrow"), pyarrow.memory_map(str(path)) as source:
        reader = open_it(source)
        schema, is_file = reader.schema, hasattr(reader, "num_record_batches")

    def batches(types: Mapping[str, pyarrow.DataType]) -> Iterator[pyarrow.RecordBatch]:
        with opening(path, "Arrow"), pyarrow.memory_map(str(path)) as source:
            reader = open_it(source)
            parts = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
            for part in parts:
                chosen = part.rename_columns(numbered(schema.names)).select(list(types))
                for start in range(0, max(1, len(chosen)), _BATCH_ROWS):
                    yield cast_columns(chosen.slice(start, _BATCH_ROWS), types, path.name)

    return Table(path.name, _renamed(schema), batches, None, numbered_note(schema.names))


def json_table(path: Path) -> Table:
    """Return JSON lines as a table, with the types of the first block; raises as `csv_table`."""

    def open_it(types: Mapping[str, pyarrow.DataType] | None) -> Any:
        schema = None if types is None else pyarrow.schema(list(types.items()))
        return json.open_json(
            pyarrow.input_stream(str(path), compression="detect"),
            read_options=json.ReadOptions(use_threads=False, block_size=2**22),
            parse_options=json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="infer" if types is None else "ignore"
            ),
        )

    with opening(path, "JSON lines"):
        schema = open_it(None).schema

    def batches(types: Mapping[str, pyarrow.DataType]) -> Iterator[pyarrow.RecordBatch]:
        with expecting_types(path):
            yield from open_it(types)

    return Table(path.name, schema, batches, None)


def spool(table: Table, types: Mapping[str, pyarrow.DataType], folder: Path) -> Table:
    """Write a table that can be read only once to a folder, and return it as a table of that file."""
    path = folder / "rows.arrow"
    with pyarrow.OSFile(str(path), "wb") as sink, ipc.new_stream(sink, pyarrow.schema(types)) as writer:
        for batch in table.batches(types):
            writer.write_batch(batch)
    return replace(table, batches=arrow_table(path).batches, is_read_once=False)
