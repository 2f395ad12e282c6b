"""What a run came to, where those look who did not start it: the message of its last state, tags and events.

The tags `model:NAME` and `dataset:NAME` find all runs about one model or dataset; `published` and `refused`
those that changed it or did not, and their last state is called so. A run that failed has the tag
`error:KIND`, such as `error:data.nan`.
Events are about the model, so that automations need not know its flow::

    rff_dist.model.published    a model or a version of it became current
    rff_dist.model.refused      new rows were not taken, and the model is as it was
    rff_dist.model.drifted      new rows follow another distribution than the old ones

What a run made is an asset of Prefect: a dataset, a model or predictions. Its materialisation has the rows,
the digest and the errors, and names the assets that it was made of.
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

from rff_dist.ridge import describe
from rff_dist.storage import locations
from rff_dist.text import redact
from rff_dist.typing import Facts, Summary

_LONGEST = 500  # characters of a state's message, which pages show in one line
#: The sentence with which a run's last document begins.
_said: ContextVar[str] = ContextVar("said", default="")


def say(sentence: str) -> None:
    """Take a sentence for the message of the run's last state; a later one replaces it."""
    _said.set(sentence)


def end(result: Facts, parameters: Facts, *, publishes: bool) -> State[Any]:
    """Tag the run that calls this, tell of what happened to its model, and return its last state.

    `result`: of the flow; the state holds it.
    `parameters`: of the flow.
    `publishes`: whether the flow publishes a model, unless `result` holds another `decision`.
    """
    model, data = (name_of(parameters.get(key)) for key in ("model", "data"))
    decision = str(result.get("decision", "published" if publishes else ""))
    verdict = {"published": "published", "kept": "refused"}.get(decision, "")
    tags = {f"model:{model}" if model else "", f"dataset:{data}" if data else "", verdict} - {""}
    with get_client(sync_client=True) as client:  # each request ends after Prefect's 60 s
        # Read first: the tags of its deployment, by which automations find it, must stay.
        flow_run = client.read_flow_run(cast("Any", this_run.id))
        client.update_flow_run(flow_run.id, tags=sorted({*flow_run.tags, *tags}))
    drifted = (result.get("drift") or {}).get("drifted")
    # A flow without a model, such as ingest, has nothing to tell of one.
    for event in filter(None, (verdict, "drifted" if drifted else "")) if model else ():
        facts = ("decision", "reason", "version", "digest", "n_samples", "n_new")
        about = {"prefect.resource.id": f"rff_dist.model.{model}", "prefect.resource.name": model}
        payload = {name: result[name] for name in facts if name in result}
        emit_event(f"rff_dist.model.{event}", resource=about, payload=payload)
    message = _said.get()[:_LONGEST] or None
    last: State[Any] = Completed(name=verdict.capitalize() or "Completed", message=message, data=result)
    of_data = "model" not in parameters and result.get("n_new")
    # its output, a model that it published, or new rows
    are_made = (("output", True), ("model", verdict == "published"), ("data", of_data))
    made = {key for name, is_made in are_made if is_made and (key := _asset_key(parameters.get(name)))}
    used = {key for name in ("data", "test", "model") if (key := _asset_key(parameters.get(name)))} - made
    AssetContext(
        direct_asset_dependencies={Asset(key=key) for key in used},
        downstream_assets={Asset(key=key) for key in made},
        materialization_metadata=dict.fromkeys(made, _describe(result)),
    ).emit_events(last)
    return last


def _describe(result: Facts) -> Summary:
    """Return what is told of an asset: of a result, its rows, digests, versions and errors."""
    names = ("digest", "model_digest", "fingerprint", "version", "n_new", "inertia")
    errors = result.get("metrics") or result.get("estimate") or {}
    if gate := result.get("gate"):  # of an update
        errors = {"rmse": gate["challenger"], "held_out": gate["held_out"]}
    facts = {
        "rows": result.get("n_after", result.get("n_samples")),
        **{name: result.get(name) for name in names},
        **{name: errors.get(name) for name in (*describe.TITLES, "held_out")},
    }
    return {name: value for name, value in facts.items() if value is not None}


def _asset_key(url: object) -> str:
    """Return the key of an asset at a path or URL; "" if there is none."""
    if not isinstance(url, str):
        return ""
    place = locations.parse_location(url)
    # Prefect takes no blanks, quotes, brackets or percent signs.
    return f"{place.scheme}://{re.sub(r'[^\w./:@=+,~-]', '_', place.path)}"[:512]


def name_of(url: object) -> str:
    """Return the last part of a path or URL, without credentials; "" if there is none."""
    return redact(url).rstrip("/").rpartition("/")[2].removesuffix(".zarr") if isinstance(url, str) else ""
