"""Choose alpha without another pass: GCV, evidence, folds, few rows left out."""
