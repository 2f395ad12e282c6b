"""Engines run a pure function over the blocks of a dataset and merge what it returns.

Read `serial` first: it is the specification. `dask` gives the same answer, to the last bit, on many
processes and machines. An algorithm sees only the protocol `Engine` and never talks to Dask itself.
"""
