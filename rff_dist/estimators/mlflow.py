"""Models for MLflow: logged with their choices and errors, registered, and served.

A stored model goes in; a model of MLflow's flavour `pyfunc` comes out, as a folder, in
a run or as a registered version. `mlflow.sklearn` would store a pickle.
"""

import logging
import os
import threading
import warnings
from datetime import datetime
from importlib import import_module
from importlib.metadata import version as version_of
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rff_dist.errors import InvalidParameterError, OutputExistsError
from rff_dist.estimators import persistence
from rff_dist.lazy import require
from rff_dist.models import kinds, versions
from rff_dist.recipes import encoders, recipes
from rff_dist.storage import locations, output_places
from rff_dist.text import redact, without_secrets
from rff_dist.typing import FloatArray, PathLike, Summary

logger = logging.getLogger(__name__)

#: The alias in MLflow's registry that follows a model's current version.
ALIAS = "champion"
#: Seconds that a job waits for MLflow. Its client would by default try for four
#: minutes.
WAIT_S = 120.0


def save_mlflow(url: PathLike, folder: PathLike) -> Path:
    """Write a stored model as a folder that `mlflow models serve` reads.

    The model may be of any kind; of a registered model the current version is taken.
    Raises MissingDependencyError if MLflow is not installed; OutputExistsError if the
    folder exists; StorageError if there is no model.
    """
    mlflow = _mlflow()
    place = locations.local_path(folder)
    output_places.refuse_inside(locations.parse_location(folder))
    if place.exists():
        raise OutputExistsError(f"{place} exists already; export to another folder")
    with TemporaryDirectory(prefix="rff_dist-") as temporary:
        mlflow.pyfunc.save_model(
            path=str(place), **_flavour(kinds.read_any(url), Path(temporary))
        )
    return Path(folder)


def log_mlflow(url: PathLike, *, name: str = "model") -> Any:
    """Log a stored model to MLflow's active run, and return MLflow's ModelInfo.

    Its choices and errors are logged too, those on test data as test_rmse,
    test_accuracy and so on, and the lineage of a registered model's current version as
    the file lineage.json. `name` is the model's in MLflow. Raises
    MissingDependencyError if MLflow is not installed; StorageError if there is no
    model.
    """
    version = versions.RegisteredModel(url).current()
    return _log(kinds.read_any(url if version is None else version.url), version, name)


def mirror(url: PathLike) -> None:
    """Give the current version of a registered model the alias `champion` in MLflow.

    A version that MLflow lacks is first logged as a run and registered, under the name
    of the model's folder. An error there is only a warning: the next call does what
    this one could not.
    """
    # what is true as long as the thread has not ended
    trouble = [f"no answer within {WAIT_S:g} s"]

    def work() -> None:
        try:
            _mirror(versions.RegisteredModel(url))
            trouble.clear()
        except Exception as error:
            trouble[:] = [f"{type(error).__name__}: {error}"]

    # In a thread, so that the wait can end. A run of MLflow belongs to its thread, so
    # an active run of the caller is not touched.
    thread = threading.Thread(target=work, name="rff-dist-mlflow", daemon=True)
    thread.start()
    thread.join(WAIT_S)
    for why in trouble:
        logger.warning(
            "%s is not up to date in MLflow: %s", redact(str(url)), without_secrets(why)
        )


def _mirror(model: versions.RegisteredModel) -> None:
    # MLflow would print addresses of runs to stdout, among the document of `--json`
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    mlflow = _mlflow()
    place = redact(model.url)
    # `auto` calls every model's folder "model", so the folder above it names the model
    name = model.location.path.removesuffix("/model").rpartition("/")[2]
    client = mlflow.MlflowClient()
    own_tags = {"rff_dist.model": place}
    registered_models = client.search_registered_models(f"name = '{name}'")
    if not registered_models:
        client.create_registered_model(name, own_tags)
    elif not own_tags.items() <= registered_models[0].tags.items():
        raise InvalidParameterError(
            f"MLflow has another model {name!r}: its tag rff_dist.model is not"
            f" {place!r}; rename that one"
        )
    version = None
    # repeated until no other run has published a version meanwhile
    while True:
        before = version
        version = model.current()
        if version is None or version == before:
            return
        tags = {
            "rff_dist.version": str(version.number),
            "rff_dist.digest": str(version.digest),
        }
        registered = None
        for candidate in client.search_model_versions(f"name = '{name}'"):
            if tags.items() <= candidate.tags.items():
                registered = candidate
                break
        if registered is None:
            with mlflow.start_run(run_name=f"{name}, version {version.number}"):
                info = _log(kinds.read_any(version.url), version, "model")
            registered = mlflow.register_model(info.model_uri, name, tags=tags)
        client.set_registered_model_alias(name, ALIAS, registered.version)


def _log(model: kinds.AnyModel, version: versions.Version | None, name: str) -> Any:
    mlflow = _mlflow()
    params: Summary = {
        key: str(value) for key, value in kinds.chosen_parameters(model).items()
    }
    params["n_components"] = model.feature_map.n_components
    params["digest"] = model.digest()
    mlflow.log_params(params)
    if version is not None:
        mlflow.log_param("version", version.number)
        mlflow.log_dict(version.to_dict(), "lineage.json")
    titles = ("accuracy", "log_loss") if "classifier" in model.card else ("rmse", "r2")
    for prefix, name_of_errors in (("", "estimate"), ("test_", "metrics")):
        errors = model.card.get(name_of_errors) or {}
        for key in titles:
            values = np.atleast_1d(np.asarray(errors.get(key, []), np.float64))
            for target, value in enumerate(values.tolist()):
                name_of_metric = f"{prefix}{key}"
                if len(values) > 1:
                    name_of_metric += f"_{target}"
                if np.isfinite(value):
                    mlflow.log_metric(name_of_metric, value)
    with TemporaryDirectory(prefix="rff_dist-") as temporary:
        return mlflow.pyfunc.log_model(name=name, **_flavour(model, Path(temporary)))


def _mlflow() -> Any:
    with warnings.catch_warnings(action="ignore"):  # MLflow warns of its own type hints
        require("mlflow.pyfunc", "models are logged by the package mlflow", "mlflow")
    return import_module("mlflow")


def _flavour(model: kinds.AnyModel, folder: Path) -> Summary:
    """Return MLflow's arguments for a model: its stored form, and what reads it."""
    kinds.write_any(model, folder / "model")
    recipe = recipes.recipe_of(model.card)
    extra = "[skops]" if recipe is not None and recipe.transformer is not None else ""
    return {
        # MLflow imports this module where it serves the model, and calls `_load_pyfunc`
        "loader_module": __name__,
        "data_path": str(folder / "model"),
        # exactly this release, since another one may refuse the model's format
        "pip_requirements": [f"rff_dist{extra}=={version_of('rff_dist')}"],
        **_signature_and_example(folder / "model", recipe),
    }


def _signature_and_example(stored: Path, recipe: recipes.Recipe | None) -> Summary:
    """Return MLflow's signature of a model, and an example of its inputs.

    A model holds no rows: in the example each column has its mean, and text its first
    level. With a transformer of scikit-learn there is no example.
    """
    models = import_module("mlflow.models")
    schema = import_module("mlflow.types.schema")
    model = persistence.load_model(stored)
    if recipe is None:
        names = list(getattr(model, "feature_names_in_", ()))
    else:
        names = recipe.inputs
    # Any type: MLflow would refuse integers for `double` and text for `datetime`, which
    # the model takes and checks itself.
    columns = [
        schema.ColSpec(schema.AnyType(), name)
        for name in names or [None] * model.n_features_in_
    ]
    signature = models.ModelSignature(inputs=schema.Schema(columns))
    if recipe is not None and recipe.transformer is not None:
        return {"signature": signature}
    standardizer = model.feature_map_.standardizer
    means = np.zeros(model.n_features_in_)
    if standardizer is not None:
        means = standardizer.mean
    example: Any = means[np.newaxis]
    if names:
        if recipe is None:
            row = dict(zip(names, means, strict=True))
        else:
            row = _example(recipe, means)
        example = import_module("pandas").DataFrame([row])
    outputs = models.infer_signature(model_output=model.predict(example)).outputs
    signature = models.ModelSignature(inputs=signature.inputs, outputs=outputs)
    return {"signature": signature, "input_example": example}


def _example(recipe: recipes.Recipe, means: FloatArray) -> Summary:
    """Return a row of a recipe's table; `means`: the means of X's columns."""
    row: Summary = {}
    start = 0
    for encoder in recipe.columns:
        value: Any = means[start]
        if isinstance(encoder, encoders.Date):
            value = datetime(2024, 1, 1)
        elif isinstance(encoder, encoders.Category):
            value = next(iter(encoder.levels), "")
        row[encoder.column] = value
        start += len(encoder.names)
    return row


class _Predictor:
    """The object whose `predict` MLflow calls."""

    def __init__(self, path: str) -> None:
        self.model = persistence.load_model(path)

    def predict(self, inputs: Any, params: Any = None) -> Any:
        """Return predictions for a frame of inputs, or of the table's columns."""
        return self.model.predict(inputs)


def _load_pyfunc(path: str) -> _Predictor:
    return _Predictor(path)
