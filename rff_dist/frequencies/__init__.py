"""How frequencies are sampled: designs x spectral measures, from counter-based random numbers.

A spectral measure says which distribution the frequencies follow (Bochner's theorem ties it
to the kernel); a design says how the draws are arranged. All randomness is a pure function
of (seed, position), so that the first frequencies of a long draw are the frequencies of a
short one, on every machine.
"""

from rff_dist.frequencies.counter import FloatArray, counter_uniforms, derived_seed, draw_phases, seed_of
from rff_dist.frequencies.designs import DESIGNS, IID, Design, Orthogonal, QuasiMonteCarlo, Structured
from rff_dist.frequencies.hadamard import HadamardBlocks
from rff_dist.frequencies.measures import GaussianMixture, ProductMeasure, SpectralMeasure

__all__ = [
    "DESIGNS",
    "IID",
    "Design",
    "FloatArray",
    "GaussianMixture",
    "HadamardBlocks",
    "Orthogonal",
    "ProductMeasure",
    "QuasiMonteCarlo",
    "SpectralMeasure",
    "Structured",
    "counter_uniforms",
    "derived_seed",
    "draw_phases",
    "seed_of",
]
