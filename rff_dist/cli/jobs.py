"""Jobs on data: plan, fit, evaluate, predict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.cli.display import (
    describe_engine,
    engine_words,
    facts_view,
    features_and_targets,
    kernel_words,
    next_step,
    passes,
    plural,
    seconds_words,
    some,
    target_names,
    titled_table,
)
from rff_dist.cli.options import (
    AlphaText,
    CentresName,
    Components,
    DataArgument,
    DesignName,
    FeaturesName,
    Insecure,
    KernelName,
    LengthScaleText,
    MapName,
    MissingChunks,
    ModelArgument,
    NoIntercept,
    NoStandardize,
    Nu,
    Overwrite,
    Scheduler,
    Seed,
    Serial,
    Threads,
    WeightsName,
    Where,
    Workers,
    XName,
    YName,
    make_kernel,
    read_alpha,
    read_bytes,
    read_count,
    read_features,
    read_length_scale,
)
from rff_dist.cli.shell import Report, command
from rff_dist.errors import DataError

if TYPE_CHECKING:
    from rff_dist.feature_map import FeatureMap
    from rff_dist.model import RidgeModel
    from rff_dist.pipeline import Solved
    from rff_dist.storage import ZarrDataset
    from rff_dist.uncertainty import Calibration


@command(
    "rff-dist plan data.zarr --components 4096",
    "rff-dist plan data.zarr --components 16384 --workers 8 --threads 4 --memory 8GiB",
)
def plan(
    data: DataArgument,
    n_components: Components = "2048",
    alpha: AlphaText = "auto",
    features: FeaturesName = "fourier",
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory of each process; what this machine has if left out."),
    ] = None,
    x: XName = "X",
    y: YName = "y",
    n_workers: Workers = None,
    n_threads: Threads = None,
    serial: Serial = False,
) -> Report:
    """Say what a fit would take: bytes, operations, memory and seconds. Nothing runs but a stop-watch."""
    from rff_dist import drawing, pipeline, storage
    from rff_dist.plan import available_memory, human_bytes, measure_gflops, plan_fit

    dimension, penalty = read_count(n_components, "--components"), read_alpha(alpha)
    whitened = drawing.find_features(features) is not None
    workers, threads = Where(None, n_workers, n_threads, serial, insecure=False).size()
    here = available_memory()
    limit = (here if serial else here // workers) if memory is None else read_bytes(memory, "--memory")
    solver_limit = here if memory is None else limit
    dataset = storage.open_dataset(data, x=x, y=y)
    found = plan_fit(
        n_samples=dataset.n_samples,
        n_features=dataset.n_features,
        n_targets=max(1, dataset.n_targets),
        n_components=dimension,
        chunk_rows=dataset.chunk_rows,
        itemsize=dataset.dtype.itemsize,
        n_workers=workers,
        n_threads=threads,
        separate_client=not serial,
        alpha_path=not pipeline.is_one_alpha(penalty),
        whitened=whitened,
        memory_limit=limit,
        client_memory_limit=solver_limit,
    )
    gflops = measure_gflops()
    seconds = found.seconds(gflops)
    document = {**found.to_dict(), "gflops_per_thread": gflops, "statistics_seconds": seconds}
    view, table = titled_table(f"a fit of {data}", "", "", header=False)
    table.add_column(style="dim")
    size = f"{features_and_targets(found.n_features, found.n_targets)}, D = {dimension:,}"
    block_rows = f"{found.rows_per_block:,} rows each, in tiles of {found.tile_rows:,}"
    runs_on = "in this process" if serial else "the solver has a process of its own"
    for row in (
        ("rows", f"{found.n_samples:,}", size),
        ("processes × threads", f"{workers} × {threads}", runs_on),
        ("blocks", f"{found.n_blocks:,}", block_rows),
        ("read", human_bytes(found.bytes_read), "two passes: moments, statistics"),
        ("operations", f"{found.flops:.3g}", f"{gflops:.0f}e9 a second on one thread here"),
        ("statistics", human_bytes(found.statistics_bytes), "of one block, or of all rows"),
        ("peak memory, a worker", human_bytes(found.worker_bytes), f"of {human_bytes(limit)}"),
        ("peak memory, the solver", human_bytes(found.client_bytes), f"of {human_bytes(solver_limit)}"),
        ("seconds, about", seconds_words(seconds), "for the statistics; reading and solving not counted"),
    ):
        table.add_row(*row)
    return Report(document, view)


@command(
    "rff-dist fit data.zarr model --kernel matern --nu 1.5 --components 4096",
    "rff-dist fit data.zarr model --length-scale 0.5,1,2 --alpha 1e-6,1e-4,1e-2 --serial",
)
def fit(
    data: DataArgument,
    output: Annotated[str, typer.Argument(metavar="MODEL", help="Where to write the model.")],
    kernel: KernelName = "gaussian",
    nu: Nu = None,
    n_components: Components = "2048",
    length_scale: LengthScaleText = "auto",
    alpha: AlphaText = "auto",
    features: FeaturesName = "fourier",
    centres: CentresName = None,
    design: DesignName = None,
    map: MapName = "pairs",
    no_standardize: NoStandardize = False,
    no_intercept: NoIntercept = False,
    no_statistics: Annotated[
        bool,
        typer.Option("--no-statistics", help="Leave the exact sums out of the model: no updates then."),
    ] = False,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    x: XName = "X",
    y: YName = "y",
    sample_weight: WeightsName = None,
    missing_chunks: MissingChunks = "error",
    scheduler: Scheduler = None,
    n_workers: Workers = None,
    n_threads: Threads = None,
    serial: Serial = False,
    insecure: Insecure = False,
) -> Report:
    """Train kernel ridge regression on random features: two passes over the data and one solve."""
    where = Where(scheduler, n_workers, n_threads, serial, insecure)
    from rff_dist import drawing, pipeline, storage
    from rff_dist.feature_map import check_map
    from rff_dist.kernels import check_design, default_design
    from rff_dist.model import write_model
    from rff_dist.storage.locations import check_output, parse_location

    # All that can be known to be wrong is found before any work starts.
    width, penalty = read_length_scale(length_scale), read_alpha(alpha)
    check_map(map)
    kind = read_features(features, centres)
    fourier = drawing.find_features(kind) is None
    dimension = drawing.check_width(read_count(n_components, "--components"), map, kind)
    chosen = make_kernel(kernel, nu, width)
    if design is not None and not fourier:
        raise typer.BadParameter("only --features fourier has one", param_hint="--design")
    arranged = design or default_design(chosen)
    check_output(
        parse_location(output), overwrite=overwrite, inputs=[parse_location(data)], marker=("model.json",)
    )
    dataset = storage.open_dataset(data, x=x, y=y, sample_weight=sample_weight, missing_chunks=missing_chunks)
    if dataset.n_targets < 1:
        raise DataError(
            f"{data} has no y, and training needs targets; write them with the data (`ingest` has --target), "
            "or name their array with --y"
        )
    chosen.check_columns(dataset.n_features)
    if fourier:
        check_design(chosen, arranged, dataset.n_features)
    with passes(where, solver=f"D = {dimension:,}") as (engine, clock):
        model, solved = pipeline.fit(
            dataset,
            chosen,
            engine=engine,
            length_scale=width,
            n_components=dimension,
            alpha=penalty,
            design=arranged,
            map=map,
            standardize=not no_standardize,
            fit_intercept=not no_intercept,
            seed=seed,
            features=kind,
        )
        seconds = clock.seconds()
        write_model(model.without_statistics() if no_statistics else model, output, overwrite=overwrite)
        document = {
            "model": output,
            **_describe_fit(model, solved, dataset, seed),
            "engine": describe_engine(engine, where),
            "seconds": seconds,
        }
    return Report(document, Group(_fit_facts(document), next_step("rff-dist", "evaluate", output, "DATA")))


def _describe_features(feature_map: FeatureMap, seed: int) -> dict[str, Any]:
    from rff_dist.feature_map import NystromFeatureMap
    from rff_dist.pipeline import kernel_of

    kernel = kernel_of(feature_map)
    assert kernel is not None  # the map was drawn just now
    facts: dict[str, Any] = {
        "kernel": kernel.to_dict(),
        "length_scale": getattr(kernel, "length_scale", None),
        "seed": seed,
    }
    if isinstance(feature_map, NystromFeatureMap):
        return {"features": "nystrom", "jitter": feature_map.jitter, "design": None, "map": None, **facts}
    spec = feature_map.spec
    assert spec is not None
    return {"features": "fourier", "design": spec.design.name, "map": spec.map, **facts}


def _describe_fit(model: RidgeModel, solved: Solved, dataset: ZarrDataset, seed: int) -> dict[str, Any]:
    feature_map, solution, selection = model.feature_map, solved.solution, solved.selection
    return {
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "n_targets": dataset.n_targets,
        "n_components": feature_map.n_components,
        **_describe_features(feature_map, seed),
        "alpha": model.alpha,
        "alpha_chosen_by": "given" if selection is None else selection.criterion,
        "alpha_at_end_of_path": None if selection is None else selection.at_end,
        "gcv": None if selection is None else selection.score,
        "status": solution.status.value,
        "causes": solution.status.causes,
        "remedies": solution.status.remedies,
        "effective_rank": solution.effective_rank,
        "alpha_floor": solution.floor,
        "statistics_digest": model.card["statistics_digest"],
        "digest": model.digest(),
    }


def _feature_words(found: Mapping[str, Any]) -> str:
    if found["features"] == "nystrom":
        return f"Nyström with jitter {found['jitter']:.3g}"
    return f"{found['design']}, {found['map']}"


_CHOSEN_BY = {"given": "as given", "gcv": "chosen by GCV", "evidence": "chosen by the evidence"}


def _fit_facts(found: Mapping[str, Any]) -> RenderableType:
    facts = {
        "rows": f"{found['n_samples']:,}, {features_and_targets(found['n_features'], found['n_targets'])}",
        "features": f"D = {found['n_components']:,}, {_feature_words(found)}, seed {found['seed']}",
        "kernel": kernel_words(found["kernel"]),
        "alpha": f"{found['alpha']:.3g}, {_CHOSEN_BY[found['alpha_chosen_by']]}",
    }
    if found["gcv"] is not None:
        roots = [math.sqrt(score) for score in found["gcv"]]
        facts["GCV estimate"] = f"RMSE {some(roots)} on new rows"
    status = found["status"].replace("_", " ")
    facts["solver"] = status if found["status"] == "ok" else f"[yellow]{status}[/]: {found['causes'][0]}"
    if found["remedies"]:
        facts["remedy"] = found["remedies"][0]
    engine, seconds = found["engine"], found["seconds"]
    parts = ", ".join(f"{name} {seconds_words(value)}" for name, value in seconds.items() if name != "total")
    facts["seconds"] = f"{seconds_words(seconds['total'])} ({parts})"
    facts["ran on"] = engine_words(engine)
    facts["digest"] = found["digest"][:16]
    return facts_view(f"wrote {found['model']}", **facts)


@command("rff-dist evaluate model test.zarr", "rff-dist evaluate model test.zarr --std --json")
def evaluate(
    model: ModelArgument,
    data: DataArgument,
    std: Annotated[
        bool,
        typer.Option("--std", help="Judge its standard deviations too: NLPD, and how often intervals cover."),
    ] = False,
    x: XName = "X",
    y: YName = "y",
    sample_weight: WeightsName = None,
    missing_chunks: MissingChunks = "error",
    scheduler: Scheduler = None,
    n_workers: Workers = None,
    n_threads: Threads = None,
    serial: Serial = False,
    insecure: Insecure = False,
) -> Report:
    """Measure a model's errors on a dataset, per target."""
    where = Where(scheduler, n_workers, n_threads, serial, insecure)
    import numpy as np

    from rff_dist import pipeline
    from rff_dist.uncertainty import Calibration

    trained, dataset = _open_model_and_data(
        model, data, x=x, y=y, sample_weight=sample_weight, missing_chunks=missing_chunks
    )
    if dataset.n_targets < 1:
        raise DataError(f"{data} has no y to compare predictions with; name its array with --y")
    with passes(where) as (engine, clock):
        found = pipeline.evaluate(dataset, trained, engine=engine, std=std)
        seconds = clock.seconds()["total"]
        ran_on = describe_engine(engine, where)
    calibration = found if isinstance(found, Calibration) else None
    errors = found.errors if isinstance(found, Calibration) else found
    rmse, deviation = np.sqrt(errors.mean_squared_error), np.sqrt(errors.target_variance)
    with np.errstate(divide="ignore", invalid="ignore"):
        columns = {
            "rmse": rmse,
            "z_rmse": np.where(deviation > 0, rmse / deviation, np.nan),
            "mse": errors.mean_squared_error,
            "mae": errors.mean_absolute_error,
            "bias": errors.bias,
            "largest": errors.largest,
            "r2": errors.r2,
        }
    names = target_names(trained, dataset.n_targets)
    targets = [
        {"name": name, **{key: float(values[i]) for key, values in columns.items()}}
        for i, name in enumerate(names)
    ]
    if calibration is not None:
        targets = [{**target, **_describe_calibration(calibration, i)} for i, target in enumerate(targets)]
    document = {
        "model": model,
        "data": data,
        "n_samples": errors.n_samples,
        "targets": targets,
        "engine": ran_on,
        "seconds": seconds,
    }
    view, table = titled_table(
        f"{model} on {data}: {errors.n_samples:,} rows, {seconds_words(seconds)} s",
        *("target", "RMSE", "z-RMSE", "MSE", "MAE", "bias", "largest", "R²"),
    )
    for target in targets:
        table.add_row(str(target["name"]), *(f"{target[key]:.4g}" for key in columns))
    parts: list[RenderableType] = [
        view,
        Text("z-RMSE: in units of the target's standard deviation here", "dim"),
    ]
    if calibration is not None:
        parts += _calibration_view(targets)
    return Report(document, Group(*parts))


def _describe_calibration(calibration: Calibration, target: int) -> dict[str, Any]:
    from rff_dist.uncertainty import LEVELS

    per_level = {"coverage": calibration.coverage, "mean_width": calibration.mean_widths}
    return {
        "nlpd": float(calibration.nlpd[target]),
        "z_nlpd": float(calibration.standardized_nlpd[target]),
        "mean_squared_score": float(calibration.mean_squared_score[target]),
        "mean_std": float(calibration.mean_standard_deviation[target]),
        **{
            name: {str(level): float(values[i, target]) for i, level in enumerate(LEVELS)}
            for name, values in per_level.items()
        },
    }


def _calibration_view(targets: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    columns = {"NLPD": "nlpd", "z-NLPD": "z_nlpd"}
    levels = [f"{float(level):.0%}" for level in targets[0]["coverage"]]
    view, table = titled_table(
        "density of the targets, and the share of rows inside central intervals",
        *("target", *columns, *levels),
    )
    for target in targets:
        figures = [f"{target[key]:.4g}" for key in columns.values()]
        shares = [f"{share:.1%}" for share in target["coverage"].values()]
        table.add_row(str(target["name"]), *figures, *shares)
    return [
        Text(),
        view,
        Text("z-NLPD: in units of the target's standard deviation on the training rows", "dim"),
    ]


def _open_model_and_data(model: str, data: str, **names: Any) -> tuple[RidgeModel, ZarrDataset]:
    from rff_dist import pipeline, storage
    from rff_dist.model import read_model

    trained = read_model(model)
    dataset = storage.open_dataset(data, **names)
    try:
        pipeline.check_dataset(dataset, trained)
    except DataError as error:
        raise DataError(
            f"{data} does not fit {model}: {error}. Give data of the columns that the model was trained on, "
            "or another model"
        ) from error
    return trained, dataset


@command("rff-dist predict model new.zarr predictions.zarr")
def predict(
    model: ModelArgument,
    data: DataArgument,
    output: Annotated[str, typer.Argument(metavar="OUT", help="Where to write the predictions.")],
    std: Annotated[
        bool, typer.Option("--std", help="Write their standard deviations too, as `standard_deviations`.")
    ] = False,
    overwrite: Overwrite = False,
    x: XName = "X",
    missing_chunks: MissingChunks = "error",
    scheduler: Scheduler = None,
    n_workers: Workers = None,
    n_threads: Threads = None,
    serial: Serial = False,
    insecure: Insecure = False,
) -> Report:
    """Write a model's predictions for every row of a dataset, as the Zarr array `predictions`."""
    where = Where(scheduler, n_workers, n_threads, serial, insecure)
    from rff_dist import pipeline
    from rff_dist.storage.locations import check_output, parse_location

    check_output(
        parse_location(output),
        overwrite=overwrite,
        inputs=[parse_location(data), parse_location(model)],
    )
    trained, dataset = _open_model_and_data(model, data, x=x, y=None, missing_chunks=missing_chunks)
    with passes(where) as (engine, clock):
        written = pipeline.predict(
            dataset,
            trained,
            output,
            engine=engine,
            std=std,
            column_names=trained.card.get("target_names"),
            overwrite=overwrite,
        )
        seconds = clock.seconds()["total"]
        ran_on = describe_engine(engine, where)
    document = {
        "output": output,
        "array": "predictions",
        "std_array": "standard_deviations" if std else None,
        "n_samples": written,
        "n_targets": trained.n_targets,
        "model_digest": trained.digest(),
        "engine": ran_on,
        "seconds": seconds,
    }
    view = facts_view(
        f"wrote {output}",
        rows=f"{written:,}, {plural(trained.n_targets, 'target')}",
        array="predictions, standard_deviations" if std else "predictions",
        model=f"{model} ({trained.digest()[:16]})",
        ran_on=engine_words(ran_on),
        seconds=seconds_words(seconds),
    )
    return Report(document, view)
