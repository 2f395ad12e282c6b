"""Boosted trees, trained on the same rows as a model, to compare the model with.

In goes the result of a training job with test rows, out comes the same result, whose
comparison has scikit-learn's boosted trees too. Trees need all rows in memory, and a
table that streams through the fit may be larger; so they are trained on a sample if
memory is too small.
"""

import os
import time
from dataclasses import replace
from typing import Any

import numpy as np

from rff_dist.classify import predict
from rff_dist.numerics import machine
from rff_dist.workbench.jobs import comparison, train

# scikit-learn's limit: with more rows, the error on a tenth of them stops the training
_MANY_ROWS = 10_000


def with_trees(
    training: train.TrainingResult, seed: int, most_bytes: int | None = None
) -> train.TrainingResult:
    """Train boosted trees on the same rows, and add them to a result's comparison on
    test rows.

    They have scikit-learn's defaults: 100 trees, but with more than 10,000 rows only as
    many as lower the error on a tenth of the rows. For several targets a note says that
    no trees were trained.

    `most_bytes`: memory for the rows, by default a third of what there is. If the rows
      take more, the trees get a sample, and the comparison draws no conclusion.
    """
    compared = training.comparison
    data = training.data
    assert compared is not None  # there are test rows
    if compared.classes is None and compared.observed.shape[1] > 1:
        note = "It was not compared with boosted trees, which predict one target."
        return replace(
            training, comparison=replace(compared, notes=(*compared.notes, note))
        )
    if most_bytes is None:
        most_bytes = machine.available_memory() // 3
    # waiting threads then sleep: spinning ones took five times as long on a busy
    # machine
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import sklearn
    from sklearn.ensemble import (
        HistGradientBoostingClassifier,
        HistGradientBoostingRegressor,
    )

    classify = compared.classes is not None
    dataset = data.with_targets(training.model)
    # X as it is stored, as float64, the part that is trained on (8 + 8 bytes a number),
    # and binned to a byte; and for each class the predictions so far
    row_bytes = dataset.n_features * (dataset.dtype.itemsize + 17) + 24 * (
        dataset.n_targets + 2
    )
    n_rows = min(dataset.n_samples, max(1_000, most_bytes // row_bytes))
    _, X, Y, weights = data.sample(training.model, n_rows, seed)
    y: Any = predict.class_of(Y) if classify else Y[:, 0]
    # scikit-learn stratifies the tenth by class, so each class needs two rows
    can_split = not classify or np.bincount(y)[np.unique(y)].min() > 1
    stops_early = len(X) > _MANY_ROWS and can_split
    kind: Any = (
        HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    )
    boosted = kind(early_stopping=stops_early, random_state=seed)
    start = time.perf_counter()
    boosted.fit(X, y, sample_weight=weights)
    seconds = time.perf_counter() - start
    training_words = (
        f"{boosted.n_iter_:,} trees on {len(X):,} rows, {seconds:.0f} s,"
        f" by scikit-learn {sklearn.__version__}"
    )
    handicap: str | None = None
    if n_rows < dataset.n_samples:
        n_without_weight = n_rows - len(X)  # among the rows of the sample
        n_counted = dataset.n_samples - n_without_weight
        handicap = f"memory holds {len(X):,} of the {n_counted:,} rows to train them on"

    values = boosted.predict(compared.rows.X)
    logs = None
    if classify:
        logs = np.full((compared.n_rows, len(compared.classes or ())), -np.inf)
        with np.errstate(divide="ignore"):
            logs[:, boosted.classes_] = np.log(boosted.predict_proba(compared.rows.X))
    values = values.astype(np.int64) if classify else values[:, np.newaxis]
    trees = comparison.Predictions(values, logs, training_words, handicap)
    return replace(training, comparison=compared.with_model(comparison.TREES, trees))
