"""A server that dies on command and comes back: it stands before another one and passes on what is said."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager


class MortalServer:
    """Listens on a port of 127.0.0.1 while it lives; dead, it refuses and has cut every connection."""

    def __init__(self, behind: int) -> None:
        self.behind = behind
        self.port = 0
        self._open: list[socket.socket] = []
        self.live()

    def live(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._open = [listener]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def die(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):  # the other side was first
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed: it is dead
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self.behind))
                self._open += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def mortal_server(port: int) -> Generator[MortalServer]:
    """One that stands before a port of 127.0.0.1; dead at the end."""
    server = MortalServer(port)
    try:
        yield server
    finally:
        server.die()
