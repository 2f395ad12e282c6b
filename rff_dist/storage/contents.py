"""List the arrays at a location, and whether damage to their bytes would be noticed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rff_dist.errors import StorageError
from rff_dist.storage.arrays import Header, read_rows, walk_codecs
from rff_dist.storage.binding import bound_names
from rff_dist.storage.groups import find_group
from rff_dist.storage.locations import exists, explain, parse_location

# Codecs that check a checksum of every chunk when it is read.
_CHECKSUMS = ("crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3", "gzip", "zlib", "bz2", "lzma")


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of a group, as its metadata describe it.

    `checksum`: the codec that notices damaged bytes; None: damage would be read as wrong numbers.
    """

    name: str
    header: Header
    checksum: str | None


def list_arrays(
    url: str | os.PathLike[str], version: str | None = None
) -> tuple[dict[str, Any], list[StoredArray]]:
    """Return the attributes of the group at `url` and its arrays, sorted by name; no rows are read.

    `version`: a version of a versioned dataset; None: the current one.
    Raises StorageError if there is no Zarr group, or an array's metadata cannot be read.
    """
    location = parse_location(url)
    if not exists(location):
        raise StorageError(f"nothing is at {location}; expected a Zarr group")
    group = find_group(url, version).open(unfinished=True)
    # Arrays that the manifest binds may be missing from the listing; reading their headers then raises.
    headers = {name: group.read_header(name, text=True) for name in bound_names(group.attributes)}
    try:
        names = set(group.group.array_keys())
    except Exception as error:
        raise StorageError(f"{location} cannot be read as a Zarr group: {explain(error)}") from error
    headers |= {name: group.read_header(name, text=True) for name in names - headers.keys()}
    return group.attributes, [
        StoredArray(name, header, _find_checksum(header))
        for name, header in sorted(headers.items())
        if header
    ]


def read_arrays(
    url: str | os.PathLike[str], names: Sequence[str], *, n_rows: int, version: str | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the rows of arrays of the group at `url`, `n_rows` at a time.

    `version`: a version of a versioned dataset; None: the current one.
    Raises StorageError if there is no complete group, or a chunk cannot be read.
    """
    group = find_group(url, version).open()
    arrays = {name: group.open_array(name, group.require_header(name)) for name in names}
    n_samples = min(array.shape[0] for array in arrays.values())
    for start in range(0, n_samples, n_rows):
        stop = min(start + n_rows, n_samples)
        yield {name: read_rows(array, start, stop, label=f"array {name!r}") for name, array in arrays.items()}


def _find_checksum(header: Header) -> str | None:
    """Return the codec that notices damage to an array's chunks, or None."""
    stored = json.loads(header.text)
    if header.zarr_format == 2:
        found = [*(stored.get("filters") or []), stored.get("compressor")]
        codecs = [(one["id"], one) for one in found if one]
    else:
        # A shard's index always has a checksum, but that does not cover the chunks.
        codecs = [*walk_codecs(stored["codecs"], of_index=False)]
    for name, settings in codecs:
        codec: str = name.removeprefix("numcodecs.")
        if codec in _CHECKSUMS or (codec == "zstd" and settings.get("checksum")):
            return codec
    return None
