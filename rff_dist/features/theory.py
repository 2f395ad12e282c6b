"""What theory says about the error of random features, next to the error that was measured."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rff_dist.errors import InvalidParameterError
from rff_dist.features import approximation, bounds, maps

#: Measures of the error on sampled rows that have a rate in theory, and one that no rows can measure.
MEASURED = ("mean", "max", "relative_operator_norm")
BOUNDED = (*MEASURED, "compact_set")

type _Law = tuple[Callable[[int], float], Callable[[float], int]]


@dataclass(frozen=True)
class Theory:
    """What theory says about the measured errors, for kernels that it covers.

    `found`: the measured errors.
    `laws`: for each measure, the error of a number of components, and the components for an error. The
      measure "compact_set" is the largest error at any two points of the box that holds the inputs.
    `refusals`: why the other measures have no rate.
    """

    found: approximation.ApproximationError
    laws: Mapping[str, _Law]
    refusals: Mapping[str, str]

    def bounds(self, n_components: int) -> dict[str, float | None]:
        """Return theory's error for each measure; None if it has no rate."""
        laws = {name: self.laws.get(name) for name in BOUNDED}
        return {name: None if law is None else law[0](n_components) for name, law in laws.items()}

    def needed(self, error: float) -> dict[str, dict[str, float | None]]:
        """Return the D for an error: by 1/√D from the measured error, by theory, and the ratio of the two."""
        rows: dict[str, dict[str, float | None]] = {}
        for name in BOUNDED:
            law = self.laws.get(name)
            theory = None if law is None else law[1](error)
            # No rows can measure the whole box; the largest error on the sample comes nearest.
            measured = self.found.components_for(error, measure=name if name in MEASURED else "max")  # type: ignore[arg-type]
            rows[name] = {
                "measured": measured if name in MEASURED else None,
                "theory": theory,
                "factor": None if theory is None else theory / measured,
            }
        return rows


def theory_of(
    spec: maps.FeatureSpec,
    errors: approximation.ApproximationError,
    *,
    delta: float,
    variance: float,
    diameter: float,
) -> Theory:
    """Return what theory says about features.

    `variance`: the variance of their kernel values, times the number of components.
    `diameter`: of the box that holds the inputs.
    """
    try:
        moment = bounds.second_moment(spec.kernel, spec.n_features)
    except InvalidParameterError:
        reason = f"bounds are for one shift-invariant kernel with k(0) = 1, not for {spec.kernel}"
        return Theory(errors, {}, dict.fromkeys(BOUNDED, reason))
    chance: Any = {"delta": delta, "map": spec.map}
    pairs: Any = {"n_points": errors.n_samples, **chance}
    gram: Any = {"n_points": errors.n_samples, "gram_norm": errors.gram_norm}
    laws: dict[str, _Law] = {
        "mean": (
            # The variance of a mean of independent terms falls as 1/D.
            lambda n_components: math.sqrt(variance / n_components),
            # an even number, for pairs of cosines and sines
            lambda error: 2 * max(1, math.ceil(variance / error**2 / 2)),
        ),
        "max": _law(bounds.pairwise_error, bounds.pairwise_components, pairs),
        "relative_operator_norm": _law(bounds.operator_norm_error, bounds.operator_norm_components, gram),
    }
    if moment == math.inf:
        reason = "the second moment of the kernel's frequencies is infinite, so there is no bound over a box"
        return Theory(errors, laws, {"compact_set": reason})
    if not diameter > 0:
        return Theory(errors, laws, {"compact_set": "the box of the sampled inputs is a point"})
    box: Any = {"n_features": spec.n_features, "second_moment": moment, "diameter": diameter, **chance}
    laws["compact_set"] = _law(bounds.compact_set_error, bounds.compact_set_components, box)
    return Theory(errors, laws, {})


def _law(error: Callable[..., float], components: Callable[..., int], facts: Mapping[str, Any]) -> _Law:
    return partial(error, **facts), partial(components, **facts)
