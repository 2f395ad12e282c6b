"""Score a dataset with a model, as a Prefect flow.

Give parameters as NAME=VALUE; a value is JSON or text::

    python flows/predict.py model=nightly data=test.zarr output=predictions.zarr
"""

from rff_dist.flows.predict import PredictParameters, predict
from rff_dist.flows.script import run_script

__all__ = ["PredictParameters", "predict"]

if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
    run_script(predict, PredictParameters)
