"""Tables with text, dates and gaps: CSV files of a folder, in splits 0 to 9, and how
each model takes them.
"""

from __future__ import annotations

import io
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss

from benchmarks.defaults.models import OURS, Fit
from rff_dist import RFFClassifier, RFFRidge

# the column to predict in NAME.csv
TARGETS = {
    "healthexp": "Life_Expectancy",
    "hitters": "Salary",
    "housing_california": "median_house_value",
    "insurance": "charges",
    "taxis": "fare",
    "wage": "wage",
    "telco": "Churn",
    "titanic": "survived",
    "letter": "letter",
}
CLASSES = {"telco", "titanic", "letter"}
HELD_OUT = 0.25
MISSING = ("", " ", "NA")


@dataclass(frozen=True)
class TableSplit:
    """Rows to train on and rows held out, as the file's texts; a target of numbers is
    numbers.
    """

    X: pd.DataFrame
    y: np.ndarray
    X_test: pd.DataFrame
    y_test: np.ndarray

    @property
    def digest(self) -> str:
        """Of all texts."""
        parts = (self.X, pd.Series(self.y), self.X_test, pd.Series(self.y_test))
        return f"{crc32(''.join(part.to_csv() for part in parts).encode()):08x}"


type DrawTable = Callable[[int], TableSplit]


def tables_of(folder: Path | None) -> dict[str, DrawTable]:
    """Return what draws a split of each known table that is in the folder, by name."""
    if folder is None:
        return {}
    return {
        name: partial(_cut, folder / f"{name}.csv", name)
        for name in TARGETS
        if (folder / f"{name}.csv").exists()
    }


def _cut(path: Path, name: str, split: int) -> TableSplit:
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    y = rows.pop(TARGETS[name])
    known = ~y.isin(MISSING)
    rows = rows[known]
    target = y[known].to_numpy(object if name in CLASSES else float)
    order = np.random.default_rng(split).permutation(len(rows))
    test, train = np.split(order, [int(HELD_OUT * len(rows))])
    return TableSplit(rows.iloc[train], target[train], rows.iloc[test], target[test])


def measure_of(split: TableSplit, *, classes: bool) -> str:
    """Return how errors are measured: two classes by squares, more by logarithms."""
    if not classes:
        return "z-RMSE"
    return "Brier score" if len(np.unique(split.y)) == 2 else "log loss"


def error_of(fitted: Any, split: TableSplit, measure: str) -> float:
    """Return the error on the rows held out, by one of the three measures."""
    if measure == "z-RMSE":
        errors = fitted.predict(split.X_test) - split.y_test
        return float(np.sqrt(np.mean(errors**2)) / split.y.std())
    probabilities = fitted.predict_proba(split.X_test)
    labels = np.unique(split.y)
    if measure == "log loss":
        return float(log_loss(split.y_test, probabilities, labels=labels))
    is_second = split.y_test == labels[1]
    return float(np.mean((probabilities[:, 1] - is_second) ** 2))


class _Ours:
    """Ours from a CSV file, as `rff-dist auto` ingests and fits it."""

    def __init__(self, classes: bool) -> None:
        from rff_dist import fields
        from rff_dist.workbench.jobs import ingest, specs

        self._ingest = lambda **options: ingest.ingest(
            fields.build(specs.Ingest, {**options, "on_nan": "drop"})
        )
        self.model = (RFFClassifier if classes else RFFRidge)(random_state=0)
        self.folder = tempfile.mkdtemp(prefix="rff_dist-bench-")
        # predictions need what was ingested, until nobody has the model
        weakref.finalize(self, shutil.rmtree, self.folder)
        self.train = f"{self.folder}/train.zarr"

    def fit(self, X: pd.DataFrame, y: np.ndarray) -> _Ours:
        path = f"{self.folder}/train.csv"
        X.assign(target=y).to_csv(path, index=False)
        self._ingest(
            sources=[path], data=self.train, targets=["target"], impute="median"
        )
        self.model.fit(self.train)
        return self

    def predict(self, X: pd.DataFrame) -> np.ndarray:
        return np.asarray(self.model.predict(self._rows(X)))

    def predict_proba(self, X: pd.DataFrame) -> np.ndarray:
        return np.asarray(self.model.predict_proba(self._rows(X)))

    def _rows(self, X: pd.DataFrame) -> str:
        path, rows = (f"{self.folder}/test.{end}" for end in ("csv", "zarr"))
        X.to_csv(path, index=False)
        self._ingest(sources=[path], data=rows, recipe=self.train)
        return rows


class _Trees:
    """Boosted trees from numbers with gaps, parts of dates, and their own categories."""

    def __init__(self, fit: Callable[[pd.DataFrame, np.ndarray, list[str]], Any]):
        self._fit = fit

    def fit(self, X: pd.DataFrame, y: np.ndarray) -> _Trees:
        rows = typed(X, [])
        texts = rows.select_dtypes(["str", "object"])
        self.dates = [name for name in texts if _is_date(texts[name])]
        self.levels = {
            name: np.unique(texts[name].dropna())
            for name in texts
            if name not in self.dates
        }
        self.model = self._fit(self._columns(X), y, [*self.levels])
        return self

    def predict(self, X: pd.DataFrame) -> np.ndarray:
        return np.asarray(self.model.predict(self._columns(X)))

    def predict_proba(self, X: pd.DataFrame) -> np.ndarray:
        return np.asarray(self.model.predict_proba(self._columns(X)))

    def _columns(self, X: pd.DataFrame) -> pd.DataFrame:
        rows = typed(X, [*self.levels, *self.dates])
        for name in self.dates:
            date = pd.to_datetime(rows.pop(name), format="ISO8601")
            rows[f"{name} days"] = (date - pd.Timestamp(0)) / pd.Timedelta(days=1)
            rows[f"{name} weekday"] = date.dt.day_of_week
            rows[f"{name} hour"] = date.dt.hour
        for name, levels in self.levels.items():
            rows[name] = pd.Categorical(rows[name], categories=levels)
        return rows


def typed(X: pd.DataFrame, texts: list[str]) -> pd.DataFrame:
    """Return columns with the types that pandas reads them as."""
    text = io.StringIO(X.to_csv(index=False))
    return pd.read_csv(text, na_values=[*MISSING], dtype=dict.fromkeys(texts, str))


def _is_date(column: pd.Series) -> bool:
    known = column.dropna()
    return bool(pd.to_datetime(known, format="ISO8601", errors="coerce").notna().all())


def _catboost(classes: bool, n_threads: int) -> Fit:
    from catboost import CatBoostClassifier, CatBoostRegressor

    class Texts:
        """CatBoost, which takes levels as texts, and missing ones as another text."""

        def __init__(self, X: pd.DataFrame, y: np.ndarray, categories: list[str]):
            self.categories = categories
            self.model = (CatBoostClassifier if classes else CatBoostRegressor)(
                random_seed=0,
                thread_count=n_threads,
                verbose=False,
                allow_writing_files=False,
                cat_features=categories,
            ).fit(self._texts(X), y)

        def predict(self, X: pd.DataFrame) -> Any:
            return self.model.predict(self._texts(X))

        def predict_proba(self, X: pd.DataFrame) -> Any:
            return self.model.predict_proba(self._texts(X))

        def _texts(self, X: pd.DataFrame) -> pd.DataFrame:
            return X.assign(
                **{
                    name: X[name].astype(object).fillna("missing")
                    for name in self.categories
                }
            )

    return _Trees(Texts).fit


def _lightgbm(classes: bool, n_threads: int) -> Fit:
    from lightgbm import LGBMClassifier, LGBMRegressor

    model = (LGBMClassifier if classes else LGBMRegressor)(
        random_state=0, n_jobs=n_threads, verbose=-1
    )
    return _Trees(lambda X, y, _: model.fit(X, y)).fit


# given whether there are classes and the number of threads, they return what fits rows
FITS: dict[str, Callable[[bool, int], Fit]] = {
    OURS: lambda classes, _: _Ours(classes).fit,
    "catboost": _catboost,
    "lightgbm": _lightgbm,
}
