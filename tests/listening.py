"""A server over loopback that takes what is posted to it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def listen(take: Callable[[str, Any, bytes], object]) -> Iterator[str]:
    """Give `take` path, headers and body of each POST while the context lasts; yield
    the server's URL.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # its base class names it
            take(
                self.path,
                self.headers,
                self.rfile.read(int(self.headers["Content-Length"])),
            )
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(
            target=server.serve_forever, args=(0.05,), daemon=True
        )
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()
