"""The verdict on a model: its comparison with other models, in words.

In goes a `ModelComparison`, out come sentences and a table that the command line, pages
and flows show. Scores alone would leave it to the reader whether a difference is more
than chance.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rff_dist.fields import values_of
from rff_dist.text import ERROR_TITLES, first_few, score_words, share
from rff_dist.typing import AnyArray, Summary
from rff_dist.workbench.jobs import intervals
from rff_dist.workbench.jobs.comparison import (
    LINEAR,
    MEAN,
    OURS,
    TREES,
    ModelComparison,
)

NOTHING_COMPARED = (
    "How well it predicts new rows was not measured: there are no test rows, and none"
    " could be left out."
)
_RELATIONS = {
    "better": "better than",
    "worse": "worse than",
    "same": "no clear difference from",
}
_NAMES = {
    LINEAR: "a tuned linear model",
    TREES: "untuned boosted trees",
    MEAN: "the mean of the training rows",
}
_ONE_SIDED = 0.75  # of predictions too high or too low: a share that is said
CLEAR = 2.0  # standard errors of a mean error that is called a bias
_SAVED = {"log_loss": "log loss saved", "accuracy": "more rows right"}


def verdict_of(comparison: ModelComparison | None) -> str:
    """Return the verdict on a model in a few sentences, with which reports begin."""
    if comparison is None:
        return NOTHING_COMPARED
    sentences = [*_claims(comparison), *comparison.notes]
    return " ".join(sentences)


def _claims(comparison: ModelComparison) -> Iterator[str]:
    """Yield sentences on what the differences show, and on models without a
    conclusion.
    """
    naive = comparison.naive
    others = [name for name in comparison.differences if name != naive]
    if others:
        relation = comparison.differences[naive].relation
        if relation != "better":
            than = "worse than" if relation == "worse" else "not clearly better than"
            yield (
                f"No signal was found: the model is {than} {_named(comparison, naive)}."
            )

    models: dict[str, list[str]] = {relation: [] for relation in _RELATIONS}
    for name in others or [naive]:
        relation = comparison.differences[name].relation
        models[relation].append(_named(comparison, name))
    clauses = [
        f"{_RELATIONS[relation]} {_and(names)}"
        for relation, names in models.items()
        if names
    ]
    figure = _own_figure(comparison)
    yield f"On {rows_words(comparison)}, {figure}: {', and '.join(clauses)}."
    if comparison.measure == "rmse":
        yield from _typical_errors(comparison)

    for name, model in comparison.predictions.items():
        if model.handicap is not None:
            yield f"No conclusion on {_named(comparison, name)}: {model.handicap}."


def _typical_errors(comparison: ModelComparison) -> Iterator[str]:
    """Yield the median error; how many rows are predicted more closely, where that
    contradicts the RMSE; and the mean error, if it is clearly not 0.
    """
    scores = comparison.scores[OURS]
    rmse = scores["rmse"][0]
    excess = (comparison.ours.values - comparison.observed)[:, 0]
    typical = score_words("median_error", scores["median_error"][0], like=rmse)
    yield f"Half of the predictions are off by at most {typical}."
    for relation in ("better", "worse"):
        shares = [
            f"than {_NAMES.get(name, name)} in {closer_in(comparison, name)}"
            for name, closer in comparison.closer.items()
            if closer.relation == relation != comparison.differences[name].relation
        ]
        if shares:
            yield (
                f"By typical error it is clearly {relation}: closer {_and(shares)} of"
                f" the rows; {half_words(comparison)}."
            )
    bias, error = comparison.mean_with_error(excess)
    if abs(bias) > CLEAR * error:
        size = score_words("rmse", abs(bias), error, like=rmse)
        side = "high" if bias > 0 else "low"
        yield f"On average they are too {side}, by {size}."
    is_high = excess > 0
    is_low = excess < 0
    share_high = comparison.mean(is_high.astype(np.float64))
    share_low = comparison.mean(is_low.astype(np.float64))
    if max(share_high, share_low) >= _ONE_SIDED and min(share_high, share_low) > 0:
        high, low = (
            score_words("rmse", float(np.median(np.abs(excess[part]))), like=rmse)
            for part in (is_high, is_low)
        )
        yield (
            f"{share(share_high)} are too high, by a median of {high};"
            f" {share(share_low)} are too low, by a median of {low}."
        )


def half_words(comparison: ModelComparison, target: int = 0) -> str:
    """Say how few rows make half of our model's squared error."""
    squares = np.square(comparison.observed - comparison.ours.values)[:, target]
    n_half = n_of_half(squares)
    make = "makes" if n_half == 1 else "make"
    n_rows = f"{n_half:,} of {len(squares):,} rows ({n_half / len(squares):.1%})"
    largest = share(squares.max() / squares.sum())
    return f"{n_rows} {make} half of the squared error, the largest {largest}"


def n_of_half(squares: AnyArray) -> int:
    """Return the smallest number of values whose sum is half of all."""
    sums = np.sort(squares)[::-1].cumsum()
    return int(np.searchsorted(sums, sums[-1] / 2)) + 1


def rows_words(comparison: ModelComparison) -> str:
    """Return the rows in words, such as "36 test rows"."""
    rows = comparison.rows
    n = f"{comparison.n_rows:,}"
    if comparison.n_rows < rows.n_available:
        n += f" of {rows.n_available:,}"
    if rows.origin == "cross-validation":
        return f"{n} rows by cross-validation"
    if rows.origin == "leave-one-out":
        return f"{n} rows left out in turn"
    if rows.groups is None:
        return f"{n} test rows"
    return f"{n} test rows in {len(np.unique(rows.groups)):,} groups"


def table_of(
    comparison: ModelComparison, ours: str = OURS
) -> tuple[list[str], list[list[Any]]]:
    """Return header and rows of a table of all models, with the intervals; `ours`: what
    the judged model is called.
    """
    names = {**_NAMES, OURS: ours}
    header = ["model", *(ERROR_TITLES[name] for name in comparison.scores[OURS])]
    if comparison.closer:
        header.append("closer in")
    what = _SAVED.get(comparison.measure, "squared error saved")
    header.append(f"{what} ({intervals.LEVEL:.0%} interval)")
    rows = []
    for name in comparison.scores:
        cells = [names.get(name, name), *_cells(comparison, name)]
        if comparison.closer:
            cells.append(closer_in(comparison, name))
        rows.append([*cells, _saved(comparison, name)])
    return header, rows


def closer_in(comparison: ModelComparison, name: str) -> str:
    """Return the share of rows in which this model is closer than another one; rows of
    equal errors count half.
    """
    closer = comparison.closer.get(name)
    return "" if closer is None else share((1 + closer.mean) / 2)


def trainings_of(comparison: ModelComparison) -> list[str]:
    """Return how other models were trained, a sentence for each."""
    return [
        f"{name.capitalize()}: {model.about}."
        for name, model in comparison.predictions.items()
        if model.about is not None
    ]


def describe(comparison: ModelComparison) -> Summary:
    """Return a comparison and its verdict as JSON values."""
    return {
        "verdict": verdict_of(comparison),
        "by": comparison.rows.origin,
        "n_available": comparison.rows.n_available,
        **values_of(comparison, "n_rows", "measure", "scores"),
        "about": trainings_of(comparison),
        "differences": {
            name: difference.describe()
            for name, difference in comparison.differences.items()
        },
    }


def _named(comparison: ModelComparison, name: str) -> str:
    return f"{_NAMES.get(name, name)} ({_figure(comparison, name)})"


def _figure(comparison: ModelComparison, name: str) -> str:
    measure = comparison.measure
    value = comparison.scores[name][measure]
    if measure == "rmse":
        ours = comparison.scores[OURS]["rmse"][0]
        return score_words("rmse", value[0], like=ours)
    if measure == "r2":
        known = [r2 for r2 in value if r2 is not None]
        return score_words("r2", sum(known) / len(known) if known else None)
    if measure == "log_loss":
        return score_words("log_loss", value)
    return f"{value * comparison.n_rows:.0f}" if _counts(comparison) else share(value)


def _counts(comparison: ModelComparison) -> bool:
    """Return whether rows are counted: of few rows a count says more than a share;
    weighted rows have no count.
    """
    return comparison.rows.weights is None and comparison.n_rows <= 1_000


def _own_figure(comparison: ModelComparison) -> str:
    if comparison.measure == "r2":
        return f"the mean R² is {_figure(comparison, OURS)}"
    if comparison.measure == "rmse":
        r2 = comparison.scores[OURS]["r2"][0]
        r2_words = f" (R² {score_words('r2', r2)})"
        # the R² of a sample is not the one of all rows, which other lines have
        if r2 is None or comparison.n_rows < comparison.rows.n_available:
            r2_words = ""
        of_target = "" if comparison.target is None else f" of {comparison.target}"
        return f"the RMSE{of_target} is {_with_error(comparison, 'rmse')}{r2_words}"
    right = _with_error(comparison, "accuracy")
    if comparison.measure == "log_loss":
        loss = _with_error(comparison, "log_loss")
        return f"{right} are classified correctly and the log loss is {loss}"
    if _counts(comparison):
        right = f"{_figure(comparison, OURS)} ({right})"
    return f"{right} are classified correctly"


def _with_error(comparison: ModelComparison, measure: str) -> str:
    """Return this model's score by a measure, ± its standard error if it is known."""
    value = comparison.scores[OURS][measure]
    if isinstance(value, list):
        (value,) = value
    error = comparison.standard_error(comparison.ours, measure)
    return score_words(measure, value, error)


def _saved(comparison: ModelComparison, name: str) -> str:
    difference = comparison.differences.get(name)
    if difference is None:
        return ""
    values = [difference.mean, difference.lower, difference.upper]
    if comparison.measure == "log_loss":
        mean, lower, upper = (score_words("log_loss", value) for value in values)
        return f"{mean} ({lower} to {upper})"
    unit = 1.0
    if comparison.classes is None:
        losses = comparison.losses_of(comparison.predictions[name])
        assert losses is not None
        unit = comparison.mean(losses) or 1.0
    mean, lower, upper = (score_words("accuracy", value / unit) for value in values)
    # at most 100 % of the error can be saved, however wide the interval is
    if values[-1] >= unit:
        return f"{mean} ({lower} or more)"
    return f"{mean} ({lower} to {upper})"


def _and(words: list[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _cells(comparison: ModelComparison, name: str) -> Iterator[str]:
    """Yield a model's scores, with as many decimals as this model's scores."""
    for measure, value in comparison.scores[name].items():
        deviation = comparison.standard_error(comparison.predictions[name], measure)
        if not isinstance(value, list):
            yield score_words(measure, value, deviation)
            continue
        is_size = measure in ("rmse", "median_error")
        likes = comparison.scores[OURS]["rmse" if is_size else measure]
        pairs = zip(value, likes, strict=True)
        yield first_few(
            [score_words(measure, one, deviation, like=like) for one, like in pairs]
        )
