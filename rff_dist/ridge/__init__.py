"""Ridge regression on random features: fit, predict, evaluate, and update."""
