"""The median heuristic: a length scale from the distances between rows.

A dataset and a kernel go in, and the median distance between distinct rows of a sample
comes out, in the kernel's metric. Without it a length scale would not know the units of
the columns.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

import numpy as np

from rff_dist.data import blocks, samples
from rff_dist.errors import DataError
from rff_dist.features import maps
from rff_dist.kernels import stationary
from rff_dist.typing import FloatArray

logger = logging.getLogger(__name__)


class MedianDistances:
    """Length scales: the median distance between distinct rows of a seeded sample, in a
    kernel's metric.

    This is a first guess, right within a factor of a few for smooth targets.
    Cross-validation and the evidence are better but take longer. The sample is read
    once, when it is first needed.

    `seed`: of the sample of up to 1,000 rows.
    """

    def __init__(
        self,
        dataset: blocks.Dataset,
        standardizer: maps.Standardizer | None,
        *,
        seed: int,
    ) -> None:
        self._dataset = dataset
        self._standardizer = standardizer
        self._seed = seed
        self._medians: dict[tuple[Any, ...], float] = {}

    @cached_property
    def _points(self) -> FloatArray:
        sample = samples.sample_inputs(self._dataset, self._seed)
        return (
            np.asarray(sample, np.float64)
            if self._standardizer is None
            else self._standardizer(sample)
        )

    def __call__(
        self, kernel: stationary.Stationary, columns: tuple[int, ...] | None = None
    ) -> float:
        """Return the length scale of a kernel that sees these input columns; all by
        default.

        It is in units of the (standardised) inputs, and 1 if all sampled rows are
        equal.
        """
        key = kernel.metric, columns, kernel.categories
        if key not in self._medians:
            points = self._points if columns is None else self._points[:, list(columns)]
            median = median_distance(points, kernel)
            if median is None:
                logger.warning(
                    "all sampled rows are equal: the median heuristic gives a length"
                    " scale of 1"
                )
                median = 1.0
            self._medians[key] = median
        return self._medians[key]


def median_distance(points: FloatArray, kernel: stationary.Stationary) -> float | None:
    """Return `numpy.median(scipy.spatial.distance.pdist(numpy.unique(points, axis=0),
    metric))`.

    That is the median distance between distinct rows, in the kernel's metric; None if
    all are equal.

    Raises DataError if the distance is too small or large for float64.
    """
    # repeated rows say nothing about the scale, so they must not change it
    distinct = np.unique(points, axis=0)
    unit_scales = np.ones(points.shape[1])
    as_points = stationary.as_points(distinct, unit_scales, kernel.categories)
    distances = as_points.distances_between(kernel.metric)
    if not len(distances):
        return None
    median = float(np.median(distances))
    if not 0 < median < stationary.FAR:
        raise DataError(
            f"the median distance between rows is {median:g}; scale X to the order of 1"
        )
    return median
