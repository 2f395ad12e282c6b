"""The deployments and automations of deploy/ against the flows that they run and
Prefect's own models.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from prefect.events.schemas.automations import AutomationCore
from prefect.flows import load_flow_from_entrypoint

from rff_dist import flows
from rff_dist.errors import InvalidParameterError
from rff_dist.flows import outcomes
from rff_dist.flows.running import parameters_of
from tests.refusals import refuses

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


DEPLOYMENTS = {
    entry["entrypoint"]: entry for entry in load("prefect.yaml")["deployments"]
}


def filled_parameters(entry: dict[str, Any], store: str) -> dict[str, Any]:
    """Return a deployment's parameters as `prefect deploy` fills them in."""
    text = json.dumps(entry["parameters"]).replace("{{ $RFF_DIST_STORE }}", store)
    assert "{{" not in text
    filled: dict[str, Any] = json.loads(text)
    return filled


def test_each_flow_has_a_deployment():
    folder = Path(flows.__file__).parent
    names = {
        path.stem
        for path in folder.glob("*.py")
        if re.search(r"^@job_flow\(", path.read_text(), re.M)
    }
    assert names == {"train", "cluster", "predict", "ingest", "refresh"}
    assert set(DEPLOYMENTS) == {f"rff_dist.flows.{name}.{name}" for name in names}


@pytest.mark.parametrize("store", ["s3://bucket/rff_dist", "shared/rff_dist"])
@pytest.mark.parametrize("entrypoint", DEPLOYMENTS)
def test_parameters_of_deployments_are_what_the_flows_take(entrypoint, store):
    values = filled_parameters(DEPLOYMENTS[entrypoint], store)
    flow = load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)
    parameters_of(flow).read(values)
    with refuses(InvalidParameterError, "nonsense"):
        parameters_of(flow).read(values | {"nonsense": 1})
    # so that each can be overridden alone
    assert values.keys() <= flow.parameters.properties.keys()
    urls = [
        value for value in values.values() if isinstance(value, str) and "/" in value
    ]
    assert urls
    assert all(url.startswith(store) for url in urls)


@pytest.mark.parametrize("entry", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
def test_deployments_are_scheduled_one_at_a_time_in_a_named_time_zone(entry):
    (schedule,) = entry["schedules"]
    assert re.fullmatch(r"(\S+ ){4}\S+", schedule["cron"])
    # no hour of it is skipped or comes twice
    assert str(ZoneInfo(schedule["timezone"])) == "Etc/UTC"
    assert schedule.get("active", True)
    assert entry["concurrency_limit"] == {
        "limit": 1,
        "collision_strategy": "CANCEL_NEW",
    }
    assert entry["work_pool"]["name"] == "rff-dist"
    assert "rff_dist" in entry["tags"]
    assert entry["description"]


def test_deploying_pulls_and_pushes_nothing_and_stops_without_a_store():
    config = load("prefect.yaml")
    assert config["push"] == []
    assert config["pull"] == []
    (step,) = config["build"]
    script = step["prefect.deployments.steps.run_shell_script"]["script"]
    # Prefect splits words as a shell does
    command = re.fullmatch(r"sh -c '([^']+)'", script).group(1)

    def run(**environment: str) -> int:
        return subprocess.run(
            ["sh", "-c", command], env=environment, capture_output=True, check=False
        ).returncode

    assert run(RFF_DIST_STORE="s3://bucket") == 0
    assert run() == 1
    assert run(RFF_DIST_STORE="") == 1


AUTOMATIONS = load("automations.yaml")["automations"]


@pytest.mark.parametrize("entry", AUTOMATIONS, ids=lambda entry: entry["name"])
def test_automations_are_valid_and_about_our_runs_only(entry):
    automation = AutomationCore.model_validate(entry)
    assert automation.enabled
    trigger = entry["trigger"]
    assert trigger["for_each"]
    if trigger["match"]["prefect.resource.id"] == "rff_dist.model.*":
        [event] = trigger["expect"]
        assert event in outcomes.__doc__
        return
    assert trigger["match_related"]["prefect.resource.id"] == "prefect.tag.rff_dist"
    if "prefect.state-type" in trigger["match"]:
        assert trigger["expect"] == ["prefect.flow-run.*"]
        return
    states = {
        "Failed*",
        "Crashed",
        "TimedOut",
        "Cancelled",
        "Completed",
        "Published*",
        "Refused*",
        "Nothing new*",
        "Added*",
        "Changed*",
        "Late",
        "Pending",
        "Running",
    }
    events = {
        name.rpartition(".")[2]
        for name in [*trigger["expect"], *trigger.get("after", [])]
    }
    assert events <= {*states, "heartbeat"}
