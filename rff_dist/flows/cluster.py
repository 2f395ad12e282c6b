"""The Prefect flow that clusters the rows of a dataset, and publishes labels, centres and a picture.

Each task is a step of `rff_dist.workbench.jobs.cluster`: inspect → draw → broadcast → measure → start → one
for each Lloyd pass → choose, of several numbers of clusters → assign → compare, with known labels → publish.
Between tasks the centres stay in this process. The labels appear when all are written and the model is
published.

Run it in a process of its own::

    from rff_dist.flows.cluster import cluster

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        cluster(data="data.zarr", output="labels.zarr", model="model", n_clusters=50)

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import get_run_logger

from rff_dist.engines.clock import Clock
from rff_dist.errors import OutputExistsError
from rff_dist.flows import common, running
from rff_dist.kmeans import fit
from rff_dist.storage import locations
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import cluster as clustering
from rff_dist.workbench.jobs import options, specs
from rff_dist.workbench.page import pages, pictures


class ClusterParameters(running.form(specs.Clustering, options.Where, running.Limits)):  # type: ignore[misc]  # made of the specs
    """What to cluster, how, and where."""


def _picture_of(job: specs.Clustering) -> Path | None:
    """Return where the picture goes: beside the labels; None if these are not in a folder of this machine."""
    location = locations.parse_location(job.output)
    return Path(f"{location.path}.png") if location.is_local else None


def _check_picture(job: specs.Clustering) -> None:
    picture = _picture_of(job)
    if picture is not None and picture.exists() and not job.overwrite:
        raise OutputExistsError(
            f"{picture} exists already, and the picture would replace it; choose another output, or give "
            "overwrite"
        )


def _log_pass(log: Any, done: fit.LloydPass) -> None:
    log.info("pass %d: inertia %.8g, shift %.3g", done.number, done.inertia, done.shift)


@running.job_flow("cluster", ClusterParameters)
def cluster(parameters: ClusterParameters) -> Summary:
    """Cluster rows by k-means in random features; publish their labels and the centres.

    Returns: JSON-able: where labels, model and picture are, the model's digest, sizes of the data, the
      inertia, sizes of at most 1,000 clusters, each pass, the numbers of clusters that were compared (None
      for one), and how well known labels agree (None without any).
    Raises the RFFDistError of the step that failed. Labels and centres are then not published, unless a note
      on the error says so, or only the picture cannot be drawn.
    """
    log, job, clock = get_run_logger(), parameters.to(specs.Clustering), Clock()
    _check_picture(job)
    runner = running.runner_of(parameters, log, {"pass": _log_pass}, clock=clock)
    found = clustering.cluster(job, runner)
    clusters, candidates = found.clusters, found.record["candidates"]
    if job.register and job.model is not None:
        common.show_versions(job.model)
    if not clusters.converged:
        log.warning("the centres still moved after max_iter=%d passes", job.lloyd.max_iter)
    if clusters.n_filled < clusters.n_clusters:
        log.warning("%d of %d clusters have rows", clusters.n_filled, clusters.n_clusters)
    common.log_rows(log, found.record)
    log.info("published %s", found.record["model"] or found.record["output"])
    clock.begin("report")
    if (picture := _picture_of(job)) is not None:
        title = Path(job.output).name
        pictures.save_clustering(picture, found.dataset, clusters, seed=job.features.seed, title=title)
    common.show_page(
        "cluster-page",
        lambda: pages.clusters_page(
            found.dataset,
            clusters,
            place=job.model or job.output,
            candidates=candidates or [],
            times=clock.times,
        ),
        log,
    )
    passes = found.record["passes"]
    result = {
        **found.record,
        "picture": None if picture is None else str(picture),
        "passes": [{name: one for name, one in row.items() if name != "inertias"} for row in passes],
    }
    common.show_text("cluster-summary", _summary_markdown(result), "What was found, and where it is.")
    common.show_table(
        "cluster-passes", _pass_table(passes, job.lloyd.numbers), "Inertia of the centres of each pass."
    )
    common.show_table("cluster-sizes", _size_table(clusters.weights.tolist()), "Clusters by size.")
    if candidates is not None:
        compared = _number_table(candidates, clusters.n_clusters)
        common.show_table("cluster-numbers", compared, "Numbers of clusters, by silhouette.")
    return result


# -- artifacts -------------------------------------------------------------------------------------


def _summary_markdown(result: Mapping[str, Any]) -> str:
    n_principal = result["n_principal"]
    principal = "" if n_principal is None else f", in {n_principal:,} leading principal components"
    facts = {
        "labels": running.code(result["output"]),
        "model": "none" if result["model"] is None else common.place_of(result),
        "digest": running.code(result["digest"]),
        "data": running.code(result["data"]),
        "rows, inputs": f"{result['n_samples']:,}, {result['n_features']:,}",
        "kernel, D": f"{result['kernel']['name']}, {result['n_components']:,}{principal}",
        "length scale": running.number(result["kernel"].get("length_scale")),
        "clusters": f"{result['n_clusters']:,}, {result['n_filled']:,} with rows",
        "inertia": running.number(result["inertia"]),
        "Lloyd passes": f"{result['n_iter']}, {'converged' if result['converged'] else 'still moving'}",
    }
    if (agreement := result["agreement"]) is not None:
        index, information = agreement["adjusted_rand_index"], agreement["normalized_mutual_information"]
        facts[f"against {running.code(agreement['labels'])}"] = (
            f"ARI {running.number(index)}, NMI {running.number(information)}"
        )
    if result["picture"] is None:
        facts["picture"] = "none: the labels are not in a folder of this machine"
    else:
        picture = Path(result["picture"])
        facts["picture"] = f"[first two kernel principal components]({picture.absolute().as_uri()})"
    return common.facts_markdown("Clusters", facts)


def _number_table(candidates: Sequence[Mapping[str, Any]], taken: int) -> list[dict[str, Any]]:
    return [
        {
            "clusters": row["n_clusters"],
            **{name: running.number(row[name]) for name in ("inertia", "silhouette")},
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
            # Passes differ beyond the fourth digit, which `number` would not show.
            **{name: f"{value:.8g}" for name, value in zip(names, row["inertias"], strict=True)},
            "starts that moved": row["n_starts"],
            "largest shift": running.number(row["shift"]),
            "seconds": row["seconds"],
        }
        for row in rows
    ]


def _size_table(sizes: Sequence[float]) -> list[dict[str, Any]]:
    """Return the 100 largest clusters."""
    total = sum(sizes) or 1.0
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))[:100]
    return [{"cluster": i, "rows or weight": sizes[i], "share": f"{sizes[i] / total:.1%}"} for i in order]
