"""How a dataset is begun, put in place and found again, also in stores that cannot rename.

On disk and in memory a dataset is written next to its place and moved there. In an object store the first
dataset is written in its place: `zarr.json` is created on condition that no one else did, says that the
dataset is unfinished, and is replaced last. A dataset that is overwritten must stay whole for its readers, so
the next generation is written to a folder in it, and `zarr.json` then names that folder in one request, if it
still is what it was when the writing began::

    data.zarr/
    ├── zarr.json                 {"rff_dist": {"generation": "generation-…", "previous": …}}
    ├── generation-<token>/       the dataset
    └── generation-<token>/       the one before, for readers that have it open; the next write removes it

No one writes where another writer has begun, dead or alive: what a writer left unfinished in the place stays
claimed, and the next dataset becomes a generation. So a writer that lives on after it was taken for dead can
neither damage what the others write nor publish over it.
"""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

from rff_dist.errors import OutputExistsError, StorageError
from rff_dist.storage import arrays, conditional, locations, output_places
from rff_dist.typing import Facts

MANIFEST = "rff_dist"
# Members of the manifest:
NAME = "id"  # a name that all versions of one dataset share, and no other dataset has
LOADS = "loads"  # where each load ends and when it came; see `storage.loads`
LINE = "line"  # rows and digest of the last version that changed old rows, and of each append since
_FILE = "zarr.json"
_GENERATION = re.compile(r"generation-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class _Names:
    """The generations that a dataset's `zarr.json` names; "" is the dataset that was written in its place.

    `current`, `previous`: folders of the dataset and the one before; None if there is none.
    `n_samples`: rows of the dataset in its place, for readers that still have it open; None if unknown.
    """

    current: str | None = None
    previous: str | None = None
    n_samples: int | None = None


@dataclass(frozen=True, slots=True)
class Staged:
    """Where a dataset is written until `put_in_place`.

    `location`: where it is to appear.
    `place`: where it is written.
    `before`: in an object store, the `zarr.json` that it is to replace.
    """

    location: locations.Location
    place: locations.Location
    before: conditional.Tagged | None = None

    @property
    def is_first(self) -> bool:
        """Whether it is the first dataset of an object store's place, which is written there."""
        return self.location.is_remote and self.place == self.location

    def discard(self) -> None:
        """Remove what was written; what was at `location` before, or another writer put there, stays."""
        if self.is_first:
            _remove(self.location, "")
        else:
            output_places.discard(self.place)


def manifest_of(attributes: object) -> Facts:
    """Return the manifest among a group's attributes; empty if there is none."""
    manifest = attributes.get(MANIFEST) if isinstance(attributes, Mapping) else None
    return manifest if isinstance(manifest, Mapping) else {}


def is_pointer(attributes: object) -> bool:
    """Return whether a group's attributes only name the generation that holds the dataset."""
    return "generation" in manifest_of(attributes)


def name_of(attributes: Facts) -> str | None:
    """Return the name that all versions of a dataset share; None for plain Zarr."""
    name = manifest_of(attributes).get(NAME)
    return None if name is None else str(name)


def begin(
    location: locations.Location, attributes: Facts, *, place: locations.Location | None = None
) -> tuple[Staged, zarr.Group]:
    """Create the group of a dataset that is to appear at `location`, after `check_output` allowed it.

    `place`: where to write it; None: a new place.
    Raises OutputExistsError if another writer began there at the same moment; StorageError if it cannot be
      written.
    """
    before = None
    if place is None:
        place = output_places.stage(location)
        if location.is_remote and locations.exists(location):
            place = location.child(f"generation-{uuid.uuid4().hex}")
            store = locations.open_store(location, read_only=True)
            before = conditional.read_tagged(store, _FILE, where=location)
    staged = Staged(location, place, before)
    with locations.store_errors(f"{location} cannot be written", ""):
        try:
            return staged, _create_group(place, location, attributes)
        except StorageError:
            raise  # What is there may belong to another writer, so nothing is removed.
        except Exception:
            staged.discard()
            raise


def _create_group(place: locations.Location, location: locations.Location, attributes: Facts) -> zarr.Group:
    if place.is_local:
        Path(place.path).parent.mkdir(parents=True, exist_ok=True)
    store = locations.open_store(place, read_only=False)
    if not place.is_remote:
        return zarr.create_group(store, attributes=dict(attributes))
    # The token makes these bytes unlike every other writer's, as `create_bytes` needs.
    manifest = {**attributes.get(MANIFEST, {}), "writer": uuid.uuid4().hex}
    claim = _document({**attributes, MANIFEST: manifest})
    if not conditional.create_bytes(store, _FILE, claim, where=location):
        raise OutputExistsError(
            f"{location} is being written by another run, or was left unfinished by one; wait for it, or "
            "give overwrite=True to replace it"
        )
    return zarr.open_group(store, mode="r+")


def put_in_place(staged: Staged, *, overwrite: bool) -> None:
    """Put a finished dataset in its place; readers find the old one or this one.

    Raises OutputExistsError if something has appeared there meanwhile and `overwrite` is False; ConflictError
      if in an object store another run wrote there meanwhile; OutputBusyError if this context has lost the
      lease; StorageError if the store does not answer. After an error what is there stays.
    """
    location = staged.location
    if staged.is_first:
        return  # `complete` has published it.
    output_places.check_lease(location)
    if not location.is_remote:
        output_places.put_in_place(staged.place, location, overwrite=overwrite)
        return
    store = locations.open_store(location, read_only=False)
    name = staged.place.path.removeprefix(f"{location.path}/")
    # There is no zarr.json if the old dataset is of Zarr format 2.
    before = _Names() if staged.before is None else _names(staged.before.content)
    manifest: dict[str, Any] = {"state": "complete", "generation": name, "previous": before.current}
    if before.n_samples is not None:
        manifest["n_samples"] = before.n_samples
    content = _document({MANIFEST: manifest})
    conditional.publish_bytes(store, _FILE, content, expected=staged.before, location=location)
    if before.previous is not None:
        _remove(location, before.previous)


def resolve(location: locations.Location) -> locations.Location:
    """Return the folder that holds the arrays of the dataset at `location`: its current generation.

    Raises StorageError if the store does not answer.
    """
    if not location.is_remote:
        return location
    content = locations.read_file(location, _FILE)
    current = "" if content is None else _names(content).current
    return location.child(current) if current else location


def _names(content: bytes) -> _Names:
    """Return the generations that `zarr.json` names; errors in it are left to whoever opens the group."""
    try:
        manifest = manifest_of(arrays.load_json(content).get("attributes"))
    except StorageError:
        manifest = {}
    current, previous, n_samples = (manifest.get(key) for key in ("generation", "previous", "n_samples"))
    if not isinstance(current, str) or not _GENERATION.fullmatch(current):
        return _Names("", None, n_samples if type(n_samples) is int else None)
    known = previous == "" or (isinstance(previous, str) and _GENERATION.fullmatch(previous))
    return _Names(current, previous if known else None)


def _remove(location: locations.Location, name: str) -> None:
    """Remove a generation; "" is the dataset that was written in its place."""
    if name:
        output_places.discard(location.child(name))
        return
    for member in locations.list_names(location):
        if member != _FILE and not _GENERATION.fullmatch(member):
            output_places.discard(location.child(member))


def _document(attributes: Facts) -> bytes:
    """Return a Zarr group's metadata, in format 3."""
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}).encode()
