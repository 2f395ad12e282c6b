"""The job that clusters rows: inspect → draw → broadcast → measure → start → Lloyd passes → assign → publish.

The labels are written before the centres are published, and appear after that.
"""

import itertools
import time
from contextlib import nullcontext
from dataclasses import replace

from rff_dist import fields
from rff_dist.data import blocks, columns
from rff_dist.engines import progress
from rff_dist.features import kinds
from rff_dist.fitting import plan
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.kmeans import starts as kmeans_starts
from rff_dist.models import versions
from rff_dist.statistics import inspection
from rff_dist.storage import datasets, locations, output_places, outputs
from rff_dist.storage.columns import column_of
from rff_dist.text import redact
from rff_dist.typing import Summary, frozen
from rff_dist.workbench.jobs import cards, publishing, specs, steps, watching


@frozen
class Clustered:
    """What the job found.

    `clusters`: the published ones: the best of several numbers, or the only ones.
    `comparison`: of several numbers of clusters; None if one was given.
    `agreement`: with the known labels; None without any.
    `record`: JSON values: what was read, found and written where, and in `passes` the figures of each pass.
    """

    dataset: blocks.Dataset
    clusters: kmeans_starts.Clusters
    comparison: kmeans.Comparison | None
    agreement: kmeans_labels.Contingency | None
    record: Summary


@watching.watched
def cluster(job: specs.Clustering, do: steps.Runner) -> Clustered:
    """Cluster the rows of a dataset by k-means in features, and publish their labels and the centres.

    Raises InvalidParameterError if the options do not suit the columns; DataError if there are fewer rows
      than clusters; StorageError if an input cannot be read or an output cannot be written; OutputBusyError
      if another run writes one of the outputs; PlanError if a pass needs more memory than a worker has.
    """
    about, (dataset, known) = cards.read_about(job.card), _open(job)
    space, lloyd = job.space, replace(job.lloyd, seed=job.space.seed)
    with (
        output_places.hold(job.output, holder=do.holder),
        nullcontext() if job.model is None else output_places.hold(job.model, holder=do.holder),
        do.open_engine(dataset.n_samples) as engine,
        steps.resumable(engine, locations.parse_location(job.output)),
    ):
        # What does not fit in memory is refused before any pass.
        n_numbers = len(lloyd.numbers)
        kmeans_starts.check_fits(dataset, space.width, lloyd, n_numbers=n_numbers, engine=engine)
        if space.n_principal is not None:
            plan.check_plan(dataset, space.n_components, plan.Sums(features=space.features), engine=engine)
        if n_numbers > 1:
            kmeans.check_samples(dataset, space.width)
        moments = do("inspect", inspection.inspect, dataset, engine=engine)
        feature_map = do("draw", kmeans.draw_features, dataset, space, moments, engine=engine)
        do("broadcast", engine.broadcast, feature_map)
        rows = do("measure", kmeans_starts.measure, dataset, feature_map, moments, engine=engine)
        starts = do("start", kmeans.start, rows, lloyd)
        passes: list[Summary] = []
        lloyd_passes = kmeans.iterate(rows, starts, lloyd)
        for number in itertools.count(1):
            began = time.perf_counter()
            done = do.once(f"pass {number}", next, lloyd_passes)
            about_pass = {
                "pass": done.number,
                **fields.values_of(done, "inertia", "inertias", "n_starts", "shift"),
                "seconds": round(time.perf_counter() - began, 3),
            }
            passes.append(about_pass)
            if done.clusters:  # the last pass has them
                break
        found = [
            replace(each, card={**kmeans.describe(dataset, space, lloyd, each.n_clusters), **about})
            for each in done.clusters
        ]
        comparison = agreement = agrees = None
        if n_numbers > 1:
            progress.Announcer(engine.observers)(progress.Remark("choose", "by silhouette"))
            comparison = do("choose", kmeans.compare, dataset, found, seed=job.space.seed)
        clusters = found[0] if comparison is None else comparison.best
        if known is not None:
            agreement = do("compare", kmeans_labels.evaluate, dataset, known, clusters, engine=engine)
            agrees = {
                "labels": job.labels,
                "n_labels": len(agreement.labels),
                **fields.values_of(agreement, "adjusted_rand_index", "normalized_mutual_information"),
            }
        compared = {} if comparison is None else comparison.to_dict()
        card = {**clusters.card, **compared, **({} if agrees is None else {"agreement": agrees})}
        model = replace(clusters, card=card)
        # The labels appear when the centres are published.
        how = {"engine": engine, **fields.values_of(job, "distances", "principal", "overwrite")}
        labels = do.once("assign", kmeans_labels.stage_labels, dataset, clusters, job.output, **how)
        try:
            version = do.once("publish", _publish, job, model, dataset, labels)
        except BaseException:  # interrupts too
            labels.discard()
            raise
        kernel = kinds.kernel_of(feature_map)
        record = {
            "model": None if job.model is None else redact(job.model),
            "version": None if version is None else version.number,
            "parent": None if version is None else version.parent,
            "digest": clusters.digest(),
            "output": redact(job.output),
            "n_labelled": labels.n_samples,
            "data": redact(dataset.url or ""),
            "fingerprint": dataset.fingerprint(),
            **fields.values_of(dataset, "n_samples", "n_features"),
            "n_blocks": len(inspection.blocks_of(dataset)),
            **fields.values_of(engine, "n_workers", "n_threads"),
            "kernel": None if kernel is None else kernel.to_dict(),
            "n_components": space.n_components,
            "n_principal": None if space.n_principal is None else feature_map.n_components,
            "feature_map": feature_map.digest(),
            "n_candidates": starts.n_candidates,
            "n_starts": len(starts),
            **fields.values_of(clusters, "n_clusters", "n_filled", "inertia", "converged", "n_iter"),
            "sizes": clusters.weights[:1000].tolist(),
            "passes": passes,
            "candidates": None if comparison is None else comparison.rows,
            "agreement": agrees,
        }
        return Clustered(dataset, clusters, comparison, agreement, record)


def _open(job: specs.Clustering) -> tuple[blocks.Dataset, columns.Column | None]:
    """Check what the metadata tell, before outputs are held and a cluster starts; return rows and labels."""
    source, output = job.source, locations.parse_location(job.output)
    inputs = [locations.parse_location(source.data)]
    output_places.check_output(output, overwrite=job.overwrite, inputs=inputs)
    if job.model is not None:
        publishing.check_place(job, [source.data, job.output])
    dataset = datasets.open_dataset(source.data, **source.names())
    known = None if job.labels is None else column_of(dataset, job.labels)
    job.space.check_columns(dataset.n_features)
    kmeans_starts.check_rows(dataset, job.lloyd.largest)
    return dataset, known


def _publish(
    job: specs.Clustering,
    model: kmeans_starts.Clusters,
    dataset: blocks.Dataset,
    labels: outputs.StagedOutput,
) -> versions.Version | None:
    """Publish the centres, then let the labels appear.

    If publishing fails, neither appears. If only the labels fail, the error says how to write them.
    """
    version = None
    # The centres come first: labels can be written again with them.
    if job.model is not None:
        version = publishing.store(model, job, dataset.url, "clustered", dataset.n_samples)
    try:
        labels.finish(kmeans_labels.attributes_of(model))
    except Exception as error:
        if job.model is not None:
            place, data, output = (redact(url) for url in (job.model, job.source.data, job.output))
            error.add_note(
                f"the centres are published at {place}, the labels are not: write them by "
                f"`rff-dist predict {place} {data} {output}`"
            )
        raise
    return version
