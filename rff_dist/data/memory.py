"""Datasets in memory, of arrays and sparse matrices, and digests of values.

These have the interface of stored datasets, so a pass over arrays runs the same code. A
digest of the first rows recognises them after others were appended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from rff_dist.checks import as_array
from rff_dist.data import blocks
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.typing import AnyDType, Facts

# What `prefix_digest` reads. Digests are stored, so these numbers must stay.
N_SEGMENTS = 8
SEGMENT_BYTES = 2**20
MAX_SEGMENT_ROWS = 4096


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
        return Sample(*self._select(check_indices(indices, self.n_samples)))

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
        y = None if self.y is None else as_targets(self.y[rows])
        weight = None
        if self.sample_weight is not None:
            weight = self.sample_weight[rows].astype(np.float64, copy=False)
        return dense, y, weight


class RowsInMemory(IndexedDataset):
    """Rows that this process holds in arrays."""

    url = None
    missing_chunks = "error"
    version = None

    def can_travel(self) -> bool:
        return False

    @cached_property
    def _digest(self) -> str:
        X = self.X
        # the arrays of CSR, and not the matrix made dense, which may not fit into
        # memory
        inputs = [X] if isinstance(X, np.ndarray) else [X.data, X.indices, X.indptr]
        arrays = [*inputs, self.y, self.sample_weight]
        parts = ["" if array is None else digest_array(array) for array in arrays]
        return hashlib.sha256("|".join([repr(X.shape), *parts]).encode()).hexdigest()

    def fingerprint(self) -> str:
        return self._digest


class Sample(NamedTuple):
    """Some rows of a dataset, in the order they were asked for."""

    #: Real array of shape (n_indices, n_features). Inputs in their stored dtype.
    X: np.ndarray
    #: Float64 array of shape (n_indices, n_targets), or None. Targets.
    y: np.ndarray | None
    #: Float64 array of shape (n_indices,), or None. Weights.
    sample_weight: np.ndarray | None = None


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

    #: Real array of shape (n_samples, n_features). Inputs; not copied.
    X: np.ndarray
    #: Real array of shape (n_samples,) or (n_samples, n_targets). Targets.
    y: np.ndarray | None = None
    #: Real array of shape (n_samples,). Weights.
    sample_weight: np.ndarray | None = None
    #: Blocks have a multiple of so many rows.
    chunk_rows: int = 8192
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    #: As a stored dataset's; a recipe among them says which columns are categories.
    attributes: Facts = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.chunk_rows < 1:
            raise InvalidParameterError(
                f"`chunk_rows`={self.chunk_rows}; expected at least 1"
            )
        others = {"y": self.y, "sample_weight": self.sample_weight}
        given = {"X": self.X} | {
            name: part for name, part in others.items() if part is not None
        }
        for name, values in check_parts(
            {name: as_array(part, name) for name, part in given.items()}
        ).items():
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


def as_targets(y: np.ndarray) -> np.ndarray:
    """Return y as float64 with 2 axes."""
    columns = y[:, np.newaxis] if y.ndim == 1 else y
    return columns.astype(np.float64, copy=False)


def require_numbers(name: str, values: np.ndarray) -> None:
    """Refuse values that are not integers or floats of at most 64 bits."""
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise DataError(
            f"{name} has dtype {values.dtype}; expected integers or floats of at most"
            " 64 bits"
        )


def require_rows(n_rows: Mapping[str, int]) -> None:
    """Refuse parts of one dataset with different numbers of rows.

    The words are scikit-learn's.
    """
    if len(set(n_rows.values())) > 1:
        raise DataError(
            "Found input variables with inconsistent numbers of samples:"
            f" {[*n_rows.values()]} ({', '.join(n_rows)}); give as many rows of each"
        )


def check_parts(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays of X, y and weights, y and weights as float64, or refuse them."""
    checks = {"X": check_inputs, "y": check_targets, "sample_weight": check_weights}
    checked = {name: checks[name](part) for name, part in parts.items()}
    require_rows({name: part.shape[0] for name, part in checked.items()})
    return checked


# How many axes an array may have, and what they are.
_AXES = {
    "X": (
        (2,),
        "2 axes (n_samples, n_features). Flatten each sample to one row; a single"
        " feature is (n_samples, 1)",
    ),
    "y": ((1, 2), "(n_samples,) or (n_samples, n_targets)"),
    "sample_weight": ((1,), "weights of 1 axis"),
}


def check_axes(
    role: str,
    shape: tuple[int, ...],
    label: str,
    error: type[DataError | StorageError] = DataError,
) -> None:
    """Refuse X, y or weights with too many or too few axes, or no column."""
    n_axes, expected = _AXES[role]
    if len(shape) not in n_axes:
        raise error(f"{label} has shape {shape}; expected {expected}")
    if shape[1:] == (0,):  # in scikit-learn's words
        raise DataError(
            f"Found array with 0 feature(s) (shape={shape}) while a minimum of 1 is"
            f" required: {label}. Give {role} a column"
        )


def check_inputs(X: np.ndarray) -> np.ndarray:
    """Return X as it is, or refuse it."""
    require_numbers("X", X)
    check_axes("X", X.shape, "X")
    return X


def check_targets(y: np.ndarray) -> np.ndarray:
    """Return targets as float64, or refuse them."""
    require_numbers("y", y)
    check_axes("y", y.shape, "y")
    return y.astype(np.float64, copy=False)


def check_weights(sample_weight: np.ndarray) -> np.ndarray:
    """Return a copy of weights as float64, or refuse them."""
    require_numbers("sample_weight", sample_weight)
    check_axes("sample_weight", sample_weight.shape, "sample_weight")
    return sample_weight.astype(np.float64)


def native(values: np.ndarray) -> np.ndarray:
    """Return values in the byte order of this machine."""
    if values.dtype.kind == "T":  # has no byte order
        return values
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def check_indices(indices: np.ndarray | Sequence[int], n_samples: int) -> np.ndarray:
    """Return row numbers as int64, or refuse those outside the dataset."""
    rows = np.asarray(indices)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise InvalidParameterError(
            f"`indices` is {rows.dtype} of shape {rows.shape}; expected 1-D integers"
        )
    rows = rows.astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < n_samples:
        last = n_samples - 1
        raise InvalidParameterError(
            f"`indices` from {rows.min()} to {rows.max()}; expected 0 to {last}"
        )
    return rows


def digest_array(array: np.ndarray) -> str:
    """Return a digest of dtype, shape and all values, read in pieces of 16 MiB."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    rows = max(1, 2**24 // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        digest.update(as_bytes(array[start : start + rows]))
    return digest.hexdigest()


def prefix_digest(dataset: blocks.Dataset, n_samples: int) -> str:
    """Return a digest of a dataset's first rows, which does not change when others are
    appended.

    It covers `n_samples`, the numbers of columns of X and y, the dtype of X, and the
    values of X, y, weights and groups in up to 8 stretches of rows, each of at most 1
    MiB and 4,096 rows, with the first and the last of the `n_samples` rows among them.
    Changes to other rows go unnoticed. Chunks, codecs and where the rows are held do
    not matter.

    `n_samples`: how many of its rows.
    Raises InvalidParameterError if the dataset has fewer rows; StorageError if rows
    cannot be read.
    """
    if not 0 <= n_samples <= dataset.n_samples:
        raise InvalidParameterError(
            f"a digest of the first {n_samples:_} rows was asked for; the dataset has"
            f" {dataset.n_samples:_}. Were rows removed?"
        )
    facts = (
        n_samples,
        dataset.n_features,
        dataset.n_targets,
        dataset.dtype.newbyteorder("=").str,
    )
    digest = hashlib.sha256(repr(facts).encode())
    for start, stop in _segments(
        n_samples, dataset.n_features * dataset.dtype.itemsize
    ):
        rows = dataset.read(blocks.Block(0, start, stop))
        for name in ("X", "y", "sample_weight", "groups"):
            values = getattr(rows, name)
            if values is not None:
                digest.update(name.encode())
                # text of fixed and of variable width gives the same digest
                digest.update(
                    as_bytes(values.astype("T") if values.dtype.kind == "U" else values)
                )
    return digest.hexdigest()


def _segments(n_samples: int, row_bytes: int) -> list[tuple[int, int]]:
    """Return the starts and stops of up to `N_SEGMENTS` stretches of rows, spread
    evenly over all rows.
    """
    rows = max(1, min(n_samples, MAX_SEGMENT_ROWS, SEGMENT_BYTES // row_bytes))
    # a set, since in few rows stretches begin at the same place
    starts = (
        {i * (n_samples - rows) // (N_SEGMENTS - 1) for i in range(N_SEGMENTS)}
        if n_samples
        else set()
    )
    return [(start, start + rows) for start in sorted(starts)]


def as_bytes(values: np.ndarray) -> bytes | np.ndarray:
    """Return values as bytes; text, whose arrays are addresses, as letters."""
    if values.dtype.kind != "T":
        return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    lengths = np.strings.str_len(values).astype("<i8")
    return lengths.tobytes() + "".join(values.tolist()).encode("utf-8", "surrogatepass")


def canonical_bytes(values: np.ndarray) -> bytes | np.ndarray:
    """Return values as bytes that do not depend on how rows are cut into batches."""
    if values.dtype.kind not in "TU":
        return as_bytes(values)
    return "".join(f"{len(value)}:{value}" for value in values.tolist()).encode(
        "utf-8", "surrogatepass"
    )
