"""Merge ridge models that were trained separately, from their sums alone.

Models go in; the model of all their rows comes out. Sums add up exactly, so the data of
the models need not meet in one place. Sums can be added if they have the same features,
standardisation of the inputs, offsets of the targets and grids (the units that sums are
whole multiples of). `refit_on` trains on other rows with all of these from a model, and
`merge` adds the results.
"""

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from rff_dist.data import blocks
from rff_dist.engines import protocol
from rff_dist.errors import InvalidParameterError, StatisticsError
from rff_dist.features import kinds, levels
from rff_dist.living import interval_updates, new_rows, update
from rff_dist.recipes import model_rows, recipes
from rff_dist.ridge import describe
from rff_dist.ridge.models import RidgeModel
from rff_dist.statistics import inspection, passes, ridge_statistics
from rff_dist.statistics.moments import ColumnMoments
from rff_dist.typing import Facts, Summary

# Two models have rows in common if one of these entries of their cards is the same.
_SAME_ROWS = {
    "data_id": "versions of one dataset",
    "data_version": "the same version of a dataset",
    "data_fingerprint": "data of the same fingerprint",
    "prefix_fingerprint": "data that begin with the same rows",
}
#: In place of a field's name: the levels of categories (values, as texts) to which a
#: linear kernel gives a component each.
_MARKED_LEVELS = "levels with a component"
_REASONS = {
    _MARKED_LEVELS: (
        ", the levels that each was first trained on: a linear kernel has a component"
        " for each of them"
    )
}
_ABOUT_ROWS = (
    "data_fingerprint",
    "data_version",
    "data_id",
    "prefix_fingerprint",
    "n_samples",
)


def refit_on(
    model: RidgeModel, dataset: blocks.Dataset, *, engine: protocol.Engine
) -> RidgeModel:
    """Train on other rows with a model's features, standardisation, offsets and grids.

    This takes two passes, one of them cheap, and the passes of `hold_out_newest`. Alpha
    is chosen by the model's method, or stays if folds chose it. Raises StatisticsError
    if the model has no statistics; DataError if the columns differ, or values cannot be
    used or are too large for the grids of the sums.
    """
    spec = _sums_of(model).spec
    new_rows.check_columns(model, dataset)
    feature_map = model_rows.features_for(model.feature_map, dataset)
    moments = inspection.inspect(dataset, levels=feature_map.levels, engine=engine)
    sums = passes.accumulate(dataset, feature_map, engine=engine, spec=spec)
    refitted = replace(model, feature_map=feature_map)
    refitted = update.solve_as_before(refitted, sums).with_card(
        **update.describe_rows(dataset, feature_map),
        **describe.describe_blocks(dataset, sums),
        **_texts_about(model, []),
    )
    columns = ColumnMoments.of(moments, frequency_weights=spec.frequency_weights)
    refitted = replace(refitted, columns=columns)
    rows = [(0, dataset.n_samples)]
    return interval_updates.hold_out_newest(
        refitted, model, dataset, rows, engine=engine
    )


def merge(models: Sequence[RidgeModel], names: Sequence[str]) -> RidgeModel:
    """Return the model of all models' rows; `names` are the models' names in errors.

    The sums have the bits of one pass over all rows, if the rows of all models but the
    last end with a whole block. Lists of levels of categories are joined, the first
    model's levels first. Linear kernels get no components for levels that join: if
    models have components for different levels, they cannot be merged. Alpha is chosen
    by the first model's method, or stays if folds chose it. Intervals are normal ones,
    since there are no rows to hold out.

    Raises InvalidParameterError for fewer than two models; StatisticsError if one has
    no statistics, if their sums cannot be added (the error names the first field that
    differs), or if two were trained on the same data.
    """
    if len(models) < 2:
        raise InvalidParameterError(
            f"{len(models)} model to merge; expected two or more"
        )
    first = models[0]
    sums = [_sums_of(model) for model in models]
    for model, name in zip(models[1:], names[1:], strict=True):
        _check_addable(first, model, names[0], name)
    # Sums do not show whose rows they contain: a row in two models would count twice.
    rows = [rows_of(model) for model in models]
    for (name, entries), (other_name, others) in itertools.combinations(
        zip(names, rows, strict=True), 2
    ):
        _check_other_rows(name, entries, other_name, others)

    total = functools.reduce(operator.add, sums)
    lists = [model.feature_map.levels for model in models]
    feature_map = first.feature_map.with_levels(functools.reduce(levels.joined, lists))
    merged = replace(first, feature_map=feature_map)
    merged = update.solve_as_before(merged, total).with_card(
        merged=[entry for entries in rows for entry in entries],
        **model_rows.recipe_with(feature_map.levels, first.card),
        **_texts_about(first, models),
    )
    known_columns = [
        model.columns.with_levels(model.feature_map.levels, feature_map.levels)
        for model in models
        if model.columns is not None
    ]
    columns = None
    if len(known_columns) == len(models):
        columns = functools.reduce(operator.add, known_columns)
    return replace(merged, columns=columns)


def rows_of(model: RidgeModel) -> list[Facts]:
    """Return the facts about rows on a model's card: an entry for each dataset."""
    merged: list[Facts] | None = model.card.get("merged")
    if merged:
        return merged
    return [{name: model.card[name] for name in _ABOUT_ROWS if name in model.card}]


def _texts_about(model: RidgeModel, sources: Sequence[RidgeModel]) -> Summary:
    """Return the card entry of texts about a model: its own texts, but the text on data
    joins the texts of all `sources`.
    """
    texts = dict(model.card.get("about", {}))
    texts.pop("data", None)
    data = [source.card.get("about", {}).get("data", "") for source in sources]
    about_data = "\n\n".join(filter(None, dict.fromkeys(data)))
    if about_data:
        texts["data"] = about_data
    return {"about": texts} if texts or "about" in model.card else {}


def _sums_of(model: RidgeModel) -> ridge_statistics.RidgeStatistics:
    if model.statistics is None or "classifier" in model.card:
        raise StatisticsError(
            "this model has no sums that others can be added to; expected a regression"
            " that was stored with its statistics. Train it again with `statistics`,"
            " and without conjugate gradients"
        )
    return model.statistics


def _check_addable(
    model: RidgeModel, other: RidgeModel, name: str, other_name: str
) -> None:
    others = _what_must_agree(other)
    for (field, value), (_, of_other) in zip(
        _what_must_agree(model), others, strict=True
    ):
        if value != of_other:
            raise StatisticsError(
                f"the sums of {name} and {other_name} cannot be added: `{field}` is"
                f" {str(value)[:200]} and {str(of_other)[:200]}"
                f"{_REASONS.get(field, '')}. Give the second's rows to"
                " partial_fit of the first; or train a stored one by"
                f" `rff-dist refit {name} DATA {other_name}`"
            )


def _what_must_agree(model: RidgeModel) -> Iterator[tuple[str, Any]]:
    """Yield names and values, first of what users set."""
    feature_map = model.feature_map
    card = model.card
    kernel = kinds.kernel_of(feature_map)
    yield "features", feature_map.kind
    yield "feature_names", card.get("feature_names")
    yield "target_names", card.get("target_names")
    recipe = recipes.recipe_of(card)
    # lists of levels may differ: features depend on the texts
    yield "recipe", recipe and recipe.encoding
    yield "n_features", feature_map.n_features
    yield "kernel", kernel and kernel.to_dict()
    yield _MARKED_LEVELS, kinds.marked_levels(feature_map)
    yield "n_components", feature_map.n_components
    yield "map", getattr(feature_map.spec, "map_form", None)
    for name in ("design", "seed", "precision"):
        yield name, getattr(feature_map.spec, name, None)
    arrays = feature_map.standardizer and feature_map.standardizer.to_arrays()
    yield "standardize", {name: v.tolist() for name, v in (arrays or {}).items()}
    spec = _sums_of(model).spec
    for field in fields(spec):
        yield field.name, getattr(spec, field.name)
    yield "fit_intercept", model.fit_intercept


def _check_other_rows(
    name: str, rows: Sequence[Facts], other_name: str, others: Sequence[Facts]
) -> None:
    for entry, other in itertools.product(rows, others):
        for field, words in _SAME_ROWS.items():
            if field in entry and entry[field] == other.get(field):
                raise StatisticsError(
                    f"{name} and {other_name} were trained on {words}"
                    f" ({str(entry[field])[:16]}…), so that rows would count twice;"
                    " expected rows that never meet"
                )
