"""A trained ridge model, and how it is stored.

A solved fit goes in; a `RidgeModel` comes out, with everything that prediction, a check
of its origin and a later update need. Its card holds facts as JSON values. A model is
stored as JSON and checksummed arrays rather than by pickle, so that reading a file runs
no code.
"""

import hashlib
import logging
import platform
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib.metadata import version
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import folding
from rff_dist.errors import IntegrityError, RFFDistError, StatisticsError
from rff_dist.features import kinds, maps
from rff_dist.fitting import predicting
from rff_dist.numerics import machine
from rff_dist.numerics.solution import RidgeSolution
from rff_dist.ridge import held_out as held_outs
from rff_dist.ridge import uncertainty
from rff_dist.selection.error_table import CrossValidation
from rff_dist.statistics import moments, ridge_statistics
from rff_dist.storage import records
from rff_dist.text import redact, short_repr
from rff_dist.typing import AnyArray, Arrays, Facts, FloatArray, PathLike, Summary

logger = logging.getLogger(__name__)

KIND = "ridge model"
#: The fact of a card that says, in words, which rows' errors give intervals.
INTERVAL_ROWS = "interval_rows"


@dataclass(frozen=True, eq=False)
class RidgeModel:
    """Everything that prediction, inspection and a later update need."""

    #: With the standardizer of the inputs.
    feature_map: maps.FeatureMap
    coefficients: FloatArray  # shape (n_components, n_targets)
    intercept: FloatArray  # shape (n_targets,)
    #: Penalty of ‖y − Zw‖² + alpha‖w‖²; shape (n_targets,) if targets have different
    #: ones.
    alpha: float | FloatArray
    #: Whether predictions drop the target axis, as the training targets did.
    one_dimensional: bool
    #: The exact sums it was solved from; None if it was stored without them.
    statistics: ridge_statistics.RidgeStatistics | None = None
    #: The errors that alpha was chosen by, see `SelectedSolution.path`; empty for a
    #: given alpha.
    selection: Arrays = field(default_factory=dict)
    #: Errors of held-out rows, for intervals; None if intervals are normal ones.
    held_out: held_outs.HeldOutScores | None = None
    #: Moments of the inputs that it was trained on, for drift checks.
    columns: moments.ColumnMoments | None = None
    #: JSON-able facts: data fingerprint, rows, versions, processor, solver, metrics.
    card: Facts = field(default_factory=dict)

    __repr__ = short_repr

    @classmethod
    def from_solution(
        cls,
        feature_map: maps.FeatureMap,
        statistics: ridge_statistics.RidgeStatistics | None,
        solution: RidgeSolution,
        selection: Arrays,
        card: Facts,
        *,
        one_dimensional: bool = False,
        solver: Facts | None = None,
    ) -> Self:
        """Build a model from the results of a fit.

        A fit without sums has no `statistics`, so `one_dimensional` tells the shape of
        y. `solver` has facts for the card, besides the status.
        """
        sums: dict[str, Any] = {}
        if statistics is not None:
            one_dimensional = statistics.spec.one_dimensional
            sums = {
                "n_samples": statistics.n_samples,
                "statistics_digest": statistics.digest(),
            }
        status = {
            "status": str(solution.status),
            "causes": list(solution.status.causes),
            "remedies": list(solution.status.remedies),
            "effective_rank": solution.effective_rank,
            "alpha_floor": solution.floor,
            **(solver or {}),
        }
        facts: Summary = {
            "statistics_digest": None,
            "feature_map_digest": feature_map.digest(),
            "solver": status,
        }
        standardizer = feature_map.standardizer
        if standardizer is not None and standardizer.mapped_columns:
            facts["mapped_columns"] = list(standardizer.mapped_columns)
        facts["environment"] = describe_environment()
        facts["created"] = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(
            feature_map=feature_map,
            coefficients=solution.coefficients,
            intercept=solution.intercept,
            alpha=one_or_several(solution.alpha),
            one_dimensional=one_dimensional,
            statistics=statistics,
            selection=selection,
            card={**card, **facts, **sums},
        )

    @property
    def plain_alpha(self) -> float | list[float]:
        """The penalty for JSON: a number, or a list with one for each target."""
        alpha: float | list[float] = np.asarray(self.alpha).tolist()
        return alpha

    @property
    def fit_intercept(self) -> bool:
        return bool(self.card["fit_intercept"])

    @property
    def n_features(self) -> int:
        return self.feature_map.n_features

    @property
    def n_targets(self) -> int:
        return int(self.coefficients.shape[1])

    @property
    def cross_validation(self) -> CrossValidation | None:
        """The k-fold errors that alpha was chosen by; None if folds did not choose."""
        if "cv_errors" not in self.selection:
            return None
        folds = folding.folds_from_dict(self.card["folds"])
        return CrossValidation.from_arrays(folds, self.selection)

    @cached_property
    def linear(self) -> predicting.LinearModel:
        return predicting.LinearModel(
            self.feature_map, self.coefficients, self.intercept
        )

    @cached_property
    def predictive(self) -> uncertainty.PredictiveModel:
        """Predicts with standard deviations; made once and kept in memory.

        Raises StatisticsError if the model has no statistics, or is a classifier, whose
        scores are no observations; SolveError if the statistics do not determine a
        variance.
        """
        self.refuse_classifier("standard deviations")
        if self.statistics is None:
            raise StatisticsError(f"no standard deviations: {self.why_no_statistics}")
        return self.with_variances()

    def with_variances(self) -> uncertainty.PredictiveModel:
        """Return `predictive`, also of a classifier's scores, without keeping it."""
        return uncertainty.predictive_model(
            self.linear,
            self.summed,
            alpha=self.alpha,
            fit_intercept=self.fit_intercept,
        )

    @cached_property
    def spread(self) -> held_outs.SpreadModel | None:
        """The size of errors near a row; None if no rows were held out."""
        if self.held_out is None:
            return None
        return self.held_out.spread.with_features(self.feature_map)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out cached properties, which can be made again."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @property
    def summed(self) -> ridge_statistics.RidgeStatistics:
        """The statistics; StatisticsError if the model was stored without them."""
        if self.statistics is None:
            raise StatisticsError(self.why_no_statistics)
        return self.statistics

    @property
    def why_no_statistics(self) -> str:
        """The message that says why there are no statistics, and what to do."""
        if self.card["solver"].get("method") == "pcg":
            return (
                "this model was solved by conjugate gradients, which make no"
                " statistics; fit with solver='direct'"
            )
        return (
            "this model was stored without its statistics; store it with"
            " `statistics=True`, or fit again"
        )

    def refuse_classifier(self, what: str) -> None:
        """Raise StatisticsError if the model is a classifier, which has no `what`."""
        if "classifier" in self.card:
            raise StatisticsError(
                f"no {what}: this model is a classifier"
                f" (loss={self.card['classifier']['loss']!r}), whose statistics are"
                " those of ridge on class codes; expected a regression. Take its"
                " probabilities: `predict_proba`, or `rff-dist predict"
                " --probabilities`"
            )

    def with_card(self, **facts: Any) -> Self:
        return replace(self, card={**self.card, **facts})

    def with_intervals(self, scores: held_outs.HeldOutScores | None, rows: str) -> Self:
        """Return the model with intervals by these scores; None gives normal intervals.

        `rows` says on the card, in words, which rows the scores come from.
        """
        card = {name: self.card[name] for name in self.card if name != INTERVAL_ROWS}
        if scores is not None:
            card[INTERVAL_ROWS] = f"{scores.n_samples:,} {rows}"
        return replace(self, held_out=scores, card=card)

    def without_statistics(self) -> Self:
        """Return the same model without its sums: smaller, but it cannot be updated."""
        return replace(self, statistics=None)

    def digest(self) -> str:
        """Return the SHA-256 of everything that decides predictions."""
        hasher = hashlib.sha256(self.feature_map.digest().encode())
        for array in (self.coefficients, self.intercept):
            # little-endian, so that machines agree
            hasher.update(
                np.ascontiguousarray(array).astype("<f8", copy=False).tobytes()
            )
        return hasher.hexdigest()


def one_or_several(alpha: ArrayLike) -> float | FloatArray:
    """Return one number if all targets have the same, else an array of all."""
    values = np.atleast_1d(np.asarray(alpha, np.float64))
    return float(values[0]) if (values == values[0]).all() else values


def describe_environment() -> Summary:
    """Return the versions and the kind of processor that bits depend on."""
    blas = set()
    for library in machine.blas_libraries():
        architecture = library.get("architecture", "")
        words = (library["internal_api"], library["version"], architecture)
        blas.add(" ".join(words).strip())
    packages = ("rff_dist", "numpy", "scipy", "zarr")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: _version(name) for name in packages},
        "blas": sorted(blas),
    }


_version = cache(version)  # `version` reads a file


def write_model(model: RidgeModel, url: PathLike, *, overwrite: bool = False) -> None:
    """Store a model; a reader sees the old model or the new one, never a part.

    Raises OutputExistsError if there is something at `url` and `overwrite` is False;
    StorageError if it cannot be written.
    """
    features, stored = record_features(model.feature_map)
    arrays = {
        "coefficients": model.coefficients,
        "intercept": model.intercept,
        **stored,
    }
    parts: dict[str, Arrays] = {"selection": model.selection}
    if model.held_out is not None:
        parts["held_out"] = model.held_out.to_arrays()
    if model.columns is not None:
        parts["columns"] = model.columns.to_arrays()
    metadata: Summary = {
        "alpha": model.plain_alpha,
        "one_dimensional": model.one_dimensional,
        "feature_map": features,
        "card": dict(model.card),
        "digest": model.digest(),
    }
    if model.statistics is not None:
        metadata["statistics"], parts["statistics"] = model.statistics.to_arrays()
    for part, named in parts.items():
        arrays |= {f"{part}_{name}": array for name, array in named.items()}
    records.write_record(
        url, kind=KIND, metadata=metadata, arrays=arrays, overwrite=overwrite
    )


def read_model(url: PathLike) -> RidgeModel:
    """Read a model that `write_model` stored.

    Raises StorageError if there is no model, or it is damaged (IntegrityError), unsafe
    (UnsafeModelError) or too new (VersionError).
    """
    return model_from(records.read_record(url, kind=KIND), url)


def model_from(record: records.Record, url: PathLike) -> RidgeModel:
    """Return the model of a record that was read from `url`.

    Raises IntegrityError if an entry is missing, or has an impossible value.
    """
    try:
        return _from_record(record)
    except RFFDistError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        defect = f"holds another value: {error}"
        if isinstance(error, KeyError):
            defect = f"lacks {error}"
        raise IntegrityError(
            f"the model at {redact(str(url))} {defect}; store it again"
        ) from error


def _from_record(record: records.Record) -> RidgeModel:
    arrays = record.arrays
    metadata = record.metadata
    statistics = None
    feature_map = read_features(metadata["feature_map"], arrays)
    if "statistics" in metadata:
        packed = kinds.with_prefix(arrays, "statistics_")
        statistics = ridge_statistics.RidgeStatistics.from_arrays(
            metadata["statistics"], packed
        )
        statistics = statistics.with_whitener(feature_map.whitener)
    held_out = kinds.with_prefix(arrays, "held_out_")
    columns = kinds.with_prefix(arrays, "columns_")
    return RidgeModel(
        feature_map=feature_map,
        coefficients=arrays["coefficients"],
        intercept=arrays["intercept"],
        alpha=one_or_several(metadata["alpha"]),
        one_dimensional=metadata["one_dimensional"],
        statistics=statistics,
        selection=kinds.with_prefix(arrays, "selection_"),
        held_out=held_outs.HeldOutScores.from_arrays(held_out) if held_out else None,
        columns=moments.ColumnMoments.from_arrays(columns) if columns else None,
        card=metadata["card"],
    )


def record_features(
    feature_map: maps.FeatureMap,
) -> tuple[Summary, dict[str, AnyArray]]:
    """Return a feature map as JSON values and named arrays."""
    facts, stored = feature_map.record()
    arrays = {f"features_{name}": array for name, array in stored.items()}
    if feature_map.standardizer is not None:
        arrays |= feature_map.standardizer.to_arrays()
    values = {
        "kind": feature_map.kind,
        "n_features": feature_map.n_features,
        "digest": feature_map.digest(),
        **facts,
        **maps.spec_record(feature_map),
    }
    return values, arrays


def read_features(values: Facts, arrays: Arrays) -> maps.FeatureMap:
    """Rebuild the map of `record_features`; draw it again if that gives the same."""
    standardizer = maps.Standardizer.from_arrays(arrays)
    stored = kinds.read_map(
        values, kinds.with_prefix(arrays, "features_"), standardizer
    )
    return kinds.drawn_again(stored, values.get("spec"), values["digest"])
