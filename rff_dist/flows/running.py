"""How flows run: on which cluster, for how long, what is retried, and what a stopped run reports.

`rff_dist.storage.output_places.hold` keeps two runs of one model apart, also direct runs and runs of several
Prefect servers. In a folder the second run fails at once and names the first; in an object store the one that
publishes later fails. With a deployment's `concurrency_limit: 1` it waits instead.
"""

import inspect
import logging
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from typing import Any, ClassVar, cast
from uuid import UUID

from prefect import Flow, State, Task, get_run_logger
from prefect.artifacts import create_link_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.logging.loggers import flow_run_logger
from prefect.runtime import flow_run as this_run
from prefect.utilities.timeout import timeout

from rff_dist import contexts, errors
from rff_dist.engines import connecting, dask, logs, progress, protocol
from rff_dist.engines.clock import Clock
from rff_dist.engines.cluster import Cluster
from rff_dist.fields import Option, RowNumber, build, check_names, group, like, optional, options_of
from rff_dist.flows import outcomes
from rff_dist.storage import locations
from rff_dist.text import redact, without_secrets
from rff_dist.typing import Facts
from rff_dist.workbench.jobs import limits, lineage, places, watching
from rff_dist.workbench.jobs.steps import Runner

#: Seconds after which a pass first shows its progress on the server, and between later updates.
SHOW_AFTER_S, SHOW_EVERY_S = 2.0, 5.0


@group
class Limits(limits.Limits):
    """How long a flow may take, and what is kept of it."""

    retries: RowNumber = like(limits.Limits, "retries", 2)
    performance_report: str | None = optional(
        "Path or URL of a folder that keeps Dask's performance report of each run, an HTML page. By default "
        "there is none. Needs the extra 'report'.",
        place="fills",
    )


#: Options that a form asks for first. The other options of the job follow; those of where it runs are last.
_FIRST = ("data", "model", "output", "n_components", "n_clusters")


class Form:
    """Prefect's form of a job: options of its `specs` by name, checked before a run starts.

    `without`: names of options that the flow decides.
    `values`: those that were given.
    Raises InvalidParameterError if there is no option of a name, or a value does not fit.
    """

    specs: ClassVar[tuple[type, ...]]
    without: ClassVar[Sequence[str]] = ()
    options: ClassVar[dict[str, Option]]

    def __init_subclass__(cls) -> None:
        asked = [one for spec in cls.specs for one in options_of(spec) if one.name not in cls.without]
        asked.sort(key=lambda one: _FIRST.index(one.name) if one.name in _FIRST else len(_FIRST))
        cls.options = {one.name: one for one in asked}

    def __init__(self, **values: Any) -> None:
        check_names(values, self.options, what="parameter")
        self.values = {name: self.options[name].check(value) for name, value in values.items()}
        given = [(name, one.declared, self.values.get(name)) for name, one in self.options.items()]
        try:
            places.check(given)
        except errors.StorageError as error:
            raise errors.InvalidParameterError(str(error)) from error
        for spec in self.specs:
            self.to(spec)

    def to[T](self, spec: type[T], **more: Any) -> T:
        """Return one of the form's specs; `more` gives the options that the form does not ask for."""
        names = {option.name for option in options_of(spec)}
        return build(spec, {name: value for name, value in self.values.items() if name in names} | more)


def key(what: str, parameters: Facts | None = None) -> str:
    """Return the key of an artifact: what it shows and of which model, since Prefect groups artifacts by key.

    `parameters`: of the run; by default of the run that calls this.
    """
    place = _place_of(this_run.parameters if parameters is None else parameters)
    # Prefect takes lowercase letters, digits and dashes only.
    return "-".join(["rff", what, *re.findall("[a-z0-9]+", place.lower())])


def _place_of(parameters: Facts) -> str:
    """Return the last part of the URL of a run's model, output or data, whichever it has first; else "".

    The parameters may be of any type: a run gets its name before they are checked.
    """
    places = (outcomes.name_of(parameters.get(name)) for name in ("model", "output", "data"))
    return next(filter(None, places), "")


def _run_name() -> str:
    """Return a run's name: what it is about and when it was due, such as "main, 2026-11-22 02:00"."""
    due = f"{this_run.scheduled_start_time:%Y-%m-%d %H:%M}"
    return ", ".join(filter(None, [_place_of(this_run.parameters), due]))


def code(text: str) -> str:
    """Show a name as code, so that nothing in it becomes markup."""
    return "`" + redact(text).replace("`", "'").replace("|", "\\|").replace("\n", " ") + "`"


# ---------------------------------------------------------------------------------------- flows and steps

#: What most flows do when they are run again.
_SAME_BITS = (
    "It goes on from the sums that were kept, if the data have not changed. All random numbers follow from "
    "`seed`, so the result has the bits of an undisturbed run. It removes what interrupted runs left, except "
    "for trained models."
)


def job_flow[F: Form, R](
    name: str, asked: type[F], *, resume: str = _SAME_BITS, publishes: bool = False
) -> Callable[[Callable[[F], R]], Flow[..., R]]:
    """Make a flow that stores no result and, when it stops early, reports what is left and how to go on.

    `name`: of the flow.
    `asked`: the form. Each of its options is a parameter of the flow, since Prefect overrides a deployment's
      parameters only as wholes.
    `resume`: what a run with the same parameters does with what an earlier one left.
    `publishes`: whether a run that completes has published a model, unless its result says otherwise.
    """

    # If the flow's process is killed or cancelled, the worker calls this, with arguments of these names.
    def tell_what_is_left(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
        text = describe_stop(flow.name, flow_run.parameters, state, resume=resume)
        name = key(f"{flow.name}-stopped", flow_run.parameters)
        log = flow_run_logger(flow_run, cast("Any", flow))
        log.warning("what is left and how to go on: artifact %s", name)
        about = f"What the run {flow_run.name} left, and how to go on."
        kept = ArtifactCreate(
            key=name, type="markdown", description=about, data=text, flow_run_id=flow_run.id
        )
        error = _error_of(state)
        with get_client(sync_client=True) as client:  # each request ends after Prefect's 60 s
            client.create_artifact(kept)
            if error is not None:  # runs are filtered by tags, and automations choose by them
                tags = sorted({*flow_run.tags, f"error:{errors.kind_of(error)}"})
                client.update_flow_run(flow_run.id, tags=tags)

    hooks: Any = [tell_what_is_left]

    def make(function: Callable[[F], R]) -> Flow[..., R]:
        @wraps(function)
        def run(**values: Any) -> R:
            parent = lineage.Parent("prefect", name, this_run.id or "")
            try:
                form = asked(**values)
            except errors.InvalidParameterError as error:
                message = f"the flow's parameters do not fit: {redact(str(error))}"
                raise errors.InvalidParameterError(message) from None
            with watching.part_of(parent) if this_run.id else nullcontext(), _timed(form.to(Limits)):
                result = function(form)
            # Prefect takes a state for the run's last one, and gives its data to whoever called the flow.
            return cast("R", outcomes.end(cast("Any", result), values, publishes=publishes))

        keywords = []
        for one in asked.options.values():
            about = {"default": one.default} if not one.required else {}
            kind = inspect.Parameter.KEYWORD_ONLY
            keywords.append(inspect.Parameter(one.name, kind, annotation=one.type, **about))
        # Prefect makes the parameters of a deployment from this signature.
        cast("Any", run).__signature__ = inspect.Signature(keywords)
        # Prefect describes the fields of its pages by these lines.
        lines = [f"    {name}: {one.declared.help}" for name, one in asked.options.items()]
        run.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *lines])
        return Flow(
            run,
            name=name,
            flow_run_name=_run_name,
            description=inspect.getdoc(function),
            validate_parameters=False,  # the form does it, more strictly
            persist_result=False,
            result_serializer="json",  # for errors that end a run, which Prefect stores all the same
            on_failure=hooks,
            on_crashed=hooks,
            on_cancellation=hooks,
        )

    return make


def step[**P, R](function: Callable[P, R], run_name: str, *, delays: Sequence[float] = ()) -> Task[P, R]:
    """Make a function a task, whose result Prefect neither caches nor stores.

    `run_name`: name of its runs.
    `delays`: seconds before each time that it is run again, after an error that `is_transient`: only where a
      second run does no harm. Blocks are retried by the engine.
    """

    def is_worth_another_try(_: Any, run: TaskRun, state: State[Any]) -> bool:
        return isinstance(state.data, BaseException) and limits.is_transient(state.data)

    return Task(
        function,
        task_run_name=run_name,
        cache_policy=NO_CACHE,
        persist_result=False,
        # Retries of steps that write would hide whether the first attempt had written.
        retries=len(delays),
        retry_delay_seconds=list(delays),
        retry_condition_fn=is_worth_another_try,
    )


# ------------------------------------------------------------------------------------------ while it runs

_lent_engine: ContextVar[protocol.Engine | None] = ContextVar("lent_engine", default=None)


def lend_engine(engine: protocol.Engine) -> AbstractContextManager[None]:
    """Let the flows that are called inside use `engine` instead of opening one; it is left open.

    For a process that already has a cluster, or observers that show the passes.
    """
    return contexts.setting(_lent_engine, engine)


def runner_of(
    parameters: Form,
    told: Mapping[str, Callable[[Any, Any], None]] | None = None,
    *,
    clock: Clock | None = None,
) -> Runner:
    """Return the runner of a job in a flow: each step is a task, on the engine that the parameters name.

    `told`: functions that log what a step returned, by the first word of its name.
    `clock`: times the passes.
    """
    limited, log = parameters.to(Limits), get_run_logger()

    def call(name: str, work: Callable[[], Any], repeatable: bool) -> Any:
        if name == "publish" and clock is not None:
            clock.end()
        steps: list[Callable[[], Any]] = [work]
        results: list[Any] = []

        def run() -> None:
            results[:] = [steps[0]()]

        try:
            step(run, name, delays=limited.delays if repeatable else ())()
        finally:
            steps.clear()  # Prefect keeps `run` and what it returns: they hold no sums in memory
        result = results.pop()
        if (tell := (told or {}).get(name.split()[0])) is not None:
            tell(log, result)
        return result

    def cluster(n_samples: int) -> Cluster | None:
        return _cluster_for(parameters, n_samples) if _lent_engine.get() is None else None

    holder = f"flow run {this_run.name} of {this_run.flow_name}" if this_run.id else "a flow"
    opened = partial(open_engine, parameters, log, clock=clock)
    return Runner(opened, call, holder, cluster, limits=limited)


def _cluster_for(parameters: Form, n_samples: int) -> Cluster:
    used = parameters.to(Cluster).in_environment()
    # Few rows are summed here faster than processes start; a performance report needs Dask, also for few.
    return used if parameters.to(Limits).performance_report is not None else used.for_rows(n_samples)


@contextmanager
def open_engine(
    parameters: Form, log: Any, n_samples: int, *, clock: Clock | None = None
) -> Iterator[protocol.Engine]:
    """Open the engine that the parameters name, or take the one that was lent to the flow.

    `n_samples`: rows that the flow passes over.
    `clock`: times the passes.
    Raises InvalidParameterError if an engine was lent and the parameters name another.
    """
    cluster, limited = parameters.to(Cluster), parameters.to(Limits)
    with ExitStack() as stack:
        if logs.log_format() == "json":
            stack.enter_context(logs.json_lines())
            stack.enter_context(logs.of_run(str(this_run.id or "")))
        engine = _lent_engine.get()
        if engine is None:
            # Prefect's logger is an adapter, with the methods of a logger.
            observers = (progress.LogObserver(cast("logging.Logger", log)), PassProgress())
            used = _cluster_for(parameters, n_samples)
            engine = stack.enter_context(connecting.open_engine(used, observers=observers))
        elif cluster != Cluster():
            raise errors.InvalidParameterError(
                "an engine was lent to the flow, so `scheduler`, `cluster`, `n_workers` and `n_threads` "
                "have no effect; leave them out"
            )
        if limited.performance_report is not None:
            stack.enter_context(_reported(engine, limited.performance_report, log))
        if clock is not None:
            stack.enter_context(clock.watching(engine))
        yield engine


@contextmanager
def _timed(limited: Limits) -> Iterator[None]:
    """Let JobTimeoutError end a flow that takes too long: by Prefect's scope, which waits for its locks."""
    minutes = limited.timeout_minutes
    try:
        with timeout(None if minutes is None else 60 * minutes):
            yield
    except TimeoutError as error:
        # Only Prefect's own time-out, which says so: others come from what ran inside.
        if isinstance(error, errors.RFFDistError) or minutes is None or "Scope timed out" not in str(error):
            raise
        raise limited.exceeded() from error


@contextmanager
def _reported(engine: protocol.Engine, folder: str, log: Any) -> Iterator[None]:
    """Keep Dask's performance report of the context, also when it fails, and link to it."""
    if not isinstance(engine, dask.DaskEngine):
        raise errors.InvalidParameterError(
            f"`performance_report` is {folder!r}, but {type(engine).__name__} has none; leave it out"
        )
    store = locations.open_store(place := locations.parse_location(folder), read_only=False)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    name = f"{this_run.flow_name or 'run'}-{stamp}-{(this_run.id or 'direct')[:8]}.html"
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary) / "report.html"
        try:
            with engine.performance_report(page):
                yield
        finally:
            if page.exists():
                locations.write_bytes(store, name, page.read_bytes())
                link = place.child(name)
                log.info("Dask's performance report: %s", link)
                url = Path(link.path).as_uri() if link.is_local else link.url
                about = f"Dask's performance report of the run {this_run.name}."
                create_link_artifact(url, key=key("performance-report"), description=about)


class PassProgress:
    """An observer that shows the progress of long passes as artifacts, which Prefect draws as bars."""

    def __init__(self) -> None:
        self._artifact: UUID | None = None
        self._n_samples = self._n_done = 0
        self._shown = 0.0

    def __call__(self, event: progress.Event) -> None:
        now = time.monotonic()
        match event:
            case progress.PassStarted():
                self._artifact, self._n_samples, self._n_done = None, event.n_samples, 0
                self._shown = now
            case progress.BlockDone(block=block):
                self._n_done += block.n_samples
                # Short passes show nothing: each artifact is a request, and most passes take less than it.
                wait = SHOW_AFTER_S if self._artifact is None else SHOW_EVERY_S
                if now - self._shown >= wait and self._n_done < self._n_samples:
                    self._show(event.label, now)
            case progress.PassFinished() | progress.PassFailed() if self._artifact is not None:
                self._show(event.label, now)

    def _show(self, label: str, now: float) -> None:
        self._shown = now
        # of rows, because blocks differ in length
        share = round(100 * self._n_done / self._n_samples, 1)
        if self._artifact is None:
            what = "".join(c if c.isalnum() else "-" for c in label.lower())
            artifact = create_progress_artifact(
                share, key=key(f"{what}-progress"), description=f"{label}: {self._n_samples:,} rows"
            )
            self._artifact = cast("UUID", artifact)  # an awaitable in an event loop only
        else:
            update_progress_artifact(self._artifact, share)


# ---------------------------------------------------------------------------------------- when it stopped


def describe_stop(name: str, parameters: Facts, state: State[Any], *, resume: str) -> str:
    """Return in Markdown why a run stopped, what it left and how to go on.

    `name`: of the flow.
    `parameters`: of the run, as Prefect keeps them.
    `state`: in which it stopped.
    `resume`: what a run with the same parameters does.
    """
    message = without_secrets(state.message or "no reason is known").strip()
    error = _error_of(state)
    kind = [] if error is None else [f"Kind of error: {code(errors.kind_of(error))}", ""]
    places = {key: parameters[key] for key in ("model", "output") if isinstance(parameters.get(key), str)}
    published = [
        f"- {key}: {code(place)} is published in the last step, whole or not at all."
        for key, place in places.items()
    ]
    again = f"*Retry* on this page, or `prefect deployment run '{name}/DEPLOYMENT'`. {resume}\n"
    if _is_decided(error):
        todo = "Change what the message names, the data or a parameter: as it is, the run fails again. Then: "
    else:
        todo = "Run it again with the same parameters: "
    lines = [
        f"# {name}: {state.name or state.type.value}\n",
        *(f"> {line}" for line in message.splitlines()),
        "",
        *kind,
        "## To go on\n",
        todo + again,
    ]
    if places:
        lines += ["## What is left\n", *published]
    for place in places.values():
        lines += _describe_leftovers(place)
    return "\n".join([*lines, ""])


def _is_decided(error: BaseException | None) -> bool:
    """Return whether a run with the same data and parameters must end with this error again."""
    of_now = errors.JobTimeoutError | errors.OutputBusyError | errors.ConflictError | errors.BlockError
    if not isinstance(error, errors.RFFDistError) or isinstance(error, of_now):
        return False
    return not limits.is_transient(error)


def _error_of(state: State[Any]) -> BaseException | None:
    """Return the error that ended a run; None if its process died with it."""
    error = getattr(state.data, "result", state.data)  # Prefect keeps a record of the exception
    return error if isinstance(error, BaseException) else None


def _describe_leftovers(url: str) -> list[str]:
    try:
        location = locations.parse_location(url)
        left = [*locations.beside(location, "run-"), *locations.beside(location, "partial-")]
        locks = locations.beside(location, "lock")
        kept = locations.beside(location, "ledger")
    except Exception as error:  # the store may be what failed
        return [f"- What is next to {code(url)} cannot be listed: {without_secrets(str(error))}"]
    lines = [f"- {code(place.url)}: unfinished, and read by no one." for place in left]
    lines += [f"- {code(place.url)}: a run with the same parameters goes on from here." for place in kept]
    lines += [f"- {code(lock.url)}: the lock of the run, which ends with its process." for lock in locks]
    return lines
