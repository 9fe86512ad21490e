"""Upgrade a cluster node by node under load, and downgrade it again, and prove that no client notices.

    python -m tools.upgrade_cluster [--seed 1] [--metadata sqlite|zookeeper] [--previous COMMIT] [--directory DIR]

Three nodes run from the sources of the previous version, which `git archive` takes out of this repository's history,
with this interpreter. Each is upgraded to this version as docs/operations.md says: `ottla cluster describe` shows that
it can be stopped, `ottla nodes drain`, stop, start. Then the same back, and to this version once more. Between these
steps nodes of both versions are killed (-9) and started again, a partition is led by a replica that lacks records, and
topics are created and deleted. Under all that work the clients of `crash_cluster`, and what they know is held against
the logs (`history`).

A run also fails when a client is told of an error after which it should not try again, when a step of the instructions
fails, when the levels of features change, when a node logs an error or does not end with 0, or when replicas do not get
in sync. In the end, nodes of this version must refuse the secret that nodes of the previous version send, unless one of
these still takes part.

Without the history of the repository (a source archive, a shallow clone) there is nothing to upgrade from: the exit
code is 3, with a sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.broker.cluster.trust import CLIENT_ID
from ottla.broker.upkeep.identity import OLD_SECRET_KEY
from ottla.client import Client, ClientError
from ottla.client.connection import Connection
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.envelope import EnvelopeRequest
from ottla.server.shared_metadata import open_shared
from ottla.testing import EmbeddedCluster
from ottla.testing.cluster import METADATA
from tests.harness.zookeepers import ZooKeepers, fresh
from tools.crash_cluster import SETTINGS, Round, errors_logged, new_topics, report, soon

TOP = Path(__file__).resolve().parent.parent
PREVIOUS = "b3634cc"
"""The commit of the version before this one."""
OLD, NEW = "the previous version", "this version"
COMMAND_S = 60.0
NO_HISTORY = 3
"""The exit code where the previous version can't be had."""
WITHDRAWN, MADE = "withdrawn", "made"
MAY_HAPPEN = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
        KafkaError._NO_OFFSET,
        KafkaError._STATE,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.INVALID_RECORD_STATE,
        KafkaError._PARTITION_EOF,
    }
)
"""What clients are told when a node dies or a group rebalances, beside the errors that librdkafka calls retriable."""


ALARMS = ("restored or copied", "restored from an older copy", "is damaged", "does not follow")


class HistoryMissingError(Exception):
    """The previous version can't be had: one sentence why."""


class Step(NamedTuple):
    """One thing that is done to the cluster. `to`: the version that the node runs afterwards; empty: as before."""

    kind: str
    node: int = 0
    to: str = ""

    def __str__(self) -> str:
        return " ".join(str(each) for each in self if each)


def whole_plan() -> list[Step]:
    """Up, down, and up again."""
    up = [Step("drain", 1), Step("change", 1, NEW), Step("kill", 2), Step("kill", 1), Step("change", 2, NEW)]
    up += [Step("kill", 3), Step("kill", 2), Step("drain", 3), Step("change", 3, NEW)]
    down = [Step("drain", 3), Step("change", 3, OLD), Step("kill", 3), Step("kill", 1), Step("change", 1, OLD)]
    down += [Step("kill", 2), Step("kill", 1), Step("drain", 2), Step("change", 2, OLD)]
    again = [Step("change", node, NEW) for node in (2, 3, 1)]
    return [*up, Step("elect unclean"), *down, Step("kill all"), *again, Step("kill all")]


SHORT_PLAN = (
    Step("drain", 1),
    Step("change", 1, NEW),
    Step("change", 2, NEW),
    Step("kill", 3),
    Step("kill", 1),
    Step("change", 1, OLD),
    Step("kill", 1),
)
"""Two are upgraded, an old one and a new one are killed, and one goes back."""


def previous_sources(directory: Path, commit: str = PREVIOUS) -> Path:
    """The sources of this commit, unpacked in the directory: what PYTHONPATH has to name. HistoryMissingError."""
    try:
        packed = subprocess.run(["git", "-C", str(TOP), "archive", commit, "src"], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise HistoryMissingError("git is not installed, so the previous version can't be had.") from error
    if packed.returncode != 0:
        raise HistoryMissingError(
            f"The previous version, commit {commit}, is not in the history here (a source archive or a shallow clone "
            f"has none): {packed.stderr.decode().strip()}"
        )
    directory.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-C", directory], input=packed.stdout, check=True)
    return directory / "src"


class MixedCluster(EmbeddedCluster):
    """Nodes that run from sources of their own. `trees`: by version; `version`: by node."""

    def __init__(self, trees: Mapping[str, Path], **given: Any) -> None:
        super().__init__(**given)
        self.trees = trees
        self.version = dict.fromkeys(self.nodes, OLD)

    def _environment_of(self, node: int) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.trees[self.version[node]])}


class Upgrade:
    """Carries out the steps of a plan. `failures`: what went wrong without ending it; `changes`: how many nodes were
    changed to another version. `metadata`: the store that the nodes share."""

    def __init__(self, cluster: MixedCluster, metadata: str, say: Callable[[str], object]) -> None:
        self.cluster = cluster
        self._metadata = metadata
        self.failures: list[str] = []
        self.changes = 0
        self._say = say
        self._levels: dict[str, int] = {}
        self._numbers = count(1)
        settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
        self._admin = AdminClient(settings)
        self._producer = Producer({**settings, "acks": "all"})

    def run(self, plan: Sequence[Step]) -> None:
        """Raises RuntimeError, AssertionError, TimeoutError, ClientError where a step can't be done."""
        self._levels = self._features()
        for step in plan:
            self._say(str(step))
            self._do(step)
            self._make_topic()
            if (levels := self._features()) != self._levels:
                self.failures.append(f"after {step} the features are at {levels}, not at {self._levels}")
        self.cluster.wait_in_sync()
        self._try_old_secret()

    def end(self) -> None:
        """Stop all nodes that run."""
        for node in self.cluster.nodes:
            if self.cluster.runs(node):
                self._stop(node)

    def _do(self, step: Step) -> None:
        match step.kind:
            case "drain":
                self._await_stoppable(step.node)
                self._command("nodes", "drain", str(step.node))
            case "change":
                self._await_stoppable(step.node)
                self._stop(step.node)
                self.cluster.version[step.node] = step.to
                self.cluster.start_node(step.node)
                self.changes += 1
            case "kill":
                self._kill([step.node])
            case "kill all":
                self._kill(list(self.cluster.nodes))
            case "elect unclean":
                self._elect_unclean()
            case _:
                raise ValueError(f"No step is called {step.kind!r}.")

    def _await_stoppable(self, node: int) -> None:
        """The condition for each stop in docs/operations.md."""

        def holds() -> bool:
            told = json.loads(self._command("cluster", "describe", "--format", "json"))
            (own,) = (each for each in told["nodes"] if each["node"] == node)
            return not told["lacking"] and not own["stop"] and all(each["state"] == "up" for each in told["nodes"])

        self.cluster.wait_in_sync()
        soon(f"`ottla cluster describe` says that node {node} can be stopped", holds)

    def _stop(self, node: int) -> None:
        try:
            code: int | str = self.cluster.stop_node(node)
        except subprocess.TimeoutExpired:
            self.cluster.kill(node)
            code = "SIGKILL"
        if code != 0:
            self.failures.append(f"node {node}, {self.cluster.version[node]}, ended with {code} when it was stopped")

    def _kill(self, nodes: list[int]) -> None:
        """With SIGKILL, and start them again."""
        for node in nodes:
            self.cluster.kill(node)
        for node in nodes:
            self.cluster.start_node(node, wait=False)
        self.cluster.wait_until_active()
        self.cluster.wait_in_sync()

    def _elect_unclean(self) -> None:
        """A partition is led by a replica that lacks records, so that its topic's row says so."""
        topic = f"{WITHDRAWN}-{next(self._numbers)}"
        self._create(NewTopic(topic, 1, replica_assignment=[[1, 2]], config={"min.insync.replicas": "1"}))
        self._write(topic)
        self._stop(2)
        self._write(topic)
        self.cluster.kill(1)
        self.cluster.start_node(2)
        soon(f"{topic} has no leader", lambda: self._leaderless(topic))
        self._command("topics", "elect-leaders", topic, "--unclean", "--yes")
        self._write(topic)
        self.cluster.start_node(1)
        self.cluster.wait_in_sync()

    def _leaderless(self, topic: str) -> bool:
        told = json.loads(self._command("cluster", "describe", "--format", "json"))
        return any(each["topic"] == topic and each["leader"] is None for each in told["lacking"])

    def _try_old_secret(self) -> None:
        """A client with the secret that the previous version's nodes send is no node, once all nodes are upgraded."""
        with closing(open_shared(self._metadata)) as store:
            row = store.get(OLD_SECRET_KEY)
        assert row is not None, "the first node has written the secret of the cluster"
        needed = OLD in self.cluster.version.values()
        for node in (node for node, version in self.cluster.version.items() if version == NEW):
            host, _, port = self.cluster.address_of(node).rpartition(":")
            with Connection(host, int(port), client_id=f"{CLIENT_ID}:{row.value.decode()}") as connection:
                error = connection.send(EnvelopeRequest(b"", b"", b""), 0).error_code
            if (error != ErrorCode.CLUSTER_AUTHORIZATION_FAILED) is not needed:
                accepts = "refuses" if needed else "accepts"
                self.failures.append(f"node {node}, of versions {self.cluster.version}, {accepts} the old secret")

    # ---- what the cluster is asked for -----------------------------------------------------------------------------

    def _make_topic(self) -> None:
        """Whichever version is the controller creates topics and deletes them, and a topic's config changes."""
        topic = f"{MADE}-{next(self._numbers)}"
        known = [name for name in self._admin.list_topics(timeout=30).topics if name.startswith(MADE)]
        self._create(NewTopic(topic, 2, 3, config={"retention.ms": "3600000"}))
        self._write(topic)
        for deleted in self._admin.delete_topics(known).values() if known else ():
            deleted.result(30)

    def _create(self, topic: NewTopic) -> None:
        for created in self._admin.create_topics([topic], request_timeout=60).values():
            created.result(60)

    def _write(self, topic: str) -> None:
        told: list[KafkaError | None] = []
        self._producer.produce(topic, b"written 0", on_delivery=lambda error, _: told.append(error))
        self._producer.flush(COMMAND_S)
        assert told == [None], f"a record for {topic}: {told}"

    def _features(self) -> dict[str, int]:
        """The level of each feature, of which all nodes say the same. AssertionError: they don't."""
        told: list[dict[str, int]] = []

        def heard(address: str) -> bool:
            try:
                with Client(address) as client:
                    levels = client.send(ApiVersionsRequest("upgrade", "1")).finalized_features
            except ClientError:  # a node closes all connections when it has lost its session
                return False
            told.append({each.name: each.max_version_level for each in levels})
            return True

        for node in self.cluster.nodes:
            soon(f"node {node} reports its features", partial(heard, self.cluster.address_of(node)))
        assert all(each == told[0] for each in told), f"nodes say that features are at {told}"
        return told[0]

    def _command(self, *words: str) -> str:
        """What `ottla` of this version prints. RuntimeError where it fails."""
        environment = {**os.environ, "PYTHONPATH": str(self.cluster.trees[NEW])}
        command = [sys.executable, "-m", "ottla", *words, "--bootstrap", self.cluster.bootstrap_servers]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=2 * COMMAND_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"`ottla {' '.join(words)}` ended with {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout


def run(
    plan: Sequence[Step],
    seed: int,
    directory: str,
    *,
    previous: str = PREVIOUS,
    zookeeper: bool = False,
    rest_s: float = 0.0,
    say: Callable[[str], object] = print,
) -> list[str]:
    """What is wrong after this plan. `rest_s`: as of a `Round`. Raises HistoryMissingError."""
    nodes = Path(directory, "nodes")
    trees = {OLD: previous_sources(Path(directory, "previous"), previous), NEW: TOP / "src"}
    with ExitStack() as stack:
        servers = stack.enter_context(ZooKeepers(1)) if zookeeper else None
        metadata = None if servers is None else fresh(servers)
        racks = {node: str(node) for node in (1, 2, 3)}
        cluster = MixedCluster(trees, settings=SETTINGS, directory=nodes, racks=racks, metadata=metadata)
        stack.enter_context(cluster)
        new_topics(cluster)
        upgrade, load = Upgrade(cluster, metadata or str(nodes / METADATA), say), Round(cluster, seed, rest_s)
        failures = load.run(lambda: upgrade.run(plan))
        say(f"{upgrade.changes} changes of a node's version: {load.told()}")
        upgrade.end()
    return [*failures, *upgrade.failures, *errors_told(load), *errors_logged(str(nodes)), *alarms_logged(nodes)]


def errors_told(load: Round) -> Iterator[str]:
    """Errors of clients that an upgrade should not cause."""
    for thread in load.threads:
        for name, error in thread.errors.items():
            code = error.code()
            retriable = error.retriable() or (code >= 0 and ErrorCode(code).retriable)
            if not (retriable or error.txn_requires_abort() or code in MAY_HAPPEN):
                yield f"{thread.name} was told {name}: {error}"


def alarms_logged(directory: Path) -> Iterator[str]:
    """What nodes logged as an error, and what they say of a directory or a log that is not what it should be."""
    for path in sorted(directory.glob("*.log")):
        for line in path.read_text().splitlines():
            said = json.loads(line) if line.startswith("{") else {"level": "error", "message": line}
            if said["level"] in ("error", "critical") or any(each in said["message"] for each in ALARMS):
                yield f"node {path.stem} logged: {said['message']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--metadata", choices=("sqlite", "zookeeper"), default="sqlite")
    parser.add_argument("--previous", default=PREVIOUS, help=f"commit of the previous version (default: {PREVIOUS})")
    parser.add_argument("--directory", help="where the nodes keep their data (default: a temporary directory)")
    given = parser.parse_args()
    directory = given.directory or tempfile.mkdtemp(prefix="ottla-upgrade-")
    zookeeper = given.metadata == "zookeeper"
    try:
        failures = run(whole_plan(), given.seed, directory, previous=given.previous, zookeeper=zookeeper)
    except HistoryMissingError as missing:
        print(f"skipped: {missing}")
        return NO_HISTORY
    proven = "no client lost anything, and none was told of more than it tries again after"
    return report(failures, directory, proven, keep=given.directory is not None)


if __name__ == "__main__":
    sys.exit(main())
