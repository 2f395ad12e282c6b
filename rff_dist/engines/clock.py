"""Where the time of a job went, and how near its products came to the processor's limit."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

from rff_dist.engines import progress, protocol
from rff_dist.products import choice
from rff_dist.typing import Facts, Summary, frozen


@frozen
class Times:
    """Where the time of a job went.

    `seconds`: seconds by phase; "total" may be one of the keys.
    `products`: how features were multiplied, see `Clock.times`; None where there was little to multiply.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    products: Facts | None = None


def process_start() -> float:
    """Return when this process began, by `time.perf_counter`."""
    import psutil

    age = time.time() - float(psutil.Process().create_time())
    return time.perf_counter() - max(0.0, age)


def products_words(products: Facts | None) -> str:
    """Say how features were multiplied; "" where that is not known."""
    if products is None:
        return ""
    share = products["share_of_limit"]
    return f"by {products['by']}" + ("" if share is None else f", at {share:.0%} of the processor's limit")


class Clock:
    """Time a whole job in parts: its passes, what is done between them, and what comes before and after.

    `since`: when the job began, by `time.perf_counter`; now by default.
    """

    def __init__(self, since: float | None = None) -> None:
        self._start = time.perf_counter() if since is None else since
        self._parts: dict[str, float] = {}
        self._label: str | None = None
        self._since = self._start
        self._work: list[tuple[progress.Work, int, int]] = []
        self._resumed = False
        self._times: Times | None = None

    @contextmanager
    def watching(self, engine: protocol.Engine) -> Iterator[None]:
        """Time the passes of an engine while the context lasts."""

        def observe(event: progress.Event) -> None:
            if self._label == "compare":
                return  # passes and solutions of other models are part of the comparison
            if isinstance(event, progress.Work):
                self._work.append((event, max(1, engine.n_workers), engine.n_threads))
            else:
                self._observe(event)

        if not self._parts:
            self.rest("start")
        with engine.observed_by(observe):
            yield
        self.end()  # closing the engine belongs to no part

    def _observe(self, event: progress.Event) -> None:
        match event:
            case progress.Remark(label="choose" | "tune") if self._label is None:
                self.begin("choose")
            case progress.Remark(label="compare"):
                self.begin("compare")
            case progress.Remark(label="solve") if self._label != "solve":
                self.begin("solve")
            case progress.PassStarted() if self._label == "choose":
                self.end()
            case progress.PassFinished():
                self.add(event.label, event.seconds)
                self._since += event.seconds  # passes within a part are not counted twice
            case progress.PassResumed():
                self._resumed = True

    def begin(self, label: str) -> None:
        """Count the time from now on as a part of the job, until another begins or it ends."""
        if self._parts:
            self.end()
        else:
            self.rest("start")
        self._label, self._since = label, time.perf_counter()

    def end(self) -> None:
        """End the part that began last, if there is one."""
        if self._label is not None:
            self.add(self._label, time.perf_counter() - self._since)
            self._label = None

    def add(self, label: str, seconds: float) -> None:
        """Add seconds to a part of the job."""
        self._parts[label] = self._parts.get(label, 0.0) + seconds

    def rest(self, label: str) -> None:
        """Count all time until now that no part has as one."""
        self.end()
        self.add(label, time.perf_counter() - self._start - sum(self._parts.values()))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of all parts, which add up to "total"; "other" is what no part has."""
        self.end()
        total = time.perf_counter() - self._start
        other = max(0.0, total - sum(self._parts.values()))
        return {**self._parts, "other": other, "total": total}

    def times(self) -> Times:
        """Return the seconds, and how features were multiplied; both as at the first call, for all faces.

        In `products`, `by` names the fastest way to multiply on this machine. `share_of_limit` is the time
        that all threads would take for the products at that way's rate, which is measured here for a third of
        a second, as a share of the time of their passes; None for a job that resumed a stopped one.
        """
        if self._times is None:
            products = self._products()
            self._times = Times(self.seconds(), products)
        return self._times

    def _products(self) -> Summary | None:
        taken = sum(self._parts.get(label, 0.0) for label in {work.label for work, *_ in self._work})
        if sum(work.operations for work, *_ in self._work) < choice.WORTH_MEASURING or not taken:
            return None
        ways, least = [], 0.0
        for work, n_workers, n_threads in self._work:
            operations = work.operations / n_workers if work.fixed_point else 0.0
            rate = choice.rate_for(work.n_components, operations)
            ways.append(rate.products.name)
            least += work.operations / (1e9 * rate.gflops * n_workers * n_threads)
        by = " and ".join(dict.fromkeys(ways))
        return {"by": by, "share_of_limit": None if self._resumed else least / taken}
