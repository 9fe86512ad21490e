"""Opens the metadata store that the nodes of a cluster share, and announces this node to the others.

`--metadata` has two forms. PATH, or sqlite:PATH, is a SQLite file for nodes on one machine. Beside it, the directory
`members` has a file for each node (presence.py). zookeeper://HOST:PORT,.../PATH is a ZooKeeper, for nodes on any
machines (zookeeper_presence.py).
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from ottla.broker.cluster.membership import Joining
from ottla.broker.config.values import BrokerSettings
from ottla.metadata.nodes import BETWEEN_NODES
from ottla.metadata.sqlite import SqliteStore, mark_beside
from ottla.metadata.zookeeper.protection import OPEN, Protection
from ottla.server.directory import identity
from ottla.server.listeners import Listener, SettingsRefusedError, between_nodes
from ottla.server.metadata_follower import Presence
from ottla.server.port_probe import Life
from ottla.server.presence import LockedPresence
from ottla.server.store import NodeStore
from ottla.server.zookeeper_settings import protection_of, refuse_unused

SQLITE = "sqlite"
ZOOKEEPER = "zookeeper"
TRUST = 2 / 3
"""The part of its lease for which a node trusts its knowledge: it stops before the other nodes take it for dead."""

log = logging.getLogger("ottla.cluster")


@dataclass(frozen=True, slots=True)
class Shared:
    """State that a cluster node shares with the other nodes. `lease_ms`: after this time without a renewal it counts as
    dead. `listener`: the one between nodes."""

    store: NodeStore
    presence: Presence
    joining: Joining
    lease_ms: int
    listener: Listener


def share(text: str, settings: BrokerSettings, listeners: Sequence[Listener], directory: str) -> Shared:
    """Open the shared store, and announce this node. `directory`: the node's own data directory, which it has locked.
    Raises ServeRefusedError, StoreError, OSError."""
    between = between_nodes(listeners, settings)
    if between.tls is not None:
        between.tls.connect_nodes()
    told = _endpoint(between)
    endpoints = {BETWEEN_NODES: told}
    for listener in listeners:
        endpoints.setdefault(listener.name, _endpoint(listener))
    incarnation = secrets.token_hex(8)
    node_id, lease_ms = int(settings["node.id"]), int(settings["broker.session.timeout.ms"])
    scheme, colon, _ = text.partition("://")
    if scheme == ZOOKEEPER and colon:
        life = Life(node_id, incarnation, *told, identity(directory))
        store, presence, lease_ms = _over_machines(text, life, lease_ms, settings)
    elif colon and scheme != SQLITE:
        raise SettingsRefusedError(
            f"--metadata {text}: there is no store {scheme}. Name a SQLite file of this machine, or "
            "zookeeper://HOST:PORT,.../PATH."
        )
    else:
        refuse_unused(settings)
        store, presence = _on_one_machine(text, node_id, incarnation, lease_ms)
    joining = Joining(*told, incarnation, int(lease_ms * TRUST), endpoints, between.name)
    return Shared(store, presence, joining, lease_ms, between)


def _endpoint(listener: Listener) -> tuple[str, int]:
    if listener.advertised is None:
        raise SettingsRefusedError(
            "A node of a cluster tells the others where it is: listen on one address, or say which one in "
            "advertised.listeners."
        )
    return listener.advertised


def _on_one_machine(text: str, node_id: int, incarnation: str, lease_ms: int) -> tuple[NodeStore, Presence]:
    path = os.path.abspath(text.removeprefix(f"{SQLITE}:"))
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    members = f"{os.path.dirname(path)}/members"
    presence = LockedPresence(members, node_id, incarnation, lease_ms, mark_beside(path))
    try:
        return SqliteStore(path, is_shared=True), presence
    except BaseException:
        presence.leave()
        raise


def _over_machines(text: str, life: Life, lease_ms: int, settings: BrokerSettings) -> tuple[NodeStore, Presence, int]:
    """Returns the store, the presence, and the lease that the servers grant."""
    from ottla.metadata.zookeeper.ensemble import ensemble_of
    from ottla.metadata.zookeeper.session import Session
    from ottla.metadata.zookeeper.store import ZooKeeperStore
    from ottla.server.zookeeper_presence import ZooKeeperPresence

    try:
        ensemble = ensemble_of(text)
    except ValueError as error:
        raise SettingsRefusedError(f"--metadata {text}: {error}") from error
    session = Session(ensemble, lease_ms, log.warning, protection_of(settings))
    session.open()
    try:
        store = ZooKeeperStore(session)
        presence = ZooKeeperPresence(store, life)
    except BaseException:
        session.close()
        raise
    return store, presence, int(session.timeout_s * 1000)


def open_shared(text: str, lease_ms: int = 18_000, *, protection: Protection = OPEN) -> NodeStore:
    """Open the shared store without announcing a node. `protection`: of the session with ZooKeeper. Raises StoreError,
    OSError, and ValueError for an address that is none."""
    if not text.startswith(f"{ZOOKEEPER}://"):
        return SqliteStore(os.path.abspath(text.removeprefix(f"{SQLITE}:")), is_shared=True)
    from ottla.metadata.zookeeper.ensemble import ensemble_of
    from ottla.metadata.zookeeper.session import Session
    from ottla.metadata.zookeeper.store import ZooKeeperStore

    session = Session(ensemble_of(text), lease_ms, log.warning, protection)
    session.open()
    try:
        return ZooKeeperStore(session)
    except BaseException:
        session.close()
        raise
