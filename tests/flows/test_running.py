"""How flows stop, wait and are retried; on Prefect's temporary server where one is
needed.
"""

import errno
import inspect
import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from prefect import Task, flow
from prefect.artifacts import Artifact
from prefect.states import Cancelled, Crashed, Failed

from rff_dist import SerialEngine
from rff_dist.data.blocks import cut_blocks
from rff_dist.engines.events import BlockDone, listening
from rff_dist.errors import (
    BlockError,
    ClusterError,
    ClusterLostError,
    ClusterUnavailableError,
    DataError,
    JobTimeoutError,
    OutputBusyError,
    OutputExistsError,
    StorageError,
)
from rff_dist.flows import names, passes
from rff_dist.flows.cluster import cluster
from rff_dist.flows.running import (
    FlowLimits,
    _timed,
    _without_traceback,
    make_task,
)
from rff_dist.flows.stop_reports import describe_stop
from rff_dist.flows.train import train
from rff_dist.storage.output_places import hold
from rff_dist.workbench.jobs.limits import is_transient
from rff_dist.workbench.results.markdown import to_markdown
from tests.flows.test_train import PLAIN, flow_run, task_runs, write_problem
from tests.refusals import refuses

pytestmark = pytest.mark.flows


def small_job(folder: Path) -> dict[str, Any]:
    return dict(
        data=write_problem(folder, n_samples=600),
        model=str(folder / "model"),
        alpha=0.1,
        **PLAIN,
    )


# -- what is worth another try
# ---------------------------------------------------------------------------


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class GenericError(Exception):
    __module__ = "obstore.exceptions"


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (ClusterLostError("gone"), True),
        (ClusterUnavailableError("nobody"), True),
        (ClusterError("other versions"), False),
        (caused(StorageError("cannot be read"), GenericError("503")), True),
        (caused(StorageError("cannot be read"), ConnectionResetError()), True),
        (caused(StorageError("cannot be read"), OSError(errno.ESTALE, "stale")), True),
        (
            caused(StorageError("cannot be written"), OSError(errno.ENOSPC, "full")),
            False,
        ),
        (StorageError("no dataset"), False),
        (caused(OutputExistsError("is there"), ConnectionResetError()), False),
        (OutputBusyError("another run"), False),
        (DataError("NaN"), False),
        (BlockError("failed"), False),
        (ConnectionResetError(), True),
        (ValueError(), False),
    ],
)
def test_only_what_may_be_gone_a_minute_later_is_tried_again(error, transient):
    assert is_transient(error) is transient


@pytest.mark.usefixtures("prefect_server")
def test_steps_that_do_no_harm_are_retried_and_others_are_not():
    calls: list[str] = []

    def fails(name: str, error: Exception, n_times: int) -> str:
        calls.append(name)
        if calls.count(name) <= n_times:
            raise error
        return name

    def tried(retried: bool) -> Task[Any, Any]:
        return make_task(fails, "try", "try {name}", [0.0, 0.0] if retried else [])

    @flow
    def some() -> None:
        assert tried(True)("lost, twice", ClusterLostError("gone"), 2) == "lost, twice"
        for name, error, retried in (
            ("lost for good", ClusterLostError("gone"), True),
            ("bad data", DataError("NaN"), True),
            ("writes", ClusterLostError("gone"), False),
        ):
            with pytest.raises(type(error)):
                tried(retried)(name, error, 9)

    some()
    found = {name: calls.count(name) for name in calls}
    assert found == {"lost, twice": 3, "lost for good": 3, "bad data": 1, "writes": 1}


@pytest.mark.parametrize(
    ("error", "is_expected"),
    [
        (DataError("NaN"), True),
        (ClusterUnavailableError("nobody"), True),
        (BlockError("failed"), False),
        (KeyError("y"), False),
    ],
)
def test_only_unexpected_errors_are_logged_with_their_tracebacks(error, is_expected):
    for message, is_kept in (("an unexpected exception", False), ("failed", True)):
        facts = {"msg": message, "exc_info": (type(error), error, None)}
        record = logging.makeLogRecord(facts)
        assert _without_traceback(record) == (is_kept or not is_expected)
        assert (record.exc_info is None) == is_expected


# -- when a run stops
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [train, cluster])
def test_every_flow_says_what_is_left_however_it_stops(one):
    for hooks in (
        one.on_failure_hooks,
        one.on_crashed_hooks,
        one.on_cancellation_hooks,
    ):
        assert [hook.__name__ for hook in hooks] == ["report_stop"]
        # Prefect's worker passes them by name where the process of the run is gone.
        assert list(inspect.signature(hooks[0]).parameters) == [
            "flow",
            "flow_run",
            "state",
        ]
    assert one.persist_result is False


@pytest.mark.parametrize("state", [Failed, Crashed, Cancelled])
def test_what_is_left_and_how_to_go_on_is_told_of_every_place(tmp_path, state):
    given = {
        "model": str(tmp_path / "model"),
        "output": str(tmp_path / "labels"),
        "seed": 1,
    }
    (tmp_path / ".model.run-abc").mkdir()
    (tmp_path / ".model.ledger").mkdir()
    stopped = state(message="at s3://user:word@bucket/x: it\nended")
    with hold(tmp_path / "model", holder="a run"):
        page = describe_stop("train of it", given, stopped, resume="It starts over.")
    assert page.title == f"{stopped.name}: train of it"
    assert page.lead == "at s3://***@bucket/x: it\nended."
    text = to_markdown(page)
    assert "Run it again with the same parameters" in text
    assert "It starts over." in text
    places = dict(page.parts[-1].rows)
    assert "unfinished" in places[f"{tmp_path}/.model.run-abc"]
    assert "the lock of the run" in places[f"{tmp_path}/.model.lock"]
    assert "goes on from here" in places[f"{tmp_path}/.model.ledger"]
    assert "word" not in text


def test_a_store_that_is_away_does_not_keep_the_rest_from_being_told(tmp_path):
    given = {"output": "ftp://host/file"}
    page = describe_stop(
        "predict", given, Failed(message="it ended"), resume="It starts over."
    )
    assert page.lead == "it ended."
    assert "cannot be listed" in to_markdown(page)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (
            {"model": "s3://bucket/models/Main_2", "data": "data.zarr"},
            "rff-train-summary-main-2",
        ),
        (
            {"output": "folder/labels.zarr/", "data": "data.zarr", "model": None},
            "rff-train-summary-labels",
        ),
        ({"data": "data.zarr"}, "rff-train-summary-data"),
        ({"model": 3}, "rff-train-summary"),
    ],
)
def test_keys_of_artifacts_end_with_what_the_run_is_about(parameters, expected):
    assert names.key("train-summary", parameters) == expected


@pytest.mark.usefixtures("prefect_server")
def test_a_failed_run_leaves_an_artifact_that_says_how_to_go_on_and_is_the_parent_of_its_job(
    tmp_path, caplog
):
    pytest.importorskip("openlineage.client", reason="needs the extra openlineage")
    from tests import openlineage

    parameters = dict(**{**small_job(tmp_path), "data": str(tmp_path / "none.zarr")})
    with openlineage.receive() as sent:
        state = train(**parameters, return_state=True)
    assert state.is_failed()
    assert state.name.startswith("Failed: no dataset at none.zarr")
    assert not any(record.exc_info for record in caplog.records)
    told = Artifact.get("rff-train-result-model")
    assert told.type == "markdown"
    assert told.flow_run_id == flow_run(state).id
    assert re.fullmatch(r"model, \d{4}-\d\d-\d\d \d\d:\d\d", flow_run(state).name)
    assert "none.zarr" in told.data
    tags = {"error:storage", "model:model", "dataset:none"}
    assert tags <= {*flow_run(state).tags}
    assert "the same run fails again" in told.data
    assert [event["eventType"] for event in sent] == ["START", "FAIL"]
    parent = sent[-1]["run"]["facets"]["parent"]  # of its job
    assert (parent["job"]["namespace"], parent["job"]["name"]) == ("prefect", "train")
    assert parent["run"]["runId"] == str(flow_run(state).id)


@pytest.mark.usefixtures("prefect_server")
def test_a_run_that_takes_too_long_fails_and_leaves_nothing(tmp_path):
    parameters = dict(**small_job(tmp_path), timeout_minutes=0.5 / 60)

    def wait(event: object) -> None:
        if isinstance(event, BlockDone):
            time.sleep(1)

    start = time.monotonic()
    with listening(wait):
        state = train(**parameters, return_state=True)
    assert state.is_failed()
    assert time.monotonic() - start < 60
    with refuses(JobTimeoutError, "timeout_minutes", "0.00833333"):
        state.result()
    assert [path.name for path in tmp_path.iterdir()] == ["data.zarr"]
    assert "took longer" in Artifact.get("rff-train-result-model").data


def test_errors_of_the_work_stay_what_they_are_under_a_time_limit():
    with (
        refuses(TimeoutError, "of its own"),
        _timed(FlowLimits(timeout_minutes=1.0)),
    ):
        raise TimeoutError("of its own")


# -- one run of a model
# ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("prefect_server")
def test_two_runs_of_a_model_never_overlap_and_the_second_is_refused_at_once(tmp_path):
    parameters = small_job(tmp_path)
    first_is_at_work = threading.Event()
    outcome = []

    def wait(event: object) -> None:
        if isinstance(event, BlockDone) and not first_is_at_work.is_set():
            first_is_at_work.set()
            second.join(60)

    def run_second() -> None:
        first_is_at_work.wait(60)
        outcome.append(train(**parameters, return_state=True))

    second = threading.Thread(target=run_second)
    second.start()
    with listening(wait):
        first = train(**parameters, return_state=True)
    second.join()
    assert first.is_completed()
    [refused] = outcome
    assert refused.is_failed()
    assert f"flow run {flow_run(first).name} of train, process" in refused.message
    with pytest.raises(OutputBusyError):
        refused.result()
    assert task_runs(refused) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.zarr", "model"]


# -- what is shown while it runs
# ---------------------------------------------------------------------------


@pytest.mark.usefixtures("prefect_server")
def test_long_passes_show_their_progress_and_short_ones_cost_nothing(monkeypatch):
    monkeypatch.setattr(passes, "SHOW_EVERY_S", 0.0)
    values: list[float] = []
    original = passes.update_progress_artifact
    monkeypatch.setattr(
        passes,
        "update_progress_artifact",
        lambda i, v: (values.append(v), original(i, v)),
    )

    def count(block: Any, _: object) -> int:
        return block.n_samples

    blocks = cut_blocks(100, 10, rows_per_block=20)

    @flow
    def some() -> None:
        engine = SerialEngine(1, observers=[passes.PassProgress()])
        assert (
            engine.map_reduce(
                count, blocks, None, combine=int.__add__, label="Short one"
            )
            == 100
        )
        monkeypatch.setattr(passes, "SHOW_AFTER_S", 0.0)
        assert (
            engine.map_reduce(
                count, blocks, None, combine=int.__add__, label="Long one"
            )
            == 100
        )

    some()
    assert Artifact.get("rff-short-one-progress") is None
    told = Artifact.get("rff-long-one-progress")
    assert told.type == "progress"
    assert values[-1] == 100.0
    assert values == sorted(values)
