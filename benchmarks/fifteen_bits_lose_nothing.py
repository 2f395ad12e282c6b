"""Features of 15 bits err as float32 ones do, and where they do not, a warning says so.

Five real sets of the folder RFF_DIST_UCI, or generated ones without it, eight alphas
each: the error on held-out rows with either precision, and whether the fit warned of
rounding."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.defaults.sets import UCI, Split, regression_sets
from rff_dist import Gaussian, RFFRidge

SETS = ("airfoil", "concrete", "energy", "pol", "elevators")
STAND_INS = ("friedman1", "friedman2", "friedman3", "diabetes", "linear 20")
ALPHAS = 10.0 ** np.arange(-9, -1)
MOST_ROWS = 5_000


def run(console: Console, folder: Path) -> None:
    """Print a line a set: by how much the error differs at each alpha; starred where
    warned of.
    """
    found = Table("set", *(f"{alpha:.0e}" for alpha in ALPHAS))
    sets = regression_sets(UCI)
    for name in SETS if SETS[0] in sets else STAND_INS:
        split = sets[name](0)
        found.add_row(name, *(_difference(split, float(alpha)) for alpha in ALPHAS))
    console.print(found)
    console.print(
        "error with 15 bits less error with float32, in percent of the latter; * a"
        " warning was raised"
    )


def _difference(split: Split, alpha: float) -> str:
    errors = []
    warned = False
    for precision in ("standard", "high"):
        model = RFFRidge(
            Gaussian(),
            length_scale="median",
            features="fourier",
            n_components=1024,
            alpha=alpha,
            precision=precision,
            random_state=0,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(split.X[:MOST_ROWS], split.y[:MOST_ROWS])
        warned = warned or any("15 bits" in str(one.message) for one in caught)
        errors.append(
            np.sqrt(np.mean((model.predict(split.X_test) - split.y_test) ** 2))
        )
    return f"{100 * (errors[0] / errors[1] - 1):+.1f}{'*' if warned else ''}"
