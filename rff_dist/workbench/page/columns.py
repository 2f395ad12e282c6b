"""Which columns matter to a model: permutation importance, effects, partial dependence.

A model and a sample of its training rows go in; a section of the page comes out, with a
table, bars and curves. Shuffling columns and moving along them takes many predictions,
whose number is bounded, so that the page takes seconds. Columns are those of the user's
table: a date that became five columns of X is shuffled and drawn as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rff_dist.classify.predict import (
    calibration_of,
    class_names,
    class_of,
    read_classes,
)
from rff_dist.data import blocks, samples
from rff_dist.errors import SolveError
from rff_dist.fitting import predicting
from rff_dist.numerics import machine
from rff_dist.recipes import encoders, recipes
from rff_dist.ridge import effects, models, uncertainty
from rff_dist.text import clipped
from rff_dist.typing import AnyArray, FloatArray, IndexArray, frozen
from rff_dist.workbench.jobs import fits, judging
from rff_dist.workbench.page import pictures
from rff_dist.workbench.results import document, figures
from rff_dist.workbench.results.models import target_names
from rff_dist.workbench.results.words import value_words

# The most that is drawn and shuffled.
CURVES = 6
CURVE_ROWS = 100
CURVE_POINTS = 25
CURVE_CLASSES = 6
MAX_LEVELS = 12
STRETCHES = 6
ROOM_BELOW = 0.35  # for bars, in heights of the curves
BARS = 12
SHUFFLED_COLUMNS = 40
# Predictions of shuffled rows: with D = 16,384 and 40 columns they take a second.
SHUFFLED_ROWS = 20_000

# letters beneath a panel that stand side by side
_LETTERS = 28
_COLORS = (figures.BLUE, *pictures.HUES[1:])
_ALONE = "effect of the column alone"

type _Predict = Callable[[AnyArray], FloatArray]


@frozen
class TableColumn:
    """A column of the table that X was made of."""

    name: str
    #: the columns of X that it became
    members: tuple[int, ...]
    #: of text: the first member holds their places in this list
    levels: tuple[str, ...] = ()
    #: whether the first member is in days since 1970
    is_date: bool = False
    #: what it was read as
    treatment: str = "number"

    def cell(self, row: AnyArray) -> str:
        """Return what a row of X had in this column."""
        value = float(row[self.members[0]])
        if self.levels:
            is_known = 0 <= value < len(self.levels)
            return self.levels[int(value)] if is_known else "(new)"
        return date_words(value) if self.is_date else value_words(value)

    def places(self, X: AnyArray, most: int) -> tuple[AnyArray, Sequence[str]]:
        """Return values to set the first member to, and names of levels.

        Numbers of more than two values have no levels. Of text the most frequent levels
        are returned, with their shares of the rows.
        """
        values = X[:, self.members[0]]
        places, counts = np.unique(values, return_counts=True)
        if not self.levels and len(places) > 2:
            # By quantiles, so that places lie where rows are; outliers at the ends
            # would stretch the axis.
            return np.unique(np.quantile(values, np.linspace(0.02, 0.98, most))), []
        if self.levels:
            order = np.argsort(-counts, kind="stable")[: min(most, MAX_LEVELS)]
            places = places[order]
            counts = counts[order]
        cells = np.zeros((len(places), X.shape[1]))
        cells[:, self.members[0]] = places
        names = [self.cell(row) for row in cells]
        if self.levels:
            shares = [share_words(count / len(X)) for count in counts]
            names = [f"{name} {of}" for name, of in zip(names, shares, strict=True)]
        return places, names

    def title(self, X: AnyArray, n_shown: int) -> str:
        """Return the name, and how many levels are not shown."""
        n_more = len(np.unique(X[:, self.members[0]])) - n_shown
        return self.name + (f", … {n_more:,} more" if self.levels and n_more else "")


@frozen(eq=False)
class PageSample:
    """Rows of the data to describe: X of shape (n_rows, n_features), and targets y."""

    X: AnyArray
    y: FloatArray
    #: those of the table that X was made of; X's own without a recipe
    columns: list[TableColumn]
    targets: list[str]


@frozen(eq=False)
class Importance:
    """How much the error rises when a column is shuffled, the largest rise first."""

    columns: list[TableColumn]
    rises: FloatArray
    #: Standard errors of the rises.
    errors: FloatArray
    #: The rows that were shuffled.
    X: AnyArray
    #: The mean prediction of the first target or class.
    mean: float


def measure_importance(sample: PageSample, model: models.RidgeModel) -> Importance:
    """Shuffle the columns that predictions correlate with most."""
    predict, losses = _measures(model, sample)
    predictions = predict(sample.X)
    shuffled = _worth_shuffling(predictions, sample)
    rows = evenly(len(sample.X), SHUFFLED_ROWS // len(shuffled))
    X = sample.X[rows]
    members = [column.members for column in shuffled]
    rises, errors = permutation_importance(
        predict, X, losses, rows, columns=members, seed=SEED
    )
    order = np.argsort(-rises, kind="stable")
    mean = float(predictions[:, 0].mean())
    ranked = [shuffled[i] for i in order]
    return Importance(ranked, rises[order], errors[order], X, mean)


def columns_section(
    page: document.Document,
    sample: PageSample,
    model: models.RidgeModel,
    importance: Importance,
) -> None:
    """Show which columns matter, and how predictions change along the first six."""
    predict, losses = _measures(model, sample)
    about = (
        f"Permutation importance: how much {losses.what} rises if the column's values"
        " are shuffled, ± its standard error over rows."
    )
    page.section("Which columns matter", about)
    ranked = importance.columns
    _draw_importance(page, importance)
    # three decimals: shuffling once tells no more
    measured = zip(ranked, importance.rises, importance.errors, strict=True)
    cells = [
        (column.name, f"{rise:.3f} ± {error:.3f}") for column, rise, error in measured
    ]
    page.table("Columns by importance", ("column", "importance"), cells)
    if len(ranked) < len(sample.columns):
        n_rows = f"{len(importance.X):,} rows"
        page.say(
            f"Only the {len(ranked)} of {len(sample.columns):,} columns that"
            f" predictions correlate with most were shuffled, on {n_rows}.",
            is_note=True,
        )
    curves = [
        curves_of(model, sample, predict, importance.mean, column)
        for column in ranked[:CURVES]
    ]
    _draw_curves(page, sample, model, curves)
    if has_effects(model):
        _tabulate_shares(page, model, importance.X, ranked, sample)


def has_effects(model: models.RidgeModel) -> bool:
    """Return whether predictions, not scores of classes, have effects of columns."""
    return "classifier" not in model.card and effects.why_no_effects(model) is None


def _tabulate_shares(
    page: document.Document,
    model: models.RidgeModel,
    X: AnyArray,
    columns: Sequence[TableColumn],
    sample: PageSample,
) -> None:
    """Show the shares of the variance of predictions that columns have alone."""
    groups = {column.name: list(column.members) for column in columns}
    members = [member for group in groups.values() for member in group]
    others = np.setdiff1d(np.arange(model.n_features), members)
    if len(others):
        groups["other columns"] = others.tolist()
    # of the target whose curves are drawn
    shares = effects.variance_shares(model, X, list(groups.values()))[:, 0]
    names = [*groups, "columns together", "overlap"]
    rows = [[name, f"{s:.3f}"] for name, s in zip(names, shares, strict=True)]
    page.table(
        "Shares of the variance of predictions",
        [f"effect on {sample.targets[0]}", "share"],
        rows,
    )
    page.say(
        f"The effects of single columns, over {len(X):,} rows. The overlap is twice the"
        " covariances of the rows above it: columns are correlated, and what columns do"
        " together includes a part of their effects.",
        is_note=True,
    )


def evenly(n_rows: int, most: int) -> IndexArray:
    """Return the numbers of at most so many rows, evenly apart."""
    return np.arange(n_rows)[:: -(-n_rows // most)]


def _draw_importance(page: document.Document, importance: Importance) -> None:
    bars = {}
    columns = importance.columns[:BARS]
    measured = zip(columns, importance.rises, importance.errors, strict=False)
    for column, rise, error in measured:
        bars[column.name] = (rise, rise - error, rise + error)
    largest = "; ".join(f"{name} {rise:.3f}" for name, (rise, *_) in bars.items())
    figure = pictures.bars_of(bars, "importance, ± one standard error", ours=len(bars))
    page.picture(
        figure,
        f"Importance of columns: {largest}.",
        "The longer, the more it matters.",
        shrinks=True,
    )


@frozen(eq=False)
class Losses:
    """The error of predictions for the sampled rows, row by row."""

    #: the error in words
    what: str
    #: returns each row's loss, for predictions of rows and the rows' numbers
    each: Callable[[FloatArray, IndexArray], FloatArray]
    #: whether the error is the root of the mean loss
    is_root: bool = False

    def rise(self, before: FloatArray, after: FloatArray) -> tuple[float, float]:
        """Return the rise of the error, and the standard error of that."""
        errors = np.array([before.mean(), after.mean()])
        slopes = np.ones(2)
        if self.is_root:
            errors = np.sqrt(errors)
            # of the root, for its error to first order
            slopes = 0.5 / np.maximum(errors, np.finfo(float).tiny)
        by_row = slopes[1] * after - slopes[0] * before
        deviation = by_row.std(ddof=min(1, len(by_row) - 1))
        return float(errors[1] - errors[0]), float(deviation / len(by_row) ** 0.5)


def _measures(model: models.RidgeModel, sample: PageSample) -> tuple[_Predict, Losses]:
    """Return what a page predicts for rows of X, and the losses of the sampled rows.

    Classes are predicted as probabilities, or as scores if there are none.
    """

    def scores(X: AnyArray) -> FloatArray:
        rows = blocks.Rows(blocks.Block(0, 0, len(X)), X)
        return predicting.predict_rows(rows, model.linear)

    calibration = calibration_of(model) if "classifier" in model.card else None
    if calibration is None:
        deviations = sample.y.std(axis=0)
        deviations[deviations == 0] = 1.0

        def squares(predicted: FloatArray, rows: IndexArray) -> FloatArray:
            errors = (predicted - sample.y[rows]) / deviations
            return np.asarray(np.square(errors).mean(axis=1))

        what = "the RMSE, in standard deviations of the target,"
        return scores, Losses(what, squares, is_root=True)

    truth = class_of(sample.y)

    def probabilities(X: AnyArray) -> FloatArray:
        return np.exp(calibration.log_probabilities(scores(X)))

    def log_losses(predicted: FloatArray, rows: IndexArray) -> FloatArray:
        of_truth = predicted[np.arange(len(rows)), truth[rows]]
        # A probability that underflows to 0 must not make the mean infinite.
        return np.asarray(-np.log(np.maximum(of_truth, 1e-300)))

    return probabilities, Losses("log loss (nats)", log_losses)


def _worth_shuffling(predictions: FloatArray, sample: PageSample) -> list[TableColumn]:
    """Return the columns that predictions correlate with most, in their order."""
    variation = variation_with(predictions, sample.X, sample.columns)
    largest = np.argsort(-variation, kind="stable")[:SHUFFLED_COLUMNS]
    return [sample.columns[i] for i in np.sort(largest)]


def variation_with(
    values: FloatArray, X: AnyArray, columns: Sequence[TableColumn]
) -> FloatArray:
    """Return how much values vary with each column of a table, up to a factor.

    It is the length of what a column explains of the values: as a line, as a square, or
    by means of levels, less what as many levels explain by chance. `values` has the
    shape (n_rows, n_targets); the largest of the targets counts.
    """
    centred = values - values.mean(axis=0)
    variations = []
    for column in columns:
        if column.levels:
            _, place, counts = np.unique(
                X[:, column.members[0]], return_inverse=True, return_counts=True
            )
            sums = np.array([np.bincount(place, of_target) for of_target in centred.T])
            by_chance = max(len(counts) - 2, 0) * np.square(centred).mean(axis=0)
            explained = (np.square(sums) / counts).sum(axis=1) - by_chance
            variations.append(np.sqrt(max(explained.max(), 0.0)))
            continue
        linear = X[:, list(column.members)]
        linear = linear - linear.mean(axis=0, dtype=np.float64)
        squares = np.square(linear)
        terms = np.hstack([linear, squares - squares.mean(axis=0)])
        norms = np.linalg.norm(terms, axis=0)
        products = np.abs(centred.T @ terms).max(axis=0)
        variations.append((products / np.where(norms > 0, norms, 1.0)).max())
    return np.array(variations)


def permutation_importance(
    predict: _Predict,
    X: AnyArray,
    losses: Losses,
    rows: IndexArray,
    *,
    columns: Sequence[Sequence[int]],
    seed: int,
) -> tuple[FloatArray, FloatArray]:
    """Return how much the error rises when some columns of X are shuffled together.

    Each entry of `columns` has the numbers of columns that are shuffled alike, such as
    those of one text; `rows` are the numbers by which the losses know the rows of X.
    Returns the rises and their standard errors, of shape (n_entries,).
    """
    rng = np.random.Generator(np.random.Philox(seed))
    before = losses.each(predict(X), rows)
    # Drawn before threads start, whose order must not decide which column gets which.
    orders = [rng.permutation(len(X)) for _ in columns]

    def rise(members: Sequence[int], order: IndexArray) -> tuple[float, float]:
        shuffled = X.copy()
        shuffled[:, members] = X[np.ix_(order, members)]
        return losses.rise(before, losses.each(predict(shuffled), rows))

    # so few rows are one tile, which one thread predicts
    with machine.tile_pool() as pool:
        rises = np.array(list(pool.map(rise, map(list, columns), orders)))
    return rises[:, 0], rises[:, 1]


def partial_dependence(
    predict: _Predict, X: AnyArray, members: Sequence[int], places: AnyArray
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

    column: TableColumn
    #: values of the column's first member
    places: AnyArray
    #: names of the places of a category; none for numbers
    levels: Sequence[str]
    #: heights at the places, by the name of the line
    lines: dict[str, FloatArray]
    #: standard deviations of the first line; None if they are not known
    deviations: FloatArray | None

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
    sample: PageSample,
    predict: _Predict,
    mean: float,
    column: TableColumn,
) -> Curves:
    """Return the mean prediction along a column, and the column's exact effect; only
    that, with its own deviations, if the model is a sum of effects.

    They are of the first target, of which `mean` is the mean prediction, or of the
    probabilities of classes.
    """
    places, levels = column.places(sample.X, CURVE_POINTS)
    member = column.members[0]
    values = np.array(column.levels)[places.astype(int)] if column.levels else places
    knows_deviations = has_deviations(model)
    deviations = None
    if is_exact(model):
        effect = effects.column_effect(model, member, values)[:, 0]
        if knows_deviations:
            deviations = effects.effect_deviations(model, member, values)[:, 0]
        return Curves(column, places, levels, {sample.targets[0]: effect}, deviations)

    X = sample.X[evenly(len(sample.X), CURVE_ROWS)]
    heights = partial_dependence(predict, X, [member], places[:, np.newaxis])
    drawn = _drawn_predictions(model, sample)
    lines = {name: heights[:, i] for i, name in drawn.items()}
    if has_effects(model):
        lines[_ALONE] = mean + effects.column_effect(model, member, values)[:, 0]
    if knows_deviations:
        moved = np.tile(X, (len(places), 1))
        moved[:, member] = np.repeat(places, len(X))
        means = np.kron(np.eye(len(places)), np.full(len(X), 1 / len(X)))
        sums = uncertainty.deviations_of_sums(moved, means, model.predictive)
        deviations = sums[:, 0]
    return Curves(column, places, levels, lines, deviations)


def is_exact(model: models.RidgeModel) -> bool:
    """Return whether predictions are a sum of effects of single columns."""
    return has_effects(model) and effects.is_sum_of_effects(model)


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
    sample: PageSample,
    model: models.RidgeModel,
    shown: Sequence[Curves],
) -> None:
    n_panel_rows = -(-len(shown) // 3)
    figure = pictures.figure_of(9.2, 2.7 * n_panel_rows)
    panels = figure.subplots(n_panel_rows, min(3, len(shown)), sharey=True)
    panels = np.atleast_1d(panels).ravel()
    for axes, curves in zip(panels, shown, strict=False):
        _draw_panel(axes, curves, sample.X)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    bottom, top = panels[0].get_ylim()  # which all panels share
    panels[0].set_ylim(bottom - ROOM_BELOW * (top - bottom), top)
    if len(_drawn_predictions(model, sample)) > 1:
        for label in panels[0].legend(fontsize=7, frameon=False).get_texts():
            label.set_parse_math(False)
    kind = "Exact effect" if is_exact(model) else "Partial dependence"
    alt = f"{kind}. {'; '.join(curves.words() for curves in shown)}."
    caption = f"{kind}: {_meaning(model, sample)}."
    if shown[0].deviations is not None:
        caption += (
            " The bands are ± 2 standard deviations of a line, or of a dot: how far it"
            " may be off because rows are few."
        )
    caption += (
        f" Small ticks mark values that were tried. Grey: rows of {len(sample.X):,} in"
        " each stretch."
    )
    page.picture(figure, alt, caption)


def _meaning(model: models.RidgeModel, sample: PageSample) -> str:
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
        f"the mean {what} if one column is set to the value on the axis in every row"
        " and everything else stays; dots are levels, with their shares of the rows"
    )
    if has_effects(model):
        meaning += (
            ". Dashed lines and crosses are what the column alone adds to the mean of"
            " all predictions, exactly"
        )
    if len(drawn) > 1 and len(drawn) < len(read_classes(model)):
        n_classes = len(read_classes(model))
        meaning += f". Only the {len(drawn)} most frequent of {n_classes} classes are"
        meaning += " drawn"
    return meaning


def _draw_panel(axes: Any, curves: Curves, X: AnyArray) -> None:
    """Draw the lines along a column with the band of the first, above grey rows."""
    across = curves.across
    for color, (name, heights) in zip(_COLORS, curves.lines.items(), strict=False):
        # a line between levels would show what is nowhere
        marker = "o" if curves.levels else "-"
        if name == _ALONE:
            marker = "x" if curves.levels else "--"
        axes.plot(across, heights, marker, color=color, lw=2.0, label=name)
    if curves.deviations is not None:
        heights = next(iter(curves.lines.values()))
        reach = 2 * curves.deviations
        if curves.levels:
            axes.errorbar(across, heights, reach, fmt="none", color=_COLORS[0])
        else:
            band = {"color": _COLORS[0], "alpha": 0.25, "lw": 0}
            axes.fill_between(across, heights - reach, heights + reach, **band)
    column = curves.column
    pictures.plain_axes(axes, column.title(X, len(curves.places)))
    if curves.levels:
        label_levels(axes, curves.levels)
        axes.set_xlim(-0.5, len(curves.levels) - 0.5)
        return
    bottom = axes.get_xaxis_transform()
    low = np.full_like(across, 0.03)
    axes.plot(across, low, "|", transform=bottom, color=figures.MUTED, ms=6)
    pictures.round_ticks(axes)
    if column.is_date:
        _label_dates(axes, across[[0, -1]])
    _draw_row_counts(axes, X[:, column.members[0]], across)


def rows_by_stretch(
    values: AnyArray, ends: tuple[float, float]
) -> tuple[AnyArray, AnyArray, float]:
    """Return middles of stretches between two ends, how many values are in each, and
    how wide each is; of few values, each is a stretch.
    """
    inside = values[(values >= ends[0]) & (values <= ends[1])]
    middles, counts = np.unique(inside, return_counts=True)
    if len(middles) <= STRETCHES:
        return middles, counts, float(np.diff(middles).min(initial=np.ptp(ends)))
    counts, edges = np.histogram(inside, STRETCHES, ends)
    return (edges[1:] + edges[:-1]) / 2, counts, float(edges[1] - edges[0])


def _draw_row_counts(axes: Any, values: AnyArray, across: AnyArray) -> None:
    """Draw how many rows lie under each stretch of a curve, in grey below it."""
    middles, counts, width = rows_by_stretch(values, (across[0], across[-1]))
    below = axes.twinx()
    bars = below.bar(middles, counts, 0.9 * width, color=figures.LINE)
    below.bar_label(bars, fontsize=6.5, color=figures.MUTED, fmt="{:,.0f}")
    below.set_ylim(0, counts.max() * (1 + 1 / ROOM_BELOW))
    below.set_axis_off()
    axes.set_zorder(below.get_zorder() + 1)
    axes.patch.set_visible(False)


def _drawn_predictions(model: models.RidgeModel, sample: PageSample) -> dict[int, str]:
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


def label_levels(axes: Any, levels: Sequence[str]) -> None:
    """Put the names of levels at 0, 1, …; they are slanted if they are long or many."""
    names = [clipped(level, 24) for level in levels]
    rotation = 0
    if max(map(len, names)) * len(names) > _LETTERS:
        rotation = 30 if len(names) <= 6 else 90
    axes.set_xticks(
        range(len(names)),
        names,
        parse_math=False,
        rotation=rotation,
        ha="right" if rotation == 30 else "center",
        rotation_mode="anchor" if rotation == 30 else "default",
        fontsize=7 if rotation == 90 else 8,
    )


def label_values(axes: Any, X: AnyArray, column: TableColumn) -> None:
    """Put ticks at values of a column: two dates, 0 and 1, or round numbers."""
    pictures.round_ticks(axes)
    values = np.unique(X[:, column.members[0]])
    if column.is_date:
        _label_dates(axes, values[[0, -1]])
    elif {*values} <= {0.0, 1.0}:
        axes.set_xticks([0, 1])
        axes.set_xlim(-0.5, 1.5)


def _label_dates(axes: Any, days: AnyArray) -> None:
    axes.set_xticks(days, [date_words(day) for day in days])


def date_words(days: float) -> str:
    """Return a day by its number since 1970."""
    return str(np.datetime64(int(np.floor(days)), "D"))


# -- the training rows that a page is made from
# ----------------------------------------------------


SEED = 0  # of the sampled rows and of shuffles: a page that is made again is the same
SAMPLE_ROWS = 2_000


def share_words(share: float) -> str:
    """Return a share of rows that are not none."""
    return f"{share:.0%}" if share >= 0.005 else "<1%"


def sample_data(data: fits.JobData, model: models.RidgeModel) -> PageSample:
    """Sample up to 2,000 rows of the data."""
    dataset = data.rows
    X, y, _ = samples.sample_rows(data.with_targets(model), SEED, n_rows=SAMPLE_ROWS)
    assert y is not None  # the model was trained on targets
    names = list(
        dataset.feature_names or model.card.get("feature_names") or dataset.column_names
    )
    return PageSample(
        X,
        y,
        table_columns(names, recipes.recipe_of(model.card)),
        target_names(model),
    )


def table_columns(
    names: Sequence[str], recipe: recipes.Recipe | None
) -> list[TableColumn]:
    """Return the columns that a recipe read; those of X if it did not make these."""
    if recipe is None or recipe.transformer is not None or recipe.names != list(names):
        return [TableColumn(name, (i,)) for i, name in enumerate(names)]
    columns = []
    first = 0
    for encoder in recipe.columns:
        members = tuple(range(first, first + len(encoder.names)))
        first += len(members)
        name = encoder.names[0] if len(members) == 1 else encoder.column
        levels: tuple[str, ...] = ()
        is_date = False
        if isinstance(encoder, encoders.Category):
            levels = tuple(encoder.levels)
        elif isinstance(encoder, encoders.Date) and encoder.parts[0] == "elapsed-days":
            name = encoder.column
            is_date = True
        treatment = encoder.words
        if encoder.kind != "category":
            treatment = f"{encoder.kind}, {treatment}"
        columns.append(TableColumn(name, members, levels, is_date, treatment))
    return columns
