"""What keeping sums takes of a pass, and how many rows are read again after its process
was killed.

Passes of 200,000 rows with and without a ledger take turns, and their medians are
compared: turns of one kind differ by a tenth where others use the machine too. Then a
process kills itself at a half and at nine tenths of a pass; sums are kept by what that
costs, so a pass of few seconds repeats more than a long one."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from rff_dist.engines.events import BlockDone, Event, PassResumed
from rff_dist.engines.serial import SerialEngine
from rff_dist.features.draw import draw_feature_map
from rff_dist.statistics.passes import accumulate
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.ledger import open_ledger
from rff_dist.storage.locations import parse_location
from rff_dist.storage.writing import write_dataset

N_SAMPLES = 200_000
N_FEATURES = 16
ROUNDS = {2048: 12, 4096: 4}  # by the number of components


def sum_up(
    folder: Path, n_components: int, engine: SerialEngine, *, keeps: bool
) -> RidgeStatistics:
    dataset = open_dataset(folder / "data.zarr")
    features = draw_feature_map(
        "gaussian", n_features=N_FEATURES, n_components=n_components
    )
    ledger = open_ledger(parse_location(folder / "ledger")) if keeps else None
    with engine.keeping(ledger):
        return accumulate(dataset, features, engine=engine)


class Watch:
    """An observer that looks at what is kept, and when the first block begins."""

    def __init__(self) -> None:
        self.n_kept = 0
        self.first = math.inf

    def __call__(self, event: Event) -> None:
        match event:
            case PassResumed():
                self.n_kept = event.n_kept
            case BlockDone(seconds=seconds) if seconds > 0:
                self.first = min(self.first, time.perf_counter() - seconds)


def run(console: Console, folder: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_SAMPLES, N_FEATURES)).astype(np.float32)
    write_dataset(folder / "data.zarr", X, X[:, 0])
    ledger = open_ledger(parse_location(folder / "ledger"))
    costs = Table("D", "seconds", "with a ledger", "CPU seconds", "with a ledger")
    again = Table(
        "D", "killed at", "of the pass again", "seconds until the first block"
    )
    for n_components, rounds in ROUNDS.items():
        found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        digests = set()
        for turn in range(2 * rounds):
            keeps = turn % 4 in (1, 2)
            wall = time.perf_counter()
            cpu = time.process_time()
            digests.add(
                sum_up(folder, n_components, SerialEngine(), keeps=keeps).digest()
            )
            found[keeps].append((time.perf_counter() - wall, time.process_time() - cpu))
            ledger.drop()
        plain, kept = (np.median(found[keeps], axis=0) for keeps in (False, True))
        ratios = (f"× {b / a:.3f}" for a, b in zip(plain, kept, strict=True))
        costs.add_row(
            f"{n_components:,}",
            f"{plain[0]:.2f}",
            next(ratios),
            f"{plain[1]:.2f}",
            next(ratios),
        )
        for share in (0.5, 0.9):
            words = [folder, n_components, share]
            ended = subprocess.run(
                [sys.executable, "-m", __name__, *map(str, words)], check=False
            )
            assert ended.returncode == -signal.SIGKILL
            watch = Watch()
            start = time.perf_counter()
            engine = SerialEngine(observers=(watch,))
            digests.add(sum_up(folder, n_components, engine, keeps=True).digest())
            repeated = share - watch.n_kept / N_SAMPLES
            first = watch.first - start
            again.add_row(
                f"{n_components:,}", f"{share:.0%}", f"{repeated:.1%}", f"{first:.2f}"
            )
            ledger.drop()
        assert len(digests) == 1
    console.print(costs)
    console.print(again)


def main(folder: Path, n_components: int, share: float) -> None:
    """Sum up, and kill this process."""
    n_left = share * N_SAMPLES

    def kill(event: Event) -> None:
        nonlocal n_left
        if isinstance(event, BlockDone):
            n_left -= event.block.n_samples
            if n_left < event.block.n_samples / 2:
                os.kill(os.getpid(), signal.SIGKILL)

    sum_up(folder, n_components, SerialEngine(observers=(kill,)), keeps=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
