"""A real broker for the tests of code that uses Kafka: embedded, on a port of its own, ready in a moment.

    from ottla.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

`EmbeddedCluster` is three nodes that are processes: `kill`, `pause` and `start_node` them, and check how your service
behaves.

Both can be secured: `EmbeddedBroker(tls=True, sasl="scram-sha-256", users={"ada": "lovelace"})`, and
`broker.client_properties("ada")` has what a client needs.

With pytest, ask for the fixtures `ottla_broker` and `ottla_topic`; they come with the package.
"""

from ottla.server.listeners import ServeRefusedError
from ottla.testing.cluster import EmbeddedCluster
from ottla.testing.embedded import EmbeddedBroker
from ottla.testing.security import Acl

__all__ = ["Acl", "EmbeddedBroker", "EmbeddedCluster", "ServeRefusedError"]
