"""Fits, each in a fresh process with cores of its own, that has imported what all of
them import.

The results stand in a file of JSON lines, of which the table is made. To fit a model
again, delete its lines."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import log_loss

from benchmarks.defaults.models import MODELS, OURS, Fit
from benchmarks.defaults.sets import CLASSIFICATION, Split, regression_sets
from benchmarks.defaults.tables import (
    CLASSES,
    FITS,
    TARGETS,
    TableSplit,
    error_of,
    measure_of,
    tables_of,
)
from benchmarks.measure import describe_processor

COVERAGE = 0.9

type Result = dict[str, Any]


class Folders(NamedTuple):
    """Where real sets of numbers are, and where tables are."""

    sets: Path | None = None
    tables: Path | None = None


class Task(NamedTuple):
    """One fit: the name of a set, the number of a split and the name of a model."""

    set: str
    split: int
    model: str


def read_results(path: Path) -> dict[Task, Result]:
    """Return the latest result of each task; none where there is no file."""
    results = (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )
    return {
        Task(result["set"], result["split"], result["model"]): result
        for result in results
    }


def run_missing(
    tasks: list[Task],
    path: Path,
    folders: Folders,
    *,
    n_threads: int,
    at_once: int = 1,
) -> Generator[Result, None, None]:
    """Fit what failed, or has no result by this version of its package; append and
    yield each result.

    `n_threads`: of each fit, which has as many cores for itself.
    `at_once`: how many are fitted at the same time.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < n_threads * at_once:
        raise SystemExit(
            f"{at_once} fits of {n_threads} cores each need more than the {len(cores)}"
            " there are"
        )
    free: SimpleQueue[list[int]] = SimpleQueue()
    for one in range(at_once):
        free.put(cores[one * n_threads : (one + 1) * n_threads])
    os.environ |= dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(n_threads)
    )
    # what a fit imports would be compiled in its seconds
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    known = read_results(path)
    running = set[BaseProcess]()

    def run(task: Task) -> Result:
        own = free.get()
        result = task._asdict() | _circumstances(task.model, n_threads, at_once)
        result |= _in_a_process(task, folders, own, running)
        free.put(own)
        return result

    missing = [
        task
        for task in tasks
        if "failed" in (found := known.get(task, {"failed": "not yet fitted"}))
        or found["version"] != version(MODELS[task.model].package)
    ]
    with ThreadPoolExecutor(at_once) as pool:
        fits = [pool.submit(run, task) for task in missing]
        try:
            for done in as_completed(fits):
                with path.open("a") as file:
                    file.write(json.dumps(done.result()) + "\n")
                yield done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in [*running]:
                process.kill()


def _in_a_process(
    task: Task, folders: Folders, cores: list[int], running: set[BaseProcess]
) -> Result:
    """Return the result of a fit in a process forked from one that has imported this
    module and no more.

    A new interpreter takes 3 s of CPU to import it, which is longer than most fits.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, task, folders, cores))
    process.start()
    running.add(process)
    sender.close()
    try:
        found: Result = receiver.recv()
        process.join()
    except EOFError:
        process.join()
        return {"failed": f"exit status {process.exitcode}"}
    finally:
        running.discard(process)
        process.kill()
        process.join()
    return found


def _send(sender: Connection, task: Task, folders: Folders, cores: list[int]) -> None:
    os.sched_setaffinity(0, cores)
    try:
        sender.send(fit_and_score(task, folders, len(cores)))
    except Exception as error:
        sender.send({"failed": f"{type(error).__name__}: {error}"})


def _circumstances(model: str, n_threads: int, at_once: int) -> Result:
    commit = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--exclude=*",
    ]
    return {
        "version": version(MODELS[model].package),
        "commit": (
            subprocess.run(
                commit, capture_output=True, text=True, check=True
            ).stdout.strip()
        ),
        "processor": describe_processor(),
        "threads": n_threads,
        "at_once": at_once,
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


def fit_and_score(task: Task, folders: Folders, n_threads: int) -> Result:
    """Fit in this process; return errors on the rows held out, seconds of the fit, and
    what it warned of.
    """
    if task.set in TARGETS:
        return _fit_table(task, folders.tables, n_threads)
    classes = task.set in CLASSIFICATION
    model = MODELS[task.model]
    data = (CLASSIFICATION if classes else regression_sets(folders.sets))[task.set](
        task.split
    )
    n, d = data.X.shape
    result: Result = {"classes": classes, "n": n, "d": d, "digest": data.digest}
    if not model.least_rows <= n <= model.most_rows:
        return result | {
            "skipped": (
                f"{n:,} rows; it is for {model.least_rows:,} to {model.most_rows:,}"
            )
        }
    fitted, watched = _fit(model.build(classes, n_threads), data)
    result |= watched
    # CatBoost's classes are a column
    predicted = np.reshape(fitted.predict(data.X_test), len(data.X_test))
    if classes:
        probabilities = fitted.predict_proba(data.X_test)
        result["error"] = float(np.mean(predicted != data.y_test))
        result["log_loss"] = float(
            log_loss(data.y_test, probabilities, labels=np.unique(data.y))
        )
    else:
        result["error"] = float(
            np.sqrt(np.mean((predicted - data.y_test) ** 2)) / data.y.std()
        )
    if not np.isfinite(result["error"]):
        raise ValueError("predictions are not finite")
    if task.model == OURS and not classes:
        lower, upper = fitted.predict_interval(data.X_test, coverage=COVERAGE)
        result["coverage"] = float(
            np.mean((lower <= data.y_test) & (data.y_test <= upper))
        )
    return result


def _fit_table(task: Task, folder: Path | None, n_threads: int) -> Result:
    """Fit a table with its texts, dates and gaps; return one error, by the measure that
    suits its target.
    """
    data = tables_of(folder)[task.set](task.split)
    n, d = data.X.shape
    classes = task.set in CLASSES
    measure = measure_of(data, classes=classes)
    fitted, watched = _fit(FITS[task.model](classes, n_threads), data)
    error = error_of(fitted, data, measure)
    if not np.isfinite(error):
        raise ValueError("predictions are not finite")
    found = {"measure": measure, "error": error, "n": n, "d": d}
    return found | {"classes": classes, "digest": data.digest} | watched


def _fit(fit: Fit, data: Split | TableSplit) -> tuple[Any, Result]:
    """Return what was fitted, and seconds and warnings of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        cpu_start = _cpu_seconds()
        fitted = fit(data.X, data.y)
        watched: Result = {
            "wall": time.perf_counter() - start,
            "cpu": _cpu_seconds() - cpu_start,
        }
    if caught:
        texts = {f"{one.category.__name__}: {one.message}" for one in caught}
        watched["warned"] = sorted(texts)
    return fitted, watched


def _cpu_seconds() -> float:
    """Of this process with all its threads, and of the children that it has waited
    for.
    """
    return time.process_time() + sum(os.times()[2:4])
