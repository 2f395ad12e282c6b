"""Arrays as tables: NumPy files, alone or side by side, .npz archives, and the columns of Zarr groups."""

import io
import json as standard_json
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import pyarrow
from pyarrow import ipc, json

from rff_dist.data.columns import is_text
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.recipes import tables
from rff_dist.storage import grids
from rff_dist.typing import AnyDType
from rff_dist.workbench.tables.roles import Roles

#: RuntimeError is for compression and encryption that zipfile does not know. NumPy reads headers as Python.
_DAMAGED = (BadZipFile, zlib.error, ValueError, RuntimeError, SyntaxError, TokenError)


def array_table(paths: Sequence[Path]) -> tables.Table:
    """Return .npy files side by side as one table.

    The columns of a 2-D array are named "0", "1", …; a 1-D array is a column with the name of its file.

    Raises StorageError if a file cannot be read; DataError if an array is no table, several are 2-D, or their
      numbers of rows differ.
    """
    arrays = {path: _mapped(path) for path in paths}
    names = {path: _names_of(path, array) for path, array in arrays.items()}
    n_samples = len(arrays[paths[0]])
    wide = [path.name for path, array in arrays.items() if array.ndim == 2]
    if len(wide) > 1 or any(len(array) != n_samples for array in arrays.values()):
        shapes = ", ".join(f"{path.name} {array.shape}" for path, array in arrays.items())
        raise DataError(
            f"{shapes}; expected one array of two axes, and columns of one axis with as many rows. To put "
            "arrays below each other, ingest one after the other with `append`"
        )
    kinds = {name: _type(array.dtype) for path, array in arrays.items() for name in names[path]}
    row_bytes = sum(array.itemsize * max(1, array[:1].size) for array in arrays.values())

    def batches(types: tables.Types) -> tables.Batches:
        rows = tables.rows_per_batch(row_bytes)
        for start in range(0, max(1, n_samples), rows):  # an empty array has one empty batch
            columns: dict[str, Any] = {}
            for path in paths:
                # A new map for each batch: pages that were read count as memory until their map is closed.
                part = _mapped(path)[start : start + rows]
                for i, name in enumerate(names[path]):
                    if name in types:
                        columns[name] = tables.to_column(part if part.ndim == 1 else part[:, i])
            yield tables.cast_columns(pyarrow.RecordBatch.from_pydict(columns), types, paths[0].name)

    return tables.Table(", ".join(path.name for path in paths), pyarrow.schema(kinds), batches, n_samples)


def has_one_axis(path: Path) -> bool:
    """Say whether the array of an .npy file is 1-D, that is a column."""
    return _mapped(path).ndim == 1


def _mapped(path: Path) -> np.ndarray:
    with tables.opening(path, "an array of numbers", *_DAMAGED):
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _names_of(path: Path, array: np.ndarray) -> list[str]:
    if array.ndim not in (1, 2):
        raise DataError(f"{path.name} has shape {array.shape}; expected 2 axes (n_samples, n_columns), or 1")
    if array.dtype.kind not in ("biufU" if array.ndim == 1 else "biuf"):
        raise DataError(f"{path.name} holds {array.dtype}; expected numbers")
    return [path.stem] if array.ndim == 1 else [str(i) for i in range(array.shape[1])]


def _type(dtype: AnyDType) -> pyarrow.DataType:
    return pyarrow.string() if is_text(dtype) else pyarrow.from_numpy_dtype(dtype.newbyteorder("="))


# -- Zarr ------------------------------------------------------------------------------------------


def group_table(path: Path) -> tables.Table:
    """Return the arrays of a Zarr group as columns, such as xarray's variables.

    The columns of a 2-D array are called "NAME 0", "NAME 1", …. If arrays differ in their number of rows, the
    most frequent number is taken, and the other arrays are left out, as the notes say.

    Raises StorageError if it is a dataset already, or cannot be read; DataError if no array is a column.
    """
    arrays = grids.open_columns(str(path))
    columns = {name: array for name, array in arrays.items() if array.ndim in (1, 2)}
    if "X" in columns and columns["X"].ndim == 2:
        raise StorageError(f"{path} is Zarr data already; open it with open_dataset")
    lengths = [array.shape[0] for array in columns.values()]
    if not lengths:
        raise DataError(f"{path} holds no array of one or two axes; expected some, whose columns are read")
    n_samples = max(lengths, key=lambda length: (lengths.count(length), length))
    kept = {name: array for name, array in columns.items() if array.shape[0] == n_samples}
    left_out = sorted(arrays.keys() - kept.keys())
    kinds, places = {}, dict[str, tuple[str, int | None]]()
    for name, array in kept.items():
        wide = array.ndim == 2
        for i in range(array.shape[1] if wide else 1):
            column = f"{name} {i}" if wide else name
            places[column] = name, i if wide else None
            kinds[column] = _type(array.dtype)

    def batches(types: tables.Types) -> tables.Batches:
        names = list(dict.fromkeys(places[column][0] for column in types)) or list(kept)[:1]
        rows = tables.rows_per_batch(8 * sum(math.prod(kept[name].shape[1:]) for name in names))
        for part in grids.read_columns({name: kept[name] for name in names}, n_rows=rows):
            chosen = {
                column: tables.to_column(part[name] if i is None else part[name][:, i])
                for column, (name, i) in places.items()
                if column in types
            }
            yield tables.cast_columns(pyarrow.RecordBatch.from_pydict(chosen), types, path.name)

    notes = [f"arrays left out: {tables.listed(left_out)}"] if left_out else []
    return tables.Table(path.name, pyarrow.schema(kinds), batches, n_samples, notes)


# -- archives --------------------------------------------------------------------------------------


def read_npz(path: Path, roles: Roles) -> tuple[int, Iterator[tuple[tables.RowArrays, np.ndarray]]]:
    """Return how many rows an .npz file has, and batches of X, y, weights and groups with their row numbers.

    Raises StorageError if the file cannot be read; InvalidParameterError if a named array is not there;
      DataError if arrays hold no numbers, or their shapes do not fit.
    """
    target, weight, groups = roles.target, roles.weight, roles.groups
    if target is not None and not isinstance(target, str):
        raise InvalidParameterError(f"`target`={target!r}; expected the name of one array of the .npz file")
    with _reading(path) as archive:
        members = {name.removesuffix(".npy") for name in archive.namelist()}
    if target is None and "y" in members:
        target = "y"
    wanted = ["X", target, weight, groups]
    for name, role in ((weight, "weight"), (groups, "groups")):
        if name is not None and target is None:
            raise InvalidParameterError(f"`{role}` without targets; name their array too, or leave it out")
    for name in filter(None, wanted):
        if name not in members:
            raise InvalidParameterError(
                f"{path.name} has no array {name!r}; it has {tables.listed(sorted(members))}"
            )
    headers = {name: _npz_header(path, name, text=name in (target, groups)) for name in wanted if name}
    shapes = {name: shape for name, (shape, _) in headers.items()}
    if len(shapes["X"]) != 2 or len({shape[0] for shape in shapes.values()}) > 1:
        raise DataError(f"{path.name} has shapes {shapes}; expected X of 2 axes, and as many rows in all")
    X_dtype = np.dtype(roles.dtype or np.result_type(np.float32, headers["X"][1]))
    row_bytes = sum(math.prod(shape[1:]) * kind.itemsize for shape, kind in headers.values())
    rows = tables.rows_per_batch(row_bytes)

    def batches() -> Iterator[tuple[tables.RowArrays, np.ndarray]]:
        start = 0
        for parts in zip(*(_npz_rows(path, name, rows) for name in headers), strict=True):
            read = dict(zip(headers, parts, strict=True))
            read["X"] = read["X"].astype(X_dtype, copy=False)
            numbers = np.arange(start, start + len(read["X"]))
            start += len(numbers)
            yield tuple(None if name is None else read[name] for name in wanted), numbers

    return shapes["X"][0], batches()


def _npz_header(path: Path, name: str, *, text: bool) -> tuple[tuple[int, ...], AnyDType]:
    with _reading(path, f", array {name!r}") as archive, archive.open(f"{name}.npy") as file:
        shape, fortran, dtype = _read_array_header(file)
    if dtype.kind not in ("biufU" if text else "biuf") or not shape or (fortran and len(shape) > 1):
        order = " in Fortran order" if fortran else ""
        raise DataError(
            f"array {name!r} of {path.name} is {dtype} of shape {shape}{order}; "
            "expected numbers in C order. Save numpy.ascontiguousarray(array)"
        )
    return shape, dtype


def _npz_rows(path: Path, name: str, rows: int) -> Iterator[np.ndarray]:
    """Yield rows of one array of the archive, decompressed as they are read; NumPy would load it whole."""
    with _reading(path, f", array {name!r}") as archive, archive.open(f"{name}.npy") as file:
        shape, _, dtype = _read_array_header(file)
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        for start in range(0, max(1, shape[0]), rows):
            count = min(rows, shape[0] - start)
            content = file.read(count * row_bytes)
            if len(content) != count * row_bytes:
                raise StorageError(
                    f"array {name!r} of {path} ends at row {start + len(content) // max(1, row_bytes):_}; "
                    f"expected {shape[0]:_} rows. Save it again"
                )
            yield np.frombuffer(content, dtype=dtype).reshape(count, *shape[1:])
        if file.read(1):  # zipfile compares the checksum where the array ends, which a damaged header hides
            raise StorageError(f"array {name!r} of {path} goes on after {shape[0]:_} rows. Save it again")


def _read_array_header(file: Any) -> tuple[tuple[int, ...], bool, AnyDType]:
    if np.lib.format.read_magic(file) == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


@contextmanager
def _reading(path: Path, what: str = "") -> Iterator[ZipFile]:
    """Open an archive; raise StorageError if it, or `what` of it, is damaged."""
    with tables.opening(path, f".npz{what}", *_DAMAGED), ZipFile(path) as archive:
        yield archive


# -- parquet, Arrow (with Feather) and JSON lines as tables ----------------------------------------


_BATCH_ROWS = 2**16  # Arrow files may hold batches of any size


def parquet_table(path: Path) -> tables.Table:
    """Return a Parquet file as a table; raises StorageError if it cannot be read."""
    from pyarrow import parquet  # 12 ms, which other files need not wait for

    with tables.opening(path, "Parquet"):
        metadata = parquet.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    names = tables.numbered(schema.names)
    is_plain = names == schema.names  # Parquet finds columns by their names

    def batches(types: tables.Types) -> tables.Batches:
        rows = tables.rows_per_batch(8 * len(types))
        with tables.opening(path, "Parquet"), parquet.ParquetFile(path, pre_buffer=False) as reader:
            read = list(types) if is_plain else None
            for batch in reader.iter_batches(batch_size=rows, columns=read, use_threads=False):
                part = batch if is_plain else batch.rename_columns(names)
                yield tables.cast_columns(part, types, path.name)

    renamed = pyarrow.schema(list(zip(names, schema.types, strict=True)))
    notes = tables.numbered_note(schema.names)
    return tables.Table(path.name, renamed, batches, metadata.num_rows, notes)


def arrow_table(path: Path) -> tables.Table:
    """Return an Arrow file or stream, or Feather, as a table; raises StorageError if it cannot be read."""

    def open_it(source: Any) -> Any:
        with open(path, "rb") as file:
            begin = file.read(6)
        if begin[:4] == b"FEA1":
            raise StorageError(f"{path} is Feather of version 1; expected version 2. Write it again")
        return ipc.open_file(source) if begin == b"ARROW1" else ipc.open_stream(source)

    with tables.opening(path, "Arrow"), pyarrow.memory_map(str(path)) as source:
        reader = open_it(source)
        schema, is_file = reader.schema, hasattr(reader, "num_record_batches")
    names = tables.numbered(schema.names)

    def batches(types: tables.Types) -> tables.Batches:
        with tables.opening(path, "Arrow"), pyarrow.memory_map(str(path)) as source:
            reader = open_it(source)
            parts = map(reader.get_batch, range(reader.num_record_batches)) if is_file else iter(reader)
            for part in parts:
                chosen = part.rename_columns(names).select(list(types))
                for start in range(0, max(1, len(chosen)), _BATCH_ROWS):
                    yield tables.cast_columns(chosen.slice(start, _BATCH_ROWS), types, path.name)

    renamed = pyarrow.schema(list(zip(names, schema.types, strict=True)))
    return tables.Table(path.name, renamed, batches, None, tables.numbered_note(schema.names))


def json_table(path: Path) -> tables.Table:
    """Return JSON as a table: lines, with the types of the first block, or a document, which is read whole.

    A document may be an array of objects or of arrays, an object of columns, or what pandas writes: by
    columns, by index, split, or with a schema. Raises as `csv_table`.
    """

    def open_it(types: tables.Types | None) -> Any:
        schema = None if types is None else pyarrow.schema(list(types.items()))
        return json.open_json(
            pyarrow.input_stream(str(path), compression="detect"),
            read_options=json.ReadOptions(use_threads=False, block_size=2**22),
            parse_options=json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="infer" if types is None else "ignore"
            ),
        )

    with tables.opening(path, "JSON", ValueError, OverflowError, RecursionError):
        if not _is_json_lines(path):
            with pyarrow.input_stream(str(path), compression="detect") as stream:
                columns = _json_columns(path, standard_json.loads(stream.read()))
            found = {name: tables.column_of(values) for name, values in columns.items()}
            mixed = [
                name
                for name, values in columns.items()
                if found[name].type == pyarrow.string() and not {type(v) for v in values} <= {str, type(None)}
            ]
            notes = [f"numbers and texts, read as text: {tables.listed(mixed)}"] if mixed else []
            return memory_table(path.name, pyarrow.table(found), notes)
        schema = open_it(None).schema

    def batches(types: tables.Types) -> tables.Batches:
        with tables.expecting_types(path):
            yield from open_it(types)

    return tables.Table(path.name, schema, batches, None)


def _is_json_lines(path: Path) -> bool:
    """Return whether each line is an object, as the first one is, or it is a whole row."""
    with pyarrow.input_stream(str(path), compression="detect") as stream:
        lines = io.TextIOWrapper(stream, "utf-8-sig")
        first = next((line for line in lines if line.strip()), "")
        if first.lstrip()[:1] != "{":
            return False
        try:
            row = standard_json.loads(first)
        except ValueError:  # it goes on in the next line
            return False
        is_last = not any(line.strip() for line in lines)
    return not (is_last and any(isinstance(value, dict | list) for value in row.values()))


def _json_columns(path: Path, document: Any) -> dict[str, Sequence[Any]]:
    """Return the columns of a JSON document."""
    if isinstance(document, dict):
        values = list(document.values())
        lists = [value for value in values if isinstance(value, list)]
        if isinstance(document.get("data"), list):  # such as pandas' "split" and "table"
            lists = [document["data"]]
        if isinstance(document.get("columns"), list) and len(lists) == 1:
            names = tables.numbered([str(name) for name in document["columns"]])
            return dict(zip(names, _json_columns(path, lists[0]).values(), strict=True))
        are_columns = bool(values) and all(isinstance(value, list) and value for value in values)
        if are_columns and not isinstance(values[0][0], dict | list) and len(set(map(len, values))) == 1:
            return document
        if values and all(isinstance(value, dict) for value in values):
            keys = list(dict.fromkeys(key for value in values for key in value))
            is_numbered = all(key.isdigit() for key in document) or len(document) > len(keys)
            if is_numbered and not all(key.isdigit() for key in keys):  # pandas' "index"
                return _json_columns(path, values)
            return {name: [column.get(key) for key in keys] for name, column in document.items()}
        if len(lists) == 1:
            return _json_columns(path, lists[0])
    elif document and all(isinstance(row, dict) for row in document):
        keys = list(dict.fromkeys(key for row in document for key in row))
        return {key: [row.get(key) for row in document] for key in keys}
    elif document and all(isinstance(row, list) for row in document) and len(set(map(len, document))) == 1:
        return {str(i): column for i, column in enumerate(zip(*document, strict=True))}
    raise StorageError(
        f"{path} holds JSON that is no table; expected lines of objects, an array of objects or of arrays as "
        "long as each other, or an object of columns"
    )


def memory_table(name: str, rows: pyarrow.Table, notes: Sequence[str] = ()) -> tables.Table:
    """Return rows in memory as a table."""

    def batches(types: tables.Types) -> tables.Batches:
        for batch in rows.to_batches(tables.rows_per_batch(8 * len(types))):
            yield tables.cast_columns(batch, types, name)

    return tables.Table(name, rows.schema, batches, rows.num_rows, notes)


def spool(table: tables.Table, types: tables.Types, folder: Path) -> tables.Table:
    """Write a table that can be read only once to a folder, and return it as a table of that file."""
    path = folder / "rows.arrow"
    with pyarrow.OSFile(str(path), "wb") as sink, ipc.new_stream(sink, pyarrow.schema(types)) as writer:
        for batch in table.batches(types):
            writer.write_batch(batch)
    return replace(table, batches=arrow_table(path).batches, is_read_once=False)
