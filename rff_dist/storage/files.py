"""Write single files whole or not at all, as local files or as objects of an object store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rff_dist.errors import StorageError
from rff_dist.storage.conditional import Tagged, overtaken, replace_bytes
from rff_dist.storage.leases import check_lease
from rff_dist.storage.locations import Location, open_store, reaching

_IN_ONE_REQUEST = 2**30  # bytes; object stores take at least 5 GiB


def write_whole(path: Path, write: Callable[[Path], object], *, what: str) -> Path:
    """Write or replace a file, whole or not at all; its folder is created.

    `write`: writes the content to the path that it is given.
    `what`: the kind of file, for the error.
    Raises StorageError if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"the {what} {path} cannot be written: {error}; choose another place") from error
    finally:
        with contextlib.suppress(OSError):  # It was renamed or never written.
            temporary.unlink()
    return path


def find_object(location: Location) -> Tagged | None:
    """Return the tag, without the content, of the object at a location in an object store; None if absent."""
    import obstore

    store, name = _store_above(location)
    with reaching(f"{location} cannot be looked at"):
        try:
            return Tagged.of(b"", dict(obstore.head(store.store, name)))
        except FileNotFoundError:
            return None


def upload(path: Path, location: Location, *, expected: Tagged | None) -> None:
    """Store a file as the object at `location`; readers see it only when it is complete.

    `expected`: the result of `find_object` when the work began.
    Raises ConflictError if another run stored the object meanwhile; OutputBusyError if this context has lost
      the lease of `location`.
    """
    import obstore

    store, name = _store_above(location)
    check_lease(location)
    if path.stat().st_size > _IN_ONE_REQUEST:
        # Requests with a condition are not sent in parts, and would hold all of the file in memory.
        obstore.put(store.store, name, path)
    elif not replace_bytes(store, name, path.read_bytes(), expected=expected, where=location):
        raise overtaken(location)


def _store_above(location: Location) -> tuple[Any, str]:
    parent, _, name = location.path.rpartition("/")
    if not parent:
        raise StorageError(f"{location} is a whole bucket; expected the name of an object in it")
    return open_store(Location(location.scheme, parent), read_only=False), name
