"""Measure the errors of a stored model on data: a regression, a classifier or clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rff_dist import fields
from rff_dist.engines.cluster import Cluster
from rff_dist.text import number
from rff_dist.typing import FloatArray
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Paragraph, Part

if TYPE_CHECKING:
    from rff_dist.classify.predict import Confusion
    from rff_dist.fitting import evaluation
    from rff_dist.kmeans import labels
    from rff_dist.ridge import models, uncertainty


@shell.command("rff-dist evaluate model test.zarr", "rff-dist evaluate model test.zarr --std --json")
def evaluate(job: specs.Evaluate, where: Cluster) -> Document:
    """Measure a model's errors on a dataset: by target, by class, or of clusters against labels (`y`)."""
    from rff_dist.workbench.jobs import predict

    passes = display.Passes(where)
    errors: Any  # a type for each kind of model
    scoring, errors = predict.evaluate(job, passes.runner)
    run = passes.facts()
    about = {"model": job.model, "data": job.source.data}
    ran = {"engine": run["engine"], "seconds": run["seconds"]["total"]}
    model: Any = scoring.model
    if scoring.kind == "clusters":
        return _clusters_report(errors, job.source.y, about, ran)
    if scoring.kind == "classifier":
        return _classifier_report(errors, model, about, ran)
    return _regression_report(errors, model, about, ran)


def _title(about: Mapping[str, str], n_samples: int, seconds: float) -> str:
    return f"{about['model']} on {about['data']}: {n_samples:,} rows, {words.seconds_words(seconds)} s"


def _clusters_report(
    judged: labels.Contingency, y: str, about: Mapping[str, str], ran: Mapping[str, Any]
) -> Document:
    from rff_dist.workbench.results import clusters

    known = clusters.describe_agreement(judged, y)
    record = {**about, "n_samples": judged.n_samples, "agreement": known, **ran}
    title = _title(about, judged.n_samples, ran["seconds"])
    return Document(title, [clusters.agreement_facts(known)], record=record)


def _classifier_report(
    confusion: Confusion, model: models.RidgeModel, about: Mapping[str, str], ran: Mapping[str, Any]
) -> Document:
    from rff_dist.classify.predict import read_classes

    classes = read_classes(model)
    columns = {"precision": confusion.precision, "recall": confusion.recall}
    per_class = [
        {
            "label": label,
            "n_samples": int(confusion.counts[i].sum()),
            "n_predicted": int(confusion.counts[:, i].sum()),
            **{name: float(values[i]) for name, values in columns.items()},
        }
        for i, label in enumerate(classes.tolist())
    ]
    record = {
        **about,
        **fields.values_of(confusion, "n_samples", "accuracy", "balanced_accuracy", "log_loss"),
        "classes": per_class,
        "confusion_matrix": confusion.counts,
        **ran,
    }
    log_loss = "none: the model has no probabilities"
    facts = {
        "accuracy": number(confusion.accuracy),
        "balanced accuracy": f"{number(confusion.balanced_accuracy)}, the mean recall of classes",
        "log loss": log_loss if confusion.log_loss is None else f"{number(confusion.log_loss)} nats",
    }
    rows = [list(row.values()) for row in per_class]
    table = words.Table("", ("class", "rows", "predicted", *columns), rows)
    title = _title(about, confusion.n_samples, ran["seconds"])
    return Document(title, [facts, table], record=record)


def _regression_report(
    judged: evaluation.Errors | uncertainty.Calibration,
    model: models.RidgeModel,
    about: Mapping[str, str],
    ran: Mapping[str, Any],
) -> Document:
    import numpy as np

    from rff_dist.ridge.uncertainty import Calibration
    from rff_dist.workbench.results import models as results

    calibration, errors = (judged, judged.errors) if isinstance(judged, Calibration) else (None, judged)
    rmse, deviation = np.sqrt(errors.mean_squared_error), np.sqrt(errors.target_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {
            "rmse": rmse,
            "z_rmse": np.where(deviation > 0, rmse / deviation, np.nan),
            "mse": errors.mean_squared_error,
            "mae": errors.mean_absolute_error,
            "bias": errors.bias,
            "largest": errors.largest,
            "r2": errors.r2,
        }
    targets = [
        {"name": name, **{key: float(values[i]) for key, values in columns.items()}}
        for i, name in enumerate(results.target_names(model))
    ]
    if calibration is not None:
        for i, target in enumerate(targets):
            target |= _describe_calibration(calibration, i)
    record = {**about, "n_samples": errors.n_samples, "targets": targets, **ran}
    title = _title(about, errors.n_samples, ran["seconds"])
    rows = [[target[key] for key in ("name", *columns) if key != "mse"] for target in targets]
    table = words.Table("", ("target", "RMSE", "z-RMSE", "MAE", "bias", "largest", "R²"), rows)
    note = Paragraph("z-RMSE: in units of the target's standard deviation here", is_note=True)
    more = [] if calibration is None else _calibration_parts(targets)
    return Document(title, [table, note, *more], record=record)


def _describe_calibration(calibration: uncertainty.Calibration, target: int) -> dict[str, Any]:
    from rff_dist.ridge.uncertainty import LEVELS

    def by_level(values: FloatArray) -> dict[str, float]:
        return dict(zip(map(str, LEVELS), values[:, target].tolist(), strict=True))

    return {
        "nlpd": float(calibration.nlpd[target]),
        "z_nlpd": float(calibration.standardized_nlpd[target]),
        "mean_squared_score": float(calibration.mean_squared_score[target]),
        "mean_std": float(calibration.mean_standard_deviation[target]),
        "coverage": by_level(calibration.coverage),
        "mean_width": by_level(calibration.mean_widths),
    }


def _calibration_parts(targets: Sequence[Mapping[str, Any]]) -> list[Part]:
    columns = {"NLPD": "nlpd", "z-NLPD": "z_nlpd"}
    levels = [f"{float(level):.0%}" for level in targets[0]["coverage"]]
    rows = []
    for target in targets:
        shares = [f"{share:.1%}" for share in target["coverage"].values()]
        rows.append([target["name"], *(target[key] for key in columns.values()), *shares])
    caption = "negative log density of the targets, and the share of rows inside central intervals"
    note = Paragraph("z-NLPD: in units of the target's standard deviation on the training rows", is_note=True)
    return [words.Table(caption, ("target", *columns, *levels), rows), note]
