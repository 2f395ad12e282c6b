"""How flows run: on which cluster, for how long, with what retried, and what is said when they stop.

What keeps two runs of one model apart is the lease of `rff_dist.storage.leases`, which direct runs and those
of several Prefect servers respect alike; a second run fails at once and names the first. A deployment's
`concurrency_limit: 1` beside it makes the second one wait instead.
"""

from __future__ import annotations

import errno
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Self, cast
from uuid import UUID

from prefect import Flow, State, Task, flow
from prefect.artifacts import create_link_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.logging.loggers import flow_run_logger
from prefect.runtime import flow_run as this_run
from prefect.utilities.timeout import timeout
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rff_dist import logs
from rff_dist.engines import Engine, connection
from rff_dist.engines.connection import Cluster
from rff_dist.engines.dask import DaskEngine
from rff_dist.errors import (
    ClusterLostError,
    ClusterUnavailableError,
    InvalidParameterError,
    JobTimeoutError,
    RFFDistError,
    StorageError,
)
from rff_dist.progress import BlockDone, Event, LogObserver, PassFailed, PassFinished, PassStarted
from rff_dist.storage import redact
from rff_dist.storage.leases import Lease, hold
from rff_dist.storage.locations import beside, open_store, parse_location, write_bytes

__all__ = [
    "RunParameters",
    "check_location",
    "code",
    "holding",
    "is_transient",
    "job_flow",
    "lend_engine",
    "open_engine",
    "step",
]

#: Times that a step is repeated, and seconds to wait before each.
RETRIES, RETRY_DELAYS_S = 2, (10.0, 60.0)
#: A pass shows its progress on the server when it has taken so many seconds, and again after as many.
SHOW_AFTER_S, SHOW_EVERY_S = 2.0, 5.0

type Minutes = Annotated[float, Field(gt=0, allow_inf_nan=False)]
type Count = Annotated[int, Field(ge=1)]


class RunParameters(BaseModel):
    """Where a job runs and for how long; every value is checked before a run starts."""

    # Prefect keeps parameters as JSON and reads them again: names that are aliases must survive that.
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, serialize_by_alias=True, validate_by_name=True
    )

    scheduler: str | None = Field(
        default=None,
        description="A Dask scheduler: its address, tcp://127.0.0.1:8786 or tls://host:8786, or the path of "
        "its scheduler file (*.json). Left out, that of RFF_DIST_SCHEDULER in the environment, or an "
        "embedded local cluster that starts and ends with the flow.",
    )
    workers: Count | None = Field(
        default=None,
        description="Worker processes of the embedded cluster; by the number of CPUs if left out.",
    )
    min_workers: Count | None = Field(
        default=None,
        description="Lets the embedded cluster have as many processes as there are blocks of rows to work "
        "on, from so many to `workers`; left out, it always has `workers`.",
    )
    threads: Count | None = Field(
        default=None, description="Threads of each worker process; by the number of CPUs if left out."
    )
    worker_memory: str | None = Field(
        default=None,
        description="Memory that each worker process may use, '4 GiB' say; equal shares if left out.",
    )
    insecure_cluster: bool = Field(
        default=False,
        description="Whether a scheduler beyond this machine may be used without TLS: anyone who reaches it "
        "can run code there and here.",
    )
    timeout_minutes: Minutes | None = Field(
        default=None, description="The run fails when it takes longer; left out, it takes what it takes."
    )
    performance_report: str | None = Field(
        default=None,
        description="Path or URL of a folder where Dask's performance report of each run is kept, an HTML "
        "page; left out, there is none. Needs the extra `report`.",
    )

    @field_validator("performance_report")
    @classmethod
    def _is_report_location(cls, url: str | None) -> str | None:
        return url if url is None else check_location(url)

    @model_validator(mode="after")
    def _fit_a_cluster(self) -> Self:
        size = (self.workers, self.min_workers, self.threads, self.worker_memory)
        if self.scheduler is not None and any(value is not None for value in size):
            raise ValueError(
                "`workers`, `min_workers`, `threads` and `worker_memory` size the embedded cluster, but "
                "`scheduler` names an existing one"
            )
        self.to_cluster()
        return self

    def to_cluster(self) -> Cluster:
        """Return where it runs, as the library takes it."""
        return Cluster(
            scheduler=self.scheduler,
            n_workers=self.workers,
            min_workers=self.min_workers,
            n_threads=self.threads,
            memory=self.worker_memory,
            insecure=self.insecure_cluster,
        )


def check_location(url: str) -> str:
    """Return a path or URL, if it is one."""
    try:
        parse_location(url)
    except StorageError as error:
        raise ValueError(str(error)) from error
    return url


def code(text: str) -> str:
    """Show a name as it is, whatever it holds: it must not become markup."""
    return "`" + redact(text).replace("`", "'").replace("|", "\\|").replace("\n", " ") + "`"


# ---------------------------------------------------------------------------------------- flows and steps

#: What most flows do when they are run again.
_SAME_BITS = (
    "All that is random follows from `seed`, so the result has the bits of an undisturbed run. What runs "
    "left that did not end is removed then, but for trained models."
)


def job_flow[**P, R](name: str, *, resume: str = _SAME_BITS) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Make a flow that stores no result, and that says what is left and how to go on when it stops.

    Parameters
    ----------
    name : str
        The flow's.
    resume : str
        What a run with the same parameters does with what an earlier one left.
    """

    # Where the flow's process is killed, the worker imports the flow and calls it there.
    def tell_what_is_left(stopped: Flow[..., Any], run: FlowRun, state: State[Any]) -> None:
        _tell_what_is_left(stopped, run, state, resume=resume)

    hooks: Any = [tell_what_is_left]
    return flow(
        name=name,
        persist_result=False,
        result_serializer="json",  # of an error that ends a run, which Prefect stores all the same
        on_failure=hooks,
        on_crashed=hooks,
        on_cancellation=hooks,
    )


def step[**P, R](run_name: str, *, retried: bool = False) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a task of a function, which Prefect neither caches nor stores the result of.

    Parameters
    ----------
    run_name : str
        Name of its runs.
    retried : bool, default=False
        Whether it is run again after a `is_transient` error: only where a second run does no harm, since it
        reads, or writes again what it wrote. Blocks are the engine's to retry.
    """
    options: dict[str, Any] = {}
    if retried:
        options = {
            "retries": RETRIES,
            "retry_delay_seconds": list(RETRY_DELAYS_S),
            "retry_condition_fn": _is_worth_another_try,
        }

    def make(function: Callable[P, R]) -> Task[P, R]:
        return Task(function, task_run_name=run_name, cache_policy=NO_CACHE, persist_result=False, **options)

    return make


def _is_worth_another_try(_: Any, run: TaskRun, state: State[Any]) -> bool:
    return isinstance(state.data, BaseException) and is_transient(state.data)


def is_transient(error: BaseException) -> bool:
    """Tell whether an error may be gone a minute later: a cluster without workers, a store that is away."""
    if isinstance(error, ClusterLostError | ClusterUnavailableError):
        return True
    if isinstance(error, RFFDistError) and type(error) is not StorageError:
        return False  # a decision: data, parameters, something that exists already
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 20:
        causes.append(cause)
    return any(_is_of_the_network(cause) for cause in causes if not isinstance(cause, RFFDistError))


def _is_of_the_network(error: BaseException) -> bool:
    if type(error).__module__.startswith("obstore"):
        return type(error).__name__ == "GenericError"
    away = (errno.ESTALE, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)
    return isinstance(error, ConnectionError | TimeoutError) or (
        isinstance(error, OSError) and error.errno in away
    )


# ------------------------------------------------------------------------------------------ while it runs

_lent_engine: ContextVar[Engine | None] = ContextVar("lent_engine", default=None)


@contextmanager
def lend_engine(engine: Engine) -> Iterator[None]:
    """Let flows that this context calls use `engine`, and leave it open, in the place of one of their own.

    For a process that has a cluster already, or observers to show the passes with.
    """
    token = _lent_engine.set(engine)
    try:
        yield
    finally:
        _lent_engine.reset(token)


@contextmanager
def holding(location: str) -> Iterator[Lease]:
    """Keep other runs from writing to `location`, and refuse at once where one does; before a cluster starts.

    Raises
    ------
    OutputBusyError
        With the other run's name and age.
    """
    run = f"flow run {this_run.name} of {this_run.flow_name}" if this_run.id else "a flow"
    with hold(location, holder=run) as lease:
        yield lease


@contextmanager
def open_engine(parameters: RunParameters, log: Any) -> Iterator[Engine]:
    """Open the engine that the parameters name, or the one that was lent to the flow, for the time allowed.

    Raises
    ------
    JobTimeoutError
        If what runs inside takes longer than `timeout_minutes`.
    InvalidParameterError
        If an engine was lent and the parameters name another.
    """
    with ExitStack() as stack:
        stack.enter_context(_time_limit(parameters.timeout_minutes))
        if logs.log_format() == "json":
            stack.enter_context(logs.json_lines())
            stack.enter_context(logs.of_run(str(this_run.id or "")))
        engine = _lent_engine.get()
        if engine is None:
            # An adapter, with the methods of a logger.
            observers = (LogObserver(cast("logging.Logger", log)), PassProgress())
            engine = stack.enter_context(connection.open_engine(parameters.to_cluster(), observers=observers))
        elif parameters.to_cluster() != Cluster():
            raise InvalidParameterError(
                "an engine was lent to the flow, which `scheduler`, `workers` and `threads` do not change; "
                "leave them out"
            )
        if parameters.performance_report is not None:
            stack.enter_context(_reported(engine, parameters.performance_report, log))
        yield engine


@contextmanager
def _time_limit(minutes: float | None) -> Iterator[None]:
    try:
        with timeout(None if minutes is None else 60 * minutes):
            yield
    except TimeoutError as error:
        if isinstance(error, RFFDistError) or minutes is None or "Scope timed out" not in str(error):
            raise
        raise JobTimeoutError(
            f"the run took longer than `timeout_minutes`={minutes:g} and was stopped; nothing was published. "
            "Give it more time or more workers, and run it again"
        ) from error


@contextmanager
def _reported(engine: Engine, folder: str, log: Any) -> Iterator[None]:
    """Keep Dask's performance report of what runs inside, also of what fails, and link to it."""
    if not isinstance(engine, DaskEngine):
        raise InvalidParameterError(
            f"`performance_report` is {folder!r}, but {type(engine).__name__} has none; leave it out"
        )
    store = open_store(place := parse_location(folder), read_only=False)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name = f"{this_run.flow_name or 'run'}-{stamp}-{this_run.name or 'direct'}.html"
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary) / "report.html"
        try:
            with engine.performance_report(page):
                yield
        finally:
            if page.exists():
                write_bytes(store, name, page.read_bytes())
                link = place.child(name)
                log.info("Dask's performance report: %s", link)
                create_link_artifact(
                    Path(link.path).as_uri() if link.is_local else link.url,
                    key="rff-performance-report",
                    description=f"Dask's performance report of the run {this_run.name}.",
                )


class PassProgress:
    """Show the progress of long passes as artifacts, which Prefect's pages draw as bars."""

    def __init__(self) -> None:
        self._artifact: UUID | None = None
        self._n_samples = self._n_done = 0
        self._shown = 0.0

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        match event:
            case PassStarted():
                self._artifact, self._n_samples, self._n_done = None, event.n_samples, 0
                self._shown = now
            case BlockDone(block=block):
                self._n_done += block.n_samples
                wait = SHOW_AFTER_S if self._artifact is None else SHOW_EVERY_S
                if now - self._shown >= wait and self._n_done < self._n_samples:
                    self._show(event.label, now)
            case PassFinished() | PassFailed() if self._artifact is not None:
                self._show(event.label, now)

    def _show(self, label: str, now: float) -> None:
        self._shown = now
        share = round(100 * self._n_done / self._n_samples, 1)
        if self._artifact is None:
            key = f"rff-{''.join(c if c.isalnum() else '-' for c in label.lower())}-progress"
            made = create_progress_artifact(share, key=key, description=f"{label}: {self._n_samples:,} rows")
            self._artifact = cast("UUID", made)  # not in an event loop
        else:
            update_progress_artifact(self._artifact, share)


# ---------------------------------------------------------------------------------------- when it stopped


def _tell_what_is_left(flow: Flow[..., Any], run: FlowRun, state: State[Any], *, resume: str) -> None:
    """Log and keep as an artifact what a run left that stopped, and how to go on."""
    text = describe_stop(flow.name, run.parameters, state, resume=resume)
    log = flow_run_logger(run, cast("Any", flow))
    log.warning("what is left and how to go on: artifact rff-%s-stopped", flow.name)
    with get_client(sync_client=True) as client:
        client.create_artifact(
            ArtifactCreate(
                key=f"rff-{flow.name}-stopped",
                type="markdown",
                description=f"What the run {run.name} left, and how to go on.",
                data=text,
                flow_run_id=run.id,
            )
        )


def describe_stop(name: str, parameters: Mapping[str, Any], state: State[Any], *, resume: str) -> str:
    """Say why a run of the flow `name` stopped, what it left and how to go on, as markdown.

    Parameters
    ----------
    name : str
        The flow's.
    parameters : mapping
        The run's, as Prefect keeps them.
    state : State
        In which it stopped.
    resume : str
        What a run with the same parameters does.
    """
    given = parameters.get("parameters", parameters)
    given = given.model_dump() if isinstance(given, BaseModel) else dict(given)
    message = logs.without_secrets(state.message or "no reason is known").strip()
    places = {key: given[key] for key in ("model", "output") if isinstance(given.get(key), str)}
    lines = [
        f"# {name}: {state.name or state.type.value}",
        "",
        *(f"> {line}" for line in message.splitlines()),
    ]
    lines += ["", "## To go on", ""]
    lines += [
        "Run it again with the same parameters: *Retry* on this page, or "
        f"`prefect deployment run '{name}/DEPLOYMENT'`. {resume}",
        "",
        "## What is left",
        "",
        *(
            f"- {key}: {code(place)} is published in the last step, whole or not at all."
            for key, place in places.items()
        ),
    ]
    for place in places.values():
        lines += _describe_leftovers(place)
    return "\n".join([*lines, ""])


def _describe_leftovers(url: str) -> list[str]:
    try:
        location = parse_location(url)
        left = [*beside(location, "run-"), *beside(location, "partial-")]
        leases = beside(location, "lease")
    except Exception as error:  # the store may be what failed
        return [f"- What is beside {code(url)} cannot be looked at: {logs.without_secrets(str(error))}"]
    lines = [f"- {code(place.url)}: unfinished, and read by nobody." for place in left]
    if leases:
        lines.append(
            f"- {code(leases[0].url)}: the lease of the run. If its process was killed it is void: at once "
            "on the same machine, else two minutes later."
        )
    return lines


def number(value: Any) -> str:
    """Show a number, the first eight of several, or a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(number, value[:8])) + (f" … ({len(value)})" if len(value) > 8 else "")
    return f"{value:.4g}"
