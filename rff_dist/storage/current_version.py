"""Which version of a registered model is the current one: `current.json` in the model's folder."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from rff_dist.errors import ConflictError, IntegrityError
from rff_dist.storage.conditional import Tagged, read_tagged, replace_bytes
from rff_dist.storage.documents import parse_document, sign_document
from rff_dist.storage.locations import POINTER_FILE, Location, may_hold, open_store

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

    def moved(self, number: int, previous: tuple[int, ...], reason: str) -> Pointer:
        """Return a pointer to another version, promoted now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return replace(self, number=number, previous=previous, promoted=now, reason=reason)


def version_place(location: Location, number: int) -> Location:
    """Return the folder of a version of a registered model."""
    return location.child(f"versions/{number}")


def read_pointer(location: Location) -> tuple[Pointer | None, Tagged | None]:
    """Return the pointer of a registered model, and its bytes for `swap_pointer`; None if there are none.

    Raises IntegrityError if it is damaged; VersionError if a newer release wrote it; StorageError if it
      cannot be read.
    """
    if not may_hold(location):
        return None, None
    tagged = read_tagged(open_store(location, read_only=True), POINTER_FILE, where=location)
    return None if tagged is None else _parse(tagged.content, location), tagged


def swap_pointer(location: Location, pointer: Pointer, *, expected: Tagged | None) -> None:
    """Replace the pointer that was read, in one step: readers see the old pointer or the new one.

    Raises ConflictError if it was changed meanwhile; StorageError if it cannot be written.
    """
    # The token makes these bytes unlike every other writer's, as `replace_bytes` needs.
    document = {**asdict(pointer), "token": uuid.uuid4().hex}
    content = sign_document(document, kind=_KIND, version=_VERSION)
    store = open_store(location, read_only=False)
    if not replace_bytes(store, POINTER_FILE, content, expected=expected, where=location):
        raise ConflictError(
            f"another version of {location} was made current meanwhile; look at it with "
            "`rff-dist models show`, and repeat this if you still want it"
        )


def _parse(content: bytes, location: Location) -> Pointer:
    where = f"{POINTER_FILE} of {location}"
    document = parse_document(content, kind=_KIND, version=_VERSION, where=where)
    number = document["number"]
    previous, removing, left = (tuple(document[name]) for name in ("previous", "removing", "left"))
    # The digest guards against accidents, not against malicious authors, so the types are checked too.
    if not all(type(n) is int and n >= 1 for n in (number, *previous, *removing, *left)):
        raise IntegrityError(
            f"{where} names the versions {number!r} and {previous!r}; expected whole numbers"
        )
    return Pointer(number, previous, document["promoted"], document["reason"], removing, left)
