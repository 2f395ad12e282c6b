"""Recipes: how a table's columns become numbers, and how that is done again later."""
