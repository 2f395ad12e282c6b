"""Prefect flows: each task is a step of a job, and no array passes between tasks.

Importing this package sets how Prefect behaves, unless the environment says otherwise:
Prefect reports nothing to anybody, its temporary server, which needs 15 s on two cores,
has two minutes to start, and Dask's chatter stays out of the logs. Prefect reads its
settings when it is imported, so import this package first.

PREFECT_HOME, by default ~/.prefect, has Prefect's database and the profile that names a
server. It is the user's choice and left alone; `rff-dist demo` uses a folder of its
own.
"""

import os

_SETTINGS = {
    # Both are needed: clients read the first, servers the second.
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # Prefect's handler on the root logger would show every connection; errors are still
    # shown.
    "DASK_LOGGING__DISTRIBUTED": "error",
}

for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)
