"""Kernel PCA as plain functions: inspect → draw → accumulate without targets → eigenvectors → project."""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rff_dist.checks import check_count
from rff_dist.data.blocks import BlockTask, Dataset
from rff_dist.engines.protocol import Engine
from rff_dist.errors import InvalidParameterError
from rff_dist.features import composed, feature_options, maps
from rff_dist.fitting import plan, predicting, prepare
from rff_dist.pca import components
from rff_dist.recipes import model_rows
from rff_dist.statistics import accumulate, inspection, passes, ridge_statistics
from rff_dist.statistics.moments import Moments
from rff_dist.text import short_repr
from rff_dist.typing import PathLike, frozen

logger = logging.getLogger(__name__)


@frozen(eq=False)
class KernelComponents:
    """Kernel principal components of a dataset: all that is needed to project rows.

    `feature_map`: with the standardizer of the inputs.
    `statistics`: the exact sums, without targets; with weights w/degree if features were normalised.
    `degrees`: the degrees, if features were normalised.
    `volume`: weighted sum of the degrees.
    `n_floored`: number of rows whose degree was below the floor and was replaced by it.
    """

    feature_map: maps.FeatureMap
    statistics: ridge_statistics.RidgeStatistics
    principal: components.PrincipalComponents
    degrees: components.Degrees | None = None
    volume: float = 1.0
    n_floored: int = 0

    __repr__ = short_repr

    def projection(self, *, whiten: bool = False) -> components.Projection:
        """Return what projects rows, old or new; with `whiten` the scores have variance 1."""
        principal, degrees = self.principal, self.degrees
        scale = np.sqrt(principal.explained_variance) if whiten else np.ones(len(principal.eigenvalues))
        directions = principal.components.T / scale
        # (z − z̄)'v = z'v − z̄'v: rows need not be centred one by one
        offset = principal.means @ directions
        if degrees is None:
            linear = predicting.LinearModel(self.feature_map, directions, -offset)
            return components.Projection(linear, np.zeros(len(offset)))
        # normalised rows are z·√V/d: project z·√V, and let the last column give d to divide by
        both = np.column_stack([np.sqrt(self.volume) * directions, degrees.sums])
        linear = predicting.LinearModel(self.feature_map, both, np.zeros(both.shape[1]))
        return components.Projection(linear, offset, degrees.floor)

    def features(self) -> composed.PrincipalFeatureMap:
        """Return a feature map whose features are the scores, for k-means."""
        plain, standardizer = self.feature_map.with_standardizer(None), self.feature_map.standardizer
        projection = self.projection()
        linear, offset, floor = projection.linear, projection.offset, projection.floor
        return composed.PrincipalFeatureMap(
            plain, linear.raw_coefficients, linear.intercept, offset, floor, standardizer
        )


def fit_components(
    dataset: Dataset,
    features: feature_options.FeatureOptions,
    *,
    n_components: int = 2,
    normalize: str | None = None,
    moments: Moments | None = None,
    engine: Engine,
) -> KernelComponents:
    """Compute kernel principal components in a cheap pass, a pass of O(n_samples · D²), and O(D³) after it.

    `dataset`: targets are ignored.
    `n_components`: number of principal components to keep.
    `normalize`: {None, "degree"}. With "degree", features are divided by their rows' degrees, as in spectral
      clustering, which takes another cheap pass.
    `moments`: from `inspect`; if they are not given, a pass measures them.
    Raises InvalidParameterError if a parameter is out of range; DataError if values are not finite, or all
      rows have the same features; PlanError if the job needs more memory than there is.
    """
    if check_count(n_components, "n_components") > features.n_components:
        raise InvalidParameterError(
            f"`n_components` is {n_components}, above `n_random_features`={features.n_components}, of which "
            "principal components are made; lower it, or draw more features"
        )
    check_normalize(normalize)
    feature_options.check_without_targets(features.length_scale)
    source = dataset.without_targets()
    plan.check_plan(source, features.n_components, plan.Sums(features=features.features), engine=engine)
    prepared = prepare.prepare(source, standardize=features.standardize, moments=moments, engine=engine)
    feature_map = prepared.draw(features, seed=features.seed)
    # Nyström maps have fewer features if there are fewer distinct rows
    kept = min(n_components, feature_map.n_components)
    if normalize == "degree":
        return _fit_normalized(prepared, feature_map, kept)
    spec = prepared.accumulation(feature_map, with_targets=False).spec
    statistics = passes.accumulate(source, feature_map, engine=engine, spec=spec)
    inspection.check_same_rows(prepared.moments, statistics.targets, spec)
    return KernelComponents(feature_map, statistics, components.principal_components(statistics, kept))


def check_normalize(normalize: object) -> None:
    """Check that the option is None or "degree"; raises InvalidParameterError otherwise."""
    if normalize not in (None, "degree"):
        raise InvalidParameterError(f"`normalize` is {normalize!r}; expected None or 'degree'")


def _fit_normalized(
    prepared: prepare.Prepared, feature_map: maps.FeatureMap, n_components: int
) -> KernelComponents:
    dataset, moments, engine = prepared.dataset, prepared.moments, prepared.engine
    add_up, shared = components.sum_features, engine.broadcast(feature_map)
    sums = inspection.sum_rows(
        dataset, add_up, shared, combine=accumulate.add_each, engine=engine, label="degrees"
    )
    degrees = components.degrees_from(sums, feature_map)
    divided = replace(  # rows get weights w/d, and d is at least the floor
        moments,
        largest_weight=moments.largest_weight / degrees.floor,
        smallest_weight=moments.smallest_weight / degrees.floor,
    )
    spec = replace(prepared, moments=divided).accumulation(feature_map, with_targets=False).spec
    # dividing rows by their degrees gives them weights, so their sums are not exact in fixed point
    spec = replace(spec, fixed_point=False, fraction_bits=passes.fraction_bits_for(dataset.n_samples))
    accumulation = accumulate.Accumulation(feature_map, spec)
    degree = predicting.LinearModel(feature_map, degrees.sums[:, np.newaxis], np.zeros(1))
    total: components.DegreeStatistics = engine.map_reduce(
        BlockTask(dataset, components.accumulate_normalized_rows, adds=True),
        inspection.blocks_of(dataset, max_rows=spec.limb_rows),
        engine.broadcast(components.DegreeAccumulation(accumulation, degree, degrees.floor)),
        label="accumulate",
    )
    total.statistics.check_complete(dataset.n_samples, feature_map)
    if total.n_floored:
        message = (
            "%d of %d rows have a degree below %.3g, a hundredth of the mean, which replaces their own: they "
            "are far from all others, and more features or a larger length scale would describe them better"
        )
        logger.warning(message, total.n_floored, dataset.n_samples, degrees.floor)
    total = replace(total, statistics=total.statistics.with_whitener(feature_map.whitener))
    principal, volume = components.spectral_components(total, degrees, n_components)
    if principal.eigenvalues[0] > 1.01:  # a Markov chain has none above 1
        logger.warning(
            "the largest eigenvalue of the degree-normalised kernel is %.3g, but an exact one has none "
            "above 1: there are too few features for so narrow a kernel; take Nyström features, more "
            "features, or a larger length scale",
            principal.eigenvalues[0],
        )
    return KernelComponents(feature_map, total.statistics, principal, degrees, volume, total.n_floored)


# -- project ---------------------------------------------------------------------------------------


def project(
    dataset: Dataset,
    projection: components.Projection,
    url: PathLike,
    *,
    engine: Engine,
    column_names: Sequence[str] | None = None,
    overwrite: bool = False,
) -> int:
    """Write the scores of every row to a new Zarr group, as the array `X`: it opens as a dataset again.

    The pass is idempotent: a block written twice holds the same numbers, and the output appears at
    `url` when it is complete.

    `dataset`: with the columns from which the components were computed.
    `projection`: from `KernelComponents.projection`.
    `column_names`: sequence of str. One for each component.
    Returns `n_samples`: rows written.
    Raises DataError if the dataset has other columns, or values that are not finite; StorageError if the
      output exists and `overwrite` is False, or cannot be written.
    """
    model_rows.check_columns(dataset, projection.linear.feature_map.n_features, {})
    rows, n_columns = dataset.without_targets(), projection.n_components
    output = predicting.write_output(
        rows,
        components.project_rows,
        projection,
        predicting.layout_of(rows, n_columns=n_columns, array="X", column_names=column_names),
        url,
        engine=engine,
        label="project",
        attributes={"projection_digest": projection.digest()},
        overwrite=overwrite,
    )
    return output.n_samples
