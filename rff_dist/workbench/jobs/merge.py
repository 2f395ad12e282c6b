"""The jobs for models that are trained apart: train one like another on other rows, and merge them."""

from rff_dist.living.merge import merge, refit_on, rows_of
from rff_dist.ridge import models
from rff_dist.storage import datasets, locations, output_places
from rff_dist.text import redact
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import specs, steps


def refit_model(job: specs.Refit, do: steps.Runner) -> Summary:
    """Train on other rows so that the sums can be added to those of a given model, and publish the result.

    Raises StatisticsError if that model has no sums; DataError if the rows do not suit it.
    """
    place = job.destination
    inputs = [locations.parse_location(url) for url in (job.like, job.source.data)]
    output = steps.check_place(place.model, register=place.register, overwrite=place.overwrite, inputs=inputs)
    model, dataset = models.read_model(job.like), datasets.open_dataset(job.source.data, **job.source.names())
    with output_places.hold(output, holder=do.holder):
        with do.open_engine(dataset.n_samples) as engine:
            found = do("refit", refit_on, model, dataset, engine=engine)
        reason = f"refitted like {redact(job.like)}"
        return do.once("publish", _publish, found, job, data=dataset.url, reason=reason)


def merge_models(job: specs.Merge) -> Summary:
    """Add up the sums of models, solve, and publish the result.

    Raises StatisticsError, with the reason, if the sums do not belong together.
    """
    place = job.destination
    inputs = [locations.parse_location(url) for url in job.models]
    output = steps.check_place(place.model, register=place.register, overwrite=place.overwrite, inputs=inputs)
    with output_places.hold(output, holder="a merge"):
        found = merge([models.read_model(url) for url in job.models], [redact(url) for url in job.models])
        return _publish(found, job, data=None, reason=f"merged of {len(job.models)} models")


def _publish(
    model: models.RidgeModel, job: specs.Merge | specs.Refit, *, data: str | None, reason: str
) -> Summary:
    place = job.destination
    version = steps.store(
        model, place.model, register=place.register, overwrite=place.overwrite, data=data, reason=reason
    )
    assert model.statistics is not None
    return {
        "model": redact(place.model),
        "version": None if version is None else version.number,
        "digest": model.digest(),
        "statistics_digest": model.statistics.digest(),
        "n_samples": model.statistics.n_samples,
        "alpha": model.plain_alpha,
        "rows": [dict(one) for one in rows_of(model)],
    }
