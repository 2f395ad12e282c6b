"""What a pass tells while it runs: typed events, and the observers that show, log or collect them.

An engine calls every observer with every event, from the thread that called the engine. An observer
is any callable of one event. One that raises is logged with its traceback and gets no further events
of that pass: a broken display must neither stop hours of work nor fail in silence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from rff_dist.data.blocks import Block

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PassStarted:
    """A pass over `n_blocks` blocks with `n_samples` rows in total begins."""

    label: str
    n_blocks: int
    n_samples: int

    def __str__(self) -> str:
        return f"{self.label}: {self.n_samples:,} rows in {self.n_blocks} blocks"


@dataclass(frozen=True, slots=True)
class BlockDone:
    """A block is finished, once per block however often it was run.

    `block`: the rows that are done.
    `seconds`: how long its function took where it ran, without waiting and transfers.
    `worker`: where it ran: a worker's address, or "serial".
    """

    label: str
    block: Block
    seconds: float
    worker: str

    def __str__(self) -> str:
        rows = f"rows {self.block.start}:{self.block.stop}"
        return f"{self.label}: {rows} took {self.seconds:.3g} s on {self.worker}"


@dataclass(frozen=True, slots=True)
class PassFinished:
    """The result of a pass is there, `seconds` after its start."""

    label: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.label}: done after {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class PassFailed:
    """A pass ended without a result, `seconds` after its start; `error` goes on to the caller."""

    label: str
    seconds: float
    error: BaseException

    def __str__(self) -> str:
        return f"{self.label}: stopped after {self.seconds:.1f} s ({type(self.error).__name__})"


@dataclass(frozen=True, slots=True)
class Remark:
    """What a job does or found between its passes, in words."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"{self.label}: {self.text}"


type Event = PassStarted | BlockDone | PassFinished | PassFailed | Remark
type Observer = Callable[[Event], object]


class Announcer:
    """Hand events to observers; one that raises is logged and then left out."""

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


@contextmanager
def announce_pass(observers: Sequence[Observer], label: str, blocks: Sequence[Block]) -> Iterator[Announcer]:
    """Announce the start and the end of a pass; yields the announcer for what happens between."""
    announce = Announcer(observers)
    start = time.perf_counter()
    announce(PassStarted(label, len(blocks), sum(block.n_samples for block in blocks)))
    try:
        yield announce
    except BaseException as error:
        announce(PassFailed(label, time.perf_counter() - start, error))
        raise
    announce(PassFinished(label, time.perf_counter() - start))


class LogObserver:
    """Log passes at INFO and blocks at DEBUG, each with its members as the record's `event`.

    `target`: where to log; this module's logger by default.
    """

    def __init__(self, target: logging.Logger | None = None) -> None:
        self._log = target or logger

    def __call__(self, event: Event) -> None:
        level = logging.DEBUG if isinstance(event, BlockDone) else logging.INFO
        self._log.log(level, "%s", event, extra={"event": describe_event(event)})


def describe_event(event: Event) -> dict[str, Any]:
    """Return an event as members of a JSON object, see `rff_dist.engines.logs`."""
    match event:
        case PassStarted():
            more: dict[str, Any] = {"n_blocks": event.n_blocks, "rows": event.n_samples}
            name = "pass started"
        case BlockDone(block=block):
            where = {"block": block.index, "start": block.start, "stop": block.stop, "rows": block.n_samples}
            name, more = "block done", {**where, "seconds": event.seconds, "worker": event.worker}
        case PassFinished():
            name, more = "pass finished", {"seconds": event.seconds}
        case PassFailed():
            name = "pass failed"
            more = {"seconds": event.seconds, "error": f"{type(event.error).__name__}: {event.error}"}
        case Remark():
            name, more = "remark", {"text": event.text}
    return {"event": name, "pass": event.label, **more}


@dataclass(slots=True)
class PassTimings:
    """Collect what the events measured; the lists run in the order of completion.

    `passes`: wall-clock seconds of every pass that finished.
    `blocks`: every block of every pass.
    """

    passes: list[tuple[str, float]] = field(default_factory=list)
    blocks: list[BlockDone] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        match event:
            case BlockDone():
                self.blocks.append(event)
            case PassFinished():
                self.passes.append((event.label, event.seconds))

    def seconds(self, label: str) -> float:
        """Add up the wall-clock seconds of all finished passes called `label`."""
        return sum(seconds for name, seconds in self.passes if name == label)

    def rows(self, label: str) -> int:
        """Add up the rows of all blocks done in passes called `label`."""
        return sum(done.block.n_samples for done in self.blocks if done.label == label)


class _RowsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} rows/s", style="progress.data.speed")


class RichProgress:
    """Show a bar for each pass on standard error; plain lines where that is no terminal.

    Use as a context manager around the work. The plain lines come at the start, at every tenth of
    the rows and at the end, so that a log file stays short. After a remark a bar without an end says that
    the job is at work, until the next pass.

    `console`: where to show; standard error by default, so that standard output stays free for results.

    >>> from rff_dist.engines.serial import SerialEngine
    >>> with RichProgress() as progress:
    ...     engine = SerialEngine(observers=(progress,))
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            _RowsPerSecond(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._running: dict[str, TaskID] = {}
        self._tenths: dict[str, int] = {}
        self._between: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_remark()
        self._bars.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case PassStarted():
                self._end_remark()
                self._running[event.label] = self._bars.add_task(event.label, total=event.n_samples)
                self._tenths[event.label] = 0
                self._line(str(event))
            case BlockDone():
                self._advance(event)
            case PassFinished():
                self._bars.stop_task(self._running.pop(event.label))
                self._line(str(event))
            case PassFailed():
                bar = self._running.pop(event.label)
                self._bars.stop_task(bar)
                self._bars.update(bar, description=f"[red]{event.label} (stopped)")
                self._line(str(event))
            case Remark():
                self._console.print(str(event), markup=False, highlight=False, soft_wrap=True)
                self._end_remark()
                self._between = self._bars.add_task(event.label, total=None)

    def _end_remark(self) -> None:
        if self._between is not None:
            self._bars.remove_task(self._between)
            self._between = None

    def _advance(self, event: BlockDone) -> None:
        bar = self._running[event.label]
        self._bars.advance(bar, event.block.n_samples)
        task = self._bars.tasks[self._bars.task_ids.index(bar)]
        tenth = int(task.percentage // 10)
        if self._tenths[event.label] < tenth < 10:
            self._tenths[event.label] = tenth
            self._line(
                f"{event.label}: {task.completed:,.0f} of {task.total:,.0f} rows, {task.elapsed:.1f} s"
            )

    def _line(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
