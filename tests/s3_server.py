"""An S3 server on loopback for tests: moto in a process of its own, which can be told to fail.

`python -m tests.s3_server` serves until it is ended, and says its address on the first line.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKET = "bucket"
# Words that no message, log, artifact or model may hold.
KEY_ID, SECRET_KEY = "an-access-key-id", "a-secret-key-that-nobody-may-see"

type Environment = dict[str, Any]
type Application = Callable[[Environment, Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True)
class S3Server:
    """A running server.

    Attributes
    ----------
    endpoint : str
        Its address, `http://127.0.0.1:PORT`.
    """

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to use the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def url(self, name: str) -> str:
        """Return the URL of a name in the bucket."""
        return f"s3://{BUCKET}/{name}"

    def fail(self, times: int, *, status: int, method: str = "", path: str = "", after: int = 0) -> None:
        """Answer the next `times` requests that fit with `status`, from the one on after `after` others.

        The status 0 closes the connection without an answer, and -1 does so when the work is done.
        """
        fault = {"times": times, "status": status, "method": method, "path": path, "after": after}
        self._post("/_faults", json.dumps(fault).encode())

    def pause(self, after: int) -> None:
        """Let the request after `after` others wait for `go_on`."""
        self._post("/_pause", str(after).encode())

    def is_paused(self) -> bool:
        """Return whether a request waits; it may take a minute to come."""
        return bool(json.loads(self._post("/_is_paused", b"")))

    def go_on(self) -> None:
        """Let the request that waits go on, and no further one wait."""
        self._post("/_go_on", b"")

    def requests(self) -> list[str]:
        """Return the requests since the last call, as "PUT /bucket/name 200"."""
        found: list[str] = json.loads(self._post("/_requests", b""))
        return found

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects in the bucket."""
        import obstore

        store = self._store()
        return sorted(one["path"] for page in obstore.list(store, prefix or None) for one in page)

    def empty(self) -> None:
        """Remove all objects, and answer all requests."""
        import obstore

        self.fail(0, status=0)
        obstore.delete(self._store(), self.names())

    def read(self, key: str) -> bytes:
        """Return an object's bytes."""
        import obstore

        return bytes(obstore.get(self._store(), key).bytes())

    def write(self, key: str, content: bytes) -> None:
        """Replace an object's bytes."""
        import obstore

        obstore.put(self._store(), key, content)

    def copy(self, prefix: str, to: str) -> None:
        """Copy all objects below a prefix to another one."""
        import obstore

        for name in self.names(prefix):
            obstore.copy(self._store(), name, to + name.removeprefix(prefix))

    def _store(self) -> Any:
        from obstore.store import S3Store

        return S3Store(
            BUCKET,
            endpoint=self.endpoint,
            access_key_id=KEY_ID,
            secret_access_key=SECRET_KEY,
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def _post(self, path: str, body: bytes, method: str = "POST") -> bytes:
        request = urllib.request.Request(self.endpoint + path, data=body, method=method)
        with urllib.request.urlopen(request, timeout=90) as answer:
            content: bytes = answer.read()
        return content


@contextlib.contextmanager
def serve_s3() -> Iterator[S3Server]:
    """Start a server with an empty bucket, and end it on leaving."""
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "tests.s3_server"]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 120)
        endpoint = process.stdout.readline().decode().strip() if ready else ""
        if not endpoint:
            raise RuntimeError(f"the S3 server did not start (exit code {process.poll()})")
        server = S3Server(endpoint)
        server._post(f"/{BUCKET}", b"", "PUT")
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


class _Faults:
    """Count requests, and spoil those that were asked for."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._lock = threading.Lock()
        self._condition = threading.Lock()
        self._faults: list[dict[str, Any]] = []
        self._seen: list[str] = []
        self._pause_after: int | None = None
        self._paused, self._go_on = threading.Event(), threading.Event()

    def __call__(self, environment: Environment, start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environment["REQUEST_METHOD"], environment["PATH_INFO"]
        if path in ("/_faults", "/_requests"):
            body = environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
            with self._lock:
                if path == "/_faults":
                    self._faults = [json.loads(body)]
                seen, self._seen = self._seen, []
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(seen).encode()]
        if path in ("/_pause", "/_is_paused", "/_go_on"):
            found = self._answer(path, environment)
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(found).encode()]
        self._wait_if_paused()
        status = self._spoiled(method, path)
        if status is None:

            def noted(line: str, *more: Any) -> Any:
                self._note(f"{method} {path} {line[:3]}")
                return start_response(line, *more)

            with self._one_condition_at_a_time(environment):
                return self._application(environment, noted)
        self._note(f"{method} {path} {status}")
        if status < 0:
            with self._one_condition_at_a_time(environment):
                b"".join(self._application(environment, lambda *_: None))
        if status <= 0:
            # As when a proxy dies.
            environment["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        start_response(f"{status} Spoiled", [("Content-Type", "application/xml")])
        return [f"<Error><Code>Spoiled</Code><Message>asked for {status}</Message></Error>".encode()]

    def _one_condition_at_a_time(self, environment: Environment) -> contextlib.AbstractContextManager[Any]:
        """Let conditional writes follow each other: moto looks, then writes, and two could win."""
        is_conditional = environment.keys() & {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"}
        return self._condition if is_conditional else contextlib.nullcontext()

    def _answer(self, path: str, environment: Environment) -> bool:
        if path == "/_is_paused":
            return self._paused.wait(60)
        with self._lock:
            self._pause_after = None
            if path == "/_go_on":
                self._go_on.set()
            else:
                self._paused.clear()
                self._go_on.clear()
                self._pause_after = int(environment["wsgi.input"].read(int(environment["CONTENT_LENGTH"])))
        return True

    def _wait_if_paused(self) -> None:
        with self._lock:
            if self._pause_after != 0:
                self._pause_after = None if self._pause_after is None else self._pause_after - 1
                return
            self._pause_after = None
        self._paused.set()
        self._go_on.wait(60)

    def _note(self, line: str) -> None:
        with self._lock:
            self._seen.append(line)

    def _spoiled(self, method: str, path: str) -> int | None:
        with self._lock:
            for fault in self._faults:
                if fault["method"] not in ("", method) or fault["path"] not in path or fault["times"] <= 0:
                    continue
                if fault["after"] > 0:
                    fault["after"] -= 1
                    continue
                fault["times"] -= 1
                return int(fault["status"])
        return None


def main() -> None:
    """Serve until SIGTERM; the first line of the output is the address."""
    from moto.server import create_backend_app
    from werkzeug.serving import make_server

    # moto looks at credentials of its own kind; none of the user's are of use here.
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    application = _Faults(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
