"""Defines the row of the controller: which incarnation of which node writes the cluster's metadata, in which epoch.

    cluster/controller    {"node_id": ..., "incarnation": ..., "epoch": ..., "down_until": ...}

A node that claims the row names its current version, so only one of several claims succeeds. Everything that the
controller writes is guarded by the version of its own claim. So no write of an old controller is committed after the
claim of a new one.

Source: Kafka's ZkControllerContext (`/controller`, `/controller_epoch`); the race is KAFKA-6082.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from ottla.metadata.row_kinds import single

CONTROLLER_KEY: Final = "cluster/controller"


class ControllerRecord(NamedTuple):
    """One claim. `version` is that of its row, 0 until it is committed; the row does not contain it.

    `down_until`: the generation of the store when the cluster last started after no node of it had been active. A node
    with a newer registration has compared this store with the one that it knew. 0 if that never happened.
    """

    node_id: int
    incarnation: str
    epoch: int
    version: int = 0
    down_until: int = 0

    def encode(self) -> bytes:
        row = {"node_id": self.node_id, "incarnation": self.incarnation, "epoch": self.epoch}
        return json.dumps({**row, "down_until": self.down_until} if self.down_until else row).encode()

    @staticmethod
    def decode(value: bytes) -> ControllerRecord:
        """Raises ValueError, KeyError or TypeError if the value is not a claim."""
        row = json.loads(value)
        down_until = int(row.get("down_until", 0))
        return ControllerRecord(int(row["node_id"]), str(row["incarnation"]), int(row["epoch"]), down_until=down_until)


CONTROLLER: Final = single(CONTROLLER_KEY, ControllerRecord.decode)
"""The newest claim; None if no node has made one."""
