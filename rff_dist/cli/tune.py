"""Choose kernel, length scale, alpha and D: compare candidates by cross-validation, and store the best."""

from __future__ import annotations

from rff_dist.cli.fit import report_training
from rff_dist.cli.options import PlotPath, ReportPath
from rff_dist.cli.shell import Report, command
from rff_dist.jobs.options import Where
from rff_dist.jobs.specs import Tune


@command(
    "rff-dist tune data.zarr model",
    "rff-dist tune data.zarr model --kernels gaussian,matern:nu=1.5 --length-scales 0.5x,1x,2x "
    "--components 256,512,1024,2048 --plot cv.png",
    "rff-dist tune data.zarr model --folds 10 --group-by patient --alphas 1e-6:1e3:30",
)
def tune(
    job: Tune,
    where: Where,
    plot: PlotPath = None,
    report: ReportPath = None,
) -> Report:
    """Compare kernels, length scales, alphas and D by cross-validation in one reading; store the best."""
    return report_training(job, where, plot, report)
