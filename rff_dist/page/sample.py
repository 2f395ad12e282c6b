"""The rows that a page is made from: a sample of the data, and the model's predictions for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.classify.predict import read_classes
from rff_dist.data.blocks import Block, Rows
from rff_dist.data.samples import sample_rows
from rff_dist.errors import RFFDistError
from rff_dist.jobs.fits import JobData
from rff_dist.ridge.linear_model import predict_rows
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.uncertainty import predict_rows_with_std
from rff_dist.typing import FloatArray

SEED = 0  # of the sampled rows and of shuffles: a page that is made again is the same
SAMPLE_ROWS = 2_000
MAX_FACTOR = 4_096  # up to so many components, a Cholesky factor of the Gram is made for the page


@dataclass(frozen=True, slots=True, eq=False)
class PageSample:
    """Rows of the data, and the model's predictions for them.

    `fitted`: float64 array of shape (n_sampled, n_targets). Predictions; each is made without its own row if
      `left_out` is True.
    """

    X: NDArray[Any]
    y: FloatArray
    fitted: FloatArray
    left_out: bool
    columns: list[str]
    targets: list[str]


def sample_data(data: JobData, model: RidgeModel) -> PageSample:
    """Sample up to 2,000 rows of the data and predict each, without its own row if the sums allow that."""
    dataset = data.rows
    if data.labels is not None:
        from rff_dist.data.labelled import LabelledDataset

        dataset = LabelledDataset(dataset, data.labels, read_classes(model))
    X, y, weights = sample_rows(dataset, SEED, n_rows=SAMPLE_ROWS)
    assert y is not None  # the model was trained on targets
    rows, left_out = Rows(Block(0, 0, len(X)), X), False
    fitted = predict_rows(rows, model.linear)
    small = model.feature_map.n_components <= MAX_FACTOR
    if "classifier" not in model.card and model.statistics is not None and small:
        try:
            predictive = model.predictive
            _, deviations = predict_rows_with_std(rows, predictive)
            # The variance of an observation is that of the noise times 1 + leverage.
            leverage = np.square(deviations) / predictive.noise_variance - 1.0
            if weights is not None:
                leverage *= weights[:, np.newaxis] / predictive.mean_weight
            if (leverage < 1.0 - 1e-6).all():  # a row of leverage 1 is fitted by itself alone
                # Golub, Heath & Wahba 1979: the residual over 1 − leverage is that of a fit without the row
                fitted, left_out = y - (y - fitted) / (1.0 - leverage), True
        except RFFDistError:
            pass  # without usable sums the page shows predictions of training rows, and says so
    targets = model.card.get("target_names") or (
        ["y"] if y.shape[1] == 1 else [f"y{i}" for i in range(y.shape[1])]
    )
    return PageSample(X, y, fitted, left_out, dataset.column_names, [str(name) for name in targets])


def linear_errors(sample: PageSample) -> list[float]:
    """Return the leave-one-out RMSE of least squares for each target."""
    X = np.asarray(sample.X, np.float64)
    spread = X.std(axis=0)
    basis, values, _ = np.linalg.svd(
        np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)]),
        full_matrices=False,
    )
    basis = basis[:, values > 1e-10 * values[0]]  # without directions that are rounding: columns may repeat
    # 1 − leverage: the squares of an orthonormal basis, row by row, add up to the leverages
    left = np.maximum(1e-12, 1.0 - np.square(basis).sum(axis=1))[:, np.newaxis]
    residuals = (sample.y - basis @ (basis.T @ sample.y)) / left
    return [float(value) for value in np.sqrt(np.square(residuals).mean(axis=0))]
