"""How many empty blocks a second a client drives on two workers, in passes of 62 and of
60,000 blocks.
"""

import operator
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rff_dist.data.blocks import Block, cut_blocks
from rff_dist.engines.dask import DaskEngine

ROUNDS = 3


def run(console: Console, folder: Path) -> None:
    table = Table(
        "blocks of a pass", "blocks a second", "CPU of client and scheduler, µs a block"
    )

    def count(block: Block, _: None) -> int:
        return 1

    with DaskEngine(n_workers=2, threads_per_worker=1) as engine:
        for n_blocks in (62, 60_000):
            blocks = cut_blocks(n_blocks, 1, rows_per_block=1)
            found = []
            for _ in range(ROUNDS):
                wall = time.perf_counter()
                cpu = time.process_time()
                assert (
                    engine.map_reduce(count, blocks, None, combine=operator.add)
                    == n_blocks
                )
                found.append((time.perf_counter() - wall, time.process_time() - cpu))
            rates = [n_blocks / wall for wall, _ in found]
            costs = [1e6 * cpu / n_blocks for _, cpu in found]
            table.add_row(f"{n_blocks:,}", f"{max(rates):,.0f}", f"{min(costs):,.0f}")
    console.print(table)
