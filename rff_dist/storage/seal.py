"""Seals: sizes and checksums of the files of plain Zarr that others wrote, kept beside them.

Zarr's default codecs have no checksum, so that damaged bytes are read as wrong numbers. A seal is one JSON
document in the group's folder. Whoever opens the group then compares each file that is read with the seal.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.core.sync import sync
from zarr.storage import WrapperStore

from rff_dist.errors import IntegrityError, StorageError
from rff_dist.storage.documents import parse_document, sign_document
from rff_dist.storage.locations import Location, open_store, reaching, read_bytes, write_bytes

SEAL = "rff_dist-seal.json"
_KIND, _VERSION = "seal", 1
_AT_ONCE = 4  # files that are read at the same time

type Files = Mapping[str, tuple[int, int]]  # size and CRC-32 by the file's key


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a seal covers.

    `problems`: in words, what differs from the seal.
    """

    n_files: int
    n_bytes: int
    problems: tuple[str, ...] = ()


def write_seal(location: Location) -> Sealed:
    """Seal what is at `location`, and replace an older seal.

    Raises StorageError if it cannot be read or written.
    """
    store = open_store(location, read_only=False)
    found = _measure(store, location)
    write_bytes(store, SEAL, sign_document({"files": found}, kind=_KIND, version=_VERSION))
    return Sealed(len(found), sum(size for size, _ in found.values()))


def check_seal(location: Location) -> Sealed:
    """Compare all files with their seal; raises StorageError if there is no seal."""
    store = open_store(location, read_only=True)
    sealed = read_seal(store, location)
    if sealed is None:
        raise StorageError(f"{location} has no seal; expected {SEAL} in it. Write it by `rff-dist seal`")
    found = _measure(store, location)
    return Sealed(len(sealed), sum(size for size, _ in sealed.values()), tuple(_problems(sealed, found)))


def read_seal(store: Store, location: Location) -> Files | None:
    """Return the files that a seal lists; None if there is no seal.

    Raises IntegrityError if the seal is damaged.
    """
    content = read_bytes(store, SEAL, where=location)
    return None if content is None else _parse(content, str(location))


def sealed_store(store: Store, location: Location) -> Store:
    """Return a store that compares what is read with the seal; `store` itself if there is no seal."""
    files = read_seal(store, location)
    return store if files is None else SealedStore(store, files)


class SealedStore(WrapperStore[Store]):
    """A store whose files are compared with a seal when they are read."""

    # Else Zarr's fused pipeline reads synchronously, past `get` and its check.
    _supports_sync_io = False

    def __init__(self, store: Store, files: Files) -> None:
        super().__init__(store)
        self._files = files
        self._seen = set[str]()

    def _with_store(self, store: Store) -> SealedStore:
        return SealedStore(store, self._files)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return what is stored; raises IntegrityError if it differs from the seal."""
        if byte_range is not None and key in self._seen:
            return await self._store.get(key, prototype, byte_range)
        found = await self._store.get(key, prototype)  # whole, since the seal has no checksums of parts
        expected = self._files.get(key)
        if expected != (None if found is None else _sums(found.to_bytes())):
            raise IntegrityError(
                f"{key} is not as it was sealed. Restore it from a copy; if the change is meant, seal the "
                "data anew (`rff-dist seal`)"
            )
        if byte_range is None:
            return found
        self._seen.add(key)  # Many parts of one shard are read; the whole file is checked only once.
        return await self._store.get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names below a prefix, except the seal's, which is not part of the Zarr hierarchy."""
        async for name in self._store.list_dir(prefix):
            if name != SEAL:
                yield name


@lru_cache(maxsize=4)  # Each task opens its dataset again.
def _parse(content: bytes, where: str) -> Files:
    document = parse_document(content, kind=_KIND, version=_VERSION, where=f"{SEAL} of {where}")
    files = document.get("files")
    if not isinstance(files, dict) or not all(
        isinstance(one, list) and len(one) == 2 and all(type(n) is int for n in one) for one in files.values()
    ):
        raise IntegrityError(f"{SEAL} of {where} lists no files; seal the data again (`rff-dist seal`)")
    return {key: (size, crc) for key, (size, crc) in files.items()}


def _problems(sealed: Files, found: Files) -> Iterator[str]:
    for key in sorted({*sealed, *found}):
        if key not in found:
            yield f"{key} is missing"
        elif key not in sealed:
            yield f"{key} was added"
        elif sealed[key] != found[key]:
            yield f"{key} has other bytes"


def _measure(store: Store, location: Location) -> Files:
    async def one(key: str) -> tuple[str, tuple[int, int]] | None:
        content = await store.get(key, default_buffer_prototype())
        return None if content is None else (key, _sums(content.to_bytes()))

    async def every() -> Files:
        keys = [(key,) async for key in store.list() if key != SEAL]
        return dict(one for one in await concurrent_map(keys, one, _AT_ONCE) if one)

    with reaching(f"{location} cannot be read"):
        return sync(every())


def _sums(content: bytes) -> tuple[int, int]:
    return len(content), zlib.crc32(content)
