"""Where an output may be written, by whom (leases), how it appears all at once, and how it is removed.

Local outputs are written to a sibling folder and renamed, and outputs in memory change their name in a table:
both appear complete or not at all. An object store cannot rename, so there a group's attributes say whether
it is complete; see `generations`.
"""

import asyncio
import ctypes
import json
import logging
import os
import re
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from zarr.abc.store import Store
from zarr.core.sync import sync

from rff_dist.errors import OutputBusyError, OutputExistsError, RFFDistError, StorageError
from rff_dist.storage import conditional, locations, repositories
from rff_dist.text import redact

logger = logging.getLogger(__name__)

# What a writer of a model leaves if it is killed, or if it fails while the store is away.
_PART_OF_MODEL = re.compile(r"arrays-[0-9a-f]{32}\.zarr|\.model\.json\.([0-9a-f]{32}|lock)")
_DRAINED_S = 60.0  # by then a request to an object store is given up


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
    if location.is_local:
        for parent in Path(location.path).parents:
            above = locations.Location("file", str(parent))
            if repositories.is_versioned(above) or any(holds(above, name) for name in locations.NODE_FILES):
                raise StorageError(
                    f"the output {location} lies inside the Zarr data {parent}; write next to it"
                )
    if not locations.exists(location):
        _refuse_others_objects(location)
        _try_writing(location)
        return
    if holds_versions(location):
        raise OutputExistsError(
            f"{location} is a registered model, which keeps all of its versions; publish the next one with "
            "register=True, or choose another name"
        )
    if overwrite and holds(location, locations.LINEAGE_FILE):
        raise OutputExistsError(
            f"{location} is a published version of a registered model, which is never replaced; publish the "
            "next one with register=True, or choose another name"
        )
    begun = is_unfinished(location) and (location.is_remote or locations.RECORD_FILE in marker)
    if not overwrite and not begun:
        raise OutputExistsError(
            f"{location} exists already; choose another name, or give overwrite=True to replace it"
        )
    replaceable = location.scheme == "memory" or any(holds(location, name) for name in marker)
    if location.is_local and not replaceable:
        replaceable = begun or (os.path.isdir(location.path) and not os.listdir(location.path))
    if not replaceable:
        raise StorageError(
            f"{location} is not replaced: overwriting would remove what is there, and it holds none of "
            f"{', '.join(marker)}. Remove it yourself if you do not need it"
        )
    # A model is written inside its folder, a dataset next to its place.
    _try_writing(location.child("model") if locations.RECORD_FILE in marker else location)


def holds_versions(location: locations.Location) -> bool:
    """Return whether `location` is a registered model that has a current version."""
    return holds(location, locations.POINTER_FILE)


def holds(location: locations.Location, name: str) -> bool:
    """Return whether a file `name` is stored directly below `location`."""
    if location.is_local:
        return Path(location.path, name).is_file()
    return locations.read_file(location, name) is not None


def _refuse_others_objects(location: locations.Location) -> None:
    """Refuse a prefix (a whole bucket, say) that holds foreign objects: a failed write would remove them."""
    if not location.is_remote:
        return
    names = [name for name in locations.list_names(location) if not _PART_OF_MODEL.fullmatch(name)]
    if {*locations.DATASET_FILES, locations.RECORD_FILE} & {*names}:
        raise OutputBusyError(
            f"another run has begun to write {location} just now; repeat this when it is done"
        )
    if names:
        raise StorageError(
            f"{location} holds other things ({', '.join(names[:5])}{', …' if len(names) > 5 else ''}) and no "
            "dataset or model; expected an unused name. Write to a name below it"
        )


def _try_writing(location: locations.Location) -> None:
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
            f"{location} cannot be written: {folder}: {error.strerror or error}. "
            f"{locations.writing_advice(error)}"
        ) from error


def stage(location: locations.Location) -> locations.Location:
    """Return where to write an output for `location` until `put_in_place`; nothing is created."""
    if location.is_remote:
        return location
    return hidden_beside(location, "partial")


def put_in_place(staged: locations.Location, location: locations.Location, *, overwrite: bool) -> None:
    """Move a finished output to its place: fsync, then rename.

    With `overwrite` the two folders swap names in one step, and the old one is removed. If the file system
    cannot do that, the old folder is moved aside and then the new one moved in: a reader in between finds
    nothing, but never a mixture.

    Raises OutputExistsError if something has appeared at `location` and `overwrite` is False.
    """
    if staged == location:
        return
    if location.scheme == "memory":
        if not overwrite and location.path in locations.MEMORY:
            raise OutputExistsError(f"{location} was written meanwhile; choose another name")
        locations.MEMORY[location.path] = locations.MEMORY.pop(staged.path)
        return
    locations.sync_to_disk(staged)
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
    locations.fsync_path(Path(location.path).parent)
    if os.path.lexists(aside):
        shutil.rmtree(aside)


def _exchange(first: str, second: str) -> bool:
    """Swap two names in one step; return False if this system or file system cannot."""
    try:
        rename: Any = ctypes.CDLL(None).renameat2  # Linux; glibc 2.28, musl 1.2
    except (AttributeError, OSError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0)


def drain() -> None:
    """Wait until this process has ended all writes: if one of several chunks fails, the others go on."""

    async def wait() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_DRAINED_S)

    sync(wait())


def discard(location: locations.Location) -> None:
    """Remove what is stored at `location` and below, if anything."""
    drain()
    if location.is_local and os.path.isfile(location.path):
        os.unlink(location.path)
    elif location.is_local:
        shutil.rmtree(location.path, ignore_errors=True)
    elif location.scheme == "memory":
        for name in [n for n in locations.MEMORY if n == location.path or n.startswith(location.path + "/")]:
            del locations.MEMORY[name]
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


def parts_of_model(location: locations.Location) -> list[str] | None:
    """Return the names in a local folder that holds only parts of a model, or nothing; else None."""
    if not location.is_local or not Path(location.path).is_dir():
        return None
    names = locations.list_names(location)
    return names if all(_PART_OF_MODEL.fullmatch(name) for name in names) else None


def is_unfinished(location: locations.Location) -> bool:
    """Return whether a writer began a model, or a dataset in an object store, and did not finish it."""
    if location.is_local:
        return parts_of_model(location) is not None
    if not location.is_remote:
        return False
    content = locations.read_file(location, "zarr.json")
    if content is None:
        return repositories.is_versioned(location) and repositories.is_empty(location)
    with suppress(ValueError, KeyError, TypeError):
        return bool(json.loads(content)["attributes"]["rff_dist"]["state"] == "writing")
    return False


def beside(location: locations.Location, kind: str) -> list[locations.Location]:
    """Return the hidden folders `.NAME.KIND…` next to `location`, which runs use until they end."""
    if (first := location.hidden(kind)) is None:
        return []
    parent, slash, start = first.path.rpartition("/")
    names = locations.list_names(locations.Location(first.scheme, parent or slash))
    return [replace(first, path=f"{parent}{slash}{name}") for name in names if name.startswith(start)]


def hidden_beside(location: locations.Location, kind: str) -> locations.Location:
    """Return the place of a new hidden folder, which `beside` finds by the same `kind`."""
    parent, separator, name = location.path.rpartition("/")
    return locations.Location(location.scheme, f"{parent}{separator}.{name}.{kind}-{uuid.uuid4().hex[:12]}")


def _overlap(a: locations.Location, b: locations.Location) -> bool:
    if a.scheme != b.scheme:
        return False
    first, second = (os.path.realpath(place.path) if place.is_local else place.path for place in (a, b))
    return first == second or first.startswith(second + "/") or second.startswith(first + "/")


# -- one writer at a time --------------------------------------------------------------------------
#
# In a folder the lease is a lock of the operating system on the file `.NAME.lock` next to the output. It ends
# with its process, so that no clock matters. Whoever gets it removes what killed writers left there.
#
# In an object store the lease is an object in `.NAME.lease` next to the output. It is created if there is
# none, or replaced if no one else has replaced it, and its holder renews it every `BEAT_S` seconds. The
# kernel tells whether a holder on this machine lives. A holder on another machine counts as dead `EXPIRES_S`
# after its last sign of life, once it has been watched for a while longer without another sign (clocks of two
# machines may differ). A slow machine can lose such a lease while it lives. So the lease saves two runs from
# working in vain, and does not protect the output: whoever publishes in an object store replaces its pointer
# on condition that no one else did (`storage.conditional`), after a last look at the lease (`check_lease`).


#: Seconds between two signs of life of a holder.
BEAT_S = 15.0
#: Seconds after the last one until a lease may be void.
EXPIRES_S = 90.0
_ATTEMPTS = 5  # to take a lease that others take at the same moment
_KEY = "holder.json"
# Tokens of the claims that this process holds, some of them in other threads.
_live: set[str] = set()


# The checks of the leases that this context holds, by URL. A step of a run that holds one gets it again.
_held: ContextVar[Mapping[str, Callable[[], None]]] = ContextVar("leases", default={})  # noqa: B039


@contextmanager
def hold(location: str | os.PathLike[str] | locations.Location, *, holder: str) -> Iterator[None]:
    """Keep other runs from writing to `location` as long as the context lasts.

    If the caller's context holds the lease already, nothing more happens.

    `location`: what is written: a model, a registered model or a dataset.
    `holder`: who writes it, for the error that other runs get.
    Raises OutputBusyError, at once, with holder and age, if another run holds it; StorageError if the lease's
      place cannot be written.
    """
    place = location if isinstance(location, locations.Location) else locations.parse_location(location)
    if place.url in _held.get():
        yield
        return
    with _in_folder(place, redact(holder)) if place.is_local else _in_store(place, holder) as check:
        token = _held.set({**_held.get(), place.url: check})
        try:
            yield
        finally:
            _held.reset(token)


def check_lease(location: locations.Location) -> None:
    """Raise OutputBusyError if this context held the lease of `location` and another run has taken it over.

    Call it between reading a pointer and replacing it on condition: then neither a run that took over and
    published before, nor one that does so after this, is overwritten.

    Raises StorageError if the store does not answer.
    """
    check = _held.get().get(location.url)
    if check is not None:
        check()


def _lost(location: locations.Location, by: str = "") -> OutputBusyError:
    return OutputBusyError(
        f"this run may no longer write {location}: its lease is gone{by}. Nothing was published; look at "
        "what is there now, and repeat this run if you still want it"
    )


# -- in a folder -------------------------------------------------------------------------------------------


@contextmanager
def _in_folder(location: locations.Location, holder: str) -> Iterator[Callable[[], None]]:
    output = Path(location.path)
    path = output.with_name(f".{output.name}.lock")
    with ExitStack() as stack:
        with locations.store_errors(f"no lease can be kept next to {location}", ""):
            path.parent.mkdir(parents=True, exist_ok=True)
            busy = f"another run is writing {location}"
            file = stack.enter_context(conditional.lock_file(path, holder=holder, busy=busy))

        for place in (*beside(location, "partial-"), *beside(location, "rows-")):
            logger.info("removing what a killed writer left: %s", place)
            discard(place)

        def check() -> None:
            # If somebody removed the file, another run may hold a new one.
            if not conditional.is_at(file, path):
                raise _lost(location)

        try:
            yield check
        finally:
            if conditional.is_at(file, path):
                path.unlink(missing_ok=True)


# -- in an object store ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Claim:
    """Who holds a lease in an object store.

    `holder`: a name for people, a run's for example.
    `machine`: names the boot of the machine and the process namespace (of a container); "" if unknown.
    `pid`, `started`: the process, and its start in the kernel's ticks since boot.
    `taken`, `beat`: the time of the claim and of the holder's last sign of life, in seconds since 1970.
    """

    token: str
    holder: str
    host: str
    machine: str
    pid: int
    started: int
    taken: float
    beat: float

    @classmethod
    def of_this_process(cls, holder: str) -> Self:
        now, pid, host = time.time(), os.getpid(), socket.gethostname()
        machine, started = _this_machine(), _start_of(pid) or 0
        return cls(uuid.uuid4().hex, redact(holder), host, machine, pid, started, taken=now, beat=now)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read a claim; an unreadable one counts as having never given a sign of life."""
        try:
            return cls(**json.loads(content))
        except (TypeError, ValueError):
            return cls("", "unknown", "an unknown machine", "", 0, 0, 0.0, 0.0)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @property
    def is_of_the_dead(self) -> bool | None:
        """Whether its process ended, or is this one and failed to give it back; None on another machine."""
        if self.machine != _this_machine() or not self.machine:
            return None
        # A later process may have the same number, but it started at another time.
        return _start_of(self.pid) != self.started or (self.pid == os.getpid() and self.token not in _live)

    def describe(self) -> str:
        now = time.time()
        return (
            f"{self.holder}, process {self.pid} on {self.host}, for {conditional.duration(now - self.taken)} "
            f"(last sign of life {conditional.duration(now - self.beat)} ago)"
        )


@contextmanager
def _in_store(location: locations.Location, holder: str) -> Iterator[Callable[[], None]]:
    store = locations.open_store(_folder(location), read_only=False)
    claim = _take(store, location, holder)
    lock, ended = threading.Lock(), threading.Event()

    def check() -> None:
        nonlocal claim
        with lock:  # for two requests to the store, which are given up
            renewed = replace(claim, beat=time.time())
            stored = conditional.read_tagged(store, _KEY, where=location)
            owner = None if stored is None else _Claim.from_bytes(stored.content)
            mine = owner is not None and owner.token == claim.token
            fresh = renewed.to_bytes()
            if not mine or not conditional.replace_bytes(store, _KEY, fresh, expected=stored, where=location):
                ended.set()
                by = "" if mine or owner is None else f", and taken over by {owner.describe()}"
                raise _lost(location, by)
            claim = renewed

    def keep_alive() -> None:
        while not ended.wait(BEAT_S):  # ends with the lease, or as a daemon with the process
            try:
                check()
            except RFFDistError as error:
                logger.warning("the lease of %s was not renewed: %s", location, error)
            except Exception:
                logger.exception("the lease of %s was not renewed", location)

    _live.add(claim.token)
    threading.Thread(target=keep_alive, name=f"lease of {location}", daemon=True).start()
    try:
        yield check
    finally:
        ended.set()
        _live.discard(claim.token)
        with lock:
            try:
                stored = conditional.read_tagged(store, _KEY, where=location)
                if stored is not None and _Claim.from_bytes(stored.content).token == claim.token:
                    locations.delete_bytes(store, _KEY)
            except Exception as error:  # The work is done, and the claim is void once this process has ended.
                logger.warning("the lease of %s was not given back: %s", location, redact(str(error)))


def _take(store: Store, location: locations.Location, holder: str) -> _Claim:
    for _ in range(_ATTEMPTS):
        stored = conditional.read_tagged(store, _KEY, where=location)
        if stored is not None and not _is_void(store, stored, location):
            raise OutputBusyError(
                f"another run is writing {location}: {_Claim.from_bytes(stored.content).describe()}; "
                f"expected no one. Wait until it is done; if it was killed, its lease ends {EXPIRES_S:g} s "
                "after its last sign of life"
            )
        claim = _Claim.of_this_process(holder)
        if conditional.replace_bytes(store, _KEY, claim.to_bytes(), expected=stored, where=location):
            if stored is not None:
                dead = _Claim.from_bytes(stored.content).describe()
                logger.warning("%s is taken over from a run that died: %s", location, dead)
            return claim
    raise OutputBusyError(f"several runs want to write {location} at this moment; repeat this one later")


def _is_void(store: Store, stored: conditional.Tagged, location: locations.Location) -> bool:
    """Return whether a claim's holder died; takes 1.5 `BEAT_S` if its last sign of life is old."""
    claim = _Claim.from_bytes(stored.content)
    if (dead := claim.is_of_the_dead) is not None:
        return dead  # A living process keeps its lease, however late its signs of life are.
    # A beat in the future comes from a clock that is ahead. It would keep a dead holder's claim valid for as
    # long, so it is watched like an old one.
    if -BEAT_S < time.time() - claim.beat < EXPIRES_S:
        return False
    logger.warning("%s: looking whether another run still lives: %s", location, claim.describe())
    time.sleep(1.5 * BEAT_S)  # A living holder gives a sign within this time.
    again = conditional.read_tagged(store, _KEY, where=location)
    return again is None or again.content == stored.content


def _folder(location: locations.Location) -> locations.Location:
    """Return the claim's folder, next to the location, since that may be replaced as a whole."""
    return location.hidden("lease") or location.child(".lease")  # Nothing is next to a whole bucket.


def _this_machine() -> str:
    """Name this boot of the machine and this container's process namespace; "" if they are unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _start_of(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # proc_pid_stat(5): fields follow the name, which is in parentheses and may hold anything.
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])  # a zombie or dead process; field 22, starttime
