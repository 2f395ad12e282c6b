"""Dask arrays and frames as a dataset, whose rows stay on the cluster that has them.

Collections of X, y and weights go in. Their chunk sizes may be unknown, their columns
split, and y chunked otherwise than X. Here all get the chunks of X's rows, so that a
*partition* is X, y and weights of the same rows. The Dask engine computes partitions in
its own tasks (`partitions.py`).
"""

# mypy: allow-untyped-calls

import copy
import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from itertools import accumulate, batched
from typing import Any, Self, cast

import dask.array
import numpy as np
from dask.delayed import delayed

from rff_dist.data import array_checks, blocks, dask_collections, memory
from rff_dist.engines.partitions import Partitions
from rff_dist.errors import DataError, warn
from rff_dist.typing import AnyDType


class DaskArrayDataset(memory.ArraysDataset):
    """Dask arrays or frames as a dataset, computed by the cluster where they are used.

    Unknown chunk sizes are computed in one pass over all arguments.

    Parameters
    ----------
    X : dask array of shape (n_samples, n_features), or dask frame
        Inputs. Split along its columns, it is rechunked with a warning.
    y : array of shape (n_samples,) or (n_samples, n_targets), series or frame, optional
        Targets, of Dask or NumPy; cast to float64.
    sample_weight : array of shape (n_samples,) or series, optional
        Weights, of Dask or NumPy; cast to float64.
    client : distributed.Client, optional
        Computes sizes and single rows, in place of Dask's default.

    Raises
    ------
    DataError
        If shapes do not belong together, there are no rows or columns, or values are
        not real numbers.
    """

    url = None
    missing_chunks = "error"  # nothing is stored, so none can be missing
    version = None
    is_lazy = True

    def __init__(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, client: Any = None
    ) -> None:
        self._compute = partial(dask_collections.compute, client=client)
        self.feature_names = _column_names(X)
        self.target_names = _column_names(y)
        arrays = {}
        for name, value in (("X", X), ("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                arrays[name] = _as_dask_array(value)
        arrays = array_checks.check_parts(_known_chunks(arrays, self._compute))
        X = arrays["X"]
        if not X.shape[0]:
            raise DataError(f"X has shape {X.shape}; expected at least one row")
        if X.numblocks[1] > 1:
            warn(
                f"X is split into {X.numblocks[1]} pieces along its columns; it is"
                " rechunked to whole rows, which moves data between workers. Store it"
                " in chunks of whole rows",
            )
            X = X.rechunk({1: -1})
        rows = X.chunks[0]
        self.X = X
        self.y = _float_rows(arrays.get("y"), rows)
        self.sample_weight = _float_rows(arrays.get("sample_weight"), rows)
        self._edges = [0, *accumulate(rows)]
        #: The partitions of the block that was read last.
        self._read: dict[int, tuple[Any, ...]] = {}

    @property
    def dtype(self) -> AnyDType:
        return cast("AnyDType", self.X.dtype)

    @property
    def chunk_rows(self) -> int:
        return int(max(self.X.chunks[0]))

    @property
    def _arrays(self) -> tuple[Any, Any, Any]:
        y = self.y[:, np.newaxis] if self.one_dimensional else self.y
        return self.X, y, self.sample_weight

    @property
    def client(self) -> Any:
        return dask_collections.client_of(self._arrays)

    def partitions(self, start: int, stop: int) -> range:
        """Return the partitions with rows `start:stop`, by position."""
        return range(
            bisect_right(self._edges, start) - 1, bisect_left(self._edges, stop)
        )

    def rows_of(self, partition: int) -> tuple[Any, Any, Any]:
        """Return X, y and weights of a partition as Dask arrays, or None."""
        X, y, weight = (
            None if array is None else array.blocks[partition] for array in self._arrays
        )
        return X, y, weight

    def edges_of(self, partitions: range) -> list[int]:
        """Return the first row of each partition, and the row after the last one."""
        return self._edges[partitions.start : partitions.stop + 1]

    def read(self, block: blocks.Block) -> blocks.Rows:
        numbers = self.partitions(block.start, block.stop)
        # A partition may have many blocks; it is computed for the first one, and then
        # taken from `_read`.
        unread = [i for i in numbers if i not in self._read]
        values = self._compute(*(array for i in unread for array in self.rows_of(i)))
        partitions = self._read | dict(zip(unread, batched(values, 3), strict=True))
        self._read = {i: partitions[i] for i in numbers}
        arrays = [array for arrays in self._read.values() for array in arrays]
        return Partitions(self.edges_of(numbers), arrays).read(block)

    def read_weight(self, block: blocks.Block) -> Any:
        if self.sample_weight is None:
            return None
        return self._compute(self.sample_weight[block.start : block.stop])[0]

    def read_targets(self) -> Any:
        return None if self.y is None else self._compute(self.y)[0]

    def without_targets(self) -> Self:
        rows = copy.copy(self)
        rows.y = rows.target_names = None
        rows._read = {}
        return rows

    def take(self, indices: np.ndarray, /) -> blocks.Sample:
        parts = [None if array is None else array[indices] for array in self._arrays]
        return blocks.Sample(*self._compute(*parts))

    def fingerprint(self) -> str:
        facts = [
            None if a is None else (a.name, a.shape, a.chunks, str(a.dtype))
            for a in self._arrays
        ]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def prefix_fingerprint(self, n_samples: int) -> None:
        """Return None: only computing the first rows would show whether they differ."""

    def can_travel(self) -> bool:
        return True


def _as_dask_array(value: Any) -> Any:
    if hasattr(value, "to_dask_array"):
        value = value.to_dask_array()
    if isinstance(value, dask.array.Array):
        return value
    return dask.array.from_array(np.asarray(value), chunks=-1)


def _column_names(value: Any) -> tuple[str, ...] | None:
    # A Dask series has `columns` too: its own name.
    if getattr(value, "ndim", None) == 2 and hasattr(value, "columns"):
        return tuple(map(str, value.columns))
    return None


def _known_chunks(
    arrays: dict[str, Any], compute: Callable[..., Any]
) -> dict[str, Any]:
    """Return the arrays with known row chunks, after one pass if some are unknown."""
    unknown = {}
    for name, array in arrays.items():
        if any(np.isnan(length) for length in array.shape[1:]):
            raise DataError(
                f"{name} has shape {array.shape}; only the number of rows may be"
                " unknown"
            )
        if array.ndim and np.isnan(array.chunks[0]).any():
            unknown[name] = array
    if not unknown:
        return arrays

    count = delayed(len, pure=True)
    counts = {}
    for name, array in unknown.items():
        pieces = array.to_delayed(optimize_graph=False)
        first_columns = pieces.reshape(array.numblocks[0], -1)[:, 0]
        counts[name] = [count(piece) for piece in first_columns]
    (lengths,) = compute(counts)
    complete = dict(arrays)
    for name, array in unknown.items():
        complete[name] = dask.array.Array(
            array.dask,
            array.name,
            chunks=(tuple(lengths[name]), *array.chunks[1:]),
            dtype=array.dtype,
            meta=array._meta,
        )
    return complete


def _float_rows(array: Any, rows: tuple[int, ...]) -> Any:
    """Return an array with the row chunks `rows`, and one chunk of columns."""
    if array is None:
        return None
    if array.ndim == 2:
        array = array.rechunk({1: -1})
    return array.rechunk({0: rows})
