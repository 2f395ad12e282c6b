"""What a fit will take, before anything runs: bytes, operations, blocks and peak memory.

Arithmetic on sizes. It refuses a job that cannot fit, with the number needed and the number there is.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from rff_dist.data.blocks import Dataset
from rff_dist.data.cut import block_rows
from rff_dist.engines.kept import most_kept
from rff_dist.engines.protocol import Engine
from rff_dist.errors import PlanError
from rff_dist.features.draw import check_n_components
from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.nystrom import Nystrom
from rff_dist.features.options import find_features
from rff_dist.numerics.machine import available_cores, available_memory
from rff_dist.numerics.threads import limit_blas
from rff_dist.numerics.triangular import STRIP_COLUMNS
from rff_dist.products.float64 import REGION
from rff_dist.ridge.options import Alpha, RidgeOptions, is_one_alpha
from rff_dist.ridge.pcg import (
    COLUMN_OPERATIONS,
    FEATURE_OPERATIONS,
    SKETCH_COLUMNS,
    largest_rank,
    pass_operations,
)
from rff_dist.selection.cross_validation import cross_validation_bytes
from rff_dist.statistics.gram_products import tile_height
from rff_dist.statistics.inspection import blocks_of
from rff_dist.statistics.spec import FRACTION_BITS, OUTPUT_TILE, TileLayout, cell_components, tile_rows
from rff_dist.text import human_bytes

ASSUMED_RANK, ASSUMED_STEPS = 512, 40  # of conjugate gradients
WORTH_ITERATING = 0.25  # of the cost of Z'Z and its factor, whose statistics are then done without
BYTES_COST = 0.2  # of an operation that bytes do for fixed-point features, beside one of float64
MAX_PARTS = 64  # of sums that no worker holds as a whole; each reads all rows
ASSUMED_ALPHAS = 64  # of a cross-validation, where the data decide how many there are
PROCESS_BYTES = (
    400 * 2**20
)  # Python with NumPy, SciPy, Zarr, scikit-learn and distributed, measured 230 to 330 MiB, ONNX Runtime 30


@dataclass(frozen=True, slots=True)
class Plan:
    """The figures of one fit.

    `n_samples`, `n_features`, `n_targets`, `n_components`: sizes of the job.
    `n_workers`, `n_threads`: processes, and threads of each.
    `n_blocks`, `rows_per_block`, `tile_rows`: how the rows are cut: a block is a task, a tile shares the
      cache.
    `bytes_read`: inputs and targets, once for the moments and once for the statistics.
    `flops`: multiplications and additions of the products.
    `statistics_bytes`: one block's statistics in memory, of all folds and feature maps.
    `n_parts`: passes that each sum up a part of them, where a worker's memory does not hold the whole.
    `ledger_bytes`: what a job keeps of them at most beside its output, until that is published.
    `worker_bytes`: peak memory of a worker process; the statistics pass needs no more.
    `client_bytes`: peak memory of the process that solves, and runs the pass too where there are no other
      workers.
    `memory_limit`, `client_memory_limit`: bytes that a worker and the solver may use, where known.
    `solver`: "direct", or "pcg", of which `flops` and `statistics_bytes` count a sketch of 512 and 40 steps.
    `reason`: why that one.
    """

    n_samples: int
    n_features: int
    n_targets: int
    n_components: int
    n_workers: int
    n_threads: int
    n_blocks: int
    rows_per_block: int
    tile_rows: int
    bytes_read: int
    flops: int
    statistics_bytes: int
    worker_bytes: int
    client_bytes: int
    memory_limit: int | None
    client_memory_limit: int | None
    ledger_bytes: int
    solver: str = "direct"
    reason: str = "it was asked for"
    n_parts: int = 1

    @property
    def peak_bytes(self) -> int:
        """The larger of the two peaks."""
        return max(self.worker_bytes, self.client_bytes)

    @property
    def fits(self) -> bool:
        """Whether both processes have the memory that they need, as far as is known."""
        needed = (self.worker_bytes, self.memory_limit), (self.client_bytes, self.client_memory_limit)
        return all(limit is None or wanted <= limit for wanted, limit in needed)

    def seconds(self, gflops: float) -> float:
        """Return the seconds of the statistics pass at `gflops` billion operations a second per thread."""
        return self.flops / (gflops * 1e9 * self.n_workers * self.n_threads)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as JSON-able values."""
        return {**asdict(self), "peak_bytes": self.peak_bytes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of a dataset.

    `chunk_rows`: rows that are worth reading together.
    `itemsize`: bytes of one number of X.
    """

    n_samples: int
    n_features: int
    n_targets: int
    chunk_rows: int
    itemsize: int = 4

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Return the sizes of a dataset; one without targets is planned as with one."""
        return cls(
            n_samples=dataset.n_samples,
            n_features=dataset.n_features,
            n_targets=max(1, dataset.n_targets),
            chunk_rows=dataset.chunk_rows,
            itemsize=dataset.dtype.itemsize,
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as it is read, with its targets and weight."""
        return self.n_features * self.itemsize + 8 * (self.n_targets + 1)

    def block_rows(self, n_folds: int = 1) -> int:
        """Return the rows of the largest block of a pass."""
        rows = block_rows(self.n_samples, self.n_features, self.itemsize, self.chunk_rows, n_folds=n_folds)
        return min(rows, self.n_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What runs a job.

    `n_workers`, `n_threads`: processes, and threads of each.
    `separate_client`: whether the solver's process is another than the workers'.
    `memory_limit`: bytes that a worker process may use, where known.
    `client_memory_limit`: bytes that the solver's process may use; None is `memory_limit`.
    """

    n_workers: int = 1
    n_threads: int = 1
    separate_client: bool = False
    memory_limit: int | None = None
    client_memory_limit: int | None = None

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Return what an engine runs on."""
        here = available_memory()
        return cls(
            n_workers=max(1, engine.n_workers),  # a cluster may still wait for its first worker
            n_threads=engine.n_threads,
            separate_client=not engine.in_process,
            memory_limit=engine.worker_memory or here,
            client_memory_limit=here,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Which sums a fit makes of the rows, and what it solves of them.

    `alpha`: one number is solved by Cholesky, all else takes eigenvectors.
    `features`: Nyström's have a factor of the centres, which the solver's process keeps.
    `n_folds`: folds whose rows are summed apart, for cross-validation; 1 for none.
    `n_maps`: feature maps whose statistics are accumulated in one reading.
    `in_parts`: whether sums that no worker holds as a whole may be made in several readings.
    """

    alpha: Alpha = "auto"
    features: str | Nystrom = "fourier"
    n_folds: int = 1
    n_maps: int = 1
    in_parts: bool = False

    @classmethod
    def of(cls, options: RidgeOptions, n_folds: int = 1) -> Self:
        """Return those of a regression; of several kinds of features the one that takes most."""
        return cls(alpha=options.alpha, features=options.kinds[-1], n_folds=n_folds, in_parts=True)

    @property
    def whitened(self) -> bool:
        """Whether the features are Nyström's."""
        return find_features(self.features) is not None


def plan_fit(sizes: Sizes, n_components: int, machines: Machines, sums: Sums | None = None) -> Plan:
    """Plan one fit: O(n_samples · n_components²) operations, O(n_components²) memory.

    Raises PlanError if a worker or the solver needs more memory than it has; the message has both numbers.
    """
    return _plan_by(_plan, sizes, n_components, machines, sums or Sums())


def _plan_by(
    plan: Callable[[Sizes, int, Machines, Sums], Plan],
    sizes: Sizes,
    n_components: int,
    machines: Machines,
    sums: Sums,
) -> Plan:
    check_n_components(n_components, "phases")
    planned = plan(sizes, n_components, machines, sums)
    _refuse_too_large(planned, lambda fewer: plan(sizes, fewer, machines, sums))
    return planned


def _plan(sizes: Sizes, n_components: int, machines: Machines, sums: Sums) -> Plan:
    n_samples, n_features, n_targets = sizes.n_samples, sizes.n_features, sizes.n_targets
    n_threads, n_folds, n_maps = machines.n_threads, sums.n_folds, sums.n_maps
    rows = sizes.block_rows(n_folds)
    n_blocks = -(-n_samples // rows)
    height = min(tile_rows(n_components), rows)
    layout = TileLayout(n_components)
    n_regions = layout.count_regions(REGION)
    one_set = 8 * _limbs(n_samples) * layout.size + 8 * 6 * n_components * (n_targets + 1)
    statistics_bytes = one_set * n_folds * n_maps
    together = 1 if n_threads == 1 else min(-(-rows // height), -(-2 * n_threads // n_regions))
    chunk_bytes = max(rows, min(sizes.chunk_rows, n_samples)) * sizes.row_bytes
    # as stored and as read, and one more that is read ahead
    block_bytes = 3 * chunk_bytes + rows * (24 * n_features + 24 * (n_targets + 1))
    tile_bytes = 8 * n_components * height * together + n_threads * (8 * REGION**2 + 4 * OUTPUT_TILE * height)
    # blocks are added in place; a worker's total, that of a run and their sum are there together
    held = 3 if machines.separate_client and n_blocks > 1 else 1
    beside_bytes = PROCESS_BYTES + block_bytes + tile_bytes
    limit, cell_bytes = machines.memory_limit, 8 * _limbs(n_samples) * cell_components(n_components) ** 2
    n_parts = 1
    if sums.in_parts and machines.separate_client and limit is not None:
        room = (limit - beside_bytes) // held
        n_parts = _parts_for(statistics_bytes, room, cell_bytes * n_folds * n_maps)
    part_bytes = statistics_bytes
    if n_parts > 1:
        part_bytes = statistics_bytes // n_parts + cell_bytes * n_folds * n_maps
    pass_bytes = beside_bytes + part_bytes * held
    # Cholesky factors a copy of the Gram; the eigensolver needs vectors and two arrays of work
    matrices = 2 if is_one_alpha(sums.alpha) else 5
    factor_bytes = 8 * n_components**2 if sums.whitened else 0
    solve_bytes = PROCESS_BYTES + 2 * statistics_bytes + 8 * n_components**2 * matrices + factor_bytes
    if n_folds > 1:
        solve_bytes += cross_validation_bytes(
            n_components,
            n_targets=n_targets,
            n_alphas=ASSUMED_ALPHAS,
            n_threads=available_cores(),
            statistics_bytes=one_set,
        )
    feature_flops = n_parts * n_components * (n_features + n_targets + 1)
    flops = 2 * n_samples * n_maps * (n_components * n_components // 2 + feature_flops)
    return Plan(
        n_samples=n_samples,
        n_features=n_features,
        n_targets=n_targets,
        n_components=n_components,
        n_workers=machines.n_workers,
        n_threads=n_threads,
        n_blocks=n_blocks,
        rows_per_block=rows,
        tile_rows=height,
        bytes_read=(1 + n_parts) * n_samples * sizes.row_bytes,
        flops=flops,
        statistics_bytes=statistics_bytes,
        worker_bytes=pass_bytes,
        client_bytes=solve_bytes if machines.separate_client else max(pass_bytes + factor_bytes, solve_bytes),
        memory_limit=limit,
        client_memory_limit=limit if machines.client_memory_limit is None else machines.client_memory_limit,
        n_parts=n_parts,
        ledger_bytes=statistics_bytes
        * most_kept(n_blocks, machines.n_workers, separate=machines.separate_client),
    )


def _parts_for(n_bytes: int, room: int, cell_bytes: int) -> int:
    """Return in how many parts sums fit in a room: 1 where they do as a whole, or would not in 64 either.

    `cell_bytes`: by which a part may be above its share.
    """
    if n_bytes <= room or room <= cell_bytes:
        return 1
    n_parts = -(-n_bytes // (room - cell_bytes))
    return n_parts if n_parts <= MAX_PARTS else 1


def plan_pcg(sizes: Sizes, n_components: int, machines: Machines, sums: Sums | None = None) -> Plan:
    """Plan a fit by conjugate gradients: O(n_samples · n_components) operations a step; see `plan_fit`.

    The steps are not known beforehand: 40 are assumed, after a sketch of rank 512.

    Raises PlanError as `plan_fit`.
    """
    return _plan_by(_plan_pcg, sizes, n_components, machines, sums or Sums())


def _plan_pcg(sizes: Sizes, n_components: int, machines: Machines, sums: Sums) -> Plan:
    n_samples, n_targets = sizes.n_samples, sizes.n_targets
    direct = _plan(sizes, 1, machines, Sums(alpha=1.0))
    rank = min(ASSUMED_RANK, n_components)
    n_sketches = -(-rank // SKETCH_COLUMNS)
    operations = COLUMN_OPERATIONS * rank + FEATURE_OPERATIONS * n_sketches
    operations += ASSUMED_STEPS * pass_operations(n_targets)
    columns = 8 * n_components * min(SKETCH_COLUMNS, rank)
    held = 3 if machines.separate_client else 1
    tile_bytes = max(
        8 * n_components * tile_height(n_components, width) for width in (n_targets, SKETCH_COLUMNS)
    )
    pass_bytes = direct.worker_bytes + tile_bytes + columns * (held + 1)
    factor_bytes = 8 * n_components**2 if sums.whitened else 0
    largest = 8 * n_components * largest_rank(n_components)
    solve_bytes = PROCESS_BYTES + 5 * largest + 2 * columns + factor_bytes
    together = max(pass_bytes + 2 * largest + factor_bytes, solve_bytes)
    return replace(
        direct,
        n_components=n_components,
        tile_rows=tile_height(n_components, n_targets),
        bytes_read=(2 + n_sketches + ASSUMED_STEPS) * n_samples * sizes.row_bytes,
        flops=n_samples * n_components * operations,
        statistics_bytes=columns,
        ledger_bytes=(n_sketches * columns + ASSUMED_STEPS * 8 * n_components * n_targets)
        * (direct.ledger_bytes // direct.statistics_bytes),
        worker_bytes=pass_bytes,
        client_bytes=solve_bytes if machines.separate_client else together,
        solver="pcg",
    )


def choose_solver(
    sizes: Sizes, n_components: int, machines: Machines, options: RidgeOptions, n_folds: int = 1
) -> Plan:
    """Return the plan of a fit by the solver that the options ask for.

    With folds "auto" is "direct". Without it takes "pcg" for one given alpha where memory does not hold Z'Z,
    or where by its operations that takes less than a quarter of the time of Z'Z and its factorisation. It
    goes by sizes and memory alone.

    Raises PlanError if memory does not do for any solver that may be taken.
    """
    sums = Sums.of(options, n_folds)
    if options.solver == "pcg":
        return plan_pcg(sizes, n_components, machines, sums)
    if options.solver == "direct":
        return plan_fit(sizes, n_components, machines, sums)
    needs = options.needs_statistics
    if needs is None and n_folds > 1:
        needs = "folds choose alpha"
    if needs is None and not is_one_alpha(options.alpha):
        needs = f"`alpha` is {options.alpha!r}"
    if needs is not None:
        direct = plan_fit(sizes, n_components, machines, sums)
        return replace(direct, reason=f"{needs}, which takes the sums of Z'Z")
    iterating = _plan_pcg(sizes, n_components, machines, sums)
    factoring = n_components**3 / 3
    exact_bytes = not sums.whitened and options.precision == "standard"
    try:
        summing = plan_fit(sizes, n_components, machines, sums)
    except PlanError as error:
        if not iterating.fits:
            raise
        return replace(iterating, reason=f"memory does not hold Z'Z: {error}")
    ratio = iterating.flops / (summing.flops * (BYTES_COST if exact_bytes else 1.0) + factoring)
    words = f"by plan iterating takes {ratio:.2g} times as long as Z'Z and its factorisation"
    if ratio < WORTH_ITERATING and iterating.fits:
        return replace(iterating, reason=words)
    return replace(summing, reason=words)


def _limbs(n_samples: int) -> int:
    """Return how many integers hold one sum of so many products."""
    return 1 if n_samples <= 1 << (62 - FRACTION_BITS) else 2


def plan_matrix_pass(
    sizes: Sizes,
    n_components: int,
    machines: Machines,
    *,
    n_columns: int = 0,
    n_matrices: int = 1,
    spectral: bool = False,
    whitened: bool = False,
) -> tuple[int, int]:
    """Return the peak bytes of a worker and of the client in a pass that carries a D x D matrix.

    Such passes are those with standard deviations, which carry a triangle, and leave-one-out passes.

    `sizes`, `n_components`, `machines`, `whitened`: as in `plan_fit`.
    `n_columns`: columns of n_components numbers that the pass carries too.
    `n_matrices`: how many such matrices it carries.
    `spectral`: whether the matrix comes of an eigendecomposition rather than a Cholesky factorisation.
    """
    n_samples, n_targets, n_threads = sizes.n_samples, sizes.n_targets, machines.n_threads
    rows = sizes.block_rows()
    height = min(tile_rows(n_components), rows)
    block_bytes = 2 * max(rows, min(sizes.chunk_rows, n_samples)) * sizes.row_bytes
    block_bytes += rows * 24 * (sizes.n_features + 4 * (n_targets + 1))
    # features, what they become and its squares, of 256 rows; a stripe of a tile for the predictions
    copies = 3 + (n_matrices > 1)
    strip_bytes = n_threads * (copies * 8 * STRIP_COLUMNS * (n_components + n_columns))
    strip_bytes += n_threads * 8 * OUTPUT_TILE * height
    whitener_bytes = whitened * 8 * n_components**2
    matrix_bytes, column_bytes = n_matrices * 8 * n_components**2, 8 * n_components * n_columns
    here = PROCESS_BYTES + block_bytes + strip_bytes + matrix_bytes + column_bytes
    kept = 8 * _limbs(n_samples) * TileLayout(n_components).size + whitener_bytes  # with the model
    # the eigensolver needs what it does in a fit; the triangle is made in the Gram's own memory
    making = PROCESS_BYTES + kept + matrix_bytes * (5 if spectral else 1) + 2 * column_bytes
    if machines.separate_client:
        # a matrix that travels is there twice while it is packed or unpacked
        return here + matrix_bytes + column_bytes, making + matrix_bytes + column_bytes
    together = max(making, here + kept)
    return together, together


def check_plan(dataset: Dataset, n_components: int, sums: Sums, *, engine: Engine) -> Plan:
    """Plan a fit on an engine, and refuse it where memory would not do; see `plan_fit`."""
    blocks_of(dataset)  # refuses a dataset without rows
    return plan_fit(Sizes.of(dataset), n_components, Machines.of(engine), sums)


def check_solver_plan(
    dataset: Dataset, n_components: int, options: RidgeOptions, n_folds: int = 1, *, engine: Engine
) -> Plan:
    """Plan a fit on an engine by the solver that the options ask for; see `choose_solver`."""
    blocks_of(dataset)  # refuses a dataset without rows
    return choose_solver(Sizes.of(dataset), n_components, Machines.of(engine), options, n_folds)


def check_matrix_pass(
    dataset: Dataset, feature_map: FeatureMap, *, engine: Engine, n_targets: int, **carried: Any
) -> None:
    """Refuse a pass that carries D x D matrices where memory would not do; see `plan_matrix_pass`."""
    blocks_of(dataset)  # refuses a dataset without rows
    machines = Machines.of(engine)
    needed = plan_matrix_pass(
        replace(Sizes.of(dataset), n_targets=n_targets),
        feature_map.n_components,
        machines,
        whitened=feature_map.whitener is not None,
        **carried,
    )
    limits = (machines.memory_limit, machines.client_memory_limit)
    for who, wanted, limit in zip(("a worker", "this process"), needed, limits, strict=True):
        if limit is not None and wanted > limit:
            raise PlanError(
                f"{who} needs {human_bytes(wanted)} for a pass that carries a matrix of n_components="
                f"{feature_map.n_components:_} squared, but has {human_bytes(limit)}; give it more "
                "memory, or fit fewer components"
            )


def _refuse_too_large(plan: Plan, again: Callable[[int], Plan]) -> None:
    for who, needed, limit in (
        ("a worker", plan.worker_bytes, plan.memory_limit),
        ("the solver", plan.client_bytes, plan.client_memory_limit),
    ):
        if limit is not None and needed > limit:
            advice = "lower n_components, or"
            smaller = range(512, plan.n_components, 512)
            if largest := bisect_left(smaller, True, key=lambda wanted: not again(wanted).fits):
                advice = f"lower n_components to {smaller[largest - 1]:_} or"
            raise PlanError(
                f"{who} needs {human_bytes(needed)} (n_components={plan.n_components:_}, "
                f"blocks of {plan.rows_per_block:_} rows) but has {human_bytes(limit)}; "
                f"{advice} give each process more memory"
            )


def measure_gflops() -> float:
    """Time a symmetric product for 0.2 s: billions of float64 operations a second of one thread."""
    matrix = np.random.Generator(np.random.Philox(0)).standard_normal((1024, 4096))
    best = math.inf
    with limit_blas(1):
        for _ in range(3):
            start = time.perf_counter()
            np.matmul(matrix, matrix.T)
            best = min(best, time.perf_counter() - start)
    return float(matrix.shape[0] ** 2 * matrix.shape[1] / best / 1e9)
