"""Clusters in words and for JSON documents, for all commands that show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rff_dist.cli.display import plural
from rff_dist.text import number

if TYPE_CHECKING:
    from rff_dist.kmeans.agreement import Contingency
    from rff_dist.kmeans.starts import Clusters


def describe_clusters(found: Clusters) -> dict[str, Any]:
    """Return the facts of clusters for the JSON document."""
    from rff_dist.features.kernel_of import kernel_of
    from rff_dist.kernels.stationary import own_length_scale

    kernel = kernel_of(found.feature_map)
    return {
        "n_clusters": found.n_clusters,
        "n_filled": found.n_filled,
        "n_components": found.feature_map.n_components,
        "features": found.feature_map.kind,
        "kernel": None if kernel is None else kernel.to_dict(),
        "length_scale": own_length_scale(kernel),
        "sizes": found.weights,
        "inertia": found.inertia,
        "inertias": found.inertias,
        "start_inertias": found.start_inertias,
        "n_passes": found.n_iter,
        "converged": found.converged,
    }


def describe_agreement(agreement: Contingency, name: str) -> dict[str, Any]:
    """Return how well clusters agree with known labels, for the JSON document."""
    return {
        "name": name,
        "adjusted_rand_index": agreement.adjusted_rand_index,
        "normalized_mutual_information": agreement.normalized_mutual_information,
        "labels": agreement.labels.tolist(),
        "counts": agreement.counts,
    }


def clusters_words(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of `describe_clusters` in words."""
    clusters, inertia = f"{found['n_clusters']:,}", number(found["inertia"])
    if found["n_filled"] < found["n_clusters"]:
        clusters += f", [yellow]{found['n_filled']:,} with rows[/]: there are no more distinct rows"
    if (n_starts := len(found["start_inertias"])) > 1:
        inertia += f", the least of {n_starts} starts (the largest: {number(max(found['start_inertias']))})"
    n_passes = plural(found["n_passes"], "pass", "passes")
    still = f"[yellow]centres still moved[/] after {n_passes}; raise --max-passes or --tol"
    lloyd = f"converged after {n_passes}" if found["converged"] else still
    return {"clusters": clusters, "inertia": inertia, "Lloyd": lloyd}


def agreement_words(known: Mapping[str, Any]) -> str:
    """Return the agreement of `describe_agreement` in words."""
    index, information = known["adjusted_rand_index"], known["normalized_mutual_information"]
    return f"ARI {number(index)}, NMI {number(information)}, {plural(len(known['labels']), 'label')}"
