"""How frequencies are sampled: designs x spectral measures, from counter-based random numbers.

A spectral measure says which distribution the frequencies follow (Bochner's theorem ties it
to the kernel); a design says how the draws are arranged. All randomness is a pure function
of (seed, position), so that the first frequencies of a long draw are the frequencies of a
short one, on every machine.
"""
