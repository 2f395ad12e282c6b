"""Prefect flows: each task is one call into the library, and no array passes between tasks.

Importing this package fixes how Prefect behaves here, unless the environment says otherwise: nothing is
reported to anybody, Prefect's temporary server, which needs 15 s on two cores, has two minutes to start,
and Dask's chatter stays out of the logs. Prefect reads its settings when it is imported, so import
this first.

Prefect keeps its database in PREFECT_HOME, ~/.prefect by default, and finds the profile there that names a
server. That choice is the user's, so it is left alone; `rff-dist demo` uses a folder of its own.
"""

import os

_SETTINGS = {
    # Each alone leaves something on: the first is read by clients, the second by servers.
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # Prefect's handler on the root logger would show every connection; errors stay.
    "DASK_LOGGING__DISTRIBUTED": "error",
}

for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)
