"""What is said of a regression or a classifier: how it was chosen, its errors, and the candidates."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rff_dist import fields
from rff_dist.data import folding
from rff_dist.features import kinds, maps, nystrom
from rff_dist.products import choice
from rff_dist.ridge import describe, fit, models, solve
from rff_dist.selection import cross_validation
from rff_dist.storage import records
from rff_dist.text import errors_words, number, plus_minus, some
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.jobs import specs, train, verdict
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Paragraph, Part
from rff_dist.workbench.results.words import Alert, Lines, Table

#: Titles of the errors of a regression's targets on rows.
ERRORS = {"rmse": "RMSE", "mae": "MAE", "bias": "bias", "r2": "R²"}
FLATTERED = 1.05  # what errors of whole groups are of those of random folds, and worth a warning
CHOSEN_BY = {
    "given": "as given",
    "cv": "chosen by cross-validation",
    "cv-1se": "the largest within one standard error of the best by cross-validation",
    "gcv": "chosen by GCV",
    "evidence": "chosen by the evidence",
    "press": "chosen by leave-one-out errors",
}


def choice_facts(model: models.RidgeModel, seed: int | None = None) -> Lines:
    """Return in words the features, the kernel and alpha of a model, and how they were chosen."""
    feature_map = model.feature_map
    features = {"kind": feature_map.kind, **feature_map.record()[0], **maps.spec_record(feature_map)}
    return _chosen_facts(features, feature_map.n_components, model.plain_alpha, model.card, seed)


def _chosen_facts(
    features: Facts,
    n_components: int,
    alpha: float | Sequence[float],
    card: Facts,
    seed: int | None = None,
) -> Lines:
    """Return what every face says of a fitted model: what was chosen, how, and the errors that it has."""
    return {
        "features": words.features_words(features, n_components, seed),
        "kernel": words.kernel_of_features(features),
        "alpha": alpha_words(alpha, card),
        **estimate_facts(card),
        **classifier_facts(card.get("classifier")),
    }


def training_document(training: train.Training, job: specs.Train, run: Summary) -> Document:
    """Return what a job made that trained a model.

    `run`: what ran it, see `words.run_facts`.
    """
    model, trained = training.model, training.fitted.trained
    record = {**training.describe(), **_describe_choice(training), "seed": job.options.seed, **run}
    metrics, table = training.metrics, record["cross_validation"]
    facts, parts = _training_facts(training, job.options.seed), list[Part]()
    if job.fit.candidates is not None:
        record |= {"n_readings": trained.n_readings, "folds": model.card["folds"], "best": trained.best}
        facts |= _search_facts(trained)
        note = "scale: the length scale; as good: within one standard error of the best"
        parts = [candidates_table(trained.rows), Paragraph(note, is_note=True)]
    elif table is not None and len(table["widths"]) > 1:
        parts.append(widths_table(table, record["n_components"]))
    if metrics is not None and "mae" in metrics and model.n_targets > 1:
        parts.append(errors_table(metrics, model))
    parts += group_parts(metrics, model.card.get("target_names"))
    title, lead = f"wrote {words.place_words(training.published)}", verdict.verdict_of(training.comparison)
    following = [["evaluate", job.destination.model, "DATA"]]
    return Document(title, [facts | words.run_facts(run), *parts], lead, record, following)


def refit_document(refitted: Summary, job: specs.Refit, run: Summary) -> Document:
    """Return what was trained like another model; `run`: what ran it, see `words.run_facts`."""
    model = job.destination.model
    facts = {
        "holds": words.plural(refitted["n_samples"], "row"),
        "alpha": words.value_words(refitted["alpha"]),
        **words.run_facts(run),
        "digest": refitted["digest"][:16],
    }
    record = {"like": job.like, "data": job.source.data, **refitted, **run}
    following = [["merge", job.like, model, "--model", "BOTH"]]
    return Document(f"trained {model} like {job.like}", [facts], record=record, next=following)


def merged_document(merged: Summary, job: specs.Merge) -> Document:
    """Return what models were merged into."""
    output = job.destination.model
    facts = {
        "holds": f"{merged['n_samples']:,} rows of {words.plural(len(merged['rows']), 'dataset')}",
        "alpha": words.value_words(merged["alpha"]),
        "digest": merged["digest"][:16],
    }
    title = f"merged {words.plural(len(job.models), 'model')} into {output}"
    record = {"models": job.models, **merged}
    return Document(title, [facts], record=record, next=[["evaluate", output, "DATA"]])


def _training_facts(training: train.Training, seed: int) -> Lines:
    model, plan, solved = training.model, training.plan, training.fitted.trained.solved
    classifier, chosen = model.card.get("classifier"), choice_facts(model, seed)
    outputs = words.features_and_targets(plan["n_features"], plan["n_targets"], classifier)
    if (ends := path_ends(solved)) is not None and (end := end_of_path(solved)) is not None:
        place = f"at the {end} end of {number(ends[0])} to {number(ends[1])}"
        chosen = {**chosen, "alpha": Alert(f"{chosen['alpha']}, {place}")}
    return {
        # what people look for first
        **test_facts(training.metrics, model.card.get("target_names")),
        "cross-validation": chosen.get("cross-validation"),
        "rows": f"{plan['n_samples']:,} of {plan['data']}, {outputs}",
        **chosen,
        **words.solver_facts(training.chosen),
        "digest": model.digest()[:16],
        **version_facts(training.published),
    }


def _describe_choice(training: train.Training) -> Summary:
    """Return how features and alpha were chosen, for the JSON document."""
    model, solved = training.model, training.fitted.trained.solved
    feature_map, solution, table = model.feature_map, solved.solution, solved.cross_validation
    kernel, spec = kinds.kernel_of(feature_map), feature_map.spec
    assert kernel is not None  # the map was drawn just now
    described = None
    if table is not None:
        described = describe_cross_validation(table, feature_map.n_components, solution.alpha)
    return {
        **({"jitter": feature_map.jitter} if isinstance(feature_map, nystrom.NystromFeatureMap) else {}),
        "kernel": kernel.to_dict(),
        "design": None if spec is None else spec.design.name,
        "map": None if spec is None else spec.map,
        "alpha_chosen_by": chosen_by(model.card),
        "alpha_at_end_of_path": end_of_path(solved),
        "alpha_path": path_ends(solved),
        "gcv": None if solved.selection is None else solved.selection.score,
        "cross_validation": described,
        "effective_rank": solution.effective_rank,
        "alpha_floor": solution.floor,
    }


def _search_facts(trained: fit.Trained) -> Lines:
    """Return in words how given candidates were compared, and whether a better one may lie beyond them."""
    ends = [
        f"{name} is the {'smallest' if trained.best[end] == 'lower' else 'largest'} tried"
        for name, end in (("the length scale", "length_scale_at_end"), ("alpha", "alpha_at_end"))
        if trained.best[end] is not None
    ]
    folds, readings = trained.model.card["folds"], words.plural(trained.n_readings, "reading")
    return {
        "compared by": f"{folding.folds_words(folds)}, from {readings}",
        "note": Alert(f"{' and '.join(ends)}: a better one may lie beyond") if ends else None,
    }


def end_of_path(solved: solve.Solved) -> str | None:
    """Return "lower" or "upper" if alpha is the first or last that was tried, else None."""
    table = solved.cross_validation
    if table is not None and solved.choice is not None:
        return solved.choice.at_end if len(table.alphas) > 1 else None
    return None if solved.selection is None else solved.selection.at_end


def path_ends(solved: solve.Solved) -> tuple[float, float] | None:
    """Return the smallest and the largest alpha that were tried; None if alpha was given."""
    path = solved.cross_validation or solved.selection
    return None if path is None else (float(path.alphas[0]), float(path.alphas[-1]))


def chosen_by(card: Facts) -> str:
    """Return what a model's alpha was chosen by, a key of `CHOSEN_BY`."""
    by = str(card["chosen_by"])
    return "cv-1se" if by == "cv" and card["alpha_given"] == "cv-1se" else by


def alpha_words(alpha: float | Sequence[float], card: Facts) -> str:
    """Return alpha and what it was chosen by; the alpha of another loss is derived from ridge's."""
    by, ridge = CHOSEN_BY[chosen_by(card)], card.get("classifier", {}).get("ridge_alpha", alpha)
    derived = "" if ridge == alpha else f", derived from ridge's {words.value_words(ridge)}"
    return f"{words.value_words(alpha)}{derived}, {by}"


def test_facts(metrics: Facts | None, targets: Sequence[str] | None) -> Lines:
    """Return in words a model's errors on all test rows, by the names of its targets; nothing without any."""
    if metrics is None:
        return {}
    errors = describe.errors_text(metrics, targets)
    return {"test": f"{errors}; {metrics['n_samples']:,} rows of {metrics['test_data']}"}


def group_parts(metrics: Facts | None, targets: Sequence[str] | None) -> list[Part]:
    """Return the table of a model's errors on the test rows of each group; nothing without groups."""
    groups = (metrics or {}).get("groups", {})
    rows = [(name, one["n_samples"], describe.errors_text(one, targets)) for name, one in groups.items()]
    caption = "errors by group, with standard errors as if rows were independent"
    return [Table(caption, ("group", "rows", "errors"), rows, is_facts=True)] if rows else []


def errors_table(metrics: Facts, model: models.RidgeModel) -> Table:
    """Return a regression's errors on all test rows, a row per target."""
    rows = list(zip(target_names(model), *(metrics[name] for name in ERRORS), strict=True))
    caption = f"errors on {metrics['n_samples']:,} rows of {metrics['test_data']}"
    return Table(caption, ("target", *ERRORS.values()), rows)


def estimate_facts(card: Facts) -> Lines:
    """Return in words how a model was chosen, and its errors by cross-validation."""
    facts, candidates = dict[str, str | None](), card.get("candidates", [])
    if (best := describe.chosen_candidate(candidates)) is not None:
        n_tried = describe.n_candidates(candidates)
        facts["chosen"] = f"the best of {n_tried} candidates: {describe.candidate_words(best)}"
    if card.get("untried"):
        facts["not tried"] = f"{', '.join(card['untried'])}: {card['time_limit']:g} s were too short"
    if (estimate := describe.estimate_of(card)) is not None:
        if "folds" not in card:
            by = "each left out in turn"
        else:
            last = "the last of " if card["solver"].get("method") == "pcg" else ""
            by = f"{last}{folding.folds_words(card['folds'])}"
        facts["cross-validation"] = f"{describe.errors_text(estimate, card.get('target_names'))}; {by}"
        if "random_rmse" in estimate:
            facts["random folds"] = _flattering_words(estimate)
    return facts


def _flattering_words(estimate: Facts) -> str:
    """Return in a sentence how much random folds would flatter the errors of groups or times."""
    random = np.asarray(estimate["random_rmse"], float)
    ratio = np.max(np.asarray(estimate["rmse"], float) / np.where(random > 0, random, np.nan))
    would = f"would give RMSE {errors_words(estimate['random_rmse'], None)}"
    if not ratio > FLATTERED:
        return f"{would}, about the same, so rows of one fold are no more alike than others"
    return f"{would}, which flatters: rows like none of those trained on have {ratio:.3g} times that error"


def classifier_facts(classifier: Facts | None) -> Lines:
    """Return the classes, the loss and the kind of probabilities of a classifier in words, from its card."""
    if classifier is None:
        return {}
    weights, minimum, loss = classifier["class_weight"], classifier["minimum"], classifier["loss"]
    loss = loss.replace("_", " ")
    if minimum is None:
        loss += ", on targets of -1 and +1"
    elif minimum["converged"]:
        loss += f", at its minimum after {minimum['n_passes']} passes"
    else:
        above = minimum["excess"] / minimum["reference"]
        loss = Alert(f"{loss}, stopped above its minimum, by about {above:.1e} times the loss at scores of 0")
    fitted = "those of the loss itself" if minimum is not None else "fitted to leave-one-out scores"
    return {
        "classes": some(classifier["classes"]),
        "class weights": weights if weights in (None, "balanced") else some(weights),
        "loss": loss,
        "probabilities": "none" if classifier["calibration"] is None else fitted,
    }


def version_facts(published: Facts) -> Lines:
    """Return in words which version was published; nothing if the model is not registered."""
    if published["version"] is None:
        return {}
    parent = published["parent"]
    after = "first version" if parent is None else f"after version {parent}"
    return {"version": f"{published['version']} ({after}, now current)"}


def target_names(model: models.RidgeModel) -> list[str]:
    """Return the targets' names, a classifier's classes, or y0, y1, … if the data had no names."""
    names, n_targets = model.card.get("target_names"), model.n_targets
    if "classifier" in model.card:
        # Of two classes, only the second has a target.
        names = model.card["classifier"]["classes"][-n_targets:]
    return [str(name) for name in names or (["y"] if n_targets == 1 else [f"y{i}" for i in range(n_targets)])]


def describe_cross_validation(
    table: cross_validation.CrossValidation, n_components: int, alpha: ArrayLike
) -> Summary:
    """Return the k-fold errors at one D and alpha, or alphas of targets, and the best alpha of each D."""
    width = int(np.argmin(np.abs(table.n_components - n_components)))
    wanted = np.broadcast_to(alpha, len(table.target_variance))
    places = np.abs(np.subtract.outer(wanted, table.alphas)).argmin(axis=1)
    score, score_standard_error = table.score_of(width, places)
    shown = ("n_components", "alpha", "score", "standard_error")
    bests = map(table.best_of, table.n_components.tolist())
    return {
        "folds": folding.folds_to_dict(table.folds),
        "n_splits": len(table.weights),
        "alphas": {"n": len(table.alphas), "lowest": table.alphas[0], "highest": table.alphas[-1]},
        "score": score,
        "score_standard_error": score_standard_error,
        "widths": [fields.values_of(best, *shown) for best in bests],
    }


def describe_stored(record: records.Record) -> Summary:
    """Return the errors of a stored regression or classifier, and how its features are multiplied here."""
    card, dimension = record.metadata["card"], len(record.arrays["coefficients"])
    described: Summary = {"estimate": describe.estimate_of(card)}
    spec = record.metadata["feature_map"].get("spec") or {}
    if spec.get("precision") == "standard" and "statistics" in record.metadata:
        rate = choice.rate_for(dimension, float(card["n_samples"]) * dimension**2)
        described["products"] = {"by": rate.products.name, "gflops_per_thread": rate.gflops}
    if "selection_cv_errors" in record.arrays:  # alpha was chosen from a table of k-fold errors
        arrays = {name.removeprefix("selection_"): array for name, array in record.arrays.items()}
        folds = folding.folds_from_dict(card["folds"])
        table = cross_validation.CrossValidation.from_arrays(folds, arrays)
        chosen = card.get("classifier", {}).get("ridge_alpha", record.metadata["alpha"])
        described["cross_validation"] = describe_cross_validation(table, dimension, chosen)
    return described


def stored_facts(record: records.Record, products: Facts | None) -> Lines:
    """Return the facts of a stored regression or classifier in words."""
    metadata = record.metadata
    card, features = metadata["card"], metadata["feature_map"]
    dimension, n_targets = record.arrays["coefficients"].shape
    classifier, window, refused = card.get("classifier"), card.get("window"), card.get("left_out")
    kept = "stored" if "statistics" in metadata else "not stored"
    packages = ", ".join(f"{name} {version}" for name, version in card["environment"]["packages"].items())
    outputs = words.features_and_targets(features["n_features"], n_targets, classifier)
    return {
        "trained on": f"{card['n_samples']:,} rows, {outputs}",
        "left out": f"{words.ranges_words(refused)}, which updates refused" if refused else None,
        "window": window and f"{window['of']}: from row {window['start']:,} of the data on",
        "columns": words.listed(card.get("feature_names")),
        "targets": words.listed(card.get("target_names")),
        **test_facts(card.get("metrics"), card.get("target_names")),
        **_chosen_facts(features, dimension, metadata["alpha"], card),
        "products": products
        and f"by {products['by']} here, {products['gflops_per_thread']:.0f}e9 a second on one thread",
        "solver": f"{card['solver']['status'].replace('_', ' ')}; the sums for updates are {kept}",
        "made": f"{card['created']} with {packages}",
        # A model merged from several datasets has none.
        "data fingerprint": card.get("data_fingerprint", "")[:16] or None,
        "digest": metadata["digest"][:16],
    }


# -- candidates ------------------------------------------------------------------------------------


def _standing(row: Facts) -> str:
    if row.get("round") == "first":
        return "first round"
    return "as good" if row.get("within_one_standard_error") else ""


def candidates_table(candidates: Sequence[Facts], most: int | None = None) -> Table:
    """Return the candidates on a model's card as a table, the best first; by default all of them."""
    ranked = describe.ranked_candidates(candidates)
    shown = ranked[:most]
    rows = [[*describe.candidate_cells(row), _standing(row) if i else ""] for i, row in enumerate(shown)]
    which = f"the best {len(shown)} of " if len(shown) < len(ranked) else ""
    caption = f"{which}{describe.n_candidates(candidates)} candidates, by cross-validation"
    return Table(caption, (*describe.CANDIDATE_CELLS, "note"), rows, chosen=0)


def widths_table(table: Facts, n_components: int) -> Table:
    """Return the best alpha of each D, of a cross-validation that `describe_cross_validation` described."""
    rows = [
        (width["n_components"], width["alpha"], plus_minus(1 - width["score"], width["standard_error"]))
        for width in table["widths"]
    ]
    numbers = [row[0] for row in rows]
    chosen = numbers.index(n_components) if n_components in numbers else None
    return Table("each D with its best alpha", ("D", "alpha", "R²"), rows, chosen)
