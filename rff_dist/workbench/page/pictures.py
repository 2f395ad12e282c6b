"""Pictures of results: figures that need no display and share no state, and their PNGs.

Titles and subtitles stand above the axes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from numpy.typing import ArrayLike

from rff_dist.data import blocks, folding, samples
from rff_dist.errors import DataError
from rff_dist.kmeans import lloyd_pass, starts
from rff_dist.numerics import machine
from rff_dist.recipes import model_rows
from rff_dist.ridge import describe, models
from rff_dist.selection import cross_validation
from rff_dist.storage import documents
from rff_dist.text import number
from rff_dist.typing import AnyArray, AnyIntArray, Facts, FloatArray, PathLike, frozen
from rff_dist.workbench.results.models import target_names

INK = "#1b1b1b"
MUTED = "#6b6b6b"
BLUE = "#0b6e99"
_COLOURS = (BLUE, "#c2410c", "#4d7c0f")
_WIDTH_INCHES = 4.3
FILE_DPI = 160
_MAX_LINES = 9
_MAX_NUMBERS = 40
_MAX_CANDIDATES = 30
# Okabe & Ito 2008, without black and yellow: colour-blind readers can tell them apart.
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = "o^sDvP*"


def draw_comparison(panels: Sequence[tuple[AnyArray, str, str]], title: str) -> Figure:
    """Draw pictures side by side, at about the resolution of a screen.

    `panels`: from left to right, an image and the texts above and below it. Images are real arrays of shape
      (height, width, 3): red, green and blue from 0 to 1; other values are clipped, as on any screen.
    `title`: above all panels.
    """
    height, width = panels[0][0].shape[:2]
    panel_inches = _WIDTH_INCHES * height / width
    width_inches = _WIDTH_INCHES * len(panels) + 0.4
    figure = figure_of(width_inches, panel_inches + 1.05, title=title, pads=(0.08, 0.06))
    drawn = zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)
    for axes, (image, above, below) in drawn:
        axes.imshow(np.clip(image, 0.0, 1.0))
        axes.set_title(above, parse_math=False, loc="left", fontsize=11, color=INK)
        axes.set_xlabel(below, parse_math=False, loc="left", fontsize=9.5, color=MUTED)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
    return figure


def draw_cross_validation(
    table: cross_validation.CrossValidation,
    *,
    title: str = "",
    subtitle: str = "",
    candidates: Sequence[Facts] = (),
    alpha: float | Sequence[float] | None = None,
) -> Figure:
    """Draw errors against alpha; with several D, a second panel shows the least errors against D.

    Bands and bars reach one standard error to either side. Two places are marked: the best, and the smallest
    number of components within one standard error of it, or with a single D the largest such alpha.

    `alpha`: the model's, which need not be the best: a line is drawn there. Not for several of them.
    `candidates`: all candidates that were compared, as in `Search.rows`. The best thirty are drawn below, by
      their least errors.
    Raises DataError if no error is above 0.
    """
    errors = table.scores
    deviations = np.nan_to_num(table.score_standard_errors)  # one split has none
    if not (errors > 0).any():
        raise DataError("all errors are 0; expected one above 0 to draw on logarithmic axes")
    best, chosen, several = table.best, None, len(table.n_components) > 1
    if len(table.weights) > 1:
        chosen = table.fewest_components() if several else table.one_standard_error(best.n_components)
    ranked = sorted(candidates, key=lambda choice: float(choice["score"]))[:_MAX_CANDIDATES]
    below = 0.7 + 0.26 * len(ranked) if len(ranked) > 1 else 0.0
    figure = figure_of(10.6, 5.0 + below, title=title)
    heights = [4.4, below] if below else [4.4]
    grid = figure.add_gridspec(len(heights), 2, width_ratios=[3, 2], height_ratios=heights)
    # The second panel of a single D would be one point.
    left = figure.add_subplot(grid[0, 0] if several else grid[0, :])
    panels = [left, figure.add_subplot(grid[0, 1])] if several else [left]
    _subtitle(left, subtitle)
    colours = _shades(len(table.n_components))
    for D, values, band, colour in zip(table.n_components, errors, deviations, colours, strict=True):
        left.plot(table.alphas, values, color=colour, lw=1.8, marker=".", ms=4, label=f"D = {D:,}")
        left.fill_between(table.alphas, values - band, values + band, color=colour, alpha=0.18, lw=0)
    for right in panels[1:]:
        bests = [table.best_of(D) for D in table.n_components.tolist()]
        least = [choice.score for choice in bests]
        yerr = np.nan_to_num([choice.standard_error for choice in bests])
        bars: dict[str, Any] = {"color": MUTED, "lw": 1.2, "capsize": 3, "ecolor": MUTED, "zorder": 1}
        right.errorbar(table.n_components, least, yerr=yerr, **bars)
        right.scatter(table.n_components, least, color=colours, s=34, zorder=2)
        right.set(xscale="log")
        right.set_xlabel("D, the number of components", color=MUTED)
        right.set_xticks(table.n_components, [f"{D:,}" for D in table.n_components])
        right.minorticks_off()
        right.set_title("at the best alpha of each D", loc="left", fontsize=9.5, color=MUTED)
    _mark(best, panels, marker="o", label="best")
    if chosen is not None:
        _mark(chosen, panels, marker="s", label="within one s.e.")
        limit = best.score + best.standard_error
        panels[-1].axhline(limit, color=MUTED, lw=1.0, ls="--", label="one standard error above the best")
    if isinstance(alpha, float):
        left.axvline(alpha, color=_COLOURS[1], lw=1.0, ls=":", label=f"the model's: alpha = {alpha:.2g}")
    left.set(xscale="log", yscale="log")
    plain_axes(left, "alpha", "mean squared error / variance")
    for axes in panels:
        plain_axes(axes)
        axes.yaxis.set_major_formatter("{x:g}")
    if below:
        _draw_candidates(figure.add_subplot(grid[1, :]), ranked, len(candidates))
    positive = errors[errors > 0]
    wide = positive.max() > 4 * positive.min()  # else ticks at 1, 2 and 5 would be two at most
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)) if wide else MaxNLocator(6))
    left.yaxis.set_minor_locator(NullLocator())
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(text, handle)
    where: dict[str, Any] = {"loc": "outside lower left", "ncols": 3, "frameon": False, "fontsize": 9}
    figure.legend(list(entries.values()), list(entries), **where)
    return figure


def _draw_candidates(axes: Any, ranked: Sequence[Facts], n_candidates: int) -> None:
    """Draw the errors of candidates below each other, the best at the top."""
    places = np.arange(len(ranked))
    errors = np.array([candidate["score"] for candidate in ranked])
    deviations = np.array([candidate["standard_error"] or 0.0 for candidate in ranked])
    good = errors <= errors[0] + deviations[0]
    for chosen, colour, marker in ((good, BLUE, "o"), (~good, MUTED, "D")):  # shapes tell them apart too
        style: dict[str, Any] = {"fmt": marker, "color": colour, "ms": 5.5, "elinewidth": 1.2, "capsize": 3}
        axes.errorbar(errors[chosen], places[chosen], xerr=deviations[chosen], **style)
    axes.axvline(errors[0] + deviations[0], color=MUTED, lw=1.0, ls="--")
    axes.set_yticks(places, [describe.candidate_name(row) for row in ranked], parse_math=False)
    axes.set_ylim(len(ranked) - 0.4, -0.6)
    shown = f"the best {len(ranked)} of" if n_candidates > len(ranked) else "all"
    title = f"{shown} {n_candidates} candidates; discs: within one standard error of the best"
    axes.set_title(title, loc="left", fontsize=9.5, color=MUTED)
    plain_axes(axes, "mean squared error / variance, and its standard error")


def draw_alpha_paths(
    alphas: FloatArray,
    paths: Mapping[str, tuple[FloatArray, str]],
    *,
    chosen: ArrayLike,
    labels: Sequence[str],
    title: str,
    subtitle: str = "",
) -> Figure:
    """Draw values against alpha, one panel for each path and one line for each target.

    `alphas`: float64 array of shape (n_alphas,).
    `paths`: by criterion, its values, float64 array of shape (n_alphas, n_targets), and the scale of its
      axis, log or linear. Values that are not finite leave gaps.
    `chosen`: float or array of shape (n_targets,). The alpha to mark, or one for each target.
    `labels`: sequence of str of length n_targets. The targets' names. Only the first nine targets are drawn.
    """
    figure = figure_of(2.4 + 5.2 * len(paths), 4.6, title=title)
    shown = min(len(labels), _MAX_LINES)
    colours = _shades(shown)
    panels = figure.subplots(1, len(paths), squeeze=False)[0]
    for axes, (criterion, (path, scale)) in zip(panels, paths.items(), strict=True):
        values = np.where(np.isfinite(path), path, np.nan)
        for target in range(shown):
            style = {"color": colours[target], "lw": 1.8, "marker": ".", "ms": 4}
            axes.plot(alphas, values[:, target], label=labels[target], **style)
        for alpha in np.unique(np.atleast_1d(np.asarray(chosen))[: len(_COLOURS)]):
            axes.axvline(alpha, color=_COLOURS[1], lw=1.2, ls="--", label=f"chosen: {alpha:.3g}")
        axes.set(xscale="log", yscale=scale)
        axes.yaxis.set_major_formatter("{x:g}")
        if scale == "log":
            axes.yaxis.set_minor_formatter("{x:g}")
        plain_axes(axes, "alpha", criterion)
    _subtitle(panels[0], subtitle)
    handles, names = panels[0].get_legend_handles_labels()
    if shown < len(labels):
        names[shown - 1] += f" (of {len(labels):,} targets)"
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=9)
    return figure


def draw_clusters(view: ClusterView, *, title: str, subtitle: str = "") -> Figure:
    """Draw rows in two kernel principal components, in the colours and shapes of their clusters.

    Up to 40 clusters have their numbers at their centres, unless they have no rows in the view.

    Raises DataError if there is no row.
    """
    if not len(view.scores):
        raise DataError("there is nothing to draw; expected at least 1 row")
    figure = figure_of(7.6, 6.2, title=title)
    axes = figure.subplots()
    _subtitle(axes, subtitle)
    for i in np.unique(view.labels):
        across, up = view.scores[view.labels == i].T
        colour, marker = _look(i)
        axes.scatter(across, up, s=13, color=colour, marker=marker, alpha=0.75, linewidths=0, zorder=3)
        if len(view.centres) <= _MAX_NUMBERS:
            box = {"boxstyle": "circle,pad=0.22", "fc": "white", "ec": colour, "lw": 1.6}
            x, y = view.centres[i]
            axes.text(x, y, str(i), ha="center", va="center", fontsize=8.5, color=INK, bbox=box, zorder=4)
    first, second = (f"{share:.1%} of the variance" for share in view.shares)
    words = "kernel principal component"
    plain_axes(axes, f"first {words}, {first}", f"second {words}, {second}")
    return figure


def draw_clustering(dataset: blocks.Dataset, clusters: starts.Clusters, *, seed: int, title: str) -> Figure:
    """Draw a seeded sample of a dataset's rows in their clusters, see `draw_clusters`."""
    view = view_clusters(dataset, clusters, seed=seed)
    words = f"{clusters.n_clusters:,} clusters, {len(view.labels):,} rows of {dataset.n_samples:,}"
    return draw_clusters(view, title=title, subtitle=words)


def figure_of(
    width: float, height: float, *, title: str = "", pads: tuple[float, float] = (0.12, 0.1)
) -> Figure:
    """Return an empty figure with a title; sizes are in inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(w_pad=pads[0], h_pad=pads[1])  # type: ignore[union-attr, call-arg]
    if not title:
        return figure
    # Titles hold names that users chose: a dollar sign in them must not start a formula.
    heading = {"parse_math": False, "fontweight": "bold", "fontsize": 13, "color": INK}
    figure.suptitle(title, x=pads[0] / width, ha="left", **heading)
    return figure


def _subtitle(axes: Any, text: str) -> None:
    axes.set_title(text, parse_math=False, loc="left", fontsize=9.5, color=MUTED)


def _look(cluster: int) -> tuple[str, str]:
    """Return a cluster's colour and shape; no two of the first 42 clusters share both."""
    return HUES[cluster % len(HUES)], _MARKERS[cluster // len(HUES) % len(_MARKERS)]


def _mark(choice: cross_validation.Choice, panels: Sequence[Any], *, marker: str, label: str) -> None:
    words = f"{label}: D = {choice.n_components:,}, alpha = {choice.alpha:.2g}"
    # The square is larger: it goes around the circle if both mark one place.
    style = {"marker": marker, "facecolor": "none", "edgecolor": _COLOURS[1], "linewidth": 1.6, "zorder": 4}
    for axes, x in zip(panels, (choice.alpha, choice.n_components), strict=False):
        axes.scatter([x], [choice.score], s=150 if marker == "s" else 80, label=words, **style)


def _shades(n: int) -> list[tuple[float, ...]]:
    """Return colours of one hue, from light to dark."""
    light, dark = np.array([0.62, 0.80, 0.88]), np.array([0.02, 0.22, 0.34])
    return [tuple(light + (dark - light) * share) for share in np.linspace(0 if n > 1 else 0.6, 1, n)]


def plain_axes(axes: Any, across: str = "", up: str = "") -> None:
    """Reduce axes to a light grid and two lines, and say what is across and what is up."""
    for text, label in ((across, axes.set_xlabel), (up, axes.set_ylabel)):
        if text:
            label(text, color=MUTED, parse_math=False)
    axes.set_axisbelow(True)
    axes.grid(True, which="major", color="#e6e6e6", lw=0.7)
    axes.tick_params(colors=MUTED, which="both", labelsize=9)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color("#c8c8c8")


def round_ticks(axes: Any) -> None:
    """Put few ticks on linear axes, with numbers as in tables."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5))
        axis.set_major_formatter(lambda value, _: number(value))


def bars_of(found: Mapping[str, tuple[float, float, float]], across: str, *, ours: int = 1) -> Figure:
    """Return horizontal bars below each other, with whiskers.

    `found`: by name, a value and the ends of its whisker, which is left out if one is not finite.
    `ours`: how many of the first bars have the colour that stands out.
    """
    figure = figure_of(5.6, 0.7 + 0.36 * len(found))
    axes = figure.subplots()
    for place, (value, low, high) in enumerate(found.values()):
        ends = [[max(0.0, value - low)], [max(0.0, high - value)]]
        bars: dict[str, Any] = {"xerr": ends} if np.isfinite(ends).all() else {}
        color = BLUE if place < ours else MUTED
        axes.barh(place, value, height=0.55, color=color, ecolor=INK, capsize=4, **bars)
    axes.set_yticks(range(len(found)), list(found), parse_math=False)
    axes.invert_yaxis()
    plain_axes(axes, across)
    return figure


def png_of(figure: Figure, dpi: int = 110) -> bytes:
    """Return a figure as a PNG."""
    content = io.BytesIO()
    # without matplotlib's name and version, so that the same picture has the same bytes
    figure.savefig(content, format="png", dpi=dpi, metadata={"Software": documents.MADE_BY})
    return content.getvalue()


def save(figure: Figure, path: PathLike) -> Path:
    """Save a figure as a PNG: the folder is created, and a file that is there replaced as a whole.

    Raises StorageError if it cannot be written.
    """
    return documents.write_file(Path(path), png_of(figure, FILE_DPI), what="picture")


def draw_choice(
    model: models.RidgeModel, *, title: str, about: str, candidates: Sequence[Facts] = ()
) -> Figure | None:
    """Draw the errors that a model's alpha was chosen by; return None if it was given.

    `model`: need not hold its sums.
    `title`, `about`: above the axes: the data, and the features.
    `candidates`: see `draw_cross_validation`.
    Raises DataError if no error is above 0.
    """
    arrays = model.selection
    if (table := model.cross_validation) is not None:
        subtitle = f"{about}, {folding.folds_words(model.card['folds'])}"
        return draw_cross_validation(
            table, title=title, subtitle=subtitle, candidates=candidates, alpha=model.plain_alpha
        )
    if "alphas" in arrays:
        alphas, errors = arrays["alphas"], np.sqrt(arrays["scores"])
        paths = {"root of the GCV score": (errors, "log")}
        if model.card.get("alpha_given") == "evidence":
            paths["log evidence"] = arrays["log_evidences"], "linear"
    else:
        return None
    if len(alphas) < 2:
        return None
    if not (errors > 0).any():
        raise DataError("no error is above 0; expected some to draw on a logarithmic axis")
    subtitle = f"{about}, D = {model.feature_map.n_components:,}"
    return draw_alpha_paths(
        alphas, paths, chosen=model.alpha, labels=target_names(model), title=title, subtitle=subtitle
    )


# -- the data for a picture of clusters ------------------------------------------------------------


SAMPLE_ROWS = 2_000


@frozen(eq=False)
class ClusterView:
    """A sample of rows and the centres in the two directions of the sample's largest variance in Z.

    `scores`: float64 array of shape (n_sampled, 2). Coordinates of the rows; if there is one direction only,
      the second column is 0.
    `labels`: int array of shape (n_sampled,). Clusters of the rows.
    `centres`: float64 array of shape (n_clusters, 2). Coordinates of the centres.
    `shares`: tuple of 2 floats. Each direction's share of the sample's variance.
    """

    scores: FloatArray
    labels: AnyIntArray
    centres: FloatArray
    shares: tuple[float, float]


def view_clusters(
    dataset: blocks.Dataset, clusters: starts.Clusters, *, seed: int = 0, n_rows: int = SAMPLE_ROWS
) -> ClusterView:
    """Label a seeded sample of rows, and project it on its own first two kernel principal components.

    Takes no pass over the data, but O(n_rows² · n_components) time in this process. `pca.fit.fit_components`
    computes the components of all rows.

    `seed`: seed of the sample.
    `n_rows`: largest size of the sample.
    Raises DataError if the columns do not fit the clusters, or a sampled row holds NaN or infinity.
    """
    model_rows.check_dataset(dataset, clusters)
    X = samples.sample_inputs(dataset.without_targets(), seed, n_rows=n_rows)
    labels = lloyd_pass.label_rows(blocks.Rows(blocks.Block(0, 0, len(X)), X), clusters.state)
    Z = clusters.feature_map.transform(X, dtype=np.float64)
    middle = Z.mean(axis=0)
    Z -= middle
    n_kept = min(2, len(X))
    with machine.using_threads(1):
        # (n_rows, n_rows): it has the eigenvalues of Z'Z, which is (D, D) and often larger; its eigenvectors
        # times the roots of the eigenvalues are the scores.
        gram = Z @ Z.T
        total = float(np.trace(gram))
        values, vectors = scipy.linalg.eigh(gram, subset_by_index=(len(X) - n_kept, len(X) - 1))
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
        # eigenvectors have no sign of their own: make the score of largest size positive
        vectors *= np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[np.newaxis], 0))
        scores, centres = np.zeros((len(X), 2)), np.zeros((clusters.n_clusters, 2))
        scores[:, :n_kept] = vectors * np.sqrt(values)
        # Below that a direction is rounding, and dividing by its root would throw the centres far away.
        above = values > 1e-12 * max(total, math.ulp(0.0))
        # Directions of length 1 in the features, shape (D, n_kept), onto which the centres are projected.
        axes = Z.T @ vectors[:, above] / np.sqrt(values[above])
        centres[:, :n_kept][:, above] = (clusters.centres - middle) @ axes
    shares = [float(value) / total if total > 0 else 0.0 for value in values]
    return ClusterView(scores, labels, centres, (shares[0], shares[1] if n_kept > 1 else 0.0))
