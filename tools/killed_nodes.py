"""Serve the programs of other projects, and kill what serves them: one node, or three of which each has its turn."""

from __future__ import annotations

import time
from itertools import cycle
from pathlib import Path
from typing import Protocol

from tests.harness.conform.three_nodes import ThreeNodes
from tools.crash_cluster import errors_logged
from tools.node_process import NodeProcess


class KilledNodes(Protocol):
    """One node or several, each a process."""

    bootstrap: str

    def kill(self, away_s: float) -> None:
        """Kill one with SIGKILL, start it again after so long, and return when it is as before."""
        ...

    def stop(self) -> list[str]:
        """Stop them; the errors of their own that they logged."""
        ...


class OneNode:
    """The one node is killed each time."""

    def __init__(self, directory: Path) -> None:
        self._node = NodeProcess(directory / "node", {"group.initial.rebalance.delay.ms": "0"})
        self._node.start()
        self.bootstrap = self._node.bootstrap

    def kill(self, away_s: float) -> None:
        self._node.kill()
        time.sleep(away_s)
        self._node.start()

    def stop(self) -> list[str]:
        self._node.stop()
        return sorted(set(self._node.tracebacks))


class NodesInTurn:
    """Three nodes with three copies of everything; one after the other is killed."""

    def __init__(self) -> None:
        self._cluster = ThreeNodes()
        self._cluster.__enter__()
        self.bootstrap = self._cluster.bootstrap_servers
        self._turns = cycle(self._cluster.nodes)

    def kill(self, away_s: float) -> None:
        self._cluster.replace(next(self._turns), away_s)

    def stop(self) -> list[str]:
        errors = list(errors_logged(self._cluster.directory))
        self._cluster.stop()
        return errors


def begin_nodes(count: int, directory: Path) -> KilledNodes:
    """So many nodes, one or three, that serve."""
    return OneNode(directory) if count == 1 else NodesInTurn()
