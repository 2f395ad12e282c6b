"""An S3 server on loopback for tests: moto in a process of its own, which can be told
to fail.

In a thread of the tests' process it would wait for ever for clients that hold the
interpreter's lock."""

import contextlib
import logging
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.managers import BaseManager
from typing import Any

BUCKET = "bucket"
# Words that no message, log, artifact or model may hold.
KEY_ID = "an-access-key-id"
SECRET_KEY = "a-secret-key-that-nobody-may-see"

type Environment = dict[str, Any]
type Application = Callable[[Environment, Callable[..., Any]], Iterable[bytes]]


class S3Server:
    """A server with an empty bucket, in the process that makes it: counts requests, and
    spoils some.
    """

    def __init__(self) -> None:
        from moto.s3.models import s3_backends
        from moto.server import create_backend_app
        from werkzeug.serving import make_server

        # moto looks at credentials of its own kind; none of the user's are of use here.
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._lock = threading.Lock()
        self._condition = threading.Lock()
        self._fault: dict[str, Any] = {"times": 0}
        self._seen: list[str] = []
        self._pause_after: int | None = None
        self._paused = threading.Event()
        self._go_on = threading.Event()
        self._application: Application = create_backend_app("s3")
        self._backend = s3_backends["123456789012"]["aws"]
        self._backend.create_bucket(BUCKET, "us-east-1")
        server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self._endpoint = f"http://127.0.0.1:{server.port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to use the server."""
        return {
            "AWS_ENDPOINT_URL": self._endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def url(self, name: str) -> str:
        """Return the URL of a name in the bucket."""
        return f"s3://{BUCKET}/{name}"

    def fail(
        self,
        times: int,
        *,
        status: int,
        method: str = "",
        path: str = "",
        after: int = 0,
    ) -> None:
        """Answer the next `times` requests that fit with `status`, from the one on
        after `after` others.

        The status 0 closes the connection without an answer, and -1 does so when the
        work is done."""
        with self._lock:
            self._fault = {
                "times": times,
                "status": status,
                "method": method,
                "path": path,
                "after": after,
            }
            self._seen = []

    def pause(self, after: int) -> None:
        """Let the request after `after` others wait for `go_on`."""
        self._paused.clear()
        self._go_on.clear()
        with self._lock:
            self._pause_after = after

    def is_paused(self) -> bool:
        """Return whether a request waits; it may take a minute to come."""
        return self._paused.wait(60)

    def go_on(self) -> None:
        """Let the request that waits go on, and no further one wait."""
        with self._lock:
            self._pause_after = None
        self._go_on.set()

    def requests(self) -> list[str]:
        """Return the requests since the last call, as "PUT /bucket/name 200"."""
        with self._lock:
            seen = self._seen
            self._seen = []
        return seen

    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects in the bucket."""
        return sorted(
            name
            for name in self._backend.buckets[BUCKET].keys
            if name.startswith(prefix)
        )

    def empty(self) -> None:
        """Remove all objects, and answer all requests."""
        self.fail(0, status=0)
        for name in self.names():
            self._backend.delete_object(BUCKET, name)

    def read(self, key: str) -> bytes:
        """Return an object's bytes."""
        return bytes(self._backend.get_object(BUCKET, key).value)

    def write(self, key: str, content: bytes) -> None:
        """Replace an object's bytes."""
        self._backend.put_object(BUCKET, key, content)

    def copy(self, prefix: str, to: str) -> None:
        """Copy all objects below a prefix to another one."""
        for name in self.names(prefix):
            self.write(to + name.removeprefix(prefix), self.read(name))

    def _serve(
        self, environment: Environment, start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        method = environment["REQUEST_METHOD"]
        path = environment["PATH_INFO"]
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
        return [
            f"<Error><Code>Spoiled</Code><Message>asked for {status}</Message></Error>".encode()
        ]

    def _one_condition_at_a_time(
        self, environment: Environment
    ) -> contextlib.AbstractContextManager[Any]:
        """Let conditional writes follow each other: moto looks, then writes, and two
        could win.
        """
        is_conditional = environment.keys() & {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"}
        return self._condition if is_conditional else contextlib.nullcontext()

    def _wait_if_paused(self) -> None:
        with self._lock:
            if self._pause_after != 0:
                self._pause_after = (
                    None if self._pause_after is None else self._pause_after - 1
                )
                return
            self._pause_after = None
        self._paused.set()
        self._go_on.wait(60)

    def _note(self, line: str) -> None:
        with self._lock:
            self._seen.append(line)

    def _spoiled(self, method: str, path: str) -> int | None:
        with self._lock:
            fault = self._fault
            if (
                fault["times"] <= 0
                or fault["method"] not in ("", method)
                or fault["path"] not in path
            ):
                return None
            if fault["after"] > 0:
                fault["after"] -= 1
                return None
            fault["times"] -= 1
            return int(fault["status"])


class _Manager(BaseManager):
    """Makes a server in a process, and calls its methods there."""


_Manager.register("serve", S3Server)


def _end_with_parent() -> None:
    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def serve_s3() -> Iterator[S3Server]:
    """Start a server, and end it on leaving."""
    manager = _Manager(ctx=multiprocessing.get_context("spawn"))
    manager.start(_end_with_parent)
    with manager:
        yield manager.serve()
