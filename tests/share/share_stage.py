"""A node without a server, and members of share groups that speak to it in frames. Time and syncs are the test's."""

import random
from pathlib import Path
from typing import Any

from ottla.broker.config.values import BrokerSettings
from ottla.broker.effects import Close, Reply, Store, Sync
from ottla.broker.node import Node
from ottla.broker.requests import Address, Parked, Session
from ottla.log.answers import Origin
from ottla.log.files import DiskFiles
from ottla.metadata.memory import MemoryStore
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from ottla.protocol.messages.share_fetch import AcknowledgementBatch as FetchBatch
from ottla.protocol.messages.share_fetch import FetchPartition, FetchTopic, ForgottenTopic, ShareFetchRequest
from ottla.protocol.records.batch import has_valid_crc, iter_batches
from ottla.protocol.records.record import Record, build_batch, decode_records

NOW = 1_800_000_000_000
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FEW_SHARDS = {"share.coordinator.state.topic.num.partitions": "2"}


class Asked:
    """A request on its way; `answer` is there once it was answered."""

    def __init__(self, api_key: int, version: int) -> None:
        self.api_key = api_key
        self.version = version
        self.answer: Any = None


class ShareStage:
    """A node, and whoever speaks to it. `hold_syncs` keeps fsyncs from ending, to look at what waits for them."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.settings = {**FEW_SHARDS, **(settings or {})}
        self.store = MemoryStore()
        self.now = NOW
        self.notes: list[str] = []
        self.entropy = random.Random(1)
        self.hold_syncs = False
        self.connections = 0
        self.node = self._begin()

    def _begin(self) -> Node:
        self.asked: dict[int, Asked] = {}
        self.syncs: list[Sync] = []
        node = Node(
            BrokerSettings.load(self.settings),
            DiskFiles(),
            str(self.directory),
            self.store,
            entropy=self.entropy,
            same_boot=True,
            notes=self.notes.append,
        )
        node.start(self.now)
        return node

    def restart(self, *, clean: bool = True) -> None:
        if clean:
            self.node.stop(self.now)
        self.now += 1000
        self.node = self._begin()
        self.run()

    # ---- frames ----------------------------------------------------------------------------------------------------

    def connect(self) -> Session:
        self.connections += 1
        return Session(Address(self.connections, "127.0.0.1", advertised=("broker.example", 9092)))

    def send(self, message: Any, session: Session, version: int | None = None) -> Asked:
        """Hand in a request; the answer may come now or later."""
        version = message.MAX_VERSION if version is None else version
        asked = Asked(message.API_KEY, version)
        frame = encode_request(RequestHeader(message.API_KEY, version, 7, "stage"), message)
        answer = self.node.receive(self.now, session, memoryview(frame)[4:])
        if isinstance(answer, Parked):
            self.asked[answer.ticket] = asked
        else:
            assert answer is not None
            self._read(asked, answer)
        self.settle()
        self.node.share.check()
        return asked

    def _read(self, asked: Asked, parts: Any) -> None:
        whole = b"".join(part.read() if hasattr(part, "read") else bytes(part) for part in parts)
        assert int.from_bytes(whole[:4], "big") == len(whole) - 4
        _, asked.answer = decode_response(asked.api_key, asked.version, memoryview(whole)[4:])

    def settle(self) -> None:
        while effects := self.node.take_effects(self.now):
            for effect in effects:
                match effect:
                    case Sync():
                        self.syncs.append(effect)
                    case Reply(ticket, _, parts):
                        asked = self.asked.pop(ticket)
                        self._read(asked, parts)
                    case Store() | Close():
                        pass
                    case _:
                        raise AssertionError(effect)
            if not self.hold_syncs:
                self.end_syncs()

    def end_syncs(self, failed: str | None = None) -> None:
        syncs, self.syncs = self.syncs, []
        for sync in syncs:
            for file in sync.files:
                file.sync()
            failures = {} if failed is None else dict.fromkeys(range(len(sync.files)), failed)
            self.node.synced(self.now, sync.token, failures)

    def run(self, ms: int = 0) -> None:
        """Let time pass and do everything that comes due."""
        until = self.now + ms
        while True:
            self.settle()
            due = self.node.deadline()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.node.tick(self.now)
        self.now = until
        self.node.share.check()

    # ---- topics ----------------------------------------------------------------------------------------------------

    def topic(self, name: str = "jobs", partitions: int = 1, **overrides: str) -> bytes:
        made = self.node.topics.create(
            self.now, name, partitions, {key.replace("_", "."): value for key, value in overrides.items()}
        )
        return made.id

    def configure(self, group: str, **overrides: str) -> None:
        configs = self.node.settings
        given = {name.replace("_", "."): value for name, value in overrides.items()}
        configs.alter_group(self.now, group, {**configs.of_group(group), **given}, "the stage")
        self.settle()

    def produce(self, count: int, topic: str = "jobs", index: int = 0, **how: Any) -> int:
        """Append one batch of records; their values are their offsets."""
        partition = self.node.replicas.get(topic, index)
        assert partition is not None
        base = partition.log.log_end_offset
        headers = how.pop("headers", ())
        records = [Record(-1, self.now, b"k", str(base + i).encode(), headers) for i in range(count)]
        self.append(build_batch(records, **how), topic, index)
        return base

    def append(self, batch: Any, topic: str = "jobs", index: int = 0, origin: Origin = Origin.CLIENT) -> None:
        partition = self.node.replicas.get(topic, index)
        assert partition is not None
        partition.append(self.now, memoryview(bytearray(batch)), origin)
        self.settle()

    def read(self, topic: str, index: int = 0) -> list[Record]:
        """Everything in a partition."""
        partition = self.node.replicas.get(topic, index)
        assert partition is not None
        log = partition.log
        records: list[Record] = []
        offset = log.log_start_offset
        while offset < log.high_watermark:
            result = log.read(offset, 1 << 20)
            assert result.slice is not None
            raw = result.slice.read()
            for header, position in iter_batches(raw):
                records += decode_records(raw, position)
                offset = header.next_offset
        return records

    def member(self, topic_id: bytes, group: str = "g", *, partitions: int = 1, name: str = "") -> "Member":
        return Member(self, group, name or f"member-{self.connections}", [(topic_id, i) for i in range(partitions)])


class Member:
    """A member of a share group with a session."""

    def __init__(self, stage: ShareStage, group: str, name: str, places: list[tuple[bytes, int]]) -> None:
        self.stage = stage
        self.group = group
        self.name = name
        self.places = places
        self.session = stage.connect()
        self.epoch = 0
        self.version = 2
        self.sent: dict[int, Record] = {}
        """The records of the last answer."""

    def ask(
        self,
        acks: dict[tuple[bytes, int], list[tuple[int, int, list[int]]]] | list[tuple[int, int, list[int]]] = (),  # type: ignore[assignment]
        *,
        wait_ms: int = 0,
        records: int = 500,
        batch_size: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        exactly: bool = False,
        renew: bool = False,
        epoch: int | None = None,
        forget: tuple[tuple[bytes, int], ...] = (),
    ) -> Asked:
        """Send a ShareFetch; acknowledgements without a place are the first partition's."""
        by_place = acks if isinstance(acks, dict) else {self.places[0]: list(acks)}
        wanted = self.places if self.epoch == 0 and epoch in (None, 0) else [p for p in by_place if by_place[p]]
        topics: dict[bytes, list[FetchPartition]] = {}
        for topic_id, index in wanted:
            batches = [FetchBatch(*ack) for ack in by_place.get((topic_id, index), [])]
            topics.setdefault(topic_id, []).append(FetchPartition(index, batches))
        request = ShareFetchRequest(
            self.group,
            self.name,
            self.epoch if epoch is None else epoch,
            wait_ms,
            min_bytes,
            max_bytes,
            records,
            batch_size,
            int(exactly),
            renew,
            [FetchTopic(topic_id, parts) for topic_id, parts in topics.items()],
            [ForgottenTopic(topic_id, [index]) for topic_id, index in forget],
        )
        if epoch is None:
            self.epoch += 1
        return self.stage.send(request, self.session, self.version)

    def fetch(self, *args: Any, **how: Any) -> list[tuple[int, int, int]]:
        """What a fetch acquires of the first partition: (first, last, delivery count)."""
        asked = self.ask(*args, **how)
        assert asked.answer is not None, "still waiting"
        return self.acquired(asked)

    def acquired(self, asked: Asked, place: int = 0) -> list[tuple[int, int, int]]:
        part = self.part(asked, place)
        if part is None:
            return []
        assert part.error_code == 0, part.error_code
        ranges = [(each.first_offset, each.last_offset, each.delivery_count) for each in part.acquired_records]
        held = {offset for first, last, _ in ranges for offset in range(first, last + 1)}
        raw = bytes(part.records)
        batches = [(header, at) for header, at in iter_batches(raw) if not header.is_control]
        assert all(has_valid_crc(raw, at, header) for header, at in batches)
        records = [record for _, at in batches for record in decode_records(raw, at)]
        sent = [record.offset for record in records]
        assert held <= set(sent), f"acquired {held - set(sent)} but did not send it"
        assert sent == sorted(set(sent)), "a client would deliver a record twice"
        self.sent = {record.offset: record for record in records}
        return ranges

    def part(self, asked: Asked, place: int = 0) -> Any:
        assert asked.answer.error_code == 0, asked.answer.error_code
        topic_id, index = self.places[place]
        for topic in asked.answer.responses:
            for part in topic.partitions:
                if bytes(topic.topic_id) == topic_id and part.partition_index == index:
                    return part
        return None

    def acknowledge(self, *batches: tuple[int, int, list[int]], renew: bool = False, epoch: int | None = None) -> Asked:
        topic_id, index = self.places[0]
        made = [AcknowledgementBatch(*batch) for batch in batches]
        topics = [AcknowledgeTopic(topic_id, [AcknowledgePartition(index, made)])] if made else []
        request = ShareAcknowledgeRequest(self.group, self.name, self.epoch if epoch is None else epoch, renew, topics)
        if epoch is None:
            self.epoch += 1
        return self.stage.send(request, self.session, self.version)

    def said(self, *batches: tuple[int, int, list[int]], renew: bool = False) -> int:
        """Acknowledge; the error of the first partition."""
        answer = self.acknowledge(*batches, renew=renew).answer
        assert answer.error_code == 0, answer.error_code
        return answer.responses[0].partitions[0].error_code

    def close(self) -> None:
        assert self.acknowledge(epoch=-1).answer.error_code == 0

    def vanish(self) -> None:
        """The connection is lost."""
        self.stage.node.disconnected(self.stage.now, self.session.address.identity)
        self.stage.settle()
        self.stage.node.share.check()
