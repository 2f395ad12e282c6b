"""The data sets of the table of defaults: real ones, scikit-learn's, and generated
ones, in splits 0 to 9.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.random import Generator
from sklearn import datasets
from sklearn.model_selection import train_test_split

MOST_ROWS = 40_000  # to train on
N_SPLITS = 10
IN_PARTS = " 64/16/20"  # the end of the names of sets that are cut as TALENT cuts
# z-RMSE by Ye et al. (TALENT, arXiv:2407.00956); no figures were found for airfoil and
# concrete
PUBLISHED = {
    f"pol{IN_PARTS}": "0.052 by the best of 28 tuned models, 0.102 by CatBoost"
}
UCI = Path(os.environ["RFF_DIST_UCI"]) if "RFF_DIST_UCI" in os.environ else None

type Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Split:
    """Rows to train on, and rows held out."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    @property
    def digest(self) -> str:
        """Of all values: results that are kept belong to these rows and to no
        others.
        """
        arrays = (self.X, self.y, self.X_test, self.y_test)
        return f"{crc32(b''.join(np.ascontiguousarray(array).tobytes() for array in arrays)):08x}"


def _uci(folder: Path, split: int) -> Split:
    rows = np.loadtxt(folder / "data.csv.gz", delimiter=",")
    test = np.loadtxt(folder / "test_mask.csv.gz", delimiter=",")[:, split] == 1
    train = np.flatnonzero(~test)
    if len(train) > MOST_ROWS:
        train = np.sort(np.random.default_rng(split).permutation(train)[:MOST_ROWS])
    return Split(rows[train, :-1], rows[train, -1], rows[test, :-1], rows[test, -1])


def _uci_in_parts(folder: Path, split: int) -> Split:
    """Cut as TALENT cuts, though not into its very rows: 20 % test, and 64 % and 16 %
    for validation are one.

    All models get these 80 %, since ours validates by itself.
    """
    rows = np.random.default_rng(split).permutation(
        np.loadtxt(folder / "data.csv.gz", delimiter=",")
    )
    train, test = np.split(rows, [round(0.8 * len(rows))])
    return Split(train[:, :-1], train[:, -1], test[:, :-1], test[:, -1])


def _bundled(load: Callable[..., Arrays], split: int, *, classes: bool) -> Split:
    X, y = load(return_X_y=True)
    parts = train_test_split(
        X, y, test_size=0.2, random_state=split, stratify=y if classes else None
    )
    return Split(parts[0], parts[2], parts[1], parts[3])


def _cut(X: np.ndarray, y: np.ndarray, n_train: int) -> Split:
    return Split(X[:n_train], y[:n_train], X[n_train:], y[n_train:])


def _friedman(make: Callable[..., Arrays], noise: float, split: int) -> Split:
    return _cut(*make(n_samples=3_000, noise=noise, random_state=split), 1_000)


def draw(
    law: Callable[[Generator, int], Arrays], name: str, n_train: int, split: int
) -> Split:
    return _cut(
        *law(np.random.default_rng([crc32(name.encode()), split]), n_train + 2_000),
        n_train,
    )


def _linear(rng: Generator, n: int, *, d: int) -> Arrays:
    X = rng.standard_normal((n, d))
    return X, X @ (rng.standard_normal(d) / np.sqrt(d)) + 0.3 * rng.standard_normal(n)


def _one_hot(rng: Generator, n: int) -> Arrays:
    sizes = (3, 4, 5, 8, 12, 20)
    levels = [rng.integers(size, size=n) for size in sizes]
    X = np.column_stack(
        [np.eye(size)[level] for size, level in zip(sizes, levels, strict=True)]
    )
    y = sum(
        rng.standard_normal(size)[level]
        for size, level in zip(sizes, levels, strict=True)
    )
    for first, second in ((0, 3), (1, 2)):
        y = (
            y
            + rng.standard_normal((sizes[first], sizes[second]))[
                levels[first], levels[second]
            ]
        )
    return X, y + 0.3 * rng.standard_normal(n)


def _integers(rng: Generator, n: int) -> Arrays:
    X = np.column_stack(
        [rng.integers(10, size=(n, 4)), rng.poisson(3.0, (n, 3)), rng.geometric(0.1, n)]
    )
    y = (
        np.sin(0.7 * X[:, 0])
        + 0.05 * X[:, 1] * X[:, 4]
        + np.sqrt(X[:, 5])
        - np.log(X[:, 7])
    )
    return X, y + 0.3 * rng.standard_normal(n)


def smooth(X: np.ndarray) -> np.ndarray:
    return np.sin(1.5 * X[:, 0]) + X[:, 1] * X[:, 2] / 3.0 + np.tanh(X[:, 3] + X[:, 4])


def _tails(
    rng: Generator, n: int, *, law: Callable[[Generator, tuple[int, int]], np.ndarray]
) -> Arrays:
    X = law(rng, (n, 5))
    return X, smooth(np.clip(X, -3.0, 3.0)) + 0.2 * rng.standard_normal(n)


def heteroscedastic(rng: Generator, n: int) -> Arrays:
    X = rng.standard_normal((n, 5))
    return X, smooth(X) + (0.05 + 0.5 * np.abs(X[:, 0])) * rng.standard_normal(n)


def _few(rng: Generator, n: int, *, d: int) -> Arrays:
    X = rng.standard_normal((n, d))
    return X, X[:, 0] + np.sin(1.5 * X[:, 1]) + 0.5 * X[
        :, 2
    ] + 0.3 * rng.standard_normal(n)


def _six_percent(split: int) -> Split:
    made = datasets.make_classification(
        7_500,
        20,
        n_informative=6,
        n_clusters_per_class=3,
        weights=[0.94],
        flip_y=0.01,
        random_state=split,
    )
    return _cut(*made, 5_000)


def _hundred_classes(split: int) -> Split:
    X, y = datasets.make_blobs(
        12_000, n_features=10, centers=100, cluster_std=3.0, random_state=split
    )[:2]
    return _cut(X, y, 10_000)


GENERATED = {
    "linear 20": (partial(_linear, d=20), 1_000),
    "linear 100": (partial(_linear, d=100), 1_000),
    "one-hot": (_one_hot, 2_000),
    "integers": (_integers, 2_000),
    "t1.5": (partial(_tails, law=lambda rng, shape: rng.standard_t(1.5, shape)), 5_000),
    "lognormal": (
        partial(_tails, law=lambda rng, shape: rng.lognormal(0.0, 1.0, shape)),
        5_000,
    ),
    "exponential": (
        partial(_tails, law=lambda rng, shape: rng.exponential(1.0, shape)),
        5_000,
    ),
    "heteroscedastic": (heteroscedastic, 2_000),
    "n=50 d=5": (partial(_few, d=5), 50),
    "n=50 d=20": (partial(_few, d=20), 50),
}
FRIEDMAN = {
    "friedman1": (datasets.make_friedman1, 1.0),
    "friedman2": (datasets.make_friedman2, 125.0),
    "friedman3": (datasets.make_friedman3, 0.1),
}
BUNDLED_CLASSES = {
    "breast cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
}

type Draw = Callable[[int], Split]

CLASSIFICATION: dict[str, Draw] = {
    **{
        name: partial(_bundled, load, classes=True)
        for name, load in BUNDLED_CLASSES.items()
    },
    "6 % positives": _six_percent,
    "100 classes": _hundred_classes,
}
NOT_COUNTED = ("bike",)  # its inputs hold the target, as log(casual + registered)


def regression_sets(folder: Path | None) -> dict[str, Draw]:
    """Return what draws a split of each set, by name; the real ones are those in the
    folder.

    `folder`: holds NAME/data.csv.gz, the target last, and NAME/test_mask.csv.gz, a
    column per split."""
    real = (
        {path.parent.name: path.parent for path in sorted(folder.glob("*/data.csv.gz"))}
        if folder
        else {}
    )
    return {
        **{name: partial(_uci, place) for name, place in real.items()},
        **{
            name + IN_PARTS: partial(_uci_in_parts, real[name])
            for name in ("airfoil", "concrete", "pol")
            if name in real
        },
        "diabetes": partial(_bundled, datasets.load_diabetes, classes=False),
        **{
            name: partial(_friedman, make, noise)
            for name, (make, noise) in FRIEDMAN.items()
        },
        **{
            name: partial(draw, law, name, n_train)
            for name, (law, n_train) in GENERATED.items()
        },
    }
