"""Events of a job, its steps, their passes and blocks; and who gets them.

An observer is any callable of one event: the log, a terminal's bar, the clock, lineage,
Prefect's artifacts. Events of passes go to the engine's observers, with `open_engine`
also to the log. Events of jobs and steps go to the log and to observers by `listening`.
If an observer raises, its traceback is logged, and it gets no further events of that
pass: a broken display must neither stop hours of work nor fail in silence.
"""

import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import fields
from typing import Any

from rff_dist import contexts
from rff_dist.data.blocks import Block
from rff_dist.engines import tracing
from rff_dist.errors import kind_of
from rff_dist.typing import Summary, frozen

logger = logging.getLogger(__name__)


@frozen
class Event:
    """Something that happened in the job, step or pass called `label`."""

    label: str

    def words(self) -> str:
        """Say what happened."""
        return "started"

    def __str__(self) -> str:
        return f"{self.label}: {self.words()}"


@frozen
class JobStarted(Event):
    """A job begins."""


@frozen
class StepStarted(Event):
    """A step of a job begins, or is tried again."""


@frozen
class PassStarted(Event):
    """A pass over `n_blocks` blocks with `n_samples` rows in total begins."""

    n_blocks: int
    n_samples: int

    def words(self) -> str:
        plural = "s" * (self.n_blocks != 1)
        return f"{self.n_samples:,} rows in {self.n_blocks} block{plural}"


@frozen
class BlockDone(Event):
    """A block is finished; told once per block, however many times it was run."""

    block: Block
    #: How long its function took where it ran, without transfers of results; NaN if a
    #: kept sum has the block.
    seconds: float
    #: A worker's address, or "serial".
    worker: str
    #: The part of `seconds` in which it waited for its rows.
    waited: float = 0.0

    def words(self) -> str:
        rows = f"rows {self.block.start}:{self.block.stop}"
        return f"{rows} took {self.seconds:.3g} s on {self.worker}"


@frozen
class PassResumed(Event):
    """A pass begins with the kept sums of `n_kept` of its `n_samples` rows."""

    n_kept: int
    n_samples: int

    def words(self) -> str:
        if self.n_kept == self.n_samples:  # perhaps by an earlier part of the same job
            return "already done: its sums were kept"
        share = math.floor(100 * self.n_kept / self.n_samples)
        return f"continues a stopped job: {share} % of the rows are there"


@frozen
class PassMerging(Event):
    """All blocks are done; the sums of `n_totals` workers are now added and fetched."""

    n_totals: int

    def words(self) -> str:
        if self.n_totals == 1:
            return "fetching the sums"
        return f"adding up {self.n_totals:,} workers' sums"


@frozen
class Finished(Event):
    """A job or a pass has its result, `seconds` after its start."""

    seconds: float

    def words(self) -> str:
        return f"done after {self.seconds:.1f} s"


@frozen
class JobFinished(Finished):
    """A job has published its result."""


@frozen
class PassFinished(Finished):
    """A pass has its sums, or has written its rows."""

    #: Rows that it read, without those whose sums were kept.
    n_samples: int = 0
    #: The share of its blocks' seconds in which they waited for their rows.
    waiting: float = 0.0

    def words(self) -> str:
        text = Finished.words(self)
        if self.n_samples and self.seconds > 0:
            text += f", {self.n_samples / self.seconds:,.0f} rows/s"
        return text


@frozen
class Failed(Event):
    """A job or a pass ended without a result; the caller gets the error too."""

    seconds: float
    error: BaseException

    def words(self) -> str:
        name = type(self.error).__name__
        return f"stopped after {self.seconds:.1f} s ({name})"


@frozen
class JobFailed(Failed):
    """A job published nothing."""


@frozen
class PassFailed(Failed):
    """A pass has no sums, or has not written all rows."""


@frozen
class Remark(Event):
    """The work of a job between its passes, or its result, in words."""

    text: str

    def words(self) -> str:
        return self.text


@frozen
class Rounds(Event):
    """At most `limit` passes called `label` come next; or that many other steps."""

    limit: int
    #: Steps so far, if they are no passes.
    done: int = 0

    @property
    def unit(self) -> str:
        return "steps" if self.done else "passes"

    def words(self) -> str:
        return f"{self.done:,} of at most {self.limit:,} {self.unit}"


@frozen
class RowsCounted(Event):
    """Rows that are read or written without a pass; how many in all may be unknown."""

    n_done: int
    n_samples: int | None

    def words(self) -> str:
        return f"{self.n_done:,} rows"


@frozen
class Work(Event):
    """How much the next passes called `label` have to multiply."""

    #: Additions and multiplications in products of features with each other.
    operations: float
    n_components: int
    #: Whether features are whole numbers, which may be multiplied as bytes.
    fixed_point: bool
    #: Workers of the engine, and threads of each.
    n_workers: int
    n_threads: int

    def words(self) -> str:
        return f"{self.operations:.3g} operations for D = {self.n_components:,}"


type Observer = Callable[[Event], object]
type Observers = Iterable[Observer]

#: Observers of the jobs and steps of this context.
listeners: ContextVar[tuple[Observer, ...]] = ContextVar("listeners", default=())


def listening(*observers: Observer) -> AbstractContextManager[None]:
    """Send events of jobs and steps in the context to these observers too."""
    return contexts.setting(listeners, (*listeners.get(), *observers))


class Announcer:
    """Hand events to observers; one that raises gets no more of them."""

    def __init__(self, observers: Observers) -> None:
        self._observers = list(observers)

    def __call__(self, event: Event) -> None:
        for observer in tuple(self._observers):
            try:
                observer(event)
            except Exception:
                logger.exception(
                    "observer %r raised on %s and gets no further events of this pass",
                    observer,
                    type(event).__name__,
                )
                self._observers.remove(observer)


def tell(event: Event) -> None:
    """Hand an event to the log and the observers of the context."""
    Announcer((log, *listeners.get()))(event)


@contextmanager
def announced(
    announce: Observer,
    started: Event,
    finished: Callable[[str, float], Finished],
    failed: type[Failed],
) -> Iterator[None]:
    """Announce the start of a job or a pass, and how and when it ended."""
    begun = time.perf_counter()
    announce(started)
    try:
        yield
    except BaseException as error:
        announce(failed(started.label, time.perf_counter() - begun, error))
        raise
    announce(finished(started.label, time.perf_counter() - begun))


class _Rates:
    """An observer that adds up a pass's rows and waits, and sends rates as metrics."""

    EVERY_S = 5.0

    def __init__(self, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        self._begun = time.perf_counter()
        self._sent_at = self._begun
        self.n_kept = 0
        self.n_samples = 0
        self._busy = 0.0
        self._waited = 0.0

    @property
    def waiting(self) -> float:
        return self._waited / self._busy if self._busy else 0.0

    def __call__(self, event: Event) -> None:
        # Seconds are NaN if the block's sums were kept, or its report was lost.
        if isinstance(event, BlockDone) and event.seconds >= 0:
            self.n_samples += event.block.n_samples
            self._busy += event.seconds
            self._waited += event.waited
            if time.perf_counter() - self._sent_at > self.EVERY_S:
                self.send(event.label)
        elif isinstance(event, PassResumed):
            self.n_kept += event.n_kept
        elif isinstance(event, PassFinished) and self.n_samples:
            tracing.note(**self.send(event.label))

    def send(self, label: str) -> dict[str, float]:
        """Send the rates so far as metrics, and return them."""
        self._sent_at = time.perf_counter()
        rows = self.n_samples / max(self._sent_at - self._begun, 1e-9)
        rates = {
            "rows_per_second": rows,
            "bytes_per_second": rows * self._row_bytes,
            "storage_wait": self.waiting,
        }
        tracing.measure(label, **rates)
        return rates


@contextmanager
def announce_pass(
    observers: Observers,
    label: str,
    blocks: Sequence[Block],
    about: Callable[[], dict[str, Any]],
) -> Iterator[Announcer]:
    """Announce the start and the end of a pass, and trace it.

    Yields the announcer for the events between. `about` returns attributes of the
    pass's span, and `row_bytes`; it is called only if the pass is traced.
    """
    n_samples = sum(block.n_samples for block in blocks)
    attributes = about() if tracing.is_on() else {}
    row_bytes = attributes.pop("row_bytes", 0)
    rates = _Rates(row_bytes)
    announce = Announcer([*observers, rates])

    def finished(label: str, seconds: float) -> PassFinished:
        return PassFinished(label, seconds, n_samples - rates.n_kept, rates.waiting)

    started = PassStarted(label, len(blocks), n_samples)
    with (
        tracing.span(
            f"pass {label}",
            rows=n_samples,
            bytes=n_samples * row_bytes,
            blocks=len(blocks),
            **attributes,
        ),
        announced(announce, started, finished, PassFailed),
    ):
        yield announce


def log(event: Event, *, target: logging.Logger = logger) -> None:
    """Log an event, with its members as the record's `event`.

    Blocks and steps have the level DEBUG, everything else has INFO. Counts for displays
    are not logged: there are hundreds, and from several threads.
    """
    if isinstance(event, RowsCounted) or (isinstance(event, Rounds) and event.done):
        return
    is_detail = isinstance(event, BlockDone | StepStarted)
    level = logging.DEBUG if is_detail else logging.INFO
    if target.isEnabledFor(level):
        target.log(level, "%s", event, extra={"event": describe_event(event)})


# Members of events that have other names in logs.
_NAMES_IN_LOGS = {"n_samples": "rows", "n_kept": "kept", "n_totals": "totals"}


def describe_event(event: Event) -> Summary:
    """Return an event as members of a JSON object, see `rff_dist.engines.logs`."""
    name = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(event).__name__).lower()
    scope = name.split()[0]
    members: dict[str, Any] = {
        "event": name,
        scope if scope in ("job", "step") else "pass": event.label,
    }
    for member in fields(event)[1:]:
        key = _NAMES_IN_LOGS.get(member.name, member.name)
        members[key] = getattr(event, member.name)
    if isinstance(event, BlockDone):
        block = event.block
        members |= {
            "block": block.index,
            "start": block.start,
            "stop": block.stop,
            "rows": block.n_samples,
        }
    if isinstance(event, Failed):
        error = event.error
        members |= {
            "kind": kind_of(error),
            "error": f"{type(error).__name__}: {error}",
        }
    return members
