"""Exact sums of products of fixed-point features, Z'Z, by one of several ways that give
the same whole numbers.
"""
