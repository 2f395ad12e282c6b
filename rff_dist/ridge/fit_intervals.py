"""Models that were trained without one fold each, and prediction intervals.

The result of a fit goes in, with the sums of each fold. The same result comes out with
a model for each fold that was not trained on the fold, and with intervals by the errors
of these models. Errors of the final model on its own rows would be too small.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from rff_dist.data import folding, labelled
from rff_dist.errors import SolveError
from rff_dist.fitting.prepare import PreparedDataset
from rff_dist.ridge import held_out
from rff_dist.ridge.budget import EXACT_ROWS
from rff_dist.ridge.fit_result import FitResult
from rff_dist.ridge.fold_models import FoldModels, solve_fold_models

logger = logging.getLogger(__name__)


def with_fold_models(result: FitResult, prepared: PreparedDataset) -> FitResult:
    """Solve the model without each fold, at the alpha of all rows.

    For a regression, measure the errors of held-out rows, for intervals. If the model
    without some fold has no solution, the result stays as it is, with a warning: it has
    no `fold_models`, and intervals of a normal distribution.

    Raises SolveError if such a model of classes has no solution.
    """
    if isinstance(prepared.dataset, labelled.LabelledDataset):
        # classes have no intervals
        return replace(result, fold_models=_fold_models(result))
    try:
        return _with_intervals(result, prepared)
    except SolveError as error:
        logger.warning(
            "intervals are those of a normal distribution: without some fold the model"
            " has no solution (%s)",
            error,
        )
        return result


def _fold_models(result: FitResult) -> FoldModels:
    parts = result.parts
    assert parts is not None  # only fits that sum folds separately get here
    feature_map, solved = result.compared[result.best_index]
    return solve_fold_models(
        parts,
        feature_map,
        alpha=solved.solution.alpha,
        fit_intercept=result.model.fit_intercept,
    )


def _with_intervals(result: FitResult, prepared: PreparedDataset) -> FitResult:
    """Return the result with intervals by the scores of held-out rows: |error| over
    the typical size of errors near the row.
    """
    parts = result.parts
    assert parts is not None
    dataset = prepared.dataset
    fold_models = _fold_models(result)
    scoring_models = fold_models
    if _leaves_single_rows_out(parts.folds, prepared):
        scoring_models = replace(fold_models, without_row=result.model.with_variances())
    scores = held_out.score_sample(
        dataset, parts, scoring_models, engine=prepared.engine
    )
    rows_in_words = f"of {dataset.n_samples:,} rows of the fit"
    model = result.model.with_intervals(scores, rows_in_words)
    return replace(result, fold_models=fold_models, model=model)


def _leaves_single_rows_out(folds: folding.Folds, prepared: PreparedDataset) -> bool:
    """Return whether intervals take each row's error by the model without that row.

    A model without a fold has larger errors than the model of all rows, and the more so
    the fewer rows there are. `HashFolds` deal out rows one by one, so a single row may
    be left out as well as a fold of them; folds of groups or times stay together. A row
    with a frequency weight stands for several rows, so it is no single one.
    """
    has_few_rows = prepared.dataset.n_samples <= EXACT_ROWS
    is_by_row = isinstance(folding.without_tuning_rows(folds), folding.HashFolds)
    return has_few_rows and is_by_row and not prepared.frequency_weights
