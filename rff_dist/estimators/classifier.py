"""Classification on random features, for data of any size and labels of any type.

Rows and labels go in; a `RidgeModel` of targets of −1 and +1 comes out, which predicts
labels and probabilities. scikit-learn's `LogisticRegression` on a pipeline of features
would need all of Z in memory, the matrix of features; here the first step is ridge
regression, whose sums need one pass over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from rff_dist.classify import fit as classification
from rff_dist.classify import predict as class_prediction
from rff_dist.classify.calibration import CalibrationRows, calibrate_rows
from rff_dist.classify.platt_scaling import ScoreCalibration
from rff_dist.data import blocks, columns, grid_attributes, labelled, xarrays
from rff_dist.data.array_checks import warn_of_other_order
from rff_dist.engines.clock import Clock
from rff_dist.errors import InvalidParameterError, warn
from rff_dist.estimators import base, inputs, labelled_rows, splits, values
from rff_dist.fitting.options import RidgeOptions
from rff_dist.numerics import exact_sums
from rff_dist.ridge import models
from rff_dist.storage.columns import as_column
from rff_dist.typing import AnyArray, FloatArray


def _has_probabilities(estimator: RFFClassifier) -> bool:
    if estimator.loss == "squared_hinge":
        raise AttributeError(
            "the squared hinge has no probabilities; use loss='logistic' or"
            " loss='squared'"
        )
    return True


def _sums_add_up(estimator: RFFClassifier) -> bool:
    if estimator.loss != "squared":
        raise AttributeError(
            f"loss={estimator.loss!r} needs all rows in each pass, so none can be"
            " added; use loss='squared'"
        )
    return True


def _sorted(classes: Any) -> AnyArray:
    """Return the distinct labels in the dtype and the order that a fit gives them."""
    # so they are counted by the function that a fit counts labels with
    column = as_column(np.asarray(classes), name="classes")
    return labelled.count_block(
        column.read(blocks.Block(0, 0, column.n_samples)), None
    ).classes


@dataclass(repr=False, eq=False)
class RFFClassifier(ClassifierMixin, base.RandomFeatureEstimator):
    """scikit-learn's `SVC` or kernel logistic regression for any number of rows, tuned.

    The default loss is ridge regression on targets of −1 and +1. It costs as much as
    `RFFRidge`, and chooses in the same way: kernel, length scales, features and alpha
    by the cross-validated squared errors of these targets. From 1,000 rows on, length
    scales per column are tuned by the log loss of rows left out in turn, in place of
    the evidence. The other losses start from its solution and take 10 to 30 more cheap
    passes, of O(n_samples · n_components · n_features) each. All have the same bits on
    one thread, many threads or a cluster, and memory does not grow with the rows.

    Parameters
    ----------
    kernel, length_scale, n_components, cv, features, design, precision, standardize
        As in `RFFRidge`. Usually leave them.
    categorical_features, fit_intercept, random_state, effort, time_limit, verbose
        As in `RFFRidge`.
    engine
        As in `RFFRidge`. Usually leave it.
    sample_weight_kind : {"auto", "precision", "frequency"}, default="auto"
        Usually leave it. It says what sample weights mean, see `RFFRidge`: "auto" takes
        whole numbers as repetitions of their rows, and other weights as precisions. A
        factor on all precisions does not change probabilities either.
    alpha : "auto", "cv", "cv-1se", "gcv", "evidence", float or list, default="auto"
        Usually leave it. The penalty: a larger one gives smoother scores. The
        objectives are Σ w·(y − f)² + alpha‖W‖² for
        ridge, Σ w·max(0, 1 − y·f)² + alpha‖W‖² for the squared hinge, and −Σ w·log p +
        ½·alpha‖W‖² for the logistic loss. Alpha is chosen as in `RFFRidge`, for ridge
        on the targets. The squared hinge uses this choice as it is; the logistic loss
        uses it times the mean of p·(1 − p), but at least times 1/8, so that it has as
        many degrees of freedom. One number is used as it is: 1/alpha is the C of
        scikit-learn's LogisticRegression, 1/(2·alpha) that of LinearSVC.
    loss : {"squared", "logistic", "squared_hinge"}, default="squared"
        Begin with "squared", which is the fastest. Its probabilities are a sigmoid (a
        softmax for more than two classes) fitted to leave-one-out scores. "logistic" is
        multinomial logistic regression; take it if probabilities matter most.
        "squared_hinge" is the kernel support vector machine, one class against the
        rest, without probabilities; take it if only accuracy matters.
    class_weight : "balanced", dict or None, default=None
        Set it to "balanced" if rare classes should count as much as frequent ones:
        factors on the weights of each class's rows, as in scikit-learn. Probabilities
        are those of the reweighted rows.
    tol : float, default=1e-6
        Usually leave it. "logistic" and "squared_hinge" stop when the objective is
        about this close to its minimum, relative to the loss of scores of 0.
    max_iter : int, default=100
        Raise it if a warning says so: the largest number of steps of these losses; each
        is one pass, rarely two.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The labels, sorted.
    feature_coef_ : float64 array of shape (1 or n_classes, n_components)
        Weights of the random features; a single row for two classes. With the squared
        loss, the scores Z·feature_coef_' + feature_intercept_ are calibrated before
        they decide anything.
    feature_intercept_ : float64 array of shape (1,) or (n_classes,)
        Added to all scores, before their calibration.
    coef_, intercept_
        The same scores are X·coef_' + intercept_; only with a linear kernel whose
        inputs are not mapped.
    n_iter_ : int
        Number of steps that minimised the loss; 1 for the squared loss, which is solved
        at once.
    alpha_, kernel_, features_, length_scale_, n_components_, mapped_columns_
        As in `RFFRidge`.
    feature_map_, model_, n_features_in_
        As in `RFFRidge`.
    selection_, statistics_
        As in `RFFRidge`, of ridge on the targets.
    estimate_ : dict or None
        Estimates for new rows, by cross-validation: `accuracy` and `log_loss`, each
        with its `…_standard_error`. They are measured for ridge on the targets,
        whatever the loss. None without folds.

    Notes
    -----
    For every loss, `predict` returns the class of the largest probability, which is
    also the class of the largest decision. With the squared loss it may not be the
    class of the largest score: the calibration has an offset for each class, which
    corrects for classes that lie between others, and for rare ones.

    There is `partial_fit` for the squared loss only: the others need all rows in each
    pass.

    References
    ----------
    Rahimi & Recht (2007); Platt (1999); Böhning (1992) for the curvature of multinomial
    logistic regression.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import RFFClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (500, 2))
    >>> y = np.where(X[:, 0] * X[:, 1] > 0, "same", "opposite")
    >>> model = RFFClassifier(n_components=128, random_state=0).fit(X, y)
    >>> model.predict([[2.0, 2.0], [2.0, -2.0]])
    array(['same', 'opposite'], dtype='<U8')
    >>> bool(model.predict_proba([[2.0, 2.0]])[0, 1] > 0.9)
    True
    """

    _: KW_ONLY
    loss: str = "squared"
    class_weight: Any = None
    tol: float = classification.LossOptions.tol
    max_iter: int = classification.LossOptions.max_iter
    sample_weight_kind: str = "auto"
    classes_: AnyArray = field(init=False)
    #: Rows for the calibration of probabilities; None if `partial_fit` did not begin
    #: with the first rows.
    _rows: CalibrationRows | None = field(init=False)

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None
    ) -> Self:
        """Fit from scratch.

        Parameters
        ----------
        X : array-like, frame, sparse matrix, Dask or Zarr array, dataset, path or URL
            Of shape (n_samples, n_features).
        y : array-like, series, Dask or Zarr array of shape (n_samples,), or str
            Labels: integers, booleans, text or whole floats. For a dataset, path or
            URL: the name of an array in its group, by default "y".
        sample_weight : array-like of shape (n_samples,), optional
            Not negative; a weight of 0 leaves the row out. See `sample_weight_kind`.
        groups : array-like of shape (n_samples,) or str, optional
            As in `RFFRidge.fit`.

        Raises
        ------
        InvalidParameterError
            If a parameter is out of range.
        DataError
            If values are not finite, shapes do not fit, or fewer than two classes have
            rows with weight.
        PlanError
            If the job needs more memory than there is.

        Warns
        -----
        ConvergenceWarning
            If `max_iter` steps were too few.
        """
        self._fit(X, y, sample_weight, groups, classes=None)
        self._warn_of_early_stop()
        return self

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        groups: Any,
        *,
        classes: AnyArray | None,
    ) -> labelled.LabelledDataset:
        """Fit from scratch; return the rows with their labels.

        `classes`: all labels of later calls too, if this is a first `partial_fit`; None
        takes the labels of the rows.
        """
        clock = Clock()
        weights_are_auto = self.sample_weight_kind == "auto"
        options, loss_options = self._checked_options()
        source, labels = labelled_rows.as_labelled(
            self, X, y, sample_weight, reset=True
        )
        with self._engine_of_fit(source, clock) as engine:
            warn_of_other_order(X, groups=groups)
            cv, rows = splits.as_folds(options, self.cv, source, y, groups)
            # plain numbers, since the model keeps them as JSON
            loss_options = replace(
                loss_options, tol=float(self.tol), max_iter=int(self.max_iter)
            )
            options = replace(options, cv=cv)
            dataset, options = classification.label_rows(
                rows,
                labels,
                options,
                loss_options,
                classes=classes,
                whole_weights_repeat=weights_are_auto,
                engine=engine,
            )
            fit_result = classification.fit(
                dataset, options, loss_options, engine=engine
            )
        self._keep(self._with_names(fit_result.model))
        return labelled.LabelledDataset(source, labels, self.classes_, self._factors())

    def _checked_options(self) -> tuple[RidgeOptions, classification.LossOptions]:
        """Return the parameters as the library takes them, checked."""
        # "auto" is no option of a fit: `label_rows` decides by the weights
        weight_kind = None
        if self.sample_weight_kind == "auto":
            weight_kind = "precision"
        options = self._options(sample_weight_kind=weight_kind)
        return options, classification.LossOptions(
            self.loss, self.class_weight, self.tol, self.max_iter
        )

    def _factors(self) -> FloatArray | None:
        """Return the factor of each class's weights, if the user gave them by label."""
        if not isinstance(self.class_weight, Mapping):
            return None
        # given factors do not depend on counts of rows, so these are 0
        none = exact_sums.ExactSum.zeros((len(self.classes_),))
        counts = labelled.LabelCounts(
            self.classes_, np.zeros(len(self.classes_), np.int64), none
        )
        return labelled.class_weights(self.class_weight, counts)

    @available_if(_sums_add_up)  # type: ignore[untyped-decorator]
    def partial_fit(
        self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None
    ) -> Self:
        """Add rows to the exact sums of the squared loss; see `RFFRidge.partial_fit`.

        The first call fits: it chooses all parameters that are not set, and needs rows
        of two classes. Later calls add rows of any of the classes, and the coefficients
        are those of one fit with the same features and alpha. Probabilities are
        calibrated on the rows of all calls, or on a sample of 10,000, which the
        estimator keeps meanwhile; stored models do not hold it. After `fit`, or for a
        loaded model, there are no earlier rows, and the calibration stays as it is.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array-like of shape (n_classes,)
            All labels of this and later calls. May be left out in later calls.

        Raises
        ------
        InvalidParameterError
            If `classes` are missing in the first call or differ later, or
            `class_weight` is "balanced"; or if the loss or a parameter of the features
            or the weights differs from the fit's.
        DataError
            If values are not finite, shapes do not fit, a label is not among the
            classes, or the first call has rows of one class.
        StatisticsError
            If the model was loaded without its sums.
        """
        if isinstance(self.class_weight, str):
            raise InvalidParameterError(
                f"`class_weight` is {self.class_weight!r}, but later rows may have"
                f" other shares of the classes; give a weight for each class, or"
                " None"
            )
        if not self.__sklearn_is_fitted__():
            if classes is None:
                raise InvalidParameterError(
                    "`classes` is None in the first call of partial_fit; give all"
                    " labels that later calls may have"
                )
            first = self._fit(X, y, sample_weight, None, classes=_sorted(classes))
            self._rows = CalibrationRows.of(first)
            return self
        if classes is not None and not np.array_equal(_sorted(classes), self.classes_):
            raise InvalidParameterError(
                f"`classes` is {list(classes)}; expected {self.classes_.tolist()}, as"
                " in the first call"
            )
        clock = Clock()
        self._check_adding()
        self._checked_options()
        source, labels = labelled_rows.as_labelled(
            self, X, y, sample_weight, reset=False, adds_levels=True
        )
        rows = labelled.LabelledDataset(source, labels, self.classes_, self._factors())
        self._add(rows, clock)
        if self._rows is not None:
            self._rows = CalibrationRows.of(rows, self._rows)
        return self

    def _with_facts(self, model: models.RidgeModel) -> models.RidgeModel:
        facts = {**self._fitted.card["classifier"], "ridge_alpha": model.alpha}
        if self._rows is not None:  # else the model keeps its own calibration
            rows = self._rows
            factors = self._factors()
            calibration = calibrate_rows(
                rows.X, rows.targets, rows.weights, model, class_weight=factors
            )
            facts["calibration"] = None if calibration is None else asdict(calibration)
        return model.with_card(classifier=facts)

    def decision_function(self, X: Any) -> Any:
        """Return the decision values, O(n_samples · n_components · n_features).

        Log odds for two classes, else log probabilities up to a constant per row.
        Scores for the squared hinge, and for the squared loss if alpha is so small that
        there are no probabilities.

        Parameters
        ----------
        X : array-like, frame, xarray, sparse matrix, Dask or Zarr array, dataset, URL
            Of shape (n_samples, n_features).

        Returns
        -------
        float64 array of shape (n_samples,) or (n_samples, n_classes)
            For two classes the value of the second, which is predicted if it is above
            0. A lazy Dask array for a Dask collection, else a NumPy array in memory.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If values are not finite, or columns are missing.
        """
        check_is_fitted(self)
        # scikit-learn's decision functions have one number per row for two classes
        width = None if len(self.classes_) == 2 else len(self.classes_)
        return self._of_scores(
            X, partial(_decisions, self._calibration), width=width, dtype=np.float64
        )

    def predict(self, X: Any) -> Any:
        """Return the class of each row, shape (n_samples,); see `decision_function`.

        On a grid of xarray, text classes become numbers; the attribute `flag_meanings`
        has their names.
        """
        check_is_fitted(self)
        classes = self.classes_
        flags = {}
        if xarrays.is_xarray(X) and classes.dtype.kind in "OUT":
            texts = {i: str(label) for i, label in enumerate(classes)}
            flags = grid_attributes.flags_of(texts)
            classes = np.arange(len(classes))
        finish = partial(_labels, classes, self._calibration)
        labels = self._of_scores(X, finish, width=None, dtype=classes.dtype)
        return labels.assign_attrs(flags) if flags else labels

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Return the probability of each class, in the order of `classes_`.

        Parameters
        ----------
        X
            As in `decision_function`.

        Raises
        ------
        NotFittedError
            Before `fit`.
        SolveError
            If alpha was so small that leave-one-out scores of the training rows are
            unknown.
        """
        # log probabilities come first: they stay finite if a probability rounds to 0
        return np.exp(self.predict_log_proba(X))

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of `predict_proba`; finite even if a probability rounds
        to 0.
        """
        check_is_fitted(self)
        calibration = self._calibration
        if calibration is None:
            raise class_prediction.no_probabilities(self.model_)
        width = len(self.classes_)
        return self._of_scores(
            X, calibration.log_probabilities, width=width, dtype=np.float64
        )

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the (weighted) share of rows whose class is predicted correctly.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.

        Raises
        ------
        DataError
            If the rows are not in memory and a label is not among `classes_`.
        """
        check_is_fitted(self)
        if inputs.is_in_memory(X):
            # scikit-learn's own score also takes labels that no training row had
            values.check_masks(y=y, sample_weight=sample_weight)
            return float(super().score(X, labelled_rows.as_labels(y), sample_weight))
        source, labels = labelled_rows.as_labelled(
            self, X, y, sample_weight, reset=False
        )
        with inputs.suitable_engine(self.engine, source) as engine:
            dataset = labelled.LabelledDataset(source, labels, self.classes_)
            return class_prediction.evaluate(
                dataset, self.model_, engine=engine
            ).accuracy

    def _test_data(
        self, X: Any, y: Any
    ) -> tuple[blocks.Dataset, columns.Column | None]:
        return labelled_rows.as_labelled(self, X, y, reset=False)

    @property
    def n_iter_(self) -> int:
        """Number of steps that minimised the loss; 1 for the squared loss."""
        minimum = self._fitted.card["classifier"]["minimum"]
        return 1 if minimum is None else int(minimum["n_iterations"])

    @property
    def _calibration(self) -> ScoreCalibration | None:
        return class_prediction.calibration_of(self.model_)

    def _per_target(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values

    def _keep(self, model: models.RidgeModel) -> None:
        self._keep_fitted(model)
        self._rows = None
        self.classes_ = class_prediction.read_classes(model)

    def _warn_of_early_stop(self) -> None:
        minimum = self._fitted.card["classifier"]["minimum"]
        if minimum is not None and not minimum["converged"]:
            warn(
                f"loss={self.loss!r} stopped after {minimum['n_iterations']} steps"
                " above its minimum by about"
                f" {minimum['excess'] / minimum['reference']:.1e} of the loss of scores"
                f" of 0; expected tol={self.tol:g}. Raise `max_iter` ({self.max_iter}),"
                " `tol` or `alpha`",
                ConvergenceWarning,
            )


def _labels(
    classes: AnyArray, calibration: ScoreCalibration | None, scores: NDArray[np.float64]
) -> AnyArray:
    return np.asarray(classes[class_prediction.decide(scores, calibration)])


def _decisions(
    calibration: ScoreCalibration | None, scores: NDArray[np.float64]
) -> NDArray[np.float64]:
    values = class_prediction.decisions(scores, calibration)
    return values[:, 0] if values.shape[1] == 1 else values
