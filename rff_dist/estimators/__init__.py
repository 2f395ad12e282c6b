"""scikit-learn's face of the pipeline: the same class for arrays in memory and data sets of any size."""

from rff_dist.estimators.classifier import RFFClassifier
from rff_dist.estimators.kernel_kmeans import KernelKMeans
from rff_dist.estimators.kmeans import RFFKMeans
from rff_dist.estimators.pca import RFFPCA
from rff_dist.estimators.persistence import load_model, save_model
from rff_dist.estimators.ridge import RFFRidge
from rff_dist.estimators.sampler import RFFSampler

__all__ = [
    "RFFPCA",
    "KernelKMeans",
    "RFFClassifier",
    "RFFKMeans",
    "RFFRidge",
    "RFFSampler",
    "load_model",
    "save_model",
]
