"""Whether a dataset's rows are what a model takes: by its columns, and by the recipe that encoded them."""

from typing import Any

from rff_dist.data.blocks import Dataset
from rff_dist.data.grids import GridDataset, reference_of
from rff_dist.errors import DataError
from rff_dist.recipes.recipes import Recipe, recipe_of
from rff_dist.text import redact
from rff_dist.typing import Facts


def check_dataset(dataset: Dataset, model: Any) -> None:
    """Check that a dataset has the columns of a model with a feature map and a card; see `check_columns`."""
    check_columns(dataset, model.feature_map.n_features, model.card)


def check_columns(dataset: Dataset, n_features: int, card: Facts, *, who: str = "the model") -> None:
    """Check that a dataset has the columns that a model was trained on, encoded by the same recipe.

    `card`: of the model; empty if it has none.
    `who`: the model in messages, which are scikit-learn's: its conformance tests look for them.
    Raises DataError if it has another number of columns, other names, another recipe or none, or another
      reference system.
    """
    reference_of([card.get("reference", {}), dataset.reference])
    recipe = recipe_of(card)
    # rows in memory come from those that were checked when they were read
    if recipe is not None and (dataset.url is not None or isinstance(dataset, GridDataset)):
        check_encoding(dataset, recipe)
    if dataset.n_features != n_features:
        raise DataError(
            f"X has {dataset.n_features} features, but {who} is expecting {n_features} features as input"
        )
    expected = list(card.get("feature_names", ()))
    names = list(dataset.feature_names or ())
    if expected and names and names != expected:
        raise DataError(
            "The feature names should match those that were passed during fit: the columns of X are "
            f"{names}, expected {expected}. Give the same columns in the same order"
        )


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
