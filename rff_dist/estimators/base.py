"""What the estimators on random features share: their parameters, and what they show once fitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.engines.protocol import Engine
from rff_dist.errors import InvalidParameterError
from rff_dist.estimators.folds import check_cv
from rff_dist.estimators.inputs import choose_kernel, is_dask, map_for, map_rows, suitable_engine
from rff_dist.features.draw import seed_from_random_state
from rff_dist.features.feature_map import FeatureMap
from rff_dist.features.kernel_of import length_scale_of
from rff_dist.kernels.base import Kernel, LengthScale
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.linear_model import LinearModel, predict_rows
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.options import RidgeOptions


class RandomFeatureEstimator(BaseEstimator, ABC):
    """An estimator that is a `RidgeModel` once it is fitted; see `RFFRidge` for parameters and attributes."""

    kernel: str | Kernel
    length_scale: Any
    n_components: Any
    alpha: Any
    cv: Any
    features: Any
    design: Any
    precision: Any
    standardize: bool | str
    fit_intercept: bool
    random_state: Any
    sample_weight_kind: str
    engine: Engine | None
    feature_names_in_: NDArray[Any]
    _fitted: RidgeModel

    @property
    @abstractmethod
    def model_(self) -> RidgeModel:
        """The trained model, ready to be stored."""

    @property
    def alpha_(self) -> float | NDArray[np.float64]:
        """The penalty in use; one for each target where they have different ones."""
        self._require_fitted("alpha_")
        return self.model_.alpha

    @property
    def n_components_(self) -> int:
        """D in use."""
        self._require_fitted("n_components_")
        return self._fitted.feature_map.n_components

    @property
    def selection_(self) -> Mapping[str, Any]:
        """What was chosen from: the candidates, and the path or table of alpha."""
        self._require_fitted("selection_")
        candidates = self.model_.card.get("candidates")
        found: dict[str, Any] = dict(self.model_.selection)
        return found if candidates is None else {"candidates": candidates, **found}

    @property
    def estimate_(self) -> Mapping[str, Any] | None:
        """What errors on new rows are estimated to be, by rows that were held out."""
        self._require_fitted("estimate_")
        estimate: Mapping[str, Any] | None = self.model_.card.get("estimate")
        return estimate

    @property
    def feature_map_(self) -> FeatureMap:
        """With the standardizer of the inputs."""
        self._require_fitted("feature_map_")
        return self._fitted.feature_map

    @property
    def ranked_columns_(self) -> tuple[int, ...]:
        """The columns of the inputs that are mapped to a normal law."""
        self._require_fitted("ranked_columns_")
        standardizer = self.feature_map_.standardizer
        return () if standardizer is None else standardizer.ranked_columns

    @property
    def length_scale_(self) -> LengthScale | None:
        """The length scale in use; None for a kernel that has several, or none."""
        self._require_fitted("length_scale_")
        return length_scale_of(self.feature_map_)

    def _require_fitted(self, name: str) -> None:
        if "_fitted" not in vars(self):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r} before it is fitted"
            )

    def _options(self) -> RidgeOptions:
        """Check the parameters that all have, and return them as options of a fit."""
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise InvalidParameterError(f"`fit_intercept` is {self.fit_intercept!r}; expected True or False")
        check_cv(self.cv)
        kernel, length_scale = self.kernel, self.length_scale
        if not isinstance(kernel, str) or kernel != "auto":
            kernel, length_scale = choose_kernel(kernel, length_scale)
        return RidgeOptions(
            kernel=kernel,
            length_scale=length_scale,
            features=self.features,
            n_components=self.n_components,
            alpha=self.alpha,
            design=self.design,
            map=map_for(self.n_components),
            precision=self.precision,
            standardize=self.standardize,
            fit_intercept=bool(self.fit_intercept),
            sample_weight_kind=self.sample_weight_kind,
            seed=seed_from_random_state(self.random_state),
        )

    def _with_names(self, model: RidgeModel) -> RidgeModel:
        """Return the model with a frame's column names, which the dataset made of it does not have."""
        if not hasattr(self, "feature_names_in_"):
            return model
        return model.with_card(feature_names=self.feature_names_in_.tolist())

    def _scores(self, X: Any, dataset: Dataset) -> Any:
        """Return the model's linear predictions: lazily for a Dask collection, else in memory."""
        model = self.model_
        if is_dask(X):
            width = None if model.one_dimensional else model.n_targets
            return map_rows(
                X, PredictRows(model.linear, model.one_dimensional), width=width, dtype=np.float64
            )
        with suitable_engine(self.engine, dataset) as engine:
            return prediction.predict_in_memory(dataset, model, engine=engine)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class PredictRows:
    """Predicts one chunk of a Dask array; a class so that it pickles small."""

    def __init__(self, model: LinearModel, one_dimensional: bool) -> None:
        self.model = model
        self.one_dimensional = one_dimensional

    def __call__(self, X: NDArray[Any]) -> NDArray[np.float64]:
        predictions = predict_rows(Rows(Block(0, 0, len(X)), X), self.model)
        return predictions[:, 0] if self.one_dimensional else predictions
