"""What is approximated: exact kernels k(x, y), their algebra, and their spectral
measures.

Shift-invariant kernels have random Fourier features, drawn from their spectral measure.
Those with a formula, or given by the distribution of their frequencies, are in
`stationary`; `additive` adds kernels of single columns and of pairs of columns. Linear,
polynomial and min kernels (`explicit`) have features of their own. Sums, products,
multiples and kernels on some columns (`base`) are kernels again. `positive_definite`
checks whether a function of the distance is a kernel.
"""
