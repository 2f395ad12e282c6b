"""Single files, whole or not at all: JSON documents, signed or not, conditional writes, and locks on files.

Object stores compare on their own: `If-None-Match` creates, `If-Match` with the ETag that was read replaces.
Folders use a lock of the operating system, which ends with its process, and stores in memory a lock of this
process.
"""

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeGuard

from zarr.abc.store import Store
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, ObjectStore

from rff_dist.errors import ConflictError, IntegrityError, OutputBusyError, StorageError, VersionError
from rff_dist.storage import locations
from rff_dist.typing import Facts, Summary, frozen

logger = logging.getLogger(__name__)

MAX_METADATA_BYTES = 64 * 2**20
MANIFEST = "rff_dist"  # the attribute of a group that says what this package wrote there
# Members of the manifest:
NAME = "id"  # a name that all versions of one dataset share, and no other dataset has
LINE = "line"  # rows and digest of the last version that changed old rows, and of each append since

GENERATION = re.compile(r"generation-[0-9a-f]{32}")
_RISK = "two writers at the same moment could overwrite one another"
_DRAINED_S = 60.0  # by then a request to an object store is given up
_memory_lock = threading.Lock()


def load_json(content: bytes) -> Summary:
    """Parse a JSON object from a file that may be hostile.

    Raises StorageError if it is too long, too deep, or not a JSON object.
    """
    if len(content) > MAX_METADATA_BYTES:
        raise StorageError(f"{len(content):_} bytes of metadata; expected at most {MAX_METADATA_BYTES:_}")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"the metadata are not JSON ({locations.explain(error)})") from error
    if not isinstance(data, dict):
        raise StorageError(f"the metadata are a JSON {type(data).__name__}; expected an object")
    return data


def manifest_of(attributes: object) -> Facts:
    """Return the manifest among a group's attributes; empty if there is none."""
    manifest = attributes.get(MANIFEST) if isinstance(attributes, Mapping) else None
    return manifest if isinstance(manifest, Mapping) else {}


def manifest_in(content: bytes) -> Facts:
    """Return the manifest in a group's metadata; errors in these are left to whoever opens the group."""
    with suppress(StorageError):
        return manifest_of(load_json(content).get("attributes"))
    return {}


def is_generation(name: object) -> TypeGuard[str]:
    """Return whether a name is one of a generation's folder, which lies below its output."""
    return isinstance(name, str) and GENERATION.fullmatch(name) is not None


def generations_of(file: str, content: bytes) -> tuple[str | None, str | None]:
    """Return the names of the generation that a file leads to, and of the one before; see `output_places`.

    "" is a dataset that was written in its place.

    `file`: "zarr.json" of a dataset, or the name of a record's document.
    """
    is_dataset, facts = file == "zarr.json", manifest_in(content)
    if not is_dataset:
        with suppress(StorageError):  # Nothing names the arrays of a damaged record any more.
            facts = load_json(content)
    current, previous = facts.get("generation"), facts.get("previous")
    if not is_generation(current):
        return "" if is_dataset else None, None
    return current, previous if previous == "" or is_generation(previous) else None


def name_of(attributes: Facts) -> str | None:
    """Return the name that all versions of a dataset share; None for plain Zarr."""
    name = manifest_of(attributes).get(NAME)
    return None if name is None else str(name)


def sign_document(document: Facts, *, kind: str, version: int) -> bytes:
    """Return a document as JSON, with its kind, its format version and a SHA-256 of the whole."""
    whole = {"format": f"rff_dist {kind}", "format_version": version, **document}
    return json.dumps({**whole, "sha256": _digest(whole)}, indent=1, allow_nan=False).encode()


def parse_document(content: bytes, *, kind: str, version: int, where: str) -> Summary:
    """Return the document that `sign_document` wrote.

    `version`: the newest format version that this release reads.
    `where`: the document's name in errors.
    Raises VersionError if a newer release wrote it; IntegrityError if it is damaged or of another kind.
    """
    try:
        document = load_json(content)
    except StorageError as error:
        raise IntegrityError(f"{where}: {error}. Restore it from a copy, or write it again") from error
    # Kind and version come before the digest, because a newer release may sign in another way.
    expected, format_version = f"rff_dist {kind}", document.get("format_version")
    if document.get("format") != expected:
        raise IntegrityError(
            f"{where} has the format {str(document.get('format'))[:80]!r}; expected {expected!r}. Another "
            "program or an export wrote it, or it is damaged: give the original, or restore it from a copy"
        )
    if type(format_version) is int and format_version > version:
        by = f", written by rff_dist {document['rff_dist_version']}" if "rff_dist_version" in document else ""
        raise VersionError(
            f"{where} has format version {format_version}{by}; this release reads up to version {version}. "
            "Install the newer release"
        )
    # Against accidents. Whoever can write here can sign as well; what is read is checked by its types.
    stored = document.pop("sha256", None)
    if stored != _digest(document):
        raise IntegrityError(
            f"{where} is not as it was written (SHA-256 {str(stored)[:16]}… expected); restore it from a copy"
        )
    return document


def _digest(document: Facts) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, allow_nan=False).encode()).hexdigest()


# -- write on condition ---------------------------------------------------------------------------


@frozen
class Tagged:
    """Bytes as they were read, with the store's tag of this state of them.

    `tag`: an object store's ETag and version. Empty elsewhere, where the bytes themselves are compared.
    """

    content: bytes
    tag: Mapping[str, str]


def read_tagged(
    store: Store, key: str, *, where: locations.Location | str, content: bool = True
) -> Tagged | None:
    """Return what is stored under `key`, for a later `replace_bytes`; None if there is nothing.

    `content`: False leaves it out where the store has a tag of it.
    Raises StorageError if the store cannot be read; the error calls the store `where`.
    """
    if not isinstance(store, ObjectStore):
        found = locations.read_bytes(store, key, where=where)
        return None if found is None else Tagged(found, {})
    import obstore

    with locations.reaching(f"{where} cannot be read", key):
        try:
            answer = obstore.get(store.store, key) if content else None
            meta: Any = obstore.head(store.store, key) if answer is None else answer.meta
            found = b"" if answer is None else bytes(answer.bytes())
        except FileNotFoundError:
            return None
    return Tagged(found, {name: value for name in ("e_tag", "version") if (value := meta[name])})


def overtaken(location: locations.Location) -> ConflictError:
    """Return the error of a run whose output another one has published meanwhile."""
    return ConflictError(
        f"another run has written {location} meanwhile, and it stays as that run left it. Look at what is "
        "there now, and repeat this run if you still want it"
    )


def replace_bytes(
    store: Store, key: str, content: bytes, *, expected: Tagged | None, where: locations.Location | str
) -> bool:
    """Store bytes under `key` if no one has changed what is there since it was read; return whether so.

    Readers see the old bytes or the new ones, also after a power cut. Among any number of callers that read
    the same, in any process, exactly one gets True. `content` must differ from every other caller's (a token
    does that), so that a caller whose answer was lost recognises its own bytes.

    `expected`: the result of `read_tagged`; None if nothing may be there.
    Raises StorageError if the store cannot be written.
    """
    if isinstance(store, ObjectStore):
        return _put(store, key, content, expected, where)
    with _locked(store, key):
        present = locations.read_bytes(store, key, where=where)
        if present != (None if expected is None else expected.content):
            return False
        locations.write_bytes(store, key, content)
    return True


@contextmanager
def _locked(store: Store, key: str) -> Iterator[None]:
    """Hold the lock on a key of a folder or of a store in memory."""
    if isinstance(store, MemoryStore):
        with _memory_lock:  # Its holder writes to memory.
            yield
        return
    assert isinstance(store, LocalStore)
    path = Path(store.root) / key
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with lock_file(lock):
        try:
            yield
        finally:
            remove_lock(lock)


def _put(store: ObjectStore[Any], key: str, content: bytes, expected: Tagged | None, where: Any) -> bool:
    """Create or replace an object on condition that no one else did meanwhile."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, GenericError, NotSupportedError, PreconditionError

    mode: Any = "create" if expected is None else dict(expected.tag)

    def put() -> None:
        obstore.put(store.store, key, content, mode=mode, use_multipart=False)

    with locations.reaching(f"{where} cannot be written", key):
        try:
            try:
                put()
            except GenericError:
                # When a connection broke, the bytes may have arrived or not, so obstore does not repeat the
                # request. Here that is safe, since no one else writes the same bytes.
                put()
        except FileNotFoundError:
            if expected is None:  # The bucket itself is missing.
                raise
            return False
        except (AlreadyExistsError, PreconditionError):
            # If only the answer to the first request was lost, the second one fails on our own bytes.
            return locations.read_bytes(store, key, where=where) == content
        except (NotSupportedError, NotImplementedError) as error:  # It depends on the kind of store.
            raise StorageError(
                f"the store of {where} has no conditional writes, so {_RISK}; expected one that has them, as "
                "Amazon S3, Google Cloud Storage, Azure and MinIO do"
            ) from error
    return True


def drain() -> None:
    """Wait until this process has ended all writes: if one of several chunks fails, the others go on."""

    async def wait() -> None:
        here = asyncio.current_task()
        assert here is not None
        here.set_name("drain")
        # Two that wait for each other would wait for the whole time.
        others = [task for task in asyncio.all_tasks() if task.get_name() != "drain"]
        if others:
            await asyncio.wait(others, timeout=_DRAINED_S)

    sync(wait())


# -- locks of the operating system on files. A lock ends with the process that holds it ------------


_PATIENCE_S = 60.0  # Who is waited for writes one small file.
_STEP_S = 0.02


@contextmanager
def lock_file(path: Path, *, holder: str = "a run", busy: str | None = None) -> Iterator[TextIO]:
    """Hold a lock on a file, which is created if it is missing.

    `holder`: who holds the lock, written to the file for others.
    `busy`: the error's beginning if the lock is taken, such as "another run is changing data.zarr"; None
      waits for the lock, for a minute.
    Raises OutputBusyError if another process, or another part of this one, holds it; OSError if the file
      cannot be opened, or is a symbolic link; StorageError if it is a file of another program.
    """
    deadline = time.monotonic() + (_PATIENCE_S if busy is None else 0)
    while True:
        with open(path, "a+", errors="replace", opener=_open_itself) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # `LOCK_NB` and a deadline, because `flock` alone waits without bound.
            except BlockingIOError as error:
                if time.monotonic() < deadline:
                    time.sleep(_STEP_S)
                    continue
                file.seek(0)
                who, age = file.read(200) or "a process", time.time() - os.fstat(file.fileno()).st_mtime
                what = busy or f"{path} has been locked for {_PATIENCE_S:g} s"
                text = f"{what}: {who}, for {duration(age)}; expected no one. Wait until it is done"
                raise OutputBusyError(text) from error
            except OSError as error:  # Some network file systems are mounted without locks.
                logger.warning("%s has no locks (%s): %s", path.parent, error.strerror or error, _RISK)
            if not is_at(file, path):
                continue  # The last holder removed the file, so others would lock a new one.
            file.seek(0)
            if (found := file.read(200)) and ", process " not in found:
                raise StorageError(f"{path} is no lock, but a file of another program; move it elsewhere")
            if busy is not None:
                with suppress(OSError):  # On a full disk the lock holds all the same.
                    os.ftruncate(file.fileno(), 0)
                    os.write(file.fileno(), f"{holder}, process {os.getpid()} on {platform.node()}".encode())
            yield file
            return


def _open_itself(path: str, flags: int) -> int:
    """Open a file, and not what a symbolic link leads to, which may be a file of someone else."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def remove_lock(path: Path) -> None:
    """Remove the file of a lock; one that stays does no harm, as the lock ends with its process."""
    with suppress(OSError):
        path.unlink()


def is_at(file: TextIO, path: Path) -> bool:
    """Like `os.path.sameopenfile`, for an open file and a path; False if nothing is at the path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def duration(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# -- write files that other programs read, and objects of an object store --------------------------


_IN_ONE_REQUEST = 2**30  # bytes; object stores take at least 5 GiB


#: What the first bytes of pages, pictures and graphs say, so that a later run may replace them.
MADE_BY = "made by rff_dist"
_HEAD = 4096  # bytes


def is_ours(location: locations.Location) -> bool:
    """Say whether a file was written by `write_file`, by its first bytes."""
    if not os.path.isfile(location.path):
        return False
    with open(location.path, "rb") as file:
        return MADE_BY.encode() in file.read(_HEAD)


def write_file(path: Path, content: bytes, *, what: str) -> Path:
    """Write or replace a file, whole or not at all; what a link leads to is replaced, and its folder created.

    `content`: says `MADE_BY` in its first bytes.

    `what`: the kind of file, for the error.
    Raises StorageError if it cannot be written.
    """
    with locations.store_errors(f"the {what} {path} cannot be written", ""):
        place = Path(os.path.realpath(locations.local_path(path)))
        locations.write_bytes(LocalStore(place.parent), place.name, content)
    return path


def find_object(location: locations.Location) -> Tagged | None:
    """Return the tag of the object at a location in an object store; None if there is none."""
    store, name = store_above(location, read_only=False)
    return read_tagged(store, name, where=location, content=False)


def upload(path: Path, location: locations.Location, *, expected: Tagged | None) -> None:
    """Store a file as the object at `location`; readers see it only when it is complete.

    `expected`: the result of `find_object` when the work began.
    Raises ConflictError if another run stored the object meanwhile.
    """
    import obstore

    store, name = store_above(location, read_only=False)
    # A look, then a put: for such files a writer in between is not noticed.
    if path.stat().st_size > _IN_ONE_REQUEST:
        # Requests with a condition are not sent in parts, and would hold all of the file in memory.
        if find_object(location) != expected:
            raise overtaken(location)
        obstore.put(store.store, name, path)
    elif not replace_bytes(store, name, path.read_bytes(), expected=expected, where=location):
        raise overtaken(location)


def store_above(location: locations.Location, *, read_only: bool) -> tuple[Any, str]:
    """Open the store of the folder that an object is in; return it and the object's name there."""
    parent, _, name = location.path.rpartition("/")
    if not parent:
        raise StorageError(f"{location} is a whole bucket; expected the name of an object in it")
    return locations.open_store(locations.Location(location.scheme, parent), read_only=read_only), name
