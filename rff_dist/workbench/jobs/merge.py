"""The jobs for models that are trained apart: train one like another on other rows, and merge them."""

from rff_dist.living.merge import merge, refit_on, rows_of
from rff_dist.ridge import models
from rff_dist.storage import datasets, output_places
from rff_dist.text import redact
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import places, publishing, specs, steps, watching


@watching.watched
def refit_model(job: specs.Refit, do: steps.Runner) -> Summary:
    """Train on other rows so that the sums can be added to those of a given model, and publish the result.

    Raises StatisticsError if that model has no sums; DataError if the rows do not suit it.
    """
    output = publishing.check_place(job.destination, [job.like, job.source.data])
    model, dataset = models.read_model(job.like), datasets.open_dataset(job.source.data, **job.source.names())
    with output_places.hold(output, holder=do.holder):
        with do.open_engine(dataset.n_samples) as engine:
            refitted = do("refit", refit_on, model, dataset, engine=engine)
        reason = f"refitted like {redact(job.like)}"
        return do.once("publish", _publish, refitted, job.destination, dataset.url, reason)


@watching.watched
def merge_models(job: specs.Merge) -> Summary:
    """Add up the sums of models, solve, and publish the result.

    Raises StatisticsError, with the reason, if the sums do not belong together.
    """
    output = publishing.check_place(job.destination, job.models)
    with output_places.hold(output, holder="a merge"):
        merged = merge([models.read_model(url) for url in job.models], [redact(url) for url in job.models])
        return _publish(merged, job.destination, None, f"merged of {len(job.models)} models")


def _publish(model: models.RidgeModel, place: places.Destination, data: str | None, reason: str) -> Summary:
    record = publishing.describe_model(place.model, model, publishing.store(model, place, data, reason))
    return {**record, "alpha": model.plain_alpha, "rows": [dict(rows) for rows in rows_of(model)]}
