"""How a model compares with others on the same rows, and what is said of that.

In go the predictions of a model and of others, out come scores, differences with their
intervals, and a sentence that the command line, pages and flows show. Scores alone
would make a model of 36 test rows seem better by chance.

Models are compared by the mean of their row-wise differences (`intervals.py`): of
squared errors, of log losses, or of right and wrong. A model may seem better by log
loss because it is surer of everything, until its first mistakes come: log losses count
once each model has made ten.

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
from rff_dist.fields import values_of
from rff_dist.ridge import held_out
from rff_dist.ridge.describe import TITLES
from rff_dist.text import number, score, share
from rff_dist.typing import AnyArray, FloatArray, IntArray, Summary, frozen
from rff_dist.workbench.jobs import intervals

NOTHING_COMPARED = (
    "How well it predicts new rows was not measured: there are no test rows, and none"
    " could be left out."
)
MISTAKES = 10  # of each model, for log losses to be compared
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
    """The mean loss of another model less that of this one, with its interval.

    `relation`: "better" or "worse" if the interval says so of this model, else "same".
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


@dataclass(frozen=True, eq=False)
class ComparisonRows:
    """Rows to compare models on, which none of the models was trained on.

    `fold_models` and `split` are None unless `by` is "cross-validation".
    """

    #: "test", "cross-validation" or "leave-one-out": how the rows were kept from models
    by: str
    #: how many rows there are, of which these may be a sample
    n_available: int
    #: shape (n_rows,): the rows' numbers in their data
    numbers: IntArray
    #: shape (n_rows, n_features)
    X: AnyArray
    #: shape (n_rows, n_targets), float64: targets, or −1 and +1 for classes
    y: AnyArray
    #: shape (n_rows,), above 0
    weights: FloatArray | None = None
    #: shape (n_rows,): rows of one group are not independent
    groups: AnyArray | None = None
    #: a model without each fold
    fold_models: held_out.FoldModels | None = None
    #: shape (n_rows,): the number of the fold model that was not trained on the row
    split: IntArray | None = None
    #: shape (n_rows,): the rows' ids
    ids: AnyArray | None = None

    @property
    def block(self) -> blocks.Rows:
        return blocks.Rows(
            blocks.Block(0, 0, len(self.X)), self.X, self.y, self.weights
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelComparison(ComparisonRows):
    """Models compared on rows.

    `y`: of classes, an int64 array of shape (n_rows,).
    `predictions`: by the model's name, with `OURS` and a model without inputs.
    `classes`: labels in words; None for a regression.
    `n_folds`: folds that the rows were left out by; 0 for test rows.
    `notes`: sentences on what was not compared.
    """

    predictions: Mapping[str, Predictions]
    classes: list[str] | None = None
    n_folds: int = 0
    notes: tuple[str, ...] = ()

    def with_model(self, name: str, predictions: Predictions) -> Self:
        """Return the comparison with another model, listed before the naive one."""
        models = {**self.predictions, name: predictions}
        # a key that is set again goes to the end
        models[self._naive] = models.pop(self._naive)
        return replace(self, predictions=models)

    @property
    def n_rows(self) -> int:
        return len(self.y)

    @property
    def ours(self) -> Predictions:
        return self.predictions[OURS]

    @property
    def _naive(self) -> str:
        """The name of the model without inputs; see `naive_predictions`."""
        return MEAN if self.classes is None else MOST_FREQUENT

    @property
    def rows_words(self) -> str:
        """The rows in words, such as "36 test rows"."""
        n = f"{self.n_rows:,}"
        if self.n_rows < self.n_available:
            n += f" of {self.n_available:,}"
        if self.by == "cross-validation":
            return f"{n} rows by cross-validation"
        if self.by == "leave-one-out":
            return f"{n} rows left out in turn"
        if self.groups is None:
            return f"{n} test rows"
        return f"{n} test rows in {len(np.unique(self.groups)):,} groups"

    @cached_property
    def measure(self) -> str:
        """The score to compare by: "rmse", "r2", "log_loss" or "accuracy"."""
        if self.classes is None:
            return "rmse" if self.y.shape[1] == 1 else "r2"
        models = [
            model for name, model in self.predictions.items() if name != MOST_FREQUENT
        ]
        have_losses = all(model.log_probabilities is not None for model in models)
        have_mistakes = all(
            (model.values != self.y).sum() >= MISTAKES for model in models
        )
        return "log_loss" if have_losses and have_mistakes else "accuracy"

    @cached_property
    def scores(self) -> dict[str, Summary]:
        """By model, `rmse` and `r2` of each target, or `accuracy` and `log_loss`.

        None if unknown.
        """
        return {
            name: self._scores_of(model) for name, model in self.predictions.items()
        }

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """The mean loss of each other model less ours.

        Models with a handicap are left out.
        """
        ours = self._losses(self.ours, self.measure)
        differences = {}
        assert ours is not None  # the measure is one that this model has
        for name, model in self.predictions.items():
            losses = self._losses(model, self.measure)
            if name == OURS or losses is None or model.handicap is not None:
                continue
            saved = losses - ours
            mean, lower, upper = intervals.paired_interval(
                saved, self.weights, self.groups, self._inflation
            )
            if self.measure == "accuracy":
                exact = intervals.exact_interval(saved)
                # The wider of the two: few rows differ, for which Student's interval is
                # too narrow.
                lower = min(lower, exact[0])
                upper = max(upper, exact[1])
            relation = "same"  # the interval includes 0
            if lower > 0:
                relation = "better"
            elif upper < 0:
                relation = "worse"
            differences[name] = Difference(mean, lower, upper, relation)
        return differences

    def intervals(self) -> dict[str, tuple[float, float, float]]:
        """Return the `measure` over all targets with its interval, by model.

        Models without the measure are left out.
        """
        of_models = {}
        interval_of: Any = intervals.paired_interval
        if self.measure == "accuracy":
            interval_of = intervals.share_with_interval
        for name, model in self.predictions.items():
            losses = self._losses(model, self.measure)
            if losses is None:
                continue
            values = np.array(
                interval_of(losses, self.weights, self.groups, self._inflation)
            )
            if self.measure == "rmse":
                # The lower end of a mean square's interval may lie below 0.
                values = np.sqrt(np.maximum(values, 0.0))
            elif self.measure != "log_loss":
                # One minus a loss turns the interval around, so its ends change places.
                values = np.minimum(1.0 - values[[0, 2, 1]], 1.0)
            of_models[name] = (float(values[0]), float(values[1]), float(values[2]))
        return of_models

    @property
    def verdict(self) -> str:
        """The result in a few sentences; the first says how the model compares."""
        relations: dict[str, list[str]] = {"better": [], "worse": [], "same": []}
        naive = self._naive
        others = [name for name in self.differences if name != naive]
        for name in others or [naive]:
            relations[self.differences[name].relation].append(self._named(name))
        words = {
            "better": "better than",
            "worse": "worse than",
            "same": "no clear difference from",
        }
        clauses = [
            f"{words[relation]} {_and(names)}"
            for relation, names in relations.items()
            if names
        ]
        first = f"On {self.rows_words}, {self._own_figure}: {', and '.join(clauses)}."
        if others and (relation := self.differences[naive].relation) != "better":
            than = "worse than" if relation == "worse" else "not clearly better than"
            first = (
                f"No signal was found: the model is {than} {self._named(naive)}."
                f" {first}"
            )
        handicaps = [
            f"No conclusion on {self._named(name)}: {model.handicap}."
            for name, model in self.predictions.items()
            if model.handicap is not None
        ]
        return " ".join([first, *handicaps, *self.notes])

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return header and rows of a table of all models, with the intervals."""
        saved = {"log_loss": "log loss saved", "accuracy": "more rows right"}
        header = ["model", *(TITLES[name] for name in self.scores[OURS])]
        what = saved.get(self.measure, "squared error saved")
        header.append(f"{what} ({intervals.LEVEL:.0%} interval)")
        scores = self.scores.items()
        return header, [
            [model, *map(_cell, values.values()), self._saved(model)]
            for model, values in scores
        ]

    def about(self) -> list[str]:
        """Return how other models were trained, a sentence for each."""
        models = self.predictions.items()
        return [
            f"{name.capitalize()}: {model.about}."
            for name, model in models
            if model.about is not None
        ]

    def describe(self) -> Summary:
        """Return the comparison as JSON values."""
        return {
            **values_of(self, "verdict", "by", "n_rows", "n_available", "measure"),
            "about": self.about(),
            "scores": self.scores,
            "differences": {
                name: difference.describe()
                for name, difference in self.differences.items()
            },
        }

    def _scores_of(self, model: Predictions) -> Summary:
        if self.classes is not None:
            surprise = self._losses(model, "log_loss")
            right = self._mean(np.asarray(model.values == self.y, np.float64))
            return {
                "accuracy": right,
                "log_loss": None if surprise is None else self._mean(surprise),
            }
        errors = np.average(
            np.square(self.y - model.values), axis=0, weights=self.weights
        )
        pairs = zip(errors.tolist(), self._target_variance.tolist(), strict=True)
        r2 = [
            None if variance == 0 else 1 - error / variance for error, variance in pairs
        ]
        return {"rmse": np.sqrt(errors).tolist(), "r2": r2}

    @cached_property
    def _target_variance(self) -> FloatArray:
        mean = np.average(self.y, axis=0, weights=self.weights)
        return np.asarray(
            np.average(np.square(self.y - mean), axis=0, weights=self.weights)
        )

    @property
    def _inflation(self) -> float:
        """The factor on variances for shared training rows; see the module."""
        return (
            1.0 if self.by == "test" else 1.0 + self.n_folds / max(1, self.n_folds - 1)
        )

    def _mean(self, values: FloatArray) -> float:
        return float(np.average(values, weights=self.weights))

    def _losses(self, model: Predictions, measure: str) -> FloatArray | None:
        """Return each row's loss; None if unknown.

        Errors of several targets are over their variances.
        """
        if self.classes is None:
            variance = self._target_variance
            # By each target's variance: otherwise the target with the largest numbers
            # would decide alone.
            unit = np.where(variance > 0, variance, 1.0) if self.y.shape[1] > 1 else 1.0
            return np.asarray((np.square(self.y - model.values) / unit).mean(axis=1))
        if measure == "accuracy":
            return np.asarray(model.values != self.y, np.float64)
        if model.log_probabilities is None:
            return None
        logs = model.log_probabilities[np.arange(self.n_rows), self.y]
        return np.asarray(-np.maximum(logs, SMALLEST_LOG))

    def _named(self, name: str) -> str:
        names = {LINEAR: "a linear model", MEAN: "the mean of the target"}
        return f"{names.get(name, name)} ({self._figure(name)})"

    def _figure(self, name: str) -> str:
        value = self.scores[name][self.measure]
        if self.measure == "rmse":
            return number(value[0])
        if self.measure == "r2":
            known = [r2 for r2 in value if r2 is not None]
            return number(sum(known) / len(known) if known else None)
        if self.measure == "log_loss":
            return number(value)
        # a count of few rows says more than a share; with weights there is none
        is_share = self.weights is not None or self.n_rows > 1_000
        return share(value) if is_share else f"{value * self.n_rows:.0f}"

    @property
    def _own_figure(self) -> str:
        figure = self._figure(OURS)
        if self.measure == "accuracy":
            return f"{figure} are classified correctly"
        if self.measure == "log_loss":
            right = share(self.scores[OURS]["accuracy"])
            return f"{right} are classified correctly and the log loss is {figure}"
        if self.measure == "r2":
            return f"the mean R² is {figure}"
        r2 = self.scores[OURS]["r2"][0]
        return f"the typical error (RMSE) is {figure}" + (
            "" if r2 is None else f" (R² {score(r2)})"
        )

    def _saved(self, name: str) -> str:
        difference = self.differences.get(name)
        if difference is None:
            return ""
        values = [difference.mean, difference.lower, difference.upper]
        if self.measure == "log_loss":
            return "{:.3f} ({:.3f} to {:.3f})".format(*values)
        unit = 1.0
        if self.classes is None:
            losses = self._losses(self.predictions[name], self.measure)
            assert losses is not None
            unit = self._mean(losses) or 1.0
        # no model saves more than all, however wide the interval
        ratios = (
            min(value / unit, 1.0) if np.isfinite(value) else value for value in values
        )
        mean, lower, upper = (
            f"{ratio:,.1%}" if np.isfinite(ratio) else "–" for ratio in ratios
        )
        return f"{mean} ({lower} to {upper})"


def verdict_of(comparison: ModelComparison | None) -> str:
    """Return the verdict on a model, the first sentence of every report."""
    return NOTHING_COMPARED if comparison is None else comparison.verdict


def naive_predictions(
    y: AnyArray, n_classes: int, weights: FloatArray | None
) -> dict[str, Predictions]:
    """Return the predictions of a model without inputs, by its name.

    For a regression (`n_classes` is 0) it is the mean of the rows; for classes it is
    the most frequent one, with the shares of all classes as probabilities.
    """
    if not n_classes:
        return {
            MEAN: Predictions(
                np.broadcast_to(np.average(y, axis=0, weights=weights), y.shape)
            )
        }
    totals = np.bincount(y, weights, n_classes)
    with np.errstate(divide="ignore"):
        logs = np.broadcast_to(np.log(totals / totals.sum()), (len(y), n_classes))
    return {MOST_FREQUENT: Predictions(np.full(len(y), int(totals.argmax())), logs)}


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _cell(value: Any) -> str:
    return (
        ", ".join(map(number, value[:8])) if isinstance(value, list) else number(value)
    )
