"""Models compared on the same rows: their scores, and their differences from one model.

In go the predictions of a model and of others, out come scores and differences with
their confidence intervals. From scores alone a model could seem better by chance, if
there are only 36 test rows.

Models are compared by the mean of a row-wise difference (`intervals.py`): of squared
errors, of log losses, or of mistakes (0 or 1). An overconfident model has a small log
loss until its first mistakes, so log losses are compared only if each model has made
ten.

Rows that folds leave out are not independent, as the models share training rows. The
variance of their mean is multiplied by 1 + k/(k − 1) for k folds; leaving out each of n
rows is n folds (Nadeau & Bengio 2003, Inference for the generalization error, Machine
Learning 52).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from rff_dist.data import blocks
from rff_dist.ridge.fold_models import FoldModels
from rff_dist.typing import AnyArray, FloatArray, IntArray, Summary, frozen
from rff_dist.workbench.jobs import intervals

# Log losses are compared only if each model made at least so many mistakes.
MIN_MISTAKES = 10
# ln 10⁻¹⁵: a class that a model gives no chance counts as 1 in 10¹⁵, else a single row
# would make the mean loss infinite
SMALLEST_LOG = -34.5
OURS = "this model"
LINEAR = "linear"
TREES = "boosted trees"
MEAN = "the mean"
MOST_FREQUENT = "the most frequent class"


@frozen(eq=False)
class Predictions:
    """A model's predictions for the rows of a comparison."""

    #: shape (n_rows, n_targets), float64; or classes of shape (n_rows,), int64
    values: AnyArray
    #: shape (n_rows, n_classes)
    log_probabilities: FloatArray | None = None
    #: how the model was trained, in words
    about: str | None = None
    #: what makes a conclusion unfair, in words, such as fewer training rows
    handicap: str | None = None


@frozen
class Difference:
    """The mean loss of another model minus the mean loss of this one.

    `lower`, `upper`: the ends of its interval.
    `relation`: of this model to the other: "better" if the interval lies above 0,
    "worse" if it lies below, else "same".
    """

    mean: float
    lower: float
    upper: float
    relation: str

    def describe(self) -> Summary:
        """Return the difference as JSON values, which know no infinity."""
        interval = [
            end if np.isfinite(end) else None for end in (self.lower, self.upper)
        ]
        return {"relation": self.relation, "mean": self.mean, "interval": interval}


@frozen(eq=False)
class ComparisonRows:
    """Rows to compare models on, which none of the models was trained on."""

    #: "test", "cross-validation" or "leave-one-out": how the rows were kept from models
    origin: str
    #: how many such rows there are; the rows here may be a sample of them
    n_available: int
    #: shape (n_rows,): the rows' numbers in their data
    numbers: IntArray
    #: shape (n_rows, n_features)
    X: AnyArray
    #: shape (n_rows, n_targets), float64: targets, or −1 and +1 for classes
    targets: AnyArray
    #: shape (n_rows,), above 0
    weights: FloatArray | None = None
    #: shape (n_rows,): rows of one group are not independent
    groups: AnyArray | None = None
    #: a model without each fold, for rows by cross-validation
    fold_models: FoldModels | None = None
    #: shape (n_rows,): the number of the fold model that was not trained on the row
    split: IntArray | None = None
    #: shape (n_rows,): the rows' ids, or their places in the files they came from
    names: AnyArray | None = None
    #: what the names are
    named: str = "id"
    #: rows of the table that are not among these, because values were missing
    n_dropped: int = 0

    @property
    def block(self) -> blocks.Rows:
        return blocks.Rows.in_memory(self.X, self.targets, self.weights)

    @property
    def n_folds(self) -> int:
        """The number of folds by which the rows were left out; 0 for test rows."""
        if self.origin == "test":
            return 0
        if self.fold_models is None:
            return len(self.X)  # each row is a fold
        return len(self.fold_models.held_out_folds)


@dataclass(frozen=True, eq=False)
class ModelComparison:
    """Models compared on rows: this model, others, and one without inputs."""

    rows: ComparisonRows
    #: what the models predict: targets, or int64 classes of shape (n_rows,)
    observed: AnyArray
    #: by the model's name, with `OURS` and a model without inputs
    predictions: Mapping[str, Predictions]
    #: labels in words; None for a regression
    classes: list[str] | None = None
    #: sentences on what was not compared
    notes: tuple[str, ...] = ()
    #: the name of the only target of a regression; None if unknown, or if it has more
    target: str | None = None

    def with_model(self, name: str, predictions: Predictions) -> Self:
        """Return the comparison with another model, listed before the naive one."""
        models = {**self.predictions, name: predictions}
        # a key that is set again goes to the end
        models[self.naive] = models.pop(self.naive)
        return replace(self, predictions=models)

    @property
    def n_rows(self) -> int:
        return len(self.observed)

    @property
    def ours(self) -> Predictions:
        return self.predictions[OURS]

    @property
    def naive(self) -> str:
        """The name of the model without inputs; see `naive_predictions`."""
        return MEAN if self.classes is None else MOST_FREQUENT

    @cached_property
    def measure(self) -> str:
        """The score to compare by: "rmse", "r2", "log_loss" or "accuracy"."""
        if self.classes is None:
            return "rmse" if self.observed.shape[1] == 1 else "r2"
        models = [
            model for name, model in self.predictions.items() if name != MOST_FREQUENT
        ]
        have_losses = all(model.log_probabilities is not None for model in models)
        have_mistakes = all(
            (model.values != self.observed).sum() >= MIN_MISTAKES for model in models
        )
        return "log_loss" if have_losses and have_mistakes else "accuracy"

    @cached_property
    def scores(self) -> dict[str, Summary]:
        """By model, `rmse`, `r2` and `median_error` (of absolute errors) per target, or
        `accuracy` and `log_loss`. None if unknown.
        """
        return {
            name: self._scores_of(model) for name, model in self.predictions.items()
        }

    def standard_error(self, model: Predictions, measure: str) -> float | None:
        """Return the standard error of a model's score by a measure; None if unknown.

        It is unknown for R² and the median error, which are no means over rows, and for
        rows that folds leave out, as their models share training rows.
        """
        losses = self.losses_of(model, measure)
        is_mean = measure != "median_error" and "r2" not in (measure, self.measure)
        if losses is None or self.rows.origin != "test" or not is_mean:
            return None
        mean, error = self.mean_with_error(losses)
        if measure == "rmse":
            return error / (2 * mean**0.5) if mean else 0.0  # d√m = dm / (2√m)
        return error

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """The mean loss of each other model minus ours.

        Models with a handicap, or without the measure, are left out.
        """
        ours = self.losses_of(self.ours)
        differences = {}
        assert ours is not None  # the measure is one that this model has
        for name, model in self.predictions.items():
            losses = self.losses_of(model)
            if name == OURS or losses is None or model.handicap is not None:
                continue
            differences[name] = self._difference(
                losses - ours, is_share=self.measure == "accuracy"
            )
        return differences

    @cached_property
    def closer(self) -> dict[str, Difference]:
        """By other model: the share of rows that ours predicts more closely, minus the
        share that the other does. Few rows with large errors do not decide it.

        Only of one target, and of the models in `differences`.
        """
        if self.measure != "rmse":
            return {}
        ours = np.abs(self.observed - self.ours.values)[:, 0]
        shares = {}
        for name in self.differences:
            errors = np.abs(self.observed - self.predictions[name].values)[:, 0]
            shares[name] = self._difference(np.sign(errors - ours), is_share=True)
        return shares

    def _difference(self, saved: FloatArray, *, is_share: bool) -> Difference:
        """Return the mean of a row-wise difference with its interval.

        `is_share`: its values are −1, 0 and 1.
        """
        mean, lower, upper = intervals.paired_interval(saved, *self._dependence)
        if is_share:
            exact = intervals.exact_interval(saved)
            # The wider of the two: if few rows differ, Student's interval is too
            # narrow.
            lower = min(lower, exact[0])
            upper = max(upper, exact[1])
        relation = "same"  # the interval includes 0
        if lower > 0:
            relation = "better"
        elif upper < 0:
            relation = "worse"
        return Difference(mean, lower, upper, relation)

    def intervals(self) -> dict[str, tuple[float, float, float]]:
        """Return the `measure` over all targets with its interval, by model.

        Models without the measure are left out.
        """
        of_models = {}
        interval_of: Any = intervals.paired_interval
        if self.measure == "accuracy":
            interval_of = intervals.share_with_interval
        for name, model in self.predictions.items():
            losses = self.losses_of(model)
            if losses is None:
                continue
            values = np.array(interval_of(losses, *self._dependence))
            if self.measure == "rmse":
                # The lower end of a mean square's interval may lie below 0.
                values = np.sqrt(np.maximum(values, 0.0))
            elif self.measure != "log_loss":
                # One minus a loss turns the interval around, so its ends change places.
                values = np.minimum(1.0 - values[[0, 2, 1]], 1.0)
            of_models[name] = (float(values[0]), float(values[1]), float(values[2]))
        return of_models

    def losses_of(
        self, model: Predictions, measure: str | None = None
    ) -> FloatArray | None:
        """Return each row's loss by a measure, the `measure` by default; None if it is
        unknown. A regression has squared errors only, whatever the measure.
        """
        if self.classes is None:
            return self._squared_errors(model)
        if (measure or self.measure) == "log_loss":
            return self._log_losses(model)
        return np.asarray(model.values != self.observed, np.float64)

    def mean_with_error(self, values: FloatArray) -> tuple[float, float]:
        """Return the mean over rows, and its standard error."""
        return intervals.mean_with_error(values, *self._dependence)[:2]

    def mean(self, values: FloatArray) -> float:
        """Return the mean over rows, by their weights."""
        return float(np.average(values, weights=self.rows.weights))

    def _scores_of(self, model: Predictions) -> Summary:
        if self.classes is None:
            errors = np.average(
                np.square(self.observed - model.values),
                axis=0,
                weights=self.rows.weights,
            )
            r2 = [
                None if variance == 0 else 1 - error / variance
                for error, variance in zip(
                    errors.tolist(), self._target_variance.tolist(), strict=True
                )
            ]
            sizes = np.abs(self.observed - model.values)
            weights = self.rows.weights
            median = np.median(sizes, axis=0)
            if weights is not None:
                median = np.quantile(
                    sizes, 0.5, axis=0, weights=weights, method="inverted_cdf"
                )
            return {
                "rmse": np.sqrt(errors).tolist(),
                "r2": r2,
                "median_error": median.tolist(),
            }
        losses = self._log_losses(model)
        return {
            "accuracy": self.mean(np.asarray(model.values == self.observed, float)),
            "log_loss": None if losses is None else self.mean(losses),
        }

    def _squared_errors(self, model: Predictions) -> FloatArray:
        """Return each row's squared error; for several targets, the mean of their
        errors divided by their variances.

        Otherwise the target with the largest numbers would decide alone.
        """
        errors = np.square(self.observed - model.values)
        if errors.shape[1] > 1:
            variance = self._target_variance
            errors = errors / np.where(variance > 0, variance, 1.0)
        return np.asarray(errors.mean(axis=1))

    def _log_losses(self, model: Predictions) -> FloatArray | None:
        if model.log_probabilities is None:
            return None
        logs = model.log_probabilities[np.arange(self.n_rows), self.observed]
        return np.asarray(-np.maximum(logs, SMALLEST_LOG))

    @cached_property
    def _target_variance(self) -> FloatArray:
        if self.rows.fold_models is not None:
            return self.rows.fold_models.target_variance
        weights = self.rows.weights
        mean = np.average(self.observed, axis=0, weights=weights)
        squares = np.square(self.observed - mean)
        return np.asarray(np.average(squares, axis=0, weights=weights))

    @property
    def _dependence(self) -> tuple[FloatArray | None, AnyArray | None, float]:
        """The rows' weights and groups, and the factor on variances for folds: the last
        three arguments of the functions in `intervals`.
        """
        inflation = 1.0  # of test rows
        if self.rows.origin != "test":
            n_folds = self.rows.n_folds
            inflation += n_folds / max(1, n_folds - 1)
        return self.rows.weights, self.rows.groups, inflation


def naive_predictions(means: FloatArray, n_classes: int) -> dict[str, Predictions]:
    """Return the predictions of a model without inputs, by its name.

    `means`: of the targets of its training rows, which may differ from row to row;
    shape (n_rows, n_targets). For a regression (`n_classes` is 0) it predicts them; for
    classes it predicts the most frequent one, with the shares of all classes as
    probabilities.
    """
    if not n_classes:
        return {MEAN: Predictions(means)}
    shares = (means + 1.0) / 2  # of rows whose target is +1, not −1
    if n_classes == 2:
        shares = np.hstack([1 - shares, shares])
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(shares, 0.0))  # rounding may give less than 0
    return {MOST_FREQUENT: Predictions(shares.argmax(axis=1), logs)}
