"""Intervals by default score better than normal ones of the same model, and hold.

The continuous ranked probability score of a distribution given by 39 quantiles, as
`predict_interval` gives them, against that of the normal distribution which
`predict(return_std=True)` describes: twice the mean of the quantiles' pinball losses
(Gneiting and Raftery, 2007). Real sets are read from the folders in `RFF_DIST_UCI` and
`RFF_DIST_TABLES`; `RFF_DIST_SPLITS` says how many splits, 10 by default."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.random import Generator
from rich.console import Console
from rich.table import Table
from scipy.stats import gmean, norm

from benchmarks.defaults.sets import draw, heteroscedastic, regression_sets, smooth
from benchmarks.defaults.tables import tables_of, typed
from rff_dist import RFFRidge

WANTED = 0.94  # times the score of normal distributions, geometric mean
WANTED_COVERAGE = (0.87, 0.93)  # of 90 % intervals, mean over the splits
COVERAGES = np.arange(1, 20) / 20  # of the pairs of quantiles beside the median
REAL = ("concrete", "airfoil", "pendulum", "housing", "stock")
TABLES = ("insurance",)
N_ROWS = 3_000


def run(console: Console, folder: Path) -> None:
    n_splits = int(os.environ.get("RFF_DIST_SPLITS", "10"))
    table = Table("set", "normal", "by default", "ratio", "of 90 %", "of 90 %, normal")
    ratios = []
    are_held = []
    for name, draw_split in _sets().items():
        found = np.array([_scores(draw_split, split) for split in range(n_splits)])
        ours, normal, held, held_by_normal = found.mean(axis=0)
        ratios.append(ours / normal)
        are_held.append(WANTED_COVERAGE[0] <= held <= WANTED_COVERAGE[1])
        figures = (normal, ours, ours / normal, held, held_by_normal)
        table.add_row(name, *(f"{figure:.3f}" for figure in figures))
        console.print(f"{name}: {ours:.4f}, normal {normal:.4f}, holds {held:.3f}")
    console.print(table)
    ratio = gmean(ratios)
    for met, said in (
        (ratio <= WANTED, f"score {ratio:.3f} × that of normal ones (≤ {WANTED})"),
        (
            all(are_held),
            f"{sum(are_held)} of {len(are_held)} sets with 90 % intervals that hold"
            f" between {WANTED_COVERAGE[0]:.0%} and {WANTED_COVERAGE[1]:.0%}",
        ),
    ):
        console.print(f"{'met' if met else 'not met'}  {said}", highlight=False)


def _sets():
    real = regression_sets(_folder("RFF_DIST_UCI"))
    tables = tables_of(_folder("RFF_DIST_TABLES"))
    return {
        "heteroscedastic": partial(draw, heteroscedastic, "heteroscedastic", N_ROWS),
        "skewed": partial(draw, _skewed, "skewed", N_ROWS),
        **{name: real[name] for name in REAL if name in real},
        **{name: tables[name] for name in TABLES if name in tables},
    }


def _folder(variable: str) -> Path | None:
    return Path(os.environ[variable]) if variable in os.environ else None


def _skewed(rng: Generator, n: int):
    X = rng.standard_normal((n, 5))
    return X, smooth(X) + rng.lognormal(-0.5, 1.0, n)


def _scores(draw_split, split: int) -> tuple[float, float, float, float]:
    """The scores, ours and normal, in standard deviations of the target, and the
    shares of rows inside 90 %.
    """
    data = draw_split(split)
    model = RFFRidge(random_state=0).fit(_rows(data.X), data.y)
    X_test = _rows(data.X_test)
    mean, std = model.predict(X_test, return_std=True)
    ours = {0.5: mean}
    normal = {0.5: mean}
    for coverage in COVERAGES:
        tail = (1 - coverage) / 2
        ours[tail], ours[1 - tail] = model.predict_interval(X_test, coverage=coverage)
        width = norm.ppf(1 - tail) * std
        normal[tail] = mean - width
        normal[1 - tail] = mean + width
    spread = np.std(data.y_test)
    return (
        _crps(ours, data.y_test) / spread,
        _crps(normal, data.y_test) / spread,
        _share_inside(ours, data.y_test),
        _share_inside(normal, data.y_test),
    )


def _rows(X):
    return typed(X, []) if isinstance(X, pd.DataFrame) else X


def _crps(quantiles: dict[float, np.ndarray], y: np.ndarray) -> float:
    losses = [
        np.maximum(level * (y - predicted), (level - 1) * (y - predicted)).mean()
        for level, predicted in quantiles.items()
    ]
    return 2 * float(np.mean(losses))


def _share_inside(quantiles: dict[float, np.ndarray], y: np.ndarray) -> float:
    lower, upper = (
        next(q for level, q in quantiles.items() if np.isclose(level, wanted))
        for wanted in (0.05, 0.95)
    )
    return float(np.mean((lower <= y) & (y <= upper)))
