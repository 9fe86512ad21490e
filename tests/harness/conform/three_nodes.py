"""Three nodes, with three copies of every topic, in the place of the one that the conformance tests are written for;
and who kills them one after the other meanwhile."""

import threading
import time
from contextlib import suppress
from functools import partial
from itertools import cycle
from typing import Any

from ottla.client import Client, ClientError
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.testing import EmbeddedBroker, EmbeddedCluster
from tests.harness.waiting import soon

SETTINGS = {
    "min.insync.replicas": 2,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.num.partitions": 3,
    # A member whose last word is lost is missed after its session, which begins anew with each new coordinator.
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 6000,
}
IN_SYNC_S = 120.0


def wait_until_known(bootstrap: str, topic: str) -> None:
    """Return when every one of these nodes knows of the topic: a leader that does not yet loses what a producer with
    acks=0 sends, and a consumer that asks such a node hears that there is no such topic."""
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    for address in bootstrap.split(","):
        soon(partial(knows, address, asked), f"{address} knows of {topic}")


def knows(address: str, asked: MetadataRequest) -> bool:
    with suppress(ClientError), Client(address) as client:
        return client.send(asked).topics[0].error_code == 0
    return False


class ThreeNodes(EmbeddedCluster):
    """A cluster that can be asked for what the tests ask an `EmbeddedBroker`. `undisturbed` is held by who kills a
    node, and by what no node may die under; `deaths`: how many were killed."""

    def __init__(self) -> None:
        super().__init__(settings=SETTINGS)
        self.undisturbed = threading.RLock()
        self.deaths = 0

    def kill(self, node: int) -> None:
        self.deaths += 1
        super().kill(node)

    def create_topic(self, name: str | None = None, **options: Any) -> str:
        """Create a topic, and return its name when every node knows of it."""
        with self.undisturbed:
            name = EmbeddedBroker.create_topic(self, name, **options)  # pyright: ignore[reportArgumentType]
            wait_until_known(self.bootstrap_servers, name)
        return name

    delete_topic = EmbeddedBroker.delete_topic

    def restart(self) -> None:
        """One node after the other is killed and comes back, as a machine would."""
        with self.undisturbed:
            for node in self.nodes:
                self.kill(node)
                self.start_node(node)

    def replace(self, node: int, away_s: float = 0.0) -> None:
        """Kill a node, start it again after so long, and return when every replica is in sync again."""
        self.kill(node)
        time.sleep(away_s)
        self.start_node(node)
        soon(lambda: not self.lacks_replicas(), f"every replica in sync, node {node} is back", patience_s=IN_SYNC_S)

    def lacks_replicas(self) -> bool:
        """Whether a replica of some partition is not in sync, or a node can't say."""
        try:
            for node in self.nodes:
                with Client(self.address_of(node)) as client:
                    topics = client.send(MetadataRequest(topics=None)).topics
                if any(len(part.isr_nodes) < len(part.replica_nodes) for each in topics for part in each.partitions):
                    return True
        except ClientError:
            return True
        return False


class Killer(threading.Thread):
    """Kills a node (-9) and starts it again every so many seconds, one after the other, each when all replicas are in
    sync again. `kills`: how many; `failure`: what did not come to its end."""

    def __init__(self, cluster: ThreeNodes, every_s: float) -> None:
        super().__init__(daemon=True)
        self.kills = 0
        self.failure: BaseException | None = None
        self._cluster = cluster
        self._every_s = every_s
        self._over = threading.Event()

    def run(self) -> None:
        for node in cycle(self._cluster.nodes):
            if self._over.wait(self._every_s):
                return
            with self._cluster.undisturbed:
                try:
                    self.kills += 1
                    self._cluster.replace(node)
                except BaseException as failure:
                    self.failure = failure
                    return

    def stop(self) -> None:
        """Return when every node is there again. Raises what did not come to its end."""
        self._over.set()
        self.join()
        if self.failure is not None:
            raise self.failure
