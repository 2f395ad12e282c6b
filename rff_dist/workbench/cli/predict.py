"""Write the predictions of a stored model."""

from typing import Any

from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs


@shell.command(
    "rff-dist predict model new.zarr predictions.zarr",
    "rff-dist predict model new.csv predictions.csv --coverage 0.9",
    "rff-dist predict classifier new.zarr labels.zarr --probabilities",
    "rff-dist predict clusters new.zarr labels.zarr --distances",
)
def predict(job: specs.Predict, where: Cluster) -> shell.Report:
    """Write a model's predictions for every row of a dataset or a table, to Zarr, Parquet or CSV."""
    from rff_dist.workbench.jobs.predict import predict
    from rff_dist.workbench.results.rows import predicted_facts

    passes = display.Passes(where)
    predicted = predict(job, passes.runner)
    model, record, run = predicted.model, predicted.record, passes.facts()
    document = {
        "output": job.output,
        "array": record["arrays"][0],
        **_describe_outputs(model.kind, model.model, job),
        "n_samples": record["n_samples"],
        "model_digest": model.digest,
        "engine": run["engine"],
        "seconds": run["seconds"]["total"],
    }
    facts = {**predicted_facts(predicted), **display.run_facts(run)}
    return shell.Report(document, [display.facts_view(f"wrote {job.output}", **facts)])


def _describe_outputs(kind: str, model: Any, job: specs.Predict) -> dict[str, Any]:
    if kind == "clusters":
        distances = "distances" if job.distances else None
        return {"distances_array": distances, "n_clusters": model.n_clusters}
    by = "normal law" if model.held_out is None else "cross-validated residuals"
    interval = {"coverage": job.coverage, "arrays": ["lower", "upper"], "by": by}
    return {
        "std_array": "standard_deviations" if job.std else None,
        "interval": None if job.coverage is None else interval,
        "probabilities_array": "probabilities" if job.probabilities else None,
        "n_targets": model.n_targets,
    }
