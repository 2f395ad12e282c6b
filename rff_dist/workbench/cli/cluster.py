"""Find clusters of a dataset's rows, count them, compare them with known labels, and write them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.text import number
from rff_dist.workbench.cli import display, options, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.jobs.options import Where

_SHOWN_CLUSTERS, _SHOWN_PASSES = 20, 12


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
) -> shell.Report:
    """Cluster rows by k-means in random features, one pass for each Lloyd iteration; write their labels."""
    from rff_dist.workbench.jobs.cluster import cluster

    passes = display.Passes(where)
    result = cluster(job, passes.runner)
    dataset, found, seed = result.dataset, result.clusters, job.features.seed
    document = {
        "output": job.output,
        "arrays": ["labels", *(["distances"] if job.distances else [])],
        **display.describe_published(job.model, result.record),
        "plot": plot,
        "report": report,
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        **display.describe_clusters(found),
        "seed": seed,
        **({} if result.comparison is None else result.comparison.to_dict()),
        "known_labels": None
        if result.agreement is None
        else display.describe_agreement(result.agreement, str(job.labels)),
        "digest": found.digest(),
    }
    if plot is not None:
        from rff_dist.workbench.page.pictures import save_clustering

        save_clustering(plot, dataset, found, seed=seed, title=job.source.data)
    if report is not None:
        from rff_dist.workbench.page.content import write_page
        from rff_dist.workbench.page.pages import clusters_page

        passes.at_work("report")
        page = clusters_page(
            dataset,
            found,
            place=job.model or job.output,
            candidates=document.get("candidates", []),
            times=passes.clock.times,
            seed=seed,
        )
        write_page(page, report)
    document |= passes.facts()
    return shell.Report(document, _view(document))


def _view(found: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [_facts(found)]
    if "candidates" in found:
        parts += ["", _candidates_view(found)]
    parts += ["", _sizes_view(found), "", _passes_view(found["inertias"])]
    if found["model"] is not None:
        parts.append(display.next_step("rff-dist", "predict", found["model"], "DATA", "OUT"))
    return Group(*parts)


def _facts(found: Mapping[str, Any]) -> RenderableType:
    kernel, known, model = found["kernel"], found["known_labels"], found["model"]
    facts: display.ShownFacts = {
        "rows": f"{found['n_samples']:,}, {display.plural(found['n_features'], 'feature')}",
        "features": f"D = {found['n_components']:,}, {found['features']}, seed {found['seed']}",
        "kernel": None if kernel is None else display.kernel_words(kernel),
        **display.clusters_words(found),
        **({} if known is None else {f"against {known['name']}": display.agreement_words(known)}),
        "arrays": ", ".join(found["arrays"]),
        "model": None if model is None else f"{model} ({found['digest'][:16]})",
        **display.version_facts(found),
        **display.run_facts(found),
    }
    return display.facts_view(f"wrote {found['output']}", **facts)


def _sizes_view(found: Mapping[str, Any]) -> RenderableType:
    """Return the largest clusters as a table."""
    sizes = [float(size) for size in found["sizes"]]
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    total = sum(sizes) or 1.0
    view, table = display.titled_table("clusters by size", "cluster", "rows or weight", "share")
    for i in order[:_SHOWN_CLUSTERS]:
        table.add_row(str(i), number(sizes[i]), f"{sizes[i] / total:.1%}")
    if len(order) > _SHOWN_CLUSTERS:
        return Group(view, Text(f"… and {len(order) - _SHOWN_CLUSTERS} smaller ones", "dim"))
    return view


def _passes_view(inertias: Sequence[float]) -> RenderableType:
    """Return the inertia of each pass as a table; of many passes, the first and the last ones."""
    view, table = display.titled_table("inertia at the beginning of each pass", "pass", "inertia", "fell by")
    half = _SHOWN_PASSES // 2
    for i, inertia in enumerate(inertias):
        if len(inertias) > _SHOWN_PASSES and half <= i < len(inertias) - half:
            if i == half:
                table.add_row("…", "", "")
            continue
        before = inertias[i - 1] if i else 0.0
        fell = number((before - inertia) / before) if i and before > 0 else ""
        table.add_row(str(i + 1), number(inertia), fell)
    return view


def _candidates_view(found: Mapping[str, Any]) -> RenderableType:
    view, table = display.titled_table(
        "numbers of clusters, by silhouette", "clusters", "inertia", "silhouette", ""
    )
    for row in found["candidates"]:
        best = row["n_clusters"] == found["n_clusters"]
        table.add_row(
            f"{row['n_clusters']:,}",
            number(row["inertia"]),
            number(row["silhouette"]),
            "← chosen" if best else "",
            style="bold" if best else None,
        )
    note = f"silhouette: on {found['n_sampled']:,} rows in features"
    return Group(view, Text(note, "dim"))
