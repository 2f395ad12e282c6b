"""Parse a path or a URL, and read and write single files in it.

A location is a folder: a local path, or a prefix of an object store. What `open` and
fsspec would lack: URLs that two programs read differently are refused, no credentials
are in a URL, files appear whole and survive a power cut, and errors say what to do.
"""

import atexit
import errno
import hashlib
import itertools
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from rff_dist.errors import IntegrityError, RFFDistError, StorageError
from rff_dist.lazy import require
from rff_dist.text import nearest, redact, without_secrets
from rff_dist.typing import PathLike, Summary, frozen

logger = logging.getLogger(__name__)

# Object stores are reached through obstore (the extra `s3`), which was twice as fast as
# s3fs in reading from a local server.
REMOTE_SCHEMES = ("s3", "gs", "az", "https")
ICEBERG = "iceberg"  # names a table of a catalog, which only `ingest` reads
SCHEMES = ("file", ICEBERG, *REMOTE_SCHEMES)
READ_ONLY_SCHEMES = ("https",)
NODE_FILES = ("zarr.json", ".zgroup", ".zarray")
# One of them is in each versioned dataset: Icechunk's list of branches, tags and
# snapshots, or the main branch in its format 1.
REPOSITORY_FILES = ("repo", "refs/branch.main/ref.json")
# A folder that contains one of these is a dataset, which an output may replace.
DATASET_FILES = (*NODE_FILES, *REPOSITORY_FILES)
# In a registered model's folder, above all its versions: names the current one.
POINTER_FILE = "current.json"

# Words in errors of object stores, and what these errors mean.
_STORE_HINTS = {
    "169.254.169.254": (
        "the environment has no AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ),
    "builder error": (
        "an endpoint of http:// needs AWS_ALLOW_HTTP=true in the environment"
    ),
}

_CHECK = "Check the address, the network and the permissions"
_CHOOSE = "Choose another place"

#: Seconds for which failed requests to an object store are repeated.
RETRIED_S = 60
MAX_METADATA_BYTES = 64 * 2**20
_AT_ONCE = 10  # requests
_ABANDONED_AFTER = timedelta(days=1)
# The longest wait of a process at its end for threads of Icechunk and obstore.
_EXIT_S = 10


@frozen
class Location:
    """A folder in a store.

    >>> parse_location('s3://bucket/models/main').child('versions').url
    's3://bucket/models/main/versions'
    """

    scheme: str  # one of SCHEMES
    #: An absolute local path, a catalog and a table, or a bucket and a prefix.
    path: str

    @property
    def url(self) -> str:
        return self.path if self.is_local else f"{self.scheme}://{self.path}"

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    @property
    def is_remote(self) -> bool:
        """Whether it is in an object store."""
        return self.scheme in REMOTE_SCHEMES

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        """The folder that it is in."""
        return replace(self, path=self.path.rpartition("/")[0] or "/")

    def child(self, name: str) -> Self:
        """Return the folder `name` below this one."""
        return replace(self, path=f"{self.path}/{name}")

    def hidden(self, kind: str) -> Self:
        """Return the hidden folder `.NAME.KIND` next to this one."""
        stem = self.path.removesuffix(self.name)
        return replace(self, path=f"{stem}.{self.name}.{kind}")

    def __str__(self) -> str:
        return self.url


def parse_location(url: PathLike) -> Location:
    """Parse a local path or a URL; nothing is opened.

    Raises StorageError if the scheme is not one of `SCHEMES`, or the URL is a chain
    (`::`), contains credentials, or is read in different ways by different programs.
    """
    if not isinstance(url, str | os.PathLike):
        raise StorageError(
            f"a {type(url).__name__} is no location; expected a path or a URL. Models"
            " take rows in memory as they are, and write_dataset stores them"
        )
    text = os.fspath(url)
    if not text.strip():
        raise StorageError(
            f"not a location: {text!r}; expected a path or a URL such as"
            " s3://bucket/data.zarr"
        )
    if "::" in text:  # a chain of fsspec: its inner scheme would not be checked
        raise StorageError(
            f"chained URLs are not followed: {redact(text)}; expected one location."
            " Copy the data first"
        )
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator:
        if re.match(rf"({'|'.join(SCHEMES)}):/", text):
            raise StorageError(
                f"{redact(text)} has one slash after its scheme; expected two, and URLs"
                " as text, since pathlib.Path drops one"
            )
        return _local(os.path.expanduser(text))
    if scheme not in SCHEMES:
        near = nearest(scheme, SCHEMES, cutoff=0.5)
        hint = f"did you mean {near}://?" if near else "expected a path or a URL"
        raise StorageError(
            f"unknown scheme {scheme}:// in {redact(text)}; {hint} (known:"
            f" {', '.join(SCHEMES)})"
        )
    if redact(text) != text:
        raise StorageError(
            f"credentials do not belong in a URL: {redact(text)}; give them in the"
            " environment, where logs and reports do not show them. '?' and '#' begin a"
            " query, and cannot be part of a name"
        )
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost") or not slash:
            raise StorageError(
                f"{text} names the host {host!r}; expected file:///absolute/path"
            )
        return _local(unquote("/" + path))
    location = Location(scheme, rest.rstrip("/"))
    if "/" not in location.path.lstrip("/"):
        raise StorageError(
            f"{text} names nothing in it; expected two parts, as in s3://bucket/name"
        )
    if location.is_remote and not _is_plain(location):
        raise StorageError(
            f"{text} may mean different places to different programs; expected a name"
            " as it is stored, without '%', '\\', '//', '.' or '..' as parts, and"
            " spaces at an end"
        )
    return location


def _is_plain(location: Location) -> bool:
    """Return whether all libraries decode and resolve a name in the same way."""
    path = location.path
    if not path.isprintable() or path != path.strip() or "\\" in path:
        return False
    if {"", ".", ".."} & {*path.split("/")}:
        return False
    if location.scheme in READ_ONLY_SCHEMES:
        # Names of https need percent signs.
        return path.isascii() and " " not in path
    return "%" not in path


def local_path(url: PathLike) -> Path:
    """Return the path of a file or folder that can be written on this machine only."""
    location = parse_location(url)
    if not location.is_local:
        raise StorageError(f"{location} is not on this machine; expected a path")
    return Path(location.path)


def _local(path: str) -> Location:
    """Return a local location; a link to a folder is that folder, with its lock."""
    path = os.path.abspath(path)
    # A link to a file may have the only suffix by which its kind is known.
    if os.path.islink(path) and os.path.isdir(path):
        path = os.path.realpath(path)
    return Location("file", path)


# -- object stores


def open_objects(location: Location) -> Any:
    """Open the objects below `location`, which is not local, as a store of obstore."""
    if location.scheme == ICEBERG:
        raise StorageError(
            f"{location} is a table of a catalog, not a place for Zarr; ingest it first"
        )
    stores = require(
        "obstore.store", f"{location.scheme}:// needs the package obstore", "s3"
    )
    wait_at_exit()
    # Credentials and endpoints come from the environment (AWS_…, GOOGLE_…, AZURE_…),
    # never from the URL. Failures that pass are retried, but a store that does not
    # answer must fail in bounded time. obstore gives up a request after 30 s by
    # default; an option for that here would replace the environment's options.
    retries = {"max_retries": 4, "retry_timeout": timedelta(seconds=RETRIED_S)}
    try:
        return stores.from_url(location.url, retry_config=retries)
    except Exception as error:
        raise StorageError(
            f"{location} cannot be opened ({explain(error)}). "
            "Check the address, and the settings of the store in the environment"
        ) from error


def refuse_read_only(location: Location) -> None:
    """Raise StorageError if nothing can be written at `location`."""
    if location.scheme in READ_ONLY_SCHEMES:
        raise StorageError(
            f"{location} can only be read; write to a path or an object store"
        )


@lru_cache  # once
def wait_at_exit() -> None:
    """Let the process wait at its end for threads of Icechunk and obstore; call it
    before they are used.

    When their work is done, these threads still have to release Python objects. If
    Python ends first, on a busy machine, a thread is unwound and frees them without
    Python's lock: 1 process of 20 died of it (SIGSEGV). No package can be asked to wait
    for its threads (issue 40 of PyO3/pyo3-async-runtimes).
    """
    atexit.register(_wait_until_threads_sleep)


def _wait_until_threads_sleep() -> None:
    # Sleeping here releases Python's lock, so a thread that waited for the lock to free
    # objects is awake at the next look. One fixed wait is not enough: on a busy machine
    # a thread may get no core for longer.
    deadline = time.monotonic() + _EXIT_S
    n_quiet = 0
    while n_quiet < 5 and time.monotonic() < deadline:
        time.sleep(0.02)
        threads = Path("/proc/self/task").glob("*/stat")
        n_quiet = 0 if any(map(_is_awake, threads)) else n_quiet + 1


def _is_awake(thread: Path) -> bool:
    try:
        name, _, state = thread.read_text().partition("(")[2].rpartition(") ")
    except OSError:  # it has ended
        return False
    return name.startswith("tokio") and state[0] in "RD"


# -- errors


def is_store_error(error: BaseException) -> bool:
    """Return whether a store refused a request or did not answer; False for an error
    about the bytes.
    """
    # Errors of object stores are not OSErrors. They are known by their package's name,
    # so that the package need not be imported.
    module = type(error).__module__
    return isinstance(error, OSError) or module.startswith(("obstore", "icechunk"))


@contextmanager
def store_errors(failure: str, consequence: str | None = None) -> Iterator[None]:
    """Turn errors by `is_store_error` into StorageError.

    With a consequence, such as "; the old dataset stays", the error also gives advice.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, RFFDistError) or not is_store_error(error):
            raise
        text = f"{failure}: {explain(error)}"
        if consequence is not None:
            text += f"{consequence}. {writing_advice(error)}"
        raise StorageError(text) from error


@contextmanager
def reaching(failure: str, key: str = "", advice: str = _CHECK) -> Iterator[None]:
    """Turn all errors of a request about `key` into StorageError."""
    try:
        yield
    except RFFDistError:
        raise
    except Exception as error:
        about = f"{key}: " if key else ""
        raise StorageError(f"{failure} ({about}{explain(error)}). {advice}") from error


def explain(error: BaseException) -> str:
    """Return one line about a library's error, without credentials."""
    # obstore adds its internal state after "Debug source", Icechunk after "context:".
    text = " ".join(re.split(r"Debug source|\n\s*context:", str(error))[0].split())
    text = without_secrets(text)
    if not text:
        return type(error).__name__
    line = f"{type(error).__name__}: {text[:300]}"
    for words, hint in _STORE_HINTS.items():
        if words in text:
            line += f"; {hint}"
    return line


def writing_advice(error: BaseException) -> str:
    """Return what to do if the operating system or an object store refused to write."""
    # Icechunk's errors are not OSErrors, but have the system's number in their text.
    match = re.search(r"os error (\d+)", str(error))
    number = error.errno if isinstance(error, OSError) else match and int(match[1])
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free some space or choose another place"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Choose a folder that you may write to"
    if number == errno.ELOOP:
        return "Remove the symbolic link"
    return _CHOOSE if isinstance(error, OSError) else _CHECK


# -- contents of a location


def exists(location: Location) -> bool:
    """Return whether anything is stored at `location`."""
    if location.is_local:
        return os.path.lexists(location.path)
    # A prefix is no object, so look for the files that every output has one of.
    return any(has_file(location, name) for name in (*DATASET_FILES, POINTER_FILE))


def has_file(location: Location, name: str) -> bool:
    """Return whether a file `name` is stored directly below `location`."""
    if location.is_local:
        # also False without permission to look
        return os.path.isfile(os.path.join(location.path, name))
    return read_file(location, name) is not None


def is_versioned(location: Location) -> bool:
    """Return whether a versioned dataset, an Icechunk repository, is at `location`."""
    if location.is_local and not os.path.isdir(f"{location.path}/snapshots"):
        return False
    return any(has_file(location, name) for name in REPOSITORY_FILES)


def list_names(location: Location) -> list[str]:
    """Return the sorted names in a folder of any store; empty if nothing is there."""
    with reaching(f"{location} cannot be listed"):
        if location.is_local:
            with suppress(FileNotFoundError, NotADirectoryError):
                return sorted(os.listdir(location.path))
            return []
        listing = open_objects(location).list_with_delimiter()
        paths = [entry["path"] for entry in listing["objects"]]
        paths += listing["common_prefixes"]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)


def hidden_folders(location: Location, kind: str) -> list[Location]:
    """Return the folders `.NAME.KIND…` next to `location`: unfinished work of runs."""
    start = location.hidden(kind)
    stem = start.path.removesuffix(start.name)
    return [
        replace(location, path=f"{stem}{name}")
        for name in list_names(location.parent)
        if name.startswith(start.name)
    ]


def new_hidden_folder(location: Location, kind: str) -> Location:
    """Return a new place that `hidden_folders` of the same `kind` finds."""
    return location.hidden(f"{kind}-{uuid.uuid4().hex[:12]}")


def is_abandoned(location: Location) -> bool:
    """Return whether everything there is so old that its writer must be dead."""
    if location.is_local:
        times = [datetime.fromtimestamp(os.stat(location.path).st_mtime, UTC)]
    else:
        times = [entry["last_modified"] for entry in _list_objects(location)]
    return all(datetime.now(UTC) - time > _ABANDONED_AFTER for time in times)


def describe_files(folder: str) -> str:
    """Return the number of files below a folder and a digest of names, sizes and times,
    in a text.
    """
    # without contents, as this runs whenever a dataset is opened or a read failed
    digest = hashlib.sha256()
    n_files = 0
    visited = set[tuple[int, int]]()
    # Zarr reads the arrays and chunks behind symbolic links too.
    for place, folders, names in os.walk(folder, followlinks=True):
        relative = os.path.relpath(place, folder)
        with suppress(FileNotFoundError):  # removed at this moment
            stat = os.stat(place)
            # a link to a folder above, or a second link to the same folder
            if (stat.st_dev, stat.st_ino) in visited:
                folders.clear()
                continue
            visited.add((stat.st_dev, stat.st_ino))
        folders.sort()  # in place: `os.walk` descends in this order
        for name in folders:
            if os.path.islink(path := os.path.join(place, name)):
                digest.update(f"{relative}/{name} -> {os.readlink(path)}\n".encode())
        for name in sorted(names):
            try:
                stat = os.stat(os.path.join(place, name))
            except FileNotFoundError:  # removed at this moment
                continue
            n_files += 1
            line = f"{relative}/{name} {stat.st_size} {stat.st_mtime_ns}\n"
            digest.update(line.encode())
    if not n_files:
        return "nothing is there"
    return f"{n_files:,} files (digest {digest.hexdigest()[:20]})"


def digest_objects(location: Location) -> str | None:
    """Return a digest of the names, sizes, entity tags and times of all objects below a
    location; None if the object store cannot list them.
    """
    facts = ("path", "size", "e_tag", "last_modified")
    try:
        entries = _list_objects(location)
    except StorageError as error:
        logger.debug("%s", error)
        return None
    lines = sorted(" ".join(str(entry[name]) for name in facts) for entry in entries)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _list_objects(location: Location) -> list[Any]:
    with reaching(f"{location} cannot be listed"):
        return list(itertools.chain.from_iterable(open_objects(location).list()))


# -- single files


def read_file(location: Location, name: str) -> bytes | None:
    """Return the bytes of a file below `location`, or None."""
    with (
        reaching(f"{location} cannot be read", name),
        # the file may be missing, or its folder
        suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError),
    ):
        if location.is_local:
            return Path(location.path, name).read_bytes()
        return bytes(open_objects(location).get(name).bytes())
    return None


def write_file(
    location: Location,
    name: str,
    *parts: bytes | memoryview,
    is_durable: bool = True,
) -> None:
    """Store the bytes of all parts as a file below `location`: readers see the old
    bytes or the new ones.

    If it is not durable, a power cut may damage the bytes: there is no wait for the
    disk.
    """
    if not location.is_local:
        open_objects(location).put(name, b"".join(parts))
        return
    path = Path(location.path, name)
    new_folders = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if is_durable:
                os.fsync(file.fileno())
        # replaces in one step, for readers in all processes
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    # A power cut must not lose names either: of the file, and of its new folders.
    if is_durable:
        sync_published(path.parent, *(folder.parent for folder in new_folders))


def delete_file(location: Location, name: str) -> None:
    """Remove a file below `location`, if it is there."""
    with suppress(FileNotFoundError):
        if location.is_local:
            os.unlink(os.path.join(location.path, name))
        else:
            open_objects(location).delete(name)


def delete_objects(location: Location) -> None:
    """Remove all objects below a location in an object store.

    The files that identify a dataset are not in a folder below, and go last, so that an
    interrupted removal can be repeated.
    """
    objects = open_objects(location)

    def delete(name: str) -> None:
        with suppress(FileNotFoundError):  # another process removes the same things
            objects.delete(name)

    names = [entry["path"] for entry in _list_objects(location)]
    in_folders = [name for name in names if "/" in name]
    others = [name for name in names if "/" not in name]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for group in (in_folders, others):
            list(pool.map(delete, group))


def sync_published(*paths: PathLike) -> None:
    """Sync files or folders that readers see already; a failure is only logged."""
    for path in paths:
        try:
            fsync_path(path)
        except OSError as error:
            logger.warning(
                "%s is written, but a power cut may lose it (%s)", path, explain(error)
            )


def fsync_path(path: PathLike) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- JSON


def load_json(content: bytes, where: str) -> Summary:
    """Parse a JSON object from a file that may be hostile: too long or too deep."""
    n_bytes = len(content)
    defect = f"are {n_bytes:_} bytes; expected at most {MAX_METADATA_BYTES:_}"
    if n_bytes <= MAX_METADATA_BYTES:
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            defect = f"are not JSON ({explain(error)})"
        else:
            if isinstance(data, dict):
                return data
            defect = f"are a JSON {type(data).__name__}; expected an object"
    raise IntegrityError(
        f"the metadata of {where} {defect}. Restore it from a copy, or write it again"
    )


def json_digest(values: Any) -> str:
    """Return the SHA-256 of JSON values, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
