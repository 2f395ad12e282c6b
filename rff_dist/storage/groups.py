"""Find Zarr groups, open them for reading, and open them again in another process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, WrapperStore

from rff_dist.errors import ConflictError, IntegrityError, NoSuchVersionError, StorageError, VersionError
from rff_dist.storage.arrays import MAX_ROWS, Header, open_array, read_header
from rff_dist.storage.binding import bound_store, check_array, check_group
from rff_dist.storage.generations import MANIFEST, manifest_of, resolve
from rff_dist.storage.locations import (
    Location,
    digest_objects,
    exists,
    explain,
    open_store,
    parse_location,
    read_bytes,
)
from rff_dist.storage.output_places import beside
from rff_dist.storage.repositories import is_versioned, open_pinned, open_snapshot
from rff_dist.text import human_bytes


@dataclass(frozen=True, slots=True)
class Address:
    """What another process needs to open the same group in the same state.

    `process`: the process in whose memory it is; None elsewhere.
    `generation`: the URL of the generation's folder, in an object store.
    `version`: the snapshot of a versioned dataset.
    `files`: for plain Zarr in a local folder: its files in words, with a digest of names, sizes and times.
    """

    url: str
    process: int | None = None
    generation: str | None = None
    version: str | None = None
    files: str | None = None

    def check(self) -> None:
        """Raise ConflictError if plain Zarr in a local folder has changed since it was opened.

        Snapshots and generations never change.
        """
        if self.files is not None and (found := describe_files(self.url)) != self.files:
            raise ConflictError(
                f"{self.url} was changed while it was read, or is another folder on another machine: now "
                f"{found}, when it was opened {self.files}. A result could mix old and new rows: nothing was "
                "published. Repeat this when nobody writes there; versioned data may be changed "
                "meanwhile (`rff-dist data convert`)"
            )

    def content_key(self, *options: Any) -> str | None:
        """Return a key of the stored rows, for the names of kept sums; None if the rows may change.

        See `engines.kept`. For plain Zarr in an object store the key covers the objects' names, sizes and
        entity tags at this moment.

        `options`: the options with which the rows are opened.
        """
        found = self.version or self.files
        if self.generation is not None:
            found = digest_objects(parse_location(self.generation))
        return None if found is None or self.process is not None else f"{self.url} {found} {[*options]!r}"

    def reopen(self) -> StoredGroup:
        """Return the group in the state in which the address was made.

        Raises StorageError if it is in the memory of another process; ConflictError as `check`.
        """
        location = parse_location(self.url)
        if self.process is not None and self.process != os.getpid():
            raise StorageError(
                f"{location} lives in the memory of process {self.process} and was sent to process "
                f"{os.getpid()}; write the dataset to a path that both can read, or use the serial engine"
            )
        if self.version is not None:
            store = open_pinned(location, self.version)
        elif self.generation is not None:
            store = open_store(parse_location(self.generation), read_only=True)
        else:
            self.check()
            store = open_store(location, read_only=True)
        return StoredGroup(store, "", str(location), location.url, self)


def describe_files(folder: str) -> str:
    """Say how many files are in a folder and below it, with a digest of their names, sizes and times."""
    digest, n_files, n_bytes = hashlib.sha256(), 0, 0
    for place, folders, names in os.walk(folder):
        folders.sort()  # in place: `os.walk` descends in this order
        for name in sorted(names):
            try:
                found = os.stat(os.path.join(place, name))
            except FileNotFoundError:  # removed at this moment
                continue
            n_files, n_bytes = n_files + 1, n_bytes + found.st_size
            digest.update(
                f"{os.path.relpath(place, folder)}/{name} {found.st_size} {found.st_mtime_ns}\n".encode()
            )
    if not n_files:
        return "nothing is there"
    return f"{n_files:,} files of {human_bytes(n_bytes)} (digest {digest.hexdigest()[:20]})"


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group in a store, whose metadata are not read yet.

    `root`: its path in the store.
    `place`: its name in errors.
    `url`: None if its store was handed over open and is not a local folder.
    `address`: None if no other process can open it.
    `sha256`: the digest that its manifest must have, if known.
    """

    store: Store
    root: str
    place: str
    url: str | None
    address: Address | None
    sha256: str | None = None

    @property
    def version(self) -> str | None:
        """The snapshot of a versioned dataset."""
        return None if self.address is None else self.address.version

    @property
    def prefix(self) -> str:
        """The beginning of its arrays' paths."""
        return f"{self.root}/" if self.root else ""

    def open(self, *, unfinished: bool = False) -> OpenGroup:
        """Open the group and check its metadata.

        `unfinished`: whether to accept a group that its writer did not finish.
        Raises StorageError if there is no group, or an unfinished one; IntegrityError if it is damaged.
        """
        group = _open_group(self.store, self.root, self.place)
        attributes = dict(group.attrs)
        manifest = manifest_of(attributes)
        # An empty manifest means an unfinished group; no manifest at all means plain Zarr of another writer.
        begun = isinstance(attributes.get(MANIFEST), Mapping)
        if begun and manifest.get("state") != "complete" and not unfinished:
            raise StorageError(
                f"{self.place} is unfinished: its writer stopped before the end. Write it again"
            )
        if self.sha256 is not None and manifest.get("sha256") != self.sha256 and not unfinished:
            raise IntegrityError(
                f"version {self.version} of {self.place} holds the manifest of another version; restore it "
                "from a copy"
            )
        store = bound_store(self.store, self.prefix, attributes)
        return OpenGroup(group, attributes, self.place, self.prefix, store)


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group whose metadata are read and checked, made by `StoredGroup.open`.

    `place`, `prefix`: as in `StoredGroup`.
    `store`: a store that notices swapped chunks, if the manifest lists their checksums.
    """

    group: zarr.Group
    attributes: dict[str, Any]
    place: str
    prefix: str
    store: Store

    @property
    def n_samples(self) -> int:
        """Rows by the manifest; without a manifest a bound that no array exceeds.

        Rows beyond them belong to an append that did not finish, and do not exist for readers.
        """
        n_samples = manifest_of(self.attributes).get("n_samples", MAX_ROWS)
        if type(n_samples) is not int or n_samples < 0:
            raise StorageError(
                f"attribute {MANIFEST!r} of {self.place} says n_samples={str(n_samples)[:100]}; expected a "
                "number of rows. Its metadata are damaged; write the dataset again"
            )
        return n_samples

    def label(self, name: str) -> str:
        """Return an array's name in errors."""
        return f"array {name!r} of {self.place}"

    def read_header(self, name: str, *, text: bool = False) -> Header | None:
        """Read and check an array's header, cut to the rows that exist; None if there is no array.

        `text`: whether it may hold text.
        """
        header = read_header(self.store, self.prefix + name, label=self.label(name), text=text)
        check_array(header, self.attributes, name, self.label(name))
        return None if header is None else header.first_rows(self.n_samples)

    def require_header(self, name: str) -> Header:
        """Read and check the header of an array that must exist and may hold text."""
        header = self.read_header(name, text=True)
        if header is None:
            raise StorageError(f"{self.place} has no array {name!r}; it holds {self.array_names()}")
        return header

    def open_array(self, name: str, header: Header, missing_chunks: str = "error") -> zarr.Array[Any]:
        """Open an array for reading, with the rows that its header has."""
        return open_array(
            self.store, self.prefix + name, header, label=self.label(name), missing_chunks=missing_chunks
        )

    def array_names(self) -> str:
        """Return the arrays' names, as words for an error."""
        try:
            names = sorted(self.group.array_keys())
        except Exception as error:
            return f"arrays that cannot be listed ({explain(error)})"
        shown = ", ".join(repr(name) for name in names[:10])
        return f"the arrays {shown}{', …' if len(names) > 10 else ''}" if names else "no arrays"


def find_group(url: str | os.PathLike[str] | zarr.Group, version: str | None = None) -> StoredGroup:
    """Find a group; its metadata are not read yet.

    `version`: for versioned data: a tag or a snapshot; None: the current version.
    Raises StorageError if nothing is there, or a file; NoSuchVersionError if there is no such version.
    """
    if not isinstance(url, zarr.Group):
        return _group_at(parse_location(url), version)
    root = local_root(url.store, url.path)
    place = root or f"the group {url.path or '/'} in a {type(url.store).__name__}"
    return StoredGroup(url.store, url.path, place, root, None if root is None else Address(root))


def _group_at(location: Location, version: str | None) -> StoredGroup:
    check_existing(location)
    digest = None
    if is_versioned(location):
        store, found, digest = open_snapshot(location, version)
        address = Address(location.url, version=found)
    elif version is not None:
        raise NoSuchVersionError(
            f"{location} keeps no versions, and version {version!r} was asked for; `rff-dist data convert` "
            "makes a versioned dataset of it"
        )
    else:
        place = resolve(location)
        store = open_store(place, read_only=True)
        process = os.getpid() if location.scheme == "memory" else None
        generation = place.url if location.is_remote else None
        files = describe_files(location.path) if location.is_local else None
        address = Address(location.url, process, generation, files=files)
    return StoredGroup(store, "", str(location), location.url, address, digest)


def check_existing(location: Location) -> None:
    """Raise a StorageError that says what is at `location`, if that cannot be a dataset."""
    if location.is_local:
        path = Path(location.path)
        begun = beside(location, "partial-")
        if not os.path.lexists(path):
            hint = f" An unfinished output of it is at {begun[-1]}; write it again." if begun else ""
            near = f"; {path.parent} does not exist either" if not path.parent.is_dir() else ""
            raise StorageError(f"no dataset at {path}: nothing is there{near}; expected a Zarr group.{hint}")
        if not path.is_dir():
            raise StorageError(
                f"{path} is a file; expected a Zarr group, which is a folder. "
                "Turn CSV, Parquet or NumPy files into one with rff_dist.ingest.ingest (rff-dist ingest)"
            )
    elif location.is_remote and not exists(location):
        raise StorageError(f"no dataset at {location}: expected a Zarr group")


def require_versions(location: Location) -> None:
    """Raise a StorageError that says what is at `location`, if that is not a versioned dataset."""
    if not is_versioned(location):
        check_existing(location)
        raise StorageError(
            f"{location} is plain Zarr, which keeps no versions and is written once; expected a versioned "
            f"dataset. Convert it with `rff-dist data convert {location}`, and repeat this"
        )


def _open_group(store: Store, root: str, place: str) -> zarr.Group:
    """Open a Zarr group, finished or not; raise a StorageError that says what is there instead."""
    prefix = f"{root}/" if root else ""
    # Each name is a request to an object store, so the search ends with the first one that is there.
    for name in ("zarr.json", ".zgroup", ".zarray"):
        if (content := read_bytes(store, prefix + name, where=place)) is not None:
            break
    else:
        raise StorageError(
            f"{place} holds no Zarr metadata (zarr.json or .zgroup); expected a Zarr group with an array X"
        )
    zarr_format: Literal[2, 3] = 3 if name == "zarr.json" else 2
    try:
        if zarr_format == 3:
            check_group(content, place)
        return zarr.open_group(store, path=root, mode="r", zarr_format=zarr_format)
    except (IntegrityError, VersionError):
        raise
    except Exception as error:
        if is_array(store, root):
            parent, _, name = place.rstrip("/").rpartition("/")
            raise StorageError(
                f"{place} is a Zarr array; expected the group that holds it. Open {parent} with x={name!r}"
            ) from error
        raise StorageError(f"{place} cannot be opened as a Zarr group: {explain(error)}") from error


def is_array(store: Store, path: str) -> bool:
    """Return whether there is a readable array at `path`."""
    try:
        return read_header(store, path, label=path) is not None
    except StorageError:
        return False


def header_of(array: zarr.Array[Any], name: str, *, text: bool = False) -> tuple[Header, str]:
    """Read and check the header of an array that was handed over open; return also its name in errors.

    `name`: the array's name in errors if it has no path.
    `text`: whether it may hold text.
    """
    label = f"array {array.path or name!r} of {local_root(array.store, '') or array.store}"
    header = read_header(array.store, array.path, label=label, text=text)
    if header is None:
        raise StorageError(f"{label} is no longer there")
    return header, label


def local_root(store: Store, path: str) -> str | None:
    """Return the folder of a path in a store; None if the store is not a local folder."""
    while isinstance(store, WrapperStore):  # one of our stores that check what is read
        store = store._store
    if not isinstance(store, LocalStore):
        return None
    return os.path.abspath(os.path.join(store.root, path))
