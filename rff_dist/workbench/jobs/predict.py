"""Use a stored model of any kind: predict for every row of a dataset, or evaluate it.

In go the URLs of a model and of rows, a dataset or a table; out come a Zarr group or a
table of predictions, or the model's errors. `RFFRidge.predict` on rows in memory is the
simple version: it would not read tables by the model's recipe, go on where a stopped
job ended, or keep half-written predictions out of sight.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rff_dist.classify import predict as class_prediction
from rff_dist.data.blocks import Dataset
from rff_dist.data.grids import GridDataset
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.fitting import evaluation
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.models import kinds, versions
from rff_dist.recipes import model_rows
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.calibration import Calibration
from rff_dist.ridge.models import INTERVAL_ROWS
from rff_dist.storage import datasets, grids, locations, output_places
from rff_dist.storage.columns import ID, id_column, ids_of, open_labelled
from rff_dist.text import redact
from rff_dist.typing import Facts, FloatArray, PathLike, Summary, frozen
from rff_dist.workbench.jobs import specs, steps, tables, watching
from rff_dist.workbench.tables.roles import Roles

#: what `evaluate` returns, by the kind of the model
type Evaluation = (
    evaluation.Errors
    | Calibration
    | class_prediction.Confusion
    | kmeans_labels.Contingency
)


@frozen
class Extra:
    """Something that only one kind of model predicts, if an option asks for it."""

    kind: str
    words: str
    #: names of the arrays that are written
    arrays: Sequence[str]


#: By the option that asks for it.
_EXTRAS = {
    "std": Extra("regression", "standard deviations", ["standard_deviations"]),
    "coverage": Extra("regression", "intervals", ["lower", "upper"]),
    "probabilities": Extra("classifier", "probabilities", ["probabilities"]),
    "distances": Extra("clusters", "distances", ["distances"]),
    "principal": Extra("clusters", "principal components", ["principal"]),
}
#: How a sentence begins that says what each kind of model lacks.
_HAVE = {
    "regression": "a regression has",
    "classifier": "a classifier has",
    "clusters": "clusters have",
}


@frozen
class ScoringModel:
    """A model to score rows with; `open_model` makes it.

    `version`: the version's number, if it is a registered model.
    """

    url: str
    model: kinds.AnyModel
    version: int | None

    @property
    def kind(self) -> str:
        """One of "regression", "classifier" and "clusters"."""
        return kinds.kind_of(self.model)


def open_model(url: PathLike) -> ScoringModel:
    """Read a model, or the current version of a registered model.

    Raises StorageError if there is none, or it is damaged.
    """
    version = versions.RegisteredModel(url).current()
    model = kinds.read_any(url if version is None else version.url)
    return ScoringModel(
        os.fspath(url), model, None if version is None else version.number
    )


def open_rows(
    url: str, scoring: ScoringModel, arguments: Facts
) -> datasets.ZarrDataset | GridDataset:
    """Open the rows that a model is to score.

    `arguments`: for `open_dataset`; by default no `y` is read. Raises DataError
    if the columns are not those that the model was trained on; StorageError if there
    are no rows.
    """
    complete = _with_grid_names(url, scoring, {"y": None, **arguments})
    dataset: datasets.ZarrDataset | GridDataset = datasets.open_dataset(url, **complete)
    check_rows(url, dataset, scoring)
    return dataset


def _with_grid_names(url: str, scoring: ScoringModel, arguments: Facts) -> Summary:
    """Return the arguments of `open_dataset`, with the names of a grid's variables.

    If the data are a grid with the model's variables, these are its inputs and target,
    unless the user names others. "X" and "y" are the options' defaults: with them the
    user has named nothing.
    """
    complete = dict(arguments)
    if arguments.get("x", "X") != "X":
        return complete
    card = scoring.model.card
    inputs = grids.find_inputs(url, arguments.get("version"), card)
    if inputs is not None:
        complete["x"] = inputs
        targets = card.get("target_names") or ["y"]
        if arguments["y"] == "y" and len(targets) == 1:
            complete["y"] = targets[0]
    return complete


def check_rows(url: str, dataset: Dataset, scoring: ScoringModel) -> None:
    """Check that rows have the columns that a model was trained on.

    Raises DataError if not, or if a table became numbers by another recipe.
    """
    try:
        model_rows.check_dataset(dataset, scoring.model)
    except DataError as error:
        raise DataError(
            f"{redact(url)} does not fit {redact(scoring.url)}: {error}. Give data of"
            " the columns that the model was trained on, or another model"
        ) from error


def extra_options(job: specs.Predict | specs.Evaluate) -> list[str]:
    """Return the names of the options in `_EXTRAS` that are given."""
    return [name for name in _EXTRAS if getattr(job, name, None) not in (None, False)]


def check_extras(job: specs.Predict | specs.Evaluate, scoring: ScoringModel) -> None:
    """Refuse options that a model of this kind does not have, before a pass begins.

    Raises InvalidParameterError; SolveError if a classifier has no probabilities.
    """
    options = extra_options(job)
    for name in options:
        extra = _EXTRAS[name]
        if extra.kind != scoring.kind:
            raise InvalidParameterError(
                f"`{name}` is wanted, but {_HAVE[scoring.kind]} no {extra.words};"
                f" expected a {extra.kind!r} model. Leave it out"
            )
    model: Any = scoring.model
    if "probabilities" in options and model.card["classifier"]["calibration"] is None:
        raise class_prediction.no_probabilities(model)


# -- the jobs
# --------------------------------------------------------------------------------------


@frozen
class PredictionResult:
    """What the job that predicts wrote.

    `record`: JSON values: what was written where, by which version of which model, and
    the rows and seconds.
    """

    scoring: ScoringModel
    record: Summary


@watching.watched
def predict(job: specs.Predict, do: steps.Runner) -> PredictionResult:
    """Write a model's predictions or labels for every row.

    The output appears when it is complete. Raises InvalidParameterError if a wanted
    option does not suit the kind of model; DataError if the rows do not fit it;
    StorageError if an input cannot be read or the output cannot be written;
    OutputBusyError if another run writes it.
    """
    output = locations.parse_location(job.output)
    writes_table = tables.file_kind(job.output) is not None
    scoring = open_model(job.model)
    _check_output(job, output, scoring, writes_table=writes_table)
    # before the lock, the cluster and the pass
    check_extras(job, scoring)
    with ExitStack() as stack:
        stack.enter_context(output_places.hold(job.output, holder=do.holder))
        url = job.source.data
        arguments = job.source.open_arguments()
        reads_table = tables.is_table(url)
        if reads_table:
            staged = locations.new_hidden_folder(output, "rows")
            # An unusable row is an error, not dropped as in `evaluate`: each row must
            # get its prediction.
            rows = tables.table_rows(
                job, scoring.model.card, staged, observer=do.observer
            )
            url = stack.enter_context(rows)
            arguments = {}
        dataset = open_rows(url, scoring, arguments)
        if writes_table and isinstance(dataset, GridDataset):
            raise InvalidParameterError(
                f"`output` is {redact(job.output)}, a table, and the data are a grid;"
                " expected the name of a Zarr group"
            )

        engine = stack.enter_context(do.open_engine(dataset.n_samples))
        # A table is ingested again each time, so a repeated run cannot go on from its
        # rows.
        if not reads_table:
            stack.enter_context(steps.resumable(engine, output))
        start = time.perf_counter()
        write = write_file if writes_table else write_group
        output_facts = do("score", write, job, scoring, dataset, job.output, engine)
        seconds = round(time.perf_counter() - start, 3)
        # ties the predictions to the rows that were scored, wherever these are moved
        fingerprint = dataset.fingerprint()

    interval = None
    if job.coverage:
        interval = {"coverage": job.coverage, "by": intervals_by(scoring.model)}
    record = {
        "output": redact(job.output),
        "model": redact(job.model),
        "kind": scoring.kind,
        "version": scoring.version,
        "model_digest": scoring.model.digest(),
        "data": redact(job.source.data),
        "fingerprint": fingerprint,
        "data_version": dataset.version,
        "interval": interval,
        **output_facts,
        "seconds": seconds,
    }
    return PredictionResult(scoring, record)


def _check_output(
    job: specs.Predict,
    output: locations.Location,
    scoring: ScoringModel,
    *,
    writes_table: bool,
) -> None:
    """Raise StorageError or OutputExistsError if the output cannot be written."""
    if not writes_table:
        inputs = [locations.parse_location(url) for url in (job.source.data, job.model)]
        output_places.check_output(output, overwrite=job.overwrite, inputs=inputs)
        return
    if output.is_local and not Path(output.path).parent.is_dir():
        raise StorageError(
            f"{output} cannot be written: its folder does not exist; make the folder"
            " first"
        )
    id_name = id_column(scoring.model.card)
    is_ours = partial(tables.holds_predictions, id_name=id_name)
    output_places.check_file(output, overwrite=job.overwrite, is_ours=is_ours)


def intervals_by(model: Any) -> str:
    """Return in words what a regression's prediction intervals are made from."""
    if model.held_out is None:
        return "the normal distribution"
    rows = model.card[INTERVAL_ROWS]
    return f"the errors of {rows}, each predicted by a model that had not seen it"


def write_file(
    job: specs.Predict,
    scoring: ScoringModel,
    dataset: Dataset,
    url: str,
    engine: Engine,
) -> Summary:
    """Write a table, and return what `write_group` returns."""
    # Blocks are written in any order, which a file does not allow: a table is made from
    # a hidden group.
    place = locations.new_hidden_folder(locations.parse_location(url), "rows")
    try:
        output_facts = write_group(job, scoring, dataset, place.url, engine)
        ids = [] if ids_of(dataset) is None else [ID]
        tables.write_file(
            url,
            place.url,
            [*ids, *output_facts["arrays"]],
            columns=_columns_of(scoring),
            id_name=id_column(dataset.attributes),
        )
    finally:
        output_places.discard(place)
    return output_facts


def write_group(
    job: specs.Predict,
    scoring: ScoringModel,
    dataset: Dataset,
    url: str,
    engine: Engine,
) -> Summary:
    """Write a new Zarr group, and return the names of its `arrays`, and `n_samples`."""
    model: Any = scoring.model
    arrays = ["labels"]
    if scoring.kind == "regression":
        arrays = ["predictions"]
        n_samples = prediction.predict(
            dataset,
            model,
            url,
            engine=engine,
            std=job.std,
            coverage=job.coverage,
            column_names=model.card.get("target_names"),
            overwrite=job.overwrite,
        )
    elif scoring.kind == "classifier":
        n_samples = class_prediction.predict(
            dataset,
            model,
            url,
            engine=engine,
            probabilities=job.probabilities,
            overwrite=job.overwrite,
        )
    else:
        output = kmeans_labels.write_labels(
            dataset,
            model,
            url,
            engine=engine,
            distances=job.distances,
            principal=job.principal,
            overwrite=job.overwrite,
        )
        n_samples = output.n_samples
    for name in extra_options(job):
        arrays += _EXTRAS[name].arrays
    if isinstance(dataset, GridDataset):
        arrays = [grids.NAMES.get(array, array) for array in arrays]
    return {"arrays": arrays, "n_samples": n_samples}


def _columns_of(scoring: ScoringModel) -> list[str] | None:
    """Return the names of a model's targets or classes; None if it has none."""
    model: Any = scoring.model
    if scoring.kind == "classifier":
        return class_prediction.class_names(model)
    target_names: list[str] | None = model.card.get("target_names")
    return target_names


@watching.watched
def evaluate(
    job: specs.Evaluate, do: steps.Runner
) -> tuple[ScoringModel, Evaluation, FloatArray | None]:
    """Measure a model's errors in one pass, on a dataset or on a table; with `coverage`
    in a second pass how many rows are inside intervals.

    A table is read by the model's recipe. Its rows with a missing value are dropped,
    and the log has their number.

    Returns the model and its errors: for a regression `Errors`, or `Calibration` with
    the option `std`; for a classifier `Confusion`; for clusters `Contingency`. Last,
    per target the share of rows inside intervals; None without `coverage`. Raises
    InvalidParameterError if `std` is wanted of a model without standard deviations, or
    if workers on other machines are to read a table; DataError if the data do not fit
    the model, or have no targets or labels.
    """
    scoring = open_model(job.model)
    check_extras(job, scoring)
    model: Any = scoring.model
    with ExitStack() as stack:
        url = job.source.data
        arguments = job.source.open_arguments()
        if tables.is_table(url):
            table = _rows_of_table(job, model.card, do)
            url, arguments = stack.enter_context(table)
        measure: Any
        if scoring.kind == "regression":
            dataset = open_rows(url, scoring, arguments)
            if dataset.n_targets < 1:
                raise DataError(
                    f"{redact(job.source.data)} has no targets to compare with; name"
                    " their array with `y`"
                )
            evaluate_rows: Any = prediction.evaluate
            if job.std:
                evaluate_rows = prediction.calibrate
            measure = partial(evaluate_rows, dataset)
        else:
            complete = _with_grid_names(url, scoring, arguments)
            dataset, labels = open_labelled(url, complete["y"], complete)
            check_rows(url, dataset, scoring)
            if scoring.kind == "clusters":
                measure = partial(kmeans_labels.evaluate, dataset, labels)
            else:
                # imported here: it loads all that a fit needs, for classifiers only
                from rff_dist.workbench.jobs import fits

                data = fits.JobData(dataset, labels).with_targets(model)
                measure = partial(class_prediction.evaluate, data)
        engine = stack.enter_context(do.open_engine(dataset.n_samples))
        errors = do("evaluate", measure, model, engine=engine)
        inside = None
        if job.coverage:
            inside = do(
                "intervals",
                prediction.share_inside,
                dataset,
                model,
                job.coverage,
                engine=engine,
            )
        return scoring, errors, inside


@contextmanager
def _rows_of_table(
    job: specs.Evaluate, card: Facts, do: steps.Runner
) -> Iterator[tuple[str, Summary]]:
    """Yield the URL of a table's rows as a temporary dataset, and the arguments of
    `open_dataset` for it.

    Raises InvalidParameterError if workers on other machines are to read the rows.
    """
    source = job.source
    # The table's rows are not counted yet; whether workers are on other machines does
    # not depend on their number.
    n_samples = 0
    cluster = do.cluster(n_samples)
    if cluster is not None and cluster.is_elsewhere:
        raise InvalidParameterError(
            f"`data` is {redact(source.data)}, a table, which this process turns into a"
            " temporary dataset: workers on other machines do not see it. Ingest the"
            " table first to where they can read it, or leave out `scheduler`"
        )
    columns = card.get("target_columns") or ["y"]
    if source.y != "y":
        columns = [source.y]
    # A row with a missing value has no error to measure: it is dropped and counted.
    roles = Roles(
        columns[0] if len(columns) == 1 else columns,
        source.sample_weight,
        on_nan="drop",
    )
    weight = None if source.sample_weight is None else "sample_weight"
    with TemporaryDirectory(prefix="rff_dist-") as folder:
        staged = locations.parse_location(Path(folder) / "rows")
        rows = tables.table_rows(job, card, staged, observer=do.observer, roles=roles)
        with rows as url:
            yield url, {"y": "y", "sample_weight": weight}
