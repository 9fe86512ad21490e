"""Decides which connections are those of nodes of this cluster, and begins the connections of this node to others.

A node proves itself once on each connection (`protocol/node_proof.py`). The connection then has the identity of a node,
and its requests carry no secret. The key is made of a row that the first node of the cluster writes, and of
`ottla.cluster.secret` if that is set.

The version before this one sent a secret in the client id of each request. Such requests are accepted as long as a node
of that version is registered and not fenced, and they are sent to such a node only. Its secret is another row, so who
has recorded it can't make a proof.

Invariant: neither the key nor a secret is in a text that this module makes, apart from those client ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.client_identity import Identity
from ottla.machine import Entropy
from ottla.metadata.nodes import NodeRecord, NodeState

if TYPE_CHECKING:
    from ottla.broker.cluster.introduction import Introduction

CLIENT_ID: Final = "ottla-node"


class Trust:
    """See the module's docstring. `nodes`: returns the rows of the nodes as they are now. A standalone node trusts no
    connection."""

    def __init__(self, node_id: int, entropy: Entropy, nodes: Callable[[], Mapping[str, NodeRecord]]) -> None:
        self.node_id = node_id
        self.cluster_id = ""
        self.key = b""
        self._entropy = entropy
        self._nodes = nodes
        self._listener = ""
        self._old_client_id = ""
        self._nodes_seen: Mapping[str, NodeRecord] | None = None
        self._has_old_nodes = False

    def share(self, cluster_id: str, stored: bytes, secret: str, old_secret: str, listener: str) -> None:
        """Before the first request: what the nodes of this cluster have in common. `stored`: the key in the metadata
        store; `secret`: that of the operator, may be empty; `old_secret`: the one that earlier versions send;
        `listener`: the name of the listener that this node has for nodes."""
        from ottla.protocol.node_proof import key_of  # a node that is alone starts without it

        self.cluster_id = cluster_id
        self.key = key_of(stored, secret)
        self._listener = listener
        self._old_client_id = f"{CLIENT_ID}:{old_secret}"

    @property
    def is_shared(self) -> bool:
        return bool(self.key)

    # ---- connections of other nodes --------------------------------------------------------------------------------

    def trusts(self, identity: Identity, client_id: str | None) -> bool:
        """Whether a request comes from a node of the cluster."""
        if identity.is_node:
            return True
        if not self.key or not self._accepts_secrets():
            return False
        from hmac import compare_digest

        return compare_digest((client_id or "").encode(), self._old_client_id.encode())

    def _accepts_secrets(self) -> bool:
        """Whether a node of the version before this one takes part."""
        nodes = self._nodes()
        if nodes is not self._nodes_seen:
            self._nodes_seen = nodes
            self._has_old_nodes = any(
                not record.proves_itself and record.state is not NodeState.FENCED for record in nodes.values()
            )
        return self._has_old_nodes

    def meets(self, sender: int, listener: str) -> bool:
        """Whether that node may connect to this listener of this node."""
        if listener == self._listener:
            return True
        record = self._nodes().get(str(sender))
        return record is not None and record.endpoints.get(listener) == (record.host, record.port)

    # ---- connections to other nodes --------------------------------------------------------------------------------

    def introduction(self, node_id: int, binding: bytes) -> Introduction | None:
        """The beginning of a connection to this node; None if it has none, as its version is an earlier one.
        `binding`: what only the two ends of the connection know, empty without TLS."""
        if not self.introduces(node_id):
            return None
        from ottla.broker.cluster.introduction import Introduction
        from ottla.protocol.node_proof import NONCE_BYTES, Hello, NodeClient

        hello = Hello(self.cluster_id, self.node_id, node_id, self._entropy.randbytes(NONCE_BYTES))
        return Introduction(NodeClient(self.key, hello, binding), CLIENT_ID)

    def introduces(self, node_id: int) -> bool:
        """Whether a connection to this node has an introduction. False also for a node that is not registered."""
        record = self._nodes().get(str(node_id))
        return bool(self.key) and record is not None and record.proves_itself

    def client_id_for(self, node_id: int) -> str:
        """The client id of requests to this node."""
        record = self._nodes().get(str(node_id))
        return CLIENT_ID if not self.key or record is None or record.proves_itself else self._old_client_id
