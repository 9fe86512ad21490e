"""Nodes of a cluster talk to each other over TLS, and check each other's certificates."""

import asyncio
import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.client_identity import NODE_MECHANISM
from ottla.cli.properties import read_properties
from ottla.machine import Unanswered
from ottla.server.listeners import SettingsRefusedError
from ottla.server.main import Server, ServerOptions
from ottla.server.secure_cluster import set_up_cluster
from tests.harness.certificates import Authority
from tests.harness.waiting import soon, soon_in_loop
from tests.server.test_peers import ask, running

HOST = "127.0.0.1"
RELAY_TOO = pytest.mark.slow(
    "tests/server/test_node_tls.py::test_a_relay_with_a_certificate_of_the_same_authority_gets_nothing"
)
CHECKED_TOO = pytest.mark.slow("tests/server/test_node_tls.py::test_a_certificate_is_checked")
FEW_PARTITIONS = """\
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
offsets.topic.num.partitions=3
transaction.state.log.num.partitions=3
"""


def options(directory: Path, node_id: int, certificate: Path, trusted: Path, **settings: str) -> ServerOptions:
    """A node whose only listener needs a certificate of its clients."""
    given = {
        "node.id": str(node_id),
        "ottla.cluster.watchdog": "false",
        "ssl.keystore.location": str(certificate),
        "ssl.truststore.location": str(trusted),
        "ssl.client.auth": "required",
        "authorizer.class.name": "",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    metadata = str(directory / "metadata.sqlite")
    return ServerOptions(str(directory / str(node_id)), (f"SSL://{HOST}:0",), given, metadata=metadata)


async def known(server: Server, node_id: int) -> None:
    await soon_in_loop(lambda: str(node_id) in server.node.image.nodes, f"node {node_id} is registered")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def identities(server: Server) -> list[Any]:
    return [each._channel.identity for each in server._connections.values()]


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "SASL_PLAINTEXT"])
def test_two_nodes_of_a_cluster_talk(tmp_path: Path, authority: Authority, protocol: str) -> None:
    async def scene() -> None:
        listen = (f"{protocol}://{HOST}:0",)
        first, second = (
            options(tmp_path, each, authority.issue(HOST), authority.file)._replace(listen=listen) for each in (1, 2)
        )
        if protocol == "SASL_PLAINTEXT":
            for given in (first, second):
                del given.settings["ssl.keystore.location"], given.settings["ssl.client.auth"]
        async with running(first) as asked, running(second) as asking:
            await known(asking, 1)
            (answer,) = await ask(asking, 1)
            assert answer.cluster_id == asked.node.cluster_id
            (channel,) = [
                each._channel
                for each in asked._connections.values()
                if each._channel.identity.mechanism == NODE_MECHANISM
            ]
            assert str(channel.identity.principal) == "Node:2"
            assert bool(channel.binding) == (protocol != "SASL_PLAINTEXT")

    asyncio.run(scene())


@pytest.mark.parametrize(
    "fault", [pytest.param("another authority", marks=CHECKED_TOO), "another name", "no check of the name"]
)
def test_a_certificate_is_checked(
    tmp_path: Path, authority: Authority, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Authority(tmp_path, "others") if fault == "another authority" else authority
    name = HOST if fault == "another authority" else "elsewhere.example"
    relaxed = {"ssl_endpoint_identification_algorithm": ""} if fault == "no check of the name" else {}

    async def scene() -> None:
        both = tmp_path / "both.pem"
        both.write_bytes(authority.file.read_bytes() + issuer.file.read_bytes())
        first = options(tmp_path, 1, issuer.issue(name), both)
        second = options(tmp_path, 2, authority.issue(HOST), authority.file, **relaxed)
        async with running(first), running(second) as asking:
            await known(asking, 1)
            (answer,) = await ask(asking, 1)
            assert isinstance(answer, Unanswered) != (fault == "no check of the name")

    asyncio.run(scene())
    refused = [each.message for each in caplog.records if "a connection to node 1 is not used" in each.message]
    assert bool(refused) != (fault == "no check of the name")


@pytest.mark.parametrize("binds", [pytest.param(True, marks=RELAY_TOO), False])
def test_a_relay_with_a_certificate_of_the_same_authority_gets_nothing(
    tmp_path: Path, authority: Authority, binds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decrypts what both sides say, and carries their proofs over: these are of two different connections. If proofs
    did not cover the connection, it would succeed."""
    if not binds:
        monkeypatch.setattr("ottla.server.tls.binding_of", lambda tls: b"")
    certificate = authority.issue(HOST)
    inwards = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    inwards.load_cert_chain(certificate)
    outwards = ssl.create_default_context(cafile=authority.file)
    outwards.load_cert_chain(certificate)
    carried: list[bytes] = []

    async def scene() -> None:
        target = 0

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while piece := await reader.read(1 << 16):
                carried.append(piece)
                writer.write(piece)
            writer.close()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection(HOST, target, ssl=outwards)
            await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer), return_exceptions=True)

        relay = await asyncio.start_server(accept, HOST, 0, ssl=inwards)
        port = relay.sockets[0].getsockname()[1]
        first, second = (
            options(tmp_path, each, certificate, authority.file, ottla_cluster_routes=f"1={HOST}:{port}")
            for each in (1, 2)
        )
        async with running(first) as asked, running(second) as asking:
            target = asked.port
            await known(asking, 1)
            (answer,) = await ask(asking, 1)
            assert isinstance(answer, Unanswered) == binds
            assert not binds or "does not know the key of the cluster, or is another node" in answer.why
        relay.close()

    asyncio.run(scene())
    assert any(b"OTTLA-NODE" in piece for piece in carried)


def test_nodes_need_to_know_whom_they_trust(tmp_path: Path, authority: Authority) -> None:
    given = options(tmp_path, 1, authority.issue(HOST), authority.file)
    del given.settings["ssl.truststore.location"], given.settings["ssl.client.auth"]
    with pytest.raises(SettingsRefusedError, match=r"check each other's certificates, so ssl\.truststore\.location"):
        asyncio.run(Server(given).start())


def test_a_cluster_moves_to_tls_node_by_node(tmp_path: Path, authority: Authority) -> None:
    """Both nodes have both listeners, and each uses another one."""

    def moving(node_id: int, between: str) -> ServerOptions:
        given = options(tmp_path, node_id, authority.issue(HOST), authority.file, inter_broker_listener_name=between)
        return given._replace(listen=(f"PLAINTEXT://{HOST}:0", f"SSL://{HOST}:0"))

    async def scene() -> None:
        async with running(moving(1, "PLAINTEXT")) as old, running(moving(2, "SSL")) as new:
            for asking, asked, node_id in ((new, old, 1), (old, new, 2)):
                await known(asking, node_id)
                await known(asked, 3 - node_id)
                (answer,) = await ask(asking, node_id)
                assert answer.cluster_id == asked.node.cluster_id
                used = [each.address.listener for each in identities(asked) if each.is_node]
                assert set(used) == {"SSL" if asking is new else "PLAINTEXT"}

    asyncio.run(scene())


# ---- processes -----------------------------------------------------------------------------------------------------


class Processes:
    """Three nodes as `ottla security init-cluster` sets them up: clients log in over TLS, and nodes use mutual TLS."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: dict[int, subprocess.Popen[str]] = {}
        self.clients: dict[int, str] = {}
        addresses = {node_id: (HOST, 9000 + 10 * node_id) for node_id in (1, 2, 3)}
        assert set_up_cluster(str(directory / "security"), str(directory / "metadata.sqlite"), addresses, "admin", {})
        self.login = read_properties(str(directory / "security" / "client.properties"))
        for node_id in addresses:
            text = (directory / "security" / str(node_id) / "node.properties").read_text()
            (directory / f"{node_id}.properties").write_text(
                re.sub(rf"{HOST}:90\d\d", f"{HOST}:0", text) + FEW_PARTITIONS
            )

    def start(self, node_id: int) -> None:
        command = [sys.executable, "-m", "ottla", "serve", "--config", str(self.directory / f"{node_id}.properties")]
        command += ["--data", str(self.directory / str(node_id)), "--log-format", "json"]
        command += ["--metadata", str(self.directory / "metadata.sqlite")]
        with open(self.directory / f"{node_id}.log", "a") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.running[node_id] = process
        assert process.stdout is not None
        self.clients[node_id] = json.loads(process.stdout.readline())["listeners"]["SASL_SSL"]

    def kill(self, node_id: int) -> None:
        process = self.running.pop(node_id)
        process.kill()
        process.communicate()

    def stop(self) -> None:
        for node_id in list(self.running):
            self.kill(node_id)

    @property
    def properties(self) -> dict[str, Any]:
        return {**self.login, "bootstrap.servers": ",".join(self.clients.values())}

    @property
    def logs(self) -> str:
        return "".join((self.directory / f"{node_id}.log").read_text() for node_id in (1, 2, 3))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    with ExitStack() as stack:
        stack.callback(made.stop)
        for node_id in (1, 2, 3):
            made.start(node_id)
        yield made


def in_sync(admin: AdminClient, topic: str) -> list[int]:
    return sorted(admin.list_topics(topic, timeout=30).topics[topic].partitions[0].isrs)


@pytest.mark.slow("tests/server/test_node_tls.py::test_two_nodes_of_a_cluster_talk")
def test_three_nodes_over_mutual_tls_lose_nothing_when_one_is_killed(nodes: Processes) -> None:
    """Replication, forwarding, coordinators and the markers of transactions use it."""
    admin = AdminClient(nodes.properties)
    soon(lambda: len(admin.list_topics(timeout=30).brokers) == 3, "three nodes")
    admin.create_topics([NewTopic("t", 1, 3, config={"min.insync.replicas": "2"})])["t"].result(60)
    soon(lambda: in_sync(admin, "t") == [1, 2, 3], "three in sync")
    producer = Producer({**nodes.properties, "transactional.id": "tx", "acks": "all"})
    producer.init_transactions(60)

    def commit(first: int) -> None:
        producer.begin_transaction()
        for number in range(first, first + 10):
            producer.produce("t", str(number))
        producer.commit_transaction(60)

    commit(0)
    leader = admin.list_topics("t", timeout=30).topics["t"].partitions[0].leader
    nodes.kill(leader)
    commit(10)
    nodes.start(leader)
    soon(lambda: in_sync(admin, "t") == [1, 2, 3], "three in sync again")
    commit(20)
    consumer = Consumer({**nodes.properties, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("t", 0, 0)])
    read: list[bytes | None] = []
    while len(read) < 30:
        record = consumer.poll(60)
        assert record is not None
        assert record.error() is None
        read.append(record.value())
    assert read == [b"%d" % number for number in range(30)]
    consumer.commit(asynchronous=False)
    consumer.close()
    assert "is not used" not in nodes.logs
