"""RFFRidge with k-fold cross-validation against GridSearchCV on the same folds, widths
and alphas.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline

from benchmarks.measure import in_subprocess, seconds
from rff_dist import Gaussian, RFFRidge, SerialEngine

LENGTH_SCALE = 6.0
WIDTHS = (128, 256, 512, 1024)
ALPHAS = np.geomspace(1e-4, 1e2, 30)
# of the grid search, on every fold and width: a tenth of its 600 fits
TIMED = ALPHAS[4::10]
FOLDS = KFold(5, shuffle=True, random_state=0)
WANTED = 50


def run(console: Console, folder: Path) -> None:
    rows, source = read_rows()
    np.save(folder / "rows.npy", rows)
    table = Table(
        "cores",
        "what",
        "seconds",
        "× ours",
        "wanted",
        "best D",
        "best alpha",
        "MSE / variance",
    )
    for cores in sorted({1, len(os.sched_getaffinity(0))}):
        # our threads against as many processes of one thread each
        ours, theirs = (
            in_subprocess(
                f"from benchmarks.{Path(__file__).stem} import {job}; {job}()",
                str(folder / "rows.npy"),
                str(cores),
                OMP_NUM_THREADS=str(threads),
            )
            for job, threads in (("fit_ours", cores), ("fit_theirs", 1))
        )
        for name, found in {"RFFRidge": ours, "GridSearchCV": theirs}.items():
            table.add_row(
                str(cores),
                name,
                f"{found['seconds']:.2f}",
                f"{found['seconds'] / ours['seconds']:.1f}",
                f"≥ {WANTED}" if found is theirs else "",
                *(f"{found[key]:.4g}" for key in ("n_components", "alpha", "error")),
            )
    console.print(table)
    console.print(
        f"{len(rows):_} rows × {rows.shape[1] - 1} of {source}; {FOLDS.n_splits} folds"
        f" × {len(ALPHAS)} alphas × D of {', '.join(map(str, WIDTHS))}."
    )
    console.print(
        f"GridSearchCV's time is {len(ALPHAS) // len(TIMED)} times that of the alphas"
        f" {', '.join(f'{alpha:.2g}' for alpha in TIMED)} on all folds and widths,"
        " without the last refit, which ours holds; its best is of these. Its features"
        " have random phases, ours are orthogonal pairs."
    )


def read_rows() -> tuple[np.ndarray, str]:
    """Return z-scored columns, the last the target: elevators, or as many rows that are
    generated.
    """
    path = (
        Path(os.environ.get("RFF_DIST_UCI", "RFF_DIST_UCI"))
        / "elevators"
        / "data.csv.gz"
    )
    if path.is_file():
        rows = np.loadtxt(path, delimiter=",")
        source = "elevators"
    else:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((16_599, 18))
        y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * rng.standard_normal(len(X))
        rows = np.column_stack([X, y])
        source = f"generated data ({path} is missing)"
    deviations = rows.std(axis=0)
    return (rows - rows.mean(axis=0)) / np.where(
        deviations > 0, deviations, 1.0
    ), source


def fit_ours() -> None:
    X, y, cores = _arguments()
    warm, model = (
        RFFRidge(
            Gaussian(LENGTH_SCALE),
            n_components=widths,
            alpha=ALPHAS,
            cv=FOLDS,
            standardize=False,
            random_state=0,
            engine=SerialEngine(cores),
        )
        for widths in ([16, 32], WIDTHS)
    )
    warm.fit(X[:200], y[:200])
    elapsed = seconds(lambda: model.fit(X, y))
    errors = model.selection_["cv_mean"][..., 0]
    width, alpha = np.unravel_index(errors.argmin(), errors.shape)
    _report(
        seconds=elapsed,
        n_components=model.selection_["cv_n_components"][width],
        alpha=model.selection_["cv_alphas"][alpha],
        error=errors.min(),
    )


def fit_theirs() -> None:
    X, y, cores = _arguments()
    sampler = RBFSampler(gamma=0.5 / LENGTH_SCALE**2, random_state=0)
    warm, search = (
        GridSearchCV(
            make_pipeline(sampler, Ridge()),
            {"rbfsampler__n_components": widths, "ridge__alpha": TIMED},
            scoring="neg_mean_squared_error",
            cv=FOLDS,
            refit=False,
            n_jobs=cores,
        )
        for widths in ([16], WIDTHS)
    )
    warm.fit(X[:200], y[:200])  # starts the processes
    elapsed = seconds(lambda: search.fit(X, y))
    _report(
        seconds=elapsed * len(ALPHAS) / len(TIMED),
        n_components=search.best_params_["rbfsampler__n_components"],
        alpha=search.best_params_["ridge__alpha"],
        error=-search.best_score_,
    )


def _arguments() -> tuple[np.ndarray, np.ndarray, int]:
    rows = np.load(sys.argv[1])
    return rows[:, :-1], rows[:, -1], int(sys.argv[2])


def _report(**found: Any) -> None:
    sys.stdout.write(
        json.dumps({name: float(value) for name, value in found.items()}) + "\n"
    )
