"""Cluster the rows of a dataset, as a Prefect flow whose tasks are the job's steps.

Labels appear when all are written and the centres are published; a picture of them is
saved next to the labels, if these are in a folder of this machine::

    python flows/cluster.py data=data.zarr output=labels.zarr n_clusters=50
"""

from rff_dist.flows import reports
from rff_dist.flows.running import FlowRun, job_flow
from rff_dist.flows.script import run_script
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import cluster as job
from rff_dist.workbench.jobs import specs


@job_flow(specs.Clustering, publishes=True)
def cluster(options: specs.Clustering, run: FlowRun) -> Summary:
    """Cluster rows by k-means in random features; publish their labels and centres.

    Returns JSON values: where labels, model and picture are, sizes of the data and the
    clusters, the inertia of each pass, and how well known labels agree.
    """
    picture = reports.find_picture(options)
    clustered = job.cluster(options, run.runner())
    return reports.show_clustering(clustered, options, run, picture)


if __name__ == "__main__":  # the embedded Dask cluster imports this file too
    run_script(cluster)
