"""Runs three nodes for the demonstration: `ottla cluster` as a person types it, and kill -9 of one of them.

It uses the directory of a cluster, commands, process ids, and requests that any Kafka client may send.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ottla.demo.node import SETTINGS, NodeFailedError

NODES = (1, 2, 3)
OWN_SETTINGS = {**SETTINGS, "min.insync.replicas": "2", "offsets.topic.num.partitions": "3"}
INTERNAL = ("share.coordinator.state.topic.num.partitions", "transaction.state.log.num.partitions")
COMMAND_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 20.0
PAUSE_S = 0.05


class ThreeNodes:
    """A cluster of processes in which only `bring_back` restarts a killed node. `address`: of all its nodes.
    `settings`: added to those of the demonstration."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory / "cluster"
        self.settings = {**OWN_SETTINGS, **dict.fromkeys(INTERNAL, "3"), **(settings or {})}
        self.address = ""
        self.start_ms = 0
        self._admin: Any = None
        self._ports = ExitStack()

    def start(self) -> None:
        """Start all nodes; return when clients can connect. Raises NodeFailedError."""
        began = time.monotonic()
        words = [
            "start",
            "--nodes",
            str(len(NODES)),
            "--listen",
            f"127.0.0.1:{hold_ports(self._ports)}",
            "--no-restart",
            "--detach",
        ]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={value}"]
        said = self._run(*words)
        found = re.search(r"at (\S+), data", said)
        assert found is not None, said
        self.address = found[1]
        self.start_ms = round((time.monotonic() - began) * 1000)
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({"bootstrap.servers": self.address, "log_level": 2})

    def create(self, topics: dict[str, int]) -> None:
        """Create topics with these partition counts and a replication factor of 3."""
        from confluent_kafka.admin import NewTopic

        made = self._admin.create_topics([NewTopic(name, count) for name, count in topics.items()])
        for future in made.values():
            future.result(REQUEST_TIMEOUT_S)

    def partitions(self, topics: tuple[str, ...]) -> dict[tuple[str, int], Any]:
        """Leader, replicas and in-sync replicas of every partition of these topics. Waits until the queried node knows
        all partitions and their leaders: a node that has just started may not yet. Raises NodeFailedError."""
        end = time.monotonic() + REQUEST_TIMEOUT_S
        while time.monotonic() < end:
            with suppress(KeyError):
                found = self._told(topics)
                if all(part.leader > 0 for part in found.values()):
                    return found
            time.sleep(PAUSE_S)
        raise NodeFailedError(
            f"Not every partition of {', '.join(topics)} had a leader after {REQUEST_TIMEOUT_S:.0f} s."
        )

    def is_in_sync(self, topics: tuple[str, ...]) -> bool:
        """Whether every replica of these topics is in sync, according to the queried node."""
        with suppress(KeyError):
            return all(part.leader > 0 and len(part.isrs) == len(NODES) for part in self._told(topics).values())
        return False

    def _told(self, topics: tuple[str, ...]) -> dict[tuple[str, int], Any]:
        """The current answer of one of the nodes; the leader is -1 if the node knows none. Raises KeyError for an
        unknown topic."""
        told = self._admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        return {(name, index): part for name in topics for index, part in told[name].partitions.items()}

    def kill(self, node: int) -> None:
        """kill -9."""
        os.kill(int((self.directory / str(node) / "ottla.pid").read_text()), signal.SIGKILL)

    def bring_back(self, node: int) -> None:
        """Start a killed node again; return when it is ready. Raises NodeFailedError."""
        self._run("start-node", str(node))

    def stop(self) -> None:
        """Stop every running process."""
        if self.address:
            with suppress(NodeFailedError, subprocess.TimeoutExpired):
                self._run("stop")
            self.address = ""
        self._ports.close()

    def _run(self, verb: str, *words: str) -> str:
        command = [sys.executable, "-m", "ottla", "cluster", verb, *words, "--data", str(self.directory)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
        if done.returncode:
            raise NodeFailedError(
                (done.stderr.strip().splitlines() or ["It said nothing."])[-1].removeprefix("ottla: ")
            )
        return done.stdout


def hold_ports(held: ExitStack) -> int:
    """Reserve as many consecutive ports as there are nodes, and return the first. While `held` is open, nodes may
    listen on them, and the system gives them to no other process, even while a node is dead."""
    while True:
        first = hold(held, 0)
        with suppress(OSError, OverflowError):
            for offset in range(1, len(NODES)):
                hold(held, first + offset)
            return first
        held.close()


def hold(held: ExitStack, port: int) -> int:
    holder = held.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", port))
    return int(holder.getsockname()[1])
