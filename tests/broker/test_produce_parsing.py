"""The hand-written reader of Produce frames against the generated codec."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.broker import produce_size
from ottla.broker.api.produce_frames import INTERNAL_TOPICS_CLIENT, TransactionalAppend, parse_common
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.framing import RequestHeader, decode_request_header, encode_request
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

FLEXIBLE = range(9, 14)
CLIENTS = st.none() | st.sampled_from(["", "a", "rdkafka", INTERNAL_TOPICS_CLIENT, "x" * 300])


@st.composite
def requests(draw):
    partition = st.builds(
        PartitionProduceData, st.integers(0, 2**31 - 1), st.none() | st.binary(max_size=400) | st.just(b"z" * 20_000)
    )
    topic = st.builds(
        TopicProduceData,
        st.text("äbc._-", max_size=200),
        st.binary(min_size=16, max_size=16),
        st.lists(partition, max_size=3),
    )
    return ProduceRequest(
        draw(st.none() | st.just("tid") | st.text(max_size=150)),
        draw(st.integers(-1, 1)),
        draw(st.integers(0, 60_000)),
        draw(st.lists(topic, max_size=3)),
    )


def frame_of(version: int, client_id: str | None, request: ProduceRequest) -> memoryview:
    return memoryview(encode_request(RequestHeader(0, version, 7, client_id), request))[4:]


def by_the_codec(frame: memoryview, version: int):
    header, position = decode_request_header(frame)
    body, _ = ProduceRequest.decode(frame, position, version)
    return header, body


@pytest.mark.parametrize("version", FLEXIBLE)
@settings(max_examples=60, deadline=None)
@given(request_=requests(), client_id=CLIENTS)
def test_reads_what_the_codec_reads(version, request_, client_id):
    frame = frame_of(version, client_id, request_)
    parsed = parse_common(frame, version)
    if parsed is None:
        return  # left to the codec
    _, body = by_the_codec(frame, version)
    seen_client, acks, timeout_ms, appends, transactional_id = parsed
    assert seen_client == (client_id if client_id == INTERNAL_TOPICS_CLIENT else None)
    assert (transactional_id, acks, timeout_ms) == (body.transactional_id, body.acks, body.timeout_ms)
    assert all(isinstance(each, TransactionalAppend) == (transactional_id is not None) for each in appends)
    expected = [
        (topic.topic_id if version >= 13 else topic.name, part.index, bytes(part.records))
        for topic in body.topic_data
        for part in topic.partition_data
    ]
    assert [(a.topic, a.index, bytes(a.records)) for a in appends] == expected


@pytest.mark.parametrize("version", FLEXIBLE)
def test_the_usual_frame_is_not_left_to_the_codec(version):
    topic = TopicProduceData("orders", bytes(range(16)), [PartitionProduceData(3, b"r" * 300)])
    for client_id, transactional_id in ((None, None), ("rdkafka", None), (INTERNAL_TOPICS_CLIENT, None), ("a", "tid")):
        frame = frame_of(version, client_id, ProduceRequest(transactional_id, -1, 30_000, [topic]))
        parsed = parse_common(frame, version)
        assert parsed is not None
        assert [(a.index, bytes(a.records)) for a in parsed[3]] == [(3, b"r" * 300)]


@settings(max_examples=300, deadline=None)
@given(request_=requests(), version=st.sampled_from(FLEXIBLE), cut=st.integers(4, 400), noise=st.binary(max_size=8))
@example(request_=ProduceRequest(None, 1, 1, []), version=9, cut=4, noise=b"")
def test_a_damaged_frame_is_read_as_the_codec_reads_it(request_, version, cut, noise):
    """Where the codec refuses a frame, the hand-written reader must not make something of it.

    The API key and the version, the first four bytes, decide which reader is asked, so they stay.
    """
    whole = bytes(frame_of(version, "c", request_))
    cut = min(cut, len(whole))
    damaged = memoryview(bytearray(whole[:cut] + noise + whole[cut + len(noise) :][: max(0, len(whole) - cut - 3)]))
    if len(damaged) < 12:
        return
    parsed = parse_common(damaged, version)
    if parsed is None:
        return
    try:
        _, body = by_the_codec(damaged, version)
    except MalformedFrameError:
        pytest.fail(f"the codec refuses a frame that was read as {parsed}")
    assert parsed[4] == body.transactional_id
    assert [bytes(a.records) for a in parsed[3]] == [
        bytes(part.records) for topic in body.topic_data for part in topic.partition_data
    ]


@pytest.mark.parametrize("version", range(3, 14))
def test_a_request_of_more_partitions_than_anyone_sends_is_refused_before_it_is_decoded(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_size, "PARTITIONS_MAX", 12)
    data = [PartitionProduceData(index, b"batch") for index in range(5)]
    for topics, fits in ((2, True), (3, False)):
        asked = [TopicProduceData(f"t{n}", bytes(16), data) for n in range(topics)]
        frame = frame_of(version, "c", ProduceRequest(None, 1, 1000, asked))
        _, position = decode_request_header(frame)
        if fits:
            produce_size.refuse_too_many(frame, position, version)
        else:
            with pytest.raises(MalformedFrameError, match="more than 12"):
                produce_size.refuse_too_many(frame, position, version)
    with pytest.raises(MalformedFrameError):
        produce_size.refuse_too_many(frame[:-20], position, version)
