"""Shapes among millions of rows in eight columns, on two workers, in memory by plan.

Two rings and four blobs with known labels: the adjusted Rand index of all rows, and
that of a fit of 5,000 of them. `RFF_BENCHMARK_ROWS=500000` makes it short."""

import os
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics import adjusted_rand_score

from rff_dist import DaskEngine, RFFKMeans, write_dataset

N_ROWS = int(os.environ.get("RFF_BENCHMARK_ROWS", "5_000_000"))
BATCH = 100_000
N_CLUSTERS = 6


def draw_batches(n_rows: int):
    """Yield rows of two rings in two columns and four blobs in eight, and labels."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.standard_normal((N_CLUSTERS, 8))
    for first in range(0, n_rows, BATCH):
        known = rng.integers(N_CLUSTERS, size=min(BATCH, n_rows - first))
        X = 0.15 * rng.standard_normal((len(known), 8))
        angles = rng.uniform(0, 2 * np.pi, len(known))
        radius = np.select([known == 0, known == 1], [1.0, 2.5], 0.0)
        X[:, 0] += radius * np.cos(angles)
        X[:, 1] += radius * np.sin(angles)
        is_blob = known > 1
        X[is_blob] += centres[known[is_blob]]
        yield X.astype(np.float32), known


def agreement(model: RFFKMeans, n_rows: int) -> float:
    batches = draw_batches(n_rows)
    pairs = [(known, model.predict(X)) for X, known in batches]
    known, labels = map(np.concatenate, zip(*pairs, strict=True))
    return adjusted_rand_score(known, labels)


def run(console: Console, folder: Path) -> None:
    write_dataset(folder / "rows.zarr", (X for X, _ in draw_batches(N_ROWS)))
    few = next(draw_batches(BATCH))[0][:5_000]
    sample = RFFKMeans(N_CLUSTERS, random_state=0).fit(few)
    table = Table("rows", "workers", "adjusted Rand index", "passes", "s")
    index = agreement(sample, min(N_ROWS, 10 * BATCH))
    table.add_row("5,000", "", f"{index:.4f}", str(sample.n_iter_), "")
    with DaskEngine(n_workers=2, threads_per_worker=1) as engine:
        start = time.perf_counter()
        model = RFFKMeans(N_CLUSTERS, random_state=0, engine=engine)
        model.fit(folder / "rows.zarr")
        seconds = time.perf_counter() - start
    model.set_params(engine=None)  # which is closed now
    index = agreement(model, min(N_ROWS, 10 * BATCH))
    row = (f"{index:.4f}", str(model.n_iter_), f"{seconds:.0f}")
    table.add_row(f"{N_ROWS:,}", "2", *row)
    console.print(table)
    console.print(model.shape_)
