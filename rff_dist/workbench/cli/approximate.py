"""Measure whether D, the number of features, is large enough: their error on sampled
rows.

In go a dataset and a kernel, out comes a table of errors, each with the D that would
bring it to a wanted size and with theory's bound. We measure, because the bound asks
for 10 to 100 times too many features.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from annotated_types import Ge

from rff_dist import fields
from rff_dist.features.feature_options import FeatureOptions
from rff_dist.workbench.cli import shell
from rff_dist.workbench.jobs.places import WeightedDataSource
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Paragraph

DELTA = 0.05  # probability with which theory's bound of the largest error may fail


@shell.command(
    "data.zarr --n-components 4096", "data.zarr --kernel matern:nu=1.5 --error 0.02"
)
def approximate(
    *,
    source: WeightedDataSource,
    # these fields become options, and the others keep their defaults
    features: Annotated[
        FeatureOptions,
        "kernel",
        "length_scale",
        "n_components",
        "design",
        "map",
        "seed",
    ],
    standardize: bool | str = fields.like(FeatureOptions, "standardize", True),
    error: fields.Positive = fields.option(
        "The error that you want to reach.", 0.05, placeholder="E"
    ),
    n_samples: Annotated[int, Ge(2)] = fields.option(
        "Rows of the sample.", 1000, placeholder="N"
    ),
) -> Document:
    """Measure whether D is large enough: the features' error on sampled rows, next to
    theory's bounds.

    Only the sampled rows are read. They alone give the means, standard deviations and
    the median distance.
    """
    from rff_dist.data import memory, samples
    from rff_dist.engines.serial import SerialEngine
    from rff_dist.features import approximation, bounds
    from rff_dist.fitting.prepare import prepare
    from rff_dist.kernels import base
    from rff_dist.storage import datasets

    seed = features.seed
    dataset = datasets.open_dataset(source.data, **source.open_arguments())
    features.check_columns(dataset.n_features)
    rows = samples.sample_inputs(dataset, seed, n_rows=n_samples)
    # with the dataset's columns of categories
    sample = memory.ArrayDataset(rows, attributes=dataset.attributes)
    prepared = prepare(sample, standardize=standardize, engine=SerialEngine(1))
    feature_map = prepared.draw(features, seed=seed)
    spec = feature_map.spec
    assert spec is not None  # it was drawn just now
    # of raw rows, which the map standardises, for the kernel as well
    measured = approximation.approximation_error(
        spec.kernel, feature_map, rows, n_samples=n_samples, random_state=seed
    )

    n = measured.n_samples
    D = measured.n_components
    theory = {}
    if base.as_shift_invariant(spec.kernel) is not None:
        theory["max"] = bounds.pairwise_error(
            D, n_points=n, delta=DELTA, map=spec.map_form
        )
        theory["relative_operator_norm"] = bounds.operator_norm_error(
            D, n_points=n, gram_norm=measured.gram_norm
        )
    needed = {
        name: measured.components_for(error, measure=name)
        for name in words.APPROXIMATION
    }
    record = {
        "data": source.data,
        **asdict(measured),
        "kernel": spec.kernel.to_dict(),
        "design": spec.design.name,
        "map": spec.map_form,
        "seed": seed,
        "error": error,
        "delta": DELTA,
        "needed": needed,
        "bounds": theory,
    }
    facts = {
        "kernel": words.kernel_words(record["kernel"]),
        "features": f"D = {D:,}, {spec.design.name}, {spec.map_form}, seed {seed}",
        "rows": f"a sample of {n:,}",
    }
    table = [
        (
            title,
            f"{getattr(measured, name):.3g}",
            f"{needed[name]:,}",
            f"{theory[name]:.3g}" if name in theory else "–",
        )
        for name, title in words.APPROXIMATION.items()
    ]
    header = ("error", "measured", f"D for {error:g}", "theory")
    note = (
        "Of |z(x)'z(y) − k(x, y)| over pairs of sampled rows, and of ‖ZZ' − K‖ / ‖K‖."
        " D follows from the measured error, which falls as 1/√D. Theory, for"
        " independent frequencies of one shift-invariant kernel: Hoeffding's inequality"
        f" for all pairs, which fails with a probability of at most {DELTA:g}, and"
        " matrix Bernstein."
    )
    return Document(
        f"error of the features on {source.data}",
        [facts, words.Table("", header, table), Paragraph(note, is_note=True)],
        record=record,
    )
