"""How busy workers are: real processes beside the simulation, and the simulation up to a thousand workers.

Blocks of real runs sleep, so that more processes than cores tell of the engine. The environment chooses more:

RFF_DIST_STUBS
    Workers that share this process, on a real scheduler that is given 200 tasks for each; 50 by default.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

import distributed
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from rff_dist import DaskEngine
from rff_dist.data.blocks import Block, cut_blocks
from rff_dist.ridge.plan import Machines, Sizes, plan_fit
from tests.simulation import Job, simulate

N_BLOCKS, BLOCK_SECONDS = 96, 0.25
N_ROWS, N_COMPONENTS = 10**9, 8192
GFLOPS, NETWORK = 375.0, 1.25e9  # of a worker of one thread with AVX-512 VNNI; bytes a second
TASK_SECONDS = 0.003
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


def run(console: Console, folder: Path) -> None:
    real = Table("worker processes", "real, s", "simulated, s", "ratio")
    for n_workers in (1, 2, 4, 8):
        with DaskEngine(n_workers=n_workers, threads_per_worker=1) as engine:
            empty = min(seconds_of_pass(engine, 1, 0.0) for _ in range(3))
            taken = min(seconds_of_pass(engine, N_BLOCKS, BLOCK_SECONDS) for _ in range(2))
        job = Job(n_blocks=N_BLOCKS, block_seconds=BLOCK_SECONDS, n_workers=n_workers)
        found = empty + simulate(job).seconds
        real.add_row(f"{n_workers}", f"{taken:.2f}", f"{found:.2f}", f"{taken / found:.2f}")
    console.print(real)
    n_stubs = int(os.environ.get("RFF_DIST_STUBS", "50"))
    console.print(f"a real scheduler with {n_stubs} workers: {1e3 * seconds_per_task(n_stubs):.2f} ms a task")
    job = large_job()
    shorter = replace(job, n_blocks=4 * job.n_blocks, block_seconds=job.block_seconds / 4)
    found = {
        "as it is": {n: efficiency(job, n) for n in WORKERS},
        "with blocks of a quarter of the rows": {n: efficiency(shorter, n) for n in WORKERS},
        "with deaths, one per worker and month": {
            n: efficiency(replace(shorter, deaths_per_hour=1 / 720), n) for n in WORKERS
        },
    }
    table = Table("workers", *found)
    for n_workers in WORKERS:
        table.add_row(f"{n_workers:,}", *(f"{values[n_workers]:.3f}" for values in found.values()))
    console.print(table)
    console.print(
        f"efficiency, simulated: {N_ROWS:.0e} rows, D = {N_COMPONENTS:,}, 10 Gbit/s, blocks spread by 5 %"
    )
    draw(folder / "scaling.png", found)


def seconds_of_pass(engine: DaskEngine, n_blocks: int, block_seconds: float) -> float:
    start = time.perf_counter()
    blocks = cut_blocks(n_blocks, 1, rows_per_block=1)
    assert engine.map_reduce(rest, blocks, block_seconds, combine=lambda a, b: a + b) == n_blocks
    return time.perf_counter() - start


def rest(block: Block, seconds: float) -> int:
    time.sleep(seconds)
    return block.n_samples


def seconds_per_task(n_workers: int) -> float:
    """Return the time of an empty task on a scheduler that has so many workers."""
    n_tasks = 200 * n_workers
    with (
        distributed.LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=False,
            protocol="tcp://",
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
            memory_limit=0,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        start = time.perf_counter()
        distributed.wait(client.map(abs, range(n_tasks), pure=False))
        return (time.perf_counter() - start) / n_tasks


def large_job() -> Job:
    sizes = Sizes(n_samples=N_ROWS, n_features=32, n_targets=1, chunk_rows=8192)
    plan = plan_fit(sizes, N_COMPONENTS, Machines())
    return Job(
        n_blocks=plan.n_blocks,
        block_seconds=plan.rows_per_block * N_COMPONENTS**2 / (1e9 * GFLOPS),
        n_workers=1,
        task_seconds=TASK_SECONDS,
        merge_seconds=plan.statistics_bytes * (1 / NETWORK + 1 / 2e9),  # sent, and added
        spread=0.05,
    )


def efficiency(job: Job, n_workers: int) -> float:
    return float(
        np.median([simulate(replace(job, n_workers=n_workers), seed=i).efficiency for i in range(3)])
    )


def draw(path: Path, found: dict[str, dict[int, float]]) -> None:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for (name, values), style in zip(found.items(), ("o-", "s--", "^:"), strict=True):
        axes.plot(list(values), list(values.values()), style, label=name)
    axes.axhline(0.9, color="0.6", linewidth=1)
    axes.set(xscale="log", ylim=(0.5, 1.02), xlabel="workers", ylabel="share of time that is worked")
    axes.legend(loc="lower left")
    figure.savefig(path, dpi=150)
