"""Z for one tile of rows: what maps an input to features, and how it is drawn from a kernel.

Features are computed unnormalised (entries in [-1, 1] where a bound exists) and transposed, one
component per line, because that is how the products want them; scales make Z of them.
"""
