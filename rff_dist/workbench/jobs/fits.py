"""What a job trains: a regression, a classifier or the best of candidates.

In go rows, labels and options, out comes a fitted model with facts about it. A
candidate is a kernel with its length scale, one of several that are compared.
`ridge.fit` alone takes no labels, and finds a wrong option only after the first pass.
"""

import logging
from collections.abc import Sequence

import numpy as np

from rff_dist.checks import check_name
from rff_dist.classify import fit as classification
from rff_dist.classify.fit import FittedModel, label_rows
from rff_dist.classify.predict import read_classes
from rff_dist.data import blocks, columns, folding, labelled, memory, samples
from rff_dist.engines.protocol import Engine
from rff_dist.errors import InvalidParameterError
from rff_dist.features import feature_options
from rff_dist.fitting import sizes
from rff_dist.fitting.options import RidgeOptions, is_one_alpha, read_n_components
from rff_dist.kernels import base
from rff_dist.living.ranges import Range, contain_rows, count_rows
from rff_dist.products import choice
from rff_dist.recipes import model_rows
from rff_dist.ridge import candidate_choices, describe, fold_choices, models
from rff_dist.ridge import candidates as ridge_candidates
from rff_dist.ridge import choices as ridge_choices
from rff_dist.ridge import fit as ridge
from rff_dist.ridge.fit_result import FitResult
from rff_dist.typing import (
    AnyArray,
    Do,
    FloatArray,
    IndexArray,
    Summary,
    call_step,
    frozen,
)

logger = logging.getLogger(__name__)

_ONE_ROW = memory.ArrayDataset(np.zeros((1, 1)), np.zeros(1))


@frozen
class JobData:
    """The rows of a job and, for a classifier, their labels.

    `folds`: folds of time, if the dataset records that its latest rows were held out.
    """

    rows: blocks.Dataset
    labels: columns.Column | None = None
    folds: folding.Folds | None = None

    def with_targets(self, model: models.RidgeModel) -> blocks.Dataset:
        """Return the rows with the codes of a model's levels, and with targets; labels
        become the targets of a classifier's classes.
        """
        rows = model_rows.with_codes_of(model.feature_map.levels, self.rows)
        if self.labels is None:
            return rows
        return labelled.LabelledDataset(rows, self.labels, read_classes(model))

    def sample(
        self,
        model: models.RidgeModel,
        n_rows: int,
        seed: int,
        held: Sequence[Range] | None = None,
    ) -> tuple[IndexArray, AnyArray, FloatArray, FloatArray | None]:
        """Return the numbers of sampled rows, their X, targets and weights, without
        rows of weight 0.

        With the ranges `held`, about `n_rows` of their rows, all if they have fewer.
        """
        dataset = self.with_targets(model)
        n_samples = dataset.n_samples
        held = held or [(0, n_samples)]
        n_drawn = min(n_samples, -(-n_rows * n_samples // count_rows(held)))
        rng = np.random.Generator(np.random.Philox(seed))
        indices = samples.sample_indices(dataset, rng, n_drawn)
        indices = indices[contain_rows(held, indices)]
        sample = dataset.take(indices)
        has_weight = sample.weighted_rows()
        X, y, weights = sample.select(has_weight)
        assert y is not None  # a model is trained and judged on targets
        return indices[has_weight], X, y, weights


@frozen
class Fit:
    """What to train, and how open choices are made.

    `options`: of the regression, or of a classifier's ridge on targets of −1 and +1.
    `losses`: of a classifier, see `classify.fit.fit`; None for a regression.
    `candidates`: compared on all rows with all components, instead of the kernel and
      length scale of the options; see `ridge.fit.fit`.
    """

    options: RidgeOptions
    losses: classification.LossOptions | None = None
    candidates: Sequence[ridge_candidates.Candidate] | None = None

    @property
    def compares_fits(self) -> bool:
        """Whether errors of several fits are compared, which can be drawn."""
        options = self.options
        return (
            not is_one_alpha(options.alpha)
            or isinstance(options.n_components, list)
            or options.cv is not None
            or self.candidates is not None
        )

    def check(self) -> None:
        """Check the options before any work starts.

        Raises InvalidParameterError if parameters are out of range or exclude each
        other.
        """
        options = self.options
        choice.check_environment()
        check_name(options.map, feature_options.MAPS, "map")
        if self.losses is not None and options.solver == "pcg":
            raise InvalidParameterError(
                "`solver` is 'pcg', but a classifier needs the sums of Z'Z; leave it"
                " out"
            )
        with_folds = options
        if self.candidates is not None:
            with_folds = fold_choices.with_folds(options)
        # raises if folds cannot make the choices that are left open
        fold_choices.folds_for(with_folds)
        kinds = options.kinds
        if not isinstance(options.n_components, str):
            for kind in kinds:
                read_n_components(options.n_components, options.map, kind)
        if kinds[0] == "fourier":
            # one column will do: it does not matter for the designs of a kernel
            for candidate in self._candidates_for(_ONE_ROW):
                base.check_design(candidate.kernel, options.design, 1)
        elif options.design != "auto":
            raise InvalidParameterError(
                f"`design` is {options.design!r}, but Nyström features have none; leave"
                " it out"
            )

    def check_data(self, dataset: blocks.Dataset) -> None:
        """Check that the columns of a dataset suit the options; see
        `check_candidates`.
        """
        candidates = self._candidates_for(dataset)
        ridge_candidates.check_candidates(candidates, dataset, self.options)

    def _candidates_for(
        self, dataset: blocks.Dataset
    ) -> list[ridge_candidates.Candidate]:
        """Return the given candidates, else those that the options leave open."""
        if self.candidates:
            return list(self.candidates)
        return list(candidate_choices.candidates_of(self.options, dataset))

    def begin(self, data: JobData, *, engine: Engine) -> ridge_choices.Choices:
        """Count the labels of a classifier, and plan the fit; see
        `ridge.choices.choices_of`.

        Raises PlanError if memory does not suffice; DataError if there are fewer than
        two classes.
        """
        dataset = data.rows
        options = self.options
        if self.losses is not None:
            assert data.labels is not None
            dataset, options = label_rows(
                dataset, data.labels, options, self.losses, engine=engine
            )
        machines = sizes.Machines.of(engine)
        return ridge_choices.choices_of(
            dataset, options, machines=machines, candidates=self.candidates
        )

    def train(
        self, choices: ridge_choices.Choices, *, engine: Engine, do: Do = call_step
    ) -> FittedModel:
        """Train the model on the rows that the fit was begun with."""
        dataset = choices.dataset
        options = choices.options
        if self.losses is not None:
            assert isinstance(dataset, labelled.LabelledDataset)
            return classification.fit(
                dataset, options, self.losses, choices=choices, engine=engine, do=do
            )
        fit_result = ridge.fit(dataset, options, choices=choices, engine=engine, do=do)
        fold_models = None
        if not choices.has_given_candidates:
            fold_models = fit_result.fold_models
        return FittedModel(fit_result, fold_models)

    def run(self, data: JobData, *, engine: Engine) -> FittedModel:
        """Begin and train."""
        return self.train(self.begin(data, engine=engine), engine=engine)


# -- facts about a trained model
# -------------------------------------------------------------------


def describe_fit(fit_result: FitResult) -> Summary:
    """Return what a trained model chose, and how good it is, as JSON values."""
    model = fit_result.model
    status = fit_result.solved.solution.status
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
