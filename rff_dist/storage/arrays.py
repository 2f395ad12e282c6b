"""Open and read one Zarr array: metadata are checked first, and errors name the rows that cannot be read."""

import gzip
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.codecs import Crc32cCodec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
from zarr.errors import ChunkNotFoundError
from zarr.storage import WrapperStore

from rff_dist.data import columns, decoding, memory
from rff_dist.errors import IntegrityError, InvalidParameterError, StorageError
from rff_dist.storage import documents, locations
from rff_dist.typing import AnyDType, Facts, Summary, frozen

type ZarrArray = zarr.Array[Any]

CHUNK_TARGET_BYTES = 16 * 2**20
# Limits of what metadata may claim, checked before memory is taken: Zarr opens 10^18 rows without a word.
MAX_ROWS = 2**40
MAX_CHUNK_BYTES = 4 * 2**30
MARK: Summary = {"rff_dist": "bound"}  # an attribute of arrays, see `groups.complete`
# By default Zarr leaves out chunks of the fill value, and then reads a lost chunk as fill values.
EVERY_CHUNK: Any = {"write_empty_chunks": True, "read_missing_chunks": False}
# The name of the second axis of arrays that have a row for each sample.
_SECOND_AXIS = {
    "X": "feature",
    **dict.fromkeys(("y", "predictions", "standard_deviations", "lower", "upper"), "target"),
    "probabilities": "class",
    "distances": "cluster",
}
# Codecs that check a checksum of every chunk when it is read.
_CHECKSUMS = ("crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3", "gzip", "zlib", "bz2", "lzma")
# Bytes of a value, by the kind of dtype: text may be as wide as a chunk.
_WIDEST = dict.fromkeys("biuf", 8) | {"T": 16, "U": MAX_CHUNK_BYTES}
# Codecs that decode to Python objects: "pickle" runs code, the others make arrays of dtype object.
_OBJECT_CODECS = {"pickle", "json2", "msgpack2", "vlen-utf8", "vlen-bytes", "vlen-array", "categorize"}


@frozen
class Header:
    """An array's stored metadata, read without opening the array.

    `dtype`: in native byte order.
    `chunks`: shape of a chunk, the smallest piece that can be decoded.
    `shards`: shape of a shard, a file that holds several chunks.
    `codecs`: names of all codecs and filters.
    `text`: the metadata that decide how bytes become numbers, as canonical JSON.
    `digest`: digest of all metadata.
    `marked`: whether the group must have a manifest with this digest; see `groups.complete`.
    """

    shape: tuple[int, ...]
    dtype: AnyDType
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    codecs: tuple[str, ...]
    zarr_format: Literal[2, 3]
    text: str
    digest: str = ""
    marked: bool = False

    @property
    def stored_rows(self) -> int:
        """Rows of one stored object: a shard, else a chunk."""
        return max(1, (self.shards or self.chunks)[0])

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunks) * self.dtype.itemsize

    @property
    def checksum(self) -> str | None:
        """The codec that notices damaged bytes; None: damage would be read as wrong numbers."""
        # A shard's index always has a checksum, but that does not cover the chunks.
        for name, settings in _walk_codecs(_codecs_of(json.loads(self.text)), of_index=False):
            plain: str = name.removeprefix("numcodecs.")
            if plain in _CHECKSUMS or (plain == "zstd" and settings.get("checksum")):
                return plain
        return None


def read_header(store: Store, path: str, *, label: str, text: bool = False) -> Header | None:
    """Read and check an array's metadata; return None if there is no array.

    `path`: the array's path in the store.
    `label`: the array's name in errors, such as "array 'X' of data.zarr".
    `text`: whether the array may hold text, of fixed or variable width.
    Raises StorageError if the metadata cannot be read, or describe what this package does not read: other
      values than numbers, chunks without rows, more than 2^40 rows, chunks above 4 GiB, codecs that run code.
    """
    prefix = f"{path}/" if path else ""
    # Format 3 first, which this package writes: each name is a request to an object store.
    content = locations.read_bytes(store, prefix + "zarr.json", where=label)
    content = locations.read_bytes(store, prefix + ".zarray", where=label) if content is None else content
    if content is None:
        return None
    try:
        metadata = documents.load_json(content)
        if metadata.get("node_type") == "group":
            return None
        header = _parse_header(metadata, text=text)
    except StorageError as error:
        raise StorageError(f"{label}: {error}") from error
    except Exception as error:  # Zarr has several for what it does not understand
        raise StorageError(
            f"{label} has metadata that cannot be read ({locations.explain(error)}); expected a Zarr array "
            "of format 2 or 3. Write the dataset again"
        ) from error
    _check_header(header, label)
    return header


def open_array(
    store: Store, path: str, header: Header, *, label: str, missing_chunks: str = "error"
) -> ZarrArray:
    """Open an array for reading.

    `header`: from `read_header`; knowing the format saves requests for the other format's metadata.
    `missing_chunks`: as in `require_chunks`.
    """
    store = bounded_store(store, header)
    try:
        array = zarr.open_array(store, path=path, mode="r", zarr_format=header.zarr_format)
    except IntegrityError:
        raise
    except Exception as error:
        raise StorageError(f"{label} cannot be opened: {locations.explain(error)}") from error
    return require_chunks(array, missing_chunks)


def require_chunks(array: ZarrArray, missing_chunks: str = "error") -> ZarrArray:
    """Return the array with Zarr's switch for missing chunks set.

    `missing_chunks`: {"error", "fill"}: whether to refuse a chunk that is not in the store, or to read it as
      the fill value.
    """
    if missing_chunks not in ("error", "fill"):
        raise InvalidParameterError(f"`missing_chunks`={missing_chunks!r}; expected 'error' or 'fill'")
    return array.with_config({"read_missing_chunks": missing_chunks == "fill"})


def read_rows(array: ZarrArray, start: int, stop: int, *, label: str) -> np.ndarray:
    """Equivalent to `array[start:stop]`, in native byte order; errors name the chunk and its rows.

    Raises IntegrityError if a chunk's bytes are damaged; StorageError if the array has no such rows, a chunk
      is missing or the store does not answer.
    """
    if not 0 <= start <= stop <= array.shape[0]:
        raise StorageError(
            f"rows {start}:{stop} of {label}, which has {array.shape[0]:_} rows; cut the blocks from this "
            "dataset"
        )
    # The numbers are those of stored objects: a shard fails as a whole.
    rows = stored_rows(array)
    with _naming_chunks(array, range(start // rows, -(-stop // rows)), label):
        return memory.native(np.asarray(array[start:stop]))


def gather_rows(array: ZarrArray, indices: np.ndarray, *, label: str) -> np.ndarray:
    """Equivalent to `array.oindex[indices]`, in native byte order, each stored chunk read once.

    `indices`: sorted, without repeats.
    Raises as `read_rows`.
    """
    with _naming_chunks(array, np.unique(indices // stored_rows(array)).tolist(), label):
        return memory.native(np.asarray(array.oindex[indices]))


@contextmanager
def naming_cells(region: tuple[slice, ...], label: str) -> Iterator[None]:
    """Turn a failed read of `array[region]` into an error as of `read_rows`, which names the cells."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        spans = ", ".join(f"{part.start}:{part.stop}" for part in region)
        raise _explain(error, f"{label}, cells {spans}") from error


def stored_rows(array: ZarrArray) -> int:
    """Rows of one stored object of `array`: a shard, else a chunk."""
    return int(max(1, (array.shards or array.chunks)[0]))


def create_array(
    group: zarr.Group,
    name: str,
    *,
    shape: tuple[int, ...],
    dtype: AnyDType,
    chunk_rows: int,
    marked: bool = False,
) -> ZarrArray:
    """Create an array as this package writes it: checksummed, every chunk stored, unwritten floats NaN.

    `dtype`: text of fixed width is stored with variable width.
    `chunk_rows`: rows of a chunk; chunks are cut along the rows only.
    `marked`: whether it is an array of a dataset: it has a row for each sample, and the group's manifest will
      bind it, see `groups.complete`.

    Chunks are not compressed. Random float32 was written at 2.1 GB/s and read at 3.8; with Blosc's lz4 at 0.2
    and 1.5 GB/s, for 6 % fewer bytes.
    """
    dtype = columns.TEXT if columns.is_text(dtype) else dtype
    axes = ["sample", _SECOND_AXIS.get(name, f"{name}_column")][: len(shape)]  # xarray needs names
    return group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=(chunk_rows, *(max(1, length) for length in shape[1:])),
        compressors=[Crc32cCodec()],
        attributes=MARK if marked else None,
        dimension_names=axes if marked else None,
        fill_value=np.nan if dtype.kind in "fc" else "" if dtype.kind == "T" else 0,
        config=EVERY_CHUNK,
    )


def sample_digest(array: ZarrArray, header: Header, *, label: str) -> str:
    """Return a digest of an array's metadata and of up to 8 chunks, the first and the last among them."""
    digest = hashlib.sha256(header.text.encode())
    n_rows, rows = header.shape[0], max(1, header.chunks[0])
    # Evenly spread with both ends, so that appended, cut and rewritten rows show.
    starts = np.unique(np.linspace(0, max(0, math.ceil(n_rows / rows) - 1), 8).astype(np.int64)) * rows
    for start in starts.tolist() if n_rows else []:
        values = read_rows(array, start, min(start + rows, n_rows), label=label)
        digest.update(memory.as_bytes(values))
    return digest.hexdigest()


def _parse_header(document: Facts, *, text: bool) -> Header:
    names = tuple(name for name, _ in _walk_codecs(_codecs_of(document)))
    is_text = document.get("data_type", document.get("dtype")) in ("string", "|O")
    refused = _OBJECT_CODECS - ({"vlen-utf8"} if is_text else set())
    unsafe = sorted(name for name in names if name.removeprefix("numcodecs.") in refused)
    if unsafe:  # before Zarr makes them
        raise StorageError(
            f"codec {', '.join(unsafe)}, which decodes to Python objects; expected numbers. Write it again "
            "as integers or floats"
        )
    stored: ArrayV2Metadata | ArrayV3Metadata
    if document["zarr_format"] == 2:
        stored = ArrayV2Metadata.from_dict(dict(document))
        kept: tuple[str, ...] = ("dtype", "compressor", "filters", "order", "fill_value")
    elif document["zarr_format"] == 3:
        stored = ArrayV3Metadata.from_dict(dict(document))
        kept = ("data_type", "codecs", "fill_value")
    else:
        raise StorageError(f"Zarr format {document['zarr_format']!r}; expected 2 or 3")
    dtype = stored.dtype.to_native_dtype()
    if dtype.kind not in ("biufUT" if text else "biuf") or dtype.itemsize > _WIDEST[dtype.kind]:
        raise StorageError(
            f"dtype {str(dtype)[:100]}; expected integers or floats of at most 64 bits. Convert it "
            "first: a time to a number of seconds, a category to 0/1 columns or codes"
        )
    shapes = {"shape": stored.shape, "chunks": stored.chunks, "shards": stored.shards}
    facts = json.dumps({**shapes, **{key: document.get(key) for key in kept}}, sort_keys=True)
    return Header(
        shape=stored.shape,
        dtype=dtype if dtype.kind == "T" else dtype.newbyteorder("="),
        chunks=stored.chunks,
        shards=stored.shards,
        codecs=names,
        zarr_format=stored.zarr_format,
        text=facts,
        digest=hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest(),
        marked=MARK.items() <= stored.attributes.items(),
    )


def _check_header(header: Header, label: str) -> None:
    if header.shape and header.shape[0] > MAX_ROWS:
        raise StorageError(
            f"{label} claims {header.shape[0]:_} rows; expected at most 2^40 = {MAX_ROWS:_}. "
            "Its metadata are damaged or hostile"
        )
    row_bytes = math.prod(header.shape[1:]) * header.dtype.itemsize
    # A block is whole stored objects, so memory holds at least one of them.
    largest = max(header.chunk_bytes, header.stored_rows * row_bytes)
    if largest > MAX_CHUNK_BYTES:
        raise StorageError(
            f"{label} has pieces of {largest / 2**30:.1f} GiB (shape {header.shape}, chunks {header.chunks}, "
            f"shards {header.shards}, {header.dtype}); expected at most {MAX_CHUNK_BYTES // 2**30} GiB. "
            "Rechunk it along the rows"
        )


def _codecs_of(document: Facts) -> list[Any]:
    """Return the codecs of stored metadata, in the words of format 3."""
    if "codecs" in document:
        return list(document["codecs"])
    stored = [*(document.get("filters") or []), document.get("compressor")]
    return [{"name": codec["id"], "configuration": codec} for codec in stored if codec]


def _walk_codecs(codecs: Sequence[Any], *, of_index: bool = True) -> Iterator[tuple[str, Facts]]:
    """Yield names and settings of codecs, nested ones included.

    `of_index`: whether to include the codecs of a shard's index.
    """
    for codec in codecs:
        if isinstance(codec, str):
            yield codec, {}
        else:
            settings = codec.get("configuration") or {}
            yield codec["name"], settings
            yield from _walk_codecs(settings.get("codecs", ()), of_index=of_index)
            if of_index:
                yield from _walk_codecs(settings.get("index_codecs", ()))


@contextmanager
def _naming_chunks(array: ZarrArray, numbers: Iterable[int], label: str) -> Iterator[None]:
    """Turn a failed read into an error that names the chunk, found by reading chunks `numbers` one by one."""
    try:
        yield
    except MemoryError:  # which says nothing about the stored bytes
        raise
    except Exception as error:
        rows = stored_rows(array)
        # The failed read does not name its chunk. Reading them one by one costs at most that read again.
        for i in numbers:
            start, stop = i * rows, min((i + 1) * rows, array.shape[0])
            try:
                array[start:stop]
            except Exception as cause:
                raise _explain(cause, f"{label}, rows {start}:{stop} (chunk {i})") from error
        raise _explain(error, label) from error


def _explain(error: Exception, where: str) -> StorageError:
    if isinstance(error, ChunkNotFoundError):
        return StorageError(
            f"{where}: the chunk is missing from the store, and would be read as the fill value. Restore it; "
            "or, if the writer left out chunks that hold only the fill value (Zarr's default, "
            'write_empty_chunks=False), give missing_chunks="fill"'
        )
    # Both of these are OSErrors, and yet mean damaged bytes.
    if locations.is_store_error(error) and not isinstance(error, gzip.BadGzipFile | IntegrityError):
        return StorageError(f"{where} cannot be read: {locations.explain(error)}")
    return IntegrityError(
        f"{where}: the stored bytes are damaged ({locations.explain(error)}). Restore the dataset from a "
        "copy or write it again"
    )


# -- bounded ---------------------------------------------------------------------------------------


_SLACK = 2**20
_SAME_SIZE = {"bytes", "transpose"}  # codecs of format 3 that keep the size
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

    def _with_store(self, store: Store) -> Self:
        return type(self)(store, self._check)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return what is stored, if the check passes."""
        content = await self._store.get(key, prototype, byte_range)
        if content is not None:
            self._check(key, content, byte_range is not None)
        return content


def bounded_store(store: Store, header: Header) -> Store:
    """Return a store that refuses chunks that decode to much more than a chunk of their array.

    Returns `store` itself where stored bytes are not what one compressor made of a chunk of numbers: those of
    shards, with further codecs, and of text, whose length is not known.
    """
    codecs = [name.removeprefix("numcodecs.") for name in header.codecs if name not in _SAME_SIZE]
    if len(codecs) != 1 or codecs[0] not in decoding.SIZES or header.dtype.kind == "T":
        return store
    return CheckedStore(
        store, partial(_check_size, decoding.SIZES[codecs[0]], 2 * header.chunk_bytes + _SLACK)
    )


def _check_size(
    size_of: Callable[[bytes, int], int], limit: int, key: str, content: Buffer, is_part: bool
) -> None:
    if key.rpartition("/")[2] not in _METADATA and size_of(content.to_bytes(), limit) > limit:
        raise IntegrityError(
            f"{key} has {len(content):_} bytes and would be decoded to more than {limit:_}, twice the size "
            "of a chunk of its array"
        )
