"""Open and read one Zarr array that may be damaged or hostile.

A store and a path go in; NumPy rows come out. Zarr alone would believe metadata that
claim more memory than there is, run code for some codecs, and not say which rows could
not be read. A *stored object* is a file or an object of the store: a shard, which
contains several chunks, or else a chunk.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rff_dist.data.array_checks import native
from rff_dist.data.columns import TEXT, is_text
from rff_dist.data.digests import as_bytes
from rff_dist.errors import IntegrityError, InvalidParameterError, StorageError
from rff_dist.storage import locations
from rff_dist.storage.locations import explain, json_digest, load_json
from rff_dist.storage.zarr_access import read_key, zarr, zarr_codecs
from rff_dist.typing import AnyArray, AnyDType, Facts, Summary, frozen

if TYPE_CHECKING:
    from zarr.abc.store import Store
    from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

type ZarrArray = zarr.Array[Any]

CHUNK_TARGET_BYTES = 16 * 2**20
# Limits of what metadata may claim, checked before memory is taken: Zarr opens an array
# of 10^18 rows without an error.
MAX_ROWS = 2**40
MAX_CHUNK_BYTES = 4 * 2**30
# An attribute of arrays that this package writes: the group's manifest must have an
# entry for them, see `Publication.complete`.
MARK: Summary = {"rff_dist": "bound"}
# By default Zarr does not store chunks that have only the fill value, and so reads a
# lost chunk as fill values.
EVERY_CHUNK: Any = {"write_empty_chunks": True, "read_missing_chunks": False}
# The name of the second axis of arrays that have a row for each sample.
_SECOND_AXIS = {
    "X": "feature",
    "y": "target",
    "predictions": "target",
    "standard_deviations": "target",
    "lower": "target",
    "upper": "target",
    "probabilities": "class",
    "distances": "cluster",
}
# Codecs that check a checksum of every chunk when it is read.
_CHECKSUMS = (
    *("crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3"),
    *("gzip", "zlib", "bz2", "lzma"),
)
# The most bytes of a value, by the kind of dtype: text may be as wide as a chunk.
_WIDEST = {"b": 8, "i": 8, "u": 8, "f": 8, "T": 16, "U": MAX_CHUNK_BYTES}
# "pickle" runs code when it decodes.
_UNSAFE_CODECS = {"pickle"}
# These make arrays of Python objects.
_OBJECT_CODECS = {
    *("json2", "msgpack2", "vlen-utf8", "vlen-bytes", "vlen-array", "categorize")
}


@frozen
class Header:
    """An array's stored metadata, read without opening the array."""

    shape: tuple[int, ...]
    dtype: AnyDType  # in native byte order
    chunks: tuple[int, ...]  # shape of the smallest piece that can be decoded
    shards: tuple[int, ...] | None  # shape of a shard; None without shards
    codecs: tuple[str, ...]  # names of all codecs and filters
    zarr_format: Literal[2, 3]
    #: The metadata that decide how bytes become numbers, as canonical JSON.
    text: str
    digest: str = ""  # of all metadata
    #: Whether the group's manifest must name this digest; see `Publication.complete`.
    is_marked: bool = False

    @property
    def stored_rows(self) -> int:
        """Rows of one stored object: a shard, else a chunk."""
        return max(1, (self.shards or self.chunks)[0])

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunks) * self.dtype.itemsize

    @property
    def checksum(self) -> str | None:
        """The codec that notices damage; without one, wrong numbers are read."""
        codecs = _codecs_of(json.loads(self.text))
        # A shard's index always has a checksum, but that does not cover the chunks.
        for name, settings in _walk_codecs(codecs, with_index=False):
            plain = name.removeprefix("numcodecs.")
            if plain in _CHECKSUMS or (plain == "zstd" and settings.get("checksum")):
                return plain
        return None


def read_header(
    store: Store, path: str, *, label: str, allows_text: bool = False
) -> Header | None:
    """Read and check an array's metadata; return None if there is no array.

    Errors call the array `label`. Raises StorageError for metadata that cannot be read,
    and for what this package does not read: other values than numbers (and text, if
    allowed), more than 2^40 rows, chunks above 4 GiB, codecs that run code.
    """
    prefix = f"{path}/" if path else ""
    # Format 3 first, which this package writes: each name is a request to an object
    # store.
    for name in ("zarr.json", ".zarray"):
        content = read_key(store, prefix + name, where=label)
        if content is not None:
            break
    else:
        return None
    try:
        metadata = load_json(content, label)
        if metadata.get("node_type") == "group":
            return None
        header = _parse_header(metadata, allows_text=allows_text)
    except IntegrityError:
        raise
    except StorageError as error:
        raise StorageError(f"{label}: {error}") from error
    except Exception as error:  # Zarr raises several types
        raise StorageError(
            f"{label} has metadata that cannot be read ({explain(error)});"
            " expected a Zarr array of format 2 or 3. Write the dataset again"
        ) from error
    _check_sizes(header, label)
    return header


def _parse_header(document: Facts, *, allows_text: bool) -> Header:
    refused = _UNSAFE_CODECS | _OBJECT_CODECS
    if document.get("data_type", document.get("dtype")) in ("string", "|O"):
        refused -= {"vlen-utf8"}
    codecs = tuple(name for name, _ in _walk_codecs(_codecs_of(document)))
    unsafe = sorted(
        name for name in codecs if name.removeprefix("numcodecs.") in refused
    )
    if unsafe:  # before Zarr makes them
        raise StorageError(
            f"codec {', '.join(unsafe)}, which decodes to Python objects; expected"
            " numbers. Write it again as integers or floats"
        )
    stored: ArrayV2Metadata | ArrayV3Metadata
    if document["zarr_format"] == 2:
        stored = zarr.core.metadata.ArrayV2Metadata.from_dict({**document})
        deciding = ["dtype", "compressor", "filters", "order", "fill_value"]
    elif document["zarr_format"] == 3:
        stored = zarr.core.metadata.ArrayV3Metadata.from_dict({**document})
        deciding = ["data_type", "codecs", "fill_value"]
    else:
        raise StorageError(f"Zarr format {document['zarr_format']!r}; expected 2 or 3")
    dtype = stored.dtype.to_native_dtype()
    is_readable = dtype.kind in ("biufUT" if allows_text else "biuf")
    if not is_readable or dtype.itemsize > _WIDEST[dtype.kind]:
        raise StorageError(
            f"dtype {str(dtype)[:100]}; expected integers or floats of at most 64 bits."
            " Convert it first: a time to a number of seconds, a category to 0/1"
            " columns or codes"
        )
    facts = {
        "shape": stored.shape,
        "chunks": stored.chunks,
        "shards": stored.shards,
        **{name: document.get(name) for name in deciding},
    }
    return Header(
        shape=stored.shape,
        dtype=dtype if dtype.kind == "T" else dtype.newbyteorder("="),
        chunks=stored.chunks,
        shards=stored.shards,
        codecs=codecs,
        zarr_format=stored.zarr_format,
        text=json.dumps(facts, sort_keys=True),
        digest=json_digest(document),
        is_marked=MARK.items() <= stored.attributes.items(),
    )


def _check_sizes(header: Header, label: str) -> None:
    if header.shape and header.shape[0] > MAX_ROWS:
        raise StorageError(
            f"{label} claims {header.shape[0]:_} rows; expected at most 2^40 ="
            f" {MAX_ROWS:_}. Its metadata are damaged or hostile"
        )
    row_bytes = math.prod(header.shape[1:]) * header.dtype.itemsize
    # A block is whole stored objects, so memory contains at least one of them.
    largest = max(header.chunk_bytes, header.stored_rows * row_bytes)
    if largest > MAX_CHUNK_BYTES:
        raise StorageError(
            f"{label} has pieces of {largest / 2**30:.1f} GiB (shape {header.shape},"
            f" chunks {header.chunks}, shards {header.shards}, {header.dtype});"
            f" expected at most {MAX_CHUNK_BYTES // 2**30} GiB. Rechunk it along the"
            " rows"
        )


def _codecs_of(document: Facts) -> list[Any]:
    """Return the codecs in stored metadata, as format 3 describes them."""
    if "codecs" in document:
        return list(document["codecs"])
    stored = [*(document.get("filters") or []), document.get("compressor")]
    return [{"name": codec["id"], "configuration": codec} for codec in stored if codec]


def _walk_codecs(
    codecs: Sequence[Any], *, with_index: bool = True
) -> Iterator[tuple[str, Facts]]:
    """Yield names and settings of codecs, also of nested ones; with `with_index` also
    of those that encode a shard's index.
    """
    for codec in codecs:
        name = codec if isinstance(codec, str) else codec["name"]
        settings: Facts = {}
        if not isinstance(codec, str):
            settings = codec.get("configuration") or {}
        yield name, settings
        yield from _walk_codecs(settings.get("codecs", ()), with_index=with_index)
        if with_index:
            yield from _walk_codecs(settings.get("index_codecs", ()))


def open_array(
    store: Store,
    path: str,
    header: Header,
    *,
    label: str,
    missing_chunks: str = "error",
) -> ZarrArray:
    """Open an array for reading; the header saves requests for other metadata."""
    try:
        array = zarr.open_array(
            store,
            path=path,
            mode="r",
            zarr_format=header.zarr_format,
        )
    except IntegrityError:
        raise
    except Exception as error:
        raise StorageError(f"{label} cannot be opened: {explain(error)}") from error
    return require_chunks(array, missing_chunks)


def require_chunks(array: ZarrArray, missing_chunks: str = "error") -> ZarrArray:
    """Return the array such that it refuses a chunk that is not in the store ("error"),
    or reads it as the fill value ("fill").
    """
    if missing_chunks not in ("error", "fill"):
        raise InvalidParameterError(
            f"`missing_chunks`={missing_chunks!r}; expected 'error' or 'fill'"
        )
    return array.with_config({"read_missing_chunks": missing_chunks == "fill"})


def as_dask(array: Any) -> Any:
    """Return an array that a user opened as a Dask array of whole rows.

    Raises StorageError for another object of Zarr.
    """
    import dask.array

    if not isinstance(array, zarr.Array):
        raise StorageError(
            f"X is a {type(array).__name__} of Zarr; expected its path or URL"
        )
    if isinstance(array.store, zarr.storage.LocalStore):
        # A relative path would mean other data to processes in another folder.
        place = os.path.abspath(array.store.root / array.path)
        array = zarr.open_array(place, mode="r")
    chunks = (stored_rows(array), *array.shape[1:])
    from_array: Any = dask.array.from_array
    return from_array(require_chunks(array), chunks)


def stored_rows(array: ZarrArray) -> int:
    """Return the rows of one stored object of `array`: a shard, else a chunk."""
    return int(max(1, (array.shards or array.chunks)[0]))


def read_rows(array: ZarrArray, start: int, stop: int, *, label: str) -> AnyArray:
    """Equivalent to `array[start:stop]`, in native byte order.

    Errors name the chunk and its rows: IntegrityError if bytes are damaged;
    StorageError if a chunk is missing, the store does not answer, or there are no such
    rows.
    """
    if not 0 <= start <= stop <= array.shape[0]:
        raise StorageError(
            f"rows {start}:{stop} of {label}, which has {array.shape[0]:_} rows; cut"
            " the blocks from this dataset"
        )
    # Errors number stored objects, since a shard fails as a whole.
    rows = stored_rows(array)
    with _naming_chunks(array, range(start // rows, -(-stop // rows)), label):
        return native(np.asarray(array[start:stop]))


def gather_rows(array: ZarrArray, indices: AnyArray, *, label: str) -> AnyArray:
    """Equivalent to `array.oindex[indices]`, with the errors of `read_rows`.

    Indices ascend without repeats, so each stored object is read once.
    """
    numbers = np.unique(indices // stored_rows(array)).tolist()
    with _naming_chunks(array, numbers, label):
        return native(np.asarray(array.oindex[indices]))


def iterate_rows(
    array: ZarrArray, n_samples: int, *, label: str
) -> Iterator[tuple[int, AnyArray]]:
    """Yield the number of the first row, and the rows, of each stored object."""
    rows = stored_rows(array)
    for start in range(0, n_samples, rows):
        stop = min(start + rows, n_samples)
        yield start, read_rows(array, start, stop, label=label)


def sample_digest(array: ZarrArray, header: Header, *, label: str) -> str:
    """Return a digest of metadata and of up to 8 chunks, the first and the last among
    them.
    """
    digest = hashlib.sha256(header.text.encode())
    n_rows = header.shape[0]
    rows = max(1, header.chunks[0])
    # Evenly spread with both ends, to notice appended, removed and rewritten rows.
    last = max(0, math.ceil(n_rows / rows) - 1)
    numbers = np.unique(np.linspace(0, last, 8).astype(np.int64))
    for start in (numbers * rows).tolist() if n_rows else []:
        values = read_rows(array, start, min(start + rows, n_rows), label=label)
        digest.update(as_bytes(values))
    return digest.hexdigest()


def create_array(
    group: zarr.Group,
    name: str,
    *,
    shape: tuple[int, ...],
    dtype: AnyDType,
    chunk_rows: int,
    is_by_row: bool = True,
) -> ZarrArray:
    """Create an array as this package writes it: cut along the rows only, checksummed,
    every chunk stored, unwritten floats NaN, text of variable width.

    It is marked: its group's manifest will list it, see `Publication.complete`. Its
    axes have names if it has a row for each sample. Chunks are not compressed: random
    float32 was written at 2.1 GB/s and read at 3.8; with Blosc's lz4 at 0.2 and 1.5
    GB/s, for 6 % fewer bytes.
    """
    if is_text(dtype):
        dtype = TEXT
    fill_values = {"f": np.nan, "c": np.nan, "T": ""}
    # xarray opens only arrays whose axes have names
    axes = ["sample", _SECOND_AXIS.get(name, f"{name}_column")][: len(shape)]
    return group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=(chunk_rows, *(max(1, length) for length in shape[1:])),
        compressors=[zarr_codecs.Crc32cCodec()],
        attributes=MARK,
        dimension_names=axes if is_by_row else None,
        fill_value=fill_values.get(dtype.kind, 0),
        config=EVERY_CHUNK,
    )


# -- errors that name what could not be read


@contextmanager
def naming_cells(region: tuple[slice, ...], label: str) -> Iterator[None]:
    """Turn a failed read of a region into an error that names its cells."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        spans = ", ".join(f"{part.start}:{part.stop}" for part in region)
        raise _reading_error(error, f"{label}, cells {spans}") from error


@contextmanager
def _naming_chunks(
    array: ZarrArray, numbers: Iterable[int], label: str
) -> Iterator[None]:
    """Turn a failed read of some chunks into an error that names one."""
    try:
        yield
    except MemoryError:  # the stored bytes may be right
        raise
    except Exception as error:
        rows = stored_rows(array)
        # The failed read does not name its chunk. Reading the chunks one by one costs
        # at most the same read again.
        for i in numbers:
            start = i * rows
            stop = min(start + rows, array.shape[0])
            try:
                array[start:stop]
            except Exception as cause:
                where = f"{label}, rows {start}:{stop} (chunk {i})"
                raise _reading_error(cause, where) from error
        raise _reading_error(error, label) from error


def _reading_error(error: Exception, where: str) -> StorageError:
    if isinstance(error, zarr.errors.ChunkNotFoundError):
        return StorageError(
            f"{where}: the chunk is missing from the store, and would be read as the"
            " fill value. Restore it; or, if the writer left out chunks that are all of"
            " the fill value (Zarr's default, write_empty_chunks=False), give"
            ' missing_chunks="fill"'
        )
    # Both types are OSErrors, and yet mean damaged bytes.
    is_damage = isinstance(error, gzip.BadGzipFile | IntegrityError)
    if locations.is_store_error(error) and not is_damage:
        return StorageError(f"{where} cannot be read: {explain(error)}")
    return IntegrityError(
        f"{where}: the stored bytes are damaged ({explain(error)}). Restore"
        " the dataset from a copy or write it again"
    )
