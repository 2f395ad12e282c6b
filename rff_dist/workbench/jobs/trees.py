"""Boosted trees, trained on the same rows for as long as a model was, to compare the model with."""

import os
import time
from dataclasses import replace
from typing import Any

import numpy as np

from rff_dist.classify import predict
from rff_dist.numerics import machine
from rff_dist.workbench.jobs import train, verdict

LEAST_SECONDS = 10.0
FIRST_TREES = 10
USUAL_TREES = 100  # scikit-learn's default; with more than 10,000 rows the trees stop themselves
_MANY_ROWS = 10_000


def with_trees(training: train.Training, seed: int, most_bytes: int | None = None) -> train.Training:
    """Train boosted trees on the same rows, and return the comparison on test rows with them.

    They are trained for as long as the model was, and for 10 s in any case: each step adds as many trees as
    the time that is left allows, going by those before. Up to 10,000 rows get 100 trees. With more rows, the
    trees end when the error of a tenth of the rows falls no further. For several targets a note says that
    there are none.

    `most_bytes`: a third of the memory by default. If the rows take more, a sample of them is taken, and
      there is no conclusion.
    """
    comparison, data = training.comparison, training.data
    assert comparison is not None  # there are test rows
    if comparison.classes is None and comparison.y.shape[1] > 1:
        note = "It was not compared with boosted trees, which predict one target."
        return replace(training, comparison=replace(comparison, notes=(*comparison.notes, note)))
    most_bytes = machine.available_memory() // 3 if most_bytes is None else most_bytes
    # threads that wait by spinning took five times as long on a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    classify, dataset = comparison.classes is not None, data.with_targets(training.model)
    # stored, as float64, its part to train on, as bytes, and predictions so far of each class
    row_bytes = dataset.n_features * (dataset.dtype.itemsize + 17) + 24 * (dataset.n_targets + 2)
    n_rows = min(dataset.n_samples, max(1_000, most_bytes // row_bytes))
    _, X, Y, weights = data.sample(training.model, n_rows, seed)
    y: Any = predict.class_of(Y) if classify else Y[:, 0]
    by_themselves = len(X) > _MANY_ROWS and (not classify or np.bincount(y)[np.unique(y)].min() > 1)
    kind: Any = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    boosted = kind(early_stopping=by_themselves, warm_start=True, random_state=seed, max_iter=FIRST_TREES)
    start, budget = time.perf_counter(), max(LEAST_SECONDS, training.chosen["fit_seconds"])
    while True:
        boosted.fit(X, y, sample_weight=weights)
        taken, n_trees = time.perf_counter() - start, int(boosted.n_iter_)
        affordable = int((budget - taken) / (taken / n_trees))
        ended = n_trees < boosted.max_iter or (not by_themselves and n_trees >= USUAL_TREES)
        if ended or affordable < 1:
            break
        wanted = n_trees + min(7 * n_trees, affordable)  # few steps, since each bins all rows again
        boosted.max_iter = wanted if by_themselves else min(USUAL_TREES, wanted)
    remarks: dict[str, Any] = {
        "about": f"{n_trees:,} trees on {len(X):,} rows, {'' if ended else 'stopped after '}{taken:.0f} s"
    }
    if not ended:
        remarks["called"] = f"{verdict.TREES} trained as long"
    if n_rows < dataset.n_samples:
        n_counted = dataset.n_samples - (n_rows - len(X))
        remarks["handicap"] = f"memory holds {len(X):,} of the {n_counted:,} rows to train them on"
    values, logs = boosted.predict(comparison.X), None
    if classify:
        logs = np.full((comparison.n_rows, len(comparison.classes or ())), -np.inf)
        with np.errstate(divide="ignore"):
            logs[:, boosted.classes_] = np.log(boosted.predict_proba(comparison.X))
    values = values.astype(np.int64) if classify else values[:, np.newaxis]
    trees = verdict.Predictions(values, logs, **remarks)
    return replace(training, comparison=comparison.with_model(verdict.TREES, trees))
