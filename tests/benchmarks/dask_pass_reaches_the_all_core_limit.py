"""From Zarr to statistics on the embedded Dask cluster: share of the rate of dsyrk with all cores."""

import os
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rff_dist import DaskEngine, SerialEngine, draw_feature_map
from rff_dist.engines.protocol import Engine
from rff_dist.statistics import inspection, passes
from tests.benchmarks.measure import dsyrk_gflops, make_data, seconds

ROUNDS = 3
N_COMPONENTS = 4096
BLOCK_ROWS = 16_384


def run(console: Console, folder: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    n_samples = BLOCK_ROWS * 4 * cores
    dataset = make_data(folder, n_samples, 32)

    def everything(engine: Engine) -> None:
        moments = inspection.inspect(dataset, engine=engine)
        standardizer = inspection.standardizer_from(moments)
        feature_map = draw_feature_map(
            "gaussian", n_features=32, n_components=N_COMPONENTS, standardizer=standardizer
        )
        passes.accumulate(dataset, feature_map, engine=engine)

    table = Table("engine", "processes × threads", "blocks", "dsyrk GFLOP/s", "seconds", "share", "wanted")
    engines = {
        "Dask": (
            lambda: DaskEngine(n_workers=cores, threads_per_worker=1),
            f"{cores} × 1",
            "≥ 0.85, by bytes 1.2",
        ),
        "Dask, threads": (lambda: DaskEngine(n_workers=1, threads_per_worker=cores), f"1 × {cores}", ""),
        "serial, threads": (lambda: SerialEngine(n_threads=cores), f"1 × {cores}", ""),
    }
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for _ in range(ROUNDS):
        for name, (make, _, _) in engines.items():
            before = dsyrk_gflops(N_COMPONENTS, cores)
            with make() as engine:
                engine.broadcast(None)  # starts the cluster, whose 1 to 3 seconds are not the pass's
                took = seconds(lambda: everything(engine))
            results[name].append((max(before, dsyrk_gflops(N_COMPONENTS, cores)), took))
    blocks = str(len(inspection.blocks_of(dataset)))
    for name, (_, layout, wanted) in engines.items():
        shares = [n_samples * N_COMPONENTS**2 / took / 1e9 / limit for limit, took in results[name]]
        share = statistics.median(shares)
        limit, took = results[name][shares.index(share)]
        table.add_row(name, layout, blocks, f"{limit:.1f}", f"{took:.1f}", f"{share:.3f}", wanted)
    console.print(table)
    console.print(
        f"D = {N_COMPONENTS:_}, {n_samples:_} rows × 32, the median of {ROUNDS} rounds in turns, each "
        "a share of the faster dsyrk just before and after it; one BLAS thread per Python thread; starting "
        "the cluster is not included."
    )
