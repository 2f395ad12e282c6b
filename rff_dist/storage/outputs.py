"""Outputs that many workers write block by block, such as predictions; a block may be written again."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import zarr

from rff_dist.data import blocks, columns
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage import documents, groups, locations, output_places
from rff_dist.storage.arrays import EVERY_CHUNK, ZarrArray, create_array, read_rows
from rff_dist.typing import AnyDType, Facts, PathLike, Summary, frozen

logger = logging.getLogger(__name__)


@frozen
class Layout:
    """The arrays of an output.

    `n_columns`: columns; None makes an array of one axis (labels).
    `dtype`: float or integer. A structured dtype makes one array per field, of one axis or two; fields may
      hold text.
    `chunk_rows`: rows of a chunk. Take those of the dataset that is read, so that its blocks fit.
    `array`: name of the array in the group; `open_dataset(url, x=array)` reads it back. A structured dtype's
      fields give the names themselves.
    `column_names`: stored as the attribute `feature_names`.
    `meanings`: what integers stand for, with which a variable of a grid is stored.
    Raises InvalidParameterError if a size is below 1, the dtype is no number or the names do not fit.
    """

    n_samples: int
    chunk_rows: int
    n_columns: int | None = None
    dtype: AnyDType | type | str = np.float64
    array: str = "predictions"
    column_names: Sequence[str] | None = None
    meanings: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind, parts = self.kind, self.parts
        kinds = "biuf" if kind.names is None else "biufU"
        bad = any(base.kind not in kinds for base, _ in parts.values()) or (kind.names and self.tail)
        lengths = [length for _, more in parts.values() for length in more]
        if bad or min(self.n_samples, self.chunk_rows, *lengths) < 1:
            raise InvalidParameterError(
                f"an output of `n_samples`={self.n_samples}, `n_columns`={self.n_columns}, `chunk_rows`="
                f"{self.chunk_rows} and `dtype`={kind}; expected sizes of at least 1 and integers or floats"
            )
        n_names = max((more[0] for _, more in parts.values() if more), default=1)
        names = self.column_names
        if names is not None and len(names) != n_names:
            raise InvalidParameterError(f"`column_names` has {len(names)} names; expected {n_names}")

    @property
    def kind(self) -> AnyDType:
        return np.dtype(self.dtype)

    @property
    def tail(self) -> tuple[int, ...]:
        return () if self.n_columns is None else (self.n_columns,)

    @property
    def parts(self) -> dict[str, tuple[AnyDType, tuple[int, ...]]]:
        """Each array's dtype, and its shape without the axis of rows."""
        kind = self.kind
        if kind.names is None:
            return {self.array: (kind, self.tail)}
        return {name: (kind[name].base, kind[name].shape) for name in kind.names}

    def split(self, values: np.ndarray) -> Sequence[np.ndarray]:
        """Return the rows of each array: values of several are fields."""
        return [values] if self.kind.names is None else [values[name] for name in self.parts]


@dataclass(frozen=True)
class StagedOutput(ABC):
    """New arrays that are written block by block, and appear at `url` when they are finished.

    An output holds only names and numbers, so it travels to workers, and each worker opens the arrays itself.
    Writing a block twice stores the same bytes twice, so a retried task does no harm.

    `place`: where the output will be, and where it is written until then.
    `layout`: its arrays.
    `is_begun`: whether a stopped job may have written some of the rows.
    """

    place: output_places.Place
    layout: Layout
    is_begun: bool = field(default=False, kw_only=True)

    @property
    def location(self) -> locations.Location:
        return self.place.location

    @property
    def url(self) -> str:
        return self.location.url

    @property
    def n_samples(self) -> int:
        return self.layout.n_samples

    @abstractmethod
    def write(self, block: blocks.Block, values: np.ndarray, /) -> None:
        """Write the rows of one block."""

    @abstractmethod
    def finish(self, attributes: Facts | None = None) -> None:
        """Write the attributes, and move the output to its place."""

    def discard(self) -> None:
        """Remove what was written; an older output at `url` stays."""
        self.place.discard()

    def has_arrays(self) -> bool:
        """Return whether all arrays exist, in the layout's shapes."""
        try:
            # A stopped job may have had another layout, and was perhaps killed while it made the arrays.
            return self._has_shapes()
        except Exception as error:
            logger.debug("%s is started again: %s", self.place.staged, locations.explain(error))
            return False

    def holds(self, block: blocks.Block) -> bool:
        """Return whether the rows of a block were written, and all their checksums are right."""
        try:
            return self.is_begun and self._is_written(block)
        except StorageError:
            return False

    @abstractmethod
    def _has_shapes(self) -> bool: ...

    @abstractmethod
    def _is_written(self, block: blocks.Block) -> bool:
        """Read a block; raises StorageError if it cannot be read."""


@dataclass(frozen=True)
class Output(StagedOutput):
    """Rows of arrays, in blocks that begin and end on multiples of the layout's `chunk_rows`.

    >>> from rff_dist.data.blocks import Block
    >>> from rff_dist.storage.datasets import open_dataset
    >>> output = create_output('memory://an-output', Layout(n_samples=4, chunk_rows=2, n_columns=1))
    >>> for block in (Block(1, 2, 4), Block(0, 0, 2)):  # in any order, and again
    ...     output.write(block, np.full((2, 1), block.index))
    >>> output.finish({})
    >>> open_dataset('memory://an-output', x='predictions', y=None).X[:, 0].tolist()
    [0.0, 0.0, 1.0, 1.0]
    """

    def write(self, block: blocks.Block, values: np.ndarray, /) -> None:
        """Write the rows of one block; values of several arrays are fields.

        Raises StorageError if the block is not whole chunks (two writers of one chunk could lose each other's
          rows), or the bytes cannot be written; DataError if the shape of `values` does not fit the block.
        """
        chunk_rows = self.layout.chunk_rows
        whole = block.stop % chunk_rows == 0 or block.stop == self.n_samples
        if block.start % chunk_rows or not whole or not 0 <= block.start < block.stop <= self.n_samples:
            raise StorageError(
                f"rows {block.start}:{block.stop} are not whole chunks of {self.location} "
                f"({self.n_samples:_} rows in chunks of {chunk_rows}); cut blocks with "
                "cut_blocks(n_samples, chunk_rows, rows_per_block=…)"
            )
        parts = self._parts(block, values)
        with locations.store_errors(f"rows {block.start}:{block.stop} of {self.location} cannot be written"):
            try:
                for name, part in zip(self.layout.parts, parts, strict=True):
                    self._open(name)[block.start : block.stop] = part
                self._open(name)  # fails if the output was discarded meanwhile
            except BaseException:
                documents.drain()
                with suppress(StorageError):
                    # If another process discarded the output meanwhile, this write has left a part of it.
                    if locations.read_file(self.place.staged, "zarr.json") is None:
                        self.discard()
                raise

    def _has_shapes(self) -> bool:
        shapes = {name: (self.n_samples, *more) for name, (_, more) in self.layout.parts.items()}
        return all(self._open(name).shape == shape for name, shape in shapes.items())

    def _is_written(self, block: blocks.Block) -> bool:
        for name in self.layout.parts:
            # A writer that was killed may have left half a chunk, which its checksum shows.
            read_rows(self._open(name), block.start, block.stop, label=f"array {name!r}")
        return True

    def _parts(self, block: blocks.Block, values: np.ndarray) -> Sequence[np.ndarray]:
        """Return the values of each array."""
        kind, expected = self.layout.kind, (block.n_samples, *self.layout.tail)
        if (shape := np.shape(values)) != expected:
            raise DataError(
                f"values of shape {shape} for rows {block.start}:{block.stop}; expected {expected}"
            )
        if kind.names is not None and values.dtype != kind:
            raise DataError(f"values of dtype {values.dtype}; expected the fields {kind}")
        return [_as_stored(part) for part in self.layout.split(values)]

    def add(self, name: str, column: columns.Column) -> None:
        """Write a column as a further array of the output.

        Raises StorageError if it cannot be written.
        """
        rows = self.layout.chunk_rows
        with locations.store_errors(f"array {name!r} of {self.location} cannot be written"):
            group = zarr.open_group(locations.open_store(self.place.staged, read_only=False), mode="r+")
            if name in group:  # written by a job that was stopped later
                del group[name]
            shape, dtype = (self.n_samples,), column.dtype
            array = create_array(group, name, shape=shape, dtype=dtype, chunk_rows=rows, marked=True)
            for block in blocks.cut_blocks(self.n_samples, rows, rows_per_block=rows):
                array[block.start : block.stop] = _as_stored(column.read(block))

    def finish(self, attributes: Facts | None = None) -> None:
        """Check that every chunk was written, write the manifest and move the output to its place.

        Raises StorageError if chunks are missing (the output can still be completed or discarded);
          as `output_places.Place.publish` if another run has written there meanwhile.
        """
        n_samples, chunk_rows = self.n_samples, self.layout.chunk_rows
        n_chunks = -(-n_samples // chunk_rows)
        manifest = {"n_samples": n_samples, "chunk_rows": chunk_rows}
        with locations.store_errors(f"{self.location} cannot be put in place"):
            # counts objects in the store; their values were checked by their writers
            n_written = min(self._open(name).nchunks_initialized for name in self.layout.parts)
            if n_written != n_chunks:
                raise StorageError(
                    f"{self.location} is not complete: {n_written} of {n_chunks} chunks of {chunk_rows} "
                    "rows were written. Write the missing blocks, or discard the output"
                )
            store = locations.open_store(self.place.staged, read_only=False)
            names = sorted(zarr.open_group(store, mode="r").array_keys())
            bound = {**(attributes or {}), documents.MANIFEST: manifest}
            groups.complete(store, names, bound, place=self.location)
            self.place.publish()

    def _open(self, name: str) -> ZarrArray:
        try:
            # Opening to write would replace a store in memory that is gone; opening to read fails.
            staged = self.place.staged
            store = locations.open_store(staged, read_only=staged.scheme == "memory").with_read_only(False)
            return zarr.open_array(store, path=name, mode="r+", config=EVERY_CHUNK)
        except FileNotFoundError as error:
            raise StorageError(
                f"the unfinished output {self.place.staged} of {self.location} is gone"
            ) from error


def create_output(
    url: PathLike,
    layout: Layout,
    *,
    inputs: Sequence[PathLike] = (),
    overwrite: bool = False,
    place: locations.Location | None = None,
) -> Output:
    """Begin an output of known size that workers fill block by block.

    `inputs`: what is read meanwhile; the output may not overlap it.
    `overwrite`: whether the finished output may replace a Zarr group at `url`.
    `place`: a local folder to write it in until it is finished. If a stopped job of the same output left
      arrays there, they are continued.
    Raises OutputExistsError if there is something at `url` and `overwrite` is False; StorageError if the
      place cannot be written or lies inside another dataset.
    """
    sources = [locations.parse_location(source) for source in inputs]
    attributes: Summary = {}
    if layout.column_names is not None:
        attributes["feature_names"] = list(layout.column_names)

    def fill(group: zarr.Group) -> None:
        for name, (base, more) in layout.parts.items():
            shape, rows = (layout.n_samples, *more), layout.chunk_rows
            create_array(group, name, shape=shape, dtype=base, chunk_rows=rows, marked=True)

    make = partial(Output, layout=layout)
    return begin(make, url, fill, attributes, inputs=sources, overwrite=overwrite, staged=place)


def begin[O: StagedOutput](
    make: Callable[..., O],
    url: PathLike,
    fill: Callable[[zarr.Group], None],
    attributes: Facts,
    *,
    inputs: Sequence[locations.Location],
    overwrite: bool,
    staged: locations.Location | None,
) -> O:
    """Begin an output, or go on with the one that a stopped job left; see `create_output`.

    `make`: takes a place, and whether it is begun.
    `fill`: makes the arrays in the output's group.
    """
    location = locations.parse_location(url)
    output_places.check_output(location, overwrite=overwrite, inputs=inputs)
    staged = staged if location.is_local else None
    place = output_places.Place.choose(location, overwrite=overwrite, staged=staged)
    if staged is not None:
        begun = make(place, is_begun=True)
        if begun.has_arrays():
            return begun
        output_places.discard(staged)
    group = place.create_group({**attributes, documents.MANIFEST: {"state": "writing"}})
    try:
        with locations.store_errors(f"{location} cannot be written"):
            fill(group)
    except Exception:
        place.discard()
        raise
    return make(place)


def _as_stored(values: np.ndarray) -> np.ndarray:
    """Return text with variable width, and other values as they are."""
    return values.astype(columns.TEXT) if values.dtype.kind == "U" else values
