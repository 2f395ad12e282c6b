"""Where a job's time went, and how near its products came to the processor's limit.

Events go in, and the seconds of each part of the job come out: of passes, and of the
work between them. *Products* are products of features with each other, most of the work
of a fit. A stopwatch around each step would count a pass within a step twice, and would
not know about starting and stopping.
"""

import time
from collections.abc import Mapping
from dataclasses import field

from rff_dist.engines import events
from rff_dist.products import choice
from rff_dist.typing import Facts, Summary, frozen


@frozen
class Times:
    """Where the time of a job went."""

    #: By part; "total" may be a key too.
    seconds: Mapping[str, float] = field(default_factory=dict)
    #: "by" and "share_of_limit", see `Clock.times`; None with little to multiply.
    products: Facts | None = None


def process_start() -> float:
    """Return when this process began, by `time.perf_counter`."""
    import psutil

    age = time.time() - float(psutil.Process().create_time())
    return time.perf_counter() - max(0.0, age)


def products_words(products: Facts | None) -> str:
    """Say how features were multiplied; "" if that is not known."""
    if products is None:
        return ""
    text = f"by {products['by']}"
    share = products["share_of_limit"]
    if share is not None:
        text += f", at {share:.0%} of the processor's limit"
    return text


class Clock:
    """Time a whole job in parts: an observer of passes, and of the work between them.

    At any time one part is running. The job began at `since`, by `time.perf_counter`,
    with the part "start"; by default it begins now.
    """

    def __init__(self, since: float | None = None) -> None:
        #: Seconds by part.
        self._parts: dict[str, float] = {}
        #: The running part, and since when.
        self._part = "start"
        self._since = time.perf_counter() if since is None else since
        #: How much each kind of pass multiplies.
        self._work: list[events.Work] = []
        self._is_resumed = False
        self._times: Times | None = None

    def begin(self, part: str) -> None:
        """Count the time from now on as a part."""
        now = time.perf_counter()
        self._add(self._part, now - self._since)
        self._part = part
        self._since = now

    def _add(self, part: str, seconds: float) -> None:
        self._parts[part] = self._parts.get(part, 0.0) + seconds

    def __call__(self, event: events.Event) -> None:
        match event:
            case events.StepStarted(label="publish"):
                self.begin("other")
            case events.StepStarted(label="baselines" as part):
                self.begin(part)
            case _ if self._part == "compare":
                # Passes and solutions of other models are part of the comparison. It
                # ends with the steps above.
                return
            case events.Remark(label="choose" | "tune") if self._part == "other":
                self.begin("choose")
            case events.Remark(label="compare" | "solve" as part):
                self.begin(part)
            case events.PassStarted() if self._part == "choose":
                self.begin("other")
            case events.PassFinished():
                self._add(event.label, event.seconds)
                # so that they do not count for the running part too
                self._since += event.seconds
            case events.PassResumed():
                self._is_resumed = True
            case events.Work():
                self._work.append(event)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of all parts, "other" for the rest, and the "total"."""
        self.begin("other")
        parts = dict(self._parts)
        other = max(0.0, parts.pop("other", 0.0))
        return {**parts, "other": other, "total": sum(self._parts.values())}

    def times(self) -> Times:
        """Return the seconds until the first call, and how features were multiplied.

        In `products`, `by` names the fastest way to multiply on this machine.
        `share_of_limit` is a share of the passes' time: the time of the products alone,
        if each thread kept the rate that one thread has here, measured for a third of a
        second. It is None for a job that resumed a stopped one.
        """
        if self._times is None:
            products = self._products()
            self._times = Times(self.seconds(), products)
        return self._times

    def _products(self) -> Summary | None:
        labels = {work.label for work in self._work}
        seconds = sum(self._parts.get(label, 0.0) for label in labels)
        n_operations = sum(work.operations for work in self._work)
        if n_operations < choice.WORTH_MEASURING or not seconds:
            return None

        names = []
        fewest_seconds = 0.0
        for work in self._work:
            operations = work.operations / work.n_workers if work.fixed_point else 0.0
            rate = choice.rate_for(work.n_components, operations)
            names.append(rate.products.name)
            fewest_seconds += work.operations / (
                1e9 * rate.gflops * work.n_workers * work.n_threads
            )
        return {
            "by": " and ".join(dict.fromkeys(names)),
            "share_of_limit": None if self._is_resumed else fewest_seconds / seconds,
        }
