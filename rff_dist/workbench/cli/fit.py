"""Train a model."""

from rich.text import Text

from rff_dist.engines.cluster import Cluster
from rff_dist.errors import InvalidParameterError
from rff_dist.typing import PathLike
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words


@shell.command(
    "rff-dist fit data.zarr model",
    "rff-dist fit data.zarr model --kernel matern:nu=1.5 --length-scale median --features fourier",
    "rff-dist fit data.zarr model --classify --loss logistic",
    "rff-dist fit data.zarr model --n-folds 10 --alphas 1e-6:1e3:30 --n-components 512,1024 --plot cv.png",
)
def fit(
    job: specs.Train, where: Cluster, plot: str | None = shell.PLOT, report: str | None = shell.REPORT
) -> shell.Report:
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
    return report_training(job, where, plot, report)


def report_training(
    job: specs.Train | specs.Tune, where: Cluster, plot: PathLike | None, report: PathLike | None
) -> shell.Report:
    """Train and publish a model, draw what is asked for, and return what a command shows of it."""
    from rff_dist.workbench.jobs.train import train
    from rff_dist.workbench.jobs.verdict import verdict_of
    from rff_dist.workbench.results import models

    passes, place = display.Passes(where), job.destination.model
    training = train(job, passes.runner)
    trained, searched = training.fitted.trained, job.fit.candidates is not None
    document = {
        **display.describe_published(place, training.published),
        **models.describe_training(training, job.features.seed),
        **(models.describe_search(trained) if searched else {}),
        "metrics": training.metrics,
        "comparison": training.describe()["comparison"],
        "plot": plot,
        "report": report,
    }
    if plot is not None:
        from rff_dist.workbench.page.pictures import save_choice

        about = models.candidate_name(trained.best) if searched else words.kernel_words(document["kernel"])
        rows = trained.rows if searched else ()
        save_choice(training.model, plot, title=job.source.data, about=about, candidates=rows)
    passes.write_page(
        report, training.data, training.model, place, comparison=training.comparison, metrics=training.metrics
    )
    document |= passes.facts()
    facts = dict(models.training_facts(training, job.features.seed))
    table, tables = document["cross_validation"], []
    if searched:
        tables = [models.candidates_table(trained.rows)]
        facts |= models.search_facts(trained)
    elif table is not None and len(table["widths"]) > 1:
        tables = [models.widths_table(table, document["n_components"])]
    verdict = Text(verdict_of(training.comparison), "bold")
    view = display.facts_view(f"wrote {place}", **facts, **display.run_facts(document))
    note = "scale: the length scale; as good: within one standard error of the best"
    notes = [Text(note, "dim")] if searched else []
    return shell.Report(document, [verdict, view, *tables, *notes], next=["evaluate", place, "DATA"])
