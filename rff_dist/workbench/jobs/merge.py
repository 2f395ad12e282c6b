"""Merge models that are trained apart, and train models that can be merged.

In go models with their exact sums, out comes one model with the bits of a fit on all of
their rows. The average of their coefficients would be another model. Sums can be added
only if the models have the same features, so `refit_model` trains on other rows with
the features of a given model.
"""

from rff_dist.living.merge import merge, refit_on, rows_of
from rff_dist.ridge import models
from rff_dist.storage import datasets, output_places
from rff_dist.text import redact
from rff_dist.typing import Summary
from rff_dist.workbench.jobs import places, publishing, specs, steps, watching


@watching.watched
def refit_model(job: specs.Refit, do: steps.Runner) -> Summary:
    """Train on other rows with the features of `job.like`, and publish the result.

    Returns JSON values: the model, its version, alpha and rows.
    Raises StatisticsError if that model has no sums; DataError if the rows do not suit
    it.
    """
    output = publishing.check_place(job.destination, [job.like, job.source.data])
    model = models.read_model(job.like)
    dataset = datasets.open_dataset(job.source.data, **job.source.open_arguments())
    with output_places.hold(output, holder=do.holder):
        with do.open_engine(dataset.n_samples) as engine:
            refitted = do("refit", refit_on, model, dataset, engine=engine)
        reason = f"refitted like {redact(job.like)}"
        # not tried again: a publication that seemed to fail may have succeeded
        return do.once(
            "publish", _publish, refitted, job.destination, dataset.url, reason
        )


@watching.watched
def merge_models(job: specs.Merge) -> Summary:
    """Add up the sums of models, solve, and publish the result.

    Returns the same values as `refit_model`. Raises StatisticsError, with the reason,
    if the sums do not belong together.
    """
    output = publishing.check_place(job.destination, job.models)
    with output_places.hold(output, holder="a merge"):
        merged = merge(
            [models.read_model(url) for url in job.models],
            [redact(url) for url in job.models],
        )
        reason = f"merged of {len(job.models)} models"
        return _publish(merged, job.destination, None, reason)


def _publish(
    model: models.RidgeModel,
    destination: places.Destination,
    data: str | None,
    reason: str,
) -> Summary:
    """Publish a model made from `data`, and return what the job did as JSON values."""
    version = publishing.store(model, destination, data, reason)
    return {
        **publishing.describe_model(destination.model, model, version),
        "alpha": model.plain_alpha,
        "rows": [dict(facts) for facts in rows_of(model)],
    }
