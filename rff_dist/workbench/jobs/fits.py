"""What a job trains: a regression, a classifier or the best of candidates; and facts about the result."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rff_dist.checks import check_name
from rff_dist.classify import fit as classification
from rff_dist.classify.fit import FittedModel, label_rows
from rff_dist.data import blocks, columns, labelled, memory
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.features import feature_options
from rff_dist.fitting import plan
from rff_dist.fitting.options import RidgeOptions, read_widths
from rff_dist.kernels import base
from rff_dist.products import choice
from rff_dist.ridge import candidates as ridge_candidates
from rff_dist.ridge import choices as ridge_choices
from rff_dist.ridge import describe
from rff_dist.ridge import fit as ridge
from rff_dist.storage import datasets
from rff_dist.storage.columns import column_of
from rff_dist.text import redact
from rff_dist.typing import Do, Summary, plainly
from rff_dist.workbench.jobs.places import SupervisedSource

logger = logging.getLogger(__name__)

_ONE_ROW = memory.ArrayDataset(np.zeros((1, 1)), np.zeros(1))


@dataclass(frozen=True, slots=True)
class JobData:
    """The rows of a job and, for a classifier, their labels."""

    rows: blocks.Dataset
    labels: columns.Column | None = None


def open_supervised(
    source: SupervisedSource, test: str | None, group_by: str | None, classify: bool
) -> tuple[JobData, JobData | None]:
    """Open the data to train on, and test data at `test`, with groups if their rows have them too."""
    data = _open(source, source.data, group_by, classify)
    if test is None:
        return data, None
    try:
        return data, _open(source, test, group_by, classify)
    except StorageError as error:
        if group_by is None:
            raise
        alone = _open(source, test, None, classify)
        logger.warning("test rows count as independent, for want of groups: %s", error)
        return data, alone


def _open(source: SupervisedSource, url: str, group_by: str | None, classify: bool) -> JobData:
    """Open data to train on or to evaluate on.

    `source`: names the arrays.
    `url`: of the source's own data, or of test data.
    `group_by`: name of an array of groups. Rows of one group are in one fold.
    `classify`: whether `y` holds labels.
    Raises DataError if there are no targets.
    """
    # `version` is one of the source's own data; other data are read as they are now.
    names = source.names() if url == source.data else source.names() | {"version": None}
    dataset = datasets.open_dataset(url, **(names | {"y": None} if classify else names))
    if dataset.n_targets < 1 and not classify:
        raise DataError(
            f"{redact(url)} has no targets to train on; write them with the data, or name their array with "
            "`y`"
        )
    rows = dataset if group_by is None else labelled.GroupedDataset(dataset, column_of(dataset, group_by))
    return JobData(rows, column_of(dataset, source.y) if classify else None)


@dataclass(frozen=True, slots=True)
class Fit:
    """What to train, and how open choices are made.

    `options`: of the regression, or of a classifier's ridge on targets of −1 and +1.
    `loss`: of a classifier, see `classify.fit.fit`; None for a regression.
    `class_weight`: of a classifier.
    `candidates`: compared on all rows with all components, instead of the kernel and length scale of the
      options; see `ridge.fit.fit`.
    """

    options: RidgeOptions
    loss: str | None = None
    class_weight: str | None = None
    candidates: Sequence[ridge_candidates.Candidate] | None = None

    @property
    def losses(self) -> classification.LossOptions | None:
        """How a classifier is fitted; None for a regression."""
        return None if self.loss is None else classification.LossOptions(self.loss, self.class_weight)

    def check(self) -> None:
        """Check the options before any work starts.

        Raises InvalidParameterError if parameters are out of range or exclude each other.
        """
        options = self.options
        choice.check_environment()
        check_name(options.map, feature_options.DATASET_MAPS, "map")
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
        # checks that folds can choose what they are to
        ridge_choices.folds_for(options if self.candidates is None else ridge_choices.with_folds(options))
        kinds = options.kinds
        if not isinstance(options.n_components, str):
            for kind in kinds:
                read_widths(options.n_components, options.map, kind)
        if kinds[0] == "fourier":
            # What designs a kernel allows does not depend on the number of columns: one row of one will do.
            for candidate in self.candidates or ridge_choices.candidates_of(options, _ONE_ROW):
                base.check_design(candidate.kernel, options.design, 1)
        elif options.design != "auto":
            raise InvalidParameterError(
                f"`design` is {options.design!r}, but Nyström features have none; leave it out"
            )

    def check_data(self, dataset: blocks.Dataset) -> None:
        """Check that the columns of a dataset suit the options; see `check_candidates`."""
        candidates = list(self.candidates or ridge_choices.candidates_of(self.options, dataset))
        ridge_candidates.check_candidates(candidates, dataset, self.options)

    def begin(self, source: JobData, *, engine: Engine) -> ridge_choices.Choices:
        """Count the labels of a classifier, and plan the fit; see `ridge.choices.choices_of`.

        Raises PlanError if memory does not suffice; DataError if there are fewer than two classes.
        """
        dataset, options = source.rows, self.options
        if self.losses is not None:
            assert source.labels is not None
            dataset, options = label_rows(dataset, source.labels, options, self.losses, engine=engine)
        machines = plan.Machines.of(engine)
        return ridge_choices.choices_of(dataset, options, machines=machines, candidates=self.candidates)

    def train(self, choices: ridge_choices.Choices, *, engine: Engine, do: Do = plainly) -> FittedModel:
        """Train the model on the rows that the fit was begun with."""
        dataset, options = choices.dataset, choices.options
        if self.losses is not None:
            assert isinstance(dataset, labelled.LabelledDataset)
            return classification.fit(dataset, options, self.losses, choices=choices, engine=engine, do=do)
        trained = ridge.fit(dataset, options, choices=choices, engine=engine, do=do)
        known = trained.parts is None or choices.given
        return FittedModel(trained, None if known else do("hold out", ridge.fold_models_of, trained))

    def run(self, source: JobData, *, engine: Engine) -> FittedModel:
        """Begin and train."""
        return self.train(self.begin(source, engine=engine), engine=engine)


# -- facts about a trained model -------------------------------------------------------------------


def describe_fit(trained: ridge.Trained) -> Summary:
    """Return JSON-able facts about a trained model: what was chosen, and how good it is."""
    model, status = trained.model, trained.solved.solution.status
    return {
        **describe.describe_features(model.feature_map),
        "n_components": model.feature_map.n_components,
        "alpha": model.plain_alpha,
        "alpha_chosen_by": model.card["chosen_by"],
        "classifier": model.card.get("classifier"),
        "estimate": describe.estimate_of(model.card),
        "candidates": model.card.get("candidates", []),
        "status": status.value,
        "causes": list(status.causes),
        "remedies": list(status.remedies),
    }
