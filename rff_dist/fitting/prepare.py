"""Prepare a dataset for any fit: measure its columns, standardise, draw features.

A dataset goes in; a `PreparedDataset` comes out, which every later step of a fit
takes. Measuring takes a cheap pass of its own, because features depend on the columns'
means and standard deviations.
"""

from dataclasses import field

from rff_dist.data import blocks, sources
from rff_dist.engines import events, protocol
from rff_dist.features import feature_options, for_dataset, maps
from rff_dist.features.levels import Levels
from rff_dist.recipes import recipes
from rff_dist.statistics import accumulate, inspection, passes, standardizing
from rff_dist.statistics.moments import Moments
from rff_dist.storage import columns, manifests
from rff_dist.typing import Facts, Summary, frozen


@frozen
class PreparedDataset:
    """A dataset whose columns were measured: the start of every fit."""

    dataset: blocks.Dataset
    #: Means, deviations and extremes of the columns.
    moments: Moments
    #: Transforms the inputs before features are made; None leaves them as they are.
    standardizer: maps.Standardizer | None
    #: Runs the passes.
    engine: protocol.Engine
    #: The option that decided the standardizer.
    standardize: bool | str = True
    #: What weights mean; see `RidgeOptions`.
    sample_weight_kind: str = "precision"
    #: The levels of each column of categories, by the column's number.
    levels: Levels = field(default_factory=dict)

    @property
    def frequency_weights(self) -> bool:
        return self.sample_weight_kind == "frequency"

    def row_source(self, seed: int) -> for_dataset.RowSource:
        ranges = inspection.input_range(self.moments, self.standardizer)
        return for_dataset.RowSource(
            self.dataset,
            self.standardizer,
            seed,
            ranges,
            self.frequency_weights,
            self.levels,
        )

    def draw(
        self, described: feature_options.KernelFeatures, *, seed: int
    ) -> maps.FeatureMap:
        return for_dataset.draw(self.row_source(seed), described)

    def say(self, label: str, text: str) -> None:
        """Report to the engine's observers what happens between passes."""
        self.engine.tell(events.Remark(label, text))

    def count(self, label: str, done: int, limit: int) -> None:
        """Report progress of steps that are no passes: `done` of at most `limit`."""
        self.engine.tell(events.Rounds(label, limit, done))

    def accumulation(
        self, feature_map: maps.FeatureMap, *, with_targets: bool = True
    ) -> accumulate.Accumulation:
        """Return the state of a pass that sums up a feature map over the dataset.

        Its spec is the grid on which sums are exact.
        """
        spec = passes.statistics_spec(
            self.dataset,
            feature_map,
            target_offset=self.moments.target_offset if with_targets else (),
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
) -> PreparedDataset:
    """Check all values of a dataset, and measure its columns.

    Takes one cheap pass unless `moments` are given, and another if columns are mapped
    by their ranks; see `inspect` and `standardizer_for`.
    """
    standardize = standardizing.check_standardize(standardize)
    levels = recipes.levels_of(dataset.attributes)
    if moments is None:
        moments = inspection.inspect(dataset, levels=levels, engine=engine)
    if standardize is False:
        # standardised columns have means of 0, so they keep their digits in float32
        inspection.check_float32(moments)
    standardizer = standardizing.standardizer_for(
        dataset,
        moments,
        standardize,
        frequency_weights=sample_weight_kind == "frequency",
        categories=sorted(levels),
        engine=engine,
    )
    return PreparedDataset(
        dataset, moments, standardizer, engine, standardize, sample_weight_kind, levels
    )


def describe_dataset(dataset: blocks.Dataset) -> Facts:
    """Return the facts of a dataset that a model's card keeps.

    Raises ConflictError if the rows were changed since it was opened.
    """
    dataset.check_unchanged()
    facts: Summary = {"data_fingerprint": dataset.fingerprint()}
    if dataset.version is not None:
        facts["data_version"] = dataset.version
        name = manifests.name_of(dataset.attributes)
        if name is not None:
            facts["data_id"] = name
    n_samples = dataset.n_samples
    # A version records digests of earlier versions that it only appended rows to;
    # reading a record is cheaper than reading the rows.
    prefix = dataset.recorded_prefix(n_samples) or dataset.prefix_fingerprint(n_samples)
    if prefix is not None:
        # an update recognises these rows by it, at the start of data that grew
        facts["prefix_fingerprint"] = prefix
    attributes = dataset.attributes
    if columns.TIME_COLUMN in attributes:
        facts[columns.TIME_COLUMN] = attributes[columns.TIME_COLUMN]
    if dataset.reference:
        facts["reference"] = dict(dataset.reference)
    table = sources.followed_table(attributes)
    if table is not None:
        facts["data_table"] = table
    recipe = attributes.get("recipe")
    if recipe is not None:
        # The recipe turns a table's columns into the model's inputs. Its notes name the
        # files of these rows, which no model needs.
        facts["recipe"] = {**recipe, "notes": {}}
        if "target_names" in attributes:
            # their names in the table, also of a column of labels
            facts["target_columns"] = attributes["target_names"]
    if dataset.feature_names is not None:
        facts["feature_names"] = list(dataset.feature_names)
    if dataset.target_names is not None:
        facts["target_names"] = list(dataset.target_names)
    return facts
