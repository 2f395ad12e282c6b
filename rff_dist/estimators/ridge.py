"""Kernel ridge regression on random features, for data of any size.

Rows and targets go in; a `RidgeModel` comes out, which predicts values, standard
deviations and intervals. scikit-learn's `KernelRidge` needs the Gram matrix of all
rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from rff_dist.data import blocks, columns
from rff_dist.data.array_checks import warn_of_other_order
from rff_dist.engines.clock import Clock
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.estimators import base, inputs, splits
from rff_dist.living.merge import merge, rows_of
from rff_dist.ridge import effects
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.fit import fit
from rff_dist.ridge.models import RidgeModel
from rff_dist.statistics.specs import StatisticsSpec


@dataclass(repr=False, eq=False)
class RFFRidge(MultiOutputMixin, RegressorMixin, base.RandomFeatureEstimator):
    """scikit-learn's `KernelRidge` for any number of rows, tuned by cross-validation.

    Random Fourier or Nyström features Z replace the kernel: the fit minimises ‖y − b −
    Z w‖² + alpha·‖w‖². With all parameters left alone, the fit compares a few
    candidates (kernel, length scales, kind of features) on up to 10,000 rows, and
    trains the best on all rows; anything you set yourself is left alone. If you set all
    of them, there are two passes over the rows: a cheap one for means, and one of
    O(n_samples · n_components²) that accumulates Z'Z and Z'y exactly. The fit has the
    same bits on one thread, many threads or a cluster, and its memory does not grow
    with the rows.

    Parameters
    ----------
    kernel : "auto", str or Kernel, default="auto"
        Usually leave it. Set it if you know how smooth the function is: a name, a text
        such as "matern:nu=2.5" or "gaussian:length_scale=2 + linear" (see
        `rff_dist.kernels.names.find_kernel`), or a Kernel object, whose length scales
        are kept. "auto" compares the linear kernel with `Additive` ones of the Gaussian
        kernel and of Matérn's with ν = 1.5, which have a weight for each single column
        and one for all columns together. Of more than 20 columns it compares these two
        kernels without parts of single columns.
    length_scale : "auto", "median", "evidence", float or array, default="auto"
        Usually leave it; "median" is a fast first try. It says how far apart rows still
        influence each other, in units of the (standardised) inputs: a small one gives
        wiggly functions, a large one smooth ones. It is 1/√(2·gamma) of scikit-learn's
        RBF kernel. "median" is the median distance
        between rows of a seeded sample. "evidence" tunes one length scale per column,
        on a sample of rows that no fold validates on; see
        `rff_dist.tune_length_scales`. "auto" compares the median with tuned length
        scales; or ½, 1, 2 and 4 times the median if rows are too few to tune them.
    n_components : "auto", int or sequence of int, default="auto"
        Leave it, or give a smaller number for a faster fit and a larger one for a
        smaller error: the error of the approximation falls as 1/√D, and the cost grows
        as D². "auto" is 2,048, or fewer if there are fewer rows or little memory; twice
        as many are tried if the last doubling lowered squared errors by more than 10 %,
        unless there is a `time_limit` or too little memory. With Fourier features, an
        even number makes pairs of cosines and sines, an odd one cosines with random
        phases. With Nyström features it is the number of centres; data with fewer
        distinct rows use all of them, and the kernel is then exact. Given several
        numbers, cross-validation takes the smallest whose error is within one standard
        error of the best; a single pass at the largest serves them all.
    alpha : "auto", "cv", "cv-1se", "gcv", "evidence", float or list, default="auto"
        Usually leave it. The penalty: a larger one gives smoother predictions, a
        smaller one follows the rows more closely. "cv" minimises the error of k-fold
        cross-validation (the largest alpha, if several are as good); "cv-1se" is the
        largest alpha within one standard error of that. "gcv" is generalised
        cross-validation, which can choose far too small an alpha if there are outliers.
        "evidence" maximises the marginal likelihood. Of several numbers,
        cross-validation takes the best. "auto" is "cv", or "gcv" if memory does not
        hold the sums of any folds. Up to 500 rows, without `cv` or groups, "auto"
        leaves out each row in turn, and takes the largest alpha whose error is within
        one standard error of the smallest, comparing errors row by row.
    cv : int, HashFolds, GroupFolds, TimeFolds, splitter or splits, default=None
        The folds of cross-validation. Set it to `TimeFolds` if rows are in order of
        time; give `fit` the groups if rows of one group belong together. A number makes
        that many folds, by a hash of each row's number. Splits of scikit-learn, such as
        `KFold`, must hold out each row once. The same pass makes separate sums for each
        fold, so that every fold, alpha and target is validated without fitting again;
        the sums take as many times the memory. The errors of held-out rows also give
        the intervals of `predict_interval`. None is 5 folds, 10 below 200 rows, 3
        above 2,048 rows or if memory is short.
    alpha_per_target : bool or "auto", default="auto"
        Usually leave it. It says whether each of several targets gets its own alpha,
        chosen by its own errors, as scikit-learn's RidgeCV can. "auto" does so for a
        target if that saves more than 1 % of its error, and more than the standard
        error of this saving over the folds; the other targets share one alpha.
    solver : {"auto", "direct", "pcg"}, default="auto"
        Usually leave it. "direct" accumulates Z'Z in one pass and factors it. "pcg",
        for a D so large that this is too expensive, uses conjugate gradients, each step
        a cheap pass, until predictions are estimated to be within 1e-7 of the direct
        ones, in standard deviations of the targets. Unless alpha is one number, it is
        chosen by the errors on the last fold, in passes that all alphas share. The
        model has no statistics, hence no standard deviations and no `partial_fit`.
        "auto" is "pcg" if alpha is one number, and either memory does not hold Z'Z or
        "pcg" is planned to take less than a quarter of the time.
    features : {"auto", "fourier", "nystrom", "nystrom:RULE"} or Nystrom, default="auto"
        Usually leave it. Random Fourier features do not depend on the data, and need a
        kernel with a spectral measure. Nyström features are kernel values at rows of
        the data, the centres. They work with any kernel, and fewer suffice if the data
        lie near a low-dimensional set. RULE or `Nystrom` says how centres are chosen:
        uniform or k-means++. "auto" compares both; up to 2,048 rows it is
        "nystrom" with all rows as centres, unless `n_components` is given.
    design : "auto", "orthogonal", "iid", "quasi-monte-carlo", default="auto"
        Usually leave it. It says how the frequencies of Fourier features are arranged.
        Orthogonal ones have less variance than "iid", and need an isotropic kernel.
        Quasi-Monte Carlo works for any kernel, also the Laplacian, and is best for few
        columns. "auto" is orthogonal if the kernel allows it, else "iid".
    precision : {"auto", "standard", "high"}, default="auto"
        Usually leave it. It says how Fourier features are rounded: "standard" to 15
        bits, so that products are summed exactly and fast; "high" to float32. "auto"
        begins with "standard", and repeats the pass with "high" if the coefficients are
        so large that rounding shows.
    standardize : bool, "rank" or "auto", default="auto"
        Set it to False if all columns have one unit, such as coordinates; else leave
        it. True subtracts each column's mean and divides by its standard deviation.
        "rank" maps the ranks of each column's values to a normal distribution, for
        heavy tails. "auto" is "rank" for columns of high kurtosis, and True for the
        others. If the kernel is free too, and tuned, each column is mapped by an
        increasing function: a sum of its standardised values, these cut off smoothly,
        and normal scores, by weights that the evidence chooses.
    categorical_features : "from_dtype", list, array or None, default="from_dtype"
        Which columns of a frame or an array in memory are categories, which are only
        compared for equality. "from_dtype" takes columns of text, and those whose type
        is a category (a dictionary, in Arrow). Name others, such as codes, by a list of
        all names or positions, or a boolean for each column; None means no column. A
        missing text is a separate level. A level that the fit did not see gives a
        warning, and is predicted with less certainty. Booleans are 0 and 1, dates
        become the days that have passed, the day of the year, the weekday and the hour,
        as far as these vary. Missing numbers and dates are refused. Stored rows keep
        the categories of the ingested table.
    fit_intercept : bool, default=True
        Usually leave it. It says whether to fit an intercept, which is not penalised.
    random_state : int, RandomState, Generator or None, default=None
        Set it to an integer for a fit that can be repeated: the seed of frequencies and
        samples.
    sample_weight_kind : {"precision", "frequency"}, default="precision"
        Set it to "frequency" if weights are counts of equal rows. With "precision",
        each row of positive weight is one observation whose noise variance is
        proportional to 1 / weight; a factor on all weights changes no choice, no
        standard deviation and no interval. With "frequency" they are whole numbers, and
        a row of weight 3 counts as three.
    effort : {1, 2, 3}, default=2
        Lower it for speed, raise it for accuracy: how much is tried where parameters
        leave a choice. 1 is one pass with the Gaussian kernel at the median length
        scale, and up to 1,024 components. 2 compares tuned kernels with a linear model,
        and doubles components to 4,096 if that lowers the error. 3 begins with 4,096,
        doubles them to 8,192, takes five folds, and searches for length scales from 24
        starts.
    time_limit : float or None, default=None
        Set it if a model must be there in time. After so many seconds nothing further
        is tried; the number of components is then chosen to fit the remaining time, as
        estimated from the first candidates. There is always a model; it is late if
        reading the rows twice takes longer. `n_components` must be "auto".
        `selection_["untried"]` lists what there was no time for. The model depends on
        the speed of the machine.
    engine : Engine or None, default=None
        Usually leave it: passes run in this process, or, for data out of memory, on the
        current Dask client if there is one. Give a `DaskEngine` for another cluster.
    verbose : int, default=0
        1 shows the progress of the fit as a bar on standard error; as lines in
        notebooks and pipes.

    Attributes
    ----------
    feature_coef_ : float64 array of shape (n_components,) or (n_targets, n_components)
        Weights of the random features: predictions are Z·feature_coef_' +
        feature_intercept_, with Z from `feature_map_`.
    feature_intercept_ : float or float64 array of shape (n_targets,)
        The prediction where all features are 0.
    coef_ : float64 array of shape (n_features,) or (n_targets, n_features)
        Slopes of the predictions X·coef_' + intercept_, in units of the inputs. Only
        with a linear kernel whose inputs are not mapped; other kernels have no number
        per input.
    intercept_ : float or float64 array of shape (n_targets,)
        The prediction where all inputs are 0; only together with `coef_`.
    alpha_ : float, or float64 array of shape (n_targets,)
        The penalty in use; an array if targets have different ones.
    n_components_ : int
        The number of features in use.
    length_scale_ : float or tuple of float
        The length scale in use.
    mapped_columns_ : tuple of int
        Columns of the inputs that are not only standardised, but mapped; see
        `standardize`.
    selection_ : dict
        How choices were made. `candidates` is a list of dicts, one for each candidate,
        with its kernel, length scale, features and error (`pandas.DataFrame` shows it).
        After cross-validation it also has the winner's table: `cv_alphas`,
        `cv_n_components`, `cv_errors` (mean squared errors of every split, number of
        components, alpha and target), `cv_weights` (of each split's rows), `cv_mean`
        and `cv_standard_error` over splits, `cv_target_variance`, `cv_leverages` (mean
        leverage of the rows trained on). After GCV or the evidence it has the path on
        all rows: `alphas`, `scores` (GCV, one column per target), `log_evidences`,
        `degrees_of_freedom`. Empty if nothing was chosen.
    estimate_ : dict or None
        Estimated errors on new rows, by cross-validation: for each target `rmse`,
        `rmse_standard_error` and `r2`. None if nothing was cross-validated.
    effects_ : list of Effect
        The exact effect of each column: what it alone adds to predictions, from their
        value at its mean, or from their mean over the rows' levels of a category. What
        several columns do together is the rest, which is constant if the kernel's
        functions are sums of functions of one column each, such as those of
        `Additive(order_2=0, dense=0)`: `effect_shares` says how much it is. Only if the
        kernel has functions of single columns, as `Additive`, which the default fit
        prefers, and `Gaussian() + Linear()` have. Each has the `column`, 41 `values`
        from two standard deviations below the column's mean to two above (of its mapped
        values in `mapped_columns_`) or the names of a category's levels, the `effect`
        at these, and `n_rows` of each level; `rff_dist.ridge.effects.column_effect`
        takes other values.
    statistics_ : RidgeStatistics
        The exact sums that the model was solved from; not with `solver="pcg"`.
    kernel_ : Kernel or None
        The kernel in use, with its length scales; None if the features were made of
        given frequencies.
    features_ : str
        The kind of features in use, "fourier" or "nystrom".
    feature_map_ : FeatureMap
        The features, with the standardizer of the inputs.
    model_ : RidgeModel
        The whole fitted model, ready to be stored.
    n_features_in_ : int
        Columns of the inputs.
    feature_names_in_ : array of str
        Their names; only if they have some.

    See Also
    --------
    RFFClassifier : The same for classes.
    RFFSampler : The features alone, as a step of a pipeline.
    RFFKMeans : Clusters in the same features.

    Notes
    -----
    Sample weights multiply the squared errors and leave the penalty as it is. A given
    alpha therefore means the same as in scikit-learn's `Ridge`, where weights times c
    act like alpha / c; a chosen alpha grows with the weights.

    References
    ----------
    Rahimi & Recht (2007); Golub, Heath & Wahba (1979).

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import RFFRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (500, 2))
    >>> y = np.sin(X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(500)
    >>> model = RFFRidge(n_components=128, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.98
    True
    """

    _: KW_ONLY
    alpha_per_target: Any = "auto"
    solver: str = "auto"

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None
    ) -> Self:
        """Fit from scratch.

        Parameters
        ----------
        X : array-like, frame, xarray, sparse matrix, Dask or Zarr array, dataset, URL
            Of shape (n_samples, n_features).
        y : array-like, Dask or Zarr array of shape (n_samples[, n_targets])
            Left out for a dataset, which has its own.
        sample_weight : array-like of shape (n_samples,), optional
            Not negative; a weight of 0 leaves the row out. See `sample_weight_kind`.
        groups : array-like of shape (n_samples,) or str, optional
            Integers or texts: rows of one group (patient, site) are held out together,
            unless `cv` is folds of another kind. Or the name of their array in a
            dataset.

        Raises
        ------
        InvalidParameterError
            If a parameter is out of range.
        DataError
            If values are not finite or shapes do not fit.
        PlanError
            If the job needs more memory than there is.
        """
        clock = Clock()
        options = self._options()
        dataset = inputs.as_dataset(self, X, y, sample_weight, reset=True)
        # parameters of this class only, which `_options` of the base does not know
        own_options = {
            name: getattr(self, name) for name in ("alpha_per_target", "solver")
        }
        options = replace(options, **own_options)
        warn_of_other_order(X, groups=groups)
        cv, dataset = splits.as_folds(options, self.cv, dataset, y, groups)
        with self._engine_of_fit(dataset, clock) as engine:
            model = fit(dataset, replace(options, cv=cv), engine=engine).model
        self._keep(self._with_names(model))
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows to the exact sums: nothing is rounded, and the order of calls
        changes no bit.

        Each call rounds its rows' products tile by tile, at about 1e-16 of the sums.
        Calls that do not end at a whole tile of 4,096 rows (2,048 above D = 4,096) are
        therefore rounded differently. The first call fixes the features, the
        standardisation and the weights' grid. If it chose alpha or the number of
        components by k-fold or leave-one-out errors, these stay fixed too. The model is
        solved when its coefficients are first needed.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.

        Raises
        ------
        InvalidParameterError
            If a parameter of the features or the weights differs from the fit's.
        DataError
            If values are not finite, shapes do not fit, or a weight is beyond the grid.
        StatisticsError
            If the model was loaded without its sums.
        """
        if "_fitted" not in vars(self):
            return self.fit(X, y, sample_weight)
        clock = Clock()
        self._check_adding()
        # checks the parameters: one that was changed to a wrong value since the fit is
        # refused now, and not later, when the model is solved
        self._options()
        dataset = inputs.as_dataset(
            self, X, y, sample_weight, reset=False, adds_levels=True
        )
        self._check_targets(dataset)
        self._add(dataset, clock)
        return self

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """Predict, O(n_samples · n_components · n_features).

        With `return_std` the cost is O(n_samples · n_components²). The first such call
        costs O(n_components³ / 3) more, and keeps a triangle of 8 · n_components² bytes
        with the model.

        Parameters
        ----------
        X : array-like, frame, xarray, sparse matrix, Dask or Zarr array, dataset, URL
            Of shape (n_samples, n_features).
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation as well: it
            includes noise, coefficients and intercept, by Bayesian linear regression
            with alpha and the kernel taken as known; see `rff_dist.ridge.uncertainty`.
            The observation has the mean of the training rows' positive weights, or
            weight 1 if weights are frequencies. Not for Dask collections.

        Returns
        -------
        y : float64 array of shape (n_samples,) or (n_samples, n_targets)
            A lazy Dask array for a Dask collection, else a NumPy array in memory. To
            write the predictions of a large dataset to Zarr, use
            `rff_dist.ridge.predict.predict` or `rff-dist predict`.
        std : float64 array of the same shape
            In the targets' units; only with `return_std`.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If values are not finite, or columns are missing.
        InvalidParameterError
            With `return_std`, if X is a Dask collection.
        StatisticsError
            With `return_std`, if the model was loaded without its sums.
        SolveError
            With `return_std`, if alpha is so small that the variance is not determined.
        """
        check_is_fitted(self)
        if not return_std:
            model = self._fitted
            if model.one_dimensional:
                return self._of_scores(X, np.ravel, width=None, dtype=np.float64)
            return self._of_scores(
                X, np.asarray, width=model.n_targets, dtype=np.float64
            )
        names = {"predictions": "prediction", "standard_deviations": "std"}
        return self._predict_two(X, names, "`return_std` is True", std=True)

    def predict_interval(self, X: Any, *, coverage: float = 0.95) -> tuple[Any, Any]:
        """Predict intervals that contain new observations with probability `coverage`.

        If the fit had folds, as by default, they are made from the errors of held-out
        rows, and assume no distribution of the noise: an interval is the typical error
        near its row times one factor, chosen so that the share `coverage` of held-out
        rows is inside. See `rff_dist.ridge.held_out`. A fit without folds (one given
        `alpha` without `cv`, GCV, the evidence), or a merge of models, has normal
        intervals: ± a normal quantile times the standard deviations of `predict`, at
        the same cost. For a model with nearly as many degrees of freedom as rows these
        are too narrow, and there is a warning. After `partial_fit` intervals still use
        the rows of the fit. Rows with an unseen level of a category have wider ones:
        the more known levels differ, the wider.

        Parameters
        ----------
        X : array-like, frame, xarray, sparse matrix, Zarr array, dataset, URL
            Of shape (n_samples, n_features). To write the intervals of a large dataset
            to Zarr, use `rff_dist.ridge.predict.predict` or `rff-dist predict
            --coverage`.
        coverage : float, default=0.95
            In (0, 1).

        Returns
        -------
        lower, upper : float64 arrays of shape (n_samples,) or (n_samples, n_targets)
            In the targets' units.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If values are not finite, or columns are missing.
        InvalidParameterError
            If `coverage` is not in (0, 1), or X is a Dask collection.
        StatisticsError, SolveError
            As `predict` with `return_std`, if the model was fitted without folds.
        """
        check_is_fitted(self)
        names = {"lower": "lower", "upper": "upper"}
        return self._predict_two(
            X, names, "`predict_interval` was called", coverage=coverage
        )

    def _predict_two(
        self, X: Any, names: Mapping[str, str], reason: str, **what: Any
    ) -> tuple[Any, Any]:
        """Return two arrays of `predict_in_memory`, with the options `what`.

        `names`: the keys of the two arrays, and what their variables are called if X is
        a grid. `reason`: why both are wanted, for the error for a Dask collection.
        """
        if inputs.is_dask(X):
            raise InvalidParameterError(
                f"{reason} for a Dask {type(X).__name__}; expected rows that are in"
                " memory or stored. Compute X first, or write it with `write_dataset`"
            )
        dataset = inputs.as_dataset(self, X, reset=False, supervised=False)
        with inputs.suitable_engine(self.engine, dataset) as engine:
            predictions = prediction.predict_in_memory(
                dataset, self.model_, engine=engine, **what
            )
        first, second = (
            inputs.on_grid(X, dataset, predictions[key], name)
            for key, name in names.items()
        )
        return first, second

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination R², averaged over targets.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        """
        check_is_fitted(self)
        dataset = inputs.as_dataset(self, X, y, sample_weight, reset=False)
        with inputs.suitable_engine(self.engine, dataset) as engine:
            errors = prediction.evaluate(dataset, self.model_, engine=engine)
        # a constant target counts as in scikit-learn's r2_score: 1 if predicted
        # exactly, else 0
        of_constant = np.where(errors.mean_squared_error == 0, 1.0, 0.0)
        return float(np.where(np.isnan(errors.r2), of_constant, errors.r2).mean())

    def _test_data(
        self, X: Any, y: Any
    ) -> tuple[blocks.Dataset, columns.Column | None]:
        return inputs.as_dataset(self, X, y, reset=False), None

    def _with_facts(self, model: RidgeModel) -> RidgeModel:
        # `merge` finds the data of the fit by this entry, and refuses to count them
        # twice
        return model.with_card(merged=rows_of(self._fitted))

    @property
    def effects_(self) -> list[effects.Effect]:
        """The exact effect of each column, if the kernel has functions of one column
        alone.
        """
        reason = effects.why_no_effects(self.model_)
        if reason is not None:
            raise AttributeError(reason)
        return effects.column_effects(self.model_)

    def effect_shares(self, X: Any) -> effects.EffectShares:
        """Return the share of each column's effect in the variance of predictions.

        Parameters
        ----------
        X : array-like, frame, xarray, sparse matrix, Dask or Zarr array, dataset, URL
            Of shape (n_samples, n_features), such as the training rows. Up to 2,000 of
            them, always the same ones, are predicted.

        Returns
        -------
        shares : EffectShares
            `columns` has each effect's share, `together` that of what several columns
            do together, and `overlap` twice their covariances; they add up to 1.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If values are not finite, or columns are missing.
        InvalidParameterError
            If the model has no effects.
        """
        check_is_fitted(self)
        dataset = inputs.as_dataset(self, X, reset=False, supervised=False)
        return effects.effect_shares(dataset, self.model_)

    def _per_target(self, values: NDArray[np.float64]) -> Any:
        return values[0] if self._fitted.one_dimensional else values

    def _keep(self, model: RidgeModel) -> None:
        self._keep_fitted(model)

    def _check_targets(self, dataset: blocks.Dataset) -> None:
        spec = self.statistics_.spec

        def shape_of(y: blocks.Dataset | StatisticsSpec) -> str:
            if y.one_dimensional:
                return "a vector"
            return f"a matrix of {y.n_targets} columns"

        if shape_of(dataset) != shape_of(spec):
            raise DataError(
                f"y is {shape_of(dataset)}; the first call had {shape_of(spec)}. Give"
                " the same targets"
            )


def merge_models(models: Sequence[RFFRidge]) -> RFFRidge:
    """Merge models into the model of all their rows, from their exact sums alone.

    The models must share one spec, that is features, standardisation and offsets:
    `rff-dist refit` trains such models on other rows. No row may be in two of them.
    Alpha is chosen as for the first model, or kept if k-fold or leave-one-out errors
    chose it there.

    Parameters
    ----------
    models : sequence of RFFRidge
        Two or more, fitted or loaded, with their statistics.

    Returns
    -------
    RFFRidge
        A fitted model with the parameters of the first.

    Raises
    ------
    InvalidParameterError
        If there are fewer than two, or one is no RFFRidge.
    StatisticsError
        If a model has no statistics or another spec (the message names the first field
        that differs), or two were trained on the same data.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import RFFRidge, merge_models
    >>> X = np.random.default_rng(0).standard_normal((200, 2))
    >>> first = RFFRidge(n_components=16, alpha=0.1, random_state=0).fit(X, X[:, 0])
    >>> merge_models([first, first])
    Traceback (most recent call last):
    rff_dist.errors.StatisticsError: models[0] and models[1] were trained on data of the
    same ...
    """
    for i, model in enumerate(models):
        if not isinstance(model, RFFRidge):
            raise InvalidParameterError(
                f"models[{i}] is a {type(model).__name__}; expected an RFFRidge"
            )
        check_is_fitted(model, "_fitted")
    merged = merge(
        [model.model_ for model in models], [f"models[{i}]" for i in range(len(models))]
    )
    estimator: RFFRidge = clone(models[0])
    return estimator._with_model(merged)
