"""What is said of a stored model's errors on data: by target, by class, or of clusters against labels."""

from typing import Any

import numpy as np

from rff_dist.classify.predict import Confusion, read_classes
from rff_dist.fitting import evaluation
from rff_dist.kmeans import labels
from rff_dist.ridge import uncertainty
from rff_dist.text import number, plus_minus, share
from rff_dist.typing import FloatArray, Summary
from rff_dist.workbench.jobs import predict, specs
from rff_dist.workbench.results import clusters, models, words
from rff_dist.workbench.results.document import Document, Paragraph, Part

type _Described = tuple[Summary, list[Part]]

#: Titles of the errors of a target, by their names in the record.
_TITLES = {"rmse": "RMSE", "z_rmse": "z-RMSE", "mae": "MAE", "bias": "bias", "largest": "largest", "r2": "R²"}


def errors_document(
    scoring: predict.ScoringModel, judged: predict.Judged, job: specs.Evaluate, run: Summary
) -> Document:
    """Return what the job `evaluate` found; `run`: what ran it, see `words.run_facts`."""
    n_samples = (judged.errors if isinstance(judged, uncertainty.Calibration) else judged).n_samples
    if isinstance(judged, labels.Contingency):
        known = clusters.describe_agreement(judged, job.source.y)
        described: _Described = {"agreement": known}, [clusters.agreement_facts(known)]
    elif isinstance(judged, Confusion):
        described = _classes(judged, scoring.model)
    else:
        described = _targets(judged, scoring.model)
    seconds = run["seconds"]["total"]
    record = {
        "model": job.model,
        "data": job.source.data,
        "n_samples": n_samples,
        **described[0],
        "engine": run["engine"],
        "seconds": seconds,
    }
    title = f"{job.model} on {job.source.data}: {n_samples:,} rows, {words.seconds_words(seconds)} s"
    return Document(title, described[1], record=record)


def _classes(confusion: Confusion, model: Any) -> _Described:
    columns = {"precision": confusion.precision, "recall": confusion.recall}
    per_class = [
        {
            "label": label,
            "n_samples": int(confusion.counts[i].sum()),
            "n_predicted": int(confusion.counts[:, i].sum()),
            **{name: float(values[i]) for name, values in columns.items()},
        }
        for i, label in enumerate(read_classes(model).tolist())
    ]
    record = {**confusion.to_dict(), "classes": per_class, "confusion_matrix": confusion.counts}
    log_loss = "none: the model has no probabilities"
    facts = {
        "accuracy": plus_minus(confusion.accuracy, confusion.accuracy_standard_error),
        "balanced accuracy": f"{number(confusion.balanced_accuracy)}, the mean recall of classes",
        "log loss": log_loss if confusion.log_loss is None else f"{number(confusion.log_loss)} nats",
    }
    rows = [list(row.values()) for row in per_class]
    return record, [facts, words.Table("", ("class", "rows", "predicted", *columns), rows)]


def _targets(judged: evaluation.Errors | uncertainty.Calibration, model: Any) -> _Described:
    calibration, errors = (None, judged) if isinstance(judged, evaluation.Errors) else (judged, judged.errors)
    rmse, deviation = np.sqrt(errors.mean_squared_error), np.sqrt(errors.target_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = {
            "rmse": rmse,
            "rmse_standard_error": errors.rmse_standard_error,
            "z_rmse": np.where(deviation > 0, rmse / deviation, np.nan),
            "mse": errors.mean_squared_error,
            "mae": errors.mean_absolute_error,
            "bias": errors.bias,
            "largest": errors.largest,
            "r2": errors.r2,
        }
    targets = [
        {"name": name, **{key: float(values[i]) for key, values in figures.items()}}
        for i, name in enumerate(models.target_names(model))
    ]
    rows = [[target["name"], *map(target.get, _TITLES)] for target in targets]
    note = Paragraph("z-RMSE: in units of the target's standard deviation here", is_note=True)
    parts: list[Part] = [words.Table("", ("target", *_TITLES.values()), rows), note]
    if calibration is not None:
        targets = [target | _calibration(calibration, i) for i, target in enumerate(targets)]
        parts += _calibration_parts(targets)
    return {"targets": targets}, parts


def _calibration(calibration: uncertainty.Calibration, target: int) -> Summary:
    def by_level(values: FloatArray) -> dict[str, float]:
        return dict(zip(map(str, uncertainty.LEVELS), values[:, target].tolist(), strict=True))

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
    rows = [
        [target["name"], target["nlpd"], target["z_nlpd"], *map(share, target["coverage"].values())]
        for target in targets
    ]
    caption = "negative log density of the targets, and the share of rows inside central intervals"
    note = Paragraph("z-NLPD: in units of the target's standard deviation on the training rows", is_note=True)
    return [words.Table(caption, ("target", "NLPD", "z-NLPD", *levels), rows), note]
