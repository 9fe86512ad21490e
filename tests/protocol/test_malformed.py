"""Bytes that are no message: a decoder gives a message or MalformedFrameError, and no length claims memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from ottla.protocol.apis import APIS
from ottla.protocol.coordinator_records import decode_record
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.framing import FrameSplitter, decode_request, decode_request_header
from ottla.protocol.messages._records import RECORD_TABLE
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.wire import write_uvarint
from tests.harness.protocol.kio_oracle import Case, cases, kio_bytes, messages_of

CASES = list(cases())
OTHER_VERSIONS = pytest.mark.slow("tests/protocol/test_malformed.py::test_damaged_messages_parse_or_are_malformed")
QUIET = settings(
    max_examples=2,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
LIES = [
    b"\xff\xff\xff\xff\x07",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\xff\xff\xff\xff\xff",
    b"\x80" * 6,
    b"\xc0\x80",
]


def mutated(good: bytes, dice: random.Random) -> bytes:
    """A damaged copy: cut, bytes changed, a lying length put in, a piece doubled or taken out."""
    data = bytearray(good)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(5):
            case 0:
                del data[at:]
            case 1 if data:
                data[at % len(data)] = dice.randrange(256)
            case 2:
                lie = dice.choice(LIES)
                data[at : at + len(lie)] = lie
            case 3:
                data[at:at] = data[at : at + dice.randrange(20)]
            case _:
                del data[at : at + dice.randrange(1, 5)]
    return bytes(data)


def parses_or_is_malformed(decode: Any, data: bytes, version: int) -> bool:
    try:
        _, end = decode(memoryview(data), 0, version)
    except MalformedFrameError:
        return False
    assert 0 <= end <= len(data)
    return True


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id, marks=() if case.is_first_or_last else OTHER_VERSIONS) for case in CASES]
)
def test_damaged_messages_parse_or_are_malformed(case: Case) -> None:
    dice = random.Random(case.id)

    @seed(1)
    @QUIET
    @given(messages_of(case.kio))
    def check(message: Any) -> None:
        good = kio_bytes(message)
        assert parses_or_is_malformed(case.ours.decode, good, case.version)
        for _ in range(25):
            parses_or_is_malformed(case.ours.decode, mutated(good, dice), case.version)

    check()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_cut_is_malformed_or_a_whole_message(case: Case) -> None:
    """No prefix may raise anything else; one byte short is never whole."""
    good = bytearray()
    case.ours().encode(good, case.version)
    for length in range(len(good)):
        assert not parses_or_is_malformed(case.ours.decode, bytes(good[:length]), case.version)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_random_bytes_parse_or_are_malformed(case: Case) -> None:
    dice = random.Random(case.id)
    for size in (1, 5, 20, 100):
        for _ in range(5):
            parses_or_is_malformed(case.ours.decode, dice.randbytes(size), case.version)
        parses_or_is_malformed(case.ours.decode, b"\xff" * size, case.version)
        parses_or_is_malformed(case.ours.decode, b"\x7f" * size, case.version)


def test_damaged_frames_parse_or_are_malformed() -> None:
    dice = random.Random(7)
    for key in APIS:
        for _ in range(40):
            frame = key.to_bytes(2, "big") + bytes([0, dice.randrange(16)]) + dice.randbytes(dice.randrange(40))
            for decode in (decode_request_header, decode_request):
                with suppress(MalformedFrameError):
                    decode(frame)


def test_damaged_coordinator_records_parse_or_are_malformed() -> None:
    dice = random.Random(8)
    for topic, record_type, *_ in RECORD_TABLE:
        for _ in range(100):
            key = record_type.to_bytes(2, "big") + dice.randbytes(dice.randrange(30))
            value = bytes([0, dice.randrange(5)]) + dice.randbytes(dice.randrange(60))
            with suppress(MalformedFrameError):
                decode_record(topic, key, value)


def test_an_array_may_not_claim_more_than_the_frame_holds() -> None:
    legacy = b"\x7f\xff\xff\xff" + bytes(60)
    compact = b"\xff\xff\xff\xff\x07" + bytes(60)
    for data, version in ((legacy, 1), (compact, 12)):
        assert claimed_bytes(MetadataRequest, data, version) < 20_000
    fetch = bytes(16) + b"\0" + bytes(8) + b"\xfe\xff\xff\xff\x07" + bytes(200)
    assert claimed_bytes(FetchRequest, fetch, 12) < 20_000
    produce = b"\0\0\x01" + bytes(4) + b"\x02\x02a\x02\0\0\0\0\xff\xff\xff\xff\x07" + bytes(100)
    assert claimed_bytes(ProduceRequest, produce, 9) < 20_000


def claimed_bytes(cls: Any, data: bytes, version: int) -> int:
    """The most memory held while a lying message is refused."""
    cls.decode  # noqa: B018  imported before the measure
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrameError):
            cls.decode(memoryview(data), 0, version)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_decoding_takes_memory_in_proportion_to_the_frame() -> None:
    """A frame that is nothing but smallest elements is the worst there is: about a hundred bytes an element."""
    frame = b"\xff\xff\x03" + b"\x01\0" * 65534 + bytes(4)  # topics without a name, each an object
    tracemalloc.start()
    try:
        assert parses_or_is_malformed(MetadataRequest.decode, frame, 9)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * len(frame)


def test_a_length_costs_the_splitter_nothing() -> None:
    splitter = FrameSplitter()
    tracemalloc.start()
    try:
        assert list(splitter.feed((100 * 1024 * 1024).to_bytes(4, "big"))) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000


class TestKafkasLeniencies:
    """What Kafka 4.3.1 was seen to accept."""

    def test_any_negative_array_length_is_null(self) -> None:
        for length in (-1, -2, -2147483648):
            message, _ = MetadataRequest.decode(length.to_bytes(4, "big", signed=True), 0, 1)
            assert message.topics is None

    def test_bytes_behind_the_message_are_left_alone(self) -> None:
        message, end = MetadataRequest.decode(b"\0\0\0\0behind", 0, 1)
        assert (message.topics, end) == ([], 4)

    def test_unknown_tagged_fields_are_skipped(self) -> None:
        out = bytearray()
        MetadataRequest().encode(out, 12)
        assert out[-1] == 0
        tagged = bytes(out[:-1]) + b"\x02\x05\x03abc\x90\x01\x00"
        assert MetadataRequest.decode(tagged, 0, 12) == (MetadataRequest(), len(tagged))


class TestRefusals:
    @pytest.mark.parametrize(
        ("data", "version"),
        [
            (b"\0\0\0\x01\0\x02\xff\xfe", 1),  # no UTF-8
            (b"\0\0\0\x01\xff\xff", 1),  # null where null may not be
            (b"\0\0\0\x01\0\x05abc", 1),  # a string longer than the frame
            (b"\x80\x80\x80\x80\x80\x01", 12),  # a varint of six bytes
            (b"\xff\xff\xff\xff\x0f", 12),  # a varint above 31 bits
            (b"\x02" + bytes(16) + b"\x81\x80\x02" + bytes(40000), 12),  # a string above 32767 bytes
        ],
    )
    def test_is_malformed(self, data: bytes, version: int) -> None:
        with pytest.raises(MalformedFrameError):
            MetadataRequest.decode(data, 0, version)

    def test_a_known_tag_must_fill_the_size_it_claims(self) -> None:
        out = bytearray()
        FetchRequest(cluster_id="abc").encode(out, 12)
        assert bytes(out).endswith(b"\x01\0\x04\x04abc")
        for wrong in (b"\x01\0\x03\x04abc", b"\x01\0\x05\x04abcd", b"\x01\0\x7f\x04abc"):
            with pytest.raises(MalformedFrameError):
                FetchRequest.decode(bytes(out[:-7]) + wrong, 0, 12)


def test_more_tagged_fields_than_anyone_has_are_refused_at_once() -> None:
    section = bytearray()
    write_uvarint(section, 30_000_000)
    section += bytes(60_000_000)
    frame = struct.pack(">hhih", 18, 3, 1, -1) + bytes(section)
    with pytest.raises(MalformedFrameError, match="tagged fields"):
        decode_request_header(frame)


def test_more_array_elements_than_anyone_has_are_refused_at_once() -> None:
    array = bytearray()
    write_uvarint(array, 1 + (1 << 20) + 1)
    array += b"\x01" * ((1 << 20) + 2)
    with pytest.raises(MalformedFrameError, match="array"):
        DescribeGroupsRequest.decode(memoryview(bytes(array)), 0, 5)
