"""Cosine and sine pairs against cosines with random phases: the test error of both maps
at the same D.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import (
    load_diabetes,
    make_friedman1,
    make_friedman2,
    make_friedman3,
)
from sklearn.model_selection import train_test_split

from rff_dist import Gaussian, Matern, SerialEngine
from rff_dist.data.memory import ArrayDataset
from rff_dist.features.for_dataset import RowSource, tune
from rff_dist.features.length_scales import EvidenceSearch
from rff_dist.features.median_distances import MedianDistances
from rff_dist.kernels.stationary import with_length_scale
from rff_dist.ridge import predict as prediction
from rff_dist.statistics import inspection, standardizing
from tests.plain import fit_ridge

UCI = (
    "airfoil",
    "concrete",
    "energy",
    "elevators",
    "pol",
    "keggdirected",
    "tamielectric",
    "bike",
)
KERNELS = {"gaussian": Gaussian(), "matern 3/2": Matern(nu=1.5)}
LENGTH_SCALES = ("auto", "evidence")
MAPS = ("pairs", "phases")


@dataclass(frozen=True)
class Problem:
    """Rows to train on and to test on, z-scored by the former."""

    name: str
    train: ArrayDataset
    test: ArrayDataset


@dataclass(frozen=True)
class Result:
    """Test errors of both maps, as shares of the target's standard deviation."""

    problem: str
    kernel: str
    length_scale: str
    n_components: int
    seed: int
    pairs: float
    phases: float


def run(console: Console, folder: Path) -> None:
    widths = (256, 1024)
    found = list(measure(widths, max_rows=3000, tuning_rows=1000, n_seeds=1))
    table = Table(
        "data", *(f"pairs / phases, D = {width}" for width in widths), "z-RMSE of pairs"
    )
    for name in dict.fromkeys(result.problem for result in found):
        table.add_row(
            name, *_cells([one for one in found if one.problem == name], widths)
        )
    table.add_section()
    for kernel in KERNELS:
        for length_scale in LENGTH_SCALES:
            chosen = [
                one
                for one in found
                if (one.kernel, one.length_scale) == (kernel, length_scale)
            ]
            table.add_row(f"{kernel}, {length_scale}", *_cells(chosen, widths))
    table.add_row("all", *_cells(found, widths))
    console.print(table)
    console.print(
        "Geometric means of the ratio of test errors over kernels, length scales and"
        f" seeds: below 1 pairs are better. {', '.join(KERNELS)}; length scales by"
        f" {', '.join(LENGTH_SCALES)}, the same for both maps; orthogonal design, alpha"
        " by cross-validation, up to 3,000 training rows."
    )


def measure(
    widths: tuple[int, ...],
    *,
    max_rows: int,
    tuning_rows: int,
    n_seeds: int,
    sine_rows: int = 3000,
) -> Iterator[Result]:
    """Fit every problem with every kernel, length scale, width, seed and map."""
    for problem in problems(max_rows, sine_rows):
        moments = inspection.inspect(problem.train, engine=SerialEngine())
        standardizer = standardizing.standardizer_from(moments)
        for name, kernel in KERNELS.items():
            for by in LENGTH_SCALES:
                scaled = with_length_scale(
                    kernel, _scale(problem, kernel, by, standardizer, tuning_rows)
                )
                for width in widths:
                    for seed in range(n_seeds):
                        errors = [
                            _error(problem, scaled, width, seed, kind) for kind in MAPS
                        ]
                        yield Result(problem.name, name, by, width, seed, *errors)


def _scale(problem, kernel, by, standardizer, tuning_rows):
    if by == "auto":
        return MedianDistances(problem.train, standardizer=standardizer, seed=0)(kernel)
    found = tune(
        RowSource(problem.train, standardizer),
        kernel,
        EvidenceSearch(n_samples=tuning_rows, n_starts=2),
    )
    return found.length_scale


def _error(problem, kernel, width, seed, kind):
    model, _ = fit_ridge(
        problem.train,
        kernel,
        engine=SerialEngine(),
        length_scale=None,
        n_components=width,
        alpha="cv",
        map=kind,
        seed=seed,
    )
    found = prediction.evaluate(problem.test, model, engine=SerialEngine())
    # the target was scaled by the training rows
    return float(np.sqrt(found.mean_squared_error[0]))


def problems(max_rows: int, sine_rows: int) -> Iterator[Problem]:
    folder = Path(os.environ.get("RFF_DIST_UCI", "RFF_DIST_UCI"))
    for name in UCI:
        if (folder / name / "data.csv.gz").is_file():
            rows = np.loadtxt(folder / name / "data.csv.gz", delimiter=",")
            test = (
                np.loadtxt(folder / name / "test_mask.csv.gz", delimiter=",")[:, 0] == 1
            )
            train = np.random.default_rng(0).permutation(np.flatnonzero(~test))[
                :max_rows
            ]
            yield _problem(name, rows[np.sort(train)], rows[test])
    for name, make, noise in (
        ("friedman1", make_friedman1, 1.0),
        ("friedman2", make_friedman2, 100.0),
        ("friedman3", make_friedman3, 0.1),
    ):
        X, y = make(n_samples=4000, noise=noise, random_state=0)
        yield _problem(name, *np.split(np.column_stack([X, y]), [2000]))
    X, y = load_diabetes(return_X_y=True)
    yield _problem(
        "diabetes",
        *train_test_split(np.column_stack([X, y]), test_size=0.2, random_state=0),
    )
    yield _problem("40 sines", *np.split(sines(sine_rows + 5000), [sine_rows]))


def sines(
    n_samples: int, *, n_features: int = 16, length_scale: float = 4.0
) -> np.ndarray:
    """Return rows whose last column is a sum of 40 sines of the others, with noise of a
    tenth of it.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_samples, n_features))
    waves = rng.standard_normal((n_features, 40)) / length_scale
    y = np.sin(X @ waves + rng.uniform(0, 2 * np.pi, 40)) @ rng.standard_normal(40)
    return np.column_stack([X, y + 0.1 * y.std() * rng.standard_normal(n_samples)])


def _problem(name, train, test):
    mean = train.mean(axis=0)
    deviation = train.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    parts = [(rows - mean) / deviation for rows in (train, test)]
    return Problem(
        name, *(ArrayDataset(rows[:, :-1].copy(), rows[:, -1].copy()) for rows in parts)
    )


def _cells(results, widths):
    ratios = [
        np.exp(
            np.mean(
                [
                    np.log(one.pairs / one.phases)
                    for one in results
                    if one.n_components == width
                ]
            )
        )
        for width in widths
    ]
    largest = [one.pairs for one in results if one.n_components == max(widths)]
    return *(f"{ratio:.3f}" for ratio in ratios), f"{np.mean(largest):.3f}"
