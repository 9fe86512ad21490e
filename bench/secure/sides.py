"""Starts the brokers that are compared: a node, and an Apache Kafka, each with a plain, a TLS and a SASL_SSL listener.

Both have the same certificate (a key on the curve P-256, as `ottla security init` makes it), the same user and the same
password. Kafka is started by `kafka-peer`, whose directory is given.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.brokers import BenchFailedError, Broker, Nodes, OttlaNode
from ottla.client import Client
from ottla.client.errors import check
from ottla.client.sasl import Login
from ottla.client.set_up import ClientSetUp
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from ottla.protocol.scram import SALT_BYTES, salted
from ottla.server.authority import Authority
from tools.node_process import held_ports

HOST = "127.0.0.1"
PROTOCOLS = {"plain": "PLAINTEXT", "tls": "SSL", "sasl": "SASL_SSL"}
"""The listeners of a broker by their names in measurements, and what they speak."""
MECHANISM, MECHANISM_CODE, ITERATIONS = "SCRAM-SHA-512", 2, 4096
_SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class Files:
    """The certificates, and the user: what both brokers get, and their clients."""

    def __init__(self, directory: Path) -> None:
        authority = Authority.made()
        issued = authority.issue([HOST, "localhost"])
        self.authority, self.node = directory / "ca.pem", directory / "node.pem"
        self.authority.write_text(authority.itself.certificate)
        self.node.touch(0o600)
        self.node.write_text(issued.key + issued.certificate)
        self.login = Login(MECHANISM, "ada", secrets.token_urlsafe(12))

    def access(self, name: str, address: str) -> ClientSetUp:
        """How clients use the listener of this name."""
        authority = None if name == "plain" else str(self.authority)
        return ClientSetUp(address, authority, login=self.login if name == "sasl" else None)

    def settings(self, ports: Mapping[str, int]) -> dict[str, str]:
        """Kafka's names, which both brokers understand."""
        listeners = ",".join(f"{PROTOCOLS[name]}://{HOST}:{port}" for name, port in ports.items())
        return {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.node),
            "sasl.enabled.mechanisms": MECHANISM,
        }


class Side:
    """One broker under its three addresses."""

    def __init__(self, name: str, pid: int, ports: Mapping[str, int], files: Files) -> None:
        self._listeners: dict[str, Broker] = {}
        for listener, port in ports.items():
            address = f"{HOST}:{port}"
            self._listeners[listener] = Broker(name, address, pid, files.access(listener, address))
        with self.at("plain").client() as client:
            add_user(client, files.login)

    def at(self, listener: str) -> Broker:
        """The broker as clients of this listener reach it."""
        return self._listeners[listener]


def add_user(client: Client, login: Login) -> None:
    salt = secrets.token_bytes(SALT_BYTES)
    password = salted(login.mechanism, login.password.encode(), salt, ITERATIONS)
    change = ScramCredentialUpsertion(login.user, MECHANISM_CODE, ITERATIONS, salt, password)
    (result,) = client.send(AlterUserScramCredentialsRequest(upsertions=[change])).results
    check(result.error_code, f"user {login.user}", result.error_message)


@contextlib.contextmanager
def ottla(nodes: Nodes, files: Files) -> Iterator[Side]:
    """A node of our own for the length of a block."""
    with held_ports(len(PROTOCOLS)) as first:
        ports = {name: first + i for i, name in enumerate(PROTOCOLS)}
        node = nodes.make(files.settings(ports), listen=None)
        try:
            node.start()
            yield Side("ottla", pid_of(node), ports, files)
        finally:
            node.kill()


def pid_of(node: OttlaNode) -> int:
    assert node.pid is not None
    return node.pid


@contextlib.contextmanager
def kafka(tools: Path, directory: Path, files: Files) -> Iterator[Side]:
    """The same with an Apache Kafka. `tools`: the directory of `kafka-peer`."""
    with held_ports(len(PROTOCOLS) + 1) as first:  # the second one is that of its controller
        ports = {"plain": first, "tls": first + 2, "sasl": first + 3}
        settings = files.settings(ports)
        settings["listeners"] += f",CONTROLLER://{HOST}:{first + 1}"
        protocols = [f"{each}:{each}" for each in PROTOCOLS.values()]
        settings["listener.security.protocol.map"] = ",".join((*protocols, "CONTROLLER:PLAINTEXT"))
        settings[f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config"] = _SCRAM_MODULE
        extra = directory.with_suffix(".properties")
        extra.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        try:
            said = run(tools, "start", str(directory), str(first), extra=extra).split()
            yield Side("kafka", int(said[1]), ports, files)
        finally:
            if (directory / "kafka.pid").exists():
                run(tools, "stop", str(directory))


def run(tools: Path, *words: str, extra: Path | None = None) -> str:
    """What kafka-peer says. `extra`: a file of further settings. Raises BenchFailedError."""
    environment = dict(os.environ) if extra is None else {**os.environ, "KAFKA_EXTRA": str(extra)}
    command = [str(tools / "kafka-peer"), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchFailedError(f"kafka-peer {words[0]} failed: {getattr(error, 'stderr', '') or error}") from error
