"""Score a dataset with a model, as a Prefect flow: one pass, which writes to Zarr.

A registered model is used in the version that is current when the run begins::

    python flows/predict.py model=models/main data=new.zarr output=predictions.zarr
"""

from rff_dist.flows import reports
from rff_dist.flows.running import FlowRun, job_flow
from rff_dist.flows.script import run_script
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import predict as job
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results.rows import predicted_document

RESUME = (
    "It goes on from the rows that were written, if model and data have not changed,"
    " and the output appears when it is complete. If a registered model has another"
    " current version by then, or for tables and in object stores, all rows are scored"
    " again."
)


@job_flow(specs.Predict, resume=RESUME)
def predict(options: specs.Predict, run: FlowRun) -> Summary:
    """Write a model's predictions or labels for every row of a dataset to Zarr.

    Returns JSON values: what was written where, by which version of which model, and
    the rows and seconds. If the pass fails, an output that was there is unchanged.
    """
    predicted = job.predict(options, run.runner())
    summary = predicted_document(predicted, run.describe())
    reports.show_summary("predict-summary", summary)
    return predicted.record


if __name__ == "__main__":  # the embedded Dask cluster imports this file too
    run_script(predict)
