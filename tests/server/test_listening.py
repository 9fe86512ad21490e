"""Who may connect when: nobody before the node serves, and nobody to an address that another process has taken. And
which listeners there are: their names, what they advertise, which of them other nodes use."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.config.values import BrokerSettings
from ottla.metadata.nodes import BETWEEN_NODES
from ottla.server.directory import DirectoryLock
from ottla.server.listeners import Listener, ServeRefusedError, SettingsRefusedError, between_nodes, open_listeners
from ottla.server.main import Server, ServerOptions
from ottla.server.metadata_follower import Following
from tests.harness.waiting import soon, soon_in_loop


class Opening(Server):
    """Tells what a client meets while the logs are being opened; or another process listens on the port by then."""

    def __init__(self, options: ServerOptions, other: socket.socket | None = None) -> None:
        super().__init__(options)
        self.is_refused = False
        self._other = other

    def _open_node(self, settings: BrokerSettings, listeners: list[Listener]) -> None:
        super()._open_node(settings, listeners)
        (listener,) = listeners
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
        with pytest.raises(ServeRefusedError, match=r"^Can't listen on 127\.0\.0\.1:"):
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


MAP = "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT,ENCRYPTED:SSL"


def opened(*listen: str, **given: str) -> list[Listener]:
    """Listeners that are opened and closed again."""
    settings = {
        "listener.security.protocol.map": MAP,
        **{name.replace("_", "."): value for name, value in given.items()},
    }
    listeners = open_listeners(listen, BrokerSettings.load(settings))
    for listener in listeners:
        listener.bound.close()
    return listeners


def test_listeners_have_names_and_what_is_advertised_goes_by_them() -> None:
    inside, outside = opened(
        "INTERNAL://127.0.0.1:0", "external://127.0.0.1:0", advertised_listeners="EXTERNAL://out:7, INTERNAL://in:0"
    )
    assert (inside.name, inside.advertised) == ("INTERNAL", ("in", inside.port))
    assert (outside.name, outside.advertised) == ("EXTERNAL", ("out", 7))
    (alone,) = opened("EXTERNAL://127.0.0.1:0")
    assert alone.advertised == ("127.0.0.1", alone.port)


def test_listeners_without_names_take_the_advertised_addresses_in_their_order() -> None:
    first, second = opened("127.0.0.1:0", "[::1]:0", advertised_listeners="A://a:1,B://b:2")
    assert [(each.name, each.advertised) for each in (first, second)] == [
        ("PLAINTEXT", ("a", 1)),
        ("PLAINTEXT", ("b", 2)),
    ]


@pytest.mark.parametrize(
    ("listen", "advertised", "says"),
    [
        (["SSL://:9093"], None, "The listener SSL can't serve TLS: it needs a certificate"),
        (["ENCRYPTED://127.0.0.1:0"], None, "ENCRYPTED can't serve TLS: it needs a certificate"),
        (["OTHER://127.0.0.1:0"], None, "add OTHER:PLAINTEXT"),
        (["INTERNAL://127.0.0.1:0", "internal://127.0.0.1:0"], None, "names INTERNAL twice"),
        (["INTERNAL://127.0.0.1:0"], "OTHER://a:1", "advertised.listeners names OTHER"),
        (["INTERNAL://127.0.0.1:0", "EXTERNAL://127.0.0.1:0"], "EXTERNAL://a:1", "clients of listener INTERNAL"),
        (["127.0.0.1:0", "127.0.0.1:0"], "a:1", "names 1 addresses for 2 listeners"),
        (["INTERNAL://127.0.0.1:0"], "INTERNAL://0.0.0.0:1", "no client can connect to it"),
    ],
)
def test_listeners_that_are_not_served(listen: list[str], advertised: str | None, says: str) -> None:
    with pytest.raises(SettingsRefusedError, match=says):
        opened(*listen, **({} if advertised is None else {"advertised_listeners": advertised}))


@pytest.mark.parametrize("name", ["ssl.keystore.location", "ssl.client.auth"])
def test_settings_of_tls_need_a_listener_that_speaks_it(name: str) -> None:
    with pytest.raises(SettingsRefusedError, match=f"{name} would protect nothing: no listener speaks TLS"):
        opened("127.0.0.1:0", **{name: "required"})


def test_nodes_use_the_listener_that_is_meant_for_them() -> None:
    named = opened("EXTERNAL://127.0.0.1:0", "PLAINTEXT://127.0.0.1:0", "INTERNAL://127.0.0.1:0")

    def between(listeners: list[Listener], **settings: str) -> str:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        return between_nodes(listeners, BrokerSettings.load(given)).name

    assert between(named, inter_broker_listener_name="internal") == "INTERNAL"
    assert between(named) == "PLAINTEXT"
    assert between(named[::2]) == "EXTERNAL"
    with pytest.raises(SettingsRefusedError, match=r"is PRIVATE, but listeners names INTERNAL, PLAINTEXT, EXTERNAL"):
        between(named, inter_broker_listener_name="PRIVATE")
    with pytest.raises(SettingsRefusedError, match=r"security.inter.broker.protocol is SASL_SSL, but listeners names"):
        between(named, security_inter_broker_protocol="SASL_SSL")
    with pytest.raises(SettingsRefusedError, match="both say which listener nodes use"):
        between(named, security_inter_broker_protocol="SSL", inter_broker_listener_name="INTERNAL")


def test_a_protocol_between_nodes_that_no_listener_speaks_stops_the_start() -> None:
    """Also without a cluster: whoever sets it counts on it."""
    with pytest.raises(SettingsRefusedError, match=r"security\.inter\.broker\.protocol is SSL"):
        opened("127.0.0.1:0", security_inter_broker_protocol="SSL")


async def test_a_node_registers_all_its_listeners(tmp_path: Path) -> None:
    listen = ("EXTERNAL://127.0.0.1:0", "INTERNAL://127.0.0.1:0")
    settings = {"listener.security.protocol.map": MAP, "inter.broker.listener.name": "INTERNAL"}
    server = Server(ServerOptions(str(tmp_path / "1"), listen, settings, metadata=str(tmp_path / "m.sqlite")))
    await server.start()
    try:
        outside, inside = (("127.0.0.1", each.port) for each in server.listening)
        await soon_in_loop(lambda: "1" in server.node.image.nodes)
        row = server.node.image.nodes["1"]
        assert (row.host, row.port) == inside
        assert row.endpoints == {BETWEEN_NODES: inside, "EXTERNAL": outside, "INTERNAL": inside}
    finally:
        await server.stop()


async def test_each_listener_of_a_cluster_needs_an_address_that_others_can_name(tmp_path: Path) -> None:
    settings = {"listener.security.protocol.map": MAP, "ottla.allow.public.plaintext": "true"}
    listen = ("INTERNAL://127.0.0.1:0", "EXTERNAL://0.0.0.0:0")
    server = Server(ServerOptions(str(tmp_path / "1"), listen, settings, metadata=str(tmp_path / "m.sqlite")))
    with pytest.raises(SettingsRefusedError, match=r"advertised\.listeners"):
        await server.start()


def test_clients_of_a_listener_stay_on_it(tmp_path: Path) -> None:
    """librdkafka on the listener EXTERNAL of two processes, which has a host of its own: it writes to both nodes, and
    its group finds its coordinator."""
    processes = [started(tmp_path, node_id) for node_id in (1, 2)]
    try:
        listening = [json.loads(process.stdout.readline())["listeners"] for process in processes if process.stdout]
        outside = [each["EXTERNAL"] for each in listening]
        until = time.monotonic() + 60
        for each in outside:  # librdkafka asks the controller, and waits if a starting node has named none
            asked = AdminClient({"bootstrap.servers": each})
            soon(lambda asked=asked: is_complete(asked.list_topics(timeout=30), len(outside)))
        admin = AdminClient({"bootstrap.servers": outside[0]})
        admin.create_topics([NewTopic("t", 4, 2)])["t"].result(30)
        producer = Producer({"bootstrap.servers": outside[1], "acks": "all"})
        for number in range(40):
            producer.produce("t", str(number), partition=number % 4)
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": outside[0], "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        read: set[bytes | None] = set()
        while len(read) < 40:
            assert time.monotonic() < until + 60
            record = consumer.poll(1)
            if record is not None and record.error() is None:
                read.add(record.value())
        consumer.close()
        for name, host in (("EXTERNAL", "127.0.0.2"), ("INTERNAL", "127.0.0.1")):
            for bootstrap in (each[name] for each in listening):
                brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).brokers.values()
                assert {f"{each.host}:{each.port}" for each in brokers} == {each[name] for each in listening}
                assert {each.host for each in brokers} == {host}
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def is_complete(metadata: Any, nodes: int) -> bool:
    """Whether a node knows all nodes and the controller."""
    return len(metadata.brokers) == nodes and metadata.controller_id in metadata.brokers


def started(directory: Path, node_id: int) -> "subprocess.Popen[str]":
    config = directory / f"{node_id}.properties"
    config.write_text(
        f"node.id={node_id}\nlisteners=INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.2:0\n"
        "listener.security.protocol.map=INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT\ninter.broker.listener.name=INTERNAL\n"
    )
    command = [sys.executable, "-m", "ottla", "serve", "--config", str(config), "--log-format", "json"]
    command += ["--data", str(directory / str(node_id)), "--metadata", str(directory / "metadata.sqlite")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
