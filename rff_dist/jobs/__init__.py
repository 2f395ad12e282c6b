"""Jobs: each a frozen spec and the named steps that the command line, the flows and Python run alike."""
