"""`RFFRidge()` and `RFFClassifier()` without arguments against four of scikit-learn's models.

The peers are a linear model, a tuned kernel machine, a Gaussian process where rows are few, and boosted trees
by default. Their results do not depend on our code: with `--keep FOLDER` they stay in FOLDER/peers.json, so
that a second run fits ours alone; delete that file where a peer's definition here changes. The whole table is
written to FOLDER/defaults.md. The environment chooses a part of it:

RFF_DIST_DEFAULTS
    Names of data sets, separated by commas; all of them by default.
RFF_DIST_SPLITS
    How many splits of each data set; 3 by default.
RFF_DIST_UCI
    The folder of the real sets; see tests/integration/test_real_data.py.
"""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from rff_dist import RFFClassifier, RFFRidge
from tests.benchmarks.rows_for_defaults import CLASSIFICATION, NOT_COUNTED, REGRESSION, Split

OURS, LINEAR, KERNEL, GAUSSIAN_PROCESS, TREES = MODELS = ("ours", "linear", "kernel", "GP", "trees")
CONFORMAL, CALIBRATED = "conformal", "calibrated"
N_TUNED, N_FITTED = 2_000, 6_000  # rows, at most
N_PROCESS_TUNED, N_PROCESS = 500, 1_000  # the same of Gaussian processes, and which data sets are for them
WIDTHS = (0.03, 0.1, 0.3, 1.0, 3.0)  # gamma · n_features: length scales of 2.9 to 0.29 median distances
COVERAGE = 0.9
WITHIN_NOISE = 0.002  # of R²: where nothing can be predicted, 4,600 rows tell no more
WANTED_AT_SPLIT_0 = {
    "airfoil": 0.18,
    "concrete": 0.26,
    "energy": 0.046,
    "elevators": 0.37,
    "pol": 0.122,
    "keggdirected": 0.093,
}

type Result = dict[str, Any]
type Columns = dict[str, list[str]]
type Verdict = tuple[str, bool, str]


@dataclass
class Row:
    """What each model got on each split of one data set: results by name of model, split by split."""

    name: str
    classes: bool
    shape: tuple[int, int]
    n_test: int = 0  # of all splits
    results: dict[str, list[Result]] = field(default_factory=dict)

    def mean(self, model: str, figure: str) -> float:
        """Over the splits; NaN where there is no such figure, infinite where the model failed."""
        found = self.results.get(model, [])
        return float(np.mean([result.get(figure, np.nan) for result in found])) if found else np.nan

    def error(self, model: str) -> float:
        """z-RMSE, or the share of wrong classes."""
        return self.mean(model, "error")

    def known(self) -> dict[str, float]:
        errors = {model: self.error(model) for model in MODELS}
        return {model: error for model, error in errors.items() if not np.isnan(error)}

    def resolution(self, error: float) -> float:
        """One standard error of a share of wrong classes; 0 for a regression."""
        if not self.classes:
            return 0.0
        share = max(error, 1.0 / self.n_test)
        return float(np.sqrt(share * (1.0 - share) / self.n_test))

    def rank(self) -> int:
        return 1 + sum(error < self.error(OURS) for error in self.known().values())

    def within(self, excess: float, error: float) -> bool:
        return self.error(OURS) <= error * (1.0 + excess) + self.resolution(error)


def run(console: Console, folder: Path) -> None:
    rows = measure(console, folder, *_choice())
    tables = list(_tables(rows))
    verdicts = list(judge(rows))
    for table in tables:
        console.print(_draw(table))
    for wanted, met, figures in verdicts:
        colour = "green" if met else "red"
        console.print(f"[{colour}]{'met' if met else 'not met'}[/]  {wanted}: {figures}", highlight=False)
    _write_markdown(folder / "defaults.md", tables, verdicts)
    console.print(f"The table is in {folder / 'defaults.md'}.")


def measure(console: Console, folder: Path, names: list[str], n_splits: int) -> list[Row]:
    """Fit what is not kept in the folder, and ours."""
    path = folder / "peers.json"
    kept: dict[str, Result] = json.loads(path.read_text()) if path.is_file() else {}
    rows = []
    for name in names:
        classes = name in CLASSIFICATION
        for split in range(n_splits):
            data = (CLASSIFICATION if classes else REGRESSION)[name](split)
            if split == 0:
                rows.append(Row(name, classes, data.X.shape))
            row = rows[-1]
            row.n_test += len(data.y_test)
            peers = _classification_peers if classes else _regression_peers
            for model, fit in peers(data):
                key = f"{name}|{split}|{data.digest}|{model}|scikit-learn {sklearn.__version__}"
                result = kept.get(key) or _score(fit, data, classes=classes)
                row.results.setdefault(model, []).append(result)
                if key not in kept and "failed" not in result:
                    kept[key] = result
                    _keep(path, kept)
            for model, fit in _ours(data, classes=classes):
                row.results.setdefault(model, []).append(_score(fit, data, classes=classes))
            _say(
                console, f"{name}, split {split}", {model: found[-1] for model, found in row.results.items()}
            )
    return rows


def judge(rows: list[Row]) -> Iterator[Verdict]:
    """Yield what is wanted of the rows there are, whether it is met, and the figures."""
    counted = [row for row in rows if row.name not in NOT_COUNTED]
    regression = [row for row in counted if not row.classes]
    classification = [row for row in counted if row.classes]
    if counted:
        yield from _judge_all(counted)
    if regression:
        yield from _judge_regression(regression)
    if classification:
        yield _judge_probabilities(classification)
    if six := [row for row in regression if row.name in WANTED_AT_SPLIT_0]:
        yield from _judge_split_0(six)


def _judge_all(rows: list[Row]) -> Iterator[Verdict]:
    worse = [
        f"{row.name} {row.error(OURS):.4g} for {row.error(LINEAR):.4g}"
        for row in rows
        if not row.within(0.03, row.error(LINEAR))
    ]
    yield "at most 3 % worse than the linear model", not worse, _except(worse, rows)
    ranks = [row.rank() for row in rows]
    counts = ", ".join(f"{ranks.count(rank)} × {rank}" for rank in sorted(set(ranks)))
    yield "median rank 1 or 2", float(np.median(ranks)) <= 2, f"{np.median(ranks):g} ({counts})"
    far = [
        f"{row.name} {row.error(OURS):.4g} for {best:.4g}"
        for row in rows
        if not row.within(0.05, best := min(row.known().values()))
    ]
    yield "within 5 % of the best on two thirds", 3 * len(far) <= len(rows), _except(far, rows)


def _judge_regression(rows: list[Row]) -> Iterator[Verdict]:
    below = [
        f"{row.name} {worst:.4g}"
        for row in rows
        if (worst := min(result["r2"] for result in row.results[OURS])) < -WITHIN_NOISE
    ]
    yield f"R² of no split below that of the mean by {WITHIN_NOISE}", not below, _except(below, rows)
    coverage = {row.name: row.mean(CONFORMAL, "coverage") for row in rows}
    outside = [
        f"{row.name} {coverage[row.name]:.3f} ± {np.sqrt(COVERAGE * (1.0 - COVERAGE) / row.n_test):.3f}"
        for row in rows
        if not 0.87 <= coverage[row.name] <= 0.93
    ]
    found = list(coverage.values())
    figures = f"{min(found):.3f} to {max(found):.3f}, mean {np.mean(found):.3f}; {_except(outside, rows)}"
    yield "90 % intervals cover 87 to 93 %", not outside, figures
    lost = [
        f"{row.name} {row.error(OURS):.4g} for {row.error(TREES):.4g}"
        for row in rows
        if not row.error(OURS) < row.error(TREES)
    ]
    yield "better than trees on two thirds", 3 * len(lost) <= len(rows), _except(lost, rows)


def _judge_probabilities(rows: list[Row]) -> Verdict:
    losses = {row.name: (row.mean(OURS, "log_loss"), row.mean(CALIBRATED, "log_loss")) for row in rows}
    unsure = [
        f"{name} {ours:.4g} for {theirs:.4g}"
        for name, (ours, theirs) in losses.items()
        if not ours <= 1.1 * theirs
    ]
    return "log loss at most 1.1 × CalibratedClassifierCV's", not unsure, _except(unsure, rows)


def _judge_split_0(rows: list[Row]) -> Iterator[Verdict]:
    errors = {row.name: (row.results[OURS][0]["error"], row.results[TREES][0]["error"]) for row in rows}
    figures = [f"{name} {ours:.4f} (≤ {WANTED_AT_SPLIT_0[name]})" for name, (ours, _) in errors.items()]
    met = all(ours <= WANTED_AT_SPLIT_0[name] for name, (ours, _) in errors.items())
    yield "split 0 of six real sets", met, ", ".join(figures)
    lost = [
        f"{name} {ours:.4f} for {theirs:.4f}" for name, (ours, theirs) in errors.items() if not ours < theirs
    ]
    yield "better than trees on five of these six", len(lost) <= 1, _except(lost, rows)


def _except(exceptions: list[str], rows: list[Row]) -> str:
    if not exceptions:
        return f"all {len(rows)}"
    return f"not on {len(exceptions)} of {len(rows)}: {', '.join(exceptions)}"


# -- the models -------------------------------------------------------------------------------------------


@dataclass
class Fitted:
    """A fitted model and what it is asked for, so that seconds of the fit are taken apart."""

    model: Any
    interval: bool = False
    probabilities: bool = True


type Fit = Callable[[], Fitted]


def _ours(data: Split, *, classes: bool) -> Iterator[tuple[str, Fit]]:
    if classes:
        yield OURS, lambda: Fitted(RFFClassifier(random_state=0).fit(data.X, data.y))
        return
    yield OURS, lambda: Fitted(RFFRidge(random_state=0).fit(data.X, data.y))
    yield (
        CONFORMAL,
        lambda: Fitted(RFFRidge(conformal=True, random_state=0).fit(data.X, data.y), interval=True),
    )


def _regression_peers(data: Split) -> Iterator[tuple[str, Fit]]:
    n_samples, n_features = data.X.shape
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.geomspace(1e-3, 1e5, 25)))
    yield LINEAR, lambda: Fitted(ridge.fit(data.X, data.y))
    machine = TransformedTargetRegressor(
        make_pipeline(StandardScaler(), KernelRidge(kernel="rbf")), transformer=StandardScaler()
    )
    grid = {
        "regressor__kernelridge__gamma": np.array(WIDTHS) / n_features,
        "regressor__kernelridge__alpha": (1e-4, 1e-2, 1e-1, 1.0, 10.0),
    }
    yield KERNEL, lambda: Fitted(_tuned(machine, grid, data))
    if n_samples <= N_PROCESS:
        yield GAUSSIAN_PROCESS, lambda: Fitted(_gaussian_process(data))
    yield TREES, lambda: Fitted(HistGradientBoostingRegressor(random_state=0).fit(data.X, data.y))


def _classification_peers(data: Split) -> Iterator[tuple[str, Fit]]:
    n_samples, n_features = data.X.shape
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))
    yield LINEAR, lambda: Fitted(logistic.fit(data.X, data.y))
    machine = make_pipeline(StandardScaler(), SVC())
    grid = {"svc__gamma": np.array(WIDTHS) / n_features, "svc__C": (0.3, 1.0, 3.0, 10.0, 100.0)}
    tuned: list[BaseEstimator] = []

    def fit() -> Fitted:
        tuned.append(_tuned(machine, grid, data))
        return Fitted(tuned[0], probabilities=False)

    def calibrate() -> Fitted:
        best = clone(tuned[0]) if tuned else clone(_tuned(machine, grid, data))
        sample = _sample(data, N_FITTED)
        return Fitted(CalibratedClassifierCV(best, cv=5).fit(data.X[sample], data.y[sample]))

    yield KERNEL, fit
    yield CALIBRATED, calibrate
    if n_samples <= N_PROCESS:
        process = GaussianProcessClassifier(ConstantKernel() * RBF(np.sqrt(n_features)), optimizer=_few_steps)
        yield GAUSSIAN_PROCESS, lambda: Fitted(make_pipeline(StandardScaler(), process).fit(data.X, data.y))
    yield TREES, lambda: Fitted(HistGradientBoostingClassifier(random_state=0).fit(data.X, data.y))


def _sample(data: Split, n_samples: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(len(data.X))[:n_samples]


def _tuned(estimator: BaseEstimator, grid: dict[str, Any], data: Split) -> BaseEstimator:
    """Tune on few rows, and fit what was best on more."""
    sample = _sample(data, N_TUNED)
    search = GridSearchCV(estimator, grid, cv=3, refit=False).fit(data.X[sample], data.y[sample])
    sample = _sample(data, N_FITTED)
    return clone(estimator).set_params(**search.best_params_).fit(data.X[sample], data.y[sample])


def _gaussian_process(data: Split) -> BaseEstimator:
    """Tune one width per column on few rows, and take all rows with them."""
    n_features = data.X.shape[1]
    # the gradient by one width per column costs n_samples² · n_features numbers
    widths = np.full(n_features if n_features <= 20 else 1, np.sqrt(n_features))
    kernel = ConstantKernel() * Matern(widths, (1e-2, 1e4), nu=2.5) + WhiteKernel(0.1, (1e-6, 1e2))
    sample = _sample(data, N_PROCESS_TUNED)
    scaler = StandardScaler().fit(data.X)
    tuned = GaussianProcessRegressor(kernel, normalize_y=True, optimizer=_few_steps)
    tuned.fit(scaler.transform(data.X[sample]), data.y[sample])
    process = GaussianProcessRegressor(tuned.kernel_, normalize_y=True, optimizer=None)
    return make_pipeline(scaler, process).fit(data.X, data.y)


def _few_steps(
    objective: Callable[..., Any], start: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, float]:
    found = minimize(objective, start, jac=True, bounds=bounds, method="L-BFGS-B", options={"maxiter": 20})
    return found.x, found.fun


# -- what is measured -------------------------------------------------------------------------------------


def _score(fit: Fit, data: Split, *, classes: bool) -> Result:
    """Fit and predict; what fails has an infinite error, and warnings are part of the result."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fitted = fit()
            elapsed = time.perf_counter() - start
            result = (_score_classes if classes else _score_numbers)(fitted, data)
        except Exception as error:  # a row of the table, not its end
            elapsed = time.perf_counter() - start
            result = {
                "error": np.inf,
                "r2": -np.inf,
                "log_loss": np.inf,
                "failed": f"{type(error).__name__}: {error}",
            }
    texts = sorted({f"{warning.category.__name__}: {warning.message}" for warning in caught})
    return {**result, "seconds": elapsed, **({"warned": texts} if texts else {})}


def _score_numbers(fitted: Fitted, data: Split) -> Result:
    squared = np.mean((fitted.model.predict(data.X_test) - data.y_test) ** 2)
    if not np.isfinite(squared):
        raise ValueError("predictions are not finite")
    result = {
        "error": float(np.sqrt(squared) / data.y.std()),
        # against the training rows' mean: what one would say without any model
        "r2": float(1.0 - squared / np.mean((data.y_test - data.y.mean()) ** 2)),
    }
    if fitted.interval:
        lower, upper = fitted.model.predict_interval(data.X_test, coverage=COVERAGE)
        result["coverage"] = float(np.mean((lower <= data.y_test) & (data.y_test <= upper)))
    return result


def _score_classes(fitted: Fitted, data: Split) -> Result:
    result = {"error": float(np.mean(fitted.model.predict(data.X_test) != data.y_test))}
    if fitted.probabilities:
        probabilities = fitted.model.predict_proba(data.X_test)
        result["log_loss"] = float(log_loss(data.y_test, probabilities, labels=fitted.model.classes_))
    return result


# -- the folder and the table -----------------------------------------------------------------------------


def _choice() -> tuple[list[str], int]:
    known = [*REGRESSION, *CLASSIFICATION]
    chosen = [name.strip() for name in os.environ.get("RFF_DIST_DEFAULTS", "").split(",") if name.strip()]
    unknown = set(chosen) - set(known)
    if unknown:
        raise SystemExit(
            f"RFF_DIST_DEFAULTS has {', '.join(sorted(unknown))}; expected any of {', '.join(known)}"
        )
    return chosen or known, int(os.environ.get("RFF_DIST_SPLITS", "3"))


def _keep(path: Path, kept: dict[str, Result]) -> None:
    written = path.with_suffix(".part")
    written.write_text(json.dumps(kept, indent=1))
    written.replace(path)


def _say(console: Console, what: str, results: dict[str, Result]) -> None:
    errors = ", ".join(f"{model} {result['error']:.4g}" for model, result in results.items())
    console.print(f"{what}: {errors}", highlight=False, soft_wrap=True)
    for model, result in results.items():
        if "failed" in result:
            console.print(f"  {model} failed: {result['failed']}", style="red", highlight=False, markup=False)
    warned = {text for model in (OURS, CONFORMAL) for text in results.get(model, {}).get("warned", [])}
    for text in sorted(warned):
        console.print(f"  ours warned: {text}", highlight=False, markup=False)


def _tables(rows: list[Row]) -> Iterator[Columns]:
    """Yield errors, log losses and seconds, means over the splits; columns by their heads."""
    regression = [row for row in rows if not row.classes]
    classification = [row for row in rows if row.classes]
    if regression:
        yield {
            **_columns("z-RMSE", regression, "error", MODELS),
            "rank": [str(row.rank()) for row in regression],
            "R²": [f"{row.mean(OURS, 'r2'):.3f}" for row in regression],
            "coverage": [f"{row.mean(CONFORMAL, 'coverage'):.3f}" for row in regression],
            "warned": [_warned(row) for row in regression],
        }
    if classification:
        yield {
            **_columns("share of wrong classes", classification, "error", MODELS),
            "rank": [str(row.rank()) for row in classification],
            "warned": [_warned(row) for row in classification],
        }
        models = (OURS, LINEAR, CALIBRATED, GAUSSIAN_PROCESS, TREES)
        yield _columns("log loss", classification, "log_loss", models)
    yield _columns("seconds of a fit", rows, "seconds", MODELS)


def _columns(what: str, rows: list[Row], figure: str, models: tuple[str, ...]) -> Columns:
    notes = [", not counted" if row.name in NOT_COUNTED else "" for row in rows]
    names = [f"{row.name}, {row.shape[0]:,} × {row.shape[1]}" for row in rows]
    return {
        what: [name + note for name, note in zip(names, notes, strict=True)],
        **{model: [_number(row.mean(model, figure)) for row in rows] for model in models},
    }


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.3g}"


def _warned(row: Row) -> str:
    """Of how many splits our fit warned."""
    return str(sum("warned" in result for result in row.results[OURS]) or "")


def _draw(columns: Columns) -> Table:
    table = Table()
    for number, head in enumerate(columns):
        table.add_column(head, justify="right" if number else "left")
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    return table


def _write_markdown(path: Path, tables: list[Columns], verdicts: list[Verdict]) -> None:
    lines = []
    for columns in tables:
        lines += [f"| {' | '.join(columns)} |", "|---" + "|---:" * (len(columns) - 1) + "|"]
        lines += [f"| {' | '.join(cells)} |" for cells in zip(*columns.values(), strict=True)]
        lines.append("")
    lines += [
        f"- {'met' if met else '**not met**'}: {wanted}: {figures}" for wanted, met, figures in verdicts
    ]
    path.write_text("\n".join(lines) + "\n")
