"""Jobs: each a frozen spec and a plain function that the command line, the flows and
Python call.
"""
