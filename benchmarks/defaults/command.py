"""What the defaults give, against other models: errors and seconds, as a table and a
picture.

`python -m benchmarks defaults --keep FOLDER` fits what FOLDER/results.jsonl lacks, and
writes FOLDER/defaults.md and FOLDER/defaults.svg. Stopped, the same command goes on.
The defaults were shaped on splits 0 to 3; splits 4 to 9 are for reports. Names are
separated by commas."""

import argparse
import math
import signal
import time
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from benchmarks.defaults import table
from benchmarks.defaults.fits import Folders, Task, read_results, run_missing
from benchmarks.defaults.models import MODELS, NAMED, OURS
from benchmarks.defaults.sets import CLASSIFICATION, N_SPLITS, UCI, regression_sets
from benchmarks.defaults.tables import FITS, TARGETS, tables_of


def main(words: list[str]) -> None:
    options = _parser().parse_args(words)
    tables = [*tables_of(options.tables)]
    known = [*regression_sets(options.data), *CLASSIFICATION, *tables]
    sets = options.sets.split(",") if options.sets else known
    if sets == ["tables"]:
        sets = tables
    models = options.models.split(",")
    stop = time.monotonic() + options.seconds
    if unknown := ({*sets} - {*known}) | ({*models} - {*MODELS}):
        raise SystemExit(
            f"unknown: {', '.join(sorted(unknown))}; sets: {', '.join(known)}"
        )
    if OURS not in models:
        raise SystemExit(f"--models lacks {OURS!r}, which all others are compared with")
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if options.data is None:
        console.print(
            "No real sets: neither --data nor RFF_DIST_UCI names their folder."
        )
    for model in list(models):
        package = MODELS[model].package
        if find_spec(package.replace("scikit-learn", "sklearn")) is None:
            console.print(
                f"{package} is not installed, and left out: python -m pip install"
                f" {package}"
            )
            models.remove(model)
    options.keep.mkdir(parents=True, exist_ok=True)
    path = options.keep / "results.jsonl"
    tasks = [
        Task(name, split, model)
        for split in options.splits
        for name in sets
        for model in models
        if _is_for(model, name)
    ]
    # in the background too, and with the fit that is running
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        fits = run_missing(
            tasks,
            path,
            Folders(options.data, options.tables),
            n_threads=options.threads,
            at_once=options.at_once,
        )
        while time.monotonic() < stop and (one := next(fits, None)):
            said = (
                one.get("failed")
                or one.get("skipped")
                or f"{one['error']:.4g} in {one['wall']:.2f} s"
            )
            console.print(f"{one['set']}, split {one['split']}, {one['model']}: {said}")
        fits.close()
    except KeyboardInterrupt:
        raise SystemExit(
            f"Stopped; the same command goes on. The results are in {path}."
        ) from None
    results = {
        task: one for task, one in read_results(path).items() if task in {*tasks}
    }
    written = table.write(results, options.splits, options.keep, sets)
    console.print(
        f"The table of {len(results)} of these {len(tasks)} fits is {written}."
    )


def _is_for(model: str, name: str) -> bool:
    """Return whether a model is fitted to a set."""
    if name in TARGETS:
        return model in FITS
    return model not in NAMED or name not in CLASSIFICATION


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "benchmarks defaults", description=__doc__, formatter_class=layout
    )
    add = parser.add_argument
    add(
        "--keep",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="of results, table and picture",
    )
    add(
        "--data",
        metavar="FOLDER",
        type=Path,
        default=UCI,
        help="of real sets; by default RFF_DIST_UCI names it",
    )
    add(
        "--tables",
        metavar="FOLDER",
        type=Path,
        help="of CSV files with text, dates and gaps; their names and targets stand in"
        " benchmarks/defaults/tables.py",
    )
    add(
        "--splits",
        type=parse_splits,
        default="0-3",
        help="such as 4-9 or 0,1; by default %(default)s",
    )
    add("--models", default=",".join(MODELS), help="by default %(default)s")
    add("--sets", help="by default all; `tables` is those of --tables")
    add(
        "--seconds",
        type=float,
        default=math.inf,
        help="begin no fit later; the table is of what there is",
    )
    add(
        "--threads",
        type=int,
        default=2,
        help="of each fit, on as many cores; by default %(default)s",
    )
    add(
        "--at-once",
        type=int,
        default=1,
        help="fits at the same time; by default %(default)s",
    )
    return parser


def parse_splits(text: str) -> list[int]:
    """Return the splits of a text such as 4-9 or 0,1.

    Raises argparse.ArgumentTypeError if one does not exist, or if splits that shaped
    the defaults are mixed with others."""
    ends = [part.partition("-")[::2] for part in text.split(",")]
    splits = sorted(
        {
            split
            for first, last in ends
            for split in range(int(first), int(last or first) + 1)
        }
    )
    if not splits or not 0 <= splits[0] <= splits[-1] < N_SPLITS:
        raise argparse.ArgumentTypeError(
            f"{text}: expected some of 0 to {N_SPLITS - 1}"
        )
    if splits[0] in table.SHAPED_ON and splits[-1] not in table.SHAPED_ON:
        raise argparse.ArgumentTypeError(
            f"{text}: defaults were shaped on 0 to 3; take those or others"
        )
    return splits
