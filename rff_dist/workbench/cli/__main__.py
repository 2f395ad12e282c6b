"""`python -m rff_dist.workbench.cli`, the same as `rff-dist`."""

from rff_dist.workbench.cli import main

# The workers of an embedded cluster import this module too, and must not run the
# command again.
if __name__ == "__main__":
    main()
