"""The tables and pictures of a page on the values of the data's columns.

In go sampled rows, out come distributions, the spread of numbers and dates, and levels
of categories. The columns of X alone would show places of levels and days since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rff_dist.features import kinds
from rff_dist.kernels import stationary
from rff_dist.recipes import recipes
from rff_dist.ridge import models
from rff_dist.statistics import row_samples
from rff_dist.text import clipped, score_words, share
from rff_dist.typing import AnyArray, BoolArray
from rff_dist.workbench.jobs.comparison import OURS, ModelComparison
from rff_dist.workbench.page import page_sample, pictures
from rff_dist.workbench.results import document, figures
from rff_dist.workbench.results import rows as rows_words
from rff_dist.workbench.results.words import Table, plural, value_words

_BARS = 24  # of a distribution
_DATA_COLUMNS = 100  # whose values are described
_NAMED = 6  # levels of a category in tables and small panels


def data_tables(
    page: document.Document,
    sample: page_sample.PageSample,
    model: models.RidgeModel,
    comparison: ModelComparison | None,
) -> None:
    """Add pictures and tables of the sampled rows' columns, and their treatment.

    Rows that are there twice are counted, and compared rows that are among them.
    """
    for words in repeats_words(sample, comparison):
        page.say(words)
    shown = sample.columns[:_DATA_COLUMNS]
    _draw_distributions(page, sample, shown)
    rows = []
    for column in shown:
        if not column.levels:
            values = column.observed(sample.X)
            n_missing = len(sample.X) - len(values)
            spread = _spread(values, is_date=column.is_date)
            rows.append((column.name, n_missing, *spread))
    if "classifier" not in model.card:
        for name, values in zip(sample.targets, sample.y.T, strict=True):
            rows.append((f"{name} (target)", 0, *_spread(values)))
    header = ("column", "missing", "distinct", "mean", "std", "min", "median", "max")
    page.table("Columns of numbers and dates", header, rows)
    categories = [column for column in shown if column.levels]
    if categories:
        cells = []
        for column in categories:
            places, names = column.shown_values(sample.X, _NAMED)
            n_levels = len(np.unique(sample.X[:, column.members[0]]))
            n_more = n_levels - len(places)
            more = f", … {n_more:,} more" if n_more else ""
            cells.append((column.name, n_levels, ", ".join(names) + more))
        of_levels = ("column", "levels", "most frequent, with their shares of the rows")
        table = Table("Columns of categories", of_levels, cells, is_text=True)
        page.parts.append(table)
    _treatment_section(page, sample, model, shown)


def repeats_words(
    sample: page_sample.PageSample, comparison: ModelComparison | None
) -> list[str]:
    """Say how many sampled rows repeat others, how many compared rows equal one of
    them, and the errors on these.
    """
    n_rows = f"{len(sample.X):,}"
    where = f"in the {plural(len(sample.columns), 'column')} used"
    words = []
    rows = _row_bytes(np.hstack([sample.X, sample.y]))
    if n_repeats := len(rows) - len({*rows}):
        words.append(
            f"{n_repeats:,} of these {n_rows} rows repeat an earlier one {where} and in"
            " the target."
        )
    if comparison is None:
        return words
    known = {*_row_bytes(sample.X)}
    is_known = np.array([row in known for row in _row_bytes(comparison.rows.X)])
    if is_known.any():
        words.append(
            f"{is_known.sum():,} of {len(is_known):,} test rows equal one of these"
            f" {n_rows} rows {where}{_errors_words(comparison, is_known)}."
        )
    return words


def _errors_words(comparison: ModelComparison, is_known: BoolArray) -> str:
    """Return the errors on some rows and on the others."""
    losses = comparison.losses_of(comparison.ours, "accuracy")
    if losses is None or comparison.measure == "r2" or is_known.all():
        return ""
    known, others = (
        comparison.mean(losses * part) / comparison.mean(part.astype(np.float64))
        for part in (is_known, ~is_known)
    )
    if comparison.classes is not None:
        return f"; {share(1 - known)} of them are right, {share(1 - others)} of others"
    like = comparison.scores[OURS]["rmse"][0]
    of_known, of_others = (
        score_words("rmse", loss**0.5, like=like) for loss in (known, others)
    )
    return f"; their RMSE is {of_known}, that of others {of_others}"


def _row_bytes(rows: AnyArray) -> list[bytes]:
    # adding 0 turns -0.0 into 0.0, which equals it
    return [row.tobytes() for row in np.asarray(rows, np.float64) + 0.0]


def _treatment_section(
    page: document.Document,
    sample: page_sample.PageSample,
    model: models.RidgeModel,
    shown: Sequence[page_sample.TableColumn],
) -> None:
    """Show what each column was read as, and how the kernel measures it."""
    page.section("Treatment of columns", is_folded=True)
    if alerts := rows_words.recipe_alerts(recipes.recipe_of(model.card)):
        page.parts.append(alerts)
    scales = stationary.own_length_scale(kinds.kernel_of(model.feature_map))
    rows = []
    for column in shown:
        first = column.members[0]
        scale = scales[first] if isinstance(scales, tuple) else scales
        change = "" if column.levels else _change_words(model, first)
        rows.append((column.name, column.treatment, change, scale))
    header = ("column", "read as", "changed to", "length scale")
    page.parts.append(Table("How each column was read", header, rows, is_text=True))
    if any(column.fill is not None for column in shown):
        page.say(
            "A median that fills gaps is that of a sample of the table's rows: up to"
            f" {row_samples.MAX_ROWS:,}, fewer of many columns.",
            is_note=True,
        )
    page.say(
        "The length scale is in standard deviations of the changed column: the longer,"
        " the less the prediction changes along it. Of a category: the longer, the more"
        " alike are its levels. Of a date it is that of the days.",
        is_note=True,
    )


def _change_words(model: models.RidgeModel, member: int) -> str:
    """Return what the model makes of a column of X before its kernel."""
    standardizer = model.feature_map.standardizer
    if standardizer is None:
        return "as it is"
    for part in standardizer.maps:
        if part.column == member:
            line = part.slope * part.inputs / standardizer.scale[member]
            share = line.std() / (line.std() + part.outputs.std())
            return f"{share:.0%} standardised, {1 - share:.0%} by ranks or cut off"
    return "standardised"


def _spread(values: AnyArray, *, is_date: bool = False) -> list[Any]:
    """Return how many values differ; and mean, std, min, median and max in words."""
    values = np.asarray(values, np.float64)
    n_distinct = len(np.unique(values))
    if not n_distinct:
        return [0, *[None] * 5]
    std = float(values.std())
    statistics = [f(values) for f in (np.mean, np.min, np.median, np.max)]
    if is_date:
        mean, *others = map(page_sample.date_words, statistics)
        return [n_distinct, mean, f"{std:,.0f} days", *others]
    mean, *others = rounded(statistics, std)
    return [n_distinct, mean, *rounded([std], std), *others]


def rounded(values: Iterable[float], std: float) -> list[str]:
    """Return values as texts, to the third digit of their standard deviation."""
    digits = 12
    if std > 0:
        digits = max(0, 2 - math.floor(math.log10(std)))
    # -0 becomes 0
    return [value_words(round(float(value), digits) + 0.0) for value in values]


def _draw_distributions(
    page: document.Document,
    sample: page_sample.PageSample,
    shown: Sequence[page_sample.TableColumn],
) -> None:
    n_lines = -(-len(shown) // 4)
    figure = pictures.figure_of(9.2, 1.7 * n_lines)
    panels = np.atleast_1d(figure.subplots(n_lines, 4)).ravel()
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for axes, column in zip(panels, shown, strict=False):
        title = column.name
        if column.levels:
            places, levels = column.shown_values(sample.X, _NAMED)
            values = sample.X[:, column.members[0]]
            counts = (values == places[:, np.newaxis]).sum(axis=1)
            axes.barh(np.arange(len(levels)), counts, color=figures.LINE)
            for i, level in enumerate(levels):
                words = f" {clipped(level, 32)}"
                axes.text(0, i, words, va="center", fontsize=8, parse_math=False)
            axes.invert_yaxis()
            axes.set_xticks([])
            title = column.title(sample.X, len(levels))
        else:
            axes.hist(column.observed(sample.X), bins=_BARS, color=figures.BLUE)
            page_sample.label_values(axes, sample.X, column)
        axes.set_title(title, fontsize=9, color=figures.INK, parse_math=False)
        axes.set_yticks([])
        pictures.plain_axes(axes)
    words = (
        "Distributions of the columns, without missing numbers: histograms, and the"
        " rows of each level."
    )
    page.picture(figure, words, words)
