"""Kernel PCA as plain functions: inspect → draw → accumulate → eigenvectors → project.

Input is a dataset, output are directions in feature space and, in a writing pass, the
scores of rows on them. scikit-learn's KernelPCA needs the Gram matrix of all rows; here
one pass sums Z'Z, whatever the number of rows.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rff_dist.checks import check_count
from rff_dist.data.blocks import BlockTask, Dataset
from rff_dist.engines.protocol import Engine
from rff_dist.errors import InvalidParameterError
from rff_dist.features import composed, feature_options, maps
from rff_dist.fitting import plan, predicting, prepare, sizes
from rff_dist.pca import components
from rff_dist.recipes import model_rows
from rff_dist.statistics import (
    accumulate,
    inspection,
    passes,
    ridge_statistics,
    row_passes,
)
from rff_dist.statistics.moments import Moments
from rff_dist.text import short_repr
from rff_dist.typing import PathLike, frozen

logger = logging.getLogger(__name__)


@frozen(eq=False)
class KernelComponents:
    """Kernel principal components of a dataset: all that is needed to project rows."""

    #: With the standardizer of the inputs.
    feature_map: maps.FeatureMap
    #: The exact sums, without targets; if features were normalised, rows have the
    #: weights w/degree.
    statistics: ridge_statistics.RidgeStatistics
    principal: components.PrincipalComponents
    #: The degrees, if features were normalised.
    degrees: components.Degrees | None = None
    #: Weighted sum of the degrees.
    volume: float = 1.0
    #: Number of rows whose degree was below the floor and was replaced by it.
    n_floored: int = 0

    __repr__ = short_repr

    def projection(self, *, whiten: bool = False) -> components.Projection:
        """Return the projection of any rows; `whiten` gives scores a variance of 1."""
        principal = self.principal
        degrees = self.degrees
        scale = np.ones(len(principal.eigenvalues))
        if whiten:
            scale = np.sqrt(principal.explained_variance)
        directions = principal.components.T / scale
        # (z − z̄)'v = z'v − z̄'v: rows need not be centred one by one
        offset = principal.means @ directions
        if degrees is None:
            linear = predicting.LinearModel(self.feature_map, directions, -offset)
            return components.Projection(linear, np.zeros(len(offset)))
        # normalised rows are z·√V/d: project z·√V; the last column gives d, by which
        # `project_rows` divides
        both = np.column_stack([np.sqrt(self.volume) * directions, degrees.sums])
        linear = predicting.LinearModel(self.feature_map, both, np.zeros(both.shape[1]))
        return components.Projection(linear, offset, degrees.floor)

    def features(self) -> composed.PrincipalFeatureMap:
        """Return a feature map for k-means, whose features are the scores.

        For degree-normalised features the scores are the leading eigenvectors, with the
        constant one, and rows have norm 1 (Ng, Jordan & Weiss 2001).
        """
        linear = self.projection().linear
        is_unit = self.degrees is not None
        if is_unit:
            equations = self.statistics.normal_equations(fit_intercept=False)
            n_leading = len(self.principal.eigenvalues) + 1
            directions = components.leading_directions(equations.gram, n_leading)
            intercept = np.zeros(directions.shape[1])
            linear = predicting.LinearModel(self.feature_map, directions, intercept)
        return composed.PrincipalFeatureMap(
            self.feature_map.with_standardizer(None),
            linear.raw_coefficients,
            linear.intercept,
            is_unit,
            self.feature_map.standardizer,
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
    """Compute kernel principal components; targets are ignored.

    With D random features this takes a cheap pass, a pass of O(n_samples · D²), and
    O(D³) after it. `normalize` "degree" divides features by their rows' degrees, as in
    spectral clustering, which takes another cheap pass. Missing `moments` are measured.
    Raises InvalidParameterError if a parameter is out of range; DataError if values are
    not finite, or all rows have the same features; PlanError if the job needs more
    memory than there is.
    """
    if check_count(n_components, "n_components") > features.n_components:
        raise InvalidParameterError(
            f"`n_components` is {n_components}, above"
            f" `n_random_features`={features.n_components}, which principal components"
            " combine; lower it, or draw more features"
        )
    check_normalize(normalize)
    feature_options.check_without_targets(features.length_scale)
    source = dataset.without_targets()
    plan.plan_on_engine(
        source,
        features.n_components,
        sizes.SumOptions(features=features.features),
        engine=engine,
    )
    prepared = prepare.prepare(
        source, standardize=features.standardize, moments=moments, engine=engine
    )
    feature_map = prepared.draw(features, seed=features.seed)
    # a Nyström map has fewer features if there are fewer distinct rows
    kept = min(n_components, feature_map.n_components)
    if normalize == "degree":
        return _fit_normalized(prepared, feature_map, kept)
    spec = prepared.accumulation(feature_map, with_targets=False).spec
    statistics = passes.accumulate(source, feature_map, engine=engine, spec=spec)
    inspection.check_same_rows(prepared.moments, statistics.targets, spec)
    return KernelComponents(
        feature_map, statistics, components.principal_components(statistics, kept)
    )


def check_normalize(normalize: object) -> None:
    """Raise InvalidParameterError unless the option is None or "degree"."""
    if normalize not in (None, "degree"):
        raise InvalidParameterError(
            f"`normalize` is {normalize!r}; expected None or 'degree'"
        )


def _fit_normalized(
    prepared: prepare.PreparedDataset, feature_map: maps.FeatureMap, n_components: int
) -> KernelComponents:
    dataset = prepared.dataset
    moments = prepared.moments
    engine = prepared.engine
    sums = row_passes.sum_rows(
        dataset,
        components.sum_features,
        engine.broadcast(feature_map),
        combine=accumulate.add_each,
        engine=engine,
        label="degrees",
    )
    degrees = components.degrees_from(sums, feature_map)
    # rows get weights w/d, and d is at least the floor
    divided_moments = replace(
        moments,
        largest_weight=moments.largest_weight / degrees.floor,
        smallest_weight=moments.smallest_weight / degrees.floor,
    )
    spec = (
        replace(prepared, moments=divided_moments)
        .accumulation(feature_map, with_targets=False)
        .spec
    )
    # dividing rows by their degrees gives them weights, so their sums are not exact in
    # fixed point
    spec = replace(
        spec,
        fixed_point=False,
        fraction_bits=passes.fraction_bits_for(dataset.n_samples),
    )
    accumulation = accumulate.Accumulation(feature_map, spec)
    degree = predicting.LinearModel(
        feature_map, degrees.sums[:, np.newaxis], np.zeros(1)
    )
    total: components.DegreeStatistics = engine.map_reduce(
        BlockTask(dataset, components.accumulate_normalized_rows, adds=True),
        row_passes.blocks_of(dataset, max_rows=spec.int64_rows),
        engine.broadcast(
            components.DegreeAccumulation(accumulation, degree, degrees.floor)
        ),
        label="accumulate",
    )
    total.statistics.check_complete(dataset.n_samples, feature_map)
    if total.n_floored:
        logger.info(
            "%d of %d rows have a degree below %.3g, a twentieth of the mean, which"
            " replaces their own: they are far from all others",
            total.n_floored,
            dataset.n_samples,
            degrees.floor,
        )
    total = replace(
        total, statistics=total.statistics.with_whitener(feature_map.whitener)
    )
    principal, volume = components.spectral_components(total, degrees, n_components)
    # a Markov chain has none above 1; up to a hundredth more passes as features' error
    if principal.eigenvalues[0] > 1.01:
        logger.warning(
            "the largest eigenvalue of the degree-normalised kernel is %.3g, but an"
            " exact one has none above 1: there are too few features for so narrow a"
            " kernel; take Nyström features, more features, or a larger length scale",
            principal.eigenvalues[0],
        )
    return KernelComponents(
        feature_map, total.statistics, principal, degrees, volume, total.n_floored
    )


# -- project


def project(
    dataset: Dataset,
    projection: components.Projection,
    url: PathLike,
    *,
    engine: Engine,
    column_names: Sequence[str] | None = None,
    overwrite: bool = False,
) -> int:
    """Write the scores of every row to a new Zarr group, which opens as a dataset.

    The pass is idempotent, and the array `X` appears at `url` when it is complete.
    Returns how many rows were written. Raises DataError if the dataset has other
    columns, or values that are not finite; StorageError if the output exists and
    `overwrite` is False, or cannot be written.
    """
    feature_map = projection.linear.feature_map
    model_rows.check_columns(dataset, feature_map.n_features, {})
    rows = model_rows.with_codes_of(feature_map.levels, dataset.without_targets())
    n_columns = projection.n_components
    output = predicting.write_output(
        rows,
        components.project_rows,
        projection,
        predicting.layout_of(
            rows, n_columns=n_columns, array="X", column_names=column_names
        ),
        url,
        engine=engine,
        label="project",
        attributes={"projection_digest": projection.digest()},
        overwrite=overwrite,
    )
    return output.n_samples
