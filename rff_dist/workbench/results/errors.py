"""A stored model's errors on data as a document, for `rff-dist evaluate`.

In go errors by target, errors by class with the confusion matrix, or the agreement of
clusters with labels; a document for the terminal and JSON comes out.
"""

from typing import Any

import numpy as np

from rff_dist.classify.predict import Confusion, class_names, read_classes
from rff_dist.fitting import evaluation
from rff_dist.kmeans import labels
from rff_dist.ridge.calibration import LEVELS, Calibration
from rff_dist.text import score_words, share
from rff_dist.typing import FloatArray, Summary
from rff_dist.workbench.jobs import cluster, predict, specs
from rff_dist.workbench.results import clusters, models, words
from rff_dist.workbench.results.document import Document, Paragraph, Part

#: Titles of the errors of a target, by their names in the record.
_TITLES = {
    "rmse": "RMSE",
    "z_rmse": "z-RMSE",
    "mae": "MAE",
    "bias": "bias",
    "largest": "largest",
    "r2": "R²",
}


def errors_document(
    scoring: predict.ScoringModel,
    errors: predict.Evaluation,
    inside: FloatArray | None,
    job: specs.Evaluate,
    run: Summary,
) -> Document:
    """Return the document of the job `evaluate`; `run`: see `words.run_facts`."""
    calibration = None
    if isinstance(errors, Calibration):
        calibration = errors
        errors = calibration.errors
    if isinstance(errors, labels.Contingency):
        agreement = cluster.describe_agreement(errors, job.source.y)
        figures: Summary = {"agreement": agreement}
        parts: list[Part] = [clusters.agreement_facts(agreement)]
    elif isinstance(errors, Confusion):
        figures, parts = _classes(errors, scoring.model)
    else:
        figures, parts = _targets(errors, calibration, scoring.model)
    if inside is not None:
        figures["interval"] = {"coverage": job.coverage, "inside": inside}
        shares = ", ".join(map(share, inside))
        parts.insert(0, {f"inside {job.coverage:.0%} intervals": shares})
    seconds = run["seconds"]["total"]
    record = {
        "model": job.model,
        "data": job.source.data,
        "n_samples": errors.n_samples,
        **figures,
        "engine": run["engine"],
        "seconds": seconds,
    }
    place = f"{job.model} on {job.source.data}"
    time = f"{words.seconds_words(seconds)} s"
    title = f"{place}: {errors.n_samples:,} rows, {time}"
    return Document(title, parts, record=record)


def _classes(confusion: Confusion, model: Any) -> tuple[Summary, list[Part]]:
    columns = {"precision": confusion.precision, "recall": confusion.recall}
    names = class_names(model)
    classes = []
    rows = []
    for i, label in enumerate(read_classes(model).tolist()):
        n_samples = int(confusion.counts[i].sum())
        n_predicted = int(confusion.counts[:, i].sum())
        rates = {name: float(values[i]) for name, values in columns.items()}
        of_class = {"n_samples": n_samples, "n_predicted": n_predicted, **rates}
        classes.append({"label": label, **of_class})
        rows.append([names[i], *of_class.values()])
    balanced = score_words("balanced_accuracy", confusion.balanced_accuracy)
    log_loss = "none: the model has no probabilities"
    if confusion.log_loss is not None:
        log_loss = f"{score_words('log_loss', confusion.log_loss)} nats"
    facts = {
        "accuracy": score_words(
            "accuracy", confusion.accuracy, confusion.accuracy_standard_error
        ),
        "balanced accuracy": f"{balanced}, the mean recall of classes",
        "log loss": log_loss,
    }
    table = words.Table("", ("class", "rows", "predicted", *columns), rows)
    record = {
        **confusion.to_dict(),
        "classes": classes,
        "confusion_matrix": confusion.counts,
    }
    return record, [facts, table]


def _targets(
    errors: evaluation.Errors, calibration: Calibration | None, model: Any
) -> tuple[Summary, list[Part]]:
    rmse = np.sqrt(errors.mean_squared_error)
    deviation = np.sqrt(errors.target_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        z_rmse = np.where(deviation > 0, rmse / deviation, np.nan)
    figures = {
        "rmse": rmse,
        "rmse_standard_error": errors.rmse_standard_error,
        "z_rmse": z_rmse,
        "mse": errors.mean_squared_error,
        "mae": errors.mean_absolute_error,
        "bias": errors.bias,
        "largest": errors.largest,
        "r2": errors.r2,
    }
    targets: list[Summary] = []
    for i, name in enumerate(models.target_names(model)):
        of_target = {key: float(values[i]) for key, values in figures.items()}
        targets.append({"name": name, **of_target})
    rows = []
    for target in targets:
        cells = [words.score_cell(name, target[name]) for name in _TITLES]
        rows.append([target["name"], *cells])
    note = (
        "z-RMSE: in units of the target's standard deviation here; bias: the mean of"
        " observed minus predicted values"
    )
    parts: list[Part] = [
        words.Table("", ("target", *_TITLES.values()), rows),
        Paragraph(note, is_note=True),
    ]
    if calibration is not None:
        for i, target in enumerate(targets):
            target |= _calibration(calibration, i)
        parts += _calibration_parts(targets)
    return {"targets": targets}, parts


def _calibration(calibration: Calibration, target: int) -> Summary:
    def by_level(values: FloatArray) -> dict[str, float]:
        levels = map(str, LEVELS)
        return dict(zip(levels, values[:, target].tolist(), strict=True))

    return {
        "nlpd": float(calibration.nlpd[target]),
        "z_nlpd": float(calibration.standardized_nlpd[target]),
        "mean_squared_score": float(calibration.mean_squared_score[target]),
        "mean_std": float(calibration.mean_standard_deviation[target]),
        "coverage": by_level(calibration.coverage),
        "mean_width": by_level(calibration.mean_widths),
    }


def _calibration_parts(targets: list[Summary]) -> list[Part]:
    levels = [f"{float(level):.0%}" for level in targets[0]["coverage"]]
    rows = []
    for target in targets:
        shares = map(share, target["coverage"].values())
        rows.append([target["name"], target["nlpd"], target["z_nlpd"], *shares])
    caption = (
        "negative log density of the targets, and the share of rows inside central"
        " intervals, both of the normal distribution"
    )
    note = (
        "z-NLPD: in units of the target's standard deviation on the training rows;"
        " for intervals from held-out errors: --coverage"
    )
    table = words.Table(caption, ("target", "NLPD", "z-NLPD", *levels), rows)
    return [table, Paragraph(note, is_note=True)]
