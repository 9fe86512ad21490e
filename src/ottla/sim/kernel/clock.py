"""Simulates time: a clock that moves only on request, the clocks of the hosts, and the agenda of events.

Time is in microseconds since the start of the simulation; events are ordered by (time, sequence). Invariants: time
never goes back, and two events at the same time run in the order in which they were booked. The same bookings therefore
give the same run, on any machine and under any PYTHONHASHSEED.

Source: FoundationDB (SIGMOD 2021, section 4), TigerBeetle's VOPR.
"""

import heapq
from collections.abc import Callable
from typing import Any, TypeAlias

from ottla.machine import Millis, WallMillis

Micros: TypeAlias = int
"""Microseconds since the simulation began."""

MS = 1_000
"""Microseconds in a millisecond."""

MILLION = 1_000_000

BOOTED_MS: Millis = 1_000_000
"""The monotonic clock's value at the start, far from the wall clock's, so that the two are never confused."""

EPOCH_MS = 1_800_000_000_000
"""The wall clock's value at the start of the simulation."""


class Clock:
    """The time of the simulated world: `now_us` is what it counts by, `now_ms` and `wall_ms` what a process reads on a
    host whose clock is right."""

    __slots__ = ("now_us", "wall_ahead_ms")

    def __init__(self) -> None:
        self.now_us: Micros = 0
        self.wall_ahead_ms = EPOCH_MS - BOOTED_MS

    @property
    def now_ms(self) -> Millis:
        """The monotonic clock."""
        return BOOTED_MS + self.now_us // MS

    @property
    def wall_ms(self) -> WallMillis:
        """The wall clock, which may be set."""
        return WallMillis(self.now_ms + self.wall_ahead_ms)


class HostClock:
    """The clock of one host. It may have been started at a different moment (`booted_ms`), be set wrong
    (`wall_off_ms`), and run fast or slow (`drift_ppm`, microseconds in a second; negative: slow)."""

    __slots__ = ("booted_ms", "drift_ppm", "wall_off_ms", "world")

    def __init__(
        self, world: Clock, *, booted_ms: Millis = BOOTED_MS, wall_off_ms: int = 0, drift_ppm: int = 0
    ) -> None:
        self.world = world
        self.booted_ms = booted_ms
        self.wall_off_ms = wall_off_ms
        self.drift_ppm = drift_ppm

    @property
    def now_ms(self) -> Millis:
        """The monotonic clock."""
        return self.booted_ms + self.world.now_us * (MILLION + self.drift_ppm) // (MILLION * MS)

    @property
    def wall_ahead_ms(self) -> int:
        """How far the wall clock is ahead of the monotonic one; it changes only when the wall clock is set."""
        return self.world.wall_ahead_ms + BOOTED_MS - self.booted_ms + self.wall_off_ms

    @property
    def wall_ms(self) -> WallMillis:
        """The wall clock, which may be set."""
        return WallMillis(self.now_ms + self.wall_ahead_ms)

    def us_of(self, moment: Millis) -> Micros:
        """Return the world's time at which the monotonic clock first shows this."""
        return -((self.booted_ms - moment) * MS * MILLION // (MILLION + self.drift_ppm))


class Booking:
    """One coming event; `cancel` drops it silently."""

    __slots__ = ("act", "args")

    def __init__(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.act: Callable[..., None] | None = act
        self.args = args

    def cancel(self) -> None:
        self.act = None
        self.args = ()


class Agenda:
    """The booked events and their times."""

    __slots__ = ("_bookings", "_sequence", "clock", "events_run")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.events_run = 0
        self._bookings: list[tuple[Micros, int, Booking]] = []
        self._sequence = 0

    def at(self, time_us: Micros, act: Callable[..., None], *args: Any) -> Booking:
        """Book `act(*args)`. A time in the past means now, after the events that are already booked for now."""
        booking = Booking(act, args)
        now_us = self.clock.now_us
        self._sequence += 1
        heapq.heappush(self._bookings, (time_us if time_us > now_us else now_us, self._sequence, booking))
        return booking

    def after(self, delay_us: Micros, act: Callable[..., None], *args: Any) -> Booking:
        return self.at(self.clock.now_us + delay_us, act, *args)

    def run_next(self, until_us: Micros) -> bool:
        """Run the earliest event not later than `until_us`. Without one, set the clock to `until_us` and return
        False."""
        bookings = self._bookings
        while bookings and bookings[0][0] <= until_us:
            time_us, _, booking = heapq.heappop(bookings)
            act = booking.act
            if act is None:
                continue
            self.clock.now_us = time_us
            self.events_run += 1
            act(*booking.args)
            return True
        self.clock.now_us = max(self.clock.now_us, until_us)
        return False
