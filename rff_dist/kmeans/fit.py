"""Kernel k-means in features as plain functions: inspect → draw → start → Lloyd passes.

Input is a dataset and options, output are `Clusters`: a feature map and centres, by
which `labels` finds the cluster of any row. Features are made again in each pass and
never stored, so memory does not grow with the rows; all starts share a pass. Sums are
exact: the same bits on any engine and for any blocks.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rff_dist.data import samples
from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.engines.protocol import Engine
from rff_dist.errors import PlanError
from rff_dist.features.maps import FeatureMap
from rff_dist.fields import values_of
from rff_dist.fitting import parameters, plan, prepare
from rff_dist.kmeans import lloyd_pass, shapes
from rff_dist.kmeans.candidates import RowsByKey, SeedChoice, choose_rows
from rff_dist.kmeans.cluster_options import ClusterSpace, LloydOptions
from rff_dist.kmeans.starts import (
    ClusteringJob,
    Clusters,
    Starts,
    check_fits,
    check_rows,
    choose_starts,
    find_candidates,
    measure,
    read_centres,
)
from rff_dist.numerics import machine
from rff_dist.pca.fit import fit_components
from rff_dist.statistics import inspection
from rff_dist.statistics.moments import Moments
from rff_dist.text import human_bytes
from rff_dist.typing import (
    AnyIntArray,
    BoolArray,
    FloatArray,
    IndexArray,
    Summary,
    frozen,
)

logger = logging.getLogger(__name__)

# -- the whole job
# ----------------------------------------------------------------------------


def fit(
    dataset: Dataset, space: ClusterSpace, lloyd: LloydOptions, *, engine: Engine
) -> Clusters:
    """Like `sklearn.cluster.KMeans` on random or Nyström features; targets are ignored.

    Takes a pass for moments, one for norms, those of the start, and one for each Lloyd
    iteration, of O(n_samples · n_components · (n_features + n_init · n_clusters)) time
    at most. Raises DataError if values are not finite, or there are fewer rows than
    clusters; PlanError if a pass needs more memory than a worker has.
    """
    dataset = dataset.without_targets()
    check_rows(dataset, lloyd.largest)
    check_plan(dataset, space, lloyd, engine=engine)
    moments = inspection.inspect(dataset, engine=engine)
    shape: Summary = {}
    if shapes.are_sought(dataset, space, lloyd):
        choice = shapes.choose(dataset, space, lloyd, moments, engine=engine)
        space = choice.space
        lloyd = choice.lloyd
        shape = {shapes.SHAPE: choice.to_dict()}
    feature_map = draw_features(dataset, space, moments, engine=engine)
    job = measure(dataset, feature_map, moments, engine=engine)
    found = finish(iterate(job, start(job, lloyd), lloyd))
    clusters = found[0]
    if len(found) > 1:
        clusters = choose(dataset, found, seed=space.seed).best
    card = describe(dataset, space, lloyd, clusters.n_clusters)
    return replace(clusters, card={**card, **shape})


def check_plan(
    dataset: Dataset, space: ClusterSpace, lloyd: LloydOptions, *, engine: Engine
) -> None:
    """Refuse before any pass what does not fit in memory; raises PlanError."""
    if shapes.are_sought(dataset, space, lloyd):
        space = shapes.largest_space(space, lloyd)
        lloyd = replace(lloyd, n_clusters=lloyd.largest)
    n_numbers = len(lloyd.numbers)
    check_fits(dataset, space.width, lloyd, n_numbers=n_numbers, engine=engine)
    if space.n_principal is not None:
        sums = plan.Sums(features=space.features)
        plan.plan_on_engine(dataset, space.n_components, sums, engine=engine)
    if n_numbers > 1:
        check_samples(dataset, space.width)


def describe(
    dataset: Dataset, space: ClusterSpace, lloyd: LloydOptions, n_clusters: int
) -> Summary:
    """Return the card of clusters: facts of the dataset, parameters of `RFFKMeans`."""
    values = {**parameters.of_options(space, lloyd), "n_clusters": n_clusters}
    return {**prepare.describe_dataset(dataset), parameters.PARAMETERS: values}


def draw_features(
    dataset: Dataset, space: ClusterSpace, moments: Moments, *, engine: Engine
) -> FeatureMap:
    """Draw the features to cluster in, or compute principal components of them.

    Raises InvalidParameterError if the kernel does not suit the columns; PlanError if
    principal components need more memory than there is.
    """
    if space.n_principal is not None:
        components = fit_components(
            dataset,
            space,
            n_components=space.n_principal,
            normalize=space.normalize,
            moments=moments,
            engine=engine,
        )
        return components.features()
    prepared = prepare.prepare(
        dataset, standardize=space.standardize, moments=moments, engine=engine
    )
    return prepared.draw(space, seed=space.seed)


def find_clusters(
    dataset: Dataset,
    feature_map: FeatureMap,
    lloyd: LloydOptions,
    *,
    moments: Moments | None = None,
    engine: Engine,
) -> Clusters:
    """Minimise Σ w·‖z(x) − c‖² over centres c, for one number of clusters.

    `moments` are from `inspect`; if rows have weights, a pass measures missing ones.
    Raises DataError if values are not finite, or given centres have the wrong shape;
    PlanError if a pass needs more memory than a worker has.
    """
    if moments is None and dataset.weighted:
        moments = inspection.inspect(dataset, engine=engine)
    job = measure(dataset, feature_map, moments, engine=engine)
    [clusters] = finish(iterate(job, start(job, lloyd), lloyd))
    return clusters


def start(job: ClusteringJob, lloyd: LloydOptions) -> Starts:
    """Return the first centres, for each number of clusters and each start."""
    if isinstance(lloyd.init, str):
        return choose_starts(find_candidates(job, lloyd), lloyd)
    centres = read_centres(lloyd.init, job.feature_map, lloyd.largest)
    return Starts(centres[np.newaxis], (lloyd.largest,))


# -- Lloyd passes
# -----------------------------------------------------------------------------


@frozen(eq=False)
class LloydPass:
    """What observers are told about a Lloyd pass; the last one has the result."""

    #: From 1.
    number: int
    #: Inertia of the centres before the pass, of the best start of each number of
    #: clusters. A start that stopped earlier counts with its last inertia.
    inertias: tuple[float, ...]
    #: Starts that took part.
    n_starts: int
    #: Σ ‖shift of a centre‖², of the start where it is largest; 0 for a last pass that
    #: only measures.
    shift: float
    #: For each number of clusters; empty before the last pass.
    clusters: tuple[Clusters, ...] = ()

    @property
    def inertia(self) -> float:
        return min(self.inertias)

    @property
    def is_last(self) -> bool:
        return bool(self.clusters)


def iterate(
    job: ClusteringJob, starts: Starts, lloyd: LloydOptions
) -> Iterator[LloydPass]:
    """Move centres to the means of their rows until they stay; each `next` is a pass.

    All starts of all numbers of clusters share a pass, which makes a row's features
    once. Starts that have stopped take no part in later passes. Raises PlanError if a
    pass needs more memory than a worker has.
    """
    moving = _MovingStarts(job, starts)
    job.expect("lloyd", lloyd.max_iter + 1)  # the last one only measures
    number = 0
    report = moving.report(number, len(starts), 0.0)
    while number < lloyd.max_iter and not moving.has_stopped.all():
        # each pass is reported one later, since the last report has the clusters
        if number:
            yield report
        number += 1
        active = np.flatnonzero(~moving.has_stopped)
        shift = moving.move(active, smallest_shift=lloyd.tol * job.variance)
        report = moving.report(number, len(active), shift)

    # weights and inertias are those of the centres before the last move
    moved = np.flatnonzero(~moving.is_settled)
    if len(moved):
        yield report
        moving.measure(moved)
        report = moving.report(number + 1, len(moved), 0.0)
    yield replace(report, clusters=moving.clusters())


def finish(passes: Iterator[LloydPass]) -> tuple[Clusters, ...]:
    """Run the remaining passes; return the clusters for each number of clusters."""
    *_, last = passes
    return last.clusters


class _MovingStarts:
    """The centres of all starts, and how they have moved so far."""

    def __init__(self, job: ClusteringJob, starts: Starts) -> None:
        n_starts = len(starts)
        self._job = job
        self._counts = np.array(starts.counts)
        self._centres = starts.values.copy()
        # of each cluster's rows, for the centres before the last move
        self._weights = np.zeros(starts.values.shape[:2])
        # of each start before each of its passes
        self._inertias: list[list[float]] = [[] for _ in range(n_starts)]
        self._n_moves = np.zeros(n_starts, np.int64)
        self.has_stopped = np.zeros(n_starts, bool)
        # whether the last pass moved no centre at all
        self.is_settled = np.zeros(n_starts, bool)

    def move(self, active: IndexArray, *, smallest_shift: float) -> float:
        """Move the centres of some starts in a pass, and return the largest shift.

        Starts that shift by no more than `smallest_shift` stop.
        """
        state, sums = self.measure(active)
        centres = sums.means(state)
        is_empty = (sums.weights == 0) & state.present
        for i in np.flatnonzero(is_empty.any(axis=1)):
            empty = np.flatnonzero(is_empty[i])
            present = state.values[i][state.present[i]]
            centres[i, empty] = _find_places(self._job, present, empty)
        shifts = np.square(centres - self._centres[active]).sum(axis=(1, 2))
        self.is_settled[active] = shifts == 0.0
        self.has_stopped[active] = shifts <= smallest_shift
        self._n_moves[active] += 1
        self._centres[active] = centres
        logger.debug(
            "inertia %s, shift %s", [path[-1] for path in self._inertias], shifts
        )
        return float(shifts.max())

    def measure(
        self, active: IndexArray
    ) -> tuple[lloyd_pass.Centres, lloyd_pass.ClusterSums]:
        """Sum the rows nearest to each centre, and note weights and inertias."""
        job = self._job
        counts = tuple(self._counts[active].tolist())
        state = job.centres(self._centres[active], counts=counts)
        sums = job.sums(state)
        self._weights[active] = sums.cluster_weights(job.grid)
        inertias = sums.inertias(state, job.sum_of_squared_norms).tolist()
        for i, inertia in zip(active, inertias, strict=True):
            self._inertias[i].append(inertia)
        return state, sums

    def report(self, number: int, n_starts: int, shift: float) -> LloydPass:
        inertias: tuple[float, ...] = ()
        if number:
            inertias = tuple(self._inertias[i][-1] for i in self._best())
        return LloydPass(number, inertias, n_starts, shift)

    def clusters(self) -> tuple[Clusters, ...]:
        """Return the best start's clusters for each number of clusters."""
        return tuple(self._clusters(i) for i in self._best())

    def _best(self) -> list[int]:
        """Return the start of least inertia for each number of clusters, ascending."""
        last = np.array([path[-1] for path in self._inertias])
        best = []
        for count in np.unique(self._counts):
            rivals = np.flatnonzero(self._counts == count)
            best.append(int(rivals[last[rivals].argmin()]))
        return best

    def _clusters(self, i: int) -> Clusters:
        n_clusters = self._counts[i]
        rivals = np.flatnonzero(self._counts == n_clusters)
        return Clusters(
            self._job.feature_map,
            self._centres[i, :n_clusters],
            self._weights[i, :n_clusters],
            inertia=self._inertias[i][-1],
            inertias=tuple(self._inertias[i]),
            start_inertias=tuple(self._inertias[rival][-1] for rival in rivals),
            n_iter=int(self._n_moves[i]),
            converged=bool(self.has_stopped[i]),
            grid=self._job.grid,
        )


def _find_places(
    job: ClusteringJob, centres: FloatArray, empty: IndexArray
) -> FloatArray:
    """Return new places for empty centres: the rows farthest from their nearest centre.

    Of rows equally far the first comes first. Centres stay if no such row is left.
    """
    choice = SeedChoice(job.centres(centres[np.newaxis]), len(empty))
    farthest: RowsByKey = job.run(choose_rows, choice, label="refill")
    n_rows = len(farthest.keys)
    places = centres[empty].copy()
    places[:n_rows] = farthest.features
    if n_rows:
        logger.info(
            "%d empty clusters move to rows %s", n_rows, farthest.row_numbers.tolist()
        )
    return places


# -- how many clusters
# ------------------------------------------------------------------------
#
# All numbers of clusters share the same passes, from those that draw candidates to the
# Lloyd passes. They are compared on a seeded sample by silhouettes (Rousseeuw 1987), in
# the features, where every sampled row counts the same.


SILHOUETTE_ROWS = 5_000  # fewer if their features would take more than _SAMPLE_BYTES
_SAMPLE_BYTES = 2**28
_PANEL_ROWS = 512


@frozen(eq=False)
class ScoredClusterCount:
    """Clusters, and how well they describe a sample of the rows."""

    clusters: Clusters
    #: Mean of (b - a) / max(a, b) over the sample: a is a row's mean distance to the
    #: others of its cluster, b the mean distance to the nearest other cluster, in
    #: features. NaN if the sample is in one cluster.
    silhouette: float

    def to_dict(self) -> Summary:
        """Return JSON values; None for NaN and infinity."""
        silhouette = float(self.silhouette) if math.isfinite(self.silhouette) else None
        return {
            **values_of(self.clusters, "n_clusters", "inertia"),
            "silhouette": silhouette,
            **values_of(self.clusters, "n_iter", "converged"),
        }


@frozen(eq=False)
class ClusterComparison:
    """Clusters by ascending number, of which the largest silhouette is the best."""

    candidates: tuple[ScoredClusterCount, ...]
    #: Rows over which silhouettes are averaged.
    n_sampled: int

    @property
    def best(self) -> Clusters:
        """The clusters with the largest silhouette, the first of equals."""
        silhouettes = [candidate.silhouette for candidate in self.candidates]
        best = int(np.argmax(np.nan_to_num(silhouettes, nan=-np.inf)))
        return self.candidates[best].clusters

    @property
    def rows(self) -> list[Summary]:
        return [candidate.to_dict() for candidate in self.candidates]

    def to_dict(self) -> Summary:
        """Return JSON values, for a model's card."""
        return {"candidates": self.rows, "n_sampled": self.n_sampled}


def check_samples(dataset: Dataset, n_components: int) -> None:
    """Raise PlanError unless the sample for silhouettes fits in this process."""
    n_rows = min(_silhouette_rows(n_components), dataset.n_samples)
    # features, and centred ones; panels
    needed = plan.PROCESS_BYTES + 8 * 3 * n_rows * n_components
    needed += 8 * n_rows * (dataset.n_features + _PANEL_ROWS)
    limit = machine.available_memory()
    if needed > limit:
        raise PlanError(
            "the samples on which numbers of clusters are judged need"
            f" {human_bytes(needed)} (n_components={n_components:_}) but this process"
            f" has {human_bytes(limit)}; ask for fewer components, or for one number of"
            " clusters"
        )


def _silhouette_rows(n_components: int) -> int:
    return max(2, min(SILHOUETTE_ROWS, _SAMPLE_BYTES // (8 * n_components)))


def choose(
    dataset: Dataset, clusterings: Sequence[Clusters], *, seed: int
) -> ClusterComparison:
    """Compare numbers of clusters in the same features, from the smallest number on."""
    feature_map = clusterings[0].feature_map
    n_rows = _silhouette_rows(feature_map.n_components)
    X = samples.sample_inputs(dataset, seed, n_rows=n_rows)
    rows = Rows(Block(0, 0, len(X)), X)
    labelings = [lloyd_pass.label_rows(rows, each.state) for each in clusterings]
    Z = feature_map.transform(X, dtype=np.float64)
    silhouettes = mean_silhouettes(Z, labelings)
    candidates = tuple(map(ScoredClusterCount, clusterings, silhouettes))
    return ClusterComparison(candidates, len(X))


def mean_silhouettes(
    points: FloatArray, labelings: Sequence[AnyIntArray]
) -> FloatArray:
    """`sklearn.metrics.silhouette_score(points, labels)` for several labelings at once.

    O(n_points² · n_components) for all. A row alone in its cluster counts as 0; a
    labeling with one cluster gives NaN.
    """
    # smaller norms: less cancels in the distances
    points = points - points.mean(axis=0)
    norms = np.einsum("ij,ij->i", points, points)
    members = [
        (labels[:, np.newaxis] == np.unique(labels)).astype(np.float64)
        for labels in labelings
    ]
    edges = np.cumsum([member.shape[1] for member in members])[:-1]
    all_members = np.hstack(members)
    silhouettes = np.zeros((len(labelings), len(points)))
    with machine.using_threads(1):
        for first in range(0, len(points), _PANEL_ROWS):
            here = np.arange(first, min(first + _PANEL_ROWS, len(points)))
            distances = (
                norms[here, np.newaxis] + norms - 2.0 * (points[here] @ points.T)
            )
            # the root of a rounding error would count as a distance to itself
            distances[here - first, here] = 0.0
            sums = np.sqrt(np.maximum(distances, 0.0)) @ all_members
            for i, of_clusters in enumerate(np.split(sums, edges, axis=1)):
                member = members[i]
                silhouettes[i, here] = _silhouettes(
                    of_clusters, member[here] > 0, member.sum(axis=0)
                )
    has_several = [member.shape[1] > 1 for member in members]
    return np.where(has_several, silhouettes.mean(axis=1), np.nan)


def _silhouettes(sums: FloatArray, member: BoolArray, sizes: FloatArray) -> FloatArray:
    """Return rows' silhouettes from their summed distances to each cluster."""
    n_inside = member @ sizes
    # a row is no neighbour of itself
    inside = sums[member] / np.maximum(n_inside - 1, 1)
    outside = np.where(member, np.inf, sums / sizes).min(axis=1)
    largest = np.maximum(inside, outside)
    is_usable = (n_inside > 1) & (largest > 0) & np.isfinite(outside)
    silhouettes = np.zeros(len(sums))
    np.divide(outside - inside, largest, out=silhouettes, where=is_usable)
    return silhouettes
