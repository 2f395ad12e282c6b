"""Errors against seconds over `effort` and `time_limit`, as a picture.

`python -m benchmarks.defaults.front --keep FOLDER --data FOLDER` fits what
FOLDER/front.json lacks, and writes FOLDER/front.svg: a panel for each set."""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.defaults.command import parse_splits
from benchmarks.defaults.sets import UCI, regression_sets
from benchmarks.defaults.table import BLUE, INK
from rff_dist import RFFRidge

SETS = "concrete,airfoil,elevators,pol"
OPTIONS = [("effort", value) for value in (1, 2, 3)]
SECONDS = (1, 3, 10, 30, 100, 300)
OPTIONS += [("time_limit", seconds) for seconds in (3, 10, 30)]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=UCI)
    parser.add_argument("--sets", default=SETS)
    parser.add_argument("--splits", type=parse_splits, default="0,1")
    given = parser.parse_args(words)
    path = given.keep / "front.json"
    fits = json.loads(path.read_text()) if path.exists() else []
    known = [fit[:4] for fit in fits]
    tasks = itertools.product(given.sets.split(","), given.splits, OPTIONS)
    for name, split, (option, value) in tasks:
        if [name, split, option, value] in known:
            continue
        data = regression_sets(given.data)[name](split)
        start = time.perf_counter()
        model = RFFRidge(random_state=0, **{option: value}).fit(data.X, data.y)
        seconds = time.perf_counter() - start
        missed = model.predict(data.X_test) - data.y_test
        error = float(np.sqrt(np.mean(missed**2)) / data.y.std())
        fits.append([name, split, option, value, seconds, error])
        path.write_text(json.dumps(fits))
    draw(given.keep / "front.svg", fits)


def draw(path: Path, fits: list[list[Any]]) -> None:
    """Draw mean errors of each option against its mean seconds, set by set."""
    sets = list(dict.fromkeys(fit[0] for fit in fits))
    figure = Figure(figsize=(3.4 * len(sets), 3.2), layout="constrained")
    panels = figure.subplots(1, len(sets), squeeze=False)[0]
    for axes, name in zip(panels, sets, strict=True):
        for option, colour in (("effort", BLUE), ("time_limit", INK)):
            points = []
            for value in dict.fromkeys(fit[3] for fit in fits if fit[2] == option):
                of_value = [
                    f[4:] for f in fits if f[:1] + f[2:4] == [name, option, value]
                ]
                points.append(np.mean(of_value, axis=0))
                label = f"effort {value}" if option == "effort" else f"{value} s"
                above = 5 if option == "effort" else -11
                axes.annotate(
                    label,
                    points[-1],
                    xytext=(0, above),
                    textcoords="offset points",
                    color=colour,
                    size=8,
                )
            axes.plot(*np.transpose(points), "o-", color=colour)
        axes.set_title(name, loc="left", color=INK)
        axes.set_xlabel("seconds of a fit", color=INK)
        axes.set_ylabel("z-RMSE", color=INK)
        axes.set_xscale("log")
        axes.set_xticks(SECONDS, map(str, SECONDS))
        axes.minorticks_off()
        axes.margins(0.2)
        axes.set_xlim(0.7)
        axes.tick_params(which="both", colors=INK)
    # the same results, the same bytes
    with mpl.rc_context({"svg.hashsalt": "front"}):
        figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1:])
