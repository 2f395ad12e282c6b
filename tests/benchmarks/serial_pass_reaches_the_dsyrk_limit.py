"""From Zarr to statistics on one thread, everything included: multiple of the rate of one large dsyrk."""

import math
import os
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rff_dist import SerialEngine, draw_feature_map
from rff_dist.products.choice import VARIABLE, measure
from rff_dist.statistics import inspection, passes
from tests.benchmarks.measure import byte_instructions, dsyrk_gflops, make_data

ROUNDS = 5
JOBS = ((1024, 131_072), (4096, 32_768))
WANTED = {  # multiples of dsyrk, by instructions
    ("bytes", "amx_int8"): {1024: 1.5, 4096: 2.5},
    ("bytes", "avx512_vnni"): {1024: 1.0, 4096: 1.3},
    ("float64", ""): {1024: 0.85, 4096: 0.9},
}


def run(console: Console, folder: Path) -> None:
    table = Table(
        "D", "rows × inputs", "products", "dsyrk GFLOP/s", "moments s", "all s", "multiple", "wanted"
    )
    instructions, before = byte_instructions(), os.environ.get(VARIABLE)
    ways = [rate.products.name for rate in measure().rates]
    for n_components, n_samples in JOBS:
        dataset = make_data(folder, n_samples, 32)
        engine = SerialEngine(n_threads=1)
        limit, found = 0.0, dict.fromkeys(ways, (math.inf, math.inf))
        for _ in range(ROUNDS):
            limit = max(limit, dsyrk_gflops(n_components, 1, clock=time.process_time))
            for way, (least, least_first) in found.items():
                os.environ[VARIABLE] = way
                start = time.process_time()
                moments = inspection.inspect(dataset, engine=engine)
                first = time.process_time() - start
                feature_map = draw_feature_map(
                    "gaussian",
                    n_features=32,
                    n_components=n_components,
                    standardizer=inspection.standardizer_from(moments),
                )
                passes.accumulate(dataset, feature_map, engine=engine)
                found[way] = min(least, time.process_time() - start), min(least_first, first)
        for way, (best, first) in found.items():
            wanted = WANTED.get((way, "" if way == "float64" else instructions), {}).get(n_components)
            table.add_row(
                f"{n_components:_}",
                f"{n_samples:_} × 32",
                way,
                f"{limit:.1f}",
                f"{first:.2f}",
                f"{best:.2f}",
                f"{n_samples * n_components**2 / best / 1e9 / limit:.3f}",
                "" if wanted is None else f"≥ {wanted}",
            )
    os.environ.pop(VARIABLE)
    if before is not None:
        os.environ[VARIABLE] = before
    console.print(table)
    console.print(f"taken here: {measure().describe(JOBS[-1][0])}; instructions for bytes: {instructions}.")
    console.print(
        f"1 thread, 1 process, the best of {ROUNDS} rounds in turns, in seconds of the processor; moments, "
        "drawing, reading, features, products and integer sums are included."
    )
