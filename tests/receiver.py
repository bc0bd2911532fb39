"""An HTTP receiver of messages on a free port of 127.0.0.1, well or ill."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "s3cr3t-of-the-channel"
"""Stands in the path of every receiver's URL."""


@dataclass
class Receiver:
    url: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def receiver(*, status: int = 200, hangs: bool = False) -> Generator[Receiver]:
    """Keeps what it is sent; answers with `status`, or not at all."""
    kept = Receiver()
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if hangs:
                is_over.wait(60)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    kept.url = f"json://127.0.0.1:{server.server_port}/{SECRET}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield kept
    finally:
        is_over.set()
        server.shutdown()
        server.server_close()
