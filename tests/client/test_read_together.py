"""Several questions in one request: the same answers as one by one, and one request where the node serves that."""

import pytest

from ottla.client import Client, read_together
from ottla.client.connection import Connection
from ottla.client.errors import BrokerError, ClientError, ConnectionClosedError, UnsupportedVersionError
from ottla.client.read_together import InVersions
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.describe_observations import DescribeObservationsRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.testing import EmbeddedBroker
from tests.client.test_private_requests import NODE, configs, scripted

POSITIONS = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
QUESTIONS = [
    ListGroupsRequest(),
    DescribeGroupsRequest(["g"]),
    InVersions(POSITIONS, 8, 9),
    InVersions(POSITIONS, 99, 99),
]


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> list[ApiKey]:
    """The requests that are sent."""
    keys: list[ApiKey] = []
    post = Connection.post
    monkeypatch.setattr(
        Connection, "post", lambda self, message, *a, **k: keys.append(message.API_KEY) or post(self, message, *a, **k)
    )
    return keys


def test_the_answers_are_those_of_requests_of_their_own(
    broker: EmbeddedBroker, posted: list[ApiKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.metadata([])
        (node,) = client.broker_ids()
        posted.clear()
        *together, refused = read_together.read_together(client, {node: QUESTIONS})[node]
        assert posted == [ApiKey.DESCRIBE_CONFIGS, ApiKey.READ_TOGETHER]
        assert isinstance(refused, UnsupportedVersionError)
        monkeypatch.setattr(
            read_together, "ask_nodes", lambda client, asked: dict.fromkeys(asked, UnsupportedVersionError("no"))
        )
        posted.clear()
        *alone, refused = read_together.read_together(client, {node: QUESTIONS})[node]
        assert posted == [ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_GROUPS, ApiKey.OFFSET_FETCH]
        assert isinstance(refused, UnsupportedVersionError)
        assert alone == together
        assert read_together.read_together(client, {node: []}) == {node: []}


def test_what_may_not_be_asked_in_this_way_is_refused(broker: EmbeddedBroker) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.metadata([])
        (node,) = client.broker_ids()
        topic = CreateTopicsRequest(topics=[CreatableTopic("refused", 1, 1)], timeout_ms=1000)
        listed, refused = read_together.read_together(client, {node: [ListGroupsRequest(), topic]})[node]
        assert not listed.error_code
        assert isinstance(refused, BrokerError)
        assert "refused" not in {each.name for each in client.topics()}


def test_an_unreachable_node_has_an_error_for_each_question(broker: EmbeddedBroker) -> None:
    with Client(broker.bootstrap_servers) as client:
        found = read_together.read_together(client, {77: QUESTIONS[:2]})[77]
    assert [isinstance(each, ClientError) for each in found] == [True, True]


def test_another_kafka_is_asked_one_by_one() -> None:
    """Its own requests are answered or refused; those of Ottla are not even sent."""
    questions = [ListGroupsRequest(), DescribeObservationsRequest(None)]
    with scripted(configs=configs(), own=None) as (broker, client):
        listed, remembered = read_together.read_together(client, {NODE: questions})[NODE]
        assert isinstance(listed, UnsupportedVersionError), "the broker does not advertise it"
        assert isinstance(remembered, UnsupportedVersionError)
        assert not {ApiKey.READ_TOGETHER, ApiKey.DESCRIBE_OBSERVATIONS} & set(broker.asked)


def test_a_lost_connection_is_an_error_of_each_question() -> None:
    with scripted(configs=configs(ottla_private_requests="10902:0-0"), own=None) as (_, client):
        questions = [DescribeObservationsRequest(None), DescribeObservationsRequest("g")]
        found = read_together.read_together(client, {NODE: questions})[NODE]
        assert [type(each) for each in found] == [UnsupportedVersionError, UnsupportedVersionError]
    with scripted(configs=configs(ottla_private_requests="10901:0-0,10902:0-0"), own=None) as (_, client):
        found = read_together.read_together(client, {NODE: questions})[NODE]
        assert [type(each) for each in found] == [ConnectionClosedError, ConnectionClosedError]
