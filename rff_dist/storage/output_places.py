"""Places of outputs: checked before the work, locked by one run, and removed.

A location goes in; an error comes out if nothing may be written there, or another run
writes there. Without these checks a run would fail only at its end, after hours, or
would damage the other run's output.
"""

import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from rff_dist.contexts import setting
from rff_dist.errors import OutputBusyError, OutputExistsError, StorageError
from rff_dist.storage import documents, locations, manifests, repositories
from rff_dist.storage.documents import (
    TaggedBytes,
    overtaken,
    read_tagged,
    replace_file,
)
from rff_dist.storage.locations import (
    DATASET_FILES,
    NODE_FILES,
    POINTER_FILE,
    Location,
    has_file,
    store_errors,
)
from rff_dist.storage.manifests import ENTRY_FILE, RECORD
from rff_dist.storage.zarr_access import drain
from rff_dist.text import redact
from rff_dist.typing import PathLike

logger = logging.getLogger(__name__)

# What a killed writer of a generation, or of a repository, has written to an object
# store before an entry file names it.
_ABANDONED = re.compile("|".join([manifests.GENERATION.pattern, *repositories.FOLDERS]))
# Outputs are folders; a name with one of these ends was meant for a file.
_FILE_SUFFIXES = (
    *(".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".xlsx", ".xls"),
    *(".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npy", ".npz", ".pkl"),
    *(".h5", ".hdf5", ".nc", ".db", ".sqlite", ".onnx"),
    *(".html", ".htm", ".md", ".pdf", ".png", ".svg", ".jpg", ".jpeg"),
    *(".gz", ".bz2", ".zst", ".zip", ".tar"),
)
# The entry files of outputs of any kind; "" is an output that is a single object.
_ENTRY_FILES = ("", POINTER_FILE, ENTRY_FILE)


# -- checks before the work


def check_output(
    location: Location,
    *,
    overwrite: bool,
    inputs: Sequence[Location] = (),
    markers: tuple[str, ...] = NODE_FILES,
    is_model: bool = False,
) -> None:
    """Refuse an output that exists, is inside another dataset, overlaps an input, or
    cannot be written.

    With `overwrite`, a folder is replaced only if it is empty or has one of the files
    in `markers`, and only by the same kind of content: a model by a model. A registered
    model or a version of one is never replaced. To learn whether a local folder can be
    written, an empty folder is made there and removed: permissions do not tell whether
    a file system is full or read-only.
    """
    for source in inputs:
        if _overlap(location, source):
            raise StorageError(
                f"the output {location} and the input {source} overlap; write to"
                " another place, so that the input is not changed while it is read"
            )
    locations.refuse_read_only(location)
    refuse_inside(location)
    if locations.exists(location):
        _check_replacing(location, overwrite, markers, is_model)
    else:
        if location.path.lower().endswith(_FILE_SUFFIXES):
            raise StorageError(
                f"{location} has the name of a file, and a folder would be written;"
                " expected a name such as data.zarr, or for predictions data.csv"
            )
        _refuse_others_objects(location)
    try_writing(location)


def _check_replacing(
    location: Location, overwrite: bool, markers: tuple[str, ...], is_model: bool
) -> None:
    """Refuse to replace what is at `location`, unless that is asked for and allowed."""
    if is_registered_model(location):
        raise OutputExistsError(
            f"{location} is a registered model, which keeps all of its versions;"
            " publish the next one with register=True, or choose another name"
        )
    content = locations.read_file(location, ENTRY_FILE) or b""
    manifest = manifests.manifest_in(content)
    if overwrite and manifests.LINEAGE in manifest:
        raise OutputExistsError(
            f"{location} is a published version of a registered model, which is never"
            " replaced; publish the next one with register=True, or choose another"
            " name"
        )
    if not overwrite and not is_unfinished(location):
        raise _exists_already(location)
    is_model_there = RECORD in manifest
    has_marker = any(has_file(location, name) for name in markers)
    if is_model_there == is_model and has_marker:
        return
    is_folder = location.is_local and os.path.isdir(location.path)
    if not is_folder or os.listdir(location.path):
        raise StorageError(
            f"{location} is not replaced: overwriting would remove what is there;"
            f" expected {'a model' if is_model else ' or '.join(markers)}. Remove it"
            " yourself if you do not need it"
        )


def _exists_already(location: Location) -> OutputExistsError:
    return OutputExistsError(
        f"{location} exists already; choose another name, or give overwrite=True to"
        " replace it"
    )


def check_file(
    location: Location,
    *,
    overwrite: bool,
    is_ours: Callable[[Location], bool] = documents.is_ours,
) -> None:
    """Refuse a single file that exists, or cannot be written, before the work.

    With `overwrite`, a file that this package wrote may be replaced.
    """
    locations.refuse_read_only(location)
    refuse_inside(location)
    if location.is_local:
        is_there = locations.exists(location)
    else:
        is_there = documents.find_tag(location) is not None
    if is_there and not overwrite:
        raise _exists_already(location)
    if is_there and not is_ours(location):
        raise OutputExistsError(
            f"{location} is not replaced, since rff_dist did not write it. Choose"
            " another name"
        )
    try_writing(location)


@contextmanager
def writing_file(location: Location) -> Iterator[Path]:
    """Yield a path to write to; the file at this path appears at `location` at the end.

    Raises ConflictError or OutputBusyError if another run has stored the object
    meanwhile, in an object store.
    """
    path = Path(location.path)
    with ExitStack() as stack:
        if location.is_local:
            # Next to the output, since a rename is one step only within a file system.
            path = path.resolve()
            folder = path.parent
        else:
            before = documents.find_tag(location)
            folder = Path(stack.enter_context(TemporaryDirectory()))
        unfinished = folder / f".{path.name}.partial-{uuid.uuid4().hex[:12]}"
        stack.callback(unfinished.unlink, missing_ok=True)
        yield unfinished
        check_held(location)
        if location.is_local:
            locations.fsync_path(unfinished)
            os.replace(unfinished, path)
            locations.sync_published(folder)
        else:
            documents.upload(unfinished, location, expected=before)


def refuse_inside(location: Location) -> None:
    """Refuse an output inside Zarr data: their readers would take it for a part of
    them.
    """
    for parent in Path(location.path).parents if location.is_local else ():
        above = Location("file", str(parent))
        is_group = any(has_file(above, name) for name in NODE_FILES)
        if is_group or locations.is_versioned(above):
            raise StorageError(
                f"the output {location} lies inside the Zarr data {parent}; write next"
                " to it"
            )


def is_registered_model(location: Location) -> bool:
    """Return whether `location` is a registered model that has a current version."""
    return has_file(location, POINTER_FILE)


def holds_model(location: Location) -> bool:
    """Return whether a model is at `location`, complete or not; StorageError if its
    metadata cannot be read.
    """
    content = locations.read_file(location, ENTRY_FILE)
    if content is None:
        return is_registered_model(location)
    attributes = manifests.parse_group(content, str(location))["attributes"]
    return RECORD in manifests.manifest_of(attributes)


def is_unfinished(location: Location) -> bool:
    """Return whether an object store has a dataset that no one finished."""
    if not location.is_remote:
        return False
    content = locations.read_file(location, ENTRY_FILE)
    if content is None:
        return locations.is_versioned(location) and repositories.is_empty(location)
    return manifests.manifest_in(content).get("state") == "writing"


def _refuse_others_objects(location: Location) -> None:
    """Refuse a prefix with foreign objects, which a failed write would remove."""
    if not location.is_remote:
        return
    # Killed writers of this package wrote the abandoned objects, and no entry file
    # names them.
    names = [
        name
        for name in locations.list_names(location)
        if not _ABANDONED.fullmatch(name)
    ]
    if {*DATASET_FILES} & {*names}:
        raise OutputBusyError(
            f"another run has begun to write {location} just now; repeat this when it"
            " is done"
        )
    if names:
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise StorageError(
            f"{location} holds other things ({shown}) and no dataset or model; expected"
            " an unused name. Write to a name below it"
        )


def try_writing(location: Location) -> None:
    """Make and remove an empty folder where the unfinished output will be written."""
    if not location.is_local:
        return
    path = Path(locations.new_hidden_folder(location, "partial").path)
    folder = next(parent for parent in path.parents if os.path.lexists(parent))
    probe = folder / path.name
    try:
        os.mkdir(probe)
        # The run that holds the lock of this place removes folders of killed writers,
        # and may have taken this one for such a folder.
        with suppress(FileNotFoundError):
            os.rmdir(probe)
    except OSError as error:
        raise StorageError(
            f"{location} cannot be written: {folder}: {error.strerror or error}. "
            f"{locations.writing_advice(error)}"
        ) from error


def _overlap(a: Location, b: Location) -> bool:
    if a.scheme != b.scheme:
        return False
    first = f"{os.path.realpath(a.path) if a.is_local else a.path}/"
    second = f"{os.path.realpath(b.path) if b.is_local else b.path}/"
    return first.startswith(second) or second.startswith(first)


# -- remove


def discard(location: Location) -> None:
    """Remove what is stored at `location` and below, if anything."""
    drain()
    if location.is_local and os.path.isfile(location.path):
        os.unlink(location.path)
    elif location.is_local:
        # Another process may be removing the same things.
        shutil.rmtree(location.path, ignore_errors=True)
    else:
        try:
            locations.delete_objects(location)
        except Exception as error:
            why = locations.explain(error)
            logger.warning(
                "%s could not be removed (%s); remove it yourself", location, why
            )


# -- one writer at a time
#
# In a folder a run has a lock of the operating system on the file `.NAME.lock` next
# to the output. It ends with its process, so that no clock matters. A run that gets it
# removes the folders of killed writers.
#
# An object store has no locks, and a run that is silent there may be dead or slow. So
# two runs may work for one place; the first one that publishes wins. To publish is to
# replace the *entry file*: the file that readers of a place read first, and which tells
# them where the rest is. The other run notices at its own publication that the entry
# file has changed since its work began.


class _Hold:
    """Notices that another run writes to a run's place: a local output by the lock on
    the file next to it; any other by its entry files, if they are no longer as they
    were when the run began.
    """

    def __init__(self, location: Location, lock: TextIO | None) -> None:
        self._location = location
        self._lock = lock
        self._before: dict[str, TaggedBytes | None] = {}
        # All of them: where this run finds nothing, another one may publish any kind of
        # output.
        if lock is None:
            self._before = {file: self._tag(file) for file in _ENTRY_FILES}

    def check(self) -> None:
        """Raise OutputBusyError if another run has published since."""
        if self._lock is not None:
            # If somebody removed the lock's file, another run may have locked a new
            # one.
            is_alone = documents.is_at(self._lock, self._lock.name)
        else:
            is_alone = all(self._tag(name) == tag for name, tag in self._before.items())
        if is_alone:
            return
        raise OutputBusyError(
            f"this run may no longer write {self._location}: another run has begun or"
            " published there since. Nothing was published; look at what is there now,"
            " and repeat this run if you still want it"
        )

    def note(self, file: str) -> None:
        """Remember a file that this run itself published, so `check` accepts it."""
        if self._lock is not None:
            return
        try:
            self._before[file] = self._tag(file)
        except StorageError as error:  # it is published all the same
            logger.warning(
                "%s was published, and cannot be watched any more: %s",
                self._location,
                error,
            )
            del self._before[file]

    def _tag(self, file: str) -> TaggedBytes | None:
        place = self._location
        if not file:  # the output itself
            return documents.find_tag(place)
        return read_tagged(place, file, has_content=False)


# What this run has locked, by URL. A step of the run finds the lock here, since the
# run's context is also that of its steps.
_held: ContextVar[Mapping[str, _Hold]] = ContextVar("held places", default={})  # noqa: B039


@contextmanager
def hold(location: PathLike | Location, *, holder: str) -> Iterator[None]:
    """Let this run alone publish at `location` until the `with` block ends.

    In a folder other runs are refused at once, with OutputBusyError that names the
    holder and its age. In an object store the run that publishes first wins, and the
    others are refused when they publish.
    """
    place = location
    if not isinstance(place, Location):
        place = locations.parse_location(place)
    held = _held.get()
    # In a step of the run that has the lock, a second lock would refuse the step.
    if place.url in held:
        yield
        return
    locking: AbstractContextManager[TextIO | None] = nullcontext()
    if place.is_local:
        locking = _lock_output(place, redact(holder))
    with locking as lock, setting(_held, {**held, place.url: _Hold(place, lock)}):
        yield


def check_held(location: Location) -> None:
    """Raise OutputBusyError if another run has published since this run locked
    `location`; a place that it did not lock is not checked.
    """
    held = _held.get().get(location.url)
    if held is not None:
        held.check()


def publish_bytes(
    location: Location, key: str, content: bytes, *, expected: TaggedBytes | None
) -> None:
    """Publish an output: replace its entry file `key`.

    Raises OutputBusyError if another run has published at the place since this one
    began, ConflictError if the file is not `expected`, which this run has read.
    """
    # The check comes first: if another run publishes after it, the file is no longer
    # the expected one, and `replace_file` refuses.
    check_held(location)
    if not replace_file(location, key, content, expected=expected):
        raise overtaken(location)
    note_published(location, key)


def note_published(location: Location, key: str) -> None:
    """Remember what this run itself published, so `check_held` accepts it."""
    held = _held.get().get(location.url)
    if held is not None:
        held.note(key)


@contextmanager
def _lock_output(location: Location, holder: str) -> Iterator[TextIO]:
    """Lock a local output, and remove the folders of killed writers next to it."""
    output = Path(location.path)
    path = output.with_name(f".{output.name}.lock")
    busy = f"another run is writing {location}"
    with ExitStack() as stack:
        with store_errors(f"{location} cannot be locked", ""):
            lock = documents.lock_file(path, holder=holder, busy=busy)
            file = stack.enter_context(lock)
        # unfinished outputs, and the unfinished rows of a prediction
        for kind in ("partial-", "rows-"):
            for place in locations.hidden_folders(location, kind):
                logger.info("removing what a killed writer wrote: %s", place)
                discard(place)
        yield file
