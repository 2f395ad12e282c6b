"""What a job trains: a regression, a classifier or the best of candidates; and facts about the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rff_dist.checks import check_name
from rff_dist.classify import fit as classification
from rff_dist.classify.platt_scaling import ScoreCalibration
from rff_dist.data.blocks import Dataset
from rff_dist.data.columns import Column
from rff_dist.data.labelled import GroupedDataset
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features.options import DATASET_MAPS
from rff_dist.jobs.options import SupervisedSource
from rff_dist.kernels.base import check_design
from rff_dist.products.choice import check_environment
from rff_dist.ridge import automatic, search
from rff_dist.ridge.candidates import Candidate, check_candidates
from rff_dist.ridge.choices import check_folds, folds_for, planner
from rff_dist.ridge.conformal import FoldModels
from rff_dist.ridge.describe import describe_features
from rff_dist.ridge.fit import fold_models_of
from rff_dist.ridge.model import RidgeModel
from rff_dist.ridge.options import RidgeOptions, read_widths
from rff_dist.ridge.solve import Solved
from rff_dist.storage.columns import column_of
from rff_dist.storage.datasets import open_dataset
from rff_dist.text import redact
from rff_dist.typing import Summary

#: Titles of errors, by their names in records and documents.
TITLES = {
    "rmse": "RMSE",
    "r2": "R²",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
}

_ONE_ROW = ArrayDataset(np.zeros((1, 1)), np.zeros(1))


@dataclass(frozen=True, slots=True)
class JobData:
    """The rows of a job and, for a classifier, their labels."""

    rows: Dataset
    labels: Column | None = None


def open_job_data(
    source: SupervisedSource, url: str, *, group_by: str | None = None, classify: bool = False
) -> JobData:
    """Open data to train on or to evaluate on.

    `source`: names the arrays.
    `url`: of the source's own data, or of test data.
    `group_by`: name of an array of groups. Rows of one group are in one fold.
    `classify`: whether `y` holds labels.
    Raises DataError if there are no targets.
    """
    names = source.names() if url == source.data else source.names() | {"version": None}
    dataset = open_dataset(url, **(names | {"y": None} if classify else names))
    if dataset.n_targets < 1 and not classify:
        raise DataError(
            f"{redact(url)} has no targets to train on; write them with the data, or name their array with "
            "`y`"
        )
    rows = dataset if group_by is None else GroupedDataset(dataset, column_of(dataset, group_by))
    return JobData(rows, column_of(dataset, source.y) if classify else None)


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A trained model with its sums, and how it was found.

    `search`: None unless candidates were given.
    `folds`: ridge's models without each fold; None if no folds chose alpha, or candidates were given.
    `calibration`: turns their scores into probabilities of classes; None for a regression.
    """

    model: RidgeModel
    solved: Solved
    search: search.Search | None = None
    folds: FoldModels | None = None
    calibration: ScoreCalibration | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What to train, and how open choices are made.

    `options`: of the regression, or of a classifier's ridge on targets of −1 and +1.
    `loss`: of a classifier, see `classify.fit.fit`; None for a regression.
    `class_weight`: of a classifier.
    `candidates`: compared on all rows with all components, instead of the kernel and length scale of the
      options; see `ridge.search.search`.
    """

    options: RidgeOptions
    loss: str | None = None
    class_weight: str | None = None
    candidates: tuple[Candidate, ...] | None = None

    def check(self, dataset: Dataset | None = None) -> None:
        """Check the options before any work starts, and with a dataset also that they suit it.

        Raises InvalidParameterError if parameters are out of range or exclude each other; DataError if the
          folds are of groups and the dataset has none.
        """
        options = self.options
        check_environment()
        check_name(options.map, DATASET_MAPS, "map")
        if self.loss is not None:
            classification.check_loss(self.loss)
            if options.solver == "pcg":
                raise InvalidParameterError(
                    "`solver` is 'pcg', but a classifier needs the sums of Z'Z; leave it out"
                )
            if options.conformal:
                raise InvalidParameterError(
                    "`conformal` is True, but classes have no intervals; leave it out"
                )
        elif self.class_weight is not None:
            raise InvalidParameterError(
                f"`class_weight` is {self.class_weight!r}, but a regression has no classes; leave it out"
            )
        folds = folds_for(options)
        if self.candidates is not None:
            search.with_folds(options)  # checks that folds can choose among the candidates
        kinds = options.kinds
        if not isinstance(options.n_components, str):
            for kind in kinds:
                read_widths(options.n_components, options.map, kind)
        if dataset is not None:
            candidates = list(self.candidates or automatic.candidates_of(options, dataset))
            check_candidates(candidates, dataset, options)
            if folds is not None:
                check_folds(dataset, folds)
        elif kinds[0] == "fourier":
            # What designs a kernel allows does not depend on the number of columns: one row of one will do.
            for one in self.candidates or automatic.candidates_of(options, _ONE_ROW):
                check_design(one.kernel, options.design, 1)
        elif options.design != "auto":
            raise InvalidParameterError(
                f"`design` is {options.design!r}, but Nyström features have none; leave it out"
            )

    def choices(self, dataset: Dataset, *, engine: Engine) -> automatic.Choices:
        """Return the choices that the fit begins with; see `ridge.automatic.choices_of`."""
        plan = planner(dataset, self.options, engine=engine)
        return automatic.choices_of(dataset, self.options, plan=plan, candidates=self.candidates)

    def run(self, source: JobData, *, engine: Engine) -> FittedModel:
        """Train the model, and return it with how it was found."""
        options = self.options
        if self.loss is not None:
            assert source.labels is not None
            losses = classification.LossOptions(self.loss, self.class_weight)
            found = classification.fit_labels(source.rows, source.labels, options, losses, engine=engine)
            return FittedModel(found.model, found.solved, folds=found.folds, calibration=found.calibration)
        if self.candidates is None:
            trained = automatic.fit(source.rows, options, engine=engine)
            folds = None if trained.parts is None else fold_models_of(trained)
            return FittedModel(trained.model, trained.best, folds=folds)
        best = search.search(source.rows, self.candidates, options, engine=engine)
        return FittedModel(best.model, best.solved, best)


# -- facts about a trained model -------------------------------------------------------------------


def describe_fit(model: RidgeModel, solved: Solved) -> Summary:
    """Return JSON-able facts about a trained model: what was chosen, and how good it is."""
    status = solved.solution.status
    return {
        **describe_features(model.feature_map),
        "n_components": model.feature_map.n_components,
        "alpha": model.plain_alpha,
        "alpha_chosen_by": model.card["chosen_by"],
        "classifier": model.card.get("classifier"),
        "estimate": estimate_of(model.card),
        "candidates": model.card.get("candidates", []),
        "status": status.value,
        "causes": list(status.causes),
        "remedies": list(status.remedies),
    }


def estimate_of(card: Mapping[str, Any]) -> Summary | None:
    """Return the errors on new rows that a model's card estimates; None if it has no estimate.

    For a classifier these are accuracy and log loss; errors of its targets of −1 and +1 say nothing.
    """
    found = card.get("estimate")
    if found is None or "classifier" not in card:
        return found
    told = {key: value for key, value in found.items() if key.startswith(("accuracy", "log_loss"))}
    return {"by": found["by"], **told} if told else None


def chosen_candidate(candidates: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the best of the candidates on a model's card; None if there are none."""
    if not candidates:
        return None
    final = [one for one in candidates if one.get("round") != "first"]
    # Without a final the best candidate comes first; it need not have the least error.
    return min(final, key=lambda one: float(one["score"])) if final else candidates[0]


def n_candidates(candidates: Sequence[Mapping[str, Any]]) -> int:
    """Return how many candidates were tried; finalists were tried twice."""
    first = [one for one in candidates if one.get("round") == "first"]
    return len(first or candidates)
