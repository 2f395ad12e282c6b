"""Which alpha, from statistics alone: GCV, evidence, k-fold cross-validation; few rows, left out in turn."""
