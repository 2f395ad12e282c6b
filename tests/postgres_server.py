"""A PostgreSQL server on loopback for tests, with a password, in a folder of its
own.
"""

import glob
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

PASSWORD = "geheim/7"


def find_programs() -> str | None:
    """Return the folder of initdb and pg_ctl; None if they are not installed, or may
    not run as this user.
    """
    places = [
        os.environ["PATH"],
        *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True),
    ]
    found = shutil.which("initdb", path=os.pathsep.join(places))
    return (
        os.path.dirname(os.path.realpath(found))
        if found and (_user() or os.getuid())
        else None
    )


def _user() -> str | None:
    """Return the user to run as, since PostgreSQL refuses root; None is this one."""
    import pwd

    is_there = any(entry.pw_name == "postgres" for entry in pwd.getpwall())
    return "postgres" if os.getuid() == 0 and is_there else None


@contextmanager
def serve_postgres() -> Iterator[str]:
    """Start a server, and yield where it is, as `user:password@host:port/name`."""
    programs = find_programs()
    user = _user()
    assert programs is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="rff_dist-postgres-")
    if user is not None:
        shutil.chown(folder, user)

    def run(*words: str) -> None:
        subprocess.run(
            words,
            user=user,
            cwd=folder,
            check=True,
            timeout=60,
            stdout=subprocess.DEVNULL,
        )

    try:
        with open(f"{folder}/password", "w") as file:
            file.write(PASSWORD)
        os.chmod(f"{folder}/password", 0o644)
        data = f"{folder}/data"
        log = f"{folder}/log"
        login = ["-U", "me", "-A", "scram-sha-256", "--pwfile", f"{folder}/password"]
        run(f"{programs}/initdb", "-N", "-D", data, "-E", "UTF8", "--locale=C", *login)
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={port} -c"
            f" unix_socket_directories={folder} -c fsync=off"
        )
        run(
            f"{programs}/pg_ctl",
            "-D",
            data,
            "-w",
            "-t",
            "50",
            "-l",
            log,
            "-o",
            options,
            "start",
        )
        try:
            yield f"me:{PASSWORD.replace('/', '%2F')}@127.0.0.1:{port}/postgres"
        finally:
            run(f"{programs}/pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
