"""Find clusters of a dataset's rows, count them, compare them with known labels, and write them."""

from pathlib import Path
from typing import Annotated

import typer

from rff_dist.workbench.cli import display, options, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.jobs.options import Where
from rff_dist.workbench.results.document import Document


@shell.command(
    "rff-dist cluster data.zarr labels.zarr --clusters 50",
    "rff-dist cluster data.zarr labels.zarr --clusters 2,4,8,16 --starts 4 --model clusters",
    "rff-dist cluster digits.zarr labels.zarr --clusters 10 --labels digit --length-scale 4",
)
def cluster(
    job: specs.Clustering,
    where: Where,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="PNG",
            help="Draw a sample of rows and their clusters: in two kernel principal components.",
        ),
    ] = None,
    report: options.ReportPath = None,
) -> Document:
    """Cluster rows by k-means in random features, one pass for each Lloyd iteration; write their labels."""
    from rff_dist.workbench.jobs.cluster import cluster
    from rff_dist.workbench.results import clusters

    passes = display.Passes(where)
    clustered = cluster(job, passes.runner)
    if plot is not None:
        from rff_dist.workbench.page.pictures import save_clustering

        seed, title = job.features.seed, job.source.data
        save_clustering(plot, clustered.dataset, clustered.clusters, seed=seed, title=title)
    if report is not None:
        from rff_dist.workbench.page import pages
        from rff_dist.workbench.results import html

        passes.at_work("report")
        html.write_page(pages.clusters_page(clustered, job, times=passes.clock.times), report)
    return clusters.clustering_document(clustered, job, {"plot": plot, "report": report, **passes.facts()})
