"""How a model compares with others on the same rows: paired intervals, and the sentence that all faces show.

Models are compared by the mean of their row-wise differences: of squared errors, of log losses, or of right
and wrong. With n rows, or n groups of rows, the interval is Student's with n − 1 degrees of freedom. For
right and wrong it also holds the exact interval of McNemar's test, since few rows differ. A model may seem
better by log loss because it is surer of everything, until its first mistakes come: log losses count once
each model has made ten.

Rows that folds leave out are not independent, as the models share training rows. The variance of their mean
is multiplied by 1 + k/(k − 1) for k folds; leaving out each of n rows is n folds.

McNemar (1947), Psychometrika 12; Nadeau & Bengio (2003), Inference for the generalization error, Machine
Learning 52; Cameron & Miller (2015), A practitioner's guide to cluster-robust inference, Journal of Human
Resources 50.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import scipy

from rff_dist.data import blocks
from rff_dist.fields import values_of
from rff_dist.ridge import held_out
from rff_dist.ridge.describe import TITLES
from rff_dist.text import number, score, share
from rff_dist.typing import AnyArray, FloatArray, IntArray, Summary, frozen

NOTHING_COMPARED = (
    "How well it predicts new rows was not measured: there are no test rows, and none could be left out."
)
LEVEL = 0.95  # of intervals
MISTAKES = 10
OURS, LINEAR, TREES = "this model", "linear", "boosted trees"
MEAN, MOST_FREQUENT = "the mean", "the most frequent class"


@frozen(eq=False)
class Predictions:
    """A model's predictions for the rows of a comparison.

    `values`: float64 array of shape (n_rows, n_targets), or int64 array of shape (n_rows,) of classes.
    `log_probabilities`: float64 array of shape (n_rows, n_classes); None without probabilities.
    `about`: how the model was trained, in words.
    `called`: what the verdict calls it; None for the usual name.
    `handicap`: what makes a conclusion unfair, in words, such as fewer training rows; None if nothing does.
    """

    values: AnyArray
    log_probabilities: FloatArray | None = None
    about: str | None = None
    called: str | None = None
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
        interval = [end if np.isfinite(end) else None for end in (self.lower, self.upper)]
        return {"relation": self.relation, "mean": self.mean, "interval": interval}


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Rows to compare models on, which none of the models was trained on.

    `by`: {"test", "cross-validation", "leave-one-out"}. How these rows were kept from the models.
    `n_available`: rows that there are; these may be a sample of them.
    `numbers`: int64 array of shape (n_rows,). The rows' numbers in their data.
    `ids`: array of shape (n_rows,). The rows' ids; None without any.
    `X`: array of shape (n_rows, n_features).
    `y`: float64 array of shape (n_rows, n_targets). Targets; −1 and +1 for classes.
    `weights`: float64 array of shape (n_rows,), or None. Above 0.
    `groups`: array of shape (n_rows,), or None. Rows of one group are not independent.
    `folds`: the folds that leave them out; None for test rows, or if each is left out by itself.
    `split`: int64 array of shape (n_rows,). Which split leaves each row out.
    """

    by: str
    n_available: int
    numbers: IntArray
    X: AnyArray
    y: AnyArray
    weights: FloatArray | None = None
    groups: AnyArray | None = None
    folds: held_out.FoldModels | None = None
    split: IntArray | None = None
    ids: AnyArray | None = None

    @property
    def block(self) -> blocks.Rows:
        return blocks.Rows(blocks.Block(0, 0, len(self.X)), self.X, self.y, self.weights)


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison(JudgedRows):
    """Models compared on rows, whose `y` may also be an int64 array of shape (n_rows,) of classes.

    `predictions`: by the model's name; `OURS` is among them.
    `classes`: labels in words; None for a regression.
    `n_folds`: folds that the rows were left out by; 0 for test rows.
    `notes`: sentences on what was not compared.
    """

    predictions: Mapping[str, Predictions]
    classes: list[str] | None = None
    n_folds: int = 0
    notes: tuple[str, ...] = ()

    def with_model(self, name: str, predictions: Predictions) -> Self:
        """Return the comparison with another model, before the last one, which knows no columns."""
        *first, naive = self.predictions
        models = {model: self.predictions.get(model, predictions) for model in (*first, name, naive)}
        return replace(self, predictions=models)

    @property
    def n_rows(self) -> int:
        return len(self.y)

    @property
    def ours(self) -> Predictions:
        return self.predictions[OURS]

    @property
    def rows_words(self) -> str:
        """The rows in words, such as "36 test rows"."""
        n = f"{self.n_rows:,}" + (f" of {self.n_available:,}" if self.n_rows < self.n_available else "")
        if self.by == "test":
            groups = "" if self.groups is None else f" in {len(np.unique(self.groups)):,} groups"
            return f"{n} test rows{groups}"
        return f"{n} rows {'by cross-validation' if self.by == 'cross-validation' else 'left out in turn'}"

    @cached_property
    def measure(self) -> str:
        """What models are compared by, a key of `scores`: "rmse", "r2", "log_loss" or "accuracy"."""
        if self.classes is None:
            return "rmse" if self.y.shape[1] == 1 else "r2"
        models = [model for name, model in self.predictions.items() if name != MOST_FREQUENT]
        sure = all(model.log_probabilities is not None for model in models)
        mistaken = sure and all((model.values != self.y).sum() >= MISTAKES for model in models)
        return "log_loss" if mistaken else "accuracy"

    @cached_property
    def scores(self) -> dict[str, Summary]:
        """Errors by model: `rmse` and `r2` of each target, or `accuracy` and `log_loss`; None if unknown."""
        return {name: self._scores_of(model) for name, model in self.predictions.items()}

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """The difference of each other model's loss; models with a handicap have none."""
        ours, differences = self._losses(self.ours, self.measure), {}
        assert ours is not None  # the measure is one that this model has
        for name, model in self.predictions.items():
            losses = self._losses(model, self.measure)
            if name == OURS or losses is None or model.handicap is not None:
                continue
            saved = losses - ours
            mean, lower, upper = paired_interval(saved, self.weights, self.groups, self._inflation)
            if self.measure == "accuracy":
                exact = exact_interval(saved)
                # The wider of the two: few rows differ, for which Student's interval is too narrow.
                lower, upper = min(lower, exact[0]), max(upper, exact[1])
            relation = "better" if lower > 0 else "worse" if upper < 0 else "same"
            differences[name] = Difference(mean, lower, upper, relation)
        return differences

    def intervals(self) -> dict[str, tuple[float, float, float]]:
        """Return the `measure` of each model that has it, over all targets, with its interval."""
        found = {}
        for name, model in self.predictions.items():
            losses = self._losses(model, self.measure)
            if losses is None:
                continue
            interval = share_with_interval if self.measure == "accuracy" else paired_interval
            values = np.array(interval(losses, self.weights, self.groups, self._inflation))
            if self.measure == "rmse":
                # The lower end of a mean square's interval may lie below 0.
                values = np.sqrt(np.maximum(values, 0.0))
            elif self.measure != "log_loss":
                # One minus a loss turns the interval around, so its ends change places.
                values = np.minimum(1.0 - values[[0, 2, 1]], 1.0)
            found[name] = (float(values[0]), float(values[1]), float(values[2]))
        return found

    @property
    def verdict(self) -> str:
        """What was found, in one or a few sentences; the first says how the model compares."""
        relations: dict[str, list[str]] = {"better": [], "worse": [], "same": []}
        naive = MEAN if self.classes is None else MOST_FREQUENT
        others = [name for name in self.differences if name != naive]
        for name in others or [naive]:
            relations[self.differences[name].relation].append(self._named(name))
        words = {"better": "better than", "worse": "worse than", "same": "no clear difference from"}
        clauses = [f"{words[relation]} {_and(names)}" for relation, names in relations.items() if names]
        first = f"On {self.rows_words}, {self._own_figure}: {', and '.join(clauses)}."
        if others and (relation := self.differences[naive].relation) != "better":
            than = "worse than" if relation == "worse" else "not clearly better than"
            first = f"No signal was found: the model is {than} {self._named(naive)}. {first}"
        handicaps = [
            f"No conclusion on {self._named(name)}: {model.handicap}."
            for name, model in self.predictions.items()
            if model.handicap is not None
        ]
        return " ".join([first, *handicaps, *self.notes])

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Return the header and the rows of a table of all models, with the intervals."""
        saved = {"log_loss": "log loss saved", "accuracy": "more rows right"}
        header = ["model", *(TITLES[name] for name in self.scores[OURS])]
        header.append(f"{saved.get(self.measure, 'squared error saved')} ({LEVEL:.0%} interval)")
        scores = self.scores.items()
        return header, [[model, *map(_cell, values.values()), self._saved(model)] for model, values in scores]

    def about(self) -> list[str]:
        """Return how other models were trained, a sentence for each."""
        models = self.predictions.items()
        return [f"{name.capitalize()}: {model.about}." for name, model in models if model.about is not None]

    def describe(self) -> Summary:
        """Return the comparison as JSON values."""
        return {
            **values_of(self, "verdict", "by", "n_rows", "n_available", "measure"),
            "about": self.about(),
            "scores": self.scores,
            "differences": {name: loss.describe() for name, loss in self.differences.items()},
        }

    def _scores_of(self, one: Predictions) -> Summary:
        if self.classes is not None:
            surprise = self._losses(one, "log_loss")
            right = self._mean(np.asarray(one.values == self.y, np.float64))
            return {"accuracy": right, "log_loss": None if surprise is None else self._mean(surprise)}
        errors = np.average(np.square(self.y - one.values), axis=0, weights=self.weights)
        pairs = zip(errors.tolist(), self._target_variance.tolist(), strict=True)
        r2 = [None if variance == 0 else 1 - error / variance for error, variance in pairs]
        return {"rmse": np.sqrt(errors).tolist(), "r2": r2}

    @cached_property
    def _target_variance(self) -> FloatArray:
        mean = np.average(self.y, axis=0, weights=self.weights)
        return np.asarray(np.average(np.square(self.y - mean), axis=0, weights=self.weights))

    @property
    def _inflation(self) -> float:
        return 1.0 if self.by == "test" else 1.0 + self.n_folds / max(1, self.n_folds - 1)

    def _mean(self, values: FloatArray) -> float:
        return float(np.average(values, weights=self.weights))

    def _losses(self, one: Predictions, measure: str) -> FloatArray | None:
        """Return each row's loss; None if unknown. Errors of several targets are over their variances."""
        if self.classes is None:
            variance = self._target_variance
            # By each target's variance: otherwise the target with the largest numbers would decide alone.
            unit = np.where(variance > 0, variance, 1.0) if self.y.shape[1] > 1 else 1.0
            return np.asarray((np.square(self.y - one.values) / unit).mean(axis=1))
        if measure == "accuracy":
            return np.asarray(one.values != self.y, np.float64)
        if one.log_probabilities is None:
            return None
        # a class that a model gives no chance counts as 1 in 10¹⁵
        return np.asarray(-np.maximum(one.log_probabilities[np.arange(self.n_rows), self.y], -34.5))

    def _named(self, name: str) -> str:
        words = {LINEAR: "a linear model", MEAN: "the mean of the target"}.get(name, name)
        return f"{self.predictions[name].called or words} ({self._figure(name)})"

    def _figure(self, name: str) -> str:
        value = self.scores[name][self.measure]
        if self.measure == "rmse":
            return number(value[0])
        if self.measure == "r2":
            known = [r2 for r2 in value if r2 is not None]
            return number(sum(known) / len(known) if known else None)
        if self.measure == "log_loss":
            return number(value)
        shown_as_share = self.weights is not None or self.n_rows > 1_000
        return share(value) if shown_as_share else f"{value * self.n_rows:.0f}"

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
        return f"the typical error (RMSE) is {figure}" + ("" if r2 is None else f" (R² {score(r2)})")

    def _saved(self, name: str) -> str:
        one = self.differences.get(name)
        if one is None:
            return ""
        values = [one.mean, one.lower, one.upper]
        if self.measure == "log_loss":
            return "{:.3f} ({:.3f} to {:.3f})".format(*values)
        unit = 1.0
        if self.classes is None:
            losses = self._losses(self.predictions[name], self.measure)
            assert losses is not None
            unit = self._mean(losses) or 1.0
        # no model saves more than all, however wide the interval
        shares = (min(value / unit, 1.0) if np.isfinite(value) else value for value in values)
        mean, lower, upper = (f"{share:,.1%}" if np.isfinite(share) else "–" for share in shares)
        return f"{mean} ({lower} to {upper})"


def verdict_of(comparison: Comparison | None) -> str:
    """Return the verdict on a model, which every face shows first."""
    return NOTHING_COMPARED if comparison is None else comparison.verdict


def paired_interval(
    differences: FloatArray,
    weights: FloatArray | None = None,
    groups: AnyArray | None = None,
    inflation: float = 1.0,
) -> tuple[float, float, float]:
    """Like the mean of differences and `scipy.stats.ttest_1samp(differences, 0).confidence_interval()`.

    Rows may have weights and be in groups, and the variance of the mean may be inflated.

    `differences`: float64 array of shape (n_rows,).
    `weights`: float64 array of shape (n_rows,). 1 by default.
    `groups`: array of shape (n_rows,). Rows of one group count as one observation.
    `inflation`: factor on the variance of the mean.
    Returns: infinite ends for a single row or group.
    """
    weights = np.ones(len(differences)) if weights is None else weights
    mean = float(np.average(differences, weights=weights))
    parts = weights * (differences - mean)
    if groups is not None:
        parts = np.bincount(np.unique(groups, return_inverse=True)[1].ravel(), parts)
    n = len(parts)
    if n < 2:
        return mean, -np.inf, np.inf
    # Of single rows that weigh the same it is s/√n; of groups, the cluster-robust error of Cameron & Miller.
    error = np.sqrt(inflation * n / (n - 1) * np.square(parts).sum()) / weights.sum()
    half = float(scipy.special.stdtrit(n - 1, 0.5 + LEVEL / 2) * error)
    return mean, mean - half, mean + half


def exact_interval(differences: FloatArray) -> tuple[float, float]:
    """Return an exact interval of how much the share of mistakes differs between two models.

    It holds 0 if McNemar's exact test finds no difference between the models.

    `differences`: float64 array of shape (n_rows,). 1 where only the other model is mistaken, −1 where only
      this one is, else 0.
    Returns the ends of the interval of the mean difference; (0, 0) if no row differs.
    """
    more, less = int((differences > 0).sum()), int((differences < 0).sum())
    n = more + less
    # Of the n rows that differ, `more` is binomial: its share p, as 2p − 1, times n over all rows.
    low, high = share_interval(more, n)
    return (2 * low - 1) * n / len(differences), (2 * high - 1) * n / len(differences)


def share_with_interval(
    hits: FloatArray,
    weights: FloatArray | None = None,
    groups: AnyArray | None = None,
    inflation: float = 1.0,
) -> tuple[float, float, float]:
    """Return the mean of zeros and ones, and the ends of its interval; see `paired_interval`.

    Rows without weights get at least the exact interval: if all are ones, they have no deviation.

    `hits`: float64 array of shape (n_rows,).
    """
    share, low, high = paired_interval(hits, weights, groups, inflation)
    if weights is None:
        exact = share_interval(int(hits.sum()), len(hits))
        low, high = min(low, exact[0]), max(high, exact[1])
    return share, max(low, 0.0), min(high, 1.0)


def share_interval(k: int, n: int) -> tuple[float, float]:
    """Like `scipy.stats.binomtest(k, n).proportion_ci(LEVEL)`, the interval of Clopper and Pearson (1934)."""
    tail = (1 - LEVEL) / 2
    low = float(scipy.special.betaincinv(k, n - k + 1, tail)) if k else 0.0
    return low, float(scipy.special.betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0


def with_naive(y: AnyArray, n_classes: int, weights: FloatArray | None) -> dict[str, Predictions]:
    """Return the predictions of the one value that suits the rows best: their mean, or their class shares."""
    if not n_classes:
        return {MEAN: Predictions(np.broadcast_to(np.average(y, axis=0, weights=weights), y.shape))}
    shares = np.bincount(y, weights, n_classes)
    with np.errstate(divide="ignore"):
        logs = np.broadcast_to(np.log(shares / shares.sum()), (len(y), n_classes))
    return {MOST_FREQUENT: Predictions(np.full(len(y), int(shares.argmax())), logs)}


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _cell(value: Any) -> str:
    return ", ".join(map(number, value[:8])) if isinstance(value, list) else number(value)
