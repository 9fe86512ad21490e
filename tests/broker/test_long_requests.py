"""Long requests are read apart from serving them, and refused where they are longer than anybody needs."""

import struct

import pytest

from ottla.broker import node as node_module
from ottla.broker.requests import RequestRefusedError
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.wire import Message
from tests.harness.node_stage import CHANNEL, NodeStage


def framed(message: Message, version: int) -> memoryview:
    return memoryview(encode_request(RequestHeader(message.API_KEY, version, 7, "stage"), message))[4:]


def fetch_of(partitions: int) -> FetchRequest:
    asked = [FetchPartition(partition=index) for index in range(partitions)]
    return FetchRequest(session_epoch=-1, topics=[FetchTopic(topic="t", partitions=asked)])


@pytest.mark.parametrize(
    ("request_", "version"),
    [(MetadataRequest(topics=None), 9), (ListGroupsRequest(), 4), (fetch_of(3), 12)],
)
def test_what_was_read_before_is_served_as_what_is_read_then(stage: NodeStage, request_: Message, version: int) -> None:
    frame = framed(request_, version)
    decoded = stage.node.decode(frame)
    assert decoded is not None
    assert stage.node.receive(stage.now, CHANNEL, frame, decoded) == stage.node.receive(stage.now, CHANNEL, frame)


@pytest.mark.parametrize("request_", [MetadataRequest([MetadataRequestTopic(name="t")] * 11), fetch_of(10)])
def test_a_request_that_names_more_than_there_can_be_is_refused(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, request_: Message
) -> None:
    monkeypatch.setattr(node_module, "LONG_ELEMENTS_MAX", 10)
    with pytest.raises(RequestRefusedError, match="more than 10"):
        stage.node.decode(framed(request_, 12 if request_.API_KEY == 1 else 9))


def test_a_request_of_more_bytes_than_anybody_needs_is_refused(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "LONG_BYTES_MAX", 100)
    with pytest.raises(RequestRefusedError, match="at most 100"):
        stage.node.decode(framed(fetch_of(10), 12))


def test_what_cannot_be_read_is_refused(stage: NodeStage) -> None:
    with pytest.raises(RequestRefusedError, match="does not parse"):
        stage.node.decode(framed(fetch_of(3), 12)[:60])
    with pytest.raises(RequestRefusedError, match="version 99"):
        stage.node.decode(memoryview(struct.pack(">hhih", 3, 99, 1, -1)))
    assert stage.node.decode(memoryview(struct.pack(">hhih", 999, 0, 1, -1))) is None
