"""How the node under comparison is configured: as the Kafka peer is, and three of them as its three nodes.

A secured one has two listeners: PLAINTEXT, and SASL with passwords. Its super user, `ADMIN`, knows a password before
the node starts, as Kafka's does from its settings.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.client import Connection
from ottla.client.sasl import Login
from ottla.metadata.credentials import ScramCredential, key_of
from ottla.metadata.store import Put
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.scram import ITERATIONS_MIN, keys_of, salted
from ottla.server.main import ServerOptions
from ottla.server.standalone_metadata import open_own
from ottla.testing.embedded import run_in_thread

from .stage import Doors

CONFIG = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "50"}
OF_CLUSTERS = {"min.insync.replicas": "2"}
ADMIN = Login("PLAIN", "admin", "admin-secret")
MECHANISM = "SCRAM-SHA-256"
SECURED = {
    "sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}",
    "connection.failed.authentication.delay.ms": "0",
    AUTHORIZER: AUTHORIZERS[0],
    "super.users": f"User:{ADMIN.user}",
}
"""What both brokers are told."""
LISTENERS = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT"}


def of_secured_peer(port: int) -> dict[str, str]:
    """Further properties of a secured Kafka, whose listener with passwords is two ports above `port`. Its controller
    asks for passwords too, so that a client without one is nobody special."""
    plain, of_user = "org.apache.kafka.common.security.plain.PlainLoginModule required", f'="{ADMIN.password}"'
    login = f'{plain} username="{ADMIN.user}" password{of_user} user_{ADMIN.user}{of_user};'
    clients = f"PLAINTEXT://127.0.0.1:{port},SASL://127.0.0.1:{port + 2}"
    protocols = LISTENERS["listener.security.protocol.map"]
    return SECURED | {
        "listeners": f"{clients},CONTROLLER://127.0.0.1:{port + 1}",
        "advertised.listeners": clients,
        "listener.security.protocol.map": f"{protocols},CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "SASL",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": login,
        "listener.name.sasl.plain.sasl.jaas.config": login,
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }


@contextlib.contextmanager
def secured() -> Iterator[tuple[tuple[str, int], Doors]]:
    """A secured node: the address of its listener with passwords, and the rest."""
    with tempfile.TemporaryDirectory(prefix="ottla-secured-") as directory:
        _add_admin(directory)
        listen = ("PLAINTEXT://127.0.0.1:0", "SASL://127.0.0.1:0")
        running = run_in_thread(ServerOptions(directory, listen, CONFIG | SECURED | LISTENERS))
        try:
            open_to_all, asks = ((each.host, each.port) for each in running.server.listening)
            with Connection(*asks, login=ADMIN) as connection:  # 0 is left out of transcripts, as every default
                connection.send(InitProducerIdRequest(None, 60_000))
            yield asks, Doors(open_to_all, ADMIN)
        finally:
            running.loop.call_soon_threadsafe(running.stop.set)
            running.ended.result(60)
            running.thread.join()


def _add_admin(directory: str) -> None:
    Path(directory).mkdir(exist_ok=True)
    salt = b"of the admin"
    keys = keys_of(MECHANISM, salted(MECHANISM, ADMIN.password.encode(), salt, ITERATIONS_MIN))
    store = open_own(directory)
    try:
        credential = ScramCredential(salt, *keys, ITERATIONS_MIN)
        store.commit([Put(key_of(ADMIN.user, MECHANISM), credential.encode())])
    finally:
        store.close()
