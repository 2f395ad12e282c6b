"""Choose kernel, length scale, alpha and D: compare candidates by cross-validation, and store the best."""

from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import fit, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results.document import Document


@shell.command(
    "rff-dist tune data.zarr model",
    "rff-dist tune data.zarr model --kernels gaussian,matern:nu=1.5 --length-scales 0.5x,1x,2x "
    "--n-components 256,512,1024,2048 --plot cv.png",
    "rff-dist tune data.zarr model --n-folds 10 --groups patient --alphas 1e-6:1e3:30",
)
def tune(job: specs.Tune, where: Cluster, page: shell.Page, plot: str | None = shell.PLOT) -> Document:
    """Compare kernels, length scales, alphas and D by cross-validation in one reading; store the best."""
    return fit.run_training(job, where, page, plot)
