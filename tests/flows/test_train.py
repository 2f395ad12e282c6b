"""The training flow on Prefect's temporary server, which starts once for all tests here
(about 10 s).
"""

import base64
import importlib
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from prefect import State
from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.settings import Settings, get_current_settings

from rff_dist import SerialEngine, flows, open_dataset, write_dataset
from rff_dist.data import blocks
from rff_dist.engines import resuming
from rff_dist.engines.events import BlockDone, PassResumed, listening
from rff_dist.errors import ClusterLostError
from rff_dist.fitting.options import RidgeOptions
from rff_dist.flows.train import train
from rff_dist.ridge import fit as ridge
from rff_dist.storage.datasets import ZarrDataset
from rff_dist.storage.ledger import FileLedger
from rff_dist.workbench.jobs import limits
from tests.dask_processes import forked_workers
from tests.markdown import rows_of
from tests.stopped_jobs import Eager

pytestmark = [
    pytest.mark.flows,
    pytest.mark.distributed,
    pytest.mark.usefixtures("prefect_server"),
]

N_COMPONENTS = 64
# choices that are not what a test is about
PLAIN = {
    "kernel": "gaussian",
    "length_scale": 1.0,
    "features": "fourier",
    "n_components": N_COMPONENTS,
}


def write_problem(
    folder: Path, *, n_samples: int = 3000, seed: int = 0, name: str = "data.zarr"
) -> str:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, 3))
    y = np.column_stack(
        [np.sin(X[:, 0]) + X[:, 1], X.sum(axis=1)]
    ) + 0.1 * rng.standard_normal((n_samples, 2))
    url = str(folder / name)
    write_dataset(url, X, y, chunk_rows=500)
    return url


@dataclass(frozen=True)
class Run:
    folder: Path
    parameters: dict[str, Any]
    state: State[Any]
    result: dict[str, Any]


def task_runs(state: State[Any]) -> list[TaskRun]:
    only = FlowRunFilter(id=FlowRunFilterId(any_=[state.state_details.flow_run_id]))
    with get_client(sync_client=True) as client:
        found = client.read_task_runs(flow_run_filter=only)
        # Prefect records task runs from events, a moment later
        deadline = time.monotonic() + 30
        while (
            any(run.start_time is None for run in found) and time.monotonic() < deadline
        ):
            time.sleep(0.1)
            found = client.read_task_runs(flow_run_filter=only)
    return sorted(found, key=lambda run: run.start_time)


def flow_run(state: State[Any]) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(state.state_details.flow_run_id)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train once with everything on, on an embedded cluster of two workers."""
    folder = tmp_path_factory.mktemp("train")
    parameters = {
        "data": write_problem(folder),
        "test": write_problem(folder, n_samples=400, seed=1, name="test.zarr"),
        "model": str(folder / "model"),
        "kernel": "gaussian",
        "length_scale": "auto",
        "features": "auto",
        "n_components": N_COMPONENTS,
        "n_folds": 3,
        "seed": 7,
        "n_workers": 2,
        "n_threads": 1,
    }
    with forked_workers():
        state = train(**parameters, return_state=True)
    return Run(folder, parameters, state, state.result())


# -- a run that succeeds
# ---------------------------------------------------------------------------


def test_each_step_is_one_task_in_the_order_of_the_job(run):
    assert run.state.is_completed()
    assert len(json.dumps(run.result)) < 8_000
    found = task_runs(run.state)
    final = [row for row in run.result["candidates"] if row["round"] == "final"]
    fitted = [
        "measure",
        "choose",
        "draw",
        "broadcast",
        "accumulate",
        *["solve"] * len(final),
        "hold out",
    ]
    judged = ["evaluate", "publish", "compare", "baselines"]
    assert [task.name for task in found] == ["inspect", *fitted, "keep", *judged]
    assert all(task.state.is_completed() for task in found)
    # Versions must not be published twice.
    assert [
        task.name for task in found if task.empirical_policy.retries in (0, None)
    ] == ["publish"]


def test_artifacts_tell_what_was_trained(run):
    summary = Artifact.get("rff-train-summary-model")
    assert summary.type == "markdown"
    assert run.result["digest"][:16] in summary.data
    assert "400 rows" in summary.data
    shown = [line for line in summary.data.splitlines() if line.startswith("| ")]
    rmse = run.result["metrics"]["rmse"]
    # below the header and its line
    assert shown[2].startswith(f"| test | y0: RMSE {rmse[0]:.4f} ± ")
    assert f"; y1: RMSE {rmse[1]:.4f} ± " in shown[2]
    assert shown[3].startswith("| cross-validation | y0: RMSE ")
    assert (
        "boosted trees, which predict one target" in run.result["comparison"]["verdict"]
    )
    assert summary.data.split("\n\n")[1] == run.result["comparison"]["verdict"]
    candidates = run.result["candidates"]
    n_first = sum(candidate.get("round") == "first" for candidate in candidates)
    assert f"the best of {n_first} candidates: gaussian" in summary.data
    for where in (summary.data, Artifact.get("rff-train-page-model").data):
        rows = rows_of(where, f"{n_first} candidates, by cross-validation")
        [chosen] = [row for row in rows if "←" in row["kernel"]]
        assert (chosen["kernel"].split()[0], chosen["features"]) == (
            "gaussian",
            run.result["features"],
        )
        # the final fit of the best one is no further candidate
        assert len(rows) == n_first


def test_the_page_about_the_model_is_an_artifact_with_its_pictures_inside(run):
    page = Artifact.get("rff-train-page-model")
    assert page.type == "markdown"
    shown = MarkdownIt("commonmark").enable("table").render(page.data)
    for title in (
        "Data",
        "Accuracy",
        "How it was chosen",
        "Which columns matter",
        "Provenance",
    ):
        assert f"<h2>{title}</h2>" in shown
    assert run.result["digest"] in shown
    assert re.search(r"<td[^>]*>accumulate</td>", shown)
    pictures = re.findall('<img src="data:image/png;base64,([^"]*)"', shown)
    assert len(pictures) >= 2
    assert all(base64.b64decode(one).startswith(b"\x89PNG") for one in pictures)


def test_no_array_reaches_prefect(run):
    home = Path(get_current_settings().home)
    assert home == Path(os.environ["PREFECT_HOME"])
    # Prefect keeps the errors of failed runs, other tests' here
    stored = [json.loads(file.read_bytes()) for file in (home / "storage").rglob("*")]
    assert all(set(content) == {"__exc_type__", "message"} for content in stored)
    assert len(json.dumps(flow_run(run.state).parameters)) < 2_000
    # a stored result would leave its whereabouts in the state
    assert all(task.state.data is None for task in task_runs(run.state))
    assert flow_run(run.state).state.data is None


def test_nothing_but_the_model_is_left_beside_the_data(run):
    assert {path.name for path in run.folder.iterdir()} == {
        "data.zarr",
        "model",
        "test.zarr",
    }


# -- runs that fail
# --------------------------------------------------------------------------------


def test_prefects_retry_goes_on_from_the_sums_that_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "RETRY_DELAYS_S", (0.0, 0.0))
    monkeypatch.setattr(blocks, "MIN_BLOCK_ROWS", 500)
    monkeypatch.setattr(resuming, "LEAST_SHARE", 0.0)
    monkeypatch.setattr(FileLedger, "seconds", Eager.seconds)
    n_done = 0
    resumed = []
    original = ZarrDataset.read

    def watch(event):
        nonlocal n_done
        if getattr(event, "label", "") == "accumulate":
            n_done += isinstance(event, BlockDone)
            resumed.extend([event.n_kept] if isinstance(event, PassResumed) else [])

    def read(dataset, block):
        if n_done >= 3 and not lost:
            lost.append(block)
            raise ClusterLostError("the scheduler went away")
        return original(dataset, block)

    lost = []
    monkeypatch.setattr(ZarrDataset, "read", read)

    parameters = dict(
        data=write_problem(tmp_path),
        model=str(tmp_path / "model"),
        alpha=0.1,
        seed=7,
        serial=True,
        n_threads=1,
        **PLAIN,
    )
    with listening(watch):
        state = train(**parameters, return_state=True)
    assert {
        task.name: task.run_count for task in task_runs(state) if task.run_count > 1
    } == {"accumulate": 2}
    assert resumed[0] in (3 * 500, 4 * 500)  # a block is read ahead
    dataset = open_dataset(parameters["data"])
    options = RidgeOptions(alpha=0.1, seed=7, **PLAIN)
    undisturbed = ridge.fit(dataset, options, engine=SerialEngine(1)).model
    assert state.result()["digest"] == undisturbed.digest()


# -- Prefect's settings
# ----------------------------------------------------------------------------


def test_importing_flows_turns_telemetry_off_and_gives_the_server_time(monkeypatch):
    for name in flows._SETTINGS:
        monkeypatch.delenv(name, raising=False)
    importlib.reload(flows)
    assert os.environ["DO_NOT_TRACK"] == "1"
    settings = Settings()
    assert settings.server.analytics_enabled is False
    assert settings.server.ephemeral.startup_timeout_seconds >= 60


def test_importing_flows_keeps_what_the_environment_says(monkeypatch):
    monkeypatch.setenv("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "33")
    importlib.reload(flows)
    assert Settings().server.ephemeral.startup_timeout_seconds == 33
