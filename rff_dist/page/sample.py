"""The training rows that a page is made from: a sample of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from rff_dist.classify.predict import read_classes
from rff_dist.data.labelled import LabelledDataset
from rff_dist.data.samples import sample_rows
from rff_dist.jobs.fits import JobData
from rff_dist.ridge.model import RidgeModel
from rff_dist.typing import FloatArray

SEED = 0  # of the sampled rows and of shuffles: a page that is made again is the same
SAMPLE_ROWS = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class PageSample:
    """Rows of the data to describe."""

    X: NDArray[Any]
    y: FloatArray
    columns: list[str]
    targets: list[str]


def sample_data(data: JobData, model: RidgeModel) -> PageSample:
    """Sample up to 2,000 rows of the data."""
    dataset = data.rows
    if data.labels is not None:
        dataset = LabelledDataset(dataset, data.labels, read_classes(model))
    X, y, _ = sample_rows(dataset, SEED, n_rows=SAMPLE_ROWS)
    assert y is not None  # the model was trained on targets
    targets = model.card.get("target_names") or (
        ["y"] if y.shape[1] == 1 else [f"y{i}" for i in range(y.shape[1])]
    )
    columns = list(dataset.feature_names or model.card.get("feature_names") or dataset.column_names)
    return PageSample(X, y, columns, [str(name) for name in targets])
