"""Asks single nodes of a simulated cluster, one request after the other; gives it the coordinators' topics."""

from collections.abc import Callable
from typing import Any, cast

from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.sim.clients.client import Client
from ottla.sim.kernel.network import Connection
from ottla.sim.kernel.store import FarStore
from tests.harness.sim.hand_cluster import HandCluster

STATE_TOPICS = (CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC)
ANSWERED_MS = 40_000


class Asking(Client):
    """One connection to one node. `answer`: what came back, None where the connection was lost first."""

    def __init__(self, cluster: HandCluster, node_id: int, number: int) -> None:
        super().__init__(cluster.world, f"asking-{number}", cluster.hosts[node_id].endpoint)
        self.over = False
        self.answer: Any = None
        self._expected = (0, 0)

    def ask(self, message: Any, version: int) -> None:
        self._expected = message.API_KEY, version
        self.connection = self.open(self.bootstrap)
        if self.connection is None:
            self.over = True
            return
        header = RequestHeader(message.API_KEY, version, 1, self.name)
        self.connection.to_server.write(bytes(encode_request(header, message)))

    def frame_arrived(self, connection: Connection, frame: memoryview) -> None:
        _, self.answer = decode_response(*self._expected, frame)
        self.over = True
        self.hang_up()

    def lost(self) -> None:
        self.over = True


class AskedCluster(HandCluster):
    """Three nodes with every coordinators' topic: one partition, three replicas, led by the node that the test says."""

    def __init__(self, seed: int, *, led_by: dict[str, int] | None = None, **given: Any) -> None:
        super().__init__(seed, **given)
        self._asked = 0
        for host in self.hosts.values():
            host.store = FarStore(cast(Any, self.store), host.stream("store"))
        self.start()
        self.run(50)
        for at, name in enumerate(STATE_TOPICS):
            first = (led_by or {}).get(name, 1)
            placed = (first, *(node_id for node_id in self.hosts if node_id != first))
            configs = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
            self.controller.create_topic(name, bytes([at + 1]) * 16, configs, [placed])
        self.tell_all()
        self.run(100)

    def begin_asking(self, node_id: int, message: Any, version: int | None = None) -> Asking:
        """Ask and go on: what comes back stands in what is returned."""
        self._asked += 1
        asking = Asking(self, node_id, self._asked)
        asking.ask(message, message.MAX_VERSION if version is None else version)
        return asking

    def ask(self, node_id: int, message: Any, version: int | None = None) -> Any:
        """The node's answer; None where the connection was lost."""
        asking = self.begin_asking(node_id, message, version)
        self.until(lambda: asking.over, ANSWERED_MS)
        return asking.answer

    def ask_until(
        self, node_of: Callable[[], int | None], message: Any, good: Callable[[Any], bool], version: int | None = None
    ) -> Any:
        """Ask again and again, whoever it is then, until the answer is good. Raises InvariantError where it never
        is."""
        answer: Any = None
        for _ in range(200):
            node_id = node_of()
            answer = None if node_id is None or not self.hosts[node_id].up else self.ask(node_id, message, version)
            if answer is not None and good(answer):
                return answer
            self.run(50)
        raise AssertionError(f"the last answer was {answer}")

    def leader_of(self, name: str, index: int = 0) -> int | None:
        """Who leads this partition, as the store says."""
        placed = self.controller.image.partition(name, index)
        return None if placed is None or placed.leader == -1 else placed.leader
