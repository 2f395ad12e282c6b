"""scikit-learn's face of the pipeline: the same class for arrays in memory and data sets of any size."""
