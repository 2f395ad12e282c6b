"""Arrays in .npy files as tables, read a few rows at a time."""

from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError

import numpy as np
import pyarrow

from rff_dist.data.columns import is_text
from rff_dist.errors import DataError
from rff_dist.recipes.tables import (
    Batches,
    RawTable,
    Types,
    cast_columns,
    opening,
    rows_per_batch,
    to_column,
)
from rff_dist.typing import AnyDType

#: What damaged files raise: NumPy reads headers as Python.
_DAMAGED = (ValueError, SyntaxError, TokenError)


def array_table(paths: Sequence[Path]) -> RawTable:
    """Return the columns of several .npy files as one table.

    The columns of a 2-D array are named "0", "1", …; a 1-D array is a column with the
    name of its file. Raises StorageError if a file cannot be read; DataError if an
    array is no table, several are 2-D, or their numbers of rows differ.
    """
    arrays = {path: _memory_map(path) for path in paths}
    places: dict[str, tuple[Path, int | None]] = {}
    for path, array in arrays.items():
        if array.ndim == 1:
            kinds = "biufU"
            places[path.stem] = path, None
        elif array.ndim == 2:
            kinds = "biuf"
            places |= {str(i): (path, i) for i in range(array.shape[1])}
        else:
            raise DataError(
                f"{path.name} has shape {array.shape}; expected 2 axes (n_samples,"
                " n_columns), or 1"
            )
        if array.dtype.kind not in kinds:
            raise DataError(f"{path.name} holds {array.dtype}; expected numbers")
    n_samples = len(arrays[paths[0]])
    has_several_wide = [array.ndim for array in arrays.values()].count(2) > 1
    if has_several_wide or any(len(array) != n_samples for array in arrays.values()):
        shapes = ", ".join(
            f"{path.name} {array.shape}" for path, array in arrays.items()
        )
        raise DataError(
            f"{shapes}; expected one array of two axes, and columns of one axis with as"
            " many rows. To put arrays below each other, ingest one after the other"
            " with `append`"
        )
    schema = {name: _type(arrays[path].dtype) for name, (path, _) in places.items()}
    n_rows = rows_per_batch(
        sum(array.itemsize * max(1, array[:1].size) for array in arrays.values())
    )

    def batches(types: Types) -> Batches:
        # an empty array has one empty batch
        for start in range(0, max(1, n_samples), n_rows):
            # A new map for each batch: pages that were read count as memory until
            # their map is closed.
            parts = {path: _memory_map(path)[start : start + n_rows] for path in paths}
            columns = {}
            for name, (path, i) in places.items():
                if name in types:
                    values = parts[path]
                    columns[name] = to_column(values if i is None else values[:, i])
            batch = pyarrow.RecordBatch.from_pydict(columns)
            yield cast_columns(batch, types, paths[0].name)

    name = ", ".join(path.name for path in paths)
    return RawTable(name, pyarrow.schema(schema), batches, n_samples)


def has_one_axis(path: Path) -> bool:
    """Return whether the array of an .npy file is 1-D, that is a column."""
    return _memory_map(path).ndim == 1


def _memory_map(path: Path) -> np.ndarray:
    with opening(path, "an array of numbers", *_DAMAGED):
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _type(dtype: AnyDType) -> pyarrow.DataType:
    if is_text(dtype):
        return pyarrow.string()
    return pyarrow.from_numpy_dtype(dtype.newbyteorder("="))
