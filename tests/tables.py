"""Tables to datasets, with the options of both objects side by side."""

from rff_dist.ingest import ingest as module
from rff_dist.storage.writing import Writing


def ingest(source, url, *, chunk_rows=None, overwrite=False, observer=None, **roles):
    return module.ingest(source, url, module.Roles(**roles), Writing(chunk_rows, overwrite, observer))


def ingest_more(source, url, *, chunk_rows=None, observer=None, **roles):
    return module.ingest_more(source, url, module.Roles(**roles), Writing(chunk_rows, observer=observer))
