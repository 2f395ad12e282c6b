"""Options of a fit that cannot be are refused when they are put together, before
anything is read.
"""

import pytest

from rff_dist.errors import InvalidParameterError
from rff_dist.fitting.options import RidgeOptions
from tests.refusals import refuses

PCG = {"solver": "pcg"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"alpha": 1.0, "alphas": [1.0]}, ["alpha", "1.0", "alphas"]),
        ({"effort": 0}, ["effort", "0"]),
        ({"effort": 6}, ["effort", "6"]),
        ({"effort": True}, ["effort", "True"]),
        ({"time_limit": 0.0}, ["time_limit", "0"]),
        ({"time_limit": 5.0, "n_components": 64}, ["n_components", "64"]),
        ({"precision": "low"}, ["precision", "'low'"]),
        ({"sample_weight_kind": "count"}, ["sample_weight_kind", "'count'"]),
        ({"features": None}, ["features", "None"]),
        (PCG | {"alpha": "gcv"}, ["alpha", "'gcv'"]),
        (PCG | {"alpha": 0.0}, ["alpha", "0.0"]),
        (PCG | {"alpha": "cv-1se"}, ["alpha", "'cv-1se'"]),
        (PCG | {"alpha": 1.0, "n_components": (32, 64)}, ["n_components"]),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_named(options, named):
    with refuses(InvalidParameterError, *named):
        RidgeOptions(**options)
