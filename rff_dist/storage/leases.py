"""One writer at a time: a lease beside an output says who writes it, and keeps other writers out.

In a folder the lease is a lock of the operating system on the file `.NAME.lock` beside the output. It ends
with its process, so that no clock matters. Whoever gets it removes what killed writers left there.

In an object store the lease is an object in `.NAME.lease` beside the output. It is created if there is none,
or replaced if nobody else has replaced it, and its holder renews it every `BEAT_S` seconds. The kernel tells
whether a holder on this machine lives. A holder on another machine counts as dead `EXPIRES_S` after its last
sign of life, once it has been watched for a while longer without another sign (clocks of two machines may
differ). A slow machine can lose such a lease while it lives. So the lease saves two runs from working in
vain, and does not protect the output: whoever publishes in an object store replaces its pointer on condition
that nobody else did (`storage.conditional`), after a last look at the lease (`check_lease`).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from zarr.abc.store import Store

from rff_dist.errors import OutputBusyError, RFFDistError
from rff_dist.storage.conditional import Tagged, read_tagged, replace_bytes
from rff_dist.storage.locations import Location, delete_bytes, open_store, parse_location, store_errors
from rff_dist.storage.locks import duration, is_at, lock_file
from rff_dist.storage.output_places import beside, discard
from rff_dist.text import redact

logger = logging.getLogger(__name__)

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
def hold(location: str | os.PathLike[str] | Location, *, holder: str) -> Iterator[None]:
    """Keep other runs from writing to `location` as long as the context lasts.

    If the caller's context holds the lease already, nothing more happens.

    `location`: what is written: a model, a registered model or a dataset.
    `holder`: who writes it, for the error that other runs get.
    Raises OutputBusyError, at once, with holder and age, if another run holds it; StorageError if the lease's
      place cannot be written.
    """
    place = location if isinstance(location, Location) else parse_location(location)
    if place.url in _held.get():
        yield
        return
    with _in_folder(place, redact(holder)) if place.is_local else _in_store(place, holder) as check:
        token = _held.set({**_held.get(), place.url: check})
        try:
            yield
        finally:
            _held.reset(token)


def check_lease(location: Location) -> None:
    """Raise OutputBusyError if this context held the lease of `location` and another run has taken it over.

    Call it between reading a pointer and replacing it on condition: then neither a run that took over and
    published before, nor one that does so after this, is overwritten.

    Raises StorageError if the store does not answer.
    """
    check = _held.get().get(location.url)
    if check is not None:
        check()


def _lost(location: Location, by: str = "") -> OutputBusyError:
    return OutputBusyError(
        f"this run may no longer write {location}: its lease is gone{by}. Nothing was published; look at "
        "what is there now, and repeat this run if you still want it"
    )


# -- in a folder -------------------------------------------------------------------------------------------


@contextmanager
def _in_folder(location: Location, holder: str) -> Iterator[Callable[[], None]]:
    output = Path(location.path)
    path = output.with_name(f".{output.name}.lock")
    with ExitStack() as stack:
        with store_errors(f"no lease can be kept beside {location}", ""):
            path.parent.mkdir(parents=True, exist_ok=True)
            busy = f"another run is writing {location}"
            file = stack.enter_context(lock_file(path, holder=holder, busy=busy))

        for place in (*beside(location, "partial-"), *beside(location, "rows-")):
            logger.info("removing what a killed writer left: %s", place)
            discard(place)

        def check() -> None:
            if not is_at(file, path):  # Somebody removed the file, so another run may hold a new one.
                raise _lost(location)

        try:
            yield check
        finally:
            if is_at(file, path):
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
    def of_this_process(cls, holder: str) -> _Claim:
        now, pid = time.time(), os.getpid()
        return cls(
            token=uuid.uuid4().hex,
            holder=redact(holder),
            host=socket.gethostname(),
            machine=_this_machine(),
            pid=pid,
            started=_start_of(pid) or 0,
            taken=now,
            beat=now,
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> _Claim:
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
            f"{self.holder}, process {self.pid} on {self.host}, for {duration(now - self.taken)} "
            f"(last sign of life {duration(now - self.beat)} ago)"
        )


@contextmanager
def _in_store(location: Location, holder: str) -> Iterator[Callable[[], None]]:
    store = open_store(_folder(location), read_only=False)
    claim = _take(store, location, holder)
    lock, ended = threading.Lock(), threading.Event()

    def check() -> None:
        nonlocal claim
        with lock:  # for two requests to the store, which are given up
            renewed = replace(claim, beat=time.time())
            found = read_tagged(store, _KEY, where=location)
            mine = found is not None and _Claim.from_bytes(found.content).token == claim.token
            if not mine or not replace_bytes(store, _KEY, renewed.to_bytes(), expected=found, where=location):
                ended.set()
                taken = None if mine or found is None else _Claim.from_bytes(found.content)
                raise _lost(location, "" if taken is None else f", and taken over by {taken.describe()}")
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
                found = read_tagged(store, _KEY, where=location)
                if found is not None and _Claim.from_bytes(found.content).token == claim.token:
                    delete_bytes(store, _KEY)
            except Exception as error:  # The work is done, and the claim is void once this process has ended.
                logger.warning("the lease of %s was not given back: %s", location, redact(str(error)))


def _take(store: Store, location: Location, holder: str) -> _Claim:
    for _ in range(_ATTEMPTS):
        found = read_tagged(store, _KEY, where=location)
        if found is not None and not _is_void(store, found, location):
            raise OutputBusyError(
                f"another run is writing {location}: {_Claim.from_bytes(found.content).describe()}; expected "
                f"nobody. Wait until it is done; if it was killed, its lease ends {EXPIRES_S:g} s after its "
                "last sign of life"
            )
        claim = _Claim.of_this_process(holder)
        if replace_bytes(store, _KEY, claim.to_bytes(), expected=found, where=location):
            if found is not None:
                dead = _Claim.from_bytes(found.content).describe()
                logger.warning("%s is taken over from a run that died: %s", location, dead)
            return claim
    raise OutputBusyError(f"several runs want to write {location} at this moment; repeat this one later")


def _is_void(store: Store, found: Tagged, location: Location) -> bool:
    """Return whether a claim's holder died; takes 1.5 `BEAT_S` if its last sign of life is old."""
    claim = _Claim.from_bytes(found.content)
    if (dead := claim.is_of_the_dead) is not None:
        return dead  # A living process keeps its lease, however late its signs of life are.
    # A beat in the future comes from a clock that is ahead. It would keep a dead holder's claim valid for as
    # long, so it is watched like an old one.
    if -BEAT_S < time.time() - claim.beat < EXPIRES_S:
        return False
    logger.warning("%s: looking whether another run still lives: %s", location, claim.describe())
    time.sleep(1.5 * BEAT_S)  # A living holder gives a sign within this time.
    again = read_tagged(store, _KEY, where=location)
    return again is None or again.content == found.content


def _folder(location: Location) -> Location:
    """Return the claim's folder, beside the location, since that may be replaced as a whole."""
    return location.hidden("lease") or location.child(".lease")  # Nothing is beside a whole bucket.


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
