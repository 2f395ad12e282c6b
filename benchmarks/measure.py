"""Clocks, limits and data that the benchmarks share."""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import blas
from threadpoolctl import threadpool_limits

from rff_dist.engines.events import BlockDone, Event, PassFinished
from rff_dist.storage.datasets import ZarrDataset
from rff_dist.storage.writing import WriteOptions
from rff_dist.workbench.tables.generate import RandomRows, generate_dataset

VECTOR_INSTRUCTIONS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
    "sve",
)

type Clock = Callable[[], float]


@dataclass(slots=True)
class PassTimings:
    """Collect the times that events tell, in the order of completion.

    `passes`: label and wall-clock seconds of every pass that finished.
    `blocks`: every block of every pass.
    """

    passes: list[tuple[str, float]] = field(default_factory=list)
    blocks: list[BlockDone] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        match event:
            case BlockDone():
                self.blocks.append(event)
            case PassFinished():
                self.passes.append((event.label, event.seconds))

    def seconds(self, label: str) -> float:
        """Add up the wall-clock seconds of all finished passes called `label`."""
        return sum(seconds for name, seconds in self.passes if name == label)


def seconds(function: Callable[[], Any], clock: Clock = time.perf_counter) -> float:
    start = clock()
    function()
    return clock() - start


def describe_processor() -> str:
    """Name the processor and those of its vector instructions that products of matrices
    use.
    """
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    facts = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    flags = facts.get("flags", facts.get("Features", "")).split()
    found = [flag for flag in VECTOR_INSTRUCTIONS if flag in flags]
    return (
        f"{facts.get('model name', platform.machine())}"
        f" ({', '.join(found) or 'instructions unknown'})"
    )


def dsyrk_gflops(
    n_components: int,
    n_threads: int,
    *,
    rows: int = 8192,
    clock: Clock = time.perf_counter,
) -> float:
    """Rate of one large float64 symmetric product, counted as rows · n_components²
    operations.
    """
    Z = np.random.Generator(np.random.Philox(0)).standard_normal((n_components, rows))
    with threadpool_limits(n_threads):
        best = min(
            seconds(lambda: blas.dsyrk(1.0, Z.T, trans=1), clock) for _ in range(3)
        )
    return rows * n_components**2 / best / 1e9


def byte_instructions() -> str:
    """What this processor multiplies bytes with, as far as the system says."""
    described = describe_processor()
    fastest_first = ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm", "avx2")
    return next((name for name in fastest_first if name in described), "unknown")


def make_data(folder: Path, n_samples: int, n_features: int) -> ZarrDataset:
    """Write standard normal inputs and a smooth target with noise 0.1."""
    return generate_dataset(
        folder / f"{n_samples}x{n_features}.zarr",
        lambda X: np.sin(X[:, 0]) + X[:, 1] * X[:, 2],
        RandomRows(n_samples, n_features, noise=0.1, seed=0),
        WriteOptions(overwrite=True),
    )


def make_arm(folder: Path, n_samples: int, *, first_row: int = 0) -> ZarrDataset:
    """Write angles of the 8 joints of an arm in a plane, and how far its end is from
    its root.

    Angles are standard normal, in radians, each to the link before; the arm's length is
    1 and the target has no noise. Rows from `first_row` on are others than those
    before."""
    return generate_dataset(
        folder / f"arm-{first_row}-{n_samples}.zarr",
        lambda X: np.abs(np.exp(1j * np.cumsum(X, axis=1)).mean(axis=1)),
        RandomRows(n_samples, 8, noise=0.0, seed=0, first_row=first_row),
        WriteOptions(overwrite=True),
    )


def in_subprocess(code: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run code that prints one JSON document as its last line, in a process of its
    own.
    """
    import os

    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    document: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return document
