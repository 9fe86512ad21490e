"""Three nodes, with three copies of every topic, in the place of the one that the conformance tests are written for."""

import time
from typing import Any

from ottla.client import Client
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.testing import EmbeddedBroker, EmbeddedCluster

SETTINGS = {
    "min.insync.replicas": 2,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 3,
}


def wait_until_known(bootstrap: str, topic: str) -> None:
    """Return when every one of these nodes knows of the topic: a leader that does not yet loses what a producer with
    acks=0 sends, and a consumer that asks such a node hears that there is no such topic."""
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    until = time.monotonic() + 30
    for address in bootstrap.split(","):
        with Client(address) as client:
            while client.send(asked).topics[0].error_code:
                assert time.monotonic() < until, f"{address} does not know of {topic}"
                time.sleep(0.01)


class ThreeNodes(EmbeddedCluster):
    """A cluster that can be asked for what the tests ask an `EmbeddedBroker`."""

    def __init__(self) -> None:
        super().__init__(settings=SETTINGS)

    def create_topic(self, name: str | None = None, **options: Any) -> str:
        """Create a topic, and return its name when every node knows of it."""
        name = EmbeddedBroker.create_topic(self, name, **options)  # pyright: ignore[reportArgumentType]
        wait_until_known(self.bootstrap_servers, name)
        return name

    delete_topic = EmbeddedBroker.delete_topic

    def restart(self) -> None:
        """One node after the other is killed and comes back, as a machine would."""
        for node in self.nodes:
            self.kill(node)
            self.start_node(node)
