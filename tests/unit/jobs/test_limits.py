"""What a job may take: refused by plan before a cluster starts, ended when its time is
over, tried again.
"""

from contextlib import nullcontext

import numpy as np
import pytest

from rff_dist import SerialEngine, write_dataset
from rff_dist.engines.cluster import Cluster
from rff_dist.errors import ClusterLostError, DataError, PlanError
from rff_dist.fields import build
from rff_dist.workbench.jobs import limits
from rff_dist.workbench.jobs.limits import JobLimits, machines_of
from rff_dist.workbench.jobs.specs import Train
from rff_dist.workbench.jobs.steps import Runner
from rff_dist.workbench.jobs.train import train
from tests import command_line
from tests.refusals import refuses

# The end of a job's time may come between the lines of `os.walk` that open a folder and
# those that close it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed scandir iterator:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FIT = {
    "kernel": "gaussian",
    "length_scale": 1.0,
    "features": "fourier",
    "alpha": 1.0,
    "solver": "direct",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    url = tmp_path_factory.mktemp("limits") / "data.zarr"
    X = np.random.default_rng(0).standard_normal((2000, 3))
    write_dataset(url, X, X.sum(axis=1))
    return str(url)


@pytest.mark.parametrize(
    ("limited", "memory", "n_components", "named"),
    [
        (JobLimits(timeout_minutes=1e-5), None, 2048, ("timeout_minutes", "1e-05")),
        (JobLimits(), "500 MiB", 16_384, ("500.0 MiB", "n_components")),
    ],
    ids=["time", "memory"],
)
def test_a_fit_that_needs_too_much_is_refused_before_its_cluster_starts(
    data, tmp_path, limited, memory, n_components, named
):
    opened = []

    def open_engine(n_samples):
        opened.append(n_samples)
        return nullcontext(SerialEngine(1))

    given = {"data": data, "model": "model", **FIT, "n_components": n_components}
    cluster = Cluster(n_workers=2, n_threads=1, memory=memory)
    runner = Runner(open_engine, limits=limited, cluster=lambda _: cluster)
    with refuses(PlanError, *named):
        train(build(Train, given), runner)
    assert opened == []
    assert list(tmp_path.iterdir()) == []
    train(build(Train, {**given, "n_components": 16}), runner)  # which fits
    assert opened == [2000]


def test_on_a_cluster_whose_size_is_not_known_before_the_first_pass_is_refused(data):
    given = {"data": data, "model": "model", **FIT, "n_components": 2048}
    steps = []

    def call(step):
        steps.append(step.name)
        return step()

    runner = Runner(
        lambda _: nullcontext(SerialEngine(1)),
        call,
        limits=JobLimits(timeout_minutes=1e-5),
    )
    with refuses(PlanError, "timeout_minutes"):
        train(build(Train, given), runner)
    assert steps == ["inspect"]
    assert machines_of(Cluster("tcp://127.0.0.1:8786")) is None
    assert machines_of(Cluster(cluster="gateway:http://127.0.0.1:8000")) is None


def test_commands_take_the_limits_from_the_same_file_as_all_options(data, tmp_path):
    (tmp_path / "job.toml").write_text(
        "n_components = 2048\ntimeout_minutes = 1e-5\nretries = 1\n"
    )
    config = ["--config", "job.toml", "--serial", *command_line.PLAIN]
    refused = command_line.run("fit", data, "model", *config)
    assert refused.exit_code == 1
    assert "--timeout-minutes" in refused.stderr
    shown = command_line.run("update", "model", data, *config[:2], "--print-config")
    assert "n_components" in shown.stderr  # an option that it does not have
    (tmp_path / "job.toml").write_text("timeout_minutes = 30\nretries = 1\n")
    shown = command_line.run(
        "update", "model", data, *config[:2], "--print-config"
    ).stdout
    assert "timeout_minutes = 30" in shown
    assert "retries = 1" in shown


@pytest.mark.parametrize(
    ("error", "is_repeatable", "n_calls"),
    [
        (ClusterLostError("gone"), True, 3),
        (ClusterLostError("gone"), False, 1),
        (DataError("NaN"), True, 1),
    ],
    ids=["lost", "lost while it writes", "bad data"],
)
def test_a_step_is_tried_again_after_transient_errors(
    monkeypatch, error, is_repeatable, n_calls
):
    monkeypatch.setattr(limits, "RETRY_DELAYS_S", (0.0, 0.0))
    calls = []

    def fails():
        calls.append(1)
        raise error

    do = Runner(lambda _: nullcontext(SerialEngine(1)), limits=JobLimits(retries=2))
    call = do if is_repeatable else do.once
    with pytest.raises(type(error)):
        call("step", fails)
    assert len(calls) == n_calls


def test_later_retries_wait_as_long_as_the_last_delay():
    assert JobLimits(retries=4).delays == [10.0, 60.0, 60.0, 60.0]
