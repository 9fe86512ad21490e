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

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.server.listeners import ServeRefusedError
    from ottla.testing.cluster import EmbeddedCluster
    from ottla.testing.embedded import EmbeddedBroker
    from ottla.testing.security import Acl

__all__ = ["Acl", "EmbeddedBroker", "EmbeddedCluster", "ServeRefusedError"]

_MODULES = {
    "Acl": "ottla.testing.security",
    "EmbeddedBroker": "ottla.testing.embedded",
    "EmbeddedCluster": "ottla.testing.cluster",
    "ServeRefusedError": "ottla.server.listeners",
}


def __getattr__(name: str) -> object:
    """Import what is asked for: a broker without security starts without the modules of a cluster and of security."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
