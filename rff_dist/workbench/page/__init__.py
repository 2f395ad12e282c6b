"""One self-contained HTML page about a model: what it was made of, how good it is,
which columns matter.
"""
