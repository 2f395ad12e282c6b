"""How a dataset begins, appears and is found again: the same promises in stores that cannot rename.

On disk and in memory a dataset is written beside its place and moved there. In an object store the first one
is written in its place: `zarr.json` is created on condition that nobody else did, says that the dataset is
unfinished, and is replaced last. One that is overwritten must stay whole for its readers, so the next one is
written to a folder in it, and `zarr.json` then names that folder in one request::

    data.zarr/
    ├── zarr.json                 {"rff_dist": {"generation": "generation-…", "previous": …}}
    ├── generation-<token>/       the dataset
    └── generation-<token>/       the one before, for readers that have opened it; the next one removes it
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

from rff_dist.errors import OutputExistsError, StorageError
from rff_dist.storage import output_places
from rff_dist.storage.arrays import load_json
from rff_dist.storage.conditional import create_bytes, read_tagged, replace_bytes
from rff_dist.storage.leases import remove_unfinished
from rff_dist.storage.locations import Location, exists, list_names, open_store, read_file, store_errors
from rff_dist.storage.output_places import discard, stage

MANIFEST = "rff_dist"
NAME = "id"  # its member: what all versions of a dataset are known by, and no other dataset
LOADS = "loads"  # its member: where the rows of each append end, and when they came; see `storage.loads`
LINE = "line"  # its member: rows and digest of each version since rows were last changed, then of appends
_FILE = "zarr.json"
_GENERATION = re.compile(r"generation-[0-9a-f]{32}")
# A swap is repeated when another writer was quicker; each of them then has its turn.
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class _Names:
    """What a dataset's `zarr.json` says of generations; "" is the dataset in its place.

    `current`, `previous`: where the dataset and the one before are; None where there is none.
    `n_samples`: rows of the dataset in its place, for those who still read it; None where that is unknown.
    """

    current: str | None = None
    previous: str | None = None
    n_samples: int | None = None


def manifest_of(attributes: object) -> Mapping[str, Any]:
    """Return the manifest among a group's attributes; empty where there is none."""
    manifest = attributes.get(MANIFEST) if isinstance(attributes, Mapping) else None
    return manifest if isinstance(manifest, Mapping) else {}


def name_of(attributes: Mapping[str, Any]) -> str | None:
    """Return what all versions of a dataset are known by; None of plain Zarr."""
    found = manifest_of(attributes).get(NAME)
    return None if found is None else str(found)


def begin(
    location: Location, attributes: Mapping[str, Any], *, staged: Location | None = None
) -> tuple[Location, zarr.Group]:
    """Create the group of a dataset that is to appear at `location`; `check_output` has allowed it.

    `staged`: where to write it; a place of its own if left out.
    Returns `staged`: where it is written until `put_in_place`; `discard` removes it.
    Raises OutputExistsError if another writer began there at the same moment; StorageError if it cannot be
      written.
    """
    remove_unfinished(location)
    if staged is None:
        overwrites = location.is_remote and exists(location)
        staged = location.child(f"generation-{uuid.uuid4().hex}") if overwrites else stage(location)
    with store_errors(f"{location} cannot be written", ""):
        try:
            return staged, _create_group(staged, location, attributes)
        except StorageError:
            raise  # what is there may be another writer's
        except Exception:
            discard(staged)
            raise


def _create_group(staged: Location, location: Location, attributes: Mapping[str, Any]) -> zarr.Group:
    if staged.is_local:
        Path(staged.path).parent.mkdir(parents=True, exist_ok=True)
    store = open_store(staged, read_only=False)
    if not staged.is_remote:
        return zarr.create_group(store, attributes=dict(attributes))
    # What is compared when an answer was lost must be unlike every other writer's.
    manifest = {**attributes.get(MANIFEST, {}), "writer": uuid.uuid4().hex}
    claim = _document({**attributes, MANIFEST: manifest})
    if not create_bytes(store, _FILE, claim, where=location):
        raise OutputExistsError(
            f"{location} is being written by another run, or was left unfinished by one; wait for it, or "
            "give overwrite=True (--overwrite at the command line) to replace it"
        )
    return zarr.open_group(store, mode="r+")


def put_in_place(staged: Location, location: Location, *, overwrite: bool) -> None:
    """Let a finished dataset appear at `location`; a reader finds the old one or this one.

    Raises OutputExistsError if something has appeared there meanwhile and `overwrite` is False; StorageError
      if the store does not answer; what was there before then stays.
    """
    if staged == location:
        return
    if not location.is_remote:
        output_places.put_in_place(staged, location, overwrite=overwrite)
        return
    store = open_store(location, read_only=False)
    name = staged.path.removeprefix(f"{location.path}/")
    for _ in range(_ATTEMPTS):
        found = read_tagged(store, _FILE, where=location)
        # Nothing is known where what is overwritten was removed meanwhile, or is of Zarr format 2.
        before = _Names() if found is None else _names(found.content)
        manifest: dict[str, Any] = {"state": "complete", "generation": name, "previous": before.current}
        if before.n_samples is not None:
            manifest["n_samples"] = before.n_samples
        if replace_bytes(store, _FILE, _document({MANIFEST: manifest}), expected=found, where=location):
            if before.previous is not None:
                _remove(location, before.previous)
            return
    raise StorageError(f"{location} is overwritten by several runs at this moment; repeat this one later")


def resolve(location: Location) -> Location:
    """Return where the arrays of the dataset at `location` are.

    Raises StorageError if the store does not answer.
    """
    if not location.is_remote:
        return location
    content = read_file(location, _FILE)
    current = "" if content is None else _names(content).current
    return location.child(current) if current else location


def _names(content: bytes) -> _Names:
    """Read what `zarr.json` says; whatever else is wrong with it, who opens the group finds out."""
    try:
        manifest = manifest_of(load_json(content).get("attributes"))
    except StorageError:
        manifest = {}
    current, previous, n_samples = (manifest.get(key) for key in ("generation", "previous", "n_samples"))
    if not isinstance(current, str) or not _GENERATION.fullmatch(current):
        return _Names("", None, n_samples if type(n_samples) is int else None)
    known = previous == "" or (isinstance(previous, str) and _GENERATION.fullmatch(previous))
    return _Names(current, previous if known else None)


def _remove(location: Location, name: str) -> None:
    """Remove a generation that nobody reads any more; "" is the dataset that was written in its place."""
    if name:
        discard(location.child(name))
        return
    for found in list_names(location):
        if found != _FILE and not _GENERATION.fullmatch(found):
            discard(location.child(found))


def _document(attributes: Mapping[str, Any]) -> bytes:
    """Return the metadata of a Zarr group, as the specification of format 3 has them."""
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}).encode()
