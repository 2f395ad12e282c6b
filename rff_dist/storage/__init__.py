"""Datasets, outputs and models as Zarr and JSON; the only part of the package that imports zarr."""
