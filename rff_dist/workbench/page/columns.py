"""Which columns matter to a model: permutation importance, effects, partial dependence.

A model, sampled rows and the columns' importance go in; a section of the page comes
out, with a table, bars and curves. Moving along columns takes many predictions, whose
number is bounded, so that the page takes seconds. Columns are those of the user's
table: a date that became five columns of X is drawn as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rff_dist.classify.predict import (
    calibration_of,
    class_names,
    class_of,
    read_classes,
)
from rff_dist.errors import SolveError
from rff_dist.numerics import machine
from rff_dist.ridge import effects, models, uncertainty
from rff_dist.text import first_few
from rff_dist.typing import AnyArray, FloatArray, IndexArray, frozen
from rff_dist.workbench.jobs import judging
from rff_dist.workbench.page import page_sample, pictures
from rff_dist.workbench.page.importance import (
    CORRELATED,
    Importance,
    Predict,
    draw_importance,
    measures_of,
)
from rff_dist.workbench.results import document, figures
from rff_dist.workbench.results.words import plural, value_words

# The most that is drawn and shuffled.
CURVES = 6

# The fewest rows of a curve, and of how many features all curves may be sums.
CURVE_ROWS = 100

CURVE_VALUES = 2**25

CURVE_POINTS = 25

CURVE_CLASSES = 6

_COLORS = (figures.BLUE, *pictures.HUES[1:])


def columns_section(
    page: document.Document,
    sample: page_sample.PageSample,
    model: models.RidgeModel,
    importance: Importance,
    rows_kind: str,
) -> None:
    """Show which columns matter, and how predictions change along the first six.

    `rows_kind`: whether the shuffled rows are training rows, test rows or new ones.
    """
    predict, losses = measures_of(model, sample)
    about = (
        f"Permutation importance: how much {losses.what} rises on"
        f" {importance.n_rows:,} {rows_kind} if the column's values are shuffled (the"
        f" mean of {plural(importance.n_shuffles, 'shuffle')}), ± its standard error"
        " over rows."
    )
    page.section("Which columns matter", about)
    draw_importance(page, importance)
    # three decimals: shuffling tells no more
    measured = zip(importance.names, importance.rises, importance.errors, strict=True)
    cells = [(name, f"{rise:.3f} ± {error:.3f}") for name, rise, error in measured]
    page.table("Columns by importance", ("column", "importance"), cells)
    joint = [
        " + ".join(column.name for column in group)
        for group in importance.groups
        if len(group) > 1
    ]
    if joint:
        page.say(
            f"Correlated beyond ±{CORRELATED}, and so shuffled together:"
            f" {first_few(joint)}. Changing one without the others makes rows that do"
            " not occur; the curves below do that, so they tell less of these columns."
        )
    n_shuffled = sum(map(len, importance.groups))
    if n_shuffled < len(sample.columns):
        page.say(
            f"Only the {n_shuffled} of {len(sample.columns):,} columns that"
            " predictions correlate with most were shuffled.",
            is_note=True,
        )
    predictions = predict(sample.X)[:, 0]
    curves = [
        curves_of(model, sample, predict, predictions, column)
        for column in importance.columns[:CURVES]
    ]
    _draw_curves(page, sample, model, curves)
    if is_exact(model):
        _tabulate_shares(page, model, sample, importance)


def _tabulate_shares(
    page: document.Document,
    model: models.RidgeModel,
    sample: page_sample.PageSample,
    importance: Importance,
) -> None:
    """Show the shares of the variance of predictions that columns have."""
    groups = {
        name: [member for column in group for member in column.members]
        for name, group in zip(importance.names, importance.groups, strict=True)
    }
    members = [member for group in groups.values() for member in group]
    others = np.setdiff1d(np.arange(model.n_features), members)
    if len(others):
        groups["other columns"] = others.tolist()
    # of the target whose curves are drawn
    shares = effects.variance_shares(model, sample.X, list(groups.values()))[:, 0]
    *of_columns, _, overlap = shares  # columns together have none
    shown = zip([*groups, "overlap"], [*of_columns, overlap], strict=True)
    rows = [[name, f"{share:.3f}"] for name, share in shown]
    page.table(
        "Shares of the variance of predictions",
        [f"effect on {sample.targets[0]}", "share"],
        rows,
    )
    page.say(
        f"The effects of single columns, over {len(sample.X):,} rows. Overlap: variance"
        " shared by correlated effects; it may be negative.",
        is_note=True,
    )


def partial_dependence(
    predict: Predict, X: AnyArray, members: Sequence[int], places: AnyArray
) -> FloatArray:
    """Return the mean prediction over all rows with some columns set to given values.

    It is what `sklearn.inspection.partial_dependence` with `method="brute"` returns.
    `places` has a set of values per row, of shape (n_places, n_members); the result has
    the shape (n_places, n_targets).
    """

    def mean(place: AnyArray) -> FloatArray:
        moved = X.copy()
        moved[:, list(members)] = place
        return np.asarray(predict(moved).mean(axis=0))

    with machine.tile_pool() as pool:
        return np.array(list(pool.map(mean, places)))


@frozen(eq=False)
class Curves:
    """What a model predicts along one column."""

    column: page_sample.TableColumn
    #: values of the column's first member
    places: AnyArray
    #: names of the places of a category; none for numbers
    levels: Sequence[str]
    #: heights at the places, by the name of the line
    lines: dict[str, FloatArray]
    #: standard deviations of the first line; None if they are not known
    deviations: FloatArray | None
    #: the number of rows that the first line is a mean of; 0 of an exact effect
    n_rows: int = 0

    @property
    def across(self) -> AnyArray:
        return np.arange(len(self.places)) if self.levels else self.places

    def words(self) -> str:
        """Return where the lines begin and end, or each level's height."""
        words = []
        for name, heights in self.lines.items():
            said = list(map(value_words, heights))
            if not self.levels:
                words.append(f"{name} from {said[0]} to {said[-1]}")
                continue
            of_levels = zip(said, self.levels, strict=True)
            each = [f"{height} at {level}" for height, level in of_levels]
            words.append(f"{name} {', '.join(each)}")
        return f"{self.column.name}: {', '.join(words)}"


def curves_of(
    model: models.RidgeModel,
    sample: page_sample.PageSample,
    predict: Predict,
    predictions: FloatArray,
    column: page_sample.TableColumn,
) -> Curves:
    """Return the mean prediction along a column; the column's exact effect, with its
    own deviations, if the model is a sum of effects.

    They are of the first target, of which `predictions` are those of the sample, or of
    the probabilities of classes.
    """
    places, levels = column.shown_values(sample.X, CURVE_POINTS)
    member = column.members[0]
    values = np.array(column.levels)[places.astype(int)] if column.levels else places
    knows_deviations = has_deviations(model)
    deviations = None
    if is_exact(model):
        effect = effects.column_effect(model, member, values)[:, 0]
        if knows_deviations:
            deviations = effects.effect_deviations(model, member, values)[:, 0]
        return Curves(column, places, levels, {sample.targets[0]: effect}, deviations)

    X = sample.X[curve_rows(model, predictions)]
    heights = partial_dependence(predict, X, [member], places[:, np.newaxis])
    drawn = _drawn_predictions(model, sample)
    lines = {name: heights[:, i] for i, name in drawn.items()}
    if knows_deviations:
        moved = np.tile(X, (len(places), 1))
        moved[:, member] = np.repeat(places, len(X))
        means = np.kron(np.eye(len(places)), np.full(len(X), 1 / len(X)))
        sums = uncertainty.deviations_of_sums(moved, means, model.predictive)
        deviations = sums[:, 0]
    return Curves(column, places, levels, lines, deviations, len(X))


def curve_rows(model: models.RidgeModel, predictions: FloatArray) -> IndexArray:
    """Return rows evenly apart in the order of their predictions.

    Their mean is then close to that of all rows; others would draw a curve at a level
    that no effect explains.
    """
    width = model.feature_map.n_components + model.n_features
    most = max(CURVE_ROWS, CURVE_VALUES // (CURVES * CURVE_POINTS * width))
    order = np.argsort(predictions, kind="stable")
    step = -(-len(order) // most)
    return order[step // 2 :: step]


def is_exact(model: models.RidgeModel) -> bool:
    """Return whether predictions, not scores of classes, are a sum of effects of single
    columns.

    Otherwise the effect of a column depends on how the fit divided it between parts of
    the kernel: a large one may be 0.
    """
    if "classifier" in model.card or effects.why_no_effects(model) is not None:
        return False
    return effects.is_sum_of_effects(model)


def has_deviations(model: models.RidgeModel) -> bool:
    """Return whether the model's sums tell how uncertain it is, at a bearable cost."""
    if "classifier" in model.card or model.statistics is None:
        return False
    if model.feature_map.n_components > judging.MAX_FACTOR:
        return False
    try:
        return model.predictive is not None
    except SolveError:
        return False


def _draw_curves(
    page: document.Document,
    sample: page_sample.PageSample,
    model: models.RidgeModel,
    shown: Sequence[Curves],
) -> None:
    n_panel_rows = -(-len(shown) // 3)
    figure = pictures.figure_of(9.2, 3.2 * n_panel_rows)
    panels = figure.subplots(n_panel_rows, min(3, len(shown)), sharey=True)
    panels = np.atleast_1d(panels).ravel()
    for axes, curves in zip(panels, shown, strict=False):
        draw_panel(axes, curves, sample.X)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    has_classes = len(_drawn_predictions(model, sample)) > 1
    height = next(iter(shown[0].lines))
    if has_classes:
        height = "probability"
    elif is_exact(model):
        height = f"effect on {height}"
    for axes in panels[::3]:
        pictures.plain_axes(axes, up=height)
    if has_classes:
        handles, names = panels[0].get_legend_handles_labels()
        legend = figure.legend(
            handles, names, loc="outside upper left", ncols=3, fontsize=8, frameon=False
        )
        for label in legend.get_texts():
            label.set_parse_math(False)
    kind = "Exact effect" if is_exact(model) else "Partial dependence"
    alt = f"{kind}. {'; '.join(curves.words() for curves in shown)}."
    caption = f"{kind}: {_meaning(model, sample, shown[0].n_rows)}."
    if shown[0].deviations is not None:
        caption += (
            " The bands are 95% intervals of a line, or of a dot: how far it may be off"
            " because rows are few."
        )
    caption += (
        f" Small ticks are the values of {len(sample.X):,} rows; 2% of them lie beyond"
        " each end."
    )
    page.picture(figure, alt, caption)


def _meaning(
    model: models.RidgeModel, sample: page_sample.PageSample, n_rows: int
) -> str:
    """Return what the heights of curves mean."""
    drawn = _drawn_predictions(model, sample)
    what = f"predicted {next(iter(drawn.values()))}"
    if is_exact(model):
        return (
            f"how far the {what} is from its value at the column's mean (of a category:"
            " from its mean over all rows), whatever the other columns are. The"
            " model is a sum of such functions of one column each"
        )
    if len(drawn) > 1:
        what = "predicted probability of each class"
    meaning = (
        f"the mean {what} of {n_rows:,} sampled rows, if this column has the value on"
        " the axis in all of them; dots are levels, with their shares of the rows"
    )
    if len(drawn) > 1 and len(drawn) < len(read_classes(model)):
        n_classes = len(read_classes(model))
        meaning += f". Only the {len(drawn)} most frequent of {n_classes} classes are"
        meaning += " drawn"
    return meaning


def draw_panel(axes: Any, curves: Curves, X: AnyArray) -> None:
    """Draw the lines along a column with the band of the first, above ticks of rows."""
    across = curves.across
    for color, (name, heights) in zip(_COLORS, curves.lines.items(), strict=False):
        # a line between levels would show what is nowhere
        marker = "o" if curves.levels else "-"
        axes.plot(across, heights, marker, color=color, lw=2.0, label=name)
    if curves.deviations is not None:
        heights = next(iter(curves.lines.values()))
        reach = 1.96 * curves.deviations
        if curves.levels:
            axes.errorbar(across, heights, reach, fmt="none", color=_COLORS[0])
        else:
            band = {"color": _COLORS[0], "alpha": 0.25, "lw": 0}
            axes.fill_between(across, heights - reach, heights + reach, **band)
    column = curves.column
    pictures.plain_axes(axes, column.title(X, len(curves.places)))
    if curves.levels:
        page_sample.label_levels(axes, curves.levels)
        axes.set_xlim(-0.5, len(curves.levels) - 0.5)
        return
    axes.set_xlim(axes.get_xlim())
    values = column.observed(X)
    rug: Any = {"color": figures.MUTED, "alpha": 0.15, "rasterized": True}
    bottom = axes.get_xaxis_transform()
    axes.plot(values, np.full(len(values), 0.03), "|", transform=bottom, **rug)
    pictures.round_ticks(axes, values)
    if column.is_date:
        page_sample.label_dates(axes, across[[0, -1]])


def _drawn_predictions(
    model: models.RidgeModel, sample: page_sample.PageSample
) -> dict[int, str]:
    """Return which columns of the predictions are drawn, and their names."""
    if "classifier" not in model.card:
        return {0: sample.targets[0]}
    names = class_names(model)
    if calibration_of(model) is None:  # scores: of two classes, the second has one
        names = names[-sample.y.shape[1] :]
        if len(names) == 1:
            return {0: f"score of {names[0]}"}
    counts = np.bincount(class_of(sample.y), minlength=len(names))
    kept = np.sort(np.argsort(-counts, kind="stable")[:CURVE_CLASSES])
    return {int(at): names[at] for at in kept}
