"""Zarr groups that are open for reading: where they are, and how another process opens them again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore

from rff_dist.errors import StorageError
from rff_dist.storage.arrays import MAX_ROWS, read_header
from rff_dist.storage.generations import MANIFEST, resolve
from rff_dist.storage.locations import (
    Location,
    exists,
    explain,
    open_store,
    parse_location,
    read_bytes,
    unfinished,
)


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group in a store, whose metadata are not read yet.

    `root`: its path in the store.
    `place`: what errors call it.
    `url`: None in a store that was handed over open and is not a local folder.
    `address`: what `reopen_group` takes elsewhere; None where no other process can open it.
    """

    store: Store
    root: str
    place: str
    url: str | None
    address: tuple[str, int | None, str | None] | None

    @property
    def prefix(self) -> str:
        """What the paths of its arrays begin with."""
        return f"{self.root}/" if self.root else ""

    def open(self) -> zarr.Group:
        """Open it, or say what is there instead, or that this package's writer did not finish it."""
        return open_complete_group(self.store, self.root, self.place)


def find_group(url: str | os.PathLike[str] | zarr.Group) -> StoredGroup:
    """Return where a group is.

    Raises StorageError if nothing, or something else, is there.
    """
    if not isinstance(url, zarr.Group):
        return _group_at(parse_location(url), None)
    root = local_root(url.store, url.path)
    place = root or f"the group {url.path or '/'} in a {type(url.store).__name__}"
    return StoredGroup(url.store, url.path, place, root, None if root is None else (root, None, None))


def reopen_group(url: str, process: int | None, generation: str | None) -> StoredGroup:
    """Return the group of an address: of one in memory the `process`, in an object store the `generation`.

    Raises StorageError if it lies in the memory of another process.
    """
    if process is not None and process != os.getpid():
        raise StorageError(
            f"{url} lives in the memory of process {process} and was sent to process {os.getpid()}; "
            "write the dataset to a path that both can read, or use the serial engine"
        )
    return _group_at(parse_location(url), None if generation is None else parse_location(generation))


def _group_at(location: Location, generation: Location | None) -> StoredGroup:
    store, found = open_existing(location, generation)
    process = os.getpid() if location.scheme == "memory" else None
    return StoredGroup(store, "", str(location), location.url, (location.url, process, found))


def open_existing(location: Location, place: Location | None = None) -> tuple[Store, str | None]:
    """Open the store at a location for reading, or say what is there instead.

    `place` is where another process found its arrays, and is returned for the next one: a dataset in an
    object store that is overwritten during a pass is read by all workers as it was.
    """
    if place is not None:
        return open_store(place, read_only=True), place.url
    if location.is_local:
        path = Path(location.path)
        begun = unfinished(location)
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
    found = resolve(location)
    return open_store(found, read_only=True), found.url if location.is_remote else None


def open_complete_group(store: Store, root: str, place: str) -> zarr.Group:
    """Open a Zarr group, or say what is there instead, or that this package's writer did not finish it."""
    group = _open_group(store, root, place)
    manifest = group.attrs.get(MANIFEST)
    if isinstance(manifest, Mapping) and manifest.get("state") != "complete":
        raise StorageError(f"{place} is unfinished: its writer did not come to the end. Write it again")
    return group


def committed_rows(attributes: Mapping[str, Any], place: str) -> int:
    """Return how many rows the manifest of a group says there are; without one, as many as its arrays have.

    What an array holds beyond them is of an append that did not finish, and does not exist for a reader.
    """
    manifest = attributes.get(MANIFEST)
    n_samples = manifest.get("n_samples", MAX_ROWS) if isinstance(manifest, Mapping) else MAX_ROWS
    if type(n_samples) is not int or n_samples < 0:
        raise StorageError(
            f"attribute {MANIFEST!r} of {place} says n_samples={str(n_samples)[:100]}; expected a number of "
            "rows. Its metadata are damaged; write the dataset again"
        )
    return n_samples


def _open_group(store: Store, root: str, place: str) -> zarr.Group:
    prefix = f"{root}/" if root else ""
    # Each name that is looked for is a request to an object store.
    kinds: dict[str, Literal[2, 3]] = {"zarr.json": 3, ".zgroup": 2, ".zarray": 2}
    zarr_format = next(
        (kinds[name] for name in kinds if read_bytes(store, prefix + name, where=place) is not None), None
    )
    if zarr_format is None:
        raise StorageError(
            f"{place} holds no Zarr metadata (zarr.json or .zgroup); expected a Zarr group with an array X"
        )
    try:
        return zarr.open_group(store, path=root, mode="r", zarr_format=zarr_format)
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


def array_names(group: zarr.Group) -> str:
    """Return the names of a group's arrays in words."""
    try:
        names = sorted(group.array_keys())
    except Exception as error:
        return f"arrays that cannot be listed ({explain(error)})"
    shown = ", ".join(repr(name) for name in names[:10])
    return f"the arrays {shown}{', …' if len(names) > 10 else ''}" if names else "no arrays"


def local_root(store: Store, path: str) -> str | None:
    """Return the folder of a path in a store, or None where it is not a local one."""
    if not isinstance(store, LocalStore):
        return None
    return os.path.abspath(os.path.join(store.root, path))
