"""The sections of a page on a model's errors on rows that it was not trained on.

In go a model and its comparison with others, out come tables and pictures on a page:
errors next to those of other models, residuals and intervals. A single error would not
show on which rows, and along which columns, it arises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rff_dist import text
from rff_dist.data import memory
from rff_dist.engines import serial
from rff_dist.errors import RFFDistError
from rff_dist.ridge import describe, models
from rff_dist.ridge.predict import predict_in_memory
from rff_dist.text import ERROR_TITLES, score_words, words_by_target
from rff_dist.typing import AnyArray, Facts
from rff_dist.workbench.jobs import intervals, judging, predict, verdict
from rff_dist.workbench.jobs.comparison import OURS, ModelComparison
from rff_dist.workbench.page import (
    columns,
    distributions,
    importance,
    page_sample,
    pictures,
)
from rff_dist.workbench.results import document, figures
from rff_dist.workbench.results import models as results_models
from rff_dist.workbench.results.words import Alert

COVERAGES = (0.5, 0.8, 0.9, 0.95)
SAID_COVERAGE = 0.9  # in a sentence
_BELOW = 0.05  # share of intervals that begin below 0, if no target does
INTERVAL_ROWS = 1_000  # each takes D² operations, four times
# how matplotlib draws points of rows, and lines to compare them with
_CLOUD: Any = {
    "s": 9,
    "alpha": 0.45,
    "color": figures.BLUE,
    "linewidths": 0,
    # in an SVG thousands of points would be a megabyte
    "rasterized": True,
}
GUIDE: Any = {"color": figures.INK, "lw": 1.2, "ls": "--"}
_RESIDUAL = "observed − predicted"
# rows with the largest errors, and their most important columns
WORST = 5
WORST_COLUMNS = 5
_NORMAL_HALF = 0.12  # share of rows that make half of the square of normal errors


def score_section(
    page: document.Document,
    model: models.RidgeModel,
    comparison: ModelComparison | None,
    metrics: Facts | None,
    gate: Facts | None,
    ours: str,
) -> None:
    """Add the section on a model's errors, next to those of other models.

    `metrics`: errors on all test rows. `gate`: errors of the old and the new model on
    held-out rows, by which an update was accepted or refused. `ours`: what the page's
    model is called.
    """
    page.section("Accuracy")
    compares_all_test_rows = (
        comparison is not None
        and comparison.rows.origin == "test"
        and comparison.n_rows == comparison.rows.n_available
    )
    # if it does, the table of all models has these errors
    if metrics is not None and not compares_all_test_rows:
        rows = f"{metrics['n_samples']:,} rows of {metrics['test_data']}"
        _errors_table(page, f"Test: on all {rows}", metrics)
    if gate is not None:
        errors = [
            (ours, words_by_target("rmse", list(gate["challenger"]))),
            ("the model before", words_by_target("rmse", list(gate["champion"]))),
        ]
        caption = f"Test: on {gate['held_out']}"
        page.table(caption, ("model", ERROR_TITLES["rmse"]), errors)
    if comparison is not None:
        if gate is not None:  # else its rows would be taken for the gate's
            page.section(f"Accuracy on {verdict.rows_words(comparison)}")
        _draw_scores(page, comparison, ours)
        page.table(
            f"Compared on {verdict.rows_words(comparison)}",
            *verdict.table_of(comparison, ours),
        )
        for words in verdict.trainings_of(comparison):
            page.say(words, is_note=True)
    page.parts += results_models.group_parts(metrics, model.card.get("target_names"))
    estimate = describe.estimate_of(model.card)
    if estimate is not None:
        _errors_table(page, "This model by cross-validation", estimate)
        if metrics is not None:
            page.say(quoting_words(metrics, estimate), is_note=True)


def quoting_words(metrics: Facts, estimate: Facts) -> str:
    """Say that the errors on test rows are to be quoted, and how those of
    cross-validation relate to them.
    """
    name = "r2" if "r2" in metrics else "accuracy"
    # R² of a constant target is None
    in_test = np.mean(np.array(metrics[name], float))
    by_folds = np.mean(np.array(estimate[name], float))
    words = (
        f"Quote the errors on test rows: {ERROR_TITLES[name]} is"
        f" {score_words(name, in_test)} there, {score_words(name, by_folds)} by"
        " cross-validation"
    )
    chance = np.hypot(_deviation(metrics), _deviation(estimate))
    if by_folds <= in_test + verdict.CLEAR * chance:
        words += ", no clear sign of overfitting."
    else:
        words += ", whose folds also chose the model."
    if (
        name == "r2"
        and np.size(metrics[name]) == 1
        and np.maximum(in_test, by_folds) < 1
    ):
        # R² is 1 − (RMSE / std)²
        of_test = metrics["rmse"][0] / (1 - in_test) ** 0.5
        of_folds = estimate["rmse"][0] / (1 - by_folds) ** 0.5
        words += (
            f" The target's std is {score_words('rmse', of_test)} there,"
            f" {score_words('rmse', of_folds, like=of_test)} in training."
        )
    return words


def _deviation(errors: Facts) -> float:
    """Return the standard error of the accuracy or of R²; NaN if it is not known."""
    if "accuracy" in errors:
        return float(np.array(errors["accuracy_standard_error"], float))
    rmse, error, r2 = (
        np.array(errors[name], float) for name in ("rmse", "rmse_standard_error", "r2")
    )
    # R² is 1 − rmse² / variance
    return float(np.mean(2 * (1 - r2) * error / np.where(rmse > 0, rmse, 1.0)))


def _draw_scores(
    page: document.Document, comparison: ModelComparison, ours: str
) -> None:
    """Draw the error of each model with its interval; `ours`: the judged one's name."""
    bars = comparison.intervals()
    bars = {ours: bars.pop(OURS), **bars}
    title = ERROR_TITLES[comparison.measure]
    figure = pictures.bars_of(bars, f"{title}, with its {intervals.LEVEL:.0%} interval")
    better = "Larger" if comparison.measure in ("accuracy", "r2") else "Smaller"
    page.picture(
        figure,
        f"{title} of each model, as in the table below.",
        f"{better} is better. Judge by the last column of the table, not by overlapping"
        " bars. Charts have 95% intervals; ± in tables is one standard error.",
        shrinks=True,
    )


def _errors_table(page: document.Document, caption: str, errors: Facts) -> None:
    header = ["model"]
    cells = ["this model"]
    for name, title in ERROR_TITLES.items():
        if name in errors:
            deviation = errors.get(f"{name}_standard_error")
            header.append(title)
            cells.append(words_by_target(name, errors[name], deviation))
    page.table(caption, header, [cells])


def residual_section(
    page: document.Document,
    comparison: ModelComparison,
    sample: page_sample.PageSample,
    ranked: Sequence[page_sample.TableColumn],
) -> None:
    """Show predictions of each target against observations.

    `ranked` are the columns by their importance.
    """
    page.section("Predicted and observed", f"{verdict.rows_words(comparison)}.")
    shown = page_sample.evenly(comparison.n_rows, page_sample.SAMPLE_ROWS)
    for target, name in enumerate(sample.targets[: columns.CURVES]):
        observed = comparison.observed[shown, target]
        predicted = comparison.ours.values[shown, target]
        _draw_residuals(page, name, observed, predicted)
        _draw_residuals_by_column(
            page, observed - predicted, comparison.rows.X[shown], sample
        )
        _worst_rows(page, comparison, name, target, ranked[:WORST_COLUMNS])


def _draw_residuals(
    page: document.Document, name: str, observed: AnyArray, predicted: AnyArray
) -> None:
    exact = observed - predicted
    residuals, beyond = at_edges(exact)
    figure = pictures.figure_of(9.6, 3.4)
    left, middle, right = figure.subplots(1, 3)
    left.scatter(predicted, observed, **_CLOUD)
    both = np.concatenate([observed, predicted])
    diagonal = [both.min(), both.max()]
    left.plot(diagonal, diagonal, **GUIDE)
    pictures.plain_axes(left, f"predicted {name}", f"observed {name}")
    middle.scatter(predicted, residuals, **_CLOUD)
    middle.axhline(0.0, **GUIDE)
    pictures.plain_axes(middle, f"predicted {name}", _RESIDUAL)
    n_bins = min(40, max(5, len(residuals) // 10))
    right.hist(
        residuals, bins=n_bins, color=figures.BLUE, edgecolor=figures.PAPER, lw=0.5
    )
    right.axvline(0.0, **GUIDE)
    pictures.plain_axes(right, _RESIDUAL, "rows")
    for axes in (left, middle, right):
        pictures.round_ticks(axes)
    quantiles = np.quantile(exact, [0.05, 0.5, 0.95])
    low, median, high = distributions.rounded(quantiles, exact.std())
    words = (
        f"Nine of ten residuals lie between {low} and {high}; their median is {median}."
        f"{beyond}"
    )
    page.picture(
        figure,
        f"Left: observed against predicted {name}, around the diagonal. Middle:"
        f" residuals against predictions. Right: histogram of the residuals. {words}",
        words,
    )


def at_edges(residuals: AnyArray) -> tuple[AnyArray, str]:
    """Return residuals to draw and words: those far from the others, which would take
    most of the axis, are moved to its edges.
    """
    # of normal residuals: 8 standard deviations
    edge = 5 * float(np.quantile(np.abs(residuals), 0.9))
    n_beyond = int((np.abs(residuals) > edge).sum())
    if not edge or not n_beyond:
        return residuals, ""
    words = f" {n_beyond:,} beyond ±{text.number(edge)} are drawn at the edges."
    return np.clip(residuals, -edge, edge), words


def _draw_residuals_by_column(
    page: document.Document,
    residuals: AnyArray,
    X: AnyArray,
    sample: page_sample.PageSample,
) -> None:
    """Draw residuals against the three columns that they vary most with."""
    variation = importance.variation_with(residuals[:, np.newaxis], X, sample.columns)
    order = np.argsort(-variation, kind="stable")[:3]
    shown = [sample.columns[i] for i in order]
    figure = pictures.figure_of(9.6, 3.6)
    residuals, beyond = at_edges(residuals)
    panels = np.atleast_1d(figure.subplots(1, len(shown), sharey=True))
    for axes, column in zip(panels, shown, strict=True):
        values = X[:, column.members[0]]
        title = column.name
        if column.levels:
            places, levels = column.shown_values(X, page_sample.MAX_LEVELS)
            row, place = np.nonzero(values[:, np.newaxis] == places)
            axes.scatter(place, residuals[row], **_CLOUD)
            page_sample.label_levels(axes, levels)
            title = column.title(X, len(levels))
        else:
            axes.scatter(values, residuals, **_CLOUD)
            page_sample.label_values(axes, X, column)
        axes.axhline(0.0, **GUIDE)
        pictures.plain_axes(axes, title)
    pictures.plain_axes(panels[0], up=_RESIDUAL)
    names = ", ".join(column.name for column in shown)
    words = (
        "Residuals against the columns that they vary most with. A trend in them is"
        " something that the model misses."
    )
    page.picture(figure, f"Residuals against {names}.", words + beyond)


def _worst_rows(
    page: document.Document,
    comparison: ModelComparison,
    name: str,
    target: int,
    shown: Sequence[page_sample.TableColumn],
) -> None:
    observed = comparison.observed[:, target]
    predicted = comparison.ours.values[:, target]
    residuals = observed - predicted
    rmse = comparison.scores[OURS]["rmse"][target]
    cells = {}
    for row in np.argsort(-np.abs(residuals), kind="stable")[:WORST]:
        values = (observed[row], predicted[row], residuals[row])
        # in the target's unit, and so with the decimals of the RMSE
        cells[row] = [score_words("rmse", float(value), like=rmse) for value in values]
    header = (f"observed {name}", "predicted", _RESIDUAL)
    squares = np.square(residuals)
    if residuals.any():
        words = f"{verdict.half_words(comparison, target)}; "
        if verdict.n_of_half(squares) < _NORMAL_HALF * len(squares):
            words += (
                f"of normal errors {_NORMAL_HALF:.0%} of the rows would make half."
                " Check them first: a wrong value there, or a column that explains"
                " them, would change it most."
            )
        else:
            words += "so no few rows decide it."
        page.say(words)
    top = np.argsort(-observed, kind="stable")[: max(WORST, len(observed) // 50)]
    if predicted[top].max() < observed[top].min():
        page.say(
            f"The {len(top):,} rows with the largest {name} are all predicted below the"
            " smallest of these values, and make"
            f" {text.share(squares[top].sum() / squares.sum())} of the squared error."
        )
    rows_table(page, comparison, "Rows with the largest errors", header, cells, shown)


def rows_table(
    page: document.Document,
    comparison: ModelComparison,
    caption: str,
    header: Sequence[str],
    cells: Mapping[int, Sequence[str]],
    shown: Sequence[page_sample.TableColumn],
) -> None:
    """Show some compared rows: where they are found, `cells` by row, some columns."""
    names = comparison.rows.names
    title = comparison.rows.named
    if names is None:
        names = comparison.rows.numbers
        data = "test" if comparison.rows.origin == "test" else "training"
        title = f"row of the {data} data, from 0"
    rows = []
    for row, about_row in cells.items():
        values = [column.cell(comparison.rows.X[row]) for column in shown]
        rows.append((str(names[row]), *about_row, *values))
    columns_shown = [column.name for column in shown]
    page.table(caption, (title, *header, *columns_shown), rows)
    if comparison.rows.names is None:
        advice = "A table that is ingested with `--id COLUMN` has these rows' ids here."
        page.say(advice, is_note=True)


def interval_table(
    page: document.Document,
    comparison: ModelComparison,
    model: models.RidgeModel,
    targets: Sequence[str],
) -> None:
    """Say whether prediction intervals held on test rows, with a table."""
    # Without held-out residuals intervals take a Cholesky factor of the Gram, of D³/3
    # operations.
    is_too_large = model.feature_map.n_components > judging.MAX_FACTOR
    if model.held_out is None and (model.statistics is None or is_too_large):
        return
    shown = page_sample.evenly(comparison.n_rows, INTERVAL_ROWS)
    rows = memory.ArrayDataset(comparison.rows.X[shown])
    observed = comparison.observed[shown]
    weights = comparison.rows.weights
    if weights is not None:
        weights = weights[shown]
    groups = comparison.rows.groups
    if groups is not None:
        groups = groups[shown]

    cells = []
    too_narrow = []
    sentences = []
    for level in COVERAGES:
        try:
            predicted = predict_in_memory(
                rows, model, coverage=level, engine=serial.SerialEngine()
            )
        except RFFDistError as error:
            page.say(f"Prediction intervals were not checked: {error}", is_note=True)
            return
        lower = predicted["lower"].reshape(observed.shape)
        upper = predicted["upper"].reshape(observed.shape)
        inside = ((lower <= observed) & (observed <= upper)).astype(np.float64)
        widths = (upper - lower).mean(axis=0)
        for target, name in enumerate(targets[: columns.CURVES]):
            share, low, high = intervals.share_with_interval(
                inside[:, target], weights, groups
            )
            wanted = f"{level:.0%}"
            if len(targets) > 1:
                wanted = f"{name}, {wanted}"
            if high < level:
                too_narrow.append(wanted)
            if level == SAID_COVERAGE:
                n_inside = f"{int(inside[:, target].sum()):,} of {len(observed):,}"
                sentences.append(
                    f"The {wanted} intervals {_judgement(level, share, low, high)}:"
                    " they"
                    f" contain {n_inside} test rows ({text.share(share)})."
                )
                below = float((lower[:, target] < 0).mean())
                if below > _BELOW and observed[:, target].min() >= 0:
                    sentences.append(
                        f"{text.share(below)} of them begin below 0, though no test row"
                        f" has such a {name}."
                    )
            interval = f"{text.share(low)} to {text.share(high)}"
            rmse = comparison.scores[OURS]["rmse"][target]
            width = score_words("rmse", float(widths[target]), like=rmse)
            cells.append((wanted, text.share(share), interval, width))
    n_rows = f"{len(observed):,}"
    if len(observed) < comparison.n_rows:
        n_rows += f" of {comparison.n_rows:,}"
    source = predict.intervals_by(model)
    caption = f"Prediction intervals on {n_rows} test rows, from {source}"
    header = (
        "wanted coverage",
        "measured coverage",
        f"its {intervals.LEVEL:.0%} interval",
        "mean width",
    )
    page.say(" ".join(sentences))
    page.table(caption, header, cells)
    if too_narrow:
        alert = Alert(f"the intervals of {' and '.join(too_narrow)}")
        # a part that is a mapping is shown as a list of names and values
        page.parts.append({"too narrow": alert})


def _judgement(level: float, share: float, low: float, high: float) -> str:
    """Say whether intervals held, from the interval of their measured coverage."""
    if high < level:
        return "are too narrow"
    if low > level:
        return "are wider than needed"
    # half of the interval's reach is about one standard error
    if (share + high) / 2 < level:
        return "may be too narrow, or this is chance"
    return "are not clearly off"
