"""Counts what one node does: plain integers, collected where the work is done and read by exporters.

It counts the answered requests of each API and their time, and the traffic of each topic. `server/metrics.py` names and
exports the figures. Figures that can be read from the node on demand (log sizes, groups, partitions) are not kept here.

Invariants: counters only grow. `Traffic` of a deleted topic is added to `deleted`, so sums over all topics never
decrease. A request spends at most 0.3 us here.

Source: Kafka's BrokerTopicMetrics and RequestMetrics (docs/operations/monitoring.md).
"""

from ottla.protocol.private_requests import PRIVATE_FROM

KAFKA_KEYS_MAX = 128
PRIVATE_KEYS_MAX = 32
LOW_BYTE = 0xFF
SLOTS = (PRIVATE_FROM & LOW_BYTE) + PRIVATE_KEYS_MAX
"""An API's place among the counters is the low byte of its key: those of Ottla's own requests are beyond Kafka's."""
BUCKETS = 64
"""Per API: bucket b counts requests of less than 2**b microseconds and at least 2**(b-1)."""


class Traffic:
    """The traffic of one topic since the node started."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "messages_in",
        "produce_requests",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.produce_requests = 0
        self.fetch_requests = 0
        self.failed_produce_requests = 0
        self.failed_fetch_requests = 0

    def copy(self) -> "Traffic":
        made = Traffic()
        made.add(self)
        return made

    def add(self, other: "Traffic") -> None:
        for name in Traffic.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Metrics:
    """All counters of a node. The I/O host counts connections and requests, the handlers count topics' traffic."""

    __slots__ = (
        "_latency",
        "_micros",
        "connections",
        "connections_accepted",
        "connections_refused",
        "deleted",
        "topics",
    )

    def __init__(self) -> None:
        self._latency = [0] * (SLOTS * BUCKETS)
        self._micros = [0] * SLOTS
        self.topics: dict[str, Traffic] = {}
        self.deleted = Traffic()
        """Traffic of deleted topics, and failures that belong to no topic."""
        self.connections = 0
        self.connections_accepted = 0
        self.connections_refused = 0

    # ---- hot: once per request -------------------------------------------------------------------------------------

    def request_done(self, api_key: int, micros: int) -> None:
        """A request was answered `micros` microseconds after it had been read whole. The key's low byte is enough."""
        slot = api_key & LOW_BYTE
        self._latency[(slot << 6) + micros.bit_length()] += 1
        self._micros[slot] += micros

    # ---- cold ------------------------------------------------------------------------------------------------------

    def traffic(self, topic: str) -> Traffic:
        """The counters of one topic: each of its partitions keeps them, and counts without looking them up."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = Traffic()
        return found

    def traffic_asked_of(self, topic: str | None) -> Traffic:
        """The counters for a request for this topic, which may not exist."""
        return self.deleted if topic is None else self.topics.get(topic, self.deleted)

    def produce_failed(self, topic: str | None) -> None:
        traffic = self.traffic_asked_of(topic)
        traffic.produce_requests += 1
        traffic.failed_produce_requests += 1

    def topic_deleted(self, topic: str) -> None:
        gone = self.topics.pop(topic, None)
        if gone is not None:
            self.deleted.add(gone)

    # ---- readers ---------------------------------------------------------------------------------------------------

    def totals(self) -> Traffic:
        """The traffic of all topics, those deleted included."""
        sums = Traffic()
        sums.add(self.deleted)
        for traffic in self.topics.values():
            sums.add(traffic)
        return sums

    def latency(self, api_key: int) -> tuple[list[int], int]:
        """The requests per bucket and the total microseconds of one API; bucket b holds times below 2**b
        microseconds."""
        slot = api_key & LOW_BYTE
        return self._latency[slot << 6 : (slot + 1) << 6], self._micros[slot]

    def served(self) -> list[int]:
        """The API keys that were asked for at least once, in order."""
        keys = (*range(KAFKA_KEYS_MAX), *range(PRIVATE_FROM, PRIVATE_FROM + PRIVATE_KEYS_MAX))
        return [key for key in keys if any(self.latency(key)[0])]
