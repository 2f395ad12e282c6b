"""One writer at a time: a lease beside an output says who writes it, and nobody else begins meanwhile.

A holder puts a numbered claim into the hidden folder `.NAME.lease` beside the output, and renews it every
`BEAT_S` seconds. Whoever finds a claim there is refused at once. The claim of a holder that died is void:
at once where its process was one of this machine, else `EXPIRES_S` after its last sign of life, when it was
watched for a while longer without another (clocks of two machines may differ).

Claims need nothing of a store but that a name is created only once, so local folders, network file systems
and object stores are alike. To claim is: look, create the next number, look again. Of two that created one
after the other, at least the later one sees the earlier one and withdraws; a claim that was void at the first
look must be unchanged at the second.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from zarr.abc.store import Store
from zarr.buffer.cpu import Buffer
from zarr.core.sync import sync

from rff_dist.errors import OutputBusyError, RFFDistError, StorageError
from rff_dist.storage.locations import (
    Location,
    delete_bytes,
    names_in,
    open_store,
    parse_location,
    read_bytes,
    unreachable,
    write_bytes,
)
from rff_dist.text import redact

logger = logging.getLogger(__name__)

#: Seconds between two signs of life of a holder.
BEAT_S = 15.0
#: Seconds after the last one until a claim may be void.
EXPIRES_S = 90.0
#: How often to look again where others claim at the same moment.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class _Claim:
    """Who holds a lease.

    `holder`: for people: a run's name, say.
    `machine`: this boot of this machine and its space of process numbers (of a container); "" where unknown.
    `pid`, `started`: the process, and when it started, in the kernel's ticks since boot.
    `taken`, `beat`: when it was claimed and when its holder last gave a sign of life, in seconds since 1970.
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
        """Read a claim; one that cannot be read has never given a sign of life."""
        try:
            return cls(**json.loads(content))
        except (TypeError, ValueError):
            return cls("", "unknown", "an unknown machine", "", 0, 0, 0.0, 0.0)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @property
    def is_of_the_dead(self) -> bool:
        """Whether its process was one of this machine and is gone."""
        return self.machine == _this_machine() != "" and _start_of(self.pid) != self.started

    def describe(self) -> str:
        now = time.time()
        age, silence = max(0.0, now - self.taken), max(0.0, now - self.beat)
        return (
            f"{self.holder}, process {self.pid} on {self.host}, for {_duration(age)} "
            f"(last sign of life {_duration(silence)} ago)"
        )


@dataclass(slots=True)
class Lease:
    """The right to write to a location, as long as the `with hold(...)` lasts."""

    location: Location
    _store: Store
    _number: int
    _claim: _Claim
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Give a sign of life before something is published; refuse if another run has taken over.

        That happens to a process that was stopped for longer than `EXPIRES_S`: on a laptop that slept, say.

        Raises OutputBusyError if the lease is lost; StorageError if the store does not answer.
        """
        with self._lock:
            key = _key(self._number)
            claims = _read_claims(self._store, self.location)
            mine = claims.pop(self._number, b"")
            overdue = time.time() - self._claim.beat > EXPIRES_S
            if _Claim.from_bytes(mine).token != self._claim.token or (overdue and claims):
                self._ended.set()
                by = "; ".join(_Claim.from_bytes(content).describe() for content in claims.values())
                raise OutputBusyError(
                    f"{self.location} is no longer this run's to write: its lease is gone"
                    f"{f', and taken over by {by}' if by else ''}; expected a sign of life at least every "
                    f"{EXPIRES_S:g} s. Nothing was published; repeat it when nobody else writes there"
                )
            self._claim = replace(self._claim, beat=time.time())
            write_bytes(self._store, key, self._claim.to_bytes())

    def _keep_alive(self) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                self.check()
            except RFFDistError as error:
                logger.warning("the lease of %s was not renewed: %s", self.location, error)
            except Exception:
                logger.exception("the lease of %s was not renewed", self.location)

    def _release(self) -> None:
        self._ended.set()
        with self._lock:
            mine = _read_claims(self._store, self.location).get(self._number, b"")
            if _Claim.from_bytes(mine).token == self._claim.token:
                delete_bytes(self._store, _key(self._number))
            _remove_if_empty(self.location)


# What this context holds already, so that a step of a run that holds a lease may ask for it again.
_held: ContextVar[Mapping[str, Lease]] = ContextVar("leases", default={})  # noqa: B039  # never changed


@contextmanager
def hold(location: str | os.PathLike[str] | Location, *, holder: str) -> Iterator[Lease]:
    """Keep other runs from writing to `location` as long as the context lasts.

    Where the context of the caller holds it already, that lease is given again.

    `location`: what is written: a model, a registered model, a dataset.
    `holder`: who writes it, for the message that others get.
    Yields `lease`: its `check` tells at the last moment whether it still holds.
    Raises OutputBusyError, at once, with holder and age, if another run holds it; StorageError if the place
      of the lease cannot be written.
    """
    place = location if isinstance(location, Location) else parse_location(location)
    mine = _held.get().get(place.url)
    if mine is not None:
        yield mine
        return
    lease = _take(place, holder)
    thread = threading.Thread(target=lease._keep_alive, name=f"lease of {place}", daemon=True)
    thread.start()
    token = _held.set({**_held.get(), place.url: lease})
    try:
        yield lease
    finally:
        try:
            lease._release()
        except Exception as error:  # the work is done, and the claim is void when this process has ended
            logger.warning("the lease of %s was not given back: %s", place, redact(str(error)))
        _held.reset(token)


def _take(location: Location, holder: str) -> Lease:
    store = open_store(_folder(location), read_only=False)
    claim = _Claim.of_this_process(holder)
    try:
        for _ in range(_ATTEMPTS):
            void = _read_claims(store, location)
            for number, content in void.items():
                if not _is_void(store, number, content, location):
                    raise _busy(location, content)
            number = max(void, default=0) + 1
            if not _create(store, number, claim.to_bytes(), location):
                continue
            others = _read_claims(store, location)
            others.pop(number, None)
            if any(void.get(other) != content for other, content in others.items()):
                delete_bytes(store, _key(number))
                continue
            _take_over(store, void, location)
            return Lease(location, store, number, claim)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(
            f"no lease can be kept beside {location}: {error.strerror or redact(str(error))}; "
            "choose a place that you may write to"
        ) from error
    raise OutputBusyError(f"several runs want to write {location} at this moment; repeat this one later")


def _take_over(store: Store, void: Mapping[int, bytes], location: Location) -> None:
    for number, content in void.items():
        logger.warning(
            "%s is taken over from a run that died: %s", location, _Claim.from_bytes(content).describe()
        )
        delete_bytes(store, _key(number))


def _is_void(store: Store, number: int, content: bytes, location: Location) -> bool:
    """Tell whether a claim's holder died; takes a while where its last sign of life is old."""
    claim = _Claim.from_bytes(content)
    if claim.is_of_the_dead:
        return True
    if time.time() - claim.beat < EXPIRES_S:
        return False
    logger.warning("%s: looking whether another run still lives: %s", location, claim.describe())
    time.sleep(1.5 * BEAT_S)
    return read_bytes(store, _key(number), where=location) in (content, None)


def _busy(location: Location, content: bytes) -> OutputBusyError:
    claim = _Claim.from_bytes(content)
    return OutputBusyError(
        f"another run is writing {location}: {claim.describe()}; expected nobody. Wait until it is done. "
        f"If it was killed, its lease ends {EXPIRES_S:g} s after its last sign of life"
    )


# ------------------------------------------------------------------------------------------- in the store


def _folder(location: Location) -> Location:
    """Return where the claims are: beside the location, which may not exist or may be replaced as a whole."""
    parent, separator, name = location.path.rpartition("/")
    if not separator and location.scheme != "memory":  # a whole bucket
        return location.child(".lease")
    return Location(location.scheme, f"{parent}{separator}.{name}.lease")


def _key(number: int) -> str:
    return str(number)


def _read_claims(store: Store, location: Location) -> dict[int, bytes]:
    """Return the bytes of all claims by number."""
    found = names_in(store, where=location)
    numbers = sorted(int(name) for name in found if name.isdecimal())
    contents = {number: read_bytes(store, _key(number), where=location) for number in numbers}
    return {number: content for number, content in contents.items() if content is not None}


def _create(store: Store, number: int, content: bytes, location: Location) -> bool:
    """Create a claim, and tell whether it is this one that is there now."""
    try:
        sync(store.set_if_not_exists(_key(number), Buffer.from_bytes(content)))
    except FileNotFoundError:
        return False  # its folder was removed at this moment, with the last claim
    except OSError:
        raise
    except Exception as error:
        raise unreachable(f"the lease of {location} cannot be written", error) from error
    return read_bytes(store, _key(number), where=location) == content


def _remove_if_empty(location: Location) -> None:
    if location.is_local:
        with suppress(OSError):
            Path(_folder(location).path).rmdir()


# -------------------------------------------------------------------------------------------- processes


def _this_machine() -> str:
    """Name this boot of the machine and this container's processes; "" where the kernel does not tell."""
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
    # proc_pid_stat(5); the name, in parentheses, may hold anything.
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
