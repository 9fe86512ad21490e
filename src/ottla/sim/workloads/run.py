"""Runs one seed: a node and its clients, faults, a time without faults, and the last checks.

    safety      faults strike; the invariants are checked at every step
    liveness    everything heals; producers send what they have, groups become stable and read to the end
    at rest     replay equals live state; after one more death the audit reads everything

A failure is a `InvariantError` promise, or any other exception from the node: its own assertions are checkers too.
"""

import copy
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.broker.config.values import BrokerSettings
from ottla.broker.node import Node
from ottla.machine import WallClock
from ottla.metadata.store import MetadataStore
from ottla.sim.clients.history import TopicPartition
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.host import Host, NodeUnderTest
from ottla.sim.kernel.store import FarStore, SimStore
from ottla.sim.kernel.trace import InvariantError, Trace
from ottla.sim.kernel.world import World
from ottla.sim.workloads.checkers import Watch, audit, audit_races, compare_images, image_of, node_of, partitions_of
from ottla.sim.workloads.faults import Faults
from ottla.sim.workloads.workload import Plan, Workload, draw_plan

DIRECTORY = "/data"
NODE_ITSELF = -1
"""The connection of requests that the node makes itself."""
LIVENESS_MS = 60_000
LIVENESS_STEP_MS = 250


@dataclass(frozen=True, slots=True)
class SeedResult:
    """Result of one seed. `failure` None: all promises were kept."""

    seed: int
    digest: str
    failure: str | None
    lines: Sequence[str]
    lives: int
    events: int
    acknowledged: int
    seen: int
    simulated_ms: int
    plan: Plan | None = None
    deliveries: int = 0
    """Deliveries to members of share groups."""
    transactions: int = 0
    """Committed transactions."""


NodeMaker = Callable[[Host, SimStore, Plan, bool], NodeUnderTest]


def make_node(host: Host, store: SimStore, plan: Plan, same_boot: bool) -> Node:
    """Make the node under test, as an I/O host makes it."""
    return node_on(host, store, plan.settings, same_boot)


def node_on(host: Host, store: MetadataStore, settings: Mapping[str, str], same_boot: bool) -> Node:
    """A node on this host."""
    return Node(
        BrokerSettings.load(dict(settings), {}),
        host.disk,
        DIRECTORY,
        store,
        entropy=host.stream(f"entropy-{host.lives}"),
        same_boot=same_boot,
        notes=lambda note: host.world.trace.add(host.name, note),
        wall=WallClock(host.clock.wall_ahead_ms),
    )


def failure_of(go: Callable[[], None], trace: Trace) -> str | None:
    """Return the reason of a run's failure, which is then the last line of the trace; None if it succeeded."""
    failure: str | None = None
    try:
        go()
    except InvariantError as broken:
        failure = str(broken)
    except Exception:
        failure = traceback.format_exc(limit=-12)
    if failure is not None:
        trace.add("run", f"FAILED: {failure.strip().splitlines()[-1]}")
    return failure


def outcome_of(
    world: World, failure: str | None, *, lives: int, acknowledged: int, seen: int, plan: Plan | None = None
) -> SeedResult:
    """Return the result of this world's seed, after its run."""
    trace = world.trace
    return SeedResult(
        world.seed,
        trace.digest(),
        failure,
        list(trace.lines),
        lives,
        world.agenda.events_run,
        acknowledged,
        seen,
        world.clock.now_us // MS,
        plan,
    )


class Run:
    """One seed. `make` and `lies` are for tests that inject bugs."""

    def __init__(self, seed: int, *, keep_all: bool = False, make: NodeMaker = make_node, lies: bool = False) -> None:
        self._make = make
        self.world = World(seed, keep_all=keep_all)
        self.host = Host(self.world, "node", self._build)
        self.host.disk.lies = lies
        self.store = SimStore(self.host.disk)
        self.host.store = FarStore(self.store, self.host.stream("store"))
        self.plan = self.make_plan()
        self.workload = self.make_workload()
        self.faults = self.make_faults()
        self.watch = Watch(self.host)
        self.host.watch = self.watch
        self.host.died = self._died

    def make_plan(self) -> Plan:
        return draw_plan(self.world.stream("plan"))

    def make_workload(self) -> Workload:
        return Workload(self.host, self.plan)

    def make_faults(self) -> Faults:
        return Faults(self.host, self.workload, self.plan)

    def image_of(self, node: Node) -> dict[str, Any]:
        """Return the state that must be the same after a restart."""
        return image_of(node)

    def audit(self, node: Node) -> None:
        """Compare the final state with the answers that clients received."""
        audit_races(self.workload, self.host, node)
        audit(self.workload, node.replicas.get)

    def _build(self, host: Host, same_boot: bool) -> NodeUnderTest:
        return self._make(host, self.store, self.plan, same_boot)

    def _died(self, power_cut: bool) -> None:
        if power_cut and self.plan.may_lose:
            logs = partitions_of(node_of(self.host.life))
            fsynced: dict[TopicPartition, int] = {(p.topic_name, p.index): p.log.recovery_point for p in logs}
            self.workload.history.forget_beyond(fsynced)
        self.faults.node.node_died()

    # ---- phases ----------------------------------------------------------------------------------------------------

    def go(self) -> None:
        """Run the seed. Raises InvariantError, or any exception from the node."""
        world, host = self.world, self.host
        world.trace.add("run", str(self.plan))
        host.start()
        world.run(self.plan.safety_ms * MS)
        self.faults.heal()
        self.workload.wind_down()
        self._live()
        self._check_at_rest()

    def _live(self) -> None:
        world = self.world
        end_us = world.clock.now_us + LIVENESS_MS * MS
        while (missing := self._missing()) is not None:
            if world.clock.now_us >= end_us:
                raise InvariantError(f"{LIVENESS_MS} ms after everything healed {missing}")
            world.run(world.clock.now_us + LIVENESS_STEP_MS * MS)

    def _missing(self) -> str | None:
        """Describe in a sentence what is not at rest yet; None if everything is."""
        life = self.host.life
        if life is None or not life.alive:
            return "the node is down"
        node = node_of(life)
        failed = [partition.name for partition in partitions_of(node) if partition.log.failed is not None]
        if failed:
            return f"{failed[0]} takes no writes"
        if node.metadata.changing:
            return "a change of the metadata is under way"
        ends = {(p.topic_name, p.index): p.log.high_watermark for p in partitions_of(node)}
        return self.workload.missing(ends)

    def _check_at_rest(self) -> None:
        world, host = self.world, self.host
        node = node_of(host.life)
        assert host.life is not None
        self.watch.look(host.life)
        parked = len(node.parking) - len(node.parking.of_connection(NODE_ITSELF))
        if parked > len(self.workload.clients):
            raise InvariantError(f"{parked} requests are parked, and there are {len(self.workload.clients)} clients")
        compare_images(self.image_of(node), self._image_after_replay())
        for client in self.workload.clients:
            client.running = False
            client.hang_up()
        world.trace.add("run", "everything is at rest; one more death")
        host.kill(power_cut=self.plan.power_cuts and not self.plan.may_lose)
        if not host.up:
            host.start()
        self.audit(node_of(host.life))

    def _image_after_replay(self) -> dict[str, object]:
        """Return the state of a second node that starts from a copy of the disk and the store."""
        host = self.host
        disk = host.disk.clone(host.stream("clone"))
        twin = Node(
            BrokerSettings.load(self.plan.settings, {}),
            disk,
            DIRECTORY,
            copy.deepcopy(self.store),
            entropy=host.stream("twin"),
            same_boot=True,
            notes=lambda note: None,
            wall=WallClock(host.clock.wall_ahead_ms),
        )
        now = host.clock.now_ms
        twin.start(now)
        for shards in (twin.coordinators.groups, twin.coordinators.transactions):
            shards.load_all(now)
        return self.image_of(twin)

    def outcome(self) -> SeedResult:
        """Run to the end, whatever it is."""
        world, history = self.world, self.workload.history
        failure = failure_of(self.go, world.trace)
        return outcome_of(
            world,
            failure,
            lives=self.host.lives,
            acknowledged=history.acknowledged_count,
            seen=history.seen_count,
            plan=self.plan,
        )
