"""Where an output may be written, how it appears there all at once, and how it is removed.

Local outputs are written to a sibling folder and renamed, and outputs in memory change their name in a table:
both appear complete or not at all. An object store cannot rename, so there a group's attributes say whether
it is complete; see `generations`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zarr.core.sync import sync

from rff_dist.errors import OutputBusyError, OutputExistsError, StorageError
from rff_dist.storage.locations import (
    DATASET_FILES,
    LINEAGE_FILE,
    MEMORY,
    NODE_FILES,
    POINTER_FILE,
    READ_ONLY_SCHEMES,
    RECORD_FILE,
    Location,
    exists,
    explain,
    fsync_path,
    list_names,
    open_store,
    read_file,
    sync_to_disk,
    writing_advice,
)
from rff_dist.storage.repositories import is_empty, is_versioned

logger = logging.getLogger(__name__)

# What a writer of a model leaves if it is killed, or if it fails while the store is away.
_PART_OF_MODEL = re.compile(r"arrays-[0-9a-f]{32}\.zarr|\.model\.json\.([0-9a-f]{32}|lock)")
_DRAINED_S = 60.0  # by then a request to an object store is given up


def check_output(
    location: Location,
    *,
    overwrite: bool,
    inputs: Sequence[Location] = (),
    marker: tuple[str, ...] = NODE_FILES,
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
    if location.scheme in READ_ONLY_SCHEMES:
        raise StorageError(f"{location} can only be read; write to a path or an object store")
    if location.is_local:
        for parent in Path(location.path).parents:
            above = Location("file", str(parent))
            if is_versioned(above) or any(holds(above, name) for name in NODE_FILES):
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
    if overwrite and holds(location, LINEAGE_FILE):
        raise OutputExistsError(
            f"{location} is a published version of a registered model, which is never replaced; publish the "
            "next one with register=True, or choose another name"
        )
    begun = is_unfinished(location) and (location.is_remote or RECORD_FILE in marker)
    if not overwrite and not begun:
        raise OutputExistsError(
            f"{location} exists already; choose another name, or give overwrite=True "
            "(--overwrite at the command line) to replace it"
        )
    replaceable = location.scheme == "memory" or any(holds(location, name) for name in marker)
    if location.is_local and not replaceable:
        replaceable = begun or (os.path.isdir(location.path) and not os.listdir(location.path))
    if not replaceable:
        raise StorageError(
            f"{location} is not replaced: overwriting would remove what is there, and it holds none of "
            f"{', '.join(marker)}. Remove it yourself if you do not need it"
        )
    # A model is written inside its folder, a dataset beside its place.
    _try_writing(location.child("model") if RECORD_FILE in marker else location)


def holds_versions(location: Location) -> bool:
    """Return whether `location` is a registered model that has a current version."""
    return holds(location, POINTER_FILE)


def holds(location: Location, name: str) -> bool:
    """Return whether a file `name` is stored directly below `location`."""
    if location.is_local:
        return Path(location.path, name).is_file()
    return read_file(location, name) is not None


def _refuse_others_objects(location: Location) -> None:
    """Refuse a prefix (a whole bucket, say) that holds foreign objects: a failed write would remove them."""
    if not location.is_remote:
        return
    names = [name for name in list_names(location) if not _PART_OF_MODEL.fullmatch(name)]
    if {*DATASET_FILES, RECORD_FILE} & {*names}:
        raise OutputBusyError(
            f"another run has begun to write {location} just now; repeat this when it is done"
        )
    if names:
        raise StorageError(
            f"{location} holds other things ({', '.join(names[:5])}{', …' if len(names) > 5 else ''}) and no "
            "dataset or model; expected an unused name. Write to a name below it"
        )


def _try_writing(location: Location) -> None:
    """Make and remove an empty folder where the unfinished output will be written."""
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
    """Return where to write an output for `location` until `put_in_place`; nothing is created."""
    if location.is_remote:
        return location
    return hidden_beside(location, "partial")


def put_in_place(staged: Location, location: Location, *, overwrite: bool) -> None:
    """Move a finished output to its place: fsync, then rename.

    With `overwrite` the two folders swap names in one step, and the old one is removed. If the file system
    cannot do that, the old folder is moved aside and then the new one moved in: a reader in between finds
    nothing, but never a mixture.

    Raises OutputExistsError if something has appeared at `location` and `overwrite` is False.
    """
    if staged == location:
        return
    if location.scheme == "memory":
        if not overwrite and location.path in MEMORY:
            raise OutputExistsError(f"{location} was written meanwhile; choose another name")
        MEMORY[location.path] = MEMORY.pop(staged.path)
        return
    sync_to_disk(staged)
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
    fsync_path(Path(location.path).parent)
    if os.path.lexists(aside):
        shutil.rmtree(aside)


def _exchange(one: str, other: str) -> bool:
    """Swap two names in one step; return False if this system or file system cannot."""
    try:
        rename: Any = ctypes.CDLL(None).renameat2  # Linux; glibc 2.28, musl 1.2
    except (AttributeError, OSError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def drain() -> None:
    """Wait until this process has ended all writes: if one of several chunks fails, the others go on."""

    async def wait() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_DRAINED_S)

    sync(wait())


def discard(location: Location) -> None:
    """Remove what is stored at `location` and below, if anything."""
    drain()
    if location.is_local and os.path.isfile(location.path):
        os.unlink(location.path)
    elif location.is_local:
        shutil.rmtree(location.path, ignore_errors=True)
    elif location.scheme == "memory":
        for name in [n for n in MEMORY if n == location.path or n.startswith(location.path + "/")]:
            del MEMORY[name]
    else:
        try:
            store = open_store(location, read_only=False)
            # The files that identify a dataset go last, so that an interrupted discard can be repeated.
            for name in list_names(location):
                if name not in DATASET_FILES:
                    sync(store.delete_dir(name))
            sync(store.delete_dir(""))
        except Exception as error:
            logger.warning("%s could not be removed (%s); remove it yourself", location, explain(error))


def parts_of_model(location: Location) -> list[str] | None:
    """Return the names in a local folder that holds only parts of a model, or nothing; else None."""
    if not location.is_local or not Path(location.path).is_dir():
        return None
    names = list_names(location)
    return names if all(_PART_OF_MODEL.fullmatch(name) for name in names) else None


def is_unfinished(location: Location) -> bool:
    """Return whether a writer began a model, or a dataset in an object store, and did not finish it."""
    if location.is_local:
        return parts_of_model(location) is not None
    if not location.is_remote:
        return False
    content = read_file(location, "zarr.json")
    if content is None:
        return is_versioned(location) and is_empty(location)
    with suppress(ValueError, KeyError, TypeError):
        return bool(json.loads(content)["attributes"]["rff_dist"]["state"] == "writing")
    return False


def beside(location: Location, kind: str) -> list[Location]:
    """Return the hidden folders `.NAME.KIND…` beside `location`, which runs use until they end."""
    if (first := location.hidden(kind)) is None:
        return []
    parent, slash, start = first.path.rpartition("/")
    names = list_names(Location(first.scheme, parent or slash))
    return [Location(first.scheme, f"{parent}{slash}{name}") for name in names if name.startswith(start)]


def hidden_beside(location: Location, kind: str) -> Location:
    """Return the place of a new hidden folder, which `beside` finds by the same `kind`."""
    parent, separator, name = location.path.rpartition("/")
    return Location(location.scheme, f"{parent}{separator}.{name}.{kind}-{uuid.uuid4().hex[:12]}")


def _overlap(a: Location, b: Location) -> bool:
    if a.scheme != b.scheme:
        return False
    first, second = a.path, b.path
    if a.is_local:
        first, second = os.path.realpath(first), os.path.realpath(second)
    return first == second or first.startswith(second + "/") or second.startswith(first + "/")
