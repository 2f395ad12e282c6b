"""Features by fast Hadamard transforms against features by a matrix product: time for one row, one thread."""

import math
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from benchmarks.measure import seconds
from rff_dist import draw_feature_map
from rff_dist.features.maps import FeatureMap

ROWS = 4096
ROUNDS = 5
JOBS = ((128, 8192, None), (256, 8192, None), (1024, 8192, 3.0), (4096, 8192, None))


def run(console: Console, folder: Path) -> None:
    table = Table("inputs", "D", "what", "dense µs a row", "structured µs a row", "times faster", "wanted")
    for n_features, n_components, wanted in JOBS:
        X = np.random.Generator(np.random.Philox(0)).standard_normal((ROWS, n_features), np.float32)
        dense, structured = (
            draw_feature_map("gaussian", n_features=n_features, n_components=n_components, design=design)
            for design in ("iid", "structured")
        )
        for what in ("fill", "transform"):
            best = [math.inf, math.inf]
            with threadpool_limits(1):
                for _ in range(ROUNDS):
                    for i, feature_map in enumerate((dense, structured)):
                        best[i] = min(best[i], seconds(lambda: WORK[what](feature_map, X)))  # noqa: B023
            table.add_row(
                f"{n_features:_}",
                f"{n_components:_}",
                what,
                *(f"{1e6 * time / ROWS:.1f}" for time in best),
                f"{best[0] / best[1]:.2f}",
                "" if wanted is None else f"≥ {wanted}",
            )
    console.print(table)
    console.print(
        f"1 thread, {ROWS:_} rows, the best of {ROUNDS} rounds in turns. `fill` is what a pass does for a "
        "tile: float32 cosines and sines in float64, one component per line; `transform` scales and "
        "transposes them into Z as well."
    )


def _fill(feature_map: FeatureMap, X: np.ndarray) -> None:
    inputs = feature_map.prepare(X)
    stripe = np.empty((max(stop - start for start, stop in feature_map.stripes), len(X)))
    for start, stop in feature_map.stripes:
        feature_map.fill(inputs, stripe[: stop - start], start, stop)


WORK = {"fill": _fill, "transform": lambda feature_map, X: feature_map.transform(X)}
