"""The hand-written ShareFetch answer against the generated encoder."""

from pathlib import Path

import pytest

from ottla.broker.cluster.members import Member
from ottla.broker.delivery.answer import ShareAnswer, encode_share_fetch_response
from ottla.log.files import DiskFiles, FileSlice
from ottla.protocol.framing import RequestHeader, encode_response
from ottla.protocol.messages.share_fetch import (
    AcquiredRecords,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchResponse,
)

T1, T2 = bytes(range(16)), bytes(range(16, 32))


def made(place: tuple[bytes, int], **values: object) -> ShareAnswer:
    answer = ShareAnswer(place)
    for name, value in values.items():
        setattr(answer, name, value)
    return answer


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("endpoints", [[], [Member(3, "a.example", 9092, None), Member(4, "b.example", 9, "r")]])
def test_both_encoders_write_the_same(tmp_path: Path, version: int, endpoints: list[Member]) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(bytes(range(256)) * 4)
    file = DiskFiles().open(str(path))
    slices = [FileSlice(file, 10, 300), FileSlice(file, 500, 20)]
    answers = [
        made((T1, 0), records=slices, size=320, acquired=[(5, 9, 1), (12, 300, 7)], acknowledge_error=121),
        made((T2, 4), error=6, current_leader=(2, 9)),
        made((T1, 1), acquired=[(i, i, 1) for i in range(200)], records=slices[:1], size=300),
    ]
    parts = encode_share_fetch_response(77, 0, None, 30_000, answers, endpoints, 250)
    whole = b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in parts)
    topics: dict[bytes, list[PartitionData]] = {T1: [], T2: []}
    for answer in answers:
        data = PartitionData(
            answer.place[1],
            answer.error,
            None,
            answer.acknowledge_error or 0,
            None,
            LeaderIdAndEpoch(*answer.leader),
            b"".join(each.read() for each in answer.records),
            [AcquiredRecords(*each) for each in answer.acquired],
        )
        topics[answer.place[0]].append(data)
    message = ShareFetchResponse(
        250,
        0,
        None,
        30_000,
        [ShareFetchableTopicResponse(topic_id, found) for topic_id, found in topics.items()],
        [NodeEndpoint(*each) for each in endpoints],
    )
    assert whole == bytes(encode_response(RequestHeader(78, version, 77), message))


def test_an_error_has_its_sentence() -> None:
    parts = encode_share_fetch_response(1, 122, "The share session was not found.", 0, [], [])
    message = ShareFetchResponse(0, 122, "The share session was not found.", 0)
    assert b"".join(map(bytes, parts)) == bytes(encode_response(RequestHeader(78, 2, 1), message))  # type: ignore[arg-type]


def test_an_error_without_a_known_leader_names_none() -> None:
    """franz-go takes node 0 in an answer with an error for the partition's new leader."""
    assert made((T1, 0)).leader == (0, 0), "as Kafka"
    assert made((T1, 0), error=3).leader == (-1, -1)
    assert made((T1, 0), acknowledge_error=121).leader == (-1, -1)
    assert made((T1, 0), error=6, current_leader=(-1, 9)).leader == (-1, 9)
