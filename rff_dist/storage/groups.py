"""Zarr groups that are open for reading: where they are, and how another process opens them again."""

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
from rff_dist.storage.seal import sealed_store


@dataclass(frozen=True, slots=True)
class Address:
    """By what another process opens the same group, as it is now.

    `process`: the one in whose memory it is.
    `generation`: the URL of its folder in an object store.
    `version`: the snapshot of a versioned dataset.
    `files`: a digest of the names, sizes and times of a plain dataset's files, in a folder.
    """

    url: str
    process: int | None = None
    generation: str | None = None
    version: str | None = None
    files: str | None = None

    def check(self) -> None:
        """Check that plain Zarr in a folder is as it was opened; a snapshot or a generation always is.

        Raises ConflictError if it was changed meanwhile.
        """
        if self.files is not None and digest_files(self.url) != self.files:
            raise ConflictError(
                f"{self.url} was changed while it was read, so that a result could be of old and new rows: "
                "nothing was published. Repeat this when nobody writes there; versioned data can be changed "
                "meanwhile (`rff-dist data convert`)"
            )

    def content_key(self, *options: Any) -> str | None:
        """Return what a pass over the stored rows is named by, see `engines.kept`; None if they may change.

        Of plain Zarr in an object store these are the objects' names, sizes and entity tags, as they are now.

        `options`: what they are opened with.
        """
        found = self.version or self.files
        if self.generation is not None:
            found = digest_objects(parse_location(self.generation))
        return None if found is None or self.process is not None else f"{self.url} {found} {[*options]!r}"

    def reopen(self) -> StoredGroup:
        """Return the group as it was when the address was made.

        Raises StorageError if it lies in the memory of another process.
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
            store = sealed_store(open_store(location, read_only=True), location)
        return StoredGroup(store, "", str(location), location.url, self)


def digest_files(folder: str) -> str:
    """Return a digest of the names, sizes and times of all files in a folder and below."""
    digest = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            try:
                found = os.stat(os.path.join(place, name))
            except FileNotFoundError:  # removed at this moment
                continue
            digest.update(
                f"{os.path.relpath(place, folder)}/{name} {found.st_size} {found.st_mtime_ns}\n".encode()
            )
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group in a store, whose metadata are not read yet.

    `root`: its path in the store.
    `place`: what errors call it.
    `url`: None in a store that was handed over open and is not a local folder.
    `address`: by what it is opened elsewhere; None where no other process can open it.
    `sha256`: what its manifest must say, where that is known.
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
        """What the paths of its arrays begin with."""
        return f"{self.root}/" if self.root else ""

    def open(self, *, unfinished: bool = False) -> OpenGroup:
        """Open it, or say what is there instead, or that this package's writer did not finish it.

        `unfinished`: whether it may be unfinished, too.
        """
        group = _open_group(self.store, self.root, self.place)
        attributes = dict(group.attrs)
        manifest = manifest_of(attributes)
        # An empty manifest was begun too, and is not the same as none.
        begun = isinstance(attributes.get(MANIFEST), Mapping)
        if begun and manifest.get("state") != "complete" and not unfinished:
            raise StorageError(
                f"{self.place} is unfinished: its writer did not come to the end. Write it again"
            )
        if self.sha256 is not None and manifest.get("sha256") != self.sha256 and not unfinished:
            raise IntegrityError(
                f"version {self.version} of {self.place} holds what another one was written with; restore it "
                "from a copy"
            )
        store = bound_store(self.store, self.prefix, attributes)
        return OpenGroup(group, attributes, self.place, self.prefix, store)


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group whose metadata are read and checked: `StoredGroup.open` makes it.

    `place`, `prefix`: as `StoredGroup` has them.
    `store`: which notices chunks that changed places, where the attributes tell.
    """

    group: zarr.Group
    attributes: dict[str, Any]
    place: str
    prefix: str
    store: Store

    @property
    def n_samples(self) -> int:
        """How many rows the manifest says there are; without one, as many as the arrays have.

        What an array holds beyond them is of an append that did not finish, and does not exist for a reader.
        """
        n_samples = manifest_of(self.attributes).get("n_samples", MAX_ROWS)
        if type(n_samples) is not int or n_samples < 0:
            raise StorageError(
                f"attribute {MANIFEST!r} of {self.place} says n_samples={str(n_samples)[:100]}; expected a "
                "number of rows. Its metadata are damaged; write the dataset again"
            )
        return n_samples

    def label(self, name: str) -> str:
        """Return what errors call an array."""
        return f"array {name!r} of {self.place}"

    def read_header(self, name: str, *, text: bool = False) -> Header | None:
        """Read and check the metadata of an array's rows; None where there is no array.

        `text`: whether it may hold text.
        """
        header = read_header(self.store, self.prefix + name, label=self.label(name), text=text)
        check_array(header, self.attributes, name, self.label(name))
        return None if header is None else header.first_rows(self.n_samples)

    def require_header(self, name: str) -> Header:
        """Read and check the metadata of an array that may hold text, and must be there."""
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
        """Return the names of the arrays in words."""
        try:
            names = sorted(self.group.array_keys())
        except Exception as error:
            return f"arrays that cannot be listed ({explain(error)})"
        shown = ", ".join(repr(name) for name in names[:10])
        return f"the arrays {shown}{', …' if len(names) > 10 else ''}" if names else "no arrays"


def find_group(
    url: str | os.PathLike[str] | zarr.Group, version: str | None = None, *, sealed: bool = True
) -> StoredGroup:
    """Return where a group is.

    `version`: of a versioned dataset: a tag or a snapshot; the current one if left out.
    `sealed`: whether files are compared with their seal, if there is one.
    Raises StorageError if nothing, or something else, is there; NoSuchVersionError if it has no such version.
    """
    if not isinstance(url, zarr.Group):
        return _group_at(parse_location(url), version, sealed=sealed)
    root = local_root(url.store, url.path)
    place = root or f"the group {url.path or '/'} in a {type(url.store).__name__}"
    return StoredGroup(url.store, url.path, place, root, None if root is None else Address(root))


def _group_at(location: Location, version: str | None, *, sealed: bool) -> StoredGroup:
    check_existing(location)
    digest = None
    if is_versioned(location):
        store, found, digest = open_snapshot(location, version)
        address = Address(location.url, version=found)
    elif version is not None:
        raise NoSuchVersionError(
            f"{location} keeps no versions, and {version!r} was asked for; `rff-dist data convert` makes a "
            "versioned dataset of it"
        )
    else:
        place = resolve(location)
        store = open_store(place, read_only=True)
        store = sealed_store(store, place) if sealed else store
        process = os.getpid() if location.scheme == "memory" else None
        generation = place.url if location.is_remote else None
        files = digest_files(location.path) if location.is_local else None
        address = Address(location.url, process, generation, files=files)
    return StoredGroup(store, "", str(location), location.url, address, digest)


def check_existing(location: Location) -> None:
    """Raise a StorageError that says what is at a location, if that cannot be a dataset."""
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
    """Raise a StorageError that says what is at a location, if that is no versioned dataset."""
    if not is_versioned(location):
        check_existing(location)
        raise StorageError(
            f"{location} is plain Zarr, which keeps no versions and is written once; expected a versioned "
            f"dataset. Make it one by `rff-dist data convert {location}`, and repeat this"
        )


def _open_group(store: Store, root: str, place: str) -> zarr.Group:
    """Open a Zarr group, finished or not, or say what is there instead."""
    prefix = f"{root}/" if root else ""
    # Each name that is looked for is a request to an object store.
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
    """Say whether there is a readable array at `path`."""
    try:
        return read_header(store, path, label=path) is not None
    except StorageError:
        return False


def header_of(array: zarr.Array[Any], name: str, *, text: bool = False) -> tuple[Header, str]:
    """Read and check the metadata of an array that was handed over open; return also what errors call it.

    `name`: what it is called where it has no path.
    `text`: whether it may hold text.
    """
    label = f"array {array.path or name!r} of {local_root(array.store, '') or array.store}"
    header = read_header(array.store, array.path, label=label, text=text)
    if header is None:
        raise StorageError(f"{label} is no longer there")
    return header, label


def local_root(store: Store, path: str) -> str | None:
    """Return the folder of a path in a store, or None where it is not a local one."""
    while isinstance(store, WrapperStore):  # which checks what is read
        store = store._store
    if not isinstance(store, LocalStore):
        return None
    return os.path.abspath(os.path.join(store.root, path))
