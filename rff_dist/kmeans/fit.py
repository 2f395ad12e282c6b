"""Kernel k-means in features as plain functions: inspect → draw → start → Lloyd passes.

A dataset and options go in; `Clusters` come out: a feature map and centres, with which
`labels` finds the cluster of any row. A start is a choice of first centres; the one
that ends with the smallest inertia is kept. Features are made again in each pass and
never stored, so memory does not grow with the rows; all starts share a pass. Sums are
exact: the same bits on any engine and for any blocks.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rff_dist.data.blocks import Dataset
from rff_dist.engines import events
from rff_dist.engines.protocol import Engine
from rff_dist.errors import warn
from rff_dist.features.maps import FeatureMap
from rff_dist.fitting import parameters, plan, prepare, sizes
from rff_dist.kmeans import cluster_sums, shapes
from rff_dist.kmeans.candidates import RowsByKey, SeedChoice, choose_rows
from rff_dist.kmeans.cluster_options import ClusterSpace, LloydOptions
from rff_dist.kmeans.starts import (
    ClusteringJob,
    Clusters,
    Starts,
    check_fits,
    check_rows,
    choose_starts,
    clustering_job,
    find_candidates,
    read_centres,
)
from rff_dist.pca.fit import fit_components
from rff_dist.recipes import recipes
from rff_dist.statistics import inspection
from rff_dist.statistics.moments import Moments
from rff_dist.typing import Do, FloatArray, IndexArray, Summary, call_step, frozen

# the share of the variance of the inputs from which one column decides alone
_DOMINANT = 0.99

logger = logging.getLogger(__name__)

# -- the whole job
# ----------------------------------------------------------------------------


@frozen
class LloydPass:
    """The figures of a Lloyd pass."""

    #: Inertia of the best start's centres before the pass. A start that stopped earlier
    #: counts with its last inertia.
    inertia: float
    #: Number of starts that took part.
    n_starts: int
    #: Σ ‖shift of a centre‖² of the start in which it is largest; 0 for a last pass
    #: that only measures.
    shift: float
    seconds: float


@frozen(eq=False)
class ClusterFit:
    """Clusters, with the options and figures that tell how they were found."""

    clusters: Clusters
    #: The options, with the features and the number of clusters that were chosen.
    space: ClusterSpace
    lloyd: LloydOptions
    #: That choice, and the evidence for it; None if nothing was left open.
    choice: shapes.ClusterChoice | None
    starts: Starts
    passes: tuple[LloydPass, ...]


def fit(
    dataset: Dataset,
    space: ClusterSpace,
    lloyd: LloydOptions,
    *,
    engine: Engine,
    do: Do = call_step,
) -> ClusterFit:
    """Like `sklearn.cluster.KMeans` on random or Nyström features; targets are ignored.

    Takes a pass for moments, one for norms, a few for the start, and one for each Lloyd
    iteration, of O(n_samples · n_components · (n_features + n_init · n_clusters)) time
    at most. `do` calls each step as `do(name, function, *arguments)`. Raises DataError
    if values are not finite, or there are fewer rows than clusters; PlanError if a pass
    needs more memory than a worker has.
    """
    dataset = dataset.without_targets()
    check_rows(dataset, lloyd.largest)
    check_plan(dataset, space, lloyd, engine=engine)

    # mean, variance and range of each column
    moments = do("inspect", inspection.inspect, dataset, engine=engine)
    if space.standardize is False:
        warn_of_scales(dataset, moments)

    # the features that show shapes, and their number, from a sample of rows
    choice = None
    if shapes.seeks_shapes(dataset, space, lloyd):
        choice = do(
            "choose",
            shapes.choose_features,
            dataset,
            space,
            lloyd,
            moments,
            engine=engine,
        )
        space = choice.space
        lloyd = choice.lloyd

    # W and b, or principal components
    feature_map = do("draw", draw_features, dataset, space, moments, engine=engine)

    # the number of clusters, if several are to be tried in given features
    if len(lloyd.numbers) > 1:
        choice = do(
            "choose",
            shapes.choose_number,
            dataset,
            feature_map,
            space,
            lloyd,
            engine=engine,
        )
        lloyd = choice.lloyd

    # a worker whose features differ is found here, and not hours later
    do("broadcast", engine.broadcast, feature_map)

    # ‖z‖² of all rows, and the unit of exact sums
    job = do("measure", clustering_job, dataset, feature_map, moments, engine=engine)

    starts = do("start", start, job, lloyd)
    clusters, passes = move_centres(job, starts, lloyd, do)
    card = describe(dataset, space, lloyd, choice)
    return ClusterFit(
        replace(clusters, card=card), space, lloyd, choice, starts, tuple(passes)
    )


def warn_of_scales(dataset: Dataset, moments: Moments) -> None:
    """Warn if one column has nearly all of the variance, so that it alone decides."""
    variances = moments.variances[: dataset.n_features].copy()
    # of a category's one-hot columns, at most
    variances[list(recipes.levels_of(dataset.attributes))] = 1.0
    share = variances.max() / (variances.sum() or 1.0)
    if share > _DOMINANT and np.count_nonzero(variances) > 1:
        name = dataset.column_names[variances.argmax()]
        warn(
            f"columns are not scaled: {name!r} has {share:.1%} of their variance, so"
            " clusters are ranges of it; set `standardize` to yes"
        )


def check_plan(
    dataset: Dataset, space: ClusterSpace, lloyd: LloydOptions, *, engine: Engine
) -> None:
    """Raise PlanError, before any pass, if sums or centres do not fit in memory."""
    if shapes.seeks_shapes(dataset, space, lloyd):
        space = shapes.largest_space(space, lloyd)
    check_fits(dataset, space.width, lloyd, engine=engine)
    if space.n_principal is not None:
        sums = sizes.SumOptions(features=space.features)
        plan.plan_on_engine(dataset, space.n_components, sums, engine=engine)


def describe(
    dataset: Dataset,
    space: ClusterSpace,
    lloyd: LloydOptions,
    choice: shapes.ClusterChoice | None,
) -> Summary:
    """Return the card of clusters, JSON values that are stored with them: facts of the
    dataset, and parameters of `RFFKMeans`.
    """
    card = {
        **prepare.describe_dataset(dataset),
        parameters.PARAMETERS: parameters.of_options(space, lloyd),
    }
    if choice is not None:
        card[shapes.SHAPE] = choice.to_dict()
    return card


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


def start(job: ClusteringJob, lloyd: LloydOptions) -> Starts:
    """Return the first centres of each start."""
    if isinstance(lloyd.init, str):
        return choose_starts(find_candidates(job, lloyd), lloyd)
    centres = read_centres(lloyd.init, job.feature_map, lloyd.largest)
    return Starts(centres[np.newaxis])


# -- Lloyd passes
# -----------------------------------------------------------------------------


def move_centres(
    job: ClusteringJob, starts: Starts, lloyd: LloydOptions, do: Do = call_step
) -> tuple[Clusters, list[LloydPass]]:
    """Move centres to the means of their rows until they stay; return the clusters of
    the best start, and the figures of each pass.

    All starts share a pass, which makes each row's features once. Starts that have
    stopped take no part in later passes. Raises PlanError if a pass needs more memory
    than a worker has.
    """
    moving = _MovingStarts(job, starts, smallest_shift=lloyd.tol * job.variance)
    passes: list[LloydPass] = []

    def run_pass(step: Callable[[IndexArray], float], active: IndexArray) -> None:
        name = f"pass {len(passes) + 1}"
        began = time.perf_counter()
        shift = do(name, step, active)
        seconds = round(time.perf_counter() - began, 3)
        inertia = min(moving.last_inertias)
        passes.append(LloydPass(inertia, len(active), shift, seconds))
        words = f"{name}: inertia {inertia:.8g}, shift {shift:.3g}"
        job.engine.tell(events.Remark("lloyd", words))

    # one more than `max_iter`: the last pass only measures
    job.engine.tell(events.Rounds("lloyd", lloyd.max_iter + 1))
    while not moving.has_stopped.all() and len(passes) < lloyd.max_iter:
        run_pass(moving.move, np.flatnonzero(~moving.has_stopped))

    # A pass measures the centres before it moves them, so those that have moved since
    # are measured once more.
    moved = np.flatnonzero(~moving.is_settled)
    if len(moved):
        run_pass(moving.measure, moved)
    return moving.clusters(), passes


class _MovingStarts:
    """The centres of all starts, and how they have moved so far.

    A step changes them only after its last pass over the data, so a step that failed
    can be tried again.
    """

    def __init__(
        self, job: ClusteringJob, starts: Starts, *, smallest_shift: float
    ) -> None:
        n_starts = len(starts)
        self._job = job
        # a start stops if its shift is at most this
        self._smallest_shift = smallest_shift
        self._centres = starts.values.copy()
        # the sum of the weights of each cluster's rows, before the last move
        self._weights = np.zeros(starts.values.shape[:2])
        # for each start, its inertia before each of its passes
        self._inertias: list[list[float]] = [[] for _ in range(n_starts)]
        self._n_moves = np.zeros(n_starts, np.int64)
        self.has_stopped = np.zeros(n_starts, bool)
        # whether the last pass moved no centre at all
        self.is_settled = np.zeros(n_starts, bool)

    def move(self, active: IndexArray) -> float:
        """Move the centres of some starts in a pass, and return the largest shift."""
        state = self._job.centres(self._centres[active])
        sums = self._job.sums(state)
        centres = sums.means(state)
        is_empty = sums.weights == 0
        for i in np.flatnonzero(is_empty.any(axis=1)):
            empty = np.flatnonzero(is_empty[i])
            centres[i, empty] = _find_places(self._job, state.centres[i], empty)

        self._note(active, state, sums)
        shifts = np.square(centres - state.centres).sum(axis=(1, 2))
        self.is_settled[active] = shifts == 0.0
        self.has_stopped[active] = shifts <= self._smallest_shift
        self._n_moves[active] += 1
        self._centres[active] = centres
        logger.debug("inertia %s, shift %s", self.last_inertias, shifts)
        return float(shifts.max())

    def measure(self, active: IndexArray) -> float:
        """Measure some starts in a pass that moves no centre."""
        state = self._job.centres(self._centres[active])
        self._note(active, state, self._job.sums(state))
        return 0.0

    def _note(
        self,
        active: IndexArray,
        state: cluster_sums.ClusterState,
        sums: cluster_sums.ClusterSums,
    ) -> None:
        """Keep the weights of clusters and the inertias of starts."""
        self._weights[active] = sums.cluster_weights(self._job.grid)
        inertias = sums.inertias(state, self._job.sum_of_squared_norms).tolist()
        for i, inertia in zip(active, inertias, strict=True):
            self._inertias[i].append(inertia)

    @property
    def last_inertias(self) -> list[float]:
        return [path[-1] for path in self._inertias]

    def clusters(self) -> Clusters:
        """Return the clusters of the start with the smallest inertia, the first of
        equals.
        """
        inertias = self.last_inertias
        best = int(np.argmin(inertias))
        return Clusters(
            self._job.feature_map,
            self._centres[best],
            self._weights[best],
            inertia=inertias[best],
            inertias=tuple(self._inertias[best]),
            start_inertias=tuple(inertias),
            n_iter=int(self._n_moves[best]),
            converged=bool(self.has_stopped[best]),
            grid=self._job.grid,
        )


def _find_places(
    job: ClusteringJob, centres: FloatArray, empty: IndexArray
) -> FloatArray:
    """Return new places for empty centres: the rows farthest from their nearest centre.

    Of equally far rows the first is taken. Centres stay if no such row is left.
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
