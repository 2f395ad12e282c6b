"""Engines run a pure function over the blocks of a dataset and add up its results.

Read `serial` first: it is the specification. `dask` gives the same answer, to the last
bit, on many processes and machines. An algorithm sees only the protocol `Engine` and
never talks to Dask itself.

Why `dask_pass` keeps a total for each worker: a pass of plain Dask tasks took no
longer, but had more sums in memory than was planned. Such a pass has a task for each
run of blocks and a tree of merges, and Dask makes results again that die with a worker.
Measured with 400 blocks, 8 workers and about 10 runs for each:

====================================  ===========================  =====================
pass                                  most sums in a worker's      sums moved between
                                      memory                       workers
====================================  ===========================  =====================
plain tasks                           8                            70
the same, a worker's own sums first   5                            19
`dask_pass`                           2 between runs               8
====================================  ===========================  =====================
"""
