"""Versioned datasets: Icechunk repositories, their snapshots and tags, and how a change
becomes a commit.

A location goes in; the Zarr store of a snapshot comes out, to read it or to make the
next one. A snapshot is a whole dataset at one moment, and never changes; its id is the
dataset's version. The branch
`main` names the current one; a commit writes new files and then moves the branch,
unless another writer has moved it since the change began. Readers keep the snapshot
that they opened.

An object store moves the branch on a condition, so that the later of two writers is
refused. A folder cannot do that: there a writer has a lock of the operating system,
which ends with its process, and syncs all new files to the disk before it moves the
branch.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Set
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rff_dist.errors import (
    IntegrityError,
    InvalidParameterError,
    NoSuchVersionError,
    StorageError,
)
from rff_dist.storage import documents, locations, manifests
from rff_dist.storage.icechunk_access import (
    bounded_config,
    icechunk_errors,
    load_icechunk,
    open_repository,
    storage_of,
)
from rff_dist.storage.locations import Location, json_digest
from rff_dist.storage.zarr_access import drain
from rff_dist.typing import Facts, Summary, frozen

if TYPE_CHECKING:
    import icechunk
    from icechunk import Repository
    from zarr.abc.store import Store

MAIN = "main"
_LOCK = ".lock"
_LISTS_BEFORE = "overwritten"
FOLDERS = ("chunks", "manifests", "transactions", "snapshots")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# Keys of a snapshot's facts: a digest of all other facts, the snapshot before the
# change, and the time. Icechunk stores the last two as well, but without a checksum.
_DIGEST = "rff_dist.digest"
_BEFORE = "rff_dist.before"
_WRITTEN = "rff_dist.written"
_CACHE_BYTES = 2**27  # of chunks, for `open_together`
# In an object store a writer may be at work on chunks that no snapshot names yet.
_SPARED = timedelta(days=1)

#: For each array the chunks that differ between two snapshots; None: all, since the
#: array was made or deleted.
type Chunks = dict[str, set[tuple[int, ...]] | None]


@frozen
class Snapshot:
    """A dataset at one moment."""

    id: str  # unique among all datasets
    message: str  # why it was made
    written: datetime
    #: JSON values: the kind of change, the rows before and after it, their sources.
    facts: Facts
    tags: tuple[str, ...]  # names that users gave it

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
class ExpiryResult:
    """The versions that `expire` removed."""

    versions: tuple[str, ...]  # ids of snapshots
    n_bytes: int  # that were freed


@frozen
class Change:
    """A change of a dataset, which no one else sees before it is committed."""

    location: Location
    store: Store  # to write to
    before: str  # the id of the snapshot with which the change began
    _session: icechunk.Session
    _old_files: Set[Path]  # in a folder

    def changed_row_chunks(self) -> dict[str, set[int]]:
        """Return the numbers of the changed chunks, along the rows, of each array."""
        changed = self._session.status().updated_chunks
        return {
            path.lstrip("/"): {chunk[0] for chunk in chunks}
            for path, chunks in changed.items()
        }

    def commit(self, message: str, facts: Facts) -> str:
        """Make the written rows the current snapshot, and return its id.

        Raises ConflictError if another program committed meanwhile, whose snapshot
        stays the current one.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        signed = {**facts, _BEFORE: self.before, _WRITTEN: now}
        signed[_DIGEST] = json_digest([message, signed])
        with icechunk_errors(
            f"{self.location} could not be changed", "; it is unchanged"
        ):
            if not self.location.is_local:  # Icechunk moves the branch on a condition.
                return str(self._session.commit(message, metadata=signed))
            # Icechunk syncs nothing, and after a power cut the branch must not name
            # files that were lost. So a flush writes the snapshot, its files are
            # synced, and only then the branch is moved.
            snapshot_id = str(self._session.flush(message, metadata=signed))
            new_files = _files(self.location) - self._old_files
            for path in new_files | {path.parent for path in new_files}:
                locations.fsync_path(path)
            repository = open_repository(self.location)
            repository.reset_branch(MAIN, snapshot_id, from_snapshot_id=self.before)
        _sync_branch(self.location)
        return snapshot_id

    def discard_unless_committed(self) -> None:
        """Remove files that were not committed: failures must not fill the disk.

        After a commit `main` no longer names the snapshot before, and all files stay.
        """
        if not self.location.is_local:
            return
        drain()
        # Icechunk's own collection of garbage would also remove versions from before a
        # rollback.
        with suppress(load_icechunk().IcechunkError, OSError):
            if open_repository(self.location).lookup_branch(MAIN) == self.before:
                for path in _files(self.location) - self._old_files:
                    path.unlink(missing_ok=True)


# -- reading


def is_empty(location: Location) -> bool:
    """Return whether a repository was created, but nothing was ever committed to it."""
    with icechunk_errors(f"{location} cannot be read"):
        repository = open_repository(location)
        if repository.list_branches() != {MAIN} or repository.list_tags():
            return False
        current = next(iter(repository.ancestry(branch=MAIN)))
        return _is_first(repository, current, location)


def open_snapshot(
    location: Location, version: str | None
) -> tuple[Store, str, str | None]:
    """Return a snapshot's store for reading, its id, and the digest of all rows, which
    its manifest must have too; None if another program wrote the snapshot.
    """
    snapshot_id = find_snapshot(location, version)
    with icechunk_errors(
        f"version {snapshot_id} of {location} cannot be read", version=snapshot_id
    ):
        repository = open_repository(location)
        facts = _checked(repository, repository.lookup_snapshot(snapshot_id), location)
    rows_digest = facts.get(manifests.ROWS_DIGEST)
    return open_pinned(location, snapshot_id), snapshot_id, rows_digest


# Each task opens its dataset again, and a snapshot never changes.
@lru_cache(maxsize=8)
def open_pinned(location: Location, snapshot_id: str) -> Store:
    """Return the store of a snapshot."""
    with icechunk_errors(
        f"version {snapshot_id} of {location} cannot be read", version=snapshot_id
    ):
        repository = open_repository(location)
        return repository.readonly_session(snapshot_id=snapshot_id).store


def open_together(location: Location, *snapshot_ids: str) -> list[Store]:
    """Return the stores of several snapshots with a common cache of 128 MiB, so that a
    shared chunk is read once.
    """
    caching = load_icechunk().CachingConfig(num_bytes_chunks=_CACHE_BYTES)
    with icechunk_errors(
        f"versions of {location} cannot be read", version=snapshot_ids[0]
    ):
        repository = open_repository(location, caching=caching)
        return [
            repository.readonly_session(snapshot_id=snapshot_id).store
            for snapshot_id in snapshot_ids
        ]


def find_snapshot(location: Location, version: str | None = None) -> str:
    """Return the id of the current snapshot, or of `version`: a tag or an id.

    Raises NoSuchVersionError if there is none.
    """
    with icechunk_errors(f"{location} cannot be read"):
        repository = open_repository(location)
        if version is None:
            return repository.lookup_branch(MAIN)
        if version in repository.list_tags():
            return repository.lookup_tag(version)
        with suppress(load_icechunk().IcechunkError):
            return str(repository.lookup_snapshot(version).id)
    raise NoSuchVersionError(
        f"{location} has no version {version!r}; expected a tag, or a version that"
        " `rff-dist data log` lists"
    )


def read_history(location: Location, version: str | None = None) -> list[Snapshot]:
    """Return a snapshot (None: the current one) and its ancestors, the newest first."""
    head = find_snapshot(location, version)
    with icechunk_errors(f"the history of {location} cannot be read"):
        repository = open_repository(location)
        tags: dict[str, list[str]] = {}
        for tag in sorted(repository.list_tags()):
            tags.setdefault(repository.lookup_tag(tag), []).append(tag)
        snapshots = []
        ancestry = iter(repository.ancestry(snapshot_id=head))
        entry: Any = next(ancestry)
        while not _is_first(repository, entry, location):
            facts = _checked(repository, entry, location)
            parent = next(ancestry, None)
            _check_parent(repository, parent, facts.pop(_BEFORE, None), location)
            written = entry.written_at
            if _WRITTEN in facts:
                written = datetime.fromisoformat(facts.pop(_WRITTEN))
            names = tuple(tags.get(entry.id, ()))
            snapshots.append(Snapshot(entry.id, entry.message, written, facts, names))
            entry = parent
        return snapshots


def other_snapshots(location: Location) -> list[Snapshot]:
    """Return all snapshots that can be read, except the current one."""
    current = find_snapshot(location)
    with icechunk_errors(f"the history of {location} cannot be read"):
        repository = open_repository(location)
        branches = map(repository.lookup_branch, sorted(repository.list_branches()))
        tags = map(repository.lookup_tag, sorted(repository.list_tags()))
        heads = [*branches, *tags]
    snapshots = {}
    for head in heads:
        for snapshot in read_history(location, head):
            snapshots[snapshot.id] = snapshot
    snapshots.pop(current, None)
    return list(snapshots.values())


def changed_chunks(location: Location, before: str, after: str) -> Chunks:
    """Return the chunks that differ between two snapshots, anywhere in the history.

    Raises NoSuchVersionError if one of them has expired, or belongs to another dataset.
    """
    changed: Chunks = {}
    with icechunk_errors(f"versions of {location} cannot be compared", version=before):
        repository = open_repository(location)
        ancestors = {entry.id for entry in repository.ancestry(snapshot_id=after)}
        line = [entry.id for entry in repository.ancestry(snapshot_id=before)]
        # After a rollback neither is the other's ancestor: compare both with their last
        # common ancestor.
        fork = next((entry_id for entry_id in line if entry_id in ancestors), None)
        if fork is None:
            raise NoSuchVersionError(
                f"version {before} is not part of the history of {location}"
            )
        for end in {before, after} - {fork}:
            difference = repository.diff(from_snapshot_id=fork, to_snapshot_id=end)
            for path, chunks in difference.updated_chunks.items():
                known = changed.setdefault(path.lstrip("/"), set())
                if known is not None:
                    known.update(map(tuple, chunks))
            for path in (*difference.new_arrays, *difference.deleted_arrays):
                changed[path.lstrip("/")] = None
    return changed


# -- writing


def create_repository(location: Location) -> Change:
    """Create a versioned dataset where nothing is, and return its first change.

    No lock is taken: in a folder the caller writes to a place that only it knows, and
    an object store needs none.
    """
    # Icechunk cannot copy objects whose names are not ASCII.
    if location.is_remote and not location.path.isascii():
        raise StorageError(
            f"{location} would be a versioned dataset, whose name Icechunk writes in"
            " ASCII only; expected a name in ASCII, or plain Zarr"
        )
    with icechunk_errors(f"{location} cannot be written"):
        if location.is_local:
            Path(location.path).parent.mkdir(parents=True, exist_ok=True)
        repository = load_icechunk().Repository.create(
            storage_of(location), config=bounded_config()
        )
        return _begin(location, repository)


def _begin(location: Location, repository: Repository) -> Change:
    session = repository.writable_session(MAIN)
    files = _files(location)
    return Change(location, session.store, session.snapshot_id, session, files)


@contextmanager
def changing(location: Location) -> Iterator[Change]:
    """Begin a change of a versioned dataset; in a folder, a lock keeps other processes
    out meanwhile.
    """
    with ExitStack() as stack:
        with icechunk_errors(f"{location} cannot be changed"):
            stack.enter_context(_folder_lock(location))
            change = _begin(location, open_repository(location))
        try:
            yield change
        finally:
            change.discard_unless_committed()


def tag_snapshot(location: Location, tag: str, version: str | None = None) -> str:
    """Tag a snapshot for good, and return the snapshot's id."""
    if not _TAG.fullmatch(tag) or tag == MAIN:
        raise InvalidParameterError(
            f"{tag!r} cannot be a tag; expected letters, digits, dots, hyphens and"
            f" underscores, beginning with a letter or digit, and not {MAIN!r}"
        )
    snapshot_id = find_snapshot(location, version)
    with _writer(location) as repository:
        try:
            repository.create_tag(tag, snapshot_id)
        except load_icechunk().IcechunkError as error:
            raise InvalidParameterError(
                f"{location} has, or had, a tag {tag!r}; a tag names one version for"
                " ever. Choose another name"
            ) from error
    return snapshot_id


def roll_back(location: Location, version: str) -> tuple[str, str]:
    """Make a snapshot the current one again.

    Returns the ids of the snapshot that was current, which can be read until it
    expires, and of the one that is current now.
    """
    with _writer(location) as repository:
        before = repository.lookup_branch(MAIN)
        after = find_snapshot(location, version)
        repository.reset_branch(MAIN, after, from_snapshot_id=before)
    return before, after


def expire(
    location: Location, older_than: datetime, *, tags: bool = False
) -> ExpiryResult:
    """Remove all snapshots older than a time, their messages, and bytes that no other
    snapshot uses; with `tags` also tagged snapshots and their tags.

    The current snapshot always stays. In an object store, bytes younger than a day stay
    too, since a writer may be at work on them; a later call removes them.
    """
    with _writer(location) as repository:
        versions = repository.expire_snapshots(older_than, delete_expired_tags=tags)
        # Another writer's files may not be committed yet. In a folder the lock keeps
        # other writers out; in an object store recent files are spared.
        if not location.is_local:
            older_than = min(older_than, datetime.now(UTC) - _SPARED)
        summary = repository.garbage_collect(older_than)
        # Icechunk never removes its earlier lists of snapshots, which have messages of
        # expired ones. Only its log of operations reads them, which is not used here.
        lists = location.child(_LISTS_BEFORE)
        if not location.is_local:
            locations.delete_objects(lists)
        elif os.path.isdir(lists.path):
            shutil.rmtree(lists.path)
    open_pinned.cache_clear()
    return ExpiryResult(tuple(sorted(versions)), int(summary.bytes_deleted))


# -- check what Icechunk does not


# An `entry` is Icechunk's own description of a snapshot.


def _is_first(repository: Repository, entry: Any, location: Location) -> bool:
    """Return whether a snapshot is the empty one that Icechunk makes with a repository.

    Raises IntegrityError if it has no parent, but is not empty.
    """
    if entry.parent_id is not None:
        return False
    if repository.inspect_snapshot(entry.id)["nodes"]:
        raise _damaged(location, "its versions")
    return True


def _checked(repository: Repository, entry: Any, location: Location) -> Summary:
    """Return a snapshot's facts without their digest; IntegrityError if they are
    damaged.
    """
    facts = dict(entry.metadata)
    digest = facts.pop(_DIGEST, None)
    if digest is not None:
        is_damaged = digest != json_digest([entry.message, facts])
    else:
        # Another program wrote it, or the list of snapshots is damaged, and then
        # differs from the snapshot's own file.
        is_damaged = facts != repository.inspect_snapshot(entry.id)["metadata"]
        facts = {"metadata": facts} if facts else {}
    if is_damaged:
        raise _damaged(location, f"its version {entry.id}")
    return facts


def _check_parent(
    repository: Repository, parent: Any, before: str | None, location: Location
) -> None:
    """Raise IntegrityError unless a snapshot's parent is the snapshot `before` its
    change.

    `before` is None if another program wrote the snapshot; then any parent is right.
    """
    if parent is None:
        raise _damaged(location, "its versions")
    if before in (None, parent.id):
        return
    try:
        repository.lookup_snapshot(before)
    except load_icechunk().IcechunkError:
        # Once `before` has expired, the empty first snapshot is the parent.
        if parent.parent_id is None:
            return
    raise _damaged(location, "its versions")


def _damaged(location: Location, what: str) -> IntegrityError:
    return IntegrityError(
        f"what {location} records of {what} is not as it was written; restore it from a"
        " copy"
    )


# -- folders, which need a lock and a sync


@contextmanager
def _writer(location: Location) -> Iterator[Repository]:
    """Open a repository to change its branch or tags, under the folder's lock."""
    with icechunk_errors(f"{location} could not be changed"), _folder_lock(location):
        yield open_repository(location)
        _sync_branch(location)


def _folder_lock(location: Location) -> AbstractContextManager[object]:
    """Return the lock that keeps other processes from writing to a folder."""
    if not location.is_local:
        return nullcontext()
    busy = f"another run is changing {location}"
    return documents.lock_file(Path(location.path, _LOCK), busy=busy)


def _files(location: Location) -> Set[Path]:
    """Return the files that are written once in a folder's repository."""
    if not location.is_local:
        return frozenset()
    return {path for name in FOLDERS for path in Path(location.path, name).glob("*")}


def _sync_branch(location: Location) -> None:
    """Wait until a folder's branches and tags are on the disk."""
    if location.is_local:
        folder = Path(location.path)
        files = [folder / name for name in locations.REPOSITORY_FILES]
        files = [path for path in files if path.is_file()]
        locations.sync_published(*files, folder)
