"""Columns: one label or group a row, integers, booleans or text, in memory or stored in Zarr."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from rff_dist.data.blocks import Block
from rff_dist.data.columns import Column, MemoryColumn, check_values
from rff_dist.data.memory import check_indices
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage.arrays import Header, gather_rows, read_rows, require_chunks, sample_digest
from rff_dist.storage.datasets import ZarrDataset
from rff_dist.storage.groups import Address, StoredGroup, find_group, header_of, local_root

ID = "id"  # the array of what rows are called, which comes back beside their predictions


@dataclass(frozen=True, eq=False)
class StoredColumn:
    """A 1-D Zarr array: `open_column` and `as_column` make it.

    It pickles as its URL and is opened again where it is unpickled.

    `array`: zarr.Array of shape (n_samples,).
    `url`: the group it lies in; None for an array that was handed over open.
    """

    array: zarr.Array[Any]
    url: str | None
    _header: Header
    _label: str
    _reopen: tuple[Callable[..., StoredColumn], tuple[Any, ...]] | None

    in_memory = False

    @property
    def n_samples(self) -> int:
        return self._header.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._header.dtype

    @property
    def chunk_rows(self) -> int:
        """Rows of one stored object: a shard, else a chunk."""
        return self._header.stored_rows

    def read(self, block: Block) -> np.ndarray:
        """Read the values of a block's rows.

        Raises StorageError if there are no such rows, a chunk is missing (unless `missing_chunks="fill"`) or
          the store does not answer; IntegrityError if a chunk's bytes are damaged; DataError if a value is
          NaN, or a float that is not a whole number; names the row.
        """
        values = read_rows(self.array, block.start, block.stop, label=self._label)
        return check_values(values, self._label, np.arange(block.start, block.stop))

    def take(self, indices: np.ndarray | Sequence[int]) -> np.ndarray:
        """Read single rows, in the order asked; raises as `read`."""
        rows, places = np.unique(check_indices(indices, self.n_samples), return_inverse=True)
        return check_values(gather_rows(self.array, rows, label=self._label), self._label, rows)[places]

    def fingerprint(self) -> str:
        """Digest of the metadata and of the values of up to 8 chunks, the first and the last among them."""
        return sample_digest(self.array, self._header, label=self._label)

    def content_key(self) -> str | None:
        """Return what a pass over the values is named by, see `engines.kept`; None if they may change."""
        address, *options = (None,) if self._reopen is None else self._reopen[1]
        return address.content_key(*options) if isinstance(address, Address) else None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._reopen is None:
            raise StorageError(
                f"{self._label} cannot be sent to another process: its store "
                f"({type(self.array.store).__name__}) is not a local folder. Open it with "
                "open_column(url, name) instead"
            )
        return self._reopen

    def __repr__(self) -> str:
        return f"StoredColumn({self._label}: {self.n_samples:_} rows, {self.dtype})"


def open_column(
    url: str | os.PathLike[str] | zarr.Group,
    name: str,
    *,
    missing_chunks: str = "error",
    version: str | None = None,
) -> StoredColumn:
    """Open a 1-D array of a Zarr group as labels or groups, its metadata checked, no rows read.

    `name`: the array in the group: integers, booleans, text of fixed or variable width, or whole floats.
    `missing_chunks`: {"error", "fill"}. As in `open_dataset`.
    `version`: as in `open_dataset`.
    Raises StorageError if there is no such array, it has more than one axis, or holds something else.
    """
    if missing_chunks not in ("error", "fill"):
        raise InvalidParameterError(f"`missing_chunks`={missing_chunks!r}; expected 'error' or 'fill'")
    return _open(find_group(url, version), name, missing_chunks)


def column_of(dataset: ZarrDataset, name: str) -> StoredColumn:
    """Open another array of a stored dataset's group as labels or groups, with the dataset's options.

    Raises StorageError as `open_column`; or if the dataset was made of single arrays, which have no common
      group.
    """
    if dataset.url is None:
        raise StorageError(
            f"{dataset!r} was made of open arrays, so {name!r} names nothing; give the values themselves, or "
            "open the dataset by its URL"
        )
    return open_column(dataset.url, name, missing_chunks=dataset.missing_chunks, version=dataset.version)


def id_column(attributes: Mapping[str, Any]) -> str | None:
    """Return which column of its table a dataset's ids came from, where it was ingested with ids."""
    recipe = attributes.get("recipe")
    found = recipe.get("id") if isinstance(recipe, Mapping) else None
    return None if found is None else str(found)


def ids_of(dataset: Any) -> StoredColumn | None:
    """Return what the rows of a stored dataset are called, where it was ingested with ids."""
    if not isinstance(dataset, ZarrDataset) or id_column(dataset.attributes) is None:
        return None
    return column_of(dataset, ID)


def as_column(values: Any, *, name: str = "y") -> Column:
    """Return labels or groups as a column: what is in memory at once, a Zarr array as it is stored.

    `values`: array-like, series, Zarr or Dask array, or Column, of shape (n_samples,). Integers, booleans,
      text, or floats that are whole numbers; a Dask collection is computed.
    Raises DataError if it has more than one axis, or a value is missing, NaN, a fraction, a time or another
      object; names the row.
    """
    if isinstance(values, MemoryColumn | StoredColumn):
        return values
    if isinstance(values, zarr.Array):
        return _of_array(values, name, "error")
    if hasattr(values, "__dask_graph__"):
        values = values.compute()
    array = np.asarray(values)
    if array.dtype.kind == "U" and isinstance(values, list | tuple):
        array = np.array(values, object)  # else ["a", 1] were all text
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}; expected one value a row, shape (n_samples,)")
    return MemoryColumn(check_values(array, name, np.arange(len(array))))


def _open(stored: StoredGroup, name: str, missing_chunks: str) -> StoredColumn:
    group = stored.open()
    label, header = group.label(name), group.require_header(name)
    _check_shape(header, label)
    array = group.open_array(name, header, missing_chunks)
    reopen = None if stored.address is None else (_reopen_stored, (stored.address, name, missing_chunks))
    return StoredColumn(array, stored.url, header, label, reopen)


def _of_array(array: zarr.Array[Any], name: str, missing_chunks: str) -> StoredColumn:
    header, label = header_of(array, name, text=True)
    _check_shape(header, label)
    movable = local_root(array.store, "") is not None
    reopen = (_of_array, (array, array.path, missing_chunks)) if movable else None
    return StoredColumn(require_chunks(array, missing_chunks), None, header, label, reopen)


def _check_shape(header: Header, label: str) -> None:
    if len(header.shape) != 1:
        raise StorageError(f"{label} has shape {header.shape}; expected one value a row, shape (n_samples,)")


def _reopen_stored(address: Address, name: str, missing_chunks: str) -> StoredColumn:
    return _open(address.reopen(), name, missing_chunks)
