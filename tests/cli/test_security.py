"""`ottla security`: from an empty directory to a node that lets nobody in without a password."""

import errno
import os
import select
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from cryptography import x509

from ottla.cli.cluster.plan import Plan
from ottla.cli.connection import Cluster
from ottla.cli.properties import read_properties
from ottla.client import Client
from ottla.client.sasl import login_of
from ottla.metadata.credentials import key_of
from ottla.server.directory import DirectoryLock
from ottla.server.standalone_metadata import open_own
from ottla.spark.platform.client_properties import client_properties
from ottla.testing import EmbeddedBroker
from tools.node_process import held_port

PATIENCE_S = 30.0


@contextmanager
def serving(config: Path) -> Iterator[None]:
    """`ottla serve --config` in a process of its own, once it has said that it serves."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "serve", "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], PATIENCE_S)[0]
        said = process.stdout.readline()
        assert "serves Kafka clients" in said, said
        yield
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def outcome_of(properties: dict[str, Any], topic: str) -> KafkaError | None:
    """The error of one record."""
    outcomes: list[KafkaError | None] = []
    producer = Producer({"message.timeout.ms": 20_000, "log_level": 0, **properties})
    producer.produce(topic, b"v", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(PATIENCE_S)
    (outcome,) = outcomes
    return outcome


@pytest.fixture
def without_address(monkeypatch: pytest.MonkeyPatch, ottla: Callable[..., Any]) -> Callable[..., Any]:
    """Commands find the node by their properties file."""
    monkeypatch.delenv("OTTLA_BOOTSTRAP")
    return ottla


def test_one_command_makes_a_node_that_asks_for_a_password(
    without_address: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ottla, holder = without_address, held_port()
    with holder:
        port = holder.getsockname()[1]
        said = ottla("security", "init", "--data", str(tmp_path), "--listen", f"127.0.0.1:{port}").out
        folder = tmp_path / "security"
        assert f"ottla serve --config {folder}/node.properties" in said
        with serving(folder / "node.properties"):
            config = ("--command-config", str(folder / "client.properties"))
            ottla("topics", "create", "orders", *config)
            admin = read_properties(str(folder / "client.properties"))
            assert outcome_of(admin, "orders") is None
            consumer = Consumer({**admin, "group.id": "g", "auto.offset.reset": "earliest"})
            consumer.subscribe(["orders"])
            found = consumer.poll(PATIENCE_S)
            assert found is not None
            assert (found.error(), found.value()) == (None, b"v")
            consumer.close()

            monkeypatch.setenv("OTTLA_PASSWORD", "lovelace")
            ottla("users", "add", "ada", *config)
            ada = {**admin, "sasl.username": "ada", "sasl.password": "lovelace"}
            refused = outcome_of(ada, "orders")
            assert refused is not None
            assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            ottla("acls", "add", "--principal", "User:ada", "--producer", "--topic", "orders", *config)
            assert outcome_of(ada, "orders") is None

            without_login = {name: admin[name] for name in ("bootstrap.servers", "ssl.ca.location")}
            for protocol in ("SSL", "PLAINTEXT"):
                nothing = outcome_of(
                    {**without_login, "security.protocol": protocol, "message.timeout.ms": 1_500}, "orders"
                )
                assert nothing is not None


def test_the_nodes_of_a_cluster_get_a_certificate_and_settings_each(ottla: Callable[..., Any], tmp_path: Path) -> None:
    """`test_three_nodes_over_mutual_tls_lose_nothing_when_one_is_killed` runs them."""
    out, store = tmp_path / "security", tmp_path / "metadata.sqlite"
    command = ("security", "init-cluster", "--out", str(out), "--metadata", str(store))
    nodes = ("--node", "1=ottla1.example.org:9092", "--node", "2=ottla2.example.org:9092")
    login, config = tmp_path / "login", tmp_path / "zookeeper.properties"
    login.touch(0o600)
    login.write_text("ottla:hush hush hush")
    config.write_text(f"ottla.zookeeper.login.location={login}\nlog.retention.hours=1\n")
    said = ottla(*command, *nodes, "--config", str(config)).out
    assert f"ottla serve --config {out}/2/node.properties --metadata {store}" in said
    first, second = (read_properties(str(out / node / "node.properties")) for node in "12")
    assert second["listeners"] == "SASL_SSL://0.0.0.0:9092,NODES://0.0.0.0:9093"
    assert second["advertised.listeners"].endswith("NODES://ottla2.example.org:9093")
    assert first["ottla.cluster.secret"] == second["ottla.cluster.secret"]
    assert len(first["ottla.cluster.secret"]) == 64
    assert second["ottla.zookeeper.login.location"] == str(login)
    assert "log.retention.hours" not in second
    for file in out.rglob("*"):
        assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600)
    old = (out / "2" / "node.pem").read_text()
    assert "nothing was changed" in ottla(*command, *nodes).out
    assert (out / "2" / "node.pem").read_text() == old
    renewed = ottla("security", "renew", "--data", str(out), "--node", "2").out
    assert "ottla2.example.org" in renewed
    assert (out / "2" / "node.pem").read_text() != old


def test_an_address_that_is_given_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=of-the-file:9092\n")
    named = "bootstrap.servers"
    assert Cluster(command_config=file).given_properties() == {named: "of-the-file:9092"}
    assert Cluster("given:9092", command_config=file).given_properties() == {}
    assert Cluster("given:9092", file, [f"{named}=a-property:9092"]).given_properties() == {named: "a-property:9092"}


def test_the_file_for_java_has_the_same_login(ottla: Callable[..., Any], tmp_path: Path) -> None:
    ottla("security", "init", "--data", str(tmp_path), "--admin", "root")
    ours, javas = (
        read_properties(str(tmp_path / "security" / name)) for name in ("client.properties", "client-java.properties")
    )
    login = login_of(javas)
    assert login is not None
    assert login == login_of(ours)
    assert login.user == "root"
    assert len(login.password) == 32
    options = {f"kafka.{name}": value for name, value in javas.items()}
    assert client_properties(options).login == login


def test_what_is_made_is_private_and_certified(ottla: Callable[..., Any], tmp_path: Path) -> None:
    names = ("--host", "ottla.example.org", "--host", "10.0.0.1")
    old = os.umask(0)
    try:
        ottla("security", "init", "--data", str(tmp_path / "data"), *names)
    finally:
        os.umask(old)
    folder = tmp_path / "data" / "security"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    settings = read_properties(str(folder / "node.properties"))
    assert settings["listeners"] == "SASL_SSL://0.0.0.0:9092"
    assert settings["advertised.listeners"] == "SASL_SSL://ottla.example.org:9092"
    authority, node = (x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("ca.pem", "node.pem"))
    node.verify_directly_issued_by(authority)
    alternatives = node.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternatives.get_values_for_type(x509.DNSName) == ["ottla.example.org", "localhost"]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "node.pem")


def test_a_second_run_changes_nothing(ottla: Callable[..., Any], tmp_path: Path) -> None:
    first = ottla("security", "init", "--data", str(tmp_path), "--format", "json").json()
    assert (first["made"], first["admin"]) == (True, "admin")
    before = {path.name: path.read_bytes() for path in (tmp_path / "security").iterdir()}
    again = ottla("security", "init", "--data", str(tmp_path), "--admin", "other")
    assert "nothing was changed" in again.out
    assert ottla("security", "init", "--data", str(tmp_path), "--format", "json").json()["made"] is False
    assert {path.name: path.read_bytes() for path in (tmp_path / "security").iterdir()} == before
    store = open_own(str(tmp_path))
    assert store.get(key_of("other", "SCRAM-SHA-512")) is None
    store.close()


def test_a_run_that_was_interrupted_is_finished_by_the_next(
    ottla: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the user stored already: the next run gives it the password of the files."""

    def interrupted(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr("ottla.server.secure_setup.os.rename", interrupted)
        ottla("security", "init", "--data", str(tmp_path), code=1)
    assert not (tmp_path / "security").exists()
    ottla("security", "init", "--data", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["security"]
    config = read_properties(str(tmp_path / "security" / "client.properties"))
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }
    with (
        EmbeddedBroker(directory=tmp_path, settings=settings) as node,
        Client(node.bootstrap_servers, login=login_of(config)) as client,
    ):
        assert client.metadata([]).brokers


def test_what_can_not_be_set_up_is_refused(ottla: Callable[..., Any], tmp_path: Path) -> None:
    directory = tmp_path / "data"
    init = ("security", "init", "--data", str(directory))
    lock = DirectoryLock(str(directory))
    assert "is locked by another node" in ottla(*init, code=1).err
    lock.release()
    assert "add --host NAME" in ottla(*init, "--listen", "0.0.0.0:9092", code=1).err
    assert "fixed port" in ottla(*init, "--listen", "127.0.0.1:0", code=1).err
    assert "No certificate can have the names" in ottla(*init, "--host", "büro", code=1).err
    assert "letters, digits" in ottla(*init, "--admin", "a;User:b", code=2).err
    (directory / ".metadata-place").write_text("/shared.sqlite\n")
    assert "a node in a cluster" in ottla(*init, code=1).err
    (directory / ".metadata-place").unlink()
    assert not list(directory.glob("security*"))
    assert "`ottla security init" in ottla("security", "renew", "--data", str(directory), code=1).err


def test_a_user_that_exists_keeps_its_password(
    ottla: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a node that was in use keeps its number."""
    monkeypatch.setenv("OTTLA_PASSWORD", "lovelace")
    with EmbeddedBroker(directory=tmp_path, settings={"node.id": "7"}) as node:
        ottla("users", "add", "admin", "--bootstrap", node.bootstrap_servers)
    init = ("security", "init", "--data", str(tmp_path))
    assert "There is a user admin already" in ottla(*init, code=1).err
    ottla(*init, "--admin", "root")
    assert read_properties(str(tmp_path / "security" / "node.properties"))["node.id"] == "7"


def test_a_certificate_is_renewed_by_the_same_authority(ottla: Callable[..., Any], tmp_path: Path) -> None:
    ottla("security", "init", "--data", str(tmp_path))
    folder = tmp_path / "security"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    said = ottla("security", "renew", "--data", str(tmp_path), "--host", "new.example.org").out
    assert "for new.example.org, localhost, 127.0.0.1." in said
    changed = {path.name for path in folder.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"node.pem"}
    authority, node = (x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("ca.pem", "node.pem"))
    node.verify_directly_issued_by(authority)


@pytest.mark.parametrize("is_set_up", [False, True])
def test_a_certificate_of_ones_own_is_not_renewed(
    ottla: Callable[..., Any], tmp_path: Path, *, is_set_up: bool
) -> None:
    """Of a cluster, with unused files of an earlier start or without; the message says what to do."""
    if is_set_up:
        ottla("security", "init", "--data", str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.glob("security/*")}
    own = {"cert": "/etc/{node}.pem", "key": "/etc/{node}.key", "ca": "/etc/ca.pem"}
    Plan(3, "127.0.0.1:9092", [], secure=True, tls=own).write(tmp_path)
    said = ottla("security", "renew", "--data", str(tmp_path), code=1).err
    assert said.startswith(f"ottla: Nothing was renewed: `ottla cluster start --data {tmp_path} --tls-cert` names")
    assert said.endswith(
        "Put the new certificate there, and its key in /etc/{node}.key: a running node uses it within seconds.\n"
    )
    assert before == {path: path.read_bytes() for path in tmp_path.glob("security/*")}


def test_a_node_that_was_given_another_certificate_is_not_renewed(ottla: Callable[..., Any], tmp_path: Path) -> None:
    """But one whose set-up was moved is."""
    ottla("security", "init", "--data", str(tmp_path / "first"))
    moved = (tmp_path / "first").rename(tmp_path / "moved")
    ottla("security", "renew", "--data", str(moved))
    file = moved / "security" / "node.properties"
    file.write_text(file.read_text().replace("security/node.pem", "own/node.pem"))
    said = ottla("security", "renew", "--data", str(moved), code=1).err
    assert f"Nothing was renewed: ssl.keystore.location in {file} names a certificate of your own" in said
