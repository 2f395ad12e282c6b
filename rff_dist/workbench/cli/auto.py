"""From a table to a registered model, compared with other models."""

from __future__ import annotations

import os
import shlex
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from rff_dist import fields
from rff_dist.engines.cluster import Cluster
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import rows, words
from rff_dist.workbench.results.document import Document, Paragraph

if TYPE_CHECKING:
    from rff_dist.ridge import models
    from rff_dist.workbench.jobs import fits, verdict
    from rff_dist.workbench.jobs.auto import AutoData

_PREPARED = ("train", "test", "n_train", "n_test", "dropped_rows", "held_out", "ingested")


@shell.command(
    "rff-dist auto prices.csv --target price",
    "rff-dist auto 'visits/*.parquet' --target ill --groups patient --into visits-model --report page.html",
)
def auto(job: specs.Auto, where: Cluster, report: str | None = shell.REPORT) -> Document:
    """Train and register a model from a table, test it, and compare it with others."""
    from rff_dist.numerics.machine import available_memory
    from rff_dist.workbench.jobs import train, verdict
    from rff_dist.workbench.jobs.auto import folder_of, prepare_table, training_of
    from rff_dist.workbench.results import models

    passes = display.Passes(where)
    passes.clock.begin("ingest")
    prepared = prepare_table(job, observer=display.count_rows("ingest"))
    try:
        training = train.train(training_of(job, prepared), passes.runner)
    except BaseException as error:
        error.add_note(f"its rows are ingested in {folder_of(job)}, and the same command goes on from there")
        raise
    model, comparison = training.model, training.comparison
    assert comparison is not None  # there are test rows
    passes.at_work("baselines")
    trees = fit_trees(
        training.data,
        model,
        comparison,
        seconds=training.chosen["fit_seconds"],
        seed=job.seed,
        most_bytes=available_memory() // 3,
    )
    comparison = comparison.with_model(verdict.TREES, trees)
    passes.write_page(
        report, training.data, model, prepared.model, comparison=comparison, metrics=training.metrics
    )
    found = models.training_document(
        training, training_of(job, prepared), {"report": report, **passes.facts()}
    )
    return _document(found, prepared, comparison)


def _document(found: Document, prepared: AutoData, comparison: verdict.Comparison) -> Document:
    """Return what training found, with what was done to the table and the comparison with other models."""
    std = [] if prepared.classify else ["--std"]
    following = [
        ["predict", prepared.model, "NEW.csv", "predictions.csv"],
        ["evaluate", prepared.model, prepared.test, *std],
        ["models", "show", prepared.model],
    ]
    task = "classification" if prepared.classify else "regression"
    record = {
        **found.record,
        "task": task,
        "why": prepared.why,
        **fields.values_of(prepared, *_PREPARED),
        "comparison": comparison.describe(),
        "next": [shlex.join(["rff-dist", *command]) for command in following],
    }
    facts = {
        "task": f"{task}: {prepared.why}",
        "test rows": f"{prepared.n_test:,}, chosen {prepared.held_out}",
        "ingested": None if prepared.ingested == "now" else prepared.ingested,
        "dropped": words.dropped_words(prepared.dropped_rows),
    }
    table = words.Table(f"compared on {comparison.rows_words}", *comparison.table())
    notes = [Paragraph(sentence, is_note=True) for sentence in comparison.about()]
    parts = [facts, *found.parts, *rows.recipe_parts(prepared.recipe, 20), table, *notes]
    return Document(found.title, parts, comparison.verdict, record, following)


# -- baselines -------------------------------------------------------------------------------------


LEAST_SECONDS = 10.0
FIRST_TREES = 10
USUAL_TREES = 100  # scikit-learn's default; with more than 10,000 rows the trees stop themselves
_MANY_ROWS = 10_000


def fit_trees(
    data: fits.JobData,
    model: models.RidgeModel,
    comparison: verdict.Comparison,
    *,
    seconds: float,
    seed: int,
    most_bytes: int,
) -> verdict.Predictions:
    """Train boosted trees on the rows that a model was trained on, and predict the rows of a comparison.

    They are trained for as long as the model was, and for 10 s in any case: each step adds as many trees as
    the time that is left allows, going by those before. Up to 10,000 rows get 100 trees. With more rows, the
    trees end when the error of a tenth of the rows falls no further.

    `data`: if its rows take more than `most_bytes`, a sample of them is taken, and there is no conclusion.
    `seconds`: that the model took.
    """
    # threads that wait by spinning took five times as long on a busy machine
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    from rff_dist.workbench.jobs.verdict import TREES, Predictions

    X, y, weights, n_samples = _training_rows(data, model, seed, most_bytes)
    classify = comparison.classes is not None
    by_themselves = len(X) > _MANY_ROWS and (not classify or np.bincount(y)[np.unique(y)].min() > 1)
    trees: Any = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    boosted = trees(early_stopping=by_themselves, warm_start=True, random_state=seed, max_iter=FIRST_TREES)
    start, budget = time.perf_counter(), max(LEAST_SECONDS, seconds)
    while True:
        boosted.fit(X, y, sample_weight=weights)
        taken, n_trees = time.perf_counter() - start, int(boosted.n_iter_)
        # Each tree takes about as long, so those so far tell how many more there is time for.
        affordable = int((budget - taken) / (taken / n_trees))
        ended = n_trees < boosted.max_iter or (not by_themselves and n_trees >= USUAL_TREES)
        if ended or affordable < 1:
            break
        wanted = n_trees + min(7 * n_trees, affordable)  # few steps, since each bins all rows again
        boosted.max_iter = wanted if by_themselves else min(USUAL_TREES, wanted)
    remarks: dict[str, Any] = {
        "about": f"{n_trees:,} trees on {len(X):,} rows, {'' if ended else 'stopped after '}{taken:.0f} s"
    }
    if not ended:
        remarks["called"] = f"{TREES} trained as long"
    if len(X) < n_samples:
        remarks["handicap"] = f"memory holds {len(X):,} of the {n_samples:,} rows to train them on"
    if not classify:
        return Predictions(boosted.predict(comparison.X)[:, np.newaxis], **remarks)
    n_classes = len(comparison.classes or ())
    logs = np.full((comparison.n_rows, n_classes), -np.inf)
    with np.errstate(divide="ignore"):
        logs[:, boosted.classes_] = np.log(boosted.predict_proba(comparison.X))
    return Predictions(boosted.predict(comparison.X).astype(np.int64), logs, **remarks)


def _training_rows(
    data: fits.JobData, model: models.RidgeModel, seed: int, most_bytes: int
) -> tuple[Any, Any, Any, int]:
    """Return X, y (codes of classes) and weights of all rows, or of a sample that memory holds; all rows."""
    from rff_dist.classify.predict import class_of, read_classes
    from rff_dist.data.labelled import LabelledDataset
    from rff_dist.data.samples import sample_indices

    dataset: Any = data.rows
    if data.labels is not None:
        dataset = LabelledDataset(dataset, data.labels, read_classes(model))
    # stored, as float64, its part to train on, as bytes, and predictions so far of each class
    row_bytes = dataset.n_features * (dataset.dtype.itemsize + 17) + 24 * (dataset.n_targets + 2)
    rng = np.random.Generator(np.random.Philox(seed))
    indices = sample_indices(dataset, rng, min(dataset.n_samples, max(1_000, most_bytes // row_bytes)))
    X, y, weights = dataset.take(indices)
    y = class_of(y) if data.labels is not None else y[:, 0]
    if weights is None:
        return X, y, None, dataset.n_samples
    counted = weights > 0
    n_weightless = len(X) - int(counted.sum())
    return X[counted], y[counted], weights[counted], dataset.n_samples - n_weightless
