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
    from rff_dist.data.folding import GroupFolds as GroupFolds
    from rff_dist.data.folding import HashFolds as HashFolds
    from rff_dist.data.folding import PredefinedFolds as PredefinedFolds
    from rff_dist.data.folding import TimeFolds as TimeFolds
    from rff_dist.engines.dask import DaskEngine as DaskEngine
    from rff_dist.engines.serial import SerialEngine as SerialEngine
    from rff_dist.estimators.classifier import RFFClassifier as RFFClassifier
    from rff_dist.estimators.kernel_kmeans import KernelKMeans as KernelKMeans
    from rff_dist.estimators.kmeans import RFFKMeans as RFFKMeans
    from rff_dist.estimators.persistence import load_model as load_model
    from rff_dist.estimators.persistence import save_model as save_model
    from rff_dist.estimators.ridge import RFFRidge as RFFRidge
    from rff_dist.estimators.ridge import merge_models as merge_models
    from rff_dist.estimators.transformers import RFFPCA as RFFPCA
    from rff_dist.estimators.transformers import RFFSampler as RFFSampler
    from rff_dist.estimators.tuning import tune_kernels as tune_kernels
    from rff_dist.estimators.tuning import tune_length_scales as tune_length_scales
    from rff_dist.features.approximation import approximation_error as approximation_error
    from rff_dist.features.draw import draw_feature_map as draw_feature_map
    from rff_dist.features.maps import FeatureMap as FeatureMap
    from rff_dist.features.nystrom import Nystrom as Nystrom
    from rff_dist.kernels.additive import Additive as Additive
    from rff_dist.kernels.explicit import Linear as Linear
    from rff_dist.kernels.explicit import Min as Min
    from rff_dist.kernels.explicit import Polynomial as Polynomial
    from rff_dist.kernels.positive_definite import check_positive_definite as check_positive_definite
    from rff_dist.kernels.stationary import Cauchy as Cauchy
    from rff_dist.kernels.stationary import Gaussian as Gaussian
    from rff_dist.kernels.stationary import Laplacian as Laplacian
    from rff_dist.kernels.stationary import Matern as Matern
    from rff_dist.kernels.stationary import RationalQuadratic as RationalQuadratic
    from rff_dist.kernels.stationary import Sinc as Sinc
    from rff_dist.kernels.stationary import SpectralKernel as SpectralKernel
    from rff_dist.statistics.passes import accumulate as accumulate
    from rff_dist.statistics.ridge_statistics import RidgeStatistics as RidgeStatistics
    from rff_dist.storage.appending import append_dataset as append_dataset
    from rff_dist.storage.corrections import convert_dataset as convert_dataset
    from rff_dist.storage.corrections import delete_rows as delete_rows
    from rff_dist.storage.corrections import replace_rows as replace_rows
    from rff_dist.storage.datasets import open_dataset as open_dataset
    from rff_dist.storage.writing import write_dataset as write_dataset

# The public names, by the modules that define them.
_NAMES = {
    "data.folding": "GroupFolds HashFolds PredefinedFolds TimeFolds",
    "engines.dask": "DaskEngine",
    "engines.serial": "SerialEngine",
    "estimators.classifier": "RFFClassifier",
    "estimators.kernel_kmeans": "KernelKMeans",
    "estimators.kmeans": "RFFKMeans",
    "estimators.persistence": "load_model save_model",
    "estimators.ridge": "RFFRidge merge_models",
    "estimators.transformers": "RFFPCA RFFSampler",
    "estimators.tuning": "tune_kernels tune_length_scales",
    "features.approximation": "approximation_error",
    "features.draw": "draw_feature_map",
    "features.maps": "FeatureMap",
    "features.nystrom": "Nystrom",
    "kernels.additive": "Additive",
    "kernels.explicit": "Linear Min Polynomial",
    "kernels.positive_definite": "check_positive_definite",
    "kernels.stationary": "Cauchy Gaussian Laplacian Matern RationalQuadratic Sinc SpectralKernel",
    "statistics.passes": "accumulate",
    "statistics.ridge_statistics": "RidgeStatistics",
    "storage.appending": "append_dataset",
    "storage.corrections": "convert_dataset delete_rows replace_rows",
    "storage.datasets": "open_dataset",
    "storage.writing": "write_dataset",
}
_HOMES = {name: f"rff_dist.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rff_dist' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # so that Python finds it here from now on, and does not ask again
    return value


def __dir__() -> list[str]:
    return __all__
