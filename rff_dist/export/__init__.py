"""Models for other programs: two arrays, one JSON document, and a reader that needs
NumPy only.
"""
