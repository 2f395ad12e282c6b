"""An output that many workers write block by block, each block as often as need be: predictions, labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from rff_dist.data.blocks import Block
from rff_dist.data.columns import TEXT
from rff_dist.errors import DataError, InvalidParameterError, RFFDistError, StorageError
from rff_dist.storage.arrays import create_array, describe
from rff_dist.storage.datasets import FORMAT_VERSION
from rff_dist.storage.generations import MANIFEST, begin, put_in_place
from rff_dist.storage.locations import (
    Location,
    check_output,
    discard,
    is_store_error,
    open_store,
    parse_location,
)


@dataclass(frozen=True, slots=True)
class Output:
    """New arrays that are written in blocks of whole chunks and appear at `url` when they are finished.

    It holds names and numbers only, so it travels to workers; each opens the arrays where it writes. Writing
    a block twice stores the same bytes twice, so a retried task does no harm.

    `location`, `staged`: where the output will be, and where it is written until then.
    `arrays`: names of the arrays in the group, all of one shape unless they are fields.
    `n_columns`: columns; None for an array of one axis.
    `chunk_rows`: rows of a chunk; blocks begin and end on multiples of it.
    `overwrite`: whether `finish` may replace a dataset.
    `fields`: of the values, where the arrays are its fields.
    """

    location: Location
    staged: Location
    arrays: tuple[str, ...]
    n_samples: int
    n_columns: int | None
    chunk_rows: int
    overwrite: bool
    fields: np.dtype[Any] | None = None

    @property
    def url(self) -> str:
        return self.location.url

    def write(self, block: Block, values: np.ndarray, /) -> None:
        """Write the rows of one block; those of several arrays are along the last axis, or fields.

        Raises StorageError if the block does not begin and end on chunks (two writers could then lose each
          other's rows), or the bytes cannot be written; DataError if `values` has another shape than the
          block.
        """
        whole = block.stop % self.chunk_rows == 0 or block.stop == self.n_samples
        if block.start % self.chunk_rows or not whole or not 0 <= block.start < block.stop <= self.n_samples:
            raise StorageError(
                f"rows {block.start}:{block.stop} are not whole chunks of {self.location} "
                f"({self.n_samples:_} rows in "
                f"chunks of {self.chunk_rows}); cut blocks with cut_blocks(n_samples, chunk_rows=…)"
            )
        parts = self._parts(block, values)
        try:
            for name, part in zip(self.arrays, parts, strict=True):
                self._open(name)[block.start : block.stop] = part
        except Exception as error:
            if isinstance(error, RFFDistError) or not is_store_error(error):
                raise
            raise StorageError(
                f"rows {block.start}:{block.stop} of {self.location} cannot be written: {describe(error)}"
            ) from error

    def _parts(self, block: Block, values: np.ndarray) -> Sequence[np.ndarray]:
        """Return the values of each array."""
        expected = (block.n_samples,) if self.n_columns is None else (block.n_samples, self.n_columns)
        if self.fields is None and len(self.arrays) > 1:
            expected = (*expected, len(self.arrays))
        if np.shape(values) != expected:
            raise DataError(
                f"values of shape {np.shape(values)} for rows {block.start}:{block.stop}; expected {expected}"
            )
        if self.fields is None:
            return [values] if len(self.arrays) == 1 else list(np.moveaxis(values, -1, 0))
        if values.dtype != self.fields:
            raise DataError(f"values of dtype {values.dtype}; expected the fields {self.fields}")
        return [_as_stored(values[name]) for name in self.arrays]

    def finish(self, attributes: Mapping[str, Any] | None = None) -> None:
        """Check that every chunk is there, write the manifest and move the output to its place.

        Raises StorageError if chunks were not written; the output stays unfinished, and can be completed or
          discarded; OutputExistsError if something has appeared at `url` and `overwrite` is False.
        """
        n_chunks = -(-self.n_samples // self.chunk_rows)
        manifest: dict[str, Any] = {
            "state": "complete",
            "format_version": FORMAT_VERSION,
            "n_samples": self.n_samples,
            "chunk_rows": self.chunk_rows,
        }
        try:
            n_written = min(self._open(name).nchunks_initialized for name in self.arrays)
            if n_written != n_chunks:
                raise StorageError(
                    f"{self.location} is not complete: {n_written} of {n_chunks} chunks of {self.chunk_rows} "
                    "rows were written. Write the missing blocks, or discard the output"
                )
            group = zarr.open_group(open_store(self.staged, read_only=False), mode="r+")
            group.attrs.update({**(attributes or {}), MANIFEST: manifest})
            put_in_place(self.staged, self.location, overwrite=self.overwrite)
        except Exception as error:
            if isinstance(error, RFFDistError) or not is_store_error(error):
                raise
            raise StorageError(f"{self.location} cannot be put in place: {describe(error)}") from error

    def discard(self) -> None:
        """Remove what was written; what was at `url` before stays."""
        discard(self.staged)

    def _open(self, name: str) -> zarr.Array[Any]:
        try:
            store = open_store(self.staged, read_only=self.staged.scheme == "memory")
            config = {"write_empty_chunks": True, "read_missing_chunks": False}
            if self.staged.scheme == "memory":
                store = store.with_read_only(False)
            return zarr.open_array(store, path=name, mode="r+", config=config)  # type: ignore[arg-type]
        except FileNotFoundError as error:
            raise StorageError(f"the unfinished output {self.staged} of {self.location} is gone") from error


def create_output(
    url: str | os.PathLike[str],
    *,
    n_samples: int,
    n_columns: int | None,
    dtype: np.dtype[Any] | type | str,
    chunk_rows: int,
    array: str | Sequence[str] = "predictions",
    column_names: Sequence[str] | None = None,
    inputs: Sequence[str | os.PathLike[str]] = (),
    overwrite: bool = False,
) -> Output:
    """Begin an output of known size that workers fill block by block.

    `url`: where the output is to appear.
    `n_columns`: columns; None makes an array of one axis (labels).
    `dtype`: of the values; float or integer. The fields of a structured one make an array each, of one axis
      or two, of text among others.
    `chunk_rows`: rows of a chunk: those of the dataset that is read, so that its blocks fit.
    `array`: name of the array in the group; `open_dataset(url, x=array)` reads it back. Several names make
      arrays of one shape, which a block's values hold along a last axis. Fields have their own names.
    `column_names`: names of the columns, stored as the attribute `feature_names`.
    `inputs`: what is read meanwhile; the output may not overlap it.
    `overwrite`: whether a Zarr group that is there may be replaced, when the output is finished.
    Raises OutputExistsError if there is something at `url` and `overwrite` is False; StorageError if the
      place cannot be written or lies inside another dataset; InvalidParameterError if a size is below 1, the
      dtype is no number or the names do not fit.
    """
    kind: np.dtype[Any] = np.dtype(dtype)
    tail = () if n_columns is None else (n_columns,)
    if kind.names is None:
        names = (array,) if isinstance(array, str) else tuple(array)
        parts = dict.fromkeys(names, (kind, tail))
    else:
        names = kind.names
        parts = {name: (kind[name].base, kind[name].shape) for name in names}
    kinds = "biuf" if kind.names is None else "biufU"
    bad = any(base.kind not in kinds for base, _ in parts.values()) or (kind.names and tail)
    if bad or min(n_samples, chunk_rows, *(length for _, more in parts.values() for length in more)) < 1:
        raise InvalidParameterError(
            f"an output of `n_samples`={n_samples}, `n_columns`={n_columns}, `chunk_rows`={chunk_rows} and "
            f"`dtype`={kind}; expected sizes of at least 1 and integers or floats"
        )
    n_names = max((more[0] for _, more in parts.values() if more), default=1)
    if column_names is not None and len(column_names) != n_names:
        raise InvalidParameterError(f"`column_names` has {len(column_names)} names; expected {n_names}")
    if not names or len(set(names)) < len(names):
        raise InvalidParameterError(f"`array` is {array!r}; expected a name, or several different ones")
    location = parse_location(url)
    check_output(location, overwrite=overwrite, inputs=[parse_location(source) for source in inputs])
    attributes: dict[str, Any] = {MANIFEST: {"state": "writing"}}
    if column_names is not None:
        attributes["feature_names"] = list(column_names)
    staged, group = begin(location, attributes)
    try:
        for name, (base, more) in parts.items():
            stored = TEXT if base.kind == "U" else base
            create_array(group, name, shape=(n_samples, *more), dtype=stored, chunks=(chunk_rows, *more))
    except Exception as error:
        discard(staged)
        if isinstance(error, RFFDistError) or not is_store_error(error):
            raise
        raise StorageError(f"{location} cannot be written: {describe(error)}") from error
    fields = None if kind.names is None else kind
    return Output(location, staged, names, n_samples, n_columns, chunk_rows, overwrite, fields)


def _as_stored(values: np.ndarray) -> np.ndarray:
    """Return text with variable width, and all else as it is."""
    return values.astype(TEXT) if values.dtype.kind == "U" else values
