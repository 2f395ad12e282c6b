"""RFFRidge from Zarr against make_pipeline(RBFSampler, Ridge) on the same rows in memory."""

import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks.measure import in_subprocess, make_data

ROUNDS = 3
JOBS = ((100_000, 1024), (100_000, 2048))

_COMMON = """
import json, resource, sys, time
import numpy as np
path, n_components = sys.argv[1], int(sys.argv[2])
def report(start, error):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": time.perf_counter() - start, "peak_mib": peak, "rmse": float(error)}))
"""

_OURS = (
    _COMMON
    + """
from rff_dist import Gaussian, RFFRidge, SerialEngine, open_dataset
model = RFFRidge(Gaussian(4.0), n_components=n_components, alpha=0.1, standardize=False, random_state=0)
start = time.perf_counter()
model.fit(path)
sample = open_dataset(path).take(np.arange(5000))
report(start, np.sqrt(np.mean((model.predict(sample.X) - sample.y[:, 0]) ** 2)))
"""
)

_THEIRS = (
    _COMMON
    + """
from rff_dist import open_dataset
from rff_dist.data.blocks import Block
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
dataset = open_dataset(path)
rows = dataset.read(Block(0, 0, dataset.n_samples))
X, y = rows.X.astype(dtype := np.dtype(sys.argv[3])), rows.y[:, 0].astype(dtype)
model = make_pipeline(RBFSampler(gamma=0.5 / 16, n_components=n_components, random_state=0), Ridge(alpha=0.1))
start = time.perf_counter()
model.fit(X, y)
report(start, np.sqrt(np.mean((model.predict(X[:5000]) - y[:5000]) ** 2)))
"""
)


def run(console: Console, folder: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    table = Table(
        "rows", "D", "what", "seconds", "× ours", "peak MiB", "× ours", "RMSE on 5,000 training rows"
    )
    for n_samples, n_components in JOBS:
        path = str(make_data(folder, n_samples, 32).url)
        codes = {
            "RFFRidge, from Zarr": (_OURS, ()),
            "RBFSampler + Ridge, float64": (_THEIRS, ("float64",)),
            "RBFSampler + Ridge, float32": (_THEIRS, ("float32",)),
        }
        results: dict[str, list[dict[str, float]]] = {name: [] for name in codes}
        for _ in range(ROUNDS):
            for name, (code, extra) in codes.items():
                results[name].append(
                    in_subprocess(code, path, str(n_components), *extra, OMP_NUM_THREADS=str(cores))
                )
        best = {name: min(runs, key=lambda run: run["seconds"]) for name, runs in results.items()}
        ours = best["RFFRidge, from Zarr"]
        for name, run_ in best.items():
            table.add_row(
                f"{n_samples:_}",
                f"{n_components:_}",
                name,
                f"{run_['seconds']:.2f}",
                f"{run_['seconds'] / ours['seconds']:.2f}",
                f"{run_['peak_mib']:.0f}",
                f"{run_['peak_mib'] / ours['peak_mib']:.2f}",
                f"{run_['rmse']:.4f}",
            )
    console.print(table)
    console.print(
        f"32 inputs, one alpha, fit and prediction of 5,000 rows; OMP_NUM_THREADS={cores}, one process; the "
        f"best of {ROUNDS} rounds in turns. Theirs starts with all rows in memory, ours reads them twice."
    )
