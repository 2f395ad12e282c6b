"""Fitted estimators on disk, with the pipeline before them.

`save_model` writes an estimator as JSON and checksummed arrays, and `load_model`
returns it again. A pickle would run code when it is loaded, and need the same versions
of all packages.
"""

from dataclasses import replace
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from rff_dist.errors import InvalidParameterError
from rff_dist.estimators import ridge
from rff_dist.estimators.classifier import RFFClassifier
from rff_dist.estimators.kmeans import RFFKMeans
from rff_dist.fitting import parameters
from rff_dist.kmeans import starts
from rff_dist.models.kinds import kind_of, read_any, write_any
from rff_dist.recipes import recipes, transformer
from rff_dist.ridge import models
from rff_dist.typing import PathLike

_ESTIMATORS: dict[str, Any] = {
    "regression": ridge.RFFRidge,
    "classifier": RFFClassifier,
    "clusters": RFFKMeans,
}


def save_model(
    model: (
        ridge.RFFRidge
        | RFFClassifier
        | RFFKMeans
        | Pipeline
        | models.RidgeModel
        | starts.Clusters
    ),
    url: PathLike,
    *,
    statistics: bool = True,
    overwrite: bool = False,
) -> None:
    """Store a fitted model.

    Until the new model is complete, a reader sees the previous one, or none.

    Parameters
    ----------
    model : RFFRidge, RFFClassifier, RFFKMeans, Pipeline, RidgeModel or Clusters
        A fitted model. The last step of a Pipeline must be one of the estimators, after
        transformers of scikit-learn. These are stored as the model's recipe, without
        pickle (extra `skops`), so that the loaded model and `rff-dist predict` take the
        same tables as the pipeline.
    url : str or Path
        A local path or a URL of an object store.
    statistics : bool
        Whether to store the exact sums too, about 4 · n_components² bytes, so that the
        model can be updated. Clusters have no such sums.
    overwrite : bool
        Whether an existing model may be replaced.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    OutputExistsError
        If there is something at `url` and `overwrite` is False.
    InvalidParameterError
        If `model` is of another type, or both the pipeline and its last step encode
        columns.
    UnsafeModelError
        If a pipeline's transformers hold code that is not scikit-learn's or NumPy's.
    MissingDependencyError
        If `model` is a Pipeline, and skops is not installed.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from rff_dist import RFFRidge, load_model, save_model
    >>> X = np.linspace(0, 1, 50)[:, np.newaxis]
    >>> model = RFFRidge(n_components=16, random_state=0).fit(X, X[:, 0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(model, f"{folder}/model")
    ...     loaded = load_model(f"{folder}/model")
    >>> bool((loaded.predict(X) == model.predict(X)).all())
    True
    """
    estimator: Any = model
    recipe = None
    if isinstance(model, Pipeline):
        estimator, recipe = _parts_of(model)
    fitted_model = _fitted_model_of(estimator)
    if recipe is not None:
        recipe_of_model = recipes.recipe_of(fitted_model.card)
        if recipe_of_model is not None:
            raise InvalidParameterError(
                f"the model encodes columns itself ({recipe_of_model.words}) after the"
                " pipeline's transformers, and a stored model has one recipe; encode"
                " all of them in the pipeline, or fit the model to the table"
            )
        facts = {recipes.RECIPE: recipe.to_dict(), "feature_names": recipe.names}
        fitted_model = replace(fitted_model, card={**fitted_model.card, **facts})
    if not statistics and isinstance(fitted_model, models.RidgeModel):
        fitted_model = fitted_model.without_statistics()
    write_any(fitted_model, url, overwrite=overwrite)


def load_model(url: PathLike) -> ridge.RFFRidge | RFFClassifier | RFFKMeans:
    """Load a model that `save_model` or a command stored, as a fitted estimator.

    Raises
    ------
    StorageError
        If there is no model. It is an IntegrityError if the model is damaged, an
        UnsafeModelError if it could run code, and a VersionError for the format of a
        newer release.
    """
    model: Any = read_any(url)
    estimator: ridge.RFFRidge | RFFClassifier | RFFKMeans = _ESTIMATORS[
        kind_of(model)
    ]()
    estimator.set_params(**parameters.from_card(model.card, estimator.get_params()))
    return estimator._with_model(model)


def _fitted_model_of(model: Any) -> models.RidgeModel | starts.Clusters:
    """Return an estimator's fitted model, with the estimator's parameters on its card,
    the facts that are stored with a model.

    A fitted model is returned as it is; anything else raises InvalidParameterError.
    """
    if isinstance(model, models.RidgeModel | starts.Clusters):
        return model
    if not isinstance(model, RFFKMeans | ridge.RFFRidge | RFFClassifier):
        raise InvalidParameterError(
            f"cannot store a {type(model).__name__}; expected a fitted RFFRidge,"
            " RFFClassifier or RFFKMeans, or a Pipeline that ends with one"
        )
    check_is_fitted(model, "_fitted")
    # `model_` is solved with the rows that `partial_fit` added
    fitted_model = model._fitted if isinstance(model, RFFKMeans) else model.model_
    card = dict(fitted_model.card)
    card[parameters.PARAMETERS] = {
        **card.get(parameters.PARAMETERS, {}),
        **parameters.to_card(model.get_params(deep=False)),
    }
    return replace(fitted_model, card=card)


def _parts_of(pipeline: Pipeline) -> tuple[Any, recipes.Recipe | None]:
    """Return a pipeline's last step, and the steps before it as a recipe; None if they
    do nothing.
    """
    *before, (_, last) = pipeline.steps
    if all(step in (None, "passthrough") for _, step in before):
        return last, None
    check_is_fitted(last)
    return last, recipes.Recipe(
        [transformer.transformer_of(pipeline[:-1], n_names=last.n_features_in_)]
    )
