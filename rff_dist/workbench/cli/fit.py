"""Train a model."""

from rff_dist.engines.cluster import Cluster
from rff_dist.errors import InvalidParameterError
from rff_dist.typing import PathLike
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results.document import Document


@shell.command(
    "rff-dist fit data.zarr model",
    "rff-dist fit data.zarr model --kernel matern:nu=1.5 --length-scale median --features fourier",
    "rff-dist fit data.zarr model --classify --loss logistic",
    "rff-dist fit data.zarr model --n-folds 10 --alphas 1e-6:1e3:30 --n-components 512,1024 --plot cv.png",
)
def fit(job: specs.Train, where: Cluster, page: shell.Page, plot: str | None = shell.PLOT) -> Document:
    """Train a ridge regression or a classifier, chosen by cross-validation."""
    from rff_dist.fitting.options import is_one_alpha

    options = job.fit.options
    several = isinstance(options.n_components, list)
    fixed = is_one_alpha(options.alpha) and options.cv is None and not several and job.fit.candidates is None
    if plot is not None and fixed and not options.conformal:
        raise InvalidParameterError(
            f"`plot` is {plot!r}, but `alpha` and `n_components` are given, so there are no errors to draw; "
            "give alpha='cv', or leave it out"
        )
    return run_training(job, where, page, plot)


def run_training(job: specs.Train, where: Cluster, page: shell.Page, plot: PathLike | None) -> Document:
    """Train and publish a model, draw what is asked for, and return what a command shows of it."""
    from rff_dist.workbench.jobs.train import train
    from rff_dist.workbench.results import models

    passes = display.Passes(where)
    training = train(job, passes.runner)
    if plot is not None:
        from rff_dist.workbench.page import pictures

        rows = training.fitted.trained.rows if job.fit.candidates is not None else ()
        about = models.choice_facts(training.model)["kernel"] or ""
        pictures.save_choice(training.model, plot, title=job.source.data, about=about, candidates=rows)
    passes.write_page(
        page,
        training.data,
        training.model,
        job.destination.model,
        comparison=training.comparison,
        metrics=training.metrics,
    )
    run = {"plot": plot, "report": page.report, **passes.facts()}
    return models.training_document(training, job, run)
