"""Jobs in processes of their own, which kill themselves with SIGKILL after some blocks.

`python -m tests.stopped_jobs LABEL N WORDS` runs a command of rff-dist, which ends at
the Nth block of passes called LABEL; with `--interrupt` behind them by Ctrl-C. `…
WORKERS N FOLDER` sums up a dataset on a cluster, and ends after N blocks."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rff_dist import (
    DaskEngine,
    RidgeStatistics,
    accumulate,
    draw_feature_map,
    open_dataset,
)
from rff_dist.data.blocks import Rows
from rff_dist.engines import events, resuming
from rff_dist.engines.events import BlockDone, Event
from rff_dist.engines.protocol import Engine
from rff_dist.storage.ledger import FileLedger, open_ledger
from rff_dist.storage.locations import parse_location
from tests.processes import environment_of_all_cores


class Eager(FileLedger):
    """A ledger to which keeping sums costs nothing, so that those of small tests are
    kept.
    """

    def seconds(self, total: Any) -> float:
        return 0.0


class Kill:
    """An observer that kills its process at a block."""

    def __init__(
        self, n_blocks: int, label: str, by: signal.Signals = signal.SIGKILL
    ) -> None:
        self.n_left = n_blocks
        self.label = label
        self.by = by

    def __call__(self, event: Event) -> None:
        if isinstance(event, BlockDone) and event.label == self.label:
            self.n_left -= 1
            if not self.n_left:
                os.kill(os.getpid(), self.by)


def eager_ledger(folder: Path) -> Eager:
    found = open_ledger(parse_location(folder))
    return Eager(found.location, found.token)


def sum_up(folder: Path, engine: Engine) -> RidgeStatistics:
    """Accumulate the dataset in a folder with a ledger beside it."""
    dataset = open_dataset(folder / "data.zarr")
    features = draw_feature_map(
        "gaussian", n_features=dataset.n_features, n_components=64
    )
    with engine.keeping(eager_ledger(folder / "ledger")):
        return accumulate(dataset, features, engine=engine)


def sum_slowly(rows: Rows, folder: str, total: np.ndarray | None = None) -> np.ndarray:
    """Add a block's rows, and write down that this was done, and by which process."""
    total = np.zeros(1) if total is None else total
    with open(Path(folder) / "done", "a") as file:
        file.write(f"{rows.block.index} {os.getpid()}\n")
    time.sleep(0.2)
    total += rows.X.astype(np.float64).sum()
    return total


def run_killed(*words: object) -> "subprocess.CompletedProcess[str]":
    """Run this module as a process, and return how it ended."""
    return subprocess.run(
        [sys.executable, "-m", "tests.stopped_jobs", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environment_of_all_cores(),
    )


def main(label: str, n_blocks: str, words: Sequence[str]) -> None:
    resuming.LEAST_SHARE = 0.0
    if label.isdecimal():
        observers = (Kill(int(n_blocks), "accumulate"),)
        with DaskEngine(
            n_workers=int(label), threads_per_worker=1, observers=observers
        ) as engine:
            sum_up(Path(words[0]), engine)
        return
    from rff_dist.workbench.cli import main as run_command

    by = signal.SIGINT if words[-1] == "--interrupt" else signal.SIGKILL
    kill = Kill(int(n_blocks), label, by)
    announce = events.Announcer.__call__

    def announce_and_kill(announcer: events.Announcer, event: Event) -> None:
        announce(announcer, event)
        kill(event)

    events.Announcer.__call__ = announce_and_kill  # type: ignore[method-assign]
    FileLedger.seconds = Eager.seconds  # type: ignore[method-assign]
    sys.argv = ["rff-dist", *(word for word in words if word != "--interrupt")]
    run_command()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
