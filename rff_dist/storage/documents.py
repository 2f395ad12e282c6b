"""Single files, whole or not at all: signed JSON documents, and the pointer to a current version."""

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rff_dist.errors import ConflictError, IntegrityError, StorageError, VersionError
from rff_dist.storage import arrays, conditional, locations, output_places


def sign_document(document: Mapping[str, Any], *, kind: str, version: int) -> bytes:
    """Return a document as JSON, with its kind, its format version and a SHA-256 of the whole."""
    whole = {"format": f"rff_dist {kind}", "format_version": version, **document}
    return json.dumps({**whole, "sha256": _digest(whole)}, indent=1, allow_nan=False).encode()


def parse_document(content: bytes, *, kind: str, version: int, where: str) -> dict[str, Any]:
    """Return the document that `sign_document` wrote.

    `version`: the newest format version that this release reads.
    `where`: the document's name in errors.
    Raises VersionError if a newer release wrote it; IntegrityError if it is damaged or of another kind.
    """
    try:
        document = arrays.load_json(content)
    except StorageError as error:
        raise IntegrityError(f"{where}: {error}. Restore it from a copy, or write it again") from error
    expected, format_version = f"rff_dist {kind}", document.get("format_version")
    if document.get("format") != expected:
        raise IntegrityError(
            f"{where} has the format {str(document.get('format'))[:80]!r}; expected {expected!r}. Restore it "
            "from a copy"
        )
    if type(format_version) is int and format_version > version:
        by = f", written by rff_dist {document['rff_dist_version']}" if "rff_dist_version" in document else ""
        raise VersionError(
            f"{where} has format version {format_version}{by}; this release reads up to version {version}. "
            "Install the newer release"
        )
    stored = document.pop("sha256", None)
    if stored != _digest(document):
        raise IntegrityError(
            f"{where} is not as it was written (SHA-256 {str(stored)[:16]}… expected); restore it from a copy"
        )
    return document


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode()).hexdigest()


# -- write single files whole or not at all, as local files or as objects of an object store -------


_IN_ONE_REQUEST = 2**30  # bytes; object stores take at least 5 GiB


def write_whole(path: Path, write: Callable[[Path], object], *, what: str) -> Path:
    """Write or replace a file, whole or not at all; its folder is created.

    `write`: writes the content to the path that it is given.
    `what`: the kind of file, for the error.
    Raises StorageError if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"the {what} {path} cannot be written: {error}; choose another place") from error
    finally:
        with contextlib.suppress(OSError):  # It was renamed or never written.
            temporary.unlink()
    return path


def find_object(location: locations.Location) -> conditional.Tagged | None:
    """Return the tag, without the content, of the object at a location in an object store; None if absent."""
    import obstore

    store, name = _store_above(location)
    with locations.reaching(f"{location} cannot be looked at"):
        try:
            return conditional.Tagged.of(b"", dict(obstore.head(store.store, name)))
        except FileNotFoundError:
            return None


def upload(path: Path, location: locations.Location, *, expected: conditional.Tagged | None) -> None:
    """Store a file as the object at `location`; readers see it only when it is complete.

    `expected`: the result of `find_object` when the work began.
    Raises ConflictError if another run stored the object meanwhile; OutputBusyError if this context has lost
      the lease of `location`.
    """
    import obstore

    store, name = _store_above(location)
    output_places.check_lease(location)
    if path.stat().st_size > _IN_ONE_REQUEST:
        # Requests with a condition are not sent in parts, and would hold all of the file in memory.
        obstore.put(store.store, name, path)
    else:
        conditional.publish_bytes(store, name, path.read_bytes(), expected=expected, location=location)


def _store_above(location: locations.Location) -> tuple[Any, str]:
    parent, _, name = location.path.rpartition("/")
    if not parent:
        raise StorageError(f"{location} is a whole bucket; expected the name of an object in it")
    return locations.open_store(locations.Location(location.scheme, parent), read_only=False), name


# -- which version of a registered model is the current one ----------------------------------------


_KIND, _VERSION = "pointer", 1


@dataclass(frozen=True, slots=True)
class Pointer:
    """Which version is current, and which versions were current before.

    `number`: the current version.
    `previous`: earlier current versions, the latest one last; a rollback goes back to it.
    `promoted`: when the version became current, as ISO 8601 in UTC.
    `removing`: versions that are being removed and must not become current again.
    `left`: versions that a rollback left.
    """

    number: int
    previous: tuple[int, ...]
    promoted: str
    reason: str
    removing: tuple[int, ...] = ()
    left: tuple[int, ...] = ()

    def moved(self, number: int, previous: tuple[int, ...], reason: str) -> Self:
        """Return a pointer to another version, promoted now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return replace(self, number=number, previous=previous, promoted=now, reason=reason)


def version_place(location: locations.Location, number: int) -> locations.Location:
    """Return the folder of a version of a registered model."""
    return location.child(f"versions/{number}")


def read_pointer(location: locations.Location) -> tuple[Pointer | None, conditional.Tagged | None]:
    """Return the pointer of a registered model, and its bytes for `swap_pointer`; None if there are none.

    Raises IntegrityError if it is damaged; VersionError if a newer release wrote it; StorageError if it
      cannot be read.
    """
    if not locations.may_hold(location):
        return None, None
    store = locations.open_store(location, read_only=True)
    tagged = conditional.read_tagged(store, locations.POINTER_FILE, where=location)
    return None if tagged is None else _parse(tagged.content, location), tagged


def swap_pointer(
    location: locations.Location, pointer: Pointer, *, expected: conditional.Tagged | None
) -> None:
    """Replace the pointer that was read, in one step: readers see the old pointer or the new one.

    Raises ConflictError if it was changed meanwhile; StorageError if it cannot be written.
    """
    # The token makes these bytes unlike every other writer's, as `replace_bytes` needs.
    document = {**asdict(pointer), "token": uuid.uuid4().hex}
    content = sign_document(document, kind=_KIND, version=_VERSION)
    store = locations.open_store(location, read_only=False)
    if not conditional.replace_bytes(
        store, locations.POINTER_FILE, content, expected=expected, where=location
    ):
        raise ConflictError(
            f"another version of {location} was made current meanwhile; look at it with "
            "`rff-dist models show`, and repeat this if you still want it"
        )


def _parse(content: bytes, location: locations.Location) -> Pointer:
    where = f"{locations.POINTER_FILE} of {location}"
    document = parse_document(content, kind=_KIND, version=_VERSION, where=where)
    number = document["number"]
    previous, removing, left = (tuple(document[name]) for name in ("previous", "removing", "left"))
    # The digest guards against accidents, not against malicious authors, so the types are checked too.
    if not all(type(n) is int and n >= 1 for n in (number, *previous, *removing, *left)):
        raise IntegrityError(
            f"{where} names the versions {number!r} and {previous!r}; expected whole numbers"
        )
    return Pointer(number, previous, document["promoted"], document["reason"], removing, left)
