"""The sums that one pass over the rows makes, which add up exactly: of all rows, and of
each fold.
"""
