"""What is said of clusters: how they were found, their sizes, and the numbers that were compared."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rff_dist import fields
from rff_dist.features import kinds
from rff_dist.kernels import stationary
from rff_dist.kmeans import fit, labels
from rff_dist.storage import records
from rff_dist.text import number, some
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.jobs import cluster, specs
from rff_dist.workbench.results import models, words
from rff_dist.workbench.results.document import Document, Part
from rff_dist.workbench.results.words import Alert, Lines, Table

_SHOWN_CLUSTERS, _SHOWN_PASSES = 20, 12


def clustering_document(clustered: cluster.Clustered, job: specs.Clustering, run: Summary) -> Document:
    """Return what a job found that clustered rows.

    `run`: what ran it, see `words.run_facts`.
    """
    found, seed, comparison = clustered.clusters, job.space.seed, clustered.comparison
    record = {
        **clustered.record,
        "features": found.feature_map.kind,
        "length_scale": stationary.own_length_scale(kinds.kernel_of(found.feature_map)),
        "sizes": found.weights,
        **fields.values_of(found, "inertias", "start_inertias"),
        **({} if comparison is None else comparison.to_dict()),
        "arrays": ["labels", *(name for name in ("distances", "principal") if getattr(job, name))],
        "seed": seed,
        **run,
    }
    if clustered.agreement is not None:
        record["agreement"] = describe_agreement(clustered.agreement, job.labels)
    facts = _job_facts(record) | words.run_facts(run)
    parts: list[Part] = [] if comparison is None else [numbers_table(comparison)]
    parts.append(sizes_table(found.weights, _SHOWN_CLUSTERS))
    parts.append(passes_table(record["passes"], job.lloyd.numbers))
    following = [] if job.model is None else [["predict", job.model, "DATA", "OUT"]]
    return Document(f"wrote {record['output']}", [facts, *parts], record=record, next=following)


def describe_agreement(agreement: labels.Contingency, name: str | None) -> Summary:
    """Return how well clusters agree with known labels, for the JSON document."""
    return {
        "name": name,
        **fields.values_of(agreement, "adjusted_rand_index", "normalized_mutual_information"),
        "labels": agreement.labels.tolist(),
        "counts": agreement.counts,
    }


def _job_facts(record: Facts) -> Lines:
    n_principal = record["n_principal"]
    components = "" if n_principal is None else f", in {n_principal:,} principal components"
    columns, kind = words.plural(record["n_features"], "feature"), record["features"]
    return {
        "rows": f"{record['n_samples']:,} of {record['data']}, {columns}",
        "features": f"D = {record['n_components']:,}{components}, {kind}, seed {record['seed']}",
        "kernel": None if record["kernel"] is None else words.kernel_words(record["kernel"]),
        **clusters_facts(record),
        **({} if record["agreement"] is None else agreement_facts(record["agreement"])),
        "model": None if record["model"] is None else words.place_words(record),
        "arrays": some(record["arrays"]),
        "digest": record["digest"][:16],
        **models.version_facts(record),
    }


def clusters_facts(about: Facts) -> Lines:
    """Return in words how many clusters were found, and how."""
    n_clusters, inertia = f"{about['n_clusters']:,}", number(about["inertia"])
    if about["n_filled"] < about["n_clusters"]:
        n_clusters = Alert(f"{n_clusters}, {about['n_filled']:,} with rows: there are no more distinct rows")
    if (n_starts := len(about["start_inertias"])) > 1:
        inertia += f", the least of {n_starts} starts (the largest: {number(max(about['start_inertias']))})"
    n_passes = words.plural(about["n_iter"], "pass", "passes")
    still = Alert(f"centres still moved after {n_passes}; raise `max_iter` or `tol`")
    lloyd = f"converged after {n_passes}" if about["converged"] else still
    return {"clusters": n_clusters, "inertia": inertia, "Lloyd": lloyd}


def stored_facts(record: records.Record) -> Lines:
    """Return the facts of a stored k-means model in words."""
    metadata, weights = record.metadata, record.arrays["cluster_weights"]
    card, features = metadata["card"], metadata["feature_map"]
    numbers = words.value_words([row["n_clusters"] for row in card.get("candidates", [])])
    return {
        "features": f"D = {record.arrays['centres'].shape[1]:,}, {features['kind']}",
        "columns": words.listed(card.get("feature_names")),
        "kernel": words.kernel_of_features(features),
        **clusters_facts({**metadata, "n_filled": int((weights > 0).sum())}),
        "sizes": words.value_words([float(weight) for weight in weights]),
        "chosen from": f"{numbers}, by silhouette" if "candidates" in card else None,
        "made": card["created"],
        "data fingerprint": card.get("data_fingerprint", "–")[:16],
        "digest": metadata["digest"][:16],
    }


def agreement_facts(known: Facts) -> Lines:
    """Return the agreement of `describe_agreement` in words."""
    index, information = number(known["adjusted_rand_index"]), number(known["normalized_mutual_information"])
    n_labels = words.plural(len(known["labels"]), "label")
    return {f"against {known['name']}": f"ARI {index}, NMI {information}, {n_labels}"}


def sizes_table(weights: Any, most: int) -> Table:
    """Return the largest clusters with their rows or weights, at most so many."""
    sizes = np.asarray(weights, np.float64)
    order, total = np.argsort(-sizes, kind="stable")[:most].tolist(), float(sizes.sum()) or 1.0
    rows = [(i, float(sizes[i]), f"{sizes[i] / total:.1%}") for i in order]
    which = f"the {most} largest of {len(sizes):,} clusters" if len(sizes) > most else "clusters by size"
    return Table(which, ("cluster", "rows or weight", "share"), rows)


def numbers_table(comparison: fit.Comparison) -> Table:
    """Return the numbers of clusters that were compared; the one that was chosen stands out."""
    caption = f"numbers of clusters, by silhouette on {comparison.n_sampled:,} rows in features"
    header = ("clusters", "inertia", "silhouette")
    rows = [(row["n_clusters"], row["inertia"], row["silhouette"]) for row in comparison.rows]
    chosen = [row[0] for row in rows].index(comparison.best.n_clusters)
    return Table(caption, header, rows, chosen)


def passes_table(passes: Sequence[Facts], numbers: Sequence[int]) -> Table:
    """Return the last passes, with the inertia of the centres that each began with."""
    names = [f"{k} clusters" for k in numbers] if len(numbers) > 1 else ["inertia"]
    rows = []
    for row in passes[-_SHOWN_PASSES:]:
        inertias = [f"{inertia:.8g}" for inertia in row["inertias"]]  # passes differ beyond the fourth digit
        rows.append((row["pass"], *inertias, row["n_starts"], number(row["shift"]), row["seconds"]))
    caption = "inertia of the centres that each pass began with"
    if len(passes) > _SHOWN_PASSES:
        caption = f"{caption}: the last {_SHOWN_PASSES} of {len(passes):,} passes"
    return Table(caption, ("pass", *names, "starts", "shift", "seconds"), rows)
