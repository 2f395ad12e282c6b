"""Ridge regression on random features: fit, predict, evaluate, update, and how sure it is."""
