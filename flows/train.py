"""Train a model as a Prefect flow: inspect → fit → evaluate → publish.

Kernel, length scale, kind and number of features and penalty are chosen by cross-validation where they are
left out. Each task is one call into `rff_dist.training` and hands on a small JSON-able summary; the trained
model lies beside the output until it is published, and Prefect never sees it.

Run it in a process of its own::

    from flows.train import TrainParameters, train

    if __name__ == "__main__":  # the embedded Dask cluster starts processes that import this file
        train(TrainParameters(data="data.zarr", model="model"))

or serve it as a deployment, whose parameters are validated before a run starts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from flows.common import JobParameters, Positive, Positives, Summary, job_flow, lend_engine, train_model
from rff_dist.class_prediction import SQUARED
from rff_dist.kernels import KERNELS, Kernel, Matern
from rff_dist.training import Fit

__all__ = ["TrainParameters", "lend_engine", "train"]


class TrainParameters(JobParameters):
    """What to train, on what and where; every value is checked before a run starts."""

    kernel: str = Field(
        default="auto",
        description="'auto' compares Gaussian, Matérn-3/2 and linear kernels and their sums by "
        f"cross-validation; or one of {', '.join(KERNELS)}, with parameters as in 'matern:nu=2.5', or a sum "
        "such as 'gaussian:length_scale=2 + 0.1 * linear'; kernels that are products over the columns "
        "(laplacian, cauchy, sinc) need design 'iid' or 'quasi-monte-carlo'.",
    )
    nu: Positive | None = Field(
        default=None, description="Smoothness of the Matérn kernel; 1.5 where left out."
    )
    length_scale: Literal["auto", "median", "evidence"] | Positive | Positives = Field(
        default="auto",
        description="The kernel's width in units of the (standardised) inputs: one number, a list with one "
        "per input column, 'median' for the median distance between rows of a sample, 'evidence' for one "
        "per column, tuned by the marginal likelihood of a sample, or 'auto' for the best of these by "
        "cross-validation.",
    )
    features: Literal["auto", "fourier", "nystrom"] = Field(  # type: ignore[assignment]  # one name more
        default="auto",
        description="Random Fourier features, or Nyström features: kernel values at rows of the data; 'auto' "
        "takes the better ones by cross-validation.",
    )
    conformal: bool | Literal["normalized"] = Field(
        default=False,
        description="Whether one more pass counts how far off held-out rows are, for intervals; 'normalized' "
        "lets them be as wide as residuals near each row say.",
    )
    classify: bool = Field(
        default=False, description="Whether `y` holds labels, text or whole numbers, for a classifier."
    )
    loss: Literal["squared", "logistic", "squared_hinge"] | None = Field(
        default=None,
        description="Of a classifier: 'squared' is ridge on codes -1 and +1 (where left out); 'logistic', or "
        "'squared_hinge', a kernel support vector machine without probabilities, take 10 to 30 passes more.",
    )
    class_weight: Literal["balanced"] | None = Field(
        default=None, description="Of a classifier: 'balanced' lets all classes weigh alike."
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.nu is not None and self.kernel != Matern.name:
            raise ValueError(f"`nu` is {self.nu} but the {self.kernel} kernel has none; leave it out")
        if not self.classify and (self.loss is not None or self.class_weight is not None):
            raise ValueError(
                "`loss` and `class_weight` are a classifier's; give classify=True, or leave them out"
            )
        self.to_fit().check()
        return self

    def to_kernel(self) -> str | Kernel:
        """Return the kernel, as `RidgeOptions` takes it."""
        return self.kernel if self.nu is None else Matern(nu=self.nu)

    def to_fit(self) -> Fit:
        """Return what is to be trained."""
        given = self.length_scale
        options = replace(
            self.to_options(),
            kernel=self.to_kernel(),
            length_scale=tuple(given) if isinstance(given, list) else given,
            conformal=self.conformal,
        )
        return Fit(
            options=options,
            loss=(self.loss or SQUARED) if self.classify else None,
            class_weight=self.class_weight,
        )


@job_flow("train")
def train(parameters: TrainParameters) -> Summary:
    """Train a ridge regression or a classifier on random features, and publish the model.

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
    return train_model(parameters, parameters.to_fit(), name="train")
