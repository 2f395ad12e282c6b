"""What a command runs its job with: an engine, progress on standard error, and a clock.

The job asks for an engine when it knows its number of rows; then a cluster is started
or joined. Clock and progress belong to the command: they also cover what the job itself
does not see, such as the start of the program and the page about the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rff_dist import fields
from rff_dist.engines.cluster import Cluster
from rff_dist.errors import RFFDistError
from rff_dist.typing import Summary
from rff_dist.workbench.cli import messages, settings
from rff_dist.workbench.jobs.limits import JobLimits

if TYPE_CHECKING:
    from rff_dist.engines import clock, protocol
    from rff_dist.workbench.cli import jobs
    from rff_dist.workbench.jobs import steps
    from rff_dist.workbench.page import pages

#: The engine that a kind of cluster has; that of any other kind is "dask".
_ENGINE_OF_CLUSTER = {"serial": "serial", "embedded": "embedded dask"}


@contextlib.contextmanager
def progress(name: str) -> Iterator[None]:
    """Show the progress of a command on standard error, unless it is to be quiet."""
    if not _is_shown():
        yield
        return
    from rff_dist.engines import events
    from rff_dist.engines.progress_bar import RichProgress

    with RichProgress(messages.err, name) as shown, events.listening(shown):
        yield


def _is_shown() -> bool:
    # messages that are JSON lines report passes themselves
    return not (settings.logs_json() or settings.quiet.get())


def row_counter(label: str) -> Callable[[int, int | None], None]:
    """Return a function that shows how many rows are done, out of how many."""
    from rff_dist.engines import events

    # the listeners of this context, since the thread that counts may have others
    announce = events.Announcer(events.listeners.get())
    return lambda n_done, n_samples: announce(
        events.RowsCounted(label, n_done, n_samples)
    )


@contextlib.contextmanager
def after_job() -> Iterator[None]:
    """Note on errors that the job itself is done."""
    try:
        yield
    except RFFDistError as error:
        error.add_note("the job is done, and its result is in its place")
        raise


@fields.group
class CommandContext:
    """What a command gives its job: where it runs, its limits, and a clock.

    Its fields are fixed, but `open` fills `engine_facts`.
    """

    cluster_options: Cluster
    limits: JobLimits
    began: float = dataclasses.field(default_factory=time.perf_counter)
    #: kind and sizes of the engine, once it is open
    engine_facts: Summary = dataclasses.field(default_factory=dict)

    @cached_property
    def clock(self) -> clock.Clock:
        """The clock of the command's parts; in a program it starts with the process."""
        from rff_dist.engines.clock import Clock, process_start

        return Clock(process_start() if settings.is_program.get() else self.began)

    @property
    def runner(self) -> steps.Runner:
        """The runner that calls the steps of a job."""
        from rff_dist.workbench.jobs.steps import Runner

        return Runner(
            self.open,
            holder="rff-dist",
            cluster=self._cluster_for,
            observer=row_counter("read"),
            limits=self.limits,
        )

    def _cluster_for(self, n_samples: int) -> Cluster:
        """Return the cluster that the options, environment variables and the number of
        rows choose.
        """
        return self.cluster_options.in_environment().for_rows(n_samples)

    def write_page(
        self, options: jobs.PageOptions, result: pages.Result, job: Any
    ) -> None:
        """Write the page about what a job made, see `pages.page_of`, if a path for it
        is given.
        """
        path = options.report
        if path is None:
            return
        from rff_dist.workbench.page.pages import page_of
        from rff_dist.workbench.results import html

        self.at_work("report")
        command = messages.this_command() if settings.is_program.get() else None
        warned = settings.warned.get()
        with after_job():
            page = page_of(
                result, job, read_times=self.clock.times, command=command, warned=warned
            )
            html.write_page(page, path)

    def at_work(self, part: str) -> None:
        """Show what the command is doing from now on, and count its time."""
        from rff_dist.engines import events

        events.tell(events.StepStarted(part))
        # Progress shows a part from its first remark or pass on, and a part may have
        # neither: so an empty remark comes first.
        events.tell(events.Remark(part, ""))
        self.clock.begin(part)

    def facts(self) -> Summary:
        """Return what ran the job and where its time went, for the JSON document.

        `products` are how features were multiplied, see `Clock.times`.
        """
        return {
            "engine": self.engine_facts,
            **fields.values_of(self.clock.times(), "seconds", "products"),
        }

    @contextlib.contextmanager
    def open(self, n_samples: int) -> Iterator[protocol.Engine]:
        """Start an engine for passes over so many rows, time it, and close it."""
        from rff_dist.engines import events
        from rff_dist.engines.connecting import open_engine

        cluster = self._cluster_for(n_samples)
        engine_kind = _ENGINE_OF_CLUSTER.get(cluster.kind, "dask")
        if engine_kind == "embedded dask":
            size = " × ".join(map(str, cluster.size()))
            about = f"starting here, workers × threads = {size}"
            events.tell(events.Remark("cluster", about))
        if engine_kind != "serial":
            self.clock.begin("cluster")
        with (
            events.listening(self.clock),
            open_engine(cluster, observers=events.listeners.get()) as engine,
        ):
            self.clock.begin("other")
            if engine_kind == "dask" and _is_shown():
                _show_dashboard(engine)
            self.engine_facts.update(
                kind=engine_kind,
                n_workers=engine.n_workers,
                n_threads=engine.n_threads,
            )
            yield engine
            self.clock.begin("other")  # closing the engine belongs to no part


def _show_dashboard(engine: protocol.Engine) -> None:
    """Show the address of the dashboard of an engine's cluster, if it has one."""
    client = getattr(engine, "client", None)
    if client is None:
        return
    # n_workers=0: nothing about workers is sent along
    if "dashboard" in client.scheduler_info(n_workers=0)["services"]:
        line = f"dashboard: {client.dashboard_link}"
        messages.err.print(line, highlight=False, soft_wrap=True)
