"""Versioned datasets: Icechunk repositories, their snapshots and tags, and how a change becomes a commit.

A snapshot is a whole dataset at one moment, and never changes. The branch `main` names the current one; a
commit writes what is new and then moves the branch, if it is still where the change began. Readers keep the
snapshot that they opened.

An object store moves the branch on a condition, so that the later of two writers is refused. A folder cannot
do that: there a writer holds a lock of the operating system, which ends with its process, and syncs all new
files to the disk before it moves the branch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarr.abc.store import Store
from zarr.core.sync import sync

from rff_dist import errors
from rff_dist.storage import documents, locations
from rff_dist.typing import Facts, Summary, frozen

if TYPE_CHECKING:
    import icechunk

MAIN = "main"
_LOCK = ".lock"
_LISTS_BEFORE = "overwritten"
FOLDERS = ("chunks", "manifests", "transactions", "snapshots")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LEAST_PREFIX = 4  # the fewest characters that may stand for a snapshot's name
# Keys of a snapshot's facts: a digest of the others, the snapshot that it was made of, and when. Icechunk
# stores the last two as well, but without a checksum.
_DIGEST, _BEFORE, _WRITTEN = "rff_dist.digest", "rff_dist.before", "rff_dist.written"
_REMEMBERED_BYTES = 2**27  # the cache of chunks that `open_together` makes
_REQUEST_S = 30
# In an object store a writer may be at work on chunks that no snapshot names yet.
_SPARED = timedelta(days=1)

#: Each array's chunks that differ from another snapshot's; None: all, since the array was made again.
type Chunks = dict[str, set[tuple[int, ...]] | None]


@frozen
class Snapshot:
    """A dataset at one moment.

    `id`: its name, unique among all datasets.
    `message`: why it was made.
    `written`: when it was made.
    `facts`: JSON values: the kind of change, the rows before and after it, and their sources.
    `tags`: names that users gave it.
    """

    id: str
    message: str
    written: datetime
    facts: Facts
    tags: tuple[str, ...]

    def to_dict(self) -> Summary:
        """Return it as JSON values."""
        return {
            "version": self.id,
            "written": self.written.isoformat(timespec="seconds"),
            "message": self.message,
            "tags": list(self.tags),
            **self.facts,
        }


@frozen
class Expired:
    """What `expire` removed: the snapshots' names, and how many bytes were freed."""

    versions: tuple[str, ...]
    n_bytes: int


@frozen
class Change:
    """A change of a dataset, which no one else sees before it is committed.

    `store`: the Zarr store to write to.
    `before`: the snapshot with which the change began.
    `_known`: the files that were there then, in a folder.
    """

    location: locations.Location
    store: Store
    before: str
    _session: icechunk.Session
    _known: Set[Path]

    def changed_chunks(self) -> dict[str, set[int]]:
        """Return the numbers of the changed chunks, along the rows, of each array."""
        changed = self._session.status().updated_chunks
        return {path.lstrip("/"): {place[0] for place in places} for path, places in changed.items()}

    def commit(self, message: str, facts: Facts) -> str:
        """Make what was written the current snapshot, and return its name.

        Raises ConflictError if another program committed meanwhile; the dataset then stays as that left it.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        signed = {**facts, _BEFORE: self.before, _WRITTEN: now}
        signed[_DIGEST] = _digest(message, signed)
        with _errors(f"{self.location} could not be changed", "; it is as it was"):
            if not self.location.is_local:  # Icechunk moves the branch on a condition.
                return str(self._session.commit(message, metadata=signed))
            # Icechunk syncs nothing. After a power cut the branch must lead to files that are on the disk.
            # A flush writes the snapshot and leaves the branch where it is.
            snapshot = str(self._session.flush(message, metadata=signed))
            _sync_files(self.location, self._known)
            repository = _open_repository(self.location)
            repository.reset_branch(MAIN, snapshot, from_snapshot_id=self.before)
        _sync_branch(self.location)
        return snapshot

    def clear(self) -> None:
        """Remove what was written to a folder, if it was not committed: failures must not fill the disk."""
        if not self.location.is_local:
            return
        documents.drain()
        # Icechunk's own collection of garbage would also remove versions from before a rollback.
        with suppress(_icechunk().IcechunkError, OSError):
            if _open_repository(self.location).lookup_branch(MAIN) == self.before:
                for path in _files(self.location) - self._known:
                    path.unlink(missing_ok=True)


# -- reading ---------------------------------------------------------------------------------------


def is_empty(location: locations.Location) -> bool:
    """Return whether a repository was created, but nothing was ever committed to it."""
    with _errors(f"{location} cannot be read"):
        repository = _open_repository(location)
        is_plain = repository.list_branches() == {MAIN} and not repository.list_tags()
        return is_plain and _is_first(repository, next(iter(repository.ancestry(branch=MAIN))), location)


def open_snapshot(location: locations.Location, version: str | None = None) -> tuple[Store, str, str | None]:
    """Return a snapshot's store for reading, its name, and the digest that its manifest must have, if known.

    `version`: a tag, another branch, a snapshot's name or its first characters; None: the current snapshot.
    Raises NoSuchVersionError if there is no such snapshot; StorageError if it cannot be read.
    """
    snapshot = find_snapshot(location, version)
    with _errors(f"version {snapshot} of {location} cannot be read", version=snapshot):
        repository = _open_repository(location)
        facts = _checked(repository, repository.lookup_snapshot(snapshot), location)
    return open_pinned(location, snapshot), snapshot, facts.get("sha256")


@lru_cache(maxsize=8)  # Each task opens its dataset again, and a snapshot never changes.
def open_pinned(location: locations.Location, snapshot: str) -> Store:
    """Return the store of a snapshot, given its full name."""
    with _errors(f"version {snapshot} of {location} cannot be read", version=snapshot):
        return _open_repository(location).readonly_session(snapshot_id=snapshot).store


def open_together(location: locations.Location, *snapshots: str) -> list[Store]:
    """Return the stores of several snapshots with a common cache, so that a shared chunk is read once.

    The cache holds up to 128 MiB. It does not travel to other processes.
    """
    caching = _icechunk().CachingConfig(num_bytes_chunks=_REMEMBERED_BYTES)
    with _errors(f"versions of {location} cannot be read", version=snapshots[0]):
        repository = _open_repository(location, caching=caching)
        return [repository.readonly_session(snapshot_id=name).store for name in snapshots]


def find_snapshot(location: locations.Location, version: str | None = None) -> str:
    """Return the full name of a snapshot.

    `version`: as in `open_snapshot`.
    Raises NoSuchVersionError if no snapshot or several match.
    """
    with _errors(f"{location} cannot be read"):
        repository = _open_repository(location)
        if version is None or version == MAIN:
            return str(repository.lookup_branch(MAIN))
        if version in repository.list_tags():
            return str(repository.lookup_tag(version))
        if version in repository.list_branches():
            return str(repository.lookup_branch(version))
        with suppress(_icechunk().IcechunkError):
            return str(repository.lookup_snapshot(version).id)
        heads = _heads(repository)
        known = {entry.id for head in heads for entry in repository.ancestry(snapshot_id=head)}
        # by its first characters: all histories are listed for it, so this comes last
        begun = [name for name in known if name.startswith(version) and len(version) >= _LEAST_PREFIX]
    if len(begun) == 1:
        return begun[0]
    what = f"{len(begun)} versions that begin with" if begun else "no version"
    raise errors.NoSuchVersionError(
        f"{location} has {what} {version!r}; expected a tag, a branch, or a version that `rff-dist data log` "
        "lists"
    )


def read_history(location: locations.Location, version: str | None = None) -> list[Snapshot]:
    """Return a snapshot (None: the current one) and its ancestors, the newest first."""
    head = find_snapshot(location, version)
    with _errors(f"the history of {location} cannot be read"):
        repository = _open_repository(location)
        tags: dict[str, list[str]] = {}
        for tag in sorted(repository.list_tags()):
            tags.setdefault(repository.lookup_tag(tag), []).append(tag)
        snapshots, line = [], iter(repository.ancestry(snapshot_id=head))
        entry: Any = next(line)
        while not _is_first(repository, entry, location):
            facts = _checked(repository, entry, location)
            parent = next(line, None)
            _check_line(repository, parent, facts.pop(_BEFORE, None), location)
            written = facts.pop(_WRITTEN, None)
            when = entry.written_at if written is None else datetime.fromisoformat(written)
            snapshots.append(Snapshot(entry.id, entry.message, when, facts, tuple(tags.get(entry.id, ()))))
            entry = parent
        return snapshots


def other_snapshots(location: locations.Location) -> list[Snapshot]:
    """Return all snapshots that can still be read, also from tags, except the current one."""
    current = find_snapshot(location)
    with _errors(f"the history of {location} cannot be read"):
        heads = _heads(_open_repository(location))
    snapshots = {snapshot.id: snapshot for head in heads for snapshot in read_history(location, head)}
    return [snapshot for name, snapshot in snapshots.items() if name != current]


def changed_chunks(location: locations.Location, before: str, after: str) -> Chunks:
    """Return the chunks that differ between two snapshots, anywhere in the history.

    Raises NoSuchVersionError if one of them has expired, or belongs to another dataset.
    """
    changed: Chunks = {}
    with _errors(f"versions of {location} cannot be compared", version=before):
        repository = _open_repository(location)
        line_after, line = ([e.id for e in repository.ancestry(snapshot_id=end)] for end in (after, before))
        # After a rollback neither is the other's ancestor: compare both with their last common ancestor.
        fork = next((name for name in line if name in set(line_after)), None)
        if fork is None:
            raise errors.NoSuchVersionError(f"version {before} is not part of the history of {location}")
        for end in (before, after):
            if end == fork:
                continue
            difference = repository.diff(from_snapshot_id=fork, to_snapshot_id=end)
            for path, chunks in difference.updated_chunks.items():
                known = changed.setdefault(path.lstrip("/"), set())
                if known is not None:
                    known.update(map(tuple, chunks))
            for path in (*difference.new_arrays, *difference.deleted_arrays):
                changed[path.lstrip("/")] = None
    return changed


# -- writing ---------------------------------------------------------------------------------------


def create_repository(location: locations.Location) -> Change:
    """Create a versioned dataset where nothing is, and return its first change."""
    if location.is_remote and not location.path.isascii():  # its copies of objects fail there
        raise errors.StorageError(
            f"{location} would be a versioned dataset, whose name Icechunk writes in ASCII only; expected a "
            "name in ASCII, or plain Zarr"
        )
    with _errors(f"{location} cannot be written"):
        if location.is_local:
            Path(location.path).parent.mkdir(parents=True, exist_ok=True)
        repository = _icechunk().Repository.create(_storage(location), config=_config())
        return _begin(location, repository)


def _begin(location: locations.Location, repository: icechunk.Repository) -> Change:
    session = repository.writable_session(MAIN)
    return Change(location, session.store, session.snapshot_id, session, _files(location))


@contextmanager
def changing(location: locations.Location) -> Iterator[Change]:
    """Begin a change of a versioned dataset; in a folder, a lock keeps other processes out meanwhile.

    Raises OutputBusyError if another process is changing it; StorageError if it cannot be opened.
    """
    with ExitStack() as stack:
        with _errors(f"{location} cannot be changed"):
            stack.enter_context(_locked(location))
            change = _begin(location, _open_repository(location))
        try:
            yield change
        finally:
            change.clear()


def tag_snapshot(location: locations.Location, tag: str, version: str | None = None) -> str:
    """Tag a snapshot for good, and return the snapshot's name.

    Raises InvalidParameterError if the tag is not valid, or was used before.
    """
    if not _TAG.fullmatch(tag) or tag == MAIN:
        raise errors.InvalidParameterError(
            f"{tag!r} cannot be a tag; expected letters, digits, dots, hyphens and underscores, beginning "
            f"with a letter or digit, and not {MAIN!r}"
        )
    snapshot = find_snapshot(location, version)
    with _writer(location) as repository:
        try:
            repository.create_tag(tag, snapshot)
        except _icechunk().IcechunkError as error:
            raise errors.InvalidParameterError(
                f"{location} has, or had, a tag {tag!r}; a tag names one version for ever. Choose "
                "another name"
            ) from error
    return snapshot


def roll_back(location: locations.Location, version: str) -> tuple[str, str]:
    """Make a snapshot the current one again; return the names of the current one until now and of this one.

    The snapshot that was current can still be read by its name, until it expires.

    Raises NoSuchVersionError if there is no such snapshot.
    """
    with _writer(location) as repository:
        before, after = str(repository.lookup_branch(MAIN)), find_snapshot(location, version)
        repository.reset_branch(MAIN, after, from_snapshot_id=before)
    return before, after


def expire(location: locations.Location, older_than: datetime, *, tags: bool = False) -> Expired:
    """Remove all snapshots older than a time, their messages, and the bytes that only they hold.

    The current snapshot always stays. In an object store, bytes younger than a day stay too, since a writer
    may be at work on them; a later call removes them.

    `older_than`: a time with a time zone.
    `tags`: whether to remove tagged snapshots too, with their tags.
    """
    with _writer(location) as repository:
        gone = repository.expire_snapshots(older_than, delete_expired_tags=tags)
        # In a folder the lock keeps other writers out, whose files no commit names yet.
        garbage = older_than if location.is_local else min(older_than, datetime.now(UTC) - _SPARED)
        summary = repository.garbage_collect(garbage)
        # Icechunk keeps each earlier list of the snapshots, with their messages, for its log of operations
        # alone, which nothing here reads. It removes none of them.
        sync(locations.open_store(location, read_only=False).delete_dir(_LISTS_BEFORE))
    open_pinned.cache_clear()
    return Expired(tuple(sorted(gone)), int(summary.bytes_deleted))


def _is_first(repository: Any, snapshot: Any, location: locations.Location) -> bool:
    """Return whether a snapshot is the empty one with which Icechunk begins each repository.

    Raises IntegrityError if it has no parent, but is not empty.
    """
    if snapshot.parent_id is not None:
        return False
    if repository.inspect_snapshot(snapshot.id)["nodes"]:
        raise _damaged(location, "its versions")
    return True


def _checked(repository: Any, snapshot: Any, location: locations.Location) -> Summary:
    """Return a snapshot's facts without their digest; raises IntegrityError if they are damaged."""
    facts = dict(snapshot.metadata)
    if (stored := facts.pop(_DIGEST, None)) is not None:
        is_damaged = stored != _digest(snapshot.message, facts)
    else:
        # Another program wrote it, or the list of snapshots has lost what the snapshot's own file still has.
        is_damaged = facts != repository.inspect_snapshot(snapshot.id)["metadata"]
        facts = {"metadata": facts} if facts else {}
    if is_damaged:
        raise _damaged(location, f"its version {snapshot.id}")
    return facts


def _check_line(repository: Any, parent: Any, before: str | None, location: locations.Location) -> None:
    """Check that a snapshot's parent is the snapshot that it was made of, unless that has expired.

    `before`: the snapshot that it was made of; None if another program wrote it.
    """
    if parent is None:
        raise _damaged(location, "its versions")
    if before in (None, parent.id):
        return
    try:
        repository.lookup_snapshot(before)
    except _icechunk().IcechunkError:
        if parent.parent_id is None:  # Once `before` has expired, the empty first snapshot is the parent.
            return
    raise _damaged(location, "its versions")


def _damaged(location: locations.Location, what: str) -> errors.IntegrityError:
    return errors.IntegrityError(
        f"what {location} records of {what} is not as it was written; restore it from a copy"
    )


def _digest(message: str, facts: Facts) -> str:
    return hashlib.sha256(json.dumps([message, facts], sort_keys=True).encode()).hexdigest()


# -- Icechunk --------------------------------------------------------------------------------------


def _icechunk() -> Any:
    import icechunk

    # Icechunk warns that folders have no locks, but this module locks them. Failures are in our errors.
    icechunk.set_logs_filter("off")
    locations.wait_at_exit()
    return icechunk


def _open_repository(location: locations.Location, *, caching: Any = None) -> icechunk.Repository:
    config = _config(caching)
    repository: icechunk.Repository = _icechunk().Repository.open(_storage(location), config=config)
    return repository


def _config(caching: Any = None) -> Any:
    """Return Icechunk's configuration, by which a store that does not answer fails in bounded time."""
    icechunk = _icechunk()
    # By default AWS's client waits for ever for an answer; these are the bounds of obstore, see `open_store`.
    each, all_tries = 1000 * _REQUEST_S, 1000 * locations.RETRIED_S
    timeouts = icechunk.StorageTimeoutSettings(each, each, all_tries, each)
    return icechunk.RepositoryConfig(storage=icechunk.StorageSettings(timeouts=timeouts), caching=caching)


def _storage(location: locations.Location) -> Any:
    """Return Icechunk's storage for a location; credentials and endpoints come from the environment."""
    icechunk = _icechunk()
    bucket, _, prefix = location.path.partition("/")
    if location.is_local:
        return icechunk.local_filesystem_storage(location.path)
    if location.scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return icechunk.s3_storage(
            bucket=bucket,
            prefix=prefix or None,
            region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
            endpoint_url=endpoint,
            allow_http=os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"),
            force_path_style=endpoint is not None,
            from_env=True,
        )
    if location.scheme == "gs":
        return icechunk.gcs_storage(bucket=bucket, prefix=prefix or None, from_env=True)
    if location.scheme == "az":
        account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
        return icechunk.azure_storage(account=account, container=bucket, prefix=prefix, from_env=True)
    if location.scheme == "https":
        return icechunk.http_storage(location.url)
    raise errors.StorageError(
        f"{location} is in this process's memory, which keeps no versions; write to a path or an object store"
    )


def _heads(repository: icechunk.Repository) -> list[str]:
    branches = [repository.lookup_branch(name) for name in sorted(repository.list_branches())]
    return branches + [repository.lookup_tag(name) for name in sorted(repository.list_tags())]


@contextmanager
def _errors(what: str, then: str = "", *, version: str | None = None) -> Iterator[None]:
    """Turn Icechunk's errors into this package's.

    `what`: what failed.
    `then`: what is left after the failure.
    `version`: the version that was opened, which may have expired.
    """
    icechunk = _icechunk()
    try:
        yield
    except errors.RFFDistError:
        raise
    except icechunk.ConflictError as error:
        raise errors.ConflictError(
            f"{what}: another program changed it meanwhile, and it stays as that left it. Look at what the "
            "other one wrote (`rff-dist data log`), and repeat this"
        ) from error
    except icechunk.SnapshotNotFoundError as error:
        raise errors.NoSuchVersionError(
            f"{what}: there is no such version, or it has expired; expected one that `rff-dist data "
            "log` lists"
        ) from error
    except (icechunk.IcechunkError, OSError) as error:
        if version is not None and isinstance(error, icechunk.InvalidInputError | icechunk.NotFoundError):
            text = f"{what}: it has expired, or belongs to another dataset"
            raise errors.NoSuchVersionError(text) from error
        # Icechunk has the system's error in its text only.
        is_of_system = isinstance(error, OSError) or "os error" in str(error)
        advice = f". {locations.writing_advice(error)}" if is_of_system else ""
        raise errors.StorageError(f"{what}: {locations.explain(error)}{then}{advice}") from error
    except BaseException as error:
        # Icechunk panics on some damaged files; a PanicException is not an Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise errors.IntegrityError(
            f"{what}: its files are damaged ({locations.explain(error)}). Restore them from a copy"
        ) from error


@contextmanager
def _writer(location: locations.Location) -> Iterator[icechunk.Repository]:
    """Open a repository to change its branch or tags, while no other process of this machine does."""
    with _errors(f"{location} could not be changed"), _locked(location):
        yield _open_repository(location)
        _sync_branch(location)


def _locked(location: locations.Location) -> AbstractContextManager[object]:
    """Return the lock that keeps other processes of this machine from writing to a folder."""
    if not location.is_local:
        return nullcontext()
    return documents.lock_file(Path(location.path, _LOCK), busy=f"another run is changing {location}")


def _files(location: locations.Location) -> Set[Path]:
    """Return the files of a repository in a folder that are never changed; none in an object store."""
    if not location.is_local:
        return frozenset()
    return {path for name in FOLDERS for path in Path(location.path, name).glob("*")}


def _sync_files(location: locations.Location, known: Set[Path]) -> None:
    """Wait until the files of a repository that are not known yet are on the disk."""
    new = _files(location) - known
    for path in new | {path.parent for path in new}:
        locations.fsync_path(path)


def _sync_branch(location: locations.Location) -> None:
    """Wait until a folder's branches and tags are on the disk."""
    if location.is_local:
        paths = [Path(location.path, name) for name in locations.REPOSITORY_FILES]
        locations.sync_published(*(path for path in paths if path.is_file()), Path(location.path))
