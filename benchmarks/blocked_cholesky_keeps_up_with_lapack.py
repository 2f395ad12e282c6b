"""Our tiled Cholesky against scipy.linalg.cho_factor, with all threads, where the
latter survives.
"""

import os
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.linalg import cho_factor, cho_solve
from threadpoolctl import threadpool_limits

from benchmarks.measure import seconds
from rff_dist.numerics.cholesky import solve_cholesky
from rff_dist.numerics.solution import NormalEquations

ROUNDS = 3
SIZES = (1024, 2048, 4096, 8192)


def solve_with_lapack(gram: np.ndarray, moments: np.ndarray, *, n_threads: int) -> None:
    with threadpool_limits(n_threads):
        cho_solve(cho_factor(gram + np.eye(len(gram))), moments)


def run(console: Console, folder: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    table = Table("D", "scipy s", "ours s", "ours GFLOP/s", "scipy / ours")
    for size in SIZES:
        factor = np.random.Generator(np.random.Philox(0)).standard_normal((64, size))
        gram = factor.T @ factor
        equations = NormalEquations(
            gram=gram,
            moments=factor[:1].T.copy(),
            total_sum_of_squares=np.ones(1),
            feature_means=np.zeros(size),
            target_means=np.zeros(1),
            n_samples=size,
            sum_of_weights=size,
            fit_intercept=False,
        )

        lapack = partial(solve_with_lapack, gram, factor[0], n_threads=cores)
        tiled = partial(solve_cholesky, equations, 1.0)
        times = [(seconds(lapack), seconds(tiled)) for _ in range(ROUNDS)]
        theirs, ours = (min(column) for column in zip(*times, strict=True))
        rate = size**3 / 3 / ours / 1e9
        table.add_row(
            f"{size:_}",
            f"{theirs:.2f}",
            f"{ours:.2f}",
            f"{rate:.0f}",
            f"{theirs / ours:.2f}",
        )
    console.print(table)
    console.print(
        f"{cores} threads, best of {ROUNDS} rounds in turns; ours includes checks and"
        " the rounding floor. At D = 16,384 threaded LAPACK crashes; a test solves"
        " there."
    )
