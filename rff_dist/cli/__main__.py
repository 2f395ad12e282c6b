"""`python -m rff_dist.cli`, the same as `rff-dist`."""

from rff_dist.cli import main

# The workers of an embedded cluster import this module too, and must not run the command again.
if __name__ == "__main__":
    main()
