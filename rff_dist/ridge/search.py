"""Which kernel, which length scale, which alpha and how many components: candidates from one reading.

The rows are read and decoded once for all candidates. A candidate's fold statistics are enough for its whole
cross-validation, and the best model is solved from them too: nothing is fitted twice. If memory does not hold
the statistics of all candidates, they are shared out among as few readings as it allows.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rff_dist.data.blocks import Dataset
from rff_dist.data.folds import find_folds
from rff_dist.data.labelled import LabelledDataset
from rff_dist.engines.protocol import Engine
from rff_dist.features.evidence import TUNING_ROWS
from rff_dist.ridge.candidates import Candidate, Draws, check_candidates, draw_candidates
from rff_dist.ridge.choices import DEFAULT_FOLDS, folds_for, plan_choices, planner, prepare_folds
from rff_dist.ridge.describe import Row, describe_candidate
from rff_dist.ridge.fit import Readings, train_folds
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.options import RidgeOptions
from rff_dist.ridge.plan import plan_readings
from rff_dist.ridge.prepare import prepare
from rff_dist.ridge.solve import Solved
from rff_dist.selection.alphas import RESOLUTION
from rff_dist.text import short_repr

logger = logging.getLogger(__name__)

DEFAULT_COMPONENTS = 1024  # less than of a fit, since each candidate takes sums and a table in n_components³


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Candidates compared by exact k-fold cross-validation, and the model of the best.

    `model`: the best candidate's, trained on all rows. Its `selection` holds that candidate's whole table,
      and its card's `candidates` hold `rows`.
    `solved`: how the best candidate was solved: status, its table, and the entry taken from it.
    `rows`: the results of each candidate, in the order given; see `describe_candidate` and `choose`.
    `best_index`: index of the best candidate.
    `n_readings`: how often the data were read for statistics; 1 if memory holds those of all candidates.
    """

    model: RidgeModel
    solved: Solved
    rows: tuple[Row, ...]
    best_index: int
    n_readings: int

    __repr__ = short_repr

    @property
    def best(self) -> Row:
        return self.rows[self.best_index]


def search(
    dataset: Dataset, candidates: Sequence[Candidate], options: RidgeOptions, *, engine: Engine
) -> Search:
    """Cross-validate candidates from one reading of the data, and train the best on all rows.

    O(n_samples · n_components²) for each candidate, and O(n_splits · n_components³) for its table; memory
    for every fold of every candidate, see `plan_readings`.

    `dataset`: with targets, and with groups if the folds are of groups.
    `candidates`: they replace the kernel and length scale of the options. The first of equal ones wins.
    `options`: with one kind of features. If several numbers of components are given, each candidate takes the
      smallest within one standard error of its best; see `solve_folds`. "auto" alpha is "cv".
    Raises InvalidParameterError if a parameter is out of range, or a candidate has no smaller draws for
      several widths; PlanError if memory is too small for a single candidate; StatisticsError if a fold has
      no rows.
    """
    options = with_folds(options)
    check_candidates(candidates, dataset, options)
    tuned = any(one.length_scale == "evidence" for one in candidates)
    penalty, folds, widths = plan_choices(
        dataset,
        options,
        features=options.features,
        n_tuned_on=TUNING_ROWS if tuned else 0,
        plan=planner(dataset, options, engine=engine),
    )
    assert folds is not None  # `cv` is given
    folds = prepare_folds(dataset, folds, engine=engine)
    at_once, n_parts = plan_readings(
        dataset, widths[-1], len(candidates), engine=engine, n_folds=folds.n_folds, features=options.features
    )
    prepared = prepare(
        dataset, standardize=options.standardize, sample_weight_kind=options.sample_weight_kind, engine=engine
    )
    maps = draw_candidates(Draws(prepared, options, folds=folds), candidates, widths)
    readings = Readings(list(itertools.batched(maps, at_once)), n_parts)
    trained = train_folds(prepared, readings, penalty=penalty, folds=folds, widths=widths)
    trained.warn(classes=isinstance(dataset, LabelledDataset))
    rows, best_index = choose([describe_candidate(*one) for one in trained.compared])
    _say_ends(rows[best_index])
    model = trained.model.with_card(candidates=list(rows))
    return Search(model, trained.best, tuple(rows), best_index, len(readings.maps))


# -- before the data are read ----------------------------------------------------------------------


def with_folds(options: RidgeOptions) -> RidgeOptions:
    """Return the options with folds that can choose alpha and the number of components.

    Raises InvalidParameterError if folds cannot choose these.
    """
    options = replace(options, cv=find_folds(DEFAULT_FOLDS if options.cv is None else options.cv))
    folds_for(options)
    return options


# -- the figures that candidates are compared by ------------------------------------------------------------


def choose(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Row], int]:
    """Compare rows: return them with two more entries, and the index of the first with the least score.

    `within_one_standard_error` says whether a row's score is within the best row's standard error of the best
    score. `length_scale_at_end` ("lower", "upper" or None) says whether its length scale is the least or
    largest of several that its kernel was tried with.
    """
    scores = np.array([row["score"] for row in rows])
    best_index = int(np.argmin(scores))
    limit = scores[best_index] + max(rows[best_index]["standard_error"] or 0.0, RESOLUTION)
    compared = [
        {
            **row,
            "within_one_standard_error": bool(row["score"] <= limit),
            "length_scale_at_end": _length_scale_at_end(row, rows),
        }
        for row in rows
    ]
    return compared, best_index


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


def _say_ends(row: Row) -> None:
    for name, end in (("length scale", row["length_scale_at_end"]), ("alpha", row["alpha_at_end"])):
        if end is not None:
            value = row[name.replace(" ", "_")]
            logger.info(
                "the best %s, %.3g, is at the %s end of those tried; a better one may lie beyond",
                name,
                value,
                end,
            )
