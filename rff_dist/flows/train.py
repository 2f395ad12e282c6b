"""The Prefect flow that trains a model: inspect → choose → draw → broadcast → accumulate → solve → publish.

Cross-validation chooses the kernel, length scale, kind and number of features, and penalty that are left out.
Each task is a step of `rff_dist.workbench.jobs.train`. What steps hand on to each other stays in memory, and
Prefect never sees it; the trained model lies next to the output until it is published.

Run it in a process of its own::

    from rff_dist.flows.train import train

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        train(data="data.zarr", model="model")

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from rff_dist.engines.cluster import Cluster
from rff_dist.flows import common, running
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import specs


class TrainParameters(running.Form):
    """What to train, on which rows, and where."""

    specs = (specs.Train, Cluster, running.Limits)


@running.job_flow("train", TrainParameters, publishes=True)
def train(parameters: TrainParameters) -> Summary:
    """Train a ridge regression or a classifier on random features, and publish the model.

    Returns: JSON-able: where the model is and its digest, sizes, what was chosen from which candidates, its
      errors by cross-validation as `estimate`, the metrics on test data (None without any), and the
      `comparison` with other models, whose `verdict` comes first in the artifacts.
    Raises the RFFDistError of the step that failed; then nothing is published. If publishing fails, the
      trained model is kept next to the output, and the error says where.
    """
    return common.train_model(parameters, specs.Train, name="train")
