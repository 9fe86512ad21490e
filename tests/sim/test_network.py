"""The simulated network keeps TCP's promise and nothing more."""

import random

from ottla.sim.kernel.clock import MS, Agenda, Clock
from ottla.sim.kernel.network import Connection, Endpoint, Network


class Ear:
    """One end that only listens."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.pieces = 0
        self.ended = False

    def arrived(self, connection: Connection, piece: bytes) -> None:
        assert not self.ended
        self.heard += piece
        self.pieces += 1

    def closed(self, connection: Connection) -> None:
        assert not self.ended
        self.ended = True


def make_network(seed: int) -> tuple[Agenda, Network]:
    agenda = Agenda(Clock())
    network = Network(agenda, random.Random(seed))
    network.weather.split = 0.4
    network.weather.bytewise = 0.3
    return agenda, network


def connect(network: Network, client: Ear, node: Ear) -> Connection:
    network.listen(Endpoint("node"), node)
    connection = network.connect("client", client, Endpoint("node"))
    assert connection is not None
    return connection


def run(agenda: Agenda, until_us: int) -> None:
    while agenda.run_next(until_us):
        pass


def test_bytes_arrive_once_and_in_order() -> None:
    agenda, network = make_network(1)
    node = Ear()
    connection = connect(network, Ear(), node)
    sent = bytearray()
    for i in range(200):
        octets = bytes([i]) * (i % 70)
        sent += octets
        agenda.at(i * 300, connection.to_server.write, octets)
    agenda.at(30 * MS, connection.to_server.hold)
    agenda.at(90 * MS, connection.to_server.release)
    agenda.at(100 * MS, connection.to_server.finish)
    run(agenda, 9_000 * MS)
    assert node.heard == sent
    assert node.ended
    assert node.pieces > 200
    assert connection.to_server.in_flight == 0


def test_a_break_leaves_a_prefix_and_sometimes_half_a_write() -> None:
    halves = 0
    for seed in range(60):
        agenda, network = make_network(seed)
        client, node = Ear(), Ear()
        connection = connect(network, client, node)
        for i in range(20):
            agenda.at(i * 500, connection.to_server.write, b"0123456789")
        agenda.at(random.Random(seed).randrange(10 * MS), network.break_off, connection)
        run(agenda, 9_000 * MS)
        assert (b"0123456789" * 20).startswith(node.heard)
        assert node.ended
        assert client.ended
        halves += len(node.heard) % 10 != 0
    assert halves > 3


def test_a_lingering_client_is_heard_to_the_end() -> None:
    agenda, network = make_network(3)
    client, node = Ear(), Ear()
    connection = connect(network, client, node)
    connection.to_server.write(b"please do this")
    network.client_closes(connection, lingering=True)
    connection.to_client.write(b"done")
    run(agenda, 9_000 * MS)
    assert node.heard == b"please do this"
    assert node.ended
    assert client.heard == b""
    assert not client.ended
