"""What a fit returns: the best model, and every feature map that was trained.

Solutions go in; a result, and the facts on the model's card come out. Direct solutions
and conjugate gradients end in the same type, so that later steps need not know which
solver it was.
"""

from __future__ import annotations

from rff_dist.features.maps import FeatureMap
from rff_dist.fitting.options import Penalty
from rff_dist.fitting.prepare import PreparedDataset, describe_dataset
from rff_dist.ridge import describe, models, solve
from rff_dist.ridge.fold_models import FoldModels
from rff_dist.statistics import fold_statistics, moments
from rff_dist.text import short_repr
from rff_dist.typing import Summary, frozen


@frozen(eq=False)
class FitResult:
    """The best of the models that were compared, trained on all rows."""

    #: Its card lists all candidates that were tried.
    model: models.RidgeModel
    #: Every trained feature map, at the number of components chosen for it.
    compared: tuple[tuple[FeatureMap, solve.SelectedSolution], ...]
    #: Which of `compared` belongs to the model.
    best_index: int = 0
    #: The model's statistics fold by fold; None if folds were not summed separately.
    parts: fold_statistics.FoldStatistics | None = None
    #: The model without each fold; None too if folds were not summed separately.
    fold_models: FoldModels | None = None
    #: How far rounding features to 15 bits moves predictions, in standard deviations of
    #: the targets; None if negligible.
    visible_rounding: float | None = None
    #: A row for each candidate, trained ones first; empty if nothing was chosen.
    rows: tuple[describe.CandidateResult, ...] = ()
    #: How many times the data were read for statistics.
    n_readings: int = 1

    __repr__ = short_repr

    @property
    def solved(self) -> solve.SelectedSolution:
        """How the model was solved: status, errors, and the alpha taken from them."""
        return self.compared[self.best_index][1]

    @property
    def best(self) -> describe.CandidateResult:
        """The result of the best candidate."""
        return self.rows[self.best_index]


def card_of(
    prepared: PreparedDataset, solved: solve.SelectedSolution, penalty: Penalty
) -> Summary:
    """Return the facts of a model's card about its data, and how alpha was found."""
    card: Summary = {
        **describe_dataset(prepared.dataset),
        **describe.describe_penalty(penalty),
    }
    if penalty.alphas is not None:
        card["alphas"] = list(map(float, penalty.alphas))
    return {
        **card,
        "standardize": prepared.standardize,
        "chosen_by": solved.chosen_by,
        "estimate": describe.describe_estimate(solved),
        "sample_weight_kind": prepared.sample_weight_kind,
    }


def columns_of(prepared: PreparedDataset) -> moments.ColumnMoments:
    """Return the moments of the columns that a model keeps."""
    return moments.ColumnMoments.of(
        prepared.moments, frequency_weights=prepared.frequency_weights
    )
