"""How busy workers are: real processes and a real scheduler beside the simulation, then
up to 1,024 workers.

Blocks of real processes sleep, so that more of them than cores tell of the engine. The
scheduler has stubs: workers that only say that tasks are done. The environment chooses
more:

RFF_DIST_STUBS
    Stubs and blocks, each a task of its own; 100,10000 by default. 500,100000 take five
    minutes.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import stub_workers
from benchmarks.simulation import Job, ScalingPoint, save_scaling, scale, simulate
from rff_dist import DaskEngine
from rff_dist.data.blocks import Block, cut_blocks
from rff_dist.fitting.plan import plan_fit
from rff_dist.fitting.sizes import Machines, PlannedFit, Sizes

PROCESSES = (1, 2, 4, 8)
N_BLOCKS = 96
BLOCK_SECONDS = 0.25
JOBS = ((10**7, 4096), (10**8, 4096), (10**9, 8192))  # rows and D
# Operations of float64 that bytes do the work of, on one thread with AVX-512 VNNI;
# bytes a second.
GFLOPS = 76.0
NETWORK = 1.25e9
ADDED = 2e9
SLEEPING = "blocks that sleep for a quarter of a second"


def run(
    console: Console,
    folder: Path,
    *,
    processes: Sequence[int] = PROCESSES,
    n_blocks: int = N_BLOCKS,
    stubs: Sequence[int] | None = None,
    most: int = 1024,
) -> None:
    sleeping = Job(n_blocks=n_blocks, block_seconds=BLOCK_SECONDS, n_workers=1)
    points = [on_processes(sleeping, n_workers) for n_workers in processes]
    table = Table("worker processes", "real, s", "simulated, s", "ratio")
    for empty, taken, n_workers in points:
        found = empty + simulate(replace(sleeping, n_workers=n_workers)).seconds
        table.add_row(
            f"{n_workers}", f"{taken:.2f}", f"{found:.2f}", f"{taken / found:.2f}"
        )
    console.print(table)
    n_stubs, n_tasks = stubs or map(
        int, os.environ.get("RFF_DIST_STUBS", "100,10000").split(",")
    )
    task = on_a_scheduler(console, folder, n_stubs, n_tasks)
    curves = {
        SLEEPING: scale(
            replace(sleeping, task_seconds=task, begin_seconds=points[0][0]), most=most
        )
    }
    for n_samples, n_components in JOBS:
        job = large_job(n_samples, n_components, task_seconds=task)
        curves[f"{n_samples:,} rows, D = {n_components:,}"] = scale(job, most=most)
    tabulate(console, curves)
    ideal = n_blocks * BLOCK_SECONDS
    real = [ScalingPoint(n, taken, ideal / n / taken) for _, taken, n in points]
    about = (
        f"{GFLOPS:g}e9 operations a second for each worker, 10 Gbit/s, {1e3 * task:.2f}"
        " ms a task"
    )
    save_scaling(
        folder / "workers.png",
        curves,
        measured={SLEEPING: real},
        title="A pass on many workers",
        subtitle=about,
    )


def on_processes(job: Job, n_workers: int) -> tuple[float, float, int]:
    """Return the seconds of an empty pass and of the job's on real worker processes,
    and their number.
    """
    with DaskEngine(n_workers=n_workers, threads_per_worker=1) as engine:
        empty = min(seconds_of_pass(engine, 1, 0.0) for _ in range(3))
        taken = min(
            seconds_of_pass(engine, job.n_blocks, job.block_seconds) for _ in range(2)
        )
    return empty, taken, n_workers


def seconds_of_pass(engine: DaskEngine, n_blocks: int, block_seconds: float) -> float:
    blocks = cut_blocks(n_blocks, 1, rows_per_block=1)
    start = time.perf_counter()
    engine.map_reduce(rest, blocks, block_seconds, combine=lambda a, b: a + b)
    return time.perf_counter() - start


def rest(block: Block, seconds: float) -> int:
    time.sleep(seconds)
    return block.n_samples


def on_a_scheduler(console: Console, folder: Path, n_stubs: int, n_tasks: int) -> float:
    """Hold the simulation against a real scheduler with stubs; returns its processor's
    seconds for a task.

    A tenth of the tasks, of blocks that take no time, tell how long a task takes here.
    Then blocks take no time, or a half and twice as long as it takes to give all stubs
    a task."""
    table = Table(
        "seconds of a block",
        "real, s",
        "simulated, s",
        "ratio",
        "scheduler, ms a task",
        "client",
    )
    cpu = []
    with (
        stub_workers.running(folder, n_stubs) as (address, scheduler),
        DaskEngine(address) as engine,
    ):
        wait_for(engine, n_stubs)
        seconds_of_pass(engine, n_stubs, 0.0)
        n_tried = n_tasks // 10
        # and the merges
        task = seconds_of_pass(engine, n_tried, 0.0) / (n_tried + min(n_tried, n_stubs))
        for factor in (0.0, 0.5, 2.0):
            job = Job(
                n_blocks=n_tasks,
                block_seconds=max(1e-6, factor * task * n_stubs),
                n_workers=n_stubs,
                task_seconds=task,
                run_seconds=0.0,
            )
            before = cpu_seconds(scheduler)
            taken = seconds_of_pass(engine, n_tasks, job.block_seconds)
            found = simulate(job)
            cpu.append((cpu_seconds(scheduler) - before) / found.n_tasks)
            table.add_row(
                f"{job.block_seconds:.3f}",
                f"{taken:.1f}",
                f"{found.seconds:.1f}",
                f"{taken / found.seconds:.2f}",
                *(f"{1e3 * one:.2f}" for one in cpu[-1]),
            )
    console.print(table)
    console.print(
        f"{n_stubs:,} stubs, {n_tasks:,} blocks: {1e3 * task:.2f} ms a task where"
        " blocks take no time"
    )
    return float(cpu[0][0])


def wait_for(engine: DaskEngine, n_workers: int) -> None:
    deadline = time.monotonic() + 120
    while engine.n_workers < n_workers:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def cpu_seconds(scheduler: int) -> np.ndarray:
    """Return the processor's time of the scheduler, and of this process, the client."""
    times = psutil.Process(scheduler).cpu_times()
    return np.array([times.user + times.system, time.process_time()])


def large_job(n_samples: int, n_components: int, **options: Any) -> Job:
    sizes = Sizes(n_samples=n_samples, n_features=32, n_targets=1, chunk_rows=8192)
    plan = plan_fit(PlannedFit(sizes, n_components, Machines()))
    return Job(
        n_blocks=plan.n_blocks,
        block_seconds=plan.rows_per_block * n_components**2 / (1e9 * GFLOPS),
        n_workers=1,
        merge_seconds=plan.statistics_bytes * (1 / NETWORK + 1 / ADDED),
        spread=0.05,
        **options,
    )


def tabulate(console: Console, curves: Mapping[str, Sequence[ScalingPoint]]) -> None:
    table = Table("workers", *curves)
    for points in zip(*curves.values(), strict=True):
        cells = (f"{one.seconds:,.1f} s, {one.busy:.3f}" for one in points)
        table.add_row(f"{points[0].n_workers:,}", *cells)
    console.print(table)
    console.print(
        "simulated: seconds of a pass, and the share of its time that a worker does"
        " rows"
    )
