"""What kernels refuse, and what each message names."""

import numpy as np
import pytest
from scipy import stats

from rff_dist import (
    Additive,
    Linear,
    Min,
    Polynomial,
    SpectralKernel,
    check_positive_definite,
)
from rff_dist.errors import DataError
from rff_dist.kernels.base import OnColumns, Product, Scaled, Sum
from rff_dist.kernels.names import find_kernel, kernel_from_dict
from rff_dist.kernels.stationary import (
    Cauchy,
    Gaussian,
    Laplacian,
    Matern,
    RationalQuadratic,
    Sinc,
    with_length_scale,
)
from tests.refusals import each, for_each_refusal, once, refuses

X = np.ones((3, 4))
NO_NUMBERS = [np.nan, np.inf, True, None, "1"]
HISTOGRAM = stats.rv_histogram(
    (np.array([1, 3]), np.array([-1.0, 0.0, 2.0])), density=False
)()

PARAMETERS = [
    each(Polynomial, [0, -1, 2.0, True, None, "2"], "degree", "1"),
    each(lambda offset: Polynomial(2, offset), [-0.1, *NO_NUMBERS], "offset", "0"),
    each(
        lambda end: Min(lower=end),
        [np.nan, np.inf, "0", True, [], [[0.0]], [0.0, np.nan], 1j],
        "lower",
    ),
    each(lambda ends: Min(*ends), [(1, 1), (2, 1), ([0, 2], 1), (0, [1, -1])], "lower"),
    once(lambda: Min(upper=-1.0)([[1.0]]), "upper", "-1.0", "lower", "0.0"),
    once(lambda: Min([0, 0], [1, 1, 1]), "lower", "2 entries", "upper", "3"),
    *(
        each(
            kernel,
            [0, -1.0, *NO_NUMBERS[:3], np.True_, "1", 1j, [1.0, 0.0], [[1.0]], []],
            "length_scale",
        )
        for kernel in (
            Gaussian,
            Laplacian,
            Cauchy,
            Sinc,
            Matern,
            RationalQuadratic,
            Additive,
        )
    ),
    each(Gaussian, [[1.0, np.nan], [True]], "length_scale"),
    each(lambda nu: Matern(nu=nu), [0, -1.5, *NO_NUMBERS], "nu"),
    each(
        lambda base: Additive(kernel=base),
        [Laplacian(), Gaussian(2.0), "gaussian", None, Additive()],
        "Gaussian()",
    ),
    each(
        lambda w: Additive(order_1=w[0], order_2=w[1], dense=w[2]),
        [
            (-1, 1, 1),
            (0, 0, 0),
            (np.nan, 1, 1),
            (np.inf, 1, 1),
            ("1", 1, 1),
            (True, 1, 1),
            ((1, -1), 1, 1),
            ((1, None), 1, 1),
            (((1, 1),), 1, 1),
        ],
        *("order_1", "order_2", "dense"),
    ),
    once(lambda: Additive(order_1=(1, 2))(X), "2 weights", "4 columns"),
]
ALGEBRA = [
    each(
        lambda number: number * Gaussian(),
        [0, -1.0, np.nan, np.inf, np.float64(-2)],
        "above 0",
    ),
    each(
        lambda number: Gaussian() + number,
        [-1.0, np.nan, np.inf, np.float64(-2)],
        "above 0",
    ),
    each(
        Gaussian().on, [[], [0, 0], [-1], [1.5], ["a"], [[0]], None, [True]], "columns"
    ),
    *(
        each(make, [(), ("gaussian",), None, (1.0,)], "kernels")
        for make in (
            Sum,
            Product,
            lambda k: Scaled(1.0, k),
            lambda k: OnColumns(k, [0]),
        )
    ),
    once(
        lambda: with_length_scale(Gaussian(1.0) + Linear(), 3.0),
        "without a length scale",
    ),
    once(lambda: Additive(kernel=Matern(nu=0.5)).differentiate(X), "derivative"),
]
ROWS = [
    once(lambda: Min()([[1.0], [-2.0]]), "-2", "Min(lower, upper)", error=DataError),
    once(lambda: Min([0, 0], 1)([[1.0, 1.0, 1.0]]), "2 intervals", "3 columns"),
    once(lambda: Linear().on([0, 4])(X), "column 4", "4 columns", error=DataError),
    once(
        lambda: (Gaussian() + Linear().on([0, 4])).check_columns(3),
        "column 4",
        "0",
        "3 columns",
    ),
    once(lambda: Gaussian([1.0, 2.0, 3.0])(X), "3 entries", "4 columns"),
    each(
        lambda n: Gaussian([1.0, 2.0, 3.0]).sample_frequencies(n, 4, rng=0),
        [2],
        "3 entries",
        "2 columns",
    ),
]
DESCRIPTIONS = [
    each(
        kernel_from_dict,
        [
            "gaussian",
            {"name": "sum"},
            {"name": "sum", "kernels": []},
            {"name": "product", "kernels": [{"name": "box"}]},
            {"name": "scaled", "kernel": {"name": "linear"}},
            {"name": "on_columns", "kernel": {"name": "linear"}, "columns": [-1]},
            {"name": "constant", "value": 0},
            {},
            {"name": "gaussain"},
            {"name": "gaussian", "nu": 1.5},
            {"name": "matern", "nu": -1.0},
            {"name": "gaussian", "length_scale": 0.0},
        ],
    ),
    each(
        lambda name: kernel_from_dict(
            {
                "name": "spectral",
                "distribution": {"scipy": name, "parameters": {}},
                "length_scale": 1.0,
            }
        ),
        ["nothing", "os", "norm_gen", "rv_histogram", "multivariate_normal", 3],
        "scipy.stats",
    ),
    once(SpectralKernel(HISTOGRAM).to_dict, "scipy.stats", "stored"),
]
NAMES = [
    each(find_kernel, ["gausian"], "kernel", "'gausian'", "'gaussian'"),
    each(find_kernel, ["Matern"], "kernel", "'Matern'", "did you mean 'matern'"),
    each(find_kernel, ["laplace"], "kernel", "'laplace'", "did you mean 'laplacian'"),
    each(
        find_kernel, ["box", None, 3], "'additive'", "'cauchy'", "'gaussian'", "'sinc'"
    ),
    each(find_kernel, ["spectral"], "kernel", "'spectral'"),
    each(find_kernel, ["gaussian + lineer"], "did you mean 'linear'"),
    each(find_kernel, ["", "gaussian +", "* gaussian"], "operator"),
    each(find_kernel, ["matern:"], "''", "length_scale, nu"),
    each(
        find_kernel,
        ["matern:mu=1"],
        "'mu=1'",
        "length_scale, nu",
        "each a number and given once",
    ),
    *(
        each(find_kernel, [f"matern:{wrong}"], f"'{wrong}'", "length_scale, nu")
        for wrong in ("nu", "nu=smooth", "nu=nan")
    ),
    each(find_kernel, ["matern:nu=1,nu=2"], "'nu=2'"),
    each(find_kernel, ["linear:degree=2"], "no parameters"),
    each(find_kernel, ["matern:nu=-1"], "`nu` is -1"),
    each(find_kernel, ["polynomial:degree=2.5"], "`degree` is 2.5"),
    each(find_kernel, ["additive:kernel=2"], "unknown `kernel` '2'"),
    each(find_kernel, ["additive:kernel=laplacian"], "Gaussian()"),
    each(find_kernel, ["additive:order_1=-1"], "order_1", "at least 0"),
    each(find_kernel, ["gaussian:kernel=matern"], "'kernel=matern'"),
    each(find_kernel, ["-1 * gaussian"], "above 0"),
    each(find_kernel, ["gaussian:length_scale=2"], "`length_scale`"),
]
LAWS = [
    each(
        SpectralKernel,
        [
            None,
            "norm",
            3,
            stats.norm,
            stats.multivariate_t([0.0]),
            stats.multivariate_normal([0.0, 0.0]),
        ],
        "scipy.stats",
    ),
    once(lambda: SpectralKernel(stats.norm(scale=-1)), "scipy.stats.norm", "defined"),
    each(
        SpectralKernel,
        [stats.norm([0, 1]), stats.norm(np.nan), stats.t(np.inf)],
        "one finite number",
    ),
]
POSITIVE_DEFINITE = [
    each(
        check_positive_definite,
        [lambda r: 1.0, lambda r: np.exp(1j * r)],
        "one finite real number",
        error=DataError,
    ),
    once(
        lambda: check_positive_definite(lambda r: -np.exp(-r)),
        "-1",
        "distance 0",
        error=DataError,
    ),
    once(
        lambda: check_positive_definite(np.exp), "finite", "distances", error=DataError
    ),
    once(lambda: check_positive_definite(np.ones_like), "extent"),
    *(
        each(
            lambda value, name=name: check_positive_definite(
                lambda r: np.exp(-r), **{name: value}
            ),
            wrong,
        )
        for name, wrong in {
            "n_features": [0, 1.5],
            "extent": [0.0],
            "tolerance": [-1, np.nan],
        }.items()
    ),
]


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@for_each_refusal(
    *PARAMETERS, *ALGEBRA, *ROWS, *DESCRIPTIONS, *NAMES, *LAWS, *POSITIVE_DEFINITE
)
def test_what_cannot_be_is_refused_by_name(call, error, names):
    with refuses(error, *names):
        call()
