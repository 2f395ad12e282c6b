"""scikit-learn's face: estimators that take arrays in memory, and datasets of any
size.
"""
