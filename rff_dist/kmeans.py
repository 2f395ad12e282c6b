"""Kernel k-means in features as plain functions: inspect → draw → start → Lloyd passes → label.

All starts share each pass, features are made anew in each and never stored, and what the passes return are
exact sums: the same bits on any engine and for any blocks.
"""

from __future__ import annotations

import logging
import operator
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist import pipeline
from rff_dist.agreement import Contingency, count_agreement
from rff_dist.blocks import Block, BlockTask, Dataset, Moments, Rows
from rff_dist.candidates import (
    Choice,
    ChosenRows,
    Points,
    choose_centres,
    choose_rows,
    exchange_centres,
    improve_centres,
    weigh_points,
    weighted_inertia,
)
from rff_dist.clustering import (
    Batch,
    Centres,
    ClusterGrid,
    ClusterSums,
    centre_distances,
    fraction_bits_for,
    label_rows,
    measure_tiles,
    pass_bytes,
    row_uniforms,
    sum_batch,
    sum_clusters,
)
from rff_dist.drawing import check_width, sample_rows
from rff_dist.engines import Engine
from rff_dist.errors import DataError, InvalidParameterError, PlanError, StatisticsError
from rff_dist.feature_map import FeatureMap, Nystrom
from rff_dist.frequencies import Design, derived_seed
from rff_dist.kernels import Kernel, LengthScale
from rff_dist.kernels.base import check_count
from rff_dist.lloyd import Course, LloydTask, sum_remembered
from rff_dist.pca import check_normalize, components_of
from rff_dist.plan import PROCESS_BYTES, available_memory, human_bytes
from rff_dist.prediction import write_output
from rff_dist.runs import as_runs
from rff_dist.storage import Column, GroupedDataset
from rff_dist.storage.outputs import Output

logger = logging.getLogger(__name__)

type FloatArray = NDArray[np.float64]

INITS = ("k-means||", "k-means++")
CACHES = ("labels", "features", "none")
CACHE_BYTES = 2**30  # that a process remembers of labels, at most, and half of what it has left
MAX_ITER, TOL = 300, 1e-4
OVERSAMPLING, ROUNDS = 2, 5  # Bahmani et al. 2012, Sec. 5.3: l = 2k and five rounds
LOCAL_SEARCH_STEPS = 20  # and one a cluster more
START_STEPS = 10  # of Lloyd on the candidates
CANDIDATE_ROWS = 4096  # all distinct rows of a dataset that small are candidates, whatever the start
ALGORITHMS = ("lloyd", "minibatch", "progressive")
BATCH_ROWS, BATCH_BLOCKS, BATCH_STEPS = 16_384, 8, 100
PROGRESSIVE_SHARES = (1 / 64, 1 / 16, 1 / 4)  # of the blocks
PROGRESSIVE_PASSES = 10  # on each share, at most
_BLOCK_STREAM, _STEP_STREAM = 2**35, 2**35 + 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Clusters of a dataset in features: all that rows are labelled with, and how they were found.

    Attributes
    ----------
    feature_map : FeatureMap
        With the standardizer of the inputs.
    centres : float64 array of shape (n_clusters, n_components)
        In Z.
    weights : float64 array of shape (n_clusters,)
        Sum of the weights of each cluster's rows; rows without weights count 1.
    inertia : float
        Σ w·‖z − c‖² of the rows and their nearest centres, in units of the kernel.
    inertias : tuple of float
        That of the centres before each pass, and of the last.
    start_inertias : tuple of float
        That of each start in the end; the smallest is this one's.
    n_iter : int
        Lloyd passes that moved this start's centres, not counting those on samples.
    converged : bool
        Whether they stopped before `max_iter`.
    grid : ClusterGrid
        Of the sums that the centres are means of.
    facts : mapping
        Of the dataset: its fingerprint and columns.
    """

    feature_map: FeatureMap
    centres: FloatArray
    weights: FloatArray
    inertia: float
    inertias: tuple[float, ...]
    start_inertias: tuple[float, ...]
    n_iter: int
    converged: bool
    grid: ClusterGrid
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_clusters(self) -> int:
        """Clusters that were asked for."""
        return len(self.centres)

    @property
    def n_filled(self) -> int:
        """Clusters that have rows; fewer than asked for where there are fewer distinct rows."""
        return int((self.weights > 0).sum())

    @property
    def state(self) -> Centres:
        """What passes compare rows with."""
        return Centres(self.feature_map, self.centres[np.newaxis], self.grid)


# -- the whole job ---------------------------------------------------------------------------------


def fit(
    dataset: Dataset,
    kernel: Kernel,
    *,
    n_clusters: int,
    engine: Engine,
    length_scale: str | LengthScale | None = "auto",
    n_components: int = 1024,
    design: str | Design = "orthogonal",
    map: str = "pairs",
    standardize: bool | str = False,
    seed: int = 0,
    features: str | Nystrom = "fourier",
    n_principal: int | None = None,
    normalize: str | None = None,
    init: str | NDArray[Any] = "k-means||",
    n_init: int = 1,
    max_iter: int = MAX_ITER,
    tol: float = TOL,
    algorithm: str = "lloyd",
    cache: str = "labels",
    cache_bytes: int | None = None,
) -> Clusters:
    """Find clusters by k-means in random or Nyström features.

    A pass of moments, one of norms, those of the start, and one Lloyd pass an iteration, each of
    O(n_samples · n_components · (n_features + n_init · n_clusters)); memory does not grow with the rows.

    Parameters
    ----------
    dataset : Dataset
        Targets are left alone.
    kernel : Kernel
    n_clusters : int
    engine : Engine
    length_scale : "auto", number(s) or None
        "auto" is the median heuristic; None keeps the kernel's own.
    n_components, design, map, standardize, seed, features
        See `pipeline.fit`.
    n_principal, normalize
        See `draw_features`.
    init, n_init, max_iter, tol, algorithm, cache, cache_bytes
        See `find_clusters`.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    DataError
        If values are not finite, or there are fewer rows than clusters.
    PlanError
        If a pass needs more memory than a worker has.
    """
    if isinstance(length_scale, str) and length_scale == "evidence":
        raise InvalidParameterError(
            "`length_scale` is 'evidence', which needs targets, and clusters have none; "
            "give 'auto' or numbers"
        )
    check_principal(n_principal, normalize, check_width(n_components, map, features))
    options: dict[str, Any] = {
        "n_clusters": n_clusters,
        "init": init,
        "n_init": n_init,
        "max_iter": max_iter,
        "tol": tol,
        "algorithm": algorithm,
    }
    check_options(**options)
    check_cache(cache, cache_bytes)
    dataset = dataset.without_targets()
    check_rows(dataset, n_clusters)
    width = n_components if n_principal is None else n_principal
    check_fits(dataset, width, (n_clusters,), n_init=n_init, init=init, engine=engine)
    moments = pipeline.inspect(dataset, engine=engine)
    feature_map = draw_features(
        dataset,
        kernel,
        moments,
        length_scale=length_scale,
        n_components=n_components,
        design=design,
        map=map,
        standardize=standardize,
        seed=seed,
        features=features,
        n_principal=n_principal,
        normalize=normalize,
        engine=engine,
    )
    found = find_clusters(
        dataset,
        feature_map,
        moments=moments,
        seed=seed,
        cache=cache,
        cache_bytes=cache_bytes,
        engine=engine,
        **options,
    )
    return replace(found, facts=pipeline.describe_dataset(dataset))


def draw_features(
    dataset: Dataset,
    kernel: Kernel,
    moments: Moments,
    *,
    standardize: bool | str,
    n_principal: int | None = None,
    normalize: str | None = None,
    engine: Engine,
    **options: Any,
) -> FeatureMap:
    """Draw the features to cluster in.

    Parameters
    ----------
    dataset, kernel, moments, standardize, engine
        See `fit`.
    n_principal : int, optional
        Cluster in the scores on that many leading principal components of the features, which takes a pass
        of O(n_samples · n_components²); left out, in the features themselves.
    normalize : {None, "degree"}
        Whether these are components of degree-normalised features: then this is spectral clustering by the
        random walk's leading eigenfunctions, each times the root of its eigenvalue.
    options
        Of `drawing.draw`: `length_scale`, `n_components`, `design`, `map`, `seed` and `features`.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    PlanError
        If components need more memory than there is.

    References
    ----------
    Schölkopf, Smola & Müller (1998), Sec. 4; von Luxburg (2007), A tutorial on spectral clustering, Sec. 4;
    Shi & Malik (2000).
    """
    if n_principal is not None:
        pipeline.check_plan(dataset, options["n_components"], engine=engine, features=options["features"])
    prepared = pipeline.prepare(dataset, standardize=standardize, moments=moments, engine=engine)
    feature_map = prepared.draw(kernel, **options)
    if n_principal is None:
        return feature_map
    found = components_of(
        dataset, feature_map, moments, n_components=n_principal, normalize=normalize, engine=engine
    )
    return found.features()


def check_principal(n_principal: int | None, normalize: str | None, n_components: int) -> None:
    """Check the parameters of clusters in leading principal components.

    Raises
    ------
    InvalidParameterError
        If there are not so many components, or there is something to normalise for none.
    """
    check_normalize(normalize)
    if n_principal is None:
        if normalize is not None:
            raise InvalidParameterError(
                f"`normalize` is {normalize!r} without `n_principal`; it is of principal components: say how "
                "many, such as one less than clusters"
            )
        return
    if check_count(n_principal, "n_principal") > n_components:
        raise InvalidParameterError(
            f"`n_principal` is {n_principal}, above `n_components`={n_components}, of which principal "
            "components are made; lower it, or draw more features"
        )


def check_options(
    *,
    n_clusters: object,
    init: object,
    n_init: object,
    max_iter: object,
    tol: object,
    algorithm: object = "lloyd",
) -> None:
    """Check the parameters of `find_clusters` that do not depend on the data.

    Raises
    ------
    InvalidParameterError
        If one is out of range.
    """
    for name, value in (("n_clusters", n_clusters), ("n_init", n_init), ("max_iter", max_iter)):
        check_count(value, name)
    number = isinstance(tol, int | float | np.integer | np.floating) and not isinstance(tol, bool)
    if not number or not 0 <= tol < np.inf:  # type: ignore[operator]
        raise InvalidParameterError(f"`tol` is {tol!r}; expected a number of at least 0")
    if algorithm not in ALGORITHMS:
        raise InvalidParameterError(f"unknown `algorithm` {algorithm!r}; expected one of {list(ALGORITHMS)}")
    if isinstance(init, str):
        if init not in INITS:
            raise InvalidParameterError(
                f"unknown `init` {init!r}; expected one of {sorted(INITS)}, or an array of centres"
            )
    elif n_init != 1:
        raise InvalidParameterError(
            f"`n_init` is {n_init} beside given centres, which are one start; leave it out"
        )


def check_cache(cache: object, cache_bytes: object) -> None:
    """Check what `iterate` may remember.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    """
    if cache not in CACHES:
        raise InvalidParameterError(f"unknown `cache` {cache!r}; expected one of {sorted(CACHES)}")
    number = isinstance(cache_bytes, int | np.integer) and not isinstance(cache_bytes, bool)
    if cache_bytes is not None and (not number or cache_bytes < 0):  # type: ignore[operator]
        raise InvalidParameterError(
            f"`cache_bytes` is {cache_bytes!r}; expected None or a number of bytes of at least 0"
        )


def check_rows(dataset: Dataset, n_clusters: int) -> None:
    """Check that there are as many rows as clusters.

    Raises
    ------
    DataError
        Otherwise.
    """
    pipeline.blocks_of(dataset)  # refuses a dataset without rows
    if dataset.n_samples < n_clusters:
        raise DataError(
            f"n_samples={dataset.n_samples} should be >= n_clusters={n_clusters}; ask for fewer clusters"
        )


def find_clusters(
    dataset: Dataset,
    feature_map: FeatureMap,
    *,
    n_clusters: int,
    engine: Engine,
    moments: Moments | None = None,
    init: str | NDArray[Any] = "k-means||",
    n_init: int = 1,
    max_iter: int = MAX_ITER,
    tol: float = TOL,
    seed: int = 0,
    algorithm: str = "lloyd",
    cache: str = "labels",
    cache_bytes: int | None = None,
) -> Clusters:
    """Minimise Σ w·‖z(x) − c‖² over centres, by Lloyd passes from one or several starts.

    Parameters
    ----------
    dataset : Dataset
    feature_map : FeatureMap
    n_clusters : int
    engine : Engine
    moments : Moments, optional
        From `inspect`, which is run where they are not given and rows have weights.
    init : "k-means||", "k-means++" or array
        "k-means||" draws 2 · n_clusters candidates in each of five passes, weights them in another, and
        chooses centres among them by k-means++ and local search. "k-means++" takes a seeded sample of
        4,096 rows as candidates, and so do both for a dataset that small. Or centres: rows of inputs, of
        shape (n_clusters, n_features), or centres in Z, of shape (n_clusters, n_components).
    n_init : int
        Starts from other choices among the same candidates; they share each pass.
    max_iter : int
        Lloyd passes, at most.
    tol : float
        A start stops when its centres' squared shifts add up to no more than this share of the mean variance
        of Z's columns; 0 when they are exactly where they were, so that no label changed.
    seed : int
        Of the start, and of the rows that are looked at first.
    algorithm : {"lloyd", "minibatch", "progressive"}
        What comes before the Lloyd passes over all rows, so that few are left of them: nothing; steps on
        small samples, see `learn_from_batches`; or passes over 1/64, 1/16 and 1/4 of the blocks. The latter
        two are for very many rows, in no order that matters.
    cache, cache_bytes
        See `iterate`; "labels" and "features" let processes remember how far candidates are too.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    DataError
        If values are not finite, there are fewer rows than clusters, or centres have the wrong shape.
    PlanError
        If a pass needs more memory than a worker has.
    """
    check_options(
        n_clusters=n_clusters, init=init, n_init=n_init, max_iter=max_iter, tol=tol, algorithm=algorithm
    )
    check_cache(cache, cache_bytes)
    check_rows(dataset, n_clusters)
    if moments is None and dataset.weighted:
        moments = pipeline.inspect(dataset, engine=engine)
    check_fits(dataset, feature_map.n_components, (n_clusters,), n_init=n_init, init=init, engine=engine)
    job = measure(dataset, feature_map, moments, engine=engine)
    if isinstance(init, str):
        candidates = find_candidates(
            job, init, n_clusters=n_clusters, seed=seed, cache=cache, cache_bytes=cache_bytes
        )
        starts = choose_starts(candidates, (n_clusters,), n_init=n_init, seed=seed)
    else:
        starts = Starts(read_centres(init, feature_map, n_clusters)[np.newaxis], (n_clusters,))
    starts = approach(job, starts, algorithm=algorithm, tol=tol, seed=seed)
    passes = iterate(job, starts, max_iter=max_iter, tol=tol, cache=cache, cache_bytes=cache_bytes)
    return finish(passes)[0]


def check_fits(
    dataset: Dataset,
    n_components: int,
    numbers: Sequence[int],
    *,
    n_init: int,
    init: object,
    engine: Engine,
) -> None:
    """Check that the passes of some numbers of clusters fit in a worker's memory, before any of them.

    Raises
    ------
    PlanError
        With the memory needed and the memory there is.
    """
    largest = max(numbers)
    check_memory(dataset, n_components, n_init * len(numbers), largest, engine=engine)
    if isinstance(init, str) and _draws(init, dataset, largest):
        check_memory(dataset, n_components, 1, _most_candidates(largest), engine=engine)


def check_memory(
    dataset: Dataset, n_components: int, n_starts: int, n_clusters: int, *, engine: Engine
) -> int:
    """Check that the sums and centres of a pass fit in a worker's memory; return the bytes left.

    Raises
    ------
    PlanError
        With the memory needed and the memory there is.
    """
    blocks = pipeline.blocks_of(dataset)
    needed = PROCESS_BYTES + pass_bytes(
        n_components, n_starts * n_clusters, n_threads=engine.n_threads, n_blocks=len(blocks)
    )
    # as read, in float64 and in float32; and another one that is read ahead
    needed += blocks[0].n_samples * dataset.n_features * (2 * dataset.dtype.itemsize + 12)
    limit = engine.worker_memory or available_memory()
    if needed > limit:
        raise PlanError(
            f"a worker needs {human_bytes(needed)} for {n_starts * n_clusters:_} centres "
            f"(n_clusters={n_clusters:_}, starts={n_starts:_}, n_components={n_components:_}) but has "
            f"{human_bytes(limit)}; ask for fewer clusters, starts or components, or give each process more "
            "memory"
        )
    return int(limit - needed)


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A dataset in features, and what all passes over it share.

    Attributes
    ----------
    sum_of_squared_norms : float
        Σ w·‖z‖².
    weight : float
        Σ w.
    variance : float
        Mean variance of Z's columns.
    """

    dataset: Dataset
    feature_map: FeatureMap
    grid: ClusterGrid
    engine: Engine
    sum_of_squared_norms: float = 0.0
    weight: float = 1.0
    variance: float = 0.0

    def run[S, T](
        self,
        compute: Callable[[Rows, S], T],
        state: S,
        *,
        label: str,
        combine: Callable[[T, T], T] = operator.add,
        blocks: Sequence[Block] | None = None,
        run: str | None = None,
    ) -> T:
        """Run a pass over all blocks, or some; `run` is what processes remember of them is kept under."""
        return self.engine.map_reduce(
            BlockTask(self.dataset, compute, run),
            pipeline.blocks_of(self.dataset) if blocks is None else blocks,
            state,
            combine=combine,
            label=label,
        )

    def centres(self, values: FloatArray, *, precise: bool = False, counts: tuple[int, ...] = ()) -> Centres:
        """Return the state of a pass that compares rows with centres."""
        return Centres(self.feature_map, values, self.grid, precise, counts)

    def check_memory(self, n_init: int, n_clusters: int) -> int:
        """Check that the sums and centres of a pass fit in a worker's memory; return the bytes left.

        Raises
        ------
        PlanError
            With the memory needed and the memory there is.
        """
        return check_memory(
            self.dataset, self.feature_map.n_components, n_init, n_clusters, engine=self.engine
        )

    def sums(
        self,
        values: FloatArray,
        *,
        counts: tuple[int, ...] = (),
        blocks: Sequence[Block] | None = None,
        label: str = "lloyd",
    ) -> ClusterSums:
        """Run a Lloyd pass from centres of shape (n_init, n_clusters, n_components).

        Raises
        ------
        PlanError
            If it needs more memory than a worker has.
        """
        self.check_memory(*values.shape[:2])
        state = self.centres(values, counts=counts)
        sums = self.run(sum_clusters, state, label=label, blocks=blocks)
        expected = sum(block.n_samples for block in blocks) if blocks is not None else self.dataset.n_samples
        _check_counted(sums, expected)
        return sums

    def budget(self, n_init: int, n_clusters: int, *, cache: str, cache_bytes: int | None) -> int:
        """Return the bytes that each process may remember beside such passes; parameters as for `iterate`.

        Raises
        ------
        PlanError
            If a pass needs more memory than a worker has.
        """
        left = self.check_memory(n_init, n_clusters) // 2
        if cache == "none":
            return 0
        if cache_bytes is not None:
            return int(cache_bytes)
        return left if cache == "features" else min(CACHE_BYTES, left)

    def course(self, n_init: int, n_clusters: int, *, cache: str, cache_bytes: int | None) -> Course:
        """Return what the passes of a run of Lloyd's algorithm know of each other.

        Raises
        ------
        PlanError
            If a pass needs more memory than a worker has.
        """
        return Course(
            pipeline.blocks_of(self.dataset),
            n_init,
            n_clusters,
            spread=self.variance * self.feature_map.n_components,
            mean_norm=self.sum_of_squared_norms / self.weight,
            n_components=self.feature_map.n_components,
            budget=self.budget(n_init, n_clusters, cache=cache, cache_bytes=cache_bytes),
            features=cache == "features",
        )

    def next_sums(self, course: Course, centres: Centres, starts: Sequence[int]) -> ClusterSums:
        """Run a Lloyd pass that knows of those before it, from centres of some starts."""
        state = course.state(centres, starts)
        task: Any = LloydTask(self.dataset, course.run)
        if self.dataset.is_lazy:  # the cluster reads the rows, whether they are needed or not
            task = BlockTask(self.dataset, sum_remembered, course.run)
        sums: ClusterSums = self.engine.map_reduce(
            task, pipeline.blocks_of(self.dataset), state, combine=operator.add, label="lloyd"
        )
        _check_counted(sums, self.dataset.n_samples)
        course.note(state, sums)
        return sums


def _check_counted(sums: ClusterSums, expected: int) -> None:
    if sums.n_samples != expected:
        raise StatisticsError(f"a pass counted {sums.n_samples:_} of {expected:_} rows; run it again")


def measure(dataset: Dataset, feature_map: FeatureMap, moments: Moments | None, *, engine: Engine) -> Job:
    """Fix the grid of the sums, and measure norms and variance, in a pass or two.

    Parameters
    ----------
    dataset : Dataset
    feature_map : FeatureMap
    moments : Moments, or None
        From `pipeline.inspect`; rows with weights need them.
    engine : Engine

    Raises
    ------
    DataError
        If values are not finite, or all weights are zero.
    """
    weight_exponent = 0 if moments is None else pipeline.weight_grid(moments)["weight_exponent"]
    job = Job(
        dataset, feature_map, ClusterGrid(fraction_bits_for(dataset.n_samples), weight_exponent), engine
    )
    if not feature_map.bounded or feature_map.whitener is not None:
        largest = job.run(measure_tiles, feature_map, label="measure", combine=np.maximum)
        exponents = np.where(largest > 0, np.frexp(largest)[1], 0)
        job = replace(job, grid=replace(job.grid, exponents=as_runs(exponents)))
    origin = job.centres(np.zeros((1, 1, feature_map.n_components)))
    sums = job.run(partial(sum_clusters, squared_norms=True), origin, label="norms")
    _check_counted(sums, dataset.n_samples)
    squared_norms = sums.sum_of_squared_norms(origin)
    mean = sums.means(origin)
    weight = float(sums.cluster_weights(job.grid).sum())
    if not weight > 0:
        raise DataError("all sample weights are zero; at least one row must count")
    spread = float(sums.inertias(replace(origin, values=mean), squared_norms)[0])
    variance = spread / weight / feature_map.n_components
    return replace(job, sum_of_squared_norms=squared_norms, weight=weight, variance=variance)


# -- starts ----------------------------------------------------------------------------------------


def read_centres(init: Any, feature_map: FeatureMap, n_clusters: int) -> FloatArray:
    """Return given centres in Z, of shape (n_clusters, n_components).

    Parameters
    ----------
    init : array-like of shape (n_clusters, n_features) or (n_clusters, n_components)
        Rows of inputs, whose features are taken, or centres in Z; the former where both fit.

    Raises
    ------
    DataError
        If it has another shape, or values that are not finite.
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


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Rows that centres are chosen among.

    Attributes
    ----------
    points : float64 array of shape (n_candidates, n_components)
        In Z.
    weights : float64 array of shape (n_candidates,)
        How much of the dataset each stands for.
    drawn : bool
        Whether they were drawn from all rows by k-means||; else they are a sample.
    """

    points: FloatArray
    weights: FloatArray
    drawn: bool


@dataclass(frozen=True, slots=True, eq=False)
class Starts:
    """Centres to begin with, of one number of clusters or several.

    Attributes
    ----------
    values : float64 array of shape (n_starts, n_clusters, n_components)
        In Z; 0 where a start has fewer centres than the largest.
    counts : tuple of int
        Centres of each start.
    """

    values: FloatArray
    counts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.counts)


def _draws(init: str, dataset: Dataset, n_clusters: int) -> bool:
    """Return whether candidates are drawn from all rows, in passes."""
    return init == "k-means||" and dataset.n_samples > _sample_size(n_clusters)


def _most_candidates(n_clusters: int) -> int:
    return 1 + ROUNDS * OVERSAMPLING * n_clusters


def _sample_size(n_clusters: int) -> int:
    return max(CANDIDATE_ROWS, 4 * n_clusters)


def find_candidates(
    job: Job, init: str, *, n_clusters: int, seed: int, cache: str = "labels", cache_bytes: int | None = None
) -> Candidates:
    """Find the rows that up to `n_clusters` centres are chosen among; parameters as for `find_clusters`."""
    if _draws(init, job.dataset, n_clusters):
        budget = job.budget(1, _most_candidates(n_clusters), cache=cache, cache_bytes=cache_bytes)
        return Candidates(*_draw_candidates(job, n_clusters, seed, budget), drawn=True)
    return Candidates(*_sample_candidates(job, _sample_size(n_clusters), seed), drawn=False)


def choose_starts(candidates: Candidates, numbers: Sequence[int], *, n_init: int, seed: int) -> Starts:
    """Choose the centres of `n_init` starts for each number of clusters.

    Each is the best of three solutions for the weighted candidates, which cost no pass: two by greedy
    k-means++ and one of these by local search, all after some Lloyd steps. A lone choice by k-means++ often
    has two centres in one cluster, and one by local search at times none in a ring.
    """
    counts = tuple(number for number in numbers for _ in range(n_init))
    values = np.zeros((len(counts), max(numbers), candidates.points.shape[1]))
    for i, number in enumerate(counts):
        values[i, :number] = _choose_start(candidates, number, derived_seed(seed, i % n_init))
    return Starts(values, counts)


def _choose_start(candidates: Candidates, n_clusters: int, seed: int) -> FloatArray:
    points, weights = candidates.points, candidates.weights
    chosen = [choose_centres(points, weights, n_clusters, seed=own) for own in (seed, derived_seed(seed, 0))]
    if len(chosen[0]) < n_clusters:
        logger.warning("%d candidates for %d centres are distinct", len(chosen[0]), n_clusters)
        # a repeated centre gets no rows, since ties go to the lowest index
        repeated = np.repeat(chosen[0][:1], n_clusters - len(chosen[0]))
        return np.asarray(points[np.concatenate([chosen[0], repeated])])
    n_steps = LOCAL_SEARCH_STEPS + n_clusters
    chosen.append(exchange_centres(points, weights, chosen[0], n_steps=n_steps, seed=seed))
    solutions = [improve_centres(points, weights, points[some], max_iter=START_STEPS) for some in chosen]
    return min(solutions, key=lambda centres: weighted_inertia(points, weights, centres))


def _sample_candidates(job: Job, size: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return the distinct rows of a seeded sample in Z, sorted, and their weights."""
    X, _, weights = sample_rows(job.dataset, seed, n_rows=size)
    inputs = job.feature_map.prepare(X)
    _, first, groups = np.unique(inputs, axis=0, return_index=True, return_inverse=True)
    counts = np.bincount(groups.ravel(), weights=weights).astype(np.float64)
    return job.feature_map.transform(X[first], dtype=np.float64), counts


def _draw_candidates(job: Job, n_clusters: int, seed: int, budget: int) -> tuple[FloatArray, FloatArray]:
    """Draw candidates by k-means||, and weight them by the rows that are nearest to them.

    Processes remember how far each row is from the candidates so far, 8 or 12 bytes a row within the budget:
    a pass then compares it with those alone that the last one drew.

    References
    ----------
    Bahmani et al. (2012), Alg. 2. Each round draws 2 · n_clusters rows, not that many on average.
    """
    X, _, _ = sample_rows(job.dataset, seed, n_rows=1)
    # where rows are close together for float32, distances need float64
    spread = job.variance * job.feature_map.n_components
    precise = spread < 1e-3 * job.sum_of_squared_norms / job.weight
    drawn = job.feature_map.transform(X, dtype=np.float64)
    points, size = Points((), uuid.uuid4().hex, budget), OVERSAMPLING * n_clusters
    try:
        for turn in range(ROUNDS):
            points = replace(points, groups=(*points.groups, job.centres(drawn[np.newaxis], precise=precise)))
            chosen: ChosenRows = job.run(
                choose_rows, Choice(points, size, seed), label=f"candidates {turn + 1}", run=points.run
            )
            drawn = chosen.features
            if len(drawn) < size:
                break
        if len(drawn):
            points = replace(points, groups=(*points.groups, job.centres(drawn[np.newaxis], precise=precise)))
        sums: ClusterSums = job.run(weigh_points, points, label="weights", run=points.run)
    finally:
        job.engine.forget(points.run)
    _check_counted(sums, job.dataset.n_samples)
    weights = sums.cluster_weights(job.grid)[0]
    counts = weights > 0
    return np.concatenate([group.values[0] for group in points.groups])[counts], weights[counts]


# -- Lloyd passes ----------------------------------------------------------------------------------


def approach(job: Job, starts: Starts, *, algorithm: str, tol: float, seed: int) -> Starts:
    """Bring starts near to where full passes take them; "lloyd" leaves them where they are."""
    if algorithm == "minibatch":
        return learn_from_batches(job, starts, seed=seed)
    if algorithm == "progressive":
        return converge_on_samples(job, starts, tol=tol, seed=seed)
    return starts


def learn_from_batches(job: Job, starts: Starts, *, seed: int) -> Starts:
    """Return the starts after steps on seeded batches of rows, each with the centres of the one before.

    A centre is the mean of the rows that were nearest to it when they were drawn, so that each moves it by
    one over their number, the learning rate of stochastic gradient descent on the inertia. Steps 2, 4, 8, …
    begin anew, so that rows of early centres do not weigh on late ones: what is left above the last inertia
    then falls to between a half and a seventh. The sums are exact: the same bits on any engine. A step takes
    up to 16,384 rows, an eighth of all at most, from up to eight blocks; the seed and the step decide which.
    There are 100 steps, or fewer: no more rows are drawn than there are.

    References
    ----------
    Bottou & Bengio (1995), Convergence properties of the k-means algorithms, Sec. 3; Sculley (2010),
    Web-scale k-means clustering, Alg. 1.
    """
    blocks, n_samples = pipeline.blocks_of(job.dataset), job.dataset.n_samples
    n_rows = max(1, min(BATCH_ROWS, n_samples // 8) // min(BATCH_BLOCKS, len(blocks)))
    seen: ClusterSums | None = None
    for step in range(min(BATCH_STEPS, n_samples // (n_rows * min(BATCH_BLOCKS, len(blocks))))):
        order = np.argsort(row_uniforms(seed, _STEP_STREAM + step, 0, len(blocks)), kind="stable")
        sample = [blocks[i] for i in np.sort(order[:BATCH_BLOCKS])]
        state = job.centres(starts.values, counts=starts.counts)
        sums = job.run(
            sum_batch, Batch(state, n_rows, seed, step), label=f"mini-batch {step + 1}", blocks=sample
        )
        seen = sums if seen is None or step & (step - 1) == 0 else seen + sums
        starts = replace(starts, values=seen.means(state))
    return starts


def converge_on_samples(job: Job, starts: Starts, *, tol: float, seed: int) -> Starts:
    """Return the starts after some passes on growing seeded samples of the blocks."""
    values = starts.values.copy()
    blocks = pipeline.blocks_of(job.dataset)
    order = np.argsort(row_uniforms(seed, _BLOCK_STREAM, 0, len(blocks)), kind="stable")
    for share in PROGRESSIVE_SHARES:
        n_blocks = int(len(blocks) * share)
        if n_blocks < 1:
            continue
        sample = [blocks[i] for i in np.sort(order[:n_blocks])]
        moving = np.arange(len(starts))
        for _ in range(PROGRESSIVE_PASSES):
            label = f"lloyd on {n_blocks} of {len(blocks)} blocks"
            former, counts = values[moving], tuple(starts.counts[start] for start in moving)
            sums = job.sums(former, counts=counts, blocks=sample, label=label)
            values[moving] = sums.means(job.centres(former, counts=counts))
            moving = moving[_shift(former, values[moving]) > tol * job.variance]
            if not len(moving):
                break
    return replace(starts, values=values)


def _shift(former: FloatArray, centres: FloatArray) -> FloatArray:
    """Return the sum of squared shifts of each start's centres."""
    return np.asarray(np.square(centres - former).sum(axis=(1, 2)))


@dataclass(frozen=True, slots=True, eq=False)
class LloydPass:
    """What a pass over all rows found out.

    Attributes
    ----------
    number : int
        1 for the first.
    inertias : tuple of float
        For each number of clusters the least of its starts, of the centres before the pass; of a start that
        had stopped its last.
    n_starts : int
        That took part.
    shift : float
        Largest of their sums of squared shifts of centres; 0 for a pass that moved none.
    clusters : tuple of Clusters
        What was found in the end for each number of clusters; () before the last pass.
    """

    number: int
    inertias: tuple[float, ...]
    n_starts: int
    shift: float
    clusters: tuple[Clusters, ...] = ()

    @property
    def inertia(self) -> float:
        """Least inertia of all starts."""
        return min(self.inertias)


def iterate(
    job: Job,
    starts: Starts | FloatArray,
    *,
    max_iter: int,
    tol: float,
    cache: str = "labels",
    cache_bytes: int | None = None,
) -> Iterator[LloydPass]:
    """Move centres to the means of their rows until they stay, a pass for each `next`.

    Starts of all numbers of clusters share the passes, each of which makes a row's features once. Those that
    have stopped leave.

    Parameters
    ----------
    job : Job
    starts : Starts, or float64 array of shape (n_init, n_clusters, n_components)
    max_iter : int
    tol : float
    cache : "labels", "features" or "none"
        "labels" lets each process remember the labels of the blocks that it runs, how sure they are, and
        their sums: later passes look only at rows whose label can have changed. "features" lets it keep the
        features of as many blocks beside as fit, 4 · n_components bytes a row, which are then not made again.
        The bits are those of "none".
    cache_bytes : int, optional
        That a process may remember; blocks beyond are looked at in full. By default half of what the plan
        leaves it, and a gigabyte at most of labels.

    Raises
    ------
    PlanError
        If a pass needs more memory than a worker has.
    """
    if not isinstance(starts, Starts):
        starts = Starts(starts, (starts.shape[1],) * len(starts))
    course = job.course(*starts.values.shape[:2], cache=cache, cache_bytes=cache_bytes)
    try:
        yield from _iterate(job, course, starts, max_iter=max_iter, tol=tol)
    finally:
        job.engine.forget(course.run)


def _iterate(job: Job, course: Course, starts: Starts, *, max_iter: int, tol: float) -> Iterator[LloydPass]:
    centres, counts = starts.values.copy(), np.array(starts.counts)
    numbers = sorted(set(starts.counts))
    paths: list[list[float]] = [[] for _ in counts]
    n_iter = np.zeros(len(counts), np.int64)
    stopped, settled = np.zeros(len(counts), bool), np.zeros(len(counts), bool)
    weights = np.zeros(centres.shape[:2])

    def best(number: int) -> int:
        return min(np.flatnonzero(counts == number).tolist(), key=lambda start: paths[start][-1])

    def step(some: NDArray[np.intp], *, refill: bool) -> FloatArray:
        state = job.centres(centres[some], counts=tuple(counts[some].tolist()))
        found, moved = _step(job, course, state, some, refill=refill)
        for start, inertia in zip(some, found.inertias, strict=True):
            paths[start].append(inertia)
        weights[some] = found.weights
        return moved

    def told(number: int, n_starts: int, shift: float) -> LloydPass:
        return LloydPass(number, tuple(paths[best(k)][-1] for k in numbers), n_starts, shift)

    number, done = 0, LloydPass(0, (), len(counts), 0.0)
    while number < max_iter and not stopped.all():
        if number:
            yield done
        active = np.flatnonzero(~stopped)
        moved = step(active, refill=True)
        shifts = _shift(centres[active], moved)
        settled[active] = shifts == 0.0
        stopped[active] = shifts <= tol * job.variance
        n_iter[active] += 1
        centres[active] = moved
        number += 1
        done = told(number, len(active), float(shifts.max()))
        logger.info("inertia %s, shift %s", [path[-1] for path in paths], shifts)
    moving = np.flatnonzero(~settled)  # their labels and inertia are those of former centres
    if len(moving):
        yield done
        step(moving, refill=False)
        done = told(number + 1, len(moving), 0.0)
    yield replace(
        done,
        clusters=tuple(
            Clusters(
                job.feature_map,
                centres[start, :k],
                weights[start, :k],
                paths[start][-1],
                tuple(paths[start]),
                tuple(path[-1] for path, count in zip(paths, starts.counts, strict=True) if count == k),
                int(n_iter[start]),
                bool(stopped[start]),
                job.grid,
            )
            for k, start in ((k, best(k)) for k in numbers)
        ),
    )


def finish(passes: Iterator[LloydPass]) -> tuple[Clusters, ...]:
    """Run all passes that are left, and return what they found for each number of clusters."""
    clusters: tuple[Clusters, ...] = ()
    for done in passes:
        clusters = done.clusters
    return clusters


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What a Lloyd pass found out about the centres it was given."""

    inertias: list[float]
    weights: FloatArray


def _step(
    job: Job, course: Course, state: Centres, starts: NDArray[np.intp], *, refill: bool
) -> tuple[_Found, FloatArray]:
    """Run a Lloyd pass of some starts; return what it found, and the means of the clusters."""
    sums = job.next_sums(course, state, starts.tolist())
    weights = sums.cluster_weights(job.grid)
    moved = sums.means(state)
    if refill:
        without_rows = (sums.weights == 0) & state.present
        for start in np.flatnonzero(without_rows.any(axis=1)):
            own = state.values[start][state.present[start]]
            empty = np.flatnonzero(without_rows[start])
            moved[start, empty] = _refilled(job, own, empty)
    inertias = sums.inertias(state, job.sum_of_squared_norms).tolist()
    return _Found(inertias, weights), moved


def _refilled(job: Job, centres: FloatArray, empty: NDArray[np.intp]) -> FloatArray:
    """Return new places of empty centres, in order: the rows farthest from their own centres.

    The lower row number goes first of equals. Where fewer rows are off their centres, the others stay.
    """
    points = Points((job.centres(centres[np.newaxis], precise=True),))
    chosen: ChosenRows = job.run(choose_rows, Choice(points, len(empty)), label="refill")
    places = centres[empty].copy()
    places[: len(chosen.keys)] = chosen.features
    if len(chosen.keys):
        logger.info("%d empty clusters move to rows %s", len(chosen.keys), chosen.row_numbers.tolist())
    return places


# -- labels and distances --------------------------------------------------------------------------


def label_in_memory(dataset: Dataset, clusters: Clusters, *, engine: Engine) -> NDArray[np.int32]:
    """Return each row's cluster, shape (n_samples,); ties go to the lowest.

    Raises
    ------
    DataError
        If the dataset does not fit the clusters, or values are not finite.
    """
    return np.concatenate(_parts(dataset, clusters, _label_part, engine=engine, label="label"))


def distances_in_memory(dataset: Dataset, clusters: Clusters, *, engine: Engine) -> FloatArray:
    """Return ‖z − c‖ of each row and centre, shape (n_samples, n_clusters).

    Raises
    ------
    DataError
        As `label_in_memory`.
    """
    return np.concatenate(_parts(dataset, clusters, _distance_part, engine=engine, label="distances"))


def _parts(
    dataset: Dataset,
    clusters: Clusters,
    compute: Callable[[Rows, Centres], list[NDArray[Any]]],
    *,
    engine: Engine,
    label: str,
) -> list[NDArray[Any]]:
    check_columns(dataset, clusters)
    return engine.map_reduce(
        BlockTask(dataset, compute),
        pipeline.blocks_of(dataset),
        clusters.state,
        combine=operator.add,
        label=label,
    )


def _label_part(rows: Rows, state: Centres) -> list[NDArray[Any]]:
    return [label_rows(rows, state)]


def _distance_part(rows: Rows, state: Centres) -> list[NDArray[Any]]:
    return [centre_distances(rows, state)]


def check_columns(dataset: Dataset, clusters: Clusters) -> None:
    """Check that a dataset has the columns that clusters were found in.

    Raises
    ------
    DataError
        If it has another number of columns, or other names.
    """
    if dataset.n_features != clusters.feature_map.n_features:
        raise DataError(
            f"X has {dataset.n_features} features, but the clusters are expecting "
            f"{clusters.feature_map.n_features} features"
        )
    expected, names = clusters.facts.get("feature_names"), dataset.feature_names
    if expected and names and list(names) != list(expected):
        raise DataError(
            f"the columns of X are {list(names)}, but the clusters were found in {list(expected)}; "
            "give the same columns in the same order"
        )


def inertia_of(dataset: Dataset, clusters: Clusters, *, engine: Engine) -> float:
    """Return Σ w·‖z − c‖² of a dataset's rows and their nearest centres, in one pass.

    Raises
    ------
    DataError
        As `label_in_memory`, and if a weight is negative.
    """
    check_columns(dataset, clusters)
    moments = pipeline.inspect(dataset, engine=engine) if dataset.weighted else None
    job = measure(dataset, clusters.feature_map, moments, engine=engine)
    values = clusters.centres[np.newaxis]
    return float(job.sums(values, label="score").inertias(job.centres(values), job.sum_of_squared_norms)[0])


def evaluate(dataset: Dataset, labels: Column, clusters: Clusters, *, engine: Engine) -> Contingency:
    """Count the rows of each known label in each cluster, in one pass; integers, without weights.

    Parameters
    ----------
    dataset : Dataset
    labels : Column
        The known label of each row.
    clusters : Clusters
    engine : Engine

    Raises
    ------
    DataError
        If the dataset does not fit the clusters, there are more or fewer labels than rows, or values are not
        finite.
    """
    check_columns(dataset, clusters)
    found: Contingency = engine.map_reduce(
        BlockTask(GroupedDataset(dataset.without_targets(), labels), _count_rows),
        pipeline.blocks_of(dataset),
        clusters.state,
        combine=operator.add,
        label="evaluate",
    )
    return found


def _count_rows(rows: Rows, state: Centres) -> Contingency:
    assert rows.groups is not None  # a `GroupedDataset` gave them
    return count_agreement(rows.groups, label_rows(rows, state), state.values.shape[1])


def write_labels(
    dataset: Dataset,
    clusters: Clusters,
    url: str | os.PathLike[str],
    *,
    engine: Engine,
    distances: bool = False,
    overwrite: bool = False,
) -> int:
    """Write each row's cluster to a new Zarr group, as the int32 array `labels`.

    With `distances` the float64 array `distances` beside it holds those to all centres, of shape
    (n_samples, n_clusters). The pass is idempotent, and the output appears at `url` when it is complete.

    Returns
    -------
    n_samples : int
        Rows written.

    Raises
    ------
    DataError
        If the dataset does not fit the clusters, or values are not finite.
    StorageError
        If the output exists and `overwrite` is False, or cannot be written.
    """
    with stage_labels(
        dataset, clusters, url, engine=engine, distances=distances, overwrite=overwrite
    ) as staged:
        staged.publish()
    return staged.n_samples


class StagedLabels:
    """Labels that are all written, and appear when they are published; as a context, else thrown away.

    Attributes
    ----------
    n_samples : int
        Rows written.
    """

    def __init__(self, output: Output, n_samples: int, attributes: Mapping[str, Any]) -> None:
        self.n_samples = n_samples
        self._output: Output | None = output
        self._attributes = attributes

    def publish(self) -> None:
        """Let the labels appear at their URL.

        Raises
        ------
        StorageError
            If they cannot.
        """
        if self._output is not None:
            self._output.finish(dict(self._attributes))
            self._output = None

    def discard(self) -> None:
        """Throw away labels that were not published."""
        if self._output is not None:
            self._output.discard()
            self._output = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def stage_labels(
    dataset: Dataset,
    clusters: Clusters,
    url: str | os.PathLike[str],
    *,
    engine: Engine,
    distances: bool = False,
    overwrite: bool = False,
) -> StagedLabels:
    """Write labels as `write_labels` does, but let them appear only when they are published.

    What belongs to them, such as a model, can be stored in between: a reader finds all or none.
    """
    check_columns(dataset, clusters)
    dataset = dataset.without_targets()
    fields: list[Any] = [("labels", np.int32)]
    if distances:
        fields.append(("distances", np.float64, (clusters.n_clusters,)))
    dtype = np.dtype(fields)
    output = write_output(
        dataset,
        partial(_labelled_rows, dtype=dtype),
        clusters.state,
        url,
        engine=engine,
        label="label",
        attributes=None,
        dtype=dtype,
        overwrite=overwrite,
    )
    attributes = {"feature_map_digest": clusters.feature_map.digest(), "n_clusters": clusters.n_clusters}
    return StagedLabels(output, output.n_samples, attributes)


def _labelled_rows(rows: Rows, state: Centres, *, dtype: np.dtype[Any]) -> NDArray[Any]:
    labelled = np.empty(rows.block.n_samples, dtype)
    labelled["labels"] = label_rows(rows, state)
    if "distances" in (dtype.names or ()):
        labelled["distances"] = centre_distances(rows, state)
    return labelled
