"""Cluster the rows of a dataset, as a Prefect flow.

Give parameters as NAME=VALUE, with values as those of the command line's flags::

    python flows/cluster.py data=train.zarr output=labels.zarr n_clusters=5
"""

from rff_dist.flows import script
from rff_dist.flows.cluster import ClusterParameters, cluster

if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
    script.run_script(cluster, ClusterParameters)
