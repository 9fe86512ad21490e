"""The network of a test's cluster: ways that are cut hold what is sent, until they are open again."""

import asyncio
import gc
import socket
import threading
from asyncio import run_coroutine_threadsafe
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

from ottla.testing.network import Network

SHORT_S = 0.05


class Echo:
    """A node that gives back what it gets. `ended`: the number of connections that ended."""

    def __init__(self) -> None:
        self.ended = threading.Semaphore(0)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listening.getsockname()[1])
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def stop(self) -> None:
        with suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()

    def answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while chunk := connection.recv(1 << 16):
                connection.sendall(chunk)
        self.ended.release()


@pytest.fixture
def nodes() -> Iterator[dict[int, Echo]]:
    made = {node: Echo() for node in (1, 2)}
    yield made
    for node in made.values():
        node.stop()


@pytest.fixture
def network(nodes: dict[int, Echo]) -> Iterator[Network]:
    made = Network(nodes, lambda node: nodes[node].port)
    made.start()
    yield made
    made.stop()


def connect(network: Network, sender: int, receiver: int) -> socket.socket:
    return socket.create_connection(network.entry(sender, receiver), timeout=10)


def heard(connection: socket.socket, length: int = 1) -> bytes | None:
    """What comes; None where nothing does."""
    connection.settimeout(SHORT_S)
    try:
        return connection.recv(length)
    except TimeoutError:
        return None
    finally:
        connection.settimeout(10)


def test_a_way_that_is_cut_holds_what_is_sent(network: Network) -> None:
    with connect(network, 1, 2) as one, connect(network, 2, 1) as other:
        for each in (one, other):
            each.sendall(b"a")
            assert each.recv(1) == b"a"
        network.cut(1, 2)  # the question of one, and the answer to the other
        for each in (one, other):
            each.sendall(b"b")
            assert heard(each) is None
        network.heal()
        assert (one.recv(1), other.recv(1)) == (b"b", b"b")


def test_a_connection_that_is_made_over_a_cut_way_is_there_when_it_heals(network: Network) -> None:
    network.cut(1, 2)
    with connect(network, 1, 2) as one:
        one.sendall(b"a")
        assert heard(one) is None
        network.heal()
        assert one.recv(1) == b"a"


def test_an_end_is_heard_of_when_the_way_is_open(network: Network, nodes: dict[int, Echo]) -> None:
    one = connect(network, 1, 2)
    one.sendall(b"a")
    assert one.recv(1) == b"a"
    network.cut(1, 2)
    one.close()
    assert not nodes[2].ended.acquire(timeout=SHORT_S)
    network.heal()
    assert nodes[2].ended.acquire(timeout=10)


def test_a_connection_whose_sender_says_no_more_lives_on(network: Network, nodes: dict[int, Echo]) -> None:
    """asyncio refers to neither of its ends strongly by then, so only the network keeps it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        nodes[2].port = int(listening.getsockname()[1])
        with connect(network, 1, 2) as one:
            one.shutdown(socket.SHUT_WR)
            receiver, _ = listening.accept()
            with receiver:
                assert receiver.recv(1) == b""
                network.heal()  # runs the event loop: it is done with the end
                gc.collect()
                receiver.sendall(b"a")
                assert one.recv(1) == b"a"


def test_more_than_a_buffer_goes_through_in_order(network: Network) -> None:
    sent = bytes(range(256)) * 20_000
    with connect(network, 1, 2) as one:
        sending = threading.Thread(target=one.sendall, args=(sent,))
        sending.start()
        got = bytearray()
        while len(got) < len(sent):
            got += one.recv(1 << 16)
        sending.join()
    assert bytes(got) == sent


def test_who_is_not_there_is_told_at_once(network: Network, nodes: dict[int, Echo]) -> None:
    nodes[2].stop()
    with connect(network, 1, 2) as one, suppress(ConnectionResetError):
        assert one.recv(1) == b""


def test_a_network_ends_with_connections_on_it(nodes: dict[int, Echo]) -> None:
    network = Network(nodes, lambda node: nodes[node].port)
    network.stop()
    network.start()
    with connect(network, 1, 2) as one:
        network.cut(1, 2)
        one.sendall(b"a")
        network.stop()
        with suppress(ConnectionResetError):
            assert one.recv(1) == b""


@pytest.mark.parametrize("turns", range(6))
def test_a_network_ends_while_a_connection_is_made(
    nodes: dict[int, Echo], monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """The loop stands still so many turns after the connection was begun, until it is told to stop."""
    still, told = threading.Event(), threading.Event()

    def stand_still(left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(stand_still, left - 1)
        else:
            still.set()
            told.wait(10)

    def port_of(node: int) -> int:
        asyncio.get_running_loop().call_soon(stand_still, turns)
        return nodes[node].port

    def tell(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> Future[None]:
        future = run_coroutine_threadsafe(work, loop)
        told.set()
        return future

    network = Network(nodes, port_of)
    network.start()
    with connect(network, 1, 2):
        assert still.wait(10)
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", tell)
        stopping = threading.Thread(target=network.stop, daemon=True)
        stopping.start()
        stopping.join(10)
        assert not stopping.is_alive()
