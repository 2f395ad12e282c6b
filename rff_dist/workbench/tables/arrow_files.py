"""Parquet, Arrow and Feather files, and rows in memory, as tables.

In goes a path, out comes a `RawTable`. If several columns of a file have one name,
numbers are added to their names, and columns are read by their position.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
from pyarrow import ipc

from rff_dist.recipes.tables import (
    Batches,
    RawTable,
    Types,
    cast_columns,
    numbered,
    numbered_note,
    opening,
    rows_per_batch,
)

# Batches of Arrow files are cut, since they may have any size.
_BATCH_ROWS = 2**16


def parquet_table(path: Path) -> RawTable:
    """Return a Parquet file as a table; raises StorageError if it cannot be read."""
    from pyarrow import parquet  # 12 ms, which other files need not wait for

    with opening(path, "Parquet"):
        metadata = parquet.read_metadata(path)
        stored = metadata.schema.to_arrow_schema()
    schema = _numbered_schema(stored)
    # Parquet reads columns by their names: if two are the same, all are read
    has_unique_names = schema.names == stored.names

    def batches(types: Types) -> Batches:
        with (
            opening(path, "Parquet"),
            parquet.ParquetFile(path, pre_buffer=False) as reader,
        ):
            for batch in reader.iter_batches(
                batch_size=rows_per_batch(8 * len(types)),
                columns=list(types) if has_unique_names else None,
                use_threads=False,
            ):
                if not has_unique_names:
                    batch = batch.rename_columns(schema.names)
                yield cast_columns(batch, types, path.name)

    notes = numbered_note(stored.names)
    return RawTable(path.name, schema, batches, metadata.num_rows, notes)


def arrow_table(path: Path) -> RawTable:
    """Return an Arrow file or stream, or Feather, as a table.

    Raises StorageError if it cannot be read.
    """
    with opening(path, "Arrow"), pyarrow.memory_map(str(path)) as source:
        stored = _arrow_reader(path, source).schema
    schema = _numbered_schema(stored)

    def batches(types: Types) -> Batches:
        with opening(path, "Arrow"), pyarrow.memory_map(str(path)) as source:
            reader = _arrow_reader(path, source)
            parts = reader
            if isinstance(reader, ipc.RecordBatchFileReader):
                parts = map(reader.get_batch, range(reader.num_record_batches))
            for part in parts:
                wanted = part.rename_columns(schema.names).select(list(types))
                # an empty batch is yielded too, so that there is a first batch
                for start in range(0, max(1, len(wanted)), _BATCH_ROWS):
                    piece = wanted.slice(start, _BATCH_ROWS)
                    yield cast_columns(piece, types, path.name)

    return RawTable(
        path.name,
        schema,
        batches,
        n_samples=None,
        notes=numbered_note(stored.names),
    )


def _arrow_reader(path: Path, source: Any) -> Any:
    with open(path, "rb") as file:
        is_file = file.read(6) == b"ARROW1"
    return ipc.open_file(source) if is_file else ipc.open_stream(source)


def _numbered_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    names = numbered(schema.names)
    return pyarrow.schema(zip(names, schema.types, strict=True))


def memory_table(name: str, rows: pyarrow.Table, notes: Sequence[str] = ()) -> RawTable:
    """Return rows in memory as a table."""

    def batches(types: Types) -> Batches:
        for batch in rows.to_batches(rows_per_batch(8 * len(types))):
            yield cast_columns(batch, types, name)

    return RawTable(name, rows.schema, batches, rows.num_rows, notes)


def rereadable(stack: ExitStack, table: RawTable, types: Types) -> RawTable:
    """Return a table that can be read twice.

    Rows that can be read only once, such as a query's, are written to a temporary file,
    which the stack removes.
    """
    if not table.is_read_once:
        return table
    folder = stack.enter_context(TemporaryDirectory(prefix="rff_dist-"))
    path = Path(folder) / "rows.arrow"
    with (
        pyarrow.OSFile(str(path), "wb") as sink,
        ipc.new_stream(sink, pyarrow.schema(types)) as writer,
    ):
        for batch in table.batches(types):
            writer.write_batch(batch)
    # Only the batches come from the file: it has only some of the columns, and its name
    # would mean nothing in messages.
    return replace(table, batches=arrow_table(path).batches, is_read_once=False)
