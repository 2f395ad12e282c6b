"""Arithmetic that knows no rows: exact sums, triangular factors, ridge solvers,
threads.
"""
