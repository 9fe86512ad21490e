"""Kill, pause, stop and cut off the nodes of a cluster under load, and prove that it kept what it said.

    python -m tools.crash_cluster [--minutes 5] [--seed 1] [--metadata sqlite|zookeeper] [--durability page-cache|fsync]
                                  [--directory DIR]

Three node processes and real clients, round after round. In each, faults of a seeded plan (`cluster_faults`): kill -9
of one node or of all, SIGSTOP for less and for more than the lease, SIGTERM, a node cut off from the others in both
directions or in one; with ZooKeeper a third of the faults strikes its servers: one of them or the majority is killed or
paused, or all are restarted in turn, and nodes are cut off from it. While the majority is away nodes are asked what
they have to refuse by then, and to answer in time (`outage`). Under them work idempotent producers with acks=all,
transactions that commit and abort, loops of consume, transform, produce, groups of both protocols that commit, a share
group, readers of everything at leaders and at followers. Then the faults end, what was begun comes to its end, every
log is read, and what the clients know is held against it (`history`). A round also fails when the cluster does not
become whole, when a group, a loop or a transaction does not come to its end, when a node logs an error of its own, or
when SIGTERM does not end it with 0. The next round makes the same topics anew.

The first round that fails is the last one, and the directories of its nodes stay, with their logs beside them.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from ottla.client import Client, ClientError
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.testing import EmbeddedCluster
from tools.cluster_faults import LEASE_S, NODES, Fault, Faults, planned
from tools.crash_transactions import PARTITIONS, SOURCE, TARGET, Loop, Worker, Writer, note_ledger, note_moved
from tools.crash_transactions import TOPIC as LEDGER
from tools.history import History, check
from tools.outage import ASKED_PREFIX
from tools.recorded_clients import Member, Recorded, Sender, Sharer, Tail, Watch, read_log

LOG, JOBS = "log", "jobs"
TOPICS = (LOG, JOBS, LEDGER, SOURCE, TARGET)
"""Each of so many partitions as those of the transactions have."""
GROUPS = {"classic": "readers-classic", "consumer": "readers-consumer"}
SHARE_GROUP = "workers"
SETTINGS: dict[str, object] = {
    "auto.create.topics.enable": False,  # a client of the last round that still asks would make its topics anew
    "min.insync.replicas": 2,
    "broker.session.timeout.ms": int(LEASE_S * 1000),
    "replica.lag.time.max.ms": int(LEASE_S * 1000),
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 3,
    "group.share.delivery.count.limit": 10,
    "log.segment.bytes": 1 << 20,
}
FAULTS = 5
"""In a round."""
SETTLE_S = 120.0
CLOSES = "member.close()"
"""A call that may hang in librdkafka 2.16, all requests answered: where a share group's member takes a partition while
it leaves, until it looks at the metadata again, 5 minutes later where nothing else is asked for."""
HANGS_S = 30.0
"""For how long a member that closes is waited for, when all is well again."""
PAUSE_S = 0.005


class Round:
    """One round's clients and what they wrote down. `rest_s`: a further pause of senders before each record, and of
    writers before each transaction."""

    def __init__(self, cluster: EmbeddedCluster, seed: int, rest_s: float = 0.0) -> None:
        self.cluster = cluster
        self.history = history = History(groups=dict.fromkeys(GROUPS.values(), LOG), shared={JOBS})
        self.bootstrap = at = cluster.bootstrap_servers
        self.senders = [Sender(f"w{n}", at, history, LOG, PARTITIONS, PAUSE_S + rest_s) for n in range(2)]
        self.senders.append(Sender("jobs", at, history, JOBS, PARTITIONS, 2 * PAUSE_S + rest_s))
        self.senders.append(Sender("source", at, history, SOURCE, PARTITIONS, PAUSE_S + rest_s))
        self.tails = [
            Tail("at the leaders", at, history, LOG, PARTITIONS),
            Tail("at followers", at, history, LOG, PARTITIONS, **{"client.rack": "1"}),
            Tail("of what is committed", at, history, LEDGER, PARTITIONS, **{"isolation.level": "read_committed"}),
        ]
        self.members = [
            Member(f"{protocol}-{n}", at, history, group, protocol, LOG)
            for protocol, group in GROUPS.items()
            for n in range(2)
        ]
        self.watch = Watch("watch", at, history, list(GROUPS.values()), LOG, PARTITIONS)
        self.sharers = [Sharer(f"share-{n}", at, history, SHARE_GROUP, JOBS) for n in range(2)]
        self.writers = [Writer(at, n, seed + n, rest_s) for n in range(2)]
        self.loops = [Loop(at, n) for n in range(2)]

        self.healed = 0.0
        self.hanging = 0

    @property
    def threads(self) -> list[Recorded | Worker]:
        return [*self.senders, *self.tails, *self.members, self.watch, *self.sharers, *self.writers, *self.loops]

    def run(self, disturb: Callable[[], None]) -> list[str]:
        """What is wrong after this was done to the nodes, all of which serve again by its end."""
        failures: list[str] = []
        for thread in self.threads:
            thread.start()
        try:
            disturb()
            self.healed = time.monotonic()
            self.settle()
        except (AssertionError, RuntimeError, TimeoutError, KafkaException, ClientError) as error:
            failures.append(f"{type(error).__name__}: {error}")
        finally:
            failures += self.end()
        failures += [each.failure for each in self.threads if each.failure]
        failures += [f"{each.name}: nothing was acknowledged" for each in self.senders if not each.acknowledged]
        return failures or self.check()

    def end(self) -> list[str]:
        """End all clients, and name those that don't. A share member that does not close is librdkafka's (`CLOSES`)."""
        for thread in self.threads:
            thread.done.set()
        until = time.monotonic() + SETTLE_S
        hanging: list[str] = []
        for thread in self.threads:
            while thread.is_alive():
                place = place_in_code(thread)
                if CLOSES in place and time.monotonic() > self.healed + HANGS_S:
                    self.hanging += 1
                    break
                if time.monotonic() > until:
                    hanging.append(f"{thread.name} hangs:\n{place}")
                    break
                thread.join(0.1)
        return hanging

    def settle(self) -> None:
        """Return when everything that was begun has come to its end."""
        soon("every replica is in sync", lambda: not self.lacking())
        for worker in (*self.senders, *self.writers):
            worker.done.set()
        for worker in (*self.senders, *self.writers):
            worker.join(SETTLE_S)
        with Client(self.bootstrap) as client:
            listed = client.list_offsets(LOG, range(PARTITIONS))
        ends = {(LOG, at): end for at, end in listed.items()}
        for group in GROUPS.values():
            soon(f"{group} has committed the end {ends}", lambda group=group: self.watch.look(group) == ends)
        for tail in self.tails[:2]:
            soon(f"the reader {tail.name} is at the end {ends}", lambda tail=tail: tail.has_read(ends))
        sent = sum(len(self.history.sent[JOBS, at]) for at in range(PARTITIONS))
        soon(
            f"{sent} jobs are accepted",
            lambda: len({(each.place, each.offset) for each in list(self.history.accepted)}) >= sent,
        )
        note_moved(self.history, self.bootstrap)

    def check(self) -> list[str]:
        """Read every log, and hold what the clients know against it."""
        note_ledger(self.history, self.bootstrap, self.writers)
        for place in ((topic, at) for topic in (LOG, JOBS, SOURCE) for at in range(PARTITIONS)):
            self.history.logs[place] = read_log(self.bootstrap, place)
        return check(self.history)

    def lacking(self) -> list[Any]:
        """Partitions that have no leader or not all of their replicas in sync, as any node sees it; nodes that can't
        say."""
        found: list[Any] = []
        for node in NODES:
            try:
                with Client(self.cluster.address_of(node)) as client:
                    topics = client.send(MetadataRequest(topics=None)).topics
            except ClientError:  # it has just heard what it leads no more, and hangs up
                found.append(node)
                continue
            found += [
                (topic.name, part.partition_index)
                for topic in topics
                for part in topic.partitions
                if part.leader_id < 0 or len(part.isr_nodes) < len(part.replica_nodes)
            ]
        return found

    def told(self) -> str:
        """What was done, in figures."""
        records = sum(sender.acknowledged for sender in self.senders)
        outcomes = [outcome for writer in self.writers for outcome in writer.outcome.values()]
        accepted = sum(each.ended is not None for each in self.history.accepted)
        wait = max(sender.longest_wait_s for sender in self.senders)
        unheard = sum(worker.unheard for worker in (*self.writers, *self.loops))
        return (
            f"{records} records acknowledged, {outcomes.count(True)} transactions committed, {outcomes.count(False)} "
            f"aborted, {len(self.history.commits)} offsets committed, {accepted} jobs accepted; the longest wait "
            f"{wait:.1f} s; {unheard} transactions aborted that their coordinator had not heard of; {self.hanging} "
            "members of share groups hang"
        )


def place_in_code(thread: threading.Thread) -> str:
    """Where a thread stands now."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def soon(what: str, holds: Callable[[], bool]) -> None:
    until = time.monotonic() + SETTLE_S
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"it did not come to that: {what}")
        time.sleep(0.1)


def new_topics(cluster: EmbeddedCluster) -> None:
    """The topics of a round, empty. No node knows those of the round before by then: a consumer of librdkafka's that
    hears of a topic's leader epochs, and then that they begin anew with another topic of the name, never reads on."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    known = admin.list_topics(timeout=30).topics
    there = [name for name in known if name in TOPICS or name.startswith(ASKED_PREFIX)]
    if there:
        for deleted in admin.delete_topics(there).values():
            deleted.result(30)
        for node in NODES:
            soon(
                f"node {node} knows no topic of the round before", lambda node=node: not known_to(cluster, node, there)
            )
    for made in admin.create_topics([NewTopic(name, PARTITIONS, len(NODES)) for name in TOPICS]).values():
        made.result(30)
    configs = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "15000"}
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    group = ConfigResource(ResourceType.GROUP, SHARE_GROUP, incremental_configs=entries)
    for altered in admin.incremental_alter_configs([group]).values():
        altered.result(30)


def known_to(cluster: EmbeddedCluster, node: int, topics: list[str]) -> list[str]:
    """Those of the topics that a node lists; all of them where it can't say."""
    try:
        with Client(cluster.address_of(node)) as client:
            listed = {topic.name for topic in client.send(MetadataRequest(topics=None)).topics}
    except ClientError:
        return topics
    return [name for name in topics if name in listed]


def errors_logged(directory: str) -> Iterator[str]:
    """Faults of their own that nodes logged."""
    for path in sorted(Path(directory).glob("*.log")):
        for line in path.read_text().splitlines():
            if "Traceback" in line:
                said = json.loads(line) if line.startswith("{") else {"error": line}
                yield f"node {path.stem} logged: {said.get('message', '')}\n{said['error']}"


def carry_out(faults: Faults, plan: list[Fault]) -> None:
    faults.run(plan, LOG)
    faults.heal()


def plans(
    seed: int, minutes: float, faults: int = FAULTS, *, zookeeper: bool, disks: bool = False
) -> Iterator[list[Fault]]:
    """So many faults for each round, until so many minutes have passed; once at least. `disks`: the disk of a node may
    be spoiled."""
    until = time.monotonic() + 60 * minutes
    for number in count(1):
        yield planned(random.Random(f"{seed}-{number}"), faults, zookeeper=zookeeper, disks=disks)
        if time.monotonic() > until:
            return


def play(
    faults: Faults,
    rounds: Iterable[list[Fault]],
    directory: str,
    one: Callable[[int, list[Fault]], tuple[list[str], str]],
    say: Callable[[str], object],
) -> list[str]:
    """Play a round with each of these plans, until one fails; what failed in the last one. `one` plays the round of
    this number, and returns what failed and what it did."""
    failures: list[str] = []
    for number, plan in enumerate(rounds, 1):
        new_topics(faults.cluster)
        found, told = one(number, plan)
        failures += [*found, *faults.failures, *errors_logged(directory)]
        say(f"round {number}: {told}")
        if failures:
            failures.append(f"round {number} had the plan: {'; '.join(map(str, plan))}")
            break
    say("; ".join(f"{kind} {times} times" for kind, times in sorted(faults.done.items())))
    return failures


def run(
    rounds: Iterable[list[Fault]],
    seed: int,
    directory: str,
    *,
    zookeeper: bool = False,
    durability: str = "page-cache",
    say: Callable[[str], object] = print,
) -> list[str]:
    """A round with each of these plans; what failed in the last one."""
    settings = {**SETTINGS, "ottla.durability": durability}
    with Faults(random.Random(seed), directory, settings, zookeeper=zookeeper) as faults:

        def one(number: int, plan: list[Fault]) -> tuple[list[str], str]:
            current = Round(faults.cluster, seed + number)
            failures = current.run(partial(carry_out, faults, plan))
            return failures, current.told()

        return play(faults, rounds, directory, one, say)


def report(failures: list[str], directory: str, proven: str, *, keep: bool) -> int:
    """Print the failures, or what is proven without any, and return the exit code. The nodes' directories are removed
    after a run without failures, unless they are to be kept."""
    for failure in failures:
        print(f"FAILED: {failure}")
    if failures:
        print(f"failed; the nodes' directories are in {directory}")
        return 1
    if not keep:
        shutil.rmtree(directory, ignore_errors=True)
    print(proven)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--metadata", choices=("sqlite", "zookeeper"), default="sqlite")
    parser.add_argument("--durability", choices=("page-cache", "fsync"), default="page-cache")
    parser.add_argument("--directory", help="where the nodes keep their data; a new directory without it")
    given = parser.parse_args()
    directory = given.directory or tempfile.mkdtemp(prefix="ottla-crash-")
    zookeeper = given.metadata == "zookeeper"
    rounds = plans(given.seed, given.minutes, zookeeper=zookeeper)
    failures = run(rounds, given.seed, directory, zookeeper=zookeeper, durability=given.durability)
    proven = "nothing acknowledged was lost, doubled, reordered or shown before its time"
    return report(failures, directory, proven, keep=given.directory is not None)


if __name__ == "__main__":
    sys.exit(main())
