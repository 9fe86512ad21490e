"""A node and members of share groups that speak to it in frames."""

from pathlib import Path
from typing import Any

from ottla.log.answers import Origin
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
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
from tests.harness.node_stage import Asked, NodeStage

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FEW_SHARDS = {"share.coordinator.state.topic.num.partitions": "2"}


class ShareStage(NodeStage):
    """A node, and members of share groups who speak to it."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        super().__init__(directory, **{**FEW_SHARDS, **(settings or {})})
        self.change(self.node.topics.creating_internal(self.now, SHARE_GROUP_STATE_TOPIC))

    def restart(self, *, clean: bool = True) -> None:
        super().restart(clean=clean)
        self.run()

    # ---- topics ----------------------------------------------------------------------------------------------------

    def topic(self, name: str = "jobs", partitions: int = 1, **overrides: str) -> bytes:
        made = self.create(name, partitions, {key.replace("_", "."): value for key, value in overrides.items()})
        return made.id

    def configure(self, group: str, **overrides: str) -> None:
        configs = self.node.settings
        given = {name.replace("_", "."): value for name, value in overrides.items()}
        self.change(configs.altering_group(self.now, group, {**configs.of_group(group), **given}, "the stage"))

    def produce(self, count: int, topic: str = "jobs", index: int = 0, **how: Any) -> int:
        """Append one batch of records; their values are their offsets."""
        partition = self.node.replicas.get(topic, index)
        assert partition is not None
        base = partition.log.log_end_offset
        headers = how.pop("headers", ())
        records = [Record(-1, self.now, b"k", str(base + i).encode(), headers) for i in range(count)]
        self.put(build_batch(records, **how), topic, index)
        return base

    def put(self, batch: Any, topic: str = "jobs", index: int = 0, origin: Origin = Origin.CLIENT) -> None:
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
        self.connection = stage.connect()
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
        return self._send(request)

    def _send(self, request: Any) -> Asked:
        if self.connection not in self.stage.clients:
            self.connection = self.stage.connect()
        return self.stage.send(request, self.version, self.connection)

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
        return self._send(request)

    def said(self, *batches: tuple[int, int, list[int]], renew: bool = False) -> int:
        """Acknowledge; the error of the first partition."""
        answer = self.acknowledge(*batches, renew=renew).answer
        assert answer.error_code == 0, answer.error_code
        return answer.responses[0].partitions[0].error_code

    def close(self) -> None:
        assert self.acknowledge(epoch=-1).answer.error_code == 0

    def vanish(self) -> None:
        """The connection is lost."""
        self.stage.hang_up(self.connection)
