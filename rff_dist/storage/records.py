"""Records: stored models, as Zarr groups.

A kind, JSON values and arrays go in and come out; no pickle is ever loaded. The group
has the arrays, with checksums, and its attributes the rest. A record is replaced
in one step, as any output is. If a reader finds metadata and arrays of two models, it
reads again.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Self

import numpy as np

from rff_dist import __version__
from rff_dist.errors import (
    IntegrityError,
    InvalidParameterError,
    StorageError,
    UnsafeModelError,
)
from rff_dist.storage import (
    arrays,
    documents,
    groups,
    locations,
    manifests,
    output_places,
)
from rff_dist.storage.commit import Publication
from rff_dist.storage.documents import TaggedBytes
from rff_dist.storage.groups import StoredGroup
from rff_dist.storage.locations import POINTER_FILE, Location
from rff_dist.storage.manifests import ENTRY_FILE, LINEAGE, MANIFEST, RECORD
from rff_dist.storage.zarr_access import zarr
from rff_dist.typing import AnyArray, Arrays, Facts, PathLike, Summary, frozen

_SCALARS = "scalars"  # names of arrays without an axis, which are stored with one
_WRITER = "rff_dist_version"
_SAFE_CODECS = {"bytes", "crc32c"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Record:
    """A stored model: metadata, and arrays whose bytes were checked."""

    kind: str  # such as "ridge model"
    metadata: Summary
    arrays: dict[str, AnyArray]
    format_version: int
    rff_dist_version: str


# -- write


def write_record(
    url: PathLike,
    *,
    kind: str,
    metadata: Facts,
    arrays: Arrays,
    overwrite: bool = False,
) -> None:
    """Write a record; until it is complete, readers see the old one, or none.

    Metadata are JSON, arrays integers, floats and booleans of any shape. Raises
    OutputExistsError if there is something at `url` and `overwrite` is False;
    ConflictError or OutputBusyError if another run writes there. After an error the old
    record stays.
    """
    values = {name: _checked_array(name, array) for name, array in arrays.items()}
    # A copy, because the caller's metadata may change while arrays are written.
    metadata = plain_json(metadata, "the metadata are")
    n_bytes = len(json.dumps(metadata))
    # half of the limit, to leave room for the rest of the document
    if n_bytes > locations.MAX_METADATA_BYTES // 2:
        raise InvalidParameterError(
            f"{n_bytes:_} bytes of metadata; put large data into arrays"
        )
    scalars = [name for name, value in values.items() if not value.ndim]
    manifest = {RECORD: kind, _WRITER: __version__, _SCALARS: scalars}
    location = locations.parse_location(url)
    output_places.check_output(location, overwrite=overwrite, is_model=True)
    with (
        locations.store_errors(
            f"{location} could not be written", "; the previous content is unchanged"
        ),
        output_places.hold(location, holder="a writer"),
    ):
        # within `hold`, which notices from now on if another run publishes
        publication = Publication.plan(location, overwrite=overwrite, model_kind=kind)
        group = publication.create_group({})
        with publication.publishing():
            for name, value in values.items():
                _write_array(group, name, value)
            attributes = {"metadata": metadata, MANIFEST: manifest}
            publication.complete(values, attributes)


def plain_json(values: Facts, what: str) -> Summary:
    """Return a copy as plain JSON values, with lists for tuples.

    Raises InvalidParameterError for other values; its message begins with `what`, such
    as "the metadata are".
    """
    try:
        copy: Summary = json.loads(json.dumps(dict(values), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameterError(
            f"{what} not JSON: {locations.explain(error)}; expected numbers, text,"
            " lists or dictionaries"
        ) from error
    return copy


def _checked_array(name: str, array: AnyArray) -> AnyArray:
    values = np.asarray(array)
    if not _NAME.fullmatch(name):
        raise InvalidParameterError(
            f"array name {name!r}; expected letters, digits and underscores"
        )
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        raise InvalidParameterError(
            f"array {name!r} has dtype {values.dtype}; expected integers, floats or"
            " booleans of at most 64 bits. Put strings into the metadata"
        )
    return np.asarray(values, dtype=values.dtype.newbyteorder("="), order="C")


def _write_array(group: zarr.Group, name: str, value: AnyArray) -> None:
    rows = np.atleast_1d(value)
    row_bytes = max(1, rows[:1].nbytes)
    chunk_rows = max(1, min(len(rows), arrays.CHUNK_TARGET_BYTES // row_bytes))
    array = arrays.create_array(
        group,
        name,
        shape=rows.shape,
        dtype=rows.dtype,
        chunk_rows=chunk_rows,
        is_by_row=False,
    )
    for start in range(0, len(rows) if rows.size else 0, chunk_rows):
        array[start : start + chunk_rows] = rows[start : start + chunk_rows]


def add_lineage(location: Location, lineage: Facts) -> None:
    """Add JSON values to the record at `location` in one step, which makes it a
    published version.

    Raises ConflictError if the record was replaced meanwhile.
    """
    # Only the metadata are replaced, on condition that no one changed them since they
    # were read here.
    before = documents.read_tagged(location, ENTRY_FILE)
    # a missing file is refused as a damaged one is
    document = _parse(b"" if before is None else before.content, location)
    content = manifests.sign_group(document, {MANIFEST: {LINEAGE: lineage}})
    output_places.publish_bytes(location, ENTRY_FILE, content, expected=before)


# -- read


def read_record(url: PathLike, *, kind: str | None = None) -> Record:
    """Read a record, or a registered model's current version, and check every byte.

    Raises UnsafeModelError if an array's codecs could run code; VersionError if a newer
    release wrote it; IntegrityError if bytes are damaged; StorageError if there is no
    record, or one of another kind.
    """
    location = locations.parse_location(url)
    while True:
        place = find_record(location)
        group = _open(place)
        try:
            record = _record_of(group)
            if kind is not None and record.kind != kind:
                raise StorageError(
                    f"{place} holds a {record.kind!r}; expected a {kind!r}"
                )
            for name in group.parts:
                record.arrays[name] = _read_array(group, name)
            return record
        except StorageError:
            # Another run may have overwritten the arrays meanwhile, or made another
            # version current: then read again.
            is_place = find_record(location) == place
            if is_place and _open(place).manifest == group.manifest:
                raise


def find_record(location: Location) -> Location:
    """Return the place of a record; for a registered model, of its current version."""
    if locations.has_file(location, ENTRY_FILE):
        return location
    is_file = location.is_local and os.path.isfile(location.path)
    if not is_file:
        pointer, _ = read_pointer(location)
        if pointer is not None:
            return version_place(location, pointer.number)
    what = "nothing is there"
    if is_file:
        what = "it is a file"
    elif locations.exists(location):
        what = f"it has no {ENTRY_FILE}"
    raise StorageError(
        f"no model at {location}: {what}; expected a model's folder, not an export,"
        " or a registered model of which a version is current"
    )


def peek_record(url: PathLike) -> Record:
    """Read a record's kind and metadata, without its arrays."""
    return _record_of(_open(find_record(locations.parse_location(url))))


def is_complete(location: Location) -> bool:
    """Return whether a whole record is in a folder that a run may have left."""
    with suppress(StorageError):
        _open(location)  # refuses unfinished groups
        return True
    return False


def read_lineage(location: Location) -> Facts | None:
    """Return the lineage that `add_lineage` added to a record, if any."""
    content = locations.read_file(location, ENTRY_FILE)
    if content is None:
        return None
    document = _parse(content, location)
    return manifests.manifest_of(document["attributes"]).get(LINEAGE)


def _parse(content: bytes, location: Location) -> Summary:
    """Parse the metadata of a record."""
    where = f"{ENTRY_FILE} of {location}"
    document = manifests.parse_group(content, where)
    if not manifests.manifest_of(document["attributes"]):
        raise IntegrityError(
            f"{where} is not as it was written; restore it from a copy"
        )
    return document


def _open(location: Location) -> StoredGroup:
    group = groups.find_group(location.url)
    if RECORD not in group.manifest:
        raise StorageError(
            f"{location} is no model, but other Zarr data; expected a folder that"
            " save_model wrote"
        )
    return group


def _record_of(group: StoredGroup) -> Record:
    """Return a record without its arrays."""
    manifest = group.manifest
    kind = manifest[RECORD]
    metadata = group.attributes.get("metadata")
    writer = manifest.get(_WRITER)
    # The digest guards against accidents, not against malicious authors, so the types
    # are checked too.
    if type(kind) is not str or type(writer) is not str or type(metadata) is not dict:
        raise StorageError(
            f"{group.url} does not have the fields of a record; restore it from a copy"
        )
    return Record(kind, metadata, {}, manifest["format_version"], writer)


def _read_array(group: StoredGroup, name: str) -> AnyArray:
    """Read an array that may be hostile, and check every byte."""
    if not _NAME.fullmatch(name):  # a name such as "../x" is a path out of the folder
        raise UnsafeModelError(f"{group.url} names the array {name[:80]!r}")
    array = group.open_array(name, allows_text=False)
    header = array.header
    if header.zarr_format != 3 or not {*header.codecs} <= _SAFE_CODECS:
        raise UnsafeModelError(
            f"{array.label} is stored as Zarr format {header.zarr_format} with the"
            f" codecs {', '.join(header.codecs)}; expected format 3 with"
            f" {', '.join(_SAFE_CODECS)}, as save_model writes"
        )
    # a product of floats, since lengths in hostile metadata may overflow integers
    n_bytes = int(np.prod(header.shape, dtype=float)) * header.dtype.itemsize
    with locations.reaching(f"{array.label} cannot be measured"):
        n_stored = zarr.core.sync.sync(group.store.getsize_prefix(name))
    # Arrays are not compressed, so fewer stored bytes than claimed are damage, found
    # before memory is taken.
    if n_bytes > n_stored:
        raise IntegrityError(
            f"{array.label} claims {n_bytes:_} bytes, and its files have {n_stored:_};"
            " restore them"
        )
    values = np.empty(header.shape, header.dtype)
    if n_bytes:
        values = np.ascontiguousarray(array.read(0, header.shape[0]))
    scalars = group.manifest.get(_SCALARS)
    is_scalar = isinstance(scalars, list) and name in scalars and values.size == 1
    return values.reshape(()) if is_scalar else values


# -- which version of a registered model is the current one


_POINTER = "pointer"
_POINTER_VERSION = 1


@frozen
class Pointer:
    """Which version is current, and which versions were current before."""

    number: int  # the current version
    #: Earlier current versions, the latest one last; a rollback goes back to it.
    previous: tuple[int, ...]
    promoted: str  # when the version became current, as ISO 8601 in UTC
    reason: str
    #: Versions that were or are being removed, and must not become current again.
    removed: tuple[int, ...] = ()
    #: Versions that were current when a rollback replaced them.
    rolled_back: tuple[int, ...] = ()

    def moved(self, number: int, previous: tuple[int, ...], reason: str) -> Self:
        """Return a pointer to another version, promoted now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return replace(
            self, number=number, previous=previous, promoted=now, reason=reason
        )


def version_place(location: Location, number: int) -> Location:
    """Return the folder of a version of a registered model."""
    return location.child(f"versions/{number}")


def read_pointer(location: Location) -> tuple[Pointer | None, TaggedBytes | None]:
    """Return the pointer of a registered model, and its bytes for `swap_pointer`."""
    tagged = documents.read_tagged(location, POINTER_FILE)
    if tagged is None:
        return None, None
    return _parse_pointer(tagged.content, location), tagged


def swap_pointer(
    location: Location, pointer: Pointer, *, expected: TaggedBytes | None
) -> None:
    """Replace the pointer that was read, in one step: readers see the old pointer or
    the new one.

    Raises ConflictError if it was changed meanwhile; OutputBusyError if another run
    published after this run took the model's lock.
    """
    # The token makes these bytes unlike every other writer's, as `replace_file` needs.
    document = {**asdict(pointer), "token": uuid.uuid4().hex}
    content = documents.dump_document(document, kind=_POINTER, version=_POINTER_VERSION)
    output_places.publish_bytes(location, POINTER_FILE, content, expected=expected)


def _parse_pointer(content: bytes, location: Location) -> Pointer:
    where = f"{POINTER_FILE} of {location}"
    document = documents.parse_document(
        content, kind=_POINTER, version=_POINTER_VERSION, where=where
    )
    number = document["number"]
    names = ("previous", "removed", "rolled_back")
    lists = {name: tuple(document[name]) for name in names}
    numbers = [number, *sum(lists.values(), ())]
    # The digest guards against accidents, not against malicious authors, so the types
    # of numbers, which name folders, are checked too.
    if not all(type(version) is int and version >= 1 for version in numbers):
        raise IntegrityError(
            f"{where} names the versions {numbers}; expected whole numbers"
        )
    return Pointer(
        number, promoted=document["promoted"], reason=document["reason"], **lists
    )
