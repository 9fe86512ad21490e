"""A world of several hosts: nodes that speak to each other over cut, lossy and slow paths, with clocks of their own."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ottla.broker.effects import PeerRequest
from ottla.machine import Unanswered
from ottla.sim.kernel.clock import BOOTED_MS, MS, Clock, HostClock
from ottla.sim.kernel.faults import HostFaults, PathFaults
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.kernel.world import World
from tests.harness.sim.toy import ToyClient, ToyNode, WorstCase
from tests.harness.sim.toy_cluster import DRIFT_PPM_MAX, Granter, Holder, Leader, check_copies, check_lease

RUN_US = 20_000 * MS
GAP_US = 1_200 * MS
SEEDS = range(4)


def disturb(world: World, hosts: list[Host]) -> None:
    """Something goes wrong with a host or with a path every now and then."""
    rng = world.stream("faults")
    names = [host.name for host in hosts]
    paths = PathFaults(world, rng)
    troubles = [HostFaults(host, rng, power_cuts=True) for host in hosts]

    def fault() -> None:
        host = rng.choice(troubles)
        of_host = (host.kill, host.cut_in_mid_step, host.stop_cleanly, host.stall, host.slow_disk)
        of_paths = (paths.cut_path, paths.part, paths.bad_path)
        rng.choice((*of_host, paths.break_connection, *(partial(act, names) for act in of_paths)))()
        world.agenda.after(rng.randrange(GAP_US), fault)

    for trouble in troubles:
        trouble.host.died = lambda _, trouble=trouble: trouble.node_died()
        trouble.write_back()
        trouble.host.start()
    world.agenda.after(rng.randrange(300 * MS), fault)


def run_copies(seed: int, *, hasty: bool = False, alone: bool = False) -> World:
    """A leader and two followers; in the end the power goes everywhere, and the disks are looked at."""
    world = World(seed)
    followers = [Host(world, name, lambda host, _: ToyNode(host.disk, hasty=hasty)) for name in ("b", "c")]
    for host in followers:
        host.disk_latency_max_us = 300 * MS
    leader = Host(world, "a", lambda host, _: Leader(host, ("b", "c"), alone=alone))
    hosts = [leader, *followers]
    clients = [ToyClient(leader, f"writer-{i}", 1_000_000 * i) for i in range(2)]
    disturb(world, hosts)
    world.run(RUN_US)
    for host in hosts:
        host.disk.rng = WorstCase()
        host.kill(power_cut=True)
    check_copies(hosts, clients)
    assert sum(len(client.acknowledged) for client in clients) > 10
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_two_of_three_have_what_was_acknowledged(seed: int) -> None:
    run_copies(seed)


def clocks_of(world: World) -> list[HostClock]:
    """Three clocks, started at different times, set wrong, and as fast and as slow as they may be."""
    rng = world.stream("clocks")
    return [
        HostClock(
            world.clock,
            booted_ms=rng.randrange(10_000_000),
            wall_off_ms=rng.randrange(-5_000, 5_000),
            drift_ppm=drift,
        )
        for drift in rng.sample((-DRIFT_PPM_MAX, 0, DRIFT_PPM_MAX), 3)
    ]


def run_lease(seed: int, *, forgets: bool = False, **bugs: bool) -> World:
    """A granter and two holders, who are looked at after every step of any of them."""
    world = World(seed)
    clocks = clocks_of(world)
    granter = Host(world, "granter", lambda host, _: Granter(host, forgets=forgets), clock=clocks[0])
    holders = [
        Host(world, name, lambda host, _: Holder(host, **bugs), clock=clock)
        for name, clock in zip(("left", "right"), clocks[1:], strict=True)
    ]
    hosts = [granter, *holders]
    for host in hosts:
        host.watch = lambda _: check_lease(holders)
    disturb(world, hosts)
    world.run(RUN_US)
    assert any("has the lease" in line for line in world.trace.lines)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_one_at_a_time_has_the_lease(seed: int) -> None:
    run_lease(seed)


@pytest.mark.parametrize(
    ("run", "bug"),
    [
        (run_copies, "hasty"),
        (run_copies, "alone"),
        (run_lease, "by_wall"),
        (run_lease, "from_answer"),
        (run_lease, "trusts"),
        (run_lease, "forgets"),
    ],
)
def test_planted_bugs_are_found(run: Callable[..., Any], bug: str) -> None:
    """By one of some seeds."""
    for seed in range(50):
        try:
            run(seed, **{bug: True})
        except InvariantError:
            return
    pytest.fail("found by none of 50 seeds")


@pytest.mark.parametrize("run", [run_copies, run_lease])
def test_one_seed_one_trace(run: Callable[[int], World]) -> None:
    assert run(3).trace.digest() == run(3).trace.digest()
    assert run(3).trace.digest() != run(4).trace.digest()


def test_a_host_that_nobody_disturbs_does_not_notice_another() -> None:
    """What is random on one host does not change with what another draws."""
    alone, beside = World(5), World(5)
    hosts = [Host(world, "node", lambda host, _: ToyNode(host.disk)) for world in (alone, beside)]
    other = Host(beside, "other", lambda host, _: ToyNode(host.disk))
    assert other.stream("disk").random() != hosts[1].stream("disk").random()
    assert hosts[0].stream("disk").random() == hosts[1].stream("disk").random()
    with pytest.raises(AssertionError, match="there is a host other"):
        Host(beside, "other", lambda host, _: ToyNode(host.disk))


@pytest.mark.parametrize("drift_ppm", [-DRIFT_PPM_MAX, -1, 0, 1, DRIFT_PPM_MAX])
def test_a_clock_shows_a_moment_first_when_it_says(drift_ppm: int) -> None:
    rng = random.Random(drift_ppm)
    world = Clock()
    clock = HostClock(world, booted_ms=rng.randrange(1 << 30), drift_ppm=drift_ppm, wall_off_ms=-7_000)
    for _ in range(200):
        moment = clock.booted_ms + rng.randrange(1, 1 << 40)
        world.now_us = clock.us_of(moment)
        assert clock.now_ms >= moment
        world.now_us -= 1
        assert clock.now_ms < moment
    assert clock.wall_ms - clock.now_ms == world.wall_ahead_ms + BOOTED_MS - clock.booted_ms - 7_000


class Questioner(ToyNode):
    """Asks host number 2 for every number that a tick brings, by effects; `heard` is what came of it."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.disk)
        self.asked = 0
        self.heard: dict[int, object] = {}

    def tick(self, now: int) -> None:
        super().tick(now)
        self.asked += 1
        self.effects.append(PeerRequest(self.asked, 2, (8).to_bytes(4, "big") + self.asked.to_bytes(8, "big")))

    def answered(self, now: int, token: int, answer: object) -> None:
        assert token not in self.heard
        self.heard[token] = answer


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_node_asks_another_by_an_effect_is_answered_once(seed: int) -> None:
    """By its answer and no other, or by the word that there is none, through kills and cut paths."""
    world = World(seed)
    asked = Host(world, "b", lambda host, _: ToyNode(host.disk))
    asking = Host(world, "a", lambda host, _: Questioner(host))
    asking.peers[2] = asked.endpoint
    rng = world.stream("kills")
    asked.start()
    asking.start()
    for second in range(1, 20):
        at_us = 1_000 * second * MS + rng.randrange(500 * MS)
        if second % 2:
            world.agenda.at(at_us, lambda: asked.kill(power_cut=False))
            world.agenda.at(at_us + 400 * MS, asked.start)
        else:
            world.agenda.at(at_us, world.network.cut_path, *rng.sample(["a", "b"], 2))
            world.agenda.at(at_us + 400 * MS, world.network.mend)
    world.run(RUN_US)
    assert asking.life is not None
    node = asking.life.node
    assert isinstance(node, Questioner)
    right = {token for token, answer in node.heard.items() if answer == token.to_bytes(8, "big")}
    unanswered = {token for token, answer in node.heard.items() if isinstance(answer, Unanswered)}
    assert right | unanswered == set(node.heard)
    assert len(right) > 50
    assert node.asked - len(node.heard) < 40
