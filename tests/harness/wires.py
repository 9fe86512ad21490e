"""A wire between a client and a server that a test can hold, deafen and cut.

Knows bytes. Threads and not a loop: who uses it blocks.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Wire:
    """Listens at `address` and hands on to a port of this machine; a context manager.

    `asks` and `answers`: whether bytes to the server, and from it, are handed on. What is held back is lost when the
    wire is cut, and handed on when it is opened before. `admits`: whether new connections are taken.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.asks = threading.Event()
        self.answers = threading.Event()
        self.held = threading.Event()
        """Set once something was held back."""
        self.admits = True
        self._ends: list[socket.socket] = []
        self.open()
        threading.Thread(target=self._accept, daemon=True).start()

    def open(self) -> None:
        """Hand on everything from now on."""
        self.admits = True
        self.asks.set()
        self.answers.set()

    def hold(self) -> None:
        """Hand on nothing, and take no new connections: as a cable that was pulled."""
        self.asks.clear()
        self.answers.clear()

    def cut(self) -> None:
        """End all connections; what was held back is lost."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if not self.admits:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._to))
                self._ends += [near, far]
                for source, target, gate in ((near, far, self.asks), (far, near, self.answers)):
                    threading.Thread(target=_hand_on, args=(source, target, gate, self.held), daemon=True).start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()
        self.cut()
        self.open()


def _hand_on(source: socket.socket, target: socket.socket, gate: threading.Event, held: threading.Event) -> None:
    with suppress(OSError):
        while part := source.recv(1 << 16):
            if not gate.is_set():
                held.set()
            gate.wait()
            target.sendall(part)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
