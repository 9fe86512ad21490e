"""What a node imports before it serves. Each module, and each class whose methods are generated, costs time and memory
at every start."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from importlib import import_module

import pytest

MODULES_MAX = 201
"""Modules of Ottla that a plain node imports. Lower it when you leave one to the feature that uses it."""
FROZEN_MAX = 5
"""Frozen dataclasses among them. Python takes six times as long to make one as a named tuple, and a thousand times as
long as a class without generated methods."""
LOGINS = {"hashlib", "hmac", "http.client", "ottla.client.oauth", "ottla.client.sasl", "secrets"}
"""What a client without a login leaves to others, and so does an embedded broker without security."""
NOT_NEEDED = {
    "cramjam": "compressed batches",
    "email": "http.client, importlib.metadata",
    "hashlib": "passwords",
    "hmac": "passwords",
    "http.client": "keys of tokens",
    "importlib.metadata": "versions of packages",
    "kazoo": "ZooKeeper",
    "pathlib": "commands and tests",
    "prometheus_client": "the metrics port",
    "tempfile": "nodes without a directory",
    "zipfile": "importlib.metadata",
    "ottla.broker.delivery": "share groups",
    "ottla.broker.replication.replication": "clusters",
    "ottla.broker.security.acls": "ACLs",
    "ottla.broker.security.certificates": "TLS",
    "ottla.broker.security.sasl": "logins",
    "ottla.client": "tools",
    "ottla.groups.shard": "consumer groups",
    "ottla.log.compaction.compaction": "compacted topics",
    "ottla.log.checking": "scrubs and unfinished compactions",
    "ottla.log.scrubbing": "scrubs",
    "ottla.metadata.zookeeper": "ZooKeeper",
    "ottla.protocol.records.codecs": "compressed batches",
    "ottla.server.metrics": "the metrics port",
    "ottla.server.secret_files": "secrets",
    "ottla.server.tls": "TLS",
    "ottla.server.tls_settings": "TLS",
    "ottla.share.partition": "share groups",
    "ottla.txn.shard": "transactions",
}
"""What the start of a plain node leaves to these features."""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules that `ottla serve` imports in a new directory until it reports that it serves."""
    command = [sys.executable, "-X", "importtime", "-m", "ottla", "serve", "--listen", "127.0.0.1:0", "--data"]
    log = tmp_path_factory.mktemp("start") / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen([*command, str(log.parent / "data")], stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline(), log.read_text()
        found = modules_in(log.read_text())
        process.send_signal(signal.SIGTERM)
    return found


def modules_in(log: str) -> list[str]:
    lines = [line for line in log.splitlines() if line.startswith("import time:")]
    return [line.rpartition("|")[2].strip() for line in lines[1:]]


def test_a_node_starts_without_what_it_does_not_use(imported: list[str]) -> None:
    assert {name: NOT_NEEDED[name] for name in imported if name in NOT_NEEDED} == {}


def test_a_start_imports_no_more_modules_than_before(imported: list[str]) -> None:
    ours = [name for name in imported if name.partition(".")[0] == "ottla"]
    assert "ottla.server.main" in ours
    assert len(ours) <= MODULES_MAX, sorted(ours)


def test_few_classes_of_a_start_are_frozen_dataclasses(imported: list[str]) -> None:
    modules = [import_module(name) for name in imported if name.partition(".")[0] == "ottla" and "__main__" not in name]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, type)}
    frozen = [each for each in found if dataclasses.is_dataclass(each) and each.__dataclass_params__.frozen]
    assert len(frozen) <= FROZEN_MAX, sorted(each.__qualname__ for each in frozen)


FIRST_RECORD = """
import sys
from ottla.client import Client
from ottla.protocol.records import Record, build_batch
from ottla.testing import EmbeddedBroker

with EmbeddedBroker() as broker, Client(broker.bootstrap_servers) as client:
    assert client.produce_raw(broker.create_topic(), 0, build_batch([Record(key=b"key", value=b"value")])) is not None
    print(*sys.modules)
"""


def test_an_embedded_broker_stores_a_record_without_logins_and_coordinators() -> None:
    shown = subprocess.run([sys.executable, "-c", FIRST_RECORD], capture_output=True, check=True, text=True).stdout
    found = set(shown.split())
    assert "ottla.broker.api.k00_produce" in found
    assert found.isdisjoint(not_needed := LOGINS | {"cramjam", "ottla.broker.coordinators", "ottla.share.state"}), (
        found & not_needed
    )
