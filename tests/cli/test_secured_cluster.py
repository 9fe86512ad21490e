"""`ottla cluster start --secure`: nodes of one machine whose clients log in over TLS."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from ottla.cli.cluster import planned
from ottla.cli.cluster.plan import Plan, checked
from ottla.cli.output import CommandError, UsageError
from ottla.cli.properties import read_properties
from ottla.metadata.credentials import key_of
from ottla.metadata.sqlite import SqliteStore
from ottla.server.authority import hosts_of
from ottla.server.refusals import SettingsRefusedError
from ottla.server.secure_local_cluster import set_up_local_cluster
from tests.cli.test_cluster import ottla, pid_of
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


def test_a_secured_cluster_grows_restarts_nodes_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP", raising=False)
    directory = tmp_path / "cluster"
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
            before = pid_of(str(directory), 2)
            os.kill(before, signal.SIGKILL)
            soon(lambda: pid_of(str(directory), 2) != before)
            soon(lambda: states() == ["up"] * 3)
            succeeds("cluster", "stop", *own)
            succeeds(*start)
            assert outcome_of(strangers, "t") is not None
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
    def run(host: str, *bootstrap: str, admin: str = "admin") -> Path:
        set_up_local_cluster(str(tmp_path), str(tmp_path / "metadata.sqlite"), host, bootstrap, admin)
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
