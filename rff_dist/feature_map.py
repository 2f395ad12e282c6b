"""Z for one tile of rows: standardise, project, cosine and sine.

Features are computed unnormalised (entries in [-1, 1]) and transposed, one component per line,
because that is how the products want them; `scale` makes Z of them. Sines follow their cosines,
(cos ω₁, sin ω₁, cos ω₂, sin ω₂, …), so that the leading components are the features of a smaller draw.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, Protocol, Self, TypeGuard, cast, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from rff_dist.errors import BroadcastError, DataError, InvalidParameterError
from rff_dist.frequencies import Design, FloatArray, draw_phases, seed_of
from rff_dist.kernels import Kernel, find_design, find_kernel

type Float32Array = NDArray[np.float32]
type MapName = Literal["pairs", "phases"]

STRIPE = 512  # components filled at once: 4 MiB of float32 work per stripe and tile, which caches hold
_TRANSFORM_ROWS = 4096
MAPS = ("pairs", "phases")


@runtime_checkable
class FeatureMap(Protocol):
    """Maps rows to features; everything above knows no more of it than this."""

    @property
    def n_features(self) -> int:
        """Columns of the inputs."""

    @property
    def n_components(self) -> int:
        """D, the width of Z."""

    @property
    def scale(self) -> float:
        """What unnormalised features are multiplied by to give Z."""

    @property
    def squared_norm(self) -> float | None:
        """Sum of squares of each row of unnormalised features where it is constant, else None."""

    def prepare(self, X: NDArray[Any]) -> Float32Array:
        """Return standardised inputs of shape (n_samples, n_features)."""

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        """Write unnormalised components `start:stop` to `out`, shape (stop - start, n_samples)."""

    def transform(self, X: ArrayLike, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Return Z of shape (n_samples, n_components)."""

    def digest(self) -> str:
        """Return a hexadecimal digest of everything that the features depend on."""


@dataclass(frozen=True, slots=True)
class Standardizer:
    """Shift and scale of the input columns, applied in float64 before features are float32.

    Attributes
    ----------
    mean, scale : float64 arrays of shape (n_features,)
        Inputs become (x - mean) / scale.
    """

    mean: FloatArray
    scale: FloatArray

    def __call__(self, X: NDArray[Any]) -> FloatArray:
        """Return the standardised rows in float64."""
        return (np.asarray(X, np.float64) - self.mean) / self.scale


@dataclass(frozen=True, slots=True)
class FourierSpec:
    """The few hundred bytes that a whole Fourier feature map is drawn from."""

    kernel: Kernel
    design: Design
    n_features: int
    n_components: int
    map: MapName
    seed: int


@dataclass(frozen=True, eq=False)
class FourierFeatureMap:
    """Random Fourier features of a shift-invariant kernel (Rahimi & Recht 2007).

    Pickles as its spec and digest where it was drawn from a spec, and is drawn again, and checked,
    where it is unpickled; with given frequencies it pickles as bytes.

    Attributes
    ----------
    frequencies : float32 array of shape (n_features, n_frequencies)
        In radians per unit of the (standardised) inputs.
    phases : float32 array of shape (n_components,), or None
        In radians; None for cos/sin pairs.
    standardizer : Standardizer, or None
        Applied to the inputs first.
    spec : FourierSpec, or None
        What the arrays were drawn from; None where they were given.
    """

    frequencies: Float32Array
    phases: Float32Array | None = None
    standardizer: Standardizer | None = None
    spec: FourierSpec | None = None

    @property
    def n_features(self) -> int:
        """Columns of the inputs."""
        return int(self.frequencies.shape[0])

    @property
    def n_components(self) -> int:
        """D: two components per frequency for pairs, one for phases."""
        return int(self.frequencies.shape[1]) * (2 if self.phases is None else 1)

    @property
    def map(self) -> MapName:
        """Whether these are cos/sin pairs or cosines with random phases."""
        return "pairs" if self.phases is None else "phases"

    @property
    def scale(self) -> float:
        """√(2/D), for both maps: pairs average D/2 frequencies, phases D cosines of mean square 1/2."""
        return float(np.sqrt(2 / self.n_components))

    @property
    def squared_norm(self) -> float | None:
        """D/2 for pairs, since cos² + sin² = 1: a detector of dropped and doubled rows."""
        return self.n_components / 2 if self.phases is None else None

    def with_standardizer(self, standardizer: Standardizer | None) -> Self:
        """Return the same features of inputs that are standardised first."""
        return replace(self, standardizer=standardizer)

    def prepare(self, X: NDArray[Any]) -> Float32Array:
        """Return standardised float32 inputs of shape (n_samples, n_features).

        Raises
        ------
        DataError
            If X is not of that shape.
        """
        if X.ndim != 2 or X.shape[1] != self.n_features:
            raise DataError(f"X has shape {X.shape}; this feature map expects {self.n_features} columns")
        if X.dtype.kind not in "biuf":
            raise DataError(f"X holds {X.dtype}; expected real numbers")
        standardized = X if self.standardizer is None else self.standardizer(X)
        with np.errstate(over="ignore"):  # an overflow is an Inf, which the caller reports with its row
            return np.ascontiguousarray(standardized, np.float32)

    def fill(self, inputs: Float32Array, out: FloatArray, start: int, stop: int) -> None:
        """Write unnormalised components `start:stop` to `out`.

        Parameters
        ----------
        inputs : float32 array of shape (n_samples, n_features)
            From `prepare`.
        out : float64 array of shape (stop - start, n_samples)
            Overwritten; its values are float32 cosines and sines.
        start, stop : int
            Even for pairs.
        """
        if self.phases is None:
            angles = _project(self.frequencies[:, start // 2 : stop // 2], inputs, out[: len(out) // 2])
            np.cos(angles, out=out[0::2], dtype=np.float32)
            np.sin(angles, out=out[1::2], dtype=np.float32)
        else:
            angles = _project(self.frequencies[:, start:stop], inputs, out)
            angles += self.phases[start:stop, np.newaxis]
            np.cos(angles, out=out, dtype=np.float32)

    def transform(self, X: ArrayLike, *, dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Return Z, O(n_samples * n_components * n_features).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        dtype : dtype
            float64 holds the very numbers that statistics are made of; float32 rounds them once more.

        Returns
        -------
        Z : array of shape (n_samples, n_components)
            Z @ Z.T approximates the kernel's Gram matrix.

        Raises
        ------
        DataError
            If X has another number of columns, or values that are not finite.
        """
        inputs = self.prepare(np.asarray(X))
        if not np.isfinite(inputs).all():
            row, column = np.argwhere(~np.isfinite(inputs))[0]
            raise DataError(
                f"Input X contains NaN, infinity or a value beyond float32: row {row:_}, column {column}"
            )
        Z = np.empty((len(inputs), self.n_components), dtype)
        rows = min(_TRANSFORM_ROWS, max(1, len(inputs)))
        work = np.empty((min(STRIPE, self.n_components), rows))
        for row in range(0, len(inputs), rows):
            tile = inputs[row : row + rows]
            for start in range(0, self.n_components, STRIPE):
                stop = min(start + STRIPE, self.n_components)
                stripe = work[: stop - start, : len(tile)]
                self.fill(tile, stripe, start, stop)
                stripe *= self.scale
                for i in range(0, len(tile), 64):  # a transpose that stays in the cache: half the time
                    Z[row + i : row + i + 64, start:stop] = stripe[:, i : i + 64].T
        return Z

    def digest(self) -> str:
        """Return the SHA-256 of map, frequencies, phases and standardizer."""
        hasher = hashlib.sha256(f"{self.map} {self.frequencies.shape}".encode())
        arrays = [self.frequencies, self.phases]
        if self.standardizer is not None:
            arrays += [self.standardizer.mean, self.standardizer.scale]  # type: ignore[list-item]
        for array in arrays:
            if array is not None:
                hasher.update(
                    np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
                )
        return hasher.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.spec is None:
            return FourierFeatureMap, (self.frequencies, self.phases, self.standardizer)
        return _redraw, (self.spec, self.standardizer, self.digest())


def _project(frequencies: Float32Array, inputs: Float32Array, scratch: FloatArray) -> Float32Array:
    """Return frequencies' · inputs' in float32, made in float64 and rounded once.

    A float32 product rounds by the shape of its factors and the number of BLAS threads; this one gives
    a row the same features in whatever company, at 1 to 2 % of a pass (32 inputs, D = 1,024).
    """
    np.matmul(frequencies.T.astype(np.float64), inputs.T.astype(np.float64), out=scratch)
    return scratch.astype(np.float32)


@lru_cache(maxsize=8)
def _draw_arrays(spec: FourierSpec) -> tuple[Float32Array, Float32Array | None]:
    n_frequencies = spec.n_components // 2 if spec.map == "pairs" else spec.n_components
    drawn = spec.kernel.sample_frequencies(spec.n_features, n_frequencies, design=spec.design, rng=spec.seed)
    with np.errstate(over="ignore"):
        frequencies = drawn.astype(np.float32)
    if not np.isfinite(frequencies).all():
        raise InvalidParameterError(
            f"frequencies of {spec.kernel} reach {np.abs(drawn).max():.3g}, more than float32 holds; take a "
            "larger `length_scale` (or `nu`), or scale the inputs up with it"
        )
    frequencies.setflags(write=False)
    if spec.map == "pairs":
        return frequencies, None
    phases = draw_phases(n_frequencies, spec.seed).astype(np.float32)
    phases.setflags(write=False)
    return frequencies, phases


def _redraw(spec: FourierSpec, standardizer: Standardizer | None, digest: str) -> FourierFeatureMap:
    feature_map = FourierFeatureMap(*_draw_arrays(spec), standardizer, spec)
    if feature_map.digest() != digest:
        raise BroadcastError(
            f"this process drew a feature map with digest {feature_map.digest()[:12]}, expected "
            f"{digest[:12]}: its processor or libraries round differently; use one kind of machine, or give "
            "the frequencies as arrays"
        )
    return feature_map


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def check_n_components(n_components: object, map: str) -> int:
    """Return `n_components` as an int.

    Raises
    ------
    InvalidParameterError
        If it is not an integer of at least 1, or is odd where cosines and sines come in pairs.
    """
    if not _is_count(n_components):
        raise InvalidParameterError(f"`n_components` is {n_components!r}; expected an integer of at least 1")
    if map == "pairs" and n_components % 2:
        raise InvalidParameterError(
            f"`n_components` is {n_components}; map='pairs' makes two components of each frequency and needs "
            f"an even number: take {n_components + 1}, or map='phases'"
        )
    return int(n_components)


def draw_feature_map(
    kernel: str | Kernel,
    *,
    n_features: int,
    n_components: int,
    design: str | Design = "orthogonal",
    map: str = "pairs",
    random_state: int | np.random.Generator | np.random.RandomState | None = 0,
    standardizer: Standardizer | None = None,
) -> FourierFeatureMap:
    """Draw the random Fourier features of a kernel.

    The approximation's error falls as 1/√n_components; cost and memory of training grow with its square.

    Parameters
    ----------
    kernel : {"gaussian", "laplacian", "matern"} or Kernel
        What Z @ Z.T approximates.
    n_features : int
        Columns of the inputs.
    n_components : int
        D, the width of Z; even for pairs.
    design : {"orthogonal", "iid"} or Design
        How the frequencies are arranged; orthogonal has less variance and needs an isotropic kernel.
    map : {"pairs", "phases"}
        Cosines and sines of D/2 frequencies, or cosines of D frequencies with random phases.
        Pairs have the lower variance for every kernel here.
    random_state : int, Generator, RandomState or None
        The seed; None takes one from the operating system.
    standardizer : Standardizer, optional
        Applied to the inputs first.

    Returns
    -------
    feature_map : FourierFeatureMap

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range, or the design does not suit the kernel.

    References
    ----------
    Rahimi & Recht (2007), Alg. 1; Sutherland & Schneider (2015) on pairs against phases.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import Gaussian, draw_feature_map
    >>> X = np.random.default_rng(0).standard_normal((5, 3))
    >>> feature_map = draw_feature_map(Gaussian(2.0), n_features=3, n_components=4096)
    >>> Z = feature_map.transform(X)
    >>> float(abs(Z @ Z.T - Gaussian(2.0)(X)).max()) < 0.05
    True
    """
    if map not in MAPS:
        raise InvalidParameterError(f"unknown `map` {map!r}; expected one of {sorted(MAPS)}")
    if not _is_count(n_features):
        raise InvalidParameterError(f"`n_features` is {n_features!r}; expected an integer of at least 1")
    found = find_kernel(kernel)
    found.length_scales(int(n_features))
    spec = FourierSpec(
        kernel=found,
        design=find_design(design),
        n_features=int(n_features),
        n_components=check_n_components(n_components, map),
        map=cast("MapName", map),
        seed=seed_from_random_state(random_state),
    )
    return FourierFeatureMap(*_draw_arrays(spec), standardizer, spec)


def seed_from_random_state(random_state: int | np.random.Generator | np.random.RandomState | None) -> int:
    """Return a seed: the integer itself, or one drawn from the generator or the operating system.

    Raises
    ------
    InvalidParameterError
        If `random_state` is none of these.
    """
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(0, 2**63 - 1, dtype=np.int64))
    return seed_of(random_state, name="random_state")
