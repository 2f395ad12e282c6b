"""What people see: progress while a job runs, and its figures in words afterwards."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rff_dist.text import errors_words, number
from rff_dist.text import plus_minus as plus_minus  # the commands take both from here
from rff_dist.text import some as some
from rff_dist.workbench.cli import messages, settings

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from rff_dist.engines import protocol
    from rff_dist.engines.progress import RichProgress
    from rff_dist.kmeans import labels, starts
    from rff_dist.ridge import models
    from rff_dist.selection import cross_validation
    from rff_dist.storage import datasets
    from rff_dist.workbench.jobs import fits, options, steps, verdict

#: Labels and values in words; a value of None is not shown.
type ShownFacts = dict[str, str | None]

_SHOWN_CANDIDATES = 6
_shown: ContextVar[RichProgress | None] = ContextVar("shown", default=None)


@contextlib.contextmanager
def progress(name: str) -> Iterator[None]:
    """Show the progress of a command on standard error, unless it is to be quiet."""
    if settings.logs_json() or settings.is_quiet():
        yield
        return
    from rff_dist.engines.progress import RichProgress

    with RichProgress(messages.err, name) as shown:
        token = _shown.set(shown)
        try:
            yield
        finally:
            _shown.reset(token)


def count_rows(label: str) -> Callable[[int, int | None], None]:
    """Return a function that shows how many rows are done, out of how many."""
    shown = _shown.get()
    return (lambda *_: None) if shown is None else partial(shown.count, label)


def at_work(label: str) -> None:
    """Show what the command is doing from now on."""
    from rff_dist.engines.progress import Remark

    if (shown := _shown.get()) is not None:
        shown(Remark(label, ""))


class Passes:
    """What a command runs its job with: an engine, progress on standard error, and a clock."""

    def __init__(self, where: options.Where) -> None:
        from rff_dist.engines.clock import Clock, process_start

        self.where = where
        self.clock = Clock(process_start() if settings.is_program.get() else None)
        self._engine: dict[str, Any] = {}

    @property
    def runner(self) -> steps.Runner:
        """The runner that calls the steps of a job."""
        from rff_dist.workbench.jobs.steps import Runner

        elsewhere = self.where.cluster.in_environment().elsewhere
        return Runner(self.open, self._call, "rff-dist", elsewhere, count_rows("read"))

    def write_page(
        self,
        report: Path | None,
        data: fits.JobData,
        model: models.RidgeModel,
        place: str,
        *,
        comparison: verdict.Comparison | None = None,
        metrics: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the page about a model, see `model_page`, if a path for it is given."""
        if report is not None:
            from rff_dist.workbench.page import content
            from rff_dist.workbench.page.pages import model_page

            self.at_work("report")
            page = model_page(
                data,
                model,
                place=place,
                times=self.clock.times,
                comparison=comparison,
                metrics=metrics,
                update=update,
            )
            content.write_page(page, report)

    def at_work(self, part: str) -> None:
        """Show what the command is doing from now on, and count its time."""
        at_work(part)
        self.clock.begin(part)

    def facts(self) -> dict[str, Any]:
        """Return what ran the job and where its time went until now, for the JSON document."""
        times = self.clock.times()
        return {"engine": self._engine, "seconds": times.seconds, "products": times.products}

    @contextlib.contextmanager
    def open(self, n_samples: int) -> Iterator[protocol.Engine]:
        """Start an engine for passes over so many rows, with progress on standard error, and close it."""
        from rff_dist.engines.connecting import open_engine
        from rff_dist.engines.progress import Remark

        cluster = self.where.cluster.in_environment().for_rows(n_samples)
        self.clock.rest("start")
        shown = _shown.get()  # None also if messages are JSON lines, which report passes themselves
        if shown is not None and cluster.kind in ("embedded", "adaptive"):
            size = " × ".join(map(str, cluster.size()))
            shown(Remark("cluster", f"starting here, workers × threads = {size}"))
        observers = () if shown is None else (shown,)
        with open_engine(cluster, observers=observers) as engine, self.clock.watching(engine):
            if not cluster.serial:
                self.clock.rest("cluster")  # all time since then went into its start
            kind = "serial" if cluster.serial else "dask" if cluster.scheduler else "embedded dask"
            if shown is not None and cluster.scheduler and (address := dashboard_of(engine)):
                messages.err.print(f"dashboard: {address}", highlight=False, soft_wrap=True)
            self._engine = {"kind": kind, "n_workers": engine.n_workers, "n_threads": engine.n_threads}
            yield engine

    def _call(self, name: str, step: Callable[[], Any], _: bool) -> Any:
        if name == "publish":
            self.clock.end()
        return step()


def dashboard_of(engine: protocol.Engine) -> str | None:
    """Return the address of the dashboard of an engine's cluster; None if there is none."""
    client = getattr(engine, "client", None)
    # n_workers=0: nothing about workers is sent along
    if client is None or "dashboard" not in client.scheduler_info(n_workers=0)["services"]:
        return None
    return str(client.dashboard_link)


def run_facts(found: Mapping[str, Any]) -> ShownFacts:
    """Return the facts of `Passes.facts` in words."""
    from rff_dist.engines.clock import products_words

    seconds = found["seconds"]
    parts = ", ".join(f"{name} {seconds_words(value)}" for name, value in seconds.items() if name != "total")
    return {
        "seconds": f"{seconds_words(seconds['total'])} ({parts})",
        "products": products_words(found["products"]) or None,
        "ran on": engine_words(found["engine"]),
    }


def describe_published(model: str | None, published: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return where a model is and which version it is, for the JSON document."""
    assert published is not None  # it is never skipped
    version = published["version"]
    numbers = None if version is None else {"number": version, "parent": published["parent"]}
    return {"model": model, "version": numbers}


def version_facts(document: Mapping[str, Any]) -> ShownFacts:
    """Return in words which version was published; nothing if the model is not registered."""
    version = document["version"]
    if version is None:
        return {}
    parent = version["parent"]
    after = "the first one" if parent is None else f"after version {parent}"
    return {"version": f"{version['number']}, {after}; the current one from now on"}


def solver_facts(found: Mapping[str, Any]) -> ShownFacts:
    """Return the solver's status in words, and what to do about it."""
    status = found["status"].replace("_", " ")
    return {
        "solver": status if status == "ok" else f"[yellow]{status}[/]: {found['causes'][0]}",
        "remedy": next(iter(found["remedies"]), None),
    }


def describe_cross_validation(
    table: cross_validation.CrossValidation,
    n_components: int,
    alpha: float | Sequence[float] | NDArray[np.float64],
) -> dict[str, Any]:
    """Return the k-fold errors at one D and alpha, or alphas of targets, and the best alpha of each D."""
    import numpy as np

    from rff_dist.data.folding import folds_to_dict

    width = int(np.argmin(np.abs(table.n_components - n_components)))
    targets = np.arange(len(table.target_variance))
    wanted = np.broadcast_to(alpha, targets.shape)
    places = np.abs(np.subtract.outer(wanted, table.alphas)).argmin(axis=1)
    score, score_standard_error = table.score_of(width, places)
    shown = ("n_components", "alpha", "score", "standard_error")
    bests = map(table.best_of, table.n_components.tolist())
    return {
        "folds": folds_to_dict(table.folds),
        "n_splits": len(table.weights),
        "alphas": {"n": len(table.alphas), "lowest": table.alphas[0], "highest": table.alphas[-1]},
        "score": score,
        "score_standard_error": score_standard_error,
        "widths": [{name: getattr(best, name) for name in shown} for best in bests],
    }


CHOSEN_BY = {
    "given": "as given",
    "cv": "chosen by cross-validation",
    "cv-1se": "the largest within one standard error of the best by cross-validation",
    "gcv": "chosen by GCV",
    "evidence": "chosen by the evidence",
    "press": "chosen by leave-one-out errors",
}


def chosen_by(card: Mapping[str, Any]) -> str:
    """Return what a model's alpha was chosen by, a key of `CHOSEN_BY`."""
    by = str(card["chosen_by"])
    return "cv-1se" if by == "cv" and card["alpha_given"] == "cv-1se" else by


def classifier_facts(found: Mapping[str, Any]) -> ShownFacts:
    """Return the classes, the loss and the kind of probabilities of a classifier in words, from its card."""
    weights, minimum = found["class_weight"], found["minimum"]
    if minimum is None:
        ended = "on targets of -1 and +1"
    elif minimum["converged"]:
        ended = f"at its minimum after {minimum['n_passes']} passes"
    else:
        above = minimum["excess"] / minimum["reference"]
        ended = f"[yellow]stopped[/] above its minimum, by about {above:.1e} times the loss at scores of 0"
    fitted = "those of the loss itself" if minimum is not None else "fitted to leave-one-out scores"
    return {
        "classes": some(found["classes"]),
        "class weights": weights if weights in (None, "balanced") else some(weights),
        "loss": f"{found['loss'].replace('_', ' ')}, {ended}",
        "probabilities": "none" if found["calibration"] is None else fitted,
    }


def value_words(value: Any) -> str:
    """Return a number, the first eight of several values, or a text."""
    if isinstance(value, list | tuple):
        return some(value)
    return number(value) if value is None or isinstance(value, int | float) else str(value)


def alpha_words(alpha: float | Sequence[float], by: str, classifier: Mapping[str, Any] | None) -> str:
    """Return alpha and what it was chosen by; the alpha of another loss is derived from ridge's."""
    ridge = alpha if classifier is None else classifier["ridge_alpha"]
    if ridge == alpha:
        return f"{value_words(alpha)}, {CHOSEN_BY[by]}"
    return f"{value_words(alpha)}, derived from ridge's {value_words(ridge)}, {CHOSEN_BY[by]}"


def ranges_words(ranges: Sequence[Sequence[int]]) -> str:
    """Return ranges of rows, given as start and stop, in words."""
    return ", ".join(f"rows {start:,} to {stop - 1:,}" for start, stop in ranges)


def verdict_view(comparison: verdict.Comparison | None) -> RenderableType:
    """Return the verdict on a model, the first sentence of what a command prints."""
    from rff_dist.workbench.jobs.verdict import NOTHING_COMPARED

    return Text(NOTHING_COMPARED if comparison is None else comparison.verdict, "bold")


def test_facts(metrics: Mapping[str, Any] | None) -> ShownFacts:
    """Return in words a model's errors on all test rows; nothing without any."""
    from rff_dist.ridge.describe import TITLES

    if metrics is None:
        return {}
    shown = [f"{title} {value_words(metrics[name])}" for name, title in TITLES.items() if name in metrics]
    return {"test": f"{', '.join(shown)}; {metrics['n_samples']:,} rows of {metrics['test_data']}"}


def estimate_facts(card: Mapping[str, Any]) -> ShownFacts:
    """Return in words how a model was chosen, and its errors by cross-validation."""
    from rff_dist.data.folding import folds_words
    from rff_dist.ridge.describe import TITLES, chosen_candidate, estimate_of, n_candidates

    facts: ShownFacts = {}
    candidates = card.get("candidates", [])
    if (best := chosen_candidate(candidates)) is not None:
        facts["chosen"] = f"the best of {n_candidates(candidates)} candidates: {candidate_words(best)}"
    if (found := estimate_of(card)) is not None:
        shown = [
            f"{title} {errors_words(found[name], found.get(f'{name}_standard_error'))}"
            for name, title in TITLES.items()
            if name in found
        ]
        if found["by"] == "press" or "folds" not in card:
            by = "each left out in turn"
        else:
            one = "the last of " if card["solver"].get("method") == "pcg" else ""
            by = f"{one}{folds_words(card['folds'])}"
        facts["cross-validation"] = f"{', '.join(shown)}; {by}"
    return facts


def candidate_words(row: Mapping[str, Any]) -> str:
    """Return a candidate from a model's card in words."""
    from rff_dist.kernels.names import shortened_text

    scale = row["length_scale"]
    if isinstance(scale, list):
        of_scale = ", a length scale per column"
    else:
        of_scale = "" if scale is None else f", length scale {number(scale)}"
    error, kernel = plus_minus(row["score"], row["standard_error"]), shortened_text(row["kernel"])
    return f"{kernel}{of_scale}, {row['features']}, error {error} of the variance"


def candidates_view(candidates: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return the best of the candidates as a table."""
    from rff_dist.kernels.names import shortened_text
    from rff_dist.ridge.describe import chosen_candidate, n_candidates

    best = chosen_candidate(candidates)
    # The first round's come last: they are errors of fewer rows and components.
    ranked = sorted(candidates, key=lambda one: (one is not best, one.get("round") == "first", one["score"]))
    view, table = titled_table(
        f"the best of {n_candidates(candidates)} candidates, by error as a share of the variance",
        *("kernel", "length scale", "features", "D", "alpha", "error"),
    )
    for one in ranked[:_SHOWN_CANDIDATES]:
        scale = one["length_scale"]
        table.add_row(
            f"{shortened_text(one['kernel'])}{' ←' if one is best else ''}",
            "by column" if isinstance(scale, list) else number(scale),
            one["features"],
            f"{one['n_components']:,}",
            number(one["alpha"]),
            plus_minus(one["score"], one["standard_error"]),
            style="bold" if one is best else None,
        )
    return view


def widths_view(found: Mapping[str, Any], n_components: int) -> RenderableType:
    """Return the best alpha of each D as a table; the chosen D is marked."""
    view, table = titled_table("each D with its best alpha", "D", "alpha", "error / variance")
    for width in found["widths"]:
        taken = width["n_components"] == n_components
        table.add_row(
            f"{width['n_components']:,}{' ←' if taken else ''}",
            number(width["alpha"]),
            plus_minus(width["score"], width["standard_error"]),
            style="bold" if taken else None,
        )
    return view


def facts_view(title: str, /, **facts: str | None) -> RenderableType:
    """Return labels and values as two columns below a title; values of None are left out.

    Underscores of labels become spaces.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in facts.items():
        if value is not None:
            table.add_row(f"  {label.replace('_', ' ')}", value)
    return Group(Text(title, "bold", overflow="fold"), table) if title else table


def next_step(*words: str) -> Text:
    """Return a line that suggests the next command, its words quoted for the shell; empty if quiet."""
    if settings.is_quiet():
        return Text(end="")
    return Text.assemble(("\n  next: ", "dim"), shlex.join(words), overflow="fold")


def describe_dataset(dataset: datasets.ZarrDataset) -> dict[str, Any]:
    """Return a dataset's facts for the JSON document."""
    return {
        "path": dataset.url,
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_targets": dataset.n_targets,
        "dtype": dataset.dtype.name,
        "chunk_rows": dataset.chunk_rows,
        "feature_names": dataset.feature_names,
        "target_names": dataset.target_names,
        "dropped_rows": dataset.attributes.get("dropped_rows", 0),
        "version": dataset.version,
    }


def dataset_facts(dataset: datasets.ZarrDataset) -> ShownFacts:
    """Return a dataset's facts in words."""
    return {
        "rows": f"{dataset.n_samples:,}, {features_and_targets(dataset.n_features, dataset.n_targets)}",
        "stored as": f"{dataset.dtype.name}, {dataset.chunk_rows:,} rows a chunk, checksummed",
        "version": dataset.version,
        "features": listed(dataset.feature_names),
        "targets": listed(dataset.target_names),
        "dropped": dropped_words(dataset.attributes.get("dropped_rows", 0)),
    }


def dropped_words(n_rows: int) -> str | None:
    """Return how many unusable rows were left out; None if there were none."""
    return f"[yellow]{n_rows:,} rows[/] with missing or infinite values" if n_rows else None


def target_names(model: models.RidgeModel) -> list[str]:
    """Return the targets' names, a classifier's classes, or y0, y1, … if the data had no names."""
    names, n_targets = model.card.get("target_names"), model.n_targets
    if "classifier" in model.card:
        # Of two classes, only the second has a target.
        names = [str(label) for label in model.card["classifier"]["classes"]][-n_targets:]
    return list(names) if names else ["y"] if n_targets == 1 else [f"y{i}" for i in range(n_targets)]


def kernel_words(kernel: Mapping[str, Any]) -> str:
    """Return a kernel, in the form of `Kernel.to_dict`, in words."""
    match kernel:
        case {"name": "sum", "kernels": terms}:
            return " + ".join(map(kernel_words, terms))
        case {"name": "product", "kernels": factors}:
            return " × ".join(f"({kernel_words(factor)})" for factor in factors)
        case {"name": "scaled", "weight": weight, "kernel": inner}:
            return f"{number(weight)} × ({kernel_words(inner)})"
        case {"name": "on_columns", "kernel": inner, "columns": columns}:
            return f"{kernel_words(inner)} on columns {some(columns)}"
    parameters = [
        f"{'ν =' if name == 'nu' else name.replace('_', ' ')} {value_words(value)}"
        for name, value in kernel.items()
        if name != "name" and value is not None
    ]
    return ", ".join([kernel["name"].replace("_", " "), *parameters])


def engine_words(engine: Mapping[str, Any]) -> str:
    """Return in words which engine ran a job, from the entry "engine" of `Passes.facts`."""
    threads = plural(engine["n_threads"], "thread")
    if engine["kind"] == "serial":
        return f"this process, {threads}"
    return f"{engine['kind']}, {plural(engine['n_workers'], 'worker')} × {threads}"


def features_and_targets(n_features: int, n_targets: int, classifier: Mapping[str, Any] | None = None) -> str:
    """Return "8 features, 1 target", or "8 features, 2 classes" with the facts of a classifier."""
    features = plural(n_features, "feature")
    if classifier is None:
        return f"{features}, {plural(n_targets, 'target')}"
    return f"{features}, {plural(len(classifier['classes']), 'class', 'classes')}"


def titled_table(
    title: str, *columns: str, header: bool = True, numbers: bool = True
) -> tuple[RenderableType, Table]:
    """Return a table below its title, and the table itself to add rows to."""
    table = Table(box=box.SIMPLE_HEAD, show_header=header, show_edge=False, padding=(0, 1, 0, 0))
    for i, column in enumerate(columns):
        # In a narrow terminal the widest columns are wrapped; "…" would stand for a number's digits.
        table.add_column(column, justify="right" if numbers and i else "left", overflow="fold")
    return Group(Text(title, "bold", overflow="fold"), table), table


def seconds_words(seconds: float) -> str:
    """Return seconds with as many digits as anyone wants to read."""
    return f"{seconds:.2f}" if seconds < 1 else f"{seconds:.1f}"


def plural(number: int, noun: str, several: str | None = None) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def listed(names: Sequence[Any] | None) -> str | None:
    """Return the first eight of some names; None if there are none."""
    return some(names) if names else None


def shape_words(lengths: Sequence[int]) -> str:
    """Return a shape such as 1,000 × 8."""
    return " × ".join(f"{length:,}" for length in lengths)


def short(value: Any) -> str:
    """Return a value's text, cut where it is long."""
    text = some(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 200 else text[:200] + " …"


# -- clusters in words and for JSON documents, for all commands that show them ---------------------


def describe_clusters(found: starts.Clusters) -> dict[str, Any]:
    """Return the facts of clusters for the JSON document."""
    from rff_dist.features.kinds import kernel_of
    from rff_dist.kernels.stationary import own_length_scale

    kernel = kernel_of(found.feature_map)
    return {
        "n_clusters": found.n_clusters,
        "n_filled": found.n_filled,
        "n_components": found.feature_map.n_components,
        "features": found.feature_map.kind,
        "kernel": None if kernel is None else kernel.to_dict(),
        "length_scale": own_length_scale(kernel),
        "sizes": found.weights,
        "inertia": found.inertia,
        "inertias": found.inertias,
        "start_inertias": found.start_inertias,
        "n_passes": found.n_iter,
        "converged": found.converged,
    }


def describe_agreement(agreement: labels.Contingency, name: str) -> dict[str, Any]:
    """Return how well clusters agree with known labels, for the JSON document."""
    return {
        "name": name,
        "adjusted_rand_index": agreement.adjusted_rand_index,
        "normalized_mutual_information": agreement.normalized_mutual_information,
        "labels": agreement.labels.tolist(),
        "counts": agreement.counts,
    }


def clusters_words(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of `describe_clusters` in words."""
    clusters, inertia = f"{found['n_clusters']:,}", number(found["inertia"])
    if found["n_filled"] < found["n_clusters"]:
        clusters += f", [yellow]{found['n_filled']:,} with rows[/]: there are no more distinct rows"
    if (n_starts := len(found["start_inertias"])) > 1:
        inertia += f", the least of {n_starts} starts (the largest: {number(max(found['start_inertias']))})"
    n_passes = plural(found["n_passes"], "pass", "passes")
    still = f"[yellow]centres still moved[/] after {n_passes}; raise --max-passes or --tol"
    lloyd = f"converged after {n_passes}" if found["converged"] else still
    return {"clusters": clusters, "inertia": inertia, "Lloyd": lloyd}


def agreement_words(known: Mapping[str, Any]) -> str:
    """Return the agreement of `describe_agreement` in words."""
    index, information = known["adjusted_rand_index"], known["normalized_mutual_information"]
    return f"ARI {number(index)}, NMI {number(information)}, {plural(len(known['labels']), 'label')}"
