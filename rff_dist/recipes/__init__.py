"""Recipes: how the columns of a table become numbers, and how a stored recipe does it again."""
