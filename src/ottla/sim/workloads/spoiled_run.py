"""Runs a cluster whose disks lie: the disks of a minority are spoiled, while their nodes are down or run.

In addition to the faults of `cluster_run`, the disks of one node of three, or up to two of five, are damaged. Bits of
files flip, files are cut or lost, directories are lost, or the data directory is replaced by a copy, also by one that
was made while the node ran. A copy may also be started on another machine, while the first process stands still. Once
in a run, all nodes may be killed and find an earlier metadata store when they start again. In a quarter of the runs it
is one from before the first topic. Seeds from RUNNING_TOO on also change files while their node has them open. Seeds
from TAILS_TOO on also cut whole batches off the ends of logs, whose high watermarks may be in no checkpoint, and take
volumes back to snapshots. From UNREADABLE_TOO on, disks can't read some places of segments and indexes, for a while or
until these are cut off.

No acknowledged record may be lost, and in the end all replicas are complete and equal without an operator, and their
files are those of the logs. Machines keep their power: a second fault may lose what the first one has left.
"""

import random
from collections.abc import Callable
from typing import Any

from ottla.broker.upkeep.scrubs import SLICE_PAUSE_MS
from ottla.log.answers import Damage
from ottla.log.beneath import comparing
from ottla.log.checking import checking
from ottla.log.log import Log
from ottla.metadata.topics import PREFIX as TOPIC_PREFIX
from ottla.metadata.topics import TopicRecord
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host, Life
from ottla.sim.kernel.spoiling import Spoiler
from ottla.sim.kernel.store import StoreCopy
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.cluster_run import ClusterRun, Trouble, drawn
from ottla.sim.workloads.compacted_replicas import CompactedReplicaChecker
from ottla.sim.workloads.elected_cluster import ElectedCluster
from ottla.sim.workloads.following import LEASE_MS
from ottla.sim.workloads.run import DIRECTORY

BACK_UP_CHANCE = 0.3
SCRUB_MS = 3_000
LOADED_MS = 1_000
"""For so long clients continue while the nodes recover; a cluster without load costs a sixth of the CPU."""
RUNNING_TOO = 3_000_000
"""From this seed on, files are damaged while their node runs too, and logs have many segments."""
TAILS_TOO = 4_000_000
"""From this seed on, logs lose ends that no checkpoint shows too."""
UNREADABLE_TOO = 5_000_000
OPENED_AGAIN_MS = 15_000
"""More than the time after which a node tries again to open a log."""
SCRUBBING = {"ottla.scrub.interval.ms": str(SCRUB_MS), "ottla.scrub.bytes.per.second": "100000000"}


def small_segments(rng: random.Random) -> dict[str, str]:
    """Segments of a few batches in most runs."""
    return {
        "log.index.interval.bytes": rng.choice(("0", "4096")),
        "log.index.size.max.bytes": rng.choice(("60", "400", "10485760")),
    }


def rare_checkpoints(rng: random.Random) -> dict[str, str]:
    """High watermarks that are stored rarely in most runs."""
    return {"replica.high.watermark.checkpoint.interval.ms": rng.choice(("500", "5000", "60000"))}


def check_files(log: Log) -> None:
    """Check that the files of a log have what the log has. Raises InvariantError."""
    faults: list[object] = []
    for each in comparing(log, faults.append, 0):
        faults += [each] if isinstance(each, Damage) else []
    for at, segment in enumerate(log.segments):
        is_closed, interval = segment is not log.active, log.config.index_interval_bytes
        checked = checking(
            segment, log.bases_end(at), log.epochs, log.durability.gaps, joins=is_closed, interval=interval
        )
        faults += [each for each in checked if not isinstance(each, int)]
        faults += [segment.path] * (not segment.txn_index.is_as_written)
    if faults:
        raise InvariantError(f"16: the files of a log were not repaired: {', '.join(map(str, faults))}")


class SpoiledRun(ClusterRun):
    """One seed."""

    def __init__(self, seed: int, *, keep_all: bool = False, **given: Any) -> None:
        two = seed % 6 == 5
        mine: dict[str, Any] = {"nodes": 5, "min_isr": 3, "replicas": 5} if two else {}
        mine["settings"] = SCRUBBING
        if seed >= RUNNING_TOO:
            mine["settings"] = {**SCRUBBING, **small_segments(random.Random(f"{seed}/segments"))}
        if seed >= TAILS_TOO:
            mine["settings"] |= rare_checkpoints(random.Random(f"{seed}/checkpoints"))
        super().__init__(seed, keep_all=keep_all, **{**drawn(seed), **mine, **given})
        self.trouble: SpoilingTrouble = SpoilingTrouble(self.cluster)
        self.cluster.changed_beneath = self.trouble.changed_since_start
        if seed >= RUNNING_TOO:  # the offsets of groups are in many segments, which each replica compacts by itself
            checkers = self.cluster.checkers
            checkers[:] = [each for each in checkers if each.topic != CONSUMER_OFFSETS_TOPIC]
            checkers.append(CompactedReplicaChecker(CONSUMER_OFFSETS_TOPIC))
        self._running_too = seed >= RUNNING_TOO

    def go(self) -> None:
        self.cluster.start_nodes()
        self.trouble.back_up_without_topics()
        super().go()
        if self._running_too:
            self._check_files()
            if restarting := self.trouble.changed_since_start():
                self._restart(restarting)
                self.cluster.settle()
                self._check_files()

    def _check_files(self) -> None:
        for node_id in self.cluster.hosts:
            for partition in self.cluster.node(node_id).replicas:
                check_files(partition.log)

    def _restart(self, nodes: list[int]) -> None:
        """Restart nodes whose files were damaged since their start: a running node does not look for the files that
        only a start reads, nor for directories that it does not know."""
        for node_id in nodes:
            self.cluster.leave(node_id)
            self.cluster.until(lambda host=self.cluster.hosts[node_id]: not host.up)
        self.cluster.heal()
        self.trouble.scrub(0)


class SpoilingTrouble(Trouble):
    """Causes the faults in a cluster of any workload. The disks of as many nodes lie as may be down while a producer's
    records are accepted."""

    def __init__(self, cluster: ElectedCluster, *others: Any) -> None:
        """`others`: further arguments of the class that this one is combined with."""
        super().__init__(cluster, *others)
        seed = cluster.world.seed
        self._running_too = running_too = seed >= RUNNING_TOO
        self._forgets_topics = seed % 4 == 3
        self._spoiled_running: dict[int, Life | None] = {}
        """The nodes whose files were damaged while they ran, and the last process of each to which that happened."""
        chosen = self.rng.sample(sorted(cluster.hosts), cluster.min_isr - 1)
        self.spoilers = {
            node_id: Spoiler(
                cluster.hosts[node_id].disk,
                DIRECTORY,
                cluster.world.stream(f"spoiler-{node_id}"),
                in_parts=running_too,
                tails=seed >= TAILS_TOO,
            )
            for node_id in chosen
        }
        self._store_copy: StoreCopy | None = None
        self._was_restored = False
        self._is_without_topics = False
        self.strikes: list[str] = []
        """The damage done, for tests."""

    def kinds(self) -> list[Callable[[], None]]:
        store = (self._back_up_store,) * 2 + (self._restore_store,) * 4  # restored once
        running = (self._spoil_running,) * (6 if self._running_too else 0)
        down = (self._spoil,) * 6
        unreadable = (self._make_unreadable,) * (8 if self.cluster.world.seed >= UNREADABLE_TOO else 0)
        copies = (self._copy_hot,) * 2 + (self._lose_session,) * 2
        return [*super().kinds(), *unreadable, *down, *copies, *store, *running]

    def before_rest(self) -> None:
        """Scrub every log, and let the nodes copy the damaged parts again."""
        for host in self.cluster.hosts.values():
            host.disk.repair()
        self.cluster.heal()
        self.cluster.run(LOADED_MS)
        if self.cluster.world.seed >= UNREADABLE_TOO:  # scrubbing leaves out the logs that could not be opened
            self.cluster.until(self._are_logs_open, OPENED_AGAIN_MS)
        self.cluster.wind_down()
        self.scrub(LOADED_MS)

    def _are_logs_open(self) -> bool:
        nodes = (self.cluster.node(node_id) for node_id in self.cluster.up)
        return not any(partition.log.unopened for node in nodes for partition in node.replicas)

    def scrub(self, begun_ms: int) -> None:
        """Let each node scrub all its logs, beginning this long ago. The present pass may be past the damage, so the
        next one has to end too."""
        self.cluster.run(2 * self._pass_ms() - begun_ms)

    def _pass_ms(self) -> int:
        """How long a scrub of all logs takes on the node with the most segments: each is at least one slice. So is the
        comparison of each log with its files."""
        slices = max(
            sum(len(partition.log.segments) + 2 for partition in self.cluster.node(node_id).replicas)
            for node_id in self.cluster.up
        )
        return max(SCRUB_MS, slices * SLICE_PAUSE_MS)

    def _may_go_off(self) -> bool:
        return False

    def _cut_in_mid_step(self) -> None:
        self._any().cut_in_mid_step()

    def _ail(self) -> None:
        """No disk faults: disks only lie here."""

    def _spoil(self) -> None:
        """Stop or kill one of the liars; it comes back to a spoiled disk."""
        node_id = self.rng.choice(sorted(self.spoilers))
        host = self.cluster.hosts[node_id]
        if host.up:
            if self.rng.random() < 0.3:
                self.cluster.leave(node_id)
                self.cluster.world.agenda.after(self.rng.randrange(1_000 * MS), self._spoil_what_is_down, node_id)
                return
            host.kill(power_cut=False)
        self._spoil_what_is_down(node_id)

    def _spoil_what_is_down(self, node_id: int) -> None:
        host = self.cluster.hosts[node_id]
        if self.active and not host.up and not self._has_the_only_replica(node_id):
            if self.rng.random() < BACK_UP_CHANCE:
                self.spoilers[node_id].back_up()
                return
            self._was_spoiled(node_id, self.spoilers[node_id].spoil())

    def _was_spoiled(self, node_id: int, what: str) -> None:
        self.strikes.append(what)
        self._tell(f"{self.cluster.hosts[node_id].name} {what}")
        for checker in self.cluster.checkers:
            checker.liars.add(node_id)
            checker.lost_power(node_id, in_sync_too=True)

    def _spoil_running(self) -> None:
        """Damage the files of one of the liars, while its node runs."""
        node_id = self.rng.choice(sorted(self.spoilers))
        if self.cluster.hosts[node_id].up and not self._has_the_only_replica(node_id):
            self._spoiled_running[node_id] = self.cluster.hosts[node_id].life
            self._was_spoiled(node_id, f"{self.spoilers[node_id].spoil_running()} while it runs")

    def _make_unreadable(self) -> None:
        """Let the disk of a liar not read some place, for a while or until the place is cut off."""
        node_id = self.rng.choice(sorted(self.spoilers))
        if not self._has_the_only_replica(node_id):
            self._was_spoiled(node_id, self.spoilers[node_id].make_unreadable())
            if self.rng.random() < 0.5:
                disk = self.cluster.hosts[node_id].disk
                self.cluster.world.agenda.after(self.rng.randrange(8_000 * MS), disk.repair)

    def changed_since_start(self) -> list[int]:
        """Return the nodes whose files were damaged since they started."""
        hosts = self.cluster.hosts
        return sorted(node_id for node_id, life in self._spoiled_running.items() if hosts[node_id].life is life)

    def _forgive(self, node_id: int, power_cut: bool) -> None:
        super()._forgive(node_id, power_cut)
        if node_id in self._spoiled_running:  # its next start may be the first to notice that
            for checker in self.cluster.checkers:
                checker.lost_power(node_id, in_sync_too=True)

    def _has_the_only_replica(self, node_id: int) -> bool:
        """Whether a partition has replicas only where disks lie: no other has the records that this one may lose.

        A topic is adopted to the nodes that have logs of it, which may be one. Replicas that are being added may have
        nothing yet.
        """
        checked = {checker.topic for checker in self.cluster.checkers}
        topics = [topic for name, topic in self.cluster.image.topics.items() if name in checked]
        placed = [set(placed.replicas) - set(placed.adding) for topic in topics for placed in topic.partitions]
        return any(node_id in replicas and replicas <= self.spoilers.keys() for replicas in placed)

    def _copy_hot(self) -> None:
        """Copy the directory of a liar while its node runs. The copy may be put in its place later."""
        node_id = self.rng.choice(sorted(self.spoilers))
        host = self.cluster.hosts[node_id]
        if host.up:
            self._tell(f"the directory of {host.name} is copied while it runs")
            self.spoilers[node_id].begin_hot_copy()
            self.cluster.world.agenda.after(self.rng.randrange(300 * MS), self.spoilers[node_id].end_hot_copy)

    def _lose_session(self) -> None:
        """A liar stands still for longer than its session. Meanwhile a copy of its directory starts elsewhere."""
        node_id = self.rng.choice(sorted(self.spoilers))
        host = self.cluster.hosts[node_id]
        if host.up and host.life is not None and not host.life.paused:
            self._tell(f"{host.name} stands still, and loses its session")
            host.life.pause()
            after_us = (LEASE_MS + self.rng.randrange(1_000)) * MS
            self.cluster.world.agenda.after(after_us, self._begin_elsewhere, node_id, host)

    def _begin_elsewhere(self, node_id: int, old: Host) -> None:
        cluster, life = self.cluster, old.life
        if life is None or cluster.hosts[node_id] is not old or not (self.active and life.alive and life.paused):
            return
        if self.rng.random() < 0.2 or node_id in cluster.following.present() or self._has_the_only_replica(node_id):
            life.resume()
            return
        disk = old.disk.clone(old.stream(f"copy-{old.lives}"))
        before = self.spoilers[node_id]
        spoiler = self.spoilers[node_id] = before.of(disk)
        how = spoiler.restore(whole=True) if spoiler.has_backup and self.rng.random() < 0.5 else "has the newest files"
        for checker in cluster.checkers:
            checker.liars.add(node_id)
        self.strikes.append(f"a copy of {old.name} starts elsewhere")
        self._tell(f"{self.strikes[-1]}: it {how}")
        cluster.begin_elsewhere(node_id, disk)
        self.moved(node_id)
        cluster.world.agenda.after(self.rng.randrange(4_000 * MS), life.resume)

    # ---- the metadata store ----------------------------------------------------------------------------------------

    def back_up_without_topics(self) -> None:
        """Make the only backup of this run, if it is one of those whose backup has no topics."""
        if self._forgets_topics:
            self._store_copy, self._is_without_topics = self.cluster.store.back_up(), True

    def _back_up_store(self) -> None:
        if not (self._was_restored or self._is_without_topics):
            self._store_copy = self.cluster.store.back_up()
            self._tell("the metadata store is backed up")

    def _restore_store(self) -> None:
        """Kill all nodes and restore the metadata store. They start again in any order."""
        cluster, copy = self.cluster, self._store_copy
        if copy is None or self._was_restored:
            return
        topics = cluster.image.topics
        before = {name: replicas for name, replicas in _replicas_in(copy).items() if name in topics}
        if any(replicas != _replicas_of(topics[name].record) for name, replicas in before.items()):
            return  # moved replicas are not restored with the store
        if self._is_without_topics and not any(checker.acks for checker in cluster.checkers):
            return  # the nodes have nothing yet of which topics can be made again
        self._was_restored = True
        lost = cluster.store.generation - copy.generation
        without = "any topic" if self._is_without_topics else f"its newest {lost} commits"
        self.strikes.append(f"the metadata store is an earlier one, without {without}")
        self._tell(self.strikes[-1])
        for host in [*cluster.hosts.values(), *cluster.replaced]:
            host.kill(power_cut=False)
        cluster.restore_store(copy)


def _replicas_in(copy: StoreCopy) -> dict[str, list[tuple[object, ...]]]:
    """The replicas of every topic in a backup."""
    rows = {key: row for key, row in copy.rows.items() if key.startswith(TOPIC_PREFIX)}
    return {key[len(TOPIC_PREFIX) :]: _replicas_of(TopicRecord.decode(row.value)) for key, row in rows.items()}


def _replicas_of(record: TopicRecord) -> list[tuple[object, ...]]:
    return [(sorted(placed.replicas), placed.adding, placed.removing) for placed in record.partitions]
