"""Fitted estimators on disk: JSON and checksummed arrays, no pickle."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from rff_dist.errors import InvalidParameterError
from rff_dist.estimators.classifier import RFFClassifier, estimator_of
from rff_dist.estimators.ridge import RFFRidge
from rff_dist.feature_map import NystromFeatureMap
from rff_dist.folds import folds_from_dict
from rff_dist.model import RidgeModel, read_model, write_model
from rff_dist.pipeline import kernel_of


def save_model(
    model: RFFRidge | RFFClassifier | RidgeModel,
    url: str | os.PathLike[str],
    *,
    statistics: bool = True,
    overwrite: bool = False,
) -> None:
    """Store a fitted model; a reader meanwhile sees the one before, or none.

    Parameters
    ----------
    model : RFFRidge, RFFClassifier or RidgeModel
        Fitted.
    url : str or Path
        A local path, `memory://name` or a URL of an object store.
    statistics : bool
        Whether to store the exact sums too, about 4 · n_components² bytes, so that the model can be updated.
    overwrite : bool
        Whether a model that is there may be replaced.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    OutputExistsError
        If there is something at `url` and `overwrite` is False.
    InvalidParameterError
        If `model` is something else.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import RFFRidge, load_model, save_model
    >>> X = np.linspace(0, 1, 50)[:, np.newaxis]
    >>> model = RFFRidge(n_components=16, random_state=0).fit(X, X[:, 0])
    >>> save_model(model, "memory://save-model-example")
    >>> loaded = load_model("memory://save-model-example")
    >>> bool((loaded.predict(X) == model.predict(X)).all())
    True
    """
    if isinstance(model, RFFRidge | RFFClassifier):
        check_is_fitted(model, "_fitted")
        fitted = model.model_
    elif isinstance(model, RidgeModel):
        fitted = model
    else:
        raise InvalidParameterError(
            f"cannot store a {type(model).__name__}; expected a fitted RFFRidge or RFFClassifier"
        )
    write_model(fitted if statistics else fitted.without_statistics(), url, overwrite=overwrite)


def load_model(url: str | os.PathLike[str]) -> RFFRidge | RFFClassifier:
    """Load a model that `save_model`, `rff-dist fit` or a flow stored, as a fitted estimator.

    Parameters
    ----------
    url : str or Path

    Raises
    ------
    StorageError
        If there is no model; IntegrityError if it is damaged, UnsafeModelError for a pickle, VersionError
        for the format of a newer release.
    """
    model = read_model(url)
    parameters = _parameters_of(model)
    estimator: RFFRidge | RFFClassifier
    if "classifier" in model.card:
        estimator = estimator_of(model, **parameters)
    else:
        estimator = RFFRidge(**parameters)
        estimator._keep(model)
    estimator.n_features_in_ = model.n_features
    names = model.card.get("feature_names")
    if names:
        estimator.feature_names_in_ = np.asarray(names, object)
    return estimator


def _parameters_of(model: RidgeModel) -> dict[str, Any]:
    """Return the parameters that a later fit of the same kind takes."""
    spec, kernel = model.feature_map.spec, kernel_of(model.feature_map)
    return {
        "kernel": "gaussian" if kernel is None else kernel,
        "n_components": model.feature_map.n_components,
        "features": "nystrom" if isinstance(model.feature_map, NystromFeatureMap) else "fourier",
        "alpha": model.card.get("alpha_given", "auto" if model.selection else model.alpha),
        "cv": folds_from_dict(model.card["folds"]) if "folds" in model.card else None,
        "design": "orthogonal" if spec is None else spec.design.name,
        "standardize": model.feature_map.standardizer is not None,
        "fit_intercept": bool(model.card.get("fit_intercept", True)),
        "random_state": None if spec is None else spec.seed,
    }
