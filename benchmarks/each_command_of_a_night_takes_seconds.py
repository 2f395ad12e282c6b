"""What each command of a night takes with a dataset of 100,000 rows: start and all.

Each is a process of its own, as a shell or cron runs it, and must end with the exit
code 0. Of a machine that others use too look at the CPU seconds, which two cores share
out."""

import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measure import seconds
from tests.pages import commands_of

N_SAMPLES = 100_000
N_NEW = 1_000
PROMISED_S = 15.0
COMMANDS = """
rff-dist ingest 'sales/*.csv' sales.zarr --targets price --id sale --append
rff-dist fit sales.zarr models/price --register --n-components 512
rff-dist ingest 'sales/*.csv' sales.zarr --targets price --append
rff-dist update models/price sales.zarr
rff-dist models show models/price
rff-dist models rollback models/price
rff-dist data log sales.zarr
rff-dist data correct sales.zarr fixed.csv --by sale
rff-dist data delete sales.zarr gone.csv --by sale
rff-dist data expire sales.zarr --days 30
rff-dist forget sales.zarr --rows asked.csv --id --models models/price
rff-dist update models/price sales.zarr --window 90d
"""


def run(console: Console, folder: Path) -> None:
    (folder / "sales").mkdir(exist_ok=True)
    for name, values in {"fixed": "3,0.1,0.2,0.5", "gone": "5", "asked": "7"}.items():
        columns = "sale,area,rooms,price" if name == "fixed" else "sale"
        (folder / f"{name}.csv").write_text(f"{columns}\n{values}\n")
    nights = iter([("monday", 0, N_SAMPLES), ("tuesday", N_SAMPLES, N_NEW)])
    table = Table("command", "seconds", "CPU seconds")
    slowest = 0.0
    for arguments in commands_of(COMMANDS):
        if arguments[0] == "ingest":
            write_sales(folder, *next(nights))
        command = [sys.executable, "-m", "rff_dist.workbench.cli", *arguments]
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "OMP_NUM_THREADS"
        }
        work = partial(
            subprocess.run,
            command,
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
        )
        before = cpu_seconds()
        taken = seconds(work)
        slowest = max(slowest, taken)
        table.add_row(
            " ".join(["rff-dist", *arguments]),
            f"{taken:.1f}",
            f"{cpu_seconds() - before:.1f}",
        )
    console.print(table)
    console.print(
        f"{N_SAMPLES:,} rows: the slowest takes {slowest:.1f} s; promised are"
        f" {PROMISED_S:g} s"
    )


def cpu_seconds() -> float:
    """Return what processes took that have ended, and those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def write_sales(folder: Path, name: str, first: int, n_samples: int) -> None:
    X = np.random.default_rng(first).normal(size=(n_samples, 2))
    price = (
        np.sin(2 * X[:, 0])
        + X[:, 1]
        + 0.1 * np.random.default_rng(first + 1).normal(size=n_samples)
    )
    rows = np.c_[np.arange(first, first + n_samples), X, price]
    header = "sale,area,rooms,price"
    np.savetxt(
        folder / f"sales/{name}.csv",
        rows,
        delimiter=",",
        header=header,
        comments="",
        fmt="%.9g",
    )
