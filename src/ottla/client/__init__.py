"""A thin, blocking client on the project's own codec: raw frames, raw batches, and calls that other clients lack.

For users' code there are better clients (`confluent-kafka`); this one shows everything. It imports `ottla.protocol`
and nothing else of the project, so it also speaks to any other Kafka.
"""

from ottla.client.admin import delete_offsets
from ottla.client.client import Client, TopicPartition
from ottla.client.connection import Connection, Posted
from ottla.client.errors import (
    BadAnswer,
    ClientFailure,
    ConnectionClosed,
    ErrorAnswer,
    TimedOut,
    UnsupportedVersion,
)

__all__ = [
    "BadAnswer",
    "Client",
    "ClientFailure",
    "Connection",
    "ConnectionClosed",
    "ErrorAnswer",
    "Posted",
    "TimedOut",
    "TopicPartition",
    "UnsupportedVersion",
    "delete_offsets",
]
