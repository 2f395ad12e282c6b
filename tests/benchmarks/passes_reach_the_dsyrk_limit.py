"""From Zarr to statistics, everything included: share of the rate of one large dsyrk on as many threads."""

import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rff_dist import DaskEngine, SerialEngine, draw_feature_map
from rff_dist.engines.protocol import Engine
from rff_dist.statistics import inspection, passes
from rff_dist.storage.datasets import ZarrDataset
from tests.benchmarks.measure import dsyrk_gflops, make_data, seconds

ROUNDS = 3
N_SAMPLES, N_FEATURES = 65_536, 32
SIZES = (1024, 2048, 4096)
# shares of 1 thread and of Dask on all cores
WANTED = {(1024, "serial"): 0.85, (4096, "serial"): 0.90, (4096, "Dask"): 0.85}


def run(console: Console, folder: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    dataset = make_data(folder, N_SAMPLES, N_FEATURES)
    engines: dict[str, tuple[Callable[[], Engine], int, str]] = {
        "serial": (lambda: SerialEngine(n_threads=1), 1, "1 × 1"),
        "serial, threads": (lambda: SerialEngine(n_threads=cores), cores, f"1 × {cores}"),
        "Dask": (lambda: DaskEngine(n_workers=cores, threads_per_worker=1), cores, f"{cores} × 1"),
    }
    table = Table("D", "engine", "processes × threads", "dsyrk GFLOP/s", "seconds", "share", "wanted")
    for n_components in SIZES:
        found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in engines}
        for _ in range(ROUNDS):
            for name, (make, n_threads, _) in engines.items():
                before = dsyrk_gflops(n_components, n_threads, rows=4096)
                with make() as engine:
                    engine.broadcast(None)  # starts the cluster, whose 1 to 3 seconds are not the pass's
                    took = seconds(lambda: everything(dataset, n_components, engine))  # noqa: B023
                limit = max(before, dsyrk_gflops(n_components, n_threads, rows=4096))
                found[name].append((N_SAMPLES * n_components**2 / took / 1e9 / limit, limit, took))
        for name, runs in found.items():
            share, limit, took = sorted(runs)[len(runs) // 2]
            wanted = WANTED.get((n_components, name))
            table.add_row(
                f"{n_components:_}",
                name,
                engines[name][2],
                f"{limit:.1f}",
                f"{took:.2f}",
                f"{share:.3f}",
                "" if wanted is None else f"≥ {wanted}",
            )
    console.print(table)
    console.print(
        f"{N_SAMPLES:_} rows × {N_FEATURES}, the median of {ROUNDS} rounds in turns, each a share of the "
        "faster dsyrk just before and after it. Moments, drawing, reading, features, products and integer "
        "sums are included, starting the cluster is not."
    )


def everything(dataset: ZarrDataset, n_components: int, engine: Engine) -> None:
    moments = inspection.inspect(dataset, engine=engine)
    feature_map = draw_feature_map(
        "gaussian",
        n_features=N_FEATURES,
        n_components=n_components,
        standardizer=inspection.standardizer_from(moments),
    )
    passes.accumulate(dataset, feature_map, engine=engine)
