"""The Prefect flow that clusters the rows of a dataset, and publishes labels, centres and a picture.

Each task is a step of `rff_dist.workbench.jobs.cluster`: inspect → draw → broadcast → measure → start → one
for each Lloyd pass → choose, of several numbers of clusters → assign → compare, with known labels → publish.
Between tasks the centres stay in this process. The labels appear when all are written and the model is
published.

Run it in a process of its own::

    from rff_dist.flows.cluster import cluster

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        cluster(data="data.zarr", output="labels.zarr", model="model", n_clusters=50)

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from pathlib import Path
from typing import Any

from rff_dist.engines.clock import Clock
from rff_dist.engines.cluster import Cluster
from rff_dist.flows import common, running
from rff_dist.kmeans import fit
from rff_dist.storage import locations, output_places
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import cluster as clustering
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.page import pictures
from rff_dist.workbench.results import clusters


class ClusterParameters(running.Form):
    """What to cluster, how, and where."""

    specs = (specs.Clustering, Cluster, running.Limits)


def _log_pass(log: Any, done: fit.LloydPass) -> None:
    log.info("pass %d: inertia %.8g, shift %.3g", done.number, done.inertia, done.shift)


@running.job_flow("cluster", ClusterParameters, publishes=True)
def cluster(parameters: ClusterParameters) -> Summary:
    """Cluster rows by k-means in random features; publish their labels and the centres.

    Returns: JSON-able: where labels, model and picture are, the model's digest, sizes of the data, the
      inertia, sizes of at most 1,000 clusters, each pass, the numbers of clusters that were compared (None
      for one), and how well known labels agree (None without any).
    Raises the RFFDistError of the step that failed. Labels and centres are then not published, unless a note
      on the error says so, or only the picture cannot be drawn.
    """
    job, clock = parameters.to(specs.Clustering), Clock()
    location = locations.parse_location(job.output)
    # next to the labels, unless these are in no folder of this machine
    picture = Path(f"{location.path}.png") if location.is_local else None
    if picture is not None and picture.parent.is_dir():  # else the job makes the folder
        output_places.check_file(locations.parse_location(picture), overwrite=job.overwrite)
    runner = running.runner_of(parameters, {"pass": _log_pass}, clock=clock)
    clustered = clustering.cluster(job, runner)
    if job.register and job.model is not None:
        common.show_versions(job.model)
    clock.begin("report")
    if picture is not None:
        title, seed = Path(job.output).name, job.space.seed
        figure = pictures.draw_clustering(clustered.dataset, clustered.clusters, seed=seed, title=title)
        pictures.save(figure, picture)
    common.show_page("cluster-page", clustered, job, clock)
    plot = None if picture is None else str(picture)
    found = clusters.clustering_document(clustered, job, {"plot": plot, **common.run_of(clock)})
    common.show("cluster-summary", found)
    passes = clustered.record["passes"]
    passes = [{name: value for name, value in row.items() if name != "inertias"} for row in passes]
    return {**clustered.record, "picture": plot, "passes": passes}
