"""Arrow, which is imported when it is first used."""

from typing import TYPE_CHECKING

from rff_dist.lazy import LazyModule

if TYPE_CHECKING:
    import pyarrow as pyarrow
    from pyarrow import compute as compute
    from pyarrow import types as types
else:
    pyarrow, compute, types = map(
        LazyModule, ("pyarrow", "pyarrow.compute", "pyarrow.types")
    )
