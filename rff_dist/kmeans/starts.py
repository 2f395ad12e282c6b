"""All that precedes the Lloyd passes of k-means: checks, measures, and first centres.

A dataset and a feature map go in; `Starts` come out: the first centres, which
`kmeans.fit` moves. Random rows would be worse: k-means ends in the local optimum near
its first centres. So a few passes draw candidates far from each other, and centres are
chosen among these in memory, where several tries cost little.
"""

import logging
import operator
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from rff_dist.data import samples
from rff_dist.data.blocks import Dataset, Rows
from rff_dist.engines import events, protocol
from rff_dist.engines.cluster import PROCESS_BYTES
from rff_dist.errors import DataError, InvalidParameterError, PlanError
from rff_dist.features import maps
from rff_dist.frequencies import uniforms
from rff_dist.kmeans import cluster_sums, lloyd_pass
from rff_dist.kmeans.candidates import (
    RowsByKey,
    SeedChoice,
    choose_centres,
    choose_rows,
    exchange_centres,
    improve_centres,
    weigh_points,
    weighted_inertia,
)
from rff_dist.kmeans.cluster_options import INITS, LloydOptions
from rff_dist.numerics import exact_sums, machine
from rff_dist.statistics import passes, row_passes, specs
from rff_dist.statistics.moments import Moments
from rff_dist.text import human_bytes, short_repr
from rff_dist.typing import Facts, FloatArray, frozen

logger = logging.getLogger(__name__)

# Bahmani et al. (2012) draw 2k rows in each of five rounds. Two rounds of 4k end within
# 1 % of the same inertias, with 0.4 times the comparisons.
OVERSAMPLING = 4
ROUNDS = 2
LOCAL_SEARCH_STEPS = 20  # and one more for each cluster
START_STEPS = 10  # Lloyd steps on the candidates
# If a dataset has at most so many rows, all distinct rows are candidates, whatever
# `init` is.
CANDIDATE_ROWS = 4096


@frozen(eq=False)
class Clusters:
    """Clusters of a dataset in features: what labels rows, and the figures of the
    fit.
    """

    #: It includes the standardizer of the inputs.
    feature_map: maps.FeatureMap
    #: In Z, shape (n_clusters, n_components).
    centres: FloatArray
    #: The sum of the weights of each cluster's rows, shape (n_clusters,).
    weights: FloatArray
    #: Σ w·‖z − c‖² over rows and their nearest centres, in units of the kernel.
    inertia: float
    #: The inertia before each pass, and last the inertia of the final centres.
    inertias: tuple[float, ...]
    #: The final inertia of each start; `inertia` is the smallest.
    start_inertias: tuple[float, ...]
    #: Lloyd passes that moved this start's centres.
    n_iter: int
    #: Whether the centres stopped before `max_iter`.
    converged: bool
    #: The grid of the sums from which the centres were computed.
    grid: cluster_sums.ClusterGrid
    #: JSON values that are stored with the clusters: facts of the dataset, parameters,
    #: and how features and the number of clusters were chosen.
    card: Facts = field(default_factory=dict)

    __repr__ = short_repr

    @property
    def n_clusters(self) -> int:
        return len(self.centres)

    @property
    def n_filled(self) -> int:
        """Number of clusters with rows; few distinct rows leave some empty."""
        return int((self.weights > 0).sum())

    @property
    def state(self) -> cluster_sums.ClusterState:
        """The state of passes that compare rows with these centres."""
        return cluster_sums.ClusterState(
            self.feature_map, self.centres[np.newaxis], self.grid
        )

    def digest(self) -> str:
        """Return the SHA-256 of all that labels depend on."""
        return maps.arrays_digest(self.feature_map.digest(), [self.centres], None)


# -- checks
# --------------------------------------------------------------------------------


def check_rows(dataset: Dataset, n_clusters: int) -> None:
    """Raise DataError if there are fewer rows than clusters, or none."""
    row_passes.blocks_of(dataset)  # refuses a dataset without rows
    check_enough(dataset.n_samples, n_clusters)


def check_enough(n_samples: int, n_clusters: int) -> None:
    """Raise DataError if there are fewer rows than clusters."""
    if n_samples < n_clusters:
        raise DataError(
            f"n_samples={n_samples} should be >= n_clusters={n_clusters}; ask for fewer"
            " clusters"
        )


def check_fits(
    dataset: Dataset,
    n_components: int,
    lloyd: LloydOptions,
    *,
    engine: protocol.Engine,
) -> None:
    """Raise PlanError unless all passes fit in a worker's memory."""
    check_memory(dataset, n_components, lloyd.n_init, lloyd.largest, engine=engine)
    if _draws_candidates(lloyd, dataset):
        n_candidates = 1 + ROUNDS * OVERSAMPLING * lloyd.largest
        check_memory(dataset, n_components, 1, n_candidates, engine=engine)


def check_memory(
    dataset: Dataset,
    n_components: int,
    n_starts: int,
    n_clusters: int,
    *,
    engine: protocol.Engine,
) -> None:
    """Raise PlanError unless sums and centres of a pass fit in a worker's memory."""
    n_centres = n_starts * n_clusters
    block_rows = row_passes.blocks_of(dataset)[0].n_samples
    # a block as it is read, in float64 and in float32; and the next block, which is
    # read ahead
    value_bytes = 2 * dataset.dtype.itemsize + 12
    n_bytes = PROCESS_BYTES + block_rows * dataset.n_features * value_bytes
    n_bytes += lloyd_pass.pass_bytes(
        n_components, n_centres, n_threads=engine.n_threads
    )
    limit = engine.worker_memory or machine.available_memory()
    if n_bytes > limit:
        raise PlanError(
            f"a worker needs {human_bytes(n_bytes)} for {n_centres:_} centres"
            f" (n_clusters={n_clusters:_}, starts={n_starts:_},"
            f" n_components={n_components:_}) but has {human_bytes(limit)}; ask for"
            " fewer clusters, starts or components, or give each process more memory"
        )


# -- what all passes share
# -----------------------------------------------------------------


@frozen(eq=False)
class ClusteringJob:
    """A dataset, the features to cluster in, and what all passes share."""

    dataset: Dataset
    feature_map: maps.FeatureMap
    grid: cluster_sums.ClusterGrid
    engine: protocol.Engine
    #: Σ w·‖z‖².
    sum_of_squared_norms: float = 0.0
    #: Mean variance of Z's columns.
    variance: float = 0.0

    def run[S, T](
        self,
        compute: Callable[[Rows, S], T],
        state: S,
        *,
        label: str,
        combine: Callable[[T, T], T] = operator.add,
    ) -> T:
        """Run a pass over all blocks."""
        return row_passes.sum_rows(
            self.dataset,
            compute,
            state,
            combine=combine,
            engine=self.engine,
            label=label,
        )

    def centres(self, values: FloatArray) -> cluster_sums.ClusterState:
        """Return the state of a pass that compares rows with centres."""
        return cluster_sums.ClusterState(self.feature_map, values, self.grid)

    def sums(
        self, state: cluster_sums.ClusterState, *, label: str = "lloyd"
    ) -> cluster_sums.ClusterSums:
        """Run a Lloyd pass; raises PlanError if a worker's memory is too small."""
        n_starts, n_clusters, n_components = state.centres.shape
        check_memory(
            self.dataset, n_components, n_starts, n_clusters, engine=self.engine
        )
        return self.checked(self.run(lloyd_pass.sum_clusters, state, label=label))

    def checked(self, sums: cluster_sums.ClusterSums) -> cluster_sums.ClusterSums:
        """Return the sums, after a check that they count all rows."""
        specs.check_counted(sums.n_samples, self.dataset.n_samples)
        return sums


def clustering_job(
    dataset: Dataset,
    feature_map: maps.FeatureMap,
    moments: Moments | None,
    *,
    engine: protocol.Engine,
) -> ClusteringJob:
    """Return the job of a dataset: the grid of its sums, its norms and variance.

    Takes one or two passes. `moments`: from `inspect`; None is allowed if rows have no
    weights. Raises DataError if values are not finite, or all weights are zero.
    """
    fraction_bits = cluster_sums.fraction_bits_for(dataset.n_samples)
    weight_exponent = 0 if moments is None else passes.weight_grid(moments).exponent
    grid = cluster_sums.ClusterGrid(fraction_bits, weight_exponent)
    job = ClusteringJob(dataset, feature_map, grid, engine)
    if not feature_map.bounded or feature_map.whitener is not None:
        largest = job.run(
            lloyd_pass.measure_tiles, feature_map, label="measure", combine=np.maximum
        )
        exponents = np.where(largest > 0, np.frexp(largest)[1], 0)
        grid = replace(grid, exponents=exact_sums.as_runs(exponents))
        job = replace(job, grid=grid)
    # with a single centre, which is the nearest of all rows, a Lloyd pass sums all rows
    origin = job.centres(np.zeros((1, 1, feature_map.n_components)))
    sum_all = partial(lloyd_pass.sum_clusters, with_norms=True)
    sums = job.checked(job.run(sum_all, origin, label="norms"))
    squared_norms = sums.sum_of_squared_norms(origin)
    mean = replace(origin, centres=sums.means(origin))
    weight = float(sums.cluster_weights(grid).sum())
    spread = float(sums.inertias(mean, squared_norms)[0])
    variance = spread / weight / feature_map.n_components
    return replace(job, sum_of_squared_norms=squared_norms, variance=variance)


# -- first centres
# -------------------------------------------------------------------------


@frozen(eq=False)
class Candidates:
    """Rows among which centres are chosen, and the weight of the rows nearest to
    each.
    """

    #: In Z, shape (n_candidates, n_components).
    points: FloatArray
    #: Shape (n_candidates,).
    weights: FloatArray


@frozen(eq=False)
class Starts:
    """Initial centres."""

    #: In Z, shape (n_starts, n_clusters, n_components).
    values: FloatArray
    #: Number of candidates among which they were chosen; 0 if the user gave centres.
    n_candidates: int = 0

    def __len__(self) -> int:
        return len(self.values)


def read_centres(
    init: Any, feature_map: maps.FeatureMap, n_clusters: int
) -> FloatArray:
    """Return a user's centres in Z, of shape (n_clusters, n_components).

    `init` has a row for each cluster, of inputs or, if the number of columns does not
    fit, of features. Raises InvalidParameterError if it is no array of numbers;
    DataError if it has the wrong shape or values that are not finite.
    """
    try:
        centres = np.asarray(init, np.float64)
        if centres.ndim == 0:
            raise TypeError("a single value")
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(
            f"`init` is a {type(init).__name__}; expected one of {sorted(INITS)}, or an"
            " array of centres"
        ) from error
    of_inputs = (n_clusters, feature_map.n_features)
    of_features = (n_clusters, feature_map.n_components)
    if centres.shape not in (of_inputs, of_features):
        raise DataError(
            f"The shape of the initial centers {centres.shape} does not match the"
            f" number of clusters {n_clusters}: expected {of_inputs} as rows of inputs,"
            f" or {of_features} as centres in features"
        )
    if not np.isfinite(centres).all():
        raise DataError("`init` contains NaN or infinity; expected finite centres")
    if centres.shape == of_inputs:
        return feature_map.transform(centres, dtype=np.float64)
    return centres


def find_candidates(job: ClusteringJob, lloyd: LloydOptions) -> Candidates:
    """Find candidates by passes over all rows, or in a sample if that is enough."""
    if _draws_candidates(lloyd, job.dataset):
        return _draw_candidates(job, lloyd)
    return _sample_candidates(job, lloyd)


def _draws_candidates(lloyd: LloydOptions, dataset: Dataset) -> bool:
    if not isinstance(lloyd.init, str) or lloyd.init != "k-means||":
        return False
    return dataset.n_samples > _sample_size(lloyd)


def _sample_size(lloyd: LloydOptions) -> int:
    return max(CANDIDATE_ROWS, 4 * lloyd.largest)


def _sample_candidates(job: ClusteringJob, lloyd: LloydOptions) -> Candidates:
    """Return the distinct rows of a seeded sample as candidates."""
    X, _, weights = samples.sample_rows(
        job.dataset, lloyd.seed, n_rows=_sample_size(lloyd)
    )
    inputs = job.feature_map.prepare(X)
    _, first, groups = np.unique(inputs, axis=0, return_index=True, return_inverse=True)
    totals = np.bincount(groups.ravel(), weights=weights).astype(np.float64)
    return Candidates(job.feature_map.transform(X[first], dtype=np.float64), totals)


def _draw_candidates(job: ClusteringJob, lloyd: LloydOptions) -> Candidates:
    """Draw candidates by k-means||, and weight each by the rows nearest to it.

    Bahmani et al. (2012), Alg. 2, but each round draws exactly 4 · n_clusters rows; in
    the paper that is the expected number.
    """
    X, _, _ = samples.sample_rows(job.dataset, lloyd.seed, n_rows=1)
    points = job.feature_map.transform(X, dtype=np.float64)
    size = OVERSAMPLING * lloyd.largest
    job.engine.tell(events.Rounds("candidates", ROUNDS))
    for turn in range(ROUNDS):
        choice = SeedChoice(job.centres(points[np.newaxis]), size, lloyd.seed, turn)
        new_rows: RowsByKey = job.run(choose_rows, choice, label="candidates")
        points = np.concatenate([points, new_rows.features])
        if len(new_rows.keys) < size:  # every other row is at a candidate
            break
    sums = job.run(weigh_points, job.centres(points[np.newaxis]), label="weights")
    weights = job.checked(sums).cluster_weights(job.grid)[0]
    has_rows = weights > 0
    return Candidates(points[has_rows], weights[has_rows])


def choose_starts(candidates: Candidates, lloyd: LloydOptions) -> Starts:
    """Choose the centres of `n_init` starts."""
    with machine.using_threads(1):
        values = [
            choose_start(
                candidates, lloyd.largest, uniforms.derived_seed(lloyd.seed, i)
            )
            for i in range(lloyd.n_init)
        ]
    return Starts(np.stack(values), len(candidates.points))


def choose_start(candidates: Candidates, n_clusters: int, seed: int) -> FloatArray:
    """Return the best of three solutions for the weighted candidates, without a pass.

    Two are chosen by greedy k-means++; the third is the first one after local search.
    Each is improved by some Lloyd steps. A single k-means++ choice often has two
    centres in one cluster: on 30 blobs its inertia was 7 % higher, while the best of
    three was the optimum for 12 of 12 seeds. Local search alone sometimes leaves a ring
    without a centre.
    """
    points = candidates.points
    weights = candidates.weights
    first = choose_centres(points, weights, n_clusters, seed=seed)
    if len(first) < n_clusters:
        logger.info("%d candidates for %d centres are distinct", len(first), n_clusters)
        # the first centre is repeated: ties go to the lower index, so a repeated centre
        # gets no rows
        n_repeated = n_clusters - len(first)
        return np.asarray(points[np.append(first, np.repeat(first[0], n_repeated))])
    n_steps = LOCAL_SEARCH_STEPS + n_clusters
    other_seed = uniforms.derived_seed(seed, 0)
    solutions = [
        improve_centres(points, weights, points[rows], max_iter=START_STEPS)
        for rows in (
            first,
            choose_centres(points, weights, n_clusters, seed=other_seed),
            exchange_centres(points, weights, first, n_steps=n_steps, seed=seed),
        )
    ]
    return min(
        solutions, key=lambda centres: weighted_inertia(points, weights, centres)
    )
