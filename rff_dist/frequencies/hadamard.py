"""Orthogonal frequencies by fast transforms: p of them take O(p) memory, and O(p log p) work per row."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import NDArray

from rff_dist.typing import FloatArray

CHUNK = 16  # coordinates that one rotation mixes; with 8, 0.16 % of coordinates were exactly 0
_LARGEST_FACTOR = 4  # log2 of the largest Kronecker factor's order: 16 is the fastest
_PIECE = 2**16  # float64 numbers transformed at once: half a MiB, which a core's own cache holds
_MOST_ROWS = 64
_GROUP = 512  # frequencies of small blocks that are transformed together


@dataclass(frozen=True, eq=False)
class HadamardBlocks:
    """Blocks of p orthogonal frequencies in p ≥ n_features dimensions, cut to the first n_features.

    Frequency j of a block is radius j times row j of H·S₂·H·S₁·(H'⊗I)·Q, divided by its length: H and H'
    are Hadamard matrices of order p and p/16, S₁ and S₂ are random signs, and Q rotates each group of 16
    coordinates by a Haar-distributed matrix of its own. (H'⊗I)·Q has the distribution of H·Q, so these are
    the three Hadamard factors of Choromanski et al., with rotations in place of the first signs: signs alone
    give each coordinate few values, and 0 too often.

    `rotations`: float array of shape (n_blocks, p / 16, 16, 16).
    `signs`: int8 array of shape (n_blocks, 2, p). S₁ and S₂: 1 or -1.
    `radii`: float array of shape (n_frequencies,). Lengths of the frequencies in p dimensions.
    `stretch`: float64 array of shape (n_features,). Factors of the coordinates, the same for all frequencies.
    Source: Yu et al. (2016), "Orthogonal random features", Sec. 4; Choromanski, Rowland & Weller (2017), "The
      unreasonable effectiveness of structured random orthogonal embeddings", Sec. 2.2.
    """

    rotations: NDArray[np.floating]
    signs: NDArray[np.int8]
    radii: NDArray[np.floating]
    stretch: FloatArray

    @property
    def block_size(self) -> int:
        """p, a power of two."""
        return int(self.signs.shape[2])

    def frequencies(self) -> FloatArray:
        """Return the frequencies as a matrix of shape (n_features, n_frequencies), O(its size · log p)."""
        n_features, n_frequencies = len(self.stretch), len(self.radii)
        frequencies = np.empty((n_features, n_frequencies))
        for columns, rows, products in self.products(np.eye(n_features), 0, n_frequencies):
            frequencies[rows, columns] = products.T
        return frequencies

    def products(
        self, inputs: NDArray[np.floating], start: int, stop: int
    ) -> Iterator[tuple[slice, slice, FloatArray]]:
        """Yield the products of inputs with frequencies `start:stop`, piece by piece.

        All pieces are transformed in the same shape, the last one padded, so that a row's products do not
        depend on the rows next to it.

        `inputs`: array of shape (n_samples, n_features).
        `start`, `stop`: best at ends of blocks, since blocks are transformed whole.
        Yields `frequencies, rows`: which products these are, as slices; frequencies count from `start`.
        Yields `products`, float64 array of shape (n_frequencies, n_rows): valid until the next piece.
        """
        p, n_features = self.block_size, len(self.stretch)
        n_rows = max(16, min(_MOST_ROWS, _PIECE // p))
        together = max(1, _GROUP // p)
        blocks = range(start // p, -(-stop // p))
        padded = np.zeros((p, n_rows))
        work = np.empty((2, min(together, len(blocks)) * p * n_rows))
        for block in blocks[::together]:
            last = min(block + together, blocks.stop)
            first_wanted, last_wanted = max(start, block * p), min(stop, last * p)
            rotations = self.rotations[block:last].astype(np.float64)
            signs = self.signs[block:last].astype(np.float64)
            # H and H' have rows of squared length p and p / 16
            lengths = self.radii[first_wanted:last_wanted, np.newaxis] / (p * np.sqrt(p / CHUNK))
            wanted = slice(first_wanted - block * p, last_wanted - block * p)
            for row in range(0, len(inputs), n_rows):
                piece = inputs[row : row + n_rows]
                # columns beyond a short piece keep old numbers, and coordinates beyond n_features their zeros
                np.multiply(piece.T, self.stretch[:, np.newaxis], out=padded[:n_features, : len(piece)])
                products = _multiply(rotations, signs, padded, work)[wanted]
                products *= lengths
                columns = slice(first_wanted - start, last_wanted - start)
                yield columns, slice(row, row + len(piece)), products[:, : len(piece)]


def _multiply(rotations: FloatArray, signs: FloatArray, inputs: FloatArray, work: FloatArray) -> FloatArray:
    """Return H·S₂·H·S₁·(H'⊗I)·Q times inputs, block by block: shape (n_blocks · p, n_rows).

    `inputs`: float64 array of shape (p, n_rows).
    `work`: float64 array of shape (2, n_blocks · p · n_rows or more). Overwritten; it holds the result.
    """
    n_blocks, (p, n_rows) = len(signs), inputs.shape
    x, y = work[:, : n_blocks * inputs.size]
    chunks = (n_blocks, p // CHUNK, CHUNK, n_rows)
    # Q: each group of 16 coordinates by its rotation, for all blocks at once
    np.matmul(rotations, inputs.reshape(chunks[1:]), out=x.reshape(chunks))
    # H'⊗I mixes the groups with each other; then H·S₁ and H·S₂ mix all coordinates
    x, y = _transform(x, y, p // CHUNK, CHUNK * n_rows)
    for i in range(2):
        signed = x.reshape(n_blocks, p, n_rows)
        signed *= signs[:, i, :, np.newaxis]
        x, y = _transform(x, y, p, n_rows)
    return x.reshape(-1, n_rows)


def _transform(x: FloatArray, y: FloatArray, order: int, inner: int) -> tuple[FloatArray, FloatArray]:
    """Multiply the middle axis of x, of shape (anything, order, inner), by the Hadamard matrix of that order.

    The matrix is a Kronecker product of small ones, each applied as a matrix product (Van Loan 2000, "The
    ubiquitous Kronecker product", Sec. 5). That takes fewer sweeps through memory than sums and differences.
    x and y are both overwritten; the one that holds the result is returned first.
    """
    below = order * inner
    for factor in _factors(order):
        below //= factor
        # an axis of length `factor` between what is already transformed and the `below` numbers after it
        shape = (-1, factor, below)
        np.matmul(_hadamard(factor), x.reshape(shape), out=y.reshape(shape))
        x, y = y, x
    return x, y


def _factors(order: int) -> list[int]:
    """Split a power of two into the fewest factors up to 16, as equal as possible."""
    log2 = order.bit_length() - 1
    n_factors = -(-log2 // _LARGEST_FACTOR)
    return [2 ** ((log2 + i) // n_factors) for i in range(n_factors)]


@lru_cache
def _hadamard(order: int) -> FloatArray:
    matrix: FloatArray = scipy.linalg.hadamard(order, np.float64)
    matrix.setflags(write=False)
    return matrix
