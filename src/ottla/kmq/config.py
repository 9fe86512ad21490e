"""Configures a queue, its names and its redelivery: the same object for clients, trackers and commands.

It has the options of softwaremill/kmq's KmqConfig, with their meanings and defaults, and additions of Ottla.
"""

from __future__ import annotations

from dataclasses import dataclass

COUNT_HEADER = "kmq-redelivery-count"
MARKERS_SUFFIX = "__markers"
DEAD_LETTERS_SUFFIX = "__undelivered"


class KmqRefusedError(Exception):
    """An impossible request, explained in one sentence for the person who made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KmqConfig:
    """A queue on top of a Kafka topic. Empty names get defaults made from the queue's name.

    - `queue`, `markers`, `dead_letters`: topics; `QUEUE__markers` and `QUEUE__undelivered` by default.
    - `group_id`: the workers' consumer group, `kmq-QUEUE` by default. `tracker_group_id`: the trackers' group, by
      default `kmq-QUEUE-tracker`. All trackers of a queue share one group, which keeps their position in the markers
      topic.
    - `timeout_ms`: how long a worker may work on a message before another worker gets it, 30 s.
    - `use_now_after_ms`: the original's useNowForRedeliverDespiteNoMarkerSeenForMs, 1 s. The tracker uses the newest
      marker's timestamp as the current time. Once it has reached the end of the markers topic and no marker has arrived
      for this long, it uses its own clock.
    - `max_redeliveries`: redeliveries of a message before it becomes a dead letter, 3. `count_header`: the header that
      holds the number of redeliveries.
    - `backoff_ms`, `backoff_multiplier`, `backoff_ms_max`: delay of a redelivery after the time-out or failure:
      `backoff_ms * backoff_multiplier ** redeliveries so far`, at most `backoff_ms_max`; 0, no delay, by default.
    - `batch_size`: messages per `next_batch()` at most. Their time-outs all begin when the batch begins.
    - `open_max`: how many messages in progress the tracker keeps in memory per partition. If there are more, it reads
      the markers topic again once there is room (see machine.py). `in_flight_max`: concurrent redeliveries per
      partition.
    """

    queue: str
    markers: str = ""
    dead_letters: str = ""
    group_id: str = ""
    tracker_group_id: str = ""
    timeout_ms: int = 30_000
    use_now_after_ms: int = 1_000
    max_redeliveries: int = 3
    count_header: str = COUNT_HEADER
    backoff_ms: int = 0
    backoff_multiplier: float = 2.0
    backoff_ms_max: int = 300_000
    batch_size: int = 1_000
    open_max: int = 200_000
    in_flight_max: int = 1_000

    def __post_init__(self) -> None:
        """Fill in the names; raises KmqRefusedError if a value is invalid."""
        named = {
            "markers": self.queue + MARKERS_SUFFIX,
            "dead_letters": self.queue + DEAD_LETTERS_SUFFIX,
            "group_id": f"kmq-{self.queue}",
            "tracker_group_id": f"kmq-{self.queue}-tracker",
        }
        for name, default in named.items():
            if not getattr(self, name):
                object.__setattr__(self, name, default)
        for name in ("timeout_ms", "batch_size", "open_max", "in_flight_max"):
            if getattr(self, name) < 1:
                raise KmqRefusedError(f"{name} must be at least 1, not {getattr(self, name)}.")
        for name in ("use_now_after_ms", "max_redeliveries", "backoff_ms", "backoff_ms_max"):
            if getattr(self, name) < 0:
                raise KmqRefusedError(f"{name} must not be negative, as {getattr(self, name)} is.")
        if self.backoff_multiplier < 1:
            raise KmqRefusedError(f"backoff_multiplier must be at least 1, not {self.backoff_multiplier}.")
        if not self.queue:
            raise KmqRefusedError("A queue has a name: the topic with its messages.")
        if len({self.queue, self.markers, self.dead_letters}) < 3:
            raise KmqRefusedError("The queue, its markers and its dead letters are three different topics.")
        if self.group_id == self.tracker_group_id:
            raise KmqRefusedError("Workers and trackers are two different groups.")

    def backoff_after_ms(self, redeliveries: int) -> int:
        """The delay before the next redelivery of a message that has had `redeliveries` so far."""
        if not self.backoff_ms:
            return 0
        try:
            return min(self.backoff_ms_max, int(self.backoff_ms * self.backoff_multiplier**redeliveries))
        except OverflowError:
            return self.backoff_ms_max
