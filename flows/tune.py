"""Compare given kernels and length scales on all rows as a Prefect flow, and publish the best model.

inspect → fit → evaluate → publish, as in `flows.train`. Candidates share one reading of the data, or as few
as memory allows, and each is compared with all its components: `flows.train` tries its own on a sample first.

Run it in a process of its own::

    from flows.tune import TuneParameters, tune

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        tune(TuneParameters(data="data.zarr", model="model", n_components=[256, 512, 1024]))

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from flows.common import JobParameters, Positive, Positives, Summary, Widths, job_flow, train_model
from rff_dist import search
from rff_dist.kernels import KERNELS
from rff_dist.training import Fit

__all__ = ["TuneParameters", "tune"]


class TuneParameters(JobParameters):
    """What to compare, on what and where; every value is checked before a run starts."""

    kernels: Annotated[list[str], Field(min_length=1)] = Field(
        default=list(search.DEFAULT_KERNELS),
        description=f"Kernels to compare: each one of {', '.join(KERNELS)}, with parameters as in "
        "'matern:nu=2.5', or a sum such as 'gaussian:length_scale=2 + 0.1 * linear'.",
    )
    length_scales: Annotated[list[Positive | Positives | str], Field(min_length=1)] | None = Field(
        default=None,
        description="What each kernel of one width is tried with: numbers, lists with one per input column, "
        "multiples of the median distance between rows such as '0.5x', or 'evidence'; left out, 0.25x, 0.5x, "
        "1x, 2x and 4x.",
    )
    n_components: Literal["auto"] | Widths = Field(
        default=search.DEFAULT_COMPONENTS,
        description="D, the number of features; of several, each candidate takes its smallest within one "
        "standard error of its best; 'auto' is 2,048, or fewer for few rows or little memory.",
    )
    alpha: Literal["cv", "cv-1se"] | Positive | Positives = Field(
        default="cv",
        description="Ridge penalty of ‖y − Zw‖² + alpha‖w‖²: 'cv' takes the one of the least k-fold error, "
        "'cv-1se' the largest within one standard error of it; or a number, or a list to choose from.",
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        self.to_fit().check()
        return self

    def to_fit(self) -> Fit:
        """Return what is compared."""
        candidates = search.make_candidates(self.kernels, self.length_scales)
        return Fit(options=self.to_options(), candidates=tuple(candidates))


@job_flow("tune")
def tune(parameters: TuneParameters) -> Summary:
    """Compare kernels, length scales, alphas and D by k-fold cross-validation; publish the best model.

    Returns
    -------
    dict
        JSON-able: where the model is and its digest, sizes, what was chosen of which candidates, its errors
        on held-out rows as `estimate`, and the metrics on test data (None without any).

    Raises
    ------
    RFFDistError
        Of the step that failed; then nothing is published. Where publishing fails, the trained model is
        kept beside the output, and the error says where.
    """
    return train_model(parameters, parameters.to_fit(), name="tune")
