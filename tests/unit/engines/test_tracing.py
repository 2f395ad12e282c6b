"""Traces are on where they are asked for, tell errors by their kind, and are joined by
the log's lines.
"""

import io
import json
import logging
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from rff_dist import SerialEngine, write_dataset
from rff_dist.data.blocks import cut_blocks
from rff_dist.engines import logs, tracing
from rff_dist.errors import NotFiniteError
from rff_dist.fields import build
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.jobs.steps import in_this_process
from rff_dist.workbench.jobs.train import train
from tests.otlp import exported as exported  # a fixture
from tests.otlp import spans_of

PROGRAM = """
import sys
from rff_dist.data.blocks import cut_blocks
from rff_dist.engines.serial import SerialEngine
blocks = cut_blocks(100, 10, rows_per_block=30)
assert SerialEngine(1).map_reduce(lambda block, _: block.n_samples, blocks, None, label="count") == 100
print(*(name for name in sys.modules if name.startswith("opentelemetry")))
"""


def test_an_endpoint_that_does_not_answer_changes_nothing(monkeypatch):
    monkeypatch.setenv(tracing.ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert "opentelemetry.sdk.trace" in done.stdout


def test_an_error_gives_every_span_that_it_leaves_its_kind(tmp_path, exported):
    X = np.zeros((40, 2))
    X[17, 1] = np.nan
    write_dataset(tmp_path / "data", X, np.zeros(40))
    job = build(
        specs.Train, {"data": str(tmp_path / "data"), "model": str(tmp_path / "model")}
    )
    with pytest.raises(NotFiniteError):
        train(job, in_this_process(SerialEngine(1)))
    kinds = {
        span.name: span.attributes.get("error.type") for span in spans_of(exported)
    }
    assert kinds == {"job train": "data.nan", "step inspect": None} | dict.fromkeys(
        ["step measure", "pass inspect"], "data.nan"
    )


def test_lines_of_the_log_are_in_the_trace(exported):
    stream = io.StringIO()
    with logs.json_lines(stream), tracing.span("job test"):
        logging.getLogger("rff_dist.some").warning("careful")
    logging.getLogger("rff_dist.some").debug("nothing")
    [line] = map(json.loads, stream.getvalue().splitlines())
    [span] = spans_of(exported)
    assert (int(line["trace_id"], 16), int(line["span_id"], 16)) == (
        span.trace,
        span.id,
    )
    assert tracing.ids() == {}


def test_a_pass_leaves_its_rates(monkeypatch, exported):
    reader = InMemoryMetricReader()
    monkeypatch.setattr(
        metrics._internal, "_METER_PROVIDER", provider := MeterProvider([reader])
    )
    blocks = cut_blocks(100, 10, rows_per_block=30)
    SerialEngine(1).map_reduce(
        lambda block, _: block.n_samples, blocks, None, label="count"
    )
    data = json.loads(reader.get_metrics_data().to_json())["resource_metrics"]
    gauges = {
        one["name"]: one["data"]["data_points"]
        for one in data[0]["scope_metrics"][0]["metrics"]
    }
    provider.shutdown()
    [[rows], [n_bytes], [wait]] = (
        gauges[f"rff_dist.{name}"]
        for name in ("rows_per_second", "bytes_per_second", "storage_wait")
    )
    [span] = spans_of(exported)
    assert rows["attributes"] == {"rff_dist.pass": "count"}
    assert rows["value"] == span.attributes["rff_dist.rows_per_second"] > 0
    assert (n_bytes["value"], wait["value"]) == (
        0,
        span.attributes["rff_dist.storage_wait"],
    )
