"""Planned memory and coarse times of fits next to measured ones: 12 cases of rows,
components and workers.
"""

import threading
import time
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from rff_dist import DaskEngine, Gaussian, open_dataset, write_dataset
from rff_dist.data.blocks import Dataset
from rff_dist.fitting.plan import Plan, plan_fit
from rff_dist.fitting.sizes import Machines, PlannedFit, Sizes, SumOptions
from rff_dist.numerics.machine import measure_gflops
from tests.plain import fit_ridge
from tools.kill_schedules import worker_processes

ROWS = (100_000, 400_000)
COMPONENTS = (512, 1024, 2048)
WORKERS = (1, 2)


def run(console: Console, folder: Path) -> None:
    table = Table(
        "rows",
        "D",
        "workers",
        "seconds",
        "over plan",
        "worker's memory, MiB",
        "over plan",
    )
    ratios = []
    memory = []
    for n_samples in ROWS:
        url = folder / f"{n_samples}.zarr"
        X = np.random.default_rng(0).normal(size=(n_samples, 8)).astype(np.float32)
        write_dataset(url, X, np.sin(X[:, 0]), overwrite=True)
        dataset = open_dataset(url)
        for n_workers in WORKERS:
            for n_components in COMPONENTS:
                planned, plan = plan_seconds(dataset, n_workers, n_components)
                taken, peak = fit_seconds(dataset, n_workers, n_components)
                ratios.append(taken / planned)
                memory.append(peak / plan.worker_bytes)
                table.add_row(
                    f"{n_samples:,}",
                    f"{n_components:,}",
                    f"{n_workers}",
                    f"{taken:.1f}",
                    f"{ratios[-1]:.2f}",
                    f"{peak / 2**20:.0f}",
                    f"{memory[-1]:.2f}",
                )
    console.print(table)
    console.print(
        f"seconds {min(ratios):.2f} to {max(ratios):.2f} of the plan, memory up to"
        f" {max(memory):.2f}"
    )


def plan_seconds(
    dataset: Dataset, n_workers: int, n_components: int
) -> tuple[float, Plan]:
    """Plan a fit as `rff-dist plan` does."""
    with DaskEngine(n_workers=n_workers, threads_per_worker=1) as engine:
        plan = plan_fit(
            PlannedFit(
                Sizes.of(dataset),
                n_components,
                Machines.of(engine),
                SumOptions(alpha=1.0),
            )
        )
    return plan.seconds(measure_gflops()), plan


def fit_seconds(
    dataset: Dataset, n_workers: int, n_components: int
) -> tuple[float, int]:
    """Fit on workers that are started for it; returns the most memory that one of them
    had, too.
    """
    begun = time.perf_counter()
    with (
        Peak() as peak,
        DaskEngine(n_workers=n_workers, threads_per_worker=1) as engine,
    ):
        options = {"n_components": n_components, "alpha": 1e-3, "length_scale": 1.0}
        fit_ridge(dataset, Gaussian(), engine=engine, **options)
        taken = time.perf_counter() - begun
    return taken, peak.bytes


class Peak:
    """The most memory that a worker process has meanwhile, looked at each 50 ms."""

    def __init__(self) -> None:
        self.bytes = 0
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> "Peak":
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            for process in worker_processes():
                try:
                    self.bytes = max(self.bytes, process.memory_info().rss)
                except psutil.Error:
                    continue
