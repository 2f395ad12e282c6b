"""Options of a fit that cannot be are refused when they are put together, before anything is read."""

import pytest

from rff_dist.errors import InvalidParameterError
from rff_dist.fitting.options import Penalty, RidgeOptions
from tests.refusals import refuses

PCG = {"solver": "pcg"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"alpha": 1.0, "alphas": [1.0]}, "`alpha` is 1.0 together with `alphas`"),
        ({"effort": 0}, "`effort` is 0"),
        ({"effort": 6}, "`effort` is 6"),
        ({"effort": True}, "`effort` is True"),
        ({"time_limit": 0.0}, "`time_limit` is 0"),
        ({"time_limit": 5.0, "n_components": 64}, "`n_components` is 64"),
        ({"precision": "low"}, "`precision` 'low'"),
        ({"sample_weight_kind": "count"}, "`sample_weight_kind` is 'count'"),
        ({"features": None}, "`features` None"),
        (PCG | {"alpha": "gcv"}, "but `alpha` is 'gcv'"),
        (PCG | {"alpha": 0.0}, "but `alpha` is 0.0"),
        (PCG | {"alpha": "cv-1se"}, "but `alpha` is 'cv-1se'"),
        (PCG | {"alpha": 1.0, "n_components": (32, 64)}, "but `n_components`"),
        (PCG | {"alpha": 1.0, "conformal": True}, "but `conformal`"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_named(options, named):
    with pytest.raises(InvalidParameterError, match=named):
        RidgeOptions(**options)


@pytest.mark.parametrize("alpha", [-1.0, "best", [], [[1.0]], [1.0, -1.0], [0.0, 1.0], None, True, 1j])
def test_a_bad_alpha_is_refused(alpha):
    with refuses(InvalidParameterError, "alpha"):
        Penalty(alpha=alpha)
