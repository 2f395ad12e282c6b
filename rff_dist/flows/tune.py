"""The Prefect flow that compares given kernels and length scales on all rows, and publishes the best model.

The steps are those of `train.py`. The candidates share one reading of the data, or as few
as memory allows, and are compared with all their components. `train.py` first tries its own on a sample.

Run it in a process of its own::

    from rff_dist.flows.tune import tune

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        tune(data="data.zarr", model="model", n_components=[256, 512, 1024])

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from rff_dist.engines.cluster import Cluster
from rff_dist.flows import common, running
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import specs


class TuneParameters(running.Form):
    """What to compare, on which rows, and where."""

    specs = (specs.Tune, Cluster, running.Limits)


@running.job_flow("tune", TuneParameters, publishes=True)
def tune(parameters: TuneParameters) -> Summary:
    """Compare kernels, length scales, alphas and D by k-fold cross-validation; publish the best model.

    Returns: JSON-able: where the model is and its digest, sizes, what was chosen from which candidates, its
      errors by cross-validation as `estimate`, the metrics on test data (None without any), and the
      `comparison` with other models, whose `verdict` comes first in the artifacts.
    Raises the RFFDistError of the step that failed; then nothing is published. If publishing fails, the
      trained model is kept next to the output, and the error says where.
    """
    return common.train_model(parameters, specs.Tune, name="tune")
