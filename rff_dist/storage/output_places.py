"""Places of outputs: checked before the work, held by one run, and filled in one step when it is done.

In a folder an output is written next to its place, synced to the disk, and swapped in by one rename; in
memory it changes its name in a table. An object store cannot rename. There an output is written once, and one
small file leads to it: `zarr.json` of a dataset, `model.json` of a model. That file is replaced last, on
condition that it is what it was when the writing began.

The first dataset of a place in an object store is written in that place: its `zarr.json` is created on
condition that no one else did, and says that the dataset is unfinished. What replaces a dataset or a model
must leave it whole for its readers, so it gets a folder of its own, which the file then names::

    data.zarr/
    ├── zarr.json                 {"rff_dist": {"generation": "generation-…", "previous": …}}
    ├── generation-<token>/       the dataset
    └── generation-<token>/       the one before, for readers that have it open; the next write removes it

No one writes where another writer has begun, dead or alive. So a writer that lives on after it was taken for
dead can neither damage what the others write nor publish over it.
"""

import ctypes
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self, TextIO

import zarr
from zarr.abc.store import Store
from zarr.core.sync import sync

from rff_dist.contexts import setting
from rff_dist.errors import OutputBusyError, OutputExistsError, StorageError
from rff_dist.storage import documents, locations, repositories
from rff_dist.text import redact
from rff_dist.typing import Facts, PathLike, frozen

logger = logging.getLogger(__name__)

_FILE = "zarr.json"
# What a killed writer of a model, or of a repository, leaves in an object store before anything leads to it.
_LEFT = re.compile(rf"{documents.GENERATION.pattern}|{'|'.join(repositories.FOLDERS)}")
# Ends of names that no folder has.
_OF_FILES = (
    *(".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".arrow", ".feather", ".ipc"),
    *(".xlsx", ".xls", ".npy", ".npz", ".html", ".htm", ".png", ".onnx", ".gz", ".bz2", ".zst", ".zip"),
    *(".h5", ".hdf5", ".nc", ".pkl", ".db", ".sqlite", ".md", ".pdf", ".svg", ".jpg", ".jpeg", ".tar"),
)
# Files that lead to an output; "" is an output that is a single object.
_LEADING = ("", locations.POINTER_FILE, locations.RECORD_FILE, _FILE)


def check_output(
    location: locations.Location,
    *,
    overwrite: bool,
    inputs: Sequence[locations.Location] = (),
    marker: tuple[str, ...] = locations.NODE_FILES,
) -> None:
    """Refuse an output that exists, is inside another dataset, overlaps an input, or cannot be written.

    To learn whether a local folder can be written, an empty folder is made there and removed: permissions do
    not tell whether a file system is full or read-only.

    `overwrite`: whether what is there may be replaced. A folder is replaced only if it is empty or holds one
      of the files in `marker`.
    `inputs`: what is read while the output is written.
    Raises OutputExistsError if the output exists and `overwrite` is False, or it is a registered model or a
      version of one; StorageError in the other cases.
    """
    for source in inputs:
        if _overlap(location, source):
            raise StorageError(
                f"the output {location} and the input {source} overlap; "
                "write to another place, so that the input is not changed while it is read"
            )
    if location.scheme in locations.READ_ONLY_SCHEMES:
        raise StorageError(f"{location} can only be read; write to a path or an object store")
    refuse_inside(location)
    if not locations.exists(location):
        if location.path.lower().endswith(_OF_FILES):
            raise StorageError(
                f"{location} has the name of a file, and a folder would be written; expected a name such as "
                "data.zarr"
            )
        _refuse_others_objects(location)
        try_writing(location)
        return
    if holds_versions(location):
        raise OutputExistsError(
            f"{location} is a registered model, which keeps all of its versions; publish the next one with "
            "register=True, or choose another name"
        )
    if overwrite and locations.RECORD_FILE in marker and is_published(location):
        raise OutputExistsError(
            f"{location} is a published version of a registered model, which is never replaced; publish the "
            "next one with register=True, or choose another name"
        )
    if not overwrite and not is_unfinished(location):
        raise OutputExistsError(
            f"{location} exists already; choose another name, or give overwrite=True to replace it"
        )
    replaceable = location.scheme == "memory" or any(locations.holds(location, name) for name in marker)
    is_empty = location.is_local and os.path.isdir(location.path) and not os.listdir(location.path)
    if not replaceable and not is_empty:
        raise StorageError(
            f"{location} is not replaced: overwriting would remove what is there, and it holds none of "
            f"{', '.join(marker)}. Remove it yourself if you do not need it"
        )
    try_writing(location)


def check_file(
    location: locations.Location,
    *,
    overwrite: bool,
    is_ours: Callable[[locations.Location], bool] = documents.is_ours,
) -> None:
    """Refuse a single file that exists, or cannot be written, before the work.

    `overwrite`: whether a file that is there may be replaced, if it `is_ours`: written by this package.
    Raises OutputExistsError if it exists otherwise; StorageError in the other cases.
    """
    if location.scheme == "memory" or location.scheme in locations.READ_ONLY_SCHEMES:
        raise StorageError(f"{location}: no file can be written there; write to a path or an object store")
    refuse_inside(location)
    is_there = locations.exists(location) if location.is_local else documents.find_object(location)
    if is_there and not overwrite:
        raise OutputExistsError(
            f"{location} exists already; choose another name, or give overwrite=True to replace it"
        )
    if is_there and not is_ours(location):
        raise OutputExistsError(
            f"{location} is not replaced, since rff_dist did not write it. Choose another name"
        )
    try_writing(location)


def refuse_inside(location: locations.Location) -> None:
    """Refuse an output whose folder is inside Zarr data, which would take it for a part of them."""
    for parent in Path(location.path).parents if location.is_local else ():
        above = locations.Location("file", str(parent))
        if locations.is_versioned(above) or any(
            locations.holds(above, name) for name in locations.NODE_FILES
        ):
            raise StorageError(f"the output {location} lies inside the Zarr data {parent}; write next to it")


def holds_versions(location: locations.Location) -> bool:
    """Return whether `location` is a registered model that has a current version."""
    return locations.holds(location, locations.POINTER_FILE)


def is_published(location: locations.Location) -> bool:
    """Return whether `location` is a published version of a registered model: its record has a lineage."""
    content = locations.read_file(location, locations.RECORD_FILE)
    with suppress(StorageError):  # A damaged record may be replaced.
        return content is not None and "lineage" in documents.load_json(content)
    return False


def is_unfinished(location: locations.Location) -> bool:
    """Return whether a writer began a dataset in an object store, and did not finish it."""
    if not location.is_remote:
        return False
    content = locations.read_file(location, _FILE)
    if content is None:
        return locations.is_versioned(location) and repositories.is_empty(location)
    return documents.manifest_in(content).get("state") == "writing"


def _refuse_others_objects(location: locations.Location) -> None:
    """Refuse a prefix (a whole bucket, say) that holds foreign objects: a failed write would remove them."""
    if not location.is_remote:
        return
    # What killed writers left is ours, and no reader is led to it.
    names = [name for name in locations.list_names(location) if not _LEFT.fullmatch(name)]
    if {*locations.DATASET_FILES, locations.RECORD_FILE} & {*names}:
        raise OutputBusyError(
            f"another run has begun to write {location} just now; repeat this when it is done"
        )
    if names:
        raise StorageError(
            f"{location} holds other things ({', '.join(names[:5])}{', …' if len(names) > 5 else ''}) and no "
            "dataset or model; expected an unused name. Write to a name below it"
        )


def try_writing(location: locations.Location) -> None:
    """Make and remove an empty folder where the unfinished output will be written.

    Raises StorageError if that fails.
    """
    if not location.is_local:
        return
    path = Path(locations.hidden_beside(location, "partial").path)
    folder = next(parent for parent in path.parents if os.path.lexists(parent))
    probe = folder / path.name
    try:
        os.mkdir(probe)
        os.rmdir(probe)
    except OSError as error:
        raise StorageError(
            f"{location} cannot be written: {folder}: {error.strerror or error}. "
            f"{locations.writing_advice(error)}"
        ) from error


def _overlap(a: locations.Location, b: locations.Location) -> bool:
    if a.scheme != b.scheme:
        return False
    first, second = (os.path.realpath(place.path) if place.is_local else place.path for place in (a, b))
    return first == second or first.startswith(second + "/") or second.startswith(first + "/")


# -- one output ----------------------------------------------------------------------------------------


@frozen
class Place:
    """Where an output is written until `publish`, made by `choose`.

    `location`: where it is to appear.
    `staged`: where it is written.
    `generation`: a folder's name that no other writer has.
    `file`: leads to the output, and is written last.
    `overwrite`: whether to replace what is at `location`.
    `before`: that file in an object store when the writing began.
    """

    location: locations.Location
    staged: locations.Location
    generation: str
    file: str = _FILE
    overwrite: bool = False
    before: documents.Tagged | None = None

    @classmethod
    def choose(
        cls,
        location: locations.Location,
        file: str = _FILE,
        *,
        overwrite: bool,
        staged: locations.Location | None = None,
    ) -> Self:
        """Choose where to write, after `check_output` allowed it; nothing is created.

        `staged`: in a folder: where to write; None: a new place.
        Raises ConflictError if another run has published in an object store since that check.
        """
        generation = f"generation-{uuid.uuid4().hex}"
        if not location.is_remote:
            # Next to its place, because a folder is renamed within one file system only.
            staged = staged or locations.hidden_beside(location, "partial")
            return cls(location, staged, generation, file, overwrite)
        if file == _FILE and not locations.exists(location):
            return cls(location, location, generation)
        # Before the work, so that whoever publishes meanwhile is noticed at its end.
        before = documents.read_tagged(locations.open_store(location), file, where=location)
        if before is not None and not overwrite and not is_unfinished(location):
            raise documents.overtaken(location)
        return cls(location, location.child(generation), generation, file, overwrite, before)

    @property
    def is_first(self) -> bool:
        """Whether it is the first dataset of a place in an object store, which is written there."""
        return self.location.is_remote and self.staged == self.location

    def create_group(self, attributes: Facts) -> zarr.Group:
        """Create the group of a dataset; what is written is removed if that fails.

        Raises OutputExistsError if another writer began there at the same moment; StorageError if it cannot
          be written.
        """
        with locations.store_errors(f"{self.location} cannot be written", ""):
            try:
                if self.staged.is_local:
                    Path(self.staged.path).parent.mkdir(parents=True, exist_ok=True)
                store = locations.open_store(self.staged, read_only=False)
                if not self.staged.is_remote:
                    return zarr.create_group(store, zarr_format=3, attributes=dict(attributes))
                # The token makes these bytes unlike every other writer's, as `replace_bytes` needs.
                manifest = {**documents.manifest_of(attributes), "writer": uuid.uuid4().hex}
                claim = _group_document({**attributes, documents.MANIFEST: manifest})
                if not documents.replace_bytes(store, _FILE, claim, expected=None, where=self.location):
                    raise OutputExistsError(
                        f"{self.location} is being written by another run, or was left unfinished by one; "
                        "wait for it, or give overwrite=True to replace it"
                    )
                if self.is_first:
                    _note(self.location, _FILE)
                return zarr.open_group(store, mode="r+")
            except StorageError:
                raise  # What is there may belong to another writer, so nothing is removed.
            except Exception:
                self.discard()
                raise

    def publish(self, document: Callable[[str, str | None], bytes] | None = None) -> None:
        """Let the finished output appear: readers find the old one or this one.

        `document`: makes `file` of the names of this generation and of the one before; None: a dataset,
          whose group has been completed.
        Raises OutputExistsError if something has appeared there meanwhile and `overwrite` is False;
          ConflictError if in an object store another run wrote there meanwhile; OutputBusyError if this
          context held the place and another run has it now; StorageError if the store does not answer. After
          an error what is there stays.
        """
        if self.is_first:
            _note(self.location, _FILE)  # `groups.complete` has published it.
            return
        if not self.location.is_remote:
            check_held(self.location)
            if document is not None:
                store = locations.open_store(self.staged, read_only=False)
                locations.write_bytes(store, self.file, document(self.generation, None))
                # Other files of a model stay, such as the list of rows that updates refused.
                for name in locations.list_names(self.location) if locations.exists(self.location) else ():
                    if name != self.file and name[0] != "." and locations.holds(self.location, name):
                        locations.write_bytes(store, name, locations.read_file(self.location, name) or b"")
            _swap(self.staged, self.location, overwrite=self.overwrite)
            _note(self.location, self.file)
            return
        found = b"{}" if self.before is None else self.before.content
        current, previous = documents.generations_of(self.file, found)
        content = (document or _pointer)(self.generation, current)
        store = locations.open_store(self.location, read_only=False)
        publish_bytes(self.location, store, self.file, content, expected=self.before)
        # The generation before stays, for readers that have it open; the one before that goes.
        if previous is not None:
            _remove(self.location, previous)

    def discard(self) -> None:
        """Remove what was written; what was at `location` before, or another writer put there, stays."""
        if self.is_first:
            _remove(self.location, "")
        elif not self.location.is_remote or not self._may_be_published():
            discard(self.staged)

    def _may_be_published(self) -> bool:
        """Say whether readers in an object store may be led here: the answer to a publication may be lost."""
        store = locations.open_store(self.location)
        try:
            found = documents.read_tagged(store, self.file, where=self.location)
        except StorageError:
            return True
        return found is not None and documents.generations_of(self.file, found.content)[0] == self.generation


def _remove(location: locations.Location, name: str) -> None:
    """Remove a generation; "" is the dataset that was written in its place."""
    if name:
        discard(location.child(name))
        return
    for member in locations.list_names(location):
        if member != _FILE and not documents.is_generation(member):
            discard(location.child(member))


def _pointer(name: str, previous: str | None) -> bytes:
    """Return the metadata of a group that only names the generation that holds the dataset."""
    manifest = {"state": "complete", "generation": name, "previous": previous}
    return _group_document({documents.MANIFEST: manifest})


def _group_document(attributes: Facts) -> bytes:
    """Return a Zarr group's metadata, in format 3."""
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}).encode()


def _swap(staged: locations.Location, location: locations.Location, *, overwrite: bool) -> None:
    """Move a finished output of a folder or of memory to its place: fsync, then rename.

    With `overwrite` the two folders swap names in one step, and the old one is removed. If the file system
    cannot do that, the old folder is moved aside and then the new one moved in: a reader in between finds
    nothing, but never a mixture.

    Raises OutputExistsError if something has appeared at `location` and `overwrite` is False.
    """
    if location.scheme == "memory":
        store = locations.MEMORY.pop(staged.path)
        if overwrite:
            locations.MEMORY[location.path] = store
        elif locations.MEMORY.setdefault(location.path, store) is not store:
            raise OutputExistsError(f"{location} was written meanwhile; choose another name")
        return
    # Before the rename: after a power cut a name must not lead to files without bytes.
    for folder, _, files in os.walk(staged.path):
        for file in files:
            locations.fsync_path(os.path.join(folder, file))
        locations.fsync_path(folder)
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
        # The second rename failed, on a full disk for example: the old output goes back.
        if os.path.lexists(aside) and not os.path.lexists(location.path):
            os.rename(aside, location.path)
        if os.path.lexists(location.path) and not overwrite:
            raise OutputExistsError(f"{location} was written meanwhile; choose another name") from error
        raise
    # It is published: what fails from here on must not say that it is not.
    locations.sync_published(Path(location.path).parent)
    if os.path.lexists(aside):
        try:
            shutil.rmtree(aside)
        except OSError as error:
            why = locations.explain(error)
            logger.warning(
                "%s was replaced, but not all of the old one removed (%s): %s", location, why, aside
            )


def _exchange(first: str, second: str) -> bool:
    """Swap two names in one step; return False if this system or file system cannot."""
    try:
        rename: Any = ctypes.CDLL(None).renameat2  # Linux; glibc 2.28, musl 1.2
    except (AttributeError, OSError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)


def discard(location: locations.Location) -> None:
    """Remove what is stored at `location` and below, if anything."""
    documents.drain()
    if location.is_local and os.path.isfile(location.path):
        os.unlink(location.path)
    elif location.is_local:
        # Another process may be removing the same leftovers.
        shutil.rmtree(location.path, ignore_errors=True)
    elif location.scheme == "memory":
        for name in [*locations.MEMORY]:
            if name == location.path or name.startswith(location.path + "/"):
                locations.MEMORY.pop(name, None)
    else:
        try:
            store = locations.open_store(location, read_only=False)
            # The files that identify a dataset go last, so that an interrupted discard can be repeated.
            for name in locations.list_names(location):
                if name not in locations.DATASET_FILES:
                    sync(store.delete_dir(name))
            sync(store.delete_dir(""))
        except Exception as error:
            why = locations.explain(error)
            logger.warning("%s could not be removed (%s); remove it yourself", location, why)


# -- one writer at a time --------------------------------------------------------------------------
#
# In a folder a run holds a lock of the operating system on the file `.NAME.lock` next to the output. It ends
# with its process, so that no clock matters. Whoever gets it removes what killed writers left there.
#
# An object store has no locks, and a run that is silent there may be dead or slow. So two runs may work for
# one place; the first one that publishes wins. The other notices at its own publication, because what leads
# to the output is no longer what it was when its work began.


class _Lock:
    """The lock that a run holds on the file next to a local output."""

    def __init__(self, location: locations.Location, file: TextIO, path: Path) -> None:
        self._location, self._file, self._path = location, file, path

    def check(self) -> None:
        # If somebody removed the file, another run may hold a new one.
        if not documents.is_at(self._file, self._path):
            raise _lost(self._location)

    def note(self, file: str) -> None:
        """Do nothing: a lock stays as it is when its holder publishes."""


class _Watch:
    """What leads to an output in an object store or in memory, as it was when a run began or published."""

    def __init__(self, location: locations.Location) -> None:
        self._location = location
        # All of them, because a run may find nothing there, and another one publish any kind of output.
        self._before = {file: self._tag(file) for file in _LEADING}

    def check(self) -> None:
        if any(self._tag(file) != tag for file, tag in self._before.items()):
            raise _lost(self._location)

    def note(self, file: str) -> None:
        """Take the run's own publication for what was there."""
        try:
            self._before[file] = self._tag(file)
        except StorageError as error:  # it is published all the same
            logger.warning("%s was published, and cannot be watched any more: %s", self._location, error)
            del self._before[file]

    def _tag(self, file: str) -> documents.Tagged | None:
        place = self._location
        if not file or not locations.may_hold(place):  # the output itself, or nothing in memory
            is_object = place.is_remote and "/" in place.path  # not a whole bucket
            return documents.find_object(place) if is_object else None
        store = locations.open_store(place)
        return documents.read_tagged(store, file, where=place, content=False)


# What this context holds, by URL. A step of a run that holds a place gets it again.
_held: ContextVar[Mapping[str, _Lock | _Watch]] = ContextVar("held places", default={})  # noqa: B039


@contextmanager
def hold(location: PathLike | locations.Location, *, holder: str) -> Iterator[None]:
    """Let this context alone publish at `location` as long as it lasts.

    In a folder other runs are refused at once. In an object store the run that publishes first wins, and the
    others are refused when they publish. If the caller's context holds the place already, nothing happens.

    `location`: what is written: a model, a registered model or a dataset.
    `holder`: who writes it, for the error that other runs get.
    Raises OutputBusyError, with holder and age, if another run holds it; StorageError if the lock cannot be
      written, or the store does not answer.
    """
    place = location if isinstance(location, locations.Location) else locations.parse_location(location)
    # A step of the run that holds it: a second lock would refuse it.
    if place.url in _held.get():
        yield
        return
    holding = _locked(place, redact(holder)) if place.is_local else nullcontext(_Watch(place))
    with holding as held, setting(_held, {**_held.get(), place.url: held}):
        yield


def check_held(location: locations.Location) -> None:
    """Raise OutputBusyError if this context held `location`, and another run has published there since.

    Raises StorageError if the store does not answer.
    """
    if (held := _held.get().get(location.url)) is not None:
        held.check()


def publish_bytes(
    location: locations.Location, store: Store, key: str, content: bytes, *, expected: documents.Tagged | None
) -> None:
    """Replace the file that leads to an output, if it and the place are as this run found them.

    `expected`: what the file was, from `read_tagged`.
    Raises ConflictError or OutputBusyError if another run has published meanwhile.
    """
    # In this order: who publishes after the look is noticed by the condition.
    check_held(location)
    if not documents.replace_bytes(store, key, content, expected=expected, where=location):
        raise documents.overtaken(location)
    _note(location, key)


def _note(location: locations.Location, key: str) -> None:
    if (held := _held.get().get(location.url)) is not None:
        held.note(key)


def _lost(location: locations.Location) -> OutputBusyError:
    return OutputBusyError(
        f"this run may no longer write {location}: another run has begun or published there since. "
        "Nothing was published; look at what is there now, and repeat this run if you still want it"
    )


@contextmanager
def _locked(location: locations.Location, holder: str) -> Iterator[_Lock]:
    output = Path(location.path)
    path = output.with_name(f".{output.name}.lock")
    with ExitStack() as stack:
        with locations.store_errors(f"{location} cannot be locked", ""):
            path.parent.mkdir(parents=True, exist_ok=True)
            busy = f"another run is writing {location}"
            file = stack.enter_context(documents.lock_file(path, holder=holder, busy=busy))
        for place in (*locations.beside(location, "partial-"), *locations.beside(location, "rows-")):
            logger.info("removing what a killed writer left: %s", place)
            discard(place)
        try:
            yield _Lock(location, file, path)
        finally:
            # Only our own: if ours was removed, another run may hold a new one.
            if documents.is_at(file, path):
                documents.remove_lock(path)
