"""Single files, whole or not there: here, and as objects of a store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rff_dist.errors import StorageError
from rff_dist.storage.locations import Location, open_store, reaching


def write_whole(path: Path, write: Callable[[Path], object], *, what: str) -> Path:
    """Write a file in place of another, whole or not at all; its folder is made.

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
        with contextlib.suppress(OSError):  # it is gone, or never was
            temporary.unlink()
    return path


def has_object(location: Location) -> bool:
    """Say whether an object store holds a single object at `location`."""
    import obstore

    store, name = _store_above(location)
    with reaching(f"{location} cannot be looked at"):
        try:
            obstore.head(store.store, name)
        except FileNotFoundError:
            return False
    return True


def upload(path: Path, location: Location) -> None:
    """Store a file as the object at `location`; readers see it when it is whole."""
    import obstore

    store, name = _store_above(location)
    obstore.put(store.store, name, path)


def _store_above(location: Location) -> tuple[Any, str]:
    parent, _, name = location.path.rpartition("/")
    if not parent:
        raise StorageError(f"{location} is a whole bucket; expected the name of an object in it")
    return open_store(Location(location.scheme, parent), read_only=False), name
