"""What frequencies, feature maps, length scales and bounds refuse, and what each
message names.
"""

import numpy as np
import pytest

from rff_dist import (
    Gaussian,
    Laplacian,
    Linear,
    Matern,
    Min,
    Nystrom,
    approximation_error,
    draw_feature_map,
)
from rff_dist.errors import DataError
from rff_dist.features import bounds
from rff_dist.features.evidence import likelihood_weights
from rff_dist.features.length_scales import EvidenceSearch, maximize_evidence
from rff_dist.frequencies.uniforms import scrambled_sobol, seed_of
from rff_dist.kernels.base import check_design
from rff_dist.pca import fit as pca
from tests.refusals import each, for_each_refusal, once, refuses

X = np.random.default_rng(0).standard_normal((300, 3))
Y = X[:, :1] + 1.0
WITH_NAN = np.where(np.arange(300)[:, np.newaxis] == 17, np.nan, X)


def draw(kernel="gaussian", *, n_features=3, n_components=64, **options):
    return draw_feature_map(
        kernel, n_features=n_features, n_components=n_components, **options
    )


def by_value(call, **wrong):
    """Make a case of each wrong value of each option, which is to be named."""
    return [
        case
        for name, values in wrong.items()
        for case in each(lambda value, name=name: call(**{name: value}), values, name)
    ]


def maximize(kernel=None, inputs=X, y=Y, weights=None, **search):
    return maximize_evidence(
        kernel or Gaussian(), inputs, y, weights, search=EvidenceSearch(**search)
    )


def largest_error(**changes):
    return bounds.pairwise_error(
        **({"n_components": 64, "n_points": 10, "delta": 0.1, "map": "pairs"} | changes)
    )


FREQUENCIES = [
    each(seed_of, [-1, 2**64, True, 1.0, "1", None], "rng", "2", "64", "1"),
    once(lambda: scrambled_sobol(0, 21_201, 1, 1), "'orthogonal'"),
    once(
        lambda: check_design(Matern(), "quasi-monte-carlo", 21_201), "21_202 dimensions"
    ),  # one for the scale
    # A block of so many columns, which takes 670 GiB, is not drawn to say so.
    once(
        lambda: check_design(Laplacian(), "orthogonal", 300_000),
        "orthogonal",
        "isotropic",
    ),
    *(
        each(
            lambda name, design=design: draw(name, design=design),
            ["laplacian", "cauchy", "sinc"],
            design,
        )
        for design in ("orthogonal",)
    ),
    each(
        lambda kernel: draw(kernel, n_features=3, n_components=256),
        [Gaussian(1e-40), Matern(nu=0.001)],
        "float32",
    ),
]
MAPS = [
    *(
        each(
            lambda n, map_name=map_name: draw(n_components=n, map=map_name),
            [0, -1, 2.5, 2.0, "8", True, None, np.float64(8)],
            *("n_components", "1"),
        )
        for map_name in ("pairs", "phases")
    ),
    once(lambda: draw(n_components=7), "8", "'phases'"),
    by_value(
        draw,
        n_features=[0, -1, 2.0, "3", True, None],
        random_state=[-1, 2**64, 1.5, "0", True],
    ),
    once(lambda: draw(map="pair"), "map", "'pair'", "'pairs'", "'phases'"),
    once(
        lambda: draw().fill_whole(
            np.full((64, 3), 3e38, np.float32), np.empty((64, 64), np.int16)
        ),
        *("finite", "inputs overflow"),
        error=DataError,
    ),
    each(
        draw,
        [
            Gaussian() * Linear(),
            Linear() * Linear(),
            Min(0, 1) * Min(0, 1),
            (Gaussian() + 1) * Linear(),
        ],
        *("no random features", "nystrom"),
    ),
    once(lambda: draw(1 + Min()), "Min(lower, upper)"),
    once(lambda: draw(Gaussian() + Linear().on([5])), "column 5"),
    by_value(Nystrom, centres=["best"], jitter=[0, True], sample_rows=[0]),
    once(lambda: pca.check_normalize("rows"), "normalize", "'rows'", "'degree'"),
]
LENGTH_SCALES = [
    each(
        maximize,
        [Linear(), Gaussian() + Matern(), 2.0 * Gaussian()],
        "one length scale",
    ),
    once(lambda: maximize(y=np.full_like(Y, 0.1)), "constant", error=DataError),
    once(lambda: maximize(inputs=np.ones((300, 2))), "equal", error=DataError),
    by_value(maximize, n_components=[3, 0], n_starts=[0]),
    once(
        lambda: likelihood_weights(np.array([1.5]), repeated=True),
        "1.5",
        error=DataError,
    ),
]
ERRORS = [
    once(
        lambda: approximation_error("gaussian", draw(), X, n_samples=1),
        "n_samples",
        "2",
    ),
    *(
        once(
            lambda rows=rows: approximation_error("gaussian", draw(), rows),
            *names,
            error=DataError,
        )
        for rows, *names in (
            (X[:1], "1 rows", "2"),
            (X[:, :2], "3 columns"),
            (WITH_NAN, "row 17"),
        )
    ),
    once(
        lambda: approximation_error("gaussian", draw(), X).components_for(
            0.1, measure="rms"
        ),
        "'relative_operator_norm'",
    ),
]
BOUNDS = [
    by_value(largest_error, n_components=[0], n_points=[1], delta=[1.0]),
    once(lambda: largest_error(map="complex"), "'pairs', 'phases'"),
]


@pytest.mark.filterwarnings("ignore:angles of Fourier features are about")
@for_each_refusal(*FREQUENCIES, *MAPS, *LENGTH_SCALES, *ERRORS, *BOUNDS)
def test_what_cannot_be_is_refused_by_name(call, error, names):
    with refuses(error, *names):
        call()
