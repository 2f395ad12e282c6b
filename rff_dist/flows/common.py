"""What flows share: the body of the flows that train a model, and the artifacts that flows make."""

import base64
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact

from rff_dist.engines.clock import Clock, products_words
from rff_dist.errors import RFFDistError
from rff_dist.features import kinds
from rff_dist.flows import running
from rff_dist.kernels.names import kernel_text, shortened_text
from rff_dist.models import versions
from rff_dist.ridge import describe, models
from rff_dist.text import redact
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import specs, steps
from rff_dist.workbench.jobs import train as training
from rff_dist.workbench.jobs.verdict import NOTHING_COMPARED
from rff_dist.workbench.page import pages, pictures
from rff_dist.workbench.page.content import Page, to_markdown

_SHOWN_VERSIONS = 20
_DIGEST = re.compile("[0-9a-f]{64}")


def train_model(parameters: running.Form, spec: type[specs.Train | specs.Tune], *, name: str) -> Summary:
    """Run the job that trains a model, and make artifacts about it: the body of a flow.

    `spec`: of the job.
    `name`: of the flow; the keys of its artifacts begin with it.
    Returns: JSON-able: the records of the steps, the `metrics` on test data (None without any), and the
      `comparison` with other models (None if nothing was compared).
    """
    log, job = get_run_logger(), parameters.to(spec)
    clock = Clock()
    found = training.train(job, running.runner_of(parameters, log, clock=clock))
    _log_fit(log, found.chosen)
    result, metrics = found.describe(), found.metrics
    model, place = found.model, job.destination.model
    show_choice(f"{name}-errors", model, title=result["data"], log=log)
    clock.begin("report")
    show_page(
        f"{name}-page",
        lambda: pages.model_page(
            found.data, model, place=place, times=clock.times, comparison=found.comparison, metrics=metrics
        ),
        log,
    )
    times = clock.times()
    if job.destination.register:
        show_versions(place)
    if metrics is None:
        log.info("no test data were given, so the model was not evaluated")
    else:
        about = f"{metrics['n_samples']:_}", metrics["test_data"], _estimate(metrics)
        log.info("on %s rows of %s: %s", *about)
    log.info("published %s", result["model"])
    comparison = result["comparison"]
    log.info("%s", NOTHING_COMPARED if comparison is None else comparison["verdict"])
    summary = _summary_markdown({**result, "products": times.products, "seconds": times.seconds})
    show_text(f"{name}-summary", summary, "What was trained, and how well.")
    if result["candidates"]:
        show_table(f"{name}-candidates", _candidate_table(result["candidates"]), "Candidates compared.")
    return result


def log_rows(log: Any, data: Summary) -> None:
    """Log the size of the data, and where they are."""
    log.info("%s rows of %s columns, %s", f"{data['n_samples']:_}", data["n_features"], data["data"])


def _log_fit(log: Any, trained: Mapping[str, Any]) -> None:
    log.info(
        "%s, length scale %s: %s features, D = %s, alpha %s; cross-validation: %s",
        trained["kernel"],
        running.number(trained["length_scale"]),
        trained["features"],
        trained["n_components"],
        running.number(trained["alpha"]),
        _estimate(trained["estimate"]),
    )
    for cause in trained["causes"]:
        log.warning("%s: %s", trained["status"], cause)


# -- artifacts -------------------------------------------------------------------------------------


def show_text(what: str, text: str, description: str) -> None:
    """Make an artifact from text in Markdown."""
    create_markdown_artifact(text, key=running.key(what), description=description)


def show_table(what: str, rows: list[dict[str, Any]], description: str) -> None:
    """Make an artifact from a table."""
    create_table_artifact(rows, key=running.key(what), description=description)


def show_choice(what: str, model: models.RidgeModel, *, title: str, log: Any) -> None:
    """Make a picture of the errors by which alpha was chosen, or log why there is none.

    `model`: its sums are not needed.
    `title`: above the axes.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            kernel = kinds.kernel_of(model.feature_map)
            about = "features as given" if kernel is None else shortened_text(kernel_text(kernel))
            picture = pictures.save_choice(model, Path(folder) / "errors.png", title=title, about=about)
        except RFFDistError as error:  # such as all errors 0: the model is good all the same
            log.info("the errors are not drawn: %s", error)
            return
        if picture is None:
            log.info("alpha was given, so there are no errors to draw")
            return
        # The picture's bytes are in the artifact, so whoever sees the run sees it, wherever the model is.
        content = base64.b64encode(picture.read_bytes()).decode()
    create_image_artifact(
        f"data:image/png;base64,{content}",
        key=running.key(what),
        description=f"The error by which alpha={running.number(model.plain_alpha)} was chosen, "
        f"against alpha.",
    )


def show_page(what: str, make: Callable[[], Page], log: Any) -> None:
    """Make an artifact from a page with its pictures, or log why it cannot be made.

    The artifact is the page itself, in Markdown: a link to an HTML file would not open, since browsers follow
    no link to a local file or to embedded data from a page that they got over HTTP.

    `make`: returns the page.
    """
    try:
        page = make()
    except RFFDistError as error:  # the model is published all the same
        log.warning("there is no page about it: %s", error)
        return
    show_text(what, to_markdown(page), page.lead)


def show_versions(model: str) -> None:
    """Make a table of the lineage of a registered model's newest versions."""
    rows = steps.version_rows(versions.RegisteredModel(model), last=_SHOWN_VERSIONS)
    show_table(
        "model-versions",
        [{name.replace("_", " "): _cell(value) for name, value in row.items()} for row in rows],
        f"The newest versions of {redact(model)}, and what each was made from.",
    )


def _cell(value: Any) -> Any:
    """Return how a table shows a value of `version_rows`."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if value is None or isinstance(value, float | list):
        return running.number(value)
    # The beginning of a digest is enough to tell it from others.
    return f"{value[:12]}…" if isinstance(value, str) and _DIGEST.fullmatch(value) else value


def place_of(published: Mapping[str, Any]) -> str:
    """Show where a model is published and, if it is registered, as which version."""
    version = published["version"]
    return running.code(published["model"]) + ("" if version is None else f", version {version}")


def _summary_markdown(result: Mapping[str, Any]) -> str:
    outputs = f"{result['n_targets']:,} targets"
    if result["classifier"] is not None:
        outputs = f"{len(result['classifier']['classes']):,} classes, {result['classifier']['loss']}"
    facts = {
        "model": place_of(result),
        "digest": running.code(result["digest"]),
        "training data": running.code(result["data"]),
        "rows": f"{result['n_samples']:,}",
        "inputs, outputs": f"{result['n_features']:,}, {outputs}",
        "kernel": shortened_text(result["kernel"]),
        "length scale": running.number(result["length_scale"]),
        "features": f"{result['features']}, D = {result['n_components']:,}",
        "alpha": f"{running.number(result['alpha'])}, by {result['alpha_chosen_by']}",
        "test": "no test rows" if (metrics := result["metrics"]) is None else _estimate(metrics),
        "cross-validation": _estimate(result["estimate"]),
        "seconds": f"{result['seconds']['total']:.1f}, {result['fit_seconds']:.1f} of them for the fit",
        "products of features": products_words(result["products"]) or "too few to measure",
        "peak memory planned": result["peak_memory"],
    }
    if n_tried := describe.n_candidates(result["candidates"]):
        facts["chosen from"] = f"{n_tried} candidates"
    comparison = result["comparison"]
    verdict = NOTHING_COMPARED if comparison is None else comparison["verdict"]
    return f"{verdict}\n\n{summary_markdown('Trained model', facts, metrics)}"


def _estimate(found: Mapping[str, Any] | None) -> str:
    """Show the errors on new rows that a model's card estimates."""
    if found is None:
        return "not estimated"
    errors = {name: found[name] for name in ("rmse", "r2", "accuracy", "log_loss") if name in found}
    shown = [
        f"{describe.TITLES[name]} {running.number(value)}"
        + (
            f" ± {running.number(found[f'{name}_standard_error'])}"
            if f"{name}_standard_error" in found
            else ""
        )
        for name, value in errors.items()
    ]
    return ", ".join(shown)


def _candidate_table(candidates: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    best = describe.chosen_candidate(candidates)
    return [
        {
            "round": one.get("round", ""),
            "kernel": shortened_text(one["kernel"]),
            "length scale": running.number(one["length_scale"]),
            "features": one["features"],
            "D": one["n_components"],
            "alpha": running.number(one["alpha"]),
            "error / variance": running.number(one["score"]),
            "standard error": running.number(one["standard_error"]),
            "chosen": "yes" if one is best else "as good" if one.get("within_one_standard_error") else "",
        }
        for one in candidates
    ]


def facts_markdown(title: str, facts: Mapping[str, str], below: Sequence[str] = ()) -> str:
    """Return facts as a table under a title, and the lines `below` it."""
    table = [f"| {k} | {v} |" for k, v in facts.items()]
    lines = [f"# {title}", "", "| | |", "|---|---|", *table, ""]
    return "\n".join([*lines, *below, ""] if below else lines)


def summary_markdown(title: str, facts: Mapping[str, str], metrics: Mapping[str, Any] | None) -> str:
    """Return facts as a table, and below it the errors on test data, if there are any."""
    if metrics is None:
        return facts_markdown(title, facts, ["Not evaluated: no test data were given."])
    lines = [f"## Errors on {metrics['n_samples']:,} rows of {running.code(metrics['test_data'])}", ""]
    if "accuracy" in metrics:
        names = ("accuracy", "balanced_accuracy", "log_loss")
        lines += [f"- {describe.TITLES[name]}: {running.number(metrics[name])}" for name in names]
    else:
        lines += ["| target | RMSE | mean absolute | bias | R² |", "|---|---|---|---|---|"]
        lines += target_rows([metrics[name] for name in ("rmse", "mae", "bias", "r2")])
    return facts_markdown(title, facts, lines)


def target_rows(columns: Sequence[Sequence[float | None]]) -> list[str]:
    """Return the rows of a table of numbers, one for each target."""
    return [
        f"| {i} | {' | '.join(map(running.number, row))} |"
        for i, row in enumerate(zip(*columns, strict=True))
    ]
