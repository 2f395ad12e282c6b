"""Clusters in words: how many and how large they are, and how they were found.

Records of a job or of a stored model go in; documents, facts and tables come out, which
terminal, page and Prefect share. Facts are names and texts in pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.recipes import recipes
from rff_dist.storage import records
from rff_dist.text import first_few, number, redact
from rff_dist.typing import Facts, FloatArray, Summary
from rff_dist.workbench.results import models, words
from rff_dist.workbench.results.document import Document, Part
from rff_dist.workbench.results.words import Alert, Lines, Table

if TYPE_CHECKING:
    from rff_dist.workbench.jobs import cluster, specs

MAX_CLUSTERS = 20  # in the table; the record has all
MAX_COLUMNS = 4
SAMPLE_ROWS = 2_000


def clustering_document(
    clustering: cluster.ClusteringResult, job: specs.Clustering, run: Summary
) -> Document:
    """Return the document of a clustering job; `run`: see `words.run_facts`."""
    record = {**clustering.record, **run}
    columns = words.plural(record["n_features"], "feature")
    weights = clustering.clusters.weights
    facts: Lines = {
        "rows": f"{record['n_samples']:,} of {redact(job.source.data)}, {columns}",
        **clusters_facts(record),
        "sizes, largest first": _sizes(weights),
    }
    if record["agreement"] is not None:
        facts |= agreement_facts(record["agreement"])
    facts["model"] = record["model"] and words.place_words(record)
    columns_table = _columns_table(clustering, job.space.seed)
    details: list[Part] = [_job_details(record) | words.run_details(run)]
    details += numbers_tables(record)
    details.append(sizes_table(weights, MAX_CLUSTERS))
    following = []
    if job.model:
        following = [["predict", job.model, "DATA", "OUT"]]
    return Document(
        f"wrote {record['output']}",
        [facts | words.run_facts(run), columns_table],
        details=details,
        record=record,
        next=following,
    )


def _sizes(weights: FloatArray) -> str:
    """Return the rows or weights of the clusters in words, the largest first."""
    return words.value_words(np.sort(weights.astype(float))[::-1].tolist())


def _columns_table(clustering: cluster.ClusteringResult, seed: int) -> Table:
    """Return the columns that differ most between clusters: of sampled rows, the mean
    of a number, and the commonest level of a category with its share of the rows.
    """
    clusters = clustering.clusters
    dataset = clustering.dataset
    X, labels = kmeans_labels.label_sample(
        dataset, clusters, seed=seed, n_rows=SAMPLE_ROWS
    )
    is_in = labels == np.arange(clusters.n_clusters)[:, np.newaxis]
    n_rows = is_in.sum(axis=1)
    levels = recipes.levels_of(dataset.attributes)
    columns = []
    for j, name in enumerate(dataset.column_names):
        values = X[:, [j]].astype(np.float64)
        if j in levels:
            values = (values == np.arange(len(levels[j]))).astype(np.float64)
        means = is_in @ values / np.maximum(n_rows, 1)[:, np.newaxis]
        # the share of the variance that lies between clusters
        squares = np.square(means - values.mean(axis=0)).sum(axis=1)
        share = n_rows @ squares / (len(X) * values.var(axis=0).sum() or 1.0)
        cells = means[:, 0].tolist()
        if j in levels:
            cells = [f"{levels[j][row.argmax()]} ({row.max():.0%})" for row in means]
        columns.append((share, j, name, cells))
    columns.sort(reverse=True)
    shown = columns[:MAX_COLUMNS]
    rows = [
        (i, n_rows, *(cells[i] for *_, cells in shown))
        for i, n_rows, _ in sizes_table(clusters.weights, MAX_CLUSTERS).rows
    ]
    header = ("cluster", "rows", *(name for *_, name, _ in shown))
    return Table(
        "columns that differ most: mean, or commonest level (share)", header, rows
    )


def _job_details(record: Facts) -> Lines:
    features = f"D = {record['n_components']:,}"
    if record["n_principal"] is not None:
        features += f", in {record['n_principal']:,} principal components"
    return {
        "features": f"{features}, {record['features']}, seed {record['seed']}",
        "kernel": words.kernel_words(record["kernel"]),
        "arrays": first_few(record["arrays"]),
        "digest": record["digest"][:16],
        **models.version_facts(record),
    }


def clusters_facts(figures: Facts) -> Lines:
    """Return how many clusters were found, and how, in words.

    `figures`: the record of a job, or members of a stored model's record.
    """
    n_clusters = f"{figures['n_clusters']:,}"
    if figures["n_filled"] < figures["n_clusters"]:
        n_clusters = Alert(
            f"{n_clusters}, {figures['n_filled']:,} with rows: there are no more"
            " distinct rows"
        )
    inertia = number(figures["inertia"])
    starts = figures["start_inertias"]
    if len(starts) > 1:
        worst = number(max(starts))
        inertia += f", the smallest of {len(starts)} starts (the largest: {worst})"
    shape = figures.get("shape")
    # with the last one, which only measures, as the progress counts them
    passes = figures.get("passes", figures["inertias"])
    n_passes = words.plural(len(passes), "pass", "passes")
    if figures["converged"]:
        lloyd = f"converged after {n_passes}"
    else:
        lloyd = Alert(
            f"centres still moved after {n_passes}; raise `max_iter` or `tol`"
        )
    return {
        "clusters": n_clusters,
        "shape": shape and shape["sentence"],
        "inertia": inertia,
        "Lloyd": lloyd,
    }


def stored_facts(record: records.Record) -> Lines:
    """Return the facts of a stored k-means model in words."""
    metadata = record.metadata
    card = metadata["card"]
    features = metadata["feature_map"]
    weights = record.arrays["cluster_weights"]
    n_components = record.arrays["centres"].shape[1]
    return {
        "features": f"D = {n_components:,}, {features['kind']}",
        "columns": words.listed(card.get("feature_names")),
        "kernel": words.kernel_of_features(features),
        **clusters_facts({**card, **metadata, "n_filled": int((weights > 0).sum())}),
        "sizes, largest first": _sizes(weights),
        "made": card["created"],
        "data fingerprint": card.get("data_fingerprint", "–")[:16],
        "digest": metadata["digest"][:16],
    }


def agreement_facts(agreement: Facts) -> Lines:
    """Return the agreement of `jobs.cluster.describe_agreement` in words."""
    index = number(agreement["adjusted_rand_index"])
    information = number(agreement["normalized_mutual_information"])
    n_labels = words.plural(len(agreement["labels"]), "label")
    return {
        f"against {agreement['name']}": f"ARI {index}, NMI {information}, {n_labels}"
    }


def sizes_table(weights: Any, most: int) -> Table:
    """Return the `most` largest clusters with their rows or weights."""
    sizes = np.asarray(weights, np.float64)
    total = sizes.sum() or 1.0
    largest = np.argsort(-sizes, kind="stable")[:most].tolist()
    rows = [(i, float(sizes[i]), f"{sizes[i] / total:.1%}") for i in largest]
    caption = "clusters by size"
    if len(sizes) > most:
        caption = f"the {most} largest of {len(sizes):,} clusters"
    return Table(caption, ("cluster", "rows or weight", "share"), rows)


def numbers_tables(figures: Facts) -> list[Table]:
    """Return a table of the links that are cut by each number of clusters, if several
    were tried.
    """
    shape = figures.get("shape")
    if shape is None or len(shape["cuts"]) < 2:
        return []
    caption = "links between neighbouring rows that are cut, by number of clusters"
    rows = [(int(number), f"{cut:.2%}") for number, cut in shape["cuts"].items()]
    best = list(shape["cuts"]).index(str(figures["n_clusters"]))
    return [Table(caption, ("clusters", "links cut"), rows, best)]
