"""Implements the faults of a host and of the paths between hosts, and their repair.

Each method causes one fault, which ends by itself some time later; the workload decides when to call it. `heal` ends
all faults at once.
"""

import random
from collections.abc import Callable, Sequence

from ottla.sim.kernel.clock import MS, Booking
from ottla.sim.kernel.host import CALM_DISK_US, Host
from ottla.sim.kernel.network import Path, Weather
from ottla.sim.kernel.world import World

STEPS_TO_CUT_MAX = 400


class HostFaults:
    """The faults of one host: its process, its power, its disk. `start` restarts a node that has died; by default that
    is the host's own."""

    def __init__(
        self, host: Host, rng: random.Random, *, power_cuts: bool, start: Callable[[], object] | None = None
    ) -> None:
        self.host = host
        self.rng = rng
        self.power_cuts = power_cuts
        self.active = True
        self._agenda = host.world.agenda
        self._start_node = host.start if start is None else start
        self._restart: Booking | None = None

    def write_back(self) -> None:
        """Let the kernel write back, repeatedly; this is no fault, so it continues after healing."""
        self.host.disk.write_back()
        self._agenda.after(self.rng.randrange(2_000 * MS), self.write_back)

    # ---- the node --------------------------------------------------------------------------------------------------

    def node_died(self) -> None:
        """Book the restart of the node."""
        self._start_after(self.rng.randrange(10 * MS, 1_500 * MS))

    def _start_after(self, delay_us: int) -> None:
        if self._restart is not None:
            self._restart.cancel()
        self._restart = self._agenda.after(delay_us, self._start)

    def _start(self) -> None:
        self._restart = None
        if self.host.up:
            return
        if self.active and self.rng.random() < 0.15:
            self._light_fuse(100)
        self._start_node()

    def _draws_power_cut(self) -> bool:
        return self.power_cuts and self.rng.random() < 0.6

    def kill(self) -> None:
        self.host.kill(power_cut=self._draws_power_cut())

    def cut_in_mid_step(self) -> None:
        self._light_fuse(STEPS_TO_CUT_MAX)

    def _light_fuse(self, steps_max: int) -> None:
        self.host.cuts_power = self._draws_power_cut()
        self.host.disk.fuse = self.rng.randrange(1, self.rng.choice((4, steps_max)))

    def stop_cleanly(self) -> None:
        self.host.stop(power_cut=self._draws_power_cut())

    def stall(self, at_most_ms: int = 4_000) -> None:
        life = self.host.life
        if life is not None and life.alive and not life.paused:
            self._tell("stands still")
            life.pause()
            self._agenda.after(self.rng.randrange(at_most_ms * MS), life.resume)

    # ---- the disk --------------------------------------------------------------------------------------------------

    def slow_disk(self) -> None:
        self._tell("has a slow disk")
        self.host.disk_latency_max_us = self.rng.choice((100, 1_000, 4_000)) * MS
        self._agenda.after(self.rng.randrange(4_000 * MS), self._quicken_disk)

    def _quicken_disk(self) -> None:
        self.host.disk_latency_max_us = CALM_DISK_US

    def full_disk(self) -> None:
        disk = self.host.disk
        disk.capacity = disk.used + self.rng.randrange(2_000)
        self._tell(f"has room for {disk.capacity - disk.used} bytes on its disk")
        self._agenda.after(self.rng.randrange(2_000 * MS), self._cure_disk)

    def failing_syncs(self) -> None:
        self.host.disk.sync_failures = self.rng.choice((0.05, 0.5))
        self._tell("has syncs that fail")
        self._agenda.after(self.rng.randrange(1_500 * MS), self._cure_disk)

    def _cure_disk(self) -> None:
        """Repair the disk and restart the node, which a failed log requires."""
        disk = self.host.disk
        if disk.ails:
            disk.capacity = None
            disk.sync_failures = 0.0
            self._tell("has a disk that is well again")
            self.host.kill(power_cut=False)

    # ---- the metadata store ----------------------------------------------------------------------------------------

    def slow_store(self) -> None:
        store = self.host.store
        if store is not None:
            store.latency_max_us = self.rng.choice((100, 1_000, 4_000)) * MS
            self._tell("has a slow way to the metadata store")
            self._agenda.after(self.rng.randrange(4_000 * MS), store.heal)

    def lossy_store(self) -> None:
        """Lose the answers to some commits, and let another writer precede some of them."""
        store = self.host.store
        if store is not None:
            store.lost_answers, store.rivals = self.rng.choice(((0.3, 0.0), (0.0, 0.5), (0.3, 0.5)))
            self._tell("has a metadata store that loses answers and has other writers")
            self._agenda.after(self.rng.randrange(6_000 * MS), store.heal)

    def cut_store(self) -> None:
        """Cut the path to the metadata store."""
        store = self.host.store
        if store is not None:
            store.is_cut = True
            self._tell("does not reach the metadata store")
            self._agenda.after(self.rng.randrange(4_000 * MS), store.heal)

    # ---- the end of it ---------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults; `start_now` starts a node that is down."""
        self.active = False
        self.host.disk.fuse = None
        self._cure_disk()
        self._quicken_disk()
        if self.host.store is not None:
            self.host.store.heal()
        if self.host.life is not None:
            self.host.life.resume()

    def start_now(self) -> None:
        if not self.host.up:
            self._start_after(0)

    def _tell(self, what: str) -> None:
        self.host.world.trace.add("faults", f"{self.host.name} {what}")


class PathFaults:
    """The faults of the network: broken connections, bad weather, paths between hosts that carry nothing."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.rng = rng
        self._agenda = world.agenda
        self._network = world.network
        self._trace = world.trace

    def break_connection(self) -> None:
        alive = self._network.alive()
        if alive:
            connection = self.rng.choice(alive)
            self._trace.add("faults", f"connection {connection.identity} of {connection.client_host} breaks")
            self._network.break_off(connection)

    def bad_weather(self) -> None:
        """Make all paths bad."""
        weather = self._network.weather
        weather.latency_max_us = self.rng.choice((2, 40, 300)) * MS
        weather.split = self.rng.choice((0.1, 0.9))
        weather.bytewise = self.rng.choice((0.0, 0.05))
        weather.spike = self.rng.choice((0.01, 0.1))
        weather.spike_max_us = self.rng.choice((80, 1_500)) * MS
        self._agenda.after(self.rng.randrange(4_000 * MS), self._clear_up)

    def _clear_up(self) -> None:
        self._network.weather = Weather()

    def bad_path(self, hosts: Sequence[str]) -> None:
        """Make the path from one of these hosts to another slow, lossy, or both."""
        one, other = self.rng.sample(hosts, 2)
        self._trace.add("faults", f"what {one} sends to {other} is late")
        weather = Weather(latency_max_us=self.rng.choice((2, 800)) * MS, loss=self.rng.choice((0.0, 0.4)))
        self._network.weathers[one, other] = weather
        self._agenda.after(self.rng.randrange(3_000 * MS), self._clear_path, (one, other))

    def _clear_path(self, path: Path) -> None:
        self._network.weathers.pop(path, None)

    def cut_path(self, hosts: Sequence[str]) -> None:
        """Cut the path from one of these hosts to another, but not the way back."""
        one, other = self.rng.sample(hosts, 2)
        self._trace.add("faults", f"nothing goes from {one} to {other}")
        self._network.cut_path(one, other)
        self._agenda.after(self.rng.randrange(1_500 * MS), self._network.mend_path, one, other)

    def part(self, hosts: Sequence[str]) -> None:
        """Cut some of these hosts, but not all, off from all other hosts and clients."""
        apart = self.rng.sample(hosts, self.rng.randrange(1, len(hosts)))
        self._trace.add("faults", f"{' and '.join(apart)} cut off")
        self._network.part(apart)
        self._agenda.after(self.rng.randrange(1_500 * MS), self._network.mend)

    def heal(self) -> None:
        """Restore all paths, so that everything arrives soon."""
        self._clear_up()
        self._network.weathers.clear()
        self._network.mend()
