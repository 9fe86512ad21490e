"""Ottla's own requests from a client: nodes that serve them, nodes that do not, users who may not see the list."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ottla.client import Client, ClientError, ConnectionClosedError, UnsupportedVersionError
from ottla.client.private_requests import ask_node, ask_nodes
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import decode_request, encode_response
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.describe_observations import DescribeObservationsRequest, DescribeObservationsResponse
from ottla.protocol.messages.describe_share_partitions import (
    DescribeSharePartitionsRequest,
    DescribeSharePartitionsResponse,
)
from ottla.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from ottla.protocol.private_requests import PRIVATE_FROM
from ottla.testing import EmbeddedBroker

NODE = 5
OWN = ApiKey.DESCRIBE_SHARE_PARTITIONS
ASKED = DescribeSharePartitionsRequest("g")
ADVERTISED = (ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.DESCRIBE_CONFIGS)


class Scripted:
    """A broker whose answers a test decides: by API key, a message, or None to hang up. `asked`: the keys so far.
    `newest`: the newest version of Ottla's own requests that it answers."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[ApiKey] = []
        self.newest: int = answers.pop("newest", 99)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()

    def _serve(self, accepted: socket.socket) -> None:
        with accepted:
            while head := accepted.recv(4, socket.MSG_WAITALL):
                (length,) = struct.unpack(">i", head)
                header, _ = decode_request(accepted.recv(length, socket.MSG_WAITALL))
                self.asked.append(ApiKey(header.api_key))
                is_known = header.api_key < PRIVATE_FROM or header.api_version <= self.newest
                answer = self._answer(header.api_key) if is_known else None
                if answer is None:
                    return
                accepted.sendall(encode_response(header, answer))

    def _answer(self, key: int) -> Any:
        match key:
            case ApiKey.API_VERSIONS:
                return ApiVersionsResponse(
                    0, [ApiVersion(k, APIS[k].min_version, APIS[k].max_version) for k in ADVERTISED]
                )
            case ApiKey.METADATA:
                return MetadataResponse(brokers=[MetadataResponseBroker(NODE, "127.0.0.1", self.port)])
            case ApiKey.DESCRIBE_CONFIGS:
                return self.answers["configs"]
            case _:
                return self.answers["own"]


@contextmanager
def scripted(**answers: Any) -> Iterator[tuple[Scripted, Client]]:
    broker = Scripted(**answers)
    with Client(f"127.0.0.1:{broker.port}") as client:
        yield broker, client
    broker.listener.close()


def configs(error: ErrorCode = ErrorCode.NONE, **entries: str) -> DescribeConfigsResponse:
    rows = [DescribeConfigsResourceResult(name.replace("_", "."), value) for name, value in entries.items()]
    return DescribeConfigsResponse(results=[DescribeConfigsResult(error, None, 4, str(NODE), rows)])


def test_a_node_that_serves_it_answers(broker: EmbeddedBroker) -> None:
    with Client(broker.bootstrap_servers) as client:
        client.metadata([])
        (node_id,) = client.broker_ids()
        assert ask_node(client, node_id, ASKED).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        connection = client.broker(node_id)
        assert connection.private is not None
        assert OWN in connection.private
        assert OWN not in connection.ranges


def test_a_broker_without_the_entry_is_not_even_asked() -> None:
    """It is Kafka, or an earlier version of Ottla. One connection asks for the list once."""
    with scripted(configs=configs(), own=None) as (broker, client):
        for _ in range(2):
            with pytest.raises(UnsupportedVersionError, match="Node 5 does not serve DescribeSharePartitions"):
                ask_node(client, NODE, ASKED)
        assert OWN not in broker.asked
        assert broker.asked.count(ApiKey.DESCRIBE_CONFIGS) == 1


def test_versions_that_the_codec_lacks_are_not_sent() -> None:
    with scripted(configs=configs(ottla_private_requests="10900:7-9,12:0"), own=None) as (broker, client):
        with pytest.raises(UnsupportedVersionError):
            ask_node(client, NODE, ASKED)
        assert OWN not in broker.asked


DENIED = configs(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def test_who_may_not_see_the_list_tries_it() -> None:
    with scripted(configs=DENIED, own=DescribeSharePartitionsResponse(paused=True)) as (broker, client):
        for _ in range(2):
            assert ask_node(client, NODE, ASKED).paused
        assert broker.asked.count(ApiKey.DESCRIBE_CONFIGS) == 1, "each denial is in the audit log"


def test_who_may_not_see_the_list_loses_a_connection_for_each_version_at_a_broker_without_it() -> None:
    with scripted(configs=DENIED, own=None) as (broker, client):
        for _ in range(3):
            with pytest.raises(UnsupportedVersionError, match="does not serve"):
                ask_node(client, NODE, ASKED)
        assert broker.asked.count(OWN) == APIS[OWN].max_version + 1
        assert client.refused_private == {(NODE, OWN, version) for version in range(APIS[OWN].max_version + 1)}


def test_who_may_not_see_the_list_gets_the_answer_of_a_node_of_the_version_before() -> None:
    answer = DescribeObservationsResponse(now_ms=7)
    with scripted(configs=DENIED, own=answer, newest=0) as (broker, client):
        for _ in range(2):
            assert ask_node(client, NODE, DescribeObservationsRequest()).now_ms == 7
        assert broker.asked.count(ApiKey.DESCRIBE_OBSERVATIONS) == 3, "version 1 costs one connection"
        assert broker.asked.count(ApiKey.DESCRIBE_CONFIGS) == 1


@pytest.mark.parametrize("listed", [True, False])
def test_a_request_that_needs_a_newer_version_is_not_sent_in_an_older_one(listed: bool) -> None:
    of_node = configs(ottla_private_requests="10901:0-0") if listed else DENIED
    with scripted(configs=of_node, own=DescribeObservationsResponse(now_ms=7), newest=0) as (_, client):
        for _ in range(2):
            with pytest.raises(UnsupportedVersionError, match="does not serve DescribeObservations"):
                ask_node(client, NODE, DescribeObservationsRequest(None, 2, "t"), 1)
        assert ask_node(client, NODE, DescribeObservationsRequest("g")).now_ms == 7


def test_a_connection_that_is_lost_otherwise_says_nothing_about_what_is_served() -> None:
    listed = configs(ottla_private_requests="10900:0-0")
    for answers in ({"configs": listed, "own": None}, {"configs": None, "own": None}):
        with scripted(**answers) as (_, client), pytest.raises(ConnectionClosedError):
            ask_node(client, NODE, ASKED)
        assert client.refused_private == set()


def test_each_node_has_its_answer_or_its_error() -> None:
    with scripted(configs=configs(ottla_private_requests="10900:0-0"), own=DescribeSharePartitionsResponse()) as (
        _,
        client,
    ):
        answers = ask_nodes(client, {NODE: ASKED, 77: ASKED})
        assert isinstance(answers[77], ClientError)
        assert answers[NODE] == DescribeSharePartitionsResponse()
