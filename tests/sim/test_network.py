"""The simulated network keeps TCP's promise and nothing more."""

import random

from ottla.sim.kernel.clock import MS, Agenda, Clock
from ottla.sim.kernel.network import CONNECT_PATIENCE_US, RESENT_AFTER_US, Connection, Endpoint, Network, Weather


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


def test_what_is_sent_over_a_cut_path_arrives_when_it_is_mended() -> None:
    agenda, network = make_network(4)
    client, node = Ear(), Ear()
    connection = connect(network, client, node)
    connection.to_server.write(b"on its way, ")
    network.cut_path("client", "node")
    connection.to_server.write(b"sent meanwhile")
    connection.to_client.write(b"the way back is another path")
    connection.to_server.finish()
    run(agenda, 9_000 * MS)
    assert (node.heard, node.ended) == (b"", False)
    assert client.heard == b"the way back is another path"
    assert connection.to_server.in_flight == len(b"on its way, sent meanwhile")
    network.mend_path("client", "node")
    run(agenda, 18_000 * MS)
    assert (node.heard, node.ended) == (b"on its way, sent meanwhile", True)


def test_a_network_in_two_parts_carries_within_each() -> None:
    agenda, network = make_network(5)
    ears = {name: Ear() for name in ("a", "b", "c", "d")}
    for name, ear in ears.items():
        network.listen(Endpoint(name), ear)
    pairs = [(one, other) for one in ears for other in ears if one != other]
    network.part(["a", "b"])
    for one, other in pairs:
        connection = network.connect(one, Ear(), Endpoint(other))
        assert connection is not None
        connection.to_server.write(one.encode())
    run(agenda, 9_000 * MS)
    assert {name: bytes(ear.heard) for name, ear in ears.items()} == {"a": b"b", "b": b"a", "c": b"d", "d": b"c"}
    network.mend()
    run(agenda, 18_000 * MS)
    assert all(sorted(ear.heard) == sorted(b"abcd".replace(name.encode(), b"")) for name, ear in ears.items())


def test_a_lossy_path_is_late_and_loses_nothing() -> None:
    heard: list[bytes] = []
    ended_us: list[int] = []
    for loss in (0.0, 0.6):
        agenda, network = make_network(6)
        network.weathers["client", "node"] = Weather(loss=loss)
        node = Ear()
        connection = connect(network, Ear(), node)
        for i in range(100):
            agenda.at(i * 100, connection.to_server.write, bytes([i]))
        agenda.at(10 * MS, connection.to_server.finish)
        while not node.ended:
            assert agenda.run_next(60_000 * MS)
        heard.append(bytes(node.heard))
        ended_us.append(agenda.clock.now_us)
    assert heard == [bytes(range(100))] * 2
    assert ended_us[1] > ended_us[0] + RESENT_AFTER_US


def test_nobody_listens() -> None:
    agenda, network = make_network(7)
    client = Ear()
    assert network.connect("client", client, Endpoint("node")) is None
    network.cut_path("node", "client")
    connection = network.connect("client", client, Endpoint("node"))
    assert connection is not None, "nobody can have refused it"
    connection.to_server.write(b"hello?")
    run(agenda, CONNECT_PATIENCE_US - 1)
    assert not client.ended
    network.mend()
    run(agenda, 2 * CONNECT_PATIENCE_US)
    assert client.ended


def test_a_host_that_died_neither_listens_nor_hears_and_both_kinds_of_peers_learn_of_it() -> None:
    agenda, network = make_network(8)
    before, accepted, dialled, other = Ear(), Ear(), Ear(), Ear()
    network.listen(Endpoint("node"), before)
    network.listen(Endpoint("other"), other)
    incoming = network.connect("client", accepted, Endpoint("node"))
    outgoing = network.connect("node", dialled, Endpoint("other"))
    assert incoming is not None
    assert outgoing is not None
    incoming.to_server.write(b"to the dead")
    outgoing.to_client.write(b"to the dead")
    outgoing.to_server.write(b"last words")
    network.host_died("node")
    assert network.connect("client", Ear(), Endpoint("node")) is None
    after = Ear()
    network.listen(Endpoint("node"), after)
    run(agenda, 9_000 * MS)
    assert (accepted.ended, other.ended) == (True, True)
    assert all(not ear.heard and not ear.ended for ear in (before, dialled, after))
    assert not network.alive()
