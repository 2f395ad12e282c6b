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
    page: shell.Page,
    plot: str | None = fields.option(
        "Draw a sample of rows and their clusters: in two kernel principal components.",
        None,
        unit="PNG",
        writes=True,
    ),
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
    if page.report is not None:
        from rff_dist.workbench.page import pages
        from rff_dist.workbench.results import html

        passes.at_work("report")
        use = page.intended_use
        html.write_page(
            pages.clusters_page(clustered, job, times=passes.clock.times, intended_use=use), page.report
        )
    run = {"plot": plot, "report": page.report, **passes.facts()}
    return clusters.clustering_document(clustered, job, run)
