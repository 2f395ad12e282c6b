"""The section of a page on the classes that a classifier predicts.

In goes a comparison on rows that the model was not trained on, out come tables and a
picture: which classes are taken for which, and whether probabilities are right. From
the accuracy alone one would not know which class is missed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from rff_dist import text
from rff_dist.classify.predict import count_classes
from rff_dist.typing import AnyArray, BoolArray, FloatArray
from rff_dist.workbench.jobs import intervals, verdict
from rff_dist.workbench.jobs.comparison import ModelComparison
from rff_dist.workbench.page import accuracy, page_sample, pictures
from rff_dist.workbench.results import document, figures

_N_BINS = 6  # of probabilities


def confusion_section(
    page: document.Document,
    comparison: ModelComparison,
    names: Sequence[str],
    ranked: Sequence[page_sample.TableColumn],
) -> None:
    """Show which classes are taken for which, whether probabilities are right, and the
    rows whose true class got the smallest probability.

    `ranked` are the columns by their importance.
    """
    page.section("Classes", f"{verdict.rows_words(comparison)}.")
    truth = comparison.observed
    predicted = comparison.ours.values
    counted = count_classes(truth, predicted, len(names))
    # the table has the first 30 classes; more columns would not fit
    shown = names[:30]
    rows = []
    for i, name in enumerate(shown):
        recall = text.score_words("accuracy", counted.recall[i])
        precision = text.score_words("accuracy", counted.precision[i])
        counts = counted.counts[i, : len(shown)].tolist()
        rows.append((name, *counts, recall, precision))
    header = ("class", *(f"predicted {name}" for name in shown), "recall", "precision")
    page.table("Rows by true class and predicted class", header, rows)
    page.say(
        "Recall: of the rows of a class, the share predicted as that class. Precision:"
        " of the rows predicted as a class, the share that belongs to it.",
        is_note=True,
    )
    logs = comparison.ours.log_probabilities
    if logs is None:
        return
    if len(names) == 2 and len(np.unique(truth)) == 2:
        _draw_roc(page, truth == 1, logs[:, 1] - logs[:, 0], names[1])
        _threshold_table(page, truth == 1, np.exp(logs[:, 1]), names[1])
    _calibration_table(page, comparison, logs)
    cells = {}
    of_truth = logs[np.arange(len(truth)), truth]
    for row in np.argsort(of_truth, kind="stable")[: accuracy.WORST]:
        chances = np.exp(logs[row])
        classes = (truth[row], predicted[row])
        cells[row] = [f"{names[k]} ({text.share(chances[k])})" for k in classes]
    caption = "Rows whose true class got the smallest probability"
    header = ("true class (its probability)", "predicted class (its probability)")
    accuracy.rows_table(
        page, comparison, caption, header, cells, ranked[: accuracy.WORST_COLUMNS]
    )


def _calibration_table(
    page: document.Document, comparison: ModelComparison, logs: FloatArray
) -> None:
    """Show which share of rows is right at which probability, and say where the two
    clearly differ, if the rows are independent test rows.
    """
    # the likeliest of k classes has at least 1/k, but for rounding
    smallest = 1.0 / logs.shape[1]
    highest = np.maximum(np.exp(logs).max(axis=1), smallest)
    is_right = comparison.ours.values == comparison.observed
    is_independent = comparison.rows.origin == "test" and comparison.rows.groups is None
    rows = []
    sentences = []
    # one of several bins is outside by chance no more often than one interval
    level = 1 - (1 - intervals.LEVEL) / _N_BINS
    edges = np.linspace(smallest, 1.0, _N_BINS + 1)
    for low, high in itertools.pairwise(edges):
        inside = (highest >= low) & ((highest < high) | (high == 1.0))
        n_rows = int(inside.sum())
        if not n_rows:
            continue
        n_right = int(is_right[inside].sum())
        mean = float(highest[inside].mean())
        least, most = intervals.share_interval(n_right, n_rows, level)
        bin_words = f"{low:.0%} to {high:.0%}"
        if is_independent and not least <= mean <= most:
            judgement = "too high" if mean > most else "too low"
            sentences.append(
                f"Probabilities from {bin_words} are clearly {judgement}:"
                f" {text.share(mean)} said, {text.share(n_right / n_rows)} right."
            )
        shares = (f"{mean:.0%}", f"{n_right / n_rows:.0%}")
        rows.append((bin_words, n_rows, *shares))
    caption = (
        "Calibration: the probability of the predicted class, and the share that is"
        " right"
    )
    header = ("probability", "rows", "mean probability", "share right")
    page.table(caption, header, rows)
    if is_independent:
        page.say(" ".join(sentences) or "No probabilities are clearly off.")


def _threshold_table(
    page: document.Document, positive: BoolArray, chances: FloatArray, name: str
) -> None:
    """Show how many rows of a class are missed, and how many others are taken for it,
    if it is predicted from smaller and smaller probabilities.
    """
    rows = []
    for threshold in (0.5, 0.4, 0.3, 0.2):
        is_predicted = chances >= threshold
        n_missed = int((positive & ~is_predicted).sum())
        n_false = int((is_predicted & ~positive).sum())
        rows.append((f"{threshold:.0%}", n_missed, n_false))
    header = (f"predict {name} from", f"{name} missed", "false alarms")
    page.table(f"If {name} is predicted from a smaller probability", header, rows)
    page.say(
        f"If a missed {name} costs k times a false alarm, predict {name} from a"
        " probability of 1 / (1 + k): if it costs 4 times as much, from 20%."
    )


def _draw_roc(
    page: document.Document, positive: BoolArray, scores: AnyArray, name: str
) -> None:
    """Draw the ROC curve of two classes, with the area under it."""
    # Rows whose score is at least a threshold, ties included, are called positive.
    order = np.argsort(-scores, kind="stable")
    is_last = np.append(np.diff(scores[order]) != 0, True)
    rates = []
    for hits in (positive[order], ~positive[order]):
        rates.append(np.append(0.0, np.cumsum(hits)[is_last] / hits.sum()))
    true_rates, false_rates = rates
    area = float(np.trapezoid(true_rates, false_rates))
    figure = pictures.figure_of(4.2, 3.6)
    axes = figure.subplots()
    axes.plot(false_rates, true_rates, color=figures.BLUE, lw=2.0)
    axes.plot([0, 1], [0, 1], **accuracy.GUIDE)
    pictures.plain_axes(
        axes,
        f"share of other rows predicted as {name}",
        f"share of {name} predicted as {name}",
    )
    words = (
        f"ROC curve of {name}: the area under it (ROC AUC) is {text.score(area, 3)};"
        " 0.5 is chance, 1 is perfect."
    )
    page.picture(figure, words, words, shrinks=True)
