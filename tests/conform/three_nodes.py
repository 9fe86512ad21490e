"""Three nodes, with three copies of every topic, in the place of the one that the conformance tests are written for."""

from ottla.testing import EmbeddedBroker, EmbeddedCluster

SETTINGS = {
    "min.insync.replicas": 2,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 3,
}


class ThreeNodes(EmbeddedCluster):
    """A cluster that can be asked for what the tests ask an `EmbeddedBroker`."""

    def __init__(self) -> None:
        super().__init__(settings=SETTINGS)

    create_topic = EmbeddedBroker.create_topic
    delete_topic = EmbeddedBroker.delete_topic

    def restart(self) -> None:
        """One node after the other is killed and comes back, as a machine would."""
        for node in self.nodes:
            self.kill(node)
            self.start_node(node)
