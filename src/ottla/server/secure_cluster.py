"""Sets up the security of a cluster before its start: certificates, an administrator, the properties of each node.

    DIRECTORY/
        ca.pem, ca.key            the authority: clients and nodes trust its certificate
        client.properties         how the administrator connects, for librdkafka
        client-java.properties    the same for Java
        N/node.pem                the private key and certificate of node N
        N/ca.pem                  the authority's certificate once more
        N/node.properties         settings of node N, with the secret that the nodes share

Clients use a listener with TLS and passwords. Nodes use the next port: its connections need a certificate on both
sides, and the proof of the nodes' key. The administrator's password is stored as a credential in the store that the
nodes share.

Invariant: DIRECTORY exists only if the set-up is complete, as in `secure_setup`.
"""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from ottla.broker.config.unserved import AUTHORIZER, AUTHORIZERS
from ottla.broker.config.values import BrokerSettings, ConfigRefusedError
from ottla.client.sasl import Login
from ottla.client.set_up import ClientSetUp
from ottla.loopback import is_loopback
from ottla.metadata.store import CommitUnknownError, MetadataStore, StoreError
from ottla.metadata.zookeeper.protection import Protection
from ottla.server.authority import Authority
from ottla.server.listeners import join_address
from ottla.server.refusals import ServeRefusedError, SettingsRefusedError
from ottla.server.secure_setup import (
    AUTHORITY,
    AUTHORITY_KEY,
    LOCAL_NAMES,
    MECHANISM,
    NODE,
    NODE_CERTIFICATE,
    PASSWORD_BYTES,
    begin,
    client_files,
    finish,
    issued,
    properties_text,
)
from ottla.server.shared_metadata import open_shared
from ottla.server.zookeeper_settings import protection_of

BETWEEN_NODES: Final = "NODES"
"""The name of the listener between nodes."""
ABOUT: Final = "Settings of a node of a cluster: passwords for clients, certificates for nodes."
SECRET_BYTES: Final = 32
ZOOKEEPER: Final = ("zookeeper.", "ottla.zookeeper.")
"""The settings of a node for its sessions with ZooKeeper begin so."""


@dataclass(frozen=True, slots=True)
class ClusterSetUp:
    """The result of a run. `folder`: an absolute path; `nodes`: the host and port that clients get, by node."""

    folder: str
    nodes: Mapping[int, tuple[str, int]]
    authority_until: datetime.datetime
    nodes_until: datetime.datetime

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)


def set_up_cluster(
    folder: str, metadata: str, nodes: Mapping[int, tuple[str, int]], admin: str, given: Mapping[str, str]
) -> ClusterSetUp | None:
    """Set up a cluster of these nodes; None if the folder exists.

    - `metadata`: as in `ottla serve --metadata`.
    - `given`: settings of a node, from which those for ZooKeeper are used here and by each node.

    Raises ServeRefusedError, OSError.
    """
    folder = os.path.abspath(folder)
    if os.path.exists(folder):
        return None
    taken = [port for _, port in nodes.values()]
    for node_id, (host, port) in nodes.items():
        if not 0 < port < 65535:
            raise SettingsRefusedError(f"Node {node_id} needs a port below 65535: the next one is for the other nodes.")
        same_machine = [other for other, (name, _) in nodes.items() if name == host]
        if len(same_machine) > 1 and port + 1 in taken:
            raise SettingsRefusedError(
                f"Port {port + 1} of {host} is for the other nodes of node {node_id}: leave it free."
            )
    own = {name: value for name, value in given.items() if name.startswith(ZOOKEEPER)}
    try:
        protection = protection_of(BrokerSettings.load(own))
        with opened(metadata, protection) as store:
            return _set_up(folder, nodes, admin, own, store)
    except ConfigRefusedError as refused:
        raise SettingsRefusedError(str(refused)) from None
    except (StoreError, CommitUnknownError) as error:
        raise ServeRefusedError(str(error)) from None


def _set_up(
    folder: str,
    nodes: Mapping[int, tuple[str, int]],
    admin: str,
    given: Mapping[str, str],
    store: MetadataStore,
) -> ClusterSetUp:
    unfinished = f"{folder}.new"
    begin(unfinished, admin, store)
    authority = Authority.made()
    password, secret = secrets.token_urlsafe(PASSWORD_BYTES), secrets.token_hex(SECRET_BYTES)
    bootstrap = ",".join(join_address(*each) for each in nodes.values())
    client = ClientSetUp(bootstrap, os.path.join(folder, AUTHORITY), login=Login(MECHANISM, admin, password))
    texts = {
        AUTHORITY: authority.itself.certificate,
        AUTHORITY_KEY: authority.itself.key,
        **client_files(client),
    }
    until = authority.itself.until
    for node_id, (host, port) in nodes.items():
        names = tuple(dict.fromkeys((host, *(LOCAL_NAMES if is_loopback(host) else ()))))
        node = issued(authority, names)
        until = min(until, node.until)
        texts[f"{node_id}/{NODE_CERTIFICATE}"] = node.key + node.certificate
        texts[f"{node_id}/{AUTHORITY}"] = authority.itself.certificate
        own = os.path.join(folder, str(node_id))
        settings = {**_settings_of(own, node_id, host, port), "super.users": f"User:{admin}"}
        settings |= {"ottla.cluster.secret": secret, **given}
        texts[f"{node_id}/{NODE}"] = properties_text(ABOUT, settings)
    finish(unfinished, folder, texts, admin, password, store)
    return ClusterSetUp(folder, nodes, authority.itself.until, until)


def _settings_of(folder: str, node_id: int, host: str, port: int) -> dict[str, str]:
    """For `ottla serve --config`."""
    bound = host if is_loopback(host) else "0.0.0.0"
    ports = {"SASL_SSL": port, BETWEEN_NODES: port + 1}
    return {
        "node.id": str(node_id),
        "listeners": ",".join(f"{name}://{join_address(bound, at)}" for name, at in ports.items()),
        "advertised.listeners": ",".join(f"{name}://{join_address(host, at)}" for name, at in ports.items()),
        "listener.security.protocol.map": f"SASL_SSL:SASL_SSL,{BETWEEN_NODES}:SSL",
        "inter.broker.listener.name": BETWEEN_NODES,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": os.path.join(folder, NODE_CERTIFICATE),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": os.path.join(folder, AUTHORITY),
        f"listener.name.{BETWEEN_NODES.lower()}.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": MECHANISM,
        AUTHORIZER: AUTHORIZERS[0],
    }


@contextmanager
def opened(metadata: str, protection: Protection) -> Iterator[MetadataStore]:
    """The store that nodes share. Raises SettingsRefusedError, StoreError, OSError."""
    if "://" not in metadata:
        path = os.path.abspath(metadata.removeprefix("sqlite:"))
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    try:
        store = open_shared(metadata, protection=protection)
    except ValueError as error:
        raise SettingsRefusedError(f"--metadata {metadata}: {error}") from error
    with closing(store):
        yield store
