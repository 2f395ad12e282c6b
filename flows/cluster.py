"""Cluster the rows of a dataset as a Prefect flow, and publish their labels, the centres and a picture.

inspect → draw → broadcast → start → one task for each Lloyd pass → assign → compare → publish. Each task is
a call or two into `rff_dist.kmeans`; centres stay in the process between them. Labels appear when they are
all written, and the model last.

Run it in a process of its own::

    from flows.cluster import ClusterParameters, cluster

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        cluster(ClusterParameters(data="data.zarr", output="labels.zarr", model="model", n_clusters=50))

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from prefect import State, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.states import Completed
from pydantic import Field, field_validator, model_validator

from flows.common import (
    DataParameters,
    NonNegative,
    Positive,
    Positives,
    Summary,
    check_location,
    code,
    holding,
    job_flow,
    number,
    open_engine,
    place_of,
    show_versions,
    step,
)
from rff_dist import choosing_k, kmeans, kmeans_labels, kmeans_starts, pipeline
from rff_dist.blocks import Moments
from rff_dist.cluster_model import digest_of, write_clusters
from rff_dist.cluster_view import view_clusters
from rff_dist.drawing import check_width
from rff_dist.engines import Engine
from rff_dist.errors import OutputExistsError
from rff_dist.feature_map import FeatureMap
from rff_dist.kernels import KERNELS, Kernel, check_design, default_design, find_kernel, with_length_scale
from rff_dist.publishing import publish as publish_version
from rff_dist.report import save_clusters
from rff_dist.storage import Column, ZarrDataset, open_dataset, redact
from rff_dist.storage.columns import column_of
from rff_dist.storage.leases import Lease
from rff_dist.storage.locations import check_output, parse_location
from rff_dist.storage.registry import RegisteredModel

__all__ = ["ClusterParameters", "cluster"]

type Count = Annotated[int, Field(ge=1)]


class ClusterParameters(DataParameters):
    """What to cluster, how and where; every value is checked before a run starts."""

    output: str = Field(description="Path or URL where the labels appear, as the Zarr array `labels`.")
    n_clusters: Count | Annotated[list[Count], Field(min_length=1)] = Field(
        description="Number of clusters; of a list the best by `choose`, all found in the same passes."
    )
    choose: Literal["silhouette", "gap", "stability"] = Field(
        default="silhouette",
        description="What takes one of several numbers: the largest silhouette, the least number whose gap "
        "statistic the next does not beat by a standard error, or the largest stability under resampling.",
    )
    labels: str | None = Field(
        default=None,
        description="Name of an array of known labels to compare with; left out, nothing is compared.",
    )
    distances: bool = Field(
        default=False, description="Whether each row's distances to all centres are written with its label."
    )
    kernel: str = Field(
        default="gaussian",
        description=f"One of {', '.join(KERNELS)}, with parameters as in 'matern:nu=2.5', or a sum such as "
        "'gaussian:length_scale=2 + 0.1 * linear'.",
    )
    length_scale: Literal["auto"] | Positive | Positives = Field(
        default="auto",
        description="The kernel's width in units of the (standardised) inputs: one number, a list with one "
        "per input column, or 'auto' for the median distance between rows of a sample.",
    )
    n_components: Count = Field(
        default=1024, description="D, the number of features: cost grows with D, the error falls as 1/√D."
    )
    standardize: bool | Literal["rank", "auto"] = Field(
        default=False,
        description="What is done to the input columns first: false nothing, true takes means and standard "
        "deviations out, 'rank' maps each column to a normal law by the ranks of its values, and 'auto' is "
        "true, or 'rank' for columns with heavy tails.",
    )
    design: Literal["orthogonal", "iid", "quasi-monte-carlo", "structured"] | None = Field(
        default=None,
        description="How frequencies are arranged; left out, orthogonal for the kernels that allow it, else "
        "iid.",
    )
    init: Literal["k-means||", "k-means++"] = Field(
        default="k-means||",
        description="'k-means||' draws candidates for the centres from all rows in six passes, 'k-means++' "
        "takes a sample of 4,096 rows.",
    )
    n_init: Count = Field(
        default=1, description="Starts, which share each pass; the one of least inertia is kept."
    )
    max_iter: Count = Field(default=kmeans.MAX_ITER, description="Lloyd passes, at most.")
    tol: NonNegative = Field(
        default=kmeans.TOL,
        description="Stop when the centres' squared shifts are below this share of the mean variance of the "
        "features; 0 when no label changes.",
    )
    algorithm: Literal["lloyd", "minibatch", "progressive"] = Field(
        default="lloyd",
        description="'lloyd' passes over all rows; for very many rows in no order that matters 'minibatch' "
        "takes up to 100 steps on few rows before, and 'progressive' passes over 1/64, 1/16 and 1/4 of the "
        "blocks.",
    )
    cache: str = Field(
        default="labels",
        description="What workers remember between passes in spare memory, one of "
        f"{', '.join(kmeans_starts.CACHES)}: with 'labels' which rows cannot have changed clusters, with "
        "'features' those of as many blocks as fit too; the result is the same to the bit.",
    )
    n_principal: Count | None = Field(
        default=None,
        description="Cluster in the scores on that many leading kernel principal components; left out, in "
        "the features themselves.",
    )
    normalize: Literal["degree"] | None = Field(
        default=None,
        description="'degree' takes components of degree-normalised features, which is spectral clustering, "
        "with `n_principal` of one less than the number of clusters.",
    )

    @field_validator("output")
    @classmethod
    def _is_output_location(cls, url: str) -> str:
        return check_location(url)

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        width = check_width(self.n_components, self.map, self.features)
        kmeans.check_principal(self.n_principal, self.normalize, width)
        kmeans_starts.check_cache(self.cache, None)
        choosing_k.check_numbers(self.numbers, self.choose)
        kernel = self.to_kernel()
        if self.features == "fourier":
            check_design(kernel, self.to_design(), 1)
        elif self.design is not None:
            raise ValueError(f"`design` is {self.design!r}, but Nyström features have none; leave it out")
        if self.length_scale != "auto":
            with_length_scale(kernel, self.to_length_scale())
        return self

    def to_kernel(self) -> Kernel:
        """Return the kernel; parts that the text gives no length scale have none."""
        return find_kernel(self.kernel)

    def to_design(self) -> str:
        """Return how frequencies are arranged."""
        return self.design or default_design(self.to_kernel())

    def to_length_scale(self) -> Any:
        """Return the length scale as the library takes it."""
        return tuple(self.length_scale) if isinstance(self.length_scale, list) else self.length_scale

    @property
    def numbers(self) -> list[int]:
        """Numbers of clusters to be found, in ascending order."""
        return sorted(self.n_clusters) if isinstance(self.n_clusters, list) else [self.n_clusters]

    @property
    def picture(self) -> Path | None:
        """Where the picture is to be: beside the labels, where they are in a folder of this machine."""
        location = parse_location(self.output)
        return Path(f"{location.path}.png") if location.is_local else None


@dataclass(slots=True)
class _Work:
    """What the tasks of a run work on, and what they have found so far."""

    parameters: ClusterParameters
    dataset: ZarrDataset
    known: Column | None
    engine: Engine
    lease: Lease
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def moments(self) -> Moments:
        moments: Moments = self.found["moments"]
        return moments

    @property
    def feature_map(self) -> FeatureMap:
        feature_map: FeatureMap = self.found["feature_map"]
        return feature_map

    @property
    def passes(self) -> Iterator[kmeans.LloydPass]:
        passes: Iterator[kmeans.LloydPass] = self.found["passes"]
        return passes

    @property
    def clusters(self) -> kmeans_starts.Clusters:
        """Those that were taken."""
        clusters: kmeans_starts.Clusters = self.found["clusters"]
        return clusters

    @property
    def comparison(self) -> choosing_k.Comparison | None:
        comparison: choosing_k.Comparison | None = self.found.get("comparison")
        return comparison

    def discard(self) -> None:
        """Throw away labels that were written and not published."""
        if (staged := self.found.get("staged")) is not None:
            staged.discard()


_work: ContextVar[_Work] = ContextVar("clustering")


@contextmanager
def _working(parameters: ClusterParameters, log: Any) -> Iterator[None]:
    """Check all places, then open the engine for the tasks; a cluster takes seconds to start."""
    dataset = open_dataset(
        parameters.data,
        x=parameters.x,
        y=None,
        sample_weight=parameters.sample_weight,
        missing_chunks=parameters.missing_chunks,
    )
    known = None if parameters.labels is None else column_of(dataset, parameters.labels)
    kernel = parameters.to_kernel()
    kernel.check_columns(dataset.n_features)
    if parameters.features == "fourier":
        check_design(kernel, parameters.to_design(), dataset.n_features)
    kmeans_starts.check_rows(dataset, parameters.numbers[-1])
    data, output = parse_location(parameters.data), parse_location(parameters.output)
    check_output(output, overwrite=parameters.overwrite, inputs=[data])
    if parameters.registered:
        RegisteredModel(parameters.model).check(inputs=[data, output])
    else:
        check_output(
            parse_location(parameters.model),
            overwrite=parameters.overwrite,
            inputs=[data, output],
            marker=("model.json",),
        )
    picture = parameters.picture
    if picture is not None and picture.exists() and not parameters.overwrite:
        raise OutputExistsError(
            f"{picture} exists already, where the picture is to be; choose another output, or give overwrite"
        )
    with (
        holding(parameters.output),
        holding(parameters.model) as lease,
        open_engine(parameters, log) as engine,
    ):
        _check_memory(parameters, dataset, engine)
        work = _Work(parameters, dataset, known, engine, lease)
        token = _work.set(work)
        try:
            yield
        finally:
            _work.reset(token)
            work.discard()


def _check_memory(parameters: ClusterParameters, dataset: ZarrDataset, engine: Engine) -> None:
    """Refuse what does not fit in a worker's memory before any pass."""
    numbers, principal = parameters.numbers, parameters.n_principal
    width = parameters.n_components if principal is None else principal
    kmeans_starts.check_fits(
        dataset, width, numbers, n_init=parameters.n_init, init=parameters.init, engine=engine
    )
    if principal is not None:
        pipeline.check_plan(
            dataset, parameters.n_components, engine=engine, features=parameters.to_features()
        )
    if len(numbers) > 1:
        choosing_k.check_samples(dataset, width)


@step("inspect", retried=True)
def inspect() -> Summary:
    """Check every value and measure means and deviations, in one cheap pass."""
    work = _work.get()
    dataset = work.dataset
    work.found["moments"] = pipeline.inspect(dataset, engine=work.engine)
    return {
        "data": redact(dataset.url or ""),
        "fingerprint": dataset.fingerprint(),
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_blocks": len(pipeline.blocks_of(dataset)),
        "n_workers": work.engine.n_workers,
        "n_threads": work.engine.n_threads,
    }


@step("draw", retried=True)
def draw() -> Summary:
    """Draw the features to cluster in; with principal components there is a pass that finds them."""
    work = _work.get()
    given = work.parameters
    feature_map = kmeans.draw_features(
        work.dataset,
        given.to_kernel(),
        work.moments,
        length_scale=given.to_length_scale(),
        n_components=given.n_components,
        design=given.to_design(),
        map=given.map,
        standardize=given.standardize,
        seed=given.seed,
        features=given.to_features(),
        n_principal=given.n_principal,
        normalize=given.normalize,
        engine=work.engine,
    )
    work.found["feature_map"] = feature_map
    kernel = pipeline.kernel_of(feature_map)
    assert kernel is not None  # the map was drawn just now
    return {
        "kernel": kernel.to_dict(),
        "n_components": given.n_components,
        "n_principal": None if given.n_principal is None else feature_map.n_components,
        "feature_map": feature_map.digest(),
    }


@step("broadcast", retried=True)
def broadcast() -> Summary:
    """Give the features to every worker and compare their digests."""
    work = _work.get()
    work.engine.broadcast(work.feature_map)
    return {"feature_map": work.feature_map.digest(), "n_workers": work.engine.n_workers}


@step("start", retried=True)
def start() -> Summary:
    """Measure the features' norms, and choose the centres of each start."""
    work = _work.get()
    given = work.parameters
    job = kmeans_starts.measure(work.dataset, work.feature_map, work.moments, engine=work.engine)
    candidates = kmeans_starts.find_candidates(
        job, given.init, n_clusters=given.numbers[-1], seed=given.seed, cache=given.cache
    )
    starts = kmeans_starts.choose_starts(candidates, given.numbers, n_init=given.n_init, seed=given.seed)
    starts = kmeans.approach(job, starts, algorithm=given.algorithm, tol=given.tol, seed=given.seed)
    work.found["passes"] = kmeans.iterate(
        job, starts, max_iter=given.max_iter, tol=given.tol, cache=given.cache
    )
    return {"n_candidates": len(candidates.points), "n_starts": len(starts)}


@step("pass {number}")
def run_pass(number: int) -> Summary:
    """Run a Lloyd pass: the centres of all starts that still move go to the means of their rows."""
    work, began = _work.get(), time.perf_counter()
    done = next(work.passes)
    if done.clusters:
        facts = pipeline.describe_dataset(work.dataset)
        work.found["all"] = [replace(clusters, facts=facts) for clusters in done.clusters]
        work.found["clusters"] = work.found["all"][0]
    return {
        "pass": done.number,
        "inertia": done.inertia,
        "inertias": list(done.inertias),
        "n_starts": done.n_starts,
        "shift": done.shift,
        "seconds": round(time.perf_counter() - began, 3),
        "last": bool(done.clusters),
    }


@step("choose", retried=True)
def choose() -> list[Summary]:
    """Judge the numbers of clusters on samples of the rows, and take the best."""
    work = _work.get()
    given = work.parameters
    comparison = choosing_k.compare(work.dataset, work.found["all"], criterion=given.choose, seed=given.seed)
    work.found["comparison"], work.found["clusters"] = comparison, comparison.best
    return comparison.rows


@step("assign")
def assign() -> Summary:
    """Write the cluster of every row; the labels appear when the centres are published."""
    work = _work.get()
    given = work.parameters
    work.found["staged"] = staged = kmeans_labels.stage_labels(
        work.dataset,
        work.clusters,
        given.output,
        engine=work.engine,
        distances=given.distances,
        overwrite=given.overwrite,
    )
    return {"output": redact(given.output), "n_labelled": staged.n_samples}


@step("compare", retried=True)
def compare() -> Summary | State[None]:
    """Count the rows of each known label in each cluster; skipped where there are no known labels."""
    work = _work.get()
    if work.known is None:
        return Completed(name="Skipped", message="No known labels were given to compare with.")
    table = kmeans_labels.evaluate(work.dataset, work.known, work.clusters, engine=work.engine)
    return {
        "labels": work.parameters.labels,
        "n_labels": len(table.labels),
        "adjusted_rand_index": table.adjusted_rand_index,
        "normalized_mutual_information": table.normalized_mutual_information,
    }


@step("publish")
def publish(agreement: Summary | None) -> Summary:
    """Draw the picture, publish the centres, and let the labels appear.

    A failure before the centres are published leaves neither them nor labels; one between the two says what
    is left and what to do.
    """
    work = _work.get()
    given, clusters = work.parameters, work.clusters
    if given.picture is not None:
        view = view_clusters(work.dataset, clusters, seed=given.seed)
        words = f"{clusters.n_clusters:,} clusters, {len(view.labels):,} rows of {work.dataset.n_samples:,}"
        save_clusters(given.picture, view, title=Path(given.output).name, subtitle=words)
    facts: dict[str, Any] = {} if agreement is None else {"agreement": agreement}
    if (comparison := work.comparison) is not None:
        facts |= {"chosen_by": comparison.criterion, "candidates": comparison.rows}
    version = None
    work.lease.check()
    if given.registered:
        whole = replace(clusters, facts={**clusters.facts, **facts})
        n_samples = work.dataset.n_samples
        version = publish_version(
            whole, given.model, data=given.data, reason="clustered", n_samples=n_samples
        ).number
        show_versions(given.model)
    else:
        write_clusters(clusters, given.model, facts=facts, overwrite=given.overwrite)
    try:
        work.found["staged"].publish()
    except Exception as error:
        model, data, output = (redact(url) for url in (given.model, given.data, given.output))
        error.add_note(
            f"the centres are published at {model}, the labels are not: write them by `rff-dist predict "
            f"{model} {data} {output}`"
        )
        raise
    return {
        "model": redact(given.model),
        "version": version,
        "digest": digest_of(clusters),
        "picture": None if given.picture is None else str(given.picture),
    }


@job_flow("cluster")
def cluster(parameters: ClusterParameters) -> Summary:
    """Cluster rows by k-means in random features; publish their labels and the centres.

    Returns
    -------
    dict
        JSON-able: where labels, model and picture are, the model's digest, sizes of the data, the inertia,
        sizes of at most 1,000 clusters, each pass, the numbers of clusters that were compared (None for
        one), and how far known labels agree (None without any).

    Raises
    ------
    RFFDistError
        Of the step that failed. Labels and centres are then not published, but where the error notes it.
    """
    log = get_run_logger()
    with _working(parameters, log):
        data = inspect()
        log.info("%s rows of %s columns, %s", f"{data['n_samples']:_}", data["n_features"], data["data"])
        drawn = draw()
        broadcast()
        started = start()
        rows: list[Summary] = []
        while not rows or not rows[-1]["last"]:
            rows.append(run_pass(len(rows) + 1))
            log.info(
                "pass %d: inertia %.8g, shift %.3g", *(rows[-1][k] for k in ("pass", "inertia", "shift"))
            )
        candidates = choose() if len(parameters.numbers) > 1 else None
        clusters = _work.get().clusters
        if not clusters.converged:
            log.warning("the centres still moved after max_iter=%d passes", parameters.max_iter)
        if clusters.n_filled < clusters.n_clusters:
            log.warning("%d of %d clusters have rows", clusters.n_filled, clusters.n_clusters)
        assigned = assign()
        outcome = compare()
        agreement = None if isinstance(outcome, State) else outcome
        published = publish(agreement)
    log.info("published %s", published["model"])
    result = {
        **published,
        **assigned,
        **data,
        **drawn,
        **started,
        "n_clusters": clusters.n_clusters,
        "n_filled": clusters.n_filled,
        "inertia": clusters.inertia,
        "converged": clusters.converged,
        "n_iter": clusters.n_iter,
        "sizes": clusters.weights[:1000].tolist(),
        "passes": [_without(row, "last", "inertias") for row in rows],
        "candidates": candidates,
        "agreement": agreement,
    }
    create_markdown_artifact(
        _summary_markdown(result), key="rff-cluster-summary", description="What was found, and where it is."
    )
    create_table_artifact(
        _pass_table(rows, parameters.numbers),
        key="rff-cluster-passes",
        description="Inertia of the centres of each pass.",
    )
    create_table_artifact(
        _size_table(clusters.weights.tolist()), key="rff-cluster-sizes", description="Clusters by size."
    )
    if candidates is not None:
        create_table_artifact(
            _number_table(candidates, clusters.n_clusters),
            key="rff-cluster-numbers",
            description=f"Numbers of clusters, by {parameters.choose}.",
        )
    return result


def _without(row: Summary, *names: str) -> Summary:
    return {name: value for name, value in row.items() if name not in names}


# -- artifacts -------------------------------------------------------------------------------------


def _summary_markdown(result: Mapping[str, Any]) -> str:
    facts = {
        "labels": code(result["output"]),
        "model": place_of(result),
        "digest": code(result["digest"]),
        "data": code(result["data"]),
        "rows, inputs": f"{result['n_samples']:,}, {result['n_features']:,}",
        "kernel, D": f"{result['kernel']['name']}, {result['n_components']:,}{_principal_words(result)}",
        "length scale": number(result["kernel"].get("length_scale")),
        "clusters": f"{result['n_clusters']:,}, {result['n_filled']:,} with rows",
        "inertia": number(result["inertia"]),
        "Lloyd passes": f"{result['n_iter']}, {'converged' if result['converged'] else 'still moving'}",
    }
    if (agreement := result["agreement"]) is not None:
        index, information = agreement["adjusted_rand_index"], agreement["normalized_mutual_information"]
        facts[f"against {code(agreement['labels'])}"] = f"ARI {number(index)}, NMI {number(information)}"
    if result["picture"] is None:
        facts["picture"] = "none: the labels are not in a folder of this machine"
    else:
        picture = Path(result["picture"])
        facts["picture"] = f"[first two kernel principal components]({picture.absolute().as_uri()})"
    lines = ["# Clusters", "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in facts.items()), ""]
    return "\n".join(lines)


def _principal_words(result: Mapping[str, Any]) -> str:
    n_principal = result["n_principal"]
    return "" if n_principal is None else f", in {n_principal:,} leading principal components"


def _number_table(candidates: Sequence[Mapping[str, Any]], taken: int) -> list[dict[str, Any]]:
    return [
        {
            "clusters": row["n_clusters"],
            **{
                name: number(row[name]) for name in ("inertia", "silhouette", "gap", "gap_error", "stability")
            },
            "passes": row["n_iter"],
            "": "taken" if row["n_clusters"] == taken else "",
        }
        for row in candidates
    ]


def _pass_table(rows: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> list[dict[str, Any]]:
    names = [f"least inertia, {k} clusters" for k in numbers] if len(numbers) > 1 else ["least inertia"]
    return [
        {
            "pass": row["pass"],
            **{name: f"{value:.8g}" for name, value in zip(names, row["inertias"], strict=True)},
            "starts that moved": row["n_starts"],
            "largest shift": number(row["shift"]),
            "seconds": row["seconds"],
        }
        for row in rows
    ]


def _size_table(sizes: Sequence[float]) -> list[dict[str, Any]]:
    """Return the 100 largest clusters."""
    total = sum(sizes) or 1.0
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))[:100]
    return [{"cluster": i, "rows or weight": sizes[i], "share": f"{sizes[i] / total:.1%}"} for i in order]
