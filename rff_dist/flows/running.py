"""Jobs as Prefect flows: `job_flow` makes a flow, and each run of it is a `FlowRun`.

A flow takes the options of its job as parameters, and runs the job with each of its
steps as a task. Prefect alone would keep what tasks return in memory, repeat errors
that no second try fixes, and leave a reader of a failed run without a hint of how to go
on.

Two runs never write one model at once, also without Prefect or on several servers:
`rff_dist.storage.output_places.hold` sees to that. In a folder the second run fails at
once and names the first; in an object store the run that publishes later fails. With a
deployment's `concurrency_limit: 1` the second run waits instead.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field, replace
from functools import partial, wraps
from typing import Any, cast

from prefect import Flow, State, Task, get_run_logger
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.logging import get_logger
from prefect.runtime import flow_run as this_run
from prefect.utilities.timeout import timeout

from rff_dist import contexts, errors
from rff_dist.engines import connecting, events, logs, protocol
from rff_dist.engines.clock import Clock
from rff_dist.engines.cluster import Cluster
from rff_dist.fields import WholeNumber, build, group, like, values_of
from rff_dist.flows import names, outcomes, passes, stop_reports
from rff_dist.flows.parameters import Parameters
from rff_dist.text import redact
from rff_dist.typing import Summary, frozen
from rff_dist.workbench.integrations import runs
from rff_dist.workbench.jobs import limits
from rff_dist.workbench.jobs.steps import Runner, Step


@group
class FlowLimits(limits.JobLimits):
    """How long a flow may take, and how many times its steps are tried again."""

    retries: WholeNumber = like(limits.JobLimits, "retries", 2)


# ---------------------------------------------------------------------- a run of a flow


@frozen
class FlowRun:
    """A run of a flow: its options, the clock of its parts, and the runner of its job.

    `options`: by their class, the options of the job, of the cluster and of the limits.
    """

    name: str
    options: Mapping[type, Any]
    clock: Clock = field(default_factory=Clock)

    @property
    def limits(self) -> FlowLimits:
        """How long the flow may take, and how many times its steps are tried again."""
        return self._group(FlowLimits)

    def runner(self) -> Runner:
        """Return the runner of a job, which makes each of its steps a task."""
        holder = "a flow"
        if this_run.id:
            holder = f"flow run {this_run.name} of {this_run.flow_name}"
        return Runner(
            self.open_engine,
            _call_as_task,
            holder,
            self._cluster_for,
            limits=self.limits,
        )

    def describe(self) -> Summary:
        """Return the seconds of the run's parts; its log says on which machines."""
        times = self.clock.times()
        return {"engine": {}, **values_of(times, "seconds", "products")}

    @contextmanager
    def open_engine(self, n_samples: int) -> Iterator[protocol.Engine]:
        """Open the engine for passes over so many rows."""
        with ExitStack() as stack:
            if logs.log_format() == "json":
                stack.enter_context(logs.json_lines())
                stack.enter_context(logs.of_run(str(this_run.id or "")))
            opened = connecting.open_engine(
                self._cluster_for(n_samples), observers=events.listeners.get()
            )
            engine = stack.enter_context(opened)
            self.clock.begin("other")
            yield engine
            self.clock.begin("other")  # the time to close the engine

    def _group[T](self, spec: type[T]) -> T:
        """Return a group of options; its defaults if the flow has no such group."""
        return cast("T", self.options.get(spec) or build(spec, {}))

    def _cluster_for(self, n_samples: int) -> Cluster:
        # few rows are summed here faster than processes start
        return self._group(Cluster).in_environment().for_rows(n_samples)


# ---------------------------------------------------------------------- steps are tasks


def _call_as_task(step: Step) -> Any:
    """Call a step in a task that Prefect neither caches nor stores, but tries again."""
    name = step.name.rstrip(" 0123456789")  # "pass" for "pass 1", …
    # Prefect keeps `run` and what it returns. So the step and its result, which may be
    # large sums, are in lists that are emptied at the end.
    steps = [replace(step, delays=())]  # the task itself tries again
    results: list[Any] = []

    def run() -> None:
        results[:] = [steps[0]()]

    try:
        make_task(run, name, step.name, step.delays)()
    finally:
        steps.clear()
    return results.pop()


def make_task[**P, R](
    function: Callable[P, R], name: str, run_name: str, delays: Sequence[float]
) -> Task[P, R]:
    """Make a function a task that is run again after a transient error.

    There is a retry after each of the `delays`, in seconds. A step that writes has
    none: a second try would hide whether the first had written. Single blocks of rows
    are retried by the engine.
    """

    def is_worth_another_try(_: Any, run: TaskRun, state: State[Any]) -> bool:
        return isinstance(state.data, BaseException) and limits.is_transient(state.data)

    return Task(
        function,
        name=name,
        task_run_name=run_name,
        cache_policy=NO_CACHE,
        persist_result=False,
        retries=len(delays),
        retry_delay_seconds=list(delays),
        retry_condition_fn=is_worth_another_try,
    )


# ----------------------------------------------------------------------- jobs are flows

#: What most flows do when they are run again.
_SAME_BITS = (
    "It continues from the kept sums if the data have not changed. All random numbers"
    " follow from `seed`, so the result has the same bits as an uninterrupted run. It"
    " removes leftovers of interrupted runs, except trained models."
)


def job_flow[R](
    spec: type,
    *groups: type,
    without: Sequence[str] = (),
    on_cluster: bool = True,
    resume: str = _SAME_BITS,
    publishes: bool = False,
) -> Callable[[Callable[[Any, FlowRun], R]], Flow[..., R]]:
    """Return a decorator that makes a flow of a function, which stores no result.

    The function takes the job's options and a `FlowRun`.

    Parameters
    ----------
    spec
        The job's options.
    *groups
        Further options that the flow takes.
    without
        Names of options that the flow decides.
    on_cluster
        Whether the job passes over rows on a cluster.
    resume
        What a run with the same parameters does with what an earlier one left.
    publishes
        Whether a run that completes has published a model, unless its result says
        otherwise.
    """
    cluster_options = (Cluster, FlowLimits) if on_cluster else ()
    parameters = Parameters([*groups, spec, *cluster_options], without)

    def make(function: Callable[[Any, FlowRun], R]) -> Flow[..., R]:
        name = function.__name__

        def run_job(values: Summary) -> State[Any]:
            try:
                flow_run = FlowRun(name, parameters.read(values))
            except errors.InvalidParameterError as error:
                message = f"the flow's parameters do not fit: {redact(str(error))}"
                raise errors.InvalidParameterError(message) from None
            listeners: list[events.Observer] = [flow_run.clock, passes.PassProgress()]
            links: list[str] = []
            parent = None
            if this_run.id:
                parent = runs.ParentRun("prefect", name, this_run.id)
                # Prefect's logger is an adapter, with the methods of a logger.
                log = cast("logging.Logger", get_run_logger())
                listeners.append(partial(events.log, target=log))
            with (
                contexts.setting(runs.parent, parent),
                contexts.setting(outcomes.links_shown, links),
                events.listening(*listeners),
                _timed(flow_run.limits),
            ):
                result = function(flow_run.options[spec], flow_run)
            return outcomes.end(
                cast("Any", result), values, publishes=publishes, links=links
            )

        @wraps(function)
        def run(**values: Any) -> R:
            for logger in ("flow_runs", "task_runs", "engine"):
                get_logger(logger).addFilter(_without_traceback)
            # If a flow returns a state, Prefect takes it for the run's last one, and
            # gives its data to the caller of the flow, or raises them.
            try:
                return cast("R", run_job(values))
            except Exception as error:
                if not this_run.id:
                    raise
                return cast("R", outcomes.fail(error))

        about = inspect.getdoc(function) or ""
        run.__doc__ = f"{about}\n\n{parameters.describe()}"
        function_of_flow: Any = run
        function_of_flow.parameters = parameters
        # Prefect makes the parameters of a deployment from this signature.
        function_of_flow.__signature__ = parameters.signature()
        hooks: Any = [stop_reports.hook(resume)]
        return Flow(
            run,
            name=name,
            flow_run_name=names.run_name,
            description=about,
            validate_parameters=False,  # `Parameters.read` does it, more strictly
            persist_result=False,
            # Prefect stores the error that ends a run in spite of that
            result_serializer="json",
            on_failure=hooks,
            on_crashed=hooks,
            on_cancellation=hooks,
        )

    return make


def _without_traceback(record: logging.LogRecord) -> bool:
    """Leave expected errors, of which the last state has the message, out of Prefect's
    log of "unexpected exceptions", and their tracebacks out of the rest.
    """
    error = record.exc_info[1] if record.exc_info else None
    # a BlockError's cause may be any error
    is_expected = isinstance(error, errors.RFFDistError)
    if not is_expected or isinstance(error, errors.BlockError):
        return True
    record.exc_info = None
    return "unexpected exception" not in record.msg


def parameters_of(flow: Flow[..., Any]) -> Parameters:
    """Return the parameters of a flow that `job_flow` made."""
    return cast("Parameters", cast("Any", flow.fn).parameters)


@contextmanager
def _timed(limited: FlowLimits) -> Iterator[None]:
    """End a flow that takes too long with JobTimeoutError, by Prefect's own time-out.

    Prefect's time-out waits until its locks are free; ours would not.
    """
    minutes = limited.timeout_minutes
    try:
        with timeout(None if minutes is None else 60 * minutes):
            yield
    except TimeoutError as error:
        # Only Prefect's own time-out has these words; others come from the job.
        is_of_the_job = isinstance(error, errors.RFFDistError)
        if is_of_the_job or minutes is None or "Scope timed out" not in str(error):
            raise
        raise limited.exceeded() from error
