"""Report the outcome of a run to Prefect: its last state, tags, events and assets.

Prefect alone would show "Completed" for a refused model as for a published one. If its
server does not answer, setting the tags fails after 60 s, and the run with it, although
the model is published by then.

The tags `model:NAME` and `dataset:NAME` find all runs about one model or dataset;
`published` and `refused` those that changed it or did not, and their last state has
the same name. A run that failed has the tag `error:KIND`, such as `error:data.nan`.
Events are about the model, so that automations need not know its flow::

    rff_dist.model.published    a model or a version of it became current
    rff_dist.model.refused      new rows were not taken, and the model is as it was
    rff_dist.model.drifted      new rows follow another distribution than the old ones

What a run made is an asset of Prefect: a dataset, a model or predictions. Its
materialisation has the rows, the digest and the errors, and names the assets that it
was made of.
"""

import re
from contextvars import ContextVar
from typing import Any, cast

from prefect import State
from prefect.assets import Asset
from prefect.client.orchestration import get_client
from prefect.context import AssetContext
from prefect.events import emit_event
from prefect.runtime import flow_run as this_run
from prefect.states import Completed

from rff_dist.flows import names
from rff_dist.ridge import describe
from rff_dist.storage import locations
from rff_dist.typing import Facts, Summary

_LONGEST = 500  # characters of a state's message, which pages show in one line
#: Members of a result that an event about its model has, and that its asset has.
_IN_EVENTS = ("decision", "reason", "version", "digest", "n_samples", "n_new")
_IN_ASSETS = ("digest", "model_digest", "fingerprint", "version", "n_new", "inertia")
#: The first sentence of the document that a run showed last. `reports` sets it inside
#: of the flow's function, while `end` is called on what that function returns.
_sentence: ContextVar[str] = ContextVar("sentence", default="")


def say(sentence: str) -> None:
    """Set the message of the run's last state, in place of an earlier one."""
    _sentence.set(sentence)


def end(result: Facts, parameters: Facts, *, publishes: bool) -> State[Any]:
    """Tag the run at work, emit its events, and return the run's last state.

    The state holds the result of the flow. A flow that `publishes` has published a
    model unless its result holds another `decision`.
    """
    decision = result.get("decision", "published" if publishes else "")
    verdict = {"published": "published", "kept": "refused"}.get(str(decision), "")
    _tag(parameters, verdict)
    _emit_events(result, parameters, verdict)
    last: State[Any] = Completed(
        name=verdict.capitalize() or "Completed",
        message=_sentence.get()[:_LONGEST] or None,
        data=result,
    )
    _materialise(result, parameters, last, has_model=verdict == "published")
    return last


def _tag(parameters: Facts, verdict: str) -> None:
    """Add the tags by which runs are found."""
    tags = {verdict} if verdict else set()
    for kind, parameter in (("model", "model"), ("dataset", "data")):
        if name := names.name_of(parameters.get(parameter)):
            tags.add(f"{kind}:{name}")
    # each request ends after Prefect's 60 s
    with get_client(sync_client=True) as client:
        # Read first: the tags of its deployment, by which automations find it, must
        # stay.
        flow_run = client.read_flow_run(cast("Any", this_run.id))
        client.update_flow_run(flow_run.id, tags=sorted({*flow_run.tags, *tags}))


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
    """Report the assets that the run wrote and read."""
    written = {_asset_key(parameters.get("output"))}
    if has_model:
        written.add(_asset_key(parameters.get("model")))
    # updates of a model have new rows too, but only read them
    has_appended = "model" not in parameters and bool(result.get("n_new"))
    if has_appended:
        written.add(_asset_key(parameters.get("data")))
    read = {_asset_key(parameters.get(name)) for name in ("data", "test", "model")}
    written.discard("")
    read -= {"", *written}
    context = AssetContext(
        direct_asset_dependencies={Asset(key=key) for key in read},
        downstream_assets={Asset(key=key) for key in written},
        materialization_metadata=dict.fromkeys(written, _describe(result)),
    )
    context.emit_events(state)


def _describe(result: Facts) -> Summary:
    """Return an asset's metadata: its rows, digests, versions and errors."""
    errors = result.get("metrics") or result.get("estimate") or {}
    if gate := result.get("gate"):  # of an update
        errors = {"rmse": gate["challenger"], "held_out": gate["held_out"]}
    facts = {"rows": result.get("n_after", result.get("n_samples"))}
    facts |= {name: result.get(name) for name in _IN_ASSETS}
    facts |= {name: errors.get(name) for name in (*describe.TITLES, "held_out")}
    return {name: value for name, value in facts.items() if value is not None}


def _asset_key(url: object) -> str:
    """Return the key of an asset at a path or URL; "" if there is none."""
    if not isinstance(url, str):
        return ""
    place = locations.parse_location(url)
    # Prefect takes no blanks, quotes, brackets or percent signs.
    return f"{place.scheme}://{re.sub(r'[^\w./:@=+,~-]', '_', place.path)}"[:512]
