"""A thin, blocking client on the project's own codec: raw frames, raw batches, and calls that other clients lack.

Applications should use a full client (`confluent-kafka`); this one gives access to every detail of the protocol. Of the
project it imports `ottla.protocol` alone, so it works with any Kafka broker.
"""

from ottla.client.admin import delete_offsets
from ottla.client.client import Client, TopicPartition
from ottla.client.connection import Connection, Posted
from ottla.client.errors import (
    BadResponseError,
    BrokerError,
    ClientError,
    ConnectionClosedError,
    TimedOutError,
    UnsupportedVersionError,
)
from ottla.client.private_requests import ask_node, ask_nodes
from ottla.client.share_reasons import ShareReasons

__all__ = [
    "BadResponseError",
    "BrokerError",
    "Client",
    "ClientError",
    "Connection",
    "ConnectionClosedError",
    "Posted",
    "ShareReasons",
    "TimedOutError",
    "TopicPartition",
    "UnsupportedVersionError",
    "ask_node",
    "ask_nodes",
    "delete_offsets",
]
