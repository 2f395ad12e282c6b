"""What lies at a location: its arrays, and whether damage to their bytes would be noticed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rff_dist.errors import StorageError
from rff_dist.storage.arrays import Header, open_array, read_rows
from rff_dist.storage.binding import bound_names
from rff_dist.storage.groups import committed_rows, find_group, open_group
from rff_dist.storage.locations import exists, explain, parse_location
from rff_dist.storage.seal import SealedStore

# Codecs that compare a checksum of every chunk when it is read.
_CHECKSUMS = ("crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3", "gzip", "zlib", "bz2", "lzma")


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of a group, as its metadata describe it.

    `header`: shape, dtype, chunks, shards and codecs.
    `checksum`: the codec that notices damaged bytes, or "seal"; None where damage is read as wrong numbers.
    """

    name: str
    header: Header
    checksum: str | None


def list_arrays(
    url: str | os.PathLike[str], version: str | None = None
) -> tuple[dict[str, Any], list[StoredArray]]:
    """Return the attributes of the group at `url` and its arrays by name; no rows are read.

    `version`: of a versioned dataset; the current one if left out.
    Raises StorageError if there is no Zarr group, or an array's metadata cannot be read.
    """
    location = parse_location(url)
    if not exists(location):
        raise StorageError(f"nothing is at {location}; expected a Zarr group")
    stored = find_group(url, version)
    group = open_group(stored.store, "", str(location))
    attributes = dict(group.attrs)
    # Those first that must be there.
    headers = {name: stored.read_header(name, attributes, text=True) for name in bound_names(attributes)}
    try:
        names = set(group.array_keys())
    except Exception as error:
        raise StorageError(f"{location} cannot be read as a Zarr group: {explain(error)}") from error
    seal = "seal" if isinstance(stored.store, SealedStore) else None
    for name in names - headers.keys():
        headers[name] = stored.read_header(name, attributes, text=True)
    n_samples = committed_rows(attributes, str(location))
    return attributes, [
        StoredArray(name, header.first_rows(n_samples), find_checksum(header) or seal)
        for name, header in sorted(headers.items())
        if header
    ]


def read_arrays(
    url: str | os.PathLike[str], names: Sequence[str], *, n_rows: int, version: str | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows of arrays of the group at `url`, so many at a time.

    `version`: of a versioned dataset; the current one if left out.
    Raises StorageError if there is no complete group, or a chunk cannot be read.
    """
    stored = find_group(url, version)
    attributes = dict(stored.open().attrs)
    committed, store = committed_rows(attributes, stored.place), stored.bound_store(attributes)
    arrays = {
        name: open_array(
            store, name, label=f"array {name!r}", like=stored.read_header(name, attributes, text=True)
        )
        for name in names
    }
    n_samples = min(committed, *(array.shape[0] for array in arrays.values()))
    for start in range(0, n_samples, n_rows):
        stop = min(start + n_rows, n_samples)
        yield {name: read_rows(array, start, stop, label=f"array {name!r}") for name, array in arrays.items()}


def find_checksum(header: Header) -> str | None:
    """Return the codec that notices damage to an array's chunks, or None."""
    stored = json.loads(header.text)
    if header.zarr_format == 2:
        codecs = [*(stored.get("filters") or []), stored.get("compressor")]
        return _first_checksum((codec["id"], codec) for codec in codecs if codec)
    return _first_checksum(_named(stored["codecs"]))


def _named(codecs: Iterable[Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    for codec in codecs:
        if isinstance(codec, str):
            yield codec, {}
            continue
        settings = codec.get("configuration") or {}
        if codec["name"] == "sharding_indexed":
            # The index of a shard always has a checksum, which does not cover the chunks.
            yield from _named(settings["codecs"])
        else:
            yield codec["name"].removeprefix("numcodecs."), settings


def _first_checksum(codecs: Iterable[tuple[str, Mapping[str, Any]]]) -> str | None:
    for name, settings in codecs:
        if name in _CHECKSUMS or (name == "zstd" and settings.get("checksum")):
            return name
    return None
