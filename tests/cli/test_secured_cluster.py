"""`ottla cluster start --secure`: nodes of one machine whose clients log in over TLS."""

import json
import os
import signal
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from ottla.cli.cluster import planned
from ottla.cli.cluster.plan import Plan, checked, files_of
from ottla.cli.cluster.processes import command
from ottla.cli.output import CommandError, UsageError
from ottla.cli.properties import read_properties
from ottla.metadata.credentials import key_of
from ottla.metadata.sqlite import SqliteStore
from ottla.server.authority import hosts_of
from ottla.server.own_certificates import OwnCertificates
from ottla.server.refusals import SettingsRefusedError
from ottla.server.secure_local_cluster import set_up_local_cluster
from tests.cli.test_cluster import ottla, pid_of
from tests.harness.certificates import Authority
from tests.harness.waiting import soon
from tools.node_process import held_ports

PATIENCE_S = 30.0


def outcome_of(properties: dict[str, Any], topic: str) -> KafkaError | None:
    """The error of one record that this client writes."""
    outcomes: list[KafkaError | None] = []
    producer = Producer({"log_level": 0, "message.timeout.ms": 20_000, **properties})
    producer.produce(topic, b"v", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(PATIENCE_S)
    (outcome,) = outcomes
    return outcome


def succeeds(*words: str) -> str:
    done = ottla(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def organization_at(port: int, authority: Authority, shown: Path | None = None) -> str:
    """The organization in the certificate of the node on this port. `shown`: a certificate of the client, which must be
    refused."""
    context = ssl.create_default_context(cafile=str(authority.file))
    if shown is not None:
        context.load_cert_chain(shown)
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
        certificate: Any = encrypted.getpeercert()
        if shown is not None:
            encrypted.recv(1)  # in TLS 1.3, the refusal comes after the handshake
    return next(value for ((name, value),) in certificate["subject"] if name == "organizationName")


@pytest.mark.slow("tests/testing/test_secured.py::test_the_nodes_of_a_cluster_are_secured_for_clients")
def test_a_secured_cluster_grows_restarts_nodes_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP", raising=False)
    directory, authority = tmp_path / "cluster", Authority(tmp_path)
    file = directory / "security" / "client.properties"
    start = ("cluster", "start", "--data", str(directory), "--detach")
    own, login = ("--data", str(directory)), ("--command-config", str(file))

    def states() -> list[str]:
        told = json.loads(succeeds("cluster", "describe", *login, "--format", "json"))
        return [node["state"] for node in told["nodes"]]

    with held_ports(3) as port:
        address = f"127.0.0.1:{port}"
        try:
            said = succeeds(*start, "--nodes", "2", "--listen", address, "--secure")
            assert said.endswith(f", data in {directory}, the admin's login in {file}.\n")
            assert succeeds("cluster", "start-node", "3", *own) == f"Node 3 serves at 127.0.0.1:{port + 2}.\n"
            assert states() == ["up"] * 3
            succeeds("topics", "create", "t", "--replication-factor", "3", *login)
            admin = read_properties(str(file))
            assert admin["bootstrap.servers"].count(",") == 2
            assert outcome_of(admin, "t") is None
            strangers = {"bootstrap.servers": admin["bootstrap.servers"], "message.timeout.ms": 1_500}
            assert outcome_of(strangers, "t") is not None
            monkeypatch.setenv("OTTLA_PASSWORD", "lovelace")
            succeeds("users", "add", "ada", *login)
            ada = {**admin, "sasl.username": "ada", "sasl.password": "lovelace"}
            denied = outcome_of(ada, "t")
            assert denied is not None
            assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            mine = tmp_path / "ada.properties"
            mine.write_text("".join(f"{key}={value}\n" for key, value in ada.items()))
            told = json.loads(succeeds("cluster", "describe", "--command-config", str(mine), "--format", "json"))
            unknown = {(node["disk_used"], node["disk_free"], node["stop"]) for node in told["nodes"]}
            assert (told["partial"], unknown) == (True, {(None, None, None)})
            before = pid_of(str(directory), 2)
            os.kill(before, signal.SIGKILL)
            soon(lambda: pid_of(str(directory), 2) != before)
            soon(lambda: states() == ["up"] * 3)
            succeeds("cluster", "stop", *own)
            by_node = {number: tmp_path / f"{number}.pem" for number in (1, 2, 3)}
            for number, pem in by_node.items():
                pem.write_bytes(authority.issue("127.0.0.1", organization=f"node {number}").read_bytes())
            succeeds(*start, "--tls-cert", str(tmp_path / "{node}.pem"), "--tls-ca", str(authority.file))
            assert [organization_at(port + at, authority) for at in range(3)] == ["node 1", "node 2", "node 3"]
            foreign = Authority(tmp_path, "foreign").issue("127.0.0.1")
            with pytest.raises((ssl.SSLError, ConnectionError)):
                organization_at(port, authority, foreign)
            by_node[2].write_bytes(authority.issue("127.0.0.1", organization="renewed").read_bytes())
            soon(lambda: organization_at(port + 1, authority) == "renewed")
            assert outcome_of(strangers, "t") is not None
            assert states() == ["up"] * 3
            admin = read_properties(str(file))
            assert admin["ssl.ca.location"] == str(authority.file)
            consumer = Consumer({**admin, "group.id": "g", "auto.offset.reset": "earliest"})
            consumer.subscribe(["t"])
            found = consumer.poll(PATIENCE_S)
            consumer.close()
            assert found is not None
            assert (found.error(), found.value()) == (None, b"v")
        finally:
            ottla("cluster", "stop", *own)


def test_a_plan_keeps_whether_the_cluster_is_secured(tmp_path: Path) -> None:
    settings = ["super.users=User:root"]
    plan = Plan(2, "127.0.0.1:7000", settings, secure=True)
    plan.write(tmp_path)
    assert planned(tmp_path, None, None, []) == plan
    with pytest.raises(UsageError, match=r"^super\.users would protect nothing without"):
        planned(tmp_path, None, None, [], False)
    assert not planned(tmp_path, None, None, ["num.partitions=1"], False).secure
    with pytest.raises(UsageError, match="with --secure SASL_SSL listeners"):
        checked("SASL_SSL://127.0.0.1:9093", 3)
    (tmp_path / "cluster.json").write_text('{"nodes": 1, "listen": "127.0.0.1:1", "settings": [], "secure": "yes"}')
    with pytest.raises(CommandError, match=r"is not what `ottla cluster start` writes"):
        planned(tmp_path, None, None, [])


@pytest.fixture
def set_up(tmp_path: Path) -> Callable[..., Path]:
    def run(host: str, *bootstrap: str, admin: str = "admin", own: OwnCertificates | None = None) -> Path:
        addresses = dict(enumerate(bootstrap, 1))
        set_up_local_cluster(str(tmp_path), str(tmp_path / "metadata.sqlite"), host, addresses, admin, own)
        return tmp_path / "security"

    return run


def test_the_files_follow_the_addresses_of_the_nodes(set_up: Callable[..., Path]) -> None:
    """The password, the authority and what the operator has changed stay."""
    folder = set_up("127.0.0.1", "127.0.0.1:7000")
    node = folder / "node.properties"
    node.write_text(node.read_text() + "connections.max.reauth.ms=60000\n")
    before = {path.name: path.read_text() for path in folder.iterdir()}
    set_up("127.0.0.1", "127.0.0.1:7000", admin="other")
    assert {path.name: path.read_text() for path in folder.iterdir()} == before
    set_up("ottla.example.org", "ottla.example.org:7000", "ottla.example.org:7001")
    changed = {path.name for path in folder.iterdir() if path.read_text() != before[path.name]}
    assert changed == {"node.pem", "client.properties", "client-java.properties"}
    assert set(hosts_of((folder / "node.pem").read_bytes())) == {"ottla.example.org", "localhost", "127.0.0.1"}
    for name in ("client.properties", "client-java.properties"):
        after = read_properties(str(folder / name))
        old = dict(line.split("=", 1) for line in before[name].splitlines() if not line.startswith("#"))
        assert after == {**old, "bootstrap.servers": "ottla.example.org:7000,ottla.example.org:7001"}


def test_a_cluster_that_can_not_be_secured_is_left_as_it_is(set_up: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(SettingsRefusedError, match=r"can't check a certificate for 0\.0\.0\.0"):
        set_up("0.0.0.0", "0.0.0.0:9092")
    folder = set_up("127.0.0.1", "127.0.0.1:7000", admin="root")
    store = SqliteStore(str(tmp_path / "metadata.sqlite"))
    assert store.get(key_of("root", "SCRAM-SHA-512")) is not None
    store.close()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.raises(SettingsRefusedError, match="There is a user root already"):
        set_up("127.0.0.1", "127.0.0.1:7000", admin="root")
    assert not folder.exists()


# ---- certificates of the operator ----------------------------------------------------------------------------------

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pems"))


def test_the_plan_keeps_the_certificates_of_the_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = files_of("pems/{node}.pem", "pems/{node}.key", "ca.pem")
    made = planned(tmp_path, 2, "127.0.0.1:7000", [], tls=files)
    assert made.secure
    made.write(tmp_path)
    monkeypatch.chdir("/")
    again = planned(tmp_path, None, None, [])
    assert again == made
    words = command(tmp_path, again, 2)
    for setting in (
        f"ssl.keystore.location={tmp_path}/pems/2.pem",
        f"ottla.ssl.key.location={tmp_path}/pems/2.key",
        f"ssl.truststore.location={tmp_path}/ca.pem",
        "ssl.client.auth=requested",
    ):
        assert setting in words
    assert planned(tmp_path, None, None, [], tls=files_of("x", None, "y")).tls == {"cert": "/x", "ca": "/y"}
    assert planned(tmp_path, None, None, [], False).tls == {}
    (tmp_path / "cluster.json").write_text(
        '{"nodes": 1, "listen": "127.0.0.1:1", "settings": [], "secure": true, "tls": {"cert": "/x"}}'
    )
    with pytest.raises(CommandError, match=r"is not what `ottla cluster start` writes"):
        planned(tmp_path, None, None, [])


def test_options_for_certificates_go_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--tls-key needs --tls-cert"):
        files_of(None, "x", None)
    with pytest.raises(UsageError, match="--tls-cert is empty: give it the path"):
        files_of("", None, "ca.pem")
    with pytest.raises(UsageError, match="--tls-cert needs --tls-ca"):
        files_of("x", None, None)
    with pytest.raises(UsageError, match="--tls-cert and --no-secure contradict"):
        planned(tmp_path, None, None, [], False, files_of("x", None, "y"))


def test_the_client_files_follow_the_certificates(set_up: Callable[..., Path], pems: Authority) -> None:
    """First the operator's own, then those of the set-up, then the operator's again."""
    own = OwnCertificates(str(pems.issue(HOST)), str(pems.file))
    folder = set_up(HOST, f"{HOST}:7000", own=own)
    assert not (folder / "node.pem").exists()
    assert not any(name.startswith("ssl.") for name in read_properties(str(folder / "node.properties")))

    def trusted() -> set[str]:
        in_librdkafka = read_properties(str(folder / "client.properties"))["ssl.ca.location"]
        return {in_librdkafka, read_properties(str(folder / "client-java.properties"))["ssl.truststore.location"]}

    assert trusted() == {str(pems.file)}
    set_up(HOST, f"{HOST}:7000")
    assert trusted() == {str(folder / "ca.pem")}
    assert HOST in hosts_of((folder / "node.pem").read_bytes())
    assert read_properties(str(folder / "node.properties"))["ssl.keystore.location"] == str(folder / "node.pem")
    set_up(HOST, f"{HOST}:7000", own=own)
    assert trusted() == {str(pems.file)}


def test_certificates_that_nodes_could_not_use_are_refused(tmp_path: Path, pems: Authority) -> None:
    from ottla.server.authority import Authority as OwnAuthority

    good, ca = pems.issue(HOST), str(pems.file)
    other, late = Authority(tmp_path, "other"), Authority(tmp_path, "late")
    only = OwnAuthority.made()
    for_clients = only.issue_client("ada")
    (tmp_path / "client.pem").write_text(for_clients.key + for_clients.certificate)
    (tmp_path / "only-ca.pem").write_text(only.itself.certificate)
    (tmp_path / "no.pem").write_text("no certificate")

    def refused(says: str, certificate: Path, *, key: Path | None = None, ca: str = ca, host: str = HOST) -> None:
        own = OwnCertificates(str(certificate), ca, None if key is None else str(key))
        with pytest.raises(SettingsRefusedError, match=says):
            own.check([1], host)

    OwnCertificates(str(good), ca).check([1, 2], HOST)
    OwnCertificates(str(good), ca, str(good)).check([1], HOST)
    refused(
        r"key in \S+other-127\.0\.0\.1\.pem does not match the certificate in \S+tests", good, key=other.issue(HOST)
    )
    refused("is for 127.0.0.1, and the nodes listen on ottla.example.org", good, host="ottla.example.org")
    refused(r"has expired on \d{4}-\d\d-\d\d: renew", late.issue(HOST, days=-1), ca=str(late.file))
    refused(r"No authority in \S+other-ca.pem has signed", good, ca=str(other.file))
    refused("extended key usage", tmp_path / "client.pem", ca=str(tmp_path / "only-ca.pem"))
    refused("There is no file", tmp_path / "1.pem")
    refused("can't be used", tmp_path / "no.pem")
    refused("can't be used", good, ca=str(tmp_path / "no.pem"))
    refused(r"tests-secret.pem has a password, .* `openssl pkey", pems.issue("secret", b"of the key"))
    (tmp_path / "1.pem").write_bytes(good.read_bytes())
    by_node = OwnCertificates(str(tmp_path / "{node}.pem"), ca)
    with pytest.raises(SettingsRefusedError, match=r"There is no file \S+/2.pem"):
        by_node.check([1, 2], HOST)
