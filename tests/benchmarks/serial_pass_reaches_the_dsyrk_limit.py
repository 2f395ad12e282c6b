"""From Zarr to statistics on one thread, everything included: share of the rate of one large dsyrk."""

import math
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rff_dist import SerialEngine, draw_feature_map
from rff_dist.statistics import inspection, passes
from tests.benchmarks.measure import dsyrk_gflops, make_data

ROUNDS = 5
JOBS = ((1024, 131_072, 0.82), (4096, 32_768, 0.90))


def run(console: Console, folder: Path) -> None:
    table = Table("D", "rows × inputs", "dsyrk GFLOP/s", "moments s", "all s", "share", "wanted")
    for n_components, n_samples, wanted in JOBS:
        dataset = make_data(folder, n_samples, 32)
        engine = SerialEngine(n_threads=1)
        limit, best, first_pass = 0.0, math.inf, math.inf
        for _ in range(ROUNDS):
            limit = max(limit, dsyrk_gflops(n_components, 1))
            start = time.perf_counter()
            moments = inspection.inspect(dataset, engine=engine)
            first_pass = min(first_pass, time.perf_counter() - start)
            feature_map = draw_feature_map(
                "gaussian",
                n_features=32,
                n_components=n_components,
                standardizer=inspection.standardizer_from(moments),
            )
            passes.accumulate(dataset, feature_map, engine=engine)
            best = min(best, time.perf_counter() - start)
        table.add_row(
            f"{n_components:_}",
            f"{n_samples:_} × 32",
            f"{limit:.1f}",
            f"{first_pass:.2f}",
            f"{best:.2f}",
            f"{n_samples * n_components**2 / best / 1e9 / limit:.3f}",
            f"≥ {wanted}",
        )
    console.print(table)
    console.print(
        f"1 thread, 1 process, the best of {ROUNDS} rounds in turns; moments, drawing, reading, features, "
        "products and integer sums are included."
    )
