"""Ridge on Nyström features for one alpha, in seconds and beside one dsyrk of the same
size.
"""

import itertools
import math
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import dsyrk_gflops, make_data
from rff_dist import Matern, Nystrom, SerialEngine
from rff_dist.features import for_dataset
from rff_dist.features.feature_options import KernelFeatures
from rff_dist.numerics.cholesky import solve_cholesky
from rff_dist.numerics.machine import available_cores
from rff_dist.statistics import passes

ROUNDS = 3
# rows and columns of the training parts of pol, elevators and keggdirected; seconds of
# FALKON 0.9 on 2 cores
JOBS = ((5000, 13_500, 26, 8.6), (2000, 14_939, 18, 3.4), (2000, 43_944, 20, 9.4))


def run(console: Console, folder: Path) -> None:
    n_threads = available_cores()
    engine = SerialEngine(n_threads=n_threads)
    table = Table(
        "centres",
        "rows × inputs",
        "dsyrk s",
        "draw",
        "pass",
        "read",
        "solve",
        "all s",
        "pass / dsyrk",
    )
    for n_centres, n_samples, n_features, _ in JOBS:
        dataset = make_data(folder, n_samples, n_features)
        limit = 0.0
        best = [math.inf] * 4
        for _ in range(ROUNDS):
            limit = max(limit, dsyrk_gflops(n_centres, n_threads))
            clock = [time.perf_counter()]
            feature_map = for_dataset.draw(
                for_dataset.RowSource(dataset),
                KernelFeatures(
                    kernel=Matern(3.0), n_components=n_centres, features=Nystrom()
                ),
            )
            clock.append(time.perf_counter())
            statistics = passes.accumulate(dataset, feature_map, engine=engine)
            clock.append(time.perf_counter())
            equations = statistics.normal_equations()
            clock.append(time.perf_counter())
            solve_cholesky(equations, 1e-2, overwrite_gram=True)
            clock.append(time.perf_counter())
            taken = [b - a for a, b in itertools.pairwise(clock)]
            best = [min(old, new) for old, new in zip(best, taken, strict=True)]
        product = n_samples * n_centres**2 / limit / 1e9
        table.add_row(
            f"{n_centres:_}",
            f"{n_samples:_} × {n_features}",
            f"{product:.2f}",
            *(f"{seconds:.2f}" for seconds in best),
            f"{sum(best):.2f}",
            f"{best[1] / product:.2f}",
        )
    console.print(table)
    console.print(
        f"{n_threads} threads, the best of {ROUNDS} rounds in turns; FALKON 0.9 took "
        + ", ".join(f"{seconds} s" for *_, seconds in JOBS)
        + " for such sizes on 2 cores."
    )
