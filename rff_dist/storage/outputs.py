"""Outputs that many workers write block by block, such as predictions.

A layout of arrays goes in; an output comes out, to which workers write blocks, and some
blocks again. The arrays appear at their place when all blocks were written. Writing to
Zarr itself would show readers half of an output, and two writers of one chunk would
lose each other's rows.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from rff_dist.data.blocks import Block, cut_blocks
from rff_dist.data.columns import TEXT, Column
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage import locations, output_places
from rff_dist.storage.arrays import EVERY_CHUNK, ZarrArray, create_array, read_rows
from rff_dist.storage.commit import Publication
from rff_dist.storage.locations import Location
from rff_dist.storage.manifests import ENTRY_FILE, MANIFEST
from rff_dist.storage.zarr_access import drain, open_store, zarr
from rff_dist.typing import AnyArray, AnyDType, Facts, PathLike, Summary, frozen

logger = logging.getLogger(__name__)


@frozen
class Layout:
    """The arrays of an output: one array `array`, or, with a structured dtype, an array
    for each field. Each has a row for each sample, and one axis or two.
    """

    n_samples: int
    #: Rows of a chunk; take the number of the input dataset, so that its blocks fit.
    chunk_rows: int
    n_columns: int | None = None  # None makes an array of one axis (labels)
    #: Floats or integers; fields may have text.
    dtype: AnyDType | type | str = np.float64
    array: str = "predictions"  # the array's name, for `open_dataset(url, x=array)`
    column_names: Sequence[str] | None = None  # stored as `feature_names`
    #: Meanings of integers, which are stored with a variable of a grid.
    meanings: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dtypes = self.arrays.values()
        has_fields = np.dtype(self.dtype).names is not None
        kinds = "biufU" if has_fields else "biuf"
        can_be_stored = all(dtype.base.kind in kinds for dtype in dtypes)
        sizes = [self.n_samples, self.chunk_rows]
        for dtype in dtypes:
            sizes += dtype.shape
        is_both = has_fields and self.n_columns is not None
        if not can_be_stored or min(sizes) < 1 or is_both:
            raise InvalidParameterError(
                f"an output of `n_samples`={self.n_samples},"
                f" `n_columns`={self.n_columns}, `chunk_rows`={self.chunk_rows} and"
                f" `dtype`={np.dtype(self.dtype)}; expected sizes of at least 1 and"
                " integers or floats"
            )

    @property
    def arrays(self) -> dict[str, AnyDType]:
        """The dtype of a row of each array, by the array's name.

        Its `base` is the dtype of an element, its `shape` is () or (n_columns,).
        """
        dtype: AnyDType = np.dtype(self.dtype)
        if dtype.names is not None:
            return {name: dtype[name] for name in dtype.names}
        row_shape = () if self.n_columns is None else (self.n_columns,)
        return {self.array: np.dtype((dtype, row_shape))}

    def split(self, values: AnyArray) -> dict[str, AnyArray]:
        """Return the rows of each array; values for several arrays have fields."""
        if values.dtype.names is None:
            return {self.array: values}
        return {name: values[name] for name in self.arrays}


@dataclass(frozen=True)
class StagedOutput(ABC):
    """New arrays that are written block by block, and appear at `url` when they are
    finished.

    An output has only names and numbers, so it travels to workers, and each worker
    opens the arrays itself. Writing a block twice stores the same bytes twice, so a
    retried task does no harm.
    """

    publication: Publication
    layout: Layout
    #: Whether a stopped job may have written some of the rows.
    is_begun: bool = field(default=False, kw_only=True)

    @property
    def location(self) -> Location:
        return self.publication.location

    @property
    def url(self) -> str:
        return self.location.url

    @property
    def n_samples(self) -> int:
        return self.layout.n_samples

    @abstractmethod
    def write(self, block: Block, values: AnyArray, /) -> None:
        """Write the rows of one block."""

    @abstractmethod
    def finish(self, attributes: Facts | None = None) -> None:
        """Write the attributes, and move the output to its place."""

    def _complete(
        self, names: Iterable[str], attributes: Facts | None, manifest: Facts
    ) -> None:
        """Write the attributes and a manifest that binds arrays, and publish them."""
        facts = {**(attributes or {}), MANIFEST: manifest}
        self.publication.complete(names, facts)
        self.publication.publish()

    def discard(self) -> None:
        """Remove the unfinished output; an older one at `url` stays."""
        self.publication.discard()

    def has_arrays(self) -> bool:
        """Return whether all arrays exist, in the layout's shapes."""
        try:
            # A stopped job may have had another layout, or been killed while it made
            # the arrays.
            return self._has_shapes()
        except Exception as error:
            why = locations.explain(error)
            logger.debug("%s is started again: %s", self.publication.staged, why)
            return False

    def has_block(self, block: Block) -> bool:
        """Return whether a block was written, and all its checksums are right."""
        try:
            return self.is_begun and self._is_written(block)
        except StorageError:
            return False

    @abstractmethod
    def _has_shapes(self) -> bool: ...

    @abstractmethod
    def _is_written(self, block: Block) -> bool:
        """Read a block; raises StorageError if it cannot be read."""


@dataclass(frozen=True)
class Output(StagedOutput):
    """Rows of arrays, in blocks that begin and end on multiples of the layout's
    `chunk_rows`.

    Blocks may be written in any order, and again.
    """

    def write(self, block: Block, values: AnyArray, /) -> None:
        """Write the rows of one block; values of several arrays are fields.

        Raises StorageError if the block is not whole chunks: two writers of one chunk
        could lose each other's rows.
        """
        chunk_rows = self.layout.chunk_rows
        is_within = 0 <= block.start < block.stop <= self.n_samples
        ends_whole = block.stop % chunk_rows == 0 or block.stop == self.n_samples
        if block.start % chunk_rows or not ends_whole or not is_within:
            raise StorageError(
                f"rows {block.start}:{block.stop} are not whole chunks of"
                f" {self.location} ({self.n_samples:_} rows in chunks of {chunk_rows});"
                " cut blocks with cut_blocks(n_samples, chunk_rows, rows_per_block=…)"
            )
        parts = self._parts(block, values)
        with locations.store_errors(
            f"rows {block.start}:{block.stop} of {self.location} cannot be written"
        ):
            try:
                for name, part in parts.items():
                    self._open(name)[block.start : block.stop] = part
                self._open(name)  # fails if the output was discarded meanwhile
            except BaseException:
                drain()
                with suppress(StorageError):
                    # Another process discarded the output meanwhile, and this write put
                    # a part of it back.
                    if not locations.has_file(self.publication.staged, ENTRY_FILE):
                        self.discard()
                raise

    def _has_shapes(self) -> bool:
        return all(
            self._open(name).shape == (self.n_samples, *dtype.shape)
            for name, dtype in self.layout.arrays.items()
        )

    def _is_written(self, block: Block) -> bool:
        for name in self.layout.arrays:
            # A killed writer may have left half a chunk: reading compares the checksum.
            array = self._open(name)
            read_rows(array, block.start, block.stop, label=f"array {name!r}")
        return True

    def _parts(self, block: Block, values: AnyArray) -> dict[str, AnyArray]:
        """Return the values of each array."""
        fields = np.dtype(self.layout.dtype)
        if fields.names is not None and values.dtype != fields:
            raise DataError(
                f"values of dtype {values.dtype}; expected the fields {fields}"
            )
        parts = {}
        for name, part in self.layout.split(values).items():
            expected = (block.n_samples, *self.layout.arrays[name].shape)
            if part.shape != expected:
                raise DataError(
                    f"values of shape {part.shape} for rows {block.start}:{block.stop};"
                    f" expected {expected}"
                )
            parts[name] = _as_stored(part)
        return parts

    def add(self, name: str, column: Column) -> None:
        """Write a column as a further array of the output."""
        rows = self.layout.chunk_rows
        with locations.store_errors(
            f"array {name!r} of {self.location} cannot be written"
        ):
            store = open_store(self.publication.staged, read_only=False)
            group = zarr.open_group(store, mode="r+")
            if name in group:  # a stopped job has written it
                del group[name]
            array = create_array(
                group,
                name,
                shape=(self.n_samples,),
                dtype=column.dtype,
                chunk_rows=rows,
            )
            for block in cut_blocks(self.n_samples, rows, rows_per_block=rows):
                array[block.start : block.stop] = _as_stored(column.read(block))

    def finish(self, attributes: Facts | None = None) -> None:
        """Check that every chunk was written, write the manifest and move the output to
        its place.

        Raises StorageError if chunks are missing (the output can still be completed or
        discarded); OutputExistsError, ConflictError or OutputBusyError if another run
        has written there meanwhile.
        """
        chunk_rows = self.layout.chunk_rows
        n_chunks = -(-self.n_samples // chunk_rows)
        with locations.store_errors(f"{self.location} cannot be put in place"):
            # Chunks are counted, not read: their writers have checked the values.
            n_written = min(
                self._open(name).nchunks_initialized for name in self.layout.arrays
            )
            if n_written != n_chunks:
                raise StorageError(
                    f"{self.location} is not complete: {n_written} of {n_chunks} chunks"
                    f" of {chunk_rows} rows were written. Write the missing blocks, or"
                    " discard the output"
                )
            group = zarr.open_group(open_store(self.publication.staged), mode="r")
            manifest = {"n_samples": self.n_samples, "chunk_rows": chunk_rows}
            self._complete(sorted(group.array_keys()), attributes, manifest)

    def _open(self, name: str) -> ZarrArray:
        staged = self.publication.staged
        try:
            store = open_store(staged, read_only=False)
            return zarr.open_array(store, path=name, mode="r+", config=EVERY_CHUNK)
        except FileNotFoundError as error:
            raise StorageError(
                f"the unfinished output {staged} of {self.location} is gone"
            ) from error


def _as_stored(values: AnyArray) -> AnyArray:
    """Return text with variable width, and other values as they are."""
    return values.astype(TEXT) if values.dtype.kind == "U" else values


def create_output(
    url: PathLike,
    layout: Layout,
    *,
    inputs: Sequence[PathLike] = (),
    overwrite: bool = False,
    staged: Location | None = None,
) -> Output:
    """Begin an output of known size that workers fill block by block.

    It may not overlap its inputs, and replaces a Zarr group at `url` only with
    `overwrite`. `staged` is a local folder for the unfinished output: if a stopped job
    has begun the same output there, this one goes on with it.
    """
    attributes: Summary = {}
    if layout.column_names is not None:
        attributes["feature_names"] = list(layout.column_names)

    def fill(group: zarr.Group) -> None:
        for name, dtype in layout.arrays.items():
            create_array(
                group,
                name,
                shape=(layout.n_samples, *dtype.shape),
                dtype=dtype.base,
                chunk_rows=layout.chunk_rows,
            )

    return begin(
        partial(Output, layout=layout),
        url,
        fill,
        attributes,
        inputs=[locations.parse_location(source) for source in inputs],
        overwrite=overwrite,
        staged=staged,
    )


def begin[O: StagedOutput](
    make: Callable[..., O],
    url: PathLike,
    fill: Callable[[zarr.Group], None],
    attributes: Facts,
    *,
    inputs: Sequence[Location],
    overwrite: bool,
    staged: Location | None,
) -> O:
    """Begin an output, or go on with a stopped job's; see `create_output`.

    `make` returns the output for a publication and `is_begun`; `fill` makes the arrays
    in its group.
    """
    location = locations.parse_location(url)
    output_places.check_output(location, overwrite=overwrite, inputs=inputs)
    if not location.is_local:
        staged = None
    publication = Publication.plan(location, overwrite=overwrite, staged=staged)
    if staged is not None:
        begun = make(publication, is_begun=True)
        if begun.has_arrays():
            return begun
        output_places.discard(staged)
    group = publication.create_group(attributes)
    try:
        with locations.store_errors(f"{location} cannot be written"):
            fill(group)
    except Exception:
        publication.discard()
        raise
    return make(publication)
