"""The evidence of length scales: how likely rows' targets are under a kernel.

Rows and a kernel go in; an objective comes out, a function of length scales and α that
returns a value with its gradient. SciPy's normal distribution has no gradient, and
finite differences would take an evaluation per column.

The model is y = f(x) + noise, where f is a Gaussian process with covariance signal
variance · k. So y ~ N(0, σ²·(K/α + I)), where σ² is the noise variance, and α, its
ratio to the signal variance, is ridge's penalty. With features K is ZZ', and Z depends
on the length scales only through its angles, so the gradient costs two more matrix
products than the evidence itself, for any number of columns.

Objectives are -2·log evidence per row and target, without constants, with σ² at its
maximum. For classes they are the log loss of `left_out`.

Rasmussen & Williams (2006), Gaussian Processes for Machine Learning, eq. 5.8 and 5.9.
"""

from __future__ import annotations  # an evaluated annotation would load scipy.optimize

from collections.abc import Mapping
from dataclasses import field

import numpy as np
import scipy

from rff_dist.errors import DataError, SolveError
from rff_dist.features import left_out
from rff_dist.kernels import stationary
from rff_dist.numerics import lapack
from rff_dist.typing import EPS, FloatArray, IndexArray, frozen

LOG_ALPHA_RANGE = (np.log(1e-8), np.log(1e4))
N_ALPHAS = 49  # in this range, a factor of 1.8 apart


@frozen
class BestAlpha:
    """The α of the largest evidence, for one kernel with its length scales."""

    alpha: float
    #: Log density of the targets, summed over targets.
    log_evidence: float
    #: Of each target, shape (n_targets,).
    noise_variance: FloatArray


@frozen
class EvidenceRows:
    """The rows of an objective."""

    #: Shape (n_samples, n_features).
    inputs: FloatArray
    #: Centred, and multiplied by `root_weights`; shape (n_samples, n_targets).
    targets: FloatArray
    #: Square roots of the sample weights, shape (n_samples,): a row of weight w counts
    #: w times in the likelihood. None if each counts once.
    root_weights: FloatArray | None
    #: The rows' classes; None for a regression.
    labels: left_out.Labels | None = None

    @property
    def n_observations(self) -> float:
        """The sum of the weights; without weights the number of rows."""
        if self.root_weights is None:
            return len(self.inputs)
        return float((self.root_weights**2).sum())

    def some(self, n_samples: int) -> EvidenceRows:
        """Return up to `n_samples` of the rows, evenly spaced."""
        total = len(self.inputs)
        n_kept = min(n_samples, total)
        return self._at(np.arange(n_kept) * total // n_kept)

    def batches(self, n_samples: int) -> list[EvidenceRows]:
        """Return all rows, in batches of at most `n_samples`, each evenly spaced."""
        n_batches = -(-len(self.inputs) // n_samples)
        return [self._at(slice(first, None, n_batches)) for first in range(n_batches)]

    def _at(self, rows: IndexArray | slice) -> EvidenceRows:
        roots = None if self.root_weights is None else self.root_weights[rows]
        labels = None if self.labels is None else self.labels.some(rows)
        return EvidenceRows(self.inputs[rows], self.targets[rows], roots, labels)

    def weigh(self, gram: FloatArray) -> FloatArray:
        """Return a Gram matrix of the rows, weighted on both sides."""
        roots = self.root_weights
        return gram if roots is None else gram * np.multiply.outer(roots, roots)

    def best_alpha(self, eigenvalues: FloatArray, projected: FloatArray) -> BestAlpha:
        """Return the best α from one eigendecomposition, which serves all α.

        `eigenvalues` are those of the Gram matrix ZZ' or of Z'Z, shape (k,), and
        `projected` is Z'y in the eigenvectors of Z'Z, shape (k, n_targets).
        """
        n = self.n_observations
        n_targets = self.targets.shape[1]
        total = (self.targets**2).sum(axis=0)
        # log evidence: −½·[n·log(2πσ²) + n + log det(I + K/α)], where σ² = misfit/n is
        # the maximising noise
        rounding = len(eigenvalues) * EPS * total

        def misfit(alpha: float) -> FloatArray:
            shrunk = projected**2 / (eigenvalues + alpha)[:, np.newaxis]
            return np.maximum(total - shrunk.sum(axis=0), rounding)

        def value(log_alpha: float) -> float:
            log_determinant = np.log1p(eigenvalues * np.exp(-log_alpha)).sum()
            log_variances = np.log(misfit(np.exp(log_alpha)) / n)
            return float(n * log_variances.sum() + n_targets * log_determinant)

        # the evidence may have several maxima in α: a grid brackets the best
        grid = np.linspace(*LOG_ALPHA_RANGE, N_ALPHAS)
        best = int(np.argmin([value(log_alpha) for log_alpha in grid]))
        bracket = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        end = scipy.optimize.minimize_scalar(
            value, bounds=bracket, method="bounded", options={"xatol": 1e-3}
        )
        alpha = float(np.exp(end.x))
        constants = n * n_targets * (np.log(2 * np.pi) + 1)
        log_evidence = float(-0.5 * (end.fun + constants))
        return BestAlpha(alpha, log_evidence, misfit(alpha) / n)


@frozen
class KernelObjective:
    """The objective of the kernel itself, for few rows: O(n_samples³)."""

    rows: EvidenceRows
    #: Has derivatives, see `Stationary.differentiable`.
    kernel: stationary.Stationary

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        """Return the value at a point, and its gradient.

        `parameters` are the logarithms of one length scale for all columns, or one for
        each; the logits of the kernel's parts; then the logarithm of α.
        """
        rows = self.rows
        kernel = kernel_at(self.kernel, parameters[:-1], rows.inputs.shape[1])
        alpha = float(np.exp(parameters[-1]))
        gram, derivatives = kernel.differentiate(rows.inputs)
        covariance = rows.weigh(gram)
        covariance[np.diag_indices_from(covariance)] += alpha
        factor, solved = _factor_and_solve(covariance, rows.targets, alpha)

        if rows.labels is not None:
            loss, by_covariance = rows.labels.left_out_loss(solved, _inverse(factor))
            by_log_alpha = alpha * np.trace(by_covariance)
            by_kernel = derivatives(rows.weigh(by_covariance))
            return loss, self._gradient(parameters, by_kernel, by_log_alpha)

        n = rows.n_observations
        n_targets = rows.targets.shape[1]
        # y'(I + K/α)⁻¹y = α·y'(K + α)⁻¹y. Targets are up to 1, but those of a few rows
        # may all be at the mean.
        misfit = np.maximum(alpha * (rows.targets * solved).sum(axis=0), 1e-30)
        log_determinant = _log_determinant(factor, alpha)
        value = n * np.log(misfit / n).sum() + n_targets * log_determinant

        inverse = _inverse(factor)
        # α·∂misfit/∂α = misfit − α²·‖(K + α)⁻¹y‖²
        by_log_alpha = n * (1 - alpha**2 * (solved**2).sum(axis=0) / misfit).sum()
        by_log_alpha += n_targets * (alpha * np.trace(inverse) - len(factor))
        # ∂log det = tr((K + α)⁻¹·∂K), ∂misfit = −α·y'(K + α)⁻¹·∂K·(K + α)⁻¹y; shape
        # (n_samples, n_samples)
        by_covariance = n_targets * inverse - (n * alpha / misfit * solved) @ solved.T
        by_kernel = derivatives(rows.weigh(by_covariance))
        gradient = self._gradient(parameters, by_kernel, by_log_alpha)
        count = n * n_targets
        return float(value) / count, gradient / count

    def _gradient(
        self, parameters: FloatArray, by_kernel: FloatArray, by_log_alpha: float
    ) -> FloatArray:
        """Join derivatives by each column's scale and the logits, and by log α."""
        n_scales = len(parameters) - len(self.kernel.logits) - 1
        if n_scales == 1:
            # the one scale moves all columns alike, so their derivatives add up
            n_features = self.rows.inputs.shape[1]
            by_scales = by_kernel[:n_features]
            by_kernel = np.append(by_scales.sum(), by_kernel[n_features:])
        return np.append(by_kernel, by_log_alpha)

    def best_alpha_at_point(self, parameters: FloatArray) -> BestAlpha:
        """Return the best α at a point without α: log length scales, then logits."""
        inputs = self.rows.inputs
        kernel = kernel_at(self.kernel, parameters, inputs.shape[1])
        eigenvalues, vectors = _decompose(self.rows.weigh(kernel.gram(inputs, inputs)))
        roots = np.sqrt(eigenvalues)[:, np.newaxis]
        projected = roots * (vectors.T @ self.rows.targets)
        return self.rows.best_alpha(eigenvalues, projected)


def kernel_at(
    kernel: stationary.Stationary, parameters: FloatArray, n_features: int
) -> stationary.Stationary:
    """Return the kernel at logarithms of length scales, followed by logits."""
    n_scales = len(parameters) - len(kernel.logits)
    scales = np.broadcast_to(np.exp(parameters[:n_scales]), n_features)
    return kernel.with_logits(parameters[n_scales:]).with_length_scale(scales)


def _factor_and_solve(
    matrix: FloatArray, right: FloatArray, alpha: float
) -> tuple[FloatArray, FloatArray]:
    """Return the Cholesky factor of a symmetric matrix, and the solution.

    The matrix is overwritten. LAPACK's lower triangle is the upper one in C's order;
    below it, the factor keeps what was there.
    """
    factor = np.ascontiguousarray(matrix)
    solved = np.array(right, order="F")
    n = len(matrix)
    try:
        lapack.call("dpotrf", b"L", n, factor, n)
    except SolveError as error:
        raise SolveError(
            f"Z'Z + alpha is not positive definite at alpha = {alpha:g}; scale X and y"
        ) from error
    lapack.call("dpotrs", b"L", n, solved.shape[1], factor, n, solved, n)
    return factor, solved


def _log_determinant(factor: FloatArray, alpha: float) -> float:
    """Return log det(I + K/α) from the Cholesky factor of K + α·I."""
    logs = np.log(np.diag(factor))
    return float(2 * logs.sum() - len(factor) * np.log(alpha))


def _inverse(factor: FloatArray) -> FloatArray:
    """Return the inverse of the factored matrix; the factor is overwritten."""
    lapack.call("dpotri", b"L", len(factor), factor, len(factor))
    upper = np.triu(factor)
    inverse = upper + upper.T
    inverse[np.diag_indices_from(inverse)] *= 0.5
    return inverse


@frozen
class FeatureObjective:
    """The objective of features in place of the kernel, without logits or classes.

    O(n_samples · n_components² + n_components³), so for any number of rows.
    """

    rows: EvidenceRows
    #: For a unit length scale, shape (n_features, n_frequencies).
    frequencies: FloatArray
    #: For each column of categories: the angles of its levels for a unit length scale,
    #: shape (n_levels, n_frequencies), and the level of each row.
    levels: Mapping[int, tuple[FloatArray, IndexArray]] = field(default_factory=dict)

    def features(self, length_scales: FloatArray) -> FloatArray:
        """Return Z, (n_samples, 2 · n_frequencies): all cosines, then all sines."""
        n_frequencies = self.frequencies.shape[1]
        projected = self.rows.inputs @ (self.frequencies / length_scales[:, np.newaxis])
        for column, (unit_angles, places) in self.levels.items():
            projected += (unit_angles / length_scales[column])[places]
        angles = projected.astype(np.float32)
        Z = np.empty((len(angles), 2 * n_frequencies))
        np.cos(angles, out=Z[:, :n_frequencies], dtype=np.float32)
        np.sin(angles, out=Z[:, n_frequencies:], dtype=np.float32)
        Z *= n_frequencies**-0.5
        if self.rows.root_weights is not None:
            Z *= self.rows.root_weights[:, np.newaxis]
        return Z

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        """Return the value at a point, and its gradient.

        `parameters` are the logarithms of one length scale for all columns, or one for
        each; then the logarithm of α.
        """
        n = self.rows.n_observations
        n_targets = self.rows.targets.shape[1]
        n_features = len(self.frequencies)
        scales = np.broadcast_to(np.exp(parameters[:-1]), n_features)
        alpha = float(np.exp(parameters[-1]))
        Z = self.features(scales)
        n_components = Z.shape[1]
        gram = Z.T @ Z
        gram[np.diag_indices_from(gram)] += alpha
        factor, weights = _factor_and_solve(gram, Z.T @ self.rows.targets, alpha)
        residuals = self.rows.targets - Z @ weights
        squares = (weights**2).sum(axis=0)
        # equal to y'y − y'Z(Z'Z + α)⁻¹Z'y, but a sum of squares, which cannot cancel
        misfit = (residuals**2).sum(axis=0) + alpha * squares
        log_determinant = _log_determinant(factor, alpha)
        value = n * np.log(misfit / n).sum() + n_targets * log_determinant

        inverse = _inverse(factor)
        # Rasmussen & Williams in weight space: weights minimise the misfit, so its
        # derivatives by α and Z are those for fixed weights
        by_log_alpha = n * alpha * (squares / misfit).sum()
        by_log_alpha += n_targets * (alpha * np.trace(inverse) - n_components)
        by_Z = (2 * n_targets) * (Z @ inverse)
        by_Z -= residuals @ (2 * n / misfit * weights).T
        # The derivative of a cosine is minus the sine, the derivative of a sine is the
        # cosine, and Z holds both. It also holds the weights' roots, which the chain
        # rule needs once.
        half = n_components // 2
        by_angle = by_Z[:, half:] * Z[:, :half] - by_Z[:, :half] * Z[:, half:]
        # angles are Σ_j x_j·ω_j/ℓ_j, so that ∂angle/∂log ℓ_j = −x_j·ω_j/ℓ_j
        by_scaled = ((self.rows.inputs.T @ by_angle) * self.frequencies).sum(axis=1)
        for column, (unit_angles, places) in self.levels.items():
            by_scaled[column] = np.vdot(by_angle, unit_angles[places])
        by_log_scale = -by_scaled / scales
        if len(parameters) == 2:
            by_log_scale = by_log_scale.sum(keepdims=True)
        count = n * n_targets
        return float(value) / count, np.append(by_log_scale, by_log_alpha) / count

    def best_alpha_at_scales(self, length_scales: FloatArray) -> BestAlpha:
        Z = self.features(length_scales)
        eigenvalues, vectors = _decompose(Z.T @ Z)
        projected = vectors.T @ (Z.T @ self.rows.targets)
        return self.rows.best_alpha(eigenvalues, projected)


def _decompose(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues, at least 0, and eigenvectors; the matrix is overwritten."""
    values, vectors = scipy.linalg.eigh(
        matrix, driver="evd", overwrite_a=True, check_finite=False
    )
    return np.maximum(values, 0.0), vectors


def likelihood_weights(sample_weight: FloatArray, *, repeated: bool) -> FloatArray:
    """Return how many times each row counts in the likelihood, shape (n_samples,).

    Weights that do not repeat rows are scaled so that their sum is Kish's effective
    number of rows, (Σw)²/Σw². A factor on all weights then changes nothing.

    `sample_weight`: float64 array of shape (n_samples,). Above 0.
    `repeated`: whether weights are whole numbers that repeat their rows.
    Raises DataError if weights that repeat rows are not whole.
    Source: Kish (1965), Survey Sampling.
    """
    if not repeated:
        # so that squares stay in float64's range
        relative = sample_weight / sample_weight.max()
        return relative * (relative.sum() / (relative**2).sum())
    if len(broken := sample_weight[sample_weight != np.rint(sample_weight)]):
        raise DataError(
            f"a sample weight is {broken[0]:g}, but these weights say how many times a"
            " row is there; give whole numbers"
        )
    return sample_weight
