"""Rows and how they are cut: datasets in memory, blocks, columns, folds and samples of rows."""
