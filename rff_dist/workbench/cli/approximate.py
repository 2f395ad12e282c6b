"""Whether D is large enough: the error of the features on a sample of the data, next to theory's bounds."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge

from rff_dist import fields
from rff_dist.features.feature_options import FeatureOptions
from rff_dist.typing import Facts
from rff_dist.workbench.cli import shell
from rff_dist.workbench.jobs.places import WeightedSource
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Paragraph
from rff_dist.workbench.results.words import APPROXIMATION as MEASURES

if TYPE_CHECKING:
    from rff_dist.features import approximation, maps


@fields.group
class Measured:
    """What is measured, and on which rows."""

    panel: ClassVar[str] = "What is measured"

    error: fields.Positive = fields.option("The error that you want to reach.", 0.05, unit="E")
    delta: fields.Probability = fields.option(
        "Probability with which theory's bound of the largest error may fail.", 0.05, unit="P"
    )
    n_samples: Annotated[int, Ge(2)] = fields.option("Rows of each sample.", 500, unit="N")
    n_repeats: Annotated[int, Ge(2)] = fields.option("Number of disjoint samples.", 8, unit="N")
    confidence: fields.Probability = fields.option(
        "Confidence of the intervals of mean errors.", 0.95, unit="P"
    )


@shell.command("data.zarr --n-components 4096", "data.zarr --kernel matern:nu=1.5 --error 0.02")
def approximate(
    *,
    source: WeightedSource,
    features: Annotated[FeatureOptions, "kernel", "length_scale", "n_components", "design", "map", "seed"],
    standardize: bool | str = fields.like(FeatureOptions, "standardize", True),
    measured: Measured,
) -> Document:
    """Measure whether D is large enough: the features' error on sampled rows, next to theory's bounds.

    Only the sampled rows are read. They alone give the means, the deviations and the median distance.
    """
    from rff_dist.data import memory, samples
    from rff_dist.engines.serial import SerialEngine
    from rff_dist.features import approximation, bounds, draw
    from rff_dist.statistics import inspection
    from rff_dist.storage import datasets

    seed = features.seed
    data, dataset = source.data, datasets.open_dataset(source.data, **source.names())
    features.check_columns(dataset.n_features)
    rows = samples.sample_inputs(dataset, seed, n_rows=measured.n_samples * measured.n_repeats)
    sample = memory.ArrayDataset(rows)
    engine = SerialEngine(1)
    moments = inspection.inspect(sample, engine=engine)
    standardizer = inspection.standardizer_for(sample, moments, standardize, engine=engine)
    seen = draw.Inputs(sample, standardizer, seed, inspection.input_range(moments, standardizer))
    feature_map = draw.draw(seen, features)
    spec = feature_map.spec
    assert spec is not None  # it was drawn just now
    sampled = fields.values_of(measured, "n_samples", "n_repeats", "confidence")
    errors = approximation.approximation_error(spec.kernel, feature_map, rows, **sampled, random_state=seed)
    compared = samples.sample_inputs(sample, seed)  # the rows that map='auto' looks at
    variances = bounds.better_map(spec.kernel, seen.prepare(compared))
    record = {
        "data": data,
        "n_rows_read": len(rows),
        **asdict(errors),
        "kernel": spec.kernel.to_dict(),
        "design": spec.design.name,
        "map": spec.map,
        "seed": seed,
        "map_variances": {**asdict(variances), "better": variances.better},
        **fields.values_of(measured, "error", "delta"),
        "needed": {name: errors.components_for(measured.error, measure=name) for name in MEASURES},
        "bounds": _bounds(spec, errors, getattr(variances, spec.map), measured.delta),
    }
    return _document(record)


def _bounds(
    spec: maps.FeatureSpec, errors: approximation.ApproximationError, variance: float, delta: float
) -> dict[str, float]:
    """Return theory's figure for each measure; none for kernels that it does not cover."""
    from rff_dist.features import bounds
    from rff_dist.kernels import base

    if base.as_shift_invariant(spec.kernel) is None:
        return {}
    n, D = errors.n_samples, errors.n_components
    return {
        "mean": math.sqrt(variance / D),
        "max": bounds.pairwise_error(D, n_points=n, delta=delta, map=spec.map),
        "relative_operator_norm": bounds.operator_norm_error(D, n_points=n, gram_norm=errors.gram_norm),
    }


def _document(record: Facts) -> Document:
    facts = {
        "kernel": words.kernel_words(record["kernel"]),
        "features": f"D = {record['n_components']:,}, {record['design']}, {record['map']}, "
        f"seed {record['seed']}",
        "rows": f"{record['n_repeats']} disjoint samples of {record['n_samples']:,}",
        "maps": _maps_words(record["map_variances"]),
    }
    header = ("error", "measured", f"± {100 * record['confidence']:.3g}%", f"D for {record['error']:g}")
    rows = []
    for name, title in MEASURES.items():
        error, bound = record[name], record["bounds"].get(name)
        spread, needed = error["high"] - error["value"], record["needed"][name]
        theory = "–" if bound is None else f"{bound:.3g}"
        rows.append((title, f"{error['value']:.3g}", f"{spread:.2g}", f"{needed:,}", theory))
    notes = [
        "Of |z(x)'z(y) − k(x, y)| over pairs of sampled rows, and of ‖ZZ' − K‖ / ‖K‖. ± shows how much the "
        "choice of rows matters; other seeds change the error by more. D follows from the measured error, "
        "which falls as 1/√D.",
        "Theory, for independent frequencies of one shift-invariant kernel: closed-form standard deviation, "
        "Hoeffding's inequality for all pairs, which fails with a probability of at most "
        f"{record['delta']:g}, and matrix Bernstein.",
    ]
    paragraphs = [Paragraph(note, is_note=True) for note in notes]
    table = words.Table("", (*header, "theory"), rows)
    title = f"error of the features on {record['data']}"
    return Document(title, [facts, table, *paragraphs], record=record)


def _maps_words(variances: Facts) -> str:
    if not variances["pairs"] and not variances["phases"]:
        return "pairs and phases are the same: the kernel has no frequencies"
    shown = f"variance {variances['pairs']:.3g}/D in pairs, {variances['phases']:.3g}/D in phases"
    return f"{shown}: take {variances['better']}"
