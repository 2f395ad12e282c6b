"""Whether D is large enough: the error of the features on a sample of the data, next to theory's bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge

from rff_dist import fields
from rff_dist.errors import InvalidParameterError
from rff_dist.features.feature_options import FeatureOptions
from rff_dist.workbench.cli import shell
from rff_dist.workbench.jobs.places import WeightedSource
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Paragraph, Part

if TYPE_CHECKING:
    from rff_dist.features import approximation, maps

MEASURES = {"mean": "mean", "max": "largest", "relative_operator_norm": "norm"}  # titles
POINTS, LEAST = 8, 16  # the curve has at most 8 numbers of components, none below 16


@fields.group
class Measured:
    """What is measured, and on which rows."""

    panel: ClassVar[str] = "What is measured"

    error: fields.Positive = fields.option("The error that you want to reach.", 0.05, unit="E")
    delta: fields.Probability = fields.option(
        "Probability with which theory's bounds may fail.", 0.05, unit="P"
    )
    n_samples: Annotated[int, Ge(2)] = fields.option("Rows of each sample.", 500, unit="N")
    n_repeats: Annotated[int, Ge(2)] = fields.option("Number of disjoint samples.", 8, unit="N")
    confidence: fields.Probability = fields.option(
        "Confidence of the intervals of mean errors.", 0.95, unit="P"
    )


@shell.command(
    "data.zarr --n-components 4096", "data.zarr --kernel matern:nu=1.5 --error 0.02 --plot error.png"
)
def approximate(
    *,
    source: WeightedSource,
    features: Annotated[FeatureOptions, "kernel", "length_scale", "n_components", "design", "map", "seed"],
    standardize: bool | str = fields.like(FeatureOptions, "standardize", True),
    measured: Measured,
    plot: str | None = fields.optional(
        "Draw the error against D.", unit="PNG", place="writes", suffixes=(".png",)
    ),
    overwrite: bool = fields.flag("Replace a picture that is there."),
) -> Document:
    """Measure whether D is large enough: the features' error on sampled rows, next to theory's bounds.

    Only the sampled rows are read. They alone give the means, the deviations and the median distance.
    """
    from rff_dist.data import memory, samples
    from rff_dist.engines.serial import SerialEngine
    from rff_dist.features import approximation, bounds, draw, theory
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
    ranges = inspection.input_range(moments, standardizer)
    seen = draw.Inputs(sample, standardizer, seed, ranges)
    feature_map = draw.draw(seen, features)
    spec = feature_map.spec
    assert spec is not None  # it was drawn just now
    sampling = approximation.Sampling(measured.n_samples, measured.n_repeats, measured.confidence, seed)
    widths = _curve_components(spec, feature_map.n_components)
    curve = approximation.error_curve(spec.kernel, feature_map, rows, widths, sampling)
    compared = samples.sample_inputs(sample, seed)  # the rows that map='auto' looks at
    variances = bounds.better_map(spec.kernel, seen.prepare(compared))
    variance, diameter = getattr(variances, spec.map), float(math.dist(*ranges))
    expected = theory.theory_of(spec, curve[-1], delta=measured.delta, variance=variance, diameter=diameter)
    record = {
        "data": data,
        "n_rows_read": len(rows),
        "n_samples": curve[-1].n_samples,
        **fields.values_of(measured, "n_repeats", "confidence"),
        "n_components": feature_map.n_components,
        "kernel": spec.kernel.to_dict(),
        "design": spec.design.name,
        "map": spec.map,
        "seed": seed,
        "map_variances": {**asdict(variances), "better": variances.better},
        "errors": _errors(curve[-1]),
        "wanted": {
            **fields.values_of(measured, "error", "delta"),
            "n_components": expected.needed(measured.error),
        },
        "bounds": expected.bounds(feature_map.n_components),
        "no_bounds": expected.refusals,
        "curve": [{"n_components": point.n_components, **_errors(point)} for point in curve],
        "plot": plot,
    }
    if plot is not None:
        from rff_dist.workbench.page import pictures

        figure = pictures.draw_error_curve(
            curve,
            [expected.bounds(point.n_components) for point in curve],
            title=f"Is D large enough? {words.kernel_words(record['kernel'])}",
            subtitle=f"{data}: {words.plural(measured.n_repeats, 'sample')} of {curve[-1].n_samples:,} rows, "
            f"{spec.design.name}, {spec.map}",
            wanted=measured.error,
        )
        pictures.save(figure, plot)
    return _document(record)


def _curve_components(spec: maps.FeatureSpec, D: int) -> list[int]:
    """Return D and its halves, down to the fewest components that the kernel's features can have."""
    from rff_dist.features.draw import draw_from_spec

    widths = [D]
    for i in range(1, POINTS):
        fewer = (D >> i) // 2 * 2  # even, for pairs of cosines and sines
        if fewer < LEAST:
            break
        try:
            draw_from_spec(replace(spec, n_components=fewer), None)
        except InvalidParameterError:  # a sum of kernels needs some components for each term
            break
        widths.append(fewer)
    return widths


def _errors(point: approximation.ApproximationError) -> dict[str, Any]:
    members = asdict(point)
    return {name: members[name] for name in (*MEASURES, "operator_norm", "gram_norm")}


def _document(record: Mapping[str, Any]) -> Document:
    wanted, errors, bounds = record["wanted"], record["errors"], record["bounds"]
    design, seed = record["design"], record["seed"]
    facts = {
        "kernel": words.kernel_words(record["kernel"]),
        "features": f"D = {record['n_components']:,}, {design}, {record['map']}, seed {seed}",
        "rows": f"{record['n_repeats']} disjoint samples of {record['n_samples']:,}",
        "maps": _maps_words(record["map_variances"]),
    }
    deviation, wanted_components = f"± {100 * record['confidence']:.3g}%", f"D for {wanted['error']:g}"
    header = ("error", "measured", deviation, "theory", wanted_components, "by theory", "factor")
    rows = []
    for name, label in (MEASURES | {"compact_set": "in the box"}).items():
        needed, error = wanted["n_components"][name], errors.get(name)
        measured = ["", ""]
        if error is not None:
            measured = [f"{error['value']:.3g}", f"{error['high'] - error['value']:.2g}"]
        bound = "–" if bounds[name] is None else f"{bounds[name]:.3g}"
        by_error = "" if needed["measured"] is None else f"{needed['measured']:,}"
        factor = "" if needed["factor"] is None else _times(needed["factor"])
        rows.append((label, *measured, bound, by_error, needed["theory"], factor))
    points = [
        (f"{point['n_components']:,}", *(f"{point[name]['value']:.3g}" for name in MEASURES))
        for point in record["curve"]
    ]
    curve = words.Table("", ("D", *MEASURES.values()), points)
    notes = [Paragraph(note, is_note=True) for note in _notes(record)]
    parts: list[Part] = [facts, words.Table("", header, rows), curve, *notes]
    return Document(f"error of the features on {record['data']}", parts, record=record)


def _times(factor: float) -> str:
    return f"{factor:.1f}×" if factor < 10 else f"{factor:,.0f}×"


def _maps_words(variances: Mapping[str, Any]) -> str:
    if not variances["pairs"] and not variances["phases"]:
        return "pairs and phases are the same: the kernel has no frequencies"
    shown = f"variance {variances['pairs']:.3g}/D in pairs, {variances['phases']:.3g}/D in phases"
    return f"{shown}: take {variances['better']}"


def _notes(record: Mapping[str, Any]) -> Sequence[str]:
    notes = [
        "mean, largest: of |z(x)'z(y) − k(x, y)| over pairs of sampled rows; norm: ‖ZZ' − K‖ / ‖K‖; in the "
        "box: at any two points of the box that holds the sampled inputs.",
        "± shows how much the choice of rows matters; other seeds change the error by more. The D for an "
        "error follows from the measured error, which falls as 1/√D.",
        "Theory assumes independent frequencies: closed-form variance, Hoeffding's inequality, matrix "
        "Bernstein, Rahimi and Recht's Claim 1. Bounds that can fail do so with a probability of at most "
        f"{record['wanted']['delta']:g}.",
    ]
    notes += [f"no bound: {refusal}" for refusal in dict.fromkeys(record["no_bounds"].values())]
    if record["plot"] is not None:
        notes.append(f"wrote {record['plot']}")
    return notes
