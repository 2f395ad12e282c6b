"""Statistics in, coefficients out: one file per algorithm."""

from rff_dist.solvers.cholesky import solve_cholesky
from rff_dist.solvers.eigen import RidgeSpectrum, decompose
from rff_dist.solvers.solution import RidgeSolution, SolveStatus

__all__ = ["RidgeSolution", "RidgeSpectrum", "SolveStatus", "decompose", "solve_cholesky"]
