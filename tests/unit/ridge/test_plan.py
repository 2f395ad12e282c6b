import dataclasses
import functools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rff_dist import SerialEngine
from rff_dist.data.blocks import MAX_BLOCK_BYTES, MAX_BLOCK_ROWS, block_rows, cut_blocks
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import PlanError
from rff_dist.fitting import matrix_pass, solver_plan
from rff_dist.fitting import plan as planning
from rff_dist.fitting.sizes import (
    PROCESS_BYTES,
    Machines,
    PlannedFit,
    Sizes,
    SumOptions,
)
from rff_dist.numerics.machine import available_memory
from rff_dist.ridge import predict as prediction
from rff_dist.text import human_bytes
from tests.plain import plain_ridge
from tests.refusals import refuses

sizes = {
    "n_samples": st.integers(1, 10**9),
    "n_features": st.integers(1, 5_000),
    "itemsize": st.sampled_from([1, 2, 4, 8]),
    "chunk_rows": st.integers(1, 10**8) | st.integers(1, 10**5),
}


# -- blocks
# --------------------------------------------------------------------------------------


def planned_blocks(n_samples, *sizes, **options):
    rows = block_rows(n_samples, *sizes, **options)
    return cut_blocks(n_samples, rows, rows_per_block=rows)


@given(**sizes, max_rows=st.integers(1, MAX_BLOCK_ROWS))
def test_blocks_are_whole_chunks_that_are_no_larger_than_allowed_where_chunks_are_not(
    n_samples, n_features, itemsize, chunk_rows, max_rows
):
    few = min(n_samples, 2_000 * max_rows)
    blocks = planned_blocks(few, n_features, itemsize, chunk_rows, max_rows=max_rows)
    assert max(block.n_samples for block in blocks) <= max_rows
    n_samples = min(n_samples, 10**7)
    blocks = planned_blocks(n_samples, n_features, itemsize, chunk_rows)
    if any(block.start % chunk_rows for block in blocks):
        # each chunk is cut into several blocks
        assert blocks[0].n_samples <= chunk_rows / 2 + 1
    planned = Sizes(
        n_samples=n_samples,
        n_features=n_features,
        n_targets=1,
        chunk_rows=chunk_rows,
        itemsize=itemsize,
    )
    # which counts them without a list
    plan = planning.plan_fit(PlannedFit(planned, 64, Machines()))
    assert (plan.n_blocks, plan.rows_per_block) == (
        len(blocks),
        max(block.n_samples for block in blocks),
    )


@pytest.mark.parametrize(
    ("n_samples", "chunk_rows", "message"),
    [(0, 10, ["0 rows", "1"]), (10, 0, ["chunk_rows", "0", "1"])],
)
def test_sizes_below_1_are_refused(n_samples, chunk_rows, message):
    with refuses(PlanError, *message):
        planned_blocks(n_samples, 3, 4, chunk_rows)
    with refuses(PlanError, "rows_per_block", "0"):
        cut_blocks(100, 10, rows_per_block=0)


# -- figures
# --------------------------------------------------------------------------------------

JOB = {
    "n_samples": 100_000,
    "n_features": 8,
    "n_targets": 1,
    "n_components": 1024,
    "chunk_rows": 8192,
}


def with_nouns(function, **given):
    """Call a function of a job with the fields of its sizes, machines and sums side by
    side.
    """
    sizes, machines, sums = [
        noun(
            **{
                one.name: given.pop(one.name)
                for one in dataclasses.fields(noun)
                if one.name in given
            }
        )
        for noun in (Sizes, Machines, SumOptions)
    ]
    return function(
        PlannedFit(sizes, given.pop("n_components"), machines, sums), **given
    )


plan_fit = functools.partial(with_nouns, planning.plan_fit)
plan_matrix_pass = functools.partial(with_nouns, matrix_pass.plan_matrix_pass)


def test_figures_of_a_job_by_hand():
    plan = plan_fit(**JOB)
    assert (plan.n_blocks, plan.rows_per_block, plan.tile_rows) == (7, 16_384, 4_096)
    # twice: inputs in float32, target and weight
    assert plan.bytes_read == 2 * 100_000 * (8 * 4 + 8 * 2)
    # n·D², and a little for features
    assert plan.flops == pytest.approx(100_000 * 1024**2, rel=0.03)
    # 3 of 4 tiles of 512
    assert plan.statistics_bytes == pytest.approx(8 * 1024**2 * 3 / 4, rel=0.02)
    assert plan.worker_bytes > PROCESS_BYTES + plan.statistics_bytes + 8 * 1024 * 4096
    assert plan.client_bytes > PROCESS_BYTES + 8 * 1024**2 * 5
    assert plan.peak_bytes == max(plan.worker_bytes, plan.client_bytes)
    assert plan.seconds(50.0) == pytest.approx(plan.flops / 50e9)
    assert plan_fit(**JOB, n_workers=3, n_threads=2).seconds(50.0) == pytest.approx(
        plan.flops / 300e9
    )


@given(
    name=st.sampled_from(
        [
            "n_samples",
            "n_features",
            "n_targets",
            "n_components",
            "n_threads",
            "itemsize",
        ]
    ),
    job=st.fixed_dictionaries(
        {
            "n_samples": st.integers(1, 10**8),
            "n_features": st.integers(1, 2_000),
            "n_targets": st.integers(1, 20),
            "n_components": st.integers(1, 30_000),
            "n_threads": st.integers(1, 64),
            "itemsize": st.sampled_from([2, 4]),
        }
    ),
    alpha=st.sampled_from(["auto", 1.0]),
)
def test_a_larger_job_never_needs_less(name, job, alpha):
    small = plan_fit(**job, chunk_rows=8192, alpha=alpha)
    large = plan_fit(**{**job, name: 2 * job[name]}, chunk_rows=8192, alpha=alpha)
    assert large.flops >= small.flops
    assert large.bytes_read >= small.bytes_read
    assert large.statistics_bytes >= small.statistics_bytes
    # wide maps halve their tiles, and wide inputs their blocks: memory may fall by what
    # these hold
    slack = (
        3 * MAX_BLOCK_BYTES + 8 * small.n_components * small.tile_rows * small.n_threads
    )
    assert large.peak_bytes >= small.peak_bytes - slack


@given(
    n_samples=st.integers(2 * 10**6, 10**10),
    n_components=st.integers(64, 8192),
    alpha=st.sampled_from(["auto", 1.0]),
)
def test_memory_does_not_grow_with_the_rows(n_samples, n_components, alpha):
    job = {**JOB, "n_components": n_components, "alpha": alpha}
    million = plan_fit(**{**job, "n_samples": 10**6})
    more = plan_fit(**{**job, "n_samples": n_samples})
    # a second limb for so many rows, and blocks grow to 262,144 rows
    grown = 3 * more.statistics_bytes + MAX_BLOCK_ROWS * (3 * 48 + 24 * 10)
    assert more.peak_bytes <= million.peak_bytes + grown


@pytest.mark.parametrize("n_samples", [10**6, 10**9])
def test_a_worker_holds_three_results_and_a_process_of_its_own_one(n_samples):
    job = {**JOB, "n_samples": n_samples, "n_components": 30_000, "alpha": 1.0}
    apart = plan_fit(**job, has_separate_client=True)
    alone = plan_fit(**job)
    beside = apart.worker_bytes - 3 * apart.statistics_bytes
    assert plan_fit(**job, n_workers=1).worker_bytes == beside + apart.statistics_bytes
    assert alone.worker_bytes < apart.worker_bytes < 24e9


def test_folds_and_feature_maps_have_sums_of_their_own_and_share_a_reading():
    plain = plan_fit(**JOB)
    folds = plan_fit(**JOB, n_folds=5)
    maps = plan_fit(**JOB, n_maps=3)
    assert folds.statistics_bytes == 5 * plain.statistics_bytes
    assert maps.statistics_bytes == 3 * plain.statistics_bytes
    assert folds.bytes_read == maps.bytes_read == plain.bytes_read
    assert (folds.flops, maps.flops) == (plain.flops, 3 * plain.flops)
    # few rows: as many blocks to share out
    assert folds.rows_per_block == plain.rows_per_block
    # many rows: merging five sums costs no greater share of making them
    many = {**JOB, "n_samples": 10**6}
    assert plan_fit(**many).rows_per_block == 16_384
    assert plan_fit(**many, n_folds=2).rows_per_block == 32_768
    assert plan_fit(**many, n_folds=5).rows_per_block == 49_152
    assert folds.client_bytes > plain.client_bytes + 5 * plain.statistics_bytes
    # Nyström features: the solver needs the factor of the centres
    nystrom = plan_fit(**JOB, features="nystrom")
    assert nystrom.client_bytes == plain.client_bytes + 8 * JOB["n_components"] ** 2


# -- refusals
# --------------------------------------------------------------------------------------


def test_a_job_that_does_not_fit_is_refused_with_both_numbers_and_a_remedy():
    limits = {
        "has_separate_client": True,
        "memory_limit": 4 * 2**30,
        "client_memory_limit": 2**40,
    }
    needed = plan_fit(
        **{**JOB, "n_components": 24_576}, has_separate_client=True
    ).worker_bytes
    message = (
        rf"a worker needs {human_bytes(needed)} \(n_components=24_576, blocks of 16_384"
        r" rows\) "
        r"but has 4\.0 GiB; lower n_components to ([0-9_]+) or give each process more"
        r" memory"
    )
    with pytest.raises(PlanError, match=message) as caught:
        plan_fit(**{**JOB, "n_components": 24_576}, **limits)
    advised = int(str(caught.value).partition("n_components to ")[2].split()[0])
    plan_fit(**{**JOB, "n_components": advised}, **limits)  # the advice is good,
    with pytest.raises(PlanError):  # and no larger one would be
        plan_fit(**{**JOB, "n_components": advised + 512}, **limits)


def test_the_solver_is_refused_by_its_own_limit():
    job = {**JOB, "n_components": 8192, "has_separate_client": True}
    plan = plan_fit(**job)
    assert plan.client_bytes > plan.worker_bytes
    limits = {
        "memory_limit": plan.worker_bytes,
        "client_memory_limit": plan.client_bytes,
    }
    plan_fit(**job, **limits)
    with refuses(PlanError, "the solver needs"):
        plan_fit(**job, **{**limits, "client_memory_limit": plan.client_bytes - 1})
    with refuses(PlanError, "a worker needs"):
        plan_fit(**job, **{**limits, "memory_limit": plan.worker_bytes - 1})


@pytest.mark.parametrize("plan", [planning.plan_fit, solver_plan.plan_pcg])
def test_a_refusal_takes_no_work_of_the_jobs_size(plan, monkeypatch):
    """A trillion rows and ten million components: all is counted and nothing is
    listed.
    """
    sizes = Sizes(n_samples=10**12, n_features=8, n_targets=1, chunk_rows=8192)
    machines = Machines(n_workers=2, n_threads=2, memory_limit=2**34)
    plans = []
    monkeypatch.setattr(
        "rff_dist.statistics.specs.tile_rows",
        lambda wanted: plans.append(wanted) or 2048,
    )
    tracemalloc.start()
    try:
        with refuses(PlanError, "n_components=10_000_000"):
            plan(PlannedFit(sizes, 10**7, machines))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20  # bytes: a list of the blocks would take 10⁸
    # a search by halves; one of each multiple of 512 makes 19,000
    assert len(plans) < 64


# -- the machine
# --------------------------------------------------------------------------------------


def test_memory_is_what_the_machine_and_its_control_group_leave():
    with open("/proc/meminfo") as file:
        total = next(
            int(line.split()[1]) * 1024 for line in file if line.startswith("MemTotal")
        )
    assert 2**28 < available_memory() <= total


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"),
     (5 * 2**20, "5.0 MiB"), (2**31, "2.0 GiB"), (2**42, "4.0 TiB")],
)  # fmt: skip
def test_sizes_are_told_in_the_unit_a_person_would_use(n_bytes, text):
    assert human_bytes(n_bytes) == text


# -- passes that carry a matrix
# ------------------------------------------------------------------------


def test_a_pass_with_a_matrix_counts_it_where_it_is():
    small, large = (
        {**JOB, "n_components": n_components} for n_components in (1024, 4096)
    )
    matrix = 8 * (4096**2 - 1024**2)
    for options in ({}, {"features": "nystrom"}, {"has_separate_client": True}):
        pairs = zip(
            plan_matrix_pass(**small, **options),
            plan_matrix_pass(**large, **options),
            strict=True,
        )
        assert all(more - less > matrix for less, more in pairs)
    # measured with 2,500 components, two threads and a process of 250 MiB: 337 and 438
    # MiB
    worker, client = plan_matrix_pass(**large, has_separate_client=True)
    assert worker > PROCESS_BYTES + 2 * 8 * 4096**2
    assert client > PROCESS_BYTES + 2 * 8 * 4096**2


def test_a_matrix_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 2))
    y = rng.standard_normal(50)
    model = plain_ridge(n_components=8, alpha=1.0, engine=SerialEngine(1)).fit(X, y)
    data = ArrayDataset(X, y)
    engine = SerialEngine(1)
    monkeypatch.setattr("rff_dist.numerics.machine.available_memory", lambda: 2**20)
    prediction.evaluate(data, model.model_, engine=engine)
    for run in (
        lambda: prediction.calibrate(data, model.model_, engine=engine),
        lambda: prediction.predict_in_memory(
            data, model.model_, std=True, engine=engine
        ),
    ):
        with refuses(PlanError, "MiB", "1.0 MiB"):
            run()
