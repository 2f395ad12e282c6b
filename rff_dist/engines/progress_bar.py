"""An observer that shows one bar for a whole job in a terminal, or a few plain lines.

The events of `events.py` go in. rich's own bars show one task each; here a job has one
bar, which follows its phases: passes of one name, or steps between passes.
"""

import math
import threading
import time
from dataclasses import dataclass, field
from typing import Self

import rich.progress
from rich.console import Console
from rich.table import Column

from rff_dist.engines import events

#: Events that change the phase, or how far it is.
_SHOWN = (
    events.Remark
    | events.Rounds
    | events.RowsCounted
    | events.PassStarted
    | events.BlockDone
    | events.PassMerging
    | events.PassFinished
)


#: Titles of steps and passes by their labels; any other is shown by its label.
TITLES = {
    "inspect": "check rows",
    "measure": "measure columns",
    "choose": "choose kernel",
    "tune": "tune length scales",
    "broadcast": "hand out features",
    "accumulate": "sum over rows",
    "solve": "choose alpha and solve",
    "residuals": "measure residuals",
    "hold out": "predict held-out rows",
    "evaluate": "measure errors",
    "compare": "compare with other models",
    "baselines": "compare with boosted trees",
    "report": "draw the page",
    "lloyd": "k-means",
    "label": "write labels",
}


@dataclass(slots=True)
class _Phase:
    """The part of a job that is at work now, and how far it is."""

    label: str
    #: The last remark about it, or a pass's words about merging its sums.
    text: str = ""
    #: Rows of the current or last pass, and how many of them are done.
    n_samples: int = 0
    n_done: int = 0
    #: Finished rows of all passes of the phase.
    n_done_in_all: int = 0
    #: Passes begun or steps done, and at most; 0 if no limit is known. `Rounds` comes
    #: once before passes, which are then counted here, or after each step.
    n_rounds: int = 0
    max_rounds: int = 0
    unit: str = "passes"
    begun: float = field(default_factory=time.perf_counter)
    pass_begun: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    @property
    def title(self) -> str:
        return TITLES.get(self.label, self.label)

    def line(self, *, is_at_work: bool = False) -> str:
        """Return a plain line; with `is_at_work` also the percentage and the time left,
        which a phase does not have when it has just begun.
        """
        text = f": {self.text}" if self.text else ""
        if self.max_rounds and not text:
            text = f": {self.n_rounds:,} of at most {self.max_rounds:,} {self.unit}"
        elif self.n_samples and not text:
            text = f": {self.n_samples:,} rows"
            share_done = self.n_done / self.n_samples
            if self.n_done >= self.n_samples:
                # the pass has ended, but the step has not: its time left is not known
                text += " are done"
            elif is_at_work:
                text = f": {math.floor(100 * share_done)} % of {self.n_samples:,} rows"
                if self.n_done:
                    seconds_left = (time.perf_counter() - self.pass_begun) * (
                        1 / share_done - 1
                    )
                    text += f", about {seconds_left:.0f} s left"
        return self.title + text


class RichProgress:
    """Show one bar for a whole job on standard error; plain lines without a terminal.

    The bar has the phase, its pass and their number, rows per second, the job's time
    and the time that the phase still takes. It appears with the first event, or after
    half a second without one. Plain lines come when the phase changes, and every
    `EVERY` seconds. Use it as a context manager around the work.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to show it; standard error by default, so that standard output stays free
        for results.
    name : str
        The job's name, shown until there is a phase.

    Examples
    --------
    >>> from rff_dist.engines.serial import SerialEngine
    >>> with RichProgress() as progress:
    ...     engine = SerialEngine(observers=(progress,))
    """

    #: Seconds between plain lines, and between updates of a job without events.
    EVERY = 10.0
    TICK = 0.5
    #: Columns of the terminal for bar, rate and times, with a percentage and without;
    #: and the minimum for words.
    WITH_PERCENTAGE = 44
    WITHOUT_PERCENTAGE = 24
    LEAST_WORDS = 16

    def __init__(self, console: Console | None = None, name: str = "start") -> None:
        self._console = console or Console(stderr=True)
        self._words = Column(no_wrap=True, overflow="ellipsis")
        self._bar = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}", table_column=self._words),
            rich.progress.BarColumn(bar_width=None, table_column=Column(ratio=1)),
            rich.progress.TaskProgressColumn(),
            rich.progress.TextColumn(
                "{task.fields[rate]}", style="progress.data.speed"
            ),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TimeRemainingColumn(compact=True),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
            expand=True,
        )
        self._job = self._bar.add_task(name, total=None, rate="")
        self._phase = _Phase(name)
        self._last_line_at = time.perf_counter()
        self._label_of_last_line = ""
        self._is_resumed = False
        self._step = ""
        self._labels: set[str] = set()
        self._ended = threading.Event()
        self._ticking = threading.Thread(
            target=self._tick, name="rff-dist-progress", daemon=True
        )

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

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.PassFailed):
            self.say(str(event))
        if isinstance(event, events.PassResumed) and self._is_news(event):
            self.say(f"{TITLES.get(event.label, event.label)}: {event.words()}")
            self._is_resumed = True
        if isinstance(event, events.StepStarted):
            self._step = event.label
        if isinstance(event, events.PassFinished):
            self._labels.add(event.label)
        if not isinstance(event, _SHOWN):
            return

        # The step "compare" fits other models in passes with the labels of a fit, and
        # would look like a second fit. `_step` is "compare" until the next step starts.
        label = "compare" if self._step == "compare" else event.label
        if label != self._phase.label:
            self._begin_phase(label)
        phase = self._phase
        match event:
            case events.Remark():
                # digests and sizes are for the log
                phase.text = "" if event.label == "broadcast" else event.text
                # A remark comes between passes, so the rows of the last pass no longer
                # say how far the job is. With a limit they are the size of a round.
                if not phase.max_rounds:
                    phase.n_samples = 0
            case events.Rounds():
                phase.max_rounds = event.limit
                phase.n_rounds = event.done
                phase.unit = event.unit
            case events.PassStarted():
                phase.text = ""
                phase.n_samples = event.n_samples
                phase.n_done = 0
                phase.n_rounds += 1
                phase.pass_begun = time.perf_counter()
            case events.BlockDone():
                phase.n_done += event.block.n_samples
                phase.n_done_in_all += event.block.n_samples
            case events.PassMerging():
                phase.text = event.words()
            case events.PassFinished():
                phase.text = ""
            case events.RowsCounted():
                phase.n_done = event.n_done
                phase.n_done_in_all = event.n_done
                phase.n_samples = event.n_samples or 0
                phase.text = "" if event.n_samples else event.words()
        self._show()
        is_new = label != self._label_of_last_line
        # A count may end at once, and then needs no line.
        is_counted = isinstance(event, events.Rounds | events.RowsCounted)
        line = self._phase.line(is_at_work=not is_new)
        self._line(line, at_once=is_new and not is_counted)

    def _is_news(self, event: events.PassResumed) -> bool:
        """Return whether to say that a pass goes on from kept sums."""
        if event.n_kept < event.n_samples:
            return True
        # This job itself made the sums before.
        if event.label in self._labels:
            return False
        # A complete pass is mentioned once; later ones say nothing new.
        return not self._is_resumed

    def _begin_phase(self, label: str) -> None:
        phase = self._phase
        if phase.n_rounds > 1 and phase.label != "compare":
            self._line(
                f"{phase.title}: done after {phase.n_rounds:,} {phase.unit},"
                f" {phase.seconds:.1f} s",
                at_once=True,
            )
        self._phase = _Phase(label)

    def _tick(self) -> None:
        """Show that the job is at work while no events come."""
        while not self._ended.wait(self.TICK):
            self._bar.start()
            line = self._phase.line(is_at_work=True)
            self._line(f"{line}, {self._phase.seconds:.0f} s so far")

    def _line(self, text: str, *, at_once: bool = False) -> None:
        """Print a plain line, if there is no terminal and it is time for one."""
        now = time.perf_counter()
        is_due = at_once or now - self._last_line_at > self.EVERY
        if is_due and not self._console.is_terminal:
            self._last_line_at = now
            self._label_of_last_line = self._phase.label
            self.say(text)

    def _show(self) -> None:
        """Update the bar."""
        self._bar.start()
        phase = self._phase
        rate = ""
        if phase.n_done_in_all and phase.seconds > 0:
            rate = f"{phase.n_done_in_all / phase.seconds:,.0f} rows/s"

        words = f"{phase.title}: {phase.text}" if phase.text else phase.title
        total = phase.n_samples
        n_done = phase.n_done
        if phase.max_rounds:
            words = f"{phase.title} {phase.n_rounds:,}/{phase.max_rounds:,}"
            total = phase.max_rounds * max(1, phase.n_samples)
            n_done = phase.n_done_in_all or phase.n_rounds

        task = self._bar.tasks[0]
        task.total = total or None  # set here, as `update` takes None for no change
        width_of_others = self.WITH_PERCENTAGE if total else self.WITHOUT_PERCENTAGE
        width = self._console.width - width_of_others
        self._words.max_width = max(self.LEAST_WORDS, width)
        self._bar.update(self._job, description=words, completed=n_done, rate=rate)
        # At the total of a phase rich stops the clock for good, but the job goes on.
        task.finished_time = None
