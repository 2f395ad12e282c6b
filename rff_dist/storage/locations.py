"""Where things are stored: the URLs that are allowed, and how an output appears all at once.

A location is a folder: a local path, a store in this process's memory (`memory://name`), or a prefix of an
object store. Local outputs are written to a sibling folder and renamed, those in memory are swapped in the
table of names; both appear complete or not at all. An object store cannot rename, so there the group's
attributes say whether it is complete.
"""

from __future__ import annotations

import asyncio
import ctypes
import difflib
import errno
import hashlib
import importlib.util
import itertools
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from zarr.abc.store import Store
from zarr.buffer.cpu import Buffer
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, ObjectStore

from rff_dist.errors import MissingDependencyError, OutputExistsError, RFFDistError, StorageError
from rff_dist.text import redact

logger = logging.getLogger(__name__)

# Read and written through obstore, the extra `s3`: against a local server it read twice as fast as s3fs.
REMOTE_SCHEMES = ("s3", "gs", "az", "https")
SCHEMES = ("file", "memory", *REMOTE_SCHEMES)
_READ_ONLY_SCHEMES = ("https",)
_NODE_FILES = ("zarr.json", ".zgroup", ".zarray")
# What a versioned dataset begins with: its branches, tags and snapshots.
REPOSITORY_FILE = "repo"
# By these an output may be told to be a dataset, and be replaced.
DATASET_FILES = (*_NODE_FILES, REPOSITORY_FILE)
# What a writer of a model leaves that was killed, or whose store was away when it failed.
_PART_OF_MODEL = re.compile(r"arrays-[0-9a-f]{32}\.zarr|\.model\.json\.[0-9a-f]{32}")
# A request to an object store is given up after so many seconds.
_DRAINED_S = 60.0
# Says which version of a registered model is current; the folder that it is in holds all versions.
POINTER_FILE = "current.json"
# Says what a version was made of, and that it was published.
LINEAGE_FILE = "lineage.json"

# What an object store's errors mean that do not say so themselves.
_STORE_HINTS = {
    "169.254.169.254": "the environment holds no AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "builder error": "an endpoint of http:// needs AWS_ALLOW_HTTP=true in the environment",
}

# `memory://name` promises one dataset per name and process, which needs one table per process.
_MEMORY: dict[str, MemoryStore] = {}


@dataclass(frozen=True, slots=True)
class Location:
    """A folder in a store.

    `scheme`: one of `SCHEMES`.
    `path`: an absolute local path, a name in memory, or bucket and prefix.
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

    def child(self, name: str) -> Location:
        """Return the folder `name` below this one."""
        return Location(self.scheme, f"{self.path}/{name}")

    def __str__(self) -> str:
        return self.url


def parse_location(url: str | os.PathLike[str]) -> Location:
    """Read a local path or a URL; nothing is opened.

    Raises StorageError if the scheme is not one of `SCHEMES`, or the URL is a chain (`::`) or carries
      credentials.
    """
    text = os.fspath(url)
    if not text.strip():
        raise StorageError(
            f"not a location: {text!r}; expected a path or a URL such as s3://bucket/data.zarr"
        )
    if "::" in text:
        raise StorageError(
            f"chained URLs are not followed: {redact(text)}; expected one location. Copy the data first"
        )
    scheme, separator, rest = text.partition("://")
    if not separator:
        return Location("file", os.path.abspath(os.path.expanduser(text)))
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
            "where logs and reports do not show them"
        )
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost") or not slash:
            raise StorageError(f"{text} names the host {host!r}; expected file:///absolute/path")
        return Location("file", os.path.abspath(unquote("/" + path)))
    if not rest.strip("/"):
        raise StorageError(f"{text} names nothing; expected {scheme}://name")
    return Location(scheme, rest.rstrip("/"))


def open_store(location: Location, *, read_only: bool) -> Store:
    """Open the Zarr store at `location`; a store in memory is created when it is to be written.

    Raises StorageError if a store in memory is to be read and this process has none of that name;
      MissingDependencyError if the package for the scheme is not installed.
    """
    if location.scheme == "file":
        return LocalStore(location.path, read_only=read_only)
    if location.scheme == "memory":
        if location.path not in _MEMORY:
            if read_only:
                raise StorageError(
                    f"{location} is not in this process, whose stores in memory are {_names_in_memory()}; "
                    "a store in memory lives in the process that wrote it. Write to a path to share it"
                )
            _MEMORY[location.path] = MemoryStore()
        return _MEMORY[location.path].with_read_only(read_only)
    if not read_only and location.scheme in _READ_ONLY_SCHEMES:
        raise StorageError(f"{location} can only be read; write to a path or an object store")
    if importlib.util.find_spec("obstore") is None:
        raise MissingDependencyError(
            f"{location.scheme}:// needs the package obstore, which is not installed: pip install "
            "rff_dist[s3]"
        )
    from obstore.store import from_url

    # Credentials and endpoints come from the environment (AWS_…, GOOGLE_…, AZURE_…), never from the URL.
    try:
        store = from_url(
            location.url,
            retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=60)},
        )
    except Exception as error:
        raise StorageError(
            f"{location} cannot be opened ({explain(error)}). "
            "Check the address, and the settings of the store in the environment"
        ) from error
    return ObjectStore(store, read_only=read_only)


def is_store_error(error: BaseException) -> bool:
    """Tell whether an error says that a store refused or is away, rather than that its bytes are bad."""
    # Errors of an object store are no OSErrors; naming their package does not import it.
    return isinstance(error, OSError) or type(error).__module__.startswith(("obstore", "icechunk"))


@contextmanager
def store_errors(what: str, then: str | None = None) -> Iterator[None]:
    """Say `what` failed where a store refuses or is away, `then` what is left of it, and what to do."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RFFDistError) or not is_store_error(error):
            raise
        advice = "" if then is None else f"{then}. {writing_advice(error)}"
        raise StorageError(f"{what}: {explain(error)}{advice}") from error


def explain(error: BaseException) -> str:
    """One line about an error of a library, without what may not be shown."""
    # obstore adds its internal state after "Debug source", Icechunk after "context:".
    text = " ".join(re.split(r"Debug source|\n\s*context:", str(error))[0].split())
    text = re.sub(r"(://)[^/@\s]*@", r"\1***@", text)
    text = re.sub(r"(://[^\s?#]*)[?#]\S*", r"\1?***", text)
    hint = next((f"; {hint}" for words, hint in _STORE_HINTS.items() if words in text), "")
    return f"{type(error).__name__}: {text[:300]}{hint}" if text else type(error).__name__


def unreachable(what: str, error: BaseException, key: str = "") -> StorageError:
    """Return the error of a store that did not answer; `what` cannot be done, `key` is what it was about."""
    about = f"{key}: " if key else ""
    return StorageError(
        f"{what} ({about}{explain(error)}). Check the address, the network and the permissions"
    )


def exists(location: Location) -> bool:
    """Say whether anything is stored at `location`."""
    if location.scheme == "file":
        return os.path.lexists(location.path)
    if location.scheme == "memory":
        return location.path in _MEMORY
    store = open_store(location, read_only=True)
    names = (*DATASET_FILES, "model.json", POINTER_FILE)
    return any(read_bytes(store, name, where=location) is not None for name in names)


def may_hold(location: Location) -> bool:
    """Say whether `location` is worth reading from; an object store has no folders that could be missing."""
    return location.scheme not in ("file", "memory") or exists(location)


def list_names(location: Location) -> list[str]:
    """Return the names of what is stored directly below `location`, sorted; nothing there is no name.

    Raises StorageError if the store cannot be listed.
    """
    if location.scheme == "memory":
        start = f"{location.path}/" if location.path else ""
        names = {name.removeprefix(start).partition("/")[0] for name in _MEMORY if name.startswith(start)}
        if location.path not in _MEMORY:
            return sorted(names)
    else:
        names = set()

    return sorted(names.union(names_in(open_store(location, read_only=True), where=location)))


def names_in(store: Store, *, where: Location) -> list[str]:
    """Return the names of what is stored at the top of a store; a store that is away is a StorageError."""

    async def gather() -> list[str]:
        return [name async for name in store.list_dir("")]

    try:
        return sync(gather())
    except Exception as error:
        raise unreachable(f"{where} cannot be listed", error) from error


def digest_objects(location: Location) -> str | None:
    """Return a digest of the names, sizes and entity tags of all objects below a location of an object store.

    None where the store cannot list them.
    """
    store: Any = open_store(location, read_only=True)
    lines = []
    try:
        for found in itertools.chain.from_iterable(store.store.list()):
            lines.append(f"{found['path']} {found['size']} {found['e_tag']} {found['last_modified']}")
    except Exception as error:
        logger.debug("%s cannot be listed: %s", location, explain(error))
        return None
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _names_in_memory() -> list[str]:
    """Names that a user gave: not the parts of records, nor what is hidden or unfinished."""
    names = (name for name in _MEMORY if not any(str(parent) in _MEMORY for parent in Path(name).parents))
    return sorted(name for name in names if not name.startswith(".") and ".partial-" not in name)


def read_bytes(store: Store, key: str, *, where: Location | str) -> bytes | None:
    """Return the bytes stored under `key`, or None; a store that refuses or is away is a StorageError.

    `where` is what errors call the store.
    """
    try:
        buffer = sync(store.get(key, prototype=default_buffer_prototype()))
    except FileNotFoundError:  # the folder that the store is in
        return None
    except RFFDistError:
        raise
    except Exception as error:
        raise unreachable(f"{where} cannot be read", error, key) from error
    return None if buffer is None else buffer.to_bytes()


def stored_bytes(store: Store, path: str, label: str) -> int:
    """Return how many bytes are stored below a path; a store that is away is a StorageError."""
    try:
        return int(sync(store.getsize_prefix(path)))
    except Exception as error:
        raise unreachable(f"{label} cannot be measured", error) from error


def write_bytes(store: Store, key: str, content: bytes, *, scratch: str | None = None) -> None:
    """Store bytes under `key`: readers see the old bytes or the new ones, also after a power cut.

    In a folder they are gathered in a file beside `key`, or in the folder `scratch` of the store.
    """
    write_parts(store, key, [content], scratch=scratch)


def write_parts(
    store: Store,
    key: str,
    parts: Sequence[bytes | memoryview],
    *,
    scratch: str | None = None,
    durable: bool = True,
) -> None:
    """Store bytes that come in parts under `key`, as `write_bytes` does.

    `durable`: whether they must be on the disk of a folder at once; else a power cut may damage them.
    """
    if not isinstance(store, LocalStore):
        sync(store.set(key, Buffer.from_bytes(b"".join(parts))))
        return
    path = Path(store.root) / key
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    gathered = path.parent if scratch is None else Path(store.root) / scratch
    temporary = gathered / f".{path.name}.{uuid.uuid4().hex}"
    try:
        with open(temporary, "xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if not durable:
        return
    for folder in (path.parent, *(folder.parent for folder in missing)):
        fsync_path(folder)


def delete_bytes(store: Store, key: str) -> None:
    """Remove what is stored under `key`; nothing there is no error."""
    sync(store.delete(key))


def check_output(
    location: Location,
    *,
    overwrite: bool,
    inputs: Sequence[Location] = (),
    marker: tuple[str, ...] = _NODE_FILES,
) -> None:
    """Refuse an output that exists, is inside another dataset, overlaps an input, or cannot be written.

    Whether a local folder can be written is tried, by making and removing an empty folder: permissions do not
    tell of a file system that is full, read-only or unlike others.

    `location`: where the output is to be.
    `overwrite`: whether what is there may be replaced. Only something of our own kind is: a folder that holds
      one of the files in `marker`, or nothing.
    `inputs`: what is read while the output is written.
    `marker`: names of the files that tell that a folder may be replaced.
    Raises OutputExistsError if it exists and `overwrite` is False, or it is a registered model or a version
      of one; StorageError in the other cases.
    """
    for source in inputs:
        if _overlap(location, source):
            raise StorageError(
                f"the output {location} and the input {source} overlap; "
                "write to another place, so that the input stays whole while it is read"
            )
    if location.scheme in _READ_ONLY_SCHEMES:
        raise StorageError(f"{location} can only be read; write to a path or an object store")
    if location.is_local:
        for parent in Path(location.path).parents:
            versioned = (parent / REPOSITORY_FILE).is_file() and (parent / "snapshots").is_dir()
            if versioned or any((parent / name).is_file() for name in _NODE_FILES):
                raise StorageError(
                    f"the output {location} lies inside the Zarr data {parent}; write beside it"
                )
    if not exists(location):
        _refuse_others_objects(location)
        _try_writing(location)
        return
    if holds_versions(location):
        raise OutputExistsError(
            f"{location} is a registered model, which keeps all of its versions; publish the next one with "
            "register=True, or choose another name"
        )
    if overwrite and _holds(location, LINEAGE_FILE):
        raise OutputExistsError(
            f"{location} is a published version of a registered model, which is never replaced; publish the "
            "next one with register=True, or choose another name"
        )
    begun = is_unfinished(location) and (location.is_remote or "model.json" in marker)
    if not overwrite and not begun:
        raise OutputExistsError(
            f"{location} exists already; choose another name, or give overwrite=True "
            "(--overwrite at the command line) to replace it"
        )
    if location.is_local:
        path = Path(location.path)
        replaceable = begun or (
            path.is_dir() and (any((path / name).is_file() for name in marker) or not any(path.iterdir()))
        )
    elif location.is_remote:
        store = open_store(location, read_only=True)
        replaceable = any(read_bytes(store, name, where=location) is not None for name in marker)
    else:
        replaceable = True
    if not replaceable:
        raise StorageError(
            f"{location} is not replaced: overwriting removes what is there, and it holds none of "
            f"{', '.join(marker)}. Remove it yourself if it is not needed"
        )
    if location.is_local:
        # A model is replaced in its folder, a dataset beside it.
        _try_writing(location.child("model") if "model.json" in marker else location)


def holds_versions(location: Location) -> bool:
    """Say whether `location` is a registered model of which a version is current."""
    return _holds(location, POINTER_FILE)


def _holds(location: Location, name: str) -> bool:
    if location.is_local:
        return Path(location.path, name).is_file()
    if not may_hold(location):
        return False
    return read_bytes(open_store(location, read_only=True), name, where=location) is not None


def writing_advice(error: BaseException) -> str:
    """Say what to do about an output that the operating system or an object store refused."""
    if not isinstance(error, OSError):
        return "Check the address, the network and the permissions"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free some space or choose another place"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Choose a folder that you may write to"
    return "Choose another place"


def _refuse_others_objects(location: Location) -> None:
    """Refuse a prefix, a whole bucket say, of what is not ours: a failed write would remove that too."""
    if not location.is_remote:
        return
    names = [name for name in list_names(location) if not _PART_OF_MODEL.fullmatch(name)]
    if names:
        raise StorageError(
            f"{location} holds other things ({', '.join(names[:5])}{', …' if len(names) > 5 else ''}) and no "
            "dataset or model; expected a name of its own. Write to a name below it"
        )


def _try_writing(location: Location) -> None:
    """Make and remove an empty folder where the output's unfinished folder is going to be."""
    if not location.is_local:
        return
    path = Path(stage(location).path)
    folder = next(parent for parent in path.parents if os.path.lexists(parent))
    probe = folder / path.name
    try:
        os.mkdir(probe)
        os.rmdir(probe)
    except OSError as error:
        raise StorageError(
            f"{location} cannot be written: {folder}: {error.strerror or error}. {writing_advice(error)}"
        ) from error


def stage(location: Location) -> Location:
    """Return the place to write an output of `location` until `put_in_place`; nothing is created."""
    token = uuid.uuid4().hex[:12]
    if location.is_local:
        path = Path(location.path)
        return Location("file", str(path.with_name(f".{path.name}.partial-{token}")))
    if location.scheme == "memory":
        return Location("memory", f"{location.path}.partial-{token}")
    return location


def put_in_place(staged: Location, location: Location, *, overwrite: bool) -> None:
    """Move a finished output to its place: fsync, then rename.

    With `overwrite` the two folders change names at once, and the old one is removed. Where the file system
    cannot do that, the old one is moved aside and the new one moved in: whoever opens `location` in between
    finds nothing there, and never a mixture.

    Raises OutputExistsError if something has appeared at `location` and `overwrite` is False.
    """
    if staged == location:
        return
    if location.scheme == "memory":
        if not overwrite and location.path in _MEMORY:
            raise OutputExistsError(f"{location} was written meanwhile; choose another name")
        _MEMORY[location.path] = _MEMORY.pop(staged.path)
        return
    _fsync_tree(staged.path)
    aside = f"{staged.path}.old"
    try:
        if overwrite and os.path.lexists(location.path):
            if _exchange(staged.path, location.path):
                aside = staged.path
            else:
                os.rename(location.path, aside)
        if aside != staged.path:
            os.rename(staged.path, location.path)
    except OSError as error:
        if os.path.lexists(aside) and not os.path.lexists(location.path):
            os.rename(aside, location.path)
        if os.path.lexists(location.path) and not overwrite:
            raise OutputExistsError(f"{location} was written meanwhile; choose another name") from error
        raise
    fsync_path(Path(location.path).parent)
    if os.path.lexists(aside):
        shutil.rmtree(aside)


def _exchange(one: str, other: str) -> bool:
    """Let two names change places at once, and tell whether this system and this file system can."""
    try:
        rename: Any = ctypes.CDLL(None).renameat2  # Linux; glibc 2.28, musl 1.2
    except (AttributeError, OSError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def drain() -> None:
    """Wait until this process writes nothing more: of several chunks the others go on when one has failed."""

    async def wait() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_DRAINED_S)

    sync(wait())


def discard(location: Location) -> None:
    """Remove what is stored at `location` and below; nothing there is no error."""
    drain()
    if location.is_local and os.path.isfile(location.path):
        os.unlink(location.path)
    elif location.is_local:
        shutil.rmtree(location.path, ignore_errors=True)
    elif location.scheme == "memory":
        for name in [n for n in _MEMORY if n == location.path or n.startswith(location.path + "/")]:
            del _MEMORY[name]
    else:
        try:
            store = open_store(location, read_only=False)
            # What tells a dataset goes last: a discard that was interrupted can be repeated.
            for name in list_names(location):
                if name not in DATASET_FILES:
                    sync(store.delete_dir(name))
            sync(store.delete_dir(""))
        except Exception as error:
            logger.warning("%s could not be removed (%s); remove it yourself", location, explain(error))


def parts_of_model(location: Location) -> list[str] | None:
    """Return the names in a folder that is empty or holds parts of a model alone; None of any other."""
    if not location.is_local or not Path(location.path).is_dir():
        return None
    names = list_names(location)
    return names if all(_PART_OF_MODEL.fullmatch(name) for name in names) else None


def is_unfinished(location: Location) -> bool:
    """Tell whether a writer began a model, or a dataset in an object store, and has not finished it."""
    if location.is_local:
        return parts_of_model(location) is not None
    if not location.is_remote:
        return False
    store = open_store(location, read_only=True)
    content = read_bytes(store, "zarr.json", where=location)
    if content is None:
        from rff_dist.storage.repositories import is_empty  # which imports this module

        return read_bytes(store, REPOSITORY_FILE, where=location) is not None and is_empty(location)
    try:
        state: str = json.loads(content)["attributes"]["rff_dist"]["state"]
    except (ValueError, KeyError, TypeError):
        return False
    return state == "writing"


def unfinished(location: Location) -> list[str]:
    """Paths of outputs of `location` that were begun and not finished."""
    if not location.is_local:
        return []
    path = Path(location.path)
    if not path.parent.is_dir():
        return []
    start = f".{path.name}.partial-"
    return sorted(str(entry) for entry in path.parent.iterdir() if entry.name.startswith(start))


def beside(location: Location, kind: str) -> list[Location]:
    """Hidden folders `.NAME.KIND…` beside `location`, where runs keep what they need until they end."""
    parent, separator, name = location.path.rpartition("/")
    if not separator and location.scheme != "memory":  # a whole bucket
        return []
    folder = Location(location.scheme, parent or separator)
    found = [child for child in list_names(folder) if child.startswith(f".{name}.{kind}")]
    return [Location(location.scheme, f"{parent}{separator}{child}") for child in found]


def sync_to_disk(location: Location) -> None:
    """Wait until all files at a local `location` are on the disk."""
    if location.is_local:
        _fsync_tree(location.path)


def sync_names(location: Location, n_names: int) -> None:
    """Wait until the last `n_names` names of a local path are on the disk, as the folders above list them."""
    if location.is_local:
        for parent in list(Path(location.path).parents)[:n_names]:
            fsync_path(parent)


def _overlap(a: Location, b: Location) -> bool:
    if a.scheme != b.scheme:
        return False
    first, second = a.path, b.path
    if a.is_local:
        first, second = os.path.realpath(first), os.path.realpath(second)
    return first == second or first.startswith(second + "/") or second.startswith(first + "/")


def _fsync_tree(path: str) -> None:
    for folder, _, files in os.walk(path):
        for file in files:
            fsync_path(os.path.join(folder, file))
        fsync_path(folder)


def fsync_path(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
