"""Find clusters of a dataset's rows, count them, compare them with known labels, and write them."""

from rff_dist import fields
from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs

_SHOWN_CLUSTERS, _SHOWN_PASSES = 20, 12


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
) -> shell.Report:
    """Cluster rows by k-means in random features, one pass for each Lloyd iteration; write their labels."""
    from rff_dist.workbench.jobs.cluster import cluster
    from rff_dist.workbench.results import clusters as results

    passes = display.Passes(where)
    result = cluster(job, passes.runner)
    dataset, found, seed = result.dataset, result.clusters, job.features.seed
    document = {
        "output": job.output,
        "arrays": ["labels", *(["distances"] if job.distances else [])],
        **display.describe_published(job.model, result.record),
        "plot": plot,
        "report": report,
        **fields.values_of(dataset, "n_samples", "n_features"),
        **results.describe_clusters(found),
        "seed": seed,
        **({} if result.comparison is None else result.comparison.to_dict()),
        "known_labels": None
        if result.agreement is None
        else results.describe_agreement(result.agreement, str(job.labels)),
        "digest": found.digest(),
    }
    if plot is not None:
        from rff_dist.workbench.page.pictures import save_clustering

        save_clustering(plot, dataset, found, seed=seed, title=job.source.data)
    if report is not None:
        from rff_dist.workbench.page import content, pages

        passes.at_work("report")
        page = pages.clusters_page(
            dataset,
            found,
            place=job.model or job.output,
            comparison=result.comparison,
            times=passes.clock.times,
            seed=seed,
        )
        content.write_page(page, report)
    document |= passes.facts()
    facts = results.job_facts(result, seed)
    arrays = ", ".join(document["arrays"])
    view = display.facts_view(f"wrote {job.output}", **facts, arrays=arrays, **display.run_facts(document))
    parts = [
        view,
        *([] if result.comparison is None else [results.numbers_table(result.comparison)]),
        results.sizes_table(found.weights, _SHOWN_CLUSTERS),
        results.passes_table(result.record["passes"], job.lloyd.numbers, _SHOWN_PASSES),
    ]
    following = [] if job.model is None else ["predict", job.model, "DATA", "OUT"]
    return shell.Report(document, parts, next=following)
