"""What `write_dataset` is given, as batches: arrays and frames at once, Zarr and Dask block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr

from rff_dist.blocks import Block, cut_blocks
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.storage.datasets import ZarrDataset, dataset_from_arrays
from rff_dist.storage.memory import ArrayDataset

type Batch = np.ndarray | tuple[np.ndarray, ...]


def read_source(X: Any, y: Any, sample_weight: Any) -> tuple[Iterator[Batch], int | None]:
    """Return batches X, (X, y) or (X, y, sample_weight), and the rows in all where they are known.

    Raises
    ------
    DataError
        If shapes or dtypes do not belong together.
    InvalidParameterError
        If y is given beside an iterator.
    """
    if isinstance(X, Iterator):
        if y is not None or sample_weight is not None:
            raise InvalidParameterError(
                "y and sample_weight are given beside an iterator; yield (X, y) instead"
            )
        return X, None
    if y is None and sample_weight is not None:
        raise DataError("sample_weight without y; expected weights of training rows. Give y")
    if hasattr(X, "__dask_graph__"):
        return _lazy_batches([part for part in (X, y, sample_weight) if part is not None]), None
    if isinstance(X, zarr.Array):
        y, sample_weight = (
            part if part is None or isinstance(part, zarr.Array) else np.asarray(part)
            for part in (y, sample_weight)
        )
        stored = dataset_from_arrays(X, y, sample_weight)
        return _stored_batches(stored), stored.n_samples
    data = ArrayDataset(X, y, sample_weight)
    parts = (data.X, data.y, data.sample_weight)
    return iter([tuple(part for part in parts if part is not None)]), data.n_samples


def column_names(values: Any) -> list[str] | None:
    """Return the names of a frame's columns, or of a series; None where any is no text."""
    # A Dask array has a name, but that of its graph.
    if not hasattr(values, "columns") and not (hasattr(values, "name") and hasattr(values, "to_frame")):
        return None
    names = list(values.columns) if hasattr(values, "columns") else [values.name]
    return [str(name) for name in names] if all(isinstance(name, str) for name in names) else None


def _stored_batches(dataset: ZarrDataset) -> Iterator[Batch]:
    rows = dataset.chunk_rows
    for block in cut_blocks(dataset.n_samples, rows, rows_per_block=rows) or [Block(0, 0, 0)]:
        read = dataset.read(block)
        y = read.y if read.y is None or not dataset.one_dimensional else read.y[:, 0]
        yield tuple(part for part in (read.X, y, read.sample_weight) if part is not None)


def _lazy_batches(parts: list[Any]) -> Iterator[Batch]:
    """Compute a Dask collection one block of rows at a time, with the rows of y that belong to it."""
    n_blocks = _row_blocks(parts[0])
    for part in parts[1:]:
        if _is_lazy(part) and _row_blocks(part) != n_blocks:
            raise DataError(
                f"X has {n_blocks} blocks of rows and y or sample_weight {_row_blocks(part)}; expected as "
                "many. Rechunk them alike"
            )
    start = 0
    given = [part if _is_lazy(part) else np.asarray(part) for part in parts]
    for i in range(n_blocks):
        X = np.asarray(_block(given[0], i))
        stop = start + len(X)
        others = (np.asarray(_block(p, i)) if _is_lazy(p) else p[start:stop] for p in given[1:])
        yield (X, *others)
        start = stop
    lengths = [start if _is_lazy(part) else len(part) for part in given]
    if len(set(lengths)) > 1:
        raise DataError(
            f"Found input variables with inconsistent numbers of samples: {lengths}; "
            "give as many rows of each"
        )


def _is_lazy(part: Any) -> bool:
    return hasattr(part, "__dask_graph__")


def _row_blocks(collection: Any) -> int:
    return int(collection.numblocks[0] if hasattr(collection, "numblocks") else collection.npartitions)


def _block(collection: Any, i: int) -> Any:
    blocks = collection.blocks if hasattr(collection, "blocks") else collection.partitions
    return blocks[i].compute()
