"""Write a model as two arrays and a JSON document, with a reader next to them."""

import json
import os
import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np

from rff_dist.classify import predict
from rff_dist.errors import InvalidParameterError, OutputExistsError, StorageError
from rff_dist.features import composed, cosines, explicit, nystrom
from rff_dist.features.maps import FeatureMap
from rff_dist.products import protocol
from rff_dist.recipes import recipes
from rff_dist.ridge import models
from rff_dist.storage import locations, output_places
from rff_dist.typing import FloatArray, PathLike, Summary, frozen

# what an export may hold, with its card and what Python makes of the reader
_FILES = {"model.json", "inner.npy", "outer.npy", "reader.py", "README.md", "__pycache__"}
_KERNELS = {
    "gaussian", "laplacian", "matern", "rational_quadratic", "additive", "linear", "sum", "product", "scaled"
}  # fmt: skip


def export(
    model: models.RidgeModel, folder: PathLike, *, encoded: bool = False, overwrite: bool = False
) -> Path:
    """Write `model.json`, `inner.npy`, `outer.npy` and `reader.py` to a folder, whole or not at all.

    `encoded`: see `describe`.
    `overwrite`: whether the folder of an earlier export may be replaced.
    Raises InvalidParameterError as `describe`; OutputExistsError if the
      folder exists; StorageError if it cannot be written.
    """
    place = locations.local_path(folder)
    output_places.refuse_inside(locations.parse_location(folder))
    # a folder with other things in it is never replaced
    if place.exists() and not (overwrite and place.is_dir() and _FILES.issuperset(os.listdir(place))):
        raise OutputExistsError(
            f"{place} exists already; export to another folder, or replace an older export with `overwrite`"
        )
    slim = describe(model, encoded=encoded)
    temporary = place.with_name(f".{place.name}.partial")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        np.save(temporary / "inner.npy", slim.inner)
        np.save(temporary / "outer.npy", slim.outer)
        # Python would write NaN, which is not JSON, and other readers refuse it
        (temporary / "model.json").write_text(json.dumps(slim.facts, allow_nan=False, indent=1), "utf-8")
        (temporary / "reader.py").write_bytes((files("rff_dist.export") / "reader.py").read_bytes())
        # a folder cannot be replaced in one step: for a moment there is none, never half of one
        if place.exists():
            shutil.rmtree(place)
        os.replace(temporary, place)
    except OSError as error:
        raise StorageError(f"the folder {place} cannot be written: {error}; choose another place") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Path(folder)


@frozen
class Slim:
    """A model as two arrays and a few facts: all that predicting needs.

    `inner`: float64 array. Frequencies with phases in the last row, of shape (n_features + 1, n_frequencies);
      or centres, of shape (n_components, n_features).
    `outer`: float64 array of shape (n_components, n_targets). Coefficients of the unnormalised features.
    `facts`: JSON values: how inputs are standardised, which features there are, and for a classifier its
      classes and how scores become log odds.
    """

    inner: FloatArray
    outer: FloatArray
    facts: Summary


def describe(model: models.RidgeModel, *, encoded: bool) -> Slim:
    """Return what predicting with a model needs.

    `encoded`: whether rows will be given as the model's recipe makes them of a table's. Readers apply none.
    Raises InvalidParameterError if other programs cannot make the model's features, or its inputs.
    """
    feature_map, card = model.feature_map, model.card
    recipe = recipes.recipe_of(card)
    encoding = "" if recipe is None or recipe.is_plain else recipe.words
    if encoding and not encoded:
        raise InvalidParameterError(
            f"the model reads tables by a recipe, which exports do not apply ({encoding}); expected one of "
            "plain numbers. Set `encoded` if rows will be given as the recipe makes them, or take "
            "MLflow's format, which applies it"
        )
    inner, parts = _inner(feature_map)
    standardizer, n_features = feature_map.standardizer, feature_map.n_features
    calibration = predict.calibration_of(model) if "classifier" in card else None
    classes = predict.read_classes(model) if "classifier" in card else None
    facts: Summary = {
        "format": 1,
        "parts": parts,
        "n_features": n_features,
        "encoding": encoding,
        "feature_names": card.get("feature_names"),
        "target_names": card.get("target_names"),
        "mean": [0.0] * n_features if standardizer is None else standardizer.mean.tolist(),
        "scale": [1.0] * n_features if standardizer is None else standardizer.scale.tolist(),
        "maps": [
            {"column": m.column, "inputs": m.inputs.tolist(), "outputs": m.outputs.tolist(), "slope": m.slope}
            for m in (() if standardizer is None else standardizer.maps)
        ],
        "intercept": model.linear.intercept.tolist(),
        "classes": None if classes is None else classes.tolist(),
        # of numbers: without it, whole numbers beyond 2^63 would lose digits
        "dtype": None if classes is None or classes.dtype.kind == "O" else classes.dtype.str,
        "slopes": 1.0 if calibration is None else calibration.slope,
        "offsets": 0.0 if calibration is None else list(calibration.intercepts),
        "has_probabilities": calibration is not None,
        "digest": model.digest(),
    }
    outer = model.linear.raw_coefficients
    if isinstance(feature_map, nystrom.NystromFeatureMap):
        # The map's `fill` divides by a power of two; the reader does not, so the coefficients must.
        outer = outer / feature_map.scales[0][1]
    return Slim(inner, outer, facts)


def _inner(feature_map: FeatureMap) -> tuple[FloatArray, list[Summary]]:
    """Return the inner array, and what the reader must know about each part of the features."""
    if isinstance(feature_map, nystrom.NystromFeatureMap):
        kernel = feature_map.kernel.to_dict()
        _check_kernel(kernel)
        return feature_map.centres.astype(np.float64), [{"kernel": kernel}]
    maps = feature_map.parts if isinstance(feature_map, composed.ConcatenatedFeatureMap) else (feature_map,)
    inner, parts = np.empty((feature_map.n_features + 1, 0)), []
    for part in maps:
        if isinstance(part, explicit.LinearFeatureMap):
            parts.append({"columns": part.columns.tolist()})
        elif isinstance(part, cosines.CosineFeatureMap):
            # angles are linear in the inputs, so unit rows give the frequencies of any design
            angles = part.angles_of_rows(np.eye(part.n_features, dtype=np.float32))
            last = np.zeros(part.n_frequencies) if part.phases is None else part.phases
            start, inner = inner.shape[1], np.hstack([inner, np.vstack([angles, last])])
            whole = protocol.FIXED_POINT_ONE if part.fixed_point else None
            ends = {"start": start, "stop": inner.shape[1]}
            parts.append({**ends, "pairs": part.phases is None, "whole": whole})
        else:
            raise InvalidParameterError(
                f"the model has features of the kind {part.kind!r}, which the reader cannot make; expected "
                "Fourier, linear or Nyström features. Fit with another kernel, or `features`"
            )
    return inner, parts


def _check_kernel(kernel: Summary) -> None:
    """Raise InvalidParameterError unless the reader can compute a kernel."""
    for part in kernel.get("kernels", [kernel["kernel"]] if "kernel" in kernel else []):
        _check_kernel(part)
    if kernel["name"] not in _KERNELS or kernel.get("nu", 0.5) not in (0.5, 1.5, 2.5):
        raise InvalidParameterError(
            f"the kernel {kernel} cannot be exported; expected one of {sorted(_KERNELS)}, for Matérn with nu "
            "0.5, 1.5 or 2.5. Fit with such a kernel, or with Fourier features"
        )
