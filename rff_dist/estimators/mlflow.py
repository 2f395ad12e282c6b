"""Models for MLflow: logged with their choices and errors, and served as its flavour `pyfunc`."""

import os
import warnings
from datetime import datetime
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rff_dist.errors import OutputExistsError
from rff_dist.estimators import persistence
from rff_dist.lazy import require
from rff_dist.models import kinds, versions
from rff_dist.recipes import recipes
from rff_dist.typing import FloatArray


def save_mlflow(url: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Write a stored model as a folder that `mlflow models serve` and `mlflow.pyfunc.load_model` read.

    `url`: of a model of any kind. For a registered model, its current version is taken.
    Raises MissingDependencyError if MLflow is not installed; OutputExistsError if the folder exists;
      StorageError if there is no model.
    """
    mlflow, place = _mlflow(), Path(folder)
    if place.exists():
        raise OutputExistsError(f"{place} exists already; export to another folder")
    with TemporaryDirectory(prefix="rff_dist-") as temporary:
        mlflow.pyfunc.save_model(path=str(place), **_flavour(kinds.read_any(url), Path(temporary)))
    return place


def log_mlflow(url: str | os.PathLike[str], *, name: str = "model") -> Any:
    """Log a stored model to MLflow's active run: its choices, its errors, its lineage, and the model.

    Errors on test data are logged as test_rmse, test_accuracy and so on. The lineage of a registered model's
    current version is the file lineage.json.

    `name`: of the model in MLflow.
    Returns MLflow's ModelInfo.
    Raises MissingDependencyError if MLflow is not installed; StorageError if there is no model.
    """
    mlflow, model = _mlflow(), kinds.read_any(url)
    chosen = {key: str(value) for key, value in kinds.kind_of(model).chosen(model).items()}
    mlflow.log_params({**chosen, "n_components": model.feature_map.n_components, "digest": model.digest()})
    if (version := versions.RegisteredModel(url).current()) is not None:
        mlflow.log_param("version", version.number)
        mlflow.log_dict(version.to_dict(), "lineage.json")
    titles = ("accuracy", "log_loss") if "classifier" in model.card else ("rmse", "r2")
    for prefix, name_of_errors in (("", "estimate"), ("test_", "metrics")):
        errors = model.card.get(name_of_errors) or {}
        for key in titles:
            values = np.atleast_1d(np.asarray(errors.get(key, []), np.float64))
            for target, value in enumerate(values.tolist()):
                if np.isfinite(value):
                    mlflow.log_metric(prefix + (key if len(values) == 1 else f"{key}_{target}"), value)
    with TemporaryDirectory(prefix="rff_dist-") as temporary:
        return mlflow.pyfunc.log_model(name=name, **_flavour(model, Path(temporary)))


def _mlflow() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow warns of its own type hints
        require("mlflow.pyfunc", "models are logged by the package mlflow", "mlflow")
    return import_module("mlflow")


def _flavour(model: kinds.AnyModel, folder: Path) -> dict[str, Any]:
    """Return MLflow's arguments for a model: its stored form, and the module that reads it."""
    kinds.kind_of(model).write(model, folder / "model", overwrite=False)
    recipe = recipes.recipe_of(model.card)
    extra = "[skops]" if recipe is not None and recipe.transformer is not None else ""
    return {
        # MLflow imports this module where it serves the model, and calls `_load_pyfunc`
        "loader_module": __name__,
        "data_path": str(folder / "model"),
        # the version that wrote the model, as another one may refuse its format
        "pip_requirements": [f"rff_dist{extra}=={version_of('rff_dist')}"],
        **_described(folder / "model", recipe),
    }


def _described(stored: Path, recipe: recipes.Recipe | None) -> dict[str, Any]:
    """Return MLflow's signature of a model, and an input example if the kinds of its columns are known.

    A model holds no rows: the example has columns at their means, and texts at their first level.
    """
    models, schema = import_module("mlflow.models"), import_module("mlflow.types.schema")
    model = persistence.load_model(stored)
    names = list(getattr(model, "feature_names_in_", ())) if recipe is None else recipe.inputs
    # MLflow refuses integers for `double` and text for `datetime`. The model takes both and checks.
    columns = [schema.ColSpec(schema.AnyType(), name) for name in names or [None] * model.n_features_in_]
    signature = models.ModelSignature(inputs=schema.Schema(columns))
    if recipe is not None and recipe.transformer is not None:
        return {"signature": signature}
    standardizer = model.feature_map_.standardizer
    means = np.zeros(model.n_features_in_) if standardizer is None else standardizer.mean
    example: Any = means[np.newaxis]
    if names:
        row = dict(zip(names, means, strict=True)) if recipe is None else _example(recipe, means)
        example = import_module("pandas").DataFrame([row])
    outputs = models.infer_signature(model_output=model.predict(example)).outputs
    return {
        "signature": models.ModelSignature(inputs=signature.inputs, outputs=outputs),
        "input_example": example,
    }


def _example(recipe: recipes.Recipe, means: FloatArray) -> dict[str, Any]:
    """Return a row of a recipe's table; `means`: of the columns that it makes, of shape (n_features,)."""
    row, start = dict[str, Any](), 0
    for encoder in recipe.columns:
        value: Any = means[start]
        if isinstance(encoder, recipes.Date):
            value = datetime(2024, 1, 1)
        elif isinstance(encoder, recipes.OneHot | recipes.TargetMeans):
            value = next(iter(encoder.levels), "")
        row[encoder.column] = value
        start += len(encoder.names)
    return row


class _Predictor:
    """The object that MLflow calls."""

    def __init__(self, path: str) -> None:
        self.model = persistence.load_model(path)

    def predict(self, inputs: Any, params: Any = None) -> Any:
        """Return predictions for a frame with the model's inputs, or with the columns of its table."""
        return self.model.predict(inputs)


def _load_pyfunc(path: str) -> _Predictor:
    return _Predictor(path)
