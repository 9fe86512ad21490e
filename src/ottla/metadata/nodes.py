"""Defines the rows of the nodes of a cluster: where each is reached, which life of it that is, what it may do.

    nodes/<id>    {"host": ..., "port": ..., "rack": ..., "endpoints": {listener: [host, port]}, "incarnation": ...,
                   "state": ..., "intact": ..., "emptied": ..., "broker_epoch": ...,
                   "offline": [[topic id, index], ...], "features": {name: highest level}}

A node writes its row when it registers, `starting`, and when logs of it fail or work again; what becomes of it then is
the controller's to say.

The endpoints of a row include the listener for other nodes twice: under its name, and under `BETWEEN_NODES`. A row
without the latter was written by a version whose nodes had one address for clients of every listener. Such a version
reads newer rows too: it names a node by its endpoint PLAINTEXT, or else by `host` and `port`.

Sources: Kafka's BrokerRegistration.java, RegisterBrokerRecord; KIP-858 for what fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias, cast

from ottla.metadata.features import UNSET
from ottla.protocol.uuids import parse_uuid, uuid_text

Place: TypeAlias = tuple[bytes, int]
"""A topic's id and the index of a partition."""
PREFIX: Final = "nodes/"
BETWEEN_NODES: Final = ""
"""The name under which a row's endpoints repeat the listener for other nodes. It says that they name all listeners, and
it is an endpoint because older controllers, which rewrite rows, drop any field that they do not know."""


class NodeState(StrEnum):
    """What a node may do. Only active ones are given leaderships; leaving ones keep what nobody else can take."""

    STARTING = "starting"
    """It has registered, and the controller has yet to take it in."""
    ACTIVE = "active"
    LEAVING = "leaving"
    FENCED = "fenced"
    """It has stopped, or nobody hears of it any more."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One registration. `host` and `port`: the listener for other nodes; `endpoints`: where clients reach it, by the
    name of the listener; `rack` None where that is not known.

    `incarnation` names the life of the node. `intact`: it has every byte that it ever stored; `emptied`: it has
    none of them, as its directory is another one. `broker_epoch`: the
    generation of the registration, which counts up for ever; 0 in the row that registers, as its version says it.
    `offline`: the partitions whose logs take nothing on this node, in order; others shall lead them. `by_fsync`: it
    says to have only what is on its disk, so that its next life is intact whatever happens to its power. `features`:
    the highest level that it supports of each; it supports all below. `version` is that of the row, and stands in none.
    """

    host: str
    port: int
    rack: str | None = None
    endpoints: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    incarnation: str = ""
    state: NodeState = NodeState.ACTIVE
    intact: bool = True
    broker_epoch: int = 0
    version: int = 0
    offline: tuple[Place, ...] = ()
    by_fsync: bool = False
    features: Mapping[str, int] = field(default_factory=lambda: UNSET)
    emptied: bool = False

    def endpoint(self, listener: str) -> tuple[str, int] | None:
        """The address that clients of this listener use; None if the node has no such listener."""
        found = self.endpoints.get(listener)
        if found is None and BETWEEN_NODES not in self.endpoints:
            return self.host, self.port
        return found

    def encode(self) -> bytes:
        row: dict[str, object] = {
            "host": self.host,
            "port": self.port,
            "rack": self.rack,
            "endpoints": self.endpoints,
            "incarnation": self.incarnation,
            "state": self.state,
            "intact": self.intact,
            "broker_epoch": self.broker_epoch,
            "features": dict(self.features),
        }
        if self.offline:
            row["offline"] = [(uuid_text(topic_id), index) for topic_id, index in self.offline]
        if self.by_fsync:
            row["by_fsync"] = True
        if self.emptied:
            row["emptied"] = True
        return json.dumps(row).encode()

    @staticmethod
    def decode(value: bytes) -> NodeRecord:
        """Raises ValueError, KeyError or TypeError where this is no row of a node."""
        row = json.loads(value)
        host, port, rack = row["host"], row["port"], row["rack"]
        if not (isinstance(host, str) and isinstance(port, int) and (rack is None or isinstance(rack, str))):
            raise ValueError(f"no address of a node: {row}")
        endpoints = cast("dict[str, Any]", row.get("endpoints", {}))
        return NodeRecord(
            host,
            port,
            rack,
            {name: (str(at[0]), int(at[1])) for name, at in endpoints.items()},
            str(row.get("incarnation", "")),
            NodeState(row.get("state", NodeState.ACTIVE)),
            bool(row.get("intact", True)),
            int(row.get("broker_epoch", 0)),
            offline=tuple((parse_uuid(topic_id), int(index)) for topic_id, index in row.get("offline", ())),
            by_fsync=bool(row.get("by_fsync", False)),
            features={str(name): int(level) for name, level in row.get("features", UNSET).items()},
            emptied=bool(row.get("emptied", False)),
        )
