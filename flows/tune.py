"""Compare given kernels and length scales, and train the best, as a Prefect flow.

Give parameters as NAME=VALUE, with values as those of the command line's flags::

    python flows/tune.py data=train.zarr model=best kernels=gaussian,cauchy
"""

from rff_dist.flows import script
from rff_dist.flows.tune import TuneParameters, tune

if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
    script.run_script(tune, TuneParameters)
