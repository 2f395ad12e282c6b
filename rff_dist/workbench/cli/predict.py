"""Write the predictions of a stored model."""

from typing import Any

from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import options, specs


@shell.command(
    "rff-dist predict model new.zarr predictions.zarr",
    "rff-dist predict model new.csv predictions.csv --interval 0.9",
    "rff-dist predict classifier new.zarr labels.zarr --probabilities",
    "rff-dist predict clusters new.zarr labels.zarr --distances",
)
def predict(job: specs.Predict, where: options.Where) -> shell.Report:
    """Write a model's predictions for every row of a dataset or a table, to Zarr, Parquet or CSV."""
    from rff_dist.workbench.jobs.predict import predict

    passes = display.Passes(where)
    found = predict(job, passes.runner)
    model, written = found.model, found.record
    ran = passes.facts()
    arrays, n_samples, seconds = written["arrays"], written["n_samples"], ran["seconds"]["total"]
    outputs, facts = _describe_outputs(model.kind, model.model, job)
    document = {
        "output": job.output,
        "array": arrays[0],
        **facts,
        "n_samples": n_samples,
        "model_digest": model.digest,
        "engine": ran["engine"],
        "seconds": seconds,
    }
    view = display.facts_view(
        f"wrote {job.output}",
        rows=f"{n_samples:,}, {outputs}",
        array=", ".join(arrays),
        model=f"{job.model} ({model.digest[:16]})",
        ran_on=display.engine_words(ran["engine"]),
        seconds=display.seconds_words(seconds),
    )
    return shell.Report(document, view)


def _describe_outputs(kind: str, model: Any, job: specs.Predict) -> tuple[str, dict[str, Any]]:
    """Return what is written for each row, in words and for the JSON document."""
    if kind == "clusters":
        distances = "distances" if job.distances else None
        words = display.plural(model.n_clusters, "cluster")
        return words, {"distances_array": distances, "n_clusters": model.n_clusters}
    by = "normal law" if model.held_out is None else "cross-validated residuals"
    interval = {"coverage": job.interval, "arrays": ["lower", "upper"], "by": by}
    facts = {
        "std_array": "standard_deviations" if job.std else None,
        "interval": None if job.interval is None else interval,
        "probabilities_array": "probabilities" if job.probabilities else None,
        "n_targets": model.n_targets,
    }
    if kind == "classifier":
        return display.plural(len(model.card["classifier"]["classes"]), "class", "classes"), facts
    return display.plural(model.n_targets, "target"), facts
