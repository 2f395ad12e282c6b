"""Nasty data, drawn at random: alpha is near the best of a grid on the same features,
and a fit by default is no worse than a line and the mean, or a warning is given.

The errors are those of new rows of the same law, without the outliers that some draws
have among the targets that are trained on. The best alpha is the best on these same
rows, of which few would overstate it: there are five thousand, and draws that are above
what is wanted by more than two standard errors are counted too. `RFF_DIST_DRAWS` says
how many draws, 500 by default; draw s is the same in every run."""

import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from rich.console import Console
from rich.table import Table
from scipy.linalg import LinAlgWarning
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from rff_dist import RFFRidge
from rff_dist.data.blocks import Block, Rows
from rff_dist.fitting.predicting import LinearModel, predict_rows
from rff_dist.numerics.eigen import RidgeSpectrum, decompose

WANTED = 1.1  # times the error of the best alpha of the grid
WANTED_OF_PLAIN = 1.15  # times that of the better of a line and the mean, by default
CHANCE = 2.0  # standard errors by which chance may exceed that
MOST_WARNED = 0.2  # of the draws: more would be crying wolf
# times the mean square of a row of the weighted features
ALPHAS = np.geomspace(1e-8, 1e4, 13)
MOST_COMPONENTS = 1_024
N_TEST = 5_000
LAWS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t1.5": lambda rng, shape: rng.standard_t(1.5, shape),
    "t3": lambda rng, shape: rng.standard_t(3.0, shape),
    "lognormal": lambda rng, shape: rng.lognormal(0.0, 1.0, shape),
    "exponential": lambda rng, shape: rng.exponential(1.0, shape),
}
COLUMNS = (
    "constant",
    "near-constant",
    "constant but for two rows",
    "huge offset",
    "repeated",
)
COPIES = ("none", "inputs", "rows")
WEIGHTS = ("none", "random", "zeros", "decades")

type Facts = dict[str, str]


@dataclass(frozen=True)
class Draw:
    """One nasty data set, with what is nasty about it; without a number of components
    all is by default.
    """

    facts: Facts
    X: np.ndarray
    y: np.ndarray
    sample_weight: np.ndarray | None
    n_components: int | None
    X_test: np.ndarray
    y_test: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """The error as a multiple of the best of the grid, and what was said at the fit.

    `beyond`: by how many standard errors, of a mean over the test rows, the mean
    squared error is above the
      best one times `WANTED` squared.
    """

    seed: int
    facts: Facts
    ratio: float
    beyond: float
    alpha: float
    best_alpha: float
    warned: tuple[str, ...]
    raised: str = ""
    plain_ratio: float = np.inf  # of errors, to the better of a line and the mean

    @property
    def is_by_default(self) -> bool:
        return self.facts["D"] == "default"

    @property
    def failed(self) -> bool:
        return not self.ratio <= WANTED and not self.warned

    @property
    def is_worse_than_plain(self) -> bool:
        return (
            self.is_by_default
            and not self.plain_ratio <= WANTED_OF_PLAIN
            and not self.warned
        )

    def __str__(self) -> str:
        facts = ", ".join(f"{name} {value}" for name, value in self.facts.items())
        alphas = f"alpha {self.alpha:.2g}, best {self.best_alpha:.2g}"
        beyond = f"{self.beyond:.1f} standard errors beyond {WANTED}"
        plain = f"{self.plain_ratio:.3g} × a line or the mean"
        what = (
            self.raised or f"{self.ratio:.3g} × the best, {beyond}; {plain}; {alphas}"
        )
        return f"draw {self.seed}: {what}; {facts}"


def run(console: Console, folder: Path) -> None:
    n_draws = int(os.environ.get("RFF_DIST_DRAWS", "500"))
    outcomes: list[Outcome] = []
    start = time.perf_counter()
    for seed in range(n_draws):
        outcomes.append(try_draw(seed))
        if outcomes[-1].failed or outcomes[-1].is_worse_than_plain:
            console.print(
                str(outcomes[-1]), highlight=False, markup=False, soft_wrap=True
            )
        if seed % 50 == 49:
            console.print(
                f"{seed + 1} draws in {time.perf_counter() - start:.0f} s",
                highlight=False,
            )
    console.print(_by_fact(outcomes))
    _say_what_was_warned(console, outcomes)
    ratios = np.array([outcome.ratio for outcome in outcomes])
    quantiles = ", ".join(
        f"{share:.0%} {np.quantile(ratios, share):.4g}"
        for share in (0.5, 0.9, 0.95, 1.0)
    )
    failed = sum(o.failed for o in outcomes)
    sure = sum(o.failed and o.beyond > CHANCE for o in outcomes)
    by_default = [o for o in outcomes if o.is_by_default]
    worse = sum(o.is_worse_than_plain for o in by_default)
    # that rows are copies is told, and true
    alone = [o for o in outcomes if o.facts["copies"] != "rows"]
    warned = sum(bool(o.warned) for o in alone)
    console.print(
        f"Error as a multiple of the best of the grid, quantiles: {quantiles}.",
        highlight=False,
    )
    for met, figures in (
        (
            failed == 0,
            f"{failed} of {n_draws} draws above {WANTED} × the best without a warning",
        ),
        (
            sure == 0,
            f"{sure} of these by more than {CHANCE:g} standard errors of the test rows",
        ),
        (
            worse == 0,
            f"{worse} of {len(by_default)} draws by default above {WANTED_OF_PLAIN} ×"
            " the better of a line and the mean without a warning",
        ),
        (
            warned <= MOST_WARNED * len(alone),
            (
                f"{warned} of {len(alone)} draws without copied rows warned (≤"
                f" {MOST_WARNED:.0%})"
            ),
        ),
    ):
        console.print(f"{'met' if met else 'not met'}  {figures}", highlight=False)


def try_draw(seed: int) -> Outcome:
    """Fit one draw, and all alphas of the grid from the sums of that fit."""
    draw = make_draw(seed)
    chosen = {} if draw.n_components is None else {"n_components": draw.n_components}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = RFFRidge(random_state=seed, **chosen).fit(
                draw.X, draw.y, draw.sample_weight
            )
            predicted = model.predict(draw.X_test)
        except Exception as error:  # finite rows are to be fitted, whatever their law
            raised = f"{type(error).__name__}: {error}"
            return Outcome(seed, draw.facts, np.inf, np.inf, np.nan, np.nan, (), raised)
    # NumPy's warnings of overflow, say, tell a user nothing of the model
    told = {
        str(w.message)
        for w in caught
        if issubclass(w.category, UserWarning | LinAlgWarning)
    }
    equations = model.statistics_.normal_equations()
    alphas = ALPHAS * float(np.trace(model.statistics_.ZtZ())) / len(draw.X)
    ours, *others = (
        _squares(one, draw)
        for one in (predicted, *_predictions(model, alphas, decompose(equations), draw))
    )
    errors = [_error(squares) for squares in others]
    best = int(np.argmin(errors))
    above = (ours - WANTED**2 * others[best]).mean(axis=1)
    beyond = float(
        above.mean() / max(above.std() / np.sqrt(len(above)), np.finfo(np.float64).tiny)
    )
    ratio = _error(ours) / errors[best]
    alpha = float(np.mean(model.alpha_))
    return Outcome(
        seed,
        draw.facts,
        ratio,
        beyond,
        alpha,
        alphas[best],
        tuple(sorted(told)),
        plain_ratio=_error(ours) / _plain_error(draw),
    )


def _plain_error(draw: Draw) -> float:
    """The lesser of the errors of a line and of the mean."""
    models = (
        make_pipeline(StandardScaler(), RidgeCV(np.geomspace(1e-3, 1e6, 19))),
        make_pipeline(DummyRegressor()),
    )
    return min(
        _error(_squares(_fitted(model, draw).predict(draw.X_test), draw))
        for model in models
    )


def _fitted(model: Pipeline, draw: Draw) -> Pipeline:
    weights = {f"{model.steps[-1][0]}__sample_weight": draw.sample_weight}
    return model.fit(draw.X, draw.y, **weights)


def _predictions(
    model: RFFRidge, alphas: np.ndarray, spectrum: RidgeSpectrum, draw: Draw
) -> list[np.ndarray]:
    with warnings.catch_warnings():
        # the least alphas are below the rounding floor
        warnings.simplefilter("ignore", LinAlgWarning)
        solutions = [spectrum.solve(alpha) for alpha in alphas]
    coefficients = np.hstack([solution.coefficients for solution in solutions])
    intercepts = np.concatenate([solution.intercept for solution in solutions])
    linear = LinearModel(model.feature_map_, coefficients, intercepts)
    predicted = predict_rows(Rows(Block(0, 0, len(draw.X_test)), draw.X_test), linear)
    return np.hsplit(predicted, len(alphas))


def _squares(predicted: np.ndarray, draw: Draw) -> np.ndarray:
    """Squared errors of the test rows over the variances of their targets, of shape
    (n_rows, n_targets).
    """
    actual = draw.y_test.reshape(len(predicted), -1)
    return np.asarray(
        np.square(predicted.reshape(actual.shape) - actual) / actual.var(axis=0)
    )


def _error(squares: np.ndarray) -> float:
    """RMSE over the standard deviation of the test rows' targets, mean over the
    targets.
    """
    return float(np.sqrt(squares.mean(axis=0)).mean())


# -- what is drawn
# --------------------------------------------------------------------------------------


def make_draw(seed: int) -> Draw:
    rng = np.random.default_rng([12, seed])
    by_default = rng.random() < 0.5
    most_rows = 600 if by_default else 2_000
    n = round(np.exp(rng.uniform(np.log(40), np.log(most_rows))))
    d = int(rng.integers(1, 13))
    law = str(rng.choice(list(LAWS)))
    noise = float(10.0 ** rng.uniform(-3.0, 0.5))
    n_targets = 1 + int(rng.random() < 0.25)
    X = LAWS[law](rng, (n + N_TEST, d))
    y = _target(rng, X, n_targets)
    copies = str(rng.choice(COPIES, p=(0.7, 0.15, 0.15)))
    originals = np.arange(n)
    if copies != "none":
        originals = np.where(
            rng.random(n) < rng.uniform(0.1, 0.6), rng.integers(n, size=n), originals
        )
    X[:n] = X[originals]
    y[:n] = y[originals]
    disturbance = noise * y.std(axis=0) * rng.standard_normal(y.shape)
    if copies == "rows":
        disturbance[:n] = disturbance[originals]
    y += disturbance
    column = str(rng.choice(COLUMNS)) if rng.random() < 0.5 else "none"
    X = _spoil(rng, X, column, n)
    outliers = int(rng.integers(1, 4)) if rng.random() < 0.2 else 0
    y[rng.integers(n, size=outliers)] += 100.0 * y.std(axis=0) * rng.choice([-1.0, 1.0])
    if rng.random() < 0.3:
        y = y * 10.0 ** rng.uniform(-6.0, 6.0) + 10.0 ** rng.uniform(0.0, 6.0)
    weights = str(rng.choice(WEIGHTS, p=(0.55, 0.15, 0.15, 0.15)))
    n_components = min(
        max(8, round(n * np.exp(rng.uniform(np.log(0.25), np.log(8.0))))),
        MOST_COMPONENTS,
    )
    facts = {
        "n": str(n),
        "d": str(d),
        "D": "default" if by_default else str(n_components),
        "law": law,
        "noise": f"{noise:.1g}",
        "column": column,
        "copies": copies,
        "outliers": str(outliers),
        "weights": weights,
        "targets": str(n_targets),
    }
    y = y[:, 0] if n_targets == 1 else y
    return Draw(
        facts,
        X[:n],
        y[:n],
        _weigh(rng, weights, n),
        None if by_default else n_components,
        X[n:],
        y[n:],
    )


def _target(rng: Generator, X: np.ndarray, n_targets: int) -> np.ndarray:
    """Smooth functions of the inputs' bulk: in their tails they are constant."""
    C = np.clip(X, -3.0, 3.0)
    directions = rng.standard_normal((X.shape[1], 3 * n_targets)) / np.sqrt(X.shape[1])
    first, second, third = np.hsplit(C @ directions, 3)
    return (
        np.sin(rng.uniform(0.5, 4.0) * first)
        + rng.uniform(0.0, 1.0) * second * third
        + 0.3 * second
    )


def _spoil(rng: Generator, X: np.ndarray, column: str, n: int) -> np.ndarray:
    place = int(rng.integers(X.shape[1] + 1))
    if column == "huge offset":
        X[:, place % X.shape[1]] += 1e8
        return X
    added = {
        "none": None,
        "constant": np.full(len(X), 3.0),
        "near-constant": 1e3 + 1e-9 * rng.standard_normal(len(X)),
        "constant but for two rows": (
            np.isin(np.arange(len(X)), rng.integers(n, size=2)).astype(float)
        ),
        "repeated": X[:, rng.integers(X.shape[1])],
    }[column]
    return X if added is None else np.insert(X, place, added, axis=1)


def _weigh(rng: Generator, kind: str, n: int) -> np.ndarray | None:
    weights = rng.uniform(0.1, 3.0, n)
    if kind == "zeros":
        weights[rng.random(n) < 0.3] = 0.0
    if kind == "decades":
        weights = 10.0 ** rng.uniform(-4.0, 0.0, n)
    return None if kind == "none" else weights


# -- what is said
# --------------------------------------------------------------------------------------


def _by_fact(outcomes: list[Outcome]) -> Table:
    table = Table("draws with", "draws", "failed", "warned", "median ratio", "90 %")
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        n = int(outcome.facts["n"])
        groups.setdefault(
            f"n {'below 200' if n < 200 else 'of 200 or more'}", []
        ).append(outcome)
        groups.setdefault(
            f"D {'default' if outcome.is_by_default else 'given'}", []
        ).append(outcome)
        for name in ("law", "column", "copies", "outliers", "weights", "targets"):
            groups.setdefault(f"{name} {outcome.facts[name]}", []).append(outcome)
    for name, found in sorted(groups.items()):
        ratios = np.array([outcome.ratio for outcome in found])
        counts = (
            len(found),
            sum(o.failed for o in found),
            sum(bool(o.warned) for o in found),
        )
        table.add_row(
            name,
            *map(str, counts),
            *(f"{np.quantile(ratios, share):.3f}" for share in (0.5, 0.9)),
        )
    return table


def _say_what_was_warned(console: Console, outcomes: list[Outcome]) -> None:
    """Print one example of each warning: texts that differ in their numbers alone are
    one.
    """
    kinds: dict[str, list[tuple[str, int]]] = {}
    for outcome in outcomes:
        for text in outcome.warned:
            kind = "".join(
                letter for letter in text if letter.isalpha() or letter == " "
            )[:60]
            kinds.setdefault(kind, []).append((text, outcome.seed))
    for found in sorted(kinds.values(), key=len, reverse=True):
        text, seed = found[0]
        console.print(
            f"{len(found)} draws warned, draw {seed} so: {text}",
            highlight=False,
            markup=False,
        )
