"""Kernel methods on data of any size: exact random-feature statistics, streamed on Dask.

Every job is a pass over row blocks of a Zarr dataset, through a random feature map, into statistics
that add up exactly; everything else is arithmetic on those statistics::

    from rff_dist import RFFRidge

    model = RFFRidge("matern", n_components=4096).fit("data.zarr")   # or NumPy, Dask and Zarr arrays
    model.predict("new.zarr")

The pieces, for when the estimators are not enough: `open_dataset`, `write_dataset` and `append_dataset`,
kernels such as `Gaussian`, `draw_feature_map`, `accumulate` on a `SerialEngine` or a `DaskEngine`, and the
`RidgeStatistics` that come out, which `+` and `-` without rounding.

Importing the package is cheap: what needs Dask, Zarr or scikit-learn is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rff_dist.approximation import approximation_error
    from rff_dist.engines.dask import DaskEngine
    from rff_dist.engines.serial import SerialEngine
    from rff_dist.estimators import (
        RFFPCA,
        KernelKMeans,
        RFFClassifier,
        RFFKMeans,
        RFFRidge,
        RFFSampler,
        load_model,
        save_model,
    )
    from rff_dist.feature_map import FeatureMap, Nystrom, draw_feature_map
    from rff_dist.folds import GroupFolds, HashFolds, PredefinedFolds, TimeFolds
    from rff_dist.kernels import (
        Cauchy,
        Gaussian,
        Laplacian,
        Linear,
        Matern,
        Min,
        Polynomial,
        RationalQuadratic,
        Sinc,
        SpectralKernel,
        check_positive_definite,
    )
    from rff_dist.pipeline import accumulate
    from rff_dist.statistics import RidgeStatistics
    from rff_dist.storage import append_dataset, open_dataset, write_dataset
    from rff_dist.tuning import tune_kernels, tune_length_scales

_HOMES = {
    "Cauchy": "rff_dist.kernels",
    "DaskEngine": "rff_dist.engines.dask",
    "FeatureMap": "rff_dist.feature_map",
    "Gaussian": "rff_dist.kernels",
    "GroupFolds": "rff_dist.folds",
    "HashFolds": "rff_dist.folds",
    "KernelKMeans": "rff_dist.estimators",
    "Laplacian": "rff_dist.kernels",
    "Linear": "rff_dist.kernels",
    "Matern": "rff_dist.kernels",
    "Min": "rff_dist.kernels",
    "Nystrom": "rff_dist.feature_map",
    "Polynomial": "rff_dist.kernels",
    "PredefinedFolds": "rff_dist.folds",
    "RFFClassifier": "rff_dist.estimators",
    "RFFKMeans": "rff_dist.estimators",
    "RFFPCA": "rff_dist.estimators",
    "RFFRidge": "rff_dist.estimators",
    "RFFSampler": "rff_dist.estimators",
    "RationalQuadratic": "rff_dist.kernels",
    "RidgeStatistics": "rff_dist.statistics",
    "SerialEngine": "rff_dist.engines.serial",
    "Sinc": "rff_dist.kernels",
    "SpectralKernel": "rff_dist.kernels",
    "TimeFolds": "rff_dist.folds",
    "accumulate": "rff_dist.pipeline",
    "append_dataset": "rff_dist.storage",
    "approximation_error": "rff_dist.approximation",
    "check_positive_definite": "rff_dist.kernels",
    "draw_feature_map": "rff_dist.feature_map",
    "load_model": "rff_dist.estimators",
    "open_dataset": "rff_dist.storage",
    "save_model": "rff_dist.estimators",
    "tune_kernels": "rff_dist.tuning",
    "tune_length_scales": "rff_dist.tuning",
    "write_dataset": "rff_dist.storage",
}

__all__ = [  # noqa: RUF022  plain alphabetical order
    "Cauchy",
    "DaskEngine",
    "FeatureMap",
    "Gaussian",
    "GroupFolds",
    "HashFolds",
    "KernelKMeans",
    "Laplacian",
    "Linear",
    "Matern",
    "Min",
    "Nystrom",
    "Polynomial",
    "PredefinedFolds",
    "RFFClassifier",
    "RFFKMeans",
    "RFFPCA",
    "RFFRidge",
    "RFFSampler",
    "RationalQuadratic",
    "RidgeStatistics",
    "SerialEngine",
    "Sinc",
    "SpectralKernel",
    "TimeFolds",
    "__version__",
    "accumulate",
    "append_dataset",
    "approximation_error",
    "check_positive_definite",
    "draw_feature_map",
    "load_model",
    "open_dataset",
    "save_model",
    "tune_kernels",
    "tune_length_scales",
    "write_dataset",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rff_dist' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
