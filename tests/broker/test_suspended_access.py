"""A node that may have missed changes of ACLs and passwords refuses to decide by those that it knows."""

from pathlib import Path

import pytest

from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity, Principal
from ottla.broker.cluster.membership import Joining
from ottla.broker.effects import Close
from ottla.broker.requests import RequestRefusedError
from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.fetch import FetchRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.wire import Message
from tests.harness.node_stage import NodeStage

LEASE_MS = 6_000


class Lonely:
    """A node of a cluster, with ACLs, whose lease is over."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.stage = NodeStage(directory, joining=Joining("127.0.0.1", 9092, "life", LEASE_MS), **settings)
        membership = self.stage.node.membership
        assert membership is not None
        self.membership = membership
        self.hear()

    def hear(self) -> None:
        self.membership.confirmed(self.stage.now)
        self.membership.seen(self.stage.now, {1: "life"})
        self.stage.settle()

    def channel(self, user: str | None) -> Channel:
        channel = Channel(Identity(Address(self.stage.connect(), "127.0.0.1", security_protocol="SASL_PLAINTEXT")))
        if user is not None:
            channel.authenticate(Principal("User", user), "PLAIN")
        return channel

    def ask(self, channel: Channel, message: Message) -> bool:
        """Whether the request is served."""
        header = RequestHeader(message.API_KEY, type(message).MIN_VERSION, 1, "t")
        frame = memoryview(bytearray(encode_request(header, message)))[4:]
        try:
            self.stage.node.receive(self.stage.now, channel, frame)
        except RequestRefusedError:
            return False
        return True


@pytest.fixture
def node(tmp_path: Path) -> Lonely:
    acls = {"authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    return Lonely(tmp_path, **acls, super_users="User:root")


def test_what_depends_on_acls_is_refused_until_the_node_hears_of_its_cluster(node: Lonely) -> None:
    ada, root = node.channel("ada"), node.channel("root")
    sent_by_nodes_too = (FetchRequest(), FindCoordinatorRequest("group"))
    asked = (MetadataRequest([]), DescribeClusterRequest(), ListGroupsRequest(), *sent_by_nodes_too)
    assert all(node.ask(ada, message) for message in asked)
    node.stage.now += LEASE_MS + 1
    assert not any(node.ask(ada, message) for message in asked)
    assert all(node.ask(root, message) for message in asked), "a super user needs no ACL"
    assert node.ask(ada, ApiVersionsRequest())
    node.hear()
    assert all(node.ask(ada, message) for message in asked)


def test_nobody_logs_in_until_the_node_hears_of_its_cluster(node: Lonely) -> None:
    """Not even an exchange that has begun is concluded: the password may have been changed meanwhile."""
    for version in (0, 1):
        stranger = node.channel(None)
        handshake = SaslHandshakeRequest("SCRAM-SHA-512")
        frame = encode_request(RequestHeader(handshake.API_KEY, version, 1, "t"), handshake)
        node.stage.node.receive(node.stage.now, stranger, memoryview(bytearray(frame))[4:])
        node.stage.now += LEASE_MS + 1
        if version == 1:
            assert not node.ask(stranger, SaslAuthenticateRequest(b"n,,n=ada,r=x"))
        else:
            with pytest.raises(RequestRefusedError):
                node.stage.node.receive(node.stage.now, stranger, memoryview(bytearray(b"n,,n=ada,r=x")))
        node.hear()


def test_a_node_without_acls_answers_what_it_knows(tmp_path: Path) -> None:
    node = Lonely(tmp_path)
    ada = node.channel("ada")
    node.stage.now += LEASE_MS + 1
    assert node.ask(ada, MetadataRequest([]))
    assert not any(isinstance(effect, Close) for effect in node.stage.node.outbox.take())
