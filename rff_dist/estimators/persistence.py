"""Fitted estimators on disk, with the pipeline before them: JSON and checksummed arrays, no pickle."""

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from rff_dist.classify import predict
from rff_dist.data import folding
from rff_dist.errors import InvalidParameterError
from rff_dist.estimators import ridge
from rff_dist.estimators.classifier import RFFClassifier
from rff_dist.estimators.kmeans import RFFKMeans
from rff_dist.features import composed, kinds, maps, nystrom
from rff_dist.kmeans import starts
from rff_dist.models.kinds import KINDS, kind_of, read_any
from rff_dist.recipes import recipes, transformer
from rff_dist.ridge import models
from rff_dist.typing import PathLike


def save_model(
    model: ridge.RFFRidge | RFFClassifier | RFFKMeans | Pipeline | models.RidgeModel | starts.Clusters,
    url: PathLike,
    *,
    statistics: bool = True,
    overwrite: bool = False,
) -> None:
    """Store a fitted model. Meanwhile, a reader sees the model that was there before, or none.

    Parameters
    ----------
    model : RFFRidge, RFFClassifier, RFFKMeans, Pipeline, RidgeModel or Clusters
        A fitted model. The last step of a Pipeline must be one of the estimators, after transformers of
        scikit-learn. These are stored as the model's recipe, without pickle (extra `skops`), so that the
        loaded model and `rff-dist predict` take the same tables as the pipeline.
    url : str or Path
        A local path, `memory://name` or a URL of an object store.
    statistics : bool
        Whether to store the exact sums too, about 4 · n_components² bytes, so that the model can be updated.
        Clusters have no such sums.
    overwrite : bool
        Whether an existing model may be replaced.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    OutputExistsError
        If there is something at `url` and `overwrite` is False.
    InvalidParameterError
        If `model` is of another type.
    UnsafeModelError
        If a pipeline's transformers hold code that is not scikit-learn's or NumPy's.
    MissingDependencyError
        If `model` is a Pipeline, and skops is not installed.

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
    model, recipe = _parts_of(model) if isinstance(model, Pipeline) else (model, None)
    fitted: Any = model
    if isinstance(model, RFFKMeans | ridge.RFFRidge | RFFClassifier):
        check_is_fitted(model, "_fitted")
        fitted = model._fitted if isinstance(model, RFFKMeans) else model.model_  # with all rows that came
    if type(fitted) not in KINDS:
        raise InvalidParameterError(
            f"cannot store a {type(model).__name__}; expected a fitted RFFRidge, RFFClassifier or RFFKMeans, "
            "or a Pipeline that ends with one"
        )
    if recipe is not None:
        facts = {recipes.RECIPE: recipe.to_dict(), "feature_names": recipe.names}
        fitted = replace(fitted, card={**fitted.card, **facts})
    if not statistics and isinstance(fitted, models.RidgeModel):
        fitted = fitted.without_statistics()
    kind_of(fitted).write(fitted, url, overwrite=overwrite)


def load_model(url: PathLike) -> ridge.RFFRidge | RFFClassifier | RFFKMeans:
    """Load a model that `save_model`, `rff-dist` or a flow stored, as a fitted estimator.

    Raises
    ------
    StorageError
        If there is no model. It is an IntegrityError if the model is damaged, an UnsafeModelError for a
        pickle, and a VersionError for the format of a newer release.
    """
    model: Any = read_any(url)
    estimator = _unfitted(model)
    estimator._keep(model)
    estimator.n_features_in_ = model.feature_map.n_features
    names = model.card.get("feature_names")
    if names:
        estimator.feature_names_in_ = np.asarray(names, object)
    return estimator


def _parts_of(pipeline: Pipeline) -> tuple[Any, recipes.Recipe | None]:
    """Return a pipeline's last step, and the steps before it as a recipe."""
    *before, (_, last) = pipeline.steps
    if not any(step not in (None, "passthrough") for _, step in before):
        return last, None
    check_is_fitted(last)
    return last, recipes.Recipe([transformer.transformer_of(pipeline[:-1], n_names=last.n_features_in_)])


def _unfitted(model: Any) -> ridge.RFFRidge | RFFClassifier | RFFKMeans:
    """Return an estimator for a stored model, with the parameters that the model keeps."""
    if isinstance(model, starts.Clusters):
        return RFFKMeans(model.n_clusters, **_features_of(model.feature_map))
    if "classifier" not in model.card:
        return ridge.RFFRidge(**_parameters_of(model), alpha_per_target=model.card["alpha_per_target"])
    facts = model.card["classifier"]
    weight = facts["class_weight"]
    if isinstance(weight, list):
        weight = dict(zip(predict.read_classes(model).tolist(), weight, strict=True))
    options = {name: facts[name] for name in ("loss", "tol", "max_iter")}
    return RFFClassifier(class_weight=weight, **options, **_parameters_of(model))


def _parameters_of(model: models.RidgeModel) -> dict[str, Any]:
    """Return the parameters for another fit of the same kind."""
    card, standardizer = model.card, model.feature_map.standardizer
    # a kernel of columns that were mapped by the evidence suits no others: another fit chooses both again
    tuned = standardizer is not None and any(part.slope for part in standardizer.maps)
    return {
        **_features_of(model.feature_map),
        **({"kernel": "auto"} if tuned else {}),
        "alpha": card["alpha_given"],
        "cv": folding.folds_from_dict(card["folds"]) if "folds" in card else None,
        **{name: card[name] for name in ("standardize", "fit_intercept", "sample_weight_kind")},
    }


def _standardize_of(feature_map: maps.FeatureMap) -> bool | str:
    if feature_map.standardizer is None:
        return False
    n_ranked = len(feature_map.standardizer.maps)
    # "auto" may have come to the same, and a new fit with "rank" then prepares inputs as before
    if n_ranked == feature_map.n_features:
        return "rank"
    return "auto" if n_ranked else True


def _features_of(feature_map: maps.FeatureMap) -> dict[str, Any]:
    """Return the parameters with which another fit draws features of the same kind."""
    if isinstance(feature_map, composed.PrincipalFeatureMap):
        parameters = _features_of(feature_map.base.with_standardizer(feature_map.standardizer))
        normalize = None if feature_map.floor is None else "degree"
        return {**parameters, "n_principal": feature_map.n_components, "normalize": normalize}
    spec, kernel = feature_map.spec, kinds.kernel_of(feature_map)
    return {
        "kernel": "gaussian" if kernel is None else kernel,
        "n_components": feature_map.n_components,
        "features": "nystrom" if isinstance(feature_map, nystrom.NystromFeatureMap) else "fourier",
        "design": "auto" if spec is None else spec.design.name,
        "precision": "standard" if spec is None else spec.precision,
        "standardize": _standardize_of(feature_map),
        "random_state": None if spec is None else spec.seed,
    }
