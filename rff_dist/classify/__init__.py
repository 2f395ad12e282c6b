"""Classes: ridge regression on targets of -1 and +1, losses, and probabilities."""
