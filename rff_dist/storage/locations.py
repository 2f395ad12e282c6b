"""Locations: which URLs are allowed, how their stores are opened, and how single files are read and written.

A location is a folder: a local path, a store in this process's memory (`memory://name`), or a prefix of an
object store.
"""

import atexit
import difflib
import errno
import hashlib
import itertools
import logging
import os
import re
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from zarr.abc.store import Store
from zarr.buffer.cpu import Buffer
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, ObjectStore, ZipStore

from rff_dist.errors import RFFDistError, StorageError
from rff_dist.lazy import require
from rff_dist.text import human_bytes, redact, without_secrets
from rff_dist.typing import PathLike, frozen

logger = logging.getLogger(__name__)

# Object stores are reached through obstore (the extra `s3`), which read twice as fast as s3fs locally.
REMOTE_SCHEMES = ("s3", "gs", "az", "https")
ICEBERG = "iceberg"  # names a table of a catalog, which only `ingest` reads
SCHEMES = ("file", "memory", ICEBERG, *REMOTE_SCHEMES)
READ_ONLY_SCHEMES = ("https",)
NODE_FILES = ("zarr.json", ".zgroup", ".zarray")
# Icechunk's list of a versioned dataset's branches, tags and snapshots, and the main branch of its format 1.
REPOSITORY_FILES = ("repo", "refs/branch.main/ref.json")
# A folder that holds one of these is a dataset, which an output may replace.
DATASET_FILES = (*NODE_FILES, *REPOSITORY_FILES)
RECORD_FILE = "model.json"  # of a model
# In a registered model's folder, which holds all versions: names the current one.
POINTER_FILE = "current.json"

# The meaning of errors of object stores that do not explain themselves.
_STORE_HINTS = {
    "169.254.169.254": "the environment holds no AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "builder error": "an endpoint of http:// needs AWS_ALLOW_HTTP=true in the environment",
}

_CHECK = "Check the address, the network and the permissions"

#: Seconds after which a request to an object store that failed is not repeated any more.
RETRIED_S = 60
_GIVEN_UP = timedelta(days=1)  # after which a writer that has written nothing more counts as dead
_LATE_S = 10  # at most this long a process waits at its end for threads of Icechunk and obstore

# `memory://name` promises one dataset per name and process, which needs one table per process. Other threads
# may change it at any time, so loops go through a copy of its names.
MEMORY: dict[str, MemoryStore] = {}


@frozen
class Location:
    """A folder in a store.

    `scheme`: one of `SCHEMES`.
    `path`: an absolute local path, a name in memory, a catalog and a table, or a bucket and a prefix.

    >>> parse_location('s3://bucket/models/main').child('versions').url
    's3://bucket/models/main/versions'
    """

    scheme: str
    path: str

    @property
    def url(self) -> str:
        return self.path if self.scheme == "file" else f"{self.scheme}://{self.path}"

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    @property
    def is_remote(self) -> bool:
        """Whether it is in an object store."""
        return self.scheme in REMOTE_SCHEMES

    def child(self, name: str) -> Self:
        """Return the folder `name` below this one."""
        return replace(self, path=f"{self.path}/{name}")

    def hidden(self, kind: str) -> Self | None:
        """Return the hidden folder `.NAME.KIND` next to this place; None if this is a whole bucket."""
        parent, separator, name = self.path.rpartition("/")
        if self.is_remote and not separator:
            return None
        return replace(self, path=f"{parent}{separator}.{name}.{kind}")

    def __str__(self) -> str:
        return self.url


def parse_location(url: PathLike) -> Location:
    """Parse a local path or a URL; nothing is opened.

    A link to a folder stands for that folder, which so has one name and one lock.

    Raises StorageError if the scheme is not one of `SCHEMES`, or the URL is a chain (`::`), holds
      credentials, or is read in different ways by different programs.
    """
    text = os.fspath(url)
    if not text.strip():
        raise StorageError(
            f"not a location: {text!r}; expected a path or a URL such as s3://bucket/data.zarr"
        )
    if "::" in text:  # as fsspec writes chains, whose inner scheme no one would check
        raise StorageError(
            f"chained URLs are not followed: {redact(text)}; expected one location. Copy the data first"
        )
    scheme, separator, rest = text.partition("://")
    if not separator:
        if re.match(rf"({'|'.join(SCHEMES)}):/", text):
            raise StorageError(
                f"{redact(text)} has one slash after its scheme; expected two, and URLs as text, since "
                "pathlib.Path drops one"
            )
        return _folder(os.path.expanduser(text))
    scheme = scheme.lower()
    if scheme not in SCHEMES:
        near = difflib.get_close_matches(scheme, SCHEMES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}://?" if near else "expected a local path or one of these"
        raise StorageError(
            f"unknown scheme {scheme}:// in {redact(text)}; {hint} (known: {', '.join(SCHEMES)})"
        )
    if redact(text) != text:
        raise StorageError(
            f"credentials do not belong in a URL: {redact(text)}; give them in the environment, "
            "where logs and reports do not show them. No name may hold '?' or '#', which begin a query"
        )
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost") or not slash:
            raise StorageError(f"{text} names the host {host!r}; expected file:///absolute/path")
        return _folder(unquote("/" + path))
    if not rest.strip("/"):
        raise StorageError(f"{text} names nothing; expected {scheme}://name")
    rest = rest.rstrip("/")
    # Some libraries decode and resolve these, and others do not.
    is_plain = rest.isprintable() and rest == rest.strip() and "\\" not in rest
    if scheme in READ_ONLY_SCHEMES:  # which knows no names without percent signs
        is_plain = is_plain and rest.isascii() and " " not in rest
    else:
        is_plain = is_plain and "%" not in rest
    if scheme in REMOTE_SCHEMES and (not is_plain or {"", ".", ".."} & {*rest.split("/")}):
        raise StorageError(
            f"{text} may mean different places to different programs; expected a name as it is stored, "
            "without '%', '\\', '//', '.' or '..' as parts, and spaces at an end"
        )
    return Location(scheme, rest)


def local_path(url: PathLike) -> Path:
    """Return the path of a file or folder that can be written on this machine only; raises StorageError."""
    location = parse_location(url)
    if not location.is_local:
        raise StorageError(f"{location} is not on this machine; expected a path")
    return Path(location.path)


def _folder(path: str) -> Location:
    path = os.path.abspath(path)
    # A link to a file may have the only suffix by which its kind is known.
    is_link = os.path.islink(path) and os.path.isdir(path)
    return Location("file", os.path.realpath(path) if is_link else path)


def open_store(location: Location, *, read_only: bool = True) -> Store:
    """Open the Zarr store at `location`; a missing store in memory is created unless `read_only`.

    Raises StorageError if `read_only` and this process has no store in memory of that name;
      MissingDependencyError if the package for the scheme is not installed.
    """
    if location.scheme == "file" and read_only and zipfile.is_zipfile(location.path):
        return ZipStore(location.path, mode="r")
    if location.scheme == "file":
        return LocalStore(location.path, read_only=read_only)
    if location.scheme == "memory":
        # `setdefault`: of two threads that write to one place none gets a store that no other sees
        found = MEMORY.get(location.path) if read_only else MEMORY.setdefault(location.path, MemoryStore())
        if found is None:
            raise StorageError(
                f"{location} is not in this process, whose stores in memory are {_names_in_memory()}; "
                "a store in memory lives in the process that wrote it. Write to a path to share it"
            )
        return found.with_read_only(read_only)
    if location.scheme == ICEBERG:
        raise StorageError(f"{location} is a table of a catalog, not a place for Zarr; ingest it first")
    if not read_only and location.scheme in READ_ONLY_SCHEMES:
        raise StorageError(f"{location} can only be read; write to a path or an object store")
    stores = require("obstore.store", f"{location.scheme}:// needs the package obstore", "s3")
    wait_at_exit()
    # Credentials and endpoints come from the environment (AWS_…, GOOGLE_…, AZURE_…), never from the URL.
    # Passing faults are retried, but a store that is away must fail in bounded time.
    try:
        store = stores.from_url(
            location.url,
            # A request is given up after 30 s by default; options for that would replace the environment's.
            retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=RETRIED_S)},
        )
    except Exception as error:
        raise StorageError(
            f"{location} cannot be opened ({explain(error)}). "
            "Check the address, and the settings of the store in the environment"
        ) from error
    return ObjectStore(store, read_only=read_only)


@lru_cache  # once
def wait_at_exit() -> None:
    """Let the process wait at its end for threads of Icechunk and obstore; call it before they are used.

    When their work is done, these threads still have to release Python objects. If Python ends first, on a
    busy machine, a thread is unwound and frees them without Python's lock: 1 process of 20 died of it
    (SIGSEGV). No package can be asked to wait for its threads (issue 40 of PyO3/pyo3-async-runtimes).
    """
    atexit.register(_wait_until_threads_sleep)


def _wait_until_threads_sleep() -> None:
    # Sleeping releases Python's lock, so a thread that waits for it only to free objects is awake at the
    # next reading. A fixed time would not do: a thread may be ready and get no core for longer.
    until, quiet = time.monotonic() + _LATE_S, 0
    while quiet < 5 and time.monotonic() < until:
        time.sleep(0.02)
        are_awake = any(_is_awake(thread) for thread in Path("/proc/self/task").glob("*/stat"))
        quiet = 0 if are_awake else quiet + 1


def _is_awake(thread: Path) -> bool:
    try:
        name, _, state = thread.read_text().partition("(")[2].rpartition(") ")
    except OSError:  # it has ended
        return False
    return name.startswith("tokio") and state[0] in "RD"


def is_store_error(error: BaseException) -> bool:
    """Return whether an error means that a store refused or is away, rather than that its bytes are bad."""
    # Errors of object stores are not OSErrors; comparing the package's name does not import it.
    return isinstance(error, OSError) or type(error).__module__.startswith(("obstore", "icechunk"))


@contextmanager
def store_errors(what: str, then: str | None = None) -> Iterator[None]:
    """Turn errors of a store that refuses or is away into StorageError.

    `what`: what failed.
    `then`: what is left after the failure; advice follows it. None: neither is said.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, RFFDistError) or not is_store_error(error):
            raise
        advice = "" if then is None else f"{then}. {writing_advice(error)}"
        raise StorageError(f"{what}: {explain(error)}{advice}") from error


def explain(error: BaseException) -> str:
    """Return one line about a library's error, without credentials."""
    # obstore adds its internal state after "Debug source", Icechunk after "context:".
    text = " ".join(re.split(r"Debug source|\n\s*context:", str(error))[0].split())
    text = without_secrets(text)
    hint = next((f"; {hint}" for words, hint in _STORE_HINTS.items() if words in text), "")
    return f"{type(error).__name__}: {text[:300]}{hint}" if text else type(error).__name__


@contextmanager
def reaching(what: str, key: str = "", advice: str = _CHECK) -> Iterator[None]:
    """Turn all errors into StorageError: `what` cannot be done, `key` is what it was about, then `advice`."""
    try:
        yield
    except RFFDistError:
        raise
    except Exception as error:
        about = f"{key}: " if key else ""
        raise StorageError(f"{what} ({about}{explain(error)}). {advice}") from error


def exists(location: Location) -> bool:
    """Return whether anything is stored at `location`."""
    if location.scheme == "file":
        return os.path.lexists(location.path)
    if location.scheme == "memory":
        return location.path in MEMORY
    store = open_store(location)
    # A prefix is no object. One of these files is what makes it an output.
    names = (*DATASET_FILES, RECORD_FILE, POINTER_FILE)
    return any(read_bytes(store, name, where=location) is not None for name in names)


def may_hold(location: Location) -> bool:
    """Return whether to try reading at `location`: always in an object store, since it has no folders."""
    return location.is_remote or exists(location)


def list_names(location: Location) -> list[str]:
    """Like `sorted(os.listdir(path))` in any kind of store; an empty list if nothing is there.

    Raises StorageError if the store cannot be listed.
    """
    names: set[str] = set()
    if location.scheme == "memory":
        start = f"{location.path}/" if location.path else ""
        names = {name.removeprefix(start).partition("/")[0] for name in [*MEMORY] if name.startswith(start)}
        if location.path not in MEMORY:
            return sorted(names)
    store = open_store(location)

    async def gather() -> set[str]:
        return names | {name async for name in store.list_dir("")}

    # Zarr's `sync` itself waits without bound, here and elsewhere; the store's requests have theirs.
    with reaching(f"{location} cannot be listed"):
        return sorted(sync(gather()))


def is_given_up(location: Location) -> bool:
    """Return whether a folder, or all objects below a location, are so old that their writer must be dead."""
    if location.scheme == "memory":  # ends with its process
        return False
    if location.is_local:
        times = [datetime.fromtimestamp(os.stat(location.path).st_mtime, UTC)]
    else:
        times = [entry["last_modified"] for entry in _list_objects(location)]
    return all(datetime.now(UTC) - time > _GIVEN_UP for time in times)


def describe_files(folder: str) -> str:
    """Say how many files are in a folder and below it, with a digest of their names, sizes and times.

    `folder`: also one file.
    """
    if os.path.isfile(folder):
        stat = os.stat(folder)
        return f"a file of {stat.st_size:,} bytes, of the time {stat.st_mtime_ns}"
    # Names, sizes and times without contents: this runs at each opening and after failed reads.
    digest, n_files, n_bytes, seen = hashlib.sha256(), 0, 0, set[tuple[int, int]]()
    # Zarr reads the arrays and chunks behind symbolic links too.
    for place, folders, names in os.walk(folder, followlinks=True):
        with suppress(FileNotFoundError):  # removed at this moment
            stat = os.stat(place)
            if (stat.st_dev, stat.st_ino) in seen:  # a link to a folder above, or a second one
                folders.clear()
                continue
            seen.add((stat.st_dev, stat.st_ino))
        folders.sort()  # in place: `os.walk` descends in this order
        for name in filter(lambda name: os.path.islink(os.path.join(place, name)), folders):
            link = os.readlink(os.path.join(place, name))
            digest.update(f"{os.path.relpath(place, folder)}/{name} -> {link}\n".encode())
        for name in sorted(names):
            try:
                stat = os.stat(os.path.join(place, name))
            except FileNotFoundError:  # removed at this moment
                continue
            n_files, n_bytes = n_files + 1, n_bytes + stat.st_size
            line = f"{os.path.relpath(place, folder)}/{name} {stat.st_size} {stat.st_mtime_ns}\n"
            digest.update(line.encode())
    if not n_files:
        return "nothing is there"
    return f"{n_files:,} files of {human_bytes(n_bytes)} (digest {digest.hexdigest()[:20]})"


def digest_objects(location: Location) -> str | None:
    """Return a digest of the names, sizes, entity tags and times of all objects below a location.

    None if the object store cannot list them.
    """
    facts = ("path", "size", "e_tag", "last_modified")
    try:
        lines = sorted(" ".join(str(entry[name]) for name in facts) for entry in _list_objects(location))
    except StorageError as error:
        logger.debug("%s", error)
        return None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _list_objects(location: Location) -> list[Any]:
    store: Any = open_store(location)
    with reaching(f"{location} cannot be listed"):
        return list(itertools.chain.from_iterable(store.store.list()))


def _names_in_memory() -> list[str]:
    """Return the names that users gave: no parts of records, nothing hidden or unfinished."""
    names = (name for name in [*MEMORY] if not any(str(parent) in MEMORY for parent in Path(name).parents))
    return sorted(name for name in names if not name.startswith(".") and ".partial-" not in name)


def read_bytes(store: Store, key: str, *, where: Location | str) -> bytes | None:
    """Return the bytes stored under `key`, or None.

    Raises StorageError, which calls the store `where`, if the store refuses or is away.
    """
    with reaching(f"{where} cannot be read", key):
        try:
            buffer = sync(store.get(key, prototype=default_buffer_prototype()))
        except FileNotFoundError:  # the store's own folder is missing
            return None
    return None if buffer is None else buffer.to_bytes()


def read_file(location: Location, name: str) -> bytes | None:
    """Return the bytes of a file directly below `location`, or None; raises as `read_bytes`."""
    if not may_hold(location):
        return None
    return read_bytes(open_store(location), name, where=location)


def holds(location: Location, name: str) -> bool:
    """Return whether a file `name` is stored directly below `location`."""
    if location.is_local:
        return os.path.isfile(os.path.join(location.path, name))  # False where it may not be looked at
    return read_file(location, name) is not None


def beside(location: Location, kind: str) -> list[Location]:
    """Return the hidden folders `.NAME.KIND…` next to `location`, which runs use until they end."""
    if (first := location.hidden(kind)) is None:
        return []
    parent, slash, start = first.path.rpartition("/")
    names = list_names(Location(first.scheme, parent or slash))
    return [replace(first, path=f"{parent}{slash}{name}") for name in names if name.startswith(start)]


def hidden_beside(location: Location, kind: str) -> Location:
    """Return the place of a new hidden folder, which `beside` finds by the same `kind`."""
    parent, separator, name = location.path.rpartition("/")
    return Location(location.scheme, f"{parent}{separator}.{name}.{kind}-{uuid.uuid4().hex[:12]}")


def is_versioned(location: Location) -> bool:
    """Return whether a versioned dataset, an Icechunk repository, is at `location`."""
    if location.is_local and not Path(location.path, "snapshots").is_dir():
        return False
    return location.scheme != "memory" and any(holds(location, name) for name in REPOSITORY_FILES)


def stored_bytes(store: Store, path: str, label: str) -> int:
    """Return how many bytes are stored below a path; raises StorageError if the store is away."""
    with reaching(f"{label} cannot be measured"):
        return int(sync(store.getsize_prefix(path)))


def write_bytes(store: Store, key: str, *parts: bytes | memoryview, durable: bool = True) -> None:
    """Store bytes, whole or in parts, under `key`: readers see the old bytes or the new ones.

    In a folder they are written to a temporary file next to `key` first.

    `durable`: whether to wait until they are on the disk; if not, a power cut may damage them.
    """
    if not isinstance(store, LocalStore):
        sync(store.set(key, Buffer.from_bytes(b"".join(parts))))
        return
    path = Path(store.root) / key
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        # replaces in one step, for readers in all processes
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    # A power cut must not lose the names either: the file's, and those of folders that were made for it.
    if durable:
        sync_published(path.parent, *(folder.parent for folder in missing))


def delete_bytes(store: Store, key: str) -> None:
    """Remove what is stored under `key`, if anything."""
    sync(store.delete(key))


def writing_advice(error: BaseException) -> str:
    """Return what to do if the operating system or an object store refused to write."""
    # Icechunk's errors are no OSErrors, and have the system's number in their text.
    told = re.search(r"os error (\d+)", str(error))
    number = error.errno if isinstance(error, OSError) else told and int(told[1])
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free some space or choose another place"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Choose a folder that you may write to"
    if number == errno.ELOOP:
        return "Remove the symbolic link"
    return "Choose another place" if isinstance(error, OSError) else _CHECK


def sync_names(location: Location, n_names: int) -> None:
    """Wait until the last `n_names` names of a local path are on the disk, in the folders that list them."""
    if location.is_local:
        sync_published(*list(Path(location.path).parents)[:n_names])


def sync_published(*paths: PathLike) -> None:
    """Call `fsync_path` for what readers see already, so that a failure is only logged."""
    for path in paths:
        try:
            fsync_path(path)
        except OSError as error:
            logger.warning("%s is written, but a power cut may lose it (%s)", path, explain(error))


def fsync_path(path: PathLike) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
