"""Merge models that were trained separately: their sums add up exactly, and their data need not meet.

Sums can be added if features, standardisation of the inputs, offsets of the targets and grids are the same.
`refit_on` trains on other rows with all of these from a model, so that `merge` can join the two.
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
from rff_dist.features import kinds
from rff_dist.fitting import prepare
from rff_dist.living import new_rows, update
from rff_dist.ridge import describe
from rff_dist.ridge.models import RidgeModel
from rff_dist.statistics import inspection, passes, ridge_statistics
from rff_dist.statistics.moments import ColumnMoments
from rff_dist.typing import Facts, Summary

# Entries of a card that tell whether two models have the same rows.
_ROWS = ("data_fingerprint", "data_version", "data_id", "prefix_fingerprint", "n_samples")
_WORDS = {
    "data_id": "versions of one dataset",
    "data_version": "the same version of a dataset",
    "data_fingerprint": "data of the same fingerprint",
    "prefix_fingerprint": "data that begin with the same rows",
}


def refit_on(model: RidgeModel, dataset: blocks.Dataset, *, engine: protocol.Engine) -> RidgeModel:
    """Train on other rows with a model's features, standardisation, offsets, grids and choice of alpha.

    Two passes, one of them cheap. Alpha is chosen as in `update_model`; if folds chose it, it stays.

    Raises StatisticsError if the model has no statistics; DataError if the columns differ, or values cannot
      be used or are too large for the grids of the sums.
    """
    spec = _summed(model).spec
    new_rows.check_columns(model, dataset)
    moments = inspection.inspect(dataset, engine=engine)
    sums = passes.accumulate(dataset, model.feature_map, engine=engine, spec=spec)
    again = update.solve_as_before(model, sums).with_card(
        **prepare.describe_dataset(dataset), **describe.describe_cut(dataset, sums), **_about(model, [])
    )
    columns = ColumnMoments.of(moments, frequency_weights=spec.frequency_weights)
    return replace(again, columns=columns)


def merge(models: Sequence[RidgeModel], names: Sequence[str]) -> RidgeModel:
    """Return the model of the rows of all models, from their sums alone.

    Its sums are those of one pass over all rows if the rows of all models but the last end with a whole
    block. Alpha is chosen as the first model's was; if that took folds, it stays.

    `names`: names of the models in errors.
    Raises InvalidParameterError if there are fewer than two; StatisticsError if one has no statistics, they
      are not of one spec (names the first field that differs), or two were trained on the same data.
    """
    if len(models) < 2:
        raise InvalidParameterError(f"{len(models)} model to merge; expected two or more")
    first, held = models[0], [rows_of(model) for model in models]
    sums = [_summed(model) for model in models]
    for model, name in zip(models[1:], names[1:], strict=True):
        _check_alike(first, model, names[0], name)
    # sums do not show which rows they hold, so that a row in two of them would count twice unnoticed
    for (this, rows), (other, others) in itertools.combinations(zip(names, held, strict=True), 2):
        _check_apart(this, rows, other, others)
    total = functools.reduce(operator.add, sums)
    entries = [entry for rows in held for entry in rows]
    merged = update.solve_as_before(first, total).with_card(merged=entries, **_about(first, models))
    columns = [model.columns for model in models if model.columns is not None]
    whole = len(columns) == len(models)
    return replace(merged, columns=functools.reduce(operator.add, columns) if whole else None)


def rows_of(model: RidgeModel) -> list[Facts]:
    """Return what a model's card says about its rows: an entry for each dataset."""
    entries: list[Facts] = model.card.get("merged") or [
        {name: model.card[name] for name in _ROWS if name in model.card}
    ]
    return entries


def _about(model: RidgeModel, sources: Sequence[RidgeModel]) -> Summary:
    """Return the texts about a model as a fact for a card, with what `sources` say about their data."""
    texts = {name: text for name, text in model.card.get("about", {}).items() if name != "data"}
    data = dict.fromkeys(source.card.get("about", {}).get("data", "") for source in sources)
    if said := "\n\n".join(filter(None, data)):
        texts["data"] = said
    return {"about": texts} if texts or "about" in model.card else {}


def _summed(model: RidgeModel) -> ridge_statistics.RidgeStatistics:
    if model.statistics is None or "classifier" in model.card:
        raise StatisticsError(
            "this model has no sums that others can be added to; expected a regression that was stored "
            "with its statistics. Train it again with `statistics`, and without conjugate gradients"
        )
    return model.statistics


def _check_alike(first: RidgeModel, other: RidgeModel, name: str, other_name: str) -> None:
    for (field, value), (_, two) in zip(_spec(first), _spec(other), strict=True):
        if value != two:
            raise StatisticsError(
                f"{name} and {other_name} are not of one spec: `{field}` is {str(value)[:200]} and "
                f"{str(two)[:200]}; sums add up only where all of it is the same. Train the second by "
                f"`rff-dist refit {name} DATA {other_name}`"
            )


def _spec(model: RidgeModel) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that must agree, those that users set first."""
    feature_map, card = model.feature_map, model.card
    kernel, drawn = kinds.kernel_of(feature_map), feature_map.spec
    yield "features", feature_map.kind
    yield "feature_names", card.get("feature_names")
    yield "target_names", card.get("target_names")
    yield "recipe", card.get("recipe", {}).get("columns")
    yield "n_features", feature_map.n_features
    yield "kernel", None if kernel is None else kernel.to_dict()
    yield "n_components", feature_map.n_components
    for name in ("design", "map", "seed", "precision"):
        yield name, getattr(drawn, name, None)
    standardizer = feature_map.standardizer
    stored = {} if standardizer is None else standardizer.to_arrays()
    yield "standardize", {name: values.tolist() for name, values in stored.items()}
    spec = _summed(model).spec
    for item in fields(spec):
        yield item.name, getattr(spec, item.name)
    yield "fit_intercept", card["fit_intercept"]


def _check_apart(name: str, rows: Sequence[Facts], other_name: str, others: Sequence[Facts]) -> None:
    for entry, two in itertools.product(rows, others):
        for field, words in _WORDS.items():
            if field in entry and entry[field] == two.get(field):
                raise StatisticsError(
                    f"{name} and {other_name} were trained on {words} ({str(entry[field])[:16]}…), so that "
                    "rows would count twice; expected rows that never meet"
                )
