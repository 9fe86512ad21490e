"""docs/machines.md, followed with three processes for its three machines, and one ZooKeeper server.

What stands in its files is used as it is, but for paths, ports and the names of machines. Not followed here: what is
typed to systemd and pip, `ottla cluster move-metadata` (tests/cli/test_move_metadata.py), and an ensemble of three
(tests/server/test_zookeeper_cluster.py).
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.docs.reader import Block, Reader, blocks_of
from tests.harness.waiting import soon
from tests.harness.zookeepers import ZooKeepers, free_ports

RACKS = "abc"


class Machines:
    """Three of them, each with a node as the page's files say."""

    def __init__(self, directory: Path, zookeeper: str, blocks: list[Block]) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        (self.properties,) = (block.text for block in blocks if block.text.startswith("node.id="))
        (unit,) = (block.text for block in blocks if block.language == "ini")
        (self.command,) = (line[len("ExecStart=") :] for line in unit.splitlines() if line.startswith("ExecStart="))
        self.ports = dict(enumerate(free_ports(3), 1))
        self.running: dict[int, subprocess.Popen[str]] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def start(self, number: int) -> None:
        """Start the node of this machine; return when it serves."""
        address = f"127.0.0.1:{self.ports[number]}"
        file = self.directory / f"{number}.properties"
        text = self.properties.replace("node.id=2", f"node.id={number}").replace("rack=b", f"rack={RACKS[number - 1]}")
        text = text.replace("ottla2:9092", address).replace("0.0.0.0:9092", address)
        file.write_text(f"{text}broker.session.timeout.ms=4000\n")
        words = shlex.split(self.command)
        assert words[0] == "/usr/local/bin/ottla"
        here = {
            "/etc/ottla/server.properties": str(file),
            "/var/lib/ottla": str(self.directory / str(number)),
            "zookeeper://ottla1:2181,ottla2:2181,ottla3:2181/ottla": f"zookeeper://{self.zookeeper}/ottla",
            "127.0.0.1:9100": "127.0.0.1:0",
        }
        assert set(here) <= set(words)
        words = [sys.executable, "-m", "ottla", *(here.get(word, word) for word in words[1:])]
        self.running[number] = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        stdout = self.running[number].stdout
        assert stdout is not None
        assert f"serves Kafka clients at {address}" in stdout.readline()

    def lose(self, number: int) -> None:
        """The machine is gone for good, with its disk."""
        process = self.running.pop(number)
        process.kill()
        process.wait()
        shutil.rmtree(self.directory / str(number))

    def described(self) -> dict[str, list[dict[str, object]]]:
        words = [
            sys.executable,
            "-m",
            "ottla",
            "cluster",
            "describe",
            "--format",
            "json",
            "--bootstrap",
            self.bootstrap,
        ]
        told: dict[str, list[dict[str, object]]] = json.loads(subprocess.check_output(words, text=True))
        return told

    def wait_until_whole(self) -> None:
        def is_whole() -> bool:
            told = self.described()
            return not told["lacking"] and len(told["nodes"]) == 3

        soon(is_whole, self.described)

    def stop(self) -> None:
        """In order, as systemd does."""
        for process in self.running.values():
            process.terminate()
            assert process.wait(60) == 0


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    blocks = blocks_of("docs/machines.md")
    (settings,) = (block.text.splitlines() for block in blocks if block.text.startswith("tickTime="))
    mine = [line for line in settings if not line.startswith(("dataDir=", "clientPort=", "server."))]
    assert len(settings) - len(mine) == 5
    with ZooKeepers(settings=mine) as zookeeper:
        made = Machines(tmp_path, zookeeper.servers[0].address, blocks)
        try:
            yield made
        finally:
            for process in made.running.values():
                process.kill()
                process.wait()


@pytest.mark.slow("tests/cli/test_move_metadata.py::test_one_node_becomes_three_without_losing_anything")
def test_the_page_can_be_followed(machines: Machines, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        machines.start(number)
    machines.wait_until_whole()
    reader = Reader(tmp_path, machines.bootstrap)
    for block in blocks_of("docs/machines.md"):
        reader.paste(block)
    machines.wait_until_whole()
    assert [node["rack"] for node in machines.described()["nodes"]] == list(RACKS)
    machines.lose(3)
    machines.start(3)
    machines.wait_until_whole()
    machines.stop()
