"""K-means finds the same clusters on one worker and on many, where others do not.

The data are those of https://github.com/NVIDIA/cuml/issues/7389: ten blobs in 1,024
columns, with rows of norm 1, on which two workers find other clusters than one."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score

from rff_dist import DaskEngine, RFFKMeans, write_dataset

N_ROWS = 100_000
N_COLUMNS = 1_024
N_CLUSTERS = 10


def run(console: Console, folder: Path) -> None:
    X, truth = make_blobs(
        N_ROWS,
        n_features=N_COLUMNS,
        centers=N_CLUSTERS,
        cluster_std=0.5,
        random_state=42,
    )
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
    write_dataset(folder / "blobs.zarr", X)
    table = Table("workers", "adjusted Rand index", "inertia", "digest")
    for n_workers in (1, 2, 4, 8):
        with DaskEngine(n_workers=n_workers, threads_per_worker=1) as engine:
            model = RFFKMeans(
                N_CLUSTERS,
                kernel="linear",
                n_components=N_COLUMNS,
                random_state=42,
                engine=engine,
            ).fit(folder / "blobs.zarr")
            labels = model.predict(X)
        index = adjusted_rand_score(truth, labels)
        table.add_row(
            str(n_workers),
            f"{index:.6f}",
            f"{model.inertia_:.6f}",
            model.clusters_.digest()[:16],
        )
    console.print(table)
