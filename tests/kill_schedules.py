"""Kill and freeze workers at random while they work, and look at what comes of it: `make soak`.

    python -m tests.kill_schedules --schedules 200

A schedule is up to three events: one worker, several or all are killed, or frozen for a while. It meets a
pass in which block i contributes 16**i, so that a digit of the sum says how often a block was counted, and a
fit, whose statistics must have the bits of one process without events. What can go wrong: a wrong result, a
pass that does not end, and an error. Any is false: Dask gives a block up after more deaths than a schedule
has events.
"""

import argparse
import contextlib
import os
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console

from rff_dist import DaskEngine, Gaussian, SerialEngine, open_dataset, write_dataset
from rff_dist.data.blocks import Block, cut_blocks
from rff_dist.engines.protocol import Engine
from tests.plain import fit_ridge

N_WORKERS, N_BLOCKS = 3, 60
BASE = 16  # a digit a block: how often it was counted
PATIENCE_S = 200.0  # a busy machine takes a minute to start three processes at once
HUNG_S = 300.0  # a worker that is frozen for good is left out within 60 s
N_ROWS, N_COMPONENTS = 200_000, 256


@dataclass(frozen=True)
class Event:
    """What happens to some of the workers.

    `after`: seconds from the beginning, or from the event before.
    `n_workers`: how many are hit.
    `frozen`: seconds for which they are stopped; 0 kills them, infinity leaves them stopped until the end.
    """

    after: float
    n_workers: int
    frozen: float

    def __str__(self) -> str:
        what = f"freeze {self.n_workers} for {self.frozen:.1f} s" if self.frozen else f"kill {self.n_workers}"
        return f"{what} after {self.after:.1f} s"


def draw_schedule(seed: int) -> list[Event]:
    """Return one to three events; one schedule in twenty freezes a worker for good."""
    rng = np.random.default_rng([seed, 15])
    for_good = seed % 20 == 19
    events = []
    for _ in range(rng.integers(1, 4)):
        frozen = float(rng.uniform(0.2, 4.0)) if rng.random() < 0.4 else 0.0
        events.append(Event(float(rng.uniform(0.0, 2.0)), int(rng.integers(1, N_WORKERS + 1)), frozen))
    return [Event(events[0].after, 1, np.inf), *events[1:]] if for_good else events


def contribute(block: Block, seconds: float) -> int:
    """Return the block's digit, after a while."""
    time.sleep(seconds)
    return int(BASE**block.index)


def miscounted(total: int, n_blocks: int) -> dict[int, int]:
    """Return how often blocks were counted, but for those counted once; -1 is what lies beyond all."""
    counts = {i: total // BASE**i % BASE for i in range(n_blocks)}
    beyond = {-1: total // BASE**n_blocks} if total >= BASE**n_blocks else {}
    return {i: count for i, count in counts.items() if count != 1} | beyond


def worker_processes() -> list[psutil.Process]:
    """Return the processes of this one's embedded workers."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


@contextlib.contextmanager
def happening(events: list[Event], rng: np.random.Generator) -> Iterator[None]:
    """Let the events happen meanwhile, as far as there is time."""
    over = threading.Event()

    def play() -> None:
        for event in events:
            if over.wait(event.after):
                return
            processes = worker_processes()
            hit = rng.permutation(len(processes))[: event.n_workers]
            for i in hit:
                with contextlib.suppress(psutil.Error):
                    processes[i].send_signal(signal.SIGSTOP if event.frozen else signal.SIGKILL)
            if event.frozen:
                over.wait(None if event.frozen == np.inf else event.frozen)
                for i in hit:
                    with contextlib.suppress(psutil.Error):
                        processes[i].send_signal(signal.SIGCONT)

    player = threading.Thread(target=play)
    player.start()
    try:
        yield
    finally:
        over.set()
        player.join()


def outcome(work: Callable[[], str | None]) -> str:
    """Return "ok", or what went wrong; waits for `HUNG_S` at the most."""
    found: list[str] = []

    def run() -> None:
        try:
            wrong = work()
            found.append("ok" if wrong is None else f"wrong: {wrong}")
        except Exception as error:  # any is false: nothing here keeps a pass from its end
            found.append(f"false message: {type(error).__name__}: {error}")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HUNG_S)
    return found[0] if found else "hung"


def sum_up(engine: Engine) -> str | None:
    """Run the pass of digits; returns which blocks were miscounted, None for none."""
    blocks = cut_blocks(N_BLOCKS, 1, rows_per_block=1)
    total = engine.map_reduce(contribute, blocks, 0.05, combine=lambda a, b: a + b)
    wrong = miscounted(total, N_BLOCKS)
    return f"times that blocks were counted: {wrong}" if wrong else None


def fit_digest(url: Path, engine: Engine) -> str:
    """Return the digest of a fit's statistics."""
    model, _ = fit_ridge(
        open_dataset(url), Gaussian(), engine=engine, n_components=N_COMPONENTS, alpha=1e-3, seed=0
    )
    assert model.statistics is not None
    return str(model.statistics.digest())


def run(n_schedules: int, *, first: int = 0, say: Callable[[str], Any] = lambda _: None) -> Counter[str]:
    """Run schedules one after another; returns how many ended how: ok, wrong, hung, false message."""
    ends: Counter[str] = Counter()
    seconds: list[float] = []
    engine: DaskEngine | None = None
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder) / "rows.zarr"
        X = np.random.default_rng(0).normal(size=(N_ROWS, 4))
        write_dataset(url, X, np.sin(X[:, 0]), chunk_rows=4096)
        expected = fit_digest(url, SerialEngine())

        def fit(engine: Engine) -> str | None:
            found = fit_digest(url, engine)
            return None if found == expected else f"digest {found}; expected {expected}"

        for seed in range(first, first + n_schedules):
            engine = engine or DaskEngine(n_workers=N_WORKERS, threads_per_worker=1, patience=PATIENCE_S)
            events, rng = draw_schedule(seed), np.random.default_rng(seed)
            said, started = [], time.perf_counter()
            for work in (sum_up, fit):
                with happening(events, rng):
                    said.append(outcome(partial(work, engine)))
                if said[-1] == "hung":
                    break
            seconds.append(time.perf_counter() - started)
            end = next((one for one in said if one != "ok"), "ok")
            ends[end.partition(":")[0]] += 1
            say(f"{seed:4}  {seconds[-1]:6.1f} s  {end}  {'; '.join(map(str, events))}")
            if end != "ok":  # closing it might hang too
                threading.Thread(target=engine.close, daemon=True).start()
                engine = None
    if engine is not None:
        engine.close()
    counts = ", ".join(f"{ends[kind]} {kind}" for kind in ("ok", "wrong", "hung", "false message"))
    median, most = statistics.median(seconds), max(seconds)
    say(f"{n_schedules} schedules: {counts}; {median:.1f} s each, {most:.1f} at most")
    return ends


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=200, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="to repeat one, or go on")
    arguments = parser.parse_args()
    found = run(
        arguments.schedules, first=arguments.first, say=Console(soft_wrap=True, highlight=False).print
    )
    # Threads of passes that hang would keep the process.
    os._exit(0 if set(found) <= {"ok"} else 1)
