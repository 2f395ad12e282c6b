"""Compare given kernels and length scales on all rows, as a Prefect flow.

The best model is published. The tasks are those of `train.py`, which tries its own
candidates on a sample of rows first; here all meet with all their components, in as few
readings of the data as memory allows::

    python flows/tune.py data=train.zarr model=nightly 'kernels=gaussian,laplacian'
"""

from rff_dist.flows import reports
from rff_dist.flows.running import FlowRun, job_flow
from rff_dist.flows.script import run_script
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import specs, trees
from rff_dist.workbench.jobs import train as job


@job_flow(specs.Tune, publishes=True)
def tune(options: specs.Tune, run: FlowRun) -> Summary:
    """Compare kernels, length scales, alphas and D by k-fold cross-validation.

    Returns JSON values, as `train` does.
    """
    do = run.runner()
    trained = job.train(options, do)
    if options.test is not None:
        trained = do("baselines", trees.with_trees, trained, options.options.seed)
    return reports.show_training(trained, options, run)


if __name__ == "__main__":  # the embedded Dask cluster imports this file too
    run_script(tune)
