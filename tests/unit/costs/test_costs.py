"""The cost model: arithmetic by hand, and laws that a simulation keeps."""

import dataclasses
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation import Job, job_of, simulate
from rff_dist import SerialEngine
from rff_dist.data.memory import ArrayDataset
from rff_dist.fitting.plan import Machines, Plan, PlannedFit, Sizes, plan_fit
from rff_dist.ridge import costs as measuring
from rff_dist.ridge.costs import Rates, measure_rates, predict, workers_worth_having
from rff_dist.statistics import inspection
from tests.seen import seen

RATES = Rates(
    feature=1e-9,
    product=1e-11,
    moment=1e-7,
    read=2e-7,
    merge=1e-9,
    task=1e-3,
    begin=0.5,
    fit=0.2,
    entry=1e-8,
    first=0.1,
)


def plan_of(n_workers: int, n_samples: int = 1_000_000) -> Plan:
    sizes = Sizes(n_samples=n_samples, n_features=8, n_targets=1, chunk_rows=8192)
    return plan_fit(PlannedFit(sizes, 1000, Machines(n_workers=n_workers)))


# -- in closed form --------------------------------------------------------------------------------------


def test_times_by_hand():
    plan = plan_of(4)
    assert (plan.n_blocks, plan.rows_per_block) == (62, 16_384)
    times = predict(plan, RATES, solve=3.0)
    share = 16 * 16_384  # 62 blocks: two workers have 16
    row = 1e-9 * 1000 + 1e-11 * 1000**2
    assert times.moments == pytest.approx(0.5 + max(share * 2e-7, 62e-3))
    moves = 3 * 1e-9 * plan.statistics_bytes  # two levels of four workers, and to the client
    assert times.statistics == pytest.approx(0.5 + share * row + 16_384 * 2e-7 + moves)
    assert times.beside == pytest.approx(0.1 + 0.2 + 1e-8 * 1000**2)
    assert times.seconds == pytest.approx(times.moments + times.statistics + 3.0 + 0.31)
    assert times.bytes_moved == 4 * plan.statistics_bytes
    assert times.efficiency == pytest.approx(1e6 * row / 4 / times.statistics)


def test_a_pass_is_as_slow_as_the_slowest_of_workers_store_and_scheduler():
    plan = plan_of(8)
    reading = dataclasses.replace(RATES, read=1e-3)
    assert predict(plan, reading).statistics > 8 * 16_384 * 1e-3
    queueing = dataclasses.replace(RATES, task=10.0)
    assert predict(plan, queueing).statistics == pytest.approx(
        predict(plan, RATES).statistics + 620, rel=0.01
    )


def test_workers_are_worth_having_until_blocks_or_the_scheduler_run_out():
    assert workers_worth_having(plan_of(1, 10_000), RATES) == 1  # one block
    free = dataclasses.replace(RATES, merge=0.0, task=0.0, begin=0.0, read=0.0)
    assert workers_worth_having(plan_of(1), free) == 32  # 62 blocks: 64 would have none for two
    slow = dataclasses.replace(free, task=0.05)  # 3.1 s for the scheduler, and 11 s for rows
    assert workers_worth_having(plan_of(1), slow) == 4


# -- measured --------------------------------------------------------------------------------------------


def test_rates_come_from_two_numbers_of_components():
    truth = [(2000, 3e-9 * 2000 + 2e-11 * 2000**2), (1000, 3e-9 * 1000 + 2e-11 * 1000**2)]
    assert measuring._split([tuple(truth)]) == (pytest.approx(3e-9), pytest.approx(2e-11))
    noisy = ((2000, 1.0), (1000, 2.0))  # the wide one was the faster: no negative rate
    feature, product = measuring._split([noisy])
    assert feature * 2000 + product * 2000**2 == pytest.approx(1.0)
    assert min(feature, product) >= 0


@pytest.mark.parametrize("with_targets", [True, False])
def test_an_engine_is_measured(with_targets):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 3))
    dataset = ArrayDataset(X, X[:, 0] if with_targets else np.zeros(5000))
    found = measure_rates(dataset, 64, engine=SerialEngine(1))
    values = dataclasses.asdict(found)
    assert all(math.isfinite(value) and value >= 0 for value in values.values())
    assert found.row(64) > 0
    assert found.row(128) >= 2 * found.row(64) * 0.999


def test_a_slow_look_at_the_moments_makes_rows_no_cheaper(monkeypatch):
    def stalled(*args, **options):
        time.sleep(0.3)

    monkeypatch.setattr(measuring, "inspection", seen(inspection, inspect=stalled))
    X = np.random.default_rng(0).normal(size=(5000, 3))
    found = measure_rates(ArrayDataset(X, X[:, 0]), 64, engine=SerialEngine(1))
    assert found.row(64) > 0


# -- simulated -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    n_blocks=st.integers(1, 200),
    n_workers=st.integers(1, 30),
    deaths=st.sampled_from([0.0, 20.0, 100.0]),
    spread=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 10),
)
def test_every_block_is_in_the_result_once_whoever_dies(n_blocks, n_workers, deaths, spread, seed):
    job = Job(
        n_blocks=n_blocks,
        block_seconds=1.0,
        n_workers=n_workers,
        task_seconds=0.01,
        merge_seconds=0.5,
        run_seconds=5.0,
        spread=spread,
        slow_share=0.1,
        deaths_per_hour=deaths / max(1, n_blocks // n_workers // 10),
    )
    found = simulate(job, seed=seed)
    assert np.array_equal(found.counts, np.ones(n_blocks, int))
    assert found.efficiency <= 1.0 + 3 * spread
    assert (found.n_deaths > 0) >= (found.n_again > 0)


def test_it_agrees_with_the_closed_form_where_nothing_happens_at_random():
    plan = plan_of(16, 40_000_000)
    times = predict(plan, RATES)
    found = simulate(job_of(plan, dataclasses.replace(RATES, task=0.0)))
    # the closed form has the first reading too, below 2 %
    assert found.seconds == pytest.approx(times.statistics, rel=0.03)
