"""The result of the command `auto` as a document: the data, the model, how it compares.

In go a prepared table and a training result, out comes a document. The document of the
training alone would not tell how the test rows were chosen, or why the target counts as
classes.
"""

import shlex
from dataclasses import replace

from rff_dist import fields
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import auto, specs, train, verdict
from rff_dist.workbench.results import models, rows, words
from rff_dist.workbench.results.document import Document, Paragraph, Part

_PREPARED = ("train", "test", "n_train", "n_test", "dropped_rows", "held_out")


def auto_document(
    training: train.TrainingResult,
    job: specs.Train,
    prepared: auto.AutoData,
    run: Summary,
) -> Document:
    """Return the document of a training, with the treatment of the table and the
    comparison with other models.

    `run`: facts about the run, see `words.run_facts`.
    """
    document = models.training_document(training, job, run)
    comparison = training.comparison
    assert comparison is not None  # there are test rows
    std = [] if prepared.classify else ["--std"]
    following = [
        ["predict", prepared.model, "NEW.csv", "predictions.csv"],
        ["evaluate", prepared.model, prepared.test, *std],
        ["info", prepared.model, "--details"],
    ]
    task = "classification" if prepared.classify else "regression"
    record = {
        **document.record,
        "task": task,
        "why": prepared.why,
        **fields.values_of(prepared, *_PREPARED),
        "next": [shlex.join(["rff-dist", *command]) for command in following],
    }
    ingested = {
        "test rows": f"{prepared.n_test:,}, chosen {prepared.held_out}",
        "dropped": words.dropped_words(prepared.dropped_rows),
    }
    table = words.Table(
        f"compared on {verdict.rows_words(comparison)}", *verdict.table_of(comparison)
    )
    trainings = verdict.trainings_of(comparison)
    notes = [Paragraph(sentence, is_note=True) for sentence in trainings]
    details: list[Part] = [
        table,
        *notes,
        ingested,
        *document.details,
        *rows.recipe_parts(prepared.recipe, 20),
    ]
    [facts] = document.parts
    assert isinstance(facts, dict)
    parts: list[Part] = [{"task": f"{task}: {prepared.why}", **facts}]
    return replace(
        document, parts=parts, details=details, record=record, next=following
    )
