"""Kernel k-means in features as plain functions: inspect → draw → start → Lloyd passes → label.

All starts share each pass. Each pass makes the features again and stores none. It returns exact sums: the
same bits on any engine and for any blocks.
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
from rff_dist.kmeans import lloyd_pass
from rff_dist.kmeans.candidates import ChosenRows, SeedChoice, choose_rows
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
from rff_dist.typing import AnyIntArray, BoolArray, FloatArray, IndexArray, Summary, frozen

logger = logging.getLogger(__name__)

# -- the whole job ---------------------------------------------------------------------------------


def fit(dataset: Dataset, space: ClusterSpace, lloyd: LloydOptions, *, engine: Engine) -> Clusters:
    """`sklearn.cluster.KMeans` on random or Nyström features, which are never stored; targets are ignored.

    Takes a pass for moments, one for norms, those of the start, and one Lloyd pass an iteration. Each takes
    at most O(n_samples · n_components · (n_features + n_init · n_clusters)) time, and memory that does not
    grow with the rows.

    Raises DataError if values are not finite, or there are fewer rows than clusters; PlanError if a pass
      needs more memory than a worker has.
    """
    dataset = dataset.without_targets()
    check_rows(dataset, lloyd.largest)
    check_fits(dataset, space.width, lloyd, engine=engine)
    moments = inspection.inspect(dataset, engine=engine)
    feature_map = draw_features(dataset, space, moments, engine=engine)
    clusters = find_clusters(dataset, feature_map, lloyd, moments=moments, engine=engine)
    return replace(clusters, card=describe(dataset, space, lloyd, clusters.n_clusters))


def describe(dataset: Dataset, space: ClusterSpace, lloyd: LloydOptions, n_clusters: int) -> Summary:
    """Return the card of clusters: the facts of the dataset, and the parameters of an `RFFKMeans`."""
    own = {**parameters.of_options(space, lloyd), "n_clusters": n_clusters}
    return {**prepare.describe_dataset(dataset), parameters.PARAMETERS: own}


def draw_features(dataset: Dataset, space: ClusterSpace, moments: Moments, *, engine: Engine) -> FeatureMap:
    """Draw the features to cluster in; if principal components are wanted, compute them.

    Raises InvalidParameterError if the kernel does not suit the columns; PlanError if principal components
      need more memory than there is.
    """
    if space.n_principal is None:
        prepared = prepare.prepare(dataset, standardize=space.standardize, moments=moments, engine=engine)
        return prepared.draw(space, seed=space.seed)
    n_kept, normalize = space.n_principal, space.normalize
    return fit_components(
        dataset, space, n_components=n_kept, normalize=normalize, moments=moments, engine=engine
    ).features()


def find_clusters(
    dataset: Dataset,
    feature_map: FeatureMap,
    lloyd: LloydOptions,
    *,
    moments: Moments | None = None,
    engine: Engine,
) -> Clusters:
    """Minimise Σ w·‖z(x) − c‖² over centres, by Lloyd passes from one or several starts.

    `lloyd`: with one number of clusters.
    `moments`: from `inspect`. If they are not given and rows have weights, a pass measures them.
    Raises DataError if values are not finite, or given centres have the wrong shape; PlanError if a pass
      needs more memory than a worker has.
    """
    if moments is None and dataset.weighted:
        moments = inspection.inspect(dataset, engine=engine)
    job = measure(dataset, feature_map, moments, engine=engine)
    [clusters] = finish(iterate(job, start(job, lloyd), lloyd))
    return clusters


def start(job: ClusteringJob, lloyd: LloydOptions) -> Starts:
    """Return the centres from which the Lloyd passes over all rows start, for each number of clusters."""
    if isinstance(lloyd.init, str):
        return choose_starts(find_candidates(job, lloyd), lloyd)
    centres = read_centres(lloyd.init, job.feature_map, lloyd.largest)
    return Starts(centres[np.newaxis], (lloyd.largest,))


# -- Lloyd passes ----------------------------------------------------------------------------------


def _shift(former: FloatArray, centres: FloatArray) -> FloatArray:
    """Return the sum of squared shifts of each start's centres."""
    return np.asarray(np.square(centres - former).sum(axis=(1, 2)))


@frozen(eq=False)
class LloydPass:
    """What a Lloyd pass over all rows found.

    `number`: number of the pass, from 1.
    `inertias`: the least inertia among the starts of each number of clusters, for centres before the pass.
      A start that stopped earlier counts with its last inertia.
    `n_starts`: number of starts that took part.
    `shift`: a start's shift is the sum of the squared shifts of its centres; the largest of these. 0 for the
      last pass if it only measures.
    `clusters`: the result for each number of clusters; () before the last pass.
    """

    number: int
    inertias: tuple[float, ...]
    n_starts: int
    shift: float
    clusters: tuple[Clusters, ...] = ()

    @property
    def inertia(self) -> float:
        return min(self.inertias)


def iterate(job: ClusteringJob, starts: Starts, lloyd: LloydOptions) -> Iterator[LloydPass]:
    """Move centres to the means of their rows until they stay; each `next` runs a pass.

    Starts of all numbers of clusters share the passes, and each pass makes a row's features once. Starts that
    have stopped take no part in later passes.

    Raises PlanError if a pass needs more memory than a worker has.
    """
    centres, counts = starts.values.copy(), np.array(starts.counts)
    numbers = sorted(set(starts.counts))
    paths: list[list[float]] = [[] for _ in counts]
    n_iter = np.zeros(len(counts), np.int64)
    stopped, settled = np.zeros(len(counts), bool), np.zeros(len(counts), bool)
    weights = np.zeros(centres.shape[:2])

    def best(number: int) -> int:
        return min(np.flatnonzero(counts == number).tolist(), key=lambda start: paths[start][-1])

    def step(some: IndexArray, *, refill: bool) -> FloatArray:
        state = job.centres(centres[some], counts=tuple(counts[some].tolist()))
        sums = job.sums(state)
        weights[some], moved = sums.cluster_weights(job.grid), sums.means(state)
        if refill:
            without_rows = (sums.weights == 0) & state.present
            for start in np.flatnonzero(without_rows.any(axis=1)):
                present = state.values[start][state.present[start]]
                empty = np.flatnonzero(without_rows[start])
                moved[start, empty] = _refilled(job, present, empty)
        inertias = sums.inertias(state, job.sum_of_squared_norms).tolist()
        for start, inertia in zip(some, inertias, strict=True):
            paths[start].append(inertia)
        return moved

    def report(number: int, n_starts: int, shift: float) -> LloydPass:
        return LloydPass(number, tuple(paths[best(k)][-1] for k in numbers), n_starts, shift)

    def found(k: int) -> Clusters:
        start = best(k)
        path, values = tuple(paths[start]), (centres[start, :k], weights[start, :k])
        ends = tuple(each[-1] for each, count in zip(paths, starts.counts, strict=True) if count == k)
        passes = int(n_iter[start]), bool(stopped[start])
        return Clusters(job.feature_map, *values, path[-1], path, ends, *passes, job.grid)

    number, latest = 0, LloydPass(0, (), len(counts), 0.0)
    job.expect("lloyd", lloyd.max_iter)
    while number < lloyd.max_iter and not stopped.all():
        if number:  # each pass is reported one later, since the last one carries the clusters
            yield latest
        active = np.flatnonzero(~stopped)
        moved = step(active, refill=True)
        shifts = _shift(centres[active], moved)
        settled[active] = shifts == 0.0
        stopped[active] = shifts <= lloyd.tol * job.variance
        n_iter[active] += 1
        centres[active] = moved
        number += 1
        latest = report(number, len(active), float(shifts.max()))
        logger.debug("inertia %s, shift %s", [path[-1] for path in paths], shifts)
    moving = np.flatnonzero(~settled)  # their weights and inertia are for the centres before the last move
    if len(moving):
        yield latest
        step(moving, refill=False)
        latest = report(number + 1, len(moving), 0.0)
    yield replace(latest, clusters=tuple(map(found, numbers)))


def finish(passes: Iterator[LloydPass]) -> tuple[Clusters, ...]:
    """Run the remaining passes, and return the clusters found for each number of clusters."""
    *_, last = passes
    return last.clusters


def _refilled(job: ClusteringJob, centres: FloatArray, empty: IndexArray) -> FloatArray:
    """Return new places for empty centres, in order: the rows that are farthest from their own centres.

    Of rows equally far, the lowest row number is first. Centres for which no such row is left stay.
    """
    choice = SeedChoice(job.centres(centres[np.newaxis]), len(empty))
    chosen: ChosenRows = job.run(choose_rows, choice, label="refill")
    places = centres[empty].copy()
    places[: len(chosen.keys)] = chosen.features
    if len(chosen.keys):
        logger.info("%d empty clusters move to rows %s", len(chosen.keys), chosen.row_numbers.tolist())
    return places


# -- how many clusters -----------------------------------------------------------------------------
#
# All numbers share the same passes, from those that draw candidates to the Lloyd passes. They are judged on a
# seeded sample, in the features, where every sampled row counts the same.
#
# References
# ----------
# Rousseeuw (1987), Silhouettes.


SILHOUETTE_ROWS = 5_000  # fewer if their features would take more than _SAMPLE_BYTES
_SAMPLE_BYTES = 2**28
_PANEL_ROWS = 512


@frozen(eq=False)
class JudgedNumber:
    """Clusters, and how well they describe a sample of the rows.

    `silhouette`: mean of (b - a) / max(a, b) over a sample. a is the mean distance of a row to the others of
      its cluster, b the mean distance to the nearest other cluster, in features. NaN if the sample is in one
      cluster.
    """

    clusters: Clusters
    silhouette: float

    def to_dict(self) -> Summary:
        """Return JSON values; None for NaN and infinity."""
        return {
            **values_of(self.clusters, "n_clusters", "inertia"),
            "silhouette": float(self.silhouette) if math.isfinite(self.silhouette) else None,
            **values_of(self.clusters, "n_iter", "converged"),
        }


@frozen(eq=False)
class Comparison:
    """Candidates by ascending number of clusters. The best has the largest silhouette, the first of equals.

    `n_sampled`: number of rows over which silhouettes are averaged.
    """

    candidates: tuple[JudgedNumber, ...]
    n_sampled: int

    @property
    def best(self) -> Clusters:
        silhouettes = np.nan_to_num([candidate.silhouette for candidate in self.candidates], nan=-np.inf)
        return self.candidates[int(np.argmax(silhouettes))].clusters

    @property
    def rows(self) -> list[Summary]:
        return [candidate.to_dict() for candidate in self.candidates]

    def to_dict(self) -> Summary:
        """Return JSON values, for a model's card."""
        return {"candidates": self.rows, "n_sampled": self.n_sampled}


def check_samples(dataset: Dataset, n_components: int) -> None:
    """Check that the samples on which numbers are judged fit in this process; raises PlanError otherwise."""
    n_rows = min(_silhouette_rows(n_components), dataset.n_samples)
    needed = plan.PROCESS_BYTES + 8 * 3 * n_rows * n_components  # features, and centred ones; panels
    needed += 8 * n_rows * (dataset.n_features + _PANEL_ROWS)
    if needed > (limit := machine.available_memory()):
        raise PlanError(
            f"the samples on which numbers of clusters are judged need {human_bytes(needed)} "
            f"(n_components={n_components:_}) but this process has {human_bytes(limit)}; ask for fewer "
            "components, or for one number of clusters"
        )


def _silhouette_rows(n_components: int) -> int:
    return max(2, min(SILHOUETTE_ROWS, _SAMPLE_BYTES // (8 * n_components)))


def compare(dataset: Dataset, clusterings: Sequence[Clusters], *, seed: int) -> Comparison:
    """Judge clusterings of a dataset in the same features, ordered by number of clusters."""
    feature_map = clusterings[0].feature_map
    X = samples.sample_inputs(dataset, seed, n_rows=_silhouette_rows(feature_map.n_components))
    rows = Rows(Block(0, 0, len(X)), X)
    labelings = [lloyd_pass.label_rows(rows, clusters.state) for clusters in clusterings]
    silhouettes = mean_silhouettes(feature_map.transform(X, dtype=np.float64), labelings)
    return Comparison(tuple(map(JudgedNumber, clusterings, silhouettes)), len(X))


def mean_silhouettes(points: FloatArray, labelings: Sequence[AnyIntArray]) -> FloatArray:
    """`sklearn.metrics.silhouette_score(points, labels)` of each labeling of the same points.

    O(n_points² · n_components) for all. A row alone in its cluster counts as 0; a labeling with one cluster
    gives NaN.

    `points`: float64 array of shape (n_points, n_components).
    `labelings`: sequence of int array of shape (n_points,).
    """
    points = points - points.mean(axis=0)  # smaller norms: less cancels in the distances
    norms = np.einsum("ij,ij->i", points, points)
    members = [(labels[:, np.newaxis] == np.unique(labels)).astype(np.float64) for labels in labelings]
    ends = np.cumsum([0, *(member.shape[1] for member in members)])
    together, silhouettes = np.hstack(members), np.zeros((len(labelings), len(points)))
    with machine.using_threads(1):
        for first in range(0, len(points), _PANEL_ROWS):
            here = np.arange(first, min(first + _PANEL_ROWS, len(points)))
            distances = norms[here, np.newaxis] + norms - 2.0 * (points[here] @ points.T)
            # the root of a rounding error would count as a distance of its own
            distances[here - first, here] = 0.0
            sums = np.sqrt(np.maximum(distances, 0.0)) @ together
            for i, member in enumerate(members):
                of_member = sums[:, ends[i] : ends[i + 1]]
                silhouettes[i, here] = _silhouettes(of_member, member[here] > 0, member.sum(axis=0))
    return np.where([member.shape[1] > 1 for member in members], silhouettes.mean(axis=1), np.nan)


def _silhouettes(sums: FloatArray, member: BoolArray, sizes: FloatArray) -> FloatArray:
    """Return silhouettes of rows, from the sums of their distances to the rows of each cluster."""
    own_size = member @ sizes
    # a row is no neighbour of itself
    inside = sums[member] / np.maximum(own_size - 1, 1)
    outside = np.where(member, np.inf, sums / sizes).min(axis=1)
    largest = np.maximum(inside, outside)
    usable = (own_size > 1) & (largest > 0) & np.isfinite(outside)
    return np.where(usable, np.divide(outside - inside, largest, where=usable, out=np.zeros(len(sums))), 0.0)
