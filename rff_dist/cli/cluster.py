"""Clusters of a dataset's rows: found, counted, compared with known labels, and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.cli.display import (
    describe_engine,
    engine_words,
    facts_view,
    kernel_words,
    next_step,
    passes,
    plural,
    seconds_words,
    titled_table,
)
from rff_dist.cli.options import (
    FEATURES,
    NAMES,
    CentresName,
    DataArgument,
    DesignName,
    FeaturesName,
    Insecure,
    KernelName,
    MapName,
    MissingChunks,
    Nu,
    Overwrite,
    Register,
    Scheduler,
    Seed,
    Serial,
    Standardize,
    Threads,
    WeightsName,
    Where,
    Workers,
    XName,
    make_kernel,
    read_count,
    read_features,
    read_length_scale,
    read_standardize,
)
from rff_dist.cli.registering import check_place, store, version_facts
from rff_dist.cli.shell import Report, command

if TYPE_CHECKING:
    from rff_dist.agreement import Contingency
    from rff_dist.choosing_k import Comparison
    from rff_dist.kmeans_starts import Clusters
    from rff_dist.storage import Column, ZarrDataset

CLUSTERS = "Clusters"
_SHOWN_CLUSTERS, _SHOWN_PASSES = 20, 12


@command(
    "rff-dist cluster data.zarr labels.zarr --clusters 50",
    "rff-dist cluster data.zarr labels.zarr --clusters 2,4,8,16 --starts 4 --model clusters",
    "rff-dist cluster digits.zarr labels.zarr --clusters 10 --labels digit --length-scale 4",
)
def cluster(
    data: DataArgument,
    output: Annotated[str, typer.Argument(metavar="OUT", help="Where to write the labels.")],
    n_clusters: Annotated[
        str,
        typer.Option(
            "--clusters",
            metavar="K|K1,K2,…",
            help="How many; of several the best by --choose.",
            rich_help_panel=CLUSTERS,
        ),
    ] = "8",
    criterion: Annotated[
        str | None,
        typer.Option(
            "--choose",
            metavar="NAME",
            help="What takes one of several: the largest silhouette (if left out), gap, the least number "
            "whose gap statistic the next does not beat by a standard error, or stability under resampling.",
            rich_help_panel=CLUSTERS,
        ),
    ] = None,
    init: Annotated[
        str,
        typer.Option(
            "--init",
            metavar="NAME",
            help="k-means|| draws candidates from all rows in six passes, k-means++ takes a sample of 4,096.",
            rich_help_panel=CLUSTERS,
        ),
    ] = "k-means||",
    n_init: Annotated[
        int,
        typer.Option(
            "--starts",
            metavar="N",
            min=1,
            help="Starts, which share each pass; the one of least inertia is kept.",
            rich_help_panel=CLUSTERS,
        ),
    ] = 1,
    max_iter: Annotated[
        int,
        typer.Option(
            "--max-passes", metavar="N", min=1, help="Lloyd passes, at most.", rich_help_panel=CLUSTERS
        ),
    ] = 300,
    tol: Annotated[
        float,
        typer.Option(
            "--tol",
            metavar="SHARE",
            help="Stop when centres shift by less than this share of the variance; 0: when no label changes.",
            rich_help_panel=CLUSTERS,
        ),
    ] = 1e-4,
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            help="lloyd passes over all rows; before these minibatch takes steps on few rows, progressive "
            "passes over 1/64, 1/16 and 1/4 of the blocks: for very many rows in no order.",
            rich_help_panel=CLUSTERS,
        ),
    ] = "lloyd",
    cache: Annotated[
        str,
        typer.Option(
            "--cache",
            metavar="NAME",
            help="labels remembers in spare memory which rows cannot change clusters, features those of as "
            "many blocks as fit too; none looks at all.",
            rich_help_panel=CLUSTERS,
        ),
    ] = "labels",
    n_principal: Annotated[
        int | None,
        typer.Option(
            "--principal",
            metavar="M",
            min=1,
            help="Cluster in that many leading kernel principal components, not in the features themselves.",
            rich_help_panel=CLUSTERS,
        ),
    ] = None,
    normalize: Annotated[
        str | None,
        typer.Option(
            "--normalize",
            metavar="NAME",
            help="degree: components of degree-normalised features, spectral clustering; with --principal.",
            rich_help_panel=CLUSTERS,
        ),
    ] = None,
    distances: Annotated[
        bool,
        typer.Option(
            "--distances",
            help="Write each row's distances to all centres too, as `distances`.",
            rich_help_panel=CLUSTERS,
        ),
    ] = False,
    model_output: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Write the centres there, so that `predict` labels other rows.",
            rich_help_panel=CLUSTERS,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="PNG",
            help="Draw a sample of rows in their first two kernel principal components.",
            rich_help_panel=CLUSTERS,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            "--labels",
            metavar="NAME",
            help="Array of known labels to compare with: adjusted Rand index and mutual information.",
            rich_help_panel=NAMES,
        ),
    ] = None,
    kernel: KernelName = "gaussian",
    nu: Nu = None,
    n_components: Annotated[
        str,
        typer.Option(
            "--components",
            metavar="D",
            help="How many: the kernel's error falls as 1/√D, the cost grows with D.",
            rich_help_panel=FEATURES,
        ),
    ] = "1024",
    length_scale: Annotated[
        str,
        typer.Option(
            "--length-scale",
            metavar="L|L1,L2,…",
            help="Width of the kernel, or one for each column, in units of the (standardised) inputs; auto "
            "is their median distance. Clusters that are not convex want about the width of a cluster.",
            rich_help_panel=FEATURES,
        ),
    ] = "auto",
    features: FeaturesName = "fourier",
    centres: CentresName = None,
    design: DesignName = None,
    map: MapName = "pairs",
    standardize: Standardize = "no",
    seed: Seed = 0,
    overwrite: Overwrite = False,
    register: Register = False,
    x: XName = "X",
    sample_weight: WeightsName = None,
    missing_chunks: MissingChunks = "error",
    scheduler: Scheduler = None,
    n_workers: Workers = None,
    n_threads: Threads = None,
    serial: Serial = False,
    insecure: Insecure = False,
) -> Report:
    """Cluster rows by k-means in random features: a Lloyd pass an iteration; write their labels."""
    where = Where(scheduler, n_workers, n_threads, serial, insecure)
    from rff_dist import choosing_k, drawing, kmeans, kmeans_labels, kmeans_starts, storage
    from rff_dist.cluster_model import digest_of
    from rff_dist.feature_map import check_map
    from rff_dist.kernels import check_design, default_design
    from rff_dist.storage.columns import column_of
    from rff_dist.storage.locations import check_output, parse_location

    # All that can be known to be wrong is found before any work starts.
    numbers = [read_count(part, "--clusters") for part in n_clusters.split(",")]
    if criterion is not None and len(numbers) == 1:
        raise typer.BadParameter(
            "one number of clusters is not chosen; give several, such as --clusters 2,4,8",
            param_hint="--choose",
        )
    choosing_k.check_numbers(numbers, criterion or choosing_k.CRITERIA[0])
    kmeans_starts.check_options(
        n_clusters=max(numbers), init=init, n_init=n_init, max_iter=max_iter, tol=tol, algorithm=algorithm
    )
    kmeans_starts.check_cache(cache, None)
    width = read_length_scale(length_scale)
    check_map(map)
    prepared = read_standardize(standardize)
    kind = read_features(features, centres)
    fourier = drawing.find_features(kind) is None
    n_features = drawing.check_width(read_count(n_components, "--components"), map, kind)
    kmeans.check_principal(n_principal, normalize, n_features)
    chosen = make_kernel(kernel, nu, width)
    if design is not None and not fourier:
        raise typer.BadParameter("only --features fourier has one", param_hint="--design")
    arranged = design or default_design(chosen)
    places = [parse_location(data)]
    check_output(parse_location(output), overwrite=overwrite, inputs=places)
    if model_output is not None:
        places.append(parse_location(output))
        check_place(model_output, register=register, overwrite=overwrite, inputs=places)
    elif register:
        raise typer.BadParameter("needs a model to publish; give --model", param_hint="--register")
    dataset = storage.open_dataset(
        data, x=x, y=None, sample_weight=sample_weight, missing_chunks=missing_chunks
    )
    known = None if labels is None else column_of(dataset, labels)
    chosen.check_columns(dataset.n_features)
    if fourier:
        check_design(chosen, arranged, dataset.n_features)
    options: dict[str, Any] = {
        "length_scale": width,
        "n_components": n_features,
        "design": arranged,
        "map": map,
        "standardize": prepared,
        "seed": seed,
        "features": kind,
        "init": init,
        "n_init": n_init,
        "max_iter": max_iter,
        "tol": tol,
        "algorithm": algorithm,
        "cache": cache,
        "n_principal": n_principal,
        "normalize": normalize,
    }
    with passes(where, writes=[output, model_output]) as (engine, clock):
        comparison = None
        if len(numbers) > 1:
            by = criterion or choosing_k.CRITERIA[0]
            comparison = choosing_k.fit(
                dataset, chosen, n_clusters=numbers, criterion=by, engine=engine, **options
            )
            found = comparison.best
        else:
            found = kmeans.fit(dataset, chosen, n_clusters=numbers[0], engine=engine, **options)
        with kmeans_labels.stage_labels(
            dataset, found, output, engine=engine, distances=distances, overwrite=overwrite
        ) as staged:
            agreement = (
                None if known is None else kmeans_labels.evaluate(dataset, known, found, engine=engine)
            )
            stored: dict[str, Any] = {"model": None, "version": None}
            if model_output is not None:
                stored = store(
                    replace(found, facts={**found.facts, **_choice(comparison)}),
                    model_output,
                    register=register,
                    overwrite=overwrite,
                    data=data,
                    reason="clustered",
                    n_samples=dataset.n_samples,
                )
            staged.publish()
        document = {
            "output": output,
            "arrays": ["labels", *(["distances"] if distances else [])],
            **stored,
            "plot": plot,
            "n_samples": staged.n_samples,
            "n_features": dataset.n_features,
            **describe_clusters(found),
            "seed": seed,
            **_choice(comparison),
            "known_labels": None if agreement is None else describe_agreement(agreement, str(labels)),
            "digest": digest_of(found),
            "engine": describe_engine(engine, where),
            "seconds": clock.seconds(),
        }
    if plot is not None:
        _draw(plot, found, dataset, data, seed)
    return Report(document, _view(document))


def _draw(plot: Path, found: Clusters, dataset: ZarrDataset, data: str, seed: int) -> None:
    """Draw a sample of the rows with their clusters."""
    from rff_dist.cluster_view import view_clusters
    from rff_dist.report import save_clusters

    view = view_clusters(dataset, found, seed=seed)
    words = (
        f"{plural(found.n_clusters, 'cluster')}, {plural(len(view.labels), 'row')} of {dataset.n_samples:,}"
    )
    save_clusters(plot, view, title=data, subtitle=words)


def _choice(comparison: Comparison | None) -> dict[str, Any]:
    """Return what a number of clusters was chosen from, for the document and the model's card."""
    if comparison is None:
        return {}
    return {
        "chosen_by": comparison.criterion,
        "candidates": comparison.rows,
        "n_sampled": comparison.n_sampled,
    }


def describe_clusters(found: Clusters) -> dict[str, Any]:
    """Return the facts of clusters for the JSON document."""
    from rff_dist.pipeline import kernel_of

    kernel = kernel_of(found.feature_map)
    return {
        "n_clusters": found.n_clusters,
        "n_filled": found.n_filled,
        "n_components": found.feature_map.n_components,
        "features": found.feature_map.kind,
        "kernel": None if kernel is None else kernel.to_dict(),
        "length_scale": getattr(kernel, "length_scale", None),
        "sizes": found.weights,
        "inertia": found.inertia,
        "inertias": found.inertias,
        "start_inertias": found.start_inertias,
        "n_passes": found.n_iter,
        "converged": found.converged,
    }


def describe_agreement(agreement: Contingency, name: str) -> dict[str, Any]:
    """Return how far clusters agree with known labels for the JSON document."""
    return {
        "name": name,
        "adjusted_rand_index": agreement.adjusted_rand_index,
        "normalized_mutual_information": agreement.normalized_mutual_information,
        "labels": agreement.labels.tolist(),
        "counts": agreement.counts,
    }


def _view(found: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = [_facts(found)]
    if "candidates" in found:
        parts += ["", _candidates_view(found)]
    parts += ["", sizes_view(found), "", _passes_view(found["inertias"])]
    if found["model"] is not None:
        parts.append(next_step("rff-dist", "predict", found["model"], "DATA", "OUT"))
    return Group(*parts)


def _facts(found: Mapping[str, Any]) -> RenderableType:
    kernel, seconds = found["kernel"], found["seconds"]
    facts = {
        "rows": f"{found['n_samples']:,}, {plural(found['n_features'], 'feature')}",
        "features": f"D = {found['n_components']:,}, {found['features']}, seed {found['seed']}",
    }
    if kernel is not None:
        facts["kernel"] = kernel_words(kernel)
    facts |= clusters_words(found)
    if (known := found["known_labels"]) is not None:
        facts[f"against {known['name']}"] = agreement_words(known)
    facts["arrays"] = ", ".join(found["arrays"])
    if found["model"] is not None:
        facts["model"] = f"{found['model']} ({found['digest'][:16]})"
        facts |= version_facts(found)
    parts = ", ".join(f"{name} {seconds_words(value)}" for name, value in seconds.items() if name != "total")
    facts["seconds"] = f"{seconds_words(seconds['total'])} ({parts})"
    facts["ran on"] = engine_words(found["engine"])
    return facts_view(f"wrote {found['output']}", **facts)


def clusters_words(found: Mapping[str, Any]) -> dict[str, str]:
    """Return in words what `describe_clusters` found."""
    facts = {"clusters": f"{found['n_clusters']:,}"}
    if found["n_filled"] < found["n_clusters"]:
        facts["clusters"] += f", [yellow]{found['n_filled']:,} with rows[/]: no more rows are distinct"
    facts["inertia"] = f"{found['inertia']:.6g}"
    if (n_starts := len(found["start_inertias"])) > 1:
        facts["inertia"] += f", the least of {n_starts} starts (most {max(found['start_inertias']):.6g})"
    n_passes = plural(found["n_passes"], "pass", "passes")
    settled = f"converged after {n_passes}"
    still = f"[yellow]centres still moved[/] after {n_passes}; raise --max-passes or --tol"
    facts["Lloyd"] = settled if found["converged"] else still
    return facts


def agreement_words(known: Mapping[str, Any]) -> str:
    """Return in words what `describe_agreement` found."""
    index, information = known["adjusted_rand_index"], known["normalized_mutual_information"]
    return f"ARI {index:.4g}, NMI {information:.4g}, {plural(len(known['labels']), 'label')}"


def sizes_view(found: Mapping[str, Any]) -> RenderableType:
    """Return the largest clusters as a table."""
    sizes = [float(size) for size in found["sizes"]]
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    total = sum(sizes) or 1.0
    view, table = titled_table("clusters by size", "cluster", "rows or weight", "share")
    for i in order[:_SHOWN_CLUSTERS]:
        table.add_row(
            str(i), f"{sizes[i]:,.6g}" if sizes[i] % 1 else f"{sizes[i]:,.0f}", f"{sizes[i] / total:.1%}"
        )
    if len(order) > _SHOWN_CLUSTERS:
        return Group(view, Text(f"… and {len(order) - _SHOWN_CLUSTERS} smaller ones", "dim"))
    return view


def _passes_view(inertias: Sequence[float]) -> RenderableType:
    """Return the inertia of each pass as a table; of many the first and last ones."""
    view, table = titled_table(
        "inertia of the centres that each pass was given", "pass", "inertia", "fell by"
    )
    half = _SHOWN_PASSES // 2
    for i, inertia in enumerate(inertias):
        if len(inertias) > _SHOWN_PASSES and half <= i < len(inertias) - half:
            if i == half:
                table.add_row("…", "", "")
            continue
        before = inertias[i - 1] if i else 0.0
        fell = f"{(before - inertia) / before:.3g}" if i and before > 0 else ""
        table.add_row(str(i + 1), f"{inertia:.8g}", fell)
    return view


def _candidates_view(found: Mapping[str, Any]) -> RenderableType:
    view, table = titled_table(
        f"numbers of clusters, by {found['chosen_by']}",
        *("clusters", "inertia", "silhouette", "gap", "stability", ""),
    )
    for row in found["candidates"]:
        best = row["n_clusters"] == found["n_clusters"]
        gap = _figure(row["gap"])
        table.add_row(
            f"{row['n_clusters']:,}",
            f"{row['inertia']:.5g}",
            _figure(row["silhouette"]),
            gap if row["gap_error"] is None else f"{gap} ± {row['gap_error']:.2g}",
            _figure(row["stability"]),
            "← taken" if best else "",
            style="bold" if best else None,
        )
    note = f"silhouette: of {found['n_sampled']:,} rows in features; gap and stability: of up to 1,000"
    return Group(view, Text(note, "dim"))


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


# -- a stored model of clusters --------------------------------------------------------------------


def write_labels(
    found: Clusters,
    dataset: ZarrDataset,
    where: Where,
    *,
    model: str,
    output: str,
    distances: bool,
    overwrite: bool,
) -> Report:
    """Label the rows of a dataset by stored clusters: `predict`."""
    from rff_dist import kmeans_labels
    from rff_dist.cluster_model import digest_of

    with passes(where, writes=[output]) as (engine, clock):
        written = kmeans_labels.write_labels(
            dataset, found, output, engine=engine, distances=distances, overwrite=overwrite
        )
        seconds = clock.seconds()["total"]
        ran_on = describe_engine(engine, where)
    digest = digest_of(found)
    document = {
        "output": output,
        "array": "labels",
        "distances_array": "distances" if distances else None,
        "n_samples": written,
        "n_clusters": found.n_clusters,
        "model_digest": digest,
        "engine": ran_on,
        "seconds": seconds,
    }
    view = facts_view(
        f"wrote {output}",
        rows=f"{written:,}, {plural(found.n_clusters, 'cluster')}",
        array="labels, distances" if distances else "labels",
        model=f"{model} ({digest[:16]})",
        ran_on=engine_words(ran_on),
        seconds=seconds_words(seconds),
    )
    return Report(document, view)


def evaluate_clusters(
    found: Clusters, dataset: ZarrDataset, known: Column, where: Where, *, model: str, data: str, y: str
) -> Report:
    """Compare stored clusters with known labels of a dataset: `evaluate`."""
    from rff_dist import kmeans_labels

    with passes(where) as (engine, clock):
        agreement = kmeans_labels.evaluate(dataset, known, found, engine=engine)
        seconds = clock.seconds()["total"]
        ran_on = describe_engine(engine, where)
    compared = describe_agreement(agreement, y)
    document = {
        "model": model,
        "data": data,
        "n_samples": agreement.n_samples,
        "known_labels": compared,
        "engine": ran_on,
        "seconds": seconds,
    }
    view = facts_view(
        f"{model} on {data}: {agreement.n_samples:,} rows, {seconds_words(seconds)} s",
        **{f"against {y}": agreement_words(compared)},
    )
    return Report(document, view)
