"""Append the rows of new files to a dataset, as a Prefect flow.

Give parameters as NAME=VALUE, with values as those of the command line's flags::

    python flows/ingest.py 'sources=sales/*.csv' data=sales.zarr targets=price
"""

from rff_dist.flows import script
from rff_dist.flows.ingest import IngestParameters, ingest

if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
    script.run_script(ingest, IngestParameters)
