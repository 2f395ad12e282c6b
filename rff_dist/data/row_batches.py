"""Batches of rows that are to be stored: their arrays, checked and by name.

A batch goes in, as a tuple of arrays or a block of a Dask collection; arrays by name,
in stored dtypes, come out. Plain assignments to stored arrays would round values and
turn numbers into text.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rff_dist.data import array_checks, columns, dask_collections
from rff_dist.errors import DataError
from rff_dist.typing import AnyDType

ID = "id"  # the array of the rows' ids, which are written next to their predictions
TIME = "row_time"  # the array of times, in data whose later rows were held out


class RowArrays(NamedTuple):
    """Arrays of the same rows; a batch of a table."""

    X: np.ndarray
    y: np.ndarray | None
    sample_weight: np.ndarray | None
    groups: np.ndarray | None
    ids: np.ndarray | None
    #: times by which later rows were held out
    times: np.ndarray | None

    def take(self, rows: np.ndarray) -> "RowArrays":
        """Return some of the rows, by their numbers or a mask."""
        parts = self._asdict().items()
        taken = {name: part[rows] for name, part in parts if part is not None}
        return self._replace(**taken)


type ColumnNames = tuple[Sequence[str] | None, Sequence[str] | None]  # of X and y
#: X, or up to (X, y, sample_weight, groups, id, row_time), where all but X may be None.
type RowBatch = np.ndarray | tuple[np.ndarray | None, ...]


def can_hold(stored: AnyDType, values: AnyDType) -> bool:
    """Return whether an array of dtype `stored` can hold values of a dtype exactly.

    Like `numpy.can_cast(values, stored)`, but text never becomes numbers.
    """
    if columns.is_text(stored) or columns.is_text(values):
        return columns.is_text(stored) and columns.is_text(values)
    return np.can_cast(values, stored, "safe")


def cast_exactly(
    values: np.ndarray, shape: tuple[int, ...], dtype: AnyDType, name: str, label: str
) -> np.ndarray:
    """Return values in the dtype of a stored array.

    Errors call the values `name` and the stored array `label`. Raises DataError if the
    values have another shape, or the array cannot hold them without rounding.
    """
    if values.shape != shape:
        raise DataError(
            f"{name} has shape {values.shape}; expected {shape}, as in {label}"
        )
    if not can_hold(dtype, values.dtype):
        kinds = [
            "text" if columns.is_text(kind) else str(kind)
            for kind in (values.dtype, dtype)
        ]
        raise DataError(
            f"{name} is {kinds[0]}, but {label} holds {kinds[1]}; expected a type that"
            " converts without rounding. Convert the values first"
        )
    return values.astype(dtype, copy=False)


def cast_parts(
    parts: Mapping[str, np.ndarray], stored: Mapping[str, Any], label: str, where: str
) -> dict[str, np.ndarray]:
    """Return a batch's arrays in the dtypes of `stored` arrays or headers by name.

    Errors call the place of the stored arrays `label`, and begin with `where`. Raises
    DataError if names, shapes or dtypes do not fit, see `cast_exactly`.
    """
    if parts.keys() != stored.keys():
        raise DataError(
            f"{where}the new rows have the arrays {', '.join(parts)}, and {label} has"
            f" {', '.join(stored)}; expected the same arrays"
        )
    cast_values = {}
    for name, values in parts.items():
        array = stored[name]
        shape = (len(parts["X"]), *array.shape[1:])
        array_label = f"array {name!r} of {label}"
        cast_values[name] = cast_exactly(
            values, shape, array.dtype, f"{where}{name}", array_label
        )
    return cast_values


def name_parts(batch: RowBatch, first_row: int) -> dict[str, np.ndarray]:
    """Check a batch's arrays and return them by name; weights become float64."""
    parts = batch if isinstance(batch, tuple) else (batch,)
    if len(parts) > len(_PREPARE):
        raise DataError(
            f"a batch of {len(parts)} arrays at row {first_row}; expected at most"
            f" {len(_PREPARE)}: {', '.join(_PREPARE)}"
        )
    return {
        name: prepare(np.asarray(part), first_row)
        for (name, prepare), part in zip(_PREPARE.items(), parts, strict=False)
        if part is not None
    }


def _as_targets(values: np.ndarray, first_row: int) -> np.ndarray:
    if values.ndim == 1 and values.dtype.kind in "biuUTO":
        return _as_labels(values, "y", first_row)
    return array_checks.check_targets(values)


def _as_groups(values: np.ndarray, first_row: int) -> np.ndarray:
    groups = _as_labels(values, "groups", first_row)
    return groups.astype(np.int64) if groups.dtype.kind == "f" else groups


def _as_labels(values: np.ndarray, name: str, first_row: int) -> np.ndarray:
    """Return integers, booleans or text, of variable width for later batches."""
    labels = columns.check_values(
        values, name, np.arange(first_row, first_row + values.size)
    )
    return labels.astype(columns.TEXT) if columns.is_text(labels.dtype) else labels


# Functions that prepare a batch's parts, in their order; each gets the values and the
# number of the first row.
_PREPARE: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "X": lambda values, _: array_checks.native(array_checks.check_inputs(values)),
    "y": _as_targets,
    "sample_weight": lambda values, _: array_checks.check_weights(values),
    "groups": _as_groups,
    ID: lambda values, first_row: _as_labels(values, "the ids", first_row),
    TIME: lambda values, _: values.astype(np.float64, copy=False),
}


def column_names(values: Any) -> list[str] | None:
    """Return the names of the columns of a frame or a series, or None."""
    # A Dask array has a `name` too, but it names the array's graph.
    if not hasattr(values, "columns") and not (
        hasattr(values, "name") and hasattr(values, "to_frame")
    ):
        return None
    names = list(values.columns) if hasattr(values, "columns") else [values.name]
    return (
        [str(name) for name in names]
        if all(isinstance(name, str) for name in names)
        else None
    )


def names_of(batch: Any) -> ColumnNames:
    """Return the names of the columns of X and y, if they are a frame and a series."""
    X, y, *_ = [*batch, None] if isinstance(batch, tuple) else [batch, None]
    return column_names(X), column_names(y)


def with_names(batches: Iterable[RowBatch], names: ColumnNames) -> Iterator[RowBatch]:
    """Yield batches; DataError if the columns of one have other names."""
    for batch in batches:
        own = names_of(batch)
        if own != names:
            raise DataError(
                f"a batch has the columns {own[0]} and the targets {own[1]}; expected"
                f" {names[0]} and {names[1]}, as in the first batch. Choose and sort"
                " them by name"
            )
        yield batch


# -- Dask collections


def lazy_batches(parts: list[Any]) -> Iterator[RowBatch]:
    """Yield batches of a Dask collection X, computed block by block, with the same rows
    of the other parts.
    """
    n_blocks = _row_blocks(parts[0])
    names = ("X", "y", "sample_weight", "groups", "ids")
    for name, part in zip(names, parts, strict=True):
        if is_lazy(part) and _row_blocks(part) != n_blocks:
            raise DataError(
                f"X has {n_blocks} blocks of rows and {name} {_row_blocks(part)}; "
                "expected as many. Rechunk them alike"
            )
    start = 0
    whole = [
        part if part is None or is_lazy(part) else np.asarray(part) for part in parts
    ]
    for i in range(n_blocks):
        X = np.asarray(_block(whole[0], i))
        rows = slice(start, start + len(X))
        yield X, *(None if part is None else _rows(part, i, rows) for part in whole[1:])
        start = rows.stop
    n_rows = {}
    for name, part in zip(names, whole, strict=True):
        if part is not None:
            n_rows[name] = start if is_lazy(part) else len(part)
    array_checks.require_rows(n_rows)


def is_lazy(part: Any) -> bool:
    """Return whether an array is a Dask collection."""
    return hasattr(part, "__dask_graph__")


def _rows(part: Any, i: int, rows: slice) -> np.ndarray:
    return np.asarray(_block(part, i)) if is_lazy(part) else part[rows]


def _row_blocks(collection: Any) -> int:
    return int(
        collection.numblocks[0]
        if hasattr(collection, "numblocks")
        else collection.npartitions
    )


def _block(collection: Any, i: int) -> Any:
    blocks = (
        collection.blocks if hasattr(collection, "blocks") else collection.partitions
    )
    return dask_collections.compute(blocks[i])[0]
