"""A real ZooKeeper with TLS: nodes check its certificate, present their own, and keep their znodes to themselves."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from ottla.broker.config.values import BrokerSettings
from ottla.cli.main import main
from ottla.cli.properties import read_properties
from ottla.client import Client
from ottla.metadata.store import StoreError
from ottla.metadata.zookeeper.ensemble import ensemble_of
from ottla.metadata.zookeeper.protection import OPEN, Protection
from ottla.metadata.zookeeper.session import Session
from ottla.server.main import ServerOptions
from ottla.server.refusals import SettingsRefusedError
from ottla.server.zookeeper_settings import protection_of
from ottla.testing.embedded import run_in_thread
from tests.harness.certificates import Authority
from tests.harness.waiting import soon
from tests.harness.zookeepers import ZooKeepers, free_ports
from tools.node_process import held_ports

HOST = "127.0.0.1"
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pems"))


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("login") / "login"
    file.write_text("ottla:a-long-password\n")
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[ZooKeepers]:
    """A server with a port for TLS, on which clients need a certificate; its plain port is for the harness."""
    (port,) = free_ports(1)
    more = [
        f"secureClientPort={port}",
        f"secureClientPortAddress={HOST}",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.type=PEM",
        f"ssl.keyStore.location={authority.issue(HOST)}",
        "ssl.trustStore.type=PEM",
        f"ssl.trustStore.location={authority.file}",
        "ssl.clientAuth=need",
    ]
    with ZooKeepers(more=more) as servers:
        servers.servers[0].address = f"{HOST}:{port}"
        yield servers


def settings_of(authority: Authority, login: Path, **more: str) -> dict[str, str]:
    return {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": str(authority.file),
        "zookeeper.ssl.keystore.location": str(authority.issue("node")),
        "zookeeper.set.acl": "true",
        "ottla.zookeeper.login.location": str(login),
        **more,
    }


def stranger(servers: ZooKeepers) -> Any:
    """A client without a login, on the plain port."""
    client: Any = KazooClient(f"{HOST}:{servers.servers[0].port}", timeout=PATIENCE_S)
    client.start(PATIENCE_S)
    return client


def tree(client: Any, path: str) -> list[str]:
    """The znodes at and below this path, as a client that may see them finds them."""
    return [path, *(each for name in client.get_children(path) for each in tree(client, f"{path}/{name}"))]


@pytest.mark.slow("tests/server/test_node_tls.py::test_a_certificate_is_checked")
def test_a_cluster_keeps_its_znodes_to_itself(
    secured: ZooKeepers, authority: Authority, login: Path, tmp_path: Path
) -> None:
    settings = settings_of(authority, login)
    options = ServerOptions(str(tmp_path), (f"{HOST}:0",), settings, metadata=secured.at("private"))
    for restart in range(2):
        node = run_in_thread(options)
        with Client(f"{HOST}:{node.server.port}") as client:
            assert client.metadata([]).cluster_id
        if restart:
            outside = stranger(secured)
            for path in ("/private", "/private/rows", "/private/generation"):
                with pytest.raises(NoAuthError):
                    outside.get(path)
            with pytest.raises(NoAuthError):
                outside.get_children("/private")
            with pytest.raises(NoAuthError):
                outside.create("/private/mine")
            outside.add_auth("digest", login.read_text().strip())
            acls = {each.id.scheme for path in tree(outside, "/private") for each in outside.get_acls(path)[0]}
            assert acls <= {"digest", "x509"}
            outside.stop()
            outside.close()
        node.loop.call_soon_threadsafe(node.stop.set)
        node.ended.result(PATIENCE_S)
        node.thread.join()


@pytest.mark.slow("tests/server/test_node_tls.py::test_two_nodes_of_a_cluster_talk")
def test_three_nodes_over_a_secured_zookeeper_by_the_commands_of_the_guide(
    secured: ZooKeepers, authority: Authority, login: Path, tmp_path: Path
) -> None:
    config, out, store = tmp_path / "zookeeper.properties", tmp_path / "security", secured.at("guide")
    config.write_text("".join(f"{name}={value}\n" for name, value in settings_of(authority, login).items()))
    with ExitStack() as held:
        port = held.enter_context(held_ports(6))
        words = ["--out", str(out), "--metadata", store, "--config", str(config)]
        for number in (1, 2, 3):
            words += ["--node", f"{number}={HOST}:{port + 2 * (number - 1)}"]
        assert main(["security", "init-cluster", *words]) == 0
        for number in (1, 2, 3):
            command = [sys.executable, "-m", "ottla", "serve", "--config", str(out / str(number) / "node.properties")]
            command += ["--data", str(tmp_path / str(number)), "--metadata", store]
            node = held.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            held.callback(node.terminate)
            assert node.stdout is not None
            assert "serves Kafka clients" in node.stdout.readline()
        client = str(out / "client.properties")

        def active() -> int:
            listed = AdminClient({**read_properties(client)}).list_topics(timeout=PATIENCE_S)
            return len(listed.brokers)

        soon(lambda: active() == 3, "three nodes")
        assert main(["topics", "create", "t", "--replication-factor", "3", "--command-config", client]) == 0
        outcomes: list[Any] = []
        producer = Producer({**read_properties(client), "acks": "all"})
        producer.produce("t", b"v", on_delivery=lambda error, _: outcomes.append(error))
        producer.flush(PATIENCE_S)
        assert outcomes == [None]
        outside = stranger(secured)
        for path in ("/guide", "/guide/rows"):
            with pytest.raises(NoAuthError):
                outside.get_children(path)
        outside.stop()
        outside.close()


@pytest.mark.slow("tests/server/test_node_tls.py::test_a_certificate_is_checked")
def test_an_open_store_is_closed_by_the_first_session_that_wants_it(
    secured: ZooKeepers, authority: Authority, login: Path
) -> None:
    protection = protection_of(BrokerSettings.load(settings_of(authority, login)))
    ensemble = ensemble_of(secured.at("opened"))
    before = Session(ensemble, 2_000, protection=Protection(True, protection.authorities, protection.certificate))
    before.open()
    before.make([f"{ensemble.root}/rows/a", f"{ensemble.root}/rows/b"])
    before.close()
    outside = stranger(secured)
    assert len(tree(outside, "/opened")) >= 4
    session = Session(ensemble, 2_000, protection=protection)
    session.open()
    session.close()
    for path in ("/opened", "/opened/rows", "/opened/rows/a"):
        with pytest.raises(NoAuthError):
            outside.get(path)
    outside.stop()
    outside.close()


@pytest.mark.slow("tests/server/test_node_tls.py::test_a_certificate_is_checked")
def test_another_servers_certificate_is_not_accepted(
    secured: ZooKeepers, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.metadata.zookeeper.session.START_S", 3.0)
    other = Authority(tmp_path, "other")
    node = str(authority.issue("node"))
    for protection in (
        OPEN,
        Protection(uses_tls=True, authorities=str(other.file), certificate=node),
        Protection(uses_tls=True, authorities=str(authority.file)),
    ):
        session = Session(ensemble_of(secured.at("x")), 2_000, protection=protection)
        with pytest.raises(StoreError, match="no ZooKeeper server serves this node"):
            session.open()
    named = f"zookeeper://localhost:{secured.servers[0].address.split(':')[1]}/x"  # the certificate names 127.0.0.1
    session = Session(ensemble_of(named), 2_000, protection=Protection(True, str(authority.file), node))
    with pytest.raises(StoreError, match="localhost"):
        session.open()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"zookeeper.set.acl": "true"}, "needs ottla.zookeeper.login.location"),
        ({"zookeeper.ssl.truststore.location": "/none"}, "without zookeeper.ssl.client.enable"),
        (
            {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.truststore.location": "/none"},
            "can't be used for TLS",
        ),
        ({"ottla.zookeeper.login.location": "/none"}, "can't be read"),
    ],
)
def test_settings_that_would_protect_nothing_stop_the_start(settings: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsRefusedError, match=says):
        protection_of(BrokerSettings.load(settings))


def test_a_login_is_private_and_has_a_password(tmp_path: Path) -> None:
    file = tmp_path / "login"
    settings = BrokerSettings.load({"ottla.zookeeper.login.location": str(file)})
    for text, mode, says in (
        ("a:b", 0o644, "0600"),
        ("ab", 0o600, "USER:PASSWORD"),
        ("a:b\nc:d", 0o600, "USER:PASSWORD"),
    ):
        file.write_text(text)
        file.chmod(mode)
        with pytest.raises(SettingsRefusedError, match=says):
            protection_of(settings)
    file.write_text("a:hush")
    assert protection_of(settings).login == "a:hush"
    assert "hush" not in repr(protection_of(settings))


def test_a_node_without_zookeeper_refuses_them(tmp_path: Path) -> None:
    for metadata in (None, f"sqlite:{tmp_path}/shared.sqlite"):
        options = ServerOptions(
            str(tmp_path / "data"), (f"{HOST}:0",), {"zookeeper.set.acl": "true"}, metadata=metadata
        )
        with pytest.raises(SettingsRefusedError, match="would protect nothing"):
            run_in_thread(options)
