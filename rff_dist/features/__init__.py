"""Z for one tile of rows: feature maps, and how they are drawn from a kernel.

Features are computed unnormalised (entries in [-1, 1] if a bound exists) and
transposed, one component per line, as the products need them. Multiplied by `scales`
they are Z.
"""
