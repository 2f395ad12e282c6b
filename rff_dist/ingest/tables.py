"""Tables as batches of columns: CSV, Parquet and NumPy files, and what a query of a database gives."""

from __future__ import annotations

import gzip
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage.locations import explain

if TYPE_CHECKING:
    import pyarrow

BATCH_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of numbers and text, read batch by batch.

    `kinds`: of each column its dtype, or the name of a type that is no number: "string" for text.
    `batches`: from names of columns of numbers and names of columns of labels to an iterator of tuples: an
      array of shape (rows, n_names), missing values as NaN; then each column of labels, missing ones as None.
    `n_samples`: rows, where that is known.
    """

    name: str
    kinds: dict[str, np.dtype[Any] | str]
    batches: Callable[[list[str], list[str]], Iterator[tuple[np.ndarray, ...]]]
    n_samples: int | None


def open_table(path: Path, kind: str) -> Table:
    """Read which columns a .csv, .parquet or .npy file has.

    Raises StorageError if it cannot be read; DataError if it is no table.
    """
    return {".csv": _csv_table, ".parquet": _parquet_table, ".npy": _npy_table}[kind](path)


def _csv_table(path: Path) -> Table:
    import pyarrow
    from pyarrow import csv

    block_size = max(2**20, 16 * _longest_line(path))

    def options(types: dict[str, pyarrow.DataType] | None) -> dict[str, Any]:
        names = None if types is None else list(types)
        return {
            "read_options": csv.ReadOptions(block_size=block_size, use_threads=False),
            "convert_options": csv.ConvertOptions(column_types=types, include_columns=names),
        }

    try:
        with csv.open_csv(str(path), **options(None)) as reader:
            schema = reader.schema
    except (pyarrow.ArrowException, OSError) as error:
        raise StorageError(f"{path} cannot be read as CSV: {explain(error)}") from error
    kinds = _arrow_kinds(schema, path)
    inferred = {field.name: field.type for field in schema}

    def number_type(name: str) -> pyarrow.DataType:
        # All numbers as float64: a type inferred from the first block would fail on "1.5" after a block of
        # integers.
        kind = kinds[name]
        return pyarrow.bool_() if isinstance(kind, np.dtype) and kind.kind == "b" else pyarrow.float64()

    def batches(names: list[str], labels: list[str]) -> Iterator[tuple[np.ndarray, ...]]:
        # Labels as they were inferred: 1.5 among whole numbers is none. An empty first block may be any text.
        types = {name: number_type(name) for name in names}
        for name in labels:
            empty = pyarrow.types.is_null(inferred[name])
            types[name] = pyarrow.string() if empty else inferred[name]
        chosen = options(types)
        try:
            with csv.open_csv(str(path), **chosen) as reader:
                for batch in reader:
                    yield (_to_numpy(batch, names), *(_to_labels(batch, name) for name in labels))
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"{path.name}: {explain(error)}; expected numbers in the columns {listed(names)}"
                f"{', and one type of value in ' + listed(labels) if labels else ''}. "
                "Correct the value, or leave the column out with `columns`"
            ) from error

    numbers = {
        name: kind if isinstance(kind, str) or kind.kind == "b" else np.dtype(np.float64)
        for name, kind in kinds.items()
    }
    return Table(path.name, numbers, batches, None)


def _longest_line(path: Path) -> int:
    """Measure the longer of the first two lines: a row must fit into a block."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            return max(len(file.readline(2**26)) for _ in range(2))
    except (OSError, EOFError) as error:
        raise StorageError(f"{path} cannot be read as CSV: {explain(error)}") from error


def _parquet_table(path: Path) -> Table:
    import pyarrow
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    except (pyarrow.ArrowException, OSError) as error:
        raise StorageError(f"{path} cannot be read as Parquet: {explain(error)}") from error

    def batches(names: list[str], labels: list[str]) -> Iterator[tuple[np.ndarray, ...]]:
        rows = max(1, BATCH_BYTES // (8 * len(names)))
        try:
            with parquet.ParquetFile(path, pre_buffer=False) as reader:
                chosen = [*names, *labels]
                for batch in reader.iter_batches(batch_size=rows, columns=chosen, use_threads=False):
                    yield (_to_numpy(batch, names), *(_to_labels(batch, name) for name in labels))
        except (pyarrow.ArrowException, OSError) as error:
            raise StorageError(f"{path} cannot be read: {explain(error)}") from error

    return Table(path.name, _arrow_kinds(schema, path), batches, metadata.num_rows)


def _arrow_kinds(schema: pyarrow.Schema, path: Path) -> dict[str, np.dtype[Any] | str]:
    from pyarrow import types

    twice = repeated(schema.names)
    if twice:
        raise DataError(f"{path.name} has several columns named {listed(twice)}; expected different names")
    kinds: dict[str, np.dtype[Any] | str] = {}
    for field in schema:
        number = types.is_integer(field.type) or types.is_floating(field.type) or types.is_boolean(field.type)
        # A column that is empty so far may hold numbers further on.
        empty = types.is_null(field.type)
        kinds[field.name] = np.dtype(field.type.to_pandas_dtype()) if number else str(field.type)
        if _is_text(field.type):
            kinds[field.name] = "string"
        if empty:
            kinds[field.name] = np.dtype(np.float64)
    return kinds


def _to_numpy(batch: pyarrow.RecordBatch, names: list[str]) -> np.ndarray:
    values = np.empty((batch.num_rows, len(names)), dtype=np.float64)
    for i, name in enumerate(names):
        column = batch.column(name)
        # Nulls of integers and booleans become NaN too; `to_numpy` does that for floats alone.
        values[:, i] = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
    return values


def _is_text(kind: pyarrow.DataType) -> bool:
    from pyarrow import types

    values = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(values) or types.is_large_string(values) or types.is_string_view(values))


def _to_labels(batch: pyarrow.RecordBatch, name: str) -> np.ndarray:
    """Return a column of labels: text as Python's strings, None where one is missing."""
    column = batch.column(name)
    if column.null_count or _is_text(column.type):
        return np.array([*column.to_pylist(), None], object)[:-1]  # None keeps NumPy from making text
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _npy_table(path: Path) -> Table:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise StorageError(f"{path} cannot be read as an array of numbers: {explain(error)}") from error
    if array.ndim != 2:
        raise DataError(f"{path.name} has shape {array.shape}; expected 2 axes (n_samples, n_columns)")
    kind: np.dtype[Any] | str = array.dtype if array.dtype.kind in "biuf" else str(array.dtype)
    names = [str(i) for i in range(array.shape[1])]

    def batches(chosen: list[str], labels: list[str]) -> Iterator[tuple[np.ndarray, ...]]:
        rows = max(1, BATCH_BYTES // max(1, array.itemsize * array.shape[1]))
        places = [int(name) for name in chosen]
        for start in range(0, max(1, len(array)), rows):
            # A map for each batch: pages that were read count as memory until their map is closed.
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
            part = mapped[start : start + rows]
            yield (part[:, places].astype(np.float64), *(part[:, int(name)].copy() for name in labels))

    return Table(path.name, dict.fromkeys(names, kind), batches, len(array))


def read_npz(
    path: Path,
    target: str | Sequence[str] | None,
    weight: str | None,
    groups: str | None,
    dtype: str | None,
) -> tuple[int | None, Iterator[tuple[np.ndarray | None, ...]]]:
    """Return the rows of an .npz file and batches of (X, y, weights, groups), arrays named as given.

    Raises StorageError if the file cannot be read; InvalidParameterError if an array that is named is not
      there; DataError if arrays are no numbers, or of other shapes than they must be.
    """
    if target is not None and not isinstance(target, str):
        raise InvalidParameterError(f"`target`={target!r}; expected the name of one array of the .npz file")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy") for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise StorageError(f"{path} cannot be read as .npz: {explain(error)}") from error
    if target is None and "y" in members:
        target = "y"
    wanted = ["X", target, weight, groups]
    for name, role in ((weight, "weight"), (groups, "groups")):
        if name is not None and target is None:
            raise InvalidParameterError(f"`{role}` without targets; expected those of training rows")
    for name in filter(None, wanted):
        if name not in members:
            raise InvalidParameterError(
                f"{path.name} has no array {name!r}; it has {listed(sorted(members))}"
            )
    headers = {name: _npz_header(path, name, text=name in (target, groups)) for name in wanted if name}
    lengths = {name: shape[0] for name, (shape, _) in headers.items()}
    if len(headers["X"][0]) != 2 or len(set(lengths.values())) > 1:
        shapes = {name: shape for name, (shape, _) in headers.items()}
        raise DataError(f"{path.name} has shapes {shapes}; expected X of 2 axes and as many rows in all")
    X_dtype = feature_dtype([headers["X"][1]], dtype)
    row_bytes = sum(int(np.prod(shape[1:])) * kind.itemsize for shape, kind in headers.values())
    rows = max(1, BATCH_BYTES // max(1, row_bytes))

    def batches() -> Iterator[tuple[np.ndarray | None, ...]]:
        for parts in zip(*(_npz_rows(path, name, rows) for name in headers), strict=True):
            read = dict(zip(headers, parts, strict=True))
            read["X"] = read["X"].astype(X_dtype, copy=False)
            yield tuple(None if name is None else read[name] for name in wanted)

    return lengths["X"], batches()


def _npz_header(path: Path, name: str, *, text: bool) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        shape, fortran, dtype = _read_array_header(file, path, name)
    if dtype.kind not in ("biufU" if text else "biuf") or not shape or (fortran and len(shape) > 1):
        raise DataError(
            f"array {name!r} of {path.name} is {dtype} of shape "
            f"{shape}{' in Fortran order' if fortran else ''}; "
            "expected numbers in C order. Save numpy.ascontiguousarray(array)"
        )
    return shape, dtype


def _npz_rows(path: Path, name: str, rows: int) -> Iterator[np.ndarray]:
    """Rows of one array of the archive, decompressed as they are read: NumPy would load it whole."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        shape, _, dtype = _read_array_header(file, path, name)
        row_bytes = int(np.prod(shape[1:])) * dtype.itemsize
        for start in range(0, max(1, shape[0]), rows):
            count = min(rows, shape[0] - start)
            try:
                content = file.read(count * row_bytes)
            except (zipfile.BadZipFile, OSError, EOFError) as error:
                raise StorageError(f"array {name!r} of {path} is damaged: {explain(error)}") from error
            if len(content) != count * row_bytes:
                raise StorageError(
                    f"array {name!r} of {path} ends at row {start + len(content) // max(1, row_bytes)}"
                )
            yield np.frombuffer(content, dtype=dtype).reshape(count, *shape[1:])


def _read_array_header(file: Any, path: Path, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        reader = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = reader(file)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise StorageError(f"array {name!r} of {path} cannot be read: {explain(error)}") from error
    return shape, fortran, dtype


def feature_dtype(kinds: Sequence[np.dtype[Any] | str], dtype: str | None) -> np.dtype[Any]:
    """Return the dtype of X that keeps all digits of columns of these types, or the one that is asked for."""
    if dtype is not None:
        return np.dtype(dtype)
    return np.result_type(np.float32, *(kind for kind in kinds if isinstance(kind, np.dtype)))


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that come more than once."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def listed(names: Sequence[str]) -> str:
    """Return names in words."""
    return ", ".join(repr(name) for name in names[:10]) + (" …" if len(names) > 10 else "")
