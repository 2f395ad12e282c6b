"""Estimate what choosing a model by folds costs beyond one fit.

The choices of a fit and a measured speed go in; candidates, rows and seconds of the
first round, and of the training on all rows, come out, before anything runs. It is
arithmetic on sizes alone.
"""

from rff_dist.fitting.sizes import Machines
from rff_dist.numerics import machine
from rff_dist.ridge import budget
from rff_dist.ridge.choices import ROUND_ROWS, Choices, doubled
from rff_dist.selection import cross_validation
from rff_dist.typing import Summary

# For an estimate to a factor of two: the speed of many small products and
# decompositions as a share of the speed of one large product.
_SHARE_OF_PEAK = 0.25


def cost_of_choosing(choices: Choices, *, gflops: float) -> Summary | None:
    """Return what a first round and a final take; None if nothing is compared."""
    n_trained = len(choices.candidates) if choices.has_given_candidates else 1
    if not choices.has_first_round and n_trained == 1:
        return None
    assert choices.comparison_folds is not None  # they compare the candidates
    plan = choices.plan
    n_splits = len(choices.comparison_folds.splits)
    n_rows = min(ROUND_ROWS, plan.n_samples)
    n_components = choices.n_round_components
    tuned_kernels = {
        candidate.kernel for candidate in choices.candidates if candidate.is_tuned
    }
    flops_of_tuning = choices.tuning.flops(choices.n_tuning_rows, plan.n_features)
    flops = len(tuned_kernels) * flops_of_tuning
    if (
        choices.has_first_round
    ):  # else given candidates are compared on all rows at once
        # Z'Z, and the features: products with W, cosines and sines
        flops_of_sums = (
            n_rows * n_components * (n_components + 2 * (plan.n_features + 2))
        )
        flops += len(choices.candidates) * (
            flops_of_sums
            + cross_validation.cross_validation_flops([n_components], n_splits)
        )
    final = n_trained * _seconds_of_final(choices, gflops)
    first = float(flops / _rate(gflops))
    limit = choices.options.time_limit
    if limit is not None:
        first = min(first, budget.FIRST_SHARE * limit)
        final = min(final, limit - first)
    return {
        "n_candidates": len(choices.candidates),
        "n_samples": n_rows,
        "n_components": n_components,
        "flops": float(flops),
        "seconds": first,
        "n_trained": n_trained,
        "final_seconds": float(final),
    }


def cost_of_growing(
    choices: Choices, machines: Machines, *, gflops: float
) -> Summary | None:
    """Return what a fit takes in addition if every doubling of its components pays.

    None if nothing is doubled. The memory is the last doubling's, the seconds are the
    sum of all.
    """
    largest = None
    seconds = 0.0
    while (more := doubled(largest or choices, machines)) is not None:
        largest = more
        seconds += _seconds_of_final(more, gflops)
    if largest is None:
        return None
    return {
        "n_components": largest.plan.n_components,
        "worker_bytes": largest.plan.worker_bytes,
        "client_bytes": largest.plan.client_bytes,
        "seconds": seconds,
    }


def _seconds_of_final(choices: Choices, gflops: float) -> float:
    """Return the seconds of one candidate's sums over all rows, and of their folds."""
    assert choices.comparison_folds is not None
    n_splits = len(choices.comparison_folds.splits)
    flops = cross_validation.cross_validation_flops(choices.component_counts, n_splits)
    return float(choices.plan.seconds(gflops) + flops / _rate(gflops))


def _rate(gflops: float) -> float:
    """Return the operations per second of small products and decompositions."""
    return _SHARE_OF_PEAK * gflops * 1e9 * machine.available_cores()
