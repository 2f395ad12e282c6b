"""Whether D is large enough: the error of Z Z' on sampled rows.

D is the number of components of the features Z, and Z Z' approximates the kernel's Gram
matrix K. A feature map and rows go in; the largest, mean and spectral error of Z Z'
come out. The bounds of theory, see `bounds.py`, are 10 to 100 times as large.
"""

from __future__ import annotations  # an evaluated annotation would load numpy.random

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.checks import as_array, check_count, check_name, check_positive
from rff_dist.data import blocks, memory
from rff_dist.data.samples import sample_inputs
from rff_dist.errors import DataError
from rff_dist.features import draw, maps
from rff_dist.kernels import base, names
from rff_dist.typing import frozen

MEASURES = ("mean", "max", "operator_norm", "relative_operator_norm")


@frozen
class ApproximationError:
    """How far Z Z' is from the kernel's Gram matrix K of a sample of rows."""

    #: The mean absolute entry of Z Z' - K.
    mean: float
    #: The largest absolute entry, which grows slowly with the sample.
    max: float
    #: ‖Z Z' - K‖, the largest absolute eigenvalue, which grows with the sample as ‖K‖.
    operator_norm: float
    #: ‖Z Z' - K‖ / ‖K‖
    relative_operator_norm: float
    #: ‖K‖
    gram_norm: float
    n_components: int
    #: Rows of the sample.
    n_samples: int

    def components_for(self, error: float, *, measure: str = "max") -> int:
        """Return the D at which a measure would fall to `error`, by the 1/√D rate.

        It is even, since features come in pairs of a cosine and a sine.
        Raises InvalidParameterError if the error is not above 0, or the measure is
        unknown.
        """
        check_name(measure, MEASURES, "measure")
        measured: float = getattr(self, measure)
        ratio = measured / check_positive(error, "error")
        return 2 * max(1, math.ceil(self.n_components * ratio**2 / 2))


def approximation_error(
    kernel: str | base.Kernel,
    feature_map: maps.FeatureMap,
    X: ArrayLike | blocks.Dataset,
    *,
    n_samples: int = 1000,
    random_state: int | np.random.Generator | np.random.RandomState | None = 0,
) -> ApproximationError:
    """Measure how far Z Z' is from the kernel on a sample of rows.

    If the map standardises its inputs, the kernel sees standardised rows too. Only
    sampled rows of a dataset are read. The feature map is one draw: the errors of draws
    with other seeds differ. O(n_samples² · n_components + n_samples³).

    Parameters
    ----------
    kernel : name or Kernel
        The kernel that is approximated, with its length scale in units of the
        (standardised) inputs. For a map that was drawn: `feature_map.spec.kernel`.
    X : array-like of shape (n_rows, n_features), or Dataset
        Rows of weight 0 are left out.
    n_samples : int
        Rows of the sample, at least 2; all rows if X has fewer.
    random_state : int, Generator, RandomState or None
        Seed of the choice of rows.

    Returns
    -------
    error : ApproximationError
        Its `mean`, `max`, `operator_norm`, `relative_operator_norm` and `gram_norm` are
        numbers; `components_for(0.05)` is the D at which the largest error would be
        0.05.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    DataError
        If X has another number of columns than the map expects, fewer than 2 rows, or
        values that are not finite, or the kernel is 0 on all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import Gaussian, approximation_error, draw_feature_map
    >>> X = np.random.default_rng(0).standard_normal((4000, 3))
    >>> feature_map = draw_feature_map(Gaussian(2.0), n_features=3, n_components=1024)
    >>> error = approximation_error(Gaussian(2.0), feature_map, X)
    >>> error.mean < 0.02, error.max < 0.15, error.relative_operator_norm < 0.05
    (True, True, True)
    """
    exact = names.find_kernel(kernel)
    exact.check_columns(feature_map.n_features)
    check_count(n_samples, "n_samples", least=2)
    seed = draw.seed_from_random_state(random_state)
    if isinstance(X, blocks.Dataset):
        dataset = X
    else:
        dataset = memory.ArrayDataset(as_array(X, "X"))
    rows = sample_inputs(dataset, seed, n_rows=n_samples)
    if len(rows) < 2:
        raise DataError(f"the data have {len(rows)} rows; expected at least 2")

    gram = exact(feature_map.prepare(rows))
    # K is positive semi-definite, so its largest eigenvalue is its norm. SciPy counts
    # eigenvalues upwards; the subset is the first and the last that it computes.
    last = len(gram) - 1
    [largest] = scipy.linalg.eigvalsh(gram, subset_by_index=[last, last])
    gram_norm = float(largest)
    if not gram_norm > 0:
        raise DataError(
            "the kernel is 0 on all sampled rows, so that no error is relative to it"
        )
    Z = feature_map.transform(rows)
    error = Z @ Z.T - gram
    # the difference may have a negative eigenvalue that is largest in size
    eigenvalues = scipy.linalg.eigvalsh(error)
    operator_norm = float(np.abs(eigenvalues[[0, -1]]).max())
    return ApproximationError(
        mean=float(np.abs(error).mean()),
        max=float(np.abs(error).max()),
        operator_norm=operator_norm,
        relative_operator_norm=operator_norm / gram_norm,
        gram_norm=gram_norm,
        n_components=feature_map.n_components,
        n_samples=len(rows),
    )
