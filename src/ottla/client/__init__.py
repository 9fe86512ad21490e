"""A thin, blocking client on the project's own codec: raw frames, raw batches, and calls that other clients lack.

Applications should use a full client (`confluent-kafka`); this one gives access to every detail of the protocol. Of the
project it imports `ottla.protocol` alone, so it works with any Kafka broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from ottla.client.admin import delete_offsets
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

_MODULES = {
    "ShareReasons": "ottla.client.share_reasons",
    "ask_node": "ottla.client.private_requests",
    "ask_nodes": "ottla.client.private_requests",
    "delete_offsets": "ottla.client.admin",
}


def __getattr__(name: str) -> object:
    """Import what is asked for: a program that only produces starts without the other calls."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
