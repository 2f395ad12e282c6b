"""Cluster rows and publish their labels and the centres.

In goes a `Clustering` spec, out come the labels of all rows, the centres as a model,
and a `ClusteringResult` that all reports are made of. `RFFKMeans().fit` and writing its
labels would leave labels of other centres than those published, if one of the two
fails.

Its steps are inspect → choose → draw → broadcast → measure → start → Lloyd passes →
assign → publish. The labels are written before the centres are published, and appear
after that.
"""

import dataclasses
from contextlib import ExitStack
from dataclasses import replace

from rff_dist import fields
from rff_dist.data import blocks, columns
from rff_dist.errors import InvalidParameterError
from rff_dist.features import kinds
from rff_dist.kernels import stationary
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.kmeans import starts as kmeans_starts
from rff_dist.models import versions
from rff_dist.statistics import row_passes
from rff_dist.storage import datasets, locations, output_places, outputs
from rff_dist.storage.columns import column_of
from rff_dist.text import redact
from rff_dist.typing import Summary, frozen
from rff_dist.workbench.jobs import cards, publishing, specs, steps, watching

_INDICES = ("adjusted_rand_index", "normalized_mutual_information")
# Each of these arrays is written next to the labels if the option of its name is set.
_FURTHER_ARRAYS = ("distances", "principal")


@frozen
class ClusteringResult:
    """What the job found.

    `clusters`: the published ones.
    `record`: JSON values: what was read, found and written where; `passes` has the
    figures of each pass.
    """

    dataset: blocks.Dataset
    clusters: kmeans_starts.Clusters
    record: Summary


@watching.watched
def cluster(job: specs.Clustering, do: steps.Runner) -> ClusteringResult:
    """Cluster the rows of a dataset by k-means in features, and publish their labels
    and the centres.

    Raises InvalidParameterError if the options do not suit the columns; DataError if
    there are fewer rows than clusters; StorageError if an input cannot be read or an
    output cannot be written; OutputBusyError if another run writes one of the outputs;
    PlanError if a pass needs more memory than a worker has.
    """
    card_texts = cards.read_about(job.card)
    dataset, known_labels = _open(job)
    with ExitStack() as stack:
        for place in filter(None, (job.output, job.model)):
            stack.enter_context(output_places.hold(place, holder=do.holder))
        engine = stack.enter_context(do.open_engine(dataset.n_samples))
        output = locations.parse_location(job.output)
        stack.enter_context(steps.resumable(engine, output))

        # the steps from "inspect" to the last Lloyd pass
        lloyd = replace(job.lloyd, seed=job.space.seed)
        cluster_fit = kmeans.fit(dataset, job.space, lloyd, engine=engine, do=do)
        clusters = cluster_fit.clusters
        card = {**clusters.card, **card_texts}

        agreement = None
        if known_labels is not None:
            contingency = do(
                "compare",
                kmeans_labels.evaluate,
                dataset,
                known_labels,
                clusters,
                engine=engine,
            )
            agreement = describe_agreement(contingency, job.labels)
            card["agreement"] = {name: agreement[name] for name in ("name", *_INDICES)}
        clusters = replace(clusters, card=card)

        # Written now; they appear when the centres are published. `once`: a second try
        # would write them again.
        labels = do.once(
            "assign",
            kmeans_labels.write_labels,
            dataset,
            clusters,
            job.output,
            engine=engine,
            publish=False,
            **fields.values_of(job, "distances", "principal", "overwrite"),
        )
        try:
            version = do.once("publish", publish, job, clusters, dataset, labels)
        except BaseException:  # interrupts too
            labels.discard()
            raise

        further = [name for name in _FURTHER_ARRAYS if getattr(job, name)]
        record = {
            "model": None if job.model is None else redact(job.model),
            "version": None if version is None else version.number,
            "parent": None if version is None else version.parent,
            "output": redact(job.output),
            "arrays": ["labels", *further],
            "n_labelled": labels.n_samples,
            "data": redact(dataset.url or ""),
            "fingerprint": dataset.fingerprint(),
            **fields.values_of(dataset, "n_samples", "n_features"),
            "n_blocks": len(row_passes.blocks_of(dataset)),
            **fields.values_of(engine, "n_workers", "n_threads"),
            **describe_fit(cluster_fit),
            "agreement": agreement,
        }
        return ClusteringResult(dataset, clusters, record)


def describe_fit(cluster_fit: kmeans.ClusterFit) -> Summary:
    """Return JSON values of clusters, their features, and the passes for them."""
    clusters = cluster_fit.clusters
    feature_map = clusters.feature_map
    kernel = kinds.kernel_of(feature_map)
    shape = cluster_fit.choice
    has_principal = cluster_fit.space.n_principal is not None
    return {
        "digest": clusters.digest(),
        "kernel": None if kernel is None else kernel.to_dict(),
        "length_scale": stationary.own_length_scale(kernel),
        "features": feature_map.kind,
        "shape": None if shape is None else shape.to_dict(),
        "n_components": cluster_fit.space.n_components,
        "n_principal": feature_map.n_components if has_principal else None,
        "feature_map": feature_map.digest(),
        "seed": cluster_fit.space.seed,
        "n_candidates": cluster_fit.starts.n_candidates,
        "n_starts": len(cluster_fit.starts),
        **fields.values_of(clusters, "n_clusters", "n_filled", "converged", "n_iter"),
        **fields.values_of(clusters, "inertia", "inertias", "start_inertias"),
        "sizes": clusters.weights.tolist(),
        "passes": [
            {"pass": number, **dataclasses.asdict(lloyd_pass)}
            for number, lloyd_pass in enumerate(cluster_fit.passes, 1)
        ],
    }


def describe_agreement(
    contingency: kmeans_labels.Contingency, name: str | None
) -> Summary:
    """Return how well clusters agree with the known labels of this name."""
    return {
        "name": name,
        **fields.values_of(contingency, *_INDICES),
        "labels": contingency.labels.tolist(),
        "counts": contingency.counts.tolist(),
    }


def _open(job: specs.Clustering) -> tuple[blocks.Dataset, columns.Column | None]:
    """Return the rows and the known labels, checked by their metadata alone: before
    outputs are locked and a cluster starts.
    """
    source = job.source
    output = locations.parse_location(job.output)
    inputs = [locations.parse_location(source.data)]
    output_places.check_output(output, overwrite=job.overwrite, inputs=inputs)
    if job.model is not None:
        publishing.check_place(job, [source.data, job.output])
    dataset = datasets.open_dataset(source.data, **source.open_arguments())
    if job.labels in (dataset.feature_names or ()):
        raise InvalidParameterError(
            f"`labels` is {job.labels!r}, an input; expected an array, such as y,"
            " which `rff-dist ingest` makes of a target"
        )
    known_labels = None if job.labels is None else column_of(dataset, job.labels)
    job.space.check_columns(dataset.n_features)
    kmeans_starts.check_rows(dataset, job.lloyd.largest)
    return dataset, known_labels


def publish(
    job: specs.Clustering,
    clusters: kmeans_starts.Clusters,
    dataset: blocks.Dataset,
    labels: outputs.StagedOutput,
) -> versions.Version | None:
    """Publish the centres, then let the labels appear.

    If publishing fails, neither appears. If only the labels fail, the error says how to
    write them.
    """
    version = None
    # The centres come first: labels can be written again with them.
    if job.model is not None:
        version = publishing.store(
            clusters, job, dataset.url, "clustered", dataset.n_samples
        )
    try:
        labels.finish(kmeans_labels.attributes_of(clusters))
    except Exception as error:
        if job.model is not None:
            place, data, output = (
                redact(url) for url in (job.model, job.source.data, job.output)
            )
            error.add_note(
                f"the centres are published at {place}, the labels are not: write them"
                f" by `rff-dist predict {place} {data} {output}`"
            )
        raise
    return version
