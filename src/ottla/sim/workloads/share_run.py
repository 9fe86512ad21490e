"""Runs share groups: members that misbehave, a node that dies at every step, a dead-letter topic that fails.

In addition to the checks of every run, it checks the promises of `share_history` at every step and the share
partitions' own invariants. In the end every queue is drained, the coordinator's state is the same after one more death,
and every record is accepted or in the dead-letter topic.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from ottla.broker.node import Node
from ottla.broker.partitions.partition import Partition
from ottla.log.answers import Isolation
from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.record import Record, decode_records
from ottla.share.state import ShareStateShard
from ottla.sim.clients.share_clients import LETTERS
from ottla.sim.clients.share_history import RecordPlace
from ottla.sim.kernel.host import Life
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.checkers import Watch, node_of
from ottla.sim.workloads.run import Run, SeedResult
from ottla.sim.workloads.share_workload import JOBS, ShareWorkload
from ottla.sim.workloads.workload import Plan


class ShareWatch(Watch):
    """Checks the share partitions too."""

    def look(self, life: Life) -> None:
        super().look(life)
        node = node_of(life)
        node.coordinators.share.check()
        node.coordinators.share_state.check()
        gone = node.coordinators.share.sessions.connections() - life.sides.keys()
        if gone:
            raise InvariantError(f"share sessions of connections {sorted(gone)} are kept, which are gone")


def share_settings(rng: random.Random) -> dict[str, str]:
    """Return the settings of nodes that coordinate the share groups of a run."""
    return {
        "group.share.min.record.lock.duration.ms": "1000",
        "share.coordinator.state.topic.num.partitions": str(rng.choice((1, 3))),
        "share.coordinator.snapshot.update.records.per.snapshot": str(rng.choice((0, 3, 500))),
        "share.coordinator.state.topic.prune.interval.ms": str(rng.choice((300, 2_000, 300_000))),
        "share.coordinator.cold.partition.snapshot.interval.ms": str(rng.choice((500, 300_000))),
    }


class ShareRun(Run):
    """One seed. See the module."""

    workload: ShareWorkload

    def __init__(self, seed: int, **how: Any) -> None:
        super().__init__(seed, **how)
        self.watch = ShareWatch(self.host)
        self.host.watch = self.watch

    def make_plan(self) -> Plan:
        plan = super().make_plan()
        settings = share_settings(self.world.stream("share-plan"))
        return replace(plan, settings={**plan.settings, **settings})

    def make_workload(self) -> ShareWorkload:
        return ShareWorkload(self.host, self.plan)

    def _died(self, power_cut: bool) -> None:
        super()._died(power_cut)
        if power_cut and self.plan.may_lose:
            for shares in self.workload.shares.values():
                shares.forget()

    def outcome(self) -> SeedResult:
        outcome = super().outcome()
        return replace(outcome, deliveries=sum(shares.deliveries for shares in self.workload.shares.values()))

    def _missing(self) -> str | None:
        missing = super()._missing()
        if missing is not None:
            return missing
        workload = self.workload
        if workload.share_admin is None or not workload.share_admin.at_rest:
            return "the groups are not configured"
        node = node_of(self.host.life)
        for partition, _ in node.coordinators.share_state.loaded():
            if partition.log.high_watermark != partition.log.log_end_offset:
                return f"{partition.name} is not on the disk"
        return missing_of_share(workload, node.coordinators.share.describe(self.host.clock.now_ms), _jobs(node))

    def _check_at_rest(self) -> None:
        node = node_of(self.host.life)
        if not self.workload.history.losses:
            audit_share(self.workload, _jobs(node), node.replicas.by_name[LETTERS].partitions[0])
        before = _state_of(node)
        super()._check_at_rest()
        node = node_of(self.host.life)
        node.coordinators.share_state.load_all(self.host.clock.now_ms)
        after = _state_of(node)
        if before != after:
            raise InvariantError(f"the share state was {before} and is {after} after the restart")


def _jobs(node: Node) -> list[Partition]:
    return list(node.replicas.by_name[JOBS].partitions.values())


def missing_of_share(workload: ShareWorkload, described: Iterable[Any], jobs: Iterable[Partition]) -> str | None:
    """Describe in a sentence what the groups still have to do on these partitions, by the node's own descriptions; None
    if nothing is left."""
    seen = {(each.group_id, each.topic, each.partition): each for each in described}
    for partition in jobs:
        for group in workload.shares:
            each = seen.get((group, JOBS, partition.index))
            if each is None:
                return f"{group} does not read {partition.name}"
            if each.start_offset != partition.log.high_watermark:
                return (
                    f"{group} is at {each.start_offset} of {partition.name}, whose end is "
                    f"{partition.log.high_watermark}; {each.archiving} letters are to be written"
                )
    return None


def audit_share(workload: ShareWorkload, jobs: Iterable[Partition], letters: Partition) -> None:
    """Check that a member accepted every record, or that it is in the dead-letter topic, with the reason."""
    found: set[tuple[str, RecordPlace]] = set()
    last: dict[tuple[str, RecordPlace, int], str | None] = {}
    for letter in map(_letter, _records(letters)):
        workload.shares[letter.group].check_reason(letter.place, letter.reason)
        found.add((letter.group, letter.place))
        if letter.was_seen:
            last[letter.group, letter.place, letter.deliveries] = letter.reason
    for (group, place, deliveries), reason in last.items():
        workload.shares[group].check_last_reason(place, deliveries, reason)
    for partition in jobs:
        for group, shares in workload.shares.items():
            for offset in range(partition.log.log_end_offset):
                place = ((JOBS, partition.index), offset)
                if place not in shares.accept_sent and (group, place) not in found:
                    raise InvariantError(
                        f"{group} never processed {offset} of {partition.name}, and has no letter of it"
                    )


def _state_of(node: Node) -> dict[Any, Any]:
    state: dict[Any, Any] = {}
    for shard in node.coordinators.share_state.shards():
        if isinstance(shard, ShareStateShard):
            image = shard.image()
            assert isinstance(image, dict)
            state.update(image)
    return state


class _Letter(NamedTuple):
    """A dead letter. `was_seen`: the node that wrote it has seen the last failure."""

    group: str
    place: RecordPlace
    deliveries: int
    reason: str | None
    was_seen: bool


def _letter(record: Record) -> _Letter:
    said = dict(record.headers)
    names = ("group", "partition", "offset", "delivery.count")
    group, index, at, count = ((said[f"__dlq.errors.{name}"] or b"").decode() for name in names)
    reason = said.get("ottla-failure-reason")
    return _Letter(
        group,
        ((JOBS, int(index)), int(at)),
        int(count),
        None if reason is None else reason.decode(),
        "ottla-last-failure-ms" in said,
    )


def _records(partition: Partition) -> Iterator[Record]:
    """Every record of a partition."""
    log = partition.log
    offset = log.log_start_offset
    while offset < log.high_watermark:
        result = log.read(offset, 1 << 20, Isolation.HIGH_WATERMARK, True)
        assert result.slice is not None
        raw = result.slice.read()
        for header, position in iter_batches(raw):
            offset = header.next_offset
            yield from decode_records(raw, position)
