"""How many bytes compressed bytes decode to, without decoding them whole.

Stored chunks may come from anyone, and a small one may decode to more than memory
holds.
"""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any

_PIECE = 2**20
_ZSTD = b"\x28\xb5\x2f\xfd"  # begins a frame


def _streamed(open_stream: Callable[..., Any], content: bytes, limit: int) -> int:
    """Count the bytes that a stream decodes to, until they exceed the limit.

    They are decoded twice, since Zarr's codecs decode a chunk whole, whatever its
    array's chunks hold.
    """
    total = 0
    # what is no such stream, or cut off, the codec will refuse
    with (
        suppress(EOFError, OSError, zlib.error, lzma.LZMAError),
        open_stream(BytesIO(content)) as stream,
    ):
        while total <= limit and (piece := stream.read(_PIECE)):
            total += len(piece)
    return total


def _size_at(content: bytes, at: int) -> int:
    """Return the size in a header's four bytes at `at`; 0 if the header is cut off."""
    return (
        int.from_bytes(content[at : at + 4], "little") if len(content) >= at + 4 else 0
    )


def _zstd(content: bytes, limit: int) -> int:
    """Return the size in the frame's header (RFC 8878, Sec. 3.1.1.1); 0 without one."""
    # the longest header: 4 + 1 + 1 + 4 + 8 bytes
    if len(content) < 18 or content[:4] != _ZSTD:
        return 0
    descriptor = content[4]
    single = descriptor >> 5 & 1
    flag = descriptor >> 6
    at = 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
    n_bytes = (int(single), 2, 4, 8)[flag]
    # Sizes of two bytes are stored less 256 (ibid.).
    return int.from_bytes(content[at : at + n_bytes], "little") + (
        256 if n_bytes == 2 else 0
    )


#: By codec: a function of the bytes and of a limit, which returns the size, or any size
#: above the limit.
SIZES: dict[str, Callable[[bytes, int], int]] = {
    "gzip": partial(_streamed, gzip.open),
    "zlib": lambda content, limit: len(
        zlib.decompressobj().decompress(content, limit + 1)
    ),
    "bz2": partial(_streamed, bz2.open),
    "lzma": partial(_streamed, lzma.open),
    "blosc": lambda content, limit: _size_at(content, 4),
    "lz4": lambda content, limit: _size_at(content, 0),
    "zstd": _zstd,
}
