"""Clocks, limits and data that the benchmarks share."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import blas
from threadpoolctl import threadpool_limits

from rff_dist.ingest.generate import RandomRows, generate_dataset
from rff_dist.storage.datasets import ZarrDataset
from rff_dist.storage.writing import Writing

type Clock = Callable[[], float]


def seconds(function: Callable[[], Any], clock: Clock = time.perf_counter) -> float:
    start = clock()
    function()
    return clock() - start


def dsyrk_gflops(
    n_components: int, n_threads: int, *, rows: int = 8192, clock: Clock = time.perf_counter
) -> float:
    """Rate of one large float64 symmetric product, counted as rows · n_components² operations."""
    Z = np.random.Generator(np.random.Philox(0)).standard_normal((n_components, rows))
    with threadpool_limits(n_threads):
        best = min(seconds(lambda: blas.dsyrk(1.0, Z.T, trans=1), clock) for _ in range(3))
    return rows * n_components**2 / best / 1e9


def byte_instructions() -> str:
    """What this processor multiplies bytes with, as far as the system says."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown"
    flags = next((line.split() for line in text.splitlines() if line.startswith(("flags", "Features"))), [])
    return next(
        (flag for flag in ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm", "avx2") if flag in flags), "none"
    )


def make_data(folder: Path, n_samples: int, n_features: int) -> ZarrDataset:
    """Write standard normal inputs and a smooth target with noise 0.1."""
    return generate_dataset(
        folder / f"{n_samples}x{n_features}.zarr",
        lambda X: np.sin(X[:, 0]) + X[:, 1] * X[:, 2],
        RandomRows(n_samples, n_features, noise=0.1, seed=0),
        Writing(overwrite=True),
    )


def in_subprocess(code: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run code that prints one JSON document as its last line, in a process of its own."""
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
