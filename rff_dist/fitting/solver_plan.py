"""Plan a regression with the solver that suits it: direct, or conjugate gradients.

A fit to plan and the options go in; the plan of one solver comes out, with the reason
for it if "auto" chose it. Direct solutions need Z'Z, the sum of products of all
features, and memory may not hold it. Conjugate gradients (pcg) do without it, but then
the model has no statistics, which standard deviations and updates need.

D is `n_components`, the number of features. Conjugate gradients first make a *sketch*
of Z'Z: its products with some random columns, whose number is the sketch's rank.
"""

from dataclasses import replace

from rff_dist.data import blocks
from rff_dist.errors import PlanError
from rff_dist.fitting.options import RidgeOptions, is_one_alpha
from rff_dist.fitting.plan import Plan, plan_direct, plan_fit, plan_within_memory
from rff_dist.fitting.sizes import Machines, PlannedFit, Sizes, SumOptions
from rff_dist.numerics import conjugate_gradients
from rff_dist.statistics import gram_products

# The rank of the sketch that preconditions conjugate gradients, and the number of their
# steps. The real ones depend on the data.
ASSUMED_RANK = 512
ASSUMED_STEPS = 40
# "auto" iterates, and goes without statistics, if that is planned to cost less than
# this share of Z'Z and its factorisation. At D = 4,096 iterating took 9 to 20 times as
# long as summing Z'Z by products of bytes.
WORTH_ITERATING = 0.25
# Cost of an operation on bytes, relative to one in float64; fixed-point features are
# multiplied as bytes.
BYTES_COST = 0.2


def plan_pcg(fit: PlannedFit) -> Plan:
    """Plan a fit by conjugate gradients: O(n_samples · n_components) a step.

    The steps are not known beforehand: 40 are assumed, after a sketch of rank 512.
    Raises PlanError as `plan_fit`.
    """
    return plan_within_memory(_plan_pcg, fit)


def _plan_pcg(fit: PlannedFit) -> Plan:
    sizes = fit.sizes
    n_components = fit.n_components
    n_targets = sizes.n_targets
    # Reading is planned as that of a direct fit of one component, whose Z'Z and
    # solution are negligible; one alpha needs no table of errors. What grows with the
    # real number of components is added: the angles of levels, tiles and columns.
    one_component = replace(fit, n_components=1, sums=SumOptions(alpha=1.0))
    plan_of_reading = plan_direct(one_component)
    angle_bytes = fit.process_bytes - one_component.process_bytes

    # Passes: first those of a sketch, some of its columns in each, then one per step.
    rank = min(ASSUMED_RANK, n_components)
    n_sketch_columns = conjugate_gradients.SKETCH_COLUMNS
    n_sketches = -(-rank // n_sketch_columns)
    # features are computed once per pass, and multiplied by every column
    operations = gram_products.COLUMN_OPERATIONS * rank
    operations += gram_products.FEATURE_OPERATIONS * n_sketches
    operations += ASSUMED_STEPS * gram_products.pass_operations(n_targets)
    # 2 more passes: one measures the data's columns, one multiplies features by targets
    n_passes = 2 + n_sketches + ASSUMED_STEPS
    sketch_columns_bytes = 8 * n_components * min(n_sketch_columns, rank)
    bytes_of_steps = ASSUMED_STEPS * 8 * n_components * n_targets
    # The ledger keeps sums of a pass in files, for a job that starts again. The direct
    # fit keeps `n_kept` sums of one component, and each pass here keeps as many.
    n_kept = plan_of_reading.ledger_bytes // plan_of_reading.statistics_bytes

    # Memory of a pass: tiles of a sketch and of a step differ in height, and the taller
    # one counts.
    height = max(
        gram_products.tile_height(n_components, n_targets),
        gram_products.tile_height(n_components, n_sketch_columns),
    )
    tile_bytes = 8 * n_components * height * fit.machines.n_threads
    # Three copies of the sums on a worker: a run's, the worker's total so far, and the
    # sum of both. The sketch's columns, which are multiplied, come in addition.
    n_copies = 3 if fit.machines.has_separate_client else 1
    pass_bytes = plan_of_reading.worker_bytes + angle_bytes + tile_bytes
    pass_bytes += sketch_columns_bytes * (n_copies + 1)

    # Memory of the solver: 5 arrays of the sketch (the test matrix, its products, their
    # copy, a root of the approximation and its eigenvectors) and 2 of a pass (the
    # sketch's columns and their products).
    # Nyström features are multiplied by the inverse of their whitener, a square matrix.
    whitener_bytes = 8 * n_components**2 if fit.sums.uses_nystrom else 0
    # memory must hold the largest sketch; time, above, is guessed from a usual one
    largest_rank = conjugate_gradients.largest_rank(n_components)
    sketch_bytes = 8 * n_components * largest_rank
    client_bytes = fit.process_bytes + 5 * sketch_bytes + 2 * sketch_columns_bytes
    client_bytes += whitener_bytes
    if not fit.machines.has_separate_client:
        # a pass runs next to the test matrix and its products
        bytes_of_both = pass_bytes + 2 * sketch_bytes + whitener_bytes
        client_bytes = max(bytes_of_both, client_bytes)
    return replace(
        plan_of_reading,
        n_components=n_components,
        tile_rows=gram_products.tile_height(n_components, n_targets),
        bytes_read=n_passes * sizes.n_samples * sizes.row_bytes,
        flops=sizes.n_samples * n_components * operations,
        statistics_bytes=sketch_columns_bytes,
        ledger_bytes=(n_sketches * sketch_columns_bytes + bytes_of_steps) * n_kept,
        worker_bytes=pass_bytes,
        client_bytes=client_bytes,
        solver="pcg",
    )


def plan_chosen_solver(fit: PlannedFit, options: RidgeOptions) -> Plan:
    """Return the plan of a fit by the solver that the options ask for.

    "auto" is "direct" if the fit needs Z'Z: with folds, with several alphas, or with
    options that have a `reason_for_sums`. Else it is "pcg" if memory does not hold Z'Z,
    or if iterating is planned to take less than a quarter of the time of Z'Z and its
    factorisation. Sizes and memory alone decide.

    Raises PlanError if memory is too small for every solver that may be taken.
    """
    if options.solver == "pcg":
        return plan_pcg(fit)
    if options.solver == "direct":
        return plan_fit(fit)
    reason_for_sums = options.reason_for_sums
    if reason_for_sums is None and fit.sums.n_folds > 1:
        reason_for_sums = "folds choose alpha"
    if reason_for_sums is None and not is_one_alpha(options.alpha):
        reason_for_sums = f"`alpha` is {options.alpha!r}"
    if reason_for_sums is not None:
        reason = f"{reason_for_sums}, which takes the sums of Z'Z"
        return replace(plan_fit(fit), reason=reason)

    # memory may be too small for one of the two plans
    iterating = _plan_pcg(fit)
    try:
        summing = plan_fit(fit)
    except PlanError as error:
        if iterating.shortages:
            raise
        return replace(iterating, reason=f"memory does not hold Z'Z: {error}")
    is_fixed_point = not fit.sums.uses_nystrom and options.precision == "standard"
    cost = BYTES_COST if is_fixed_point else 1.0
    factorisation_flops = fit.n_components**3 / 3
    ratio = iterating.flops / (summing.flops * cost + factorisation_flops)
    reason = (
        f"by plan iterating takes {ratio:.2g} times as long as Z'Z and its"
        " factorisation"
    )
    if iterating.shortages:
        reason += ", but memory is too small for it"
    is_worth_it = ratio < WORTH_ITERATING and not iterating.shortages
    return replace(iterating if is_worth_it else summing, reason=reason)


def plan_regression(
    dataset: blocks.Dataset,
    n_components: int,
    options: RidgeOptions,
    n_folds: int = 1,
    *,
    machines: Machines,
) -> Plan:
    """Plan a fit with the solver that the options ask for; see `plan_chosen_solver`."""
    sums = SumOptions.of(options, n_folds)
    return plan_chosen_solver(
        PlannedFit(Sizes.of(dataset), n_components, machines, sums), options
    )
