"""What to do after a comparison: which model to use, and what to try.

In goes a comparison, out come sentences. A reader of errors alone would have to know
what each of them asks for.
"""

from __future__ import annotations

import numpy as np

from rff_dist.classify.predict import count_classes
from rff_dist.text import score_words
from rff_dist.workbench.jobs.comparison import LINEAR, OURS, ModelComparison

#: The logarithm is advised if the typical error of the third of rows with the largest
#: predictions is so many times that of the third with the smallest: twice, by chance,
#: among 50 rows in one of 25 cases.
_GROWTH = 2.0
_SMALL = 0.2  # probability from which a class that is often missed might be predicted


def advice_on(comparison: ModelComparison, *, is_update: bool = False) -> list[str]:
    """Return what to do after a comparison: which model to use, what to try."""
    # what our model is next to each other one: "better", "worse" or "same"
    ours_is = {
        name: difference.relation for name, difference in comparison.differences.items()
    }
    closer = comparison.closer.get(LINEAR)
    is_closer = closer is not None and closer.relation == "better"
    advice = []
    if ours_is[comparison.naive] != "better":
        advice.append(
            "Do not use it yet: it predicts no better than a constant. Look for"
            " columns that the target depends on, or for more rows."
        )
    elif "worse" in ours_is.values():
        better = [name for name, relation in ours_is.items() if relation == "worse"]
        advice.append(f"Better on these rows, so prefer it: {' or '.join(better)}.")
    elif ours_is.get(LINEAR) == "same" and not is_closer:
        advice.append(
            "A linear model is as good as far as these rows show: take it if you need"
            " to explain each prediction, or test on more rows."
        )
    if ours_is[comparison.naive] == "better" and comparison.measure != "r2":
        advice.append(f"Is it good enough? {_size_words(comparison)}")
    if comparison.rows.origin != "test" and not is_update:
        advice.append(
            "Keep rows for a test: ingest with `--holdout 10%`, and fit with `--test`."
        )
    growth = _growth_of_errors(comparison)
    if growth > _GROWTH and comparison.observed.min() > 0:
        advice.append(
            f"Typical errors are {growth:.1f} times as large in the third of rows with"
            " the largest predictions as in that with the smallest, and all values of"
            f" {comparison.target or 'the target'} are above 0 here: try to predict"
            " its logarithm."
        )
    return advice


def _size_words(comparison: ModelComparison) -> str:
    """Say how large errors are, next to what is predicted."""
    if comparison.classes is not None:
        names = comparison.classes
        counted = count_classes(comparison.observed, comparison.ours.values, len(names))
        # a class without rows has no recall
        worst = int(np.nanargmin(counted.recall))
        counts = counted.counts
        n_rows = counts[worst].sum()
        n_right = counts[worst, worst]
        n_missed = n_rows - n_right
        n_false = counts[:, worst].sum() - n_right
        words = (
            f"It misses {n_missed:,} of {n_rows:,} rows of {names[worst]}, and takes"
            f" {n_false:,} others for it."
        )
        logs = comparison.ours.log_probabilities
        if len(names) > 2 or logs is None:
            return words
        is_predicted = np.exp(logs[:, worst]) >= _SMALL
        is_true = comparison.observed == worst
        n_found = n_missed - (is_true & ~is_predicted).sum()
        n_more = (is_predicted & ~is_true).sum() - n_false
        if n_found:
            words += (
                f" Predicted from a probability of {_SMALL:.0%} on, it would miss"
                f" {n_missed - n_found:,} and take {n_false + n_more:,}: better if a"
                f" miss costs more than {n_more / n_found:.1f} times a false alarm."
            )
        return words
    scores = comparison.scores[OURS]
    errors = np.abs(comparison.observed - comparison.ours.values)
    sizes = (
        scores["median_error"][0],
        float(np.median(comparison.observed)),
        float(np.quantile(errors, 0.9)),
    )
    typical, median, tenth = (
        score_words("rmse", size, like=scores["rmse"][0]) for size in sizes
    )
    return (
        f"The typical error is {typical} on a median {comparison.target or 'target'} of"
        f" {median}; one prediction in ten is off by more than {tenth}."
    )


def _growth_of_errors(comparison: ModelComparison) -> float:
    """Return how many times larger the typical error is in the third of rows with the
    largest predictions than in that with the smallest, by medians, which few rows do
    not change; 1 if there is no one target, or too few rows.
    """
    if comparison.measure != "rmse" or comparison.n_rows < 50:
        return 1.0
    predicted = comparison.ours.values[:, 0]
    errors = np.abs(comparison.observed[:, 0] - predicted)[np.argsort(predicted)]
    n_third = len(errors) // 3
    smallest = np.median(errors[:n_third])
    return float(np.median(errors[-n_third:]) / smallest) if smallest else 1.0
