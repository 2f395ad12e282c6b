"""What tells results apart to the bit, results of every kind of sums, and bits that are
flipped.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from rff_dist import RFFPCA, HashFolds, RFFKMeans, accumulate, draw_feature_map
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.protocol import Engine
from rff_dist.statistics import inspection, passes, row_passes, standardizing
from rff_dist.statistics.accumulate import Accumulation
from rff_dist.statistics.label_counts import count_labels
from rff_dist.storage.columns import as_column


def flipped(content: bytes, bit: int) -> bytes:
    """Return bytes of which one bit is another."""
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def bits_of(value: Any) -> Any:
    """Return what tells results apart to the bit."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if is_dataclass(value):
        return [
            type(value).__name__,
            *(bits_of(getattr(value, one.name)) for one in fields(value)),
        ]
    if isinstance(value, Mapping):
        return sorted((key, bits_of(one)) for key, one in value.items())
    if isinstance(value, tuple | list):
        return [bits_of(one) for one in value]
    return repr(value)


def sums_of_every_kind(engine: Engine) -> dict[str, Any]:
    """Return the bits of a small pass of each kind, over three blocks."""
    rng = np.random.default_rng(0)
    X = rng.standard_t(2.0, (40_000, 3))
    data = ArrayDataset(X, np.sin(X[:, 0]), rng.uniform(0.5, 2.0, len(X)))
    assert len(row_passes.blocks_of(data)) == 3
    moments = inspection.inspect(data, engine=engine)
    feature_map = draw_feature_map(
        "gaussian", n_features=3, n_components=8, random_state=0
    )
    sums = accumulate(data, feature_map, engine=engine)
    [folds] = passes.accumulate_folds(
        data, [Accumulation(feature_map, sums.spec)], folds=HashFolds(3), engine=engine
    )
    options = {
        "length_scale": 1.0,
        "features": "fourier",
        "random_state": 0,
        "engine": engine,
    }
    components = RFFPCA(2, n_random_features=8, normalize="degree", **options).fit(X)
    clusters = RFFKMeans(2, n_components=8, tol=0.1, **options).fit(X)
    return {
        "moments": bits_of(moments),
        "ranks": bits_of(
            standardizing.standardizer_for(
                data, moments, "rank", engine=engine
            ).to_arrays()
        ),
        "labels": bits_of(count_labels(as_column(np.sign(X[:, 0])), engine=engine)),
        "sums": sums.digest(),
        "sums of folds": [one.digest() for one in folds.parts],
        "components": [
            components.statistics_.digest(),
            bits_of(components.transform(X)),
        ],
        "clusters": [bits_of(clusters.labels_), clusters.inertia_],
    }
