"""The commands that run a job.

A spec and where to run it, here or on a Dask cluster, are read from options; each
command calls its job and returns a document of what the job found. A script that calls
the job would do the same, without progress, page and picture.
"""

import time
from typing import Any

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.workbench.cli import command_context, messages, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results.document import Document

_PICTURE: Any = {"placeholder": "PNG", "access": "writes", "suffixes": (".png",)}


@fields.group
class PageOptions:
    """The page about the result."""

    report: str | None = fields.optional(
        "Write one HTML page about the result, without other files: data, errors,"
        " columns, provenance.",
        placeholder="HTML",
        access="writes",
        suffixes=(".html", ".htm"),
    )


@shell.command(
    "prices.csv --target price",
    "'visits/*.parquet' --target ill --groups patient --into visits-model --report"
    " page.html",
)
def auto(
    job: specs.Auto, context: command_context.CommandContext, page_options: PageOptions
) -> Document:
    """Train and register a model from a table, test it, and compare it with others."""
    from rff_dist.workbench.jobs import auto, train, trees
    from rff_dist.workbench.results.auto import auto_document

    context.clock.begin("ingest")
    prepared = auto.prepare_table(job, observer=command_context.row_counter("ingest"))
    to_train = auto.training_of(job, prepared)
    try:
        training = train.train(to_train, context.runner)
    except BaseException as error:
        place = auto.folder_of(job)
        error.add_note(
            f"its rows are ingested in {place}: rff-dist fit can train on them, and"
            " the same command with --overwrite ingests them again"
        )
        # not without --overwrite
        error.can_go_on = False  # type: ignore[attr-defined]
        raise
    context.at_work("baselines")
    training = trees.with_trees(training, job.seed)
    context.write_page(page_options, training, to_train)
    return auto_document(
        training, to_train, prepared, {"report": page_options.report, **context.facts()}
    )


@shell.command(
    "bikes.csv bikes.zarr --targets rentals",
    "sales.csv sales.zarr --targets price --id order --impute median --holdout 10%",
    "measurements/ data.zarr --targets x,y --columns a,b,c",
    "'new/*.parquet' data.zarr --append --message 'Monday'",
    "data.zarr train.zarr --holdout 20% --test test.zarr",
    "RFF_DIST_SQL=sqlite:///shop.db rff-dist ingest data.zarr --targets price --sql"
    " file:sales.sql",
)
def ingest(job: specs.Ingest) -> Document:
    """Turn files, a query or a Delta or Iceberg table into a dataset, or append new
    rows to one.
    """
    from rff_dist.workbench.jobs.ingest import ingest
    from rff_dist.workbench.results import rows

    start = time.perf_counter()
    outcome = ingest(job, observer=command_context.row_counter("ingest"))
    return rows.ingested_document(outcome, job, time.perf_counter() - start)


@shell.command(
    "data.zarr model",
    "data.zarr model --kernel matern:nu=1.5 --length-scale median --features fourier",
    "data.zarr model --classify --loss logistic",
    "data.zarr model --kernels gaussian,matern:nu=1.5 --length-scales 0.5x,1x,2x "
    "--n-components 256,512,1024",
    "data.zarr model --n-folds 10 --alphas 1e-6:1e3:30 --n-components 512,1024 --plot"
    " cv.png",
)
def fit(
    job: specs.Train,
    context: command_context.CommandContext,
    page_options: PageOptions,
    plot: str | None = fields.optional(
        "Draw the errors that alpha and D are chosen by: against both.", **_PICTURE
    ),
) -> Document:
    """Train a ridge regression or a classifier, chosen by cross-validation."""
    if plot is not None and not job.fit.compares_fits:
        raise InvalidParameterError(
            f"`plot` is {plot!r}, but `alpha` and `n_components` are given, so there"
            " are no errors to draw; give alpha='cv', or leave it out"
        )
    from rff_dist.workbench.jobs.train import train
    from rff_dist.workbench.results import models

    training = train(job, context.runner)
    if plot is not None:
        from rff_dist.workbench.page import pictures

        about = models.choice_facts(training.model)["kernel"] or ""
        figure = pictures.draw_choice(
            training.model, title=job.source.data, about=about
        )
        if figure is not None:
            with command_context.after_job():
                pictures.save(figure, plot)
    context.write_page(page_options, training, job)
    return models.training_document(
        training, job, {"plot": plot, "report": page_options.report, **context.facts()}
    )


@shell.command(
    "model new.zarr predictions.zarr",
    "model new.csv predictions.csv --coverage 0.9",
    "classifier new.zarr labels.zarr --probabilities",
    "clusters new.zarr labels.zarr --distances",
)
def predict(job: specs.Predict, context: command_context.CommandContext) -> Document:
    """Write a model's predictions for every row of a dataset or a table, to Zarr,
    Parquet or CSV.
    """
    from rff_dist.workbench.jobs.predict import predict
    from rff_dist.workbench.results.rows import predicted_document

    return predicted_document(predict(job, context.runner), context.facts())


@shell.command(
    "model test.zarr", "model test.zarr --coverage 0.9", "model test.zarr --std --json"
)
def evaluate(job: specs.Evaluate, context: command_context.CommandContext) -> Document:
    """Measure a model's errors on a dataset: by target, by class, or of clusters
    against labels (`y`).
    """
    from rff_dist.workbench.jobs.predict import evaluate
    from rff_dist.workbench.results.errors import errors_document

    return errors_document(*evaluate(job, context.runner), job, context.facts())


@shell.command(
    "model data.zarr",
    "models/sales data.zarr --test test.zarr --tolerance 0.02",
    "models/sales data.zarr --window 30d",
    "model data.zarr --dry-run --json",
    "model data.zarr --backfill 0 --force",
)
def update(
    job: specs.Update,
    context: command_context.CommandContext,
    page_options: PageOptions,
    # An update replaces its model without being told, so its spec has no `overwrite`;
    # the check of output files needs one for the page.
    overwrite: bool = fields.flag("Replace an existing page."),
) -> Document:
    """Add the rows that were appended since a model was trained, unless the new model
    is clearly worse.

    If it is, the rows are refused, and the exit code is 3.
    """
    from rff_dist.workbench.jobs.refresh import update
    from rff_dist.workbench.results.updates import update_document

    done = update(job, context.runner)
    written = page_options.report
    if done.challenger is not None:
        context.write_page(page_options, done, job)
    elif written is not None:
        messages.say(
            "warning", "there are no new rows, so no report was written", "yellow"
        )
        written = None
    # the document of refused rows has the exit code
    return update_document(done, {"report": written, **context.facts()})


@shell.command(
    "data.zarr labels.zarr --n-clusters 50",
    "data.zarr labels.zarr --n-clusters 2,4,8,16 --n-init 4 --model clusters",
    "digits.zarr labels.zarr --n-clusters 10 --labels y --length-scale 4",
)
def cluster(
    job: specs.Clustering,
    context: command_context.CommandContext,
    page_options: PageOptions,
    plot: str | None = fields.optional(
        "Draw a sample of rows and their clusters: in two kernel principal components.",
        **_PICTURE,
    ),
) -> Document:
    """Cluster the rows of a dataset, which `rff-dist ingest` makes of a table, by
    k-means in random features; write their labels as Zarr.

    For labels as CSV keep the centres with `--model`, then `rff-dist predict`.
    """
    from rff_dist.workbench.jobs.cluster import cluster
    from rff_dist.workbench.results.clusters import clustering_document

    clustered = cluster(job, context.runner)
    if plot is not None:
        from rff_dist.workbench.page import pictures

        seed = job.space.seed
        title = job.source.data
        figure = pictures.draw_clustering(
            clustered.dataset, clustered.clusters, seed=seed, title=title
        )
        with command_context.after_job():
            pictures.save(figure, plot)
    context.write_page(page_options, clustered, job)
    return clustering_document(
        clustered, job, {"plot": plot, "report": page_options.report, **context.facts()}
    )


@shell.command("model_a b.zarr model_b")
def refit(job: specs.Refit, context: command_context.CommandContext) -> Document:
    """Train on other rows with a model's features, offsets and alpha, so that the two
    can be merged.
    """
    from rff_dist.workbench.jobs.merge import refit_model
    from rff_dist.workbench.results.models import refit_document

    return refit_document(refit_model(job, context.runner), job, context.facts())


@shell.command(
    "model_a model_b --model both", "north south west --model models/all --register"
)
def merge(job: specs.Merge) -> Document:
    """Merge models of one spec and different rows: add up their exact sums and solve;
    no data are read.
    """
    from rff_dist.workbench.jobs.merge import merge_models
    from rff_dist.workbench.results.models import merged_document

    return merged_document(merge_models(job), job)


@shell.command(
    "data.zarr --rows rows.csv --models model",
    "data.zarr --rows customers.csv --id --models models/prices --days 30",
)
def forget(job: specs.Forget, context: command_context.CommandContext) -> Document:
    """Delete rows, subtract them from models exactly, remove old versions, and list
    what still holds them.
    """
    from rff_dist.workbench.jobs.forget import forget
    from rff_dist.workbench.results.rows import forgotten_document

    return forgotten_document(forget(job, context.runner), job)
