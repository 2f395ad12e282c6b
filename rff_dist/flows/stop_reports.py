"""Report a run that stopped early in Prefect: why it stopped, and how to go on.

Prefect would only show the error, and leave the artifact *Result* of an earlier run,
which would pass for this one's. The *Result* made here says which version of the model
is served, whether the same run can succeed, and from where it would go on. A tag has
the kind of the error, so that lists of runs and automations can select by it.
"""

from collections.abc import Callable
from typing import Any, cast

from prefect import Flow, State
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun
from prefect.logging.loggers import flow_run_logger

from rff_dist import errors
from rff_dist.flows import names
from rff_dist.models import versions
from rff_dist.storage import locations
from rff_dist.text import redact, without_secrets
from rff_dist.typing import Facts
from rff_dist.workbench.jobs import limits
from rff_dist.workbench.results import document, markdown, words

#: Errors that may be gone when the same run is repeated.
_PASSING_ERRORS = (
    errors.JobTimeoutError,
    errors.OutputBusyError,
    errors.ConflictError,
    errors.BlockError,
)


def hook(resume: str) -> Callable[[Flow[..., Any], FlowRun, State[Any]], None]:
    """Return the function that Prefect calls when a run fails, crashes or is cancelled.

    `resume`: a sentence on what a run with the same parameters does with the leftovers.
    """

    # If the flow's process is killed or cancelled, the worker calls this, with
    # arguments of these names.
    def report_stop(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
        key = names.key(f"{flow.name}-result", flow_run.parameters)
        log = flow_run_logger(flow_run, cast("Any", flow))
        log.warning("why it stopped, and how to continue: artifact %s", key)
        what = f"{flow.name} of {flow_run.name}"
        page = describe_stop(what, flow_run.parameters, state, resume=resume)
        link = names.link_to_run(flow_run.name, flow_run.id)
        artifact = ArtifactCreate(
            key=key,
            type="markdown",
            description=f"{page.title}: {page.lead.partition('. ')[0]}",
            data=f"{markdown.to_markdown(page)}\n{link}",
            flow_run_id=flow_run.id,
        )
        tags = {*flow_run.tags, *names.tags_of(flow_run.parameters)}
        if (error := _error_of(state)) is not None:
            tags.add(f"error:{errors.kind_of(error)}")
        # each request ends after Prefect's 60 s
        with get_client(sync_client=True) as client:
            client.create_artifact(artifact)
            client.update_flow_run(flow_run.id, tags=sorted(tags))

    return report_stop


def describe_stop(
    what: str, parameters: Facts, state: State[Any], *, resume: str
) -> document.Document:
    """Return a document on why a run stopped, what it left and how to go on."""
    error = _error_of(state)
    why = state.message or "no reason is known"
    if error is not None:
        why = str(error)
    # the state's name goes on with the reason
    outcome, _, _ = (state.name or state.type.value).partition(":")
    lead = without_secrets(why).strip().rstrip(".")
    page = document.Document(f"{outcome}: {what}", lead=f"{lead}.")
    page.say(served_version(parameters.get("model")))

    advice = "Run it again with the same parameters, by Retry on its page."
    if _comes_again(error):
        advice = (
            "Change what the message names, or the same run fails again. Then choose"
            " Retry on its page; it keeps the parameters: start a new run with others."
        )
    page.section("To go on", f"{advice} {resume}")

    rows = []
    for name in ("model", "output"):
        place = parameters.get(name)
        if isinstance(place, str):
            rows += _describe_leftovers(place)
    if rows:
        page.table("What is left", ("place", "what it is"), rows)
    return page


def served_version(model: object) -> str:
    """Return which version readers of a registered model get; "" without one."""
    if not isinstance(model, str):
        return ""
    try:
        pointer = versions.RegisteredModel(model).pointer()
    except Exception as error:  # the store may be what failed
        why = without_secrets(str(error))
        return f"Which version of {redact(model)} is served is not known: {why}"
    if pointer is None:
        return ""
    since = words.time_words(pointer.promoted)
    return f"Version {pointer.number} of {redact(model)} is served, since {since}."


def _comes_again(error: BaseException | None) -> bool:
    """Return whether the same run, repeated, fails with the same error."""
    # Any other error is taken to come from outside, such as a full disk or a lost
    # connection, which may be gone next time.
    if not isinstance(error, errors.RFFDistError):
        return False
    return not isinstance(error, _PASSING_ERRORS) and not limits.is_transient(error)


def _error_of(state: State[Any]) -> BaseException | None:
    """Return the error that ended a run; None if its process died with it."""
    # Prefect keeps a record of the exception
    error = getattr(state.data, "result", state.data)
    return error if isinstance(error, BaseException) else None


def _describe_leftovers(url: str) -> list[tuple[str, str]]:
    """Return the places of a stopped run's leftovers next to an output, and what each
    is.
    """
    meanings = {
        "run-": "unfinished; nothing reads it",
        "partial-": "unfinished; nothing reads it",
        "ledger": "a run with the same parameters goes on from here",
        "lock": "the lock of the run, which ends with its process",
    }
    try:
        location = locations.parse_location(url)
        return [
            (redact(place.url), meaning)
            for name, meaning in meanings.items()
            for place in locations.hidden_folders(location, name)
        ]
    except Exception as error:  # the store may be what failed
        why = without_secrets(str(error))
        return [(redact(url), f"the files next to it cannot be listed: {why}")]
