"""What a choice by folds costs beyond one fit."""

from rff_dist.numerics import machine
from rff_dist.ridge import budget
from rff_dist.ridge.choices import ROUND_ROWS, Choices
from rff_dist.selection import cross_validation
from rff_dist.typing import Summary

# For an estimate to a factor of two: the speed of many small products and decompositions as a share of the
# speed of one large product.
_SHARE_OF_PEAK = 0.25


def cost_of_choosing(choices: Choices, *, gflops: float) -> Summary | None:
    """Return what a choice by folds takes beyond one fit: a first round in this process, and a final."""
    if not choices.choosing and choices.n_finalists == 1:
        return None
    assert choices.by is not None  # which compare the candidates
    chosen, tuning, n_splits = choices.plan, choices.tuning, len(choices.by.splits)
    rows, width = min(ROUND_ROWS, chosen.n_samples), choices.round_width
    tuned = {candidate.kernel for candidate in choices.candidates if candidate.length_scale == "evidence"}
    flops = len(tuned) * tuning.flops(choices.n_tuned_on, chosen.n_features)
    operations = rows * width * (width + 2 * (chosen.n_features + 2))
    if choices.choosing:  # else given candidates meet on all rows at once
        flops += choices.n_tried * (operations + cross_validation.cross_validation_flops([width], n_splits))
    rate = _SHARE_OF_PEAK * gflops * 1e9 * machine.available_cores()

    def final_of(finals: Choices, of_rows: float = 1.0) -> float:
        share = of_rows * (finals.widths[-1] / choices.widths[-1]) ** 2
        tables = cross_validation.cross_validation_flops(finals.widths, n_splits) / rate
        return share * chosen.seconds(gflops) + tables

    meeting, *alone = choices.finals(choices.n_finalists)
    met = choices.meeting_rows / chosen.n_samples
    if met < 1 < choices.n_finalists:  # on a sample, so that only the best takes a pass over all rows
        alone = [choices]
    final = choices.n_finalists * final_of(meeting, met if alone else 1.0) + sum(map(final_of, alone))
    first, limit = float(flops / rate), choices.options.time_limit
    if limit is not None:
        first = min(first, budget.FIRST_SHARE * limit)
        final = min(final, limit - first)
    return {
        "n_candidates": choices.n_tried,
        "n_samples": rows,
        "n_components": width,
        "flops": float(flops),
        "seconds": first,
        "n_finalists": choices.n_finalists,
        "final_seconds": float(final),
    }
