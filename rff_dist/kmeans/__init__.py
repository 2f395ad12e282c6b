"""Kernel k-means, in random features and exactly."""
