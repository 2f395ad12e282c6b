"""Zarr, which is imported when it is first used, and opened at a location.

The import takes 0.2 s of CPU, more than a command needs that reads JSON documents only.
So the files of this room take `zarr` from here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rff_dist.errors import StorageError
from rff_dist.lazy import LazyModule
from rff_dist.storage import locations
from rff_dist.storage.locations import Location

if TYPE_CHECKING:
    import zarr as zarr
    import zarr.abc.store
    from zarr import codecs as codecs
    from zarr.abc.store import Store
else:
    zarr, codecs = map(LazyModule, ("zarr", "zarr.codecs"))

_AT_ONCE = 64  # requests
_DRAINED_S = 60.0  # the longest wait; requests to an object store are given up by then


def open_store(location: Location, *, read_only: bool = True) -> Store:
    """Open the Zarr store at `location`."""
    if location.is_local:
        return zarr.storage.LocalStore(location.path, read_only=read_only)
    if not read_only:
        locations.refuse_read_only(location)
    objects = locations.open_objects(location)
    return zarr.storage.ObjectStore(objects, read_only=read_only)


def read_key(store: Store, key: str, *, where: Location | str) -> bytes | None:
    """Return the bytes stored under `key`, or None; errors call the store `where`."""
    # Zarr's `sync` waits without bound; the store bounds each request.
    with locations.reaching(f"{where} cannot be read", key):
        prototype = zarr.core.buffer.default_buffer_prototype()
        try:
            buffer = zarr.core.sync.sync(store.get(key, prototype=prototype))
        except FileNotFoundError:  # the store's own folder is missing
            return None
    return None if buffer is None else buffer.to_bytes()


def read_ends(store: Store, keys: Iterable[str], n_bytes: int) -> list[bytes]:
    """Return the last bytes of what is stored under each key.

    Raises StorageError if there is nothing.
    """
    prototype = zarr.core.buffer.default_buffer_prototype()
    end = zarr.abc.store.SuffixByteRequest(n_bytes)

    async def read(key: str) -> bytes:
        content = await store.get(key, prototype, end)
        if content is None:
            raise StorageError(
                f"{key} is gone; another program removed it. Write the data again"
            )
        return content.to_bytes()

    reading = zarr.core.common.concurrent_map([(key,) for key in keys], read, _AT_ONCE)
    return zarr.core.sync.sync(reading)


def drain() -> None:
    """Wait for all writes of Zarr in this process to end.

    They run at the same time: if one fails, its caller goes on and the others still
    run.
    """
    if "zarr" not in sys.modules:  # then nothing was written
        return
    import asyncio  # 15 ms, and Zarr has imported it

    async def wait() -> None:
        here = asyncio.current_task()
        assert here is not None
        here.set_name("drain")
        # Two drains in two threads would wait for each other.
        others = [task for task in asyncio.all_tasks() if task.get_name() != "drain"]
        if others:
            await asyncio.wait(others, timeout=_DRAINED_S)

    zarr.core.sync.sync(wait())
