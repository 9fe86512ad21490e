"""The hand-written Fetch answer against the generated encoder, for every version."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.cluster.members import Member
from ottla.broker.fetch.answer import PartitionAnswer, encode_fetch_response
from ottla.broker.fetch.sessions import FetchPartition
from ottla.log.files import FileSlice
from ottla.log.index.transactions import AbortedTransaction
from ottla.protocol.framing import RequestHeader, encode_response
from ottla.protocol.messages import fetch as wire

VERSIONS = range(4, 19)
OTHER_VERSIONS = pytest.mark.slow("tests/broker/test_fetch_answer.py::test_same_bytes_as_the_generated_encoder")
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


class Bytes:
    """A file of the seam that is a bytes object."""

    path = "memory"

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read(self, position: int, length: int) -> bytes:
        return self.content[position : position + length]


def joined(parts: list) -> bytes:
    return b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in parts)


@st.composite
def answers(draw, by_id: bool):
    topics = st.binary(min_size=16, max_size=16) if by_id else st.text("abc.-_", min_size=1, max_size=300)
    found = []
    for topic in draw(st.lists(topics, max_size=3, unique=True)):
        for index in range(draw(st.integers(1, 3))):
            answer = PartitionAnswer(FetchPartition(topic, index, 0, 0))
            answer.error = draw(st.integers(-1, 130))
            answer.high_watermark, answer.last_stable_offset, answer.log_start_offset = draw(
                st.tuples(INT64, INT64, INT64)
            )
            answer.aborted = draw(
                st.none() | st.lists(st.builds(AbortedTransaction, INT64, INT64, INT64, INT64), max_size=3)
            )
            content = draw(st.none() | st.binary(min_size=1, max_size=300))
            if content is not None:
                answer.records = FileSlice(Bytes(b"xx" + content), 2, len(content))
            answer.current_leader = draw(st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)))
            answer.diverging = draw(st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)))
            found.append(answer)
    return found


def by_the_codec(version, correlation_id, error, session_id, found, endpoints, throttle_ms) -> bytes:
    topics: dict = {}
    for answer in found:
        records = b"" if answer.records is None else answer.records.read()
        topics.setdefault(answer.asked.topic, []).append(
            wire.PartitionData(
                answer.asked.index,
                answer.error,
                answer.high_watermark,
                answer.last_stable_offset,
                answer.log_start_offset,
                diverging_epoch=None if answer.diverging is None else wire.EpochEndOffset(*answer.diverging),
                current_leader=None if answer.current_leader is None else wire.LeaderIdAndEpoch(*answer.current_leader),
                aborted_transactions=None
                if answer.aborted is None
                else [wire.AbortedTransaction(each.producer_id, each.first_offset) for each in answer.aborted],
                records=records,
            )
        )
    responses = [
        wire.FetchableTopicResponse(
            topic if isinstance(topic, str) else "", topic if isinstance(topic, bytes) else bytes(16), partitions
        )
        for topic, partitions in topics.items()
    ]
    message = wire.FetchResponse(throttle_ms, error, session_id, responses)
    if endpoints:
        message.node_endpoints = [wire.NodeEndpoint(*each) for each in endpoints]
    return bytes(encode_response(RequestHeader(1, version, correlation_id, None), message))


@pytest.mark.parametrize(
    "version", [pytest.param(each, marks=() if each in (4, 12, 13, 18) else OTHER_VERSIONS) for each in VERSIONS]
)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_same_bytes_as_the_generated_encoder(version, data):
    found = data.draw(answers(version >= 13))
    endpoints = data.draw(
        st.lists(
            st.builds(
                Member, st.integers(0, 9), st.just("127.0.0.1"), st.integers(1, 65535), st.none() | st.text(max_size=9)
            ),
            max_size=3,
        )
    )
    if version < 16:
        endpoints = []
    error, session_id, throttle_ms = data.draw(st.integers(0, 130)), data.draw(INT32), data.draw(INT32)
    fields = (version, data.draw(INT32), error, session_id, found, endpoints, throttle_ms)
    assert joined(encode_fetch_response(*fields)) == by_the_codec(*fields)
