"""Write datasets: checksummed, in whole chunks of rows, complete or absent."""

import hashlib
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import zarr
from zarr.core.sync import sync

from rff_dist.data import memory, row_batches
from rff_dist.data.blocks import Block, cut_blocks
from rff_dist.data.columns import Column, is_text
from rff_dist.data.loads import LOADS, describe_loads, with_load
from rff_dist.data.row_batches import RowBatch
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage import datasets, documents, locations, output_places, repositories
from rff_dist.storage.arrays import CHUNK_TARGET_BYTES, MAX_ROWS, ZarrArray, create_array, read_rows
from rff_dist.storage.columns import as_column
from rff_dist.storage.groups import complete
from rff_dist.typing import Facts, PathLike, Summary, frozen

MAX_CHUNK_ROWS = 2**16
MAX_CHUNKS = 2**31  # along the rows, since Icechunk counts them in 32 bits

type Progress = Callable[[int, int | None], None]


@frozen
class Writing:
    """How a dataset is written.

    `chunk_rows`: rows of a chunk; None: by `choose_chunk_rows`.
    `overwrite`: whether an existing Zarr group may be replaced.
    `observer`: called with (rows written, rows in all or None) after each batch.
    `versioned`: whether a new dataset keeps versions. An existing versioned dataset stays versioned.
    `message`: why the dataset is written; kept with the version.
    Raises InvalidParameterError if `chunk_rows` is not an integer of at least 1.
    """

    chunk_rows: int | None = None
    overwrite: bool = False
    observer: Progress | None = None
    versioned: bool = False
    message: str | None = None

    def __post_init__(self) -> None:
        rows: Any = self.chunk_rows
        if rows is not None and (not hasattr(rows, "__index__") or rows < 1):
            raise InvalidParameterError(f"`chunk_rows`={rows!r}; expected an integer of at least 1")


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
) -> datasets.ZarrDataset:
    """Write a dataset from arrays, frames or batches.

    Zarr arrays, Dask collections and batches are written piece by piece: memory holds at most a chunk or a
    block of them.

    Floats and integers keep their dtype in X. A vector y of integers, booleans or text holds labels and
    keeps its type; other targets and weights become float64. Every chunk has a checksum. The dataset appears
    when it is complete; a failed write leaves what was there before.

    Parameters
    ----------
    url : str or Path
        Where to write.
    X : array, frame, Zarr array or Dask collection of shape (n_samples, n_features), or iterator
        Inputs; or an iterator of batches X, (X, y), (X, y, sample_weight) or (X, y, sample_weight, groups)
        of unknown total length, in which weights may be None. The next three are then left out.
    y : array-like of shape (n_samples,) or (n_samples, n_targets), optional
        Targets or labels. Text is read back with `open_column(url, "y")`.
    sample_weight : array-like of shape (n_samples,), optional
        Weights; read back with `open_dataset(url, sample_weight="sample_weight")`.
    groups : array-like of shape (n_samples,), optional
        Groups, as integers, booleans or text. Rows of one group are held out together. Read back with
        `open_column(url, "groups")`.
    chunk_rows : int, optional
        Rows of a chunk. None takes `choose_chunk_rows`.
    feature_names, target_names : sequence of str, optional
        Column names. None takes the names of a frame or a series, if all are text.
    attributes : mapping, optional
        Further attributes of the group, as JSON.
    overwrite : bool, default=False
        Whether an existing Zarr group may be replaced; a versioned dataset is replaced by a commit.
    versioned : bool, default=False
        Whether the dataset keeps versions, so that rows can be appended, replaced and deleted: an Icechunk
        repository. Plain Zarr is written once, and every program that knows Zarr reads it.

    Returns
    -------
    ZarrDataset
        The dataset, opened; without y if that is text.

    Raises
    ------
    OutputExistsError
        If there is something at `url` and `overwrite` is False.
    StorageError
        If it cannot be written: the disk is full, for example, or `url` lies inside another dataset.
    DataError
        If shapes or dtypes do not fit together.
    InvalidParameterError
        If `chunk_rows` is not an integer of at least 1.
    """
    batches, n_samples = read_source(X, y, sample_weight, groups)
    feature_names = row_batches.column_names(X) if feature_names is None else feature_names
    target_names = row_batches.column_names(y) if target_names is None else target_names
    location, names = locations.parse_location(url), (feature_names, target_names)
    how, facts = Writing(chunk_rows, overwrite, versioned=versioned), attributes or {}
    return write_batches(location, batches, n_samples=n_samples, names=names, attributes=facts, how=how)


def choose_chunk_rows(row_bytes: int, n_samples: int | None = None) -> int:
    """Choose the rows of a chunk: a power of two, at most 16 MiB and 65,536 rows.

    A chunk is also the smallest piece of work, so small datasets are cut finer: into about 32 chunks, but not
    below 1,024 rows (unless a row is so wide that 16 MiB hold fewer).

    `row_bytes`: bytes of a row of X.
    `n_samples`: rows in all; None if unknown.

    >>> choose_chunk_rows(8 * 4, 10**9), choose_chunk_rows(2 * 4, 136_640), choose_chunk_rows(10**6 * 8)
    (65536, 4096, 2)
    """
    # Large enough for object stores, small enough that a worker holds several; powers of two, as tiles are.
    rows = min(MAX_CHUNK_ROWS, max(1, CHUNK_TARGET_BYTES // max(1, row_bytes)))
    if n_samples is not None:
        rows = min(rows, max(1024, n_samples // 32))
    return int(2 ** math.floor(math.log2(rows)))


def write_batches(
    location: locations.Location,
    batches: Iterable[RowBatch],
    *,
    n_samples: int | None,
    names: row_batches.ColumnNames,
    attributes: Facts,
    how: Writing,
    inputs: Sequence[locations.Location] = (),
) -> datasets.ZarrDataset:
    """Write batches as one dataset; the part of `write_dataset` that `ingest` and `generate_dataset` share.

    `n_samples` is a hint for the chunks and the observer; the batches decide. Attributes are read after the
    last batch, so that a source can fill them in while it runs.
    """
    marker = locations.DATASET_FILES
    output_places.check_output(location, overwrite=how.overwrite, inputs=inputs, marker=marker)
    with (
        locations.store_errors(f"{location} could not be written", "; what was there before is unchanged"),
        output_places.hold(location, holder="a writer"),
        _new_group(location, how) as (group, change),
    ):
        buffer = _fill(group, batches, n_samples, how)
        digest, n_after = buffer.finish(), buffer.n_samples
        stored = _with_names(buffer, names, attributes)
        manifest: Summary = {"n_samples": n_after, "chunk_rows": buffer.chunk_rows, "sha256": digest}
        manifest[documents.LINE] = [[n_after, digest]]
        if change is not None:
            manifest |= {documents.NAME: uuid.uuid4().hex, LOADS: describe_loads(with_load([], n_after))}
        stored[documents.MANIFEST] = manifest
        complete(group.store, buffer.arrays, stored, place=location)
        if change is not None:
            facts = {"change": "write", "n_before": 0, "n_after": n_after, "sha256": digest}
            change.commit(how.message or f"write {n_after:,} rows", facts)
    dtypes = {name: array.dtype for name, array in buffer.arrays.items()}
    y = None if "y" in dtypes and is_text(dtypes["y"]) else "y"
    weight = "sample_weight" if "sample_weight" in dtypes else None
    return datasets.open_dataset(location.url, y=y, sample_weight=weight)


@contextmanager
def _new_group(
    location: locations.Location, how: Writing
) -> Iterator[tuple[zarr.Group, repositories.Change | None]]:
    """Create a group to be filled; at the end put it in its place, or discard it after an error.

    Yields the group, and the change to commit if versions are kept.
    """
    if locations.is_versioned(location):
        with repositories.changing(location) as change:  # Readers keep the snapshot that they opened.
            if not how.overwrite:
                _refuse_commits(location)
            yield zarr.create_group(change.store, zarr_format=3, overwrite=True), change
        return
    if how.versioned and location.is_remote:
        if locations.exists(location):
            raise StorageError(
                f"{location} is plain Zarr, which an object store cannot replace by a versioned dataset in "
                "one step; expected an unused name. Write there, and remove the old one"
            )
        # An empty repository stays after an error: the next writer may have begun in it by now.
        created = repositories.create_repository(location)
        _refuse_commits(location)
        yield zarr.create_group(created.store, zarr_format=3, overwrite=True), created
        return
    place = output_places.Place.choose(location, overwrite=how.overwrite)
    plain = None if how.versioned else place.create_group({documents.MANIFEST: {"state": "writing"}})
    try:
        if plain is not None:
            yield plain, None
        else:
            created = repositories.create_repository(place.staged)
            yield zarr.create_group(created.store, zarr_format=3, overwrite=True), created
        place.publish()
    except BaseException:
        place.discard()
        raise


def _refuse_commits(location: locations.Location) -> None:
    """Raise ConflictError if another writer, perhaps one that was taken for dead, has committed."""
    if not repositories.is_empty(location):
        raise documents.overtaken(location)


@dataclass
class RowBuffer:
    """Gather batches of any length and write whole chunks; the arrays are cut to length at the end.

    `pending`, `hashes`: each array's rows that wait for a whole chunk, and the digest of its new rows.
    `n_samples`, `n_written`: rows of the arrays, with and without those that wait.
    """

    arrays: dict[str, ZarrArray]
    chunk_rows: int
    pending: dict[str, list[np.ndarray]]
    hashes: dict[str, Any]
    n_samples: int = 0
    n_written: int = 0

    @classmethod
    def create(
        cls, group: zarr.Group, parts: dict[str, np.ndarray], n_samples: int | None, chunk_rows: int | None
    ) -> Self:
        X = parts["X"]
        rows = chunk_rows or choose_chunk_rows(X.shape[1] * X.dtype.itemsize, n_samples)
        # The length is known only at the end; until then the arrays claim as many rows as any may have.
        most, arrays = min(MAX_ROWS, MAX_CHUNKS * rows), {}
        for name, values in parts.items():
            shape, dtype = (most, *values.shape[1:]), values.dtype
            arrays[name] = create_array(group, name, shape=shape, dtype=dtype, chunk_rows=rows, marked=True)
        return cls(arrays, rows, {name: [] for name in arrays}, {name: hashlib.sha256() for name in arrays})

    @classmethod
    def onto(cls, arrays: dict[str, ZarrArray], n_samples: int) -> Self:
        """Return a buffer that writes after the existing rows."""
        chunk_rows = arrays["X"].chunks[0]
        # The rows of a last chunk that is not full are written again, with new rows behind them.
        start = n_samples // chunk_rows * chunk_rows
        tails = {
            name: [read_rows(array, start, n_samples, label=f"array {name!r}")]
            for name, array in arrays.items()
        }
        most = min(MAX_ROWS, MAX_CHUNKS * chunk_rows)
        for array in arrays.values():
            sync(array.async_array.resize((most, *array.shape[1:]), delete_outside_chunks=False))
        return cls(arrays, chunk_rows, tails, {name: hashlib.sha256() for name in arrays}, n_samples, start)

    def add(self, parts: dict[str, np.ndarray]) -> None:
        if parts.keys() != self.arrays.keys():
            raise DataError(
                f"a batch of {len(parts)} arrays after batches of {len(self.arrays)} (row {self.n_samples}: "
                f"{', '.join(parts)} after {', '.join(self.arrays)}); expected the same in each batch: "
                "X, (X, y), (X, y, sample_weight) or (X, y, sample_weight, groups)"
            )
        n_rows = len(parts["X"])
        for name, array in self.arrays.items():
            where, shape = f"batch at row {self.n_samples}: {name}", (n_rows, *array.shape[1:])
            # in the stored dtype and before chunks are cut: the digest depends on neither batches nor chunks
            value = row_batches.fit(parts[name], shape, array.dtype, where, f"array {name!r}")
            self.hashes[name].update(memory.canonical_bytes(value))
            self.pending[name].append(value)
        self.n_samples += n_rows
        if self.n_samples - self.n_written >= self.chunk_rows:
            self._write(self.n_samples // self.chunk_rows * self.chunk_rows)

    def finish(self) -> str:
        self._write(self.n_samples)
        for array in self.arrays.values():
            # No chunk lies beyond the last row, so none need be looked for among the 2^40 claimed rows.
            sync(array.async_array.resize((self.n_samples, *array.shape[1:]), delete_outside_chunks=False))
        # One hash for each array, so that the digest does not depend on how rows are cut into batches.
        combined = "|".join(digest.hexdigest() for digest in self.hashes.values())
        return hashlib.sha256(combined.encode()).hexdigest()

    def _write(self, stop: int) -> None:
        for name, array in self.arrays.items():
            pending = self.pending[name]
            rows = pending[0] if len(pending) == 1 else np.concatenate(pending)
            n_rows = stop - self.n_written
            for start in range(0, n_rows, self.chunk_rows):
                chunk = np.ascontiguousarray(rows[start : min(start + self.chunk_rows, n_rows)])
                first = self.n_written + start
                array[first : first + len(chunk)] = chunk
            # A copy, since a view of the few rows left over would keep the whole batch in memory.
            self.pending[name] = [rows[n_rows:].copy()]
        self.n_written = stop


def _fill(group: zarr.Group, batches: Iterable[RowBatch], n_samples: int | None, how: Writing) -> RowBuffer:
    """Write batches as arrays of a group, and return the buffer that wrote them."""
    buffer: RowBuffer | None = None
    for batch in batches:
        parts = row_batches.name_parts(batch, 0 if buffer is None else buffer.n_samples)
        if buffer is None:
            buffer = RowBuffer.create(group, parts, n_samples, how.chunk_rows)
        buffer.add(parts)
        if how.observer is not None:
            how.observer(buffer.n_samples, n_samples)
    if buffer is None:
        raise DataError("there was no batch of rows; expected at least one, which may have 0 rows")
    return buffer


def _with_names(buffer: RowBuffer, names: row_batches.ColumnNames, attributes: Facts) -> Summary:
    """Return a group's attributes with the names of columns."""
    stored = dict(attributes)
    for key, columns, name in zip(("feature_names", "target_names"), names, "Xy", strict=True):
        if columns is not None and name in buffer.arrays:
            part = buffer.arrays[name]
            width = part.shape[1] if part.ndim == 2 else 1
            if len(columns) != width:
                raise DataError(f"`{key}` has {len(columns)} names; expected {width}, one per column")
            stored[key] = [str(name) for name in columns]
    if names[1] is not None and "y" not in buffer.arrays:
        raise DataError(f"`target_names`={list(names[1])} but there is no y")
    return stored


# -- turn what `write_dataset` is given into batches -----------------------------------------------


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
    if row_batches.is_lazy(X):
        return row_batches.lazy_batches([X, y, sample_weight, groups, ids]), None
    # A vector of text, integers or booleans holds labels, which keep their type.
    targets = y if isinstance(y, zarr.Array) else np.asarray(y)
    has_labels = targets.ndim == 1 and targets.dtype.kind in "biuUTO"
    labels = {"y": y if has_labels else None, "groups": groups, "ids": ids}
    columns = {name: as_column(part, name=name) for name, part in labels.items() if part is not None}
    y = None if "y" in columns else y
    dataset: datasets.ZarrDataset | memory.ArrayDataset
    if isinstance(X, zarr.Array):
        dataset = datasets.dataset_from_arrays(X, y, sample_weight)
    else:
        dataset = memory.ArrayDataset(X, y, sample_weight)
    n_rows = {name: column.n_samples for name, column in columns.items()}
    memory.require_rows({"X": dataset.n_samples, **n_rows})
    return _stored_batches(dataset, columns), dataset.n_samples


def _stored_batches(
    dataset: datasets.ZarrDataset | memory.ArrayDataset, columns: Mapping[str, Column]
) -> Iterator[RowBatch]:
    rows = dataset.chunk_rows if isinstance(dataset, datasets.ZarrDataset) else max(1, dataset.n_samples)
    for block in cut_blocks(dataset.n_samples, rows, rows_per_block=rows) or [Block(0, 0, 0)]:
        read = dataset.read(block)
        y = read.y if read.y is None or not dataset.one_dimensional else read.y[:, 0]
        labels = {name: column.read(block) for name, column in columns.items()}
        yield read.X, labels.get("y", y), read.sample_weight, labels.get("groups"), labels.get("ids")
