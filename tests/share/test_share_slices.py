"""Parts of large batches: sent alone, shared by members, and never twice in one answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.delivery.batch_parts import Slices
from ottla.log.files import DiskFiles
from ottla.protocol.records.batch import has_valid_crc, peek
from ottla.protocol.records.record import Record, build_batch, decode_records
from tests.harness.share.share_stage import ACCEPT, RELEASE, Member, ShareStage

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def begun(stage: ShareStage, count: int, **overrides: str) -> tuple[bytes, Member]:
    topic = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest", **overrides)
    large(stage, count)
    return topic, stage.member(topic)


def large(stage: ShareStage, count: int, compression: str = "none") -> None:
    """One batch of records of 200 bytes."""
    base = stage.node.replicas.by_name["jobs"].partitions[0].log.log_end_offset
    records = [Record(-1, stage.now + i, b"k%d" % i, b"%d" % (base + i) * 40, [("h", b"x")]) for i in range(count)]
    stage.put(build_batch(records, compression=compression))


@pytest.mark.parametrize("codec", CODECS)
@given(
    offsets=st.sets(st.integers(100, 400), min_size=1, max_size=60),
    low=st.integers(90, 410),
    length=st.integers(1, 100),
)
@settings(max_examples=25, deadline=None)
def test_a_part_holds_the_records_unchanged(
    tmp_path_factory: pytest.TempPathFactory, codec: str, offsets: set[int], low: int, length: int
) -> None:
    records = [
        Record(o, 1_000 + o, None if o % 7 == 0 else b"k", b"v" * (o % 300), [("a", None)]) for o in sorted(offsets)
    ]
    batch = bytes(build_batch(records, base_offset=100, compression=codec, last_offset_delta=300))
    path = tmp_path_factory.mktemp("cut") / "0.log"
    path.write_bytes(b"x" * 10 + batch)
    file = DiskFiles().open(str(path))
    high = min(low + length, 401)
    low = max(low, 100)
    if low >= high:
        return
    slices = Slices(lambda note: None)
    for _ in range(2):  # unpacked, then remembered
        part = slices.cut(file, 10, len(batch), low, high)
        header = peek(part)
        assert has_valid_crc(part, 0, header)
        assert (header.base_offset, header.last_offset) == (100, high - 1)
        assert decode_records(part) == [record for record in records if low <= record.offset < high]


def test_one_released_record_travels_alone(stage: ShareStage) -> None:
    _, member = begun(stage, 1000)
    assert member.fetch(records=1000) == [(0, 999, 1)]
    everything = dict(member.sent)
    asked = member.ask([(0, 999, [RELEASE if i in (7, 500, 501) else ACCEPT for i in range(1000)])])
    assert member.acquired(asked) == [(7, 7, 2), (500, 501, 2)]
    assert len(member.part(asked).records) < 2_000
    assert member.sent == {offset: everything[offset] for offset in (7, 500, 501)}


def test_a_batch_is_never_in_an_answer_whole_and_in_part(stage: ShareStage) -> None:
    _, member = begun(stage, 1000)
    member.fetch(records=1000)
    types = [RELEASE if i == 7 or i >= 300 else ACCEPT for i in range(1000)]
    assert member.fetch([(0, 999, types)], records=1000) == [(7, 7, 2), (300, 999, 2)]
    types = [RELEASE if 300 <= i < 900 or i == 950 else ACCEPT for i in range(300, 1000)]
    assert member.fetch([(300, 999, types)], records=1000) == [(300, 899, 3), (950, 950, 3)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_limit_sends_no_more_than_it_says(stage: ShareStage, codec: str) -> None:
    topic = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest")
    large(stage, 500, codec)
    member = stage.member(topic)
    for i in range(0, 40, 10):
        assert member.fetch(records=10, exactly=True) == [(i, i + 9, 1)]
        assert sorted(member.sent) == list(range(i, i + 10))


def test_members_share_one_batch(stage: ShareStage) -> None:
    topic, first = begun(stage, 1)
    members = [first, *(stage.member(topic) for _ in range(9))]
    for member in members:
        member.fetch()
    large(stage, 1000)
    got = [sum(last - low + 1 for low, last, _ in member.fetch()) for member in members]
    assert got[0] == 100
    assert got == sorted(got, reverse=True), "ever smaller shares of what is left"
    assert got[-1] > 30


def test_who_is_alone_takes_whole_batches(stage: ShareStage) -> None:
    _, member = begun(stage, 1000)
    assert member.fetch(records=10) == [(0, 999, 1)]


def test_fairness_can_be_turned_off(stage: ShareStage) -> None:
    topic, member = begun(stage, 1, share_delivery_fair_enable="false")
    member.fetch()
    other = stage.member(topic)
    other.fetch()
    large(stage, 1000)
    assert other.fetch(records=10) == [(1, 1000, 1)]
