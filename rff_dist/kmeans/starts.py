"""What precedes the Lloyd passes of k-means: checks, passes that measure features, candidates and starts."""

import logging
import operator
from collections.abc import Callable
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from rff_dist.data import samples
from rff_dist.data.blocks import Dataset, Rows
from rff_dist.engines import progress, protocol
from rff_dist.errors import DataError, InvalidParameterError, PlanError
from rff_dist.features import maps
from rff_dist.fitting import plan
from rff_dist.frequencies import uniforms
from rff_dist.kmeans import lloyd_pass
from rff_dist.kmeans.candidates import (
    ChosenRows,
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
from rff_dist.statistics import inspection, passes, specs
from rff_dist.statistics.moments import Moments
from rff_dist.text import human_bytes, short_repr
from rff_dist.typing import Facts, FloatArray, frozen

logger = logging.getLogger(__name__)

# Bahmani et al. (2012) draw 2k rows in each of five rounds. Two rounds of 4k end within 1 % of the same
# inertias, with 0.4 times the comparisons.
OVERSAMPLING, ROUNDS = 4, 2
LOCAL_SEARCH_STEPS = 20  # plus one for each cluster
START_STEPS = 10  # Lloyd steps on the candidates
CANDIDATE_ROWS = 4096  # in a dataset of up to so many rows all distinct rows are candidates, for any `init`


@frozen(eq=False)
class Clusters:
    """Clusters of a dataset in features: all that is needed to label rows, and how they were found.

    `feature_map`: with the standardizer of the inputs.
    `centres`: float64 array of shape (n_clusters, n_components). In Z.
    `weights`: float64 array of shape (n_clusters,). Sum of the weights of each cluster's rows; 1 for a row
      without weight.
    `inertia`: Σ w·‖z − c‖² over the rows and their nearest centres, in units of the kernel.
    `inertias`: the inertia of the centres before each pass, then that of the final centres.
    `start_inertias`: the final inertia of each start; the smallest is `inertia`.
    `n_iter`: Lloyd passes that moved the centres of this start, without those on samples.
    `converged`: whether the centres stopped before `max_iter`.
    `grid`: the grid of the sums from which the centres were computed.
    `card`: fingerprint and columns of the dataset, and the numbers of clusters that were compared.
    """

    feature_map: maps.FeatureMap
    centres: FloatArray
    weights: FloatArray
    inertia: float
    inertias: tuple[float, ...]
    start_inertias: tuple[float, ...]
    n_iter: int
    converged: bool
    grid: lloyd_pass.ClusterGrid
    card: Facts = field(default_factory=dict)

    __repr__ = short_repr

    @property
    def n_clusters(self) -> int:
        return len(self.centres)

    @property
    def n_filled(self) -> int:
        """Number of clusters that have rows; less than asked for if there are fewer distinct rows."""
        return int((self.weights > 0).sum())

    @property
    def state(self) -> lloyd_pass.Centres:
        """The state of passes that compare rows with these centres."""
        return lloyd_pass.Centres(self.feature_map, self.centres[np.newaxis], self.grid)

    def digest(self) -> str:
        """Return the SHA-256 of all that labels depend on."""
        return maps.arrays_digest(self.feature_map.digest(), [self.centres], None)


def check_rows(dataset: Dataset, n_clusters: int) -> None:
    """Check that there are at least as many rows as clusters; raises DataError otherwise."""
    inspection.blocks_of(dataset)  # refuses a dataset without rows
    check_enough(dataset.n_samples, n_clusters)


def check_enough(n_samples: int, n_clusters: int) -> None:
    """Raise DataError if there are fewer rows than clusters."""
    if n_samples < n_clusters:
        raise DataError(f"n_samples={n_samples} should be >= n_clusters={n_clusters}; ask for fewer clusters")


def check_fits(
    dataset: Dataset, width: int, lloyd: LloydOptions, *, n_numbers: int = 1, engine: protocol.Engine
) -> None:
    """Check that all passes, in `width` columns, fit in a worker's memory; raises PlanError otherwise."""
    check_memory(dataset, width, lloyd.n_init * n_numbers, lloyd.largest, engine=engine)
    if _draws(lloyd, dataset):
        check_memory(dataset, width, 1, 1 + ROUNDS * OVERSAMPLING * lloyd.largest, engine=engine)


def check_memory(
    dataset: Dataset, n_components: int, n_starts: int, n_clusters: int, *, engine: protocol.Engine
) -> None:
    """Check that the sums and centres of a pass fit in a worker's memory; raises PlanError otherwise."""
    blocks = inspection.blocks_of(dataset)
    n_centres = n_starts * n_clusters
    needed = plan.PROCESS_BYTES
    needed += lloyd_pass.pass_bytes(n_components, n_centres, n_threads=engine.n_threads)
    # a block as read, in float64 and in float32, and the next block, which is read ahead
    needed += blocks[0].n_samples * dataset.n_features * (2 * dataset.dtype.itemsize + 12)
    limit = engine.worker_memory or machine.available_memory()
    if needed > limit:
        raise PlanError(
            f"a worker needs {human_bytes(needed)} for {n_centres:_} centres "
            f"(n_clusters={n_clusters:_}, starts={n_starts:_}, n_components={n_components:_}) but has "
            f"{human_bytes(limit)}; ask for fewer clusters, starts or components, or give each process more "
            "memory"
        )


@frozen(eq=False)
class ClusteringJob:
    """A dataset, the features to cluster in, and what all passes share.

    `sum_of_squared_norms`: Σ w·‖z‖².
    `variance`: mean variance of Z's columns.
    """

    dataset: Dataset
    feature_map: maps.FeatureMap
    grid: lloyd_pass.ClusterGrid
    engine: protocol.Engine
    sum_of_squared_norms: float = 0.0
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
        dataset, engine = self.dataset, self.engine
        return inspection.sum_rows(dataset, compute, state, combine=combine, engine=engine, label=label)

    def expect(self, label: str, limit: int) -> None:
        """Tell the engine's observers how many passes there will be at most."""
        progress.Announcer(self.engine.observers)(progress.Rounds(label, limit))

    def centres(self, values: FloatArray, *, counts: tuple[int, ...] = ()) -> lloyd_pass.Centres:
        """Return the state of a pass that compares rows with centres."""
        return lloyd_pass.Centres(self.feature_map, values, self.grid, counts)

    def sums(self, state: lloyd_pass.Centres, *, label: str = "lloyd") -> lloyd_pass.ClusterSums:
        """Run a Lloyd pass with a state's centres; raises PlanError if a worker's memory is too small."""
        n_init, n_clusters, n_components = state.values.shape
        check_memory(self.dataset, n_components, n_init, n_clusters, engine=self.engine)
        sums = self.run(lloyd_pass.sum_clusters, state, label=label)
        specs.check_counted(sums.n_samples, self.dataset.n_samples)
        return sums


def measure(
    dataset: Dataset, feature_map: maps.FeatureMap, moments: Moments | None, *, engine: protocol.Engine
) -> ClusteringJob:
    """Fix the grid of the sums, and measure norms and variance, in one or two passes.

    `moments`: from `statistics.inspection.inspect`; needed if rows have weights.
    Raises DataError if values are not finite, or all weights are zero.
    """
    weight_exponent = 0 if moments is None else passes.weight_grid(moments).exponent
    grid = lloyd_pass.ClusterGrid(lloyd_pass.fraction_bits_for(dataset.n_samples), weight_exponent)
    job = ClusteringJob(dataset, feature_map, grid, engine)
    if not feature_map.bounded or feature_map.whitener is not None:
        largest = job.run(lloyd_pass.measure_tiles, feature_map, label="measure", combine=np.maximum)
        exponents = np.where(largest > 0, np.frexp(largest)[1], 0)
        job = replace(job, grid=replace(job.grid, exponents=exact_sums.as_runs(exponents)))
    # all rows are nearest to a single centre, so a Lloyd pass gives the sums over all of them
    origin = job.centres(np.zeros((1, 1, feature_map.n_components)))
    sums = job.run(partial(lloyd_pass.sum_clusters, squared_norms=True), origin, label="norms")
    specs.check_counted(sums.n_samples, dataset.n_samples)
    squared_norms = sums.sum_of_squared_norms(origin)
    mean = sums.means(origin)
    weight = float(sums.cluster_weights(job.grid).sum())
    spread = float(sums.inertias(replace(origin, values=mean), squared_norms)[0])
    variance = spread / weight / feature_map.n_components
    return replace(job, sum_of_squared_norms=squared_norms, variance=variance)


def read_centres(init: Any, feature_map: maps.FeatureMap, n_clusters: int) -> FloatArray:
    """Return given centres in Z, of shape (n_clusters, n_components).

    `init`: array-like of shape (n_clusters, n_features) or (n_clusters, n_components). Rows of inputs, which
      are mapped to features, or centres in Z; if both fit, it is taken as inputs.
    Raises InvalidParameterError if it is no array of numbers; DataError if it has the wrong shape or values
      that are not finite.
    """
    try:
        centres = np.asarray(init, np.float64)
        if centres.ndim == 0:
            raise TypeError("a single value")
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(
            f"`init` is a {type(init).__name__}; expected one of {sorted(INITS)}, or an array of centres"
        ) from error
    shapes = [(n_clusters, feature_map.n_features), (n_clusters, feature_map.n_components)]
    if centres.shape not in shapes:
        raise DataError(
            f"The shape of the initial centers {centres.shape} does not match the number of clusters "
            f"{n_clusters}: expected {shapes[0]} as rows of inputs, or {shapes[1]} as centres in features"
        )
    if not np.isfinite(centres).all():
        raise DataError("`init` contains NaN or infinity; expected finite centres")
    if centres.shape == shapes[0]:
        centres = feature_map.transform(centres, dtype=np.float64)
    return centres


@frozen(eq=False)
class Candidates:
    """Rows among which centres are chosen.

    `points`: float64 array of shape (n_candidates, n_components). In Z.
    `weights`: float64 array of shape (n_candidates,). Weight of the rows that each represents.
    """

    points: FloatArray
    weights: FloatArray


@frozen(eq=False)
class Starts:
    """Initial centres, for one number of clusters or several.

    `values`: float64 array of shape (n_starts, n_clusters, n_components). In Z; 0 beyond a start's count.
    `counts`: number of centres of each start.
    `n_candidates`: number of rows among which they were chosen; 0 if they were given.
    """

    values: FloatArray
    counts: tuple[int, ...]
    n_candidates: int = 0

    def __len__(self) -> int:
        return len(self.counts)


def _draws(lloyd: LloydOptions, dataset: Dataset) -> bool:
    """Return whether candidates are drawn from all rows in passes, rather than from a sample."""
    by_passes = isinstance(lloyd.init, str) and lloyd.init == "k-means||"
    return by_passes and dataset.n_samples > _sample_size(lloyd.largest)


def _sample_size(n_clusters: int) -> int:
    return max(CANDIDATE_ROWS, 4 * n_clusters)


def find_candidates(job: ClusteringJob, lloyd: LloydOptions) -> Candidates:
    """Find the rows among which up to `n_clusters` centres are chosen."""
    return _draw_candidates(job, lloyd) if _draws(lloyd, job.dataset) else _sample_candidates(job, lloyd)


def choose_starts(candidates: Candidates, lloyd: LloydOptions) -> Starts:
    """Choose the centres of `n_init` starts for each number of clusters.

    Each start is the best of three solutions for the weighted candidates, found without a pass: two by greedy
    k-means++, and one of these after local search, each improved by some Lloyd steps. A single k-means++
    choice often has two centres in one cluster, and local search sometimes leaves a ring without a centre.
    """
    counts = tuple(number for number in lloyd.numbers for _ in range(lloyd.n_init))
    values = np.zeros((len(counts), lloyd.largest, candidates.points.shape[1]))
    for i, number in enumerate(counts):
        seed = uniforms.derived_seed(lloyd.seed, i % lloyd.n_init)
        values[i, :number] = _choose_start(candidates, number, seed)
    return Starts(values, counts, len(candidates.points))


# The best of three choices has the best inertia on 30 blobs for 12 of 12 seeds; one greedy choice lay 7 %
# above.
def _choose_start(candidates: Candidates, n_clusters: int, seed: int) -> FloatArray:
    points, weights = candidates.points, candidates.weights
    seeds = seed, uniforms.derived_seed(seed, 0)
    chosen = [choose_centres(points, weights, n_clusters, seed=each) for each in seeds]
    if len(chosen[0]) < n_clusters:
        logger.warning("%d candidates for %d centres are distinct", len(chosen[0]), n_clusters)
        # a repeated centre gets no rows, since ties go to the lowest index
        repeated = np.repeat(chosen[0][:1], n_clusters - len(chosen[0]))
        return np.asarray(points[np.concatenate([chosen[0], repeated])])
    n_steps = LOCAL_SEARCH_STEPS + n_clusters
    chosen.append(exchange_centres(points, weights, chosen[0], n_steps=n_steps, seed=seed))
    solutions = [improve_centres(points, weights, points[some], max_iter=START_STEPS) for some in chosen]
    return min(solutions, key=lambda centres: weighted_inertia(points, weights, centres))


def _sample_candidates(job: ClusteringJob, lloyd: LloydOptions) -> Candidates:
    """Return the distinct rows of a seeded sample as candidates."""
    X, _, weights = samples.sample_rows(job.dataset, lloyd.seed, n_rows=_sample_size(lloyd.largest))
    inputs = job.feature_map.prepare(X)
    _, first, groups = np.unique(inputs, axis=0, return_index=True, return_inverse=True)
    counts = np.bincount(groups.ravel(), weights=weights).astype(np.float64)
    return Candidates(job.feature_map.transform(X[first], dtype=np.float64), counts)


def _draw_candidates(job: ClusteringJob, lloyd: LloydOptions) -> Candidates:
    """Draw candidates by k-means||, and weight each by the rows nearest to it.

    Bahmani et al. (2012), Alg. 2, but each round draws exactly 4 · n_clusters rows, not so many on average.
    """
    X, _, _ = samples.sample_rows(job.dataset, lloyd.seed, n_rows=1)
    drawn = job.feature_map.transform(X, dtype=np.float64)
    size = OVERSAMPLING * lloyd.largest
    job.expect("candidates", ROUNDS)
    for turn in range(ROUNDS):
        points = job.centres(drawn[np.newaxis])
        choice = SeedChoice(points, size, lloyd.seed, turn)
        chosen: ChosenRows = job.run(choose_rows, choice, label="candidates")
        drawn = np.concatenate([drawn, chosen.features])
        if len(chosen.keys) < size:  # every other row is at a candidate
            break
    sums: lloyd_pass.ClusterSums = job.run(weigh_points, job.centres(drawn[np.newaxis]), label="weights")
    specs.check_counted(sums.n_samples, job.dataset.n_samples)
    weights = sums.cluster_weights(job.grid)[0]
    counts = weights > 0
    return Candidates(drawn[counts], weights[counts])
