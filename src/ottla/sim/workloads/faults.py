"""What goes wrong, when, and how it is made good again.

Each run draws which kinds of faults it has and how often, so that some runs are calm enough to get far and others
never leave the node a second. `heal` ends all of it: the network gentle, the disk fast and wide, everybody awake, the
node up.
"""

import random
from collections.abc import Callable

from ottla.sim.kernel.clock import MS, Booking
from ottla.sim.kernel.host import Host
from ottla.sim.kernel.network import Weather
from ottla.sim.workloads.workload import Plan, Workload

STEPS_TO_CUT_MAX = 400
CALM_DISK_US = 4 * MS
HOUR_MS = 3_600_000
LEAP_APART_US = 30_000 * MS
"""Between two leaps back: records on their way would rightly be refused as more than an hour ahead of the clock."""


class Faults:
    """The source of trouble of one run."""

    def __init__(self, host: Host, workload: Workload, plan: Plan) -> None:
        self.host = host
        self.world = host.world
        self.workload = workload
        self.plan = plan
        self.rng: random.Random = self.world.stream("faults")
        self.active = True
        self._restart: Booking | None = None
        self._leapt_us = -LEAP_APART_US
        kinds: list[tuple[Callable[[], None], int]] = [
            (self.kill, 3),
            (self.cut_in_mid_step, 4),
            (self.stop_cleanly, 1),
            (self.stall_node, 1),
            (self.pause_client, 3),
            (self.break_connection, 6),
            (self.client_gives_up, 3),
            (self.member_leaves, 2),
            (self.slow_disk, 2),
            (self.full_disk, 1),
            (self.failing_syncs, 1),
            (self.bad_weather, 2),
            (self.clock_leaps, 1),
        ]
        self._kinds = [(act, weight) for act, weight in kinds if self.rng.random() < 0.7]
        self._gap_us = self.rng.choice((250, 600, 1_500)) * MS
        self.world.agenda.after(self.rng.randrange(2_000 * MS), self._next)
        self.world.agenda.after(700 * MS, self._write_back)

    def _next(self) -> None:
        if not self.active:
            return
        if self._kinds:
            act = self.rng.choices([act for act, _ in self._kinds], [weight for _, weight in self._kinds])[0]
            act()
        self.world.agenda.after(self.rng.randrange(2 * self._gap_us), self._next)

    def _write_back(self) -> None:
        """The kernel's own writing back; no fault, so it goes on after healing."""
        self.host.disk.write_back()
        self.world.agenda.after(self.rng.randrange(2_000 * MS), self._write_back)

    # ---- the node ----------------------------------------------------------------------------------------------------

    def node_died(self) -> None:
        """Somebody will start it again."""
        self._start_after(self.rng.randrange(10 * MS, 1_500 * MS))

    def _start_after(self, delay_us: int) -> None:
        if self._restart is not None:
            self._restart.cancel()
        self._restart = self.world.agenda.after(delay_us, self._start)

    def _start(self) -> None:
        self._restart = None
        if self.host.up:
            return
        if self.active and self.rng.random() < 0.15:
            self._light_fuse(100)
        self.host.start()

    def _draws_power_cut(self) -> bool:
        return self.plan.power_cuts and self.rng.random() < 0.6

    def kill(self) -> None:
        self.host.kill(power_cut=self._draws_power_cut())

    def cut_in_mid_step(self) -> None:
        self._light_fuse(STEPS_TO_CUT_MAX)

    def _light_fuse(self, steps_max: int) -> None:
        self.host.cuts_power = self._draws_power_cut()
        self.host.disk.fuse = self.rng.randrange(1, self.rng.choice((4, steps_max)))

    def stop_cleanly(self) -> None:
        self.host.stop(power_cut=self._draws_power_cut())

    def stall_node(self) -> None:
        life = self.host.life
        if life is not None and life.alive and not life.paused:
            self.world.trace.add("faults", "the node stands still")
            life.pause()
            self.world.agenda.after(self.rng.randrange(4_000 * MS), life.resume)

    # ---- the clients and the network ---------------------------------------------------------------------------------

    def pause_client(self) -> None:
        client = self.rng.choice(self.workload.clients)
        if not client.paused:
            self.world.trace.add("faults", f"{client.name} stands still")
            client.pause()
            self.world.agenda.after(self.rng.randrange(6_000 * MS), client.resume)

    def break_connection(self) -> None:
        alive = self.world.network.alive()
        if alive:
            connection = self.rng.choice(alive)
            self.world.trace.add("faults", f"connection {connection.identity} of {connection.client_host} breaks")
            self.world.network.break_off(connection)

    def client_gives_up(self) -> None:
        client = self.rng.choice(self.workload.clients)
        if client.connection is not None:
            self.world.trace.add("faults", f"{client.name} hangs up, unnoticed")
            client.hang_up(lingering=True)

    def member_leaves(self) -> None:
        if self.workload.members:
            member = self.rng.choice(self.workload.members)
            if not member.leaving:
                self.world.trace.add("faults", f"{member.name} leaves")
                member.leave()
                self.world.agenda.after(self.rng.randrange(5_000 * MS), member.rejoin)

    def bad_weather(self) -> None:
        weather = self.world.network.weather
        weather.latency_max_us = self.rng.choice((2, 40, 300)) * MS
        weather.split = self.rng.choice((0.1, 0.9))
        weather.bytewise = self.rng.choice((0.0, 0.05))
        weather.spike = self.rng.choice((0.01, 0.1))
        weather.spike_max_us = self.rng.choice((80, 1_500)) * MS
        self.world.agenda.after(self.rng.randrange(4_000 * MS), self._clear_up)

    def _clear_up(self) -> None:
        self.world.network.weather = Weather()

    # ---- the disk and the clock --------------------------------------------------------------------------------------

    def slow_disk(self) -> None:
        self.world.trace.add("faults", "the disk is slow")
        self.host.disk_latency_max_us = self.rng.choice((100, 1_000, 4_000)) * MS
        self.world.agenda.after(self.rng.randrange(4_000 * MS), self._quicken_disk)

    def _quicken_disk(self) -> None:
        self.host.disk_latency_max_us = CALM_DISK_US

    def full_disk(self) -> None:
        disk = self.host.disk
        disk.capacity = disk.used + self.rng.randrange(2_000)
        self.world.trace.add("faults", f"the disk has room for {disk.capacity - disk.used} bytes")
        self.world.agenda.after(self.rng.randrange(2_000 * MS), self._cure_disk)

    def failing_syncs(self) -> None:
        self.host.disk.sync_failures = self.rng.choice((0.05, 0.5))
        self.world.trace.add("faults", "syncs begin to fail")
        self.world.agenda.after(self.rng.randrange(1_500 * MS), self._cure_disk)

    def _cure_disk(self) -> None:
        """Somebody made room or changed the cable, and starts the node again, as a log that has failed asks for."""
        disk = self.host.disk
        if disk.ails:
            disk.capacity = None
            disk.sync_failures = 0.0
            self.world.trace.add("faults", "the disk is well again")
            self.host.kill(power_cut=False)

    def clock_leaps(self) -> None:
        by_ms = self.rng.choice((-HOUR_MS, -1_500, -100, 300, 2_500, 15_000, 60_000, HOUR_MS))
        now_us = self.world.clock.now_us
        if by_ms < 0 and now_us < self._leapt_us + LEAP_APART_US:
            return
        self._leapt_us = now_us
        self.world.trace.add("faults", f"the wall clock leaps by {by_ms} ms")
        self.world.jump_wall(by_ms)

    # ---- the end of it -----------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self.active = False
        host = self.host
        self.world.trace.add("faults", "everything heals")
        host.disk.fuse = None
        self._cure_disk()
        self._quicken_disk()
        self._clear_up()
        if host.life is not None:
            host.life.resume()
        for client in self.workload.clients:
            client.resume()
        if not host.up:
            self._start_after(0)
