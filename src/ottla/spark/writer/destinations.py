"""Finds where rows may go: a topic's partitions, those that have a leader, and its maximum batch size.

The cluster is asked once for each topic. A broker with `auto.create.topics.enable` creates a missing topic, as with
Kafka's own producer; a topic that is still missing after `max_block_ms` is refused. If the cluster cannot be reached,
the writer waits, as long as for the delivery of a record.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ottla.client import BrokerError, Client, ClientError
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.spark.codec.encode import Destination, WriteRefusedError

LIMIT = "max.message.bytes"
LIMIT_DEFAULT = 1_048_588
"""Kafka's default, where the broker does not say."""
PAUSE_S = 0.1
_NOT_YET = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE}


class Destinations:
    """The topics of one task, each looked up when a row first names it."""

    def __init__(self, client: Callable[[], Client], max_block_ms: int, delivery_timeout_ms: int = 120_000) -> None:
        self._client = client
        self._max_block_ms = max_block_ms
        self._delivery_timeout_ms = delivery_timeout_ms
        self._known: dict[str, Destination] = {}

    def find(self, topic: str) -> Destination:
        """Raises WriteRefusedError for a topic that does not exist or that may not be written."""
        if topic not in self._known:
            leaders = self._leaders(topic)
            available = tuple(index for index, leader in enumerate(leaders) if leader >= 0)
            everywhere = tuple(range(len(leaders)))
            limit = self._batch_bytes_max(topic)
            self._known[topic] = Destination(topic, len(leaders), available or everywhere, limit)
        return self._known[topic]

    def _leaders(self, topic: str) -> tuple[int, ...]:
        began = time.monotonic()
        while True:
            patience_ms = self._max_block_ms
            try:
                (found,) = self._client().metadata([topic], create=True).topics
                if found.error_code == 0:
                    leaders = {part.partition_index: part.leader_id for part in found.partitions}
                    return tuple(leaders[index] for index in sorted(leaders))
                failure = BrokerError(found.error_code, f"topic {topic}")
                if found.error_code not in _NOT_YET:
                    raise WriteRefusedError(f"Topic {topic} can't be written: {failure}")
            except ClientError as error:
                failure, patience_ms = error, self._delivery_timeout_ms
            if time.monotonic() - began > patience_ms / 1000:
                raise WriteRefusedError(
                    f"Topic {topic} is not there after {patience_ms / 1000:g} s ({failure}). Create it, or correct the "
                    "option or the column 'topic'."
                )
            time.sleep(PAUSE_S)

    def _batch_bytes_max(self, topic: str) -> int:
        """Return the broker's limit; its default if the broker does not report it to this client."""
        resource = DescribeConfigsResource(ConfigResourceType.TOPIC, topic, [LIMIT])
        try:
            (result,) = self._client().send(DescribeConfigsRequest([resource])).results
        except ClientError:
            return LIMIT_DEFAULT
        values = [each.value for each in result.configs or () if each.name == LIMIT]
        return int(values[0]) if values and values[0] else LIMIT_DEFAULT
