"""Base classes of the estimators: parameters that they share, and fitted attributes.

A user's rows and parameters go in; a fitted model comes out, and its choices become the
estimator's attributes. The model's card is the JSON record of its fit. scikit-learn's
`BaseEstimator` alone knows neither engines nor stored rows.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from rff_dist.data import columns
from rff_dist.data.blocks import Dataset, Rows
from rff_dist.engines import events, protocol
from rff_dist.engines.clock import Clock, Times
from rff_dist.engines.progress_bar import RichProgress
from rff_dist.errors import InvalidParameterError, NotFiniteError, StatisticsError
from rff_dist.estimators import categories, inputs, panel, parameter_checks, splits
from rff_dist.features import draw, kinds, maps, nystrom
from rff_dist.features.levels import joined
from rff_dist.fields import values_of
from rff_dist.fitting import options, parameters, predicting
from rff_dist.frequencies import designs
from rff_dist.kernels import base
from rff_dist.recipes import model_rows, recipes
from rff_dist.ridge import effects, models
from rff_dist.ridge.refit import refit
from rff_dist.statistics import passes, ridge_statistics, standardizing
from rff_dist.text import nearest
from rff_dist.typing import AnyArray, Facts, FloatArray, PathLike

#: Where the manual is, for links in notebooks: the address of the site that `make
#: manual` builds.
MANUAL_VARIABLE = "RFF_DIST_MANUAL"

# The names of a grid's variables that hold results, by the label of the pass.
_VARIABLES = {"predict": "prediction", "label": "labels", "project": "components"}

# Parameters that decide the features of rows and their weights, so a change of them
# between calls of `partial_fit` would mix two kinds of rows in one model.
_FIXED = (
    "kernel",
    "length_scale",
    "n_components",
    "features",
    "design",
    "precision",
    "standardize",
    "categorical_features",
    "random_state",
    "sample_weight_kind",
    "class_weight",
    "loss",
)

# Parameters of other packages that have other names here.
_FOREIGN = {
    "gamma": "`length_scale` = 1/√(2·gamma) of the gaussian kernel",
    "degree": "the kernel 'polynomial:degree=3'",
    "coef0": "the kernel 'polynomial:degree=3,offset=1'",
    "C": "`alpha` = 1/(2·C)",
    "sigma": "`length_scale`",
    "seed": "`random_state`",
    "n_jobs": "`engine` = SerialEngine(n_threads=…)",
}


class RowsEstimator(BaseEstimator, ABC):
    """An estimator that takes rows in memory, stored rows and Dask collections."""

    engine: protocol.Engine | None = None
    verbose: int = 0
    #: Seconds by part of the fit, with rows added to it; None for a loaded model.
    _times: Times | None = None
    #: How the columns of a frame became X, for estimators whose model has no card.
    _recipe: Facts | None = None

    def __new__(cls, *_: Any, **parameters: Any) -> Self:
        if unknown := cls._unknown_parameter(parameters):
            raise TypeError(unknown)
        return object.__new__(cls)

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, as in scikit-learn.

        Parameters
        ----------
        **params : dict
            Their new values.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            If there is no parameter of a name.
        """
        if unknown := self._unknown_parameter(params):
            raise InvalidParameterError(unknown)
        super().set_params(**params)
        return self

    @classmethod
    def _unknown_parameter(cls, names: Iterable[str]) -> str | None:
        """Say what to give in place of a parameter that there is not."""
        known = cls._get_param_names()
        for name in sorted(set(names).difference(known)):
            near = nearest(name, known) or f"one of {known}"
            advice = _FOREIGN.get(name, near)
            return f"{cls.__name__} has no parameter {name!r}; give {advice}"
        return None

    _doc_link_module = "rff_dist"

    @property
    def _doc_link_template(self) -> str:
        """The address of an estimator's page in the manual, if that is known."""
        manual = os.environ.get(MANUAL_VARIABLE, "").rstrip("/")
        return manual and f"{manual}/reference/estimators/{{estimator_name}}.html"

    @abstractmethod
    def _choices(self) -> dict[str, str]:
        """Return what the fit chose, in words."""

    @property
    def _panel(self) -> dict[str, str]:
        """What was chosen and how long that took; empty before the fit."""
        try:
            check_is_fitted(self)
        except NotFittedError:
            return {}
        facts = self._choices()
        if self._times is not None:
            seconds = self._times.seconds["total"]
            facts["seconds"] = f"{seconds:.2g}" if seconds < 10 else f"{seconds:,.0f}"
        return facts

    def summary(self) -> str:
        """Return what the fit chose, as text to print, and the candidates' errors.

        Returns
        -------
        str
            Several lines.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        check_is_fitted(self)
        card = getattr(vars(self).get("_fitted"), "card", {})
        parts = [
            type(self).__name__,
            panel.as_text(self._panel),
            panel.candidates_text(card),
        ]
        return "\n".join(filter(None, parts))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text: str = super().__repr__(N_CHAR_MAX)
        facts = self._panel
        if facts:
            text += f"\n{panel.as_text(facts)}"
        return text

    def _html_repr(self) -> str:
        box: str = estimator_html_repr(self)
        facts = self._panel
        if facts:
            box += panel.as_html(facts)
        return box

    @property
    def _names(self) -> list[str]:
        """The names of the inputs' columns; x0, x1, … if they have none."""
        recipe = recipes.recipe_of(inputs.facts_of(self))
        if recipe is not None:  # inputs are what it makes of the columns
            return recipe.names
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            return [f"x{i}" for i in range(self.n_features_in_)]
        return list(names)

    @contextmanager
    def _engine_of_fit(
        self, dataset: Dataset | None, clock: Clock
    ) -> Iterator[protocol.Engine]:
        """Yield the engine of a fit, whose passes are timed, and shown with `verbose`.

        Raises InvalidParameterError if `verbose` is not an integer of at least 0.
        """
        name = type(self).__name__
        verbose = cast("object", self.verbose)
        if not isinstance(verbose, int | np.integer) or verbose < 0:
            raise InvalidParameterError(
                f"`verbose` is {verbose!r}; expected 0, or 1 to show the progress"
            )
        with (
            inputs.suitable_engine(self.engine, dataset) as engine,
            ExitStack() as stack,
        ):
            clock.begin("other")
            stack.enter_context(engine.observed_by(clock))
            # a user's engine has the observers that the user gave it
            if self.engine is None:
                stack.enter_context(engine.observed_by(events.log))
            progress = None
            if verbose:
                progress = stack.enter_context(RichProgress(name=name))
                stack.enter_context(engine.observed_by(progress))
            yield engine
            self._times = Times(clock.seconds())
            if progress is not None:
                progress.say(f"{name}: fitted in {self._times.seconds['total']:.1f} s")

    def _map(
        self,
        X: Any,
        compute: Callable[[Rows, Any], AnyArray],
        state: Any,
        *,
        label: str,
        width: int | None,
        dtype: Any,
    ) -> Any:
        """Apply a function of rows and a state to X, lazily for a Dask collection.

        `label` names the pass. The result has `width` columns; with None it has one
        number per row.
        """
        dataset: Any = inputs.as_dataset(self, X, reset=False, supervised=False)
        # a part of Dask's own graph, chunk by chunk; no engine makes a pass
        if inputs.is_dask(X):
            compute_chunk = partial(_compute_chunk, compute, state)
            return inputs.map_rows(dataset.X, compute_chunk, width=width, dtype=dtype)
        with inputs.suitable_engine(self.engine, dataset) as engine:
            levels = recipes.levels_of(inputs.facts_of(self))
            model_rows.warn_of_later_rows(dataset, vars(self).get("_fitted"))
            source = model_rows.with_codes_of(levels, dataset.without_targets())
            values = predicting.rows_in_memory(
                source, compute, state, engine=engine, label=label
            )
        return inputs.on_grid(X, dataset, values, _VARIABLES.get(label, label))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _compute_chunk[S](
    compute: Callable[[Rows, S], AnyArray], state: S, X: AnyArray
) -> AnyArray:
    try:
        return compute(Rows.in_memory(X), state)
    except NotFiniteError as error:
        error.add_note("The row is counted in its partition of the Dask collection")
        raise


@dataclass(repr=False, eq=False)
class FeatureEstimator(RowsEstimator):
    """An estimator on random features, which keeps its fitted model as `_fitted`.

    Its parameters are the fields of a dataclass, whose `__init__` stores them as they
    are.
    """

    _: KW_ONLY
    # scikit-learn's clone wants parameters back as they were given, so nothing is
    # checked before `fit`
    kernel: str | base.Kernel = "gaussian"
    length_scale: Any = "auto"
    n_components: Any = "auto"
    features: str | nystrom.Nystrom = "fourier"
    design: str | designs.Design = "auto"
    precision: str = "standard"
    standardize: bool | str = False
    categorical_features: Any = categories.FROM_DTYPE
    random_state: Any = None
    engine: protocol.Engine | None = None
    verbose: int = 0
    # Without a default: as long as it is missing from vars(), nothing is fitted.
    _fitted: Any = field(init=False)

    @property
    def feature_map_(self) -> maps.FeatureMap:
        """The features, with the standardizer of the inputs."""
        feature_map: maps.FeatureMap = self._fitted.feature_map
        return feature_map

    @property
    def kernel_(self) -> base.Kernel | None:
        """The kernel in use, with its length scales; None of given frequencies."""
        return kinds.kernel_of(self.feature_map_)

    @property
    def features_(self) -> str:
        """The kind of features in use, "fourier" or "nystrom"."""
        return kinds.kind_of(self.feature_map_)

    @property
    def length_scale_(self) -> base.LengthScale | None:
        """The length scale in use; None if the kernel has several, or none."""
        return kinds.length_scale_of(self.feature_map_)

    def __sklearn_is_fitted__(self) -> bool:
        return "_fitted" in vars(self)

    if not TYPE_CHECKING:  # with it, a type checker would accept any attribute
        # Python calls this if an attribute is missing, or its property raised
        # AttributeError.
        def __getattr__(self, name: str) -> Any:
            if name.endswith("_") and not self.__sklearn_is_fitted__():
                kind = type(self).__name__
                raise AttributeError(
                    f"{kind!r} object has no attribute {name!r} before it is fitted"
                )
            return object.__getattribute__(self, name)

    def _with_model(self, model: Any) -> Self:
        """Keep a model that another fit made, perhaps in another process."""
        self._keep(model)
        self.n_features_in_ = model.feature_map.n_features
        recipe = recipes.recipe_of(model.card)
        names = model.card.get("feature_names")
        if names:
            self.feature_names_in_ = np.asarray(names, object)
        elif recipe is not None:  # made from an array, whose left-out columns count too
            self.n_features_in_ = len(recipe.inputs) + len(recipe.left_out)
        return self

    def _with_names(self, model: Any) -> Any:
        """Return the model with the names of a frame's columns on its card."""
        if not hasattr(self, "feature_names_in_") or recipes.RECIPE in model.card:
            return model
        names = {"feature_names": self.feature_names_in_.tolist()}
        return replace(model, card={**model.card, **names})

    def _features(self, n_components: Any) -> dict[str, Any]:
        """Check the parameters of features, and return them as library options."""
        standardizing.check_standardize(self.standardize)
        kernel = self.kernel
        # "auto" is no kernel: the fit compares several
        if not isinstance(kernel, str) or kernel != "auto":
            kernel = parameter_checks.choose_kernel(kernel, self.length_scale)
        return {
            "kernel": kernel,
            "length_scale": self.length_scale,
            "n_components": n_components,
            "map": parameter_checks.map_for(n_components),
            **values_of(self, "features", "design", "precision", "standardize"),
            "seed": draw.seed_from_random_state(self.random_state),
        }


@dataclass(repr=False, eq=False)
class RandomFeatureEstimator(FeatureEstimator, ABC):
    """An estimator of a `RidgeModel`; `RFFRidge` has its parameters and attributes."""

    kernel: str | base.Kernel = "auto"
    _: KW_ONLY
    alpha: Any = "auto"
    cv: Any = None
    features: str | nystrom.Nystrom = "auto"
    precision: str = "auto"
    standardize: bool | str = "auto"
    fit_intercept: bool = True
    sample_weight_kind: str = "precision"
    effort: int = 2
    time_limit: float | None = None
    _fitted: models.RidgeModel = field(init=False)

    #: Sums that include rows which `partial_fit` added, until a model is solved from
    #: them; None if there are none.
    _pending: ridge_statistics.RidgeStatistics | None = field(init=False)
    #: The parameters of the fit that may not change while rows are added.
    _fixed: Facts = field(init=False)

    @property
    def model_(self) -> models.RidgeModel:
        """The trained model, ready to be stored."""
        if self._pending is not None:
            # `_pending` is cleared last: if the solution fails, no rows are lost
            alpha = alpha_to_refit(self.alpha)
            solved = refit(
                self._fitted,
                self._pending,
                alpha=alpha,
                fit_intercept=self.fit_intercept,
            )
            self._fitted = self._with_facts(solved)
            self._pending = None
        return self._fitted

    @property
    def statistics_(self) -> ridge_statistics.RidgeStatistics:
        """The exact sums of all rows so far."""
        statistics = self._fitted.statistics if self._pending is None else self._pending
        if statistics is None:
            raise AttributeError(self._fitted.why_no_statistics)
        return statistics

    @abstractmethod
    def _with_facts(self, model: models.RidgeModel) -> models.RidgeModel:
        """Return a model that was solved after rows were added, with the facts of the
        estimator's kind on its card.
        """

    def _keep_fitted(self, model: models.RidgeModel) -> None:
        """Keep a model, and the parameters that may not change while rows are added."""
        self._fitted = model
        self._pending = None
        self._fixed = self._fixed_parameters()

    def _fixed_parameters(self) -> Facts:
        """Return parameters as JSON values, which later changes of a list or mapping
        leave alone; generators of random numbers have none.
        """
        values = self.get_params(deep=False)
        return parameters.to_card({name: values.get(name) for name in _FIXED})

    def _check_adding(self) -> None:
        """Raise InvalidParameterError if the fit had other parameters, StatisticsError
        if the model has no sums to which rows can be added.
        """
        for name, value in self._fixed_parameters().items():
            fitted = self._fixed.get(name, value)
            if value != fitted:
                raise InvalidParameterError(
                    f"`{name}` is {value!r}, but the model was fitted with {fitted!r},"
                    " and rows of both do not add up; expected no change between calls"
                    " of partial_fit. Call `fit` with all rows, or set it back"
                )
        if not hasattr(self, "statistics_"):
            raise StatisticsError(
                f"no rows can be added: {self.model_.why_no_statistics}"
            )

    def _add(self, dataset: Dataset, clock: Clock) -> None:
        """Add a dataset's rows to the sums."""
        earlier_seconds = {} if self._times is None else self._times.seconds
        feature_map = self.feature_map_
        model_rows.warn_of_levels(feature_map, dataset)
        map_of_rows = model_rows.features_for(feature_map, dataset)
        with self._engine_of_fit(dataset, clock) as engine:
            new_sums = passes.accumulate(
                dataset, map_of_rows, engine=engine, spec=self.statistics_.spec
            )
        # nothing is solved here, so that many calls of partial_fit pay for one solution
        self._pending = self.statistics_ + new_sums
        levels = joined(feature_map.levels, map_of_rows.levels)
        if levels != feature_map.levels:
            card = self._fitted.card
            self._fitted = replace(
                self._fitted,
                feature_map=feature_map.with_levels(levels),
                card={**card, **model_rows.recipe_with(levels, card)},
            )
        # `_engine_of_fit` has set the times of this call; the sums of all calls are
        # shown
        assert self._times is not None
        seconds = self._times.seconds
        self._times = Times(
            {
                name: earlier_seconds.get(name, 0.0) + seconds.get(name, 0.0)
                for name in {**earlier_seconds, **seconds}
            }
        )

    @abstractmethod
    def _per_target(self, values: NDArray[np.float64]) -> Any:
        """Return values per target in the shape that the user sees."""

    @property
    def feature_coef_(self) -> Any:
        """Weights of the features."""
        return self._per_target(self.model_.coefficients.T)

    @property
    def feature_intercept_(self) -> Any:
        """The constant that is added to the weighted features."""
        return self._per_target(self.model_.intercept)

    @property
    def coef_(self) -> Any:
        """Slopes of the predictions in the inputs; only for a linear kernel."""
        return self._per_target(_slopes_of(self.model_)[0])

    @property
    def intercept_(self) -> Any:
        """The prediction at inputs of 0; only for a linear kernel."""
        return self._per_target(_slopes_of(self.model_)[1])

    @property
    def alpha_(self) -> float | NDArray[np.float64]:
        """The penalty in use; an array if targets have different ones."""
        return self.model_.alpha

    @property
    def n_components_(self) -> int:
        """The number of features in use."""
        return self._fitted.feature_map.n_components

    @property
    def selection_(self) -> Facts:
        """How choices were made: the candidates, and the path or table of alpha."""
        card = self.model_.card
        tried = {name: card[name] for name in ("candidates", "untried") if name in card}
        return {**tried, **self.model_.selection}

    @property
    def estimate_(self) -> Facts | None:
        """Estimated errors on new rows, by cross-validation."""
        estimate: Facts | None = self.model_.card.get("estimate")
        return estimate

    @property
    def mapped_columns_(self) -> tuple[int, ...]:
        """The columns that are not only standardised, but mapped, for example by
        ranks.
        """
        standardizer = self.feature_map_.standardizer
        if standardizer is None:
            return ()
        return standardizer.mapped_columns

    def report(
        self, path: PathLike, X: Any, y: Any = None, *, intended_use: str | None = None
    ) -> Path:
        """Write a page about the model: errors on test rows, choices, columns' effects.

        It is the page that `rff-dist fit --report` writes, as one HTML file without
        links to other hosts.

        Parameters
        ----------
        path : str or Path
            Of the file. A page of an earlier run is replaced, and no other file.
        X, y
            Test rows, which the model was not trained on, as in `score`.
        intended_use : str, optional
            What the model is meant for, and what not: for the section of that name.

        Returns
        -------
        Path
            Of the file.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If values are not finite, columns are missing, or there are no targets.
        StorageError
            If the file cannot be written.
        """
        # the library's only import of the workbench; here, because it loads matplotlib
        from rff_dist.workbench.page.pages import write_report

        check_is_fitted(self)
        rows, labels = self._test_data(X, y)
        with inputs.suitable_engine(self.engine, rows) as engine:
            place = type(self).__name__
            times = self._times or Times()
            model = self.model_
            if intended_use is not None:
                model = model.with_card(about={"intended_use": intended_use})
            return write_report(
                rows, labels, model, path, place=place, times=times, engine=engine
            )

    @abstractmethod
    def _test_data(self, X: Any, y: Any) -> tuple[Dataset, columns.Column | None]:
        """Return rows with their targets, or rows and their labels, checked."""

    def _choices(self) -> dict[str, str]:
        return panel.model_facts(self._fitted, self._names)

    def _options(
        self, *, sample_weight_kind: str | None = None
    ) -> options.RidgeOptions:
        """Check the parameters of this class, and return the options of a fit."""
        fit_intercept = parameter_checks.check_flag(self.fit_intercept, "fit_intercept")
        splits.check_cv(self.cv)
        return options.RidgeOptions(
            **self._features(self.n_components),
            fit_intercept=fit_intercept,
            sample_weight_kind=sample_weight_kind or self.sample_weight_kind,
            **values_of(self, "alpha", "effort", "time_limit"),
        )

    def _of_scores(
        self,
        X: Any,
        finish: Callable[[FloatArray], AnyArray],
        *,
        width: int | None,
        dtype: Any,
    ) -> Any:
        """Apply `finish` to the model's linear predictions, (n_rows, n_targets)."""
        compute = partial(_finished_scores, finish)
        return self._map(
            X, compute, self.model_.linear, label="predict", width=width, dtype=dtype
        )


def _finished_scores(
    finish: Callable[[FloatArray], AnyArray], rows: Rows, model: predicting.LinearModel
) -> AnyArray:
    return finish(predicting.predict_rows(rows, model))


def alpha_to_refit(alpha: options.Alpha) -> options.Alpha | None:
    """Return how alpha is chosen after rows were added; None keeps the present alpha.

    Only sums of all rows are left then, neither folds nor the rows themselves. So only
    choices that need no more than sums are made again.
    """
    options.check_alpha(alpha)
    is_by_sums = isinstance(alpha, str) and alpha in ("gcv", "evidence")
    return alpha if is_by_sums or options.is_one_alpha(alpha) else None


def _slopes_of(model: models.RidgeModel) -> tuple[FloatArray, FloatArray]:
    """Return the slopes in the inputs, and the intercepts; AttributeError if the model
    has no slopes.
    """
    if model.feature_map.levels:
        columns = sorted(model.feature_map.levels)
        raise AttributeError(
            f"no coefficient per input: categories, columns {columns} counted from 0,"
            " have one per level; `effects_` of a linear kernel has them by name"
        )
    if not effects.has_slopes(model):
        raise AttributeError(
            f"no coefficient per input: the kernel {kinds.kernel_of(model.feature_map)}"
            " has one per random feature, in `feature_coef_`. Rank inputs with"
            " sklearn.inspection.permutation_importance"
        )
    return effects.slopes(model)
