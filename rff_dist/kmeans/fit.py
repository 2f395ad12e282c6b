"""Kernel k-means in features as plain functions: inspect → draw → start → Lloyd passes → label.

All starts share each pass, features are made anew in each and never stored, and what the passes return are
exact sums: the same bits on any engine and for any blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.checks import check_count
from rff_dist.data.blocks import Dataset
from rff_dist.engines.protocol import Engine
from rff_dist.errors import InvalidParameterError
from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.for_dataset import check_width
from rff_dist.features.nystrom import Nystrom
from rff_dist.frequencies.designs import Design
from rff_dist.kernels.base import Kernel, LengthScale
from rff_dist.kmeans.candidates import ChosenRows, Points, SeedChoice, choose_rows
from rff_dist.kmeans.cluster_sums import Centres, ClusterSums
from rff_dist.kmeans.lloyd_pass import Minibatch, row_uniforms, sum_batch
from rff_dist.kmeans.skipped_rows import Course
from rff_dist.kmeans.starts import (
    Clusters,
    Measured,
    Starts,
    check_cache,
    check_fits,
    check_options,
    check_rows,
    choose_starts,
    find_candidates,
    measure,
    read_centres,
)
from rff_dist.pca.fit import check_normalize, components_of
from rff_dist.ridge.describe import describe_dataset
from rff_dist.ridge.plan import check_plan
from rff_dist.ridge.prepare import prepare
from rff_dist.statistics import inspection
from rff_dist.statistics.moments import Moments
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)


MAX_ITER, TOL = 300, 1e-4
BATCH_ROWS, BATCH_BLOCKS, BATCH_STEPS = 16_384, 8, 100
PROGRESSIVE_SHARES = (1 / 64, 1 / 16, 1 / 4)  # of the blocks
PROGRESSIVE_PASSES = 10  # on each share, at most
_BLOCK_STREAM, _STEP_STREAM = 2**35, 2**35 + 2**20


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
    length_scale : "auto", number(s) or None
        "auto" is the median heuristic; None keeps the kernel's own.
    n_components, design, map, standardize, seed, features
        See `RidgeOptions`.
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
    moments = inspection.inspect(dataset, engine=engine)
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
    return replace(found, facts=describe_dataset(dataset))


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
        Of `features.for_dataset.draw`: `length_scale`, `n_components`, `design`, `map`, `seed` and
        `features`.

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
        check_plan(dataset, options["n_components"], engine=engine, features=options["features"])
    prepared = prepare(dataset, standardize=standardize, moments=moments, engine=engine)
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
        moments = inspection.inspect(dataset, engine=engine)
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


# -- Lloyd passes ----------------------------------------------------------------------------------


def approach(job: Measured, starts: Starts, *, algorithm: str, tol: float, seed: int) -> Starts:
    """Bring starts near to where full passes take them; "lloyd" leaves them where they are."""
    if algorithm == "minibatch":
        return learn_from_batches(job, starts, seed=seed)
    if algorithm == "progressive":
        return converge_on_samples(job, starts, tol=tol, seed=seed)
    return starts


def learn_from_batches(job: Measured, starts: Starts, *, seed: int) -> Starts:
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
    blocks, n_samples = inspection.blocks_of(job.dataset), job.dataset.n_samples
    n_rows = max(1, min(BATCH_ROWS, n_samples // 8) // min(BATCH_BLOCKS, len(blocks)))
    seen: ClusterSums | None = None
    for step in range(min(BATCH_STEPS, n_samples // (n_rows * min(BATCH_BLOCKS, len(blocks))))):
        order = np.argsort(row_uniforms(seed, _STEP_STREAM + step, 0, len(blocks)), kind="stable")
        sample = [blocks[i] for i in np.sort(order[:BATCH_BLOCKS])]
        state = job.centres(starts.values, counts=starts.counts)
        sums = job.run(
            sum_batch, Minibatch(state, n_rows, seed, step), label=f"mini-batch {step + 1}", blocks=sample
        )
        seen = sums if seen is None or step & (step - 1) == 0 else seen + sums
        starts = replace(starts, values=seen.means(state))
    return starts


def converge_on_samples(job: Measured, starts: Starts, *, tol: float, seed: int) -> Starts:
    """Return the starts after some passes on growing seeded samples of the blocks."""
    values = starts.values.copy()
    blocks = inspection.blocks_of(job.dataset)
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
    job: Measured,
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
    starts : Starts, or float64 array of shape (n_init, n_clusters, n_components)
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


def _iterate(
    job: Measured, course: Course, starts: Starts, *, max_iter: int, tol: float
) -> Iterator[LloydPass]:
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
    job: Measured, course: Course, state: Centres, starts: NDArray[np.intp], *, refill: bool
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


def _refilled(job: Measured, centres: FloatArray, empty: NDArray[np.intp]) -> FloatArray:
    """Return new places of empty centres, in order: the rows farthest from their own centres.

    The lower row number goes first of equals. Where fewer rows are off their centres, the others stay.
    """
    points = Points((job.centres(centres[np.newaxis], precise=True),))
    chosen: ChosenRows = job.run(choose_rows, SeedChoice(points, len(empty)), label="refill")
    places = centres[empty].copy()
    places[: len(chosen.keys)] = chosen.features
    if len(chosen.keys):
        logger.info("%d empty clusters move to rows %s", len(chosen.keys), chosen.row_numbers.tolist())
    return places
