"""What is compared: ours, gradient boosting and xRFM by default, a linear model, tuned
kernel machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from rff_dist import RFFClassifier, RFFRidge
from rff_dist.ridge.budget import EXACT_ROWS

# rows of the tuned kernel machine, at most
N_TUNED = 2_000
N_FITTED = 6_000
# the same of Gaussian processes, and which data sets are for them
N_PROCESS_TUNED = 500
N_PROCESS = 1_000
# gamma · n_features: length scales of 2.9 to 0.29 median distances
WIDTHS = (0.03, 0.1, 0.3, 1.0, 3.0)

type Fit = Callable[[np.ndarray, np.ndarray], Any]


@dataclass(frozen=True)
class Model:
    """One of those compared.

    `how`: it is fitted, for readers.
    `build`: given whether there are classes and the number of threads, imports what it
    needs and returns what
      fits rows, so that a fit's seconds are without importing its package.
    `least_rows`, `most_rows`: sets with fewer or more rows to train on are not for it.
    """

    title: str
    package: str
    how: str
    build: Callable[[bool, int], Fit]
    most_rows: float = np.inf
    least_rows: int = 0


def _catboost(classes: bool, n_threads: int) -> Fit:
    from catboost import CatBoostClassifier, CatBoostRegressor

    kind = CatBoostClassifier if classes else CatBoostRegressor
    return kind(
        random_seed=0, thread_count=n_threads, verbose=False, allow_writing_files=False
    ).fit


def _lightgbm(classes: bool, n_threads: int) -> Fit:
    from lightgbm import LGBMClassifier, LGBMRegressor

    return (LGBMClassifier if classes else LGBMRegressor)(
        random_state=0, n_jobs=n_threads, verbose=-1
    ).fit


def _linear(classes: bool, n_threads: int) -> Fit:
    ridge = RidgeCV(np.geomspace(1e-3, 1e5, 25))
    return _scaled(LogisticRegression(max_iter=1_000) if classes else ridge).fit


def _xrfm(classes: bool, n_threads: int) -> Fit:
    from xrfm import xRFM

    class HoldingOut(BaseEstimator):
        """xRFM, which needs rows for validation: a fifth, as 16 of 80 % in TALENT."""

        def fit(self, X: np.ndarray, y: np.ndarray) -> HoldingOut:
            order = _sample(X, len(X))
            held_out, kept = np.split(order, [len(X) // 5])
            self.model_ = xRFM(
                device="cpu", random_state=0, n_threads=n_threads, verbose=False
            )
            self.model_.fit(X[kept], y[kept], X[held_out], y[held_out])
            return self

        def predict(self, X: np.ndarray) -> np.ndarray:
            return np.reshape(self.model_.predict(X), len(X))

        def predict_proba(self, X: np.ndarray) -> np.ndarray:
            return np.asarray(self.model_.predict_proba(X))

    scaled = _scaled(HoldingOut())
    return (
        scaled
        if classes
        else TransformedTargetRegressor(scaled, transformer=StandardScaler())
    ).fit


def _kernel_machine(classes: bool, n_threads: int) -> Fit:
    """Tune on few rows, and fit what was best on more."""
    ridge = TransformedTargetRegressor(
        _scaled(KernelRidge(kernel="rbf")), transformer=StandardScaler()
    )
    machine, step = (
        (_scaled(SVC()), "svc") if classes else (ridge, "regressor__kernelridge")
    )
    penalties = (
        {"C": (0.3, 1.0, 3.0, 10.0, 100.0)}
        if classes
        else {"alpha": (1e-4, 1e-2, 0.1, 1.0, 10.0)}
    )

    def fit(X: np.ndarray, y: np.ndarray) -> BaseEstimator:
        values = {"gamma": np.array(WIDTHS) / X.shape[1], **penalties}
        grid = {f"{step}__{name}": choices for name, choices in values.items()}
        few = _sample(X, N_TUNED)
        more = _sample(X, N_FITTED)
        search = GridSearchCV(machine, grid, cv=3, refit=False).fit(X[few], y[few])
        best = clone(machine).set_params(**search.best_params_)
        return (
            CalibratedClassifierCV(best, cv=5, ensemble=False) if classes else best
        ).fit(X[more], y[more])

    return fit


def _gaussian_process(classes: bool, n_threads: int) -> Fit:
    """Tune one width for classes, and for numbers one per column on few rows before all
    are taken.
    """

    def classify(X: np.ndarray, y: np.ndarray) -> Pipeline:
        kernel = ConstantKernel() * RBF(np.sqrt(X.shape[1]))
        return _scaled(GaussianProcessClassifier(kernel, optimizer=_few_steps)).fit(
            X, y
        )

    def regress(X: np.ndarray, y: np.ndarray) -> Pipeline:
        n_features = X.shape[1]
        # the gradient by one width per column costs n_samples² · n_features numbers
        widths = np.full(n_features if n_features <= 20 else 1, np.sqrt(n_features))
        kernel = ConstantKernel() * Matern(widths, (1e-2, 1e4), nu=2.5) + WhiteKernel(
            0.1, (1e-6, 1e2)
        )
        scaler = StandardScaler().fit(X)
        few = _sample(X, N_PROCESS_TUNED)
        tuned = GaussianProcessRegressor(kernel, normalize_y=True, optimizer=_few_steps)
        tuned.fit(scaler.transform(X[few]), y[few])
        return _scaled(
            GaussianProcessRegressor(tuned.kernel_, normalize_y=True, optimizer=None)
        ).fit(X, y)

    return classify if classes else regress


def _few_steps(
    objective: Any, start: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, float]:
    found = minimize(
        objective,
        start,
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"maxiter": 20},
    )
    return found.x, found.fun


def _scaled(estimator: BaseEstimator) -> Pipeline:
    return make_pipeline(StandardScaler(), estimator)


def _sample(X: np.ndarray, n_samples: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(len(X))[:n_samples]


def _by_default(numbers: type, classified: type) -> Callable[[bool, int], Fit]:
    return lambda classes, n_threads: (
        (classified if classes else numbers)(random_state=0).fit
    )


def _named(kernel: str, features: str = "auto") -> Model:
    """Ours with a kernel of its candidates by name, and everything else by default."""
    scale = "evidence" if kernel.startswith("additive") else "auto"
    options = {
        "kernel": kernel,
        "length_scale": scale,
        "features": features,
        "random_state": 0,
    }
    least_rows = EXACT_ROWS + 1 if features == "fourier" else 0
    title = kernel if features == "auto" else f"{kernel}, {features}"
    return Model(
        title, "rff_dist", "", lambda *_: RFFRidge(**options).fit, least_rows=least_rows
    )


OURS = "ours"
NAMED = {  # what the default chooses from
    "gaussian": _named("gaussian", "nystrom"),
    "gaussian-fourier": _named("gaussian", "fourier"),
    "matern": _named("matern:nu=1.5", "nystrom"),
    "matern-fourier": _named("matern:nu=1.5", "fourier"),
    "additive": _named("additive:kernel=matern:nu=1.5"),
    "columns": _named("additive:kernel=matern:nu=1.5,order_2=0,dense=0"),
    "linear-kernel": _named("linear"),
}
MODELS = {
    OURS: Model("ours", "rff_dist", "by default", _by_default(RFFRidge, RFFClassifier)),
    "catboost": Model("CatBoost", "catboost", "by default", _catboost),
    "lightgbm": Model("LightGBM", "lightgbm", "by default", _lightgbm),
    "xrfm": Model(
        "xRFM", "xrfm", "by default, a fifth of the rows for validation", _xrfm
    ),
    "histgb": Model(
        "HistGradientBoosting",
        "scikit-learn",
        "by default",
        _by_default(HistGradientBoostingRegressor, HistGradientBoostingClassifier),
    ),
    "kernel": Model(
        "kernel machine",
        "scikit-learn",
        f"`KernelRidge` or `SVC`, tuned on {N_TUNED:,} rows, fitted to {N_FITTED:,}",
        _kernel_machine,
    ),
    "gp": Model(
        "Gaussian process",
        "scikit-learn",
        f"up to {N_PROCESS:,} rows, Matérn 5/2 with a length scale per column, tuned on"
        f" {N_PROCESS_TUNED}",
        _gaussian_process,
        N_PROCESS,
    ),
    "linear": Model(
        "linear", "scikit-learn", "`RidgeCV` or `LogisticRegression`", _linear
    ),
    **NAMED,
}
