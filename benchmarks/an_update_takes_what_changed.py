"""What an update takes of a first fit, where few chunks of a million rows changed, and
what it reads.

1 % of the rows are appended, 0.1 % corrected and 0.1 % deleted in one chunk of 62. A
correction's chunk must be read as it was and as it is, so what is read is compared with
both versions of the chunks that differ, and with one of each place. The rows that are
held out for the gate come on top."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rff_dist.engines.events import Event, PassFinished, PassStarted
from rff_dist.engines.serial import SerialEngine
from rff_dist.fields import build
from rff_dist.ridge.models import read_model
from rff_dist.statistics import passes
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.corrections import delete_rows, replace_rows
from rff_dist.storage.datasets import compare_versions, open_dataset
from rff_dist.storage.writing import WriteOptions
from rff_dist.workbench.jobs.refresh import update_from
from rff_dist.workbench.jobs.specs import Train, Update
from rff_dist.workbench.jobs.steps import Runner, Step, in_this_process
from rff_dist.workbench.jobs.train import train
from rff_dist.workbench.tables.generate import RandomRows, generate_dataset

N_SAMPLES = 1_000_000
N_FEATURES = 32
CHUNK_ROWS = 2**14
N_COMPONENTS = (512, 2048)
N_APPENDED = N_SAMPLES // 100
N_CORRECTED = N_SAMPLES // 1000
N_DELETED = N_SAMPLES // 1000
# the steps of a fit
FITTED = ("measure", "choose", "draw", "broadcast", "accumulate", "solve")


class Clock:
    """CPU seconds of the steps of a job, and of the passes in each."""

    def __init__(self) -> None:
        # threads that wait would count
        self.engine = SerialEngine(1, observers=(self,))
        self.runner = Runner(in_this_process(self.engine).open_engine, self.call)
        self.steps: dict[str, list[float]] = {}
        self._step = ""
        self._begun = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, PassStarted):
            self._begun = time.process_time()
        elif isinstance(event, PassFinished):
            self.steps[self._step][0] += time.process_time() - self._begun

    def call(self, step: Step) -> Any:
        with self.timed(step.name):
            return step()

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        self._step = step
        begun = time.process_time()
        self.steps[step] = [0.0, 0.0]
        yield
        self.steps[step][1] = time.process_time() - begun - self.steps[step][0]


def bytes_read() -> int:
    """Return what this process has read from files, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def rows(n_samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, N_FEATURES)).astype(np.float32)
    return X, smooth(X.astype(np.float64)) + 0.1 * rng.standard_normal(n_samples)


def smooth(X: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(X[:, 0]) + X[:, 1] * X[:, 2])


def run(console: Console, folder: Path) -> None:
    for n_components in N_COMPONENTS:
        url = folder / f"{n_components}.zarr"
        model = folder / f"model-{n_components}"
        how = WriteOptions(CHUNK_ROWS, versioned=True)
        generate_dataset(
            url, smooth, RandomRows(N_SAMPLES, N_FEATURES, noise=0.1, seed=0), how
        )
        fit = fit_first(url, model, n_components)
        champion = read_model(model)
        first_row = 7 * CHUNK_ROWS
        replace_rows(
            url, np.arange(first_row, first_row + N_CORRECTED), *rows(N_CORRECTED, 1)
        )
        delete_rows(url, np.arange(first_row + 5000, first_row + 5000 + N_DELETED))
        append_dataset(url, *rows(N_APPENDED, 2))
        update = Clock()
        dataset = open_dataset(url)
        before = bytes_read()
        job = build(Update, {"model": str(model), "data": str(url)})
        found = update_from(job, dataset, update.runner)
        n_read = bytes_read() - before
        assert found.record["decision"] == "published", found.record
        whole = passes.accumulate(
            dataset,
            champion.feature_map,
            engine=SerialEngine(),
            spec=champion.statistics.spec,
        )
        assert found.challenger.statistics.digest() == whole.digest()
        parts = zip(*(fit.steps[name] for name in FITTED), strict=True)
        tell_times(console, n_components, [sum(part) for part in parts], update.steps)
        _, _, spans = compare_versions(dataset, champion.card["data_version"])
        places = {start // CHUNK_ROWS for start, _ in spans}
        new = set(
            range(-(-N_SAMPLES // CHUNK_ROWS), -(-dataset.n_samples // CHUNK_ROWS))
        )
        n_chunks = n_read / (CHUNK_ROWS * (4 * N_FEATURES + 8))
        console.print(
            f"read {n_read / 2**20:.1f} MiB,"
            f" {n_chunks / (2 * len(places) + len(new)):.2f} times the chunks that the"
            f" two versions do not share, {n_chunks / len(places | new):.2f} times one"
            " of each place"
        )


def fit_first(url: Path, model: Path, n_components: int) -> Clock:
    options = {
        "kernel": "gaussian",
        "length_scale": 8.0,
        "features": "fourier",
        "n_components": n_components,
        "alpha": "gcv",
        "precision": "standard",
        "standardize": True,
    }
    clock = Clock()
    train(
        build(Train, {"data": str(url), "model": str(model), **options}), clock.runner
    )
    return clock


def tell_times(
    console: Console,
    n_components: int,
    fit: Sequence[float],
    update: Mapping[str, Sequence[float]],
) -> None:
    first, solve = fit
    title = (
        f"D = {n_components:,}; the first fit: {first:.2f} CPU s in passes, {solve:.2f}"
        " besides"
    )
    columns = (
        "step of the update",
        "CPU s in passes",
        "besides",
        "of the first fit's passes",
    )
    table = Table(*columns, title=title)
    for name, (summed, besides) in update.items():
        table.add_row(
            name, f"{summed:.2f}", f"{besides:.2f}", f"{(summed + besides) / first:.1%}"
        )
    console.print(table)
    solving = sum(update[name][1] for name in ("hold out", "solve", "gate"))
    total = sum(map(sum, update.values()))
    console.print(
        f"{(total - solving) / first:.1%} of the first fit's passes, and"
        f" {solving / solve:.2f} times what it solved in; all of it"
        f" {total / (first + solve):.1%}"
    )
