"""An open cluster becomes a secured one: the steps of docs/security.md with real nodes, while a client writes."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from ottla.client import Client
from ottla.client.sasl import Login
from ottla.client.set_up import ClientSetUp
from ottla.testing import EmbeddedCluster
from tests.harness.certificates import Authority
from tests.harness.docs.reader import blocks_of
from tests.harness.waiting import soon
from tests.harness.zookeepers import free_ports

PATIENCE_S = 30.0
HOST = "127.0.0.1"
PASSWORDS = {"admin": "root", "ada": "lovelace"}


def settings_of(step: str) -> dict[str, str]:
    """The properties that the page has for a step."""
    (block,) = (each for each in blocks_of("docs/security.md") if each.text.startswith(f"# the {step} step\n"))
    return dict(line.split("=", 1) for line in block.text.splitlines()[1:])


class Machines(EmbeddedCluster):
    """Two nodes whose settings change from step to step."""

    def __init__(self, directory: Path) -> None:
        super().__init__(nodes=2, directory=directory / "data")
        Path(self.directory).mkdir()
        self.authority = Authority(directory)
        self._pem = str(self.authority.issue(HOST))
        self._page: dict[str, str] = {}
        self._secured = dict(zip(self.nodes, free_ports(2), strict=True))

    @property
    def secured(self) -> str:
        """The addresses of the second listener."""
        return ",".join(f"{HOST}:{port}" for port in self._secured.values())

    def client(self, user: str) -> ClientSetUp:
        login = Login("SCRAM-SHA-512", user, PASSWORDS[user])
        return ClientSetUp(self.secured, str(self.authority.file), login=login)

    def follow(self, step: str) -> None:
        """Restart the nodes with the settings of this step, one at a time."""
        self._page |= settings_of(step)
        settings = {name: value for name, value in self._page.items() if name != "listeners"}
        self._settings |= settings | {"ssl.keystore.location": self._pem}
        for node in self.nodes:
            assert self.stop_node(node) == 0
            if "9092" not in self._page["listeners"]:
                (self._ports[node],) = free_ports(1)
            self.start_node(node)
            self.wait_in_sync("orders")

    def _listeners(self, node: int) -> list[str]:
        ports = {"9092": self._ports[node], "9093": self._ports[node], "9094": self._secured[node]}
        listeners = self._page.get("listeners", "PLAINTEXT://10.0.0.1:9092").split(",")
        return [re.sub(r"10\.0\.0\.1:(\d+)", lambda found: f"{HOST}:{ports[found[1]]}", each) for each in listeners]

    def _connect(self, address: str, **options: Any) -> Client:
        """As the admin, once the nodes do not answer others."""
        if self._page.get("super.users") != "User:admin":
            return super()._connect(address, **options)
        admin, node = self.client("admin"), next(each for each in self.nodes if self.address_of(each) == address)
        return Client(f"{HOST}:{self._secured[node]}", tls=admin.context(), login=admin.login, **options)


class Load:
    """A client that writes without a pause."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.acknowledged = 0
        self.errors: list[KafkaError] = []
        self._properties = properties
        self._over = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._write)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def move(self, properties: dict[str, str]) -> None:
        """Restart the client with other properties."""
        self._properties = properties
        self.go_on()

    def go_on(self) -> None:
        """Return once more records are acknowledged."""
        before = self.acknowledged
        soon(lambda: self.acknowledged > before + 20 or self.errors, lambda: self.errors)

    def _write(self) -> None:
        while not self._over.is_set():
            properties = self._properties
            producer = Producer(
                {**properties, "acks": "all", "log_level": 0, "topic.metadata.refresh.interval.ms": 1000}
            )
            while properties is self._properties and not self._over.wait(0.005):
                producer.produce("orders", b"v", on_delivery=self._noted)
                producer.poll(0)
            producer.flush(PATIENCE_S)

    def _noted(self, error: KafkaError | None, _: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error)


def may(admin: AdminClient, user: str, operation: AclOperation) -> None:
    acl = AclBinding(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    admin.create_acls([acl])[acl].result(PATIENCE_S)


@pytest.mark.slow("tests/testing/test_secured.py::test_the_nodes_of_a_cluster_are_secured_for_clients")
def test_an_open_cluster_becomes_secured_while_a_client_writes(tmp_path: Path) -> None:
    with Machines(tmp_path) as machines:
        open_admin = AdminClient({"bootstrap.servers": machines.bootstrap_servers})
        open_admin.create_topics([NewTopic("orders", 1, 2)])["orders"].result(PATIENCE_S)
        open_to_all = {"bootstrap.servers": machines.bootstrap_servers}
        load = Load(open_to_all)
        with load.running():
            for user, password in PASSWORDS.items():
                info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
                change = UserScramCredentialUpsertion(user, info, password.encode())
                open_admin.alter_user_scram_credentials([change])[user].result(PATIENCE_S)
            machines.follow("second")
            load.go_on()
            may(AdminClient(machines.client("admin").librdkafka()), "ada", AclOperation.WRITE)
            load.move(machines.client("ada").librdkafka())
            machines.follow("fifth")
            load.go_on()
        assert load.errors == []
        with Client(machines.address_of(1)) as stranger:
            assert stranger.metadata(["orders"]).topics[0].error_code == 29
        admin = machines.client("admin")
        with Client(machines.secured, tls=admin.context(), login=admin.login) as client:
            assert client.list_offsets("orders", [0])[0] >= load.acknowledged > 100
