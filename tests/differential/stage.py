"""The stage a scenario plays on: connections to one broker, steps asked and written down.

A scenario is a function of a Stage. What it does with `ask`, `post`/`take` and `raw` stands in the transcript; what it
does with the preparing calls (`create`, `append`, `group`, `until`) does not. The same function runs against Kafka, to
write the golden transcript, and against Ottla, to be compared with it; so it must not depend on the clock or on order
between connections, and names what it creates through `name`.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from ottla.client import Connection, ConnectionClosedError
from ottla.client.sasl import Login
from ottla.protocol.framing import decode_response
from tests.harness.waiting import soon

from . import batches
from .messages import build, request_class
from .normalise import Names, normalise

Versions = int | str | Iterable[int]
_PER_VERSION = re.compile(r"\.v\d+\b")
_LOADING = {14, 15, 16}
NEWEST = {"InitProducerId": 5}
"""Where the codec knows a version that Kafka 4.3 does not serve unless told to."""


class Pending:
    """An answer still to be read."""

    def __init__(self, stage: Stage, on: str, api: str, version: int, token: Any) -> None:
        self.stage, self.on, self.api, self.version, self.token = stage, on, api, version, token


class Hands(Protocol):
    """What ends and starts nodes of the cluster that a scenario is played on."""

    def kill(self, node: int) -> None: ...
    def start_node(self, node: int) -> None: ...


class Doors(NamedTuple):
    """The listener of a secured broker that asks nobody for a password, and the super user who prepares scenarios."""

    open: tuple[str, int]
    admin: Login


class Stage:
    """`slow`: the broker applies metadata changes after it has answered (Kafka), so preparing calls wait. `nodes`: how
    many there are; several are told apart by their ids, and asked by `on="node 2"`. `hands` kill them. `doors`: of a
    secured broker, whose `host` and `port` are of a listener that asks for passwords."""

    def __init__(
        self,
        host: str,
        port: int,
        theme: str,
        slow: bool = False,
        nodes: int = 1,
        hands: Hands | None = None,
        doors: Doors | None = None,
    ) -> None:
        self.host, self.port, self.slow, self.hands = host, port, slow, hands
        self.names = Names(token=f"r{uuid.uuid4().hex[:8]}-{theme}.", host=host, port=port)
        self.steps: list[dict[str, Any]] = []
        self._connections: dict[str, Connection] = {}
        self._nodes: dict[str, tuple[str, int]] = {}
        self._logins: dict[str, Login] = {}
        self._places: dict[str, tuple[str, int]] = {}
        if doors is not None:
            self._places["anonymous"] = doors.open
            self._logins["a"] = doors.admin
            self.names.ports = {doors.open[1]}
        answer = self.send("Metadata", topics=[])
        self.names.node_id, self.names.cluster_id = answer.brokers[0].node_id, answer.cluster_id
        self.names.host, self.names.port = answer.brokers[0].host, answer.brokers[0].port
        if nodes > 1:
            assert [*sorted(each.node_id for each in answer.brokers)] == [*range(1, nodes + 1)], answer
            self._nodes = {f"node {each.node_id}": (each.host, each.port) for each in answer.brokers}
            self.names.ports = {each.port for each in answer.brokers}
            self.names.node_id = -1

    # ---- connections -----------------------------------------------------------------------------------------------

    def connection(self, on: str = "a") -> Connection:
        if on not in self._connections:
            where = self._nodes.get(on) or self._places.get(on, (self.host, self.port))
            login = self._logins.get(on)
            self._connections[on] = Connection(*where, client_id="differential", timeout_s=30, login=login)
        return self._connections[on]

    def log_in_as(self, login: Login, *, on: str) -> None:
        """Connections of this name authenticate."""
        self._logins[on] = login

    def speak_as(self, client_id: str, *, on: str) -> None:
        """A new connection of this name, for another client than the others are."""
        self.hang_up(on)
        self._connections[on] = Connection(self.host, self.port, client_id=client_id, timeout_s=30)

    def hang_up(self, on: str = "a") -> None:
        if on in self._connections:
            self._connections.pop(on).close()

    def close(self) -> None:
        for on in list(self._connections):
            self.hang_up(on)

    # ---- names -----------------------------------------------------------------------------------------------------

    def name(self, short: str = "t") -> str:
        return self.names.token + short

    def short(self, name: str) -> str:
        """What `name` was given."""
        return name.removeprefix(self.names.token)

    @property
    def node_id(self) -> int:
        return self.names.node_id

    def topic_id(self, name: str) -> bytes:
        return next(
            raw for raw, shown in self.names.uuids.items() if shown == f"<topic {name.replace(self.names.token, '')}>"
        )

    def forget_members(self) -> None:
        """Number members from 1 again, so that a round in another version reads alike."""
        self.names.strings.clear()

    def versions(self, api: str) -> range:
        cls = request_class(api)
        return range(cls.MIN_VERSION, (NEWEST.get(api) or int(cls.MAX_VERSION or 0)) + 1)

    # ---- steps that are written down -------------------------------------------------------------------------------

    def ask(
        self,
        step: str,
        api: str,
        versions: Versions | None = None,
        *,
        on: str = "a",
        ours: bool = False,
        keep: Callable[[dict[str, Any]], Any] | None = None,
        make: Callable[[int], dict[str, Any]] | None = None,
        **fields: Any,
    ) -> Any:
        """Ask in one version (the newest when none is given), in several, or in "all"; the last answer comes back.

        `make(version)` gives fields that depend on the version; a name with ".v<version>" in it is written ".vN".
        `ours` leaves out of the answer's lists what this scenario did not name; `keep` picks from the written answer.
        """
        message = None
        for version in self._wanted(api, versions):
            made = fields | (make(version) if make else {})
            message = self.take(step, self._post(api, version, on=on, **made), ours=ours, keep=keep)
        return message

    def post(self, api: str, version: int | None = None, *, on: str = "a", **fields: Any) -> Pending:
        """Send and do not wait for the answer."""
        pending = self._post(api, version, on=on, **fields)
        if on != "a":
            time.sleep(0.05)  # the broker shall see it before what another connection sends next
        return pending

    def _post(self, api: str, version: int | None = None, *, on: str = "a", **fields: Any) -> Pending:
        cls = request_class(api)
        version = self.versions(api)[-1] if version is None else version
        body = build(cls, fields)
        try:
            token = self.connection(on).post(body, version)
        except ConnectionClosedError:
            token = None
        return Pending(self, on, api, version, token)

    def take(
        self, step: str, pending: Pending, *, ours: bool = False, keep: Callable[[dict[str, Any]], Any] | None = None
    ) -> Any:
        """Read the answer and write it down; None when the broker closed the connection instead."""
        message = self._read(pending)
        if message is None:
            self._write(step, pending.api, pending.version, "closed")
            return None
        self.learn(message)
        shown = normalise(message, self.names, pending.version)
        if ours:
            shown = self._ours(message, pending.version)
        self._write(step, pending.api, pending.version, keep(shown) if keep else shown)
        return message

    def silent(self, step: str, api: str, version: int, *, on: str = "a", **fields: Any) -> None:
        """A request that has no answer (acks=0): written down is whether the connection outlives it."""
        body = build(request_class(api), fields)
        connection = self.connection(on)
        try:
            connection.post(body, version, answered=False)
            connection.send(build(request_class("ApiVersions"), {}), 0)
            self._write(step, api, version, "no answer")
        except ConnectionClosedError:
            self.hang_up(on)
            self._write(step, api, version, "closed")

    def raw(self, step: str, frame: bytes, *, on: str = "raw", read: tuple[str, int] | None = None) -> None:
        """Send bytes as they are (with their length in front); `read` says as which answer to decode what comes."""
        connection = self.connection(on)
        try:
            connection.send_bytes(len(frame).to_bytes(4, "big") + frame)
            answer = connection.receive_raw()
        except ConnectionClosedError:
            self.hang_up(on)
            self._write(step, "raw", None, "closed")
            return
        shown: Any = answer.hex()
        if read is not None:
            _, message = decode_response(request_class(read[0]).API_KEY, read[1], answer)
            shown = normalise(message, self.names, read[1])
        self._write(step, "raw", None, shown)

    def answer(self, api: str, version: int, *, on: str, ours: bool = False, **fields: Any) -> Any:
        """Ask, and return what would be written down."""
        message = self._read(self._post(api, version, on=on, **fields))
        if message is None:
            return "closed"
        self.learn(message)
        return self._ours(message, version) if ours else normalise(message, self.names, version)

    def write(self, step: str, api: str, version: int, value: Any) -> None:
        """Write down what the scenario made of answers of this version."""
        self._write(step, api, version, value)

    def note(self, step: str, value: Any) -> None:
        """Write down something the scenario worked out itself."""
        self._write(step, "note", None, value)

    # ---- preparing calls -------------------------------------------------------------------------------------------

    def send(self, api: str, version: int | None = None, *, on: str = "a", **fields: Any) -> Any:
        """Ask without writing it down."""
        message = self._read(self._post(api, version, on=on, **fields))
        assert message is not None, f"the broker closed the connection on {api}"
        self.learn(message)
        return message

    def until(self, ready: Callable[[Any], bool], api: str, version: int | None = None, **fields: Any) -> Any:
        message: Any = None

        def came() -> bool:
            nonlocal message
            message = self.send(api, version, **fields)
            return ready(message)

        soon(came, lambda: f"what the scenario waits for in {api}: {message}")
        return message

    def settle(self) -> None:
        """Let Kafka's brokers catch up with their controller."""
        if self.slow:
            time.sleep(0.3)

    def create(self, short: str = "t", partitions: int = 1, **configs: str) -> str:
        """A topic, ready to be used. Config names are written with _ for their dots."""
        name = self.name(short)
        wanted = [{"name": k.replace("_", "."), "value": v} for k, v in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": wanted}
        answer = self.send("CreateTopics", topics=[topic], timeout_ms=30000)
        assert answer.topics[0].error_code == 0, answer
        self.ready(name, partitions)
        return name

    def ready(self, name: str, partitions: int = 1) -> None:
        def led(answer: Any) -> bool:
            (topic,) = answer.topics
            found = [p for p in topic.partitions if p.error_code == 0 and p.leader_id >= 0]
            return topic.error_code == 0 and len(found) == partitions

        self.until(led, "Metadata", topics=[{"name": name}], allow_auto_topic_creation=False)
        if self.slow:  # Kafka's metadata knows a leader before the leader knows
            for partition in range(partitions):
                asked = fetch(name, 0, partition)
                self.until(lambda a: a.responses[0].partitions[0].error_code == 0, "Fetch", 12, **asked)

    def ready_everywhere(self, name: str, partitions: int) -> None:
        """Wait until every node tells the same of this topic, with all its replicas in sync and its leaders at work."""

        def told(on: str) -> Any:
            (topic,) = self.send("Metadata", on=on, topics=[{"name": name}], allow_auto_topic_creation=False).topics
            return topic

        def is_ready(topic: Any) -> bool:
            in_sync = all(sorted(p.isr_nodes) == sorted(p.replica_nodes) and p.leader_id >= 0 for p in topic.partitions)
            return topic.error_code == 0 and len(topic.partitions) == partitions and in_sync

        topics: list[Any] = []

        def all_tell_the_same() -> bool:
            nonlocal topics
            topics = [told(on) for on in self._nodes]
            return all(is_ready(topic) and topic == topics[0] for topic in topics)

        soon(all_tell_the_same, lambda: f"{name} is ready: {topics}")
        self.settle()

    @contextlib.contextmanager
    def without(self, node: int) -> Iterator[None]:
        """Kill this node, and go on once the others know; in the end it is back and everybody knows."""
        assert self.hands is not None
        self.hang_up(f"node {node}")
        self.hands.kill(node)
        living = {on for on in self._nodes if on != f"node {node}"}
        try:
            self._until_known(living, living)
            self.settle()
            yield
        finally:
            self.hands.start_node(node)
        self._until_known({*self._nodes}, {*self._nodes})
        self.settle()

    def _until_known(self, by: set[str], living: set[str]) -> None:
        def knows(on: str) -> bool:
            with contextlib.suppress(OSError, AssertionError):  # it does not serve yet
                return {f"node {each.broker_id}" for each in self.send("DescribeCluster", on=on).brokers} == living
            return False

        for on in sorted(by):
            soon(lambda on=on: knows(on), f"{on} knows {living} as those which serve")

    def until_in_sync(self, name: str, living: list[int]) -> None:
        """Wait until both of the first nodes tell that every partition is led, and has these in sync."""

        def are(answer: Any) -> bool:
            (topic,) = answer.topics
            in_sync = [sorted(part.isr_nodes) == living and part.leader_id in living for part in topic.partitions]
            return not topic.error_code and bool(in_sync) and all(in_sync)

        for on in ("node 1", "node 2"):
            self.until(are, "Metadata", on=on, topics=[{"name": name}], allow_auto_topic_creation=False)
        self.settle()

    def leader_of(self, name: str, partition: int = 0) -> int:
        (topic,) = self.send("Metadata", topics=[{"name": name}]).topics
        return next(part.leader_id for part in topic.partitions if part.partition_index == partition)

    def append(self, name: str, *made: bytes, partition: int = 0) -> int:
        """Produce batches one by one; the base offset of the last."""
        offset = -1
        on = "a"
        if self._nodes:
            on = f"node {self.leader_of(name, partition)}"
        for data in made:
            answer = self.send("Produce", 9, on=on, **produce(name, data, partition))
            (entry,) = answer.responses[0].partition_responses
            assert entry.error_code == 0, answer
            offset = entry.base_offset
        return offset

    def group(self, short: str = "g") -> str:
        """A group name whose coordinator is ready."""
        name = self.name(short)
        self.until(
            lambda a: a.coordinators[0].error_code == 0, "FindCoordinator", 4, key_type=0, coordinator_keys=[name]
        )
        self.until(
            lambda a: a.groups[0].error_code not in _LOADING,
            "OffsetFetch",
            8,
            groups=[{"group_id": name, "topics": []}],
        )
        return name

    def producer(self) -> tuple[int, int]:
        """A producer id and its epoch."""
        answer = self.until(
            lambda a: a.error_code == 0, "InitProducerId", transactional_id=None, transaction_timeout_ms=60000
        )
        return answer.producer_id, answer.producer_epoch

    # ---- within ----------------------------------------------------------------------------------------------------

    def _wanted(self, api: str, versions: Versions | None) -> Iterable[int]:
        match versions:
            case None:
                return [self.versions(api)[-1]]
            case int():
                return [versions]
            case "all":
                return self.versions(api)
            case str():
                first, _, last = versions.partition("-")
                return range(int(first), (int(last) if last else self.versions(api)[-1]) + 1)
            case _:
                return versions

    def _read(self, pending: Pending) -> Any:
        try:
            if pending.token is None:
                raise ConnectionClosedError("")
            return self.connection(pending.on).take(pending.token)
        except ConnectionClosedError:
            self.hang_up(pending.on)
            return None

    def learn(self, message: Any) -> None:
        """Take note of what the broker invented in this answer."""
        for topic in getattr(message, "topics", None) or ():
            if getattr(topic, "topic_id", None) and getattr(topic, "name", None):
                self.names.learn_topic(topic.topic_id, topic.name)
        match type(message).__name__:
            case "JoinGroupResponse":
                self.names.learn_member(message.member_id)
            case "InitProducerIdResponse":
                self.names.learn_number("producer_id", message.producer_id)
            case "FetchResponse":
                self.names.learn_number("session_id", message.session_id)
            case _:
                pass

    def _ours(self, message: Any, version: int) -> Any:
        """The normalised answer without what belongs to other scenarios."""
        names = ("name", "topic", "group_id", "resource_name", "transactional_id")
        for field in message.__slots__:
            value = getattr(message, field)
            if isinstance(value, list) and value and any(hasattr(value[0], n) for n in names):
                kept = [
                    item for item in value if any(self.names.token in (getattr(item, n, None) or "") for n in names)
                ]
                setattr(message, field, kept)
            elif isinstance(value, list) and value and hasattr(value[0], "log_dir"):
                for item in value:
                    item.topics = [t for t in item.topics if self.names.token in t.name]
        return normalise(message, self.names, version)

    def _write(self, step: str, api: str, version: int | None, answer: Any) -> None:
        """Append to the transcript; versions of one step that answer alike share an entry."""
        answer = _per_version(answer)
        for known in self.steps:
            if version is not None and (known["step"], known["api"], known["answer"]) == (step, api, answer):
                known["versions"].append(version)
                return
        entry: dict[str, Any] = {"step": step, "api": api}
        if version is not None:
            entry["versions"] = [version]
        self.steps.append(entry | {"answer": answer})


def _per_version(value: Any) -> Any:
    match value:
        case str():
            return _PER_VERSION.sub(".vN", value)
        case list():
            return [_per_version(item) for item in value]
        case dict():
            return {key: _per_version(item) for key, item in value.items()}
        case _:
            return value


# ---- bodies that many scenarios send -------------------------------------------------------------------------------


def produce(
    name: str, data: bytes | None, partition: int = 0, acks: int = -1, topic_id: bytes | None = None
) -> dict[str, Any]:
    where: dict[str, Any] = {"name": name} if topic_id is None else {"topic_id": topic_id}
    part = {"index": partition, "records": data}
    return {"acks": acks, "timeout_ms": 10000, "topic_data": [where | {"partition_data": [part]}]}


def fetch(
    name: str, offset: int = 0, partition: int = 0, *, topic_id: bytes | None = None, **fields: Any
) -> dict[str, Any]:
    where: dict[str, Any] = {"topic": name} if topic_id is None else {"topic_id": topic_id}
    part = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    part |= {
        k: fields.pop(k) for k in ("current_leader_epoch", "partition_max_bytes", "last_fetched_epoch") if k in fields
    }
    body = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 24, "topics": [where | {"partitions": [part]}]}
    return body | fields


__all__ = ["Pending", "Stage", "batches", "fetch", "produce"]
