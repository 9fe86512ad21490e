"""The kernel of the simulator against a toy node: it must find planted bugs, and find none where there are none."""

import random

import pytest

from ottla.sim.kernel.clock import MS, Agenda, Clock
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.kernel.world import World
from tests.harness.sim.toy import ToyClient, ToyNode, check_notes


def run_toy(seed: int, *, lies: bool = False, **flags: bool) -> Host:
    """One seed: three clients, random deaths of the node, then a last power cut, a start and the check."""
    world = World(seed)
    host = Host(world, "node", lambda host, same_boot: ToyNode(host.disk, **flags))
    host.disk.lies = lies
    rng = world.stream("faults")

    def start() -> None:
        if not host.up and not host.start():
            world.agenda.after(50 * MS, start)

    def fault() -> None:
        chance = rng.random()
        if chance < 0.4:
            host.kill(power_cut=rng.random() < 0.7)
            world.agenda.after(50 * MS, start)
        elif chance < 0.7:
            host.cuts_power = rng.random() < 0.7
            host.disk.fuse = rng.randrange(1, 6)
            world.agenda.after(300 * MS, start)
        elif alive := world.network.alive():
            world.network.break_off(rng.choice(alive))
        world.agenda.after(rng.randrange(500 * MS), fault)

    start()
    clients = [ToyClient(host, f"writer-{i}", 1_000_000 * i) for i in range(3)]
    world.agenda.after(rng.randrange(200 * MS), fault)
    world.run(3_000 * MS)
    host.kill(power_cut=True)
    while not host.up:
        host.start()
    check_notes(host, clients)
    assert sum(len(client.acknowledged) for client in clients) > 20
    return host


@pytest.mark.parametrize("seed", range(20))
def test_a_correct_node_passes(seed: int) -> None:
    host = run_toy(seed)
    assert host.lives > 1


@pytest.mark.parametrize(
    "bug",
    [{"hasty": True}, {"names_synced": False}, {"cuts_tail": False}, {"lies": True}],
    ids=lambda bug: next(iter(bug)),
)
def test_planted_bugs_are_found(bug: dict[str, bool]) -> None:
    for seed in range(20):
        try:
            run_toy(seed, **bug)
        except InvariantError:
            return
    pytest.fail("found by none of 20 seeds")


def test_one_seed_one_trace() -> None:
    assert run_toy(7).world.trace.digest() == run_toy(7).world.trace.digest()
    assert run_toy(7).world.trace.digest() != run_toy(8).world.trace.digest()


def test_agenda_runs_in_order_of_time_then_booking() -> None:
    clock = Clock()
    agenda = Agenda(clock)
    ran: list[tuple[str, int]] = []
    rng = random.Random(1)
    wanted = [(rng.randrange(5), i) for i in range(50)]
    for time_us, number in wanted:
        agenda.at(time_us, lambda n: ran.append((n, clock.now_us)), number)
    agenda.at(2, ran.append, ("never", 2)).cancel()
    while agenda.run_next(10):
        pass
    assert ran == [(number, time_us) for time_us, number in sorted(wanted)]
    assert clock.now_us == 10
