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
from rff_dist.kernels.positive_definite import (
    check_positive_definite as check_positive_definite,
)
from rff_dist.kernels.spectral import SpectralKernel as SpectralKernel
from rff_dist.kernels.stationary import Cauchy as Cauchy
from rff_dist.kernels.stationary import Gaussian as Gaussian
from rff_dist.kernels.stationary import Laplacian as Laplacian
from rff_dist.kernels.stationary import Matern as Matern
from rff_dist.kernels.stationary import RationalQuadratic as RationalQuadratic
from rff_dist.kernels.stationary import Sinc as Sinc
from rff_dist.statistics.passes import accumulate as accumulate
from rff_dist.statistics.ridge_statistics import RidgeStatistics as RidgeStatistics
from rff_dist.storage.appending import append_dataset as append_dataset
from rff_dist.storage.corrections import convert_dataset as convert_dataset
from rff_dist.storage.corrections import delete_rows as delete_rows
from rff_dist.storage.corrections import replace_rows as replace_rows
from rff_dist.storage.datasets import open_dataset as open_dataset
from rff_dist.storage.writing import write_dataset as write_dataset

__version__: str
