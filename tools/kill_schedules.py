"""Kill and freeze workers, clients and schedulers at random, and look at what comes of
it: `make soak`.

    python -m tools.kill_schedules --schedules 200

A schedule is up to three events of one kind; the kinds take turns.

workers     one, several or all are killed, or frozen for a while. They meet a pass in which block i
            contributes 16**i, so that a digit of the sum says how often a block was
            counted, and a fit, whose statistics must have the bits of one process
            without events. Any error is false: Dask gives a block up after more deaths
            than a schedule has events.
client      the process of `rff-dist fit` is killed, with or without workers of its own, and started again.
scheduler   the scheduler that `rff-dist fit` was sent to is killed; the command says so by its exit code, and
            is sent to another one.

Where network namespaces are allowed, the scenarios of `tools.cut_networks` follow.

What can go wrong: a wrong result, something that is left beside it, a command or a pass
that does not end, and an error that nothing calls for. A client that is killed between
publishing a model and its own end leaves the folder of its run, or its lock, to the
next run for the model, which is begun then.
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
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
from rff_dist.ridge.models import read_model
from tests.dask_processes import run_dask
from tests.plain import fit_ridge
from tests.processes import environment_of_all_cores

N_WORKERS = 3
N_BLOCKS = 60
BASE = 16  # a digit a block: how often it was counted
PATIENCE_S = 200.0  # a busy machine takes a minute to start three processes at once
HUNG_S = 300.0  # a worker that is frozen for good is left out within 60 s
N_ROWS = 200_000
N_COMPONENTS = 256


KINDS = ("workers", "client", "scheduler")
FIT = [
    "--n-components",
    "1024",
    "--alpha",
    "0.001",
    "--kernel",
    "gaussian",
    "--length-scale",
    "1",
    "--features",
]
FIT += ["fourier", "--seed", "0"]
LOST = {69, 75}  # exit codes of a command whose scheduler is not there, or went away


@dataclass(frozen=True)
class Event:
    """What happens to some of the workers, or to the one client or scheduler.

    `after`: seconds from the beginning, or from the event before; of a command from its
    start. `n_workers`: how many are hit. `frozen`: seconds for which they are stopped;
    0 kills them, infinity leaves them stopped until the end."""

    after: float
    n_workers: int
    frozen: float

    def __str__(self) -> str:
        what = (
            f"freeze {self.n_workers} for {self.frozen:.1f} s"
            if self.frozen
            else f"kill {self.n_workers}"
        )
        return f"{what} after {self.after:.1f} s"


def kind_of(seed: int) -> str:
    """Return what a schedule is about."""
    return KINDS[seed % len(KINDS)]


def draw_schedule(seed: int, kind: str = "workers") -> list[Event]:
    """Return one to three events; one schedule of workers in twenty freezes one of them
    for good.
    """
    rng = np.random.default_rng([seed, 15])
    if kind != "workers":
        return [
            Event(float(rng.uniform(0.0, 8.0)), 1, 0.0)
            for _ in range(rng.integers(1, 4))
        ]
    for_good = seed % 20 == 19
    events = []
    for _ in range(rng.integers(1, 4)):
        frozen = float(rng.uniform(0.2, 4.0)) if rng.random() < 0.4 else 0.0
        events.append(
            Event(
                float(rng.uniform(0.0, 2.0)),
                int(rng.integers(1, N_WORKERS + 1)),
                frozen,
            )
        )
    return [Event(events[0].after, 1, np.inf), *events[1:]] if for_good else events


def contribute(block: Block, seconds: float) -> int:
    """Return the block's digit, after a while."""
    time.sleep(seconds)
    return int(BASE**block.index)


def miscounted(total: int, n_blocks: int) -> dict[int, int]:
    """Return how often blocks were counted, but for those counted once; -1 is what lies
    beyond all.
    """
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
                    processes[i].send_signal(
                        signal.SIGSTOP if event.frozen else signal.SIGKILL
                    )
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
        except (
            Exception
        ) as error:  # any is false: nothing here keeps a pass from its end
            hung = isinstance(error, subprocess.TimeoutExpired)
            found.append(
                "hung" if hung else f"false message: {type(error).__name__}: {error}"
            )

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
        open_dataset(url),
        Gaussian(),
        engine=engine,
        n_components=N_COMPONENTS,
        alpha=1e-3,
        seed=0,
    )
    assert model.statistics is not None
    return str(model.statistics.digest())


class Command:
    """A fit by the command line, which is repeated until it has done its work.

    `rows`: the dataset.
    `folder`: where models are written, each in a folder of its own.
    """

    def __init__(self, rows: Path, folder: Path) -> None:
        self.rows = rows
        self.folder = folder
        self.expected = self._result("undisturbed", "client", [], 0)

    def fit(self, seed: int, kind: str, events: list[Event]) -> str | None:
        """Fit while its client or its scheduler is killed; returns what is wrong with
        what is there then.
        """
        found = self._result(str(seed), kind, events, seed % 2 * 2)
        return (
            None
            if found == self.expected
            else f"there is {found}; expected {self.expected}"
        )

    def _result(
        self, name: str, kind: str, events: list[Event], n_workers: int
    ) -> tuple[str, list[str]]:
        """Return the digest of the model that is there in the end, and the names beside
        it.
        """
        place = self.folder / name / "outputs"
        place.mkdir(parents=True)
        for event in [*events, None]:
            if (place / "model" / "zarr.json").exists():
                break
            with contextlib.ExitStack() as stack:
                engine = ["--n-workers", str(n_workers)] if n_workers else ["--serial"]
                if kind == "scheduler":
                    address, [scheduler, *_] = stack.enter_context(
                        run_dask(place.parent, n_workers=2)
                    )
                    engine = ["--scheduler", address]
                process = stack.enter_context(self._start(place / "model", engine))
                stack.callback(process.kill)
                if event is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(event.after)
                    (scheduler if kind == "scheduler" else process).kill()
                _, said = process.communicate(timeout=HUNG_S)
            called_for = LOST if kind == "scheduler" else {-signal.SIGKILL}
            if process.returncode and (
                event is None or process.returncode not in called_for
            ):
                raise RuntimeError(f"exit code {process.returncode}: {said[-500:]}")
        if len(list(place.iterdir())) > 1:
            with self._start(place / "model", ["--serial", "--overwrite"]) as process:
                process.communicate(timeout=HUNG_S)
        return str(read_model(place / "model").digest()), sorted(
            path.name for path in place.iterdir()
        )

    def _start(self, model: Path, engine: list[str]) -> "subprocess.Popen[str]":
        program = Path(sys.executable).with_name("rff-dist")
        words = [str(program), "fit", str(self.rows), str(model), *FIT, *engine]
        return subprocess.Popen(
            words,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment_of_all_cores(),
        )


def run(
    n_schedules: int,
    *,
    first: int = 0,
    only: str | None = None,
    say: Callable[[str], Any] = lambda _: None,
) -> Counter[str]:
    """Run schedules one after another; returns how many ended how: ok, wrong, hung,
    false message.

    `only`: one of `KINDS`, which all schedules are of.
    """
    ends: Counter[str] = Counter()
    seconds: list[float] = []
    engine: DaskEngine | None = None
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder) / "rows.zarr"
        X = np.random.default_rng(0).normal(size=(N_ROWS, 4))
        write_dataset(url, X, np.sin(X[:, 0]), chunk_rows=4096)
        expected = fit_digest(url, SerialEngine())
        command = Command(url, Path(folder) / "models")

        def fit(engine: Engine) -> str | None:
            found = fit_digest(url, engine)
            return None if found == expected else f"digest {found}; expected {expected}"

        for seed in range(first, first + n_schedules):
            kind = only or kind_of(seed)
            started = time.perf_counter()
            events = draw_schedule(seed, kind)
            said = []
            if kind != "workers":
                said.append(outcome(partial(command.fit, seed, kind, events)))
            else:
                engine = engine or DaskEngine(
                    n_workers=N_WORKERS, threads_per_worker=1, patience=PATIENCE_S
                )
                rng = np.random.default_rng(seed)
                for work in (sum_up, fit):
                    with happening(events, rng):
                        said.append(outcome(partial(work, engine)))
                    if said[-1] == "hung":
                        break
            seconds.append(time.perf_counter() - started)
            end = next((one for one in said if one != "ok"), "ok")
            ends[end.partition(":")[0]] += 1
            say(
                f"{seed:4}  {seconds[-1]:6.1f} s  {end}  {kind}:"
                f" {'; '.join(map(str, events))}"
            )
            if end != "ok" and engine is not None:  # closing it might hang too
                threading.Thread(target=engine.close, daemon=True).start()
                engine = None
    if engine is not None:
        engine.close()
    counts = ", ".join(
        f"{ends[kind]} {kind}" for kind in ("ok", "wrong", "hung", "false message")
    )
    median = statistics.median(seconds)
    most = max(seconds)
    say(f"{n_schedules} schedules: {counts}; {median:.1f} s each, {most:.1f} at most")
    return ends


if __name__ == "__main__":
    from tools import cut_networks  # which imports this file

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=200, metavar="N")
    parser.add_argument(
        "--first", type=int, default=0, metavar="SEED", help="to repeat one, or go on"
    )
    parser.add_argument("--only", choices=KINDS, help="what all schedules are about")
    given = parser.parse_args()
    console = Console(soft_wrap=True, highlight=False)
    found = run(given.schedules, first=given.first, only=given.only, say=console.print)
    if given.only is None:
        found.update(cut_networks.run(console.print))
    # Threads of passes that hang would keep the process.
    os._exit(0 if set(found) <= {"ok"} else 1)
