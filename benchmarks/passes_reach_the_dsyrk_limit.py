"""From Zarr to statistics, everything included: multiples of the rate of one large
dsyrk.

On AMD Zen 3 (AVX2 only, float64 products, a busy machine) one thread at D = 1,024
spends 1.07 to 1.12 of dsyrk's time on products, 0.20 to 0.27 on features (0.06 are
NumPy's cosine and sine, 0.08 to 0.11 the projection, the rest rounding and writing),
and 0.04 on Z'y, 0.02 on integer sums and 0.06 on reading twice and on moments of
columns; at 4,096 1.01, 0.06, and 0.05 on all else. Products are the limit: without
VNNI, four exact ones of bytes (u8·u8) reach 0.75 of dgemm's rate at most, and seven
products for eight (Strassen- Winograd) gain nothing at 1,024 components and lose 9 % at
512."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import (
    Clock,
    byte_instructions,
    dsyrk_gflops,
    make_data,
    seconds,
)
from rff_dist import DaskEngine, SerialEngine, draw_feature_map
from rff_dist.engines.protocol import Engine
from rff_dist.products.choice import VARIABLE, measure
from rff_dist.statistics import inspection, passes, standardizing
from rff_dist.storage.datasets import ZarrDataset

ROUNDS = 2
N_SAMPLES = 65_536
N_FEATURES = 32
# a new worker's first second, of imports and choosing products, is then a thirtieth
DASK_ROWS = 262_144
SIZES = (1024, 2048, 4096)
# multiples of dsyrk that 1 thread, and Dask on all cores, are to reach, by the
# instructions for bytes
WANTED = {
    "amx_int8": {(1024, "serial"): 1.5, (4096, "serial"): 2.5, (4096, "Dask"): 2.2},
    "avx512_vnni": {(1024, "serial"): 1.0, (4096, "serial"): 1.3, (4096, "Dask"): 1.2},
    "float64": {(1024, "serial"): 0.85, (4096, "serial"): 0.9, (4096, "Dask"): 0.85},
}


def run(console: Console, folder: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    datasets = {
        name: make_data(folder, n_samples, N_FEATURES)
        for name, n_samples in (("serial", N_SAMPLES), ("Dask", DASK_ROWS))
    }
    # of one thread the processor's own seconds count, which others on the machine
    # hardly disturb
    engines: dict[str, tuple[Callable[[], Engine], int, str, Clock]] = {
        "serial": (lambda: SerialEngine(n_threads=1), 1, "1 × 1", time.process_time),
        "Dask": (
            lambda: DaskEngine(n_workers=cores, threads_per_worker=1),
            cores,
            f"{cores} × 1",
            time.perf_counter,
        ),
    }
    ways = [rate.products.name for rate in measure().rates]
    table = Table(
        "D",
        "engine",
        "processes × threads",
        "products",
        "dsyrk GFLOP/s",
        "seconds",
        "multiple",
        "wanted",
    )
    for n_components in SIZES:
        for name, (make, n_threads, described, clock) in engines.items():
            dataset = datasets[name]
            here = (
                ways
                if name == "serial"
                else [measure().best(n_components).products.name]
            )
            limit = 0.0
            least = dict.fromkeys(here, float("inf"))
            for _ in range(ROUNDS):
                for way in here:
                    limit = max(
                        limit,
                        dsyrk_gflops(n_components, n_threads, rows=4096, clock=clock),
                    )
                    with products_by(way), make() as engine:
                        # starts the cluster, whose 1 to 3 seconds are not the pass's
                        engine.broadcast(None)
                        took = seconds(
                            lambda: everything(dataset, n_components, engine), clock
                        )
                    least[way] = min(least[way], took)
            for way, took in least.items():
                instructions = way if way == "float64" else byte_instructions()
                wanted = WANTED.get(instructions, {}).get((n_components, name))
                table.add_row(
                    f"{n_components:_}",
                    name,
                    described,
                    way,
                    f"{limit:.1f}",
                    f"{took:.2f}",
                    f"{dataset.n_samples * n_components**2 / took / 1e9 / limit:.3f}",
                    "" if wanted is None else f"≥ {wanted}",
                )
    console.print(table)
    with DaskEngine(n_workers=1, threads_per_worker=1) as engine:
        engine.broadcast(None)
        alone = seconds(lambda: everything(datasets["Dask"], SIZES[-1], engine))
    console.print(
        f"{cores} workers do {alone / took / cores:.2f} each of what one does at D ="
        f" {SIZES[-1]:_}"
    )
    console.print(
        f"taken here: {measure().describe(SIZES[-1])}; instructions for bytes:"
        f" {byte_instructions()}."
    )
    console.print(
        f"{N_SAMPLES:_} rows × {N_FEATURES}, {DASK_ROWS:_} with Dask, the best of"
        f" {ROUNDS} rounds in turns against the best dsyrk on as many threads; one"
        " thread in seconds of the processor. Moments, drawing, reading, features,"
        " products and integer sums are included, starting the cluster is not."
    )


@contextmanager
def products_by(way: str) -> Iterator[None]:
    """Force a way of multiplying, here and in processes that are started meanwhile."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = way
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def everything(dataset: ZarrDataset, n_components: int, engine: Engine) -> None:
    moments = inspection.inspect(dataset, engine=engine)
    feature_map = draw_feature_map(
        "gaussian",
        n_features=N_FEATURES,
        n_components=n_components,
        standardizer=standardizing.standardizer_from(moments),
    )
    passes.accumulate(dataset, feature_map, engine=engine)
