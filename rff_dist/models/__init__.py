"""Stored models: their kinds, and registered models with numbered versions."""
