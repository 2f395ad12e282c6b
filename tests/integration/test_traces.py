"""One trace for each job, from this process to the workers of a cluster, one of which
is killed.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from rff_dist import DaskEngine

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")


from rff_dist import append_dataset, write_dataset
from rff_dist.data import blocks
from rff_dist.engines.events import BlockDone
from rff_dist.fields import build
from rff_dist.ridge.models import read_model
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.jobs.cluster import cluster
from rff_dist.workbench.jobs.refresh import update
from rff_dist.workbench.jobs.steps import in_this_process
from rff_dist.workbench.jobs.train import train
from tests.dask_processes import run_dask
from tests.otlp import exported as exported  # a fixture
from tests.otlp import receive, spans_of

pytestmark = pytest.mark.distributed

BLOCK_ROWS = 2_048
D = 64
N_ROWS = 8 * BLOCK_ROWS
PLAIN = {
    "kernel": "gaussian",
    "length_scale": "median",
    "features": "fourier",
    "n_components": D,
    "alpha": 0.1,
}
LEVELS = ("job", "step", "pass", "run", "merge")


def rows(n, seed):
    X = np.random.default_rng(seed).normal(size=(n, 3)).astype("float32")
    return X, X[:, 0]


class Killer:
    """Kill the worker that did the first block of a pass, while its sums are on no
    other worker.
    """

    def __init__(self, label, pids):
        self.label = label
        self.pids = pids
        self.killed = ""

    def __call__(self, event):
        if (
            isinstance(event, BlockDone)
            and event.label == self.label
            and not self.killed
        ):
            self.killed = event.worker
            os.kill(self.pids[event.worker], signal.SIGKILL)


def whole_trace(exported, sent, job):
    """Return the spans of the last job, when those of workers that are alive have come;
    check the tree.
    """
    mine = spans_of(exported)
    [root] = [span for span in mine if span.name == f"job {job}"]
    passes = {span.id for span in mine if span.name.startswith("pass ")}
    deadline = time.monotonic() + 60
    while True:  # workers send theirs a moment later
        here = [span for span in (*mine, *sent) if span.trace == root.trace]
        if passes <= {span.parent for span in here}:
            break
        assert time.monotonic() < deadline, passes - {span.parent for span in here}
        time.sleep(0.1)
    found = {span.id: span for span in here}
    assert {span.id for span in mine} <= found.keys(), "a span of another trace"
    for span in here:
        level = LEVELS.index(span.name.split()[0])
        if span is root:
            assert (level, span.parent) == (0, 0)
        else:
            above = LEVELS.index(found[span.parent].name.split()[0])
            assert above == (2 if level > 2 else level - 1), (span, found[span.parent])
    exported.clear()
    return found


def named(spans, name):
    return [span for span in spans.values() if span.name == name]


def runs_of(spans, parents):
    parent_ids = {span.id for span in parents}
    return [
        span
        for span in spans.values()
        if span.parent in parent_ids and span.name.startswith("run ")
    ]


def test_each_job_is_one_trace_though_a_worker_is_killed(
    tmp_path, monkeypatch, exported
):
    monkeypatch.setattr(blocks, "MIN_BLOCK_ROWS", BLOCK_ROWS)
    data = str(tmp_path / "data.zarr")
    model = str(tmp_path / "model")
    write_dataset(data, *rows(N_ROWS, 0), chunk_rows=BLOCK_ROWS, versioned=True)
    with receive() as (endpoint, sent), monkeypatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with (
            run_dask(Path(tmp_path), n_workers=2) as (address, _),
            DaskEngine(address) as engine,
        ):
            engine.client.wait_for_workers(2, timeout=60)
            pids = engine.ask_workers(os.getpid)
            do = in_this_process(engine)

            trained = train(
                build(specs.Train, {"data": data, "model": model, **PLAIN}), do
            )
            spans = whole_trace(exported, sent, "train")
            [accumulated] = [
                span
                for span in named(spans, "pass accumulate")
                if spans[span.parent].name == "step accumulate"
            ]
            facts = accumulated.attributes
            assert (facts["rff_dist.rows"], facts["rff_dist.bytes"]) == (
                N_ROWS,
                N_ROWS * (3 * 4 + 8),
            )
            assert facts["rff_dist.n_components"] == D
            assert list(facts["rff_dist.digest"]) == [
                trained.model.feature_map.digest()
            ]
            assert 0 <= facts["rff_dist.storage_wait"] <= 1
            assert facts["rff_dist.bytes_per_second"] == pytest.approx(
                20 * facts["rff_dist.rows_per_second"]
            )
            runs = runs_of(spans, [accumulated])
            assert sum(span.attributes["rff_dist.rows"] for span in runs) == N_ROWS
            assert {span.attributes["rff_dist.worker"] for span in runs} <= pids.keys()
            assert {span.attributes["rff_dist.products"] for span in runs} <= {
                "float64",
                "bytes",
            }
            [job] = named(spans, "job train")
            assert (
                job.attributes["rff_dist.digest"]
                == trained.model.digest()
                == read_model(model).digest()
            )

            killer = Killer("lloyd", pids)
            with engine.observed_by(killer):
                clusters = {
                    "n_clusters": 4,
                    "n_components": D,
                    "max_iter": 5,
                    "output": str(tmp_path / "labels.zarr"),
                }
                cluster(build(specs.Clustering, {"data": data, **clusters}), do)
            spans = whole_trace(exported, sent, "cluster")
            lloyd = named(spans, "pass lloyd")
            assert len(lloyd) > 1
            assert all(
                spans[span.parent].name.startswith("step pass ") for span in lloyd
            )
            again = [span for span in lloyd if "given out again" in span.events]
            [alive] = pids.keys() - {killer.killed}
            assert len(again) == 1
            assert {
                span.attributes["rff_dist.worker"]
                for span in runs_of(spans, lloyd[-1:])
            } == {alive}

            append_dataset(data, *rows(3_000, 1))
            updated = update(build(specs.Update, {"model": model, "data": data}), do)
            spans = whole_trace(exported, sent, "update")
            assert {
                span.attributes["rff_dist.worker"]
                for span in runs_of(spans, [*spans.values()])
            } == {alive}
            [job] = named(spans, "job update")
            assert job.attributes["rff_dist.decision"] == "published"
            assert (
                job.attributes["rff_dist.statistics_digest"]
                == updated.record["statistics_digest"]
            )
