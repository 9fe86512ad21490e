"""Who may connect when: nobody before the node serves, and nobody to an address that another process has taken."""

import asyncio
import socket
from pathlib import Path

import pytest

from ottla.broker.config.values import BrokerSettings
from ottla.server.directory import DirectoryLock
from ottla.server.following import Following
from ottla.server.listeners import Listener, ServeRefused
from ottla.server.main import Server, ServerOptions


class Opening(Server):
    """Tells what a client meets while the logs are being opened; or another process listens on the port by then."""

    def __init__(self, options: ServerOptions, other: socket.socket | None = None) -> None:
        super().__init__(options)
        self.is_refused = False
        self._other = other

    def _open_node(self, settings: BrokerSettings, listener: Listener) -> None:
        super()._open_node(settings, listener)
        with socket.socket() as client:
            self.is_refused = client.connect_ex((listener.host, listener.port)) != 0
        if self._other is not None:
            self._other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._other.bind((listener.host, listener.port))
            self._other.listen()


def options(directory: Path) -> ServerOptions:
    return ServerOptions(directory=str(directory), listen=("127.0.0.1:0",))


async def test_connections_are_refused_until_the_node_serves(tmp_path: Path) -> None:
    """A client that could connect would wait for as long as the start takes: minutes after a power cut, for ever
    without the majority of a ZooKeeper."""
    server = Opening(options(tmp_path))
    await server.start()
    try:
        assert server.is_refused
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.close()
    finally:
        await server.stop()


async def test_a_port_that_is_taken_meanwhile_ends_the_start(tmp_path: Path) -> None:
    with socket.socket() as other:
        server = Opening(options(tmp_path), other)
        with pytest.raises(ServeRefused, match=r"^Can't listen on 127\.0\.0\.1:"):
            await server.start()
    DirectoryLock(str(tmp_path)).release()  # nothing is left of it


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_node_hands_its_leaderships_over_where_it_is_set_to(tmp_path: Path, enabled: bool) -> None:
    left: list[Server] = []

    class Leaving(Server):
        async def _leave(self, following: Following) -> None:
            left.append(self)

    settings = {"controlled.shutdown.enable": str(enabled).lower(), "ottla.cluster.watchdog": "false"}
    store = str(tmp_path / "metadata.sqlite")
    server = Leaving(
        ServerOptions(directory=str(tmp_path / "1"), listen=("127.0.0.1:0",), settings=settings, metadata=store)
    )
    await server.start()
    await server.stop()
    assert left == ([server] if enabled else [])
