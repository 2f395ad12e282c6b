"""A Zarr store that compares the checksum of each chunk that is read with the manifest.

The chunk's own crc32c reveals damaged bytes, but not that two chunks were swapped.
"""

from collections.abc import Mapping
from typing import Self

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from rff_dist.errors import IntegrityError
from rff_dist.storage.manifests import SUM_BYTES, WrongChunkError

_FEW_BITS = 4  # A checksum that differs in so few bits is damaged, not another chunk's.


class CheckedStore(WrapperStore[Store]):
    """A store that compares the checksum in each chunk with the one in the manifest.

    No checksum is computed here: Zarr does that, and refuses damaged chunks. `sums_of`
    has the checksums of each array, by the key's part before the chunk's number, such
    as "X/c/".
    """

    # Otherwise Zarr reads synchronously, without `get` and its check.
    _supports_sync_io = False

    def __init__(self, store: Store, sums_of: Mapping[str, NDArray[np.uint32]]) -> None:
        super().__init__(store)
        self._sums_of = sums_of

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, self._sums_of)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return the bytes of a key; raises IntegrityError if they are not the chunk in
        the manifest.
        """
        content = await self._store.get(key, prototype, byte_range)
        # Only a whole chunk is sure to have its checksum, which is its last 4 bytes.
        if content is not None and byte_range is None:
            self._check(key, content)
        return content

    def _check(self, key: str, chunk: Buffer) -> None:
        array, separator, position = key.partition("/c/")
        sums = self._sums_of.get(array + separator)
        if sums is None:
            return
        # a chunk has whole rows: the key of the fourth one of X is "X/c/3/0"
        number = int(position.partition("/")[0])
        # beyond the rows that the manifest counts
        if number >= len(sums):
            return
        stored = chunk[-SUM_BYTES:].to_bytes()
        if stored == sums[number].tobytes():
            return
        n_bits = (int.from_bytes(stored, "little") ^ int(sums[number])).bit_count()
        # For another chunk readers look whether a program has just written it, and then
        # raise ConflictError; damage stays damage.
        is_damaged = n_bits <= _FEW_BITS or len(chunk) < SUM_BYTES
        kind = IntegrityError if is_damaged else WrongChunkError
        raise kind(f"{key} is not the chunk that was written there")
