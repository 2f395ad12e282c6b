"""What a fit will take, before anything runs: bytes, operations, blocks and peak memory.

Arithmetic on sizes. It refuses a job that cannot fit, with the number needed and the number there is.
"""

import logging
import math
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, field, replace
from typing import Self

import numpy as np

from rff_dist.data import blocks
from rff_dist.engines import protocol, resuming
from rff_dist.errors import PlanError
from rff_dist.features import feature_options, maps, nystrom
from rff_dist.fitting.options import Alpha, RidgeOptions, is_one_alpha
from rff_dist.numerics import cholesky, conjugate_gradients, machine
from rff_dist.products.protocol import REGION
from rff_dist.selection import cross_validation
from rff_dist.statistics import gram_products, inspection, specs
from rff_dist.text import human_bytes
from rff_dist.typing import Summary, frozen

logger = logging.getLogger(__name__)

ASSUMED_RANK, ASSUMED_STEPS = 512, 40  # of conjugate gradients
# Share of the cost of Z'Z and its factorisation below which "auto" iterates and goes without statistics: at
# D = 4,096 iterating took 9 to 20 times as long as products of bytes were planned to.
WORTH_ITERATING = 0.25
BYTES_COST = 0.2  # of an operation done by bytes, for fixed-point features; one in float64 costs 1
MAX_PARTS = 64  # of sums too large for one worker; each part takes a pass over all rows
ASSUMED_ALPHAS = 64  # of a cross-validation; the real number depends on the data
# Python with NumPy, SciPy, Zarr, scikit-learn and distributed takes 230 to 330 MiB, ONNX Runtime 30.
PROCESS_BYTES = 400 * 2**20


@frozen
class Plan:
    """The figures of one fit.

    `n_samples`, `n_features`, `n_targets`, `n_components`: sizes of the job.
    `n_workers`, `n_threads`: processes, and threads of each.
    `n_blocks`, `rows_per_block`, `tile_rows`: how the rows are cut into blocks and tiles.
    `bytes_read`: inputs and targets, once for the moments and once for the statistics.
    `flops`: multiplications and additions of the products.
    `statistics_bytes`: memory of one block's statistics, for all folds and feature maps.
    `n_parts`: passes that each sum up a part of the statistics; 1 if a worker's memory holds them whole.
    `ledger_bytes`: the most that a job keeps of its sums next to its output, until that is published.
    `worker_bytes`: peak memory of a worker process, reached in the statistics pass.
    `client_bytes`: peak memory of the process that solves. It runs the pass too if there are no workers.
    `memory_limit`, `client_memory_limit`: bytes that a worker and the solver may use, where known.
    `solver`: "direct" or "pcg". For "pcg", `flops` and `statistics_bytes` assume a sketch of rank 512 and 40
      steps.
    `reason`: why this solver.
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
        return max(self.worker_bytes, self.client_bytes)

    @property
    def shortages(self) -> list[tuple[str, int, int]]:
        """Processes that need more memory than they have, each with the bytes needed and available."""
        return _shortages(
            ("a worker", self.worker_bytes, self.memory_limit),
            ("the solver", self.client_bytes, self.client_memory_limit),
        )

    def seconds(self, gflops: float) -> float:
        """Return the seconds of the statistics pass at `gflops` billion operations a second per thread."""
        return self.flops / (gflops * 1e9 * self.n_workers * self.n_threads)

    def to_dict(self) -> Summary:
        return {**asdict(self), "peak_bytes": self.peak_bytes}


@frozen(kw_only=True)
class Sizes:
    """Sizes of a dataset.

    `chunk_rows`: rows that are worth reading together.
    `itemsize`: bytes of one number of X.
    `whole`: whether blocks are whole chunks even of many rows.
    """

    n_samples: int
    n_features: int
    n_targets: int
    chunk_rows: int
    itemsize: int = 4
    whole: bool = False

    @classmethod
    def of(cls, dataset: blocks.Dataset) -> Self:
        """Return the sizes of a dataset; without targets, it is planned as if it had one.

        Raises DataError if the dataset has no rows.
        """
        inspection.blocks_of(dataset)
        return cls(
            n_samples=dataset.n_samples,
            n_features=dataset.n_features,
            n_targets=max(1, dataset.n_targets),
            chunk_rows=dataset.chunk_rows,
            itemsize=dataset.dtype.itemsize,
            whole=dataset.edges is not None,
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as read, with its targets and weight."""
        return self.n_features * self.itemsize + 8 * (self.n_targets + 1)

    def block_rows(self, n_folds: int = 1) -> int:
        """Return the rows of the largest block of a pass."""
        if self.whole:
            return min(self.chunk_rows, blocks.MAX_BLOCK_ROWS)
        rows = blocks.block_rows(
            self.n_samples, self.n_features, self.itemsize, self.chunk_rows, n_folds=n_folds
        )
        return min(rows, self.n_samples)


@frozen(kw_only=True)
class Machines:
    """What runs a fit.

    `n_workers`, `n_threads`: processes, and threads of each.
    `separate_client`: whether the solver runs in a process of its own.
    `memory_limit`: bytes that a worker process may use, where known.
    `client_memory_limit`: bytes that the solver's process may use; `memory_limit` by default.
    """

    n_workers: int = 1
    n_threads: int = 1
    separate_client: bool = False
    memory_limit: int | None = None
    client_memory_limit: int | None = None

    @classmethod
    def of(cls, engine: protocol.Engine) -> Self:
        here = machine.available_memory()
        return cls(
            n_workers=max(1, engine.n_workers),  # a cluster may still wait for its first worker
            n_threads=engine.n_threads,
            separate_client=not engine.in_process,
            memory_limit=engine.worker_memory or here,
            client_memory_limit=here,
        )


@frozen(kw_only=True)
class Sums:
    """Which sums a fit makes of the rows, and how they are solved.

    `alpha`: one number takes a Cholesky factorisation, anything else eigenvectors.
    `features`: for Nyström features, the solver's process also holds a factor of the centres.
    `n_folds`: folds that are summed separately, for cross-validation; 1 for none.
    `n_maps`: feature maps whose statistics are accumulated in one reading.
    `in_parts`: whether sums too large for a worker may be made in several readings.
    """

    alpha: Alpha = "auto"
    features: str | nystrom.Nystrom = "fourier"
    n_folds: int = 1
    n_maps: int = 1
    in_parts: bool = False

    @classmethod
    def of(cls, options: RidgeOptions, n_folds: int = 1) -> Self:
        """Return the sums of a regression; of several kinds of features, the most costly counts."""
        return cls(alpha=options.alpha, features=options.kinds[-1], n_folds=n_folds, in_parts=True)

    @property
    def whitened(self) -> bool:
        return feature_options.find_features(self.features) is not None


@frozen
class PlannedFit:
    """A fit to plan: its data, D, machines and sums."""

    sizes: Sizes
    n_components: int
    machines: Machines
    sums: Sums = field(default_factory=Sums)


def plan_fit(fit: PlannedFit) -> Plan:
    """Plan one fit: O(n_samples · n_components²) operations, O(n_components²) memory.

    Raises PlanError if a worker or the solver needs more memory than it has; the message has both numbers.
    """
    return _within_memory(_plan_direct, fit)


def _within_memory(plan: Callable[[PlannedFit], Plan], fit: PlannedFit) -> Plan:
    def too_large(n_components: int) -> bool:
        return bool(plan(replace(fit, n_components=n_components)).shortages)

    feature_options.check_n_components(fit.n_components, "phases")
    planned = plan(fit)
    for who, needed, limit in planned.shortages:
        advice = "lower n_components, or"
        # memory grows with D, so the largest D that fits is found by bisection
        smaller = range(512, fit.n_components, 512)
        if largest := bisect_left(smaller, True, key=too_large):
            advice = f"lower n_components to {smaller[largest - 1]:_} or"
        raise PlanError(
            f"{who} needs {human_bytes(needed)} (n_components={fit.n_components:_}, "
            f"blocks of {planned.rows_per_block:_} rows) but has {human_bytes(limit)}; "
            f"{advice} give each process more memory"
        )
    return planned


def _shortages(*processes: tuple[str, int, int | None]) -> list[tuple[str, int, int]]:
    """Return the processes that need more bytes than they have, where the limit is known."""
    return [(who, needed, limit) for who, needed, limit in processes if limit is not None and needed > limit]


def _plan_direct(fit: PlannedFit) -> Plan:
    sizes, n_components, machines, sums = fit.sizes, fit.n_components, fit.machines, fit.sums
    n_samples, n_features, n_targets = sizes.n_samples, sizes.n_features, sizes.n_targets
    n_threads, n_folds, n_maps = machines.n_threads, sums.n_folds, sums.n_maps
    rows = sizes.block_rows(n_folds)
    n_blocks = -(-n_samples // rows)
    height = min(specs.tile_rows(n_components), rows)
    layout = specs.TileLayout(n_components)
    n_regions = layout.count_regions(REGION)
    # Z'Z, and Z'[Y, 1] as exact sums of about six digits
    one_set = 8 * _limbs(n_samples) * layout.size + 8 * 6 * n_components * (n_targets + 1)
    statistics_bytes = one_set * n_folds * n_maps
    # tiles worked on at once, as in `statistics.accumulate`: enough regions for all threads
    together = 1 if n_threads == 1 else min(-(-rows // height), -(-2 * n_threads // n_regions))
    chunk_bytes = max(rows, min(sizes.chunk_rows, n_samples)) * sizes.row_bytes
    # a block as stored and as decoded, and one more that is read ahead
    block_bytes = 3 * chunk_bytes + rows * 24 * (n_features + n_targets + 1)
    tile_bytes = 8 * n_components * height * together
    tile_bytes += n_threads * (8 * REGION**2 + 4 * specs.OUTPUT_TILE * height)
    # blocks are added in place, but a worker's total, a run's total and their sum exist at once
    held = 3 if machines.separate_client and n_blocks > 1 else 1
    other_bytes = PROCESS_BYTES + block_bytes + tile_bytes
    # a part has whole cells of Z'Z, so that each keeps the bits of one pass
    cell_bytes = 8 * _limbs(n_samples) * specs.cell_components(n_components) ** 2 * n_folds * n_maps
    limit, n_parts = machines.memory_limit, 1
    if sums.in_parts and machines.separate_client and limit is not None:
        room = (limit - other_bytes) // held
        n_parts = _parts_for(statistics_bytes, room, cell_bytes)
    part_bytes = statistics_bytes if n_parts == 1 else statistics_bytes // n_parts + cell_bytes
    pass_bytes = other_bytes + part_bytes * held
    factor_bytes = 8 * n_components**2 if sums.whitened else 0
    solve_bytes = _bytes_to_solve(fit, one_set) + factor_bytes
    feature_flops = n_parts * n_components * (n_features + n_targets + 1)
    # half of Z'Z, since it is symmetric
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
        * resuming.most_kept(n_blocks, machines.n_workers, separate=machines.separate_client),
    )


def _bytes_to_solve(fit: PlannedFit, one_set: int) -> int:
    """Return the peak bytes of solving, without a factor of centres.

    `one_set`: bytes of the statistics of one fold and one feature map.
    """
    n_components, sums = fit.n_components, fit.sums
    # Cholesky factors a copy of the Gram; the eigensolver needs eigenvectors and two work arrays
    matrices = 2 if is_one_alpha(sums.alpha) else 5
    needed = PROCESS_BYTES + 2 * one_set * sums.n_folds * sums.n_maps + 8 * n_components**2 * matrices
    if sums.n_folds == 1:
        return needed
    return needed + cross_validation.cross_validation_bytes(
        n_components,
        n_targets=fit.sizes.n_targets,
        n_alphas=ASSUMED_ALPHAS,
        n_threads=machine.available_cores(),
        statistics_bytes=one_set,
    )


def _parts_for(n_bytes: int, room: int, cell_bytes: int) -> int:
    """Return into how many parts to split sums so that each fits: 1 if none is needed, or 64 do not do.

    `room`: bytes that a part may take.
    `cell_bytes`: by how much a part may exceed its equal share, since it has whole cells.
    """
    if n_bytes <= room or room <= cell_bytes:
        return 1
    n_parts = -(-n_bytes // (room - cell_bytes))
    return n_parts if n_parts <= MAX_PARTS else 1


def plan_pcg(fit: PlannedFit) -> Plan:
    """Plan a fit by conjugate gradients: O(n_samples · n_components) operations a step; see `plan_fit`.

    The steps are not known beforehand: 40 are assumed, after a sketch of rank 512.

    Raises PlanError as `plan_fit`.
    """
    return _within_memory(_plan_pcg, fit)


def _plan_pcg(fit: PlannedFit) -> Plan:
    sizes, n_components, separate = fit.sizes, fit.n_components, fit.machines.separate_client
    n_targets = sizes.n_targets
    direct = _plan_direct(replace(fit, n_components=1, sums=Sums(alpha=1.0)))
    rank = min(ASSUMED_RANK, n_components)
    at_once = conjugate_gradients.SKETCH_COLUMNS
    n_sketches = -(-rank // at_once)
    operations = gram_products.COLUMN_OPERATIONS * rank + gram_products.FEATURE_OPERATIONS * n_sketches
    operations += ASSUMED_STEPS * gram_products.pass_operations(n_targets)
    columns = 8 * n_components * min(at_once, rank)
    height = max(gram_products.tile_height(n_components, width) for width in (n_targets, at_once))
    held = 3 if separate else 1
    tile_bytes = 8 * n_components * height * fit.machines.n_threads
    pass_bytes = direct.worker_bytes + tile_bytes + columns * (held + 1)
    factor_bytes = 8 * n_components**2 if fit.sums.whitened else 0
    largest = 8 * n_components * conjugate_gradients.largest_rank(n_components)
    solve_bytes = PROCESS_BYTES + 5 * largest + 2 * columns + factor_bytes
    together = max(pass_bytes + 2 * largest + factor_bytes, solve_bytes)
    return replace(
        direct,
        n_components=n_components,
        tile_rows=gram_products.tile_height(n_components, n_targets),
        bytes_read=(2 + n_sketches + ASSUMED_STEPS) * sizes.n_samples * sizes.row_bytes,
        flops=sizes.n_samples * n_components * operations,
        statistics_bytes=columns,
        ledger_bytes=(n_sketches * columns + ASSUMED_STEPS * 8 * n_components * n_targets)
        * (direct.ledger_bytes // direct.statistics_bytes),
        worker_bytes=pass_bytes,
        client_bytes=solve_bytes if separate else together,
        solver="pcg",
    )


# At D = 4,096 iterating took 9 to 20 times as long as the products were planned to, and a model that was
# solved directly has statistics: standard deviations and updates.
def choose_solver(fit: PlannedFit, options: RidgeOptions) -> Plan:
    """Return the plan of a fit by the solver that the options ask for.

    "auto" is "direct" with folds. For one given alpha it is "pcg" if memory does not hold Z'Z, or if
    iterating is planned to take less than a quarter of the time of Z'Z and its factorisation. Sizes and
    memory alone decide.

    Raises PlanError if memory is too small for every solver that may be taken.
    """
    if options.solver != "auto":
        return plan_pcg(fit) if options.solver == "pcg" else plan_fit(fit)
    needs = options.needs_statistics
    if needs is None and fit.sums.n_folds > 1:
        needs = "folds choose alpha"
    if needs is None and not is_one_alpha(options.alpha):
        needs = f"`alpha` is {options.alpha!r}"
    if needs is not None:
        return replace(plan_fit(fit), reason=f"{needs}, which takes the sums of Z'Z")
    iterating = _plan_pcg(fit)
    # of a Cholesky factorisation
    factoring = fit.n_components**3 / 3
    # only fixed-point features are multiplied by bytes
    exact_bytes = not fit.sums.whitened and options.precision == "standard"
    try:
        summing = plan_fit(fit)
    except PlanError as error:
        if iterating.shortages:
            raise
        return replace(iterating, reason=f"memory does not hold Z'Z: {error}")
    ratio = iterating.flops / (summing.flops * (BYTES_COST if exact_bytes else 1.0) + factoring)
    words = f"by plan iterating takes {ratio:.2g} times as long as Z'Z and its factorisation"
    if ratio < WORTH_ITERATING and not iterating.shortages:
        return replace(iterating, reason=words)
    return replace(summing, reason=words)


def _limbs(n_samples: int) -> int:
    """Return how many 64-bit integers hold the sum of so many products."""
    # a product of features is at most 1, which is 2**FRACTION_BITS on the grid of the sums
    return 1 if n_samples <= 1 << (specs.LIMB_BITS - specs.FRACTION_BITS) else 2


def plan_matrix_pass(fit: PlannedFit, *, n_matrices: int = 1) -> tuple[int, int]:
    """Return the peak bytes of a worker and of the client in a pass that carries a D x D matrix.

    `fit`: of its sums, only the kind of features matters.
    `n_matrices`: how many D x D matrices the pass carries.
    """
    sizes, n_components, machines = fit.sizes, fit.n_components, fit.machines
    n_samples, n_targets, n_threads = sizes.n_samples, sizes.n_targets, machines.n_threads
    rows = sizes.block_rows()
    height = min(specs.tile_rows(n_components), rows)
    block_bytes = 2 * max(rows, min(sizes.chunk_rows, n_samples)) * sizes.row_bytes
    block_bytes += rows * 24 * (sizes.n_features + 4 * (n_targets + 1))
    # features of 256 rows, what they are turned into and its squares; a stripe of a tile for predictions
    copies = 3 + (n_matrices > 1)
    strip_bytes = n_threads * (copies * 8 * cholesky.STRIP_COLUMNS * n_components)
    strip_bytes += n_threads * 8 * specs.OUTPUT_TILE * height
    whitener_bytes = fit.sums.whitened * 8 * n_components**2
    matrix_bytes = n_matrices * 8 * n_components**2
    here = PROCESS_BYTES + block_bytes + strip_bytes + matrix_bytes
    kept = 8 * _limbs(n_samples) * specs.TileLayout(n_components).size + whitener_bytes  # by the model
    making = PROCESS_BYTES + kept + matrix_bytes  # the triangle is made in the Gram's own memory
    if machines.separate_client:
        # a matrix that travels is there twice while it is packed or unpacked
        return here + matrix_bytes, making + matrix_bytes
    together = max(making, here + kept)
    return together, together


def check_plan(dataset: blocks.Dataset, n_components: int, sums: Sums, *, engine: protocol.Engine) -> Plan:
    """Plan a fit on an engine, and refuse it if memory is too small; see `plan_fit`."""
    return plan_fit(PlannedFit(Sizes.of(dataset), n_components, Machines.of(engine), sums))


def check_solver_plan(
    dataset: blocks.Dataset, n_components: int, options: RidgeOptions, n_folds: int = 1, *, machines: Machines
) -> Plan:
    """Plan a fit with the solver that the options ask for; see `choose_solver`."""
    sums = Sums.of(options, n_folds)
    return choose_solver(PlannedFit(Sizes.of(dataset), n_components, machines, sums), options)


def check_matrix_pass(
    dataset: blocks.Dataset,
    feature_map: maps.FeatureMap,
    *,
    engine: protocol.Engine,
    n_targets: int = 0,
    n_matrices: int = 1,
) -> None:
    """Refuse a pass that carries D x D matrices if memory is too small; see `plan_matrix_pass`.

    `n_targets`: of the model; by default those of the dataset.
    """
    sums = Sums(features="fourier" if feature_map.whitener is None else "nystrom")
    sizes, machines = Sizes.of(dataset), Machines.of(engine)
    sizes = replace(sizes, n_targets=n_targets or sizes.n_targets)
    fit = PlannedFit(sizes, feature_map.n_components, machines, sums)
    worker, client = plan_matrix_pass(fit, n_matrices=n_matrices)
    for who, needed, limit in _shortages(
        ("a worker", worker, machines.memory_limit),
        ("this process", client, machines.client_memory_limit),
    ):
        raise PlanError(
            f"{who} needs {human_bytes(needed)} for a pass that carries a matrix of n_components="
            f"{feature_map.n_components:_} squared, but has {human_bytes(limit)}; give it more "
            "memory, or fit fewer components"
        )


def plan_readings(
    dataset: blocks.Dataset,
    n_components: int,
    n_candidates: int,
    *,
    engine: protocol.Engine,
    n_folds: int,
    features: str | nystrom.Nystrom = "fourier",
) -> tuple[int, int]:
    """Share out candidates among as few readings of the data as memory allows.

    Returns `at_once`: candidates of a reading; `n_parts`: passes of a reading, more than 1 if a worker does
      not hold the sums of a single candidate.
    Raises PlanError if memory is too small for a single candidate.
    """
    for n_readings in range(1, n_candidates + 1):
        # equal batches: a last reading for one candidate would cost as much as the others
        at_once = -(-n_candidates // n_readings)
        sums = Sums(alpha="cv", features=features, n_folds=n_folds, n_maps=at_once, in_parts=at_once == 1)
        try:
            plan = check_plan(dataset, n_components, sums, engine=engine)
        except PlanError:
            if at_once == 1:
                raise
        else:
            break
    if at_once < n_candidates:
        message = "memory holds the statistics of %d of %d candidates at once, so the data are read %d times"
        logger.warning(message, at_once, n_candidates, -(-n_candidates // at_once))
    return at_once, plan.n_parts


def measure_gflops() -> float:
    """Measure billions of float64 operations a second of one thread, by a symmetric product; takes 0.2 s."""
    matrix = np.random.Generator(np.random.Philox(0)).standard_normal((1024, 4096))
    best = math.inf
    with machine.single_threaded_blas():
        for _ in range(3):
            start = time.perf_counter()
            # NumPy calls dsyrk for a product with the matrix's own transpose: n²·k operations, not 2·n²·k
            np.matmul(matrix, matrix.T)
            # the fastest of three, since other processes can only slow it down
            best = min(best, time.perf_counter() - start)
    return float(matrix.shape[0] ** 2 * matrix.shape[1] / best / 1e9)
