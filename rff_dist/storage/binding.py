"""Bind the parts of a group that this package writes: each chunk to its place, metadata to their digests.

A chunk ends with its crc32c, which reveals damaged bytes. The manifest keeps the checksums of all chunks in
order, a digest of each array's metadata, and a digest of the group's own. So swapped chunks and changed
metadata are noticed. Arrays carry a mark, which says that their group must have such a manifest.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.abc.store import Store, SuffixByteRequest
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.common import concurrent_map
from zarr.core.sync import sync
from zarr.storage import ObjectStore

from rff_dist.errors import IntegrityError, StorageError, VersionError
from rff_dist.storage.arrays import Header, load_json, read_header
from rff_dist.storage.bounded import CheckedStore
from rff_dist.storage.conditional import overtaken, read_tagged, replace_bytes
from rff_dist.storage.generations import MANIFEST, is_pointer, manifest_of
from rff_dist.storage.locations import Location, write_bytes

FORMAT_VERSION = 1
_FILE, _PARTS, _COVERS, _DIGEST = "zarr.json", "arrays", "covers", "digest"
_SUM_BYTES = 4
_FEW_BITS = 4  # A checksum that differs in so few bits is damaged, not another chunk's.
_AT_ONCE = 64  # requests

type ChunkNumbers = Mapping[str, Iterable[int]]


def complete(
    store: Store,
    names: Iterable[str],
    attributes: Mapping[str, Any],
    *,
    place: Location,
    changed: ChunkNumbers | None = None,
) -> None:
    """Write a group's attributes, with a manifest that binds its arrays. This is the last write of a dataset.

    In an object store this publishes the dataset, if nobody has replaced the group's metadata meanwhile.

    `names`: names of the arrays.
    `attributes`: new or changed attributes, among them the manifest's entries about the rows.
    `place`: where the dataset is to appear, for errors.
    `changed`: numbers of the chunks that changed since the manifest before; None: all.
    Raises ConflictError if another writer published its dataset in this place.
    """
    found = read_tagged(store, _FILE, where=place)
    if found is None:
        raise StorageError(f"{_FILE} is gone from {place}; another program removed it. Write the data again")
    document = load_json(found.content)
    if is_pointer(document["attributes"]):
        raise overtaken(place)
    known = manifest_of(document["attributes"]).get(_PARTS, {}) if changed is not None else {}
    parts = {name: _describe(store, name, known.get(name), (changed or {}).get(name, ())) for name in names}
    state = {"state": "complete", "format_version": FORMAT_VERSION}
    manifest: dict[str, Any] = {**attributes[MANIFEST], **state, _PARTS: parts}
    document["attributes"] = {**document["attributes"], **attributes, MANIFEST: manifest}
    manifest[_COVERS] = sorted(document["attributes"])
    manifest[_DIGEST] = _digest_of(document)
    content = json.dumps(document, indent=2).encode()
    if not isinstance(store, ObjectStore):
        # Nobody else writes to a hidden folder or a session of Icechunk.
        write_bytes(store, _FILE, content)
    elif not replace_bytes(store, _FILE, content, expected=found, where=place):
        raise overtaken(place)


def check_group(content: bytes, place: str) -> None:
    """Check a group's metadata against the digest in its manifest, if it has one; raises IntegrityError."""
    document = load_json(content)
    manifest = manifest_of(document.get("attributes"))
    version = manifest.get("format_version")
    if type(version) is int and version > FORMAT_VERSION:
        raise VersionError(
            f"{place} is of format {version}; this release knows format {FORMAT_VERSION}. Use a newer one of "
            "rff_dist"
        )
    if _DIGEST in manifest and _digest_of(document) != manifest[_DIGEST]:
        raise IntegrityError(
            f"the metadata of {place} ({_FILE}) are not as they were written; restore them from a copy, or "
            "write the dataset again"
        )


def check_array(header: Header | None, attributes: Mapping[str, Any], name: str, label: str) -> None:
    """Check an array's header (None if there is no array) against its group's manifest.

    Raises IntegrityError if they differ.
    """
    manifest = manifest_of(attributes)
    if is_pointer(attributes):  # The pointer to a newer generation has replaced this one's manifest.
        return
    parts = manifest.get(_PARTS, {})
    part = parts.get(name) if isinstance(parts, Mapping) else None
    expected = None if part is None else part["metadata"]
    # Without mark and entry it is an array of another program, which nothing binds.
    found = None if header is None or (part is None and not header.marked) else header.digest
    if found != expected:
        raise IntegrityError(
            f"the metadata of {label} or of its group are not as they were written; restore them from a "
            "copy, or write the dataset again"
        )


def bound_names(attributes: Mapping[str, Any]) -> set[str]:
    """Return the names of the arrays that a group's manifest binds."""
    return set(manifest_of(attributes).get(_PARTS, {}))


def bound_store(store: Store, prefix: str, attributes: Mapping[str, Any]) -> Store:
    """Return a store that compares each chunk with its place's checksum; `store` itself if none is known."""
    parts = manifest_of(attributes).get(_PARTS, {})
    sums = {f"{prefix}{name}/c/": _unpacked(part["crc32c"]) for name, part in parts.items()}
    return CheckedStore(store, partial(_check_place, sums)) if sums else store


class WrongChunkError(IntegrityError):
    """A whole chunk that is not the one written at its place: another program may have written just now."""


def _check_place(sums_of: Mapping[str, NDArray[np.uint32]], key: str, found: Buffer, is_part: bool) -> None:
    """Compare a chunk with the checksum of its place; raises IntegrityError if they differ.

    `sums_of`: checksums of each array's chunks, by the key's part before the chunk's number.
    """
    array, slash, place = key.partition("/c/")
    sums = sums_of.get(array + slash)
    if sums is None or is_part:  # A part need not hold the checksum, which ends the chunk.
        return
    number, stored = int(place.partition("/")[0]), found[-_SUM_BYTES:].to_bytes()
    if number < len(sums) and stored != sums[number].tobytes():
        n_bits = (int.from_bytes(stored, "little") ^ int(sums[number])).bit_count()
        kind = IntegrityError if n_bits <= _FEW_BITS or len(found) < _SUM_BYTES else WrongChunkError
        raise kind(f"{key} is not the chunk that was written there")


def _digest_of(document: Mapping[str, Any]) -> str:
    """Return a digest of the manifest and the attributes that it covers; others may be added freely."""
    attributes = document["attributes"]
    manifest = {name: value for name, value in attributes[MANIFEST].items() if name != _DIGEST}
    covered = {name: attributes.get(name) for name in manifest.get(_COVERS, ()) if name != MANIFEST}
    whole = [document.get("zarr_format"), document.get("node_type"), covered, manifest]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


def _describe(
    store: Store, name: str, known: Mapping[str, Any] | None, changed: Iterable[int]
) -> dict[str, Any]:
    header = read_header(store, name, label=f"array {name!r}", text=True)
    assert header is not None
    n_chunks = -(-header.shape[0] // header.chunks[0])
    sums = np.zeros(n_chunks, "<u4")
    numbers: Iterable[int] = range(n_chunks)
    if known is not None:
        before = _unpacked(known["crc32c"])[:n_chunks]
        sums[: len(before)] = before
        numbers = sorted({*(i for i in changed if i < n_chunks), *range(len(before), n_chunks)})
    keys = [f"{name}/c/{i}{'/0' * (len(header.shape) - 1)}" for i in numbers]
    read = sync(concurrent_map([(store, key) for key in keys], _last_bytes, _AT_ONCE))
    sums[list(numbers)] = np.frombuffer(b"".join(read), "<u4")
    return {"metadata": header.digest, "crc32c": base64.b64encode(sums.tobytes()).decode()}


async def _last_bytes(store: Store, key: str) -> bytes:
    found = await store.get(key, default_buffer_prototype(), SuffixByteRequest(_SUM_BYTES))
    if found is None:
        raise StorageError(f"{key} is gone; another program removed it. Write the data again")
    return found.to_bytes()


def _unpacked(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(base64.b64decode(text), "<u4")
