"""What runs the job of a command: an engine, progress on standard error, and a clock."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from rff_dist import contexts, fields
from rff_dist.engines.cluster import Cluster
from rff_dist.errors import RFFDistError
from rff_dist.typing import Summary
from rff_dist.workbench.cli import messages, settings
from rff_dist.workbench.jobs.limits import Limits

if TYPE_CHECKING:
    from rff_dist.engines import clock, protocol
    from rff_dist.engines.progress import RichProgress
    from rff_dist.workbench.cli import jobs
    from rff_dist.workbench.jobs import steps
    from rff_dist.workbench.page import pages

_shown: ContextVar[RichProgress | None] = ContextVar("shown", default=None)


@contextlib.contextmanager
def progress(name: str) -> Iterator[None]:
    """Show the progress of a command on standard error, unless it is to be quiet."""
    if settings.logs_json() or settings.quiet.get():
        yield
        return
    from rff_dist.engines.progress import RichProgress

    with RichProgress(messages.err, name) as shown, contexts.setting(_shown, shown):
        yield


def count_rows(label: str) -> Callable[[int, int | None], None]:
    """Return a function that shows how many rows are done, out of how many."""
    shown = _shown.get()
    return (lambda *_: None) if shown is None else partial(shown.count, label)


@contextlib.contextmanager
def after_job() -> Iterator[None]:
    """Add to errors that the job itself was done before them."""
    try:
        yield
    except RFFDistError as error:
        error.add_note("the job is done, and its result is in its place")
        raise


@fields.group
class Passes:
    """What a command runs its job with: an engine, progress on standard error, and a clock."""

    where: Cluster
    limits: Limits
    began: float = dataclasses.field(default_factory=time.perf_counter)
    engine: Summary = dataclasses.field(default_factory=dict)

    @cached_property
    def clock(self) -> clock.Clock:
        """The times of the command's parts; those of a program begin when its process does."""
        from rff_dist.engines.clock import Clock, process_start

        return Clock(process_start() if settings.is_program.get() else self.began)

    @property
    def runner(self) -> steps.Runner:
        """The runner that calls the steps of a job."""
        from rff_dist.workbench.jobs.steps import Runner

        return Runner(self.open, self._call, "rff-dist", self._cluster, count_rows("read"), self.limits)

    def _cluster(self, n_samples: int) -> Cluster:
        return self.where.in_environment().for_rows(n_samples)

    def write_page(self, page: jobs.Page, result: pages.Result, job: Any) -> None:
        """Write the page about what a job made, see `pages.page_of`, if a path for it is given."""
        if page.report is not None:
            from rff_dist.workbench.page.pages import page_of
            from rff_dist.workbench.results import html

            self.at_work("report")
            command = messages.this_command() if settings.is_program.get() else None
            warned = settings.warned.get()
            about = page_of(result, job, times=self.clock.times, command=command, warned=warned)
            with after_job():
                html.write_page(about, page.report)

    def at_work(self, part: str) -> None:
        """Show what the command is doing from now on, and count its time."""
        from rff_dist.engines.progress import Remark

        if (shown := _shown.get()) is not None:
            shown(Remark(part, ""))
        self.clock.begin(part)

    def facts(self) -> Summary:
        """Return what ran the job and where its time went until now, for the JSON document."""
        return {"engine": self.engine, **fields.values_of(self.clock.times(), "seconds", "products")}

    @contextlib.contextmanager
    def open(self, n_samples: int) -> Iterator[protocol.Engine]:
        """Start an engine for passes over so many rows, with progress on standard error, and close it."""
        from rff_dist.engines.connecting import open_engine
        from rff_dist.engines.progress import Remark

        cluster = self._cluster(n_samples)
        self.clock.rest("start")
        shown = _shown.get()  # None also if messages are JSON lines, which report passes themselves
        is_embedded = cluster.kind == "embedded"
        if shown is not None and is_embedded:
            size = " × ".join(map(str, cluster.size()))
            shown(Remark("cluster", f"starting here, workers × threads = {size}"))
        observers = () if shown is None else (shown,)
        with open_engine(cluster, observers=observers) as engine, self.clock.watching(engine):
            if not cluster.serial:
                self.clock.rest("cluster")  # all time since then went into its start
            kind = "serial" if cluster.serial else "embedded dask" if is_embedded else "dask"
            if shown is not None and not is_embedded and (address := dashboard_of(engine)):
                messages.err.print(f"dashboard: {address}", highlight=False, soft_wrap=True)
            self.engine.update(kind=kind, n_workers=engine.n_workers, n_threads=engine.n_threads)
            yield engine

    def _call(self, name: str, step: Callable[[], Any], repeatable: bool) -> Any:
        if name == "publish":
            self.clock.end()
        return self.limits.run(name, step, repeatable)


def dashboard_of(engine: protocol.Engine) -> str | None:
    """Return the address of the dashboard of an engine's cluster; None if there is none."""
    client = getattr(engine, "client", None)
    # n_workers=0: nothing about workers is sent along
    if client is None or "dashboard" not in client.scheduler_info(n_workers=0)["services"]:
        return None
    return str(client.dashboard_link)
