"""Estimators of one kernel, length scale and kind of features, for tests that are not
about their choice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rff_dist import RFFClassifier, RFFRidge
from rff_dist.classify import fit as classification
from rff_dist.classify.fit import LossOptions
from rff_dist.data.blocks import Dataset
from rff_dist.data.columns import Column
from rff_dist.engines.protocol import Engine
from rff_dist.fitting.options import RidgeOptions
from rff_dist.kernels.base import Kernel
from rff_dist.kernels.stationary import parts_without_length_scale
from rff_dist.living import update
from rff_dist.living.new_rows import find_new_rows
from rff_dist.ridge.candidates import Candidate
from rff_dist.ridge.choices import DEFAULT_COMPONENTS
from rff_dist.ridge.fit import fit
from rff_dist.ridge.fit_result import FitResult
from rff_dist.ridge.models import RidgeModel
from rff_dist.ridge.solve import SelectedSolution


def plain_ridge(kernel: str | Kernel = "gaussian", **parameters: Any) -> RFFRidge:
    """Return a ridge on 32 Fourier features with one median distance; alpha is GCV's
    where it may be.
    """
    by_folds = (
        parameters.get("cv") is not None
        or np.ndim(parameters.get("n_components", 0)) > 0
    )
    return RFFRidge(
        kernel, **_plain(kernel, alpha="cv" if by_folds else "gcv") | parameters
    )


def plain_classifier(
    kernel: str | Kernel = "gaussian", **parameters: Any
) -> RFFClassifier:
    """Return a classifier that is as plain."""
    return RFFClassifier(kernel, **_plain(kernel, alpha="gcv") | parameters)


def _plain(kernel: str | Kernel, *, alpha: str) -> dict[str, Any]:
    own = isinstance(kernel, Kernel) and not parts_without_length_scale(kernel)
    return {
        "length_scale": "auto" if own else "median",
        "features": "fourier",
        "n_components": 32,
        "alpha": alpha,
        "random_state": 0,
    }


def fit_ridge(
    dataset: Dataset, kernel: Kernel, *, engine: Engine, **options: Any
) -> tuple[RidgeModel, SelectedSolution]:
    """Train on Fourier features with one median distance."""
    plain = {"length_scale": "median", "features": "fourier", "n_components": 2048}
    if "features" not in options:
        plain["design"] = "orthogonal"
    trained = fit(
        dataset, RidgeOptions(kernel=kernel, **plain | options), engine=engine
    )
    return trained.model, trained.solved


def fit_labels(
    source: Dataset,
    labels: Column,
    options: RidgeOptions,
    losses: LossOptions,
    *,
    engine: Engine,
) -> RidgeModel:
    """Train a classifier on labels."""
    dataset, options = classification.label_rows(
        source, labels, options, losses, engine=engine
    )
    return classification.fit(dataset, options, losses, engine=engine).model


def search_plain(
    dataset: Dataset, candidates: Sequence[Candidate], *, engine: Engine, **options: Any
) -> FitResult:
    """Compare candidates on Fourier features by five folds."""
    plain = {"features": "fourier", "alpha": "cv", "n_components": DEFAULT_COMPONENTS}
    return fit(
        dataset, RidgeOptions(**plain | options), candidates=candidates, engine=engine
    )


def update_model(
    model: RidgeModel, dataset: Dataset, *, engine: Engine, **options: Any
) -> RidgeModel:
    """Take the steps of a refresh in one call, without its gate; the same model if
    nothing is new.
    """
    rows = find_new_rows(model, dataset, **options)
    if rows.is_empty:
        return model
    dataset = rows.differences.after or dataset
    new = (
        update.score_new_rows(model, dataset, rows, engine=engine)
        if rows.n_new
        else None
    )
    statistics = update.accumulate_new_rows(model, dataset, rows, engine=engine)
    gone = update.measure_gone_rows(model, dataset, rows, engine=engine)
    return update.solve_update(
        model, dataset, rows, statistics=statistics, new=new, gone=gone
    )
