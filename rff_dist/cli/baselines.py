"""Errors of scikit-learn's models on the same rows: a linear one, and boosted trees."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_ROWS = 50_000  # most rows to train on, and most to test on


@dataclass(frozen=True, slots=True)
class Baselines:
    """Errors of other models.

    `scores`: for "linear" and "boosted trees": `rmse` and `r2`, or `accuracy` and `log_loss`.
    `n_train`, `n_test`: numbers of rows; a seeded sample if there were more than `MOST_ROWS`.
    """

    scores: dict[str, dict[str, float]]
    n_train: int
    n_test: int


def fit_baselines(train: str, test: str, *, classify: bool, seed: int) -> Baselines:
    """Fit a linear model and boosted trees on one dataset, and measure them on another."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    X, y = _sample(train, classify=classify, seed=seed)
    X_test, y_test = _sample(test, classify=classify, seed=seed)
    linear: Any = LogisticRegression(max_iter=1000) if classify else RidgeCV(np.logspace(-3, 5, 17))
    trees: Any = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    models = {
        "linear": make_pipeline(StandardScaler(), linear),
        "boosted trees": trees(early_stopping=False, random_state=seed),
    }
    scores = {}
    for name, model in models.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unconverged fit will do for a comparison
            model.fit(X, y)
            scores[name] = _errors(model, X_test, y_test, classify=classify)
    return Baselines(scores, len(X), len(X_test))


def _sample(url: str, *, classify: bool, seed: int) -> tuple[Any, Any]:
    """Return X and y of a dataset, or of a sample of its rows."""
    from rff_dist.storage.columns import open_column
    from rff_dist.storage.datasets import open_dataset

    dataset = open_dataset(url, y=None if classify else "y")
    n_samples = dataset.n_samples
    rows = np.arange(n_samples)
    if n_samples > MOST_ROWS:
        generator = np.random.Generator(np.random.Philox(seed))
        rows = np.sort(generator.choice(n_samples, MOST_ROWS, replace=False))
    X, y, _ = dataset.take(rows)
    if classify:
        labels = open_column(url, "y").take(rows)
        return X, labels.astype(object) if labels.dtype.kind in "TU" else labels
    assert y is not None
    return X, y[:, 0]


def _errors(model: Any, X: Any, y: Any, *, classify: bool) -> dict[str, float]:
    if not classify:
        errors = model.predict(X) - y
        mse, variance = float(np.mean(errors**2)), float(np.var(y))
        return {"rmse": mse**0.5, "r2": 1 - mse / variance if variance else float("nan")}
    accuracy = float(np.mean(model.predict(X) == y))
    classes = {label: i for i, label in enumerate(model.classes_.tolist())}
    places = np.array([classes.get(label, -1) for label in y.tolist()])
    probabilities = model.predict_proba(X)[np.arange(len(y)), places]
    # A class that no training row has gets 0; scikit-learn's log_loss clips likewise.
    probabilities = np.where(places < 0, 0.0, probabilities).clip(np.finfo(float).eps)
    return {"accuracy": accuracy, "log_loss": float(-np.mean(np.log(probabilities)))}
