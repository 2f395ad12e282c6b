"""Where data come from: the demo's photograph, files, a random function."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group

from rff_dist.cli.display import (
    RowCounter,
    dataset_facts,
    describe_dataset,
    facts_view,
    kernel_words,
    next_step,
    seconds_words,
    some,
)
from rff_dist.cli.options import (
    ChunkRows,
    Components,
    KernelName,
    Nu,
    Overwrite,
    Seed,
    Threads,
    Workers,
    make_kernel,
    read_count,
    read_numbers,
)
from rff_dist.cli.shell import AsJson, Report, command, err, out

if TYPE_CHECKING:
    import numpy as np

    from rff_dist.kernels import Kernel
    from rff_dist.storage import Ingested, Query


@command("rff-dist demo", "rff-dist demo --components 1024 --output /tmp/demo")
def demo(
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder for data, model and pictures.")
    ] = Path("demo-output"),
    n_components: Components = "2048",
    seed: Seed = 0,
    n_workers: Workers = None,
    n_threads: Threads = None,
    as_json: AsJson = False,
) -> Report:
    """Learn a photograph from half of its pixels and cluster handwritten digits, in a minute or two."""
    from rff_dist.demo import run_demo

    document = run_demo(
        output,
        n_components=read_count(n_components, "--components"),
        seed=seed,
        workers=n_workers,
        threads=n_threads,
        console=err if as_json else out,
    )
    return Report(document)


@command(
    "rff-dist ingest bikes.csv bikes.zarr --target rentals",
    "rff-dist ingest measurements/ data.zarr --target x --target y --columns a,b,c",
    "rff-dist ingest 'new/*.parquet' data.zarr --append",
    "RFF_DIST_SQL=sqlite:///shop.db rff-dist ingest data.zarr --target price --sql 'SELECT * FROM sales'",
)
def ingest(
    *,
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE",
            help="Files (.csv, .csv.gz, .parquet, .npy or .npz), patterns or folders of Parquet files, here "
            "or in an object store.",
        ),
    ] = None,
    output: Annotated[str, typer.Argument(metavar="OUT", help="Where to write the dataset.")],
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="NAME", help="Column to predict; may be repeated.")
    ] = None,
    weight: Annotated[
        str | None, typer.Option("--weight", metavar="NAME", help="Column of sample weights.")
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option("--groups", metavar="NAME", help="Column of what rows are held out together by."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="A,B,…", help="Columns of X; all others if left out.")
    ] = None,
    append: Annotated[
        bool,
        typer.Option(
            "--append",
            help="Add the rows of files that are new to a dataset that may be there; the others are skipped, "
            "and columns found by name.",
        ),
    ] = False,
    sql: Annotated[
        str | None,
        typer.Option(
            "--sql",
            metavar="QUERY",
            help="Ingest the rows that a query of a database gives. In it :n_ingested stands for the number "
            "that the dataset has of them already: … ORDER BY id LIMIT 1000000 OFFSET :n_ingested.",
        ),
    ] = None,
    connection: Annotated[
        str | None,
        typer.Option(
            "--connection",
            metavar="URL",
            envvar="RFF_DIST_SQL",
            help="The database, as SQLAlchemy writes it. Other users of the machine see options: give a "
            "password by the environment.",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="float32|float64", help="Of X; keeps all digits if left out."),
    ] = None,
    on_nan: Annotated[
        str, typer.Option("--on-nan", metavar="error|drop", help="Rows with a missing or infinite value.")
    ] = "error",
    chunk_rows: ChunkRows = None,
    overwrite: Overwrite = False,
) -> Report:
    """Turn files or a query into a dataset or more rows of one, in memory that does not grow with them."""
    from rff_dist import storage

    source = _read_ingested(sources or [], output, sql, connection)
    if append and overwrite:
        raise typer.BadParameter("rows are added to what is there; leave it out", param_hint="--overwrite")
    options: dict[str, Any] = {
        "target": target[0] if target and len(target) == 1 else target,
        "weight": weight,
        "groups": groups,
        "columns": None if columns is None else [name.strip() for name in columns.split(",")],
        "dtype": dtype,
        "on_nan": on_nan,
        "chunk_rows": None if chunk_rows is None else read_count(chunk_rows, "--chunk-rows"),
    }
    start = time.perf_counter()
    with RowCounter("ingest") as counter:
        if append:
            found = storage.ingest_more(source, output, **options, observer=counter)
        else:
            dataset = storage.ingest(source, output, **options, overwrite=overwrite, observer=counter)
    seconds = time.perf_counter() - start
    if append:
        return _appended_report(output, found, seconds)
    labelled = bool(target) and not dataset.n_targets
    labels = {"labels": "text, for a classifier"} if labelled else {}
    document = {**describe_dataset(dataset), "seconds": seconds}
    view = facts_view(
        f"wrote {output}",
        **dataset_facts(dataset),
        **labels,
        seconds=seconds_words(seconds),
    )
    weights = ("--weights", "sample_weight") if weight else ()
    following = next_step("rff-dist", "fit", output, "MODEL", *weights)
    return Report(document, Group(view, following) if target and not labelled else view)


def _read_ingested(
    sources: list[str], output: str, sql: str | None, connection: str | None
) -> list[str] | Query:
    """Return what is ingested: files or a query, one of them."""
    from rff_dist import storage

    if sql is not None:
        if sources:
            raise typer.BadParameter(
                f"{', '.join(sources[:3])}: expected files or a query, and {output} alone with one",
                param_hint="--sql",
            )
        return storage.Query(sql, connection)
    if not sources:
        raise typer.BadParameter(f"{output}: expected files and, last, the dataset", param_hint="SOURCE")
    return sources


def _appended_report(output: str, found: Ingested, seconds: float) -> Report:
    document = {"path": output, **asdict(found), "seconds": seconds}
    n_new = found.n_after - found.n_before
    skipped = {"skipped": f"{some(found.skipped)}, there already"} if found.skipped else {}
    dropped = (
        {"dropped": f"[yellow]{found.dropped_rows:,} rows[/] with missing or infinite values"}
        if found.dropped_rows
        else {}
    )
    view = facts_view(
        f"added {n_new:,} rows to {output}" if n_new else f"nothing new for {output}",
        rows=f"{found.n_before:,} before, {found.n_after:,} after",
        **({"from": some(found.ingested)} if found.ingested else {}),
        **skipped,
        **dropped,
        seconds=seconds_words(seconds),
    )
    return Report(document, view)


@command("rff-dist generate data.zarr --rows 1e6 --features 8 --length-scale 2 --noise 0.1")
def generate(
    output: Annotated[str, typer.Argument(metavar="OUT", help="Where to write the dataset.")],
    rows: Annotated[str, typer.Option("--rows", metavar="N", help="Rows, such as 1e6.")],
    features: Annotated[str, typer.Option("--features", metavar="N", help="Columns of X.")] = "8",
    kernel: KernelName = "gaussian",
    nu: Nu = None,
    length_scale: Annotated[
        str, typer.Option("--length-scale", metavar="L|L1,L2,…", help="Width: smoothness of the function.")
    ] = "2",
    noise: Annotated[
        float, typer.Option("--noise", min=0, help="Standard deviation; the function's is 1.")
    ] = 0.1,
    n_components: Annotated[
        str, typer.Option("--components", metavar="D", help="Random features that the function is made of.")
    ] = "1024",
    seed: Seed = 0,
    first_row: Annotated[
        int,
        typer.Option(
            "--first-row", metavar="N", min=0, help="Number of the first row: test data follow the others."
        ),
    ] = 0,
    chunk_rows: ChunkRows = None,
    overwrite: Overwrite = False,
) -> Report:
    """Write a dataset of any size whose best possible error is known: a random function plus noise.

    The function is drawn from the kernel's feature prior, f(x) = z(x)'w with standard normal w, at
    standard normal x; no model can have a smaller RMSE than the noise.
    """
    from rff_dist import storage
    from rff_dist.blocks import using_threads

    n_samples, n_features = read_count(rows, "--rows"), read_count(features, "--features")
    chunk = None if chunk_rows is None else read_count(chunk_rows, "--chunk-rows")
    widths = read_numbers(length_scale, "--length-scale")
    chosen = make_kernel(kernel, nu, tuple(widths) if len(widths) > 1 else widths[0])
    function = draw_function(
        chosen, n_features=n_features, n_components=read_count(n_components, "--components"), seed=seed
    )
    start = time.perf_counter()
    # Threads share whole tiles, so that no bit of the data depends on their number.
    with using_threads(len(os.sched_getaffinity(0))), RowCounter("generate") as counter:
        dataset = storage.generate_dataset(
            output,
            function,
            n_samples=n_samples,
            n_features=n_features,
            noise=noise,
            seed=seed,
            first_row=first_row,
            chunk_rows=chunk,
            overwrite=overwrite,
            observer=counter,
        )
    seconds = time.perf_counter() - start
    document = {
        **describe_dataset(dataset),
        "kernel": chosen.to_dict(),
        "seed": seed,
        "best_rmse": noise,
        "seconds": seconds,
    }
    view = facts_view(
        f"wrote {output}",
        **dataset_facts(dataset),
        function=f"from {kernel_words(chosen.to_dict())}, variance 1",
        best_possible_RMSE=f"{noise:g}",
        seconds=seconds_words(seconds),
    )
    return Report(document, Group(view, next_step("rff-dist", "fit", output, "MODEL")))


def draw_function(
    kernel: Kernel, *, n_features: int, n_components: int, seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """Draw f(x) = z(x)'w with w ~ N(0, I) from the feature prior of a kernel; its variance is 1.

    Parameters
    ----------
    kernel : Kernel
    n_features, n_components : int
        Columns of the inputs, and of Z.
    seed : int
        Spread to streams of its own, so that a model fitted with the same seed has other features.

    Returns
    -------
    function : callable
        From (rows, n_features) to (rows,).
    """
    import numpy as np

    from rff_dist.accumulation import LinearModel, predict_rows
    from rff_dist.blocks import Block, Rows
    from rff_dist.feature_map import draw_feature_map
    from rff_dist.kernels import default_design

    features_seed, weights_seed = np.random.SeedSequence([seed, 1]).generate_state(2, np.uint64).tolist()
    feature_map = draw_feature_map(
        kernel,
        n_features=n_features,
        n_components=n_components,
        design=default_design(kernel),
        random_state=features_seed,
    )
    weights = np.random.Generator(np.random.Philox(weights_seed)).standard_normal((n_components, 1))
    model = LinearModel(feature_map, weights, np.zeros(1))

    def function(X: np.ndarray) -> np.ndarray:
        return predict_rows(Rows(Block(0, 0, len(X)), X, None, None), model)[:, 0]

    return function
