"""Fit a model by conjugate gradients: passes of Z'(Zv), which need no sums of Z'Z.

A prepared dataset and a feature map go in; a model without statistics comes out. It
serves if the sums of Z'Z are larger than memory, or would take far longer than some
dozens of passes.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from rff_dist.data import folding
from rff_dist.features import draw
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.plan import Plan
from rff_dist.fitting.prepare import PreparedDataset
from rff_dist.ridge import alpha_warnings, models, pcg, solve
from rff_dist.ridge.choices import Choices
from rff_dist.ridge.fit_result import FitResult, card_of, columns_of
from rff_dist.typing import Do

logger = logging.getLogger(__name__)


def fit_without_sums(
    prepared: PreparedDataset,
    feature_map: FeatureMap,
    choices: Choices,
    plan: Plan,
    do: Do,
) -> FitResult:
    """Solve by conjugate gradients; again in float32 if rounding to 15 bits shows."""
    prepared.say("solve", f"by conjugate gradients: {plan.reason}")
    logger.info("solving by conjugate gradients: %s", plan.reason)
    result = do("solve", train_without_sums, prepared, feature_map, choices)
    if needs_high_precision(result.visible_rounding, choices.options):
        precise = draw.in_high_precision(feature_map)
        result = do("solve", train_without_sums, prepared, precise, choices)
    return result


def train_without_sums(
    prepared: PreparedDataset, feature_map: FeatureMap, choices: Choices
) -> FitResult:
    """Solve by conjugate gradients; the model has no statistics.

    If alpha is not one number, the last split of the folds chooses it.
    """
    penalty = choices.penalty
    validation = None
    table = None
    choice = None
    alpha: Any = penalty.alpha
    if choices.folds is not None:
        validation = pcg.validate_alphas(
            prepared,
            feature_map,
            choices.folds,
            alphas=penalty.grid,
            fit_intercept=penalty.fit_intercept,
        )
        table = validation.table
        choice = solve.choose_alpha(table, feature_map.n_components, penalty)
        alpha = choice.penalty
    iterated = pcg.solve_pcg(
        prepared,
        feature_map,
        alpha=alpha,
        fit_intercept=penalty.fit_intercept,
        path=validation,
    )
    solved = solve.SelectedSolution(iterated.solution, None, table, choice)

    card = {
        "n_samples": prepared.dataset.n_samples,
        **card_of(prepared, solved, penalty),
    }
    if choices.folds is not None:
        card["folds"] = folding.folds_to_dict(choices.folds)
    model = models.RidgeModel.from_solution(
        feature_map,
        None,
        iterated.solution,
        solved.path(),
        card,
        one_dimensional=prepared.dataset.one_dimensional,
        solver=iterated.facts(),
    )
    rounding = alpha_warnings.visible_rounding(
        solved, iterated.spec, iterated.target_deviations
    )
    return FitResult(
        replace(model, columns=columns_of(prepared)),
        ((feature_map, solved),),
        visible_rounding=rounding,
    )


def needs_high_precision(rounding: float | None, options: RidgeOptions) -> bool:
    """Return whether to fit again with float32 features, since rounding shows."""
    if rounding is None or options.precision != "auto":
        return False
    logger.info(
        "fitting again with float32 features: rounding them to 15 bits moves"
        " predictions by about %.2g standard deviations of y",
        rounding,
    )
    return True
