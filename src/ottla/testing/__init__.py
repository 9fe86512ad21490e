"""A real broker for the tests of code that uses Kafka: embedded, on a port of its own, ready in a moment.

    from ottla.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

`EmbeddedCluster` is three nodes that are processes: `kill`, `pause` and `start_node` them, and check how your service
behaves.

With pytest, ask for the fixtures `ottla_broker` and `ottla_topic`; they come with the package.
"""

from ottla.server.listeners import ServeRefused
from ottla.testing.cluster import EmbeddedCluster
from ottla.testing.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker", "EmbeddedCluster", "ServeRefused"]
