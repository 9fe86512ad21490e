"""Disks that fail under a node: one file, one partition, one moment, and everything else goes on."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from ottla.log.answers import Damage
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, build_batch, decode_records, iter_batches
from tests.harness.log.support import is_readable
from tests.harness.node_stage import NOW, Asked, DiskStage

TOPICS = ("t0", "t1", "t2", "t3")
STORAGE = int(ErrorCode.KAFKA_STORAGE_ERROR)


class Stage(DiskStage):
    """A node with one topic for each of TOPICS, whose syncs end when the test lets time pass."""

    def __init__(self, durability: str = "fsync", **settings: str) -> None:
        super().__init__(ottla_durability=durability, **settings)
        for name in TOPICS:
            self.create(name, 1, {})

    def start(self, *, same_boot: bool = True) -> None:
        super().start(same_boot=same_boot)
        self.run()

    def run(self, ms: int = 0) -> None:
        self.hold_syncs = False
        super().run(ms)
        self.hold_syncs = True

    def produce(self, topic: str, value: bytes = b"v", **batch: Any) -> Asked:
        octets = bytearray(build_batch([Record(timestamp_ms=self.now, key=b"k", value=value)], **batch))
        data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, octets)])]
        return self.send(ProduceRequest(None, -1, 30_000, data), 11)

    def values(self, topic: str) -> list[bytes | None]:
        """What a consumer gets."""
        octets = bytes(self.fetch(topic).records or b"")
        return [record.value for _, at in iter_batches(octets) for record in decode_records(octets, at)]

    def fetch(self, *topics: str) -> Any:
        asked = [FetchTopic(topic, partitions=[FetchPartition(0, -1, 0, -1, -1, 1 << 20)]) for topic in topics]
        answer = self.ask(FetchRequest(topics=asked, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20), 12)
        told = [topic.partitions[0] for topic in answer.responses]
        return told[0] if len(topics) == 1 else told

    def failed(self, topic: str) -> str | None:
        return self.node.replicas.by_name[topic].partitions[0].log.failed


def part_of(asked: Asked) -> Any:
    """What a Produce was told of its partition."""
    return asked.answer.responses[0].partition_responses[0]


def trouble_with(path: str, *operations: str, error: int = errno.EIO) -> Callable[[str, str], None]:
    """These operations fail on every file whose path has this in it."""

    def trouble(operation: str, where: str) -> None:
        if operation in operations and path in where:
            raise OSError(error, "Input/output error", where)

    return trouble


def test_a_topic_deleted_in_a_round_takes_nobody_along() -> None:
    stage = Stage()
    asked = {topic: stage.produce(topic) for topic in TOPICS}
    stage.delete("t1")
    stage.node.tick(stage.now)  # its directory is gone before the disk thread comes to it
    stage.run()
    for topic in ("t0", "t2", "t3"):
        assert part_of(asked[topic]).error_code == 0
        assert stage.failed(topic) is None
        assert stage.values(topic) == [b"v"]
    assert part_of(asked["t1"]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not any("sync" in note for note in stage.notes)


def test_an_fsync_that_fails_is_its_own_partitions_matter() -> None:
    stage = Stage()
    stage.produce("t1", b"before")
    stage.run()
    asked = {topic: stage.produce(topic) for topic in TOPICS}
    stage.disk.trouble = trouble_with("/t1-0/", "sync")
    stage.run()
    assert {topic: part_of(each).error_code for topic, each in asked.items()} == {
        "t0": 0,
        "t1": STORAGE,
        "t2": 0,
        "t3": 0,
    }
    assert stage.values("t1") == [b"before"]
    stage.disk.trouble = None
    again = stage.produce("t1", b"again")
    stage.run()
    assert part_of(again).error_code == 0
    assert stage.values("t1") == [b"before", b"again"]
    stage.restart(clean=False, power_cut=True)
    assert stage.values("t1") == [b"before", b"again"]
    assert [note for note in stage.notes if "t1-0 could not be synced" in note]


def test_what_an_fsync_could_not_write_is_not_acknowledged_as_a_duplicate() -> None:
    """The kernel says it once and takes the pages for clean: only writing them again brings them to the disk."""
    stage = Stage()
    numbered = {"producer_id": 5, "producer_epoch": 0}
    stage.produce("t0", b"first", **numbered, base_sequence=0)
    stage.run()
    lost = stage.produce("t0", b"second", **numbered, base_sequence=1)
    stage.disk.trouble = trouble_with("/t0-0/", "sync")
    stage.run()
    assert part_of(lost).error_code == STORAGE
    stage.disk.trouble = None
    again = stage.produce("t0", b"second", **numbered, base_sequence=1)
    stage.run()
    assert part_of(again).error_code == 0
    assert part_of(again).base_offset == 1
    stage.restart(clean=False, power_cut=True)
    assert stage.values("t0") == [b"first", b"second"]


def test_the_end_of_several_segments_is_taken_back() -> None:
    stage = Stage(log_segment_bytes="1048576")
    stage.produce("t0", b"kept")
    stage.run()
    asked = [stage.produce("t0", bytes(400_000)) for _ in range(6)]
    assert len(stage.node.replicas.by_name["t0"].partitions[0].log.segments) > 2
    stage.disk.trouble = trouble_with("/t0-0/", "sync")
    stage.run()
    assert {part_of(each).error_code for each in asked} == {STORAGE}
    stage.disk.trouble = None
    assert stage.values("t0") == [b"kept"]
    again = stage.produce("t0", b"again")
    stage.run()
    assert part_of(again).base_offset == 1
    stage.restart(clean=False, power_cut=True)
    assert stage.values("t0") == [b"kept", b"again"]


@pytest.mark.parametrize("told", [True, False])
def test_a_kill_does_not_make_the_page_cache_worth_more(told: bool) -> None:
    """An fsync failed, and the process died before, or after, it could do anything about it: the next one writes what
    is above the recovery point again, and only then acknowledges it to whoever repeats it."""
    stage = Stage()
    numbered = {"producer_id": 5, "producer_epoch": 0}
    stage.produce("t0", b"first", **numbered, base_sequence=0)
    stage.run(70_000)  # the recovery point is checkpointed
    stage.produce("t0", b"second", **numbered, base_sequence=1)
    stage.disk.trouble = trouble_with("/t0-0/", "sync")
    for file in stage.syncs[0].files:
        with suppress(OSError):
            file.sync()
    stage.disk.trouble = trouble_with("/t0-0/", "sync", "truncate", "rename") if told else None
    if told:
        stage.run()
    stage.disk.trouble = None
    stage.restart(clean=False)
    again = stage.produce("t0", b"second", **numbered, base_sequence=1)
    stage.run()
    assert (part_of(again).error_code, part_of(again).base_offset) == (0, 1)
    stage.restart(clean=False, power_cut=True)
    assert stage.values("t0") == [b"first", b"second"]


def test_acknowledged_records_that_an_fsync_could_not_write_shut_the_partition_until_they_are_written_again() -> None:
    """With page-cache durability an answer promised only the page cache, and that is kept: nothing is cut off."""
    stage = Stage("page-cache", log_flush_interval_ms="1000")
    stage.produce("t0", b"told")
    stage.disk.trouble = trouble_with("/t0-0/", "sync")
    stage.run(3_000)
    assert stage.failed("t0") is not None
    assert stage.values("t0") == [b"told"]
    assert part_of(stage.produce("t0")).error_code == STORAGE
    stage.disk.trouble = None
    stage.restart()
    assert part_of(stage.produce("t0", b"more")).error_code == 0
    stage.run(3_000)
    stage.restart(clean=False, power_cut=True)
    assert stage.values("t0") == [b"told", b"more"]


def test_a_full_disk_passes() -> None:
    stage = Stage("page-cache")
    stage.produce("t0", b"before")
    stage.disk.capacity = stage.disk.used
    for _ in range(3):
        assert part_of(stage.produce("t0", b"no")).error_code == STORAGE
    assert stage.values("t0") == [b"before"]
    stage.disk.capacity = None
    assert part_of(stage.produce("t0", b"after")).error_code == 0
    stage.run(1_000)
    assert stage.values("t0") == [b"before", b"after"]
    assert [note.split(":")[0] for note in stage.notes if "t0-0" in note] == [
        "t0-0 could not be written to, every append tries again",
        "t0-0 takes writes again",
    ]


def test_a_partition_that_can_not_be_read_is_answered_for_itself() -> None:
    stage = Stage("page-cache")
    for topic in TOPICS:
        stage.produce(topic)
    stage.disk.trouble = trouble_with("/t1-0/", "read")
    fetched = dict(zip(TOPICS, stage.fetch(*TOPICS), strict=True))
    assert {topic: partition.error_code for topic, partition in fetched.items()} == {
        "t0": 0,
        "t1": STORAGE,
        "t2": 0,
        "t3": 0,
    }
    assert all(fetched[topic].records for topic in ("t0", "t2", "t3"))
    searches = [ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, NOW - 5)]) for topic in TOPICS]
    answers = [stage.ask(ListOffsetsRequest(-1, 0, [asked]), 7) for asked in searches]
    assert [answer.topics[0].partitions[0].error_code for answer in answers] == [0, STORAGE, 0, 0]
    stage.run(400_000)  # upkeep goes on
    assert len([note for note in stage.notes if "could not be read" in note]) == 1
    assert part_of(stage.produce("t1")).error_code == 0
    stage.disk.trouble = None
    assert stage.values("t1") == [b"v", b"v"]


def test_a_place_is_read_again_until_that_works() -> None:
    stage = Stage("page-cache")
    stage.produce("t1")
    stage.disk.trouble = trouble_with("/t1-0/", "read")
    assert stage.fetch("t1").error_code == STORAGE
    stage.run(60_000)
    assert not [note for note in stage.notes if "can be read again" in note]
    stage.disk.trouble = None
    stage.run(60_000)
    assert len([note for note in stage.notes if "t1-0 can be read again" in note]) == 1
    assert not stage.node.failures.failing()


def test_an_index_that_can_not_be_read_is_built_again() -> None:
    """Nobody has to restart a single node for that, nor to restore a file."""
    stage = Stage("page-cache", log_segment_bytes="1048576", log_index_interval_bytes="0")
    for _ in range(6):
        stage.produce("t1", bytes(400_000))
    partition = stage.node.replicas.by_name["t1"].partitions[0]
    index = f"{partition.log.segments[0].path}.index"
    stage.run(1_000)
    stage.disk.make_unreadable(index, range(stage.disk.size(index)))
    partition.log.segments[0].offset_index.unload()
    partition.log.segments.cursors.clear()
    assert stage.fetch("t1").error_code == STORAGE
    stage.run(10_000)
    assert is_readable(stage.disk, index)
    assert stage.fetch("t1").error_code == 0
    assert not stage.node.failures.failing()


def offline_of(stage: Stage) -> dict[str, list[int]]:
    """The offline replicas of each topic, by Metadata."""
    answer = stage.ask(MetadataRequest(topics=None))
    return {topic.name: topic.partitions[0].offline_replicas for topic in answer.topics}


def test_a_node_without_a_cluster_names_its_logs_that_fail() -> None:
    stage = Stage("page-cache")
    for topic in TOPICS:
        stage.produce(topic)
    here = [stage.node.node_id]
    nowhere: dict[str, list[int]] = {topic: [] for topic in TOPICS}
    assert offline_of(stage) == nowhere
    stage.disk.trouble = trouble_with("/t1-0/", "read")
    assert stage.fetch("t1").error_code == STORAGE
    assert offline_of(stage) == nowhere | {"t1": here}
    stage.disk.trouble = trouble_with("/t2-0/", "write")
    assert part_of(stage.produce("t2")).error_code == STORAGE
    assert offline_of(stage) == nowhere | {"t1": here, "t2": here}
    stage.disk.trouble = None
    assert part_of(stage.produce("t2")).error_code == 0
    stage.run(10_000)
    assert offline_of(stage) == nowhere
    damage = Damage("0.log", 0, 0, 1, "a bit is flipped")
    stage.node.failures.found_damage(stage.node.replicas.by_name["t3"].partitions[0], damage)
    assert offline_of(stage) == nowhere | {"t3": here}
    stage.end(clean=True)
    stage.disk.put(f"{stage.directory}/t0-0/partition.metadata", b"not what it was")
    stage.start()
    assert offline_of(stage)["t0"] == here


def test_bytes_that_could_not_be_sent_are_an_error_the_next_time() -> None:
    stage = Stage("page-cache")
    for _ in range(3):
        stage.produce("t0", bytes(1000))
    log = stage.node.replicas.by_name["t0"].partitions[0].log
    slices = [log.read(offset, 1).slice for offset in range(3)]
    assert slices[1] is not None
    stage.disk.trouble = trouble_with("/t0-0/", "read")
    stage.node.unreadable(slices[1], OSError(errno.EIO, "Input/output error"))
    assert stage.fetch("t0").error_code == STORAGE
    stage.disk.trouble = None
    assert stage.fetch("t0").error_code == 0
    assert not log.durability.unreadable


def test_with_page_cache_durability_nothing_waits_for_the_disk() -> None:
    """Every fsync of a node at work is the disk thread's: first records, rolls, retention, checkpoints, compaction."""
    stage = Stage("page-cache", log_segment_bytes="1048576", log_cleaner_backoff_ms="1000")
    stage.create("table", 2, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"})
    on_the_loop: list[str] = []

    def beside(work: Callable[..., None]) -> Callable[..., None]:
        """What the disk thread does is not watched."""

        def unwatched(*args: Any) -> None:
            stage.disk.trouble = None
            work(*args)
            stage.disk.trouble = watch

        return unwatched

    def watch(operation: str, path: str) -> None:
        if operation == "sync":
            on_the_loop.append(path)

    stage.sync, stage.replace_file = beside(stage.sync), beside(stage.replace_file)  # type: ignore[method-assign]
    stage.disk.trouble = watch
    for topic in ("t0", "t1", "table"):
        for _ in range(6):
            stage.produce(topic, bytes(400_000))
        stage.run(2_000)
    stage.disk.crash()  # the first records are there, with their names, as the disk thread was soon asked for that
    assert on_the_loop == []
    stage.start(same_boot=False)
    on_the_loop.clear()  # a start may wait
    assert stage.node.replicas.by_name["t0"].partitions[0].log.log_end_offset > 0
    topic = stage.node.image.topics["t0"]
    log = stage.node.replicas.by_name["t0"].partitions[0].log
    stage.change(stage.node.topics.configuring(topic, {"retention.bytes": "0"}))
    segments = len(log.segments)
    stage.run(400_000)
    assert len(log.segments) < segments
    assert log.log_start_offset == log.segments[0].base_offset > 0
    stage.run(4_000_000)
    assert on_the_loop == []


def test_one_fsync_runs_at_a_time_and_all_that_wait_share_the_next() -> None:
    stage = Stage()
    asked = [stage.produce("t0")]
    asked += [stage.produce(topic) for topic in ("t0", "t1", "t2")]
    for answered in (1, 4):
        assert len(stage.syncs) == 1
        stage.sync()
        stage.settle()
        assert [each.answered for each in asked] == [True] * answered + [False] * (4 - answered)


def test_an_append_that_makes_a_flush_due_is_answered_behind_it_and_no_answer_waits_for_the_time_of_a_flush() -> None:
    """As on Kafka, whose append flushes."""
    stage = Stage("page-cache")
    stage.create("counted", 1, {"flush.messages": "2"})
    stage.create("timed", 1, {"flush.ms": "1"})
    assert stage.produce("timed").answered
    assert stage.produce("counted").answered
    second = stage.produce("counted")
    assert not second.answered
    stage.run()
    assert part_of(second).error_code == 0
    assert stage.produce("timed").answered


@pytest.mark.parametrize("left", [b"", b"version: 0\ntop", bytes(11) + b"topic_id: "])
def test_a_power_cut_may_tear_the_name_of_a_new_partition(left: bytes) -> None:
    """Its first record was in the page cache only; what is left is the topic's, whatever the cut made of the file."""
    stage = Stage("page-cache")
    stage.produce("t0")
    stage.run(1_000)
    path = "/data/t0-0/partition.metadata"
    whole = stage.disk.read_bytes(path)
    stage.disk.write_atomically(path, left)
    stage.disk.kill()
    stage.start(same_boot=False)
    assert stage.values("t0") == [b"v"]
    assert stage.disk.read_bytes(path) == whole


@pytest.mark.parametrize("cut", [True, False])
def test_what_a_new_producer_sent_behind_a_refused_batch_waits_for_it(cut: bool) -> None:
    """A producer that is unknown may begin with any sequence; its second batch in place of the first would be final."""
    stage = Stage("fsync" if cut else "page-cache")
    numbered = {"producer_id": 5, "producer_epoch": 0}
    stage.disk.trouble = trouble_with("/t0-0/", "sync" if cut else "create")
    first = stage.produce("t0", b"first", **numbered, base_sequence=0)
    stage.run()
    assert part_of(first).error_code == STORAGE
    stage.disk.trouble = None
    behind = stage.produce("t0", b"second", **numbered, base_sequence=1)
    assert part_of(behind).error_code == STORAGE
    for sequence, value in enumerate((b"first", b"second")):
        stage.produce("t0", value, **numbered, base_sequence=sequence)
        stage.run()
    assert stage.values("t0") == [b"first", b"second"]
