"""Export a model to programs that have NumPy only.

A ridge model goes in; a folder with two arrays, a JSON document and a short reader
comes out. Without it, such a program would need this package, or a pickle. A *recipe*
is how columns of a table become numbers; a *level* is a value of a category.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from rff_dist.classify import predict
from rff_dist.errors import InvalidParameterError, OutputExistsError
from rff_dist.features import composed, explicit, fourier, nystrom
from rff_dist.features.levels import Levels
from rff_dist.features.maps import FeatureMap
from rff_dist.products import protocol
from rff_dist.recipes import encoders, recipes
from rff_dist.ridge import models
from rff_dist.storage import commit, locations, output_places
from rff_dist.typing import AnyArray, FloatArray, PathLike, Summary, frozen

# The files of an export, with a model card, and the folder of the compiled reader.
_FILES = {
    "model.json",
    "inner.npy",
    "outer.npy",
    "reader.py",
    "README.md",
    "__pycache__",
}
_KERNELS = {
    "gaussian",
    "laplacian",
    "matern",
    "rational_quadratic",
    "linear",
    "additive",
    "sum",
    "product",
    "scaled",
}


def export(
    model: models.RidgeModel,
    folder: PathLike,
    *,
    encoded: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write the model and its reader to a folder, whole or not at all.

    With `overwrite`, the folder of an earlier export may be replaced. `encoded` is
    explained at `describe`.
    """
    path = locations.local_path(folder)
    location = locations.parse_location(folder)
    output_places.refuse_inside(location)
    # a folder with other things in it is never replaced
    is_export = path.is_dir() and _FILES.issuperset(os.listdir(path))
    if path.exists() and not (overwrite and is_export):
        raise OutputExistsError(
            f"{path} exists already; export to another folder, or replace an older"
            " export with `overwrite`"
        )
    exported = describe(model, encoded=encoded, reads_names=True)
    publication = commit.Publication.plan(location, overwrite=True)
    staged = Path(publication.staged.path)
    with (
        locations.store_errors(f"the folder {path} cannot be written", ""),
        publication.publishing(),
    ):
        staged.mkdir(parents=True)
        np.save(staged / "inner.npy", exported.inner)
        np.save(staged / "outer.npy", exported.outer)
        # `allow_nan=False`: NaN is not JSON, and readers in other languages refuse it
        (staged / "model.json").write_text(
            json.dumps(exported.facts, allow_nan=False, indent=1), "utf-8"
        )
        (staged / "reader.py").write_bytes(
            (files("rff_dist.export") / "reader.py").read_bytes()
        )
    return Path(folder)


@frozen
class ExportedModel:
    """A model as two arrays and a few facts: all that predicting needs."""

    #: For Fourier features of shape (n_features + 1 + Σ (n_levels + 2), n_frequencies):
    #: lines of frequencies, one of phases, and for each column of categories a line of
    #: angles per level, one for unseen levels, and one of their factors. For Nyström
    #: features the centres, of shape (n_components, n_features).
    inner: FloatArray
    #: Coefficients of the unnormalised features, of shape (n_components, n_targets).
    outer: FloatArray
    #: JSON values: how inputs are standardised, which features there are, and for a
    #: classifier its classes and how scores become log odds.
    facts: Summary


def describe(
    model: models.RidgeModel, *, encoded: bool, reads_names: bool = False
) -> ExportedModel:
    """Return the arrays and facts that predicting with a model needs.

    A reader applies no recipe, except that it may turn names of levels into codes
    (`reads_names`). If the model's recipe does more, users must give rows that the
    recipe has made, and say so by `encoded`. Raises InvalidParameterError if other
    programs cannot make the model's features, or its inputs.
    """
    recipe = recipes.recipe_of(model.card)
    encoding = ""  # what the recipe does, if a reader cannot do all of it
    if recipe is not None:
        columns = recipe.columns
        if reads_names:
            columns = [
                column
                for column in columns
                if not isinstance(column, encoders.Category)
            ]
        if not replace(recipe, columns=columns).is_plain:
            encoding = recipe.words
    if encoding and not encoded:
        raise InvalidParameterError(
            "the model reads tables by a recipe, which exports do not apply"
            f" ({encoding}); expected one of plain numbers. Set `encoded` if rows will"
            " be given as the recipe makes them, or take MLflow's format, which"
            " applies it"
        )
    fills = []
    # rows that the recipe has made lack no values
    if recipe is not None and not encoded:
        for position, column in enumerate(recipe.columns):
            if isinstance(column, encoders.Number) and column.fill is not None:
                fills.append([position, column.fill])

    feature_map = model.feature_map
    levels = recipes.levels_of(model.card)
    inner, parts = _inner_and_parts(feature_map, levels)
    outer = model.linear.raw_coefficients
    if isinstance(feature_map, nystrom.NystromFeatureMap):
        # The map divides its features by a power of two, the reader does not. So the
        # coefficients are divided.
        [(_, power_of_two)] = feature_map.scales
        outer = outer / power_of_two
    facts = {
        "format": 1,
        "parts": parts,
        "encoding": encoding,
        "fills": fills,
        "levels": [[column, list(texts)] for column, texts in levels.items()],
        **_describe_inputs(feature_map),
        "feature_names": model.card.get("feature_names"),
        "target_names": model.card.get("target_names"),
        "one_dimensional": model.one_dimensional,
        "intercept": model.linear.intercept.tolist(),
        **_describe_classes(model),
        "digest": model.digest(),
    }
    return ExportedModel(inner, outer, facts)


def _describe_inputs(feature_map: FeatureMap) -> Summary:
    """Return how inputs are standardised, as JSON values."""
    n_features = feature_map.n_features
    standardizer = feature_map.standardizer
    mean = [0.0] * n_features
    scale = [1.0] * n_features
    maps = []
    if standardizer is not None:
        mean = standardizer.mean.tolist()
        scale = standardizer.scale.tolist()
        for column_map in standardizer.maps:
            maps.append(
                {
                    "column": column_map.column,
                    "inputs": column_map.inputs.tolist(),
                    "outputs": column_map.outputs.tolist(),
                    "slope": column_map.slope,
                }
            )
    return {"n_features": n_features, "mean": mean, "scale": scale, "maps": maps}


def _describe_classes(model: models.RidgeModel) -> Summary:
    """Return a classifier's classes, and how scores become log odds, as JSON values."""
    facts: Summary = {
        "classes": None,
        "dtype": None,
        "slopes": 1.0,
        "offsets": 0.0,
        "has_probabilities": False,
    }
    if "classifier" not in model.card:
        return facts
    classes = predict.read_classes(model)
    facts["classes"] = classes.tolist()
    # Number classes keep their dtype: else integers beyond 2^63 would lose digits.
    if classes.dtype.kind != "O":
        facts["dtype"] = classes.dtype.str
    calibration = predict.calibration_of(model)
    if calibration is not None:
        facts["slopes"] = calibration.slope
        facts["offsets"] = list(calibration.intercepts)
        facts["has_probabilities"] = True
    return facts


def _inner_and_parts(
    feature_map: FeatureMap, levels: Levels
) -> tuple[FloatArray, list[Summary]]:
    """Return `ExportedModel.inner`, and for each part of the features what they are."""
    if isinstance(feature_map, nystrom.NystromFeatureMap):
        kernel = feature_map.kernel.to_dict()
        _check_kernel(kernel)
        return feature_map.centres.astype(np.float64), [{"kernel": kernel}]
    maps: Sequence[FeatureMap] = (feature_map,)
    if isinstance(feature_map, composed.ConcatenatedFeatureMap):
        maps = feature_map.parts
    lines: list[FloatArray] = []
    start = 0
    parts: list[Summary] = []
    for part in maps:
        if isinstance(part, explicit.LinearFeatureMap):
            codes = part.codes
            if codes is None:  # as for features that are no marks of levels
                codes = np.full(part.n_components, -1)
            parts.append({"columns": part.columns.tolist(), "codes": codes.tolist()})
        elif isinstance(part, fourier.FourierFeatureMap):
            lines.append(_lines_of(part, levels))
            stop = start + part.n_frequencies
            parts.append(
                {
                    "start": start,
                    "stop": stop,
                    "pairs": part.phases is None,
                    # the units of a cosine of 1, if features are whole numbers
                    "whole": protocol.COSINE_ONE if part.fixed_point else None,
                }
            )
            start = stop
        else:
            raise InvalidParameterError(
                f"the model has features of the kind {part.kind!r}, which the reader"
                " cannot make; expected Fourier, linear or Nyström features. Fit with"
                " another kernel, or `features`"
            )
    return np.hstack(lines) if lines else np.empty((0, 0)), parts


def _lines_of(part: fourier.FourierFeatureMap, levels: Levels) -> FloatArray:
    """Return the lines of the inner array of a part, see `ExportedModel`."""
    phases = np.zeros(part.n_frequencies) if part.phases is None else part.phases
    lines: list[AnyArray] = [part.frequencies, phases]
    tables = {table.column: table for table in part.tables}
    for column, texts in levels.items():
        if column in tables:
            lines += [tables[column].angles, tables[column].unseen_factors]
        else:  # the kernel does not depend on this column
            lines += [np.zeros((len(texts) + 1, part.n_frequencies))]
            lines += [np.ones(part.n_frequencies)]
    return np.vstack(lines).astype(np.float64)


def _check_kernel(kernel: Summary) -> None:
    """Raise InvalidParameterError unless the reader can compute a kernel."""
    parts = list(kernel.get("kernels", ()))
    if "kernel" in kernel:
        parts.append(kernel["kernel"])
    for part in parts:
        _check_kernel(part)
    is_known = kernel["name"] in _KERNELS
    if not is_known or kernel.get("nu", 0.5) not in (0.5, 1.5, 2.5):
        raise InvalidParameterError(
            f"the kernel {kernel} cannot be exported; expected one of"
            f" {sorted(_KERNELS)}, for Matérn with nu 0.5, 1.5 or 2.5. Fit with such a"
            " kernel, or with Fourier features"
        )
