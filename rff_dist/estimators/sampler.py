"""Random Fourier features as a scikit-learn transformer."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from rff_dist.costs.clock import Clock
from rff_dist.engines.progress import Announcer, Remark
from rff_dist.errors import InvalidParameterError
from rff_dist.estimators import chosen
from rff_dist.estimators.base import RowsEstimator
from rff_dist.estimators.inputs import as_dataset, choose_kernel, is_dask, map_for, map_rows
from rff_dist.features import for_dataset
from rff_dist.features.draw import check_n_components, seed_from_random_state
from rff_dist.features.kernel_of import kernel_of, kind_of, length_scale_of
from rff_dist.features.nystrom import Nystrom
from rff_dist.features.options import KernelFeatures
from rff_dist.frequencies.designs import Design
from rff_dist.kernels.base import Kernel
from rff_dist.ridge import predict as prediction
from rff_dist.statistics import inspection


@dataclass(repr=False, eq=False)
class RFFSampler(ClassNamePrefixFeaturesOutMixin, TransformerMixin, RowsEstimator):
    """Approximate a kernel's feature map by random Fourier or Nyström features.

    Inner products of the transformed rows approximate the kernel: Z @ Z.T ≈ k(X, X), with an error
    that falls as 1/√n_components. For training on many rows use `RFFRidge`, which never holds Z.

    Parameters
    ----------
    kernel : str or Kernel, default="gaussian"
        The kernel to approximate: a name, or a text such as "matern:nu=2.5" or
        "gaussian:length_scale=2 + linear", see `rff_dist.kernels.find.find_kernel`; or a Kernel object.
        Length scales that are given here are kept.
    length_scale : "auto", float or array of shape (n_features,), default="auto"
        The length scale, in the inputs' units; "auto" is the median distance between rows of a
        seeded sample.
    n_components : int, default=2048
        Columns of Z. An even number makes pairs of cosines and sines, an odd one cosines with random phases,
        which have more variance. With Nyström features it is the number of centres; data with fewer distinct
        rows use all of them, and the kernel is then exact.
    features : {"fourier", "nystrom"} or Nystrom, default="fourier"
        Fourier features do not depend on the data; Nyström features are kernel values at rows of the data,
        and any kernel has them.
    design : {"auto", "orthogonal", "iid", "quasi-monte-carlo", "structured"} or Design, default="auto"
        How the frequencies of Fourier features are arranged. Orthogonal ones have less variance than "iid";
        structured ones are fast for hundreds of columns. Both need an isotropic kernel. Quasi-Monte Carlo
        works for any kernel, also the Laplacian, and is best for few columns. "auto" is orthogonal if the
        kernel allows it, else "iid".
    precision : {"standard", "high"}, default="standard"
        How Fourier features are rounded: "standard" to 15 bits, so that products are summed exactly and fast;
        "high" to float32, for ridge penalties so small that rounding shows.
    random_state : int, RandomState, Generator or None, default=None
        The seed.
    verbose : int, default=0
        1 shows what the fit is doing, on standard error.

    Attributes
    ----------
    kernel_ : Kernel
        The kernel in use, with its length scales.
    features_ : str
        The kind of features in use, "fourier" or "nystrom".
    feature_map_ : FeatureMap
        What `transform` applies.
    length_scale_ : float or tuple of float
        The length scale in use.
    n_features_in_ : int
        Columns of the inputs.

    References
    ----------
    Rahimi & Recht (2007), Random features for large-scale kernel machines, Alg. 1.

    Examples
    --------
    >>> from rff_dist import Gaussian, RFFSampler
    >>> X = [[0.0, 0.0], [1.0, 1.0]]
    >>> Z = RFFSampler(Gaussian(1.0), n_components=4096, random_state=0).fit_transform(X)
    >>> Z.shape, abs((Z @ Z.T)[0, 1] - Gaussian(1.0)(X)[0, 1]) < 0.05
    ((2, 4096), np.True_)
    """

    kernel: str | Kernel = "gaussian"
    _: KW_ONLY
    length_scale: Any = "auto"
    n_components: int = 2048
    features: str | Nystrom = "fourier"
    design: str | Design = "auto"
    precision: str = "standard"
    random_state: Any = None
    verbose: int = 0

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the features. X gives the number of columns, and the rows for the median heuristic.

        Parameters
        ----------
        X : array-like, frame, sparse matrix, Dask or Zarr array, dataset, path or URL
            Of shape (n_samples, n_features).
        y : ignored
            For scikit-learn's pipelines.

        Raises
        ------
        InvalidParameterError
            If a parameter is out of range.
        """
        clock = Clock()
        if isinstance(self.length_scale, str) and self.length_scale == "evidence":
            raise InvalidParameterError(
                "`length_scale` is 'evidence', which needs targets, and RFFSampler takes none; give it the "
                "kernel that rff_dist.tune_length_scales(kernel, X, y, standardize=False) returns"
            )
        kernel, length_scale = choose_kernel(self.kernel, self.length_scale)
        check_n_components(self.n_components, "phases")
        dataset = as_dataset(self, X, reset=True, supervised=False)
        described = KernelFeatures(
            kernel,
            length_scale=length_scale,
            n_components=self.n_components,
            features=self.features,
            design=self.design,
            map=map_for(self.n_components),
            precision=self.precision,
        )
        seed = seed_from_random_state(self.random_state)
        with self._passes(None, clock) as engine:
            ranges = None
            if not kernel.is_bound:
                ranges = inspection.input_range(inspection.inspect(dataset, engine=engine), None)
            Announcer(engine.observers)(Remark("draw", f"{self.n_components:,} features"))
            self.feature_map_ = for_dataset.draw(for_dataset.Inputs(dataset, None, seed, ranges), described)
        self.kernel_, self.features_ = kernel_of(self.feature_map_), kind_of(self.feature_map_)
        self.length_scale_ = length_scale_of(self.feature_map_)
        self._n_features_out = self.feature_map_.n_components
        return self

    def _chosen(self) -> dict[str, str]:
        return chosen.features_facts(self.feature_map_, self._names)

    def transform(self, X: Any) -> Any:
        """Return Z, O(n_samples · n_components · n_features).

        Parameters
        ----------
        X : array-like, frame, sparse matrix, Dask or Zarr array, dataset, path or URL
            Of shape (n_samples, n_features).

        Returns
        -------
        Z : array of shape (n_samples, n_components)
            A lazy Dask array for a Dask collection, else a NumPy array in memory; float32 for float32
            inputs, else float64.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If values are not finite, or columns are missing.
        """
        check_is_fitted(self)
        dataset = as_dataset(self, X, reset=False, supervised=False)
        dtype = np.float32 if dataset.dtype == np.float32 else np.float64
        if is_dask(X):
            transform = partial(self.feature_map_.transform, dtype=dtype)
            return map_rows(X, transform, width=self.feature_map_.n_components, dtype=dtype)
        return prediction.transform_in_memory(dataset, self.feature_map_, dtype=dtype)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
