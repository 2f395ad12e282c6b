"""Which rows become the centres of Nyström features: uniform, k-means++ and randomly pivoted Cholesky.

Every rule is seeded and nested: a longer choice begins with the centres of a shorter one. Rules that use the
kernel choose fewer centres if those explain it on all points.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np

from rff_dist.frequencies.counter import counter_uniforms, pick
from rff_dist.kernels.base import Kernel
from rff_dist.numerics.threads import tile_pool
from rff_dist.numerics.triangular import cholesky_in_place, solve_transposed
from rff_dist.typing import FloatArray, IndexArray

_STREAM = 2**33  # the first stream of random numbers for centres, far above all others of the seed
_PROPOSALS = 256  # pivots that are proposed together, so that updates are matrix products


def choose_uniform(points: FloatArray, kernel: Kernel, n_centres: int, seed: int) -> IndexArray:
    """Choose rows uniformly, without replacement, whatever the kernel."""
    return np.argsort(counter_uniforms(seed, _STREAM, len(points), 1)[:, 0], kind="stable")[:n_centres]


def choose_by_kmeans(points: FloatArray, kernel: Kernel, n_centres: int, seed: int) -> IndexArray:
    """Choose each row with a probability proportional to its squared distance to the nearest centre so far.

    Distances are those in the kernel's feature space, k(x, x) − 2·k(x, c) + k(c, c), so length scales matter.
    O(n_points · n_centres) values of the kernel.

    Source: Arthur & Vassilvitskii (2007), k-means++; Oglic & Gärtner (2017), Sec. 3, for Nyström features.
    """
    uniforms = counter_uniforms(seed, _STREAM, n_centres, 1)[:, 0]
    diagonal = kernel.diagonal(points)
    chosen = np.empty(n_centres, np.intp)
    distances = np.full(len(points), np.inf)
    weights = np.ones(len(points))
    for i, uniform in enumerate(uniforms):
        chosen[i] = index = int(pick(weights, uniform))
        to_centre = diagonal - 2 * kernel.gram(points, points[index : index + 1])[:, 0] + diagonal[index]
        np.minimum(distances, np.maximum(to_centre, 0.0), out=distances)
        distances[index] = 0.0  # whatever rounding left: no row is chosen twice
        weights = distances
        if not weights.any():
            return chosen[: i + 1]
    return chosen


def choose_by_pivots(points: FloatArray, kernel: Kernel, n_centres: int, seed: int) -> IndexArray:
    """Choose each row with a probability proportional to its k(x, x) less what earlier centres explain of it.

    Takes O(n_points · n_centres²) operations and 8 · n_points · n_centres bytes. Pivots are proposed 256 at a
    time by the diagonal that is left. Each is kept with a probability equal to the share of its diagonal that
    is left after the pivots kept before it. This gives the same law as one pivot at a time.

    Source: Chen, Epperly, Tropp & Webber (2022), Randomly pivoted Cholesky, Alg. 1; Epperly, Tropp & Webber
      (2024), Alg. 2, for the rejection.
    """
    columns = np.empty((n_centres + _PROPOSALS, len(points)))  # F' of K ≈ FF'
    left = kernel.diagonal(points).astype(np.float64)
    exhausted = len(points) * np.finfo(np.float64).eps * left.sum()
    chosen: list[int] = []
    turn = 0
    with tile_pool() as pool:
        while len(chosen) < n_centres and left.sum() > exhausted:
            uniforms = counter_uniforms(seed, _STREAM + turn, _PROPOSALS, 2)
            proposed = pick(left, uniforms[:, 0])
            known = columns[: len(chosen)]
            residual = kernel.gram(points[proposed], points[proposed])
            residual -= known[:, proposed].T @ known[:, proposed]
            kept = proposed[_accept(residual, left[proposed], uniforms[:, 1])]
            new = columns[len(chosen) : len(chosen) + len(kept)]
            _add_columns(new, known, kernel, points, kept, pool)
            left -= np.square(new).sum(axis=0)
            chosen += kept.tolist()
            # probabilities: rounding must not make them negative, or let a row be chosen twice
            left[chosen] = 0.0
            np.maximum(left, 0.0, out=left)
            turn += 1
    return np.array(chosen[:n_centres], np.intp)


def _accept(residual: FloatArray, proposed: FloatArray, uniforms: FloatArray) -> IndexArray:
    """Return which proposals to keep; `residual` is overwritten."""
    kept = []
    # what is left of a row below this is rounding
    tiny = len(residual) * np.finfo(np.float64).eps * proposed.max()
    for i, uniform in enumerate(uniforms):
        if residual[i, i] <= max(uniform * proposed[i], tiny):
            continue
        kept.append(i)
        pivot = residual[i] / np.sqrt(residual[i, i])
        residual -= np.outer(pivot, pivot)
    return np.array(kept, np.intp)


def _add_columns(
    new: FloatArray, known: FloatArray, kernel: Kernel, points: FloatArray, kept: IndexArray, pool: Executor
) -> None:
    step = max(1, 2**22 // max(1, len(kept)))  # 32 MiB of kernel values at a time
    for first in range(0, len(points), step):
        part = slice(first, first + step)
        new[:, part] = kernel.gram(points[kept], points[part])
        new[:, part] -= known[:, kept].T @ known[:, part]
    factor = np.ascontiguousarray(new[:, kept])
    stopped = cholesky_in_place(factor, pool)
    assert stopped is None, "`_accept` found all pivots positive by the same elimination"
    solve_transposed(factor, new)


RULES: dict[str, Callable[[FloatArray, Kernel, int, int], IndexArray]] = {
    "uniform": choose_uniform,
    "k-means++": choose_by_kmeans,
    "rpcholesky": choose_by_pivots,
}
