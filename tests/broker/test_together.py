"""ReadTogether: each inner answer is what the same request gets alone."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api import k02_list_offsets, k10902_read_together
from ottla.log.files import DiskFiles
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.describe_observations import DescribeObservationsRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.protocol.messages.read_together import InnerAnswer, InnerRequest, ReadTogetherRequest
from ottla.protocol.private_requests import READABLE
from ottla.protocol.wire import Message
from tests.harness.node_stage import NodeStage


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path)
    for number in range(3):
        stage.create(f"t{number}", partitions=4)
        stage.append(f"t{number}", 0)
    return stage


def ends(time_ms: int) -> ListOffsetsRequest:
    rows = [ListOffsetsPartition(index, timestamp=time_ms) for index in range(5)]
    return ListOffsetsRequest(-1, 0, [ListOffsetsTopic(f"t{number}", rows) for number in range(4)], 1000)


def inner(message: Message, version: int | None = None) -> InnerRequest:
    version = APIS[message.API_KEY].max_version if version is None else version
    content = bytearray()
    message.encode(content, version)
    return InnerRequest(message.API_KEY, version, bytes(content))


def decoded(message: Message, answer: InnerAnswer, version: int | None = None) -> Any:
    assert answer.error_code == ErrorCode.NONE
    version = APIS[message.API_KEY].max_version if version is None else version
    found, end = APIS[message.API_KEY].response.decode(answer.content, 0, version)
    assert end == len(answer.content)
    return found


def many_groups() -> OffsetFetchRequest:
    """So many that the answer is made of parts that are encoded already."""
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(f"g{number}", topics=None) for number in range(500)])


def test_each_answer_is_that_of_the_request_alone(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k02_list_offsets, "SLICE_STEPS", 2, raising=False)
    monkeypatch.setattr(DiskFiles, "space", lambda *_: (1_000, 100))  # others use the disk as well
    asked = [
        ends(-2),
        ends(-1),
        ends(-3),
        ListGroupsRequest(),
        DescribeGroupsRequest(["g"]),
        ListTransactionsRequest(),
        DescribeLogDirsRequest(None),
    ]
    alone = [stage.ask(each) for each in asked]
    answers = stage.ask(ReadTogetherRequest([inner(each) for each in asked])).answers
    assert [decoded(*each) for each in zip(asked, answers, strict=True)] == alone
    offsets = many_groups()
    (first, second) = stage.ask(ReadTogetherRequest([inner(offsets, 9), inner(offsets, 8)])).answers
    assert decoded(offsets, first, 9) == stage.ask(offsets, 9)
    assert decoded(offsets, second, 8) == stage.ask(offsets, 8)
    seen = DescribeObservationsRequest(None)
    (answer,) = stage.ask(ReadTogetherRequest([inner(seen)])).answers
    assert decoded(seen, answer).started_ms == stage.ask(seen).started_ms


def test_one_that_cannot_be_served_leaves_the_others(stage: NodeStage) -> None:
    makes = CreateTopicsRequest(topics=[CreatableTopic("new", 1, 1)], timeout_ms=1000)
    good = inner(ListGroupsRequest())
    bad = {
        ErrorCode.INVALID_REQUEST: [
            inner(makes),
            inner(ReadTogetherRequest([good])),
            InnerRequest(9999, 0, b""),
            InnerRequest(ApiKey.LIST_OFFSETS, 9, b"\x00"),
            InnerRequest(ApiKey.FETCH, 12, b""),
        ],
        ErrorCode.UNSUPPORTED_VERSION: [InnerRequest(ApiKey.LIST_OFFSETS, 99, b"")],
    }
    for error, requests in bad.items():
        for each in requests:
            before, refused, after = stage.ask(ReadTogetherRequest([good, each, good])).answers
            assert (before.error_code, refused.error_code, after.error_code) == (0, error, 0), each
    assert "new" not in stage.node.image.topics
    assert stage.ask(ReadTogetherRequest([])).answers == []


def test_it_is_bounded(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    good = inner(ListGroupsRequest())
    monkeypatch.setattr(k10902_read_together, "REQUESTS_MAX", 2)
    assert stage.ask(ReadTogetherRequest([good] * 3)).error_code == ErrorCode.INVALID_REQUEST
    monkeypatch.setattr(k10902_read_together, "ANSWER_BYTES_MAX", 3)
    first, second = stage.ask(ReadTogetherRequest([good] * 2)).answers
    assert (first.error_code, second.error_code) == (0, ErrorCode.MESSAGE_TOO_LARGE)
    monkeypatch.setattr(k10902_read_together, "ELEMENTS_MAX", 10)
    assert stage.ask(ReadTogetherRequest([inner(ends(-1))])).answers[0].error_code == ErrorCode.INVALID_REQUEST


def test_a_client_that_is_gone_ends_it(stage: NodeStage) -> None:
    connection = stage.connect()
    asked = stage.send(ReadTogetherRequest([inner(many_groups(), 9), inner(ends(-1))]), connection=connection)
    assert not asked.answered
    stage.hang_up(connection)
    stage.run()
    assert len(stage.node.parking) == 0


def test_only_requests_that_a_lone_node_serves_are_readable(stage: NodeStage) -> None:
    assert stage.node.served.keys() >= READABLE
