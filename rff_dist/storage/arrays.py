"""Open and read one Zarr array that may be damaged or hostile.

A store and a path go in; NumPy rows come out. Zarr alone would believe metadata that
claim more memory than there is, run code for some codecs, and not say which rows could
not be read. A *stored object* is a file or an object of the store: a shard, which
contains several chunks, or else a chunk.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from rff_dist.data.array_checks import native
from rff_dist.data.columns import TEXT, is_text
from rff_dist.data.digests import as_bytes
from rff_dist.errors import IntegrityError, StorageError
from rff_dist.storage import locations
from rff_dist.storage.locations import explain
from rff_dist.storage.manifests import MARK, Header
from rff_dist.storage.zarr_access import codecs, zarr
from rff_dist.typing import AnyArray, AnyDType

if TYPE_CHECKING:
    pass

type ZarrArray = zarr.Array[Any]

CHUNK_TARGET_BYTES = 16 * 2**20
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


def require_chunks(array: ZarrArray, missing_chunks: str = "error") -> ZarrArray:
    """Return the array such that it refuses a chunk that is not in the store ("error"),
    or reads it as the fill value ("fill").
    """
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
        compressors=[codecs.Crc32cCodec()],
        attributes={**MARK},
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
            " fill value. Restore it, or save a model again; or, if the writer of a"
            " dataset left out chunks that are all of the fill value (Zarr's default,"
            ' write_empty_chunks=False), give missing_chunks="fill"'
        )
    # Both types are OSErrors, and yet mean damaged bytes.
    is_damage = isinstance(error, gzip.BadGzipFile | IntegrityError)
    if locations.is_store_error(error) and not is_damage:
        return StorageError(f"{where} cannot be read: {explain(error)}")
    return IntegrityError(
        f"{where}: the stored bytes are damaged ({explain(error)}). Restore"
        " the dataset from a copy or write it again"
    )
