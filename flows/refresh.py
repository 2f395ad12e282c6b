"""Add the new rows of a dataset to a model, as a Prefect flow.

Give parameters as NAME=VALUE, with values as those of the command line's flags::

    python flows/refresh.py data=sales.zarr model=models/price
"""

from rff_dist.flows import script
from rff_dist.flows.refresh import RefreshParameters, refresh

if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
    script.run_script(refresh, RefreshParameters)
