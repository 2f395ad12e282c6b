"""Write the predictions of a stored model."""

from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results.document import Document


@shell.command(
    "rff-dist predict model new.zarr predictions.zarr",
    "rff-dist predict model new.csv predictions.csv --coverage 0.9",
    "rff-dist predict classifier new.zarr labels.zarr --probabilities",
    "rff-dist predict clusters new.zarr labels.zarr --distances",
)
def predict(job: specs.Predict, where: Cluster) -> Document:
    """Write a model's predictions for every row of a dataset or a table, to Zarr, Parquet or CSV."""
    from rff_dist.workbench.jobs.predict import predict
    from rff_dist.workbench.results.rows import predicted_document

    passes = display.Passes(where)
    return predicted_document(predict(job, passes.runner), passes.facts())
