"""Single files, whole or not at all: JSON documents with a digest, writes on condition,
and locks on files.

Two programs that read a file, change it and write it would lose one of the changes. So
a write has a condition: the file must be as it was read. An object store checks this
itself: `If-None-Match` creates, `If-Match` with the ETag that was read replaces. In a
folder the check is made under a lock of the operating system, which ends with its
process.
"""

import fcntl
import json
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from rff_dist.errors import (
    ConflictError,
    IntegrityError,
    OutputBusyError,
    StorageError,
    VersionError,
)
from rff_dist.storage import locations
from rff_dist.storage.locations import (
    Location,
    open_objects,
    parse_location,
    read_file,
)
from rff_dist.typing import Facts, PathLike, Summary, frozen

logger = logging.getLogger(__name__)

_RISK = "two writers at the same moment could overwrite one another"


def dump_document(document: Facts, *, kind: str, version: int) -> bytes:
    """Return JSON with the document's kind, format version and SHA-256."""
    whole = {"format": f"rff_dist {kind}", "format_version": version, **document}
    whole["sha256"] = locations.json_digest(whole)
    return json.dumps(whole, indent=1, allow_nan=False).encode()


def parse_document(content: bytes, *, kind: str, version: int, where: str) -> Summary:
    """Return the document that `dump_document` wrote.

    Raises VersionError if a newer release wrote it, in a higher format version;
    IntegrityError if it is damaged or of another kind.
    """
    document = locations.load_json(content, where)
    # Kind and version come before the digest, because a newer release may compute it in
    # another way.
    expected = f"rff_dist {kind}"
    format_version = document.get("format_version")
    if document.get("format") != expected:
        raise IntegrityError(
            f"{where} has the format {str(document.get('format'))[:80]!r}; expected"
            f" {expected!r}. Another program or an export wrote it, or it is damaged:"
            " give the original, or restore it from a copy"
        )
    if type(format_version) is int and format_version > version:
        writer = document.get("rff_dist_version", "of a later time")
        raise VersionError(
            f"{where} has format version {format_version}, written by rff_dist"
            f" {writer}; this release reads up to version {version}. Install the newer"
            " release"
        )
    # The digest notices accidents, not attacks: a program that can write here can also
    # write a right digest. So callers check the types of values.
    stored = document.pop("sha256", None)
    if stored != locations.json_digest(document):
        raise IntegrityError(
            f"{where} is not as it was written (SHA-256 {str(stored)[:16]}… expected);"
            " restore it from a copy"
        )
    return document


# -- write on condition


@frozen
class TaggedBytes:
    """The bytes of a file, with the store's tag for this state of the file."""

    content: bytes
    #: An object store's ETag and version. Empty in a folder, where the bytes themselves
    #: are compared.
    tag: Facts


def read_tagged(
    location: Location, name: str, *, has_content: bool = True
) -> TaggedBytes | None:
    """Return a file below a location, for a later `replace_file`; None if there is
    none.

    Without `has_content` an object store is asked for the tag only.
    """
    if location.is_local:
        stored = read_file(location, name)
        return None if stored is None else TaggedBytes(stored, {})
    content = b""
    meta: Any
    with locations.reaching(f"{location} cannot be read", name):
        objects = open_objects(location)
        try:
            if has_content:
                answer = objects.get(name)
                meta = answer.meta
                content = bytes(answer.bytes())
            else:
                meta = objects.head(name)
        except FileNotFoundError:
            return None
    tag = {key: meta[key] for key in ("e_tag", "version") if meta[key]}
    return TaggedBytes(content, tag)


def overtaken(location: Location) -> ConflictError:
    """Return the error for a run if another one has published its output meanwhile."""
    return ConflictError(
        f"another run has written {location} meanwhile, and it stays as that run left"
        " it. Look at what is there now, and repeat this run if you still want it"
    )


def replace_file(
    location: Location, name: str, content: bytes, *, expected: TaggedBytes | None
) -> bool:
    """Store bytes as a file below a location if the file there is still `expected`
    (None: no file); return whether they were stored.

    Readers see the old bytes or the new ones, also after a power cut. If several
    callers expect the same file, in any process, exactly one gets True. `content` must
    differ from every other caller's (a token does that), so that a caller whose answer
    was lost recognises its own bytes.
    """
    if not location.is_local:
        return _put(location, name, content, expected)
    path = Path(location.path, name)
    with lock_file(path.with_name(f".{path.name}.lock")):
        present = read_file(location, name)
        if present != (None if expected is None else expected.content):
            return False
        locations.write_file(location, name, content)
    return True


def _put(
    location: Location, name: str, content: bytes, expected: TaggedBytes | None
) -> bool:
    """Create or replace an object on condition that no one else did meanwhile."""
    from obstore.exceptions import (
        AlreadyExistsError,
        GenericError,
        NotSupportedError,
        PreconditionError,
    )

    mode: Any = "create" if expected is None else {**expected.tag}
    objects = open_objects(location)

    def put() -> None:
        objects.put(name, content, mode=mode, use_multipart=False)

    with locations.reaching(f"{location} cannot be written", name):
        try:
            try:
                put()
            except GenericError:
                # After a broken connection obstore does not repeat the request, since
                # the bytes may have arrived. Here a repeat is safe: no one else writes
                # the same bytes.
                put()
        except FileNotFoundError:
            if expected is None:  # The bucket itself is missing.
                raise
            return False
        except (AlreadyExistsError, PreconditionError):
            # If only the answer to the first request was lost, the second one fails on
            # our own bytes.
            return read_file(location, name) == content
        except (NotSupportedError, NotImplementedError) as error:
            # some kinds of store have none
            raise StorageError(
                f"the store of {location} has no conditional writes, so {_RISK};"
                " expected one that has them, as Amazon S3, Google Cloud Storage, Azure"
                " and MinIO do"
            ) from error
    return True


# -- locks of the operating system on files


# Without `busy` a lock is held only while one small file is written.
_PATIENCE_S = 60.0
_STEP_S = 0.02
_MARK = ", process "  # in each lock file that names its holder


@contextmanager
def lock_file(
    path: Path, *, holder: str = "a run", busy: str | None = None
) -> Iterator[TextIO]:
    """Create a file, lock it, and remove it at the end; the lock also ends with its
    process.

    If the file is locked, OutputBusyError is raised after a minute. With `busy`, the
    beginning of a message such as "another run is changing data.zarr", it is raised at
    once.
    """
    deadline = time.monotonic() + (_PATIENCE_S if busy is None else 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with open(path, "a+", errors="replace", opener=_open_no_link) as file:
            if not _try_lock(file, path):
                if time.monotonic() < deadline:
                    time.sleep(_STEP_S)
                    continue
                file.seek(0)
                other = file.read(200) or "a process"
                age = time.time() - os.fstat(file.fileno()).st_mtime
                failure = busy or f"{path} has been locked for {_PATIENCE_S:g} s"
                raise OutputBusyError(
                    f"{failure}: {other}, for {duration(age)}; expected no one. Wait"
                    " until it is done"
                )
            if not is_at(file, path):
                # The last holder removed the file just now, and others would lock a new
                # one: try again.
                continue
            file.seek(0)
            text = file.read(200)
            if text and _MARK not in text:
                raise StorageError(
                    f"{path} is no lock, but a file of another program; move it"
                    " elsewhere"
                )
            if busy is not None:
                text = f"{holder}{_MARK}{os.getpid()} on {platform.node()}"
                with suppress(OSError):  # On a full disk the lock works all the same.
                    os.ftruncate(file.fileno(), 0)
                    os.write(file.fileno(), text.encode())
            try:
                yield file
            finally:
                # Only our own: if ours was removed, another run may have locked a new
                # one. A file that stays does no harm.
                if is_at(file, path):
                    with suppress(OSError):
                        path.unlink()
            return


def _try_lock(file: TextIO, path: Path) -> bool:
    """Lock a file, without waiting; return False if another process has the lock.

    Some network file systems are mounted without locks. There the result is True, with
    a warning.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        why = error.strerror or error
        logger.warning("%s has no locks (%s): %s", path.parent, why, _RISK)
    return True


def _open_no_link(path: str, flags: int) -> int:
    """Open a file, but not through a symbolic link, which may name another user's."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def is_at(file: TextIO, path: PathLike) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def duration(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


# -- files that other programs read, and single objects


_IN_ONE_REQUEST = 2**30  # bytes; object stores take at least 5 GiB
#: Pages, pictures and graphs contain this in their first `_HEAD` bytes, so that a later
#: run may replace them.
MADE_BY = "made by rff_dist"
_HEAD = 4096


def is_ours(location: Location) -> bool:
    """Return whether a file was written by `write_marked`."""
    if not os.path.isfile(location.path):
        return False
    with open(location.path, "rb") as file:
        return MADE_BY.encode() in file.read(_HEAD)


def write_marked(path: Path, content: bytes, *, what: str) -> Path:
    """Write or replace a file, whole or not at all.

    `content` must have `MADE_BY` in its first `_HEAD` bytes, for `is_ours`. The file
    behind a symbolic link is replaced, not the link; folders are created.
    """
    with locations.store_errors(f"the {what} {path} cannot be written", ""):
        place = Path(os.path.realpath(locations.local_path(path)))
        locations.write_file(parse_location(place.parent), place.name, content)
    return path


def find_tag(location: Location) -> TaggedBytes | None:
    """Return the tag of the object at a location in an object store, if any."""
    return read_tagged(location.parent, location.name, has_content=False)


def upload(path: Path, location: Location, *, expected: TaggedBytes | None) -> None:
    """Store a file as the object at `location`; readers see it only when it is
    complete.

    Raises ConflictError if the object is no longer `expected`, which `find_tag` has
    returned.
    """
    folder = location.parent
    # A large file is checked first and then stored, and a writer in between is not
    # noticed. A request with a condition cannot be sent in parts, and would need all of
    # the file in memory.
    if path.stat().st_size > _IN_ONE_REQUEST:
        is_overtaken = find_tag(location) != expected
        if not is_overtaken:
            open_objects(folder).put(location.name, path)
    else:
        content = path.read_bytes()
        is_overtaken = not replace_file(
            folder, location.name, content, expected=expected
        )
    if is_overtaken:
        raise overtaken(location)
