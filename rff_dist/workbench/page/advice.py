"""What to do after a comparison: which model to use, and which rows to check.

In goes a comparison, out come sentences. A reader of errors alone would have to know
what each of them asks for.
"""

from __future__ import annotations

import numpy as np

from rff_dist.workbench.jobs.comparison import LINEAR, ModelComparison

#: The rows with half of the squared error are worth a look if their share of all rows
#: is at most this; for normal errors it is an eighth.
_FEW = 0.03
#: The logarithm is advised if so small a share of the rows, those with the largest
#: predictions, has half of the squared error: about half if it does not grow with them.
_TAIL = 0.2
#: Also, the mean must be so many standard deviations above the median: 0.3 in an
#: exponential distribution.
_SKEWED = 0.2


def advice_on(comparison: ModelComparison, *, is_update: bool = False) -> list[str]:
    """Return what to do after a comparison: which model to use, which rows to check."""
    # what our model is next to each other one: "better", "worse" or "same"
    ours_is = {
        name: difference.relation for name, difference in comparison.differences.items()
    }
    advice = []
    if ours_is[comparison.naive] != "better":
        advice.append(
            "Do not use it yet: it predicts no better than a constant. Look for"
            " columns that the target depends on, or for more rows."
        )
    elif "worse" in ours_is.values():
        better = [name for name, relation in ours_is.items() if relation == "worse"]
        advice.append(f"Better on these rows, so prefer it: {' or '.join(better)}.")
    elif ours_is.get(LINEAR) == "same":
        advice.append(
            "A linear model is as good as far as these rows show: take it if you need"
            " to explain each prediction, or test on more rows."
        )
    else:
        advice.append(
            "Is it good enough? Compare its errors with those that your use of it"
            " allows; no other model that was tried is clearly better."
        )
    if comparison.rows.origin != "test" and not is_update:
        advice.append(
            "Keep rows for a test: ingest with `--holdout 10%`, and fit with `--test`."
        )
    if comparison.classes is None and comparison.observed.shape[1] == 1:
        observed = comparison.observed[:, 0]
        predicted = comparison.ours.values[:, 0]
        residuals = observed - predicted
        n_largest = comparison.rows_of_half(predicted)
        n_rows = len(residuals)
        is_skewed = observed.mean() - np.median(observed) > _SKEWED * observed.std()
        is_tail = residuals.any() and n_largest <= _TAIL * n_rows
        if is_skewed and is_tail and observed.min() > 0:
            target = comparison.target or "the target"
            advice.append(
                f"The {n_largest:,} of {n_rows:,} rows with the largest predictions"
                f" ({n_largest / n_rows:.1%}) make half of the squared error, and all"
                f" values of {target} are above 0 here: try to predict its logarithm."
            )
        n_half = comparison.rows_of_half(np.abs(residuals))
        if residuals.any() and n_half <= _FEW * n_rows:
            advice.append(
                "Check the rows with the largest errors first: few of them make half of"
                " the squared error, and a wrong value there, or a column that explains"
                " them, would change it most."
            )
    return advice
