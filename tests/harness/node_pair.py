"""Two nodes without servers over one metadata store: the first is the controller. What one asks the other is carried
over at once, one request of a line at a time, and both hear at once of what was committed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ottla.broker.cluster.membership import Joining
from ottla.broker.effects import PeerRequest
from ottla.log.files import FileSlice
from ottla.machine import Unanswered
from ottla.metadata.image import delta_since
from ottla.metadata.memory import MemoryStore
from ottla.protocol.framing import decode_request_header
from tests.harness.node_stage import Asked, Client, NodeStage, channel_of, make_node

LEASE_MS = 3_600_000
Endpoints: TypeAlias = dict[str, tuple[str, int]]


class _Carried(Asked):
    """A request of another node; its answer goes back there."""

    def __init__(self, frame: bytes) -> None:
        self.frame = memoryview(bytearray(frame))[4:]
        header, _ = decode_request_header(self.frame)
        self.api_key, self.version = header.api_key, header.api_version
        self.answered = False
        self.parts = b""

    def take(self, parts: Any) -> None:
        self.answered = True
        self.parts = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in parts)[4:]


class NodePair:
    """`stages` by node id. A node that is in `away` is asked nothing: its requests wait. `endpoints`: where clients of
    each listener reach the nodes, by their ids."""

    def __init__(self, directory: Path, endpoints: Mapping[int, Endpoints] | None = None, **settings: Any) -> None:
        store = MemoryStore()
        self.away: set[int] = set()
        self.held: set[int] = set()
        """Keys of APIs that no node asks the other for now."""
        self.loses_answers = False
        """What is asked is done, and whoever asked hears that the connection was lost."""
        self.stages: dict[int, NodeStage] = {}
        self._carried: list[tuple[int, PeerRequest, _Carried]] = []
        for node_id in (1, 2):
            joining = Joining(
                "127.0.0.1", 9000 + node_id, f"life-{node_id}", LEASE_MS, (endpoints or {}).get(node_id, {})
            )
            self.stages[node_id] = NodeStage(
                directory / str(node_id), store=store, joining=joining, node_id=str(node_id), **settings
            )
            self.settle()
        self.settle()

    def settle(self) -> None:
        """Carry everything over that there is, until nothing is left."""
        while self._hear() or self._carry():
            pass

    def _hear(self) -> bool:
        """Whether somebody heard of something new."""
        present = {node_id: f"life-{node_id}" for node_id in self.stages}
        heard = False
        for stage in self.stages.values():
            membership = stage.node.membership
            assert membership is not None
            membership.confirmed(stage.now)
            if stage.node.image.generation < stage.store.generation:
                stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
                heard = True
            if membership.present != present:
                membership.seen(stage.now, present)
                heard = True
            stage.run()
        return heard

    def _carry(self) -> bool:
        """Whether a request or an answer was carried over."""
        moved = False
        busy = {(sender, ask.node_id, ask.line) for sender, ask, _ in self._carried}
        for sender, stage in self.stages.items():
            for ask in [ask for ask in stage.asks if ask.node_id not in self.away and _key(ask) not in self.held]:
                if (sender, ask.node_id, ask.line) in busy:
                    continue
                busy.add((sender, ask.node_id, ask.line))
                stage.asks.remove(ask)
                receiver = self.stages[ask.node_id]
                receiver.connections += 1
                client = Client(make_node(channel_of(receiver.connections, "INTERNAL"), sender))
                receiver.clients[receiver.connections] = client
                carried = _Carried(ask.frame)
                self._carried.append((sender, ask, carried))
                client.send(carried, receiver.node, receiver.now)
                receiver.run()
                moved = True
        for entry in [entry for entry in self._carried if entry[2].answered]:
            self._carried.remove(entry)
            sender, ask, carried = entry
            answer = Unanswered("the connection was lost") if self.loses_answers else carried.parts
            self.stages[sender].node.answered(self.stages[sender].now, ask.token, answer)
            moved = True
        return moved

    def lose(self) -> None:
        """Who waits for a node that is away hears that it was lost."""
        for stage in self.stages.values():
            asks, stage.asks = stage.asks, []
            for ask in asks:
                stage.node.answered(stage.now, ask.token, Unanswered("the connection was lost"))
        self.settle()

    def ask(self, node_id: int, message: Any, version: int | None = None, connection: int | None = None) -> Any:
        """The answer of one node."""
        asked = self.stages[node_id].send(message, version, connection)
        self.settle()
        for _ in range(100):
            if asked.answered:
                break
            self.run(100)
        assert asked.answered, f"{type(message).__name__} is not answered"
        return asked.answer

    def run(self, ms: int) -> None:
        """Let time pass on both."""
        for stage in self.stages.values():
            stage.run(ms)
        self.settle()


def _key(ask: PeerRequest) -> int:
    return int.from_bytes(ask.frame[4:6], "big")
