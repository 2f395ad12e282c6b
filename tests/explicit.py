"""Z as k-means has it, in float64."""

import numpy as np

from rff_dist.numerics.runs import expand


def explicit_Z(feature_map, X):
    """Z of the features that k-means makes, which are float32 numbers where the map has such."""
    if not feature_map.single_precision:
        return feature_map.transform(X)
    lines = np.empty((len(X), feature_map.n_components), np.float32)
    feature_map.fill_lines(feature_map.prepare(np.asarray(X)), lines)
    return lines * expand(feature_map.scales)
