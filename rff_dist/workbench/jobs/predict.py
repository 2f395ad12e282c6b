"""The jobs that use a stored model of any kind: predict for every row, and evaluate."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rff_dist import fields
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
from rff_dist.ridge import uncertainty
from rff_dist.storage import datasets, grids, locations, output_places
from rff_dist.storage.columns import ID, ids_of, open_labelled
from rff_dist.text import redact
from rff_dist.typing import Facts, PathLike, Summary, frozen
from rff_dist.workbench.jobs import fits, specs, steps, tables, watching
from rff_dist.workbench.tables.roles import Roles

type Judged = (
    evaluation.Errors | uncertainty.Calibration | class_prediction.Confusion | kmeans_labels.Contingency
)


#: Options that only one kind of model has: that kind, the words for it, and the arrays that are written.
_EXTRAS = {
    "std": ("regression", "standard deviations", ["standard_deviations"]),
    "coverage": ("regression", "intervals", ["lower", "upper"]),
    "probabilities": ("classifier", "probabilities", ["probabilities"]),
    "distances": ("clusters", "distances", ["distances"]),
    "principal": ("clusters", "principal components", ["principal"]),
}
#: What each kind of model writes first, and the pass that writes it.
_WRITERS: dict[str, tuple[str, Callable[..., int]]] = {
    "regression": ("predictions", prediction.predict),
    "classifier": ("labels", class_prediction.predict),
    "clusters": ("labels", kmeans_labels.write_labels),
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
    return ScoringModel(os.fspath(url), model, None if version is None else version.number)


def open_rows(url: str, scoring: ScoringModel, names: Facts) -> datasets.ZarrDataset | GridDataset:
    """Open the rows that a model is to score.

    `names`: arguments of `open_dataset`; by default no `y` is read.
    Raises DataError if their columns are not those that the model was trained on; StorageError if there are
      no rows.
    """
    how = _on_grid(url, scoring, {"y": None, **names})
    dataset: datasets.ZarrDataset | GridDataset = datasets.open_dataset(url, **how)
    check_rows(url, dataset, scoring)
    return dataset


def _on_grid(url: str, scoring: ScoringModel, names: Facts) -> Summary:
    """Return the arguments of `open_dataset`, with the model's own variables if the data are their grid."""
    card = scoring.model.card
    inputs = grids.find_inputs(url, names.get("version"), card) if names.get("x", "X") == "X" else None
    if inputs is None:
        return dict(names)
    targets = card.get("target_names") or ["y"]
    return {**names, "x": inputs, "y": targets[0] if names["y"] == "y" and len(targets) == 1 else names["y"]}


def check_rows(url: str, dataset: Dataset, scoring: ScoringModel) -> None:
    """Check that rows have the columns that a model was trained on, from a table by the same recipe.

    Raises DataError if they have not.
    """
    try:
        model_rows.check_dataset(dataset, scoring.model)
    except DataError as error:
        raise DataError(
            f"{redact(url)} does not fit {redact(scoring.url)}: {error}. Give data of the columns "
            "that the model was trained on, or another model"
        ) from error


def wanted_of(job: specs.Predict | specs.Evaluate) -> list[str]:
    """Return the names of the options in `_EXTRAS` that are given."""
    return [name for name in _EXTRAS if getattr(job, name, None) not in (None, False)]


def check_wanted(job: specs.Predict | specs.Evaluate, scoring: ScoringModel) -> None:
    """Refuse options that a model of this kind does not have, before a pass begins.

    Raises InvalidParameterError; SolveError if a classifier has no probabilities.
    """
    wanted = wanted_of(job)
    for name in wanted:
        kind, words, _ = _EXTRAS[name]
        if kind != scoring.kind:
            has = "clusters have" if scoring.kind == "clusters" else f"a {scoring.kind} has"
            raise InvalidParameterError(
                f"`{name}` is wanted, but {has} no {words}; expected a {kind!r} model. Leave it out"
            )
    model: Any = scoring.model
    if "probabilities" in wanted and model.card["classifier"]["calibration"] is None:
        raise class_prediction.no_probabilities(model)


# -- the jobs --------------------------------------------------------------------------------------


@frozen
class Predicted:
    """What the job that predicts wrote.

    `record`: JSON values: what was written where, by which version of which model, and the rows and seconds.
    """

    model: ScoringModel
    record: Summary


@watching.watched
def predict(job: specs.Predict, do: steps.Runner) -> Predicted:
    """Write a model's predictions or labels for every row; the output appears when it is complete.

    Raises InvalidParameterError if the model does not have what is wanted; DataError if the rows do not fit
      it; StorageError if an input cannot be read or the output cannot be written; OutputBusyError if another
      run writes it.
    """
    source, output = job.source, locations.parse_location(job.output)
    is_file = tables.file_kind(job.output) is not None
    if is_file:
        is_ours = tables.holds_predictions
        if output.is_local and not Path(output.path).parent.is_dir():
            raise StorageError(
                f"{output} cannot be written: its folder does not exist; make the folder first"
            )
        output_places.check_file(output, overwrite=job.overwrite, is_ours=is_ours)
    else:
        places = [locations.parse_location(url) for url in (source.data, job.model)]
        output_places.check_output(output, overwrite=job.overwrite, inputs=places)
    model = open_model(job.model)
    # before the lock, the cluster and the pass
    check_wanted(job, model)
    with ExitStack() as stack:
        stack.enter_context(output_places.hold(job.output, holder=do.holder))
        url, names = source.data, source.names()
        if tables.is_table(url):
            staged = locations.hidden_beside(output, "rows")
            # An unusable row is an error, not dropped as in `evaluate`: each row must get its prediction.
            rows = tables.table_rows(job, model.model.card, staged, observer=do.observer)
            url, names = stack.enter_context(rows), {}
        dataset = open_rows(url, model, names)
        if is_file and isinstance(dataset, GridDataset):
            raise InvalidParameterError(
                f"`output` is {redact(job.output)}, a table, and the data are a grid; expected the name of a "
                "Zarr group"
            )
        engine = stack.enter_context(do.open_engine(dataset.n_samples))
        # rows of a table are ingested again each time, so a run cannot go on from them
        if url == source.data:
            stack.enter_context(steps.resumable(engine, output))
        start = time.perf_counter()
        write = _write_file if is_file else _write_group
        written = do("score", write, job, model, dataset, job.output, engine)
        record = {
            "output": redact(job.output),
            "model": redact(job.model),
            "kind": model.kind,
            "version": model.version,
            "model_digest": model.model.digest(),
            "data": redact(source.data),
            # ties the predictions to the rows that were scored, wherever these are moved
            "fingerprint": dataset.fingerprint(),
            "data_version": dataset.version,
            "interval": job.coverage and {"coverage": job.coverage, "by": intervals_by(model.model)},
            **written,
            "seconds": round(time.perf_counter() - start, 3),
        }
        return Predicted(model, record)


def intervals_by(model: Any) -> str:
    """Return in words what a regression's prediction intervals are made from."""
    return "the normal distribution" if model.held_out is None else "cross-validated residuals"


def _write_file(
    job: specs.Predict, model: ScoringModel, dataset: Dataset, url: str, engine: Engine
) -> Summary:
    """Write a table, and return as `_write_group`."""
    # Blocks are written in any order, which a file does not allow: a table is made from a hidden group.
    place = locations.hidden_beside(locations.parse_location(url), "rows")
    try:
        written = _write_group(job, model, dataset, place.url, engine)
        ids = [] if ids_of(dataset) is None else [ID]
        tables.write_file(url, place.url, [*ids, *written["arrays"]], columns=_columns_of(model))
    finally:
        output_places.discard(place)
    return written


def _write_group(
    job: specs.Predict, scoring: ScoringModel, dataset: Dataset, url: str, engine: Engine
) -> Summary:
    """Write a new Zarr group, and return the names of its `arrays`, and `n_samples`."""
    model: Any = scoring.model
    first, write = _WRITERS[scoring.kind]
    how = fields.values_of(job, *(name for name, (kind, *_) in _EXTRAS.items() if kind == scoring.kind))
    if scoring.kind == "regression":
        how["column_names"] = model.card.get("target_names")
    n_samples = write(dataset, model, url, engine=engine, overwrite=job.overwrite, **how)
    arrays = [first, *(array for name in wanted_of(job) for array in _EXTRAS[name][2])]
    if isinstance(dataset, GridDataset):
        arrays = [grids.NAMES.get(array, array) for array in arrays]
    return {"arrays": arrays, "n_samples": n_samples}


def _columns_of(scoring: ScoringModel) -> list[str] | None:
    """Return the names of a model's targets or classes; None if it has none."""
    model: Any = scoring.model
    if scoring.kind == "classifier":
        return [str(label) for label in class_prediction.read_classes(model).tolist()]
    names: list[str] | None = model.card.get("target_names")
    return names


@watching.watched
def evaluate(job: specs.Evaluate, do: steps.Runner) -> tuple[ScoringModel, Judged]:
    """Measure a model's errors in one pass, on a dataset or on a table that the model's recipe reads.

    Rows of a table that miss a value are dropped, and the log says how many.

    Returns the model and its errors: for a regression `Errors`, with `std` `Calibration`; for a classifier
      `Confusion`; for clusters `Contingency`.
    Raises InvalidParameterError if `std` is asked of a model without standard deviations, or workers on other
      machines are to read a table; DataError if the data do not fit the model, or have no targets or labels.
    """
    model, source = open_model(job.model), job.source
    check_wanted(job, model)
    stored: Any = model.model
    with ExitStack() as stack:
        url, names = source.data, source.names()
        if tables.is_table(url):
            if (cluster := do.cluster(0)) is not None and cluster.elsewhere:
                raise InvalidParameterError(
                    f"`data` is {redact(url)}, a table, which this process turns into a temporary dataset: "
                    "workers on other machines do not see it. Ingest the table first to where they can read "
                    "it, or leave out `scheduler`"
                )
            columns = [source.y] if source.y != "y" else stored.card.get("target_columns") or ["y"]
            # Rows without a value cannot be judged: they are counted, not refused.
            roles = Roles(columns[0] if len(columns) == 1 else columns, source.sample_weight, on_nan="drop")
            folder = stack.enter_context(TemporaryDirectory(prefix="rff_dist-"))
            staged = locations.parse_location(Path(folder) / "rows")
            rows = tables.table_rows(job, stored.card, staged, observer=do.observer, roles=roles)
            url = stack.enter_context(rows)
            names = {"y": "y", "sample_weight": None if source.sample_weight is None else "sample_weight"}
        names, known = _on_grid(url, model, names), None
        dataset: Dataset
        if model.kind == "regression":
            dataset = open_rows(url, model, names)
        else:
            dataset, known = open_labelled(url, names["y"], names)
            check_rows(url, dataset, model)
        if known is None and dataset.n_targets < 1:
            raise DataError(
                f"{redact(source.data)} has no targets to compare with; name their array with `y`"
            )
        engine = stack.enter_context(do.open_engine(dataset.n_samples))
        if known is None:
            measure: Any = prediction.calibrate if job.std else prediction.evaluate
            return model, do("evaluate", measure, dataset, stored, engine=engine)
        if model.kind == "clusters":
            return model, do("evaluate", kmeans_labels.evaluate, dataset, known, stored, engine=engine)
        judged = fits.JobData(dataset, known).with_targets(stored)
        return model, do("evaluate", class_prediction.evaluate, judged, stored, engine=engine)
