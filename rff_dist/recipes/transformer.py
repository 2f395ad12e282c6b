"""Fitted transformers of scikit-learn → a part of a recipe, stored without pickle.

In goes a fitted transformer, or a file of skops; out comes a `Transformer`, which takes
the place of a recipe's encoders. The package skops writes and reads transformers as
JSON and arrays in a zip file. Types that skops does not trust are refused by name
before any object is made.
"""

from __future__ import annotations

import base64
import io
import logging
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rff_dist.errors import (
    DataError,
    IntegrityError,
    InvalidParameterError,
    UnsafeModelError,
)
from rff_dist.lazy import require
from rff_dist.recipes.tables import kind_of, listed, to_numbers, to_text
from rff_dist.storage.locations import explain
from rff_dist.typing import FloatArray, frozen

if TYPE_CHECKING:
    import pyarrow

#: Types that imputers, splines and selections need. skops does not trust them, but none
#: of them runs code that a file contains.
_TRUSTED = [
    "numpy.dtype",
    "builtins.object",
    "numpy.number",
    "sklearn.compose._column_transformer.make_column_selector",
    "scipy.interpolate._bsplines.BSpline",
    "scipy.interpolate._bsplines._BSpline",
    "sklearn.feature_selection._univariate_selection.chi2",
    "sklearn.feature_selection._univariate_selection.f_classif",
    "sklearn.feature_selection._univariate_selection.f_regression",
    "sklearn.feature_selection._mutual_info.mutual_info_classif",
    "sklearn.feature_selection._mutual_info.mutual_info_regression",
]
#: Limits of a file's size, and of its unpacked size: a crafted file of a few bytes
#: could fill the memory.
MAX_BYTES = 2**23
_MAX_UNPACKED = 2**28
_log = logging.getLogger(__name__)


@frozen
class Transformer:
    """A fitted transformer, or a pipeline of them, which makes all columns of X."""

    kind: ClassVar[str] = "scikit-learn"

    #: the table's columns, in the transformer's order
    inputs: Sequence[str]
    #: names of the columns that it makes
    names: Sequence[str]
    #: inputs that are read as text, since their categories are text
    texts: Sequence[str]
    #: its description, for people
    words: str
    #: whether it takes a frame instead of an array
    by_name: bool
    #: a file of skops, as text in base64
    file: str

    @property
    def column(self) -> str:
        """The inputs in one text, for messages; other encoders have one column."""
        return ", ".join(self.inputs[:10]) + (", …" if len(self.inputs) > 10 else "")

    @property
    def reads(self) -> Mapping[str, str | None]:
        """What each input must hold: text, or None for anything."""
        return {name: "text" if name in self.texts else None for name in self.inputs}

    def encode(self, batch: pyarrow.RecordBatch) -> FloatArray:
        """Transform a table's rows, to shape (n_rows, n_names)."""
        columns = {name: _values(batch.column(name)) for name in self.inputs}
        if not self.by_name:
            return self.transform(np.column_stack(list(columns.values())))
        pandas = require(
            "pandas",
            "scikit-learn's transformers take tables as frames of the package pandas",
            "skops",
        )
        # a transformer that was fitted on a frame selects its columns by name
        return self.transform(pandas.DataFrame(columns))

    def transform(self, rows: Any) -> FloatArray:
        """Transform a frame or an array, to shape (n_rows, n_names).

        Raises DataError if the transformer does not take it.
        """
        transformer = _load(self.file)
        try:
            output = transformer.transform(rows)
            values = np.asarray(
                output.toarray() if hasattr(output, "toarray") else output, np.float64
            )
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                "scikit-learn's transformer does not take these rows:"
                f" {explain(error)}. Expected rows like those that it was"
                " fitted on"
            ) from error
        if values.ndim != 2 or values.shape[1] != len(self.names):
            raise DataError(
                f"scikit-learn's transformer made an array of shape {values.shape};"
                f" expected {len(self.names)} columns"
            )
        return values


def transformer_of(transformer: Any, *, n_names: int | None = None) -> Transformer:
    """Return a fitted transformer as a part of a recipe.

    `n_names`: the number of columns that it makes; if it is given, the transformer need
    not name them.

    Raises InvalidParameterError if it is not fitted, cannot be written, is too large,
    or does not name its columns; UnsafeModelError if it holds types that skops does not
    trust; MissingDependencyError if skops is not installed.
    """
    skops = _skops()
    try:
        content = skops.dumps(transformer, compression=zipfile.ZIP_DEFLATED)
    except Exception as error:  # a user's objects may raise anything
        raise InvalidParameterError(
            f"{_name(transformer)} cannot be written by skops: {explain(error)};"
            " expected transformers of scikit-learn"
        ) from error
    return read_transformer(content, n_names=n_names)


def read_transformer(content: bytes, *, n_names: int | None = None) -> Transformer:
    """Return the transformer in a file of skops.

    Raises as `transformer_of`, and IntegrityError if the file is damaged.
    """
    if len(content) > MAX_BYTES:
        raise InvalidParameterError(
            f"the transformer takes {len(content) / 2**20:.0f} MiB, since it keeps rows"
            f" or many categories; expected at most {MAX_BYTES // 2**20} MiB, since"
            " each version of a model holds it"
        )
    file = base64.b64encode(content).decode("ascii")
    transformer = _load(file)
    n_inputs = getattr(transformer, "n_features_in_", None)
    if n_inputs is None or not hasattr(transformer, "transform"):
        raise InvalidParameterError(
            f"{_name(transformer)} is no fitted transformer; expected one after `fit`,"
            " or a pipeline of them"
        )
    input_names = getattr(transformer, "feature_names_in_", None)
    inputs = (
        [str(i) for i in range(n_inputs)]
        if input_names is None
        else _used_inputs(transformer, list(map(str, input_names)))
    )
    try:
        names = [str(name) for name in transformer.get_feature_names_out()]
    except (AttributeError, ValueError) as error:
        if n_names is None:
            raise InvalidParameterError(
                f"{_name(transformer)} does not name its columns: {explain(error)}."
                ' Make a FunctionTransformer with feature_names_out="one-to-one"'
            ) from error
        names = [str(i) for i in range(n_names)]
    texts = sorted(_text_inputs(transformer, inputs), key=inputs.index)
    return Transformer(
        inputs,
        names,
        texts,
        words=f"by scikit-learn's {_name(transformer)}",
        by_name=input_names is not None,
        file=file,
    )


def _name(transformer: Any) -> str:
    steps = [part for _, part in getattr(transformer, "steps", ())]
    return " and ".join(map(_name, steps)) if steps else type(transformer).__name__


def _used_inputs(transformer: Any, inputs: Sequence[str]) -> list[str]:
    """Return the columns that a transformer uses; a ColumnTransformer may drop some."""
    # only the first step of a pipeline gets the table's columns
    for _, first in getattr(transformer, "steps", ())[:1]:
        return _used_inputs(first, inputs)
    if not hasattr(transformer, "transformers_"):
        return list(inputs)
    used: set[str] = set()
    for _, part, columns in transformer.transformers_:
        if isinstance(part, str):  # "drop"; "passthrough" is a FunctionTransformer here
            continue
        names = getattr(part, "feature_names_in_", columns)
        used |= {names} if isinstance(names, str) else set(names)
    return [name for name in inputs if name in used]


def _text_inputs(transformer: Any, inputs: Sequence[str]) -> set[str]:
    """Return the inputs whose categories are text, in a transformer or its parts.

    They must be read as text: as numbers, codes such as 01067 would lose their zeros.
    """
    inputs = list(getattr(transformer, "feature_names_in_", inputs))
    categories = getattr(transformer, "categories_", ())
    texts = set()
    # lists of categories are in the order of the inputs only if each input has one
    if len(categories) == len(inputs):
        for name, levels in zip(inputs, categories, strict=True):
            if any(isinstance(level, str) for level in levels):
                texts.add(name)
    for parts in ("steps", "transformers_", "transformer_list"):
        for part in getattr(transformer, parts, ()):
            texts |= _text_inputs(part[1], inputs)
    return texts


def _values(column: pyarrow.Array) -> np.ndarray:
    """Return a column as pandas would hold it: missing text as NaN, dates in UTC."""
    kind = kind_of(column.type)
    if kind == "text":
        texts = to_text(column).to_pylist()
        return np.array([np.nan if text is None else text for text in texts], object)
    if kind == "date":
        return np.asarray(column.cast("timestamp[us]").to_numpy(zero_copy_only=False))
    if str(column.type) == "bool" and not column.null_count:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return to_numbers(column)


@lru_cache(maxsize=4)  # every batch of rows asks for it
def _load(file: str) -> Any:
    """Load a transformer from its file, which may only hold types that run no code."""
    skops = _skops()
    try:
        content = base64.b64decode(file, validate=True)
        with zipfile.ZipFile(io.BytesIO(content)) as members:
            # before anything is unpacked: a small file can claim to hold gigabytes
            n_bytes = sum(member.file_size for member in members.infolist())
        if n_bytes > _MAX_UNPACKED:
            raise UnsafeModelError(
                f"the transformer claims to unpack to {n_bytes / 2**20:,.0f} MiB;"
                f" expected at most {_MAX_UNPACKED // 2**20} MiB"
            )
        unknown = sorted(set(skops.get_untrusted_types(data=content)) - set(_TRUSTED))
        if unknown:
            raise UnsafeModelError(
                f"the transformer holds {listed(unknown)}, which skops does not"
                " trust: code that is not scikit-learn's, or could crash. Expected its"
                " scalers, encoders, imputers, projections and the like, and functions"
                " of NumPy such as log1p"
            )
        with warnings.catch_warnings(record=True, action="always") as caught:
            transformer = skops.loads(content, trusted=_TRUSTED)
    except UnsafeModelError:
        raise
    except Exception as error:  # a damaged file may fail anywhere
        raise IntegrityError(
            f"the transformer cannot be read by skops: {explain(error)};"
            " expected a file of skops.io.dump"
        ) from error
    _tell_versions(caught)
    return transformer


def _tell_versions(caught: Sequence[warnings.WarningMessage]) -> None:
    """Log once if other versions of scikit-learn wrote a transformer and read it."""
    for warning in caught:
        # known by its attributes, since only estimators may import scikit-learn
        facts = vars(warning.message)
        if "original_sklearn_version" in facts:
            _log.warning(
                "the transformer was fitted by scikit-learn %s, and this is %s: compare"
                " its figures, or fit it again",
                facts["original_sklearn_version"],
                facts["current_sklearn_version"],
            )
            return


def _skops() -> Any:
    return require(
        "skops.io",
        "scikit-learn's transformers are stored by the package skops",
        "skops",
    )
