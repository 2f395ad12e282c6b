"""Tables to datasets, with the options of both objects side by side."""

from rff_dist.ingest import ingest as module
from rff_dist.storage.writing import Writing


def ingest(source, url, *, chunk_rows=None, overwrite=False, observer=None, versioned=True, **roles):
    how = Writing(chunk_rows, overwrite, observer, versioned=versioned and _keeps_versions(url))
    return module.ingest(source, url, module.Roles(**roles), how)


def ingest_more(source, url, *, chunk_rows=None, observer=None, **roles):
    how = Writing(chunk_rows, observer=observer, versioned=_keeps_versions(url))
    return module.ingest_more(source, url, module.Roles(**roles), how)


def _keeps_versions(url):
    """Say whether a dataset can: one in memory cannot."""
    return not str(url).startswith("memory://")
