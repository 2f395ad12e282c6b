"""Report the outcome of a run to Prefect: its last state, tags, events and assets.

Prefect alone would show "Completed" for a refused model as for a published one. If its
server does not answer, setting the tags fails after 60 s, and the run with it, although
the model is published by then.

The tags `model:NAME` and `dataset:NAME` mark all runs about one model or dataset; the
tags `published` and `refused` mark the runs that changed the model, or did not. The
name of the last state begins with the same word, such as "Published: RMSE 59.8, 4.1%
lower"; that of a run which appends rows is such as "Added: 1,200 rows". A run that
found no rows ends as "Nothing new". A failed run has the tag `error:KIND`, such as
`error:data.nan`; its state is called "Failed: " and why, or "Refused: " and where, if
its rows cannot be used.

Events are about the model, so that automations need not know its flow::

    rff_dist.model.published    a model or a version of it became current
    rff_dist.model.refused      new rows were not taken, and the model is as it was
    rff_dist.model.drifted      new rows follow another distribution than the old ones

A dataset, a model or predictions that a run wrote are assets of Prefect. The event that
an asset was made (its materialisation) has the rows, the digest and the errors, and
names the assets that it was made from.
"""

import re
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, cast

from prefect import State
from prefect.artifacts import create_markdown_artifact
from prefect.assets import Asset
from prefect.client.orchestration import get_client
from prefect.context import AssetContext
from prefect.events import emit_event
from prefect.runtime import flow_run as this_run
from prefect.states import Completed, Failed

from rff_dist.errors import DataError, RFFDistError
from rff_dist.flows import names
from rff_dist.storage import locations
from rff_dist.text import (
    ERROR_TITLES,
    clipped,
    redact,
    score_words,
    without_secrets,
)
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.results import document, markdown, rows, updates

_LONGEST = 500  # characters of a state's message, which pages show in one line
#: Members of a result that go into an event about its model, and into its asset.
_IN_EVENTS = ("decision", "reason", "version", "digest", "n_samples", "n_new")
_IN_ASSETS = ("digest", "model_digest", "fingerprint", "version", "n_new", "inertia")
#: Links to the artifacts that the present run has shown so far.
links_shown: ContextVar[list[str]] = ContextVar("links_shown")
#: The first sentence of the last document that the run has shown. `reports` sets it
#: while the flow's function runs; `end` is called after that.
_sentence: ContextVar[str] = ContextVar("sentence", default="")


def say(sentence: str) -> None:
    """Set the message of the run's last state, in place of an earlier one."""
    _sentence.set(sentence)


def end(
    result: Facts, parameters: Facts, *, publishes: bool, links: Sequence[str]
) -> State[Any]:
    """Tag the present run, emit its events, and return the run's last state.

    The state holds the flow's `result`. `links`: to the artifacts that the run has
    shown. `publishes`: whether the flow has published a model, unless its result has
    another `decision`.
    """
    decision = result.get("decision", "published" if publishes else "")
    verdict = {"published": "published", "kept": "refused"}.get(str(decision), "")
    _tag(parameters, verdict)
    _emit_events(result, parameters, verdict)
    last: State[Any] = Completed(
        name=_state_name(result, verdict),
        message=_sentence.get()[:_LONGEST] or None,
        data=result,
    )
    _materialise(result, parameters, last, has_model=verdict == "published")
    _show_result(last, result, parameters, verdict, links)
    return last


def fail(error: Exception) -> State[Any]:
    """Return the last state of a run that an error ended: its name says why, since
    Prefect's command line shows no more; "Refused" if rows cannot be used.
    """
    is_expected = isinstance(error, RFFDistError)
    message = str(error) if is_expected else f"{type(error).__name__}: {error}"
    message = without_secrets(message)
    why = re.split(r" \(|; |\. ", message)[0]
    # of paths and URLs only the last name: the whole would fill the state's name
    why = re.sub(r"(?<!\S)(?:\w+:/)?/\S*/", "", why)
    kind = "Refused" if isinstance(error, DataError) else "Failed"
    return Failed(name=f"{kind}: {clipped(why, 80)}", message=message, data=error)


def _state_name(result: Facts, verdict: str) -> str:
    """Return the name that lists of runs show: the verdict, and the RMSE if there is
    only one target.
    """
    if result.get("decision") == "nothing new":
        return updates.decision_words(result)
    if "n_ingested" in result:
        return rows.appended_words(result)
    name = verdict.capitalize() or "Completed"
    errors = result.get("metrics") or result.get("estimate") or {}
    gate = result.get("gate")
    rmse = gate["challenger"] if gate else errors.get("rmse", ())
    if not verdict or len(rmse) != 1:
        return name
    name += f": RMSE {score_words('rmse', rmse[0])}"
    if gate:
        name += f", {gate['change']}{updates.waiting_words(result)}"
    return name


def _show_result(
    last: State[Any],
    result: Facts,
    parameters: Facts,
    verdict: str,
    links: Sequence[str],
) -> None:
    """Show the run's outcome, what to do next, and links to its other artifacts."""
    page = document.Document(str(last.name), lead=last.message or "")
    if verdict == "published":
        model = redact(str(parameters.get("model")))
        page.say(f"To go back: `rff-dist models rollback {model}`.")
    if "decision" in result:
        if verdict == "published" and result["new"]:
            command = updates.update_command(result, result["new"][0][0])
            page.say(f"After going back, its new rows wait for `{command}`.")
        for title, fact in updates.refusal_facts(result).items():
            if fact is not None:
                is_command = fact.startswith("rff-dist ")
                shown = f"`{fact}`" if is_command else fact
                page.say(f"{title.capitalize()}: {shown}.")
    drift = result.get("drift") or {}
    if drift.get("drifted"):
        drifted = updates.drifted_words(drift)
        page.say(f"The new rows are unlike the rows before, in {drifted}.")
    run = names.link_to_run(str(this_run.name), this_run.id)
    shown_links = f"{', '.join(links)}\n\n{run} of {this_run.flow_name}"
    create_markdown_artifact(
        f"{markdown.to_markdown(page)}\n{shown_links}",
        key=names.key(f"{this_run.flow_name}-result"),
        description=last.name,
    )


def _tag(parameters: Facts, verdict: str) -> None:
    """Add the tags by which runs are found, and remove those of a failed try."""
    tags = names.tags_of(parameters)
    if verdict:
        tags.add(verdict)
    # each request ends after Prefect's 60 s
    with get_client(sync_client=True) as client:
        # Read first: the tags of its deployment must stay, since automations find the
        # run by them.
        flow_run = client.read_flow_run(cast("Any", this_run.id))
        tags |= {tag for tag in flow_run.tags if not tag.startswith("error:")}
        client.update_flow_run(flow_run.id, tags=sorted(tags))


def _emit_events(result: Facts, parameters: Facts, verdict: str) -> None:
    """Emit an event for each thing that happened to the run's model, if it has one."""
    model = names.name_of(parameters.get("model"))
    if not model:
        return
    happened = [verdict] if verdict else []
    if (result.get("drift") or {}).get("drifted"):
        happened.append("drifted")
    for event in happened:
        emit_event(
            f"rff_dist.model.{event}",
            resource={
                "prefect.resource.id": f"rff_dist.model.{model}",
                "prefect.resource.name": model,
            },
            payload={name: result[name] for name in _IN_EVENTS if name in result},
        )


def _materialise(
    result: Facts, parameters: Facts, state: State[Any], *, has_model: bool
) -> None:
    """Report the assets that the run wrote and read; `has_model` if it wrote a
    model.
    """
    outputs = {_asset_key(parameters.get("output"))}
    if has_model:
        outputs.add(_asset_key(parameters.get("model")))
    # updates of a model have new rows too, but only read them
    has_appended = "model" not in parameters and bool(result.get("n_new"))
    if has_appended:
        outputs.add(_asset_key(parameters.get("data")))
    inputs = {_asset_key(parameters.get(name)) for name in ("data", "test", "model")}
    outputs.discard("")
    inputs -= {"", *outputs}
    context = AssetContext(
        direct_asset_dependencies={Asset(key=key) for key in inputs},
        downstream_assets={Asset(key=key) for key in outputs},
        materialization_metadata=dict.fromkeys(outputs, _describe(result)),
    )
    context.emit_events(state)


def _describe(result: Facts) -> Summary:
    """Return an asset's metadata: its rows, digests, versions and errors."""
    errors = result.get("metrics") or result.get("estimate") or {}
    if gate := result.get("gate"):  # of an update
        errors = {"rmse": gate["challenger"], "held_out": gate["held_out"]}
    facts = {"rows": result.get("n_after", result.get("n_samples"))}
    facts |= {name: result.get(name) for name in _IN_ASSETS}
    facts |= {name: errors.get(name) for name in (*ERROR_TITLES, "held_out")}
    return {name: value for name, value in facts.items() if value is not None}


def _asset_key(url: object) -> str:
    """Return the key of an asset at a path or URL; "" if there is none."""
    if not isinstance(url, str):
        return ""
    place = locations.parse_location(url)
    # Prefect takes no blanks, quotes, brackets or percent signs.
    return f"{place.scheme}://{re.sub(r'[^\w./:@=+,~-]', '_', place.path)}"[:512]
