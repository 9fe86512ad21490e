"""Makes the simulated world: time, network, randomness and trace, all from one seed. Hosts and clients are created in
it.

Invariant: all randomness comes from streams derived from the seed by name, so one part of the world drawing more
numbers does not change another part.
"""

import random

from ottla.sim.kernel.clock import Agenda, Clock, Micros
from ottla.sim.kernel.network import Network
from ottla.sim.kernel.trace import Trace


class World:
    """The state that all parts of one run share."""

    def __init__(self, seed: int, *, keep_all: bool = False) -> None:
        self.seed = seed
        self.clock = Clock()
        self.agenda = Agenda(self.clock)
        self.trace = Trace(self.clock, keep_all=keep_all)
        self.network = Network(self.agenda, self.stream("network"))
        self._hosts: list[str] = []

    def stream(self, name: str) -> random.Random:
        """Return a source of randomness for one part of the world."""
        return random.Random(f"{self.seed}/{name}")

    def add_host(self, name: str) -> str:
        """Add a host; return the prefix of its streams' names. The first host has no prefix, so that seeds kept from
        worlds of one host keep their meaning."""
        assert name not in self._hosts, f"there is a host {name}"
        self._hosts.append(name)
        return "" if len(self._hosts) == 1 else f"{name}/"

    def jump_wall(self, by_ms: int) -> None:
        """Set the wall clocks of all hosts forward or back, and nothing else. A node learns of it when it next runs."""
        self.clock.wall_ahead_ms += by_ms

    def run(self, until_us: Micros) -> None:
        while self.agenda.run_next(until_us):
            pass
