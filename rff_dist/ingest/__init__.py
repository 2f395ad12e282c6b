"""Rows from elsewhere: files, tables, queries of databases, and generated data."""
