"""Score a dataset with a model, as a Prefect flow.

Give parameters as NAME=VALUE, with values as those of the command line's flags::

    python flows/predict.py model=nightly data=test.zarr output=predictions.zarr
"""

from rff_dist.flows import script
from rff_dist.flows.predict import PredictParameters, predict

if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
    script.run_script(predict, PredictParameters)
