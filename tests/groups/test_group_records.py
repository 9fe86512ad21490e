"""Records of `__consumer_offsets`: Kafka's bytes, both ways. The golden ones were written by Apache Kafka 4.3.1."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.groups.classic.records import GroupRecord, StoredGroup, StoredMember, encode_group
from ottla.groups.offset_records import CommittedOffset, OffsetRecord, decode_committed, encode_offset
from ottla.groups.records import Unknown, decode
from ottla.groups.shard import GroupShard
from ottla.machine import AppliedBatch, AppliedRecord, ShardRecord
from ottla.protocol.coordinator_records import decode_value, encode_value
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.offset_commit_record import OffsetCommitValue
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.harness.groups.group_stage import Stage

LINES = (Path(__file__).parent / "golden" / "kafka_4_3_1_records.txt").read_text().splitlines()


def of_hex(line: str) -> ShardRecord:
    key, value = line.split()
    return ShardRecord(bytes.fromhex(key), None if value == "None" else bytes.fromhex(value))


@pytest.mark.parametrize("line", LINES)
def test_kafkas_records_are_read_and_written_the_same(line: str) -> None:
    found = of_hex(line)
    match decode(found.key, found.value, 7):
        case OffsetRecord(group_id, topic, partition, committed):
            assert committed is None or committed.record_offset == 7
            assert encode_offset(group_id, topic, partition, committed)[:2] == found[:2]
        case GroupRecord(group_id, stored):
            assert encode_group(group_id, stored) == found
        case other:
            raise AssertionError(other)


def test_every_kind_is_among_them() -> None:
    kinds = {(of_hex(line).key[1], (of_hex(line).value or b"--")[1]) for line in LINES}
    assert kinds == {(1, 1), (1, 4), (1, ord("-")), (2, 3), (2, ord("-"))}


INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16))


def generated(value: bytes) -> CommittedOffset | None:
    """What the generated codec reads; None where it can't."""
    try:
        read = decode_value(OffsetCommitValue, value)
    except MalformedFrameError:
        return None
    times = read.commit_timestamp, read.expire_timestamp
    return CommittedOffset(read.offset, read.leader_epoch, read.metadata, *times, 7, read.topic_id)


def by_hand(value: bytes) -> CommittedOffset | None:
    try:
        return decode_committed(value, 7)
    except MalformedFrameError:
        return None


@given(INT64, INT32, st.sampled_from(["", "m" * 17, "é"]), INT64, IDS)
def test_offsets_are_written_and_read_as_by_the_generated_codec(
    offset: int, leader_epoch: int, metadata: str, timestamp: int, topic_id: bytes
) -> None:
    committed = CommittedOffset(offset, leader_epoch, metadata, timestamp, topic_id=topic_id)
    _, value, meaning = encode_offset("g", "t", 0, committed)
    assert value is not None
    assert meaning in (None, OffsetRecord("g", "t", 0, committed))
    assert value == encode_value(OffsetCommitValue(offset, leader_epoch, metadata, timestamp, -1, topic_id), 4)
    assert by_hand(value) == generated(value) == committed._replace(record_offset=7)


@given(st.data())
def test_offsets_that_are_damaged_are_read_as_by_the_generated_codec(data: st.DataObject) -> None:
    value = bytearray(encode_offset("g", "t", 0, CommittedOffset(5, 3, "", 9, topic_id=b"i" * 16)).value or b"")
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    assert by_hand(bytes(value)) == generated(bytes(value))


@pytest.mark.parametrize(
    ("value", "committed"),
    [
        ("0000 0000000000000005 0001 6d 0000000000000007", CommittedOffset(5, -1, "m", 7)),
        ("0002 0000000000000005 0001 6d 0000000000000007", CommittedOffset(5, -1, "m", 7)),
        ("0003 0000000000000005 00000003 0001 6d 0000000000000007", CommittedOffset(5, 3, "m", 7)),
    ],
)
@pytest.mark.parametrize("record_type", ["0000", "0001"])
def test_older_versions_are_read(record_type: str, value: str, committed: CommittedOffset) -> None:
    key = bytes.fromhex(f"{record_type} 0001 67 0001 74 00000002")
    found = decode(key, bytes.fromhex(value), -1)
    assert found == OffsetRecord("g", "t", 2, committed)


def test_a_group_of_version_0_has_one_timeout() -> None:
    member = "0001 6d 0001 63 0001 68 00002710 00000001 73 00000001 61"
    value = bytes.fromhex(f"0000 0001 63 00000004 0001 72 0001 6d 00000001 {member}")
    found = decode(bytes.fromhex("0002 0001 67"), value, -1)
    assert found == GroupRecord(
        "g", StoredGroup("c", 4, "r", "m", -1, (StoredMember("m", None, "c", "h", 10_000, 10_000, b"s", b"a"),))
    )


def test_records_of_later_kinds_are_passed_over_with_one_note() -> None:
    stage = Stage()
    records = [AppliedRecord(i, 0, bytes.fromhex("0017 0001 67"), b"\0\0\0\0\0\1\0") for i in range(2)]
    stage.shard.apply(0, AppliedBatch(0, records))
    assert decode(records[0].key or b"", records[0].value, 0) == Unknown(23)
    assert stage.notes == ["__consumer_offsets: records of type 23 are unknown and are skipped"]


@pytest.mark.parametrize("key", ["", "00", "0001", "0001 0005 67", "0002 ffff"])
@pytest.mark.parametrize("value", ["", "0063", "0003 00"])
def test_a_record_that_does_not_parse_stops_nothing(key: str, value: str) -> None:
    with pytest.raises(MalformedFrameError):
        decode(bytes.fromhex(key), bytes.fromhex(value), 0)
    stage = Stage()
    stage.shard.apply(0, AppliedBatch(0, [AppliedRecord(0, 0, bytes.fromhex(key), bytes.fromhex(value))]))
    assert len(stage.notes) == 1
    stage.shard.check()


text = st.text(max_size=8)


@given(
    text,
    st.builds(
        StoredGroup,
        text,
        st.integers(0, 2**31 - 1),
        st.none() | text,
        st.none() | text,
        st.integers(-1, 2**62),
        st.lists(
            st.builds(
                StoredMember,
                text,
                st.none() | text,
                text,
                text,
                st.integers(0, 2**31 - 1),
                st.integers(0, 2**31 - 1),
                st.binary(max_size=8),
                st.binary(max_size=8),
            ),
            max_size=3,
        ).map(tuple),
    ),
)
def test_groups_round_trip(group_id: str, stored: StoredGroup) -> None:
    record = encode_group(group_id, stored)
    assert decode(record.key, record.value, 0) == GroupRecord(group_id, stored)


def test_a_log_that_kafka_wrote_is_replayed() -> None:
    """Without the tombstones: the groups and offsets stand there as Kafka had them."""
    records = [of_hex(line) for line in LINES if not line.endswith("None")]
    records.sort(key=lambda record: (record.key[1], (record.value or b"")[1], record.value))
    stage = Stage()
    shard: GroupShard = stage.shard
    applied = [AppliedRecord(i, 0, record.key, record.value) for i, record in enumerate(records)]
    shard.apply(stage.now, AppliedBatch(0, applied))
    shard.loaded(stage.now)
    shard.check()
    described = stage.answers[stage.ask(DescribeGroupsRequest(groups=["g", "simple"]), 5)]
    assert [group.group_state for group in described.groups] == ["Empty", "Empty"]  # type: ignore[attr-defined]
    fetched = stage.answers[stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 9)]
    (topic,) = fetched.groups[0].topics  # type: ignore[attr-defined]
    assert [(each.partition_index, each.committed_offset) for each in topic.partitions] == [(0, 5), (1, 6)]


def test_offsets_of_an_earlier_life_of_a_topic_do_not_count() -> None:
    stage = Stage()
    old, new, unknown = bytes([1]) * 16, bytes([2]) * 16, bytes(16)
    for partition, topic_id in enumerate((old, new, unknown)):
        record = encode_offset("g", "t", partition, CommittedOffset(5, -1, "", 0, topic_id=topic_id))
        stage.shard.apply(0, AppliedBatch(partition, [AppliedRecord(partition, 0, record.key, record.value)]))

    def fetch(topic_id: bytes) -> list[int]:
        asked = OffsetFetchRequestTopics("t", topic_id, [0, 1, 2])
        ticket = stage.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=[asked])]), 10)
        reply = stage.answers[ticket]
        return [each.committed_offset for each in reply.groups[0].topics[0].partitions]  # type: ignore[attr-defined]

    assert fetch(new) == [-1, 5, 5]
    assert fetch(old) == [5, -1, 5]
    assert fetch(unknown) == [5, 5, 5]
