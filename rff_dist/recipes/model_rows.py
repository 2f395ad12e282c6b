"""Whether a dataset's rows are what a model takes: by its columns, and by the recipe that encoded them."""

from collections.abc import Mapping
from typing import Any

from rff_dist.data.blocks import Dataset
from rff_dist.data.grids import GridDataset, reference_of
from rff_dist.errors import DataError
from rff_dist.features import maps
from rff_dist.recipes.recipes import Recipe, recipe_of
from rff_dist.text import redact


def check_dataset(dataset: Dataset, feature_map: maps.FeatureMap, card: Mapping[str, Any]) -> None:
    """Check that a dataset has the columns that a model was trained on, encoded by the same recipe.

    `card`: of the model; empty if it has none.
    Raises DataError if it has another number of columns, other names, another recipe or none, or another
      reference system.
    """
    if isinstance(dataset, GridDataset):
        reference_of([card.get("reference", {}), dataset.reference])
    if dataset.n_features != feature_map.n_features:
        raise DataError(
            f"X has {dataset.n_features} features, but the model is expecting "
            f"{feature_map.n_features} features"
        )
    expected = card.get("feature_names")
    names = dataset.feature_names
    if expected and names and list(names) != list(expected):
        raise DataError(
            f"the columns of X are {list(names)}, but the model was trained on {list(expected)}; "
            "give the same columns in the same order"
        )
    recipe = recipe_of(card)
    # rows in memory come from those that were checked when they were read
    if recipe is not None and (dataset.url is not None or isinstance(dataset, GridDataset)):
        check_encoding(dataset, recipe)


def check_encoding(dataset: Dataset, recipe: Recipe) -> None:
    """Check that rows were encoded as a model's recipe encodes them.

    Columns of the same names may hold other numbers, which no check of names or shapes would notice.
    Raises DataError if they were encoded otherwise, or not at all.
    """
    place = redact(dataset.url or f"the {type(dataset).__name__}")
    own = recipe_of(dataset.attributes)
    if own is not None and own.digest() != recipe.digest():
        raise DataError(
            f"{place} was ingested by another recipe than the data that the model was trained on: levels, "
            "means or medians differ. Give the table itself, or ingest it with the model as `recipe`"
        )
    if own is None and not recipe.is_plain and not recipe.are_inputs(dataset.feature_names):
        raise DataError(f"{place} holds rows that {refusal_of(recipe)}")


def refusal_of(recipe: Recipe) -> str:
    """Return why rows cannot be taken that do not say whether a recipe has encoded them."""
    return (
        f"do not say whether they are a table's, which the model's recipe encodes first ({recipe.words}), or "
        f"encoded already; expected a table or a frame with the columns {recipe.inputs[:10]}, or a dataset "
        "that was ingested by this recipe"
    )
