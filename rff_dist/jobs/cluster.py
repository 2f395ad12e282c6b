"""The job that clusters rows: inspect → draw → broadcast → start → Lloyd passes → assign → compare → publish.

Between the steps the centres stay in this process. The labels are written before the centres are published,
and appear after that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from rff_dist.data.columns import Column
from rff_dist.engines.progress import Announcer, Remark
from rff_dist.engines.protocol import Engine
from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.kernel_of import kernel_of
from rff_dist.jobs.fields import values_of
from rff_dist.jobs.publishing import check_place, store
from rff_dist.jobs.specs import Clustering
from rff_dist.jobs.steps import Runner, Skipped, Step, made, resumable, run_steps
from rff_dist.kmeans import choosing_k
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.kmeans import starts as kmeans_starts
from rff_dist.kmeans.agreement import Contingency
from rff_dist.kmeans.choosing_k import Comparison
from rff_dist.kmeans.fit import LloydPass
from rff_dist.kmeans.labels import StagedLabels
from rff_dist.kmeans.options import LloydOptions
from rff_dist.kmeans.starts import Clusters
from rff_dist.ridge.describe import describe_dataset
from rff_dist.ridge.plan import Sums, check_plan
from rff_dist.statistics import inspection
from rff_dist.statistics.moments import Moments
from rff_dist.storage.columns import column_of
from rff_dist.storage.datasets import ZarrDataset, open_dataset
from rff_dist.storage.leases import hold
from rff_dist.storage.locations import parse_location
from rff_dist.storage.output_places import check_output
from rff_dist.text import redact
from rff_dist.typing import Summary


@dataclass(slots=True)
class ClusteringRun:
    """A run of the clustering job: what to do, and what its steps have found.

    `known`: known labels to compare the clusters with.
    `moments`, `feature_map`, `passes`, `found`, `comparison`, `agreement`, `staged`: results of the steps;
      None, or empty, before.
    """

    job: Clustering
    dataset: ZarrDataset
    known: Column | None
    engine: Engine
    moments: Moments | None = None
    feature_map: FeatureMap | None = None
    passes: Iterator[LloydPass] | None = None
    found: list[Clusters] = field(default_factory=list)
    comparison: Comparison | None = None
    agreement: Contingency | None = None
    staged: StagedLabels | None = None

    @property
    def clusters(self) -> Clusters:
        """The clusters to publish: the best of several numbers, or the only ones."""
        return self.found[0] if self.comparison is None else self.comparison.best

    @property
    def lloyd(self) -> LloydOptions:
        """The options of k-means, as the library takes them."""
        return self.job.lloyd.to_library(self.job.features.seed)

    @property
    def choice(self) -> Summary:
        """How the number of clusters was chosen; empty if it was given."""
        found = self.comparison
        if found is None:
            return {}
        return {"candidates": found.rows, "n_sampled": found.n_sampled}

    def steps(self) -> Iterator[Step]:
        """Yield the steps in their order; the number of passes is not known beforehand."""
        yield Step("inspect", self.inspect, repeatable=True)
        yield Step("draw", self.draw, repeatable=True)
        yield Step("broadcast", self.broadcast, repeatable=True)
        yield Step("start", self.start, repeatable=True)
        number = 1
        while not self.found:
            yield Step(f"pass {number}", partial(self.run_pass, number))
            number += 1
        if len(self.job.lloyd.numbers) > 1:
            yield Step("choose", self.choose, repeatable=True)
        yield Step("assign", self.assign)
        yield Step("compare", self.compare, repeatable=True)
        yield Step("publish", self.publish)

    def check_memory(self) -> None:
        """Refuse, before any pass, what does not fit in memory."""
        dataset, engine, space = self.dataset, self.engine, self.job.features.space
        n_numbers = len(self.job.lloyd.numbers)
        kmeans_starts.check_fits(dataset, space.width, self.lloyd, n_numbers=n_numbers, engine=engine)
        if space.n_principal is not None:
            check_plan(dataset, space.n_components, Sums(features=space.features), engine=engine)
        if n_numbers > 1:
            choosing_k.check_samples(dataset, space.width)

    def inspect(self) -> Summary:
        """Check every value and measure means and deviations, in one cheap pass."""
        dataset, engine = self.dataset, self.engine
        self.moments = inspection.inspect(dataset, engine=engine)
        return {
            "data": redact(dataset.url or ""),
            "fingerprint": dataset.fingerprint(),
            **values_of(dataset, "n_samples", "n_features"),
            "n_blocks": len(inspection.blocks_of(dataset)),
            **values_of(engine, "n_workers", "n_threads"),
        }

    def draw(self) -> Summary:
        """Draw the features to cluster in; principal components take a pass."""
        given, engine = self.job.features.space, self.engine
        feature_map = kmeans.draw_features(self.dataset, given, made(self.moments), engine=engine)
        self.feature_map = feature_map
        kernel = kernel_of(feature_map)
        return {
            "kernel": None if kernel is None else kernel.to_dict(),
            "n_components": given.n_components,
            "n_principal": None if given.n_principal is None else feature_map.n_components,
            "feature_map": feature_map.digest(),
        }

    def broadcast(self) -> Summary:
        """Give the features to every worker and compare their digests."""
        feature_map = made(self.feature_map)
        self.engine.broadcast(feature_map)
        return {"feature_map": feature_map.digest(), "n_workers": self.engine.n_workers}

    def start(self) -> Summary:
        """Measure the features' norms, and choose the centres of each start."""
        job = kmeans_starts.measure(self.dataset, made(self.feature_map), self.moments, engine=self.engine)
        starts = kmeans.start(job, self.lloyd, self.job.lloyd.numbers)
        self.passes = kmeans.iterate(job, starts, self.lloyd)
        return {"n_candidates": starts.n_candidates, "n_starts": len(starts)}

    def run_pass(self, number: int) -> Summary:
        """Run a Lloyd pass: the centres of all starts that still move go to the means of their rows."""
        began = time.perf_counter()
        done = next(made(self.passes))
        if done.clusters:
            card = describe_dataset(self.dataset)
            self.found = [replace(clusters, card=card) for clusters in done.clusters]
        return {
            "pass": number,
            "inertia": done.inertia,
            "inertias": list(done.inertias),
            **values_of(done, "n_starts", "shift"),
            "seconds": round(time.perf_counter() - began, 3),
        }

    def choose(self) -> Summary:
        """Compare the numbers of clusters on a sample of the rows; the largest silhouette wins."""
        Announcer(self.engine.observers)(Remark("choose", "by silhouette"))
        self.comparison = choosing_k.compare(self.dataset, self.found, seed=self.job.features.seed)
        return {"candidates": self.comparison.rows}

    def assign(self) -> Summary:
        """Write the cluster of every row; the labels appear when the centres are published."""
        job = self.job
        self.staged = kmeans_labels.stage_labels(
            self.dataset,
            self.clusters,
            job.output,
            engine=self.engine,
            distances=job.distances,
            overwrite=job.overwrite,
        )
        return {"output": redact(job.output), "n_labelled": self.staged.n_samples}

    def compare(self) -> Summary | Skipped:
        """Count the rows of each known label in each cluster; skipped without known labels."""
        if self.known is None:
            return Skipped("No known labels were given to compare with.")
        self.agreement = kmeans_labels.evaluate(self.dataset, self.known, self.clusters, engine=self.engine)
        return self._describe_agreement(self.agreement)

    def _describe_agreement(self, found: Contingency) -> Summary:
        return {
            "labels": self.job.labels,
            "n_labels": len(found.labels),
            "adjusted_rand_index": found.adjusted_rand_index,
            "normalized_mutual_information": found.normalized_mutual_information,
        }

    def publish(self) -> Summary:
        """Publish the centres, then let the labels appear.

        If publishing fails, neither appears. If only the labels fail, the error says how to write them.
        """
        job, clusters, version = self.job, self.clusters, None
        # The centres come first: labels can be written again with them.
        if job.model is not None:
            card = {**clusters.card, **self.choice}
            if self.agreement is not None:
                card["agreement"] = self._describe_agreement(self.agreement)
            version = store(
                replace(clusters, card=card),
                job.model,
                register=job.register,
                overwrite=job.overwrite,
                data=self.dataset.url,
                reason="clustered",
                n_samples=self.dataset.n_samples,
            )
        try:
            made(self.staged).publish()
        except Exception as error:
            if job.model is not None:
                model, data, output = (redact(url) for url in (job.model, job.source.data, job.output))
                error.add_note(
                    f"the centres are published at {model}, the labels are not: write them by "
                    f"`rff-dist predict {model} {data} {output}`"
                )
            raise
        return {
            "model": None if job.model is None else redact(job.model),
            "version": None if version is None else version.number,
            "parent": None if version is None else version.parent,
            "digest": clusters.digest(),
        }


@contextmanager
def open_clustering(job: Clustering, runner: Runner) -> Iterator[ClusteringRun]:
    """Check all that can be checked, take the leases, then open the engine.

    Raises InvalidParameterError if the options do not suit the columns; DataError if there are fewer rows
      than clusters; StorageError if an input cannot be read or an output cannot be written; OutputBusyError
      if another run writes one of the outputs; PlanError if a pass needs more memory than a worker has.
    """
    source, places = job.source, [parse_location(job.source.data)]
    check_output(parse_location(job.output), overwrite=job.overwrite, inputs=places)
    if job.model is not None:
        inputs = [*places, parse_location(job.output)]
        check_place(job.model, register=job.register, overwrite=job.overwrite, inputs=inputs)
    # What the metadata tell is refused before leases are taken and a cluster starts.
    dataset = open_dataset(source.data, **source.names())
    known = None if job.labels is None else column_of(dataset, job.labels)
    job.features.check_columns(dataset.n_features)
    kmeans_starts.check_rows(dataset, job.lloyd.numbers[-1])
    with ExitStack() as stack:
        stack.enter_context(hold(job.output, holder=runner.holder))
        if job.model is not None:
            stack.enter_context(hold(job.model, holder=runner.holder))
        engine = stack.enter_context(runner.open_engine(dataset.n_samples))
        run = ClusteringRun(job, dataset, known, engine)
        run.check_memory()
        stack.enter_context(resumable(engine, parse_location(job.output)))
        try:
            yield run
        finally:
            if run.staged is not None:  # does nothing to labels that were published
                run.staged.discard()


def cluster(job: Clustering, runner: Runner) -> dict[str, Summary | None]:
    """Cluster the rows of a dataset, and return the records of the steps by name."""
    with open_clustering(job, runner) as run:
        return run_steps(run.steps(), runner)
