"""Events that a pass tells while it runs, and the observers that show, log or collect them.

An engine calls every observer with every event, from the thread that called the engine. An observer is any
callable of one event. If it raises, its traceback is logged, and it gets no further events of that pass: a
broken display must neither stop hours of work nor fail in silence.
"""

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Self

import rich.progress
from rich.console import Console
from rich.table import Column

from rff_dist.data.blocks import Block
from rff_dist.engines import tracing
from rff_dist.typing import Summary, frozen

logger = logging.getLogger(__name__)


@frozen
class Event:
    """What a pass or a step tells; `label` is its name."""

    label: str


@frozen
class PassStarted(Event):
    """A pass over `n_blocks` blocks with `n_samples` rows in total begins."""

    n_blocks: int
    n_samples: int

    def __str__(self) -> str:
        return f"{self.label}: {self.n_samples:,} rows in {self.n_blocks} block{'s' * (self.n_blocks != 1)}"


@frozen
class BlockDone(Event):
    """A block is finished. There is one such event per block, however often it was run.

    `block`: the rows that are done.
    `seconds`: how long its function took where it ran, without transfers of results.
    `worker`: where it ran: a worker's address, or "serial".
    `waited`: of these seconds, those that it waited for its rows.
    """

    block: Block
    seconds: float
    worker: str
    waited: float = 0.0

    def __str__(self) -> str:
        rows = f"rows {self.block.start}:{self.block.stop}"
        return f"{self.label}: {rows} took {self.seconds:.3g} s on {self.worker}"


@frozen
class PassResumed(Event):
    """A pass begins with the kept sums of `n_kept` of its `n_samples` rows."""

    n_kept: int
    n_samples: int

    def __str__(self) -> str:
        if self.n_kept == self.n_samples:  # perhaps by an earlier part of the same job
            return f"{self.label}: done already, from sums that were kept"
        share = math.floor(100 * self.n_kept / self.n_samples)
        return f"{self.label}: goes on where a job was stopped: {share} % of the rows are there"


@frozen
class PassMerging(Event):
    """All blocks of a pass are done; the sums of `n_totals` workers are now added and fetched."""

    n_totals: int

    def __str__(self) -> str:
        if self.n_totals == 1:
            return f"{self.label}: fetching the sums"
        return f"{self.label}: adding up {self.n_totals:,} workers' sums"


@frozen
class PassFinished(Event):
    """A pass has its result, `seconds` after its start.

    `n_samples`: rows that it worked through, without those whose sums were kept.
    `waiting`: the share of its blocks' seconds that they waited for their rows.
    """

    seconds: float
    n_samples: int = 0
    waiting: float = 0.0

    def __str__(self) -> str:
        rate = f", {self.n_samples / self.seconds:,.0f} rows/s" if self.n_samples and self.seconds > 0 else ""
        return f"{self.label}: done after {self.seconds:.1f} s{rate}"


@frozen
class PassFailed(Event):
    """A pass ended without a result, `seconds` after its start; `error` goes on to the caller."""

    seconds: float
    error: BaseException

    def __str__(self) -> str:
        return f"{self.label}: stopped after {self.seconds:.1f} s ({type(self.error).__name__})"


@frozen
class Remark(Event):
    """What a job does or has found between its passes, in words."""

    text: str

    def __str__(self) -> str:
        return f"{self.label}: {self.text}"


@frozen
class Tried(Remark):
    """A candidate and its error. Logs have it at DEBUG, since a table lists them all in the end."""


@frozen
class Rounds(Event):
    """At most `limit` passes called `label` come next, or other steps that are counted.

    `done`: how many there were so far. Steps that are no passes tell this after each.
    """

    limit: int
    done: int = 0

    def __str__(self) -> str:
        return f"{self.label}: {self.done:,} of at most {self.limit:,} {'steps' if self.done else 'passes'}"


@frozen
class Work(Event):
    """The products that the next passes called `label` have to make.

    `operations`: those of the products of features with each other.
    `n_components`: the number of features, D.
    `fixed_point`: whether features are whole numbers, which may be multiplied by bytes.
    """

    operations: float
    n_components: int
    fixed_point: bool

    def __str__(self) -> str:
        return f"{self.label}: {self.operations:.3g} operations for D = {self.n_components:,}"


type Observer = Callable[[Event], object]
type Observers = Iterable[Observer]


class Announcer:
    """Hand events to observers; an observer that raises is logged and then left out."""

    def __init__(self, observers: Sequence[Observer]) -> None:
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


class _Rates:
    """An observer that adds up what a pass does, and keeps its rates for metrics up to date."""

    EVERY_S = 5.0

    def __init__(self, label: str, row_bytes: int) -> None:
        self._label, self._row_bytes = label, row_bytes
        self._start = self._told = time.perf_counter()
        self.n_kept, self.n_samples, self._busy, self._waited = 0, 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def waiting(self) -> float:
        return self._waited / self._busy if self._busy else 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, BlockDone) and event.seconds >= 0:  # NaN where sums were kept, or no one told
            self.n_samples += event.block.n_samples
            self._busy += event.seconds
            self._waited += event.waited
            if time.perf_counter() - self._told > self.EVERY_S:
                self.tell()
        elif isinstance(event, PassResumed):
            self.n_kept += event.n_kept

    def tell(self) -> dict[str, float]:
        """Send the rates so far as metrics, and return them."""
        self._told = time.perf_counter()
        rows = self.n_samples / max(self.seconds, 1e-9)
        rates = {"rows_per_second": rows, "bytes_per_second": rows * self._row_bytes}
        rates["storage_wait"] = self.waiting
        tracing.measure(self._label, **rates)
        return rates


@contextmanager
def announce_pass(
    observers: Sequence[Observer],
    label: str,
    blocks: Sequence[Block],
    about: Callable[[], dict[str, Any]] = dict,
) -> Iterator[Announcer]:
    """Announce the start and the end of a pass, trace it, and yield the announcer for the events between.

    `about`: what its span tells besides, and `row_bytes`; called if the pass is traced.
    """
    n_samples = sum(block.n_samples for block in blocks)
    told = about() if tracing.is_on() else {}
    row_bytes = told.pop("row_bytes", 0)
    announce = Announcer([*observers, rates := _Rates(label, row_bytes)])
    size = {"rows": n_samples, "bytes": n_samples * row_bytes, "blocks": len(blocks)}
    with tracing.span(f"pass {label}", **size, **told):
        announce(PassStarted(label, len(blocks), n_samples))
        try:
            yield announce
        except BaseException as error:
            announce(PassFailed(label, rates.seconds, error))
            raise
        announce(PassFinished(label, rates.seconds, n_samples - rates.n_kept, rates.waiting))
        if rates.n_samples:
            tracing.note(**rates.tell())


class LogObserver:
    """Log passes at INFO, blocks and candidates at DEBUG, each with its members as the record's `event`.

    `target`: where to log; this module's logger by default.
    """

    def __init__(self, target: logging.Logger | None = None) -> None:
        self._log = target or logger

    def __call__(self, event: Event) -> None:
        if isinstance(event, Rounds) and event.done:
            return  # steps between passes are for displays: there are hundreds, and from several threads
        level = logging.DEBUG if isinstance(event, BlockDone | Tried) else logging.INFO
        self._log.log(level, "%s", event, extra={"event": describe_event(event)})


def describe_event(event: Event) -> Summary:
    """Return an event as members of a JSON object, see `rff_dist.engines.logs`."""
    members = {member.name: getattr(event, member.name) for member in fields(event)}
    match event:
        case BlockDone(block=block):
            rows = {"start": block.start, "stop": block.stop, "n_samples": block.n_samples}
            members |= {"block": block.index} | rows
        case PassFailed(error=error):
            members["error"] = f"{type(error).__name__}: {error}"
    name = re.sub("(?<=[a-z])(?=[A-Z])", " ", type(event).__name__).lower()
    return {"event": name, **{_IN_LOGS.get(key, key): value for key, value in members.items()}}


# Members of events whose names in logs are others.
_IN_LOGS = {"label": "pass", "n_samples": "rows", "n_kept": "kept", "n_totals": "totals"}


@dataclass(slots=True)
class _Phase:
    """What a job does now, and how far it is.

    `label`, `text`: its name, and the last remark about it.
    `n_samples`, `seen`: rows of the pass that runs, and those that are done; 0 between passes.
    `turn`, `limit`, `unit`: passes or steps of this name so far, at most (0 where not known), and which.
    `rows`, `busy`: rows of all its passes so far, and the seconds that they took.
    `merging`: what its pass does after its last row.
    `since`, `begun`: when the pass began, and when the phase began.
    """

    label: str
    text: str = ""
    n_samples: int = 0
    seen: int = 0
    turn: int = 0
    limit: int = 0
    unit: str = "passes"
    rows: int = 0
    busy: float = 0.0
    merging: str = ""
    since: float = field(default_factory=time.perf_counter)
    begun: float = field(default_factory=time.perf_counter)

    def __str__(self) -> str:
        if self.limit:
            return f"{self.label} {self.turn:,}/{self.limit:,}"
        return f"{self.label}: {self.text}" if self.text else self.label

    def line(self, *, at_work: bool = False) -> str:
        """Say how far the phase is; a phase at work has done 0 rows, not all, before its first block."""
        if self.merging:
            return self.merging
        if self.limit:
            return f"{self.label}: {self.turn:,} of at most {self.limit:,} {self.unit}"
        if not self.n_samples:
            return str(self)
        share = f"{self.seen:,} of " if self.seen or at_work else ""
        return f"{self.label}: {share}{self.n_samples:,} rows"


class RichProgress:
    """Show one bar for a whole job on standard error; a few plain lines where that is no terminal.

    The bar has the phase, its pass and their number, rows per second, the job's time and the time left of the
    phase. It appears with the first event, or after half a second without one. The words take the width that
    they need, and the bar what is left; narrow terminals show words, share and time. Plain lines come when
    the phase changes, and every `EVERY` seconds.
    Use it as a context manager around the work.

    `console`: where to show it; standard error by default, so that standard output stays free for results.
    `name`: the job's name, shown until there is a phase.

    >>> from rff_dist.engines.serial import SerialEngine
    >>> with RichProgress() as progress:
    ...     engine = SerialEngine(observers=(progress,))
    """

    EVERY, TICK = 10.0, 0.5
    #: Cells that all but the words take with a share, and without one; below `NARROW` there is no bar.
    WITH_SHARE, WITHOUT, NARROW = 44, 24, 60

    def __init__(self, console: Console | None = None, name: str = "start") -> None:
        self._console = console or Console(stderr=True)
        self._words = Column(no_wrap=True, overflow="ellipsis")
        share, spent = rich.progress.TaskProgressColumn(), rich.progress.TimeElapsedColumn()
        bar = rich.progress.BarColumn(bar_width=None, table_column=Column(ratio=1))
        speed = rich.progress.TextColumn("{task.fields[rate]}", style="progress.data.speed")
        wide = (bar, share, speed, spent, rich.progress.TimeRemainingColumn(compact=True))
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}", table_column=self._words),
            *((share, spent) if self._console.width < self.NARROW else wide),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
            expand=True,
        )
        self._job = self._bar.add_task(name, total=None, rate="")
        self._phase = _Phase(name)
        self._said, self._told = time.perf_counter(), ""
        self._resumed = False
        self._ended = threading.Event()
        self._ticking = threading.Thread(target=self._tick, name="rff-dist-progress", daemon=True)

    def __enter__(self) -> Self:
        self._ticking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._ticking.join()
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _tick(self) -> None:
        """Show that the job is at work while no events come."""
        while not self._ended.wait(self.TICK):
            self._bar.start()
            seconds = time.perf_counter() - self._phase.begun
            self._line(f"{self._phase.line(at_work=True)}, for {seconds:.0f} s", at_once=False)

    def count(self, label: str, done: int, total: int | None) -> None:
        """Show how many rows of a phase that is no pass are done, and the total if it is known."""
        if self._phase.label != label:
            self._phase = _Phase(label)
        phase = self._phase
        phase.n_samples, phase.seen, phase.rows = total or 0, done, done
        if total is None:
            phase.text, phase.busy = f"{done:,} rows", time.perf_counter() - phase.begun
        self._show(phase)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Work):
            return
        phase = self._phase
        if event.label != phase.label:
            if phase.turn > 1 and not self._console.is_terminal:
                seconds = time.perf_counter() - phase.begun
                text = f"{phase.label}: done after {phase.turn:,} {phase.unit}, {seconds:.1f} s"
                self._line(text, at_once=True)
            phase = self._phase = _Phase(event.label)
        match event:
            case Remark():
                phase.text, phase.n_samples = event.text, 0
            case Rounds():
                phase.limit, phase.turn = event.limit, event.done
                phase.unit = "steps" if event.done else "passes"
            case PassStarted():
                phase.n_samples, phase.seen, phase.since = event.n_samples, 0, time.perf_counter()
                phase.turn += 1
                phase.merging = ""
            case BlockDone():
                phase.seen += event.block.n_samples
                phase.rows += event.block.n_samples
            case PassMerging():
                phase.merging = str(event)
            case PassFinished():
                phase.busy += event.seconds
                phase.merging = ""
            case PassFailed():
                self.say(str(event))
            case PassResumed() if event.n_kept < event.n_samples or not self._resumed:
                self._resumed = True
                self.say(str(event))
        self._show(phase)
        if not isinstance(event, PassFailed | PassFinished | PassResumed):
            self._line(phase.line(), at_once=event.label != self._told and not isinstance(event, Rounds))

    def _show(self, phase: _Phase) -> None:
        self._bar.start()
        running = time.perf_counter() - phase.since if phase.seen < phase.n_samples else 0.0
        seconds = phase.busy + running
        total, done = phase.n_samples, phase.seen
        if phase.limit:
            total, done = phase.limit * max(1, phase.n_samples), phase.rows or phase.turn
        if not total:
            self._bar.tasks[0].total = None  # `update` takes None for no change
        width = self._console.width
        others = 14 if width < self.NARROW else self.WITH_SHARE if total else self.WITHOUT
        self._words.max_width = max(1, width - others)
        self._bar.update(
            self._job,
            description=phase.merging or str(phase),
            total=total or None,
            completed=done,
            rate=f"{phase.rows / seconds:,.0f} rows/s" if phase.rows and seconds > 0 else "",
        )
        # A phase is at its total, the job is not: rich would stop the clock, and never start it again.
        self._bar.tasks[0].finished_time = None

    def _line(self, text: str, *, at_once: bool) -> None:
        now = time.perf_counter()
        if not self._console.is_terminal and (at_once or now - self._said > self.EVERY):
            self._said, self._told = now, self._phase.label
            self.say(text)
