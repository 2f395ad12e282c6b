"""Kernel methods on data of any size: exact statistics of random features, summed up in blocks, on Dask.

Every job is a pass over row blocks of a Zarr dataset. A random feature map turns the rows into features,
and their statistics add up exactly. Everything after the pass is arithmetic on these statistics::

    from rff_dist import RFFRidge

    model = RFFRidge("matern", n_components=4096).fit("data.zarr")   # or NumPy, Dask and Zarr arrays
    model.predict("new.zarr")

If the estimators are not enough, use the pieces: `open_dataset`, `write_dataset` and `append_dataset`;
kernels such as `Gaussian`; `draw_feature_map`; `accumulate` on a `SerialEngine` or a `DaskEngine`; and the
`RidgeStatistics` that it returns, which are added and subtracted without rounding.

Importing the package is cheap: Dask, Zarr and scikit-learn are imported when they are first needed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rff_dist.data.folding import GroupFolds, HashFolds, PredefinedFolds, TimeFolds
    from rff_dist.engines.dask import DaskEngine
    from rff_dist.engines.serial import SerialEngine
    from rff_dist.estimators.classifier import RFFClassifier
    from rff_dist.estimators.kernel_kmeans import KernelKMeans
    from rff_dist.estimators.kmeans import RFFKMeans
    from rff_dist.estimators.persistence import load_model, save_model
    from rff_dist.estimators.ridge import RFFRidge, merge_models
    from rff_dist.estimators.transformers import RFFPCA, RFFSampler
    from rff_dist.estimators.tuning import tune_kernels, tune_length_scales
    from rff_dist.features.approximation import approximation_error
    from rff_dist.features.draw import draw_feature_map
    from rff_dist.features.maps import FeatureMap
    from rff_dist.features.nystrom import Nystrom
    from rff_dist.kernels.explicit import Linear, Min, Polynomial
    from rff_dist.kernels.positive_definite import check_positive_definite
    from rff_dist.kernels.stationary import (
        Cauchy,
        Gaussian,
        Laplacian,
        Matern,
        RationalQuadratic,
        Sinc,
        SpectralKernel,
    )
    from rff_dist.statistics.passes import accumulate
    from rff_dist.statistics.ridge_statistics import RidgeStatistics
    from rff_dist.storage.appending import append_dataset
    from rff_dist.storage.corrections import convert_dataset, delete_rows, replace_rows
    from rff_dist.storage.datasets import open_dataset
    from rff_dist.storage.writing import write_dataset

_HOMES = {
    "Cauchy": "rff_dist.kernels.stationary",
    "DaskEngine": "rff_dist.engines.dask",
    "FeatureMap": "rff_dist.features.maps",
    "Gaussian": "rff_dist.kernels.stationary",
    "GroupFolds": "rff_dist.data.folding",
    "HashFolds": "rff_dist.data.folding",
    "KernelKMeans": "rff_dist.estimators.kernel_kmeans",
    "Laplacian": "rff_dist.kernels.stationary",
    "Linear": "rff_dist.kernels.explicit",
    "Matern": "rff_dist.kernels.stationary",
    "Min": "rff_dist.kernels.explicit",
    "Nystrom": "rff_dist.features.nystrom",
    "Polynomial": "rff_dist.kernels.explicit",
    "PredefinedFolds": "rff_dist.data.folding",
    "RFFClassifier": "rff_dist.estimators.classifier",
    "RFFKMeans": "rff_dist.estimators.kmeans",
    "RFFPCA": "rff_dist.estimators.transformers",
    "RFFRidge": "rff_dist.estimators.ridge",
    "RFFSampler": "rff_dist.estimators.transformers",
    "RationalQuadratic": "rff_dist.kernels.stationary",
    "RidgeStatistics": "rff_dist.statistics.ridge_statistics",
    "SerialEngine": "rff_dist.engines.serial",
    "Sinc": "rff_dist.kernels.stationary",
    "SpectralKernel": "rff_dist.kernels.stationary",
    "TimeFolds": "rff_dist.data.folding",
    "accumulate": "rff_dist.statistics.passes",
    "append_dataset": "rff_dist.storage.appending",
    "approximation_error": "rff_dist.features.approximation",
    "check_positive_definite": "rff_dist.kernels.positive_definite",
    "convert_dataset": "rff_dist.storage.corrections",
    "delete_rows": "rff_dist.storage.corrections",
    "draw_feature_map": "rff_dist.features.draw",
    "load_model": "rff_dist.estimators.persistence",
    "merge_models": "rff_dist.estimators.ridge",
    "open_dataset": "rff_dist.storage.datasets",
    "replace_rows": "rff_dist.storage.corrections",
    "save_model": "rff_dist.estimators.persistence",
    "tune_kernels": "rff_dist.estimators.tuning",
    "tune_length_scales": "rff_dist.estimators.tuning",
    "write_dataset": "rff_dist.storage.writing",
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
    "convert_dataset",
    "delete_rows",
    "draw_feature_map",
    "load_model",
    "merge_models",
    "open_dataset",
    "replace_rows",
    "save_model",
    "tune_kernels",
    "tune_length_scales",
    "write_dataset",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rff_dist' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # so that Python finds it here from now on, and does not ask again
    return value


def __dir__() -> list[str]:
    return __all__
