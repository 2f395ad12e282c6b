"""Write an output where no one sees it, and publish it: it appears in one step.

A location goes in; a `Publication` comes out, to which a group is written, and which
then appears at the location, or is discarded.

In a folder (a location that is not `is_remote`) an output is written next to its place,
synced to the disk, and swapped in by one rename. An object store cannot rename. There
an output is written once, and readers find it by its entry file, the group's
`zarr.json`, which they read first. That file is replaced last, on condition that no one
else replaced it since the writing began.

The first group at a place in an object store is written at that place: its `zarr.json`
is created on condition that no one else did, and says that the group is unfinished. A
later group must not touch the files that readers of the first one read. So it gets its
own folder, a generation, which the entry file then names::

    data.zarr/
    ├── zarr.json                 {"rff_dist": {"generation": "generation-…",
    │                             "previous": …}}
    ├── generation-<token>/       the dataset, or model
    └── generation-<token>/       the one before, for readers that have it open; the
                                  next write removes it

No one writes where another writer has begun, dead or alive. So a writer that lives on
after it was taken for dead can neither damage what the others write nor publish over
it.
"""

from __future__ import annotations

import base64
import ctypes
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rff_dist.errors import OutputExistsError, StorageError
from rff_dist.storage import locations, manifests, output_places
from rff_dist.storage.documents import (
    TaggedBytes,
    overtaken,
    read_tagged,
    replace_file,
)
from rff_dist.storage.locations import (
    Location,
    has_file,
    load_json,
    store_errors,
)
from rff_dist.storage.manifests import (
    ENTRY_FILE,
    MANIFEST,
    PARTS,
    RECORD,
    SUM_BYTES,
    generations_of,
    manifest_of,
)
from rff_dist.storage.repositories import Change
from rff_dist.storage.zarr_access import open_store, read_ends, read_key, zarr
from rff_dist.typing import Facts, Summary, frozen

if TYPE_CHECKING:
    from zarr.abc.store import Store

logger = logging.getLogger(__name__)


@frozen
class Publication:
    """An output on its way, made by `plan`: written at `staged`, read at `location`.

    The steps are `create_group`, then `complete`, then `publish`. A
    folder, or a later group in an object store, appears by `publish`. The first group
    at a place in an object store appears by `complete`, which replaces its entry file.
    """

    location: Location  # where it will appear
    staged: Location  # where it is written until then
    overwrite: bool = False  # whether to replace an output at `location`
    model_kind: str | None = None  # None: no model
    #: In an object store the entry file when the writing began.
    entry_before: TaggedBytes | None = None

    @classmethod
    def plan(
        cls,
        location: Location,
        *,
        overwrite: bool,
        model_kind: str | None = None,
        staged: Location | None = None,
    ) -> Self:
        """Choose where to write, after `check_output` allowed it; nothing is created.

        In a folder, `staged` may be the place of a stopped job, to go on there. Raises
        ConflictError if another run has published in an object store since that check.
        """
        if not location.is_remote:
            # Next to its place, because a folder is renamed within one file system
            # only.
            staged = staged or locations.new_hidden_folder(location, "partial")
            return cls(location, staged, overwrite, model_kind)
        if not locations.exists(location):
            return cls(location, location, model_kind=model_kind)
        # Read before the work: at its end a run that published meanwhile is noticed.
        entry = read_tagged(location, ENTRY_FILE)
        if (
            entry is not None
            and not overwrite
            and not output_places.is_unfinished(location)
        ):
            raise overtaken(location)
        staged = location.child(f"generation-{uuid.uuid4().hex}")
        return cls(location, staged, overwrite, model_kind, entry)

    @property
    def is_first(self) -> bool:
        """Whether it is the first group at a place in an object store, and so written
        there.
        """
        return self.location.is_remote and self.staged == self.location

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Publish the written output at the end, or discard it after an error."""
        try:
            yield
            self.publish()
        except BaseException:
            self.discard()
            raise

    def create_group(self, attributes: Facts) -> zarr.Group:
        """Create an unfinished group; if that fails, remove what it has written.

        Raises OutputExistsError if another writer began there at the same moment.
        """
        attributes = {**attributes, MANIFEST: self._manifest("writing")}
        with store_errors(f"{self.location} cannot be written", ""):
            try:
                store = open_store(self.staged, read_only=False)
                if not self.staged.is_remote:
                    Path(self.staged.path).parent.mkdir(parents=True, exist_ok=True)
                    return zarr.create_group(
                        store, zarr_format=3, attributes=attributes
                    )
                self._claim(attributes)
                return zarr.open_group(store, mode="r+")
            except StorageError:
                # Files that are there may belong to another writer.
                raise
            except Exception:
                self.discard()
                raise

    def _manifest(self, state: str) -> Summary:
        """Return the beginning of a manifest."""
        kind = {} if self.model_kind is None else {RECORD: self.model_kind}
        return {"state": state, **kind}

    def _claim(self, attributes: Facts) -> None:
        """Create the group in an object store, on condition that no one else did."""
        # The token makes these bytes unlike every other writer's, as `replace_file`
        # needs.
        manifest = {**attributes[MANIFEST], "writer": uuid.uuid4().hex}
        claim = _group_document({**attributes, MANIFEST: manifest})
        if not replace_file(self.staged, ENTRY_FILE, claim, expected=None):
            raise OutputExistsError(
                f"{self.location} is being written by another run, or one has not"
                " finished it; wait for it, or give overwrite=True to replace it"
            )
        # Not complete yet, but readers find the entry file already: without this note
        # `check_held` would take it for another run's.
        if self.is_first:
            output_places.note_published(self.location, ENTRY_FILE)

    def complete(self, names: Iterable[str], attributes: Facts) -> None:
        """Write the group's new attributes, with a manifest that binds its arrays; this
        is the last write of a dataset.

        In an object store this publishes the first group of a place, if no one has
        replaced its metadata meanwhile; else it raises ConflictError.
        """
        before = read_tagged(self.staged, ENTRY_FILE)
        content = _bind_arrays(
            open_store(self.staged),
            None if before is None else before.content,
            names,
            attributes,
            self.location,
        )
        if not self.staged.is_remote:  # no one else writes to a hidden folder
            locations.write_file(self.staged, ENTRY_FILE, content)
        elif not replace_file(self.staged, ENTRY_FILE, content, expected=before):
            raise overtaken(self.location)

    def publish(self) -> None:
        """Let the completed group appear: readers find the old one or this one.

        Raises OutputExistsError, ConflictError or OutputBusyError if another run wrote
        there meanwhile. After an error an old output stays.
        """
        if self.is_first:
            # `complete` has let it appear; only the new entry file must be noted.
            output_places.note_published(self.location, ENTRY_FILE)
        elif self.location.is_remote:
            self._replace_entry_file()
        else:
            output_places.check_held(self.location)
            if self.model_kind is not None:
                self._copy_files()
            _swap(self.staged, self.location, overwrite=self.overwrite)
            output_places.note_published(self.location, ENTRY_FILE)

    def _copy_files(self) -> None:
        """Copy the other files in a model's folder, such as the list of rows that
        updates refused; the swap would remove them. In an object store they stay.
        """
        if not locations.exists(self.location):
            return
        for name in locations.list_names(self.location):
            if name != ENTRY_FILE and name[0] != "." and has_file(self.location, name):
                content = locations.read_file(self.location, name)
                locations.write_file(self.staged, name, content or b"")

    def _replace_entry_file(self) -> None:
        """Let the entry file in an object store name the new generation."""
        content = b"{}" if self.entry_before is None else self.entry_before.content
        current, previous = generations_of(content)
        generations = {"generation": self.staged.name, "previous": current}
        manifest = {**self._manifest("complete"), **generations}
        output_places.publish_bytes(
            self.location,
            ENTRY_FILE,
            _group_document({MANIFEST: manifest}),
            expected=self.entry_before,
        )
        # Readers may have the generation `current` open, so only the one before it is
        # removed.
        if previous is not None:
            _remove(self.location, previous)

    def discard(self) -> None:
        """Remove the arrays that this run wrote; anything else at `location` stays.

        The `zarr.json` of a place's first group stays too, and says that the group is
        unfinished: another run may have replaced that file by now.
        """
        if self.is_first:
            _remove(self.location, "")
            return
        if self.location.is_remote and self._may_be_published():
            return
        output_places.discard(self.staged)

    def _may_be_published(self) -> bool:
        """Return whether the entry file in an object store may name this generation.

        Its write may have succeeded although this run got an error instead of an
        answer.
        """
        try:
            content = locations.read_file(self.location, ENTRY_FILE)
        except StorageError:
            return True
        return generations_of(content or b"")[0] == self.staged.name


def _remove(location: Location, name: str) -> None:
    """Remove a generation; "" is the first group, which was written in its place.

    The first group's files .json stay: `zarr.json`, which another run or the next
    generation may have replaced, and a model's list of rows that updates refused.
    """
    if name:
        output_places.discard(location.child(name))
        return
    for member in locations.list_names(location):
        is_file = member.endswith(".json")
        if not is_file and not manifests.is_generation(member):
            output_places.discard(location.child(member))


def _group_document(attributes: Facts) -> bytes:
    """Return a Zarr group's metadata, in format 3."""
    document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return json.dumps(document).encode()


def _swap(staged: Location, location: Location, *, overwrite: bool) -> None:
    """Move a finished output of a folder to its place: fsync, then rename.

    With `overwrite` the two folders swap names in one step, and the old one is removed.
    If the file system cannot do that, the old folder is moved aside and then the new
    one moved in: a reader in between finds nothing, but never a mixture.
    """
    meanwhile = f"{location} was written meanwhile; choose another name"
    # Synced before the rename: after a power cut the new name must not have files
    # without bytes.
    for folder, _, files in os.walk(staged.path):
        for file in files:
            locations.fsync_path(os.path.join(folder, file))
        locations.fsync_path(folder)
    target = location.path
    aside = f"{staged.path}.old"
    is_exchanged = False
    try:
        if overwrite and os.path.lexists(target):
            is_exchanged = _exchange(staged.path, target)
            if is_exchanged:
                aside = staged.path  # which has the old output now
            else:
                os.rename(target, aside)
        if not is_exchanged:
            os.rename(staged.path, target)
    except OSError as error:
        # The second rename failed, on a full disk for example: the old output goes
        # back.
        if os.path.lexists(aside) and not os.path.lexists(target):
            os.rename(aside, target)
        if os.path.lexists(target) and not overwrite:
            raise OutputExistsError(meanwhile) from error
        raise
    # It is published now, so no later failure may raise.
    locations.sync_published(Path(target).parent)
    if os.path.lexists(aside):
        try:
            shutil.rmtree(aside)
        except OSError as error:
            logger.warning(
                "%s was replaced, but not all of the old one removed (%s): %s",
                location,
                locations.explain(error),
                aside,
            )


def _exchange(first: str, second: str) -> bool:
    """Swap two names in one step; return False if this system or file system cannot."""
    try:
        rename: Any = ctypes.CDLL(None).renameat2  # Linux; glibc 2.28, musl 1.2
    except (AttributeError, OSError):
        return False
    # AT_FDCWD, RENAME_EXCHANGE
    here = -100
    exchange = 2
    result = rename(here, os.fsencode(first), here, os.fsencode(second), exchange)
    return bool(result == 0)


# -- the manifest, which binds the arrays of a group


def complete_change(
    change: Change,
    names: Iterable[str],
    attributes: Facts,
    *,
    changed: Mapping[str, Iterable[int]] | None = None,
) -> None:
    """Write the new attributes of a versioned dataset, as `Publication.complete`.

    `changed` has, for each array, the numbers of the chunks that changed since the last
    manifest; None means all. Checksums are read of these chunks only.
    """
    before = read_key(change.store, ENTRY_FILE, where=change.location)
    content = _bind_arrays(
        change.store, before, names, attributes, change.location, changed
    )
    buffer = zarr.core.buffer.cpu.Buffer.from_bytes(content)
    zarr.core.sync.sync(change.store.set(ENTRY_FILE, buffer))


def _bind_arrays(
    store: Store,
    before: bytes | None,
    names: Iterable[str],
    attributes: Facts,
    location: Location,
    changed: Mapping[str, Iterable[int]] | None = None,
) -> bytes:
    """Return a group's metadata with new attributes and a manifest of its arrays.

    `before` are the metadata as they are stored.
    """
    if before is None:
        raise StorageError(
            f"{ENTRY_FILE} is gone from {location}; another program removed it. Write"
            " the data again"
        )
    document = load_json(before, str(location))
    old_manifest = manifest_of(document["attributes"])
    # Another writer has published a generation since this one began.
    if "generation" in old_manifest:
        raise overtaken(location)
    known: Facts = {}
    # Checksums of unchanged chunks come from the last manifest, so that a commit reads
    # 4 bytes for each changed chunk.
    if changed is not None:
        known = old_manifest.get(PARTS, {})
    parts = {
        name: _describe(store, name, known.get(name), (changed or {}).get(name, ()))
        for name in names
    }
    manifest = {**attributes[MANIFEST], "state": "complete", PARTS: parts}
    return manifests.sign_group(document, {**attributes, MANIFEST: manifest})


def _describe(
    store: Store, name: str, known: Facts | None, changed: Iterable[int]
) -> Summary:
    """Return an array's entry in the manifest.

    `known` is its entry in the last manifest; None if it has none. The checksums of the
    chunks `changed` and of new ones are read, all others are known.
    """
    label = f"array {name!r}"
    content = read_key(store, f"{name}/{ENTRY_FILE}", where=label)
    assert content is not None
    header = manifests.parse_header(content, label=label, allows_text=True)
    assert header is not None
    n_chunks = -(-header.shape[0] // header.chunks[0]) if all(header.shape) else 0
    # 4 bytes for each chunk of up to 16 MiB, 5.4 as base64 in the manifest.
    sums = np.zeros(n_chunks, "<u4")
    is_new = np.ones(n_chunks, bool)
    if known is not None:
        before = manifests.unpack_sums(known["crc32c"])[:n_chunks]
        sums[: len(before)] = before
        is_new[: len(before)] = False
        is_new[[number for number in changed if number < n_chunks]] = True
    numbers = np.flatnonzero(is_new)
    # The arrays are chunked along the rows only.
    tail = "/0" * (len(header.shape) - 1)
    keys = [f"{name}/c/{number}{tail}" for number in numbers]
    checksums = read_ends(store, keys, SUM_BYTES)
    sums[numbers] = np.frombuffer(b"".join(checksums), "<u4")
    packed = base64.b64encode(sums.tobytes()).decode()
    return {"metadata": header.digest, "crc32c": packed}
