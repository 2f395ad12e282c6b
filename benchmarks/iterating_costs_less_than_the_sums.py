"""Conjugate gradients against the planned time of Z'Z and its factorisation, and on
real data sets.

The environment chooses a smaller version:

RFF_DIST_COMPONENTS
    D; 32,768 by default.
RFF_DIST_UCI
    The folder of the real sets, with published length scales; see
    tests/integration/test_real_data.py. Without it only generated rows are solved.
"""

import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.linalg import LinAlgWarning

from benchmarks.measure import seconds
from rff_dist import Matern, RFFRidge
from rff_dist.fitting.plan import plan_fit
from rff_dist.fitting.sizes import Machines, PlannedFit, Sizes, SumOptions
from rff_dist.numerics.machine import available_cores, measure_gflops
from rff_dist.products.choice import rate_for

N_SAMPLES = 36_000
N_FEATURES = 8
# 1e-4 for each row, and less; of 1e-4 in all 370 steps are not enough
ALPHAS = (3.6, 1.0)
SETS = ("elevators", "pol", "keggdirected")


def run(console: Console, folder: Path) -> None:
    n_components = int(os.environ.get("RFF_DIST_COMPONENTS", "32768"))
    planned = planned_seconds(n_components)
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (N_SAMPLES, N_FEATURES))
    y = (
        np.sin(X[:, 0]) * X[:, 1]
        + np.cos(X[:, 2:].sum(axis=1))
        + 0.1 * rng.normal(size=N_SAMPLES)
    )
    table = Table(
        "alpha", "rank", "passes", "stopped", "error", "s", "over Z'Z and factor"
    )
    for alpha in ALPHAS:
        fit = ridge(n_components, alpha, Matern(nu=1.5, length_scale=4.0))
        taken = seconds(lambda fit=fit: fit.fit(X, y))
        table.add_row(
            f"{alpha:g}", *told(fit), f"{taken:.0f}", f"{taken / planned:.2f}"
        )
    console.print(table)
    console.print(
        f"{N_SAMPLES:,} × {N_FEATURES}, D = {n_components:,}, Matérn 3/2; Z'Z and its"
        f" factorisation would take {planned:.0f} s by plan, at the fastest products"
        " here."
    )
    if "RFF_DIST_UCI" in os.environ:
        real_sets(console, Path(os.environ["RFF_DIST_UCI"]), n_components)


def ridge(n_components: int, alpha: float, kernel: Matern) -> RFFRidge:
    return RFFRidge(
        kernel,
        n_components=n_components,
        alpha=alpha,
        features="fourier",
        solver="pcg",
        standardize=True,
        random_state=0,
    )


def told(fit: RFFRidge) -> tuple[str, ...]:
    solver = fit.model_.card["solver"]
    error = f"{solver['relative_error']:.1e}"
    return str(solver["rank"]), str(solver["n_passes"]), solver["stopped"], error


def planned_seconds(n_components: int) -> float:
    """Return the seconds that products and a factorisation would take at the rates of
    this moment.
    """
    machines = Machines(n_threads=available_cores())
    sizes = Sizes(
        n_samples=N_SAMPLES, n_features=N_FEATURES, n_targets=1, chunk_rows=16_384
    )
    plan = plan_fit(PlannedFit(sizes, n_components, machines, SumOptions(alpha=1.0)))
    factor = n_components**3 / 3 / (measure_gflops() * 1e9 * machines.n_threads)
    return plan.seconds(rate_for(n_components).gflops) + factor


def real_sets(console: Console, uci: Path, n_components: int) -> None:
    published = json.loads((uci / "ard_hyperparameters.json").read_text())["splits"]
    table = Table(
        "data set", "alpha", "rank", "passes", "stopped", "error", "s", "test RMSE"
    )
    for name in SETS:
        rows = np.loadtxt(uci / name / "data.csv.gz", delimiter=",")
        test = np.loadtxt(uci / name / "test_mask.csv.gz", delimiter=",")[:, 0].astype(
            bool
        )
        found = published[name]["0"]
        deviation = rows[~test, -1].std()
        mean = rows[~test, -1].mean()
        y = (rows[:, -1] - mean) / deviation
        alpha = (found["noise_scale"] / found["signal_scale"]) ** 2
        fit = ridge(
            n_components,
            alpha,
            Matern(nu=1.5, length_scale=tuple(found["length_scale"])),
        )
        start = time.perf_counter()
        with warnings.catch_warnings():
            # the table says how it ended
            warnings.simplefilter("ignore", LinAlgWarning)
            fit.fit(rows[~test, :-1], y[~test])
        taken = time.perf_counter() - start
        rmse = np.sqrt(np.mean((fit.predict(rows[test, :-1]) - y[test]) ** 2))
        table.add_row(name, f"{alpha:.2g}", *told(fit), f"{taken:.0f}", f"{rmse:.4f}")
    console.print(table)
