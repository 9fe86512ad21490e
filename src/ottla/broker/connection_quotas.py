"""Decides which connections a node accepts, and when, by the number of open connections and the rate of new ones.

A connection above its address's rate limit is delayed and then closed. So a client that retries at once does not do so
a thousand times a second. If the node as a whole gets too many connections, each one is served with a delay that keeps
to the limit. The I/O host calls this module for each connection.

Kafka counts a connection for the whole node before it checks its address. Here the address is checked first, so an
address that connects too often does not delay the others.

Sources: KIP-306, KIP-402, KIP-612; Kafka's SocketServer.scala (ConnectionQuotas, Acceptor).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.broker.config.addresses import Host, ip_address, limits_by_address
from ottla.broker.config.addresses import host as host_of
from ottla.broker.config.key import INT_MAX
from ottla.broker.config.values import Settings
from ottla.broker.rates import Rate
from ottla.machine import Millis
from ottla.metadata.quotas import CONNECTION_CREATION_RATE, IP, entity_of
from ottla.metadata.row_kinds import Configs

ADDRESSES_MAX: Final = 10_000
"""Of how many addresses it is remembered how often they connect; the one that was away longest is forgotten."""
CLOSING_MAX: Final = 1_000
"""How many connections may wait to be closed; more are closed at once."""
DELAY_MS_MAX: Final = 10_000
"""How long a connection waits at most before it is served; clients have given it up by then."""

TOO_OFTEN: Final = "it connects too often"


class Admission(NamedTuple):
    """The decision about a connection: after `wait_ms` it is served, or closed because of `refused`."""

    wait_ms: int = 0
    refused: str | None = None


class ConnectionQuotas:
    """The connections of one node. An admitted connection counts until `ended`; one that waits to be closed counts
    until `closed`. `room`: how many connections the process can have open."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.room = INT_MAX
        self._open = 0
        self._closing = 0
        self._of_address: dict[Host, int] = {}
        self._limits: dict[Host, float] = {}
        self._default: float | None = None
        self._came: dict[Host, Rate] = {}
        self._served: Rate | None = None
        self._serves_at: Millis | None = None
        """The time at which the last accepted connection is served; the next one is not served earlier."""

    def keep_to(self, quotas: Mapping[str, Configs]) -> None:
        """Apply these quotas of addresses from now on, and reset the counts. `quotas`: as in the image."""
        self._limits, self._default, self._came = {}, None, {}
        for name, limits in quotas.items():
            entity, limit = entity_of(name), limits.get(CONNECTION_CREATION_RATE)
            if IP in entity and limit is not None:
                address = entity[IP]
                if address is None:
                    self._default = float(limit)
                else:
                    self._limits[ip_address(address)] = float(limit)

    def admit(self, now: Millis, host: str) -> Admission:
        """Decide about a new connection from this address."""
        address = host_of(host)
        open_max = min(self._settings["max.connections"], self.room)
        if self._open + self._closing >= open_max:
            return Admission(0, f"{self._open} of {open_max} are open")
        wait_ms = self._wait_ms(now, address)
        if wait_ms and self._closing < CLOSING_MAX:
            self._closing += 1
            return Admission(wait_ms, TOO_OFTEN)
        if wait_ms:
            return Admission(0, TOO_OFTEN)
        have, most = self._of_address.get(address, 0), self._most_of(address)
        if have >= most:
            return Admission(0, f"{have} of {most} are open from there")
        delay_ms = self._delay_ms(now)
        if delay_ms is None:
            return Admission(0, "too many connections wait to be accepted")
        self._of_address[address] = have + 1
        self._open += 1
        return Admission(delay_ms)

    def ended(self, host: str) -> None:
        """An admitted connection of this address has closed."""
        address = host_of(host)
        self._open -= 1
        left = self._of_address.pop(address) - 1
        if left:
            self._of_address[address] = left

    def closed(self) -> None:
        """A connection that waited to be closed is."""
        self._closing -= 1

    def _most_of(self, address: Host) -> int:
        """How many connections may be open from there."""
        overrides: str = self._settings["max.connections.per.ip.overrides"]
        most: int = self._settings["max.connections.per.ip"]
        return limits_by_address(overrides).get(address, most) if overrides else most

    def _wait_ms(self, now: Millis, address: Host) -> int:
        """How long after this connection the address is back at its limit; 0 if it is not above. A connection above the
        limit is not counted."""
        limit = self._limits.get(address, self._default)
        if limit is None:
            return 0
        rate = self._came.pop(address, None)
        if rate is None:
            rate = self._rate()
            if len(self._came) >= ADDRESSES_MAX:
                del self._came[next(iter(self._came))]
        self._came[address] = rate  # the last entry is the most recent
        return self._recorded(rate, now, limit, keep=False)

    def _delay_ms(self, now: Millis) -> int | None:
        """The delay of this connection, as the node accepts a limited number per second; None if the delay would be too
        long."""
        limit = self._settings["max.connection.creation.rate"]
        if limit == INT_MAX:
            return 0
        if self._served is None:
            self._served = self._rate()
        at = now if self._serves_at is None else max(now, self._serves_at)
        if at - now > DELAY_MS_MAX:
            return None
        self._serves_at = at + self._recorded(self._served, at, limit, keep=True)
        return self._serves_at - now

    def _rate(self) -> Rate:
        return Rate(self._settings["quota.window.num"], self._window_ms)

    @property
    def _window_ms(self) -> int:
        return self._settings["quota.window.size.seconds"] * 1000

    def _recorded(self, rate: Rate, now: Millis, limit: float, *, keep: bool) -> int:
        """Count one connection, and return the time until the rate is back at the limit, at most one window."""
        rate.record(now, 1)
        wait_ms = min(rate.wait_ms(now, limit), self._window_ms)
        if wait_ms and not keep:
            rate.record(now, -1)
        return wait_ms
