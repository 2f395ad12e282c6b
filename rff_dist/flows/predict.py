"""The Prefect flow that scores a dataset with a model, in one pass that writes predictions or labels to Zarr.

Of a registered model it uses the version that is current when the run begins. Run it in a process of its
own::

    from rff_dist.flows.predict import predict

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        predict(model="models/main", data="new.zarr", output="predictions.zarr")
"""

from rff_dist.engines.clock import Clock
from rff_dist.engines.cluster import Cluster
from rff_dist.flows import common, running
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import predict as score
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results.rows import predicted_document


class PredictParameters(running.Form):
    """Which rows to score with which model."""

    specs = (specs.Predict, Cluster, running.Limits)


@running.job_flow(
    "predict",
    PredictParameters,
    resume="It goes on from the rows that were written, if model and data have not changed, and the output "
    "appears when it is complete. If a registered model has another current version by then, or for tables "
    "and in object stores, all rows are scored again.",
)
def predict(parameters: PredictParameters) -> Summary:
    """Write a model's predictions or labels for every row of a dataset to Zarr.

    Returns: JSON-able: what was written where, by which version of which model, and the rows and seconds.
    Raises RFFDistError if something does not fit or the pass fails; an output that was there is unchanged.
    """
    job, clock = parameters.to(specs.Predict), Clock()
    predicted = score.predict(job, running.runner_of(parameters, clock=clock))
    common.show("predict-summary", predicted_document(predicted, common.run_of(clock)))
    return predicted.record
