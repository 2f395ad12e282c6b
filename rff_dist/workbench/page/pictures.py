"""Pictures of results as matplotlib's figures, which `figures` renders.

Tables of errors, sampled rows and images go in. Figures are made without pyplot, so
they need no display and share no state between threads; texts that users chose are
never read as formulas; and the same picture has the same bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from rff_dist.data import blocks, folding
from rff_dist.errors import DataError
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.kmeans import starts
from rff_dist.models import versions
from rff_dist.numerics import machine
from rff_dist.ridge import models
from rff_dist.selection import error_table
from rff_dist.storage import documents
from rff_dist.text import ERROR_TITLES, number
from rff_dist.typing import AnyArray, AnyIntArray, FloatArray, PathLike, frozen
from rff_dist.workbench.results import figures
from rff_dist.workbench.results.models import target_names

_ACCENT = "#c2410c"
_WIDTH_INCHES = 4.3
MAX_LINES = 9
_MAX_CHOSEN = 3  # alphas marked in one picture
MAX_NUMBERS = 40
# Okabe & Ito 2008, without black and yellow: colour-blind readers can tell them apart.
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = "o^sDvP*"


def draw_comparison(panels: Sequence[tuple[AnyArray, str, str]], title: str) -> Figure:
    """Draw images side by side, with a title above all.

    A panel is an image, of shape (height, width, 3) with red, green and blue from 0 to
    1, and the texts above and below it. Other values are clipped, as on any screen.
    """
    height, width = panels[0][0].shape[:2]
    figure = figure_of(
        _WIDTH_INCHES * len(panels) + 0.4,
        _WIDTH_INCHES * height / width + 1.05,
        title=title,
        pads=(0.08, 0.06),
    )
    [row] = figure.subplots(1, len(panels), squeeze=False)
    for axes, (image, above, below) in zip(row, panels, strict=True):
        axes.imshow(np.clip(image, 0.0, 1.0))
        axes.set_title(
            above, parse_math=False, loc="left", fontsize=11, color=figures.INK
        )
        axes.set_xlabel(
            below, parse_math=False, loc="left", fontsize=9.5, color=figures.MUTED
        )
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure


def draw_cross_validation(
    table: error_table.CrossValidation,
    *,
    title: str = "",
    subtitle: str = "",
    alpha: float | Sequence[float] | None = None,
) -> Figure:
    """Draw errors against alpha and, with several D, the smallest errors against D.

    Bands and bars reach one standard error to either side. Two places are marked: the
    best, and the smallest number of components within one standard error of it, or with
    a single D the largest such alpha. A line is drawn at a single `alpha`, the model's,
    which need not be the best. Raises DataError if no error is above 0.
    """
    if not (table.scores > 0).any():
        raise DataError(
            "all errors are 0; expected one above 0 to draw on logarithmic axes"
        )
    figure = figure_of(10.6, 5.0, title=title)
    has_several_counts = len(table.n_components) > 1
    if has_several_counts:
        ratios = {"width_ratios": [3, 2]}
        panels = figure.subplots(1, 2, gridspec_kw=ratios).tolist()
    else:  # the second panel would be one point
        panels = [figure.subplots()]

    left = panels[0]
    _subtitle(left, subtitle)
    colours = _shades(len(table.n_components))
    _draw_alphas(left, table, colours)
    if has_several_counts:
        _draw_component_counts(panels[1], table, colours)
    _mark_choices(panels, table)
    if isinstance(alpha, float):
        name = f"the model's: alpha = {alpha:.2g}"
        left.axvline(alpha, color=_ACCENT, lw=1.0, ls=":", label=name)
    for axes in panels:
        plain_axes(axes)
        axes.yaxis.set_major_formatter("{x:g}")

    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(text, handle)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower left",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    return figure


def _draw_alphas(
    axes: Any,
    table: error_table.CrossValidation,
    colours: Sequence[tuple[float, ...]],
) -> None:
    """Draw a curve of errors against alpha for each number of components."""
    alphas = table.alphas
    deviations = np.nan_to_num(table.score_standard_errors)  # one split has none
    curves = zip(table.n_components, table.scores, deviations, colours, strict=True)
    for D, errors, deviation, colour in curves:
        name = f"D = {D:,}"
        axes.plot(alphas, errors, color=colour, lw=1.8, marker=".", ms=4, label=name)
        low = errors - deviation
        high = errors + deviation
        axes.fill_between(alphas, low, high, color=colour, alpha=0.18, lw=0)
    axes.set(xscale="log", yscale="log")
    plain_axes(axes, "alpha", "mean squared error / variance")
    positive = table.scores[table.scores > 0]
    # else ticks at 1, 2 and 5 would be two at most
    is_wide = positive.max() > 4 * positive.min()
    locator = LogLocator(subs=(1.0, 2.0, 5.0)) if is_wide else MaxNLocator(6)
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_minor_locator(NullLocator())


def _draw_component_counts(
    axes: Any,
    table: error_table.CrossValidation,
    colours: Sequence[tuple[float, ...]],
) -> None:
    """Draw the error at the best alpha of each number of components."""
    component_counts = table.n_components
    bests = [table.choose(D) for D in component_counts.tolist()]
    errors = [best.score for best in bests]
    axes.errorbar(
        component_counts,
        errors,
        yerr=np.nan_to_num([best.standard_error for best in bests]),
        color=figures.MUTED,
        ecolor=figures.MUTED,
        lw=1.2,
        capsize=3,
        zorder=1,
    )
    axes.scatter(component_counts, errors, color=colours, s=34, zorder=2)
    axes.set(xscale="log")
    axes.set_xlabel("D, the number of components", color=figures.MUTED)
    axes.set_xticks(component_counts, [f"{D:,}" for D in component_counts])
    axes.minorticks_off()
    _subtitle(axes, "at the best alpha of each D")


def _mark_choices(panels: Sequence[Any], table: error_table.CrossValidation) -> None:
    """Mark the best error, and the simplest choice within one standard error of it."""
    best = table.best
    _mark(best, panels, marker="o", label="best")
    if len(table.weights) == 1:  # of one split there is no standard error
        return
    if len(table.n_components) > 1:
        simplest = table.fewest_components()
    else:
        simplest = table.choose(best.n_components, "one_standard_error")
    _mark(simplest, panels, marker="s", label="within one s.e.")
    limit = best.score + best.standard_error
    name = "one standard error above the best"
    panels[-1].axhline(limit, color=figures.MUTED, lw=1.0, ls="--", label=name)


def draw_alpha_path(
    alphas: FloatArray,
    errors: FloatArray,
    *,
    chosen: ArrayLike,
    labels: Sequence[str],
    title: str,
    subtitle: str = "",
) -> Figure:
    """Draw the root of the GCV score against alpha, a line per target.

    `errors` has the shape (n_alphas, n_targets); values that are not finite leave gaps.
    The `chosen` alpha is marked, or those of the first three targets if each has its
    own; `labels` are the targets' names. Only the first nine targets are drawn.
    """
    figure = figure_of(7.6, 4.6, title=title)
    axes = figure.subplots()
    n_lines = min(len(labels), MAX_LINES)
    values = np.where(np.isfinite(errors), errors, np.nan)[:, :n_lines]
    for heights, colour, label in zip(values.T, _shades(n_lines), labels, strict=False):
        axes.plot(alphas, heights, color=colour, lw=1.8, marker=".", ms=4, label=label)
    for alpha in np.unique(np.atleast_1d(np.asarray(chosen))[:_MAX_CHOSEN]):
        name = f"chosen: {alpha:.3g}"
        axes.axvline(alpha, color=_ACCENT, lw=1.2, ls="--", label=name)
    axes.set(xscale="log", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    plain_axes(axes, "alpha", "root of the GCV score")
    _subtitle(axes, subtitle)
    handles, names = axes.get_legend_handles_labels()
    if n_lines < len(labels):
        names[n_lines - 1] += f" (of {len(labels):,} targets)"
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def draw_versions(
    oldest_first: Sequence[versions.Version], *, title: str
) -> Figure | None:
    """Draw the error that each version was judged by, a line per target, which is
    dotted between versions that were judged on different rows.

    The newest version decides which measure of error is drawn. None if fewer than two
    versions have it, or their numbers of targets differ. Only the first nine targets
    are drawn.
    """
    measure = next(iter(oldest_first[-1].lineage.get("errors", {})), "rmse")
    points = []
    judged_on = []
    for version in oldest_first:
        errors = version.lineage.get("errors", {}).get(measure)
        if errors is not None:
            points.append((version.number, np.atleast_1d(errors)[:MAX_LINES]))
            judged_on.append(version.lineage.get("judged_on") or version.number)
    if len(points) < 2 or len({errors.shape for _, errors in points}) > 1:
        return None
    numbers, heights = zip(*points, strict=True)
    figure = figure_of(7.6, 2.6, title=title)
    axes = figure.subplots()
    lines = np.transpose(heights)
    for errors, colour in zip(lines, _shades(len(lines)), strict=True):
        axes.plot(numbers, errors, ".:", color=colour, lw=1.2, ms=7)
        for i, (before, after) in enumerate(itertools.pairwise(judged_on)):
            if before == after:
                axes.plot(numbers[i : i + 2], errors[i : i + 2], color=colour, lw=1.8)
    plain_axes(axes, "version", ERROR_TITLES[measure])
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    return figure


def figure_of(
    width: float,
    height: float,
    *,
    title: str = "",
    pads: tuple[float, float] = (0.12, 0.1),
) -> Figure:
    """Return an empty figure with a title; sizes are in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=pads[0], h_pad=pads[1])  # type: ignore[union-attr, call-arg]
    if not title:
        return figure
    # Titles hold names that users chose: a dollar sign in them must not start a
    # formula.
    heading = {
        "parse_math": False,
        "fontweight": "bold",
        "fontsize": 13,
        "color": figures.INK,
    }
    figure.suptitle(title, x=pads[0] / width, ha="left", **heading)
    return figure


def _subtitle(axes: Any, text: str) -> None:
    axes.set_title(
        text, parse_math=False, loc="left", fontsize=9.5, color=figures.MUTED
    )


def _look(cluster: int) -> tuple[str, str]:
    """Return a cluster's colour and shape, which no two of the first 42 share."""
    return HUES[cluster % len(HUES)], _MARKERS[cluster // len(HUES) % len(_MARKERS)]


def _mark(
    choice: error_table.Choice, panels: Sequence[Any], *, marker: str, label: str
) -> None:
    """Mark a choice by its alpha in the first panel, and by its D in the second."""
    words = f"{label}: D = {choice.n_components:,}, alpha = {choice.alpha:.2g}"
    # The square is larger: it goes around the circle if both mark one place.
    size = 150 if marker == "s" else 80
    for axes, x in zip(panels, (choice.alpha, choice.n_components), strict=False):
        axes.scatter(
            [x],
            [choice.score],
            s=size,
            label=words,
            marker=marker,
            facecolor="none",
            edgecolor=_ACCENT,
            linewidth=1.6,
            zorder=4,
        )


def _shades(n: int) -> list[tuple[float, ...]]:
    """Return n shades of one hue, which light and dark paper shine through."""
    return [to_rgba(figures.BLUE, share) for share in np.linspace(1, 0.35, n)[::-1]]


def plain_axes(axes: Any, across: str = "", up: str = "") -> None:
    """Reduce axes to a light grid and two lines, with what is across and what is up."""
    if across:
        axes.set_xlabel(across, color=figures.MUTED, parse_math=False)
    if up:
        axes.set_ylabel(up, color=figures.MUTED, parse_math=False)
    axes.set_axisbelow(True)
    axes.grid(True, which="major", color=figures.LINE, lw=0.7)
    axes.tick_params(colors=figures.MUTED, which="both", labelsize=9)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(figures.LINE)


def round_ticks(axes: Any, across: AnyArray | None = None) -> None:
    """Put few ticks on linear axes, whose numbers have the same decimals; whole ones if
    the values `across` are whole.
    """
    is_whole = across is not None and not np.mod(across, 1).any()
    # numbers side by side take more room
    for axis, most, integer in ((axes.xaxis, 3, is_whole), (axes.yaxis, 5, False)):
        axis.set_major_locator(MaxNLocator(most, integer=integer))
        axis.set_major_formatter(_SameDecimals())


class _SameDecimals(Formatter):
    """Numbers of an axis with as many decimals as the longest needs."""

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        for decimals in range(12):
            if np.allclose(np.round(values, decimals), values, rtol=1e-9, atol=0.0):
                break
        # adding 0 turns -0.0 into 0.0
        # a year has no comma
        comma = "," if np.max(np.abs(values), initial=0.0) >= 10_000 else ""
        return [f"{value + 0.0:{comma}.{decimals}f}" for value in values]

    def __call__(self, value: float, pos: int | None = None) -> str:
        return number(value)


def bars_of(
    values: Mapping[str, tuple[float, float, float]], across: str, *, ours: int = 1
) -> Figure:
    """Return horizontal bars below each other, with whiskers.

    `values` has a value by name, and the ends of its whisker, which is left out if one
    is not finite. The first `ours` bars have the colour that stands out.
    """
    figure = figure_of(5.6, 0.7 + 0.36 * len(values))
    axes = figure.subplots()
    for place, (value, low, high) in enumerate(values.values()):
        whisker = None
        if np.isfinite([low, high]).all():
            whisker = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.barh(
            place,
            value,
            height=0.55,
            color=figures.BLUE if place < ours else figures.MUTED,
            xerr=whisker,
            ecolor=figures.INK,
            capsize=4,
        )
    axes.set_yticks(range(len(values)), list(values), parse_math=False)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(_SameDecimals())
    plain_axes(axes, across)
    return figure


def save(figure: Figure, path: PathLike) -> Path:
    """Save a figure as a PNG, which appears as a whole, and create its folder.

    Raises StorageError if it cannot be written.
    """
    return documents.write_marked(
        Path(path), figures.png_of(figure, figures.FILE_DPI), what="picture"
    )


def draw_choice(model: models.RidgeModel, *, title: str, about: str) -> Figure | None:
    """Draw the errors that a model's alpha was chosen by; return None if it was given.

    The model need not hold its sums. `title` and `about`, the data and the features,
    stand above the axes. Raises DataError if no error is above 0.
    """
    table = model.cross_validation
    if table is not None:
        return draw_cross_validation(
            table,
            title=title,
            subtitle=f"{about}, {folding.folds_words(model.card['folds'])}",
            alpha=model.plain_alpha,
        )
    arrays = model.selection
    if "alphas" not in arrays or len(arrays["alphas"]) < 2:
        return None
    errors = np.sqrt(arrays["scores"])
    if not (errors > 0).any():
        raise DataError(
            "no error is above 0; expected some to draw on a logarithmic axis"
        )
    return draw_alpha_path(
        arrays["alphas"],
        errors,
        chosen=model.alpha,
        labels=target_names(model),
        title=title,
        subtitle=f"{about}, D = {model.feature_map.n_components:,}",
    )


# -- clusters


SAMPLE_ROWS = 2_000


@frozen(eq=False)
class ClusterView:
    """Sampled rows and centres in two principal components of the sample."""

    #: Coordinates of rows, (n_sampled, 2); with one direction the second column is 0.
    coordinates: FloatArray
    #: Clusters of the rows, (n_sampled,).
    labels: AnyIntArray
    #: Coordinates of centres, (n_clusters, 2).
    centres: FloatArray
    #: Each direction's share of the sample's variance.
    shares: tuple[float, float]


def view_clusters(
    dataset: blocks.Dataset,
    clusters: starts.Clusters,
    *,
    seed: int = 0,
    n_rows: int = SAMPLE_ROWS,
) -> ClusterView:
    """Label a sample of rows, and project it on its own two principal components.

    It takes no pass over the data, but O(n_rows² · n_components) time in this process;
    `pca.fit.fit_components` computes the components of all rows. Raises DataError if
    the columns do not fit the clusters, or a sampled row holds NaN or infinity.
    """
    X, labels = kmeans_labels.label_sample(dataset, clusters, seed=seed, n_rows=n_rows)
    Z = clusters.feature_map.transform(X, dtype=np.float64)
    middle = Z.mean(axis=0)
    Z -= middle
    n_kept = min(2, len(X))
    with machine.using_threads(1):
        # (n_rows, n_rows): it has the eigenvalues of Z'Z, which is (D, D) and often
        # larger; its eigenvectors times the roots of the eigenvalues are the rows'
        # coordinates
        gram = Z @ Z.T
        total = float(np.trace(gram))
        values, vectors = scipy.linalg.eigh(
            gram, subset_by_index=(len(X) - n_kept, len(X) - 1)
        )
        values = np.maximum(values[::-1], 0.0)
        vectors = vectors[:, ::-1]
        # the sign of an eigenvector is arbitrary: make the coordinate of largest size
        # positive
        vectors *= np.sign(
            np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[np.newaxis], 0)
        )
        coordinates = np.zeros((len(X), 2))
        centres = np.zeros((clusters.n_clusters, 2))
        coordinates[:, :n_kept] = vectors * np.sqrt(values)
        # A direction with less than 1e-12 of the variance is rounding: dividing by its
        # root would throw the centres far away.
        above = values > 1e-12 * max(total, math.ulp(0.0))
        # Directions of length 1 in the features, shape (D, n_kept), onto which the
        # centres are projected.
        axes = Z.T @ vectors[:, above] / np.sqrt(values[above])
        centres[:, :n_kept][:, above] = (clusters.centres - middle) @ axes
    shares = [float(value) / total if total > 0 else 0.0 for value in values]
    return ClusterView(
        coordinates, labels, centres, (shares[0], shares[1] if n_kept > 1 else 0.0)
    )


def draw_clusters(view: ClusterView, *, title: str, subtitle: str = "") -> Figure:
    """Draw rows in two principal components, in colours and shapes of their clusters.

    Up to 40 clusters have their numbers at their centres, unless they have no rows in
    the view. Raises DataError if there is no row.
    """
    if not len(view.coordinates):
        raise DataError("there is nothing to draw; expected at least 1 row")
    figure = figure_of(7.6, 6.2, title=title)
    axes = figure.subplots()
    _subtitle(axes, subtitle)
    for i in np.unique(view.labels):
        across, up = view.coordinates[view.labels == i].T
        colour, marker = _look(i)
        axes.scatter(
            across,
            up,
            s=13,
            color=colour,
            marker=marker,
            alpha=0.75,
            linewidths=0,
            zorder=3,
        )
        if len(view.centres) <= MAX_NUMBERS:
            circle = {
                "boxstyle": "circle,pad=0.22",
                "fc": figures.PAPER,
                "ec": colour,
                "lw": 1.6,
            }
            x, y = view.centres[i]
            axes.text(
                x,
                y,
                str(i),
                ha="center",
                va="center",
                fontsize=8.5,
                color=figures.INK,
                bbox=circle,
                zorder=4,
            )
    first, second = (f"{share:.1%} of the variance" for share in view.shares)
    words = "kernel principal component"
    plain_axes(axes, f"first {words}, {first}", f"second {words}, {second}")
    return figure


def draw_clustering(
    dataset: blocks.Dataset, clusters: starts.Clusters, *, seed: int, title: str
) -> Figure:
    """Draw a seeded sample of a dataset's rows in their clusters."""
    view = view_clusters(dataset, clusters, seed=seed)
    words = (
        f"{clusters.n_clusters:,} clusters, {len(view.labels):,} rows of"
        f" {dataset.n_samples:,}"
    )
    return draw_clusters(view, title=title, subtitle=words)
