"""Shapes among millions of rows in eight columns, on two workers, in memory by plan.

Two rings and four blobs with known labels: the adjusted Rand index of all rows, and
that of a fit of 5,000 of them; the workers' peak memory next to the plan's; a picture,
which `--keep` keeps. `RFF_BENCHMARK_ROWS=500000` makes it short."""

import os
import resource
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.metrics import adjusted_rand_score

from rff_dist import DaskEngine, RFFKMeans, open_dataset, write_dataset
from rff_dist.engines import events
from rff_dist.fitting import plan, sizes
from rff_dist.kmeans import shapes

N_ROWS = int(os.environ.get("RFF_BENCHMARK_ROWS", "5_000_000"))
BATCH = 100_000
N_CLUSTERS = 6
N_DRAWN = 20_000


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


def agreement(model: RFFKMeans, dataset) -> float:
    """Return the adjusted Rand index of all rows."""
    labels = np.asarray(model.predict(dataset))
    known = np.concatenate([known for _, known in draw_batches(N_ROWS)])
    return adjusted_rand_score(known, labels)


def draw_clusters(model: RFFKMeans, path: Path) -> None:
    X = next(draw_batches(BATCH))[0][:N_DRAWN]
    plt.figure(figsize=(6, 5))
    plt.scatter(X[:, 0], X[:, 1], s=1, c=model.predict(X), cmap="tab10")
    plt.gca().set(title=f"{N_DRAWN:,} of {N_ROWS:,} rows", aspect="equal")
    plt.savefig(path, dpi=150)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def run(console: Console, folder: Path) -> None:
    url = folder / "rows.zarr"
    write_dataset(url, (X for X, _ in draw_batches(N_ROWS)), overwrite=True)
    dataset = open_dataset(url)
    few = next(draw_batches(BATCH))[0][:5_000]
    sample = RFFKMeans(N_CLUSTERS, random_state=0).fit(few)

    def tell(event: events.Event) -> None:
        if isinstance(event, events.PassFinished):
            console.print(str(event), style="dim")

    table = Table("fit to rows", "adjusted Rand index", "Lloyd passes", "s")
    with DaskEngine(n_workers=2, threads_per_worker=1, observers=[tell]) as engine:
        start = time.perf_counter()
        model = RFFKMeans(N_CLUSTERS, random_state=0, engine=engine).fit(url)
        seconds = time.perf_counter() - start
        peaks = engine.client.run(peak_mib).values()
        planned = plan.plan_on_engine(
            dataset,
            shapes.MOST_CENTRES,
            sizes.SumOptions(features="nystrom"),
            engine=engine,
        )
        for each, n_rows in ((sample, 5_000), (model, N_ROWS)):
            each.set_params(engine=engine)
            index = f"{agreement(each, dataset):.4f}"
            taken = f"{seconds:.0f}" if each is model else ""
            table.add_row(f"{n_rows:,}", index, str(each.n_iter_), taken)
            each.set_params(engine=None)  # which is closed later
    console.print(table)
    console.print(
        f"peak memory of the workers: {' and '.join(f'{peak:.0f}' for peak in peaks)}"
        f" MiB; planned: {planned.worker_bytes / 2**20:.0f} MiB"
    )
    console.print(model.shape_)
    draw_clusters(model, folder / "clusters.png")
