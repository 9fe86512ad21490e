"""A damaged log under a share group: the group hears of it, and passes over nothing that it was not given."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.delivery.dead_letters import DeadLetterRange, TopicUnusableError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.record import Record, build_batch
from tests.harness.share.share_stage import ACCEPT, Member, ShareStage
from tests.share.test_share_nodes import KEEPS, READS, SharePair

HEADER_BYTES = {"length": 8, "a length too long": 10, "magic": 16, "a far offset": 0}


def damaged(stage: ShareStage, at: int, **configs: str) -> tuple[bytes, Member]:
    """Four batches of two records; a bit of the third one's header is flipped."""
    topic = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest", **configs)
    for _ in range(4):
        stage.produce(2)
    damage(Path(stage.directory) / "jobs-0", at)
    return topic, stage.member(topic)


def damage(directory: Path, at: int) -> None:
    """Flip a bit of this byte of the third batch."""
    path = directory / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[[position for _, position in iter_batches(bytes(content))][2] + at] ^= 64
    path.write_bytes(content)


@pytest.mark.parametrize("at", HEADER_BYTES.values(), ids=HEADER_BYTES)
def test_a_share_group_is_told_and_passes_over_nothing(stage: ShareStage, at: int) -> None:
    _, member = damaged(stage, at)
    if member.part(first := member.ask()).error_code == 0:
        assert [(each.first_offset, each.last_offset) for each in member.part(first).acquired_records] == [(0, 3)]
        assert member.said((0, 3, [ACCEPT])) == 0
        stage.run()
    for _ in range(2):
        assert member.part(member.ask()).error_code == ErrorCode.CORRUPT_MESSAGE
    assert stage.node.coordinators.share.describe(stage.now)[0].start_offset == 4
    assert any("is damaged: " in note and "offset 4: " in note for note in stage.notes), stage.notes


@pytest.mark.parametrize("at", [8, 10], ids=["length", "a length too long"])
def test_a_consumer_is_told_too(stage: ShareStage, at: int) -> None:
    """Nothing else ever came, without a word."""
    topic, _ = damaged(stage, at)
    part = FetchPartition(0, fetch_offset=4, partition_max_bytes=1 << 20)
    request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic_id=topic, partitions=[part])])
    answer = stage.send(request).answer
    assert answer.responses[0].partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("at", HEADER_BYTES.values(), ids=HEADER_BYTES)
def test_letters_for_what_was_damaged_since_are_written_and_end(stage: ShareStage, at: int) -> None:
    stage.topic("dlq.jobs", 1, errors_deadletterqueue_group_enable="true")
    _, member = damaged(stage, at, errors_deadletterqueue_topic_name="dlq.jobs")
    member.ask()
    hosted = stage.node.coordinators.share.known("g", member.places[0])
    assert hosted is not None
    found = stage.node.coordinators.share.letters._records(DeadLetterRange(hosted, 0, 8, 1, True))
    assert [record.offset for record in found[:4]] == [0, 1, 2, 3]
    if at:
        assert [(record.offset, record.headers) for record in found[4:]] == [(4, [("__dlq.errors.last.offset", b"7")])]


@pytest.mark.parametrize("at", [8, 10, 70], ids=["length", "a length too long", "a record"])
def test_letters_for_damaged_records_wait_for_another_replica(tmp_path: Path, at: int) -> None:
    """It has the records, and copies them when it leads."""
    pair = SharePair(tmp_path)
    pair.make("copied", READS, KEEPS)
    stage = pair.stages[READS]
    partition = stage.node.replicas.get("copied", 0)
    assert partition is not None
    for _ in range(4):
        batch = build_batch([Record(-1, stage.now, b"k", b"v"), Record(-1, stage.now, b"k", b"v")])
        partition.append(stage.now, memoryview(bytearray(batch)))
    partition.log.advance_high_watermark(8)
    damage(Path(stage.directory) / "copied-0", at)
    pending = DeadLetterRange(cast(Any, SimpleNamespace(partition=partition)), 0, 8, 1, True)
    with pytest.raises(TopicUnusableError, match="another replica"):
        stage.node.coordinators.share.letters._records(pending)
    assert partition.copy.damaged_from == 4
