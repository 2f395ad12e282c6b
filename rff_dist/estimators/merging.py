"""Regressions that were trained apart, made one from their sums."""

from __future__ import annotations

from collections.abc import Sequence

from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from rff_dist.errors import InvalidParameterError
from rff_dist.estimators.ridge import RFFRidge
from rff_dist.ridge.merge import merge


def merge_models(models: Sequence[RFFRidge]) -> RFFRidge:
    """Return the model of the rows of all models, from their exact sums alone.

    The models must be of one spec: features, standardisation and offsets are those of one model, as
    `rff-dist refit` trains on other rows. No row may be in two of them. Alpha is chosen as the first model's
    was; where that took folds, it stays.

    Parameters
    ----------
    models : sequence of RFFRidge
        Fitted or loaded, with their statistics; two or more.

    Returns
    -------
    RFFRidge
        Fitted, with the parameters of the first.

    Raises
    ------
    InvalidParameterError
        If there are fewer than two, or one is no RFFRidge.
    StatisticsError
        If a model has no statistics, or is of another spec (names the first field that differs), or two were
        trained on the same data.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import RFFRidge, merge_models
    >>> X = np.random.default_rng(0).standard_normal((200, 2))
    >>> first = RFFRidge(n_components=16, alpha=0.1, random_state=0).fit(X, X[:, 0])
    >>> merge_models([first, first])
    Traceback (most recent call last):
    rff_dist.errors.StatisticsError: models[0] and models[1] were trained on data of the same ...
    """
    for i, model in enumerate(models):
        if not isinstance(model, RFFRidge):
            raise InvalidParameterError(f"models[{i}] is a {type(model).__name__}; expected an RFFRidge")
        check_is_fitted(model, "_fitted")
    merged = merge([model.model_ for model in models], [f"models[{i}]" for i in range(len(models))])
    estimator: RFFRidge = clone(models[0])
    estimator._keep(merged)
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(models[0], name):
            setattr(estimator, name, getattr(models[0], name))
    return estimator
