"""Kernel methods on data of any size: exact statistics of random features, summed up in
blocks, on Dask.

Every job is a pass over row blocks of a Zarr dataset. A random feature map turns the
rows into features, and their statistics add up exactly. Everything after the pass is
arithmetic on these statistics::

    from rff_dist import RFFRidge

    # "data.zarr" may also be NumPy, Dask or Zarr arrays
    model = RFFRidge("matern", n_components=4096).fit("data.zarr")
    model.predict("new.zarr")

If the estimators are not enough, use the pieces: `open_dataset`, `write_dataset` and
`append_dataset`; kernels such as `Gaussian`; `draw_feature_map`; `accumulate` on a
`SerialEngine` or a `DaskEngine`; and the `RidgeStatistics` that it returns, which are
added and subtracted without rounding.

Importing the package is cheap: Dask, Zarr and scikit-learn are imported when they are
first needed.
"""

import re
from importlib import import_module
from pkgutil import get_data
from typing import Any

from rff_dist.kernels.registry import KERNELS

__version__ = "0.1.0"

# The module of each public name: from the registry for kernels, from the stub for type
# checkers for all others. The stub imports one name per statement.
_STUB = get_data(__name__, "__init__.pyi")
assert _STUB is not None
_HOMES = {
    name: module
    for module, name in re.findall(
        r"^from (\S+) import \(?\s*(\w+)", _STUB.decode(), re.M
    )
}
for _path in KERNELS.values():
    _module, _, _name = _path.rpartition(".")
    _HOMES[_name] = _module

__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'rff_dist' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    # From now on Python finds the name here, and does not call this function for it.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
