"""Publish models: as files, or as the next version of a registered model.

In go a model and its destination, out comes the version of a registered model, else
None. `write_any` alone would replace a model while it is in use, and record neither
what the new one was made from nor why.
"""

from collections.abc import Sequence

from rff_dist.features import kinds
from rff_dist.kernels import stationary
from rff_dist.models import versions
from rff_dist.models.kinds import AnyModel, chosen_parameters, write_any
from rff_dist.ridge import describe, models
from rff_dist.storage import locations, output_places
from rff_dist.text import redact
from rff_dist.typing import Facts, PathLike, Summary
from rff_dist.workbench.integrations import exporters
from rff_dist.workbench.jobs import places, specs

#: Where a model is published: options of a job.
type Place = places.Destination | specs.Clustering

# Entries that a lineage copies from a model's card; None if the card lacks them.
_OF_DATA = (
    "data_fingerprint",
    "data_version",
    "data_table",
    "prefix_fingerprint",
    "n_samples",
)


def check_place(place: Place, inputs: Sequence[str]) -> locations.Location:
    """Check that a model can be published at `place`; return its location.

    With `register` it becomes the next version of a registered model. `inputs`: URLs of
    what the job reads, which it must not replace. Raises OutputExistsError if something
    is there and `overwrite` is False, or with `register` if that is no registered
    model; StorageError if a model cannot be written there.
    """
    assert place.model is not None
    output = locations.parse_location(place.model)
    input_locations = [*map(locations.parse_location, inputs)]
    if place.register:
        versions.RegisteredModel(place.model).check(inputs=input_locations)
    else:
        output_places.check_output(
            output, overwrite=place.overwrite, inputs=input_locations, is_model=True
        )
    return output


def store(
    model: AnyModel,
    place: Place,
    data: str | None,
    reason: str,
    n_samples: int | None = None,
) -> versions.Version | None:
    """Write a model, and return None; or with `register` publish it as the next version
    of a registered model, and return this version.

    `data`, `reason`: see `publish`. `n_samples`: the number of rows that it was made
    from, for the lineage; by default as on the model's card.
    """
    assert place.model is not None
    if place.register:
        lineage = None if n_samples is None else {"n_samples": n_samples}
        return publish(model, place.model, data=data, reason=reason, lineage=lineage)
    write_any(model, place.model, overwrite=place.overwrite)
    return None


def publish(
    model: AnyModel,
    url: PathLike,
    *,
    data: str | None,
    reason: str = "",
    promote: bool = True,
    lineage: Facts | None = None,
) -> versions.Version:
    """Store a model as the next version of the registered model at `url`.

    `url`: the registered model's folder, such as `models/NAME`; it need not exist yet.
    `data`: URL of the rows that the model was trained on; None if they were in memory.
    `reason`: why it is published.
    `promote`: whether it becomes the current version.
    `lineage`: more JSON values for its lineage. `parent` is the version that it was
      made from, by default the current one.

    Raises StorageError if it cannot be written; the current version then stays.
    """
    place = None if data is None else locations.parse_location(data).url
    lineage = {**lineage_of(model, data=place), **(lineage or {})}
    version = versions.RegisteredModel(url).publish(
        lambda place: write_any(model, place),
        lineage=lineage,
        reason=reason,
        promote=promote,
    )
    if promote:
        exporters.mirror_in_mlflow(url)
    return version


def describe_model(
    url: str, model: models.RidgeModel, version: versions.Version | None
) -> Summary:
    """Return where a model is, its version, digests and rows, for a job's record."""
    return {
        "model": redact(url),
        "version": None if version is None else version.number,
        "digest": model.digest(),
        "statistics_digest": model.summed.digest(),
        "n_samples": model.summed.n_samples,
    }


def lineage_of(model: AnyModel, *, data: str | None) -> Summary:
    """Return what a model was made from: its lineage.

    `data`: URL of the rows. Returns JSON values: `data`, `data_fingerprint`,
    `data_table`
      (the lakehouse table that they follow, and its version), `n_samples` and, in
      `spec`, the features, the kernel with its length scale, D, design, map, seed,
      precision, and alpha or the number of clusters. What is not known is None.
      `errors`: RMSE or accuracy on test rows, else by cross-validation.
      `judged_on`: the fingerprint of the rows of these errors.
    """
    feature_map = model.feature_map
    kernel = kinds.kernel_of(feature_map)
    map_spec = feature_map.spec
    spec = {
        "features": feature_map.kind,
        "kernel": None if kernel is None else kernel.to_dict(),
        "length_scale": stationary.own_length_scale(kernel),
        "n_components": feature_map.n_components,
        "design": None if map_spec is None else map_spec.design.name,
        "map": None if map_spec is None else map_spec.map_form,
        "seed": None if map_spec is None else map_spec.seed,
        "precision": None if map_spec is None else map_spec.precision,
        **chosen_parameters(model),
    }
    errors = model.card.get("metrics") or describe.estimate_of(model.card) or {}
    judged_by = ("rmse", "accuracy")
    return {
        "data": data,
        "errors": {name: errors[name] for name in judged_by if name in errors},
        "judged_on": errors.get("fingerprint", model.card.get("data_fingerprint")),
        **{name: model.card.get(name) for name in _OF_DATA},
        "spec": spec,
    }
