"""What a stored model of any kind says of every row of a dataset, written in one pass."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rff_dist import class_prediction, kmeans_labels, prediction
from rff_dist.blocks import Dataset
from rff_dist.cluster_model import digest_of, read_any
from rff_dist.engines import Engine
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.kmeans_starts import Clusters
from rff_dist.model import RidgeModel
from rff_dist.storage import ZarrDataset, open_dataset, redact
from rff_dist.storage.locations import holds_versions, parse_location
from rff_dist.storage.registry import RegisteredModel


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is written beside predictions or labels.

    Attributes
    ----------
    std : bool
        Of a regression, standard deviations.
    coverage : float or None
        Of a regression, the ends of intervals that hold a new value with this probability.
    probabilities : bool
        Of a classifier, those of the classes.
    distances : bool
        Of clusters, those to all centres.
    """

    std: bool = False
    coverage: float | None = None
    probabilities: bool = False
    distances: bool = False


@dataclass(frozen=True, slots=True)
class ScoringModel:
    """A model as it is used to score: `open_model` makes it.

    Attributes
    ----------
    model : RidgeModel or Clusters
    version : int or None
        Its number, of a registered model.
    digest : str
        Of all that its predictions depend on.
    """

    model: RidgeModel | Clusters
    version: int | None
    digest: str

    @property
    def kind(self) -> str:
        """One of "regression", "classifier" and "clusters"."""
        if isinstance(self.model, Clusters):
            return "clusters"
        return "classifier" if "classifier" in self.model.card else "regression"


def open_model(url: str | os.PathLike[str]) -> ScoringModel:
    """Read a model, of a registered one the version that is current now.

    Raises
    ------
    StorageError
        If there is none, or it is damaged.
    """
    version = RegisteredModel(url).current() if holds_versions(parse_location(url)) else None
    model = read_any(url if version is None else version.url)
    digest = digest_of(model) if isinstance(model, Clusters) else model.digest()
    return ScoringModel(model, None if version is None else version.number, digest)


def open_rows(
    url: str | os.PathLike[str], scoring: ScoringModel, *, x: str = "X", missing_chunks: str = "error"
) -> ZarrDataset:
    """Open the rows that a model is to score, without their targets.

    Raises
    ------
    DataError
        If they have other columns than the model was trained on.
    StorageError
        If there are none.
    """
    dataset = open_dataset(url, x=x, y=None, missing_chunks=missing_chunks)
    try:
        if isinstance(scoring.model, Clusters):
            kmeans_labels.check_columns(dataset, scoring.model)
        else:
            prediction.check_dataset(dataset, scoring.model)
    except DataError as error:
        raise DataError(
            f"{redact(os.fspath(url))} does not fit the model: {error}. Give data of the columns that the "
            "model was trained on, or another model"
        ) from error
    return dataset


def check_wanted(scoring: ScoringModel, wanted: Wanted) -> None:
    """Refuse what a model of this kind does not have, before a pass begins.

    Raises
    ------
    InvalidParameterError
        If it has none.
    SolveError
        If a classifier has no probabilities.
    """
    only = {
        "std": (wanted.std, "regression"),
        "coverage": (wanted.coverage is not None, "regression"),
        "probabilities": (wanted.probabilities, "classifier"),
        "distances": (wanted.distances, "clusters"),
    }
    for name, (is_wanted, kind) in only.items():
        if is_wanted and kind != scoring.kind:
            raise InvalidParameterError(
                f"`{name}` is wanted of a model that is no {kind} but {scoring.kind}; leave it out"
            )
    if wanted.coverage is not None and not 0.0 < wanted.coverage < 1.0:
        raise InvalidParameterError(
            f"`coverage` is {wanted.coverage!r}; expected a number in (0, 1), such as 0.9"
        )
    if isinstance(scoring.model, RidgeModel) and wanted.probabilities:
        _require_probabilities(scoring.model)


def _require_probabilities(model: RidgeModel) -> None:
    if model.card["classifier"]["calibration"] is None:
        raise class_prediction.no_probabilities(model)


def score(
    dataset: Dataset,
    scoring: ScoringModel,
    url: str | os.PathLike[str],
    *,
    wanted: Wanted,
    engine: Engine,
    overwrite: bool = False,
) -> Mapping[str, Any]:
    """Write what a model says of each row to a new Zarr group, which appears when it is complete.

    Returns
    -------
    facts : dict
        `arrays`, the names of what was written, and `n_samples`.

    Raises
    ------
    RFFDistError
        As `check_wanted`, `prediction.predict`, `class_prediction.predict` and `kmeans_labels.write_labels`.
    """
    check_wanted(scoring, wanted)
    model = scoring.model
    if isinstance(model, Clusters):
        arrays = ["labels", *(["distances"] if wanted.distances else [])]
        written = kmeans_labels.write_labels(
            dataset, model, url, engine=engine, distances=wanted.distances, overwrite=overwrite
        )
    elif scoring.kind == "classifier":
        arrays = ["labels", *(["probabilities"] if wanted.probabilities else [])]
        written = class_prediction.predict(
            dataset, model, url, engine=engine, probabilities=wanted.probabilities, overwrite=overwrite
        )
    else:
        arrays = ["predictions", *(["standard_deviations"] if wanted.std else [])]
        arrays += ["lower", "upper"] if wanted.coverage is not None else []
        written = prediction.predict(
            dataset,
            model,
            url,
            engine=engine,
            std=wanted.std,
            coverage=wanted.coverage,
            column_names=model.card.get("target_names"),
            overwrite=overwrite,
        )
    return {"arrays": arrays, "n_samples": written}
