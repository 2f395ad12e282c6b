"""Facts for a model: the data, the candidates, the choices, and the error to expect on new rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rff_dist.data.blocks import Block, Dataset
from rff_dist.data.folds import Folds
from rff_dist.data.labelled import ExtendedDataset
from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.kernel_of import kernel_of, kind_of
from rff_dist.kernels.stationary import own_length_scale
from rff_dist.kernels.text import kernel_text, shortened_text
from rff_dist.ridge.options import Penalty
from rff_dist.ridge.solve import Solved
from rff_dist.selection.alphas import RESOLUTION
from rff_dist.statistics.inspection import blocks_of
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.statistics.spec import StatisticsSpec
from rff_dist.storage.generations import name_of

type Row = dict[str, Any]


def describe_dataset(dataset: Dataset) -> Mapping[str, Any]:
    """Return the facts of a dataset that a model's card keeps.

    Raises ConflictError if the rows were changed since it was opened.
    """
    dataset.check_unchanged()
    facts: dict[str, Any] = {"data_fingerprint": dataset.fingerprint()}
    if dataset.version is not None:
        facts["data_version"] = dataset.version
        if (name := name_of(attributes_of(dataset))) is not None:
            facts["data_id"] = name
    n_samples = dataset.n_samples
    # versions record digests of those that they only appended to, which need no reading
    prefix = dataset.recorded_prefix(n_samples) or dataset.prefix_fingerprint(n_samples)
    if prefix is not None:
        # an update compares it with the fingerprint of the first rows of data that have grown since
        facts["prefix_fingerprint"] = prefix
    attributes = attributes_of(dataset)
    if (recipe := attributes.get("recipe")) is not None:
        # It makes inputs of the model from tables. Notes name the files of these rows, which no model needs.
        facts["recipe"] = {**recipe, "notes": {}}
        if "target_names" in attributes:
            facts["target_columns"] = attributes["target_names"]  # in the table, labels included
    for name, names in {"feature_names": dataset.feature_names, "target_names": dataset.target_names}.items():
        if names is not None:
            facts[name] = list(names)
    return facts


def attributes_of(dataset: Dataset) -> Mapping[str, Any]:
    """Return the attributes stored beside a dataset's arrays; none for a dataset in memory."""
    while isinstance(dataset, ExtendedDataset):
        dataset = dataset.source
    found: Mapping[str, Any] = getattr(dataset, "attributes", {})
    return found


def describe_cut(
    dataset: Dataset, statistics: RidgeStatistics, folds: Folds | None = None
) -> Mapping[str, Any]:
    """Return the facts about the blocks that were summed; only the last one has fewer rows."""
    blocks = summed_blocks(dataset, statistics.spec, folds)
    return {"rows_per_block": blocks[0].n_samples, "summed_by_folds": folds is not None}


def summed_blocks(dataset: Dataset, spec: StatisticsSpec, folds: Folds | None) -> list[Block]:
    """Return the blocks that a dataset's statistics are summed by, for all rows or for folds."""
    return blocks_of(dataset, max_rows=spec.limb_rows, n_folds=1 if folds is None else folds.n_folds)


def describe_choices(penalty: Penalty) -> Mapping[str, Any]:
    """Return the facts that let later fits choose alpha as this one did."""
    alpha, per_target = penalty.alpha, penalty.per_target
    return {
        "alpha_given": alpha if isinstance(alpha, str) else np.asarray(alpha, np.float64).tolist(),
        "alpha_per_target": per_target if isinstance(per_target, str) else bool(per_target),
        "fit_intercept": bool(penalty.fit_intercept),
    }


def describe_estimate(solved: Solved) -> dict[str, Any] | None:
    """Return the cross-validated errors; None if nothing was cross-validated.

    Returns `estimate`: `by`, "cv" or "press"; for each target `rmse` in its units, its `rmse_standard_error`
      (None for one split) and `r2` (None for a constant target).
    """
    table, path, alphas = solved.cross_validation, solved.leave_one_out, solved.solution.alpha
    if table is not None and solved.choice is not None:
        errors, deviations = table.at_alphas(solved.choice.n_components, alphas)
        variance = table.target_variance
    elif path is not None:
        places = np.searchsorted(path.alphas, alphas), np.arange(len(alphas))
        errors, variance = path.mean_squared_error[places], path.target_variance
        deviations = np.full(len(errors), np.nan)
    else:
        return None
    rmse = np.sqrt(errors)
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = {
            "rmse": rmse,
            "rmse_standard_error": np.where(rmse > 0, deviations / (2 * rmse), 0.0),  # d√m = dm / (2√m)
            "r2": np.where(variance > 0, 1 - errors / variance, np.nan),
        }
    found = {
        name: [value if math.isfinite(value) else None for value in values.tolist()]
        for name, values in figures.items()
    }
    return {"by": "press" if path is not None else "cv", **found}


# -- candidates --------------------------------------------------------------------------------


def describe_candidate(feature_map: FeatureMap, solved: Solved) -> Row:
    """Return JSON-able facts of a cross-validated candidate.

    Returns `row`: `kernel`; `length_scale`, one number, a list, or None if the kernel has no single one;
      `features`, "fourier" or "nystrom"; `score`, the least error of its table as a share of the targets'
      variance, by which candidates are compared, and its `standard_error`, None for one split; the
      `n_components` and `alpha` that were chosen, a list if targets have their own; `alpha_at_end`, the end
      of the grid that alpha is at, if any; and `rmse`, the root mean squared error of each target in its
      units.
    """
    table, choice = solved.cross_validation, solved.choice
    assert table is not None
    assert choice is not None
    least = table.best
    if choice.own_alphas is not None:
        least = table.with_own_alphas(least, always=True)
    return {
        **describe_features(feature_map),
        "n_components": choice.n_components,
        "alpha": choice.alpha if choice.own_alphas is None else list(choice.own_alphas),
        "alpha_at_end": choice.at_end if len(table.alphas) > 1 else None,
        "score": least.score,
        "standard_error": None if np.isnan(least.standard_error) else least.standard_error,
        "rmse": np.sqrt(table.at_alphas(choice.n_components, solved.solution.alpha)[0]).tolist(),
    }


def describe_features(feature_map: FeatureMap) -> Row:
    """Return the `kernel`, `length_scale` and `features` of a candidate; see `describe_candidate`."""
    kernel = kernel_of(feature_map)
    length_scale = own_length_scale(kernel)
    return {
        "kernel": "given" if kernel is None else kernel_text(kernel),
        "length_scale": list(length_scale) if isinstance(length_scale, tuple) else length_scale,
        "features": kind_of(feature_map),
    }


def compare_rows(rows: Sequence[Row]) -> list[Row]:
    """Compare the rows of given candidates: return them with two more entries.

    `within_one_standard_error` says whether a row's score is within the best row's standard error of the best
    score. `length_scale_at_end` ("lower", "upper" or None) says whether its length scale is the smallest or
    largest of several that its kernel was tried with.
    """
    best = min(rows, key=lambda row: float(row["score"]))
    limit = best["score"] + max(best["standard_error"] or 0.0, RESOLUTION)
    return [
        {
            **row,
            "within_one_standard_error": bool(row["score"] <= limit),
            "length_scale_at_end": _length_scale_at_end(row, rows),
        }
        for row in rows
    ]


def _length_scale_at_end(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str | None:
    own = row["length_scale"]
    tried = {
        other["length_scale"]
        for other in rows
        if (other["kernel"], other["features"]) == (row["kernel"], row["features"])
        and isinstance(other["length_scale"], float)
    }
    if not isinstance(own, float) or len(tried) < 2:
        return None
    return "lower" if own == min(tried) else "upper" if own == max(tried) else None


def candidate_words(row: Row) -> str:
    """Say what a candidate is, and how large its error is."""
    scale = row["length_scale"]
    given = "" if scale is None else ", a length scale per column"
    given = f", length scale {scale:.3g}" if isinstance(scale, float) else given
    return (
        f"{shortened_text(row['kernel'])}{given}, {row['n_components']:,} {row['features']} features: "
        f"error {row['score']:.4g} of the variance"
    )
