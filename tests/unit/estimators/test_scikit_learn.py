"""Every estimator keeps scikit-learn's conventions: its own checks, once for each
class.
"""

import re

import pytest
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from rff_dist import RFFPCA, KernelKMeans, RFFKMeans, RFFRidge, RFFSampler, SerialEngine
from tests.plain import plain_classifier, plain_ridge

pytestmark = [
    # The targets of some checks have no noise, and some have few distinct rows.
    pytest.mark.filterwarnings("ignore:alpha=.* was chosen by"),
    pytest.mark.filterwarnings("ignore:by their weights .* rows count as"),
    pytest.mark.filterwarnings(
        "ignore:Number of distinct clusters:sklearn.exceptions.ConvergenceWarning"
    ),
]
SMALL = {"n_components": 16, "alpha": 0.1, "engine": SerialEngine(1)}
ESTIMATORS = [
    RFFSampler(n_components=33),
    plain_ridge(features="nystrom", **{**SMALL, "n_components": 9}),
    plain_classifier(**SMALL),
    RFFKMeans(3, n_components=32),
    RFFPCA(1, n_random_features=33, features="nystrom", normalize="degree"),
    KernelKMeans(3, random_state=0),
]
# Inputs are read alike for all losses: of the others, the checks of the fit.
OF_THE_FIT = re.compile("classifier|weight|subset|n_iter|one_(sample|feature)")


def checks():
    for estimator in (*ESTIMATORS, plain_classifier(loss="logistic", **SMALL)):
        is_other = getattr(estimator, "loss", "squared") != "squared"
        for model, check in estimator_checks_generator(estimator):
            name = getattr(check, "func", check).__name__
            if not is_other or OF_THE_FIT.search(name):
                yield pytest.param(
                    model,
                    check,
                    id=f"{type(model).__name__}{' logistic' * is_other}-{name}",
                )


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_scikit_learns_check(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "check",
    [estimator_checks.check_fit2d_1sample, estimator_checks.check_fit2d_1feature],
)
def test_one_row_and_one_column_do_with_the_default_parameters(check):
    check("RFFRidge", RFFRidge())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_of_scikit_learns_checks_pass_with_the_default_parameters():
    # some 50 fits of a dozen candidates each: minutes
    check_estimator(RFFRidge(), on_skip=None)
