"""scikit-learn transformers: random features, and kernel PCA by means of them.

Rows go in; Z, the matrix of features, or scores on principal components come out,
lazily for Dask collections. scikit-learn's `RBFSampler` knows one kernel, and its
`KernelPCA` needs the Gram matrix of all rows.
"""

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from rff_dist.checks import check_count
from rff_dist.engines import events
from rff_dist.engines.clock import Clock
from rff_dist.errors import InvalidParameterError
from rff_dist.estimators import base, categories, inputs, panel, parameter_checks
from rff_dist.features import draw, feature_options, for_dataset, kinds, nystrom
from rff_dist.fields import values_of
from rff_dist.fitting import predicting
from rff_dist.frequencies import designs
from rff_dist.kernels.base import Kernel
from rff_dist.pca import components
from rff_dist.pca import fit as pca
from rff_dist.recipes import recipes
from rff_dist.statistics import inspection


@dataclass(repr=False, eq=False)
class RFFPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, base.FeatureEstimator):
    """scikit-learn's `KernelPCA` for any number of rows.

    In random Fourier or Nyström features Z, the components are eigenvectors of the
    centred Z'Z, which one pass accumulates; the scores of new rows are one product.
    Memory does not grow with the rows, since no Gram matrix of rows is made. The scores
    approach those of scikit-learn's `KernelPCA`, up to signs, as `n_random_features`
    grows.

    Parameters
    ----------
    n_components : int, default=2
        Set it: principal components to keep, as in scikit-learn's PCA and KernelPCA;
        not D.
    kernel : str or Kernel, default="gaussian"
        Set it if you know how smooth the data are; else leave it. A name, or a text
        such as "matern:nu=2.5" or "gaussian:length_scale=2 + linear", see
        `rff_dist.kernels.names.find_kernel`; or a Kernel object. Length scales given
        here are left alone.
    length_scale : "auto", float or array of shape (n_features,), default="auto"
        Try several: components depend on it. In units of the (standardised) inputs;
        "auto" is the median distance between rows of a seeded sample.
    n_random_features : int, default=2048
        Usually leave it: D, the number of components of Z (`n_components` of `RFFRidge`
        and `RFFSampler`). The error of the kernel falls as 1/√D, and the cost grows as
        D². With Nyström features it is the number of centres; data with fewer distinct
        rows use all of them, and the kernel is then exact.
    features : {"fourier", "nystrom", "nystrom:RULE"} or Nystrom, default="fourier"
        Usually leave it. Fourier features do not depend on the data. Nyström features
        are kernel values at rows of the data, and work with any kernel; RULE says how
        these rows are drawn, uniform (the default) or k-means++.
    design : "auto", "orthogonal", "iid", "quasi-monte-carlo", default="auto"
        Usually leave it. It says how the frequencies of Fourier features are arranged;
        see `RFFSampler`.
    precision : {"standard", "high"}, default="standard"
        Usually leave it. It says how Fourier features are rounded: "standard" to 15
        bits, so that products are summed exactly and fast; "high" to float32.
    standardize : {"auto", "rank"} or bool, default=False
        Set it to True if columns have different units. False leaves inputs as they are,
        as scikit-learn does, so columns of large values decide most. True, "rank" and
        "auto" are as in `RFFRidge`.
    normalize : {None, "degree"}, default=None
        Usually leave it; set it for spectral clustering. "degree" divides each row's
        features by its degree, the sum of its similarities to all rows. The scores are
        then those of spectral clustering, nearly constant on clusters, and the
        variances are the eigenvalues of Δ^(−1/2) K Δ^(−1/2) below the trivial one, with
        the degrees on the diagonal of Δ. This needs a kernel that is never negative,
        and one more cheap pass. Degrees below a twentieth of the mean degree are raised
        to a twentieth of the mean, see `n_floored_`. Use Nyström features for a narrow
        kernel: the error of a degree by Fourier features is about n/√D, which is more
        than the degree itself.
    whiten : bool, default=False
        Usually leave it. It says whether scores are divided by their standard
        deviations, to have variance 1.
    categorical_features : "from_dtype", list, array or None, default="from_dtype"
        Usually leave it. It says which columns are categories; see `RFFRidge`.
    random_state : int, RandomState, Generator or None, default=None
        Set it to an integer for scores that can be repeated: the seed of frequencies
        and samples.
    engine : Engine or None, default=None
        Usually leave it: None is this process, or, for data out of memory, the
        current Dask client if there is one.
    verbose : int, default=0
        1 shows the progress of the fit as a bar on standard error; as lines in
        notebooks and pipes.

    Attributes
    ----------
    feature_components_ : float64 array of shape (n_components_, D)
        Directions in the space of Z; the largest coefficient of each, in absolute
        value, is positive.
    eigenvalues_ : float64 array of shape (n_components_,)
        The eigenvalues of the centred Z'Z, the largest first.
    explained_variance_ : float64 array of shape (n_components_,)
        The variance of each score, with divisor n − 1 as in scikit-learn's PCA of Z.
        With `normalize` it is the eigenvalue, that is the variance of the score if rows
        count by their degree.
    explained_variance_ratio_ : float64 array of shape (n_components_,)
        The share of each score in the total variance of all D directions.
    feature_mean_ : float64 array of shape (D,)
        The mean of the (normalised) features, which is subtracted from them.
    n_components_ : int
        The number of components kept. If the rows have fewer directions than requested,
        there is a warning.
    noise_floor_ : float
        Variances up to this value are rounding.
    n_floored_ : int
        The number of rows whose degree was below the floor; 0 without `normalize`.
    statistics_ : RidgeStatistics
        The exact sums, without targets, from which the components were computed.
    kernel_ : Kernel or None
        The kernel in use, with its length scales; None if the features were made of
        given frequencies.
    features_ : str
        The kind of features in use, "fourier" or "nystrom".
    feature_map_ : FeatureMap
        The features, with the standardizer of the inputs.
    length_scale_ : float, tuple of float or None
        The length scale in use.
    projection_ : Projection
        Computes the scores; `rff_dist.pca.fit.project` writes those of a large dataset
        to Zarr with it.
    n_features_in_ : int
        Columns of the inputs.
    feature_names_in_ : array of str
        Their names; only if they have some.

    References
    ----------
    Schölkopf, Smola & Müller (1998), Nonlinear component analysis as a kernel
    eigenvalue problem; Lopez-Paz et al. (2014), Randomized nonlinear component
    analysis, Sec. 3; von Luxburg (2007), A tutorial on spectral clustering, for
    `normalize`.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import RFFPCA
    >>> angle = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    >>> ring = np.column_stack([np.cos(angle), np.sin(angle)])
    >>> X = np.concatenate([ring, 3 * ring])  # two rings, which no line separates
    >>> pca = RFFPCA(
    ...     1,
    ...     length_scale=0.4,
    ...     features="nystrom",
    ...     n_random_features=100,
    ...     normalize="degree",
    ... )
    >>> scores = pca.set_params(random_state=0).fit_transform(X)[:, 0]
    >>> inner, outer = scores[:200], scores[200:]
    >>> bool(np.ptp(inner) < 0.01 and np.ptp(outer) < 0.01 and np.ptp(scores) > 2)
    True
    """

    n_components: int = 2
    _: KW_ONLY
    n_random_features: int = 2048
    normalize: str | None = None
    whiten: bool = False

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Compute the components.

        Parameters
        ----------
        X : array-like, frame, sparse matrix, Dask or Zarr array, dataset, path or URL
            Of shape (n_samples, n_features).
        y : ignored
            For scikit-learn's pipelines.
        sample_weight : array-like of shape (n_samples,), optional
            How precise each row is, not negative. Left out for a dataset, which has its
            own.

        Raises
        ------
        InvalidParameterError
            If a parameter is out of range.
        DataError
            If values are not finite, or all rows have the same features.
        StatisticsError
            If there is one row.
        PlanError
            If the job needs more memory than there is.
        """
        clock = Clock()
        parameter_checks.check_flag(self.whiten, "whiten")
        features = feature_options.FeatureOptions(
            **self._features(self.n_random_features)
        )
        dataset = inputs.as_dataset(
            self, X, None, sample_weight, reset=True, supervised=False
        )
        with self._engine_of_fit(dataset, clock) as engine:
            principal = pca.fit_components(
                dataset,
                features,
                n_components=self.n_components,
                normalize=self.normalize,
                engine=engine,
            )
        self._keep(principal)
        self._recipe = dataset.attributes.get(recipes.RECIPE)
        return self

    def _keep(self, model: pca.KernelComponents) -> None:
        # `kernel_`, `features_`, `feature_map_` and `length_scale_` are properties of
        # the base class, which reads them from `_fitted`
        principal = model.principal
        self._fitted = model
        self.statistics_ = model.statistics
        self.feature_components_ = principal.components
        self.eigenvalues_ = principal.eigenvalues
        self.explained_variance_ = principal.explained_variance
        self.explained_variance_ratio_ = principal.explained_variance_ratio
        self.feature_mean_ = principal.means
        self.noise_floor_ = principal.noise_floor
        self.n_floored_ = model.n_floored
        self.projection_ = model.projection(whiten=bool(self.whiten))

    def _choices(self) -> dict[str, str]:
        return {
            **panel.features_facts(self.feature_map_, self._names),
            "components": f"{self.n_components_:,}",
            "explained variance": f"{self.explained_variance_ratio_.sum():.1%}",
        }

    def transform(self, X: Any) -> Any:
        """Return the scores of rows, old or new, O(n_samples · D · n_features).

        Parameters
        ----------
        X : array-like, frame, sparse matrix, Dask or Zarr array, dataset, path or URL
            Of shape (n_samples, n_features).

        Returns
        -------
        scores : float64 array of shape (n_samples, n_components_)
            A lazy Dask array for a Dask collection, else a NumPy array in memory. To
            write the scores of a large dataset to Zarr, use `rff_dist.pca.fit.project`.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If values are not finite, or columns are missing.
        """
        check_is_fitted(self)
        return self._map(
            X,
            components.project_rows,
            self.projection_,
            label="project",
            width=self.n_components_,
            dtype=np.float64,
        )

    @property
    def n_components_(self) -> int:
        """The number of components that were kept."""
        return len(self.feature_components_)

    @property
    def _n_features_out(self) -> int:
        # scikit-learn names the output columns by this number
        return self.n_components_


# -- random Fourier features as a scikit-learn transformer


@dataclass(repr=False, eq=False)
class RFFSampler(ClassNamePrefixFeaturesOutMixin, TransformerMixin, base.RowsEstimator):
    """scikit-learn's `RBFSampler` and `Nystroem`, with more kernels and less variance.

    Inner products of the transformed rows approximate the kernel: Z @ Z.T ≈ k(X, X),
    with an error that falls as 1/√n_components. For training on many rows use
    `RFFRidge`, which never holds Z.

    Parameters
    ----------
    kernel : str or Kernel, default="gaussian"
        Set it if you know how smooth the data are; else leave it. A name, or a text
        such as "matern:nu=2.5" or "gaussian:length_scale=2 + linear", see
        `rff_dist.kernels.names.find_kernel`; or a Kernel object. Length scales given
        here are left alone.
    length_scale : "auto", float or array of shape (n_features,), default="auto"
        Set it, or leave it for a first try. In the inputs' units; "auto" is the median
        distance between rows of a seeded sample.
    n_components : int, default=2048
        Raise it for a smaller error: columns of Z. An even number makes pairs of
        cosines and sines, an odd one cosines with random phases, which have more
        variance. With Nyström features it is the number of centres; data with fewer
        distinct rows use all of them, and the kernel is then exact.
    features : {"fourier", "nystrom", "nystrom:RULE"} or Nystrom, default="fourier"
        Usually leave it. Fourier features do not depend on the data. Nyström features
        are kernel values at rows of the data, and work with any kernel; RULE says how
        these rows are drawn, uniform (the default) or k-means++.
    design : "auto", "orthogonal", "iid", "quasi-monte-carlo", default="auto"
        Usually leave it. It says how the frequencies of Fourier features are arranged.
        Orthogonal ones have less variance than "iid", and need an isotropic kernel.
        Quasi-Monte Carlo works for any kernel, also the Laplacian, and is best for few
        columns. "auto" is orthogonal if the kernel allows it, else "iid".
    precision : {"standard", "high"}, default="standard"
        Usually leave it. It says how Fourier features are rounded: "standard" to 15
        bits, so that products are summed exactly and fast; "high" to float32, for ridge
        penalties so small that rounding shows.
    categorical_features : "from_dtype", list, array or None, default="from_dtype"
        Usually leave it. It says which columns are categories; see `RFFRidge`.
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
        The features that `transform` computes.
    length_scale_ : float or tuple of float
        The length scale in use.
    n_features_in_ : int
        Columns of the inputs.
    feature_names_in_ : array of str
        Their names; only if they have some.

    References
    ----------
    Rahimi & Recht (2007), Random features for large-scale kernel machines, Alg. 1.

    Examples
    --------
    >>> from rff_dist import Gaussian, RFFSampler
    >>> X = [[0.0, 0.0], [1.0, 1.0]]
    >>> sampler = RFFSampler(Gaussian(1.0), n_components=4096, random_state=0)
    >>> Z = sampler.fit_transform(X)
    >>> Z.shape, abs((Z @ Z.T)[0, 1] - Gaussian(1.0)(X)[0, 1]) < 0.05
    ((2, 4096), np.True_)
    """

    kernel: str | Kernel = "gaussian"
    _: KW_ONLY
    length_scale: Any = "auto"
    n_components: int = 2048
    features: str | nystrom.Nystrom = "fourier"
    design: str | designs.Design = "auto"
    precision: str = "standard"
    categorical_features: Any = categories.FROM_DTYPE
    random_state: Any = None
    verbose: int = 0

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the features.

        X gives the number of columns, and the rows for the median heuristic.

        Parameters
        ----------
        X : array-like, frame, xarray, sparse matrix, Dask or Zarr array, dataset, URL
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
                "`length_scale` is 'evidence', which needs targets, and RFFSampler"
                " takes none; give it the kernel that"
                " rff_dist.tune_length_scales(kernel, X, y, standardize=False) returns"
            )
        kernel = parameter_checks.choose_kernel(self.kernel, self.length_scale)
        check_count(self.n_components, "n_components")
        dataset = inputs.as_dataset(self, X, reset=True, supervised=False)
        options = feature_options.KernelFeatures(
            kernel=kernel,
            length_scale=self.length_scale,
            map=parameter_checks.map_for(self.n_components),
            **values_of(self, "n_components", "features", "design", "precision"),
        )
        seed = draw.seed_from_random_state(self.random_state)
        levels = recipes.levels_of(dataset.attributes)
        with self._engine_of_fit(None, clock) as engine:
            ranges = None
            # a kernel with open ends, such as Min(), needs the range of all rows; else
            # a sample is enough, for the median heuristic
            if not kernel.is_bound:
                ranges = inspection.input_range(
                    inspection.inspect(dataset, engine=engine), None
                )
            engine.tell(events.Remark("draw", f"{self.n_components:,} features"))
            self.feature_map_ = for_dataset.draw(
                for_dataset.RowSource(dataset, None, seed, ranges, levels=levels),
                options,
            )
        self._recipe = dataset.attributes.get(recipes.RECIPE)
        self.kernel_ = kinds.kernel_of(self.feature_map_)
        self.features_ = kinds.kind_of(self.feature_map_)
        self.length_scale_ = kinds.length_scale_of(self.feature_map_)
        self._n_features_out = self.feature_map_.n_components
        return self

    def _choices(self) -> dict[str, str]:
        return panel.features_facts(self.feature_map_, self._names)

    def transform(self, X: Any) -> Any:
        """Return Z, O(n_samples · n_components · n_features).

        Parameters
        ----------
        X : array-like, frame, xarray, sparse matrix, Dask or Zarr array, dataset, URL
            Of shape (n_samples, n_features).

        Returns
        -------
        Z : array of shape (n_samples, n_components)
            A lazy Dask array for a Dask collection, else a NumPy array in memory;
            float32 for float32 inputs, else float64.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If values are not finite, or columns are missing.
        """
        check_is_fitted(self)
        dataset: Any = inputs.as_dataset(self, X, reset=False, supervised=False)
        dtype = np.float32 if dataset.dtype == np.float32 else np.float64
        if inputs.is_dask(X):
            transform = partial(self.feature_map_.transform, dtype=dtype)
            return inputs.map_rows(
                dataset.X, transform, width=self.feature_map_.n_components, dtype=dtype
            )
        return predicting.transform_in_memory(dataset, self.feature_map_, dtype=dtype)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
