"""Turn what `write_dataset` is given into batches: arrays and frames as one, Zarr and Dask block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import zarr

from rff_dist.data.blocks import Block, cut_blocks
from rff_dist.data.columns import Column
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.storage.columns import as_column
from rff_dist.storage.datasets import ZarrDataset, dataset_from_arrays

type RowBatch = np.ndarray | tuple[np.ndarray | None, ...]


def read_source(
    X: Any, y: Any, sample_weight: Any, groups: Any, ids: Any = None
) -> tuple[Iterator[RowBatch], int | None]:
    """Return batches (X, y, sample_weight, groups, ids), missing parts None, and the number of rows if known.

    Raises DataError if shapes or dtypes do not fit together; InvalidParameterError if X is an iterator and
      another part is given.
    """
    if isinstance(X, Iterator):
        if any(part is not None for part in (y, sample_weight, groups, ids)):
            raise InvalidParameterError(
                "X is an iterator, and y, sample_weight, groups or ids are given; yield (X, y) instead"
            )
        return X, None
    for name, part in (("sample_weight", sample_weight), ("groups", groups)):
        if y is None and part is not None:
            raise DataError(f"{name} is given without y; only training rows have it. Give y too")
    if _is_lazy(X):
        return _lazy_batches([X, y, sample_weight, groups, ids]), None
    given = {"y": y if _holds_labels(y) else None, "groups": groups, "ids": ids}
    columns = {name: as_column(part, name=name) for name, part in given.items() if part is not None}
    y = None if "y" in columns else y
    dataset: ZarrDataset | ArrayDataset
    if isinstance(X, zarr.Array):
        y, sample_weight = (
            part if part is None or isinstance(part, zarr.Array) else np.asarray(part)
            for part in (y, sample_weight)
        )
        dataset = dataset_from_arrays(X, y, sample_weight)
    else:
        dataset = ArrayDataset(X, y, sample_weight)
    for name, column in columns.items():
        if column.n_samples != dataset.n_samples:
            raise DataError(
                f"{name} has {column.n_samples:_} rows and X {dataset.n_samples:_}; expected a row of {name} "
                "for each row of X"
            )
    return _stored_batches(dataset, columns), dataset.n_samples


def _holds_labels(y: Any) -> bool:
    """Return whether y is a vector of text, integers or booleans: labels, which keep their type."""
    values = y if isinstance(y, zarr.Array) else np.asarray(y)
    return values.ndim == 1 and values.dtype.kind in "biuUTO"


def column_names(values: Any) -> list[str] | None:
    """Return the column names of a frame or a series; None for other values, or if a name is not text."""
    # A Dask array has a `name` too, but it names the array's graph.
    if not hasattr(values, "columns") and not (hasattr(values, "name") and hasattr(values, "to_frame")):
        return None
    names = list(values.columns) if hasattr(values, "columns") else [values.name]
    return [str(name) for name in names] if all(isinstance(name, str) for name in names) else None


def _stored_batches(dataset: ZarrDataset | ArrayDataset, columns: Mapping[str, Column]) -> Iterator[RowBatch]:
    rows = dataset.chunk_rows if isinstance(dataset, ZarrDataset) else max(1, dataset.n_samples)
    for block in cut_blocks(dataset.n_samples, rows, rows_per_block=rows) or [Block(0, 0, 0)]:
        read = dataset.read(block)
        y = read.y if read.y is None or not dataset.one_dimensional else read.y[:, 0]
        found = {name: column.read(block) for name, column in columns.items()}
        yield read.X, found.get("y", y), read.sample_weight, found.get("groups"), found.get("ids")


def _lazy_batches(parts: list[Any]) -> Iterator[RowBatch]:
    """Compute a Dask collection one block of rows at a time, with the matching rows of the other parts."""
    n_blocks = _row_blocks(parts[0])
    for name, part in zip(("y", "sample_weight", "groups", "ids"), parts[1:], strict=True):
        if _is_lazy(part) and _row_blocks(part) != n_blocks:
            raise DataError(
                f"X has {n_blocks} blocks of rows and {name} {_row_blocks(part)}; "
                "expected as many. Rechunk them alike"
            )
    start = 0
    given = [part if part is None or _is_lazy(part) else np.asarray(part) for part in parts]
    for i in range(n_blocks):
        X = np.asarray(_block(given[0], i))
        rows = slice(start, start + len(X))
        yield X, *(None if part is None else _rows(part, i, rows) for part in given[1:])
        start = rows.stop
    lengths = [start if _is_lazy(part) else len(part) for part in given if part is not None]
    if len(set(lengths)) > 1:
        raise DataError(
            f"Found input variables with inconsistent numbers of samples: {lengths}; "
            "give as many rows of each"
        )


def _is_lazy(part: Any) -> bool:
    return hasattr(part, "__dask_graph__")


def _rows(part: Any, i: int, rows: slice) -> np.ndarray:
    return np.asarray(_block(part, i)) if _is_lazy(part) else part[rows]


def _row_blocks(collection: Any) -> int:
    return int(collection.numblocks[0] if hasattr(collection, "numblocks") else collection.npartitions)


def _block(collection: Any, i: int) -> Any:
    blocks = collection.blocks if hasattr(collection, "blocks") else collection.partitions
    return blocks[i].compute()
