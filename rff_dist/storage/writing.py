"""Write datasets: checksummed, in whole chunks of rows, complete or absent.

Arrays, frames or batches of any length go in; a stored dataset comes out, plain Zarr or
an Icechunk repository with versions. Writing the arrays by Zarr itself would show
readers half of a dataset, and its digest would depend on how the rows are cut into
batches.
"""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np

from rff_dist.data import array_checks, digests, memory, row_batches
from rff_dist.data.columns import is_text
from rff_dist.data.loads import LOADS, describe_loads, with_load
from rff_dist.data.row_batches import ColumnNames, RowBatch
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage import documents, locations, output_places, repositories
from rff_dist.storage.arrays import (
    CHUNK_TARGET_BYTES,
    ZarrArray,
    as_dask,
    create_array,
    read_rows,
)
from rff_dist.storage.columns import as_column
from rff_dist.storage.commit import Publication, complete_change
from rff_dist.storage.datasets import ZarrDataset, open_dataset
from rff_dist.storage.locations import Location
from rff_dist.storage.manifests import (
    MANIFEST,
    MAX_ROWS,
    NAME,
    PREFIXES,
    ROWS_DIGEST,
)
from rff_dist.storage.repositories import Change
from rff_dist.storage.zarr_access import zarr
from rff_dist.typing import (
    AnyArray,
    Arrays,
    Facts,
    IntArray,
    PathLike,
    Summary,
    frozen,
)

MAX_CHUNK_ROWS = 2**16
MAX_CHUNKS = 2**31  # along the rows, since Icechunk counts them in 32 bits

type Progress = Callable[[int, int | None], None]


@frozen
class WriteOptions:
    """How a dataset is written."""

    chunk_rows: int | None = None  # None: by `choose_chunk_rows`
    overwrite: bool = False  # whether an existing Zarr group may be replaced
    #: Called with (rows written, rows in all or None) after each batch.
    observer: Progress | None = None
    #: Whether a new dataset keeps versions; a versioned one that exists always does.
    versioned: bool = False
    message: str | None = None  # why it is written; kept with the version

    def __post_init__(self) -> None:
        rows: Any = self.chunk_rows
        if rows is not None and (not hasattr(rows, "__index__") or rows < 1):
            raise InvalidParameterError(
                f"`chunk_rows`={rows!r}; expected an integer of at least 1"
            )


def write_dataset(
    url: PathLike,
    X: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    chunk_rows: int | None = None,
    feature_names: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    attributes: Facts | None = None,
    overwrite: bool = False,
    versioned: bool = False,
) -> ZarrDataset:
    """Write a dataset from arrays, frames or batches.

    Zarr arrays, Dask collections and batches are written piece by piece: at most a
    chunk or a block of them is in memory.

    Floats and integers keep their dtype in X. A vector y of integers, booleans or text
    holds labels and keeps its type; other targets and weights become float64. Every
    chunk has a checksum. The dataset appears when it is complete; a failed write
    changes nothing.

    Parameters
    ----------
    url : str or Path
        Where to write.
    X : array, frame, Zarr array, Dask collection, or iterator
        Inputs; or an iterator of batches X, (X, y), (X, y, sample_weight) or (X, y,
        sample_weight, groups) of unknown total length, in which weights may be None.
        The next three are then left out. Frames must have the same columns.
    y : array-like of shape (n_samples,) or (n_samples, n_targets), optional
        Targets or labels. Text is read back with `open_column(url, "y")`.
    sample_weight : array-like of shape (n_samples,), optional
        Weights; read back with `open_dataset(url, sample_weight="sample_weight")`.
    groups : array-like of shape (n_samples,), optional
        Groups, as integers, booleans or text. Rows of one group are held out together.
        Read back with `open_column(url, "groups")`.
    chunk_rows : int, optional
        Rows of a chunk. None takes `choose_chunk_rows`.
    feature_names, target_names : sequence of str, optional
        Column names. None takes the names of a frame or a series, if all are text.
    attributes : mapping, optional
        Further attributes of the group, as JSON.
    overwrite : bool, default=False
        Whether an existing Zarr group may be replaced; a versioned dataset is replaced
        by a commit.
    versioned : bool, default=False
        Whether the dataset keeps versions, so that rows can be appended, replaced and
        deleted: an Icechunk repository. Plain Zarr is written once, and any program for
        Zarr reads it.

    Returns
    -------
    ZarrDataset
        The dataset, opened; without y if that is text.

    Raises
    ------
    OutputExistsError
        If there is something at `url` and `overwrite` is False.
    StorageError
        If it cannot be written: the disk is full, for example, or `url` lies inside
        another dataset.
    DataError
        If shapes or dtypes do not fit together.
    InvalidParameterError
        If `chunk_rows` is not an integer of at least 1.
    """
    batches, n_samples, names = read_source(X, y, sample_weight, groups)
    return write_batches(
        locations.parse_location(url),
        batches,
        n_samples=n_samples,
        names=(feature_names or names[0], target_names or names[1]),
        attributes=attributes or {},
        write_options=WriteOptions(chunk_rows, overwrite, versioned=versioned),
    )


def choose_chunk_rows(row_bytes: int, n_samples: int | None) -> int:
    """Choose the rows of a chunk from the bytes of a row of X and the rows in all: a
    power of two, at most 16 MiB and 65,536 rows.

    A chunk is also the smallest piece of work, so small datasets are cut finer: into
    about 32 chunks, but not below 1,024 rows (unless a row is so wide that 16 MiB are
    fewer rows).

    >>> choose_chunk_rows(8 * 4, 10**9), choose_chunk_rows(2 * 4, 136_640)
    (65536, 4096)
    >>> choose_chunk_rows(10**6 * 8, None)
    2
    """
    # 16 MiB are efficient in object stores, and several fit into a worker's memory.
    # Powers of two, as tiles are, so that chunks and tiles share edges.
    rows = min(MAX_CHUNK_ROWS, max(1, CHUNK_TARGET_BYTES // max(1, row_bytes)))
    if n_samples is not None:
        rows = min(rows, max(1024, n_samples // 32))
    return int(2 ** math.floor(math.log2(rows)))


def write_batches(
    location: Location,
    batches: Iterable[RowBatch],
    *,
    n_samples: int | None,
    names: ColumnNames,
    attributes: Facts,
    write_options: WriteOptions,
    inputs: Sequence[Location] = (),
) -> ZarrDataset:
    """Write batches as one dataset; the part of `write_dataset` that `ingest` shares.

    `n_samples` is only a hint for the chunks' size and the observer. `attributes` is
    read after the last batch, so that a source can fill it in while it runs.
    """
    output_places.check_output(
        location,
        overwrite=write_options.overwrite,
        inputs=inputs,
        markers=locations.DATASET_FILES,
    )
    with (
        locations.store_errors(
            f"{location} could not be written", "; the previous content is unchanged"
        ),
        output_places.hold(location, holder="a writer"),
        _new_group(location, write_options) as (group, destination),
    ):
        buffer = _fill(group, batches, n_samples, write_options)
        digest = buffer.finish()
        n_after = buffer.n_samples
        manifest: Summary = {
            "n_samples": n_after,
            "chunk_rows": buffer.chunk_rows,
            ROWS_DIGEST: digest,
            PREFIXES: [[n_after, digest]],
        }
        if isinstance(destination, Change):
            manifest[NAME] = uuid.uuid4().hex
            manifest[LOADS] = describe_loads(with_load([], n_after))
        stored = _with_names(buffer, names, attributes)
        stored[MANIFEST] = manifest
        if isinstance(destination, Publication):
            destination.complete(buffer.arrays, stored)
        else:
            complete_change(destination, buffer.arrays, stored)
            facts = {
                "change": "write",
                "n_before": 0,
                "n_after": n_after,
                ROWS_DIGEST: digest,
            }
            destination.commit(
                write_options.message or f"write {n_after:,} rows", facts
            )
    has_labels = "y" in buffer.arrays and is_text(buffer.arrays["y"].dtype)
    weight = "sample_weight" if "sample_weight" in buffer.arrays else None
    y = None if has_labels else "y"
    return open_dataset(location.url, y=y, sample_weight=weight)


@contextmanager
def _new_group(
    location: Location, write_options: WriteOptions
) -> Iterator[tuple[zarr.Group, Publication | Change]]:
    """Create a group to be filled, and the change to commit if versions are kept.

    At the end the group is put in its place, or discarded after an error. A change is
    committed by the caller.
    """
    if locations.is_versioned(location):
        # A commit in the repository that exists: readers keep the snapshot that they
        # opened.
        with repositories.changing(location) as change:
            if not write_options.overwrite:
                _refuse_commits(location)
            yield _group_in(change), change
        return
    if write_options.versioned and location.is_remote:
        if locations.exists(location):
            raise StorageError(
                f"{location} is plain Zarr, which an object store cannot replace by a"
                " versioned dataset in one step; expected an unused name. Write there,"
                " and remove the old one"
            )
        # A new repository at its own place, since an object store cannot move it. After
        # an error it stays, empty: another writer may have begun in it by now.
        change = repositories.create_repository(location)
        _refuse_commits(location)
        yield _group_in(change), change
        return
    # Plain Zarr, or a new repository in a folder, which is put in its place when it is
    # complete.
    publication = Publication.plan(location, overwrite=write_options.overwrite)
    plain = None if write_options.versioned else publication.create_group({})
    with publication.publishing():
        if plain is not None:
            yield plain, publication
        else:
            change = repositories.create_repository(publication.staged)
            yield _group_in(change), change


def _group_in(change: Change) -> zarr.Group:
    return zarr.create_group(change.store, zarr_format=3, overwrite=True)


def _refuse_commits(location: Location) -> None:
    """Raise ConflictError if another writer has committed meanwhile."""
    if not repositories.is_empty(location):
        raise documents.overtaken(location)


@dataclass
class RowBuffer:
    """Gathers batches of any length, and writes whole chunks."""

    arrays: dict[str, ZarrArray]
    chunk_rows: int
    pending: dict[str, list[AnyArray]]  # rows that wait until they fill a chunk
    n_samples: int = 0  # written and pending rows
    n_written: int = 0

    def __post_init__(self) -> None:
        # One hash for each array, so that the digest does not depend on how rows are
        # cut into batches.
        self.hashes = {name: hashlib.sha256() for name in self.arrays}

    @classmethod
    def create(
        cls,
        group: zarr.Group,
        parts: Arrays,
        n_samples: int | None,
        chunk_rows: int | None,
    ) -> Self:
        """Return a buffer that writes to new arrays for rows like `parts`."""
        X = parts["X"]
        rows = chunk_rows or choose_chunk_rows(X.shape[1] * X.dtype.itemsize, n_samples)
        # The length is known only at the end, so the arrays begin with the most rows.
        arrays = {
            name: create_array(
                group,
                name,
                shape=(_most_rows(rows), *values.shape[1:]),
                dtype=values.dtype,
                chunk_rows=rows,
            )
            for name, values in parts.items()
        }
        return cls(arrays, rows, {name: [] for name in arrays})

    @classmethod
    def onto(cls, arrays: dict[str, ZarrArray], n_samples: int) -> Self:
        """Return a buffer that writes after the existing rows."""
        chunk_rows = arrays["X"].chunks[0]
        # If the last chunk is not full, it is written again, with new rows behind.
        start = n_samples // chunk_rows * chunk_rows
        tails = {}
        for name, array in arrays.items():
            rows = read_rows(array, start, n_samples, label=f"array {name!r}")
            tails[name] = [rows.copy()]  # may be overwritten
            _resize(array, _most_rows(chunk_rows))
        return cls(arrays, chunk_rows, tails, n_samples, start)

    def add(self, parts: Arrays) -> None:
        """Add rows to all arrays, and write the chunks that are whole."""
        where = f"batch at row {self.n_samples}: "
        cast_values = row_batches.cast_parts(
            parts, self.arrays, "the first batch", where
        )
        for name, values in cast_values.items():
            # hashed in the stored dtype, before chunks are cut: the digest depends on
            # neither batches nor chunks
            self.hashes[name].update(digests.canonical_bytes(values))
            self.pending[name].append(values)
        self.n_samples += len(parts["X"])
        if self.n_samples - self.n_written >= self.chunk_rows:
            self._write(self.n_samples // self.chunk_rows * self.chunk_rows)

    def overwrite(self, rows: IntArray, parts: Arrays) -> None:
        """Replace rows that were stored before; some may be pending in the buffer."""
        is_written = rows < self.n_written
        for name, array in self.arrays.items():
            if is_written.any():
                array.oindex[rows[is_written]] = parts[name][is_written]
            # `onto` put the stored rows that wait into the first part
            waiting = self.pending[name][0]
            waiting[rows[~is_written] - self.n_written] = parts[name][~is_written]

    def finish(self) -> str:
        """Write all rows, cut the arrays to length, and return a digest of new rows."""
        self._write(self.n_samples)
        for array in self.arrays.values():
            _resize(array, self.n_samples)
        combined = "|".join(digest.hexdigest() for digest in self.hashes.values())
        return hashlib.sha256(combined.encode()).hexdigest()

    def _write(self, stop: int) -> None:
        n_rows = stop - self.n_written
        for name, array in self.arrays.items():
            pending = self.pending[name]
            rows = pending[0] if len(pending) == 1 else np.concatenate(pending)
            for start in range(0, n_rows, self.chunk_rows):
                end = min(start + self.chunk_rows, n_rows)
                chunk = np.ascontiguousarray(rows[start:end])
                array[self.n_written + start : self.n_written + end] = chunk
            # A copy, since a view of the few rows after them would keep the whole batch
            # in memory.
            self.pending[name] = [rows[n_rows:].copy()]
        self.n_written = stop


def _most_rows(chunk_rows: int) -> int:
    """Return how many rows an array claims while its length is not known."""
    return min(MAX_ROWS, MAX_CHUNKS * chunk_rows)


def _resize(array: ZarrArray, n_rows: int) -> None:
    # No chunk was written beyond the last row. Zarr would look for chunks to delete in
    # all of the claimed length, up to 2^40 rows.
    shape = (n_rows, *array.shape[1:])
    resizing = array.async_array.resize(shape, delete_outside_chunks=False)
    zarr.core.sync.sync(resizing)


def _fill(
    group: zarr.Group,
    batches: Iterable[RowBatch],
    n_samples: int | None,
    write_options: WriteOptions,
) -> RowBuffer:
    """Write batches as arrays of a group, and return the buffer that wrote them."""
    buffer: RowBuffer | None = None
    for batch in batches:
        parts = row_batches.name_parts(batch, 0 if buffer is None else buffer.n_samples)
        if buffer is None:
            buffer = RowBuffer.create(group, parts, n_samples, write_options.chunk_rows)
        buffer.add(parts)
        if write_options.observer is not None:
            write_options.observer(buffer.n_samples, n_samples)
    if buffer is None:
        raise DataError(
            "there was no batch of rows; expected at least one, which may have 0 rows"
        )
    return buffer


def _with_names(buffer: RowBuffer, names: ColumnNames, attributes: Facts) -> Summary:
    """Return a group's attributes with the names of columns."""
    if names[1] is not None and "y" not in buffer.arrays:
        raise DataError(f"`target_names`={list(names[1])} but there is no y")
    stored = dict(attributes)
    for key, columns, name in zip(
        ("feature_names", "target_names"), names, "Xy", strict=True
    ):
        if columns is None:
            continue
        shape = buffer.arrays[name].shape
        n_columns = 1 if len(shape) == 1 else shape[1]
        if len(columns) != n_columns:
            raise DataError(
                f"`{key}` has {len(columns)} names; expected {n_columns}, one per"
                " column"
            )
        if len(set(columns)) < n_columns:
            raise DataError(
                f"`{key}` is {list(columns)}; expected one of each name. Rename them"
            )
        stored[key] = [str(column) for column in columns]
    return stored


# -- turn what `write_dataset` is given into batches


def read_source(
    X: Any, y: Any, sample_weight: Any, groups: Any, ids: Any = None
) -> tuple[Iterator[RowBatch], int | None, ColumnNames]:
    """Return batches (X, y, sample_weight, groups, ids), the number of rows, if known,
    and the column names of X and y.
    """
    if isinstance(X, Iterator):
        if any(part is not None for part in (y, sample_weight, groups, ids)):
            raise InvalidParameterError(
                "X is an iterator, and y, sample_weight, groups or ids are given; yield"
                " (X, y) instead"
            )
        first = next(X, None)
        if first is None:
            return X, None, (None, None)
        names = row_batches.names_of(first)
        return row_batches.with_names(chain([first], X), names), None, names
    names = row_batches.names_of((X, y))
    array_checks.warn_of_other_order(
        X, y=y, sample_weight=sample_weight, groups=groups, ids=ids
    )
    for name, part in (("sample_weight", sample_weight), ("groups", groups)):
        if y is None and part is not None:
            raise DataError(
                f"{name} is given without y; only training rows have it. Give y too"
            )
    if isinstance(X, zarr.Array):
        X = as_dask(X)
    if row_batches.is_lazy(X):
        parts = [X, y, sample_weight, groups, ids]
        return row_batches.lazy_batches(parts), None, names
    columns: dict[str, Any] = {"groups": groups, "ids": ids}
    # A vector of text, integers or booleans has labels, which keep their type.
    targets = np.asarray(y)
    if targets.ndim == 1 and targets.dtype.kind in "biuUTO":
        columns["y"] = y
        y = None
    dataset = memory.ArrayDataset(X, y, sample_weight)
    # in the order of a batch; labels take the place of targets
    arrays = {"X": dataset.X, "y": dataset.y, "sample_weight": dataset.sample_weight}
    for name, values in columns.items():
        arrays[name] = None
        if values is not None:
            column: Any = as_column(values, name=name)
            arrays[name] = column.values
    n_rows = {name: part.shape[0] for name, part in arrays.items() if part is not None}
    array_checks.require_rows(n_rows)
    return iter([tuple(arrays.values())]), dataset.n_samples, names
