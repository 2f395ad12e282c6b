"""Train a model, as a Prefect flow.

Give parameters as NAME=VALUE, with values as those of the command line's flags::

    python flows/train.py data=train.zarr model=nightly n_components=512
"""

from rff_dist.flows import script
from rff_dist.flows.train import TrainParameters, train

if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
    script.run_script(train, TrainParameters)
