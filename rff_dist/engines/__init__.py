"""Engines run a pure function over the blocks of a dataset and merge what it returns.

Read `serial` first: it is the specification. `dask` gives the same answer, to the last
bit, on many processes and machines. An algorithm sees only the protocol `Engine` and
never talks to Dask itself.

Why `dask_pass` keeps a total for each worker: a pass as plain Dask tasks (runs, a tree
of merges, and what dies with a worker made again by Dask) took no longer, but held more
sums at once than memory is planned for. Of 400 blocks, about 10 runs for each of 8
workers, a worker held up to 8 sums, and 5 where it added its own first; log2 of its
runs is 3.3. Today it holds 2 between runs. 70 sums moved between workers, or 19; today
8.
"""
