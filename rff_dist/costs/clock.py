"""Where the time of a job went, and how near its products came to the processor's limit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rff_dist.engines.progress import Event, PassFinished, PassResumed, PassStarted, Remark, Work
from rff_dist.engines.protocol import Engine
from rff_dist.products.choice import WORTH_MEASURING, rate_for


@dataclass(frozen=True, slots=True)
class Times:
    """Where the time of a job went.

    `seconds`: seconds by phase; "total" may be one of the keys.
    `products`: how features were multiplied, see `Clock.times`; None where there was little to multiply.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    products: Mapping[str, Any] | None = None


def products_words(products: Mapping[str, Any] | None) -> str:
    """Say how features were multiplied; "" where that is not known."""
    if products is None:
        return ""
    share = products["share_of_limit"]
    return f"by {products['by']}" + ("" if share is None else f", at {share:.0%} of the processor's limit")


class Clock:
    """Time the passes of a job, and what is done between them."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._parts: dict[str, float] = {}
        self._choosing: float | None = None
        self._solving: float | None = None
        self._work: list[tuple[Work, int, int]] = []
        self._resumed = False

    @contextmanager
    def watching(self, engine: Engine) -> Iterator[None]:
        """Time the passes of an engine while the context lasts."""

        def observe(event: Event) -> None:
            if isinstance(event, Work):
                self._work.append((event, max(1, engine.n_workers), engine.n_threads))
            else:
                self._observe(event)

        before, engine.observers = engine.observers, (*engine.observers, observe)
        try:
            yield
        finally:
            engine.observers = before

    def _observe(self, event: Event) -> None:
        now = time.perf_counter()
        match event:
            case Remark(label="choose" | "tune") if self._solving is None and self._choosing is None:
                self._choosing = now
            case Remark(label="solve") if self._solving is None:
                self._solving = now
            case PassStarted() if self._choosing is not None:
                self.add("choose", now - self._choosing)
                self._choosing = None
            case PassFinished():
                self.add(event.label, event.seconds)
                if self._solving is not None:
                    self._solving += event.seconds  # passes after the first solution are not part of it
            case PassResumed():
                self._resumed = True

    def add(self, label: str, seconds: float) -> None:
        """Add seconds to a part of the job."""
        self._parts[label] = self._parts.get(label, 0.0) + seconds

    def total(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._start

    def times(self) -> Times:
        """Return the seconds of each pass, of solving where there was any, and the total since the start.

        In `products`, `by` names the fastest way to multiply on this machine. `share_of_limit` is the time
        that all threads would take for the products at that way's rate, which is measured here for a third of
        a second, as a share of the time of their passes; None for a job that resumed a stopped one.
        """
        solving = {} if self._solving is None else {"solve": time.perf_counter() - self._solving}
        seconds = {**self._parts, **solving, "total": self.total()}
        taken = sum(seconds.get(label, 0.0) for label in {work.label for work, *_ in self._work})
        if sum(work.operations for work, *_ in self._work) < WORTH_MEASURING or not taken:
            return Times(seconds)
        ways, least = [], 0.0
        for work, n_workers, n_threads in self._work:
            rate = rate_for(work.n_components, work.operations / n_workers if work.fixed_point else 0.0)
            ways.append(rate.products.name)
            least += work.operations / (1e9 * rate.gflops * n_workers * n_threads)
        by = " and ".join(dict.fromkeys(ways))
        return Times(seconds, {"by": by, "share_of_limit": None if self._resumed else least / taken})
