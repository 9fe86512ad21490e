"""The rows of the nodes of a cluster: where the others reach each of them.

Source: Kafka's BrokerRegistration.java.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "nodes/"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Host and port of the listener for other nodes; `rack` None where that is not known."""

    host: str
    port: int
    rack: str | None = None

    def encode(self) -> bytes:
        return json.dumps({"host": self.host, "port": self.port, "rack": self.rack}).encode()

    @staticmethod
    def decode(value: bytes) -> NodeRecord:
        """Raises ValueError, KeyError or TypeError where this is no row of a node."""
        row = json.loads(value)
        host, port, rack = row["host"], row["port"], row["rack"]
        if not (isinstance(host, str) and isinstance(port, int) and (rack is None or isinstance(rack, str))):
            raise ValueError(f"no address of a node: {row}")
        return NodeRecord(host, port, rack)
