"""Rows and how they are cut: datasets, blocks, columns, folds and samples of rows."""
