"""Find clusters of a dataset's rows, count them, compare them with known labels, and write them."""

from rff_dist import fields
from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results.document import Document


@shell.command(
    "rff-dist cluster data.zarr labels.zarr --n-clusters 50",
    "rff-dist cluster data.zarr labels.zarr --n-clusters 2,4,8,16 --n-init 4 --model clusters",
    "rff-dist cluster digits.zarr labels.zarr --n-clusters 10 --labels digit --length-scale 4",
)
def cluster(
    job: specs.Clustering,
    where: Cluster,
    plot: str | None = fields.option(
        "Draw a sample of rows and their clusters: in two kernel principal components.",
        None,
        unit="PNG",
        writes=True,
    ),
    report: str | None = shell.REPORT,
) -> Document:
    """Cluster rows by k-means in random features, one pass for each Lloyd iteration; write their labels."""
    from rff_dist.workbench.jobs.cluster import cluster
    from rff_dist.workbench.results import clusters

    passes = display.Passes(where)
    clustered = cluster(job, passes.runner)
    if plot is not None:
        from rff_dist.workbench.page.pictures import save_clustering

        seed, title = job.space.seed, job.source.data
        save_clustering(plot, clustered.dataset, clustered.clusters, seed=seed, title=title)
    passes.write_page(report, clustered, job)
    return clusters.clustering_document(clustered, job, {"plot": plot, "report": report, **passes.facts()})
