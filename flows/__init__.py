"""Prefect flows: each task is one call into the library, and no array passes between tasks."""
