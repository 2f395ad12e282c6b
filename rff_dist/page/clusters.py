"""The page about clusters: their sizes, a map, and representative rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rff_dist.costs.clock import Times
from rff_dist.data.blocks import Dataset
from rff_dist.data.samples import sample_rows
from rff_dist.kmeans.starts import Clusters
from rff_dist.kmeans.view import view_clusters
from rff_dist.page.content import Page, words_of
from rff_dist.page.origin import lineage_section, time_section
from rff_dist.report import save_clusters
from rff_dist.text import redact


def clusters_page(
    dataset: Dataset,
    clusters: Clusters,
    *,
    place: str,
    candidates: Sequence[Mapping[str, Any]],
    times: Callable[[], Times],
    seed: int = 0,
) -> Page:
    """Return the page about clusters: their sizes, a map and representative rows.

    `candidates`: the numbers of clusters that were compared.
    `times`: returns the times of the job; called at the end.
    """
    page = Page(
        f"Report: {redact(place)}",
        f"{clusters.n_clusters:,} clusters of {dataset.n_samples:,} rows, by k-means in random features.",
    )
    sizes = np.asarray(clusters.weights, np.float64)
    order = np.argsort(sizes)[::-1]
    page.section("Sizes", f"Inertia {words_of(clusters.inertia)} after Lloyd pass {clusters.n_iter:,}.")
    page.table(
        "Clusters by size",
        ("cluster", "rows or weight", "share"),
        [(int(i), float(sizes[i]), f"{sizes[i] / sizes.sum():.1%}") for i in order[:50]],
    )
    if candidates:
        page.section("Number of clusters", f"{clusters.n_clusters:,} clusters have the largest silhouette.")
        measures = ("inertia", "silhouette")
        rows = [(f"{row['n_clusters']:,}", *(row[name] for name in measures)) for row in candidates]
        page.table("What was compared", ("clusters", *measures), rows)
    page.section(
        "Map",
        "A sample of rows in the two directions in which their features vary most. Numbers mark centres.",
    )
    view = view_clusters(dataset, clusters, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        drawn = save_clusters(Path(folder) / "map.png", view, title="Rows and centres")
        shares = " and ".join(f"{share:.0%}" for share in view.shares)
        page.picture(
            drawn.read_bytes(),
            f"{len(view.labels):,} rows and {clusters.n_clusters:,} centres in two principal components, "
            f"which hold {shares} of the variance.",
            "Similar clusters are neighbours here. Clusters that overlap may differ in other directions.",
        )
    X, _, _ = sample_rows(dataset.without_targets(), seed, n_rows=len(view.labels))
    Z = clusters.feature_map.transform(X, dtype=np.float64)
    names = dataset.column_names
    shown = min(10, X.shape[1])
    nearest = [int(np.square(Z - clusters.centres[i]).sum(axis=1).argmin()) for i in order[:20]]
    stand = [(int(i), *X[row, :shown].tolist()) for i, row in zip(order, nearest, strict=False)]
    first = "" if shown == X.shape[1] else f" Its first {shown} columns are shown."
    text = "For each of the largest clusters: the sampled row that is nearest to its centre."
    page.section("Representatives", text + first)
    page.table("Rows that represent their clusters", ("cluster", *map(str, names[:shown])), stand)
    lineage_section(page, clusters.card, clusters.digest())
    time_section(page, times)
    return page
