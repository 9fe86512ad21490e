"""Long answers, made a slice at a time: the same bytes as in one go, and others are served in between."""

from pathlib import Path

import pytest
from node_stage import CONTEXT, NodeStage, versions_of

from ottla.broker.api import k03_metadata, k32_describe_configs
from ottla.broker.requests import Parked
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

TOPIC, BROKER, GROUP = 2, 4, 32


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node", num_partitions="1")
    topics = [CreatableTopic(f"t{n}", 1 + 9 * (n == 3), 1) for n in range(12)]
    topics[5].configs = [CreatableTopicConfig("retention.ms", "7")]
    stage.ask(CreateTopicsRequest(topics))
    return stage


def all_topics() -> MetadataRequest:
    return MetadataRequest(topics=None)


@pytest.mark.parametrize("version", versions_of(3))
def test_metadata_in_slices_is_metadata_in_one_go(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    requests = [MetadataRequest(topics=None if version else [])]
    requests.append(MetadataRequest([MetadataRequestTopic(name=f"t{n}") for n in (3, 1, 99, 2, 1)]))
    requests[1].allow_auto_topic_creation = False
    stage.ask(requests[1], version)  # before version 4 nobody can say that topics are not to be made
    if version >= 12:
        ids = [stage.node.topics.by_name[f"t{n}"].id for n in range(6)]
        requests.append(MetadataRequest([MetadataRequestTopic(topic_id, None) for topic_id in ids]))
    whole = [stage.ask(request, version) for request in requests]
    monkeypatch.setattr(k03_metadata, "SLICE_STEPS", 2)
    monkeypatch.setattr(k03_metadata, "NAMES_AT_ONCE", 2)
    assert [stage.ask(request, version) for request in requests] == whole


def test_missing_topics_are_made_although_the_answer_comes_in_slices(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(k03_metadata, "SLICE_STEPS", 2)
    monkeypatch.setattr(k03_metadata, "NAMES_AT_ONCE", 2)
    stage.ask(MetadataRequest([MetadataRequestTopic(name=f"new{n}") for n in range(9)]))
    assert all(f"new{n}" in stage.node.topics.by_name for n in range(9))


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("keys", [None, ["retention.ms", "num.partitions", "nosuch"]])
def test_many_configurations_are_what_they_are_one_by_one(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch, version: int, keys: list[str] | None
) -> None:
    """Also where some can't be told, and some read like others."""
    named = [(TOPIC, f"t{n}") for n in (1, 5, 99, 2, 5)]
    named += [(BROKER, "0"), (BROKER, "1"), (BROKER, "1"), (GROUP, "a"), (GROUP, "b"), (GROUP, ""), (TOPIC, "x" * 200)]
    resources = [DescribeConfigsResource(kind, name, keys) for kind, name in named]
    request = DescribeConfigsRequest(resources, include_synonyms=True, include_documentation=True)
    sliced = stage.ask(request, version)
    monkeypatch.setattr(k32_describe_configs, "ANSWERED_AT_ONCE_MAX", 1000)
    assert sliced == stage.ask(request, version)


def test_a_long_answer_shares_the_bytes_that_read_the_same(stage: NodeStage) -> None:
    request = DescribeConfigsRequest([DescribeConfigsResource(GROUP, f"g{n}", None) for n in range(3000)])
    frame = encode_request(RequestHeader(32, 4, 7, "stage"), request)
    parked = stage.node.receive(stage.now, CONTEXT, memoryview(frame)[4:])
    assert isinstance(parked, Parked)
    parts = stage.in_slices(parked)
    kept = {id(part): len(part) for part in parts if isinstance(part, bytes)}
    assert sum(len(part) for part in parts if isinstance(part, bytes)) > 10 * sum(kept.values())


def test_a_request_whose_client_is_gone_is_dropped(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k03_metadata, "SLICE_STEPS", 1)
    frame = encode_request(RequestHeader(3, 9, 7, "stage"), all_topics())
    assert isinstance(stage.node.receive(stage.now, CONTEXT, memoryview(frame)[4:]), Parked)
    stage.node.disconnected(stage.now, CONTEXT)
    stage.node.tick(stage.now)
    assert stage.node.slices.deadline() is None
    assert stage.node.take_effects(stage.now) == []


def test_a_failure_in_a_slice_closes_its_connection_and_no_other(
    stage: NodeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(k03_metadata, "SLICE_STEPS", 1)
    frame = encode_request(RequestHeader(3, 9, 7, "stage"), all_topics())
    assert isinstance(stage.node.receive(stage.now, CONTEXT, memoryview(frame)[4:]), Parked)
    monkeypatch.setattr(k03_metadata, "encoded", None)
    faults: list[str] = []
    monkeypatch.setattr(stage.node, "fault", lambda sentence, _: faults.append(sentence))
    stage.node.tick(stage.now)
    assert len(faults) == len(stage.node.take_effects(stage.now)) == 1
    assert stage.node.slices.deadline() is None
    assert len(stage.node.waiting) == 0
