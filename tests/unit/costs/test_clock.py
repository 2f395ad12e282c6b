"""Where a job's time went, and how near its products came to the limit."""

import contextvars
import sys
import time

import numpy as np
import pytest

from rff_dist import SerialEngine, accumulate, draw_feature_map
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.clock import Clock, products_words
from rff_dist.engines.events import (
    PassFinished,
    PassResumed,
    PassStarted,
    Remark,
    StepStarted,
    Work,
)
from rff_dist.fields import build
from rff_dist.products.choice import Rate
from rff_dist.products.protocol import Float64Products
from rff_dist.workbench.cli import main
from rff_dist.workbench.cli.command_context import CommandContext

IMPORTED = time.perf_counter()


@pytest.fixture(autouse=True)
def one_gigaflop(monkeypatch):
    """Let each thread do 10⁹ operations a second."""
    monkeypatch.setattr(
        "rff_dist.products.choice.rate_for",
        lambda *_: Rate(Float64Products(), 1.0, 0.0),
    )


def work(operations):
    """Return the work of an engine of one worker with two threads."""
    return Work("accumulate", operations, 512, True, n_workers=1, n_threads=2)


def watch(*events):
    clock = Clock()
    for event in events:
        clock(event)
    return clock.times()


def test_the_share_of_the_limit_is_the_time_that_all_threads_need_at_their_rate():
    found = watch(
        work(3e10),
        work(1e10),
        PassFinished("accumulate", 80.0),
        PassFinished("inspect", 1.0),
    )
    assert {name: found.seconds[name] for name in ("accumulate", "inspect")} == {
        "accumulate": 80.0,
        "inspect": 1.0,
    }
    assert found.products == {
        "by": "float64",
        "share_of_limit": pytest.approx(4e10 / 2e9 / 80.0),
    }
    assert (
        products_words(found.products) == "by float64, at 25% of the processor's limit"
    )


def test_a_resumed_job_has_no_share_and_a_small_one_no_products():
    done = PassFinished("accumulate", 80.0)
    resumed = watch(work(4e10), PassResumed("accumulate", 5, 10), done)
    assert resumed.products == {"by": "float64", "share_of_limit": None}
    assert products_words(resumed.products) == "by float64"
    small = watch(work(1e9), done)
    assert small.products is None
    assert products_words(small.products) == ""


def test_parts_add_up_to_the_total_and_passes_within_a_part_count_once():
    began = time.perf_counter() - 10.0
    clock = Clock(began)
    clock.begin("ingest")
    clock.begin("cluster")
    clock.begin("other")
    clock(Remark("choose", ""))
    clock(PassStarted("accumulate", 1, 60))
    clock(PassFinished("accumulate", 0.0))
    clock(Remark("solve", ""))
    time.sleep(0.02)
    clock(PassFinished("evaluate", 0.02))  # a pass within solving
    clock(Remark("compare", ""))
    clock(Remark("solve", ""))  # of the linear model
    clock(StepStarted("publish"))
    clock(StepStarted("baselines"))
    clock.begin("report")
    found = clock.times()
    parts = {name: value for name, value in found.seconds.items() if name != "total"}
    assert list(parts) == [
        *("start", "ingest", "cluster", "choose", "accumulate"),
        *("evaluate", "solve", "compare", "baselines", "report", "other"),
    ]
    assert sum(parts.values()) == pytest.approx(found.seconds["total"], abs=1e-9)
    assert found.seconds["total"] <= time.perf_counter() - began
    assert min(parts.values()) >= 0.0
    assert parts["start"] >= 10.0
    assert clock.times() is found  # whatever shows them later


def test_the_time_of_a_program_is_that_of_its_process(monkeypatch):
    def run():
        monkeypatch.setattr(sys, "argv", ["rff-dist", "--version"])
        with pytest.raises(SystemExit):
            main()
        return build(CommandContext, {}).clock.times().seconds["total"]

    own = contextvars.copy_context().run(run)
    # the process began before this module was imported
    assert own >= time.perf_counter() - IMPORTED - 1.0
    assert build(CommandContext, {}).clock.times().seconds["total"] < own


def test_fits_of_other_models_are_not_time_of_the_fit():
    fit = (PassFinished("accumulate", 80.0), Remark("solve", ""))
    found = watch(
        *fit,
        Remark("compare", ""),
        PassFinished("accumulate", 9.0),
        Remark("solve", ""),
    )
    assert found.seconds.keys() >= {"accumulate", "solve", "compare"}
    assert found.seconds["accumulate"] == 80.0


@pytest.mark.parametrize("weights", [None, np.ones(60)])
def test_a_pass_announces_what_it_multiplies(weights):
    seen = []
    dataset = ArrayDataset(np.ones((60, 2)), np.ones(60), weights)
    feature_map = draw_feature_map("gaussian", n_features=2, n_components=16)
    accumulate(dataset, feature_map, engine=SerialEngine(1, observers=(seen.append,)))
    announced = [event for event in seen if isinstance(event, Work)]
    # a symmetric product: half of 2 · 60 · 16²
    n_operations = 60 * 16**2
    assert announced == [
        Work("accumulate", n_operations, 16, weights is None, n_workers=1, n_threads=1)
    ]
