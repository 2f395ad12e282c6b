"""A regression or a classifier in words: its choices, errors and candidates.

Models, records of jobs and stored cards go in; documents, facts and tables come out. A
card is the JSON record of a fit that is stored with its model; facts are names and
texts in pairs. Terminal, page and Prefect share them, so a figure is the same in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rff_dist import fields
from rff_dist.data import folding
from rff_dist.estimators import panel
from rff_dist.features import kinds, maps, nystrom
from rff_dist.ridge import describe, models
from rff_dist.selection import error_table
from rff_dist.storage import records
from rff_dist.text import first_few, number, redact, score_words, words_by_target
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Paragraph, Part
from rff_dist.workbench.results.rows import held_out_data
from rff_dist.workbench.results.words import Alert, Lines, Table

if TYPE_CHECKING:
    from rff_dist.ridge import fit_result, solve
    from rff_dist.workbench.jobs import specs, train

#: The report says that random folds flatter if errors by groups or times are more than
#: this many times the errors by random folds.
FLATTERED = 1.05
CHOSEN_BY = {
    "given": "as given",
    "cv": "chosen by cross-validation",
    "cv-1se": "the largest within one standard error of the best by cross-validation",
    "gcv": "chosen by GCV",
    "evidence": "chosen by the evidence",
    "press": "chosen by leave-one-out errors",
}


def choice_facts(model: models.RidgeModel, seed: int | None = None) -> Lines:
    """Return in words what a model chose, and how: features, kernel and alpha."""
    feature_map = model.feature_map
    features = {
        "kind": feature_map.kind,
        **feature_map.record()[0],
        **maps.spec_record(feature_map),
    }
    return _chosen_facts(
        features, feature_map.n_components, model.plain_alpha, model.card, seed
    )


def _chosen_facts(
    features: Facts,
    n_components: int,
    alpha: float | Sequence[float],
    card: Facts,
    seed: int | None = None,
) -> Lines:
    """Return what is shown of a fitted model: its choices and its errors."""
    return {
        "features": words.features_words(features, n_components, seed),
        "kernel": words.kernel_of_features(features),
        "alpha": alpha_words(alpha, card),
        **estimate_facts(card),
        **classifier_facts(card.get("classifier")),
    }


def training_document(
    training: train.TrainingResult, job: specs.Train, run: Summary
) -> Document:
    """Return the document of a training job; `run`: see `words.run_facts`."""
    from rff_dist.workbench.jobs import verdict

    model = training.model
    trained = training.fitted.trained
    metrics = training.metrics
    record = {
        **training.describe(),
        **_describe_choice(training),
        "seed": job.options.seed,
        **run,
    }
    choices = _training_details(training, job.options.seed)
    details = list[Part]()
    table = record["cross_validation"]
    if job.fit.candidates is not None:
        record |= {
            "n_readings": trained.n_readings,
            "folds": model.card["folds"],
            "best": trained.best,
        }
        choices |= _search_facts(trained)
        note = "scale: the length scale; as good: within one standard error of the best"
        details = [candidates_table(trained.rows), Paragraph(note, is_note=True)]
    elif table is not None and len(table["widths"]) > 1:
        details.append(widths_table(table, record["n_components"]))
    targets = model.card.get("target_names")
    details += group_parts(metrics, targets)

    outputs = words.features_and_targets(
        record["n_features"], record["n_targets"], model.card.get("classifier")
    )
    main: Lines = {}
    if metrics is not None:
        main = test_facts({**metrics, "test_data": redact(str(job.test))}, targets)
    main["cross-validation"] = choices.pop("cross-validation", None)
    n_features = record["n_features"]
    names = model.card.get("feature_names") or [f"x{i}" for i in range(n_features)]
    chosen = panel.kernel_facts(kinds.kernel_of(model.feature_map), names)
    kernel = chosen["kernel"]
    if "length scale" in chosen:
        kernel += f" (length scale {chosen['length scale']})"
    main["model"] = (
        f"{kernel}, D = {record['n_components']:,},"
        f" alpha {words.value_words(record['alpha'])}"
    )
    if job.fit.candidates is not None:
        main["chosen"] = choices.pop("chosen")
    main["rows"] = f"{record['n_samples']:,} of {redact(job.source.data)}, {outputs}"
    place = job.destination.model
    published = {**training.publication, "model": redact(place)}
    return Document(
        f"wrote {words.place_words(published)}",
        [main | words.run_facts(run)],
        details=[choices | words.run_details(run), *details],
        lead=verdict.verdict_of(training.comparison),
        record=record,
        next=[
            ["evaluate", place, held_out_data(job.source.data)],
            ["info", place, "--details"],
        ],
    )


def refit_document(refitted: Summary, job: specs.Refit, run: Summary) -> Document:
    """Return the document of a model that was trained like another one; `run`: see
    `words.run_facts`.
    """
    model = job.destination.model
    facts = {
        "holds": words.plural(refitted["n_samples"], "row"),
        "alpha": words.value_words(refitted["alpha"]),
        **words.run_facts(run),
    }
    details = words.run_details(run) | {"digest": refitted["digest"][:16]}
    return Document(
        f"trained {model} like {job.like}",
        [facts],
        details=[details],
        record={"like": job.like, "data": job.source.data, **refitted, **run},
        next=[["merge", job.like, model, "--model", "BOTH"]],
    )


def merged_document(merged: Summary, job: specs.Merge) -> Document:
    """Return the document of a merged model."""
    output = job.destination.model
    datasets = words.plural(len(merged["rows"]), "dataset")
    facts = {
        "holds": f"{merged['n_samples']:,} rows of {datasets}",
        "alpha": words.value_words(merged["alpha"]),
        "digest": merged["digest"][:16],
    }
    return Document(
        f"merged {words.plural(len(job.models), 'model')} into {output}",
        [facts],
        record={"models": job.models, **merged},
        next=[["evaluate", output, "DATA"]],
    )


def _training_details(training: train.TrainingResult, seed: int) -> Lines:
    facts = choice_facts(training.model, seed)
    solved = training.fitted.trained.solved
    ends = path_ends(solved)
    end = solved.alpha_at_end
    if ends is not None and end is not None:
        tried = f"{number(ends[0])} to {number(ends[1])}"
        facts["alpha"] = (
            f"{facts['alpha']}, at the {end} end of those tried, {tried}; if that makes"
            " it doubtful, a warning says so"
        )
    return {
        **facts,
        **words.solver_facts(training.fit_record),
        "digest": training.model.digest()[:16],
        **version_facts(training.publication),
    }


def _describe_choice(training: train.TrainingResult) -> Summary:
    """Return how features and alpha were chosen, for the JSON document."""
    model = training.model
    feature_map = model.feature_map
    kernel = kinds.kernel_of(feature_map)
    assert kernel is not None  # the map was drawn just now
    spec = feature_map.spec
    solved = training.fitted.trained.solved
    solution = solved.solution
    table = solved.cross_validation
    choice: Summary = {}
    if isinstance(feature_map, nystrom.NystromFeatureMap):
        choice["jitter"] = feature_map.jitter
    return choice | {
        "kernel": kernel.to_dict(),
        "design": None if spec is None else spec.design.name,
        "map": None if spec is None else spec.map_form,
        "alpha_chosen_by": chosen_by(model.card),
        "alpha_at_end_of_path": solved.alpha_at_end,
        "alpha_path": path_ends(solved),
        "gcv": None if solved.selection is None else solved.selection.score,
        "cross_validation": table
        and describe_cross_validation(table, feature_map.n_components, solution.alpha),
        "effective_rank": solution.effective_rank,
        "alpha_floor": solution.floor,
    }


def _search_facts(trained: fit_result.FitResult) -> Lines:
    """Return in words how given candidates were compared.

    There is an alert if the best length scale or alpha is the first or last that was
    tried.
    """
    ends = []
    for name, key in (
        ("the length scale", "length_scale_at_end"),
        ("alpha", "alpha_at_end"),
    ):
        if (end := trained.best[key]) is not None:
            extreme = "smallest" if end == "lower" else "largest"
            ends.append(f"{name} is the {extreme} tried")
    folds = folding.folds_words(trained.model.card["folds"])
    readings = words.plural(trained.n_readings, "reading")
    facts: Lines = {"compared by": f"{folds}, from {readings}"}
    if ends:
        facts["note"] = Alert(f"{' and '.join(ends)}: a better one may lie beyond")
    return facts


def path_ends(solved: solve.SelectedSolution) -> tuple[float, float] | None:
    """Return the smallest and largest alpha that were tried; None if it was given."""
    path = solved.cross_validation or solved.selection
    return None if path is None else (float(path.alphas[0]), float(path.alphas[-1]))


def chosen_by(card: Facts) -> str:
    """Return how a model's alpha was chosen, as a key of `CHOSEN_BY`."""
    choice = str(card["chosen_by"])
    return "cv-1se" if choice == "cv" and card["alpha_given"] == "cv-1se" else choice


def alpha_words(alpha: float | Sequence[float], card: Facts) -> str:
    """Return alpha and how it was chosen, or derived from ridge's for another loss."""
    value = words.value_words(alpha)
    ridge_alpha = card.get("classifier", {}).get("ridge_alpha", alpha)
    if ridge_alpha != alpha:
        value += f", derived from ridge's {words.value_words(ridge_alpha)}"
    return f"{value}, {CHOSEN_BY[chosen_by(card)]}"


def test_facts(metrics: Facts | None, targets: Sequence[str] | None) -> Lines:
    """Return in words a model's errors on all test rows; nothing without any."""
    if metrics is None:
        return {}
    errors = describe.errors_text(metrics, targets)
    return {
        "test": f"{errors}; {metrics['n_samples']:,} rows of {metrics['test_data']}"
    }


def group_parts(metrics: Facts | None, targets: Sequence[str] | None) -> list[Part]:
    """Return the table of errors on each group's test rows; nothing without groups."""
    groups = (metrics or {}).get("groups")
    if not groups:
        return []
    rows = []
    for name, errors in groups.items():
        rows.append((name, errors["n_samples"], describe.errors_text(errors, targets)))
    caption = "errors by group, with standard errors as if rows were independent"
    return [Table(caption, ("group", "rows", "errors"), rows, is_text=True)]


def estimate_facts(card: Facts) -> Lines:
    """Return in words how a model was chosen, and its errors by cross-validation."""
    facts: Lines = {"chosen": describe.choice_words(card.get("candidates", []))}
    if untried := card.get("untried"):
        limit = f"{card['time_limit']:g} s were too short"
        facts["not tried"] = f"{', '.join(untried)}: {limit}"
    if (estimate := describe.estimate_of(card)) is not None:
        folds_words = "each left out in turn"
        if "folds" in card:
            folds_words = folding.folds_words(card["folds"])
            # conjugate gradients are run for one split only
            if card["solver"].get("method") == "pcg":
                folds_words = f"the last of {folds_words}"
        errors = describe.errors_text(estimate, card.get("target_names"))
        facts["cross-validation"] = f"{errors}; {folds_words}"
        if "random_rmse" in estimate:
            facts["random folds"] = _flattering_words(estimate)
    return facts


def _flattering_words(estimate: Facts) -> str:
    """Say how much random folds would flatter the errors of groups or times."""
    random = np.asarray(estimate["random_rmse"], float)
    errors = np.asarray(estimate["rmse"], float)
    ratio = np.max(errors / np.where(random > 0, random, np.nan))
    would = f"would give RMSE {words_by_target('rmse', estimate['random_rmse'])}"
    if ratio > FLATTERED:
        return (
            f"{would}, which flatters: rows like none of those trained on have"
            f" {ratio:.3g} times that error"
        )
    return f"{would}, about the same, so rows of one fold are no more alike than others"


def classifier_facts(classifier: Facts | None) -> Lines:
    """Return a classifier's classes, loss and probabilities in words, from its card."""
    if classifier is None:
        return {}
    loss = classifier["loss"].replace("_", " ")
    minimum = classifier["minimum"]
    probabilities = "those of the loss itself"
    if minimum is None:
        loss += ", on targets of -1 and +1"
        probabilities = "fitted to leave-one-out scores"
    elif minimum["converged"]:
        loss += f", at its minimum after {minimum['n_passes']} passes"
    else:
        above = minimum["excess"] / minimum["reference"]
        loss = Alert(
            f"{loss}, stopped above its minimum, by about {above:.1e} times the loss at"
            " scores of 0"
        )
    if classifier["calibration"] is None:
        probabilities = "none"
    weights = classifier["class_weight"]
    if weights not in (None, "balanced"):
        weights = first_few(weights)
    return {
        "classes": first_few(classifier["classes"]),
        "class weights": weights,
        "loss": loss,
        "probabilities": probabilities,
    }


def version_facts(published: Facts) -> Lines:
    """Return the published version in words; nothing for a model without versions."""
    if published["version"] is None:
        return {}
    place = "first version"
    if published["parent"] is not None:
        place = f"after version {published['parent']}"
    return {"version": f"{published['version']} ({place}, now current)"}


def target_names(model: models.RidgeModel) -> list[str]:
    """Return the names of targets or classes, else y or y0, y1, …."""
    n_targets = model.n_targets
    names = model.card.get("target_names")
    if "classifier" in model.card:
        # two classes have one target, the second's
        names = model.card["classifier"]["classes"][-n_targets:]
    if names:
        return [str(name) for name in names]
    return ["y"] if n_targets == 1 else [f"y{i}" for i in range(n_targets)]


def describe_cross_validation(
    table: error_table.CrossValidation, n_components: int, alpha: ArrayLike
) -> Summary:
    """Return the k-fold errors at one D and alpha, and the best alpha of each D.

    `n_components`: D, the number of features. `alpha`: one number, or one per target.
    """
    width = int(np.argmin(np.abs(table.n_components - n_components)))
    alphas = np.broadcast_to(alpha, len(table.target_variance))
    places = np.abs(np.subtract.outer(alphas, table.alphas)).argmin(axis=1)
    score, standard_error = table.score_of(width, places)
    columns = ("n_components", "alpha", "score", "standard_error")
    bests = map(table.choose, table.n_components.tolist())
    return {
        "folds": folding.folds_to_dict(table.folds),
        "n_splits": len(table.weights),
        "alphas": {
            "n": len(table.alphas),
            "lowest": table.alphas[0],
            "highest": table.alphas[-1],
        },
        "score": score,
        "score_standard_error": standard_error,
        "widths": [fields.values_of(best, *columns) for best in bests],
    }


def describe_stored(record: records.Record) -> Summary:
    """Return a stored model's errors by cross-validation."""
    card = record.metadata["card"]
    dimension = len(record.arrays["coefficients"])
    described: Summary = {"estimate": describe.estimate_of(card)}
    # alpha was chosen from a table of k-fold errors
    if "selection_cv_errors" in record.arrays:
        arrays = {
            name.removeprefix("selection_"): array
            for name, array in record.arrays.items()
        }
        folds = folding.folds_from_dict(card["folds"])
        table = error_table.CrossValidation.from_arrays(folds, arrays)
        chosen_alpha = card.get("classifier", {}).get(
            "ridge_alpha", record.metadata["alpha"]
        )
        described["cross_validation"] = describe_cross_validation(
            table, dimension, chosen_alpha
        )
    return described


def stored_facts(record: records.Record) -> Lines:
    """Return the facts of a stored regression or classifier in words."""
    metadata = record.metadata
    card = metadata["card"]
    targets = card.get("target_names")
    n_features = metadata["feature_map"]["n_features"]
    n_targets = record.arrays["coefficients"].shape[1]
    outputs = words.features_and_targets(n_features, n_targets, card.get("classifier"))
    facts: Lines = {"trained on": f"{card['n_samples']:,} rows, {outputs}"}
    if left_out := card.get("left_out"):
        facts["left out"] = words.ranges_words(left_out)
    if window := card.get("window"):
        facts["window"] = f"{window['of']}: from row {window['start']:,} of the data on"
    return facts | {
        "columns": words.listed(card.get("feature_names")),
        "targets": words.listed(targets),
        **test_facts(card.get("metrics"), targets),
    }


def stored_details(record: records.Record) -> Lines:
    """Return in words what a stored regression or classifier chose, and when and with
    which packages it was made.
    """
    metadata = record.metadata
    card = metadata["card"]
    n_components = len(record.arrays["coefficients"])
    facts = _chosen_facts(
        metadata["feature_map"], n_components, metadata["alpha"], card
    )
    status = card["solver"]["status"].replace("_", " ")
    are_stored = "stored" if "statistics" in metadata else "not stored"
    packages = card["environment"]["packages"].items()
    versions = ", ".join(f"{name} {version}" for name, version in packages)
    return facts | {
        "solver": f"{status}; the sums for updates are {are_stored}",
        "made": f"{card['created']} with {versions}",
        # a model that was merged from several datasets has none
        "data fingerprint": card.get("data_fingerprint", "")[:16] or None,
        "digest": metadata["digest"][:16],
    }


# -- candidates
# ------------------------------------------------------------------------------------


def candidates_table(candidates: Sequence[Facts], most: int | None = None) -> Table:
    """Return the candidates on a model's card as a table, the best first."""
    ranked = describe.ranked_candidates(candidates)
    # few rows give the chosen one the same errors in both rounds
    by_cells: dict[tuple[str, ...], Facts] = {}
    for row in ranked:
        by_cells.setdefault(tuple(describe.candidate_cells(row)), row)
    rows = [[*cells, _note(row)] for cells, row in by_cells.items()][:most]
    rows[0][-1] = ""  # an arrow marks the chosen one already
    caption = (
        f"{describe.n_candidates(candidates)} candidates, by cross-validation, each at"
        " the alpha of its row (R² of classes: of targets −1 and +1)"
    )
    if len(by_cells) > describe.n_candidates(candidates):
        caption += (
            "; the chosen one (←) has two rows: of the final fit, and of the choice"
        )
    if len(rows) < len(by_cells):
        caption = f"the first {len(rows)} of {caption}"
    return Table(caption, (*describe.CANDIDATE_CELLS, "note"), rows, chosen=0)


def _note(candidate: Facts) -> str:
    if candidate.get("round") == "first":
        return "first round"
    return "as good" if candidate.get("within_one_standard_error") else ""


def widths_table(table: Facts, n_components: int) -> Table:
    """Return the best alpha of each D, as `describe_cross_validation` has them."""
    chosen_row = None
    rows = []
    for i, best in enumerate(table["widths"]):
        r2 = score_words("r2", 1 - best["score"], best["standard_error"])
        rows.append((best["n_components"], best["alpha"], r2))
        if best["n_components"] == n_components:
            chosen_row = i
    return Table("each D with its best alpha", ("D", "alpha", "R²"), rows, chosen_row)
