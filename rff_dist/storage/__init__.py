"""Datasets, outputs and models as Zarr and JSON.

No other room imports zarr or Icechunk.
"""
