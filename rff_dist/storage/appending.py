"""Rows appended to a dataset: for readers they exist from one small write on, that of its manifest.

The manifest (the attribute `rff_dist` of the group) says how many rows there are. An append writes the last
chunk that is not full anew, its old rows and new ones; then chunks of new rows alone; then the arrays'
shapes; and then, in one request, the manifest. A process that is killed anywhere before leaves the old
dataset: what lies beyond its rows does not exist for readers, and the next append writes over it. Files are
on the disk before the manifest is, in this order.

Every chunk is written whole, with the codecs and so the checksums of the array; of a sharded array a shard.
Two writers at once are kept apart by a lease.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.core.buffer import Buffer
from zarr.core.sync import sync
from zarr.storage import LocalStore

from rff_dist.data.columns import is_text
from rff_dist.data.memory import as_bytes
from rff_dist.errors import ConflictError, DataError, StorageError, VersionError
from rff_dist.storage.arrays import MAX_ROWS, Header, load_json, read_header, read_rows, with_shape
from rff_dist.storage.conditional import Tagged, read_tagged, replace_bytes
from rff_dist.storage.datasets import FORMAT_VERSION
from rff_dist.storage.generations import MANIFEST, resolve
from rff_dist.storage.groups import committed_rows, open_complete_group, open_existing
from rff_dist.storage.leases import Lease, hold
from rff_dist.storage.locations import (
    Location,
    explain,
    open_store,
    parse_location,
    read_bytes,
    store_errors,
    write_bytes,
)
from rff_dist.storage.sources import RowBatch, column_names, read_source
from rff_dist.storage.writing import Progress, name_parts

ROLES = ("X", "y", "sample_weight", "groups")
SOURCES = "sources"  # the attribute that lists what was ingested
_CHECK_LEASE_S = 5.0
# As `write_bytes` names what it gathers.
_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{32}")
_log = logging.getLogger(__name__)

type Change = Callable[[Mapping[str, Any], int], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Appended:
    """How many rows a dataset had and has.

    `n_before`, `n_after`: rows before the append and after it; equal where there was nothing to do.
    """

    n_before: int
    n_after: int


@dataclass(frozen=True, slots=True)
class Source:
    """What rows came from: a dataset remembers it, and takes them once.

    `name`: such as a file's path; shown to people, compared with nothing.
    `sha256`: digest of the content.
    `facts`: what else the dataset's attribute `sources` is to keep, as JSON.
    """

    name: str
    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self, n_samples: int) -> dict[str, Any]:
        """Return what the dataset's attribute `sources` holds of it."""
        return {"name": self.name, "sha256": self.sha256, "n_samples": n_samples, **self.facts}


def append_dataset(
    url: str | os.PathLike[str],
    X: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    source: Source | None = None,
) -> Appended:
    """Append rows to a dataset; readers see the rows before, or all of them.

    Arrays that are there must all be given and no others, of as many columns and of dtypes that theirs hold
    without rounding. Also datasets that other programs wrote are appended to, and get a manifest by it; not
    those with consolidated metadata, in which the old shapes would stay.

    The digest of all values in the manifest becomes that of the digest before and of the new rows', so
    `fingerprint` changes with each append, and differs from that of the same rows written at once;
    `prefix_fingerprint` does not. An append that fails leaves the dataset as it was.

    Parameters
    ----------
    url : str or Path
        The dataset.
    X, y, sample_weight, groups
        As `write_dataset` takes them.
    source : Source, optional
        What the rows came from, remembered in the attribute `sources`. Rows of a source with a digest that is
        there already are not appended again.

    Raises
    ------
    DataError
        If arrays, shapes, dtypes or column names are not those of the dataset.
    OutputBusyError
        If another run is appending.
    ConflictError
        If another program changed the dataset meanwhile, in spite of the lease.
    StorageError
        If there is no dataset, or it cannot be read or written.
    """
    batches, _ = read_source(X, y, sample_weight, groups)

    def remember(attributes: Mapping[str, Any], n_samples: int) -> Mapping[str, Any] | None:
        if source is None:
            return {}
        return {SOURCES: [*known_sources(attributes), source.to_dict(n_samples)]}

    location = parse_location(url)
    with appending(location) as dataset:
        if source is not None and source.sha256 in dataset.digests:
            _log.info("%s holds the rows of %s already", location, source.name)
            return Appended(dataset.n_before, dataset.n_before)
        return dataset.append(batches, names=(column_names(X), column_names(y)), change=remember)


def known_sources(attributes: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a dataset's attributes say that it was ingested from."""
    found = attributes.get(SOURCES)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


@contextmanager
def appending(location: Location) -> Iterator[Appending]:
    """Open a dataset to append to it, no other run appending meanwhile.

    Raises OutputBusyError if another run is; StorageError if there is no dataset that can be appended to.
    """
    open_existing(location)  # says what is there instead
    with hold(location, holder="appending rows") as lease:
        yield Appending.open(location, lease)


@dataclass(slots=True)
class Appending:
    """A dataset that rows can be appended to, once; `appending` makes it.

    `location`, `place`: as it is called, and where its group is.
    """

    location: Location
    place: Location
    n_before: int
    attributes: Mapping[str, Any]
    headers: Mapping[str, Header]
    _store: Store
    _key: str
    _stored: Tagged | None
    _lease: Lease

    @classmethod
    def open(cls, location: Location, lease: Lease) -> Appending:
        place = resolve(location)
        store: Store = _DurableStore(place.path) if place.is_local else open_store(place, read_only=False)
        group = open_complete_group(store, "", str(location))
        key = "zarr.json" if group.metadata.zarr_format == 3 else ".zattrs"
        stored = read_tagged(store, key, where=location)
        document = {} if stored is None else load_json(stored.content)
        attributes = document.get("attributes", {}) if key == "zarr.json" else document
        _refuse_what_cannot_grow(group, attributes, str(location))
        headers = {
            name: header for name in ROLES if (header := _read_header(store, name, str(location))) is not None
        }
        n_before = _count_rows(headers, attributes, str(location))
        _refuse_other_arrays(group, n_before, str(location))
        return cls(location, place, n_before, attributes, headers, store, key, stored, lease)

    @property
    def digests(self) -> set[str]:
        """Digests of the sources whose rows it has."""
        return {str(source.get("sha256")) for source in known_sources(self.attributes)}

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return the names of the columns of X or y (`feature_names`, `target_names`), if it has any."""
        found = self.attributes.get(key)
        return tuple(map(str, found)) if isinstance(found, list) else None

    def append(
        self,
        batches: Iterable[RowBatch],
        *,
        change: Change,
        names: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
        observer: Progress | None = None,
    ) -> Appended:
        """Write batches after the rows that are there, and then the manifest.

        `change`: from the group's attributes and the number of new rows to the attributes that change with
          them; None leaves the dataset as it was. It is called after the last batch.
        `names`: names of the columns of X and y, to compare with the dataset's.
        `observer`: called with (rows appended, None) after each batch.
        """
        self._check_names(names)
        unchanged = f"; it has the {self.n_before:_} rows of before"
        with store_errors(f"rows could not be appended to {self.location}", unchanged):
            writers: list[_ArrayWriter] = []
            try:
                writers += [
                    _ArrayWriter.open(self._store, name, header, self.n_before, self._label(name))
                    for name, header in self.headers.items()
                ]
                n_new = self._write(batches, writers, observer)
                found = change(self.attributes, n_new)
            except BaseException:
                _discard(writers)
                raise
            if found is None or (not n_new and not found):
                _discard(writers)
                return Appended(self.n_before, self.n_before)
            n_after = self.n_before + n_new
            for writer in writers:
                writer.grow(n_after)
            self._commit({**self.attributes, **found, MANIFEST: self._mark(n_after, writers)})
        return Appended(self.n_before, n_after)

    def _write(
        self, batches: Iterable[RowBatch], writers: Sequence[_ArrayWriter], observer: Progress | None
    ) -> int:
        n_new, checked = 0, time.monotonic()
        for batch in batches:
            parts = name_parts(batch, self.n_before + n_new)
            if parts.keys() != self.headers.keys():
                raise DataError(
                    f"rows of {', '.join(parts)} for {self.location}, which has {', '.join(self.headers)}; "
                    "expected the same arrays"
                )
            # A process that was stopped for a while must not write over rows of another that went on.
            if time.monotonic() - checked > _CHECK_LEASE_S:
                self._lease.check()
                checked = time.monotonic()
            for writer in writers:
                writer.add(parts[writer.name], len(parts["X"]))
            n_new += len(parts["X"])
            if observer is not None:
                observer(n_new, None)
        self._lease.check()
        for writer in writers:
            writer.finish()
        return n_new

    def _check_names(self, names: tuple[Sequence[str] | None, Sequence[str] | None]) -> None:
        for key, given in zip(("feature_names", "target_names"), names, strict=True):
            known = self.names(key)
            if given is None or known is None or tuple(given) == known:
                continue
            differing = next(pair for pair in itertools.zip_longest(given, known) if pair[0] != pair[1])
            raise DataError(
                f"`{key}`: {differing[0]!r} where {self.location} has {differing[1]!r}; expected the columns "
                f"{', '.join(map(repr, known[:10]))}{' …' if len(known) > 10 else ''} in this order. Choose "
                "and sort them by name"
            )

    def _mark(self, n_after: int, writers: Sequence[_ArrayWriter]) -> dict[str, Any]:
        manifest: Any = self.attributes.get(MANIFEST)
        manifest = (
            dict(manifest) if isinstance(manifest, Mapping) else {"chunk_rows": self.headers["X"].stored_rows}
        )
        if n_after > self.n_before:
            new = hashlib.sha256(
                "|".join(writer.digest.hexdigest() for writer in writers).encode()
            ).hexdigest()
            manifest["sha256"] = hashlib.sha256(f"{manifest.get('sha256')}|{new}".encode()).hexdigest()
        return {**manifest, "state": "complete", "format_version": FORMAT_VERSION, "n_samples": n_after}

    def _commit(self, attributes: Mapping[str, Any]) -> None:
        """Replace the group's attributes, if nobody else has."""
        document = {} if self._stored is None else load_json(self._stored.content)
        document = {**document, "attributes": attributes} if self._key == "zarr.json" else dict(attributes)
        content = json.dumps(document, indent=2).encode()
        self._lease.check()
        if resolve(self.location) != self.place:
            raise self._conflict()
        if self.place.is_remote:
            if not replace_bytes(self._store, self._key, content, expected=self._stored, where=self.location):
                raise self._conflict()
            return
        found = read_bytes(self._store, self._key, where=self.location)
        if found != (None if self._stored is None else self._stored.content):
            raise self._conflict()
        # Not beside the manifest: what a killed process leaves there is taken for a broken array by Zarr.
        write_bytes(self._store, self._key, content, scratch="X")

    def _label(self, name: str) -> str:
        return f"array {name!r} of {self.location}"

    def _conflict(self) -> ConflictError:
        return ConflictError(
            f"{self.location} was changed by another program while rows were appended, in spite of the "
            "lease; these rows were not added. Append them again, and check the rows that the other program "
            "wrote"
        )


@dataclass(slots=True)
class _ArrayWriter:
    """Write the rows of one array in whole stored chunks or shards, beginning with the last that is not full.

    `view`: the same without an end, so that all that is written is a whole chunk and nothing is read for it.
    `start`: the first row that is not written.
    """

    name: str
    array: zarr.Array[Any]
    view: zarr.Array[Any]
    header: Header
    label: str
    n_before: int
    start: int
    pending: list[np.ndarray]
    n_pending: int
    digest: Any = field(default_factory=hashlib.sha256)

    @classmethod
    def open(cls, store: Store, name: str, header: Header, n_before: int, label: str) -> _ArrayWriter:
        array: zarr.Array[Any] = zarr.open_array(
            store, path=name, mode="r+", config={"write_empty_chunks": True, "read_missing_chunks": False}
        )
        rows, start = header.stored_rows, n_before // header.stored_rows * header.stored_rows
        _remove_leftovers(array, start // rows)
        tail = read_rows(with_shape(array, (n_before, *header.shape[1:])), start, n_before, label=label)
        pieces = header.shards or header.chunks
        columns = (-(-n // piece) * piece for n, piece in zip(header.shape[1:], pieces[1:], strict=True))
        view = with_shape(array, (MAX_ROWS // rows * rows, *columns))
        return cls(name, array, view, header, label, n_before, start, [tail], len(tail))

    def add(self, values: np.ndarray, n_rows: int) -> None:
        expected = (n_rows, *self.header.shape[1:])
        if values.shape != expected:
            raise DataError(f"{self.name} has shape {values.shape}; expected {expected}, as {self.label} has")
        values = self._cast(values)
        self.digest.update(canonical_bytes(values))
        self.pending.append(values)
        self.n_pending += n_rows
        rows = self.header.stored_rows
        if self.n_pending >= rows:
            self._write(self.n_pending // rows * rows)

    def finish(self) -> None:
        """Write the rows that fill no chunk."""
        if self.start + self.n_pending > self.n_before and self.n_pending:
            self._write(self.n_pending)

    def grow(self, n_samples: int) -> None:
        """Store the array's new shape; chunks beyond it, of an append that did not finish, are removed."""
        if self.array.shape[0] != n_samples:
            self.array.resize((n_samples, *self.header.shape[1:]))

    def discard(self) -> None:
        """Remove the chunks that hold new rows alone."""
        rows, pieces = self.header.stored_rows, self.header.shards or self.header.chunks
        columns = [range(n // piece) for n, piece in zip(self.view.shape[1:], pieces[1:], strict=True)]
        metadata: Any = self.array.async_array.metadata
        for band in range(-(-self.n_before // rows), self.start // rows):
            for place in itertools.product([band], *columns):
                sync(self.array.store.delete(f"{self.array.path}/{metadata.encode_chunk_key(place)}"))

    def _cast(self, values: np.ndarray) -> np.ndarray:
        dtype = self.header.dtype
        fits = is_text(values.dtype) == is_text(dtype)
        if fits and dtype.kind == "U":
            longest = int(np.strings.str_len(values).max(initial=0))
            fits = 4 * longest <= dtype.itemsize
        elif fits:
            fits = np.can_cast(values.dtype, dtype, "safe")
        if not fits:
            raise DataError(
                f"{self.name} is {_kind(values.dtype)}, but {self.label} holds {_kind(dtype)}; expected "
                "values that it holds without rounding or cutting. Convert them first"
            )
        return values.astype(dtype, copy=False)

    def _write(self, n_rows: int) -> None:
        """Write the first `n_rows` of what is pending: whole chunks but for the last one."""
        rows = self.pending[0] if len(self.pending) == 1 else np.concatenate(self.pending)
        band = self.header.stored_rows
        for first in range(0, n_rows, band):
            values = rows[first : min(first + band, n_rows)]
            shape = (band, *self.view.shape[1:])
            if values.shape != shape:
                whole = np.full(shape, _fill_value(self.array, self.header.dtype), self.header.dtype)
                whole[tuple(map(slice, values.shape))] = values
                values = whole
            self.view[self.start : self.start + band] = np.ascontiguousarray(values)
            self.start += band
        # A copy, or the few rows left over would keep the whole batch alive.
        self.pending = [rows[n_rows:].copy()]
        self.n_pending = len(self.pending[0])


class _DurableStore(LocalStore):
    """A folder in which what was written is on the disk before the next thing is written."""

    async def set(self, key: str, value: Buffer) -> None:
        await asyncio.to_thread(self.set_sync, key, value)

    def set_sync(self, key: str, value: Buffer) -> None:
        write_bytes(self, key, value.to_bytes())


def _remove_leftovers(array: zarr.Array[Any], band: int) -> None:
    """Remove the half-written files that killed appends left in an array's folders, from a chunk on."""
    if not isinstance(array.store, LocalStore):
        return
    root, metadata = Path(array.store.root) / array.path, cast("Any", array.async_array.metadata)
    columns = [0 for _ in array.shape[1:]]
    folders = [root]
    for place in itertools.count(band):
        folder = (root / metadata.encode_chunk_key((place, *columns))).parent
        if folder in folders or not folder.is_dir():
            break
        folders.append(folder)
    for folder in folders:
        for path in folder.iterdir():
            if _LEFTOVER.fullmatch(path.name):
                path.unlink(missing_ok=True)


def _discard(writers: Sequence[_ArrayWriter]) -> None:
    """Remove what an append wrote in vain, as far as the store lets us: nobody reads it."""
    for writer in writers:
        try:
            writer.discard()
        except Exception as error:
            _log.warning("%s: chunks beyond its rows were left behind: %s", writer.label, explain(error))


def _read_header(store: Store, name: str, place: str) -> Header | None:
    return read_header(store, name, label=f"array {name!r} of {place}", text=name in ("y", "groups"))


def _count_rows(headers: Mapping[str, Header], attributes: Mapping[str, Any], place: str) -> int:
    """Return the rows of a dataset whose arrays agree."""
    if "X" not in headers:
        raise StorageError(f"{place} has no array 'X'; expected a dataset to append rows to")
    if len(headers["X"].shape) != 2:
        raise StorageError(
            f"array 'X' of {place} has shape {headers['X'].shape}; expected 2 axes (n_samples, n_features)"
        )
    shapes = {name: header.shape for name, header in headers.items()}
    lengths = {name: shape[0] if shape else -1 for name, shape in shapes.items()}
    marked = isinstance(attributes.get(MANIFEST), Mapping)
    n_samples = min(committed_rows(attributes, place), max(lengths.values()))
    if min(lengths.values()) < n_samples:
        what = f" and its manifest says {committed_rows(attributes, place):_} rows" if marked else ""
        raise StorageError(
            f"the arrays of {place} have the shapes {shapes}{what}; expected as many rows in all. Write the "
            "dataset again"
        )
    return n_samples


def _refuse_what_cannot_grow(group: zarr.Group, attributes: Mapping[str, Any], place: str) -> None:
    if group.metadata.consolidated_metadata is not None:
        raise StorageError(
            f"{place} has consolidated metadata, in which the arrays would keep their old shapes; expected "
            "none. Remove them (`.zmetadata`, or `consolidated_metadata` in zarr.json) and append then"
        )
    manifest: Any = attributes.get(MANIFEST)
    version = (
        manifest.get("format_version", FORMAT_VERSION) if isinstance(manifest, Mapping) else FORMAT_VERSION
    )
    if type(version) is not int or version > FORMAT_VERSION:
        raise VersionError(
            f"{place} is of format {str(version)[:100]}; this release appends to format {FORMAT_VERSION}. "
            "Use a newer release of rff_dist"
        )


def _refuse_other_arrays(group: zarr.Group, n_before: int, place: str) -> None:
    """Refuse arrays with a value a row that an append would leave behind."""
    others = sorted(
        name for name, array in group.arrays() if name not in ROLES and array.shape[:1] == (n_before,)
    )
    if others:
        raise StorageError(
            f"{place} also holds {', '.join(map(repr, others[:10]))} of {n_before:_} rows, which an append "
            f"would leave behind; expected {', '.join(ROLES)} alone. Write such arrays to another group"
        )


def canonical_bytes(values: np.ndarray) -> bytes | np.ndarray:
    """Return values as bytes that do not depend on how rows are cut into batches."""
    if not is_text(values.dtype):
        return as_bytes(values)
    return "".join(f"{len(value)}:{value}" for value in values.tolist()).encode("utf-8", "surrogatepass")


def _fill_value(array: zarr.Array[Any], dtype: np.dtype[Any]) -> Any:
    return ("" if is_text(dtype) else 0) if array.fill_value is None else array.fill_value


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "U":
        return f"text of at most {dtype.itemsize // 4} characters"
    return "text" if is_text(dtype) else str(dtype)
