"""CSV, Parquet and NumPy files → a dataset, in one pass that holds a few batches at a time."""

from __future__ import annotations

import difflib
import gzip
import logging
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage.arrays import describe
from rff_dist.storage.datasets import ZarrDataset
from rff_dist.storage.locations import Location, check_output, parse_location
from rff_dist.storage.writing import Progress, write_batches

if TYPE_CHECKING:
    import pyarrow

BATCH_BYTES = 8 * 2**20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Table:
    """A file as columns of numbers, read batch by batch.

    Attributes
    ----------
    kinds : dict of str to dtype or str
        Of each column its dtype, or the name of a type that is no number: "string" for text.
    batches : callable
        From names of columns of numbers and names of columns of labels to an iterator of tuples: an array of
        shape (rows, n_names), missing values as NaN; then each column of labels, missing ones as None.
    n_samples : int or None
        Rows, where the file tells.
    """

    kinds: dict[str, np.dtype[Any] | str]
    batches: Callable[[list[str], list[str]], Iterator[tuple[np.ndarray, ...]]]
    n_samples: int | None


def ingest(
    source: str | os.PathLike[str],
    url: str | os.PathLike[str],
    *,
    target: str | Sequence[str] | None = None,
    weight: str | None = None,
    groups: str | None = None,
    columns: Sequence[str] | None = None,
    dtype: str | None = None,
    on_nan: str = "error",
    chunk_rows: int | None = None,
    overwrite: bool = False,
    observer: Progress | None = None,
) -> ZarrDataset:
    """Turn a table into a dataset, in memory that does not grow with it.

    Parameters
    ----------
    source : str or Path
        A local .csv, .csv.gz, .parquet, .npy or .npz file, or a folder of Parquet files, which are read in
        the order of their names. The columns of an .npy file are named "0", "1", …; an .npz file holds the
        arrays "X" and, optionally, "y".
    url : str or Path
        Where to write the dataset.
    target : str or sequence of str, optional
        Columns to predict; one name makes y a vector, a list a matrix. One column of text makes y labels for
        a classifier. In an .npz file the name of the targets' array, "y" if it is there.
    weight : str, optional
        Column (or array) of sample weights.
    groups : str, optional
        Column (or array) of integers, booleans or text that says which rows are held out together; it is
        written as "groups".
    columns : sequence of str, optional
        Columns of X in this order; None takes all that have no other role.
    dtype : {"float32", "float64"}, optional
        Of X. None keeps all digits: float32 for columns of float32, booleans and integers of at most 16 bits,
        else float64, to which the numbers of a CSV file are read and 64-bit integers above 2^53 are rounded.
        Targets are float64; labels and groups keep their type.
    on_nan : {"error", "drop"}, default="error"
        What to do with a row that has an empty, NaN or infinite value; empty text is one. Dropped rows are
        counted in the attribute `dropped_rows`.
    chunk_rows, overwrite
        As in `write_dataset`.
    observer : callable, optional
        Called with (rows written, rows in all or None) after each batch.

    Returns
    -------
    ZarrDataset
        The dataset, opened; without y where that is text, which `open_column(url, "y")` opens.

    Raises
    ------
    StorageError
        If the source cannot be read, its type is unknown, or the output cannot be written.
    InvalidParameterError
        If a column that is named is not there.
    DataError
        If a column is not numbers, or a value is missing; names the column and the row.
    """
    if dtype not in (None, "float32", "float64"):
        raise InvalidParameterError(f"`dtype`={dtype!r}; expected 'float32', 'float64' or None")
    if on_nan not in ("error", "drop"):
        raise InvalidParameterError(f"`on_nan`={on_nan!r}; expected 'error' or 'drop'")
    path = Path(os.path.abspath(os.path.expanduser(os.fspath(source))))
    kind = _file_kind(path)
    # Looking for a table's columns and types may take a while.
    check_output(parse_location(url), overwrite=overwrite, inputs=[Location("file", str(path))])
    attributes: dict[str, Any] = {}
    names: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None)
    if kind == ".npz":
        if columns is not None:
            raise InvalidParameterError(
                "`columns` names columns of a table; an .npz file holds X as one array"
            )
        n_samples, batches = _read_npz(path, target, weight, groups, dtype)
    else:
        table = {".csv": _csv_table, ".parquet": _parquet_table, ".npy": _npy_table}[kind](path)
        targets = [target] if isinstance(target, str) else list(target or [])
        features = _choose_columns(table, path, targets, weight=weight, groups=groups, columns=columns)
        names, n_samples = (features, targets or None), table.n_samples
        X_dtype = _feature_dtype([table.kinds[name] for name in features], dtype)
        batches = _split_columns(
            table, features, targets, weight, groups, X_dtype, one_dimensional=isinstance(target, str)
        )
    return write_batches(
        parse_location(url),
        _check_values(batches, path, names, on_nan, attributes),
        n_samples=n_samples,
        chunk_rows=chunk_rows,
        names=names,
        attributes=attributes,
        overwrite=overwrite,
        inputs=[Location("file", str(path))],
        observer=observer,
    )


def _file_kind(path: Path) -> str:
    if not path.exists():
        raise StorageError(f"nothing to ingest at {path}: it does not exist")
    name = path.name.lower()
    if path.is_dir():
        if any((path / marker).exists() for marker in ("zarr.json", ".zgroup", ".zarray")):
            raise StorageError(f"{path} is Zarr data already; open it with open_dataset")
        return ".parquet"
    for suffix, kind in {
        ".csv": ".csv",
        ".csv.gz": ".csv",
        ".parquet": ".parquet",
        ".pq": ".parquet",
    }.items():
        if name.endswith(suffix):
            return kind
    if name.endswith((".npy", ".npz")):
        return name[-4:]
    raise StorageError(
        f"{path} is of an unknown type; expected .csv, .csv.gz, .parquet, .npy, .npz or a folder of Parquet "
        "files"
    )


def _choose_columns(
    table: _Table,
    path: Path,
    targets: list[str],
    *,
    weight: str | None,
    groups: str | None,
    columns: Sequence[str] | None,
) -> list[str]:
    """Names of X's columns, once all names that were given are known to exist and to hold what they must."""
    roles = [(name, "target") for name in targets]
    roles += [(name, "columns") for name in columns or []]
    roles += [(name, role) for name, role in ((weight, "weight"), (groups, "groups")) if name is not None]
    for name, role in roles:
        if name not in table.kinds:
            near = difflib.get_close_matches(name, table.kinds, n=3)
            known = (
                "nearest: " + ", ".join(map(repr, near)) if near else "it has " + _listed(list(table.kinds))
            )
            raise InvalidParameterError(f"`{role}`: {path.name} has no column {name!r}; {known}")
    taken = {*targets, weight, groups}
    features = [name for name in table.kinds if name not in taken] if columns is None else list(columns)
    used = [*features, *(name for name, role in roles if role != "columns")]
    twice = _repeated(used)
    if twice:
        raise InvalidParameterError(
            f"columns {_listed(twice)} are named twice; expected each once, in one role"
        )
    if not features:
        raise InvalidParameterError(f"no column of {path.name} is left for X; name some by `columns`")
    may_be_text = {groups, *(targets if len(targets) == 1 else [])}
    strange = {
        name: kind
        for name in used
        if isinstance(kind := table.kinds[name], str) and not (kind == "string" and name in may_be_text)
    }
    if strange:
        numeric = [name for name in features if name not in strange]
        shown = ", ".join(f"{name!r} ({kind})" for name, kind in list(strange.items())[:10])
        raise DataError(
            f"{path.name}: not numbers: {shown}; expected numeric columns. Leave them out with "
            f"columns={numeric[:10]}{' …' if len(numeric) > 10 else ''}, or convert them first: a time to a "
            "number of "
            "seconds, a category to 0/1 columns"
        )
    return features


def _feature_dtype(kinds: Sequence[np.dtype[Any] | str], dtype: str | None) -> np.dtype[Any]:
    if dtype is not None:
        return np.dtype(dtype)
    return np.result_type(np.float32, *(kind for kind in kinds if isinstance(kind, np.dtype)))


def _split_columns(
    table: _Table,
    features: list[str],
    targets: list[str],
    weight: str | None,
    groups: str | None,
    dtype: np.dtype[Any],
    *,
    one_dimensional: bool,
) -> Iterator[tuple[np.ndarray | None, ...]]:
    n_features = len(features)
    for name, role in ((weight, "weight"), (groups, "groups")):
        if name is not None and not targets:
            raise InvalidParameterError(f"`{role}` without `target`; expected those of training rows")
    text = [name for name in targets if table.kinds[name] == "string"]
    numbers = [*features, *([] if text else targets), *([] if weight is None else [weight])]
    for values, *labels in table.batches(numbers, [*text, *([] if groups is None else [groups])]):
        y = values[:, n_features : n_features + len(targets)]
        yield (
            values[:, :n_features].astype(dtype, copy=False),
            None if not targets else labels[0] if text else y[:, 0] if one_dimensional else y,
            None if weight is None else values[:, -1],
            None if groups is None else labels[-1],
        )


def _check_values(
    batches: Iterator[tuple[np.ndarray | None, ...]],
    path: Path,
    names: tuple[Sequence[str] | None, Sequence[str] | None],
    on_nan: str,
    attributes: dict[str, Any],
) -> Iterator[tuple[np.ndarray | None, ...]]:
    """Refuse or drop rows with values that are missing or infinite; counts what was dropped."""
    first, dropped = 0, 0
    for parts in batches:
        good: np.ndarray | None = None
        for i, part in enumerate(parts):
            if part is None:
                continue
            usable = _is_usable(part if part.ndim == 2 else part[:, np.newaxis])
            good = usable.all(axis=1) if good is None else good & usable.all(axis=1)
            if on_nan == "error" and not usable.all():
                row, column = np.argwhere(~usable)[0].tolist()
                known = names[i] if i < 2 else None
                where = ("X", "y", "the weights", "the groups")[i]
                place = repr(known[column]) if known else f"{column} of {where}"
                expected = "a number" if part.dtype.kind in "biuf" else "text"
                raise DataError(
                    f"{path.name}: row {first + row + 1}, column {place} is missing or not finite (rows "
                    f"count from 1, without a header); expected {expected}. Fill it in, or drop such rows "
                    'with on_nan="drop"'
                )
        assert good is not None  # X is never missing
        dropped += int(len(good) - good.sum())
        first += len(good)
        yield parts if good.all() else tuple(None if part is None else part[good] for part in parts)
    if on_nan == "drop":
        attributes["dropped_rows"] = dropped
        if dropped:
            _log.warning(
                "%s: %d of %d rows dropped for missing or infinite values", path.name, dropped, first
            )


def _is_usable(values: np.ndarray) -> np.ndarray:
    """Say of each value whether it is there: a finite number, or text that is not empty."""
    if values.dtype.kind in "biuf":
        return np.isfinite(values)
    return np.asarray((values != "") & (values != None))  # noqa: E711 - of each element


def _csv_table(path: Path) -> _Table:
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
        raise StorageError(f"{path} cannot be read as CSV: {describe(error)}") from error
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
                f"{path.name}: {describe(error)}; expected numbers in the columns {_listed(names)}"
                f"{', and one type of value in ' + _listed(labels) if labels else ''}. "
                "Correct the value, or leave the column out with `columns`"
            ) from error

    numbers = {
        name: kind if isinstance(kind, str) or kind.kind == "b" else np.dtype(np.float64)
        for name, kind in kinds.items()
    }
    return _Table(numbers, batches, None)


def _longest_line(path: Path) -> int:
    """Measure the longer of the first two lines: a row must fit into a block."""
    opener = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            return max(len(file.readline(2**26)) for _ in range(2))
    except (OSError, EOFError) as error:
        raise StorageError(f"{path} cannot be read as CSV: {describe(error)}") from error


def _parquet_table(path: Path) -> _Table:
    import pyarrow
    from pyarrow import parquet

    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise StorageError(f"{path} is a folder without Parquet files; expected *.parquet in it")
    partitions = sorted({part for file in files for part in file.relative_to(path).parts[:-1] if "=" in part})
    if partitions:
        raise StorageError(
            f"{path} has partition folders such as {partitions[0]!r}, whose values are not in the files; "
            "write the column into the files"
        )
    try:
        metadata = [parquet.read_metadata(file) for file in files]
        schemas = [data.schema.to_arrow_schema() for data in metadata]
    except (pyarrow.ArrowException, OSError) as error:
        raise StorageError(f"{path} cannot be read as Parquet: {describe(error)}") from error
    for file, schema in zip(files, schemas, strict=True):
        if set(schema.names) != set(schemas[0].names):
            differing = sorted(set(schema.names) ^ set(schemas[0].names))
            raise DataError(f"{file.name} and {files[0].name} differ in the columns {_listed(differing)}")
    kinds = _arrow_kinds(schemas[0], path)
    for schema in schemas[1:]:
        for name, other in _arrow_kinds(schema, path).items():
            both = (kinds[name], other)
            text = [kind for kind in both if isinstance(kind, str)]
            kinds[name] = text[0] if text else np.result_type(*both)

    def batches(names: list[str], labels: list[str]) -> Iterator[tuple[np.ndarray, ...]]:
        rows = max(1, BATCH_BYTES // (8 * len(names)))
        for file in files:
            try:
                with parquet.ParquetFile(file, pre_buffer=False) as reader:
                    chosen = [*names, *labels]
                    for batch in reader.iter_batches(batch_size=rows, columns=chosen, use_threads=False):
                        yield (_to_numpy(batch, names), *(_to_labels(batch, name) for name in labels))
            except (pyarrow.ArrowException, OSError) as error:
                raise StorageError(f"{file} cannot be read: {describe(error)}") from error

    return _Table(kinds, batches, sum(data.num_rows for data in metadata))


def _arrow_kinds(schema: pyarrow.Schema, path: Path) -> dict[str, np.dtype[Any] | str]:
    from pyarrow import types

    twice = _repeated(schema.names)
    if twice:
        raise DataError(f"{path.name} has several columns named {_listed(twice)}; expected different names")
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


def _npy_table(path: Path) -> _Table:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise StorageError(f"{path} cannot be read as an array of numbers: {describe(error)}") from error
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

    return _Table(dict.fromkeys(names, kind), batches, len(array))


def _read_npz(
    path: Path,
    target: str | Sequence[str] | None,
    weight: str | None,
    groups: str | None,
    dtype: str | None,
) -> tuple[int | None, Iterator[tuple[np.ndarray | None, ...]]]:
    if target is not None and not isinstance(target, str):
        raise InvalidParameterError(f"`target`={target!r}; expected the name of one array of the .npz file")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy") for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise StorageError(f"{path} cannot be read as .npz: {describe(error)}") from error
    if target is None and "y" in members:
        target = "y"
    wanted = ["X", target, weight, groups]
    for name, role in ((weight, "weight"), (groups, "groups")):
        if name is not None and target is None:
            raise InvalidParameterError(f"`{role}` without targets; expected those of training rows")
    for name in filter(None, wanted):
        if name not in members:
            raise InvalidParameterError(
                f"{path.name} has no array {name!r}; it has {_listed(sorted(members))}"
            )
    headers = {name: _npz_header(path, name, text=name in (target, groups)) for name in wanted if name}
    lengths = {name: shape[0] for name, (shape, _) in headers.items()}
    if len(headers["X"][0]) != 2 or len(set(lengths.values())) > 1:
        shapes = {name: shape for name, (shape, _) in headers.items()}
        raise DataError(f"{path.name} has shapes {shapes}; expected X of 2 axes and as many rows in all")
    X_dtype = _feature_dtype([headers["X"][1]], dtype)
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
                raise StorageError(f"array {name!r} of {path} is damaged: {describe(error)}") from error
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
        raise StorageError(f"array {name!r} of {path} cannot be read: {describe(error)}") from error
    return shape, fortran, dtype


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:10]) + (" …" if len(names) > 10 else "")
