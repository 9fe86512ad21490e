"""Runs with share groups: members that misbehave, a node that dies at every step, a dead-letter topic that fails.

    python -m ottla.sim.share_run --seeds 100
    python -m ottla.sim.share_run --seed 17 --trace

On top of what every run holds: the promises of `share_history` at every step, the share partitions' own invariants, and
in the end every queue drained, the coordinator's state equal after one more death, and every record accepted or in the
dead-letter topic.
"""

import argparse
import sys
import time
from dataclasses import replace
from typing import Any

from ottla.broker.node import Node
from ottla.log.answers import Isolation
from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.record import decode_records
from ottla.share.state import ShareStateShard
from ottla.sim.checkers import Watch, node_of
from ottla.sim.clock import MS
from ottla.sim.history import History, TopicPartition, TopicRule
from ottla.sim.kafka import KafkaClient
from ottla.sim.producers import Producer
from ottla.sim.run import Outcome, Run
from ottla.sim.share_clients import LETTERS, LOCK_MS, ShareAdmin, ShareMember
from ottla.sim.share_history import ShareHistory
from ottla.sim.trace import Broken
from ottla.sim.workload import Plan, Workload
from ottla.sim.world import Life, World

JOBS = "jobs"


class ShareWorkload(Workload):
    """Producers of one topic and the members of its share groups."""

    def __init__(self, world: World, plan: Plan) -> None:
        super().__init__(world, plan)
        rng = self.rng
        self.rules = {JOBS: TopicRule(JOBS, rng.randrange(1, 4), dense=True)}
        self.history = History(self.rules.values(), groups_vanish=False)
        self.admin.history = self.history
        self.winding_down = False
        limit = rng.choice((2, 3, 5))
        names = ["g", "h"][: rng.randrange(1, 3)]
        self.shares = {name: ShareHistory(limit) for name in names}
        self.group_configs = {
            name: {
                "share.auto.offset.reset": "earliest",
                "share.record.lock.duration.ms": str(LOCK_MS),
                "share.delivery.count.limit": str(limit),
                "errors.deadletterqueue.topic.name": LETTERS,
            }
            for name in names
        }
        self.share_members: list[ShareMember] = []
        self.share_admin: ShareAdmin | None = None

    @property
    def clients(self) -> list[KafkaClient]:
        own = [] if self.share_admin is None else [self.share_admin]
        return [*super().clients, *own, *self.share_members]

    def topics_stand(self) -> None:
        if self.share_admin is None:
            self.share_admin = ShareAdmin(self, "keeper")

    def groups_stand(self) -> None:
        """The groups are configured: everybody may come."""
        if self.producers:
            return
        rng = self.rng
        gap_us = rng.choice((40, 90)) * MS
        for i in range(rng.randrange(1, 3)):
            self.producers.append(Producer(self, f"maker-{i}", JOBS, idempotent=True, gap_us=gap_us))
        for name in self.shares:
            for i in range(rng.randrange(1, 5)):
                self.share_members.append(ShareMember(self, f"{name}-{i}", name, JOBS))

    def share_start_offset(self, group: str, where: TopicPartition, life: int) -> int | None:
        """Where the group's window begins, if the node is still in that life and has loaded it."""
        if not self.world.up or self.world.lives != life or self.world.life is None:
            return None
        node = node_of(self.world.life)
        hosted = node.share.known(group, (node.topics.by_name[where[0]].id, where[1]))
        return None if hosted is None or hosted.machine is None else hosted.machine.start

    def wind_down(self) -> None:
        super().wind_down()
        self.winding_down = True
        if self.share_admin is not None:
            self.share_admin.wind_down()
        for member in self.share_members:
            member.hurry()
            member.rejoin()


class ShareWatch(Watch):
    """Looks at the share partitions too."""

    def look(self, life: Life) -> None:
        super().look(life)
        node = node_of(life)
        node.share.check()
        node.share_state.check()


class ShareRun(Run):
    """One seed. See the module."""

    workload: ShareWorkload

    def __init__(self, seed: int, **how: Any) -> None:
        super().__init__(seed, **how)
        self.watch = ShareWatch(self.workload)
        self.world.watch = self.watch

    def make_plan(self) -> Plan:
        plan = super().make_plan()
        rng = self.world.stream("share-plan")
        settings = {
            "group.share.min.record.lock.duration.ms": "1000",
            "share.coordinator.state.topic.num.partitions": str(rng.choice((1, 3))),
            "share.coordinator.snapshot.update.records.per.snapshot": str(rng.choice((0, 3, 500))),
            "share.coordinator.state.topic.prune.interval.ms": str(rng.choice((300, 2_000, 300_000))),
            "share.coordinator.cold.partition.snapshot.interval.ms": str(rng.choice((500, 300_000))),
        }
        return replace(plan, settings={**plan.settings, **settings})

    def make_workload(self) -> ShareWorkload:
        return ShareWorkload(self.world, self.plan)

    def _died(self, power_cut: bool) -> None:
        super()._died(power_cut)
        if power_cut and self.plan.may_lose:
            for shares in self.workload.shares.values():
                shares.forget()

    def _missing(self) -> str | None:
        missing = super()._missing()
        if missing is not None:
            return missing
        workload = self.workload
        if workload.share_admin is None or not workload.share_admin.at_rest:
            return "the groups are not configured"
        assert self.world.life is not None
        node = node_of(self.world.life)
        for partition, _ in node.share_state.loaded():
            if partition.log.high_watermark != partition.log.log_end_offset:
                return f"{partition.name} is not on the disk"
        in_sight = node.share.in_sight(self.world.clock.now_ms)
        seen = {(each.group_id, each.topic, each.partition): each for each in in_sight}
        for group in workload.shares:
            for partition in node.topics.by_name[JOBS].partitions:
                each = seen.get((group, JOBS, partition.index))
                if each is None:
                    return f"{group} does not read {partition.name}"
                if each.start_offset != partition.log.high_watermark:
                    return (
                        f"{group} is at {each.start_offset} of {partition.name}, whose end is "
                        f"{partition.log.high_watermark}; {each.archiving} letters are to be written"
                    )
        return None

    def _reckon(self) -> None:
        assert self.world.life is not None
        node = node_of(self.world.life)
        self._nothing_is_lost(node)
        before = _state_of(node)
        super()._reckon()
        node = node_of(self.world.life)
        while node.share_state.deadline() == 0:
            node.share_state.tick(self.world.clock.now_ms)
        after = _state_of(node)
        if before != after:
            raise Broken(f"the share state was {before} and is {after} after the restart")

    def _nothing_is_lost(self, node: Node) -> None:
        """Every record was accepted by somebody, or is in the dead-letter topic."""
        if self.workload.history.losses:
            return
        letters = _letters(node)
        for group, shares in self.workload.shares.items():
            for partition in node.topics.by_name[JOBS].partitions:
                for offset in range(partition.log.log_end_offset):
                    place = ((JOBS, partition.index), offset)
                    if place not in shares.accept_sent and (group, partition.index, offset) not in letters:
                        raise Broken(f"{group} never processed {offset} of {partition.name}, and has no letter of it")


def _state_of(node: Node) -> dict[Any, Any]:
    state: dict[Any, Any] = {}
    for shard in node.share_state.shards():
        if isinstance(shard, ShareStateShard):
            image = shard.image()
            assert isinstance(image, dict)
            state.update(image)
    return state


def _letters(node: Node) -> set[tuple[str, int, int]]:
    """(group, partition, offset) of every dead letter."""
    found: set[tuple[str, int, int]] = set()
    log = node.topics.by_name[LETTERS].partitions[0].log
    offset = log.log_start_offset
    while offset < log.high_watermark:
        result = log.read(offset, 1 << 20, Isolation.HIGH_WATERMARK, True)
        assert result.slice is not None
        raw = result.slice.read()
        for header, position in iter_batches(raw):
            offset = header.next_offset
            for record in decode_records(raw, position):
                said = dict(record.headers)
                group, index, at = (said[f"__dlq.errors.{name}"] or b"" for name in ("group", "partition", "offset"))
                found.add((group.decode(), int(index), int(at)))
    return found


def main(arguments: list[str] | None = None) -> int:
    """0: every seed passed. 1: some failed."""
    parser = argparse.ArgumentParser(prog="python -m ottla.sim.share_run", description="Simulate share groups.")
    parser.add_argument("--seeds", type=int, default=50, metavar="N", help="how many seeds to run (50)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="S", help="the first of them (0)")
    parser.add_argument("--seed", type=int, default=None, metavar="S", help="run only this seed")
    parser.add_argument("--trace", action="store_true", help="print every line of the trace")
    asked = parser.parse_args(arguments)
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.seeds)
    began = time.monotonic()
    failed: list[int] = []
    lives = deliveries = simulated_ms = 0
    for seed in seeds:
        run = ShareRun(seed, keep_all=asked.trace)
        outcome: Outcome = run.outcome()
        lives += outcome.lives
        simulated_ms += outcome.simulated_ms
        deliveries += sum(shares.deliveries for shares in run.workload.shares.values())
        if asked.trace:
            print(*outcome.lines, sep="\n")
        if outcome.failure is not None:
            failed.append(seed)
            print(f"\nseed {seed} FAILED: {outcome.failure}\nagain: --seed {seed} --trace", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{len(seeds)} seeds, {len(failed)} failed; {lives} lives of the node, {deliveries} deliveries, "
        f"{simulated_ms // 1000} s simulated in {seconds:.1f} s"
    )
    if failed:
        print(f"failed: {' '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
