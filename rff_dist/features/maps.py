"""The interface of feature maps: what tiles, statistics and solvers use of them.

Rows go in; their features come out, written into tiles of a caller's memory. A tile has
some rows, and a stripe some components. `FeatureMap.transform` alone would make all
features of all rows at once, which no worker could hold.

Z is the matrix of features, with a row per sample and a column per component; D is the
number of components. Columns of categories hold codes: a code is the place of a level
in the column's list of texts, its *levels*.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rff_dist.checks import as_array
from rff_dist.data import blocks
from rff_dist.errors import DataError, NotFiniteError
from rff_dist.features.levels import NO_LEVELS, Levels
from rff_dist.frequencies import designs
from rff_dist.kernels import base
from rff_dist.numerics import exact_sums, machine, triangular
from rff_dist.text import short_repr
from rff_dist.typing import (
    AnyArray,
    Arrays,
    Facts,
    Float32Array,
    FloatArray,
    IntArray,
    Summary,
    frozen,
)

#: A map for storage: JSON-able facts, and arrays by name.
type Record = tuple[Summary, dict[str, AnyArray]]

LARGEST_FEATURE = 1e150  # float64 can hold its square
TRANSFORM_ROWS = 4096  # rows that `transform` fills at once
# Components that are filled at once: 4 MiB of float32 work per stripe and tile, which
# caches hold.
STRIPE = 512


@frozen
class ColumnMap:
    """A column's increasing map: slope · standardised value + a function of the value,
    which is linear between knots and constant beyond them.
    """

    #: Which input column.
    column: int
    #: The knots: values of the column, ascending, and the function's values there, such
    #: as normal scores; shapes (n_knots,).
    inputs: FloatArray
    outputs: FloatArray
    slope: float = 0.0


@frozen
class Standardizer:
    """Map of the input columns, in float64, before anything is rounded to float32."""

    #: Inputs become (x - mean) / scale; shapes (n_features,).
    mean: FloatArray
    scale: FloatArray
    #: The functions of the columns that are not standardised by mean and scale.
    maps: tuple[ColumnMap, ...] = ()

    __repr__ = short_repr

    def __call__(self, X: AnyArray) -> FloatArray:
        """Return the standardised rows; values that are not finite stay so."""
        # at 1.7e9, a timestamp of today, float32 has steps of two minutes
        inputs = np.asarray(X, np.float64)
        standardized = (inputs - self.mean) / self.scale
        for column_map in self.maps:
            column = column_map.column
            values = inputs[..., column]
            # np.interp gives infinity the output of the last knot, which would hide it
            # from the check
            standardized[..., column] = np.where(
                np.isfinite(values), self.mapped(column_map, values), values
            )
        return standardized

    def mapped(self, column_map: ColumnMap, values: FloatArray) -> FloatArray:
        """Return values of a column as its map changes them."""
        outputs = np.interp(values, column_map.inputs, column_map.outputs)
        if column_map.slope:
            column = column_map.column
            centred = values - self.mean[column]
            outputs += column_map.slope * centred / self.scale[column]
        return outputs

    @property
    def mapped_columns(self) -> tuple[int, ...]:
        return tuple(part.column for part in self.maps)

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return arrays by name, from which `from_arrays` builds it again."""
        arrays: dict[str, AnyArray] = {
            "input_mean": self.mean,
            "input_scale": self.scale,
        }
        if self.maps:
            n_knots = [len(part.inputs) for part in self.maps]
            arrays |= {
                "input_map_columns": np.array(self.mapped_columns, np.int64),
                "input_map_slopes": np.array([part.slope for part in self.maps]),
                "input_map_knots": np.array(n_knots, np.int64),
                "input_map_inputs": np.concatenate([part.inputs for part in self.maps]),
                "input_map_outputs": np.concatenate(
                    [part.outputs for part in self.maps]
                ),
            }
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self | None:
        """Build it from arrays that include those of `to_arrays`, or return None."""
        if "input_mean" not in arrays:
            return None
        maps: tuple[ColumnMap, ...] = ()
        if "input_map_columns" in arrays:
            cuts = np.cumsum(arrays["input_map_knots"])[:-1]
            parts = zip(
                arrays["input_map_columns"].tolist(),
                np.split(arrays["input_map_inputs"], cuts),
                np.split(arrays["input_map_outputs"], cuts),
                arrays["input_map_slopes"].tolist(),
                strict=True,
            )
            maps = tuple(ColumnMap(*part) for part in parts)
        return cls(arrays["input_mean"], arrays["input_scale"], maps)


@frozen
class FeatureSpec:
    """The few hundred bytes from which a whole feature map is drawn."""

    kernel: base.Kernel
    design: designs.Design
    n_features: int
    n_components: int
    #: Components of a frequency: "pairs" (cosine and sine) or "phases" (cosine alone).
    map_form: str
    seed: int
    precision: str = "high"


class FeatureMap(ABC):
    """Maps rows to features: what all kinds of features have in common.

    `fill` writes features unnormalised and transposed, one component per row of its
    array. Multiplied by `scales`, and then by the inverse of the `whitener` if there is
    one, they are Z. Subclasses are frozen dataclasses.

    Attributes
    ----------
    standardizer : Standardizer, or None
        Applied to the inputs first.
    spec : FeatureSpec, or None
        What the map was drawn from; None if its arrays were given.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import draw_feature_map
    >>> feature_map = draw_feature_map('gaussian', n_features=2, n_components=8)
    >>> feature_map.transform(np.zeros((3, 2))).shape
    (3, 8)
    """

    kind: ClassVar[str]
    standardizer: Standardizer | None
    spec: FeatureSpec | None = None

    __repr__ = short_repr

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Columns of the inputs."""

    @property
    @abstractmethod
    def n_components(self) -> int:
        """D, the number of components of Z."""

    @abstractmethod
    def fill(
        self, inputs: Float32Array, out: FloatArray, start: int, stop: int
    ) -> None:
        """Write unnormalised components `start:stop` to `out`.

        They are one of `stripes`, or a part of it.

        Parameters
        ----------
        inputs : float32 array of shape (n_samples, n_features)
            From `prepare`.
        out : float64 array of shape (stop - start, n_samples)
            Overwritten.
        """

    @abstractmethod
    def digest(self) -> str:
        """Return a hexadecimal digest of everything that the features depend on."""

    def content_key(self) -> str:
        """Return a key that differs if a pass with this map would differ."""
        # codes stand for other levels if the list differs
        return f"{self.digest()} {sorted(self.levels.items())}"

    @abstractmethod
    def record(self) -> Record:
        """Return the map for storage, without its kind and standardizer."""

    @classmethod
    @abstractmethod
    def from_record(
        cls, facts: Facts, arrays: Arrays, standardizer: Standardizer | None
    ) -> Self:
        """Rebuild the map from what `record` returned.

        For a map of other maps, `kinds.read_map` has put these into `facts`.
        """

    @property
    def levels(self) -> Levels:
        """The levels of the columns of categories, in the order of their codes."""
        return NO_LEVELS

    def with_levels(self, levels: Levels) -> Self:
        """Return the same features for codes of other lists of levels."""
        return self

    @property
    def drawn_levels(self) -> Levels:
        """The levels that the components were drawn with, to draw the same again.

        If a linear kernel has a component for each of the levels a and b, they are a
        and b also after c has joined the list.
        """
        return self.levels

    @property
    def learns_levels(self) -> bool:
        """Whether a level that joins the list later gets features of its own.

        Fourier features draw angles for it; a linear kernel has no component for it.
        """
        return True

    @property
    def own_columns(self) -> IntArray:
        """The only input column that each component depends on, shape (n_components,);
        -1 if it depends on several or none.
        """
        return np.full(self.n_components, -1)

    # -- what most maps share

    @property
    def scales(self) -> exact_sums.Runs:
        """The factors from unnormalised features to Z, as runs of (count, factor)."""
        return ((self.n_components, 1.0),)

    def with_standardizer(self, standardizer: Standardizer | None) -> Self:
        """Return the same features, of inputs that this standardizer maps first."""
        changed: Self = replace(cast("Any", self), standardizer=standardizer)
        return changed

    @property
    def squared_norm(self) -> float | None:
        """The squared norm of a row's unnormalised features; None if rows differ."""
        return None

    @property
    def squared_norm_error(self) -> float:
        """The relative error that rounding may leave in a row's `squared_norm`."""
        # In fixed point cosine and sine are off by up to 1/32,512 each, and their
        # squares' sum by up to 8.7e-5. In float32 cos² + sin² is 1 within 1e-7.
        return 1e-4 if self.fixed_point else 1e-6

    @property
    def bounded(self) -> bool:
        """Whether all unnormalised features lie in [-1, 1].

        The grid on which their sums are rounded is then known before a pass.
        """
        return True

    @property
    def fixed_point(self) -> bool:
        """Whether `fill` writes m / 2**14 for whole numbers m of at most 127 · 128."""
        return False

    @property
    def whitener(self) -> FloatArray | None:
        """The triangular T of Z = K·T⁻¹ for scaled features K; None if Z is K."""
        return None

    @property
    def stripes(self) -> list[tuple[int, int]]:
        """Ranges of components that `fill` makes efficiently, in order, each once."""
        D = self.n_components
        return [(start, min(start + STRIPE, D)) for start in range(0, D, STRIPE)]

    def fill_rows(
        self, inputs: Float32Array, out: AnyArray, scales: FloatArray | None = None
    ) -> None:
        """Write all components of rows, not transposed.

        Parameters
        ----------
        inputs : float32 array of shape (n_samples, n_features)
            From `prepare`.
        out : float array of shape (n_samples, n_components)
            Overwritten.
        scales : float64 array of shape (n_components,), or None
            Factors of the components; None leaves them unnormalised.
        """
        stripes = self.stripes
        work = np.empty((max(stop - start for start, stop in stripes), len(inputs)))
        for start, stop in stripes:
            stripe = work[: stop - start]
            self.fill(inputs, stripe, start, stop)
            if scales is not None:
                stripe *= scales[start:stop, np.newaxis]
            # 64 rows at a time, so that the transpose stays in the cache: half the time
            for i in range(0, len(inputs), 64):
                out[i : i + 64, start:stop] = stripe[:, i : i + 64].T

    def prepare(self, X: AnyArray) -> Float32Array:
        """Return standardised float32 inputs of shape (n_samples, n_features).

        Raises
        ------
        DataError
            If X is not of that shape.
        """
        if X.ndim != 2 or X.shape[1] != self.n_features:
            raise DataError(
                f"X has shape {X.shape}; this feature map expects {self.n_features}"
                " columns"
            )
        if X.dtype.kind not in "biuf":
            raise DataError(f"X holds {X.dtype}; expected real numbers")
        standardized = X if self.standardizer is None else self.standardizer(X)
        # overflows become infinite, which callers report with the row
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(standardized, np.float32)

    def inputs_of(self, rows: blocks.Rows) -> Float32Array:
        """Return a block's prepared inputs, with zeros for rows of weight 0.

        Values of such rows must change nothing. Raises DataError if a value of another
        row cannot be used.
        """
        inputs = self.prepare(rows.X)
        if rows.sample_weight is not None and not rows.sample_weight.all():
            has_weight = rows.sample_weight[:, np.newaxis] != 0
            inputs = np.where(has_weight, inputs, np.float32(0))
        blocks.check_finite(rows, inputs)
        return inputs

    def raw_coefficients(self, coefficients: FloatArray) -> FloatArray:
        """Return coefficients of the unnormalised features from those of Z."""
        return exact_sums.expand(self.scales)[:, np.newaxis] * coefficients

    def transform(self, X: ArrayLike, *, dtype: DTypeLike = np.float64) -> AnyArray:
        """Return Z, O(n_samples * n_components * n_features).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        dtype : dtype
            float64 holds exactly the numbers that statistics are made of; float32
            rounds them once more.

        Returns
        -------
        Z : array of shape (n_samples, n_components)
            Z @ Z.T approximates the kernel's Gram matrix.

        Raises
        ------
        DataError
            If X has another number of columns, or values that are not finite.
        """
        inputs = self.prepare(as_array(X, "X"))
        check_inputs(inputs)
        whitener = self.whitener
        # whitening takes float64, and its result is rounded once
        dtype_of_work = dtype if whitener is None else np.float64
        Z = np.empty((len(inputs), self.n_components), dtype_of_work)
        scales = exact_sums.expand(self.scales)
        with np.errstate(over="ignore", invalid="ignore"):
            for row in range(0, len(inputs), TRANSFORM_ROWS):
                tile = slice(row, row + TRANSFORM_ROWS)
                self.fill_rows(inputs[tile], Z[tile], scales)
        if not self.bounded:
            largest = float(np.abs(Z).max(initial=0.0))
            if not largest <= LARGEST_FEATURE:  # or NaN
                raise overflow()
        if whitener is not None:
            with machine.tile_pool() as pool:
                triangular.whiten_rows(Z, whitener, pool)
        return Z.astype(dtype, copy=False)


def check_inputs(inputs: Float32Array) -> None:
    """Check that prepared inputs are finite.

    Raises DataError, with the first row and column where one is not.
    """
    if not np.isfinite(inputs).all():
        row, column = np.argwhere(~np.isfinite(inputs))[0]
        where = f"row {row:_}, column {column}"
        raise NotFiniteError(
            f"Input X contains NaN, infinity or a value beyond float32: {where}"
        )


def overflow() -> DataError:
    """Return the error for finite inputs whose features are not finite."""
    return DataError(
        "features of some rows are not finite: their inputs overflow; standardise them"
    )


def arrays_digest(
    label: str, arrays: list[AnyArray | None], standardizer: Standardizer | None
) -> str:
    """Return the SHA-256 of a label, arrays and a standardizer."""
    hasher = hashlib.sha256(label.encode())
    if standardizer is not None:
        arrays = [*arrays, *standardizer.to_arrays().values()]
    for array in arrays:
        if array is not None:
            # one digest for all machines
            little = np.ascontiguousarray(array).astype(
                array.dtype.newbyteorder("<"), copy=False
            )
            hasher.update(little.tobytes())
    return hasher.hexdigest()


def spec_record(feature_map: FeatureMap) -> Summary:
    """Return an entry `spec` for a map's record; nothing if it cannot be redrawn."""
    spec = feature_map.spec
    if spec is None or designs.DESIGNS.get(spec.design.name) != spec.design:
        return {}
    # the spec's number of components, since a map of exact features may have fewer
    facts = {
        "kernel": spec.kernel.to_dict(),
        "design": spec.design.name,
        "n_components": spec.n_components,
        "map": spec.map_form,
        "seed": spec.seed,
        "precision": spec.precision,
    }
    return {"spec": facts}
