"""The rows of a dataset as a model takes them: columns, encoding and codes of levels.

In go a dataset and a model, out comes the dataset with the model's codes, or an error.
Columns of the same names may hold other numbers if another recipe encoded them, which
no check of names or shapes would notice. A code is the place of a level's text in a
column's list. If dataset and model have different lists, the rows are recoded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rff_dist.data import blocks, samples
from rff_dist.data.blocks import Dataset
from rff_dist.data.grid_attributes import reference_of
from rff_dist.data.grids import GridDataset
from rff_dist.data.labelled import TargetsOfSource, of_source, source_of
from rff_dist.errors import DataError, warn
from rff_dist.features import kinds
from rff_dist.features import levels as feature_levels
from rff_dist.features.levels import Levels
from rff_dist.features.maps import FeatureMap
from rff_dist.kernels import stationary
from rff_dist.recipes.encoders import DATE_PARTS
from rff_dist.recipes.recipes import RECIPE, Recipe, levels_of, recipe_of
from rff_dist.recipes.tables import listed
from rff_dist.storage.columns import TIME_COLUMN
from rff_dist.text import redact
from rff_dist.typing import Facts, FloatArray, IndexArray

# sampled rows, whose times are compared with the latest training row
_MOST_LOOKED_AT = 2_000


def rows_for(dataset: Dataset, model: Any) -> Dataset:
    """Return the rows of a dataset with the codes of a model's levels.

    Warns of a grid's levels that the model does not have, and of rows that are much
    later than its training rows. Raises DataError if the dataset does not have the
    model's columns, see `check_columns`.
    """
    check_dataset(dataset, model)
    levels_of_model = model.feature_map.levels
    # for a table this warning came when the table was read
    is_grid = isinstance(source_of(dataset), GridDataset)
    lists = levels_of(dataset.attributes) if is_grid else {}
    for column, texts in levels_of_model.items():
        unknown = sorted(set(lists.get(column, ())).difference(texts))
        if unknown:
            warn(
                f"the column {dataset.column_names[column]!r} has levels that the"
                f" training rows did not have: {listed(unknown)}; they count as"
                " unknown, and their predictions are less certain",
            )
    warn_of_later_rows(dataset, model)
    return with_codes_of(levels_of_model, dataset)


def warn_of_later_rows(dataset: Dataset, model: Any) -> None:
    """Warn of rows that are later than the training rows by more than a length scale.

    Times are dates, and the column by which later rows were held out. There is no
    warning if the kernel has no length scale of its own: a linear kernel, also as a
    part of a sum, continues a trend. Only regressions and classifiers keep the ranges
    of their columns, so other models get no warning.
    """
    column_ranges = getattr(model, "columns", None)
    if column_ranges is None or not dataset.n_samples:
        return
    feature_map = model.feature_map
    scale = stationary.own_length_scale(kinds.kernel_of(feature_map))
    held_out_by = model.card.get(TIME_COLUMN)
    times = {}
    for column, name in enumerate(dataset.column_names):
        if name == held_out_by or name.endswith(f": {DATE_PARTS[0]}"):
            times[column] = name
    if scale is None or not times:
        return

    rng = np.random.Generator(np.random.Philox(0))
    n_looked_at = min(dataset.n_samples, _MOST_LOOKED_AT)
    X, _, _ = dataset.take(samples.sample_indices(dataset, rng, n_looked_at))
    latest = column_ranges.maximum
    later = feature_map.prepare(X) - feature_map.prepare(latest[np.newaxis])
    n_beyond = (later > scale).sum(axis=0)
    for column, name in times.items():
        if n_beyond[column]:
            warn(
                f"{n_beyond[column]:,} of {n_looked_at:,} rows are later in {name!r}"
                f" than the last training row, {latest[column]:g}, by more"
                " than the length scale: predictions there go back towards the mean,"
                " whatever the trend was. Fit again with later rows, or with a kernel"
                " that carries a trend on, such as Matern() + Linear()",
            )


def is_time(name: str, card: Facts) -> bool:
    """Return whether a column of X is a part of a date, or the time by which a model's
    later rows were held out.
    """
    return name == card.get(TIME_COLUMN) or name.rpartition(": ")[2] in DATE_PARTS


def with_codes_of(levels: Levels, dataset: Dataset) -> Dataset:
    """Return the rows of a dataset with the codes of other lists of levels."""
    codes = codes_between(levels_of(dataset.attributes), levels)
    if not codes:
        return dataset
    return RecodedDataset(dataset, codes, levels)


def features_for(feature_map: FeatureMap, dataset: Dataset) -> FeatureMap:
    """Return a model's features for training on a dataset, by the dataset's codes.

    Each level of the dataset gets its own features, also levels that the model lacks.
    """
    lists = {**feature_map.levels, **levels_of(dataset.attributes)}
    return feature_map.with_levels({j: lists[j] for j in feature_map.levels})


def warn_of_levels(feature_map: FeatureMap, dataset: Dataset) -> None:
    """Warn of new levels in rows to train on, if the features cannot learn levels."""
    if feature_map.learns_levels:
        return
    lists = levels_of(dataset.attributes)
    n_new = sum(
        len(set(lists.get(column, ())).difference(texts))
        for column, texts in feature_map.levels.items()
    )
    if n_new:
        warn(
            f"levels that are new: {n_new:,}. Nyström features and linear kernels have"
            " no centres or components of them, so predictions of all rows may suffer;"
            " fit again with all rows, or with features='fourier'",
        )


def recipe_with(levels: Levels, facts: Facts) -> Facts:
    """Return the entry "recipe" of a card, with the lists of a model's features; empty
    if there is no recipe.
    """
    recipe = recipe_of(facts)
    return {} if recipe is None else {RECIPE: recipe.with_levels(levels).to_dict()}


def codes_between(levels: Levels, wanted: Levels) -> Mapping[int, FloatArray]:
    """Return the new code of each old code, for each column whose codes differ.

    Codes do not differ if one list begins with the other: the common levels then have
    the same codes.
    """
    differing = {}
    for column in levels.keys() & wanted.keys():
        texts = levels[column]
        n_common = min(len(texts), len(wanted[column]))
        if texts[:n_common] != wanted[column][:n_common]:
            differing[column] = texts
    return feature_levels.code_changes(differing, wanted)


def recode(codes: Mapping[int, FloatArray], rows: blocks.Rows) -> blocks.Rows:
    """Return rows with other codes in columns of categories, see `codes_between`."""
    return replace(rows, X=feature_levels.recoded(rows.X, codes))


@dataclass(frozen=True, eq=False)
class RecodedDataset(TargetsOfSource):
    """A dataset whose columns of categories have the codes of other lists of levels."""

    source: Dataset
    #: the result of `codes_between`
    codes: Mapping[int, FloatArray]
    levels: Levels

    read_groups = of_source("read_groups")
    # it names the stored rows, which recoding does not change
    fingerprint = of_source("fingerprint")

    @property
    def attributes(self) -> Facts:  # type: ignore[override]  # derived from the source
        source_attributes = self.source.attributes
        return {**source_attributes, **recipe_with(self.levels, source_attributes)}

    @property
    def complete_rows(self) -> Callable[[blocks.Rows], blocks.Rows]:
        """The function that recodes the source's rows when a block is read."""
        return partial(recode, self.codes)

    def take(self, indices: IndexArray, /) -> blocks.Sample:
        X, y, weight = self.source.take(indices)
        return blocks.Sample(feature_levels.recoded(X, self.codes), y, weight)

    def without_targets(self) -> Dataset:
        return replace(self, source=self.source.without_targets())


def check_dataset(dataset: Dataset, model: Any) -> None:
    """Check that a dataset has the columns of a model; see `check_columns`."""
    check_columns(dataset, model.feature_map.n_features, model.card)


def check_columns(
    dataset: Dataset, n_features: int, card: Facts, *, who: str = "the model"
) -> None:
    """Check that a dataset has the columns of a model's card, by the same recipe.

    Raises DataError if it has another number of columns, other names, another recipe or
    none, or another reference system. Messages are scikit-learn's, whose conformance
    tests look for them; `who` is the model in them.
    """
    # raises if the reference systems differ
    reference_of([card.get("reference", {}), dataset.reference])
    recipe = recipe_of(card)
    # rows in memory were checked when they were read
    if dataset.url is not None or isinstance(dataset, GridDataset):
        if recipe is not None:
            check_encoding(dataset, recipe)
        # a card without a recipe: the model took all columns for numbers; without a
        # card it is unknown what they were
        elif card and (categories := levels_of(dataset.attributes)):
            names = [dataset.column_names[column] for column in categories]
            raise DataError(
                f"the columns {names} of X are categories, but {who} took them for"
                " numbers. Fit again"
            )
    if dataset.n_features != n_features:
        raise DataError(
            f"X has {dataset.n_features} features, but {who} is expecting {n_features}"
            " features as input"
        )
    expected_names = list(card.get("feature_names", ()))
    names = list(dataset.feature_names or ())
    if expected_names and names and names != expected_names:
        raise DataError(
            "The feature names should match those that were passed during fit: the"
            f" columns of X are {names}, expected {expected_names}. Give the same"
            " columns in the same order"
        )


def check_encoding(dataset: Dataset, recipe: Recipe) -> None:
    """Raise DataError if rows were not encoded by a model's recipe."""
    place = redact(dataset.url or f"the {type(dataset).__name__}")
    recipe_of_rows = recipe_of(dataset.attributes)
    if recipe_of_rows is not None and recipe_of_rows.digest() != recipe.digest():
        raise DataError(
            f"{place} was ingested by another recipe than the data that the model was"
            " trained on: columns, means or medians differ. To predict or evaluate"
            " these rows, make it again by rff-dist ingest TABLE OUT --recipe MODEL"
            " --targets NAME; an update needs the data of the fit, with more rows"
        )
    if recipe_of_rows is not None or recipe.is_plain:
        return
    # A plain Zarr of X has no recipe. Its rows are encoded if it has the names of the
    # encoded columns, and the table's columns have other names. Otherwise it is
    # unknown.
    if not recipe.are_encoded(dataset.feature_names):
        raise DataError(f"{place} holds rows that {refusal_of(recipe)}")


def refusal_of(recipe: Recipe) -> str:
    """Return the reason for refusing rows that may or may not be encoded."""
    return (
        "do not say whether they are a table's, which the model's recipe encodes first"
        f" ({recipe.words}), or encoded already; expected a table or a frame with the"
        f" columns {recipe.inputs[:10]}, or a dataset that was ingested by this recipe"
    )
