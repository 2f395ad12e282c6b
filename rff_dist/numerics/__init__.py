"""Arithmetic on arrays, without data sets: exact sums, triangular factors, ridge
solvers, threads.
"""
