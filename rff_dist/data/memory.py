"""Datasets in memory, of arrays and sparse matrices.

Arrays go in; a dataset with the interface of a stored one comes out, so that a pass
over arrays runs the same code. Arrays alone have no blocks, and no fingerprint to
notice a change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from rff_dist.checks import as_array
from rff_dist.data import blocks
from rff_dist.data.array_checks import check_parts, check_rows
from rff_dist.data.blocks import Sample
from rff_dist.data.digests import digest_array, prefix_digest
from rff_dist.errors import InvalidParameterError
from rff_dist.typing import AnyDType, Facts


class ArraysDataset(blocks.Dataset):
    """A dataset of arrays X, y and sample_weight of any kind."""

    X: Any
    y: Any
    sample_weight: Any

    @property
    def n_samples(self) -> int:
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])

    @property
    def n_targets(self) -> int:
        if self.y is None:
            return 0
        return int(self.y.shape[1]) if self.y.ndim == 2 else 1

    @property
    def one_dimensional(self) -> bool:
        return self.y is not None and self.y.ndim == 1

    @property
    def weighted(self) -> bool:
        return self.sample_weight is not None

    def prefix_fingerprint(self, n_samples: int) -> str | None:
        return prefix_digest(self, n_samples)

    def read_targets(self) -> Any:
        return self.y


class IndexedDataset(ArraysDataset):
    """Rows that are read by indexing: `array[start:stop]` and `array[indices]`."""

    @property
    def dtype(self) -> AnyDType:
        return cast("AnyDType", self.X.dtype)

    @property
    def stored_chunk_rows(self) -> int | None:
        """Rows of a stored chunk, for messages; None if rows are not stored."""
        return None

    def read(self, block: blocks.Block) -> blocks.Rows:
        """Read the rows of one block.

        X is in its stored dtype, y float64 of shape (rows, n_targets).

        Raises
        ------
        StorageError
            If there are no such rows, a chunk is missing (unless
            `missing_chunks="fill"`) or the store does not answer.
        IntegrityError
            If a chunk's bytes are damaged.
        """
        parts = self._select(slice(block.start, block.stop))
        return blocks.Rows(block, *parts, chunk_rows=self.stored_chunk_rows)

    def take(self, indices: np.ndarray | Sequence[int]) -> Sample:
        """Read single rows, in the order of `indices`; each stored chunk is read at
        most once.

        Parameters
        ----------
        indices : int array of shape (n_indices,)
            Row numbers, repeats allowed.

        Raises
        ------
        InvalidParameterError
            If a row number lies outside the dataset.
        """
        return Sample(*self._select(check_rows(indices, self.n_samples)))

    def read_weight(self, block: blocks.Block) -> np.ndarray | None:
        if self.sample_weight is None:
            return None
        weight: np.ndarray = self.sample_weight[block.start : block.stop]
        return weight.astype(np.float64, copy=False)

    def _select(
        self, rows: slice | np.ndarray
    ) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
        X = self.X[rows]
        dense = X if isinstance(X, np.ndarray) else X.toarray()
        y = None
        if self.y is not None:
            y = self.y[rows].astype(np.float64, copy=False)
            y = y.reshape(len(y), self.n_targets)
        weight = None
        if self.sample_weight is not None:
            weight = self.sample_weight[rows].astype(np.float64, copy=False)
        return dense, y, weight


class RowsInMemory(IndexedDataset):
    """Rows in arrays of this process."""

    url = None
    missing_chunks = "error"
    version = None

    def can_travel(self) -> bool:
        return False

    @cached_property
    def _digest(self) -> str:
        X = self.X
        # The arrays of a CSR matrix: a dense copy may not fit into memory.
        inputs = [X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]
        arrays = [*inputs, self.y, self.sample_weight]
        parts = ["" if array is None else digest_array(array) for array in arrays]
        return hashlib.sha256("|".join([repr(X.shape), *parts]).encode()).hexdigest()

    def fingerprint(self) -> str:
        return self._digest


@dataclass(frozen=True, eq=False)
class ArrayDataset(RowsInMemory):
    """Rows in memory, with the same interface as `ZarrDataset`.

    Raises DataError if shapes do not fit together, or values are not real numbers.

    >>> import numpy as np
    >>> X = np.arange(12.0).reshape(6, 2)
    >>> dataset = ArrayDataset(X, np.arange(6.0), chunk_rows=4)
    >>> dataset.n_samples, dataset.n_features, dataset.n_targets
    (6, 2, 1)
    """

    #: Inputs, not copied: real numbers of shape (n_samples, n_features).
    X: np.ndarray
    #: Targets, real numbers of shape (n_samples,) or (n_samples, n_targets).
    y: np.ndarray | None = None
    #: Weights, real numbers of shape (n_samples,).
    sample_weight: np.ndarray | None = None
    #: A block has a multiple of this number of rows.
    chunk_rows: int = 8192
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    #: As of a stored dataset; a recipe among them says which columns are categories.
    attributes: Facts = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.chunk_rows < 1:
            raise InvalidParameterError(
                f"`chunk_rows`={self.chunk_rows}; expected at least 1"
            )
        parts = {"X": as_array(self.X, "X")}
        for name in ("y", "sample_weight"):
            values = getattr(self, name)
            if values is not None:
                parts[name] = as_array(values, name)
        for name, values in check_parts(parts).items():
            object.__setattr__(self, name, values)

    def without_targets(self) -> ArrayDataset:
        return replace(self, y=None, target_names=None)


@dataclass(frozen=True, eq=False)
class SparseDataset(RowsInMemory):
    """A scipy.sparse matrix as a dataset: each block becomes dense when it is read."""

    #: Sparse matrix in CSR format of shape (n_samples, n_features).
    X: Any
    #: Float64 array of shape (n_samples,) or (n_samples, n_targets), or None.
    y: np.ndarray | None = None
    #: Float64 array of shape (n_samples,), or None.
    sample_weight: np.ndarray | None = None

    chunk_rows = 8192
    feature_names = target_names = None

    def without_targets(self) -> SparseDataset:
        return replace(self, y=None)
