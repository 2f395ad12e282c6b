"""The first steps of every fit: measure the columns, standardise the inputs, draw features."""

from __future__ import annotations

from dataclasses import dataclass

from rff_dist.data.blocks import Dataset
from rff_dist.engines.progress import Announcer, Remark, Rounds
from rff_dist.engines.protocol import Engine
from rff_dist.features.feature_map import FeatureMap, Standardizer
from rff_dist.features.for_dataset import Inputs, draw
from rff_dist.features.options import KernelFeatures
from rff_dist.statistics.accumulate import Accumulation
from rff_dist.statistics.inspection import (
    check_standardize,
    input_range,
    inspect,
    standardizer_for,
    target_offset_from,
    warn_of_lost_digits,
)
from rff_dist.statistics.moments import Moments
from rff_dist.statistics.passes import check_weight_kind, fraction_bits_for, statistics_spec, weight_grid


@dataclass(frozen=True, slots=True)
class Prepared:
    """A dataset whose columns were measured: the start of every fit.

    `moments`: moments of the columns.
    `standardizer`: transforms the inputs before features are made.
    `engine`: runs the passes.
    `standardize`: the option that the standardizer was made by.
    `sample_weight_kind`: what weights mean; see `RidgeOptions`.
    """

    dataset: Dataset
    moments: Moments
    standardizer: Standardizer | None
    engine: Engine
    standardize: bool | str = True
    sample_weight_kind: str = "precision"

    @property
    def frequency_weights(self) -> bool:
        return self.sample_weight_kind == "frequency"

    def inputs(self, seed: int) -> Inputs:
        ranges = input_range(self.moments, self.standardizer)
        return Inputs(self.dataset, self.standardizer, seed, ranges, self.frequency_weights)

    def draw(self, described: KernelFeatures, *, seed: int) -> FeatureMap:
        return draw(self.inputs(seed), described)

    def say(self, label: str, text: str) -> None:
        """Tell the engine's observers what happens between passes."""
        Announcer(self.engine.observers)(Remark(label, text))

    def count(self, label: str, done: int, limit: int) -> None:
        """Tell observers how many of at most `limit` steps are done, where one pass does not show it."""
        Announcer(self.engine.observers)(Rounds(label, limit, done))

    def accumulation(self, feature_map: FeatureMap) -> Accumulation:
        """Return what a pass over the dataset sums up for a feature map."""
        spec = statistics_spec(
            self.dataset,
            feature_map,
            target_offset=target_offset_from(self.moments),
            fraction_bits=fraction_bits_for(self.dataset.n_samples),
            engine=self.engine,
            weights=weight_grid(self.moments, self.sample_weight_kind),
        )
        return Accumulation(feature_map, spec)


def prepare(
    dataset: Dataset,
    *,
    standardize: bool | str,
    sample_weight_kind: str = "precision",
    moments: Moments | None = None,
    engine: Engine,
) -> Prepared:
    """Check all values of a dataset, and measure its columns.

    Takes one cheap pass unless `moments` are given, and another if columns are mapped by their ranks; see
    `inspect` and `standardizer_for`.
    """
    standardize = check_standardize(standardize)
    check_weight_kind(sample_weight_kind)
    moments = inspect(dataset, engine=engine) if moments is None else moments
    if standardize is False:
        warn_of_lost_digits(moments)
    standardizer = standardizer_for(dataset, moments, standardize, engine=engine)
    return Prepared(dataset, moments, standardizer, engine, standardize, sample_weight_kind)
