"""From Zarr to statistics on one thread, everything included: share of the rate of one large dsyrk."""

import time
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from rff_dist import SerialEngine, draw_feature_map, pipeline
from tests.benchmarks.measure import dsyrk_gflops, make_data

ROUNDS = 3
JOBS = ((1024, 131_072, 0.82), (4096, 32_768, 0.90))


def run(console: Console, folder: Path) -> None:
    table = Table("D", "rows × inputs", "dsyrk GFLOP/s", "moments s", "pass s", "share", "wanted")
    for n_components, n_samples, wanted in JOBS:
        dataset = make_data(folder, n_samples, 32)
        engine = SerialEngine(n_threads=1)
        limits, shares, passes, first_passes = [], [], [], []
        for _ in range(ROUNDS):
            limits.append(dsyrk_gflops(n_components, 1))
            start = time.perf_counter()
            moments = pipeline.inspect(dataset, engine=engine)
            first_passes.append(time.perf_counter() - start)
            feature_map = draw_feature_map(
                "gaussian",
                n_features=32,
                n_components=n_components,
                standardizer=pipeline.standardizer_from(moments),
            )
            pipeline.accumulate(dataset, feature_map, engine=engine)
            total = time.perf_counter() - start
            passes.append(total - first_passes[-1])
            shares.append(n_samples * n_components**2 / total / 1e9 / limits[-1])
        table.add_row(
            f"{n_components:_}",
            f"{n_samples:_} × 32",
            f"{median(limits):.1f}",
            f"{median(first_passes):.2f}",
            f"{median(passes):.2f}",
            f"{median(shares):.3f}",
            f"≥ {wanted}",
        )
    console.print(table)
    console.print(
        "1 thread, 1 process; moments, drawing, reading, features, products and integer sums are included."
    )
