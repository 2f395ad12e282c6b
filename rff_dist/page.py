"""One self-contained HTML page about a model: what it was made of, how good it is, and what it looks at.

It needs no other file and no network. Every picture has a text that says what it shows, and every figure that
matters stands in a table too.
"""

from __future__ import annotations

import base64
import html
import io
import itertools
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.classify.predict import calibration_of, decide, read_classes
from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.data.samples import sample_rows
from rff_dist.errors import RFFDistError
from rff_dist.features.approximation import approximation_error
from rff_dist.features.kernel_of import kernel_of, kind_of
from rff_dist.jobs.fits import JobData, estimate_of
from rff_dist.kernels.text import kernel_text
from rff_dist.kmeans.starts import Clusters
from rff_dist.kmeans.view import view_clusters
from rff_dist.report import INK, MUTED, figure_of, plain_axes, save_choice, save_clusters, write_whole
from rff_dist.ridge.linear_model import predict_rows
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.uncertainty import predict_rows_with_std
from rff_dist.text import redact
from rff_dist.typing import FloatArray

SAMPLE_ROWS, CURVES, CURVE_ROWS, CURVE_POINTS, MAX_COLUMNS = 2_000, 6, 300, 25, 100
MAX_FACTOR = 4_096  # components up to which a factor of the Gram is made for the page
_BLUE, _RED = "#0b6e99", "#b3400a"

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #1b1b1b; background: #fff; margin: 0 auto;
  max-width: 54rem; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 2px solid #0b6e99; padding-bottom: .2rem; }
p, li { max-width: 44rem; } .note { color: #595959; }
nav ul { columns: 14rem; padding-left: 1.2rem; } a { color: #075170; }
.wide { overflow-x: auto; } table { border-collapse: collapse; margin: .8rem 0; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid #ddd;
  font-variant-numeric: tabular-nums; vertical-align: top; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
.facts td { text-align: left; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; } figcaption { color: #595959; }
@media print { body { max-width: none; font-size: 11pt; } nav { display: none; }
  figure, table { break-inside: avoid; } h2 { break-after: avoid; } }
"""


# -- the page --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Page:
    """A page that grows section by section.

    `title`: of the whole.
    `lead`: one sentence below it.
    """

    title: str
    lead: str
    _parts: list[str] = field(default_factory=list)
    _sections: list[str] = field(default_factory=list)

    def section(self, title: str, text: str = "") -> None:
        """Begin a section."""
        self._sections.append(title)
        self._parts.append(f'<h2 id="s{len(self._sections)}">{_escaped(title)}</h2>')
        self.say(text)

    def say(self, text: str, *, note: bool = False) -> None:
        """Add a paragraph."""
        if text:
            self._parts.append(f"<p{' class="note"' if note else ''}>{_escaped(text)}</p>")

    def table(self, caption: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add a table whose first column names the rows."""
        head = "".join(f'<th scope="col">{_escaped(name)}</th>' for name in header)
        body = "".join(
            f'<tr><th scope="row">{_escaped(first)}</th>'
            + "".join(f"<td>{_escaped(_words(value))}</td>" for value in rest)
            + "</tr>"
            for first, *rest in rows
        )
        self._parts.append(
            f'<div class="wide" tabindex="0" role="region" aria-label="{_escaped(caption)}"><table>'
            f"<caption>{_escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
            "</table></div>"
        )

    def facts(self, caption: str, found: Mapping[str, Any]) -> None:
        """Add a table of names and values."""
        self.table(caption, ("what", "value"), list(found.items()))
        self._parts[-1] = self._parts[-1].replace("<table>", '<table class="facts">')

    def picture(self, png: bytes, alt: str, caption: str) -> None:
        """Add a picture, with what it shows in words."""
        data = base64.b64encode(png).decode()
        self._parts.append(
            f'<figure><img src="data:image/png;base64,{data}" alt="{_escaped(alt)}">'
            f"<figcaption>{_escaped(caption)}</figcaption></figure>"
        )

    def render(self) -> str:
        """Return the page's HTML."""
        links = "".join(
            f'<li><a href="#s{i}">{_escaped(name)}</a></li>' for i, name in enumerate(self._sections, 1)
        )
        return (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{_escaped(self.title)}</title><style>{STYLE}</style></head><body>"
            f"<header><h1>{_escaped(self.title)}</h1><p>{_escaped(self.lead)}</p></header>"
            f'<nav aria-label="Contents"><ul>{links}</ul></nav>'
            f"<main>{''.join(self._parts)}</main></body></html>"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, whole or not at all.

        Raises StorageError if it cannot be written.
        """
        return write_whole(Path(path), lambda place: place.write_text(self.render(), "utf-8"), what="page")


def _escaped(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _words(value: Any) -> str:
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "–"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int | np.integer) or (isinstance(value, float) and 1e4 <= abs(value) < 1e7):
        return f"{value:,.0f}"
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


# -- a regression or a classifier ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """Rows of the data, what the model says of them, and how it says it of others.

    `fitted`: float64 array of shape (n_sampled, n_targets). Predictions, each made without its own row where
      `left_out` is True.
    """

    X: NDArray[Any]
    y: FloatArray
    fitted: FloatArray
    left_out: bool
    columns: list[str]
    targets: list[str]


def model_page(
    data: JobData, model: RidgeModel, *, place: str, seconds: Mapping[str, float], seed: int = 0
) -> Page:
    """Return the page of a regression or a classifier.

    `data`: the rows it was trained on, of which up to 2,000 are read.
    `place`: where the model is.
    `seconds`: by phase.
    """
    classifier = model.card.get("classifier")
    kind = "classifier" if classifier else "regression"
    page = Page(f"Report: {redact(place)}", f"A kernel {kind}, trained on {model.card['n_samples']:,} rows.")
    sample = _sampled(data, model, seed)
    _data_section(page, data.rows, sample, model)
    _score_section(page, sample, model)
    if classifier:
        _confusion_section(page, sample, model)
    else:
        _residual_section(page, sample)
    _choice_section(page, model, redact(data.rows.url or "rows in memory"))
    _columns_section(page, sample, model, seed)
    _approximation_section(page, data.rows, model)
    _end_sections(page, model.card, model.digest(), seconds)
    return page


def _sampled(data: JobData, model: RidgeModel, seed: int) -> _Sample:
    dataset = data.rows
    if data.labels is not None:
        from rff_dist.data.labelled import LabelledDataset

        dataset = LabelledDataset(dataset, data.labels, read_classes(model))
    X, y, weights = sample_rows(dataset, seed, n_rows=SAMPLE_ROWS)
    assert y is not None  # it was trained on them
    rows, left_out = Rows(Block(0, 0, len(X)), X, None, None), False
    fitted = predict_rows(rows, model.linear)
    small = model.feature_map.n_components <= MAX_FACTOR
    if "classifier" not in model.card and model.statistics is not None and small:
        try:
            predictive = model.predictive
            _, deviations = predict_rows_with_std(rows, predictive)
            leverage = np.square(deviations) / predictive.noise_variance - 1.0
            if weights is not None:
                leverage *= weights[:, np.newaxis] / predictive.mean_weight
            if (leverage < 1.0 - 1e-6).all():
                # Golub, Heath & Wahba 1979: the residual of a fit without the row
                fitted, left_out = y - (y - fitted) / (1.0 - leverage), True
        except RFFDistError:
            pass  # the sums do not say: the page then shows fitted rows, and says so
    names = getattr(dataset, "feature_names", None) or [f"x{i}" for i in range(X.shape[1])]
    targets = model.card.get("target_names") or (
        ["y"] if y.shape[1] == 1 else [f"y{i}" for i in range(y.shape[1])]
    )
    return _Sample(X, y, fitted, left_out, list(names), [str(name) for name in targets])


def _data_section(page: Page, dataset: Dataset, sample: _Sample, model: RidgeModel) -> None:
    page.section(
        "Data",
        f"{redact(dataset.url or 'Rows in memory')}: {dataset.n_samples:,} rows, of which "
        f"{len(sample.X):,} were looked at for this page.",
    )
    rows: list[Sequence[Any]] = [
        (name, *_spread(sample.X[:, i])) for i, name in enumerate(sample.columns[:MAX_COLUMNS])
    ]
    if "classifier" not in model.card:
        rows += [(f"{name} (target)", *_spread(sample.y[:, i])) for i, name in enumerate(sample.targets)]
    page.table("Columns", ("column", "mean", "deviation", "least", "median", "largest"), rows)


def _spread(values: NDArray[Any]) -> list[float]:
    values = np.asarray(values, np.float64)
    return [float(f(values)) for f in (np.mean, np.std, np.min, np.median, np.max)]


def _score_section(page: Page, sample: _Sample, model: RidgeModel) -> None:
    page.section("How good it is", "Errors on rows that were held out, beside those of simpler models.")
    found = estimate_of(model.card)
    if "classifier" in model.card:
        share = np.bincount(_classes_of(sample.y)).max() / len(sample.y)
        rows = [("this model", (found or {}).get("accuracy"), (found or {}).get("log_loss"))]
        page.table(
            "Share of rows that are classified rightly",
            ("model", "accuracy", "log loss"),
            [*rows, ("the most frequent class", float(share), None)],
        )
        return
    linear = _linear_errors(sample)
    for target, name in enumerate(sample.targets):
        deviation = float(sample.y[:, target].std())
        rmse = None if found is None else found["rmse"][target]
        errors = [("this model", rmse), ("linear", linear[target]), ("the mean", deviation)]
        rows = [
            (what, value, None if value is None or deviation == 0 else 1 - (value / deviation) ** 2)
            for what, value in errors
        ]
        page.table(f"Root mean squared error of {name}", ("model", "RMSE", "R²"), rows)
    by = (
        "none: alpha was given"
        if found is None
        else {"cv": "k-fold cross-validation", "press": "each row left out in turn"}.get(
            found["by"], found["by"]
        )
    )
    page.say(
        f"This model's error is by {by}. Linear: least squares on the {len(sample.X):,} sampled rows, "
        "each left out in turn.",
        note=True,
    )


def _linear_errors(sample: _Sample) -> list[float]:
    """Return the leave-one-out RMSE of least squares for each target."""
    X = np.asarray(sample.X, np.float64)
    spread = X.std(axis=0)
    basis, values, _ = np.linalg.svd(
        np.column_stack([np.ones(len(X)), (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)]),
        full_matrices=False,
    )
    basis = basis[:, values > 1e-10 * values[0]]
    left = np.maximum(1e-12, 1.0 - np.square(basis).sum(axis=1))[:, np.newaxis]
    residuals = (sample.y - basis @ (basis.T @ sample.y)) / left
    return [float(value) for value in np.sqrt(np.square(residuals).mean(axis=0))]


def _residual_section(page: Page, sample: _Sample) -> None:
    how = "each predicted from all other rows" if sample.left_out else "which the model was trained on"
    page.section("Predicted and observed", f"{len(sample.X):,} rows, {how}.")
    for target, name in enumerate(sample.targets[:CURVES]):
        observed, fitted = sample.y[:, target], sample.fitted[:, target]
        residuals = observed - fitted
        figure = figure_of(9.2, 3.9)
        left, right = figure.subplots(1, 2)
        left.scatter(fitted, observed, s=9, alpha=0.45, color=_BLUE, linewidths=0)
        ends = [min(observed.min(), fitted.min()), max(observed.max(), fitted.max())]
        left.plot(ends, ends, color=INK, lw=1.2, ls="--")
        left.set_xlabel(f"predicted {name}", color=MUTED, parse_math=False)
        left.set_ylabel(f"observed {name}", color=MUTED, parse_math=False)
        right.hist(
            residuals, bins=min(40, max(5, len(residuals) // 10)), color=_BLUE, edgecolor="white", lw=0.5
        )
        right.axvline(0.0, color=INK, lw=1.2, ls="--")
        right.set_xlabel("observed − predicted", color=MUTED)
        right.set_ylabel("rows", color=MUTED)
        for axes in (left, right):
            plain_axes(axes)
        low, middle, high = np.quantile(residuals, [0.05, 0.5, 0.95])
        words = f"Nine of ten residuals lie between {low:.3g} and {high:.3g}, their median is {middle:.2g}."
        page.picture(
            _png(figure),
            f"Left: observed against predicted {name}, around the diagonal. Right: histogram of the "
            f"residuals. {words}",
            words,
        )


def _classes_of(y: FloatArray) -> NDArray[np.intp]:
    return (y[:, 0] > 0).astype(np.intp) if y.shape[1] == 1 else y.argmax(axis=1)


def _confusion_section(page: Page, sample: _Sample, model: RidgeModel) -> None:
    page.section(
        "Classes",
        f"{len(sample.X):,} rows that the model was trained on: new ones are classified less well, as the "
        "table above says.",
    )
    names, calibration = [str(name) for name in read_classes(model)], calibration_of(model)
    truth, said = _classes_of(sample.y), decide(sample.fitted, calibration)
    counts = np.zeros((len(names), len(names)), np.int64)
    np.add.at(counts, (truth, said), 1)
    shown = names[:30]
    page.table(
        "Rows by their class, and by what the model says",
        ("class", *(f"said {name}" for name in shown), "recall"),
        [
            (name, *counts[i, : len(shown)].tolist(), float(counts[i, i] / max(1, counts[i].sum())))
            for i, name in enumerate(shown)
        ],
    )
    if calibration is None:
        return
    logits = calibration.logits(sample.fitted)
    full = np.column_stack([np.zeros(len(logits)), logits[:, 0]]) if logits.shape[1] == 1 else logits
    chances = np.exp(full - full.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    sure, right = chances.max(axis=1), chances.argmax(axis=1) == truth
    edges = np.linspace(1.0 / len(names), 1.0, 7)
    rows = []
    for low, high in itertools.pairwise(edges):
        inside = (sure >= low) & ((sure < high) | (high == 1.0))
        if inside.any():
            rows.append(
                (
                    f"{low:.0%} to {high:.0%}",
                    int(inside.sum()),
                    float(sure[inside].mean()),
                    float(right[inside].mean()),
                )
            )
    page.table(
        "Calibration: how sure, and how often right",
        ("probability", "rows", "mean probability", "share right"),
        rows,
    )


def _choice_section(page: Page, model: RidgeModel, data: str) -> None:
    page.section("What was chosen", "")
    kernel = kernel_of(model.feature_map)
    page.facts(
        "The model",
        {
            "kernel": "given features" if kernel is None else kernel_text(kernel),
            "features": kind_of(model.feature_map),
            "D, the number of features": model.feature_map.n_components,
            "alpha, the penalty": model.plain_alpha,
            "alpha chosen by": model.card.get("chosen_by", "–"),
        },
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            drawn = save_choice(
                model,
                Path(folder) / "choice.png",
                title="Error against alpha and D",
                about=kind_of(model.feature_map),
            )
        except RFFDistError as error:
            page.say(f"The errors are not drawn: {error}", note=True)
        else:
            if drawn is not None:
                best = f"alpha = {_words(model.plain_alpha)}, D = {model.feature_map.n_components:,}"
                page.picture(
                    drawn.read_bytes(),
                    f"Held-out error against alpha for each D; the chosen place is {best}.",
                    f"Chosen: {best}.",
                )
    candidates = sorted(
        model.card.get("candidates", []), key=lambda one: (one.get("round") == "first", one["score"])
    )
    if len(candidates) > 1:
        page.table(
            "What was compared, by error as a share of the variance",
            ("kernel", "features", "round", "D", "alpha", "error", "standard error"),
            [
                (
                    one["kernel"],
                    one.get("features", "fourier"),
                    one.get("round", "final"),
                    one["n_components"],
                    one["alpha"],
                    one["score"],
                    one.get("standard_error"),
                )
                for one in candidates[:20]
            ],
        )


def _columns_section(page: Page, sample: _Sample, model: RidgeModel, seed: int) -> None:
    page.section(
        "Which columns matter",
        "Permutation importance: by how much the root mean squared error of the sampled rows grows when "
        "a column is shuffled, in deviations of the target. Relevance: one over the column's length "
        "scale, the largest being 1.",
    )
    X, deviations = sample.X, np.where(sample.y.std(axis=0) > 0, sample.y.std(axis=0), 1.0)

    def predict(inputs: NDArray[Any]) -> FloatArray:
        return predict_rows(Rows(Block(0, 0, len(inputs)), inputs, None, None), model.linear)

    def error(inputs: NDArray[Any]) -> float:
        return float(np.sqrt(np.square((predict(inputs) - sample.y) / deviations).mean()))

    rng = np.random.Generator(np.random.Philox(seed))
    plain, importance = error(X), []
    for column in range(min(X.shape[1], MAX_COLUMNS)):
        shuffled = X.copy()
        shuffled[:, column] = rng.permutation(shuffled[:, column])
        importance.append(error(shuffled) - plain)
    scales = getattr(kernel_of(model.feature_map), "length_scale", None)
    widths = np.array(scales) if isinstance(scales, tuple) else np.full(X.shape[1], np.nan)
    order = np.argsort(importance)[::-1]
    page.table(
        "Columns by importance",
        ("column", "importance", "relevance", "length scale"),
        [
            (
                sample.columns[i],
                importance[i],
                float(widths.min() / widths[i]),
                float(widths[i]),
            )
            for i in order
        ],
    )
    if X.shape[1] > MAX_COLUMNS:
        page.say(f"Of {X.shape[1]:,} columns the first {MAX_COLUMNS} were shuffled.", note=True)
    first = order[:CURVES]
    figure = figure_of(9.2, 2.7 * -(-len(first) // 3))
    panels = np.atleast_1d(figure.subplots(-(-len(first) // 3), min(3, len(first)), sharey=True)).ravel()
    few, words = X[:: -(-len(X) // CURVE_ROWS)], []
    for axes, column in zip(panels, first, strict=False):
        places = np.unique(np.quantile(X[:, column], np.linspace(0.02, 0.98, CURVE_POINTS)))
        means = []
        for place in places:
            moved = few.copy()
            moved[:, column] = place
            means.append(float(predict(moved)[:, 0].mean()))
        axes.plot(places, means, color=_BLUE, lw=2.0)
        at_bottom = {"transform": axes.get_xaxis_transform(), "color": MUTED, "ms": 6}
        axes.plot(places, np.full_like(places, 0.03), "|", **at_bottom)
        axes.set_xlabel(sample.columns[column], color=MUTED, parse_math=False)
        plain_axes(axes)
        words.append(f"{sample.columns[column]}: from {means[0]:.3g} to {means[-1]:.3g}")
    for axes in panels[len(first) :]:
        axes.set_visible(False)
    what = "score" if "classifier" in model.card else sample.targets[0]
    page.picture(
        _png(figure),
        f"Partial dependence of {what}: {'; '.join(words)}.",
        f"Partial dependence: the mean predicted {what} when one column has the value on the axis in "
        "every row. Ticks are places that were looked at.",
    )


def _approximation_section(page: Page, dataset: Dataset, model: RidgeModel) -> None:
    kernel = kernel_of(model.feature_map)
    if kernel is None or model.feature_map.n_components > 2 * MAX_FACTOR:
        return
    try:
        found = approximation_error(
            kernel,
            model.feature_map,
            dataset.without_targets(),
            n_samples=min(200, dataset.n_samples // 4),
            n_repeats=4,
        )
    except RFFDistError as error:
        page.section("Approximation of the kernel", f"It was not measured: {error}")
        return
    page.section(
        "Approximation of the kernel",
        f"How far features' products are from the kernel's values, on {found.n_repeats} samples of "
        f"{found.n_samples:,} rows.",
    )
    page.table(
        "Error, and the interval of its mean over samples",
        ("measure", "error", "lower", "upper"),
        [
            (name, one.value, one.low, one.high)
            for name, one in (
                ("mean, of an entry", found.mean),
                ("largest, of an entry", found.max),
                ("operator norm, as a share of the kernel's", found.relative_operator_norm),
            )
        ],
    )


def _end_sections(page: Page, card: Mapping[str, Any], digest: str, seconds: Mapping[str, float]) -> None:
    page.section("Time", "")
    total = seconds.get("total", 0.0) or 1.0
    page.table(
        "Seconds by phase",
        ("phase", "seconds", "share"),
        [(name, value, f"{value / total:.0%}") for name, value in seconds.items()],
    )
    page.section("Lineage", "")
    packages = card.get("environment", {}).get("packages", {})
    page.facts(
        "What it is made of",
        {
            "created": card.get("created", "–"),
            "data fingerprint": card.get("data_fingerprint", "–"),
            "statistics digest": card.get("statistics_digest", "–"),
            "model digest": digest,
            "packages": ", ".join(f"{name} {version}" for name, version in packages.items()) or "–",
        },
    )


# -- clusters --------------------------------------------------------------------------------------


def clusters_page(
    dataset: Dataset,
    clusters: Clusters,
    *,
    place: str,
    candidates: Sequence[Mapping[str, Any]],
    seconds: Mapping[str, float],
    seed: int = 0,
) -> Page:
    """Return the page of clusters: sizes, a map and rows that stand for them.

    `candidates`: what was compared to choose their number.
    """
    page = Page(
        f"Report: {redact(place)}",
        f"{clusters.n_clusters:,} clusters of {dataset.n_samples:,} rows, by k-means in random features.",
    )
    sizes = np.asarray(clusters.weights, np.float64)
    order = np.argsort(sizes)[::-1]
    page.section("Sizes", f"Inertia {_words(clusters.inertia)} after {clusters.n_iter:,} passes.")
    page.table(
        "Clusters by size",
        ("cluster", "rows or weight", "share"),
        [(int(i), float(sizes[i]), f"{sizes[i] / sizes.sum():.1%}") for i in order[:50]],
    )
    if candidates:
        page.section("Their number", "")
        page.table(
            "What was compared",
            ("clusters", "inertia", "silhouette", "stability"),
            [
                (f"{row['n_clusters']:,}", row["inertia"], row["silhouette"], row["stability"])
                for row in candidates
            ],
        )
    page.section(
        "Map",
        "A sample of rows in the two directions of its greatest variance in features; numbers are centres.",
    )
    view = view_clusters(dataset, clusters, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        drawn = save_clusters(Path(folder) / "map.png", view, title="Rows and centres")
        shares = " and ".join(f"{share:.0%}" for share in view.shares)
        page.picture(
            drawn.read_bytes(),
            f"{len(view.labels):,} rows and {clusters.n_clusters:,} centres in two principal components, "
            f"which hold {shares} of the variance.",
            "Close clusters share a neighbourhood here; clusters that overlap may differ in other "
            "directions.",
        )
    X, _, _ = sample_rows(dataset.without_targets(), seed, n_rows=len(view.labels))
    Z = clusters.feature_map.transform(X, dtype=np.float64)
    names = getattr(dataset, "feature_names", None) or [f"x{i}" for i in range(X.shape[1])]
    shown = min(10, X.shape[1])
    rows = []
    for i in order[:20]:
        distances = np.square(Z - clusters.centres[i]).sum(axis=1)
        rows.append((int(i), *X[int(distances.argmin()), :shown].tolist()))
    first = "" if shown == X.shape[1] else f" Its first {shown} columns are shown."
    text = "Of each of the largest clusters the sampled row that is nearest to its centre."
    page.section("Representatives", text + first)
    page.table("Rows that stand for their clusters", ("cluster", *map(str, names[:shown])), rows)
    _end_sections(page, {}, clusters.digest(), seconds)
    return page


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
