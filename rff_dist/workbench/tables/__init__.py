"""Rows from outside: files, tables, database queries, and generated data."""
