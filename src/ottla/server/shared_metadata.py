"""The metadata store that the nodes of a cluster share, and how this one is there for the others.

Knows what the text of `--metadata` means: PATH, or sqlite:PATH, of a SQLite file for nodes of one machine; beside it
stands the directory `members` with a file for each node (presence.py).
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass

from ottla.broker.cluster.membership import Joining
from ottla.broker.config.values import BrokerSettings
from ottla.metadata.sqlite import SqliteStore
from ottla.server.listeners import Listener, SettingsRefused
from ottla.server.presence import LockedPresence

SQLITE = "sqlite:"
TRUST = 2 / 3
"""Which part of its lease a node trusts what it knows: it stops before others take it for dead."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What a node of a cluster has in common with the others."""

    store: SqliteStore
    presence: LockedPresence
    joining: Joining


def share(text: str, settings: BrokerSettings, listener: Listener) -> Shared:
    """Open the shared store, and be there for the others. Raises ServeRefused, StoreFailed, OSError."""
    scheme, colon, _ = text.partition("://")
    if colon:
        raise SettingsRefused(f"--metadata {text}: {scheme} is not served yet; name a SQLite file of this machine.")
    path = os.path.abspath(text.removeprefix(SQLITE))
    told = listener.advertised
    if told is None:
        raise SettingsRefused(
            "A node of a cluster tells the others where it is: listen on one address, or say which one in "
            "advertised.listeners."
        )
    incarnation = secrets.token_hex(8)
    node_id, lease_ms = int(settings["node.id"]), int(settings["broker.session.timeout.ms"])
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    presence = LockedPresence(f"{os.path.dirname(path)}/members", node_id, incarnation, lease_ms)
    try:
        store = SqliteStore(path)
    except BaseException:
        presence.leave()
        raise
    joining = Joining(*told, incarnation, int(lease_ms * TRUST), {"PLAINTEXT": told})
    return Shared(store, presence, joining)
