"""Rows from elsewhere → datasets: files, queries, lakehouse tables, generated data."""
