"""Which alpha, from statistics alone: GCV, evidence, k-fold cross-validation, leave-one-out."""
