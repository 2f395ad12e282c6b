"""The first steps of every fit: measure the columns, standardise the inputs, draw features."""

from rff_dist.data import blocks, sources
from rff_dist.engines import progress, protocol
from rff_dist.features import draw as for_dataset
from rff_dist.features import feature_options, maps
from rff_dist.statistics import accumulate, inspection, passes
from rff_dist.statistics.moments import Moments
from rff_dist.storage import documents
from rff_dist.typing import Facts, Summary, frozen


@frozen
class Prepared:
    """A dataset whose columns were measured: the start of every fit.

    `moments`: moments of the columns.
    `standardizer`: transforms the inputs before features are made.
    `engine`: runs the passes.
    `standardize`: the option that the standardizer was made by.
    `sample_weight_kind`: what weights mean; see `RidgeOptions`.
    """

    dataset: blocks.Dataset
    moments: Moments
    standardizer: maps.Standardizer | None
    engine: protocol.Engine
    standardize: bool | str = True
    sample_weight_kind: str = "precision"

    @property
    def frequency_weights(self) -> bool:
        return self.sample_weight_kind == "frequency"

    def inputs(self, seed: int) -> for_dataset.Inputs:
        ranges = inspection.input_range(self.moments, self.standardizer)
        return for_dataset.Inputs(self.dataset, self.standardizer, seed, ranges, self.frequency_weights)

    def draw(self, described: feature_options.KernelFeatures, *, seed: int) -> maps.FeatureMap:
        return for_dataset.draw(self.inputs(seed), described)

    def say(self, label: str, text: str, kind: type[progress.Remark] = progress.Remark) -> None:
        """Report to the engine's observers what happens between passes."""
        progress.Announcer(self.engine.observers)(kind(label, text))

    def count(self, label: str, done: int, limit: int) -> None:
        """Report progress of steps that are no passes: `done` of at most `limit`."""
        progress.Announcer(self.engine.observers)(progress.Rounds(label, limit, done))

    def accumulation(
        self, feature_map: maps.FeatureMap, *, with_targets: bool = True
    ) -> accumulate.Accumulation:
        """Return what a pass over the dataset sums up for a feature map."""
        spec = passes.statistics_spec(
            self.dataset,
            feature_map,
            target_offset=inspection.target_offset_from(self.moments) if with_targets else (),
            with_targets=with_targets,
            fraction_bits=passes.fraction_bits_for(self.dataset.n_samples),
            engine=self.engine,
            weights=passes.weight_grid(self.moments, self.sample_weight_kind),
        )
        return accumulate.Accumulation(feature_map, spec)


def prepare(
    dataset: blocks.Dataset,
    *,
    standardize: bool | str,
    sample_weight_kind: str = "precision",
    moments: Moments | None = None,
    engine: protocol.Engine,
) -> Prepared:
    """Check all values of a dataset, and measure its columns.

    Takes one cheap pass unless `moments` are given, and another if columns are mapped by their ranks; see
    `inspect` and `standardizer_for`.
    """
    standardize = inspection.check_standardize(standardize)
    moments = inspection.inspect(dataset, engine=engine) if moments is None else moments
    if standardize is False:
        # standardised columns have means of 0, so they keep their digits in float32
        inspection.check_float32(moments)
    standardizer = inspection.standardizer_for(
        dataset,
        moments,
        standardize,
        frequency_weights=sample_weight_kind == "frequency",
        engine=engine,
    )
    return Prepared(dataset, moments, standardizer, engine, standardize, sample_weight_kind)


def describe_dataset(dataset: blocks.Dataset) -> Facts:
    """Return the facts of a dataset that a model's card keeps.

    Raises ConflictError if the rows were changed since it was opened.
    """
    dataset.check_unchanged()
    facts: Summary = {"data_fingerprint": dataset.fingerprint()}
    if dataset.version is not None:
        facts["data_version"] = dataset.version
        if (name := documents.name_of(dataset.attributes)) is not None:
            facts["data_id"] = name
    n_samples = dataset.n_samples
    # versions record digests of those that they only appended to, which need no reading
    prefix = dataset.recorded_prefix(n_samples) or dataset.prefix_fingerprint(n_samples)
    if prefix is not None:
        # an update compares it with the fingerprint of the first rows of data that have grown since
        facts["prefix_fingerprint"] = prefix
    attributes = dataset.attributes
    if dataset.reference:
        facts["reference"] = dict(dataset.reference)
    if (table := sources.followed_table(attributes)) is not None:
        facts["data_table"] = table
    if (recipe := attributes.get("recipe")) is not None:
        # It makes inputs of the model from tables. Notes name the files of these rows, which no model needs.
        facts["recipe"] = {**recipe, "notes": {}}
        if "target_names" in attributes:
            facts["target_columns"] = attributes["target_names"]  # in the table, labels included
    for name, names in {"feature_names": dataset.feature_names, "target_names": dataset.target_names}.items():
        if names is not None:
            facts[name] = list(names)
    return facts
