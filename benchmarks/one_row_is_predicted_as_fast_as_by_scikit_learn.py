"""What one row takes of a model, in Python beside RBFSampler and Ridge, and from the
shell.
"""

import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from benchmarks.measure import seconds
from rff_dist import Gaussian, RFFClassifier, RFFRidge, save_model
from rff_dist.storage.writing import write_dataset

ROUNDS = 300
STARTS = 7
ROWS = 6000
COLUMNS = 26
N_COMPONENTS = 2048
LENGTH_SCALE = 5.0


def run(console: Console, folder: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(ROWS)
    row = X[:1]
    sampler = RBFSampler(
        gamma=0.5 / LENGTH_SCALE**2, n_components=N_COMPONENTS, random_state=0
    )
    given = {"n_components": N_COMPONENTS, "alpha": 0.1, "random_state": 0}
    fourier, nystrom = (
        RFFRidge(Gaussian(LENGTH_SCALE), features=features, **given).fit(X, y)
        for features in ("fourier", "nystrom")
    )
    classifier = RFFClassifier(Gaussian(LENGTH_SCALE), features="fourier", **given).fit(
        X, y > 0
    )
    pipeline = make_pipeline(sampler, Ridge(alpha=0.1)).fit(X, y)
    calls = {
        "RBFSampler + Ridge": lambda: pipeline.predict(row),
        "RFFRidge, Fourier": lambda: fourier.predict(row),
        "… return_std": lambda: fourier.predict(row, return_std=True),
        "… predict_interval": lambda: fourier.predict_interval(row),
        "RFFRidge, Nyström": lambda: nystrom.predict(row),
        "… return_std ": lambda: nystrom.predict(row, return_std=True),
        "RFFClassifier.predict_proba": lambda: classifier.predict_proba(row),
    }
    first = {name: seconds(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(seconds(call))
    limits = {"RFFRidge, Fourier": "≤ 0.3 ms", "… return_std": "≤ 2 ms"}
    theirs = times["RBFSampler + Ridge"]
    table = Table(
        "what", "first ms", "best ms", "median ms", "× theirs, best", "median", "wanted"
    )
    for name, taken in times.items():
        best = min(taken)
        median = statistics.median(taken)
        table.add_row(
            name,
            *(f"{1e3 * time:.2f}" for time in (first[name], best, median)),
            f"{best / min(theirs):.2f}",
            f"{median / statistics.median(theirs):.2f}",
            limits.get(name, ""),
        )
    console.print(table)
    write_dataset(folder / "row", row)
    for model, name in ((fourier, "Fourier"), (nystrom, "Nyström")):
        save_model(model, folder / name)
        words = [
            sys.executable,
            "-m",
            "rff_dist.workbench.cli",
            "predict",
            name,
            "row",
            "out",
            "--overwrite",
            "--quiet",
        ]
        taken = [
            seconds(partial(subprocess.check_output, words, cwd=folder))
            for _ in range(STARTS)
        ]
        console.print(
            f"rff-dist predict, {name}: {min(taken):.2f} s, median"
            f" {statistics.median(taken):.2f} (≤ 1.2)"
        )
    console.print(
        f"D = {N_COMPONENTS:_}, {COLUMNS} inputs, {ROUNDS} rounds in turns. The first"
        " call of a model makes what it keeps for the others."
    )
