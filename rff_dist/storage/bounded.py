"""Stores that check chunks before they are decoded, since a small file may decode to a huge array."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from rff_dist.errors import IntegrityError

_MOST_EXPANSION = 1032  # Deflate makes at most so many bytes of one.
_SLACK = 2**20  # Filters may change the size of what is compressed a little.
_PIECE = 2**20
_METADATA = {"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"}


class CheckedStore(WrapperStore[Store]):
    """A store that checks all that is read.

    `check`: called with the key, the bytes, and whether these are only a part; raises IntegrityError.
    """

    # Else Zarr's fused pipeline reads synchronously, past `get` and its check.
    _supports_sync_io = False

    def __init__(self, store: Store, check: Callable[[str, Buffer, bool], None]) -> None:
        super().__init__(store)
        self._check = check

    def _with_store(self, store: Store) -> CheckedStore:
        return CheckedStore(store, self._check)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return what is stored, if the check passes."""
        found = await self._store.get(key, prototype, byte_range)
        if found is not None:
            self._check(key, found, byte_range is not None)
        return found


def bounded_store(store: Store, codecs: Sequence[str], n_bytes: int) -> Store:
    """Return a store that refuses chunks that decode to much more than a chunk of their array.

    Returns `store` itself if no codec can make many bytes of few.

    `codecs`: the array's codecs.
    `n_bytes`: bytes of a decoded chunk.
    """
    names = {codec.removeprefix("numcodecs.") for codec in codecs} & _SIZES.keys()
    return CheckedStore(store, partial(_check_size, sorted(names), 2 * n_bytes + _SLACK)) if names else store


def _check_size(codecs: Sequence[str], limit: int, key: str, found: Buffer, is_part: bool) -> None:
    if key.rpartition("/")[2] in _METADATA:
        return
    if any(_SIZES[codec](found.to_bytes(), limit) > limit for codec in codecs):
        raise IntegrityError(
            f"{key} has {len(found):_} bytes and would be decoded to more than {limit:_}, twice the size "
            "of a chunk of its array"
        )


def _inflated(content: bytes, limit: int) -> int:
    if len(content) * _MOST_EXPANSION <= limit:
        return 0
    # Decoded twice, since Zarr's gzip and zlib codecs decode a chunk whole, whatever its array's chunks hold.
    return _streamed(lambda: zlib.decompressobj(wbits=47), content, limit)  # 47: gzip or zlib, by its header


def _streamed(begin: Callable[[], Any], content: bytes, limit: int) -> int:
    """Count the bytes that a stream decodes to, piece by piece, until they exceed the limit."""
    total, left = 0, content
    while left and total <= limit:
        decoder = begin()
        piece = left
        while not decoder.eof and total <= limit:
            made = len(decoder.decompress(piece, _PIECE))
            piece = getattr(decoder, "unconsumed_tail", b"")
            total += made
            if not made and not piece:
                return total  # The stream is cut off; the codec will say so.
        left = decoder.unused_data
    return total


def _told(content: bytes, at: int) -> int:
    """Return the size in a header's four bytes at `at`; 0 if the header is cut off."""
    return int.from_bytes(content[at : at + 4], "little") if len(content) >= at + 4 else 0


def _zstd(content: bytes, limit: int) -> int:
    """Return the size in the frame's header (RFC 8878, Sec. 3.1.1.1); 0 if it has none."""
    if len(content) < 18:  # the longest header: 4 + 1 + 1 + 4 + 8 bytes
        return 0
    descriptor = content[4]
    single, flag = descriptor >> 5 & 1, descriptor >> 6
    at = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    n_bytes = (int(single), 2, 4, 8)[flag]
    # Sizes of two bytes are stored less 256 (ibid.).
    return int.from_bytes(content[at : at + n_bytes], "little") + (256 if n_bytes == 2 else 0)


_SIZES: dict[str, Callable[[bytes, int], int]] = {
    "gzip": _inflated,
    "zlib": _inflated,
    "bz2": lambda content, limit: _streamed(bz2.BZ2Decompressor, content, limit),
    "lzma": lambda content, limit: _streamed(lzma.LZMADecompressor, content, limit),
    "blosc": lambda content, limit: _told(content, 4),
    "lz4": lambda content, limit: _told(content, 0),
    "zstd": _zstd,
}
