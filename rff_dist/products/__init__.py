"""Exact sums of products of fixed-point features: one interface, several ways, the same
whole numbers.
"""
