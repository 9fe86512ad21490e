"""A real broker for the tests of code that uses Kafka: embedded, on a port of its own, up in a moment.

    from ottla.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

With pytest, ask for the fixtures `ottla_broker` and `ottla_topic`; they come with the package.
"""

from ottla.server.listeners import ServeRefused
from ottla.testing.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker", "ServeRefused"]
