"""Plans the faults of a run and their times, and repairs them.

Each run draws its kinds of faults and their frequency. Some runs are calm enough to get far, and others never leave the
node alone for a second. `heal` ends all faults: the network is reliable, the disk fast and large, all clients run, the
node is up.
"""

import random
from collections.abc import Callable

from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.faults import HostFaults, PathFaults
from ottla.sim.kernel.host import Host
from ottla.sim.workloads.workload import Plan, Workload

HOUR_MS = 3_600_000
LEAP_APART_US = 30_000 * MS
"""Time between two leaps back. With less, records in flight would rightly be refused as more than an hour ahead of the
clock."""


class ClientFaults:
    """The faults of the clients of a run; clients may be added later."""

    def __init__(self, workload: Workload, rng: random.Random) -> None:
        self.rng = rng
        self._workload = workload
        self._agenda = workload.world.agenda
        self._trace = workload.world.trace

    def kinds(self) -> list[tuple[Callable[[], None], int]]:
        """Return the faults that only some of these clients have, and their frequency, in addition to the three
        below."""
        return []

    def pause(self) -> None:
        client = self.rng.choice(self._workload.clients)
        if not client.paused:
            self._trace.add("faults", f"{client.name} stands still")
            client.pause()
            self._agenda.after(self.rng.randrange(6_000 * MS), client.resume)

    def give_up(self) -> None:
        client = self.rng.choice(self._workload.clients)
        if client.connection is not None:
            self._trace.add("faults", f"{client.name} hangs up, unnoticed")
            client.hang_up(lingering=True)

    def member_leaves(self) -> None:
        if self._workload.members:
            member = self.rng.choice(self._workload.members)
            if not member.leaving:
                self._trace.add("faults", f"{member.name} leaves")
                member.leave()
                self._agenda.after(self.rng.randrange(5_000 * MS), member.rejoin)

    def heal(self) -> None:
        """Resume all clients."""
        for client in self._workload.clients:
            client.resume()


class Faults:
    """Causes the faults of one run."""

    def __init__(self, host: Host, workload: Workload, plan: Plan) -> None:
        self.world = host.world
        self.rng: random.Random = self.world.stream("faults")
        self.clients = self.client_faults(workload)
        self.active = True
        self.node = HostFaults(host, self.rng, power_cuts=plan.power_cuts)
        self.network = PathFaults(self.world, self.rng)
        self._leapt_us = -LEAP_APART_US
        kinds: list[tuple[Callable[[], None], int]] = [
            (self.node.kill, 3),
            (self.node.cut_in_mid_step, 4),
            (self.node.stop_cleanly, 1),
            (self.node.stall, 1),
            (self.clients.pause, 3),
            (self.network.break_connection, 6),
            (self.clients.give_up, 3),
            (self.clients.member_leaves, 2),
            (self.node.slow_disk, 2),
            (self.node.full_disk, 1),
            (self.node.failing_syncs, 1),
            (self.network.bad_weather, 2),
            (self.clock_leaps, 1),
            (self.node.slow_store, 1),
            (self.node.lossy_store, 2),
        ]
        self._kinds = [(act, weight) for act, weight in kinds if self.rng.random() < 0.7]
        self._gap_us = self.rng.choice((250, 600, 1_500)) * MS
        self.world.agenda.after(self.rng.randrange(2_000 * MS), self._next)
        self.world.agenda.after(700 * MS, self.node.write_back)

    def client_faults(self, workload: Workload) -> ClientFaults:
        return ClientFaults(workload, self.rng)

    def _next(self) -> None:
        if not self.active:
            return
        if self._kinds:
            act = self.rng.choices([act for act, _ in self._kinds], [weight for _, weight in self._kinds])[0]
            act()
        self.world.agenda.after(self.rng.randrange(2 * self._gap_us), self._next)

    # ---- the clock -------------------------------------------------------------------------------------------------

    def clock_leaps(self) -> None:
        by_ms = self.rng.choice((-HOUR_MS, -1_500, -100, 300, 2_500, 15_000, 60_000, HOUR_MS))
        now_us = self.world.clock.now_us
        if by_ms < 0 and now_us < self._leapt_us + LEAP_APART_US:
            return
        self._leapt_us = now_us
        self.world.trace.add("faults", f"the wall clock leaps by {by_ms} ms")
        self.world.jump_wall(by_ms)

    def calm(self) -> None:
        """Cause no new faults."""
        self.active = self.node.active = False

    # ---- the end of it ---------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults, and cause no new ones."""
        self.calm()
        self.world.trace.add("faults", "everything heals")
        self.network.heal()
        self.node.heal()
        self.clients.heal()
        self.node.start_now()
