"""Plan a fit before anything runs: bytes, operations, blocks and peak memory.

Sizes of the data, options and the memory of machines go in; a `Plan` comes out, or a
PlanError with the bytes needed and available. A fit that runs out of memory would fail
after hours, and on a cluster take other jobs with it.
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
from rff_dist.numerics import conjugate_gradients, machine, triangular
from rff_dist.products.protocol import FLOAT64_REGION
from rff_dist.recipes import recipes
from rff_dist.selection import cross_validation
from rff_dist.statistics import gram_products, layouts, row_passes, specs
from rff_dist.text import human_bytes
from rff_dist.typing import Summary, frozen

logger = logging.getLogger(__name__)

# The rank of the sketch that preconditions conjugate gradients, and their steps; both
# depend on the data.
ASSUMED_RANK = 512
ASSUMED_STEPS = 40
# Share of the planned cost of Z'Z and its factorisation, below which "auto" iterates
# and goes without statistics. It is far below 1 because at D = 4,096 iterating took 9
# to 20 times as long as products of bytes were planned to.
WORTH_ITERATING = 0.25
# of an operation on bytes, in which fixed-point features are multiplied; one in float64
# costs 1
BYTES_COST = 0.2
MAX_PARTS = 64  # of sums too large for one worker; each part takes a pass over all rows
ASSUMED_ALPHAS = 64  # of a cross-validation; the real number depends on the data
# Python with NumPy, SciPy, Zarr, scikit-learn and distributed takes 230 to 330 MiB,
# ONNX Runtime 30.
PROCESS_BYTES = 400 * 2**20


@frozen
class Plan:
    """The figures of one fit."""

    n_samples: int
    n_features: int
    n_targets: int
    n_components: int
    n_workers: int
    #: Of each worker.
    n_threads: int
    n_blocks: int
    rows_per_block: int
    tile_rows: int
    #: Inputs and targets, once for the moments and once for the statistics.
    bytes_read: int
    #: Multiplications and additions of the products. For "pcg" these and
    #: `statistics_bytes` assume a sketch of rank 512 and 40 steps.
    flops: int
    #: Memory of one block's statistics, for all folds and feature maps.
    statistics_bytes: int
    #: Peak memory of a worker process, reached in the statistics pass.
    worker_bytes: int
    #: Peak memory of the process that solves; without workers it runs the pass too.
    client_bytes: int
    #: Bytes that a worker and the solver may use, if known.
    memory_limit: int | None
    client_memory_limit: int | None
    #: The most that a job keeps of its sums next to its output, until it is published.
    ledger_bytes: int
    #: "direct" or "pcg" (conjugate gradients).
    solver: str = "direct"
    #: Why this solver.
    reason: str = "it was asked for"
    #: Passes that each sum up a part of the statistics; 1 if a worker's memory suffices
    #: for the whole.
    n_parts: int = 1

    @property
    def peak_bytes(self) -> int:
        return max(self.worker_bytes, self.client_bytes)

    @property
    def shortages(self) -> list[tuple[str, int, int]]:
        """Processes that lack memory, each with the bytes needed and available."""
        return _shortages(
            ("a worker", self.worker_bytes, self.memory_limit),
            ("the solver", self.client_bytes, self.client_memory_limit),
        )

    def seconds(self, gflops: float) -> float:
        """Return the seconds of the statistics pass, at 10⁹ · `gflops` per thread."""
        return self.flops / (gflops * 1e9 * self.n_workers * self.n_threads)

    def to_dict(self) -> Summary:
        return {**asdict(self), "peak_bytes": self.peak_bytes}


@frozen(kw_only=True)
class Sizes:
    """Sizes of a dataset."""

    n_samples: int
    n_features: int
    n_targets: int
    #: Rows that are worth reading together.
    chunk_rows: int
    #: Bytes of one number of X.
    itemsize: int = 4
    #: Whether rows come in pieces, as those of a grid do, which are always read whole.
    in_pieces: bool = False
    #: Of all columns of categories.
    n_levels: int = 0

    @classmethod
    def of(cls, dataset: blocks.Dataset) -> Self:
        """Return the sizes of a dataset, planned with at least one target.

        Raises DataError if the dataset has no rows.
        """
        row_passes.blocks_of(dataset)
        return cls(
            n_samples=dataset.n_samples,
            n_features=dataset.n_features,
            n_targets=max(1, dataset.n_targets),
            chunk_rows=dataset.chunk_rows,
            itemsize=dataset.dtype.itemsize,
            in_pieces=dataset.edges is not None,
            n_levels=sum(map(len, recipes.levels_of(dataset.attributes).values())),
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as read, with its targets and weight."""
        return self.n_features * self.itemsize + 8 * (self.n_targets + 1)

    def block_rows(self, n_folds: int = 1) -> int:
        """Return the rows of the largest block of a pass."""
        if self.in_pieces:
            return min(self.chunk_rows, blocks.MAX_BLOCK_ROWS)
        rows = blocks.block_rows(
            self.n_samples,
            self.n_features,
            self.itemsize,
            self.chunk_rows,
            n_folds=n_folds,
        )
        return min(rows, self.n_samples)


@frozen(kw_only=True)
class Machines:
    """What runs a fit."""

    n_workers: int = 1
    #: Of each worker.
    n_threads: int = 1
    #: Whether the solver runs in its own process.
    separate_client: bool = False
    #: Bytes that a worker process may use, if known.
    memory_limit: int | None = None
    #: Bytes that the solver's process may use; `memory_limit` by default.
    client_memory_limit: int | None = None

    @classmethod
    def of(cls, engine: protocol.Engine) -> Self:
        here = machine.available_memory()
        return cls(
            # a cluster may still wait for its first worker
            n_workers=max(1, engine.n_workers),
            n_threads=engine.n_threads,
            separate_client=not engine.is_in_process,
            memory_limit=engine.worker_memory or here,
            client_memory_limit=here,
        )


@frozen(kw_only=True)
class Sums:
    """Which sums a fit makes of the rows, and how they are solved."""

    #: One number takes a Cholesky factorisation, anything else eigenvectors.
    alpha: Alpha = "auto"
    #: With Nyström features the solver's process also needs a factor of the centres.
    features: str | nystrom.Nystrom = "fourier"
    #: Folds that are summed separately, for cross-validation; 1 for none.
    n_folds: int = 1
    #: Feature maps that one reading of the data is summed up for.
    n_maps: int = 1
    #: Whether sums too large for a worker may be made in several readings.
    in_parts: bool = False

    @classmethod
    def of(cls, options: RidgeOptions, n_folds: int = 1) -> Self:
        """Return the sums of a regression, for its most costly kind of features."""
        return cls(
            alpha=options.alpha,
            features=options.kinds[-1],
            n_folds=n_folds,
            in_parts=True,
        )

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

    @property
    def process_bytes(self) -> int:
        """Bytes of a process before it has rows, with the angles of levels."""
        # half as many frequencies as components, of four bytes; Nyström has no angles
        has_angles = not self.sums.whitened
        angles = 2 * self.n_components * self.sizes.n_levels * has_angles
        return PROCESS_BYTES + self.sums.n_maps * angles


def plan_fit(fit: PlannedFit) -> Plan:
    """Plan one fit: O(n_samples · n_components²) operations, O(n_components²) memory.

    Raises PlanError if a worker or the solver needs more memory than it has; the
    message has both numbers.
    """
    return _within_memory(_plan_direct, fit)


def _within_memory(plan: Callable[[PlannedFit], Plan], fit: PlannedFit) -> Plan:
    def too_large(n_components: int) -> bool:
        return bool(plan(replace(fit, n_components=n_components)).shortages)

    feature_options.check_n_components(fit.n_components, "phases")
    planned = plan(fit)
    if planned.shortages:
        who, needed, limit = planned.shortages[0]
        advice = "lower n_components, or"
        # memory grows with D, so the largest D that fits is found by bisection
        smaller = range(512, fit.n_components, 512)
        n_fitting = bisect_left(smaller, True, key=too_large)
        if n_fitting:
            advice = f"lower n_components to {smaller[n_fitting - 1]:_} or"
        raise PlanError(
            f"{who} needs {human_bytes(needed)} (n_components={fit.n_components:_}, "
            f"blocks of {planned.rows_per_block:_} rows) but has {human_bytes(limit)}; "
            f"{advice} give each process more memory"
        )
    return planned


def _shortages(*processes: tuple[str, int, int | None]) -> list[tuple[str, int, int]]:
    """Return the processes that need more bytes than they have, if that is known."""
    return [
        (who, needed, limit)
        for who, needed, limit in processes
        if limit is not None and needed > limit
    ]


def _plan_direct(fit: PlannedFit) -> Plan:
    sizes = fit.sizes
    n_components = fit.n_components
    machines = fit.machines
    sums = fit.sums
    n_samples = sizes.n_samples
    rows = sizes.block_rows(sums.n_folds)
    n_blocks = -(-n_samples // rows)
    one_set = _bytes_of_one_set(fit)
    statistics_bytes = one_set * sums.n_folds * sums.n_maps
    bytes_without_sums = (
        fit.process_bytes + _block_bytes(sizes, rows) + _tile_bytes(fit, rows)
    )
    # blocks are added in place, but a worker's total, a run's total and their sum exist
    # at the same time
    n_copies = 3 if machines.separate_client and n_blocks > 1 else 1
    limit = machines.memory_limit
    n_parts = 1
    part_bytes = statistics_bytes
    if sums.in_parts and machines.separate_client and limit is not None:
        cell_bytes = _cell_bytes(fit)
        room = (limit - bytes_without_sums) // n_copies
        n_parts = _parts_for(statistics_bytes, room, cell_bytes)
        if n_parts > 1:
            part_bytes = statistics_bytes // n_parts + cell_bytes
    pass_bytes = bytes_without_sums + part_bytes * n_copies
    factor_bytes = 8 * n_components**2 if sums.whitened else 0
    solve_bytes = _bytes_to_solve(fit, one_set) + factor_bytes
    client_bytes = solve_bytes
    if not machines.separate_client:
        client_bytes = max(pass_bytes + factor_bytes, solve_bytes)
    client_limit = machines.client_memory_limit
    if client_limit is None:
        client_limit = limit

    # each part computes the features again
    feature_flops = n_parts * n_components * (sizes.n_features + sizes.n_targets + 1)
    # half of Z'Z, since it is symmetric
    gram_flops = n_components * n_components // 2
    n_kept = resuming.most_kept(
        n_blocks, machines.n_workers, are_separate=machines.separate_client
    )
    return Plan(
        n_samples=n_samples,
        n_features=sizes.n_features,
        n_targets=sizes.n_targets,
        n_components=n_components,
        n_workers=machines.n_workers,
        n_threads=machines.n_threads,
        n_blocks=n_blocks,
        rows_per_block=rows,
        tile_rows=min(specs.tile_rows(n_components), rows),
        # one more, for the moments
        bytes_read=(1 + n_parts) * n_samples * sizes.row_bytes,
        flops=2 * n_samples * sums.n_maps * (gram_flops + feature_flops),
        statistics_bytes=statistics_bytes,
        worker_bytes=pass_bytes,
        client_bytes=client_bytes,
        memory_limit=limit,
        client_memory_limit=client_limit,
        n_parts=n_parts,
        ledger_bytes=statistics_bytes * n_kept,
    )


def _bytes_of_one_set(fit: PlannedFit) -> int:
    """Return the bytes of the statistics of one fold and one feature map."""
    n_components = fit.n_components
    gram_numbers = layouts.TileLayout(n_components).size
    # of Z'[Y, 1], each an exact sum of about six digits
    n_moments = n_components * (fit.sizes.n_targets + 1)
    return 8 * _limbs(fit.sizes.n_samples) * gram_numbers + 8 * 6 * n_moments


def _cell_bytes(fit: PlannedFit) -> int:
    """Return the bytes of a cell of Z'Z, for all folds and feature maps.

    Cells are squares of Z'Z, see `layouts.CELL`; a part of the sums has whole ones, so
    that each keeps the bits of one pass.
    """
    n_numbers = layouts.cell_components(fit.n_components) ** 2
    n_sets = fit.sums.n_folds * fit.sums.n_maps
    return 8 * _limbs(fit.sizes.n_samples) * n_numbers * n_sets


def _block_bytes(sizes: Sizes, rows: int) -> int:
    chunk_rows = max(rows, min(sizes.chunk_rows, sizes.n_samples))
    # of each number: float64 as read and standardised, then float32 with and without
    # the rows of weight 0
    n_numbers = rows * (sizes.n_features + sizes.n_targets + 1)
    # a block as stored and as decoded, and the next one, which is read ahead
    return 3 * chunk_rows * sizes.row_bytes + 24 * n_numbers


def _tile_bytes(fit: PlannedFit, rows: int) -> int:
    """Return the bytes of features and products in a block of so many rows."""
    n_threads = fit.machines.n_threads
    n_components = fit.n_components
    height = min(specs.tile_rows(n_components), rows)
    n_tiles_at_once = 1
    if n_threads > 1:
        # as in `statistics.accumulate`: two regions of Z'Z for each thread
        n_regions = layouts.TileLayout(n_components).count_regions(FLOAT64_REGION)
        n_tiles_at_once = min(-(-rows // height), -(-2 * n_threads // n_regions))
    features = 8 * n_components * height * n_tiles_at_once
    # of each thread: the product of a region in float64, and a stripe of features in
    # float32
    return features + n_threads * (
        8 * FLOAT64_REGION**2 + 4 * layouts.OUTPUT_TILE * height
    )


def _bytes_to_solve(fit: PlannedFit, one_set: int) -> int:
    """Return the peak bytes of solving, without a factor of centres.

    `one_set` are the bytes of the statistics of one fold and one feature map.
    """
    n_components = fit.n_components
    sums = fit.sums
    n_matrices = 5  # the Gram, its copy, eigenvectors and two work arrays
    if is_one_alpha(sums.alpha):
        n_matrices = 2  # the Gram and its Cholesky factor
    # statistics twice: room for totals and shorter copies that are made of them
    needed = (
        fit.process_bytes
        + 2 * one_set * sums.n_folds * sums.n_maps
        + 8 * n_components**2 * n_matrices
    )
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
    """Return into how many parts to split sums so that each takes at most `room` bytes.

    A part has whole cells, so it may exceed its equal share by `cell_bytes`. Returns 1
    if no parts are needed, or 64 are not enough.
    """
    if n_bytes <= room or room <= cell_bytes:
        return 1
    n_parts = -(-n_bytes // (room - cell_bytes))
    return n_parts if n_parts <= MAX_PARTS else 1


def plan_pcg(fit: PlannedFit) -> Plan:
    """Plan a fit by conjugate gradients: O(n_samples · n_components) a step.

    The steps are not known beforehand: 40 are assumed, after a sketch of rank 512.
    Raises PlanError as `plan_fit`.
    """
    return _within_memory(_plan_pcg, fit)


def _plan_pcg(fit: PlannedFit) -> Plan:
    sizes = fit.sizes
    n_components = fit.n_components
    is_separate = fit.machines.separate_client
    n_targets = sizes.n_targets
    # Blocks are cut and read as for sums of Z'Z, which one component makes negligible.
    # Everything else in memory grows with the real number: the angles of levels here,
    # tiles and columns below.
    one_component = replace(fit, n_components=1, sums=Sums(alpha=1.0))
    plan_without_sums = _plan_direct(one_component)
    angle_bytes = fit.process_bytes - one_component.process_bytes
    rank = min(ASSUMED_RANK, n_components)
    sketch_columns = conjugate_gradients.SKETCH_COLUMNS  # of one pass
    n_sketches = -(-rank // sketch_columns)
    # features are computed once per pass, and multiplied by every column
    operations = (
        gram_products.COLUMN_OPERATIONS * rank
        + gram_products.FEATURE_OPERATIONS * n_sketches
    )
    operations += ASSUMED_STEPS * gram_products.pass_operations(n_targets)

    columns_bytes = 8 * n_components * min(sketch_columns, rank)
    # tiles of a sketch and of a step differ in height; the taller one counts
    height = max(
        gram_products.tile_height(n_components, n_targets),
        gram_products.tile_height(n_components, sketch_columns),
    )
    tile_bytes = 8 * n_components * height * fit.machines.n_threads
    # of the sums: a worker's total, a run's total and their sum; next to the columns
    # that are multiplied
    n_copies = 3 if is_separate else 1
    pass_bytes = plan_without_sums.worker_bytes + angle_bytes + tile_bytes
    pass_bytes += columns_bytes * (n_copies + 1)
    factor_bytes = 8 * n_components**2 if fit.sums.whitened else 0
    sketch_bytes = 8 * n_components * conjugate_gradients.largest_rank(n_components)
    # 5 arrays of the sketch: the test matrix, its products, their copy, a root of the
    # approximation and its eigenvectors. 2 of a pass: columns and their products
    solve_bytes = (
        fit.process_bytes + 5 * sketch_bytes + 2 * columns_bytes + factor_bytes
    )
    client_bytes = solve_bytes
    if not is_separate:
        # a pass runs next to the test matrix and its products
        client_bytes = max(pass_bytes + 2 * sketch_bytes + factor_bytes, solve_bytes)
    # how many sums a pass keeps is the same for sums of any size
    n_kept = plan_without_sums.ledger_bytes // plan_without_sums.statistics_bytes
    bytes_of_all_passes = (
        n_sketches * columns_bytes + ASSUMED_STEPS * 8 * n_components * n_targets
    )
    # 2 more: the moments of the columns, and features times targets
    n_passes = 2 + n_sketches + ASSUMED_STEPS
    return replace(
        plan_without_sums,
        n_components=n_components,
        tile_rows=gram_products.tile_height(n_components, n_targets),
        bytes_read=n_passes * sizes.n_samples * sizes.row_bytes,
        flops=sizes.n_samples * n_components * operations,
        statistics_bytes=columns_bytes,
        ledger_bytes=bytes_of_all_passes * n_kept,
        worker_bytes=pass_bytes,
        client_bytes=client_bytes,
        solver="pcg",
    )


# "auto" prefers sums because a model that was solved directly has statistics, which
# standard deviations and updates need.
def choose_solver(fit: PlannedFit, options: RidgeOptions) -> Plan:
    """Return the plan of a fit by the solver that the options ask for.

    "auto" is "direct" with folds. For one given alpha it is "pcg" if memory does not
    hold Z'Z, or if iterating is planned to take less than a quarter of the time of Z'Z
    and its factorisation. Sizes and memory alone decide.

    Raises PlanError if memory is too small for every solver that may be taken.
    """
    if options.solver != "auto":
        return plan_pcg(fit) if options.solver == "pcg" else plan_fit(fit)
    reason_for_sums = options.reason_for_sums
    if reason_for_sums is None and fit.sums.n_folds > 1:
        reason_for_sums = "folds choose alpha"
    if reason_for_sums is None and not is_one_alpha(options.alpha):
        reason_for_sums = f"`alpha` is {options.alpha!r}"
    if reason_for_sums is not None:
        reason = f"{reason_for_sums}, which takes the sums of Z'Z"
        return replace(plan_fit(fit), reason=reason)
    iterating = _plan_pcg(fit)
    factoring = fit.n_components**3 / 3  # operations of a Cholesky factorisation
    try:
        summing = plan_fit(fit)
    except PlanError as error:
        if iterating.shortages:
            raise
        return replace(iterating, reason=f"memory does not hold Z'Z: {error}")
    cost = 1.0
    is_fixed_point = not fit.sums.whitened and options.precision == "standard"
    if is_fixed_point:
        cost = BYTES_COST
    ratio = iterating.flops / (summing.flops * cost + factoring)
    reason = (
        f"by plan iterating takes {ratio:.2g} times as long as Z'Z and its"
        " factorisation"
    )
    is_worth_it = ratio < WORTH_ITERATING and not iterating.shortages
    return replace(iterating if is_worth_it else summing, reason=reason)


def _limbs(n_samples: int) -> int:
    """Return how many 64-bit integers the sum of so many products needs."""
    # a product of features is at most 1, which is 2**FRACTION_BITS on the grid of the
    # sums
    return 1 if n_samples <= 1 << (specs.LIMB_BITS - specs.FRACTION_BITS) else 2


def plan_matrix_pass(fit: PlannedFit, *, n_matrices: int = 1) -> tuple[int, int]:
    """Return the peak bytes of a worker and the client in a pass with D × D matrices.

    Of the fit's sums, only the kind of features matters.
    """
    sizes = fit.sizes
    n_components = fit.n_components
    machines = fit.machines
    n_samples = sizes.n_samples
    n_targets = sizes.n_targets
    n_threads = machines.n_threads
    rows = sizes.block_rows()
    height = min(specs.tile_rows(n_components), rows)
    # a block as stored and as decoded
    block_bytes = 2 * max(rows, min(sizes.chunk_rows, n_samples)) * sizes.row_bytes
    # 24 as in `_block_bytes`; targets four times, with room for predictions, residuals
    # and their squares
    block_bytes += rows * 24 * (sizes.n_features + 4 * (n_targets + 1))
    # of each thread: features of 256 rows, what they are turned into and its squares; a
    # stripe of a tile for predictions
    copies = 3 + (n_matrices > 1)
    strip_bytes = n_threads * (copies * 8 * triangular.STRIP_COLUMNS * n_components)
    strip_bytes += n_threads * 8 * layouts.OUTPUT_TILE * height
    whitener_bytes = fit.sums.whitened * 8 * n_components**2
    matrix_bytes = n_matrices * 8 * n_components**2
    pass_bytes = fit.process_bytes + block_bytes + strip_bytes + matrix_bytes
    # of the model
    sums_bytes = (
        8 * _limbs(n_samples) * layouts.TileLayout(n_components).size + whitener_bytes
    )
    # the Cholesky factor that the pass carries is made in the Gram's own memory
    making_bytes = fit.process_bytes + sums_bytes + matrix_bytes
    if machines.separate_client:
        # a matrix that travels is there twice while it is packed or unpacked
        return pass_bytes + matrix_bytes, making_bytes + matrix_bytes
    shared_bytes = max(making_bytes, pass_bytes + sums_bytes)
    return shared_bytes, shared_bytes


def plan_on_engine(
    dataset: blocks.Dataset, n_components: int, sums: Sums, *, engine: protocol.Engine
) -> Plan:
    """Plan a fit on an engine's machines; see `plan_fit`."""
    return plan_fit(
        PlannedFit(Sizes.of(dataset), n_components, Machines.of(engine), sums)
    )


def plan_regression(
    dataset: blocks.Dataset,
    n_components: int,
    options: RidgeOptions,
    n_folds: int = 1,
    *,
    machines: Machines,
) -> Plan:
    """Plan a fit with the solver that the options ask for; see `choose_solver`."""
    sums = Sums.of(options, n_folds)
    return choose_solver(
        PlannedFit(Sizes.of(dataset), n_components, machines, sums), options
    )


def check_matrix_pass(
    dataset: blocks.Dataset,
    feature_map: maps.FeatureMap,
    *,
    engine: protocol.Engine,
    n_targets: int = 0,
    n_matrices: int = 1,
) -> None:
    """Refuse a pass that carries D × D matrices if memory is too small.

    By default `n_targets` are those of the dataset.
    """
    sums = Sums(features="fourier" if feature_map.whitener is None else "nystrom")
    sizes = Sizes.of(dataset)
    machines = Machines.of(engine)
    sizes = replace(sizes, n_targets=n_targets or sizes.n_targets)
    fit = PlannedFit(sizes, feature_map.n_components, machines, sums)
    worker, client = plan_matrix_pass(fit, n_matrices=n_matrices)
    shortages = _shortages(
        ("a worker", worker, machines.memory_limit),
        ("this process", client, machines.client_memory_limit),
    )
    if shortages:
        who, needed, limit = shortages[0]
        raise PlanError(
            f"{who} needs {human_bytes(needed)} for a pass that carries a matrix of"
            f" n_components={feature_map.n_components:_} squared, but has"
            f" {human_bytes(limit)}; give it more memory, or fit fewer components"
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

    Returns the candidates of a reading, and the passes of a reading: more than 1 if a
    worker lacks memory for the sums of a single candidate. Raises PlanError if memory
    is too small for a single candidate.
    """
    for n_readings in range(1, n_candidates + 1):
        # equal batches: a last reading for one candidate would cost as much as others
        at_once = -(-n_candidates // n_readings)
        sums = Sums(
            alpha="cv",
            features=features,
            n_folds=n_folds,
            n_maps=at_once,
            in_parts=at_once == 1,
        )
        try:
            plan = plan_on_engine(dataset, n_components, sums, engine=engine)
        except PlanError:
            if at_once == 1:
                raise
        else:
            break
    if at_once < n_candidates:
        logger.warning(
            "memory holds the statistics of %d of %d candidates at once, so the data"
            " are read %d times",
            at_once,
            n_candidates,
            -(-n_candidates // at_once),
        )
    return at_once, plan.n_parts


def measure_gflops() -> float:
    """Measure billions of float64 operations per second of one thread, in 0.2 s."""
    matrix = np.random.Generator(np.random.Philox(0)).standard_normal((1024, 4096))
    best = math.inf
    with machine.single_threaded_blas():
        for _ in range(3):
            start = time.perf_counter()
            # NumPy calls dsyrk for a product with the matrix's own transpose: n²·k
            # operations, not 2·n²·k
            np.matmul(matrix, matrix.T)
            # the fastest of three, since other processes can only slow it down
            best = min(best, time.perf_counter() - start)
    return float(matrix.shape[0] ** 2 * matrix.shape[1] / best / 1e9)
