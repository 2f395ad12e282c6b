"""What one pass over the rows leaves: sums that add up exactly, of the whole and of
each fold.
"""
