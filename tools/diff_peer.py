"""Ask a Kafka peer and an Ottla node the same questions and show where the answers differ.

    python -m tools.diff_peer [--nodes 3] [--peer HOST:PORT] [--node HOST:PORT] [--only WORD,WORD] [--update]

Without --peer the script named by KAFKA_PEER, or ../shared/bench/kafka-peer, starts one. Without --node an Ottla node
is started. --nodes 3: three of each, and the themes that are asked of three. Themes that kill nodes, and themes that
ask brokers with passwords and ACLs, are left out where the nodes were not started here. --update writes the peer's
answers as golden transcripts and asks no node. Ends with 1 when something differs that known_differences.toml does not
explain, or when an entry there explains nothing any more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.testing import EmbeddedBroker, EmbeddedCluster
from tests.differential import transcript
from tests.differential.node import ADMIN, CONFIG, OF_CLUSTERS, of_secured_peer
from tests.differential.node import secured as secured_node
from tests.differential.stage import Doors, Hands
from tests.differential.transcript import Difference, Transcript

ROOT = Path(__file__).resolve().parent.parent
HEAP = {"KAFKA_HEAP": "512M"}


@dataclass(frozen=True)
class Peer:
    """A Kafka cluster that the script started; kills its nodes and starts them again."""

    script: str
    directory: str

    def kill(self, node: int) -> None:
        process = int(Path(self.directory, str(node), "kafka.pid").read_text())
        os.kill(process, signal.SIGKILL)

    def start_node(self, node: int) -> None:
        subprocess.run([self.script, "start-node", self.directory, str(node)], check=True, env=HEAP | os.environ)


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


Brokers = Iterator[tuple[tuple[str, int], Hands | None, Doors | None]]
"""The address of the asked broker, what kills its nodes, and how a secured one is entered."""
PORT = 29292


@contextlib.contextmanager
def peer(given: str | None, nodes: int, *, secured: bool = False) -> Brokers:
    """The Kafka to compare with: the given one, or one of our own for the time of the run; and what kills its nodes."""
    if given:
        yield address(given), None, None
        return
    script = os.environ.get("KAFKA_PEER") or str(ROOT.parent / "shared" / "bench" / "kafka-peer")
    if not Path(script).exists():
        sys.exit("no peer: give --peer HOST:PORT, or the path of a kafka-peer script in KAFKA_PEER")
    with tempfile.TemporaryDirectory(prefix="ottla-peer-") as directory:
        at = [directory, str(PORT)]
        extra: dict[str, str] = {}
        if secured:
            path = Path(directory, "secured.properties")
            path.write_text("".join(f"{name}={value}\n" for name, value in of_secured_peer(PORT).items()))
            extra["KAFKA_EXTRA"] = str(path)
        words = ["start", *at] if nodes == 1 else ["start-cluster", *at, str(nodes)]
        started = subprocess.run(
            [script, *words],
            check=True,
            capture_output=True,
            text=True,
            env=HEAP | os.environ | extra,
        )
        first = address(started.stdout.split()[0].split(",")[0])
        try:
            if secured:
                yield (first[0], first[1] + 2), None, Doors(first, ADMIN)
            else:
                yield first, Peer(script, directory), None
        finally:
            subprocess.run([script, "stop" if nodes == 1 else "stop-cluster", directory], check=True)


@contextlib.contextmanager
def node(given: str | None, nodes: int, *, secured: bool = False) -> Brokers:
    if given:
        yield address(given), None, None
        return
    if secured:
        with secured_node() as (where, doors):
            yield where, None, doors
        return
    if nodes > 1:
        with EmbeddedCluster(nodes=nodes, settings=CONFIG | OF_CLUSTERS) as cluster:
            yield address(cluster.address_of(1)), cluster, None
        return
    with EmbeddedBroker(settings=CONFIG) as broker:
        yield address(broker.bootstrap_servers), None, None


def themes_of(arguments: Any, *, secured: bool) -> list[str]:
    """The themes that are asked of so many nodes, of ours or of others."""
    foreign = arguments.peer or arguments.node
    return [
        theme
        for theme in transcript.themes()
        if transcript.nodes_of(theme) == arguments.nodes
        and transcript.is_secured(theme) == secured
        and not transcript.is_own(theme)
        and not (foreign and (transcript.kills(theme) or secured))
    ]


def play_theme(
    theme: str, where: tuple[str, int], hands: Hands | None, doors: Doors | None, slow: bool, only: list[str]
) -> dict[str, Transcript]:
    played: dict[str, Transcript] = {}
    for name, scenario in transcript.scenarios_of(theme).items():
        if only and not any(word in f"{theme}/{name}" for word in only):
            continue
        start = time.monotonic()
        try:
            played[name] = transcript.play(scenario, *where, theme, slow, hands, doors)
        except Exception:
            print(f"{theme}/{name} broke off:", file=sys.stderr)
            traceback.print_exc()
            continue
        print(f"  {theme}/{name}: {len(played[name])} entries, {time.monotonic() - start:.1f} s", flush=True)
    return played


def update(arguments: Any) -> int:
    for secured in (False, True):
        if _asked(themes_of(arguments, secured=secured), arguments.only):
            _update(arguments, secured=secured)
    return 0


def _asked(themes: list[str], only: list[str]) -> bool:
    """Whether any scenario of these themes is to be played."""
    names = [f"{theme}/{name}" for theme in themes for name in transcript.scenarios_of(theme)]
    return bool(names) and (not only or any(word in name for word in only for name in names))


def _update(arguments: Any, *, secured: bool) -> None:
    with peer(arguments.peer, arguments.nodes, secured=secured) as (where, hands, doors):
        for theme in themes_of(arguments, secured=secured):
            played = play_theme(theme, where, hands, doors, True, arguments.only)
            if played:
                kept = transcript.load(theme) if arguments.only else {}
                order = transcript.scenarios_of(theme)
                transcript.save(
                    theme,
                    {
                        k: v
                        for k, v in sorted((kept | played).items(), key=lambda e: [*order, e[0]].index(e[0]))
                        if k in order
                    },
                )


def compare(arguments: Any) -> int:
    found: list[Difference] = []
    themes: list[str] = []
    for secured in (False, True):
        some = themes_of(arguments, secured=secured)
        if _asked(some, arguments.only):
            themes += some
            found += _differences(arguments, some, secured=secured)
    known = [entry for entry in transcript.known_differences() if entry.scenario.partition("/")[0] in themes]
    new = [d for d in found if not any(k.covers(d) for k in known)]
    stale = [k for k in known if not arguments.only and not any(k.covers(d) for d in found)]
    for difference in new:
        print(difference)
    for entry in stale:
        print(f"no longer differs: {entry.scenario} {entry.step} {entry.field}")
    print(f"{len(found)} differences, {len(found) - len(new)} known, {len(new)} new; {len(stale)} known ones are stale")
    return 1 if new or stale else 0


def _differences(arguments: Any, themes: list[str], *, secured: bool) -> Iterator[Difference]:
    with (
        peer(arguments.peer, arguments.nodes, secured=secured) as (kafka, its_hands, its_doors),
        node(arguments.node, arguments.nodes, secured=secured) as (ottla, hands, doors),
    ):
        for theme in themes:
            if not transcript.playable(theme, *ottla):
                print(f"{theme} is not served")
                continue
            golden = play_theme(theme, kafka, its_hands, its_doors, True, arguments.only)
            played = play_theme(theme, ottla, hands, doors, False, arguments.only)
            for name in golden:
                yield from transcript.differences(theme, name, golden[name], played.get(name, []))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3), help="how many nodes of each are asked")
    parser.add_argument("--peer", help="address of a Kafka to compare with")
    parser.add_argument("--node", help="address of the Ottla node; one is started without it")
    parser.add_argument(
        "--only", default=[], type=lambda t: t.split(","), help="words, one of which is in theme/scenario"
    )
    parser.add_argument("--update", action="store_true", help="write the peer's answers as golden transcripts")
    arguments = parser.parse_args()
    return update(arguments) if arguments.update else compare(arguments)


if __name__ == "__main__":
    sys.exit(main())
