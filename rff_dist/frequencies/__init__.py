"""How frequencies are sampled: spectral measures, designs and counter-based random
numbers.

A spectral measure says which distribution the frequencies follow (Bochner's theorem
ties it to the kernel); a design says how the draws are arranged. All random numbers are
a pure function of (seed, position), so a long draw begins with the frequencies of a
short one, on every machine.
"""
