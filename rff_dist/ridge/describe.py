"""Describe a fit for a model's card: the rows, the candidates, and errors to expect.

Results of a fit go in; JSON-able facts come out, and from these the words and table
rows that terminal and page show. The facts are stored on the model's card, so that all
places show the same.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rff_dist.data import folding
from rff_dist.data.blocks import Block, Dataset
from rff_dist.features import kinds, maps
from rff_dist.fitting import options
from rff_dist.kernels import names, stationary
from rff_dist.ridge import solve
from rff_dist.selection import error_table
from rff_dist.selection.grids import RESOLUTION
from rff_dist.statistics import ridge_statistics, row_passes, specs
from rff_dist.text import (
    ERROR_TITLES,
    first_few,
    number,
    score_words,
    words_by_target,
)
from rff_dist.typing import Facts, Summary

#: Facts about a candidate, its errors and its round: a row of the table of candidates.
type CandidateResult = Summary


def describe_blocks(
    dataset: Dataset,
    statistics: ridge_statistics.RidgeStatistics,
    folds: folding.Folds | None = None,
) -> Facts:
    """Return the facts about the blocks that were summed."""
    blocks = summed_blocks(dataset, statistics.spec, folds)
    return {"rows_per_block": blocks[0].n_samples, "summed_by_folds": folds is not None}


def summed_blocks(
    dataset: Dataset, spec: specs.StatisticsSpec, folds: folding.Folds | None
) -> list[Block]:
    """Return the blocks of rows that are summed together."""
    n_folds = 1 if folds is None else folds.n_folds
    return row_passes.blocks_of(dataset, max_rows=spec.int64_rows, n_folds=n_folds)


def describe_penalty(penalty: options.Penalty) -> Facts:
    """Return the facts that let later fits choose alpha as this one did."""
    alpha: Any = penalty.alpha
    if not isinstance(alpha, str):
        alpha = np.asarray(alpha, np.float64).tolist()
    per_target = penalty.per_target
    if not isinstance(per_target, str):
        per_target = bool(per_target)
    return {
        "alpha_given": alpha,
        "alpha_per_target": per_target,
        "fit_intercept": bool(penalty.fit_intercept),
    }


def describe_estimate(solved: solve.SelectedSolution) -> Summary | None:
    """Return the cross-validated errors; None if nothing was cross-validated.

    They are `rmse` of each target in its units, its `rmse_standard_error` (None for one
    split) and `r2` (None for a constant target). If folds are groups or times, there is
    also `random_rmse`, the error that random folds would give, estimated by generalised
    cross-validation, which needs no pass.
    """
    table = solved.cross_validation
    choice = solved.choice
    if table is None or choice is None:
        return None
    errors, standard_errors = table.at_alphas(
        choice.n_components, solved.solution.alpha
    )
    variance = table.target_variance
    rmse = np.sqrt(errors)
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = {
            "rmse": rmse,
            # of the mean m of squared errors to that of √m: d√m = dm / (2√m)
            "rmse_standard_error": np.where(
                rmse > 0, standard_errors / (2 * rmse), 0.0
            ),
            "r2": np.where(variance > 0, 1 - errors / variance, np.nan),
        }
    # all other folds are of groups or times
    if not isinstance(folding.without_tuning_rows(table.folds), folding.HashFolds):
        figures["random_rmse"] = np.sqrt(variance * solved.gcv_share)
    estimate = {
        name: [value if math.isfinite(value) else None for value in values.tolist()]
        for name, values in figures.items()
    }
    return {"by": "cv", **estimate}


# -- candidates
# --------------------------------------------------------------------------------


def describe_candidate(
    feature_map: maps.FeatureMap, solved: solve.SelectedSolution
) -> CandidateResult:
    """Return JSON-able facts of a cross-validated candidate.

    In addition to `describe_features` they are: the chosen `n_components` and `alpha`,
    a list if targets have their own; `alpha_at_end`, the end of the grid that alpha is
    at, or None; `score`, the smallest error of its table as a share of the targets'
    variance, which compares candidates, and its `standard_error`, None for one split;
    and at the chosen alpha `r2`, the mean over targets, its `r2_standard_error`, and
    `rmse` of each target in its units.
    """
    table = solved.cross_validation
    choice = solved.choice
    assert table is not None
    assert choice is not None
    best = table.best
    alpha: float | list[float] = choice.alpha
    if choice.own_alphas is not None:
        # also if one alpha for all targets would be as good: they have their own
        best = table.with_own_alphas(best, always=True)
        alpha = list(choice.own_alphas)
    mse, _ = table.at_alphas(choice.n_components, solved.solution.alpha)
    return {
        **describe_features(feature_map),
        "n_components": choice.n_components,
        "alpha": alpha,
        "alpha_at_end": solved.alpha_at_end,
        **scores(best, choice),
        "rmse": np.sqrt(mse).tolist(),
    }


def scores(best: error_table.Choice, choice: error_table.Choice) -> CandidateResult:
    """Return what compares candidates, their smallest error, and the R² at the chosen
    alpha; see `describe_candidate`.
    """
    figures = {
        "score": best.score,
        "standard_error": best.standard_error,
        "r2": 1 - choice.score,
        "r2_standard_error": choice.standard_error,
    }
    return {
        name: None if math.isnan(value) else value for name, value in figures.items()
    }


def describe_features(feature_map: maps.FeatureMap) -> CandidateResult:
    """Return the facts that define a candidate.

    They are its `kernel`; `length_scale`, one number, a list, or None if the kernel has
    no single one; `features`, "fourier" or "nystrom"; and `mapped`, whether columns are
    transformed, such as to normal scores of their ranks, and not only standardised.
    """
    kernel = kinds.kernel_of(feature_map)
    standardizer = feature_map.standardizer
    length_scale: Any = stationary.own_length_scale(kernel)
    if isinstance(length_scale, tuple):
        length_scale = list(length_scale)
    return {
        "kernel": "given" if kernel is None else names.kernel_text(kernel),
        "length_scale": length_scale,
        "features": kinds.kind_of(feature_map),
        "mapped": standardizer is not None and bool(standardizer.maps),
    }


def compare_results(results: Sequence[CandidateResult]) -> list[CandidateResult]:
    """Compare the results of given candidates: return them with two more entries.

    `within_one_standard_error` says whether a candidate's score is at most the smallest
    score plus that score's standard error. `length_scale_at_end` ("lower", "upper" or
    None) says whether its length scale is the smallest or largest of several that its
    kernel was tried with.
    """
    smallest = min(results, key=lambda result: float(result["score"]))
    # one split has no standard error; scores this close are equal up to rounding
    limit = smallest["score"] + max(smallest["standard_error"] or 0.0, RESOLUTION)
    return [
        {
            **result,
            "within_one_standard_error": bool(result["score"] <= limit),
            "length_scale_at_end": _length_scale_at_end(result, results),
        }
        for result in results
    ]


def _length_scale_at_end(result: Facts, results: Sequence[Facts]) -> str | None:
    length_scale = result["length_scale"]
    tried = {
        other["length_scale"]
        for other in results
        if (other["kernel"], other["features"])
        == (result["kernel"], result["features"])
        and isinstance(other["length_scale"], float)
    }
    if not isinstance(length_scale, float) or len(tried) < 2:
        return None
    if length_scale == min(tried):
        return "lower"
    if length_scale == max(tried):
        return "upper"
    return None


#: Titles of `candidate_cells`.
CANDIDATE_CELLS = ("kernel", "scale", "features", "D", "alpha", "R²")


def candidate_cells(result: Facts) -> list[Any]:
    """Return a candidate on a model's card as a row of a table."""
    alpha = result["alpha"]
    return [
        _kernel_words(result),
        _scale_words(result["length_scale"]),
        result["features"],
        result["n_components"],
        first_few(alpha if isinstance(alpha, list) else [alpha]),
        _r2_words(result),
    ]


def candidate_name(result: Facts) -> str:
    """Return the kernel, length scale and features of a candidate on a model's card."""
    scale = ""
    if result["length_scale"] is not None:
        scale = f", length scale {_scale_words(result['length_scale'])}"
    components = f"D = {result['n_components']:,}"
    return f"{_kernel_words(result)}{scale}, {components}, {result['features']}"


def candidate_words(result: Facts) -> str:
    """Return a candidate and its R² by cross-validation in words."""
    return f"{candidate_name(result)}, R² {_r2_words(result)}"


def _r2_words(result: Facts) -> str:
    return score_words("r2", result["r2"], result["r2_standard_error"])


def _kernel_words(result: Facts) -> str:
    return names.shortened_text(result["kernel"]) + (
        " of mapped columns" if result["mapped"] else ""
    )


def _scale_words(scale: Any) -> str:
    return "by column" if isinstance(scale, list) else number(scale)


def ranked_candidates(candidates: Sequence[Facts]) -> list[Facts]:
    """Return candidates by their errors, but the chosen one first.

    Candidates of the first round come last: their errors are from fewer rows and
    components.
    """
    chosen = chosen_candidate(candidates)
    return sorted(
        candidates,
        key=lambda result: (
            result is not chosen,
            result.get("round") == "first",
            result["score"],
        ),
    )


_SHOWN_TARGETS = 8


def estimate_of(card: Facts) -> Summary | None:
    """Return the errors on new rows that a model's card estimates; None without them.

    For a classifier these are accuracy and log loss, since errors of its targets of −1
    and +1 mean nothing to a user.
    """
    estimate = card.get("estimate")
    if estimate is None or "classifier" not in card:
        return estimate
    figures = {
        key: value
        for key, value in estimate.items()
        if key.startswith(("accuracy", "log_loss"))
    }
    return {"by": estimate["by"], **figures} if figures else None


def chosen_candidate(candidates: Sequence[Facts]) -> Facts | None:
    """Return which of the candidates on a model's card was chosen; None if there are
    none.
    """
    if not candidates:
        return None
    final = [c for c in candidates if c.get("round") != "first"]
    if final:
        return min(final, key=lambda candidate: float(candidate["score"]))
    # the first round lists its choice first, which may not have the smallest error
    return candidates[0]


def choice_words(candidates: Sequence[Facts]) -> str | None:
    """Say which of the candidates on a model's card was chosen, and by which rule."""
    chosen = chosen_candidate(candidates)
    if chosen is None:
        return None
    words = candidate_words(chosen)
    n_tried = n_candidates(candidates)
    # The first round lists its choice first, see `chosen_candidate`. If another has a
    # smaller error, `first_round` preferred the choice for one of two reasons.
    first = [candidate for candidate in candidates if candidate.get("round") == "first"]
    rival = min(first, key=lambda candidate: float(candidate["score"]), default=None)
    if rival is None or rival is first[0]:
        return f"the best of {n_tried} candidates: {words}"
    reason = "with length scales tuned on many rows, and"
    if chosen["kernel"] == "linear":
        reason = "the simplest"
    return (
        f"{words}: {reason} within one standard error of the best of {n_tried}"
        f" candidates ({candidate_words(rival)})"
    )


def n_candidates(candidates: Sequence[Facts]) -> int:
    """Return how many candidates were tried; the chosen one was tried twice."""
    first = [candidate for candidate in candidates if candidate.get("round") == "first"]
    return len(first or candidates)


def errors_text(errors: Facts, targets: Sequence[str] | None = None) -> str:
    """Return the errors of a record in words, with their standard errors if known.

    Several targets are called y0, y1, … by default.
    """
    n_targets = len(errors["rmse"]) if isinstance(errors.get("rmse"), list) else 1
    if n_targets > 1:
        named = (targets or [f"y{i}" for i in range(n_targets)])[:_SHOWN_TARGETS]
        lists = {
            key: values for key, values in errors.items() if isinstance(values, list)
        }
        each = []
        for i, name in enumerate(named):
            of_target = {key: [values[i]] for key, values in lists.items()}
            each.append(f"{name}: {errors_text(of_target)}")
        more = f" … ({n_targets} targets)" if n_targets > len(named) else ""
        return "; ".join(each) + more
    words = []
    for name, title in ERROR_TITLES.items():
        if errors.get(name) is not None:
            standard_error = errors.get(f"{name}_standard_error")
            error_words = words_by_target(name, errors[name], standard_error)
            words.append(f"{title} {error_words}")
    return ", ".join(words)
