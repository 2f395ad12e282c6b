"""Registered models: numbered versions, and which of them is current."""
