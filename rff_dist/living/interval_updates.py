"""Make the intervals of a model again, after rows came or went.

A model, its data and the ranges of its rows go in; the model comes out with new
held-out scores, from which intervals are made. The scores of the fit would describe
rows that may be gone, and miss the new ones. A model does not keep sums for each fold,
so only the newest rows are held out: their folds are summed, and subtracted from the
sums of all rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rff_dist.data import blocks, folding
from rff_dist.engines import protocol
from rff_dist.living.differences import take_rows
from rff_dist.living.ranges import Range, count_rows, newest_rows, row_numbers
from rff_dist.ridge import held_out
from rff_dist.ridge.fold_models import solve_fold_models
from rff_dist.ridge.models import RidgeModel
from rff_dist.statistics import accumulate, passes

logger = logging.getLogger(__name__)

#: One in `SHARE` rows is scored, but at most `MOST_ROWS`, and at least `FEWEST_ROWS` if
#: the model has them.
SHARE = 5
MOST_ROWS = 10_000
FEWEST_ROWS = 500


def hold_out_newest(
    model: RidgeModel,
    before: RidgeModel,
    dataset: blocks.Dataset,
    ranges: Sequence[Range],
    *,
    engine: protocol.Engine,
) -> RidgeModel:
    """Score the newest rows of `model` by models without their folds, for intervals.

    `ranges` are the model's rows in the dataset; `before` is the same model before it
    was solved again. The intervals become normal ones if `before` has normal ones, or
    has intervals by folds of groups or of time: the newest rows cannot show how large
    errors are for new groups and times.
    """
    if before.held_out is None:
        return model
    stored = folding.folds_from_dict(before.card["folds"])
    folds = folding.without_tuning_rows(stored)
    if not isinstance(folds, folding.HashFolds):
        logger.warning(
            "intervals are normal ones from now on: they were made by %s, which need"
            " a fit of all rows; fit again",
            folds,
        )
        return model

    n_rows = count_rows(ranges)
    n_wanted = max(FEWEST_ROWS, min(n_rows // SHARE, MOST_ROWS))
    rows = take_rows(dataset, row_numbers(newest_rows(ranges, n_wanted)))
    assert rows is not None  # a model has rows
    feature_map = model.feature_map
    member = accumulate.Accumulation(feature_map, model.summed.spec)
    [sums] = passes.accumulate_folds(rows, [member], folds=folds, engine=engine)
    fold_models = solve_fold_models(
        sums,
        feature_map,
        alpha=model.alpha,
        fit_intercept=model.fit_intercept,
        whole=model.summed,
    )
    scores = held_out.score_folds(rows, sums, fold_models, engine=engine)
    return model.with_intervals(scores, f"of {n_rows:,} rows, the newest")
