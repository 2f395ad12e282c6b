"""`python -m rff_dist.cli`, the same as `rff-dist`."""

from rff_dist.cli import main

# The embedded cluster's workers import this module too.
if __name__ == "__main__":
    main()
