"""Train a model, as a Prefect flow whose tasks are the steps of the job.

Its parameters are the options of `rff-dist fit`, checked before the run starts::

    python flows/train.py data=train.zarr model=nightly n_components=512
"""

from rff_dist.flows import reports
from rff_dist.flows.running import FlowRun, job_flow
from rff_dist.flows.script import run_script
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import specs, trees
from rff_dist.workbench.jobs import train as job


@job_flow(specs.Train, publishes=True)
def train(options: specs.Train, run: FlowRun) -> Summary:
    """Train a ridge regression or a classifier on random features, and publish it.

    Returns JSON values: where the model is and its digest, sizes, what was chosen, its
    errors by cross-validation and on test data, and the comparison with other models.
    """
    do = run.runner()
    trained = job.train(options, do)
    if options.test is not None:
        trained = do("baselines", trees.with_trees, trained, options.options.seed)
    return reports.show_training(trained, options, run)


if __name__ == "__main__":  # the embedded Dask cluster imports this file too
    run_script(train)
